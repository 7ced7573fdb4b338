"""WatchfulGrid: waits for answers, and does not wait for those that can no longer come.

Flower reports an answer as lost while its node is offline. A node that was killed and started again between two looks
is online as before, but the message died with the old process: the round would wait for it until its time is up. So
this grid also looks at when each node was last activated: a node that came back after it was asked has forgotten it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
LOOK_SECONDS = 5.0  # between two looks at the nodes


class WatchfulGrid(Grid):
    """The same grid, with another way to wait."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answers to these messages: until all are there, their nodes have forgotten them, or the time is up."""
        sent = list(messages)
        if not sent:
            return []
        before = self._activations()
        taken = set(self.grid.push_messages(sent))
        waiting = {each.metadata.message_id: each.metadata.dst_node_id for each in sent}
        waiting = {message: node for message, node in waiting.items() if message in taken}
        found: list[Message] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        looked, suspects = time.monotonic(), set[str]()
        while waiting:
            for reply in self.grid.pull_messages(set(waiting)):
                found.append(reply)
                waiting.pop(reply.metadata.reply_to_message_id, None)
            if not waiting or (deadline is not None and time.monotonic() > deadline):
                break
            if time.monotonic() - looked > LOOK_SECONDS:
                looked, now = time.monotonic(), self._activations()
                back = {message for message, node in waiting.items() if node in now and now[node] != before.get(node)}
                for message in back & suspects:  # seen twice, so an answer on its way has had time to arrive
                    log.warning("node %d came back and has forgotten what it was asked", waiting.pop(message))
                suspects = back
            time.sleep(POLL_SECONDS)
        return found

    def _activations(self) -> dict[int, str]:
        """When each connected node was last activated, as the SuperLink says it."""
        return {int(node.node_id): str(getattr(node, "last_activated_at", "")) for node in self.grid.get_nodes()}

    # ---- the rest is the grid's own -----------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)
