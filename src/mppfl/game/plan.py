"""Plan: reward rates and budgets of every round, kept compactly.

Inside the bounds all rounds' budgets lie on one line in the reward rate, so a plan for a million clients and a hundred
rounds is two vectors and a hundred numbers. Nothing here forms clients × rounds unless asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray, require_count
from mppfl.errors import BadFile, BadInput
from mppfl.exports import package_version
from mppfl.fields import About, checked
from mppfl.files import write_whole
from mppfl.game.model import LARGEST, Game
from mppfl.text import lines_of, span

ROUNDING = 1e-12  # of the largest budget: what a line may fall below 0 where its client has just reached it
ABOVE_A_BOUND = 1e-9  # of budget_max: what a budget computed to lie on it may exceed it by

Participation = Literal["everyone", "voluntary", "rational"]
Against = Literal["staying_out", "nothing"]


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


PerRound = AlongLine | Stored  # one value per client in every round


@dataclass(frozen=True, eq=False)
class RoundTerms:
    """What the server announces for one round and what clients answer.

    Args:
        round_index: the round's number, from 1.
        reward_rate: money per unit of budget; with personal prices their mean, weighted by budgets.
        prices: the same for every client, or one each.
        budgets: zCDP budget of each client for this round; 0 for those who opt out.

    Example:
        >>> import numpy as np, mppfl
        >>> mppfl.RoundTerms(1, 2.0, 2.0, np.array([0.5, 0.0])).participating.tolist()
        [True, False]
    """

    round_index: int
    reward_rate: float
    prices: Array | float
    budgets: Array

    @property
    def participating(self) -> BoolArray:
        return np.asarray(self.budgets > 0)


@dataclass(frozen=True, eq=False)
class Plan:
    """Terms of every round: iterate over it, ask for a round by `plan.terms(round_index)`, for the k-th by `plan[k]`.

    Args:
        mechanism: its name.
        rounds, reward_rates: round numbers, from 1, and the rate of each.
        budgets: one per client in every round, kept compactly (`AlongLine` or `Stored`).
        num_clients: how many clients.
        prices: personal prices, where the mechanism has them.
        notes: what a reader of the result should know; one string or several.
        participation, against: the rule by which clients participated.

    Raises:
        BadInput: rates are no numbers, or notes no strings.

    Example:
        >>> import numpy as np, mppfl
        >>> plan = mppfl.plan_from_rounds(
        ...     "mine", [mppfl.RoundTerms(t, 2.0, 2.0, np.array([0.5, 0.2])) for t in (1, 2, 3)]
        ... )
        >>> len(plan), plan.terms(1).reward_rate, plan.to_matrix().shape
        (3, 2.0, (3, 2))
    """

    mechanism: str
    rounds: IntArray
    reward_rates: Array
    budgets: PerRound
    num_clients: int
    prices: PerRound | None = None
    notes: tuple[str, ...] = field(default=())
    participation: Participation = "everyone"
    against: Against = "staying_out"

    def __post_init__(self) -> None:
        rates = as_numbers(self.reward_rates, f"mechanism {self.mechanism!r}: reward_rates")
        object.__setattr__(self, "rounds", np.asarray(self.rounds))
        object.__setattr__(self, "reward_rates", rates)
        object.__setattr__(self, "notes", _as_notes(self.notes, self.mechanism))

    @property
    def price_weights(self) -> Array | None:
        """Everybody's price per unit of the reward rate; None where prices do not go with it."""
        if self.prices is None:
            return np.ones(self.num_clients)
        return self.prices.slope if isinstance(self.prices, AlongLine) and not self.prices.offset.any() else None

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[RoundTerms]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, position: int) -> RoundTerms:
        """Terms by position in the plan, from 0."""
        rate = float(self.reward_rates[position])
        prices = rate if self.prices is None else np.asarray(self.prices.at(position, rate), dtype=np.float64)
        budgets = np.asarray(self.budgets.at(position, rate), dtype=np.float64)
        return RoundTerms(int(self.rounds[position]), rate, prices, budgets)

    def terms(self, round_index: int) -> RoundTerms:
        """Terms of a round by its number, from 1."""
        positions = np.flatnonzero(self.rounds == round_index)
        if len(positions) == 0:
            raise BadInput(f"round {round_index} is not in this plan of {len(self)} rounds.")
        return self[int(positions[0])]

    def to_matrix(self) -> Array:
        """Budgets as rounds × clients; asks for that much memory."""
        return np.array([terms.budgets for terms in self])

    def __repr__(self) -> str:
        rounds = f"rounds {self.rounds[0]} to {self.rounds[-1]}" if len(self) > 1 else f"round {self.rounds[0]}"
        facts = {"reward rate": span(self.reward_rates)}
        for terms in [self[0], self[-1]][: len(self)]:
            in_all = f"{int(terms.participating.sum()):,} of {self.num_clients:,} participate"
            facts[f"budgets, round {terms.round_index}"] = f"{span(terms.budgets)}; {in_all}"
        facts["participation"] = self.participation
        facts |= {f"note {k}": note[:100] for k, note in enumerate(self.notes[:5], start=1)}
        return lines_of(f"Plan of {self.mechanism}: {rounds}, {self.num_clients:,} clients", facts)

    def save(self, path: str | Path, names: Sequence[str] | None = None) -> None:
        """Writes the plan to a file (NumPy's .npz) that `load_plan` reads back, number for number.

        names  of the clients, kept in the file beside the version that wrote it
        """
        head = {name: getattr(self, name) for name in ("mechanism", "num_clients", "notes", "participation", "against")}
        head |= {"format": PLAN_FORMAT, "version": package_version(), "names": None if names is None else list(names)}
        arrays: dict[str, Any] = {"rounds": self.rounds, "reward_rates": self.reward_rates}
        for name, values in (("budgets", self.budgets), ("prices", self.prices)):
            if values is not None:
                arrays |= {f"{name}.{f.name}": getattr(values, f.name) for f in fields(values)}
        file = BytesIO()
        np.savez(file, head=np.array(json.dumps(head)), **arrays)
        write_whole(Path(path), file.getvalue())


PLAN_FORMAT = "mppfl plan 2"


def load_plan(path: str | Path) -> Plan:
    """The plan that `Plan.save` wrote, with the same numbers, bit for bit.

    Raises:
        BadFile: the file is not there, or no plan.

    Example:
        >>> import numpy as np, mppfl, tempfile
        >>> plan = mppfl.plan_from_rounds("mine", [mppfl.RoundTerms(1, 2.0, 2.0, np.array([0.5, 0.2]))])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plan.save(f"{folder}/plan.npz")
        ...     mppfl.load_plan(f"{folder}/plan.npz").terms(1).budgets.tolist()
        [0.5, 0.2]
    """
    return read_plan(path)[0]


def read_plan(path: str | Path) -> tuple[Plan, list[str] | None]:
    """A plan from its file, and the names of its clients where they are kept there."""
    try:
        with np.load(path, allow_pickle=False) as file:
            head, arrays = json.loads(str(file["head"])), {name: file[name] for name in file.files if name != "head"}
        if head.pop("format") != PLAN_FORMAT:
            raise ValueError("another format")
        names, _ = head.pop("names"), head.pop("version")
        values: dict[str, Any] = {name: _kept(arrays, name) for name in ("budgets", "prices")}
        if values["budgets"] is None:
            raise ValueError("it has no budgets")
        return Plan(rounds=arrays["rounds"], reward_rates=arrays["reward_rates"], **values, **head), names
    except OSError as cause:
        raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check the path.") from cause
    except (ValueError, KeyError, TypeError, BadZipFile) as cause:
        raise BadFile(f"{path}: is no plan ({cause}). Give a file that Plan.save wrote.") from cause


def _kept(arrays: dict[str, Any], name: str) -> PerRound | None:
    for kind in (AlongLine, Stored):
        if all(f"{name}.{f.name}" in arrays for f in fields(kind)):
            return kind(**{f.name: arrays[f"{name}.{f.name}"] for f in fields(kind)})
    return None


@dataclass(frozen=True, eq=False)
class Horizon:
    """Which rounds a mechanism is asked to plan.

    Args:
        rounds: round numbers, from 1.
        reward_rates: rates that everybody faces, one per round, or None: the mechanism's server sets its own.
        seed: for mechanisms that draw at random.
        participation: "everyone": the server looks only at rates at which everybody who is able participates;
            "voluntary": at all rates, those whose best response is 0 being out; "rational": as voluntary, and nobody
            stays who gains less than
        against: "staying_out", where outsiders are still exposed by the others, or "nothing".

    Raises:
        BadInput: no rounds, a round below 1, rates that do not belong to the rounds, or an unknown rule.

    Example:
        >>> import numpy as np, mppfl
        >>> len(mppfl.Horizon(np.arange(1, 61)).rounds)
        60
    """

    rounds: IntArray
    reward_rates: Array | None = None
    seed: int = 0
    participation: Participation = "everyone"
    against: Against = "staying_out"

    def __post_init__(self) -> None:
        checked("participation", self.participation, Participation, About(""))
        checked("against", self.against, Against, About(""))
        if len(self.rounds) == 0 or int(np.min(self.rounds)) < 1:
            raise BadInput("rounds must be numbered from 1, and there must be at least one.")
        if self.reward_rates is not None:
            rates = _checked_rates(self.reward_rates, len(self.rounds), "reward_rates")
            object.__setattr__(self, "reward_rates", rates)
        require_count(self.seed, "seed", 0)


def _checked_rates(given: Any, num_rounds: int, what: str) -> Array:
    """Rates as a vector with one number from 0 to LARGEST for every round; costs grow with its square."""
    rates = as_numbers(given, what)
    if rates.shape != (num_rounds,):
        raise BadInput(
            f"{what}={_briefly(given)} must be a vector with one rate per round. Give {num_rounds} of them, "
            f"for instance np.full({num_rounds}, 2.0)."
        )
    for wrong in np.flatnonzero(~((rates >= 0) & (rates <= LARGEST)))[:1]:
        raise BadInput(
            f"{what}={rates[wrong]:.6g} at position {wrong} must be a finite number from 0 to {LARGEST:g}. Correct it, "
            "or give rates in a larger unit of money."
        )
    return rates


def rounds_up_to(num_rounds: int) -> IntArray:
    """Round numbers 1, 2, ..., num_rounds (the paper's round 0 divides by zero)."""
    return np.arange(1, require_count(num_rounds, "rounds") + 1)


def plan_from_rounds(
    mechanism: str,
    terms: Sequence[RoundTerms],
    notes: tuple[str, ...] = (),
    participation: Participation = "everyone",
    against: Against = "staying_out",
) -> Plan:
    """A plan from the terms of each round, however they were found. Prices are paid as the terms give them.

    Args:
        mechanism: its name.
        terms: one per round.
        notes: what a reader of the result should know.
        participation, against: the rule by which clients participated.

    Raises:
        BadInput: no terms, or budgets and prices that do not fit each other.

    Example:
        >>> import numpy as np, mppfl
        >>> plan = mppfl.plan_from_rounds("mine", [mppfl.RoundTerms(1, 2.0, 2.0, np.array([0.5, 0.2]))])
        >>> plan.num_clients
        2
    """
    if len(terms) == 0:
        raise BadInput(f"the plan of mechanism {mechanism!r} has no rounds. Give the terms of at least one.")
    budgets: list[Array] = []
    prices: list[Array] = []
    for t in terms:
        where = f"mechanism {mechanism!r}, round {t.round_index}"
        budgets.append(as_numbers(t.budgets, f"{where}: budgets"))
        prices.append(as_numbers(t.prices, f"{where}: prices"))
        size = budgets[0].size
        if budgets[-1].shape != (size,) or prices[-1].shape not in ((), (size,)):
            raise BadInput(
                f"{where}: budgets of shape {budgets[-1].shape} and prices of shape {prices[-1].shape} for {size} "
                "clients. Give one budget each, and one price for all or each."
            )
    rounds, rows = np.array([t.round_index for t in terms]), np.arange(len(terms))
    rates = as_numbers([t.reward_rate for t in terms], f"mechanism {mechanism!r}: reward_rates")
    personal = None  # the reward rate is everybody's
    if not all((paid == rate).all() for paid, rate in zip(prices, rates, strict=True)):
        personal = Stored(np.array([np.broadcast_to(paid, size) for paid in prices]), rows)
    kept = Stored(np.array(budgets), rows)
    return Plan(mechanism, rounds, rates, kept, size, personal, notes, participation, against)


def as_numbers(values: Any, what: str) -> Array:
    """The values as float64; refuses text and complex numbers, and lists that are no array."""
    try:
        array = np.asarray(values)
    except ValueError as cause:  # rows of several lengths
        raise BadInput(f"{what} must be real numbers, one each, got {_briefly(values)}.") from cause
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{what} must be real numbers, got {_briefly(values)}.")
    return array.astype(np.float64, copy=False)


def _briefly(values: Any) -> str:
    """The beginning of a value's text, on one line."""
    return " ".join(f"{values!r:.300}".split())[:60]


def _as_notes(notes: Any, mechanism: str) -> tuple[str, ...]:
    several = () if notes is None else (notes,) if isinstance(notes, str) else notes
    if not isinstance(several, (tuple, list)) or not all(isinstance(note, str) for note in several):
        raise BadInput(f"mechanism {mechanism!r}: notes={_briefly(notes)} must be strings. Give a tuple of them.")
    return tuple(several)


# ---- is it a plan? ------------------------------------------------------------------------------------------------


def check_plan(plan: Any, game: Game, horizon: Horizon, name: str | None = None) -> Plan:
    """The plan itself, if it is one of these rounds for these clients, with rates, prices and budgets that can be.

    Whoever wrote a mechanism may have forgotten a round or a client, and costs over fewer of them would look like a
    bargain. Budgets may be infinite, which means no noise, or 0, which means to opt out; else budget_max is the most.
    A plan on a line is looked at in its two ends, a stored one row by row: nothing of rounds × clients is formed.
    `name` is what errors call it.
    """
    if not isinstance(plan, Plan):
        raise BadInput(
            f"mechanism {name or 'function'!r} returned {type(plan).__name__}, not a plan. Return an mppfl.Plan, for "
            "instance by mppfl.plan_from_rounds."
        )
    called = f"mechanism {name or plan.mechanism!r}"
    if not np.array_equal(plan.rounds, horizon.rounds):
        raise BadInput(
            f"{called} planned {_some_rounds(plan.rounds)}, and was asked for {_some_rounds(horizon.rounds)}. "
            "Plan every round of horizon.rounds, in that order."
        )
    if plan.num_clients != game.num_clients:
        raise BadInput(f"{called} planned for {plan.num_clients:,} clients of {game.num_clients:,}. Plan for all.")
    _checked_rates(plan.reward_rates, len(plan), f"{called}: reward_rates")
    positions, rows = _checked_extremes(plan, plan.budgets, f"{called}: budgets", np.inf)
    most = np.minimum(game.clients.budget_max, LARGEST)  # above which a cost has no number
    above = (rows > np.minimum(most * (1 + ABOVE_A_BOUND), LARGEST) + ROUNDING) & (rows < np.inf)
    for row, client in np.argwhere(above)[:1]:
        name, round_index = game.graph.name(int(client)), plan.rounds[positions[row]]
        raise BadInput(
            f"{called}: client {name!r} has a budget of {rows[row, client]:.6g} in round {round_index}, above "
            f"{most[client]:.6g}, the most it may give ({int(above.sum()):,} such). "
            "Keep budgets within game.clients.budget_max, or at 0."
        )
    if plan.prices is not None:
        _checked_extremes(plan, plan.prices, f"{called}: prices", LARGEST)
    return plan


def _some_rounds(rounds: IntArray) -> str:
    if len(rounds) < 2:
        return f"1 round ({rounds[0]})" if len(rounds) else "no rounds"
    return f"{len(rounds):,} rounds ({rounds[0]} to {rounds[-1]})"


def _checked_extremes(plan: Plan, values: Any, what: str, most: float) -> tuple[IntArray, Array]:
    """Positions of rounds and everybody's values in them [positions, clients], between which all rounds' values lie.

    Raises unless every client has a number from 0 to `most` in all of them.
    """
    positions, rows = _extremes(plan, values, what)
    if rows.ndim != 2 or rows.shape[1] != plan.num_clients:
        raise BadInput(f"{what} have shape {rows.shape[1:]} for {plan.num_clients:,} clients. Give one for each.")
    least, largest = float(rows.min()), float(rows.max())  # both are NaN where one entry is
    scale = max(1.0, largest) if np.isfinite(largest) else 1.0
    if not (least >= -ROUNDING * scale and largest <= most):
        wrong = next(value for value in (least, largest) if not 0 <= value <= most)
        limit = "at least 0" if most == np.inf else f"finite and at least 0, at most {most:g}"
        raise BadInput(f"{what} hold {wrong:.6g}; each must be {limit}. Correct the mechanism.")
    return positions, rows


def _extremes(plan: Plan, values: Any, what: str) -> tuple[IntArray, Array]:
    if isinstance(values, AlongLine):  # a straight line has its extremes at the ends of the rates
        positions = np.unique([np.argmin(plan.reward_rates), np.argmax(plan.reward_rates)])
        with np.errstate(invalid="ignore"):  # infinity less infinity is no number, and is refused as such
            ends = [values.at(int(k), float(plan.reward_rates[k])) for k in positions]
        return positions, as_numbers(ends, what)
    if not isinstance(values, Stored):
        raise BadInput(
            f"{what} are held as {type(values).__name__}, not round by round. Make the plan by mppfl.plan_from_rounds."
        )
    rows, row_of_round = as_numbers(values.rows, what), np.asarray(values.row_of_round)
    of_rounds = row_of_round.dtype.kind in "iu" and row_of_round.shape == plan.rounds.shape and rows.ndim > 0
    if not (of_rounds and (row_of_round >= 0).all() and (row_of_round < len(rows)).all()):
        raise BadInput(
            f"{what} have row_of_round={_briefly(values.row_of_round)} for {len(plan):,} rounds and rows of shape "
            f"{rows.shape}. Say of each round which row it takes, from 0."
        )
    used, first = np.unique(row_of_round, return_index=True)
    return first, rows if len(used) == len(rows) else rows[used]
