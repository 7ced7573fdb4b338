"""RoundRecord: what happened in one federated round, and a table of many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from mppfl.arrays import Array, BoolArray


@dataclass(frozen=True, eq=False, slots=True)
class RoundRecord:
    """One round as the server saw it. Arrays have one entry per client.

    reward_rate     announced for this round
    budgets         ρ of the game that the plan asked of each client
    payments        money each client got: its price times its budget of the game
    spent           ρ each client was charged in its ledger: budget_unit · budget, 0 for those who stayed out. Under
                    dpsgd_poisson the ρ whose ε the noise was calibrated to; its ledger holds the noise itself
    participating   who uploaded
    noise_std       standard deviation of the noise on each client's update, per parameter
    theta           weight of each client's update in the mean; sums to 1
    dispersion      estimated squared distance of clients' updates from their mean (noise_aware), else NaN
    clip_norm       𝒮 in this round
    share_clipped   share of participants whose update was shortened, in simulations: it is computed from raw updates,
                    so under noise that protects it is NaN, and where gradients are clipped instead
    update_norm     length of the mean update
    accuracy, loss  on the test data; NaN in rounds without evaluation
    dp_epsilon      nominal ε of the client who has spent most so far, at the configured δ; infinite without noise.
                    Under dpsgd_poisson it is known after the last round, NaN before
    worst_case_epsilon  the same from what budgets really cost: much more for `paper`, equal for the others. Not part of
                    a History; a run's accounts hold it for every client
    seconds         wall time of the round
    weights         the model after the round, as one flat vector
    server          the server optimiser's memory after the round, by name: what a resumed training needs beside weights
    engine          what computed the clients
    refused         clients whose cap forbade the round, or whose upload of it is stored in the ledger already
    diverged        clients whose update held NaN or infinity: left out, and not charged where noise is on the update.
                    Nobody is named where noise on the update protects: it went out as 0 with its noise
    """

    round_index: int
    reward_rate: float
    budgets: Array
    payments: Array
    spent: Array
    participating: BoolArray
    noise_std: Array
    theta: Array
    dispersion: float
    clip_norm: float
    share_clipped: float
    update_norm: float
    accuracy: float
    loss: float
    dp_epsilon: float
    seconds: float
    weights: Array
    server: dict[str, Array]
    engine: str
    refused: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()
    worst_case_epsilon: float = math.nan


PER_CLIENT = ("budgets", "payments", "spent", "participating", "noise_std", "theta")
PER_ROUND = tuple(
    field.name
    for field in fields(RoundRecord)
    if field.name not in (*PER_CLIENT, "weights", "server", "engine", "refused", "diverged", "worst_case_epsilon")
)


@dataclass(frozen=True, eq=False, slots=True)
class History:
    """Records of many rounds as arrays: one entry per round in `rounds`, rounds × clients in `clients`."""

    rounds: dict[str, Array]
    clients: dict[str, Array]
    engine: tuple[str, ...]
    refused: tuple[tuple[str, ...], ...]
    diverged: tuple[tuple[str, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.engine)


def history_of(records: Sequence[RoundRecord], num_clients: int) -> History:
    """The records as one table. Models are left out: they are large, and the last one is kept elsewhere."""
    return History(
        {name: np.array([getattr(record, name) for record in records]) for name in PER_ROUND},
        {
            name: np.array([getattr(record, name) for record in records]).reshape(len(records), num_clients)
            for name in PER_CLIENT
        },
        tuple(record.engine for record in records),
        tuple(record.refused for record in records),
        tuple(record.diverged for record in records),
    )


def joined(first: History, then: History) -> History:
    """One history after the other."""
    return History(
        {name: np.concatenate([first.rounds[name], then.rounds[name]]) for name in PER_ROUND},
        {name: np.concatenate([first.clients[name], then.clients[name]]) for name in PER_CLIENT},
        first.engine + then.engine,
        first.refused + then.refused,
        first.diverged + then.diverged,
    )
