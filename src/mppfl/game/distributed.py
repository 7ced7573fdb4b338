"""The equilibrium without anybody's costs: the server announces, clients answer with budgets, and nothing else travels.

    announced  a reward rate, and to each client its exposure: the privacy it loses through others, α(Σρ)_i
    answered   the client's best response, ρ_i = clip((r − b_i)/(2a_i) − exposure_i, its own bounds) (model, eq. 15)

At a fixed rate the answers' exposures are announced again until they stand still, which contracts by αS. The rate is
found from the server's own cost: with exposures unchanged it asks at rates a little to either side, and moves to where
its cost no longer falls (model, eq. 16; `asked_rates`). Every announcement carries all rounds at once.

A client is never asked for its costs and never tells them. That is not secrecy: who sees a client's honest answers at
two rates can compute a_i and b_i from them, here as in any mechanism that pays by budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array, IntArray, require, require_count, require_number
from mppfl.errors import BadInput
from mppfl.game.asked_rates import where_cost_stops_falling
from mppfl.game.conversation import Answer, Ask, Conversation
from mppfl.game.model import Game, finite_strength
from mppfl.game.plan import Plan, Terms, checked_rates, plan_of_rounds
from mppfl.network import Propagation

__all__ = ["Agreement", "Answer", "Ask", "Respondent", "agree_on_budgets", "agree_on_plan", "asking", "respondents_of"]


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
    rates = checked_rates(np.atleast_1d(reward_rates), np.size(reward_rates))
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

    It is what `solve(game, "mppfl")` finds where eq. 16 has a root with everybody sharing, also where they all do so at
    some rates only: below them some are not paid enough, above them others' budgets crowd some out. Clients' first
    answers, before anybody is exposed, tell where such rates lie. Where floors or ceilings bend answers between those
    and the equilibrium, only rates of 1, 2, 4, ... are surely tried, and a short interval of such rates may be missed.
    Raises NoEquilibrium where no rate is found; then announce rates of your own to `agree_on_budgets`.
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

    rates = where_cost_stops_falling(talk, cost, len(rounds))
    budgets, residual = talk.settle(rates)
    return _agreement(talk, rounds, rates, budgets, residual)


def _conversation(
    ask: Ask, propagation: Propagation, externality_strength: float, tolerance: float, num_rounds: int
) -> Conversation:
    strength = finite_strength(externality_strength)
    require_number(tolerance, "tolerance", 0.0, 1.0)
    none = np.zeros((num_rounds, propagation.num_clients))
    return Conversation(ask, propagation, strength, tolerance, exposures=none)


def _agreement(talk: Conversation, rounds: IntArray, rates: Array, budgets: Array, residual: float) -> Agreement:
    terms = [Terms(int(t), float(rate), float(rate), row) for t, rate, row in zip(rounds, rates, budgets, strict=True)]
    return Agreement(
        plan_of_rounds("mppfl", terms, ("agreed on by asking clients for budgets, never for costs",)),
        talk.exposures,
        residual,
        talk.num_announcements,
        2 * talk.num_announcements * talk.propagation.num_clients,
    )
