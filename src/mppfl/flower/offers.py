"""Offers over Flower: the server announces rates and exposures, clients answer with budgets (mppfl.game.distributed).

    ask = asking_over(grid, Attendance(clients, registry), clients)
    plan = agree_on_budgets(ask, propagation, externality_strength=0.05, reward_rates=rates).plan

A client's costs stand in its own settings and never leave them. One announcement is one message to every client, with
all rounds in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from mppfl.arrays import Array
from mppfl.errors import BadInput, MppflError
from mppfl.flower.identity import Attendance
from mppfl.flower.node import NodeSettings
from mppfl.flower.wire import OFFER
from mppfl.game import Ask, Respondent


def answered(node: NodeSettings, message: Message) -> Message:
    """The client's budgets at what was announced, or an empty answer where it has stated no costs."""
    record: Any = message.content[OFFER]
    found = ConfigRecord({})
    if node.quadratic_cost is not None:
        high = np.inf if node.budget_max is None else node.budget_max
        costs = Respondent(node.quadratic_cost, node.linear_cost or 0.0, 0.0, high)
        rates, exposures = (np.array(record[name], dtype=np.float64) for name in ("reward_rates", "exposures"))
        found["budgets"] = costs.answer(rates, exposures).tolist()
    return Message(RecordDict({OFFER: found}), reply_to=message)


def asking_over(grid: Grid, attendance: Attendance, clients: Sequence[str], timeout: float = 600.0) -> Ask:
    """Asks these clients, wherever they are. Raises, naming the first, where one is not there or does not answer."""

    def ask(reward_rates: Array, exposures: Array) -> Array:
        nodes = attendance.here(grid, timeout)
        missing = [client for client in clients if client not in nodes]
        if missing:
            raise MppflError(
                f"client {missing[0]!r} is not connected ({len(missing)} such). An equilibrium needs everybody."
            )
        messages = [
            Message(
                RecordDict(
                    {
                        OFFER: ConfigRecord(
                            {"reward_rates": reward_rates.tolist(), "exposures": exposures[:, at].tolist()}
                        )
                    }
                ),
                nodes[client],
                MessageType.TRAIN,
            )
            for at, client in enumerate(clients)
        ]
        replies = list(grid.send_and_receive(messages, timeout=timeout))
        by_message = {message.metadata.message_id: client for client, message in zip(clients, messages, strict=True)}
        found = {by_message.get(reply.metadata.reply_to_message_id, ""): reply for reply in replies}
        return np.array([_budgets(client, found.get(client), len(reward_rates)) for client in clients]).T

    return ask


def _budgets(client: str, reply: Message | None, num_rounds: int) -> Array:
    if reply is None or reply.has_error():
        why = "no answer came" if reply is None else reply.error.reason
        raise MppflError(f"client {client!r} did not answer an offer: {why}.")
    record: Any = reply.content.get(OFFER)
    budgets = None if record is None else record.get("budgets")
    if not isinstance(budgets, list) or len(budgets) != num_rounds:
        raise BadInput(
            f"client {client!r} answered an offer without {num_rounds} budgets. State its costs in node.toml."
        )
    return np.array(budgets, dtype=np.float64)
