"""Plan: reward rates and budgets of every round, kept compactly.

Inside the bounds all rounds' budgets lie on one line in the reward rate, so a plan for a million clients and a hundred
rounds is two vectors and a hundred numbers. Nothing here forms clients × rounds unless asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray, require_count
from mppfl.errors import BadInput

Participation = Literal["always", "if_better_than_staying_out", "if_non_negative"]


class PerRound(Protocol):
    """Something that has one value per client in every round."""

    def at(self, position: int, reward_rate: float) -> Array: ...


@dataclass(frozen=True, eq=False)
class AlongLine:
    """reward_rate · slope − offset: all rounds in two vectors."""

    slope: Array
    offset: Array

    def at(self, position: int, reward_rate: float) -> Array:
        return reward_rate * self.slope - self.offset


@dataclass(frozen=True, eq=False)
class Stored:
    """One row per distinct round; `row_of_round` says which row a round takes."""

    rows: Array
    row_of_round: IntArray

    def at(self, position: int, reward_rate: float) -> Array:
        return np.asarray(self.rows[self.row_of_round[position]])


@dataclass(frozen=True, eq=False)
class Drawn:
    """Uniform between low and high, drawn anew for every round and the same whenever and with whatever it is read."""

    rounds: IntArray
    num_clients: int
    low: float
    high: float
    seed: int

    def at(self, position: int, reward_rate: float) -> Array:
        rng = np.random.default_rng([self.seed, int(self.rounds[position]) - 1])
        return rng.uniform(self.low, self.high, self.num_clients)


@dataclass(frozen=True, eq=False)
class Within:
    """The same, held between bounds: nobody can be made to give more than it allows."""

    budgets: PerRound
    low: Array
    high: Array

    def at(self, position: int, reward_rate: float) -> Array:
        return np.clip(self.budgets.at(position, reward_rate), self.low, self.high)


@dataclass(frozen=True, eq=False)
class Terms:
    """What the server announces for one round and what clients answer.

    reward_rate  money per unit of budget; with personal prices their mean, weighted by budgets
    prices       the same for every client, or one each
    budgets      zCDP budget of each client for this round; 0 for those who stay out
    """

    round_index: int
    reward_rate: float
    prices: Array | float
    budgets: Array

    @property
    def taking_part(self) -> BoolArray:
        return np.asarray(self.budgets > 0)


@dataclass(frozen=True, eq=False)
class Plan:
    """Terms of every round. Iterate over it, or ask for one with `plan.terms(position)`.

    rounds        round numbers, from 1
    reward_rates  one per round
    budgets       one per client in every round, kept compactly
    prices        personal prices, where the mechanism has them
    notes         what a reader of the result should know
    participation the rule by which clients took part
    """

    mechanism: str
    rounds: IntArray
    reward_rates: Array
    budgets: PerRound
    num_clients: int
    prices: PerRound | None = None
    notes: tuple[str, ...] = field(default=())
    participation: Participation = "always"

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Terms]:
        return (self.terms(position) for position in range(len(self)))

    def terms(self, position: int) -> Terms:
        rate = float(self.reward_rates[position])
        prices = rate if self.prices is None else self.prices.at(position, rate)
        return Terms(int(self.rounds[position]), rate, prices, self.budgets.at(position, rate))

    def to_matrix(self) -> Array:
        """Budgets as rounds × clients; asks for that much memory."""
        return np.array([terms.budgets for terms in self])


@dataclass(frozen=True, eq=False)
class Horizon:
    """Which rounds a mechanism is asked to plan.

    rounds        round numbers, from 1
    reward_rates  rates that everybody faces (the common-reward comparison), or None: the server sets its own
    seed          for mechanisms that draw at random
    """

    rounds: IntArray
    reward_rates: Array | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.rounds) == 0 or int(np.min(self.rounds)) < 1:
            raise BadInput("rounds must be numbered from 1, and there must be at least one.")
        if self.reward_rates is not None and len(self.reward_rates) != len(self.rounds):
            raise BadInput(f"{len(self.reward_rates)} reward rates for {len(self.rounds)} rounds.")


def rounds_up_to(num_rounds: int) -> IntArray:
    """Round numbers 1, 2, ..., num_rounds (the paper's round 0 divides by zero)."""
    return np.arange(1, require_count(num_rounds, "rounds") + 1)


def plan_of_rounds(
    mechanism: str, terms: Sequence[Terms], notes: tuple[str, ...] = (), participation: Participation = "always"
) -> Plan:
    """A plan from the terms of each round, however they were found."""
    size = len(terms[0].budgets)
    prices = None
    if any(np.ndim(t.prices) for t in terms):
        rows = np.array([np.broadcast_to(t.prices, size) for t in terms])
        prices = Stored(rows, np.arange(len(terms)))
    return Plan(
        mechanism,
        np.array([t.round_index for t in terms]),
        np.array([t.reward_rate for t in terms], dtype=np.float64),
        Stored(np.array([t.budgets for t in terms]), np.arange(len(terms))),
        size,
        prices,
        notes,
        participation,
    )
