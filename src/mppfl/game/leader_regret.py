"""What the server could save by another rate, with clients responding: computed anew, not taken from the leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.game.equilibrium import equilibrium_at, equilibrium_response, response_line
from mppfl.game.interior_leaders import interior_rates_of, noise_aware_cost
from mppfl.game.model import Game, cost_without_absent, wanted_loss
from mppfl.game.natural_units import natural_units
from mppfl.game.path import EXACT_BELOW, Path, response_path, waking_rates
from mppfl.game.plan import AlongLine, Plan, Terms
from mppfl.game.resting_at_bounds import has_ceilings, has_floors, rates_worth_trying
from mppfl.game.settling import LEADERS

LEADER_ROUNDS_ABOVE = 4_000_000  # above that many, only the first, middle and last round's leader is checked
PROBES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.001, 1.01, 1.05, 1.1, 1.2, 1.5, 2.0)
WIDE = (0.0, 0.01, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)  # of b, tried too where budgets have floors above 0
WAKING = (1.5, 3.0, 10.0, 30.0)  # of the rate at which everybody would share, were they alone
TRIES_AT_CEILINGS, TRIES_ON_SEGMENT = 24, 8

Cost = Callable[[Game, int, Array | float, Array], float]
LED = ("mppfl", "mppfl_exact", "mppfl_noise_aware", "social_agnostic", "pigouvian")


def leader_regret(game: Game, plan: Plan) -> tuple[float | None, tuple[int, ...]]:
    """What the server could save by another rate, in the worst of the checked rounds, and which rounds those are.

    None where clients may stay out: a plan does not say who refused, so what another rate would bring is not known.
    """
    if plan.mechanism not in LED or plan.participation != "always":
        return None, ()
    crowd = replace(game, externality_strength=0.0) if plan.mechanism == "social_agnostic" else game
    everything = len(plan) * plan.num_clients < LEADER_ROUNDS_ABOVE and isinstance(plan.budgets, AlongLine)
    positions = np.arange(len(plan)) if everything else _first_middle_last(plan)
    cost = noise_aware_cost if plan.mechanism == "mppfl_noise_aware" else cost_without_absent
    better = _better_on_line(crowd, plan, plan.rounds[positions])
    worst = 0.0
    if better is not None:
        for rate, position in zip(better.tolist(), positions.tolist(), strict=True):
            terms = plan.terms(position)
            worst = max(worst, _saving(crowd, cost, plan, terms, [rate], [plan.budgets.at(position, rate)]))
    resting = _Resting.of(crowd, plan)
    if resting is not None:
        worst = max(worst, _saving_at_bounds(crowd, plan, cost, resting))
    elif better is None:
        answers = _Answers(crowd)
        for position in positions.tolist():
            terms = plan.terms(position)
            rates = [terms.reward_rate * probe for probe in PROBES]
            if not np.isfinite(cost(crowd, terms.round_index, terms.prices, terms.budgets)):  # nobody takes part
                weights = np.broadcast_to(_per_rate(plan, terms), (crowd.num_clients,))
                rates += [waking_rates(crowd, weights)[1] * factor for factor in WAKING]
            tried = answers.at(_per_rate(plan, terms), rates, terms.budgets)
            worst = max(worst, _saving(crowd, cost, plan, terms, rates, tried))
    return worst, tuple(int(t) for t in plan.rounds[positions])


def _first_middle_last(plan: Plan) -> IntArray:
    return np.unique([0, len(plan) // 2, len(plan) - 1])


def _better_on_line(crowd: Game, plan: Plan, rounds: IntArray) -> Array | None:
    """The best rates of these rounds inside the bounds, where the plan is on a line and each has one."""
    if not isinstance(plan.budgets, AlongLine) or plan.mechanism == "mppfl_noise_aware":
        return None
    weights = plan.prices.slope if isinstance(plan.prices, AlongLine) else None
    free = crowd.clients.budget_max > crowd.clients.budget_min
    line = response_line(crowd, plan.budgets.slope, plan.budgets.offset, weights, free)
    return interior_rates_of(crowd, line, "anticipating", rounds)


@dataclass(frozen=True)
class _Resting:
    """What the leader could do with clients who rest at bounds above 0.

    keeps    whether some rates keep everybody strictly inside; the leader then looks only at those that lose nobody
    between  rates at which clients might rest at their ceilings for less than they cost now, if any
    """

    keeps: bool
    between: tuple[float, float] | None

    @staticmethod
    def of(crowd: Game, plan: Plan) -> _Resting | None:
        """None where nobody can rest there, or all rates that matter are looked at anyway."""
        if not (has_floors(crowd) or has_ceilings(crowd)):
            return None
        leader = LEADERS[plan.mechanism]
        weights = np.broadcast_to(_per_rate(plan, plan.terms(0)), (crowd.num_clients,))
        line = equilibrium_response(crowd, weights)
        if not (line.has_interior and line.free.any()):
            return _Resting(False, None) if has_floors(crowd) else None
        cost = noise_aware_cost if leader == "noise_aware" else cost_without_absent
        places = _first_middle_last(plan)
        several = [plan.terms(k) for k in places.tolist()]
        now = np.array([cost(crowd, terms.round_index, terms.prices, terms.budgets) for terms in several])
        between = rates_worth_trying(crowd, line, leader, plan.rounds[places], now) if has_ceilings(crowd) else None
        settled = isinstance(plan.budgets, AlongLine) and between is None and not has_floors(crowd)
        return None if settled else _Resting(True, between)


def _saving_at_bounds(crowd: Game, plan: Plan, cost: Cost, resting: _Resting) -> float:
    """What the server could save where clients may rest at budgets above 0: at no pay at all, at less, and at more."""
    clients, answers, worst = crowd.clients, _Answers(crowd), 0.0
    weights = np.broadcast_to(_per_rate(plan, plan.terms(0)), (crowd.num_clients,))
    usual = max(natural_units(crowd).rate, float(clients.linear_cost.max()))
    far = usual * np.array(WIDE)
    if resting.between is not None:
        far = np.concatenate([far, _rates_between(crowd, weights, *resting.between)])
    for position in _first_middle_last(plan).tolist():
        terms = plan.terms(position)
        rates = np.unique(np.concatenate([terms.reward_rate * np.array(PROBES), far])).tolist()
        tried = answers.at(weights, rates, terms.budgets)
        able = clients.budget_max > 0
        any_will_do = plan.mechanism == "mppfl_noise_aware" or not resting.keeps
        fair = [k for k, budgets in enumerate(tried) if any_will_do or (budgets[able] > 0).all()]
        rates, tried = [rates[k] for k in fair], [tried[k] for k in fair]
        worst = max(worst, _saving(crowd, cost, plan, terms, rates, tried))
    return worst


def _rates_between(crowd: Game, weights: Array, low: float, high: float) -> Array:
    """Rates to try: every bend and what lies between two of them, where the path of budgets can be followed."""
    low = max(low, 1e-3 * max(natural_units(crowd).rate, float(crowd.clients.linear_cost.max())))
    high = min(max(high, 2 * low), 1e3 * low)
    if crowd.num_clients > EXACT_BELOW:
        return np.geomspace(low, high, TRIES_AT_CEILINGS)
    ends = np.clip(response_path(crowd, weights, high).ends, low, high)
    inside = ends[:, :1] + np.diff(ends) * np.linspace(0, 1, TRIES_ON_SEGMENT)  # [segments, tries]
    return np.unique(inside)


def _per_rate(plan: Plan, terms: Terms) -> Array | float:
    """Prices per unit of rate: 1 for everybody, or one each."""
    if isinstance(plan.prices, AlongLine):
        return plan.prices.slope
    return terms.prices / terms.reward_rate if np.ndim(terms.prices) and terms.reward_rate > 0 else 1.0


def _saving(game: Game, cost: Cost, plan: Plan, terms: Terms, rates: list[float], answers: list[Array]) -> float:
    now = cost(game, terms.round_index, terms.prices, terms.budgets)
    per_rate = _per_rate(plan, terms)
    tried = (cost(game, terms.round_index, r * per_rate, b) for r, b in zip(rates, answers, strict=True))
    return max([0.0, *(now - other for other in tried if np.isfinite(other))])


class _Answers:
    """Clients' equilibria at many rates. In small games they are read off one path, up to the highest rate asked for,
    and held against everybody's best response; where that fails, or in large games, each is solved for.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.path: Path | None = None

    def at(self, per_rate: Array | float, rates: list[float], start: Array) -> list[Array]:
        """Budgets at prices rate·per_rate, to the tolerance of `equilibrium_at`."""
        read = self._read(per_rate, rates)
        return [
            equilibrium_at(self.game, rate * per_rate, start).budgets if budgets is None else budgets
            for rate, budgets in zip(rates, read, strict=True)
        ]

    def _read(self, per_rate: Array | float, rates: list[float]) -> list[Array | None]:
        game = self.game
        weights = np.broadcast_to(np.asarray(per_rate, dtype=np.float64), (game.num_clients,))
        usable = game.num_clients <= EXACT_BELOW and game.loss.is_dense and game.loss.has_one_answer
        if not usable or min(rates) < 0 or not (weights > 0).any():
            return [None] * len(rates)
        if self.path is None or max(rates) > self.path[-1].high:
            self.path = response_path(game, weights, max(rates))
        low, high = game.clients.budget_min, game.clients.budget_max
        segments = [self.path.at(rate) for rate in rates]
        found = np.array([low if s is None else s.budgets(r) for r, s in zip(rates, segments, strict=True)])
        found = np.clip(found, low, high)
        prices = np.array(rates)[:, None] * weights
        wanted = wanted_loss(game, prices)
        wish = wanted - ((game.loss @ found.T).T - found)
        gap = np.abs(found - np.clip(wish, low, high)).max(axis=1)
        fits = gap <= 1e-12 * np.maximum(natural_units(game).budget, np.abs(wanted).max(axis=1))
        return [budgets if fit else None for budgets, fit in zip(found, fits, strict=True)]
