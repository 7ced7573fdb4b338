"""What a plan brings everybody, round by round, and how far it is from an equilibrium: computed, never assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.game.equilibrium import (
    EXACT_BELOW,
    Path,
    equilibrium_at,
    equilibrium_response,
    response_line,
    response_path,
    waking_rates,
)
from mppfl.game.leaders import (
    has_ceilings,
    has_floors,
    interior_rates_of,
    natural_units,
    noise_aware_cost,
    rates_worth_trying,
)
from mppfl.game.mechanisms import MECHANISMS
from mppfl.game.model import Game, cost_without_absent, privacy_cost, utility, wanted_loss
from mppfl.game.participation import regret_of_free_choice
from mppfl.game.plan import AlongLine, Plan, RoundTerms
from mppfl.game.tables import lines_of, span

LEADER_ROUNDS_ABOVE = 4_000_000  # above that many, only the first, middle and last round's leader is checked
PROBES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.001, 1.01, 1.05, 1.1, 1.2, 1.5, 2.0)
WIDE = (0.0, 0.01, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)  # of b, tried too where budgets have floors above 0
WAKING = (1.5, 3.0, 10.0, 30.0)  # of the rate at which everybody would share, were they alone
TRIES_AT_CEILINGS, TRIES_ON_SEGMENT = 24, 8

Cost = Callable[[Game, int, Array | float, Array], float]
LED = ("mppfl", "mppfl_exact", "mppfl_noise_aware", "social_agnostic", "pigouvian")


@dataclass(frozen=True, eq=False)
class Outcome:
    """Sums over clients, one entry per round. Money, unless said.

    accuracy_terms   Σ ε_i/(t ρ_i) over those who participate, no unit
    payments         Σ p_i ρ_i
    server_costs     τ·accuracy + (1−τ)·payments
    welfare          Σ (p_i ρ_i − privacy cost), compute cost left out
    total_welfare    welfare − server_costs/(1−τ)
    negative_utility       clients with negative utility
    participating      clients with a positive budget
    best_response_gap  largest distance of a budget from its owner's best response, in units of budget
    client_regret    largest gain a client could get by moving alone
    relative_regret  the same as a share of what that client is paid and loses

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> mppfl.solve(game, num_rounds=3).outcome.participating.tolist()
        [2, 2, 2]
    """

    rounds: IntArray
    reward_rates: Array
    accuracy_terms: Array
    payments: Array
    server_costs: Array
    welfare: Array
    total_welfare: Array
    negative_utility: IntArray
    participating: IntArray
    best_response_gap: Array
    client_regret: Array
    relative_regret: Array

    def __repr__(self) -> str:
        facts = {f.name: span(getattr(self, f.name)) for f in fields(self) if f.name != "rounds"}
        return lines_of(f"Outcome of {len(self.rounds)} rounds, smallest to largest", facts)


def evaluate(game: Game, plan: Plan) -> Outcome:
    """What every round of a plan brings the server and the clients.

    Args:
        game: the game it is played in.
        plan: any plan for its clients.

    Returns:
        Sums over clients, one entry per round.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> mppfl.game.evaluate(game, mppfl.solve(game, num_rounds=3).plan).server_costs.shape
        (3,)
    """
    # Plans on a line for many clients and rounds are summed by a compiled twin of `totals_of_rounds`.
    if isinstance(plan.budgets, AlongLine) and len(plan) * plan.num_clients >= COMPILED_ABOVE:
        return outcome_of_sums(game, plan, _line_totals(game, plan))
    on_line = None  # privacy losses of budgets on a line: two products serve all rounds
    if isinstance(plan.budgets, AlongLine):
        both = game.loss @ np.column_stack([plan.budgets.slope, plan.budgets.offset])
        on_line = AlongLine(both[:, 0], both[:, 1])
    step = max(1, AT_ONCE // plan.num_clients)
    parts = [range(first, min(first + step, len(plan))) for first in range(0, len(plan), step)]
    return outcome_of_sums(game, plan, np.concatenate([totals_of_rounds(game, plan, part, on_line) for part in parts]))


def outcome_of_sums(game: Game, plan: Plan, rows: Array) -> Outcome:
    """From sums over clients, one row a round: noise harm, payments, gain, negative utilities, participants,
    best-response gap, regret, relative regret.
    """
    noise, payments, gain, below, taking, gap, regret, relative = rows.T
    accuracy = noise / plan.rounds
    weight = game.accuracy_weight
    costs = weight * accuracy + (1 - weight) * payments
    return Outcome(
        rounds=plan.rounds,
        reward_rates=plan.reward_rates,
        accuracy_terms=accuracy,
        payments=payments,
        server_costs=costs,
        welfare=gain,
        total_welfare=gain - costs / (1 - weight),
        negative_utility=below.astype(np.int64),
        participating=taking.astype(np.int64),
        best_response_gap=gap,
        client_regret=regret,
        relative_regret=relative,
    )


def totals_of_rounds(game: Game, plan: Plan, positions: range, on_line: AlongLine | None = None) -> Array:
    """Σε/ρ, Σpρ, welfare, negative utilities, participants, gap, regret, relative regret: one row a round.

    on_line  privacy losses, where they lie on a line as the budgets do
    """
    several, clients = [plan[position] for position in positions], game.clients
    totals = np.empty((len(several), 8))
    protected = np.array([bool(np.isfinite(terms.budgets).all()) for terms in several])
    for row in np.flatnonzero(~protected):
        totals[row] = _totals_without_protection(game, several[row])
    several = [several[row] for row in np.flatnonzero(protected)]
    if not several:
        return totals
    budgets = np.array([terms.budgets for terms in several])
    prices = np.array([np.broadcast_to(terms.prices, budgets.shape[1]) for terms in several])
    if on_line is None:
        losses = (game.loss @ budgets.T).T
    else:
        losses = np.array([on_line.at(0, terms.reward_rate) for terms in several])
    part = budgets > 0
    gains = utility(game, prices, budgets, losses)
    paid = prices * budgets
    size = np.abs(paid) + np.abs(paid - gains)
    wish = wanted_loss(game, prices) - (losses - budgets)
    answer = np.clip(wish, clients.budget_min, clients.budget_max)
    regret = clients.quadratic_cost * ((budgets - wish) ** 2 - (answer - wish) ** 2)
    gap = np.abs(answer - budgets)
    if plan.participation != "always":
        # Who may opt out weighs the compute cost too: it comes with joining and goes with leaving.
        regret, kept = regret_of_free_choice(game, plan.participation, budgets, regret, gains, losses)
        gap = np.where(kept, gap, 0.0)
    noise = np.divide(clients.noise_harm, budgets, out=np.zeros_like(budgets), where=part)
    totals[protected] = np.column_stack(
        [
            noise.sum(1),
            paid.sum(1),
            paid.sum(1) - privacy_cost(game, losses).sum(1),
            (gains < -1e-12 * size).sum(1),
            part.sum(1),
            gap.max(1),
            regret.max(1),
            (regret / np.maximum(size, 1e-300)).max(1),
        ]
    )
    return totals


def _totals_without_protection(game: Game, terms: RoundTerms) -> tuple[float, ...]:
    """The same where some send without noise: they add none and are paid nothing, and whom they expose loses all."""
    endless = np.isinf(terms.budgets)
    budgets = np.where(endless, 0.0, terms.budgets)
    part, prices = budgets > 0, np.broadcast_to(terms.prices, len(budgets))
    gains = utility(game, prices, budgets, game.loss @ budgets)
    lost = (game.loss @ endless.astype(np.float64) > 0) | (gains < 0)
    noise = float((game.clients.noise_harm[part] / budgets[part]).sum())
    paid = float(prices @ budgets)
    return noise, paid, -np.inf, int(lost.sum()), int((terms.budgets > 0).sum()), np.inf, np.inf, np.inf


def _line_totals(game: Game, plan: Plan) -> Array:
    from mppfl.game import _kernels as kernels

    line, clients = plan.budgets, game.clients
    if not isinstance(line, AlongLine):
        raise TypeError("only budgets on a line have a compiled sum")
    both = game.loss @ np.column_stack([line.slope, line.offset])
    weights = plan.prices.slope if isinstance(plan.prices, AlongLine) else np.ones(game.num_clients)
    rows: Array = kernels.line_totals(
        line.slope,
        line.offset,
        np.ascontiguousarray(both[:, 0]),
        np.ascontiguousarray(both[:, 1]),
        clients.quadratic_cost,
        clients.linear_cost,
        clients.compute_cost,
        clients.budget_min,
        clients.budget_max,
        clients.noise_harm,
        weights,
        plan.reward_rates,
    )
    return rows


@dataclass(frozen=True, slots=True)
class Verification:
    """How far a plan is from an equilibrium.

    residual         largest distance of a budget from its owner's best response, over the largest budget, or over
                     what a typical client would give alone (`natural_units`) where that is more
    client_regret    largest gain any client could get by moving alone within its bounds, in money
    relative_regret  the same as a share of what that client is paid and loses
    leader_regret    largest saving the server could get by another rate with clients responding, noise weighed over
                     participants; inside the bounds over all rates that keep everybody there, else over a dozen
                     rates around the chosen one, and with floors above 0 or ceilings over far lower and higher ones
                     too; None for mechanisms without a leader, and where clients may opt out
    leader_rounds    rounds whose leader was checked
    """

    residual: float
    client_regret: float
    relative_regret: float
    leader_regret: float | None
    leader_rounds: tuple[int, ...]

    def __repr__(self) -> str:
        facts = {f.name: f"{getattr(self, f.name)}" for f in fields(self)[:4]}
        return lines_of("Verification", facts | {"leader_rounds": f"{len(self.leader_rounds)} checked"})


def verify(game: Game, plan: Plan, outcome: Outcome | None = None) -> Verification:
    """The largest gain that any client, and the server, could get by moving alone (docs/model.md, section 5).

    Args:
        game: the game it is played in.
        plan: any plan for its clients.
        outcome: what `evaluate` says of it, where that is at hand.

    Returns:
        Clients are checked in every round; so is the leader, except in very large plans (first, middle, last round).

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> bool(mppfl.game.verify(game, mppfl.solve(game, "dp_fedavg").plan).client_regret > 0)
        True
    """
    outcome_here = evaluate(game, plan) if outcome is None else outcome
    first_and_last = (float(np.abs(plan[k].budgets).max()) for k in (0, len(plan) - 1))
    largest = max(natural_units(game).budget, *first_and_last)
    regret, checked = leader_regret(game, plan)
    return Verification(
        residual=float(outcome_here.best_response_gap.max()) / largest if np.isfinite(largest) else np.inf,
        client_regret=max(0.0, float(outcome_here.client_regret.max())),
        relative_regret=max(0.0, float(outcome_here.relative_regret.max())),
        leader_regret=regret,
        leader_rounds=checked,
    )


def leader_regret(game: Game, plan: Plan) -> tuple[float | None, tuple[int, ...]]:
    """What the server could save by another rate, in the worst of the checked rounds, and which rounds those are.

    None where clients may opt out: a plan does not say who refused, so what another rate would bring is not known.
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
            terms = plan[position]
            worst = max(worst, _saving(crowd, cost, plan, terms, [rate], [plan.budgets.at(position, rate)]))
    resting = _Resting.of(crowd, plan)
    if resting is not None:
        worst = max(worst, _saving_at_bounds(crowd, plan, cost, resting))
    elif better is None:
        answers = _Answers(crowd)
        for position in positions.tolist():
            terms = plan[position]
            rates = [terms.reward_rate * probe for probe in PROBES]
            if not np.isfinite(cost(crowd, terms.round_index, terms.prices, terms.budgets)):  # nobody participates
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
        leader = MECHANISMS[plan.mechanism].leader or "anticipating"
        weights = np.broadcast_to(_per_rate(plan, plan[0]), (crowd.num_clients,))
        line = equilibrium_response(crowd, weights)
        if not (line.has_interior and line.free.any()):
            return _Resting(False, None) if has_floors(crowd) else None
        cost = noise_aware_cost if leader == "noise_aware" else cost_without_absent
        positions = _first_middle_last(plan)
        several = [plan[k] for k in positions.tolist()]
        now = np.array([cost(crowd, terms.round_index, terms.prices, terms.budgets) for terms in several])
        between = rates_worth_trying(crowd, line, leader, plan.rounds[positions], now) if has_ceilings(crowd) else None
        settled = isinstance(plan.budgets, AlongLine) and between is None and not has_floors(crowd)
        return None if settled else _Resting(True, between)


def _saving_at_bounds(crowd: Game, plan: Plan, cost: Cost, resting: _Resting) -> float:
    """What the server could save where clients may rest at budgets above 0: at no pay at all, at less, and at more."""
    clients, answers, worst = crowd.clients, _Answers(crowd), 0.0
    weights = np.broadcast_to(_per_rate(plan, plan[0]), (crowd.num_clients,))
    usual = max(natural_units(crowd).rate, float(clients.linear_cost.max()))
    far = usual * np.array(WIDE)
    if resting.between is not None:
        far = np.concatenate([far, _rates_between(crowd, weights, *resting.between)])
    for position in _first_middle_last(plan).tolist():
        terms = plan[position]
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


def _per_rate(plan: Plan, terms: RoundTerms) -> Array | float:
    """Prices per unit of rate: 1 for everybody, or one each."""
    if isinstance(plan.prices, AlongLine):
        return plan.prices.slope
    return terms.prices / terms.reward_rate if np.ndim(terms.prices) and terms.reward_rate > 0 else 1.0


def _saving(game: Game, cost: Cost, plan: Plan, terms: RoundTerms, rates: list[float], answers: list[Array]) -> float:
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
        rows = np.array([low if s is None else s.budgets(r) for r, s in zip(rates, segments, strict=True)])
        rows = np.clip(rows, low, high)
        prices = np.array(rates)[:, None] * weights
        ideal = wanted_loss(game, prices)
        wish = ideal - ((game.loss @ rows.T).T - rows)
        gap = np.abs(rows - np.clip(wish, low, high)).max(axis=1)
        fits = gap <= 1e-12 * np.maximum(natural_units(game).budget, np.abs(ideal).max(axis=1))
        return [budgets if fit else None for budgets, fit in zip(rows, fits, strict=True)]


COMPILED_ABOVE = 4_000_000  # clients × rounds
AT_ONCE = 100_000  # clients × rounds that are computed side by side
