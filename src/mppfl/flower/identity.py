"""Who stands behind a node: by the key it proved to hold, or by the name it declares.

Flower authenticates a SuperNode by its key and tells the server app which key each node holds. With a `Registry` that
key decides who a client is. Without one, nodes are asked for their names and believed: for simulations, or where the
network itself is trusted. Node ids and the order of lists decide nothing: both change.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from mppfl.errors import BadFile, BadInput
from mppfl.flower.wire import WHO

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
