"""Who stands behind a node: by the key it proved to hold, or by the name it declares.

Flower authenticates a SuperNode by its key and tells the server app which key each node holds. With a `Registry` that
key decides who a client is. Without one, nodes are asked for their names and believed: for simulations, or where the
network itself is trusted. Node ids and the order of lists decide nothing: both change.
"""

from __future__ import annotations

import json
import logging
import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from os.path import relpath
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from mppfl.arrays import require_number
from mppfl.errors import BadFile, BadInput
from mppfl.experiment import write_toml
from mppfl.flower.wire import WHO
from mppfl.privacy import MECHANISMS
from mppfl.privacy.ledger import name_of

NODE_KEY = "mppfl-node"
PATHS = ("ledger", "experiment")
LIMITS = ("cap", "cap_per_round")
# Those whose budget holds whatever the data are; `paper` has to be accepted by name.
SOUND = tuple(name for name in MECHANISMS if name not in ("paper", "dpsgd_poisson"))


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One client's own settings; paths are absolute.

    experiment  the experiment file on this machine, where the app is mppfl's own
    """

    client: str
    ledger: Path
    cap: float | None = None
    cap_per_round: float | None = None
    accept: tuple[str, ...] = SOUND
    without_noise: bool = False
    experiment: Path | None = None

    def __post_init__(self) -> None:
        name_of(self.client)
        for name in LIMITS:
            if getattr(self, name) is not None:
                require_number(getattr(self, name), name, 0.0, math.inf, open_ends=False)
        for each in self.accept:
            if each not in MECHANISMS:
                raise BadInput(f"accept={each!r} is not known. Known: {', '.join(MECHANISMS)}.")

    def to_toml(self, folder: Path | None = None) -> str:
        """The file that `read_node` reads back as these settings.

        With the folder that it will lie in, paths are written relative to it, so that they move with it.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if folder is not None:
            values |= {name: relpath(values[name], folder) for name in PATHS if values[name] is not None}
        return write_toml({name: _plain(value) for name, value in values.items() if value is not None})


def read_node(path: str | Path) -> NodeSettings:
    """The settings in a TOML file. Relative paths are relative to it; an unknown key raises with the nearest known."""
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as cause:
        raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check the path.") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise BadFile(f"{path}: not TOML ({cause}). Correct that place.") from cause
    known = [field.name for field in fields(NodeSettings)]
    for key in raw:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise BadFile(f"{path}: {key!r} is not known.{f' Did you mean {near[0]!r}?' if near else ''}")
    for key in ("client", "ledger"):
        if not isinstance(raw.get(key), str):
            raise BadFile(f"{path}: {key}={raw.get(key)!r} must be text. Give it.")
    wanted: dict[str, Any] = dict.fromkeys(LIMITS, (int, float))
    wanted |= {"without_noise": bool, "accept": list, "experiment": str}
    for key, kind in wanted.items():
        if key in raw and (not isinstance(raw[key], kind) or (isinstance(raw[key], bool) and kind is not bool)):
            raise BadFile(f"{path}: {key}={raw[key]!r} is of the wrong kind. docs/deploy.md has an example.")
    for key in PATHS:
        if key in raw:
            raw[key] = path.absolute().parent / Path(raw[key]).expanduser()
    if "accept" in raw:
        raw["accept"] = tuple(map(str, raw["accept"]))
    try:
        return NodeSettings(**raw)
    except BadInput as cause:
        raise BadFile(f"{path}: {cause}") from cause


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


# ---- Who stands behind a node: by the key it proved to hold, or by the name it declares -----------------------------

# Flower authenticates a SuperNode by its key and tells the server app which key each node holds. With a `Registry` that
# key decides who a client is. Without one, nodes are asked for their names and believed: for simulations, or where the
# network itself is trusted. Node ids and the order of lists decide nothing: both change.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registry:
    """Which key belongs to which client: clients by their public keys, in PEM."""

    clients: dict[bytes, str]

    @classmethod
    def of_keys(cls, keys: dict[str, str]) -> Registry:
        """From OpenSSH public keys by client, one each."""
        found: dict[bytes, str] = {}
        for client, text in keys.items():
            key = pem_of(text, client)
            if key in found:
                raise BadInput(f"clients {found[key]!r} and {client!r} have the same key. Give each a key of its own.")
            found[key] = client
        return cls(found)

    @classmethod
    def read(cls, path: str | Path) -> Registry:
        """From a JSON file {"client": "ecdsa-sha2-nistp384 AAAA...", ...}."""
        path = Path(path)
        try:
            raw = json.loads(path.read_text("utf-8"))
            if not isinstance(raw, dict) or not all(isinstance(text, str) for text in raw.values()):
                raise ValueError("not an object of texts")
        except OSError as cause:
            raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check the path.") from cause
        except ValueError as cause:
            raise BadFile(
                f"{path}: not a registry of keys ({cause}). It maps clients to OpenSSH public keys."
            ) from cause
        try:
            return cls.of_keys(raw)
        except BadInput as cause:
            raise BadFile(f"{path}: {cause}") from cause


def pem_of(openssh: str, client: str) -> bytes:
    """An OpenSSH public key in the form in which Flower names it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_public_key(openssh.encode())
    except (ValueError, UnsupportedAlgorithm) as cause:
        raise BadInput(f"the key of client {client!r} is no OpenSSH public key ({cause}).") from cause
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Attendance:
    """Which client each connected node is, kept up to date round by round."""

    def __init__(self, clients: Sequence[str], registry: Registry | None) -> None:
        self.clients, self.registry = frozenset(clients), registry
        self._declared: dict[int, str] = {}
        self._strangers: set[int] = set()

    def here(self, grid: Grid, timeout: float) -> dict[str, int]:
        """The node of every client of the plan that is connected now; the others are left out."""
        if self.registry is not None:
            return self._by_key(grid.get_nodes(), self.registry)
        present = set(grid.get_node_ids())
        unknown = sorted(present - self._declared.keys() - self._strangers)
        if unknown:
            self._ask(grid, unknown, timeout)
        return self._once((client, node) for node, client in self._declared.items() if node in present)

    def _by_key(self, nodes: Iterable[Any], registry: Registry) -> dict[str, int]:
        pairs = []
        for node in nodes:
            client = registry.clients.get(bytes(node.public_key))
            if client is None:
                self._turn_away(node.node_id, "its key is not registered")
            elif client in self.clients:
                pairs.append((client, int(node.node_id)))
            else:
                self._turn_away(node.node_id, f"client {client!r} is not in the plan")
        return self._once(pairs)

    def _ask(self, grid: Grid, nodes: Sequence[int], timeout: float) -> None:
        """Asks nodes who they are. Who does not answer is asked again next time; who is nobody of the plan is not."""
        asked = [Message(RecordDict({WHO: ConfigRecord({})}), node, MessageType.TRAIN) for node in nodes]
        for reply in grid.send_and_receive(asked, timeout=timeout):
            if reply.has_error():
                continue
            record: Any = reply.content.get(WHO)
            client = record.get("client") if record is not None else None
            node = reply.metadata.src_node_id
            if isinstance(client, str) and client in self.clients:
                self._declared[node] = client
            else:
                self._turn_away(node, f"it declares to be {client!r:.60}, whom the plan does not know")

    def _once(self, pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
        """One node per client; where two claim to be the same, neither is believed."""
        found: dict[str, list[int]] = {}
        for client, node in pairs:
            found.setdefault(client, []).append(node)
        for client, nodes in found.items():
            if len(nodes) > 1:
                log.warning("%d nodes say they are client %r: none of them is asked", len(nodes), client)
        return {client: nodes[0] for client, nodes in found.items() if len(nodes) == 1}

    def _turn_away(self, node: int, why: str) -> None:
        if node not in self._strangers:
            self._strangers.add(node)
            log.warning("node %d is left out: %s", node, why)
