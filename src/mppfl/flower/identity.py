"""Which client a node is: the settings on the client's machine, and the registry of keys on the server's.

Flower authenticates a SuperNode by its key and tells the server app which key each node holds. With a `Registry` that
key decides which client it is. Without one, nodes are asked for their names and trusted: for simulations, or where the
network itself is trusted. Node ids and the order of lists decide nothing: both change.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from os.path import relpath
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from mppfl.arrays import require_number
from mppfl.errors import BadFile, BadInput
from mppfl.fields import require_known
from mppfl.files import read_toml, toml_text
from mppfl.flower.wire import WHO
from mppfl.privacy.ledger import name_of

log = logging.getLogger(__name__)

NODE_KEY = "mppfl-node"  # of Flower's node configuration
PATHS = ("ledger", "experiment")
RELEASES = ("gradient", "steps", "update")  # what may leave a client, as Protection names it


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One client's own settings, which the server never sees: a small TOML file on the client's machine.

    Flower's node configuration names the file: --node-config 'mppfl-node="/home/ann/node.toml"'.

    Args:
        client: the name under which the server knows this client.
        ledger: file of the client's privacy ledger: what it has spent, over all runs and servers.
        cap: ρ that may be spent in all; None for no limit.
        cap_per_round: ρ that may be spent in one round; None for no limit.
        accept: what it releases: "gradient", "steps" or "update".
        without_noise: whether it may send an upload without noise.
        experiment: the experiment file on this machine, for the app of `deploy init`; without it, the app's own.

    Raises:
        BadInput: where a cap is negative or a release unknown.

    Example:
        node = NodeSettings("ann", Path("ledger.sqlite"), cap=2.5, accept=("update",))
        Path("node.toml").write_text(node.to_toml())
    """

    client: str
    ledger: Path
    cap: float | None = None
    cap_per_round: float | None = None
    accept: tuple[str, ...] = RELEASES
    without_noise: bool = False
    experiment: Path | None = None

    def __post_init__(self) -> None:
        name_of(self.client)
        for name in ("cap", "cap_per_round"):
            if getattr(self, name) is not None:
                require_number(getattr(self, name), name, 0.0, math.inf, open_ends=False)
        require_known(self.accept, RELEASES, "accept")

    def to_toml(self, folder: Path | None = None) -> str:
        """The file that `read_node` reads back as these settings; with `folder`, paths are relative to it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values = {name: value for name, value in values.items() if value is not None}
        for name in PATHS:
            if name in values:
                values[name] = str(values[name]) if folder is None else relpath(values[name], folder)
        return toml_text(values)


DEFAULTS = {field.name: field.default for field in fields(NodeSettings) if field.default is not MISSING}
KINDS: dict[str, tuple[type, ...]] = {  # of values in the file
    **dict.fromkeys(("client", *PATHS), (str,)),
    **dict.fromkeys(("cap", "cap_per_round"), (int, float)),
    "accept": (list,),
    "without_noise": (bool,),
}


def read_node(path: str | Path) -> NodeSettings:
    """The settings in a TOML file. Relative paths are relative to it; an unknown key raises with the nearest known."""
    path = Path(path)
    values = read_toml(path)
    try:
        require_known(values, KINDS)
        for key, kinds in KINDS.items():
            value = values.get(key, DEFAULTS.get(key))
            if key not in DEFAULTS and not isinstance(value, str):
                raise BadInput(f"{key}={value!r} must be text. Give it.")
            if key in values and type(value) not in kinds:
                raise BadInput(f"{key}={value!r} is of the wrong kind. docs/deploy.md has an example.")
        for key in PATHS:
            if key in values:
                values[key] = path.absolute().parent / Path(values[key]).expanduser()
        if "accept" in values:
            values["accept"] = tuple(map(str, values["accept"]))
        return NodeSettings(**values)
    except BadInput as cause:
        raise BadFile(f"{path}: {cause}") from cause


def node_of(context: Context) -> NodeSettings:
    """The settings that Flower's node configuration names."""
    path = context.node_config.get(NODE_KEY)
    if not isinstance(path, str):
        raise BadInput(
            f"the node configuration has no {NODE_KEY}. Start with --node-config '{NODE_KEY}=\"node.toml\"'."
        )
    return read_node(path)


# ---- on the server --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Registry:
    """Which key belongs to which client.

    Args:
        clients: names by public key, in PEM. `of_keys` and `read` take OpenSSH keys, as ssh-keygen writes them.

    Example:
        registry = Registry.of_keys({"ann": "ecdsa-sha2-nistp384 AAAA...", "bob": "ecdsa-sha2-nistp384 AAAB..."})
    """

    clients: dict[bytes, str]

    def __repr__(self) -> str:
        return f"Registry({len(self.clients)} clients)"

    @classmethod
    def of_keys(cls, keys: dict[str, str]) -> Registry:
        """A registry of OpenSSH public keys by client.

        Raises:
            BadInput: where a text is no key, or two clients have the same.
        """
        clients: dict[bytes, str] = {}
        for client, text in keys.items():
            key = pem_of(text, client)
            if key in clients:
                raise BadInput(
                    f"clients {clients[key]!r} and {client!r} have the same key. Give each a key of its own."
                )
            clients[key] = client
        return cls(clients)

    @classmethod
    def read(cls, path: str | Path) -> Registry:
        """A registry from a JSON file {"client": "ecdsa-sha2-nistp384 AAAA...", ...}.

        Raises:
            BadFile: where the file cannot be read or holds no such keys.
        """
        try:
            return cls.of_keys(read_keys(Path(path)))
        except BadFile:
            raise
        except BadInput as cause:
            raise BadFile(f"{path}: {cause}") from cause


def read_keys(path: Path) -> dict[str, str]:
    """The public key of every client, in OpenSSH form, from a JSON file."""
    try:
        keys = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as cause:
        raise BadFile(f"{path}: cannot be read as JSON ({cause}). Check the path, or restore a copy.") from cause
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise BadFile(f"{path}: must give each client's name its OpenSSH public key. Restore a copy.")
    return keys


def pem_of(openssh: str, client: str) -> bytes:
    """An OpenSSH public key in the form in which Flower names it."""
    try:
        key = serialization.load_ssh_public_key(openssh.encode())
    except (ValueError, UnsupportedAlgorithm) as cause:
        raise BadInput(f"the key of client {client!r} is no OpenSSH public key ({cause}).") from cause
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Attendance:
    """Which client each connected node is, updated round by round."""

    def __init__(self, clients: Sequence[str], registry: Registry | None) -> None:
        self.clients, self.registry = frozenset(clients), registry
        self._declared: dict[int, str] = {}
        self._strangers: set[int] = set()

    def here(self, grid: Grid, timeout: float) -> dict[str, int]:
        """The node of every client of the plan that is connected now; the others are left out."""
        if self.registry is not None:
            return self._unambiguous(self._by_key(grid.get_nodes(), self.registry))
        present = set(grid.get_node_ids())
        new_nodes = sorted(present - self._declared.keys() - self._strangers)
        if new_nodes:
            self._ask(grid, new_nodes, timeout)
        return self._unambiguous((client, node) for node, client in self._declared.items() if node in present)

    def _by_key(self, nodes: Iterable[Any], registry: Registry) -> Iterable[tuple[str, int]]:
        for node in nodes:
            client = registry.clients.get(bytes(node.public_key))
            if client is None:
                self._leave_out(node.node_id, "its key is not registered")
            elif client in self.clients:
                yield client, int(node.node_id)
            else:
                self._leave_out(node.node_id, f"client {client!r} is not in the plan")

    def _ask(self, grid: Grid, nodes: Sequence[int], timeout: float) -> None:
        """Asks nodes for their names. A node that does not answer is asked again next time; a stranger is not."""
        messages = [Message(RecordDict({WHO: ConfigRecord({})}), node, MessageType.TRAIN) for node in nodes]
        for reply in grid.send_and_receive(messages, timeout=timeout):
            if reply.has_error():
                continue
            record: Any = reply.content.get(WHO)
            client = record.get("client") if record is not None else None
            node = reply.metadata.src_node_id
            if isinstance(client, str) and client in self.clients:
                self._declared[node] = client
            else:
                self._leave_out(node, f"it declares to be {client!r:.60}, whom the plan does not know")

    def _unambiguous(self, pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
        """One node per client; where two claim to be the same client, neither is asked."""
        claims: dict[str, list[int]] = {}
        for client, node in pairs:
            claims.setdefault(client, []).append(node)
        for client, nodes in claims.items():
            if len(nodes) > 1:
                log.warning("%d nodes say they are client %r: none of them is asked", len(nodes), client)
        return {client: nodes[0] for client, nodes in claims.items() if len(nodes) == 1}

    def _leave_out(self, node: int, reason: str) -> None:
        if node not in self._strangers:
            self._strangers.add(node)
            log.warning("node %d is left out: %s", node, reason)
