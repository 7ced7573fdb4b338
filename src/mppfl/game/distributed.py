"""The equilibrium without anybody's costs: the server announces, clients answer with budgets, and nothing else travels.

    announced  a reward rate, and to each client its exposure: the privacy it loses through others, α(Σρ)_i
    answered   the client's best response, ρ_i = clip((r − b_i)/(2a_i) − exposure_i, its own bounds) (model, eq. 15)

At a fixed rate the answers' exposures are announced again until they stand still, which contracts by αS. The rate is
found from the server's own cost: with exposures unchanged it asks at rates a little to either side, and moves to where
its cost no longer falls (model, eq. 16). Every announcement carries all rounds at once.

A client is never asked for its costs and never tells them. That is not secrecy: who sees a client's honest answers at
two rates can compute a_i and b_i from them, here as in any mechanism that pays by budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray, require, require_count, require_number
from mppfl.errors import BadInput, NoEquilibrium, NotConverged
from mppfl.game.model import Game
from mppfl.game.plan import Plan, Terms, plan_of_rounds
from mppfl.network.propagation import Propagation

Answer = Callable[[Array, Array], Array]
"""A client: reward rates and its exposures, one of each per round, in; its budgets out."""
Ask = Callable[[Array, Array], Array]
"""All clients at once, however they are reached: rates [rounds] and exposures [rounds, clients] in; budgets out."""

MAX_SWEEPS = 2000
MAX_RATES = 200
HIGHEST_RATE = 1e9


@dataclass(frozen=True, slots=True)
class Respondent:
    """A client who keeps its costs to itself: `answer` is all that others may call.

    quadratic_cost, linear_cost  a_i > 0 and b_i >= 0, money per unit of privacy loss squared, and per unit
    budget_min, budget_max       bounds on a budget
    """

    quadratic_cost: float
    linear_cost: float
    budget_min: float = 0.0
    budget_max: float = np.inf

    def __post_init__(self) -> None:
        require_number(self.quadratic_cost, "quadratic_cost", 0.0, np.inf)
        require_number(self.linear_cost, "linear_cost", 0.0, np.inf, open_ends=False)

    def answer(self, reward_rates: Array, exposures: Array) -> Array:
        """The best response to each announced rate and exposure (Theorem 1 of the paper; model, eq. 15)."""
        wanted = (reward_rates - self.linear_cost) / (2 * self.quadratic_cost) - exposures
        return np.clip(wanted, self.budget_min, self.budget_max)


def respondents_of(game: Game) -> list[Answer]:
    """The clients of a game as those who only answer: for simulations."""
    clients = game.clients
    rows = zip(clients.quadratic_cost, clients.linear_cost, clients.budget_min, clients.budget_max, strict=True)
    return [Respondent(*map(float, row)).answer for row in rows]


def asking(answers: Sequence[Answer]) -> Ask:
    """Asks clients who live in this process, one after the other; each hears its own exposures alone."""

    def ask(reward_rates: Array, exposures: Array) -> Array:
        if exposures.shape[1] != len(answers):
            raise BadInput(f"{len(answers)} clients answer, and the network has {exposures.shape[1]}.")
        rows = [np.asarray(answer(reward_rates, exposures[:, i].copy())) for i, answer in enumerate(answers)]
        for i, row in enumerate(rows):
            if row.shape != reward_rates.shape:
                raise BadInput(f"client number {i} must answer with {len(reward_rates)} budgets, one per round.")
        return np.array(rows, dtype=np.float64).T

    return ask


@dataclass(frozen=True, eq=False)
class Agreement:
    """What server and clients arrived at.

    plan               reward rates and budgets of every round
    exposures          what each client loses through others in the end [rounds, clients]
    residual           largest change of an exposure in the last announcement
    num_announcements  how often the server announced something to everybody
    num_messages       messages in all: to and from every client at every announcement
    """

    plan: Plan
    exposures: Array
    residual: float
    num_announcements: int
    num_messages: int


@dataclass(slots=True)
class _Conversation:
    """The server's side: whom it may ask, what it knows without asking, and how often it has asked."""

    everybody: Ask
    propagation: Propagation
    externality_strength: float
    tolerance: float
    num_announcements: int = 0
    exposures: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def ask(self, reward_rates: Array) -> Array:
        """Everybody's budgets at these rates and the exposures as they stand [rounds, clients]."""
        self.num_announcements += 1
        budgets = np.asarray(self.everybody(reward_rates, self.exposures), dtype=np.float64)
        if budgets.shape != self.exposures.shape:
            raise BadInput(
                f"answers of shape {budgets.shape} must be budgets [rounds, clients] {self.exposures.shape}."
            )
        require(budgets.reshape(-1), "an answered budget", np.isfinite(budgets).reshape(-1), "a finite number")
        return budgets

    def settle(self, reward_rates: Array) -> tuple[Array, float]:
        """Budgets at these rates once exposures stand still, and how still. Starts from where they stood."""
        moved = np.inf
        for _ in range(MAX_SWEEPS):
            budgets = self.ask(reward_rates)
            exposures = self.externality_strength * np.array([self.propagation @ row for row in budgets])
            moved = float(np.abs(exposures - self.exposures).max(initial=0.0))
            self.exposures = exposures
            if moved <= self.tolerance * max(1.0, float(np.abs(exposures).max(initial=0.0))):
                return budgets, moved
        raise NotConverged(
            f"exposures still moved by {moved:.2g} after {MAX_SWEEPS} announcements. Lower externality_strength.",
            self.exposures,
            moved,
        )


def agree_on_budgets(
    ask: Ask,
    propagation: Propagation,
    *,
    externality_strength: float,
    reward_rates: Array,
    tolerance: float = 1e-12,
) -> Agreement:
    """The clients' equilibrium at announced rates, one per round, found by asking alone.

    It is the solver's, bounds included, wherever αS < 1; where it does not settle, NotConverged is raised.
    """
    rates = np.atleast_1d(np.asarray(reward_rates, dtype=np.float64))
    talk = _conversation(ask, propagation, externality_strength, tolerance, len(rates))
    budgets, residual = talk.settle(rates)
    return _agreement(talk, np.arange(1, len(rates) + 1), rates, budgets, residual)


def agree_on_plan(
    ask: Ask,
    propagation: Propagation,
    *,
    externality_strength: float,
    noise_harm: Array,
    accuracy_weight: float,
    num_rounds: int,
    tolerance: float = 1e-12,
) -> Agreement:
    """Rates and budgets of every round under the paper's leader (model, eq. 16), found by asking alone.

    It is what `solve(game, "mppfl")` finds where everybody shares. Raises NoEquilibrium where no rate makes everybody
    share; then announce rates of your own to `agree_on_budgets`.
    """
    rounds = np.arange(1, require_count(num_rounds, "num_rounds") + 1)
    harm = np.asarray(noise_harm, dtype=np.float64)
    if harm.shape != (propagation.num_clients,):
        raise BadInput(f"noise_harm of shape {harm.shape} must have one entry per client, {propagation.num_clients}.")
    require(harm, "noise_harm", harm > 0, "a number above 0")
    weight = require_number(accuracy_weight, "accuracy_weight", 0.0, 1.0)
    talk = _conversation(ask, propagation, externality_strength, tolerance, len(rounds))

    def cost(rates: Array, budgets: Array) -> Array:
        """U_t of each round (model, eq. 9); infinite where somebody does not share."""
        with np.errstate(divide="ignore"):
            noise = np.where(budgets > 0, harm / np.maximum(budgets, 1e-300), np.inf).sum(axis=1)
        return np.asarray(weight * noise / rounds + (1 - weight) * rates * budgets.sum(axis=1))

    rates = _where_cost_stops_falling(talk, cost, len(rounds))
    budgets, residual = talk.settle(rates)
    return _agreement(talk, rounds, rates, budgets, residual)


def _where_cost_stops_falling(talk: _Conversation, cost: Callable[[Array, Array], Array], num_rounds: int) -> Array:
    """The rate of each round at which the cost, with exposures as they stand, has slope 0: bisection and secants.

    The slope is −∞ while somebody does not share: the rate must rise first.
    """

    def slope(rates: Array) -> Array:
        budgets, _ = talk.settle(rates)
        everybody: BoolArray = np.asarray((budgets > 0).all(axis=1))
        found = np.full(num_rounds, -np.inf)
        if everybody.any():
            found[everybody] = _slope_at(talk, cost, rates, everybody)[everybody]
        return found

    low, high = np.zeros(num_rounds), np.ones(num_rounds)
    at_low, at_high = np.full(num_rounds, -np.inf), slope(high)
    while (at_high <= 0).any():
        if float(high.max()) > HIGHEST_RATE:
            raise NoEquilibrium(
                f"somebody shares nothing at any reward rate up to {HIGHEST_RATE:g}. Announce rates of your own."
            )
        rising = at_high <= 0
        low, at_low = np.where(rising, high, low), np.where(rising, at_high, at_low)
        high = np.where(rising, 2 * high, high)
        at_high = np.where(rising, slope(high), at_high)
    for step in range(MAX_RATES):
        if (high - low <= 4 * talk.tolerance * high).all():
            break
        middle = 0.5 * (low + high)
        with np.errstate(invalid="ignore", divide="ignore"):
            secant = (low * at_high - high * at_low) / (at_high - at_low)
        usable = np.isfinite(at_low) & (secant > low) & (secant < high) & (step % 3 != 2)
        rates = np.where(usable, secant, middle)
        value = slope(rates)
        above = value > 0
        # Illinois: an end that stays twice running has its value halved, so that the secant crosses over.
        at_low = np.where(above, np.where(usable, at_low / 2, at_low), value)
        at_high = np.where(above, value, np.where(usable, at_high / 2, at_high))
        low, high = np.where(above, low, rates), np.where(above, rates, high)
        if (value == 0).any():
            low, high = np.where(value == 0, rates, low), np.where(value == 0, rates, high)
    return np.asarray(0.5 * (low + high))


def _slope_at(talk: _Conversation, cost: Callable[[Array, Array], Array], rates: Array, everybody: BoolArray) -> Array:
    """d cost / d rate with exposures unchanged, from the costs a little to either side (Richardson's extrapolation).

    The step is shortened until the two differences it is made of agree, in the rounds in which everybody shares.
    """
    step = 1e-3 * rates
    for _ in range(12):
        with np.errstate(invalid="ignore"):  # where somebody does not share, costs are infinite, and steps too long
            wide, narrow = (
                (cost(rates + h, talk.ask(rates + h)) - cost(rates - h, talk.ask(rates - h))) / (2 * h)
                for h in (step, step / 2)
            )
            found = (4 * narrow - wide) / 3
            rough = everybody & ~(np.abs(narrow - wide) <= 1e-5 * (np.abs(narrow) + 1))
        if not rough.any():
            break
        step = np.where(rough, step / 4, step)
    return np.where(np.isfinite(found), found, -np.inf)


def _conversation(
    ask: Ask, propagation: Propagation, externality_strength: float, tolerance: float, num_rounds: int
) -> _Conversation:
    strength = require_number(externality_strength, "externality_strength", 0.0, np.inf, open_ends=False)
    require_number(tolerance, "tolerance", 0.0, 1.0)
    none = np.zeros((num_rounds, propagation.num_clients))
    return _Conversation(ask, propagation, strength, tolerance, exposures=none)


def _agreement(talk: _Conversation, rounds: IntArray, rates: Array, budgets: Array, residual: float) -> Agreement:
    terms = [Terms(int(t), float(rate), float(rate), row) for t, rate, row in zip(rounds, rates, budgets, strict=True)]
    return Agreement(
        plan_of_rounds("mppfl", terms, ("agreed on by asking clients for budgets, never for costs",)),
        talk.exposures,
        residual,
        talk.num_announcements,
        2 * talk.num_announcements * talk.propagation.num_clients,
    )
