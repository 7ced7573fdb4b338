"""The server's reward rate, by named leaders (docs/model.md, section 4).

Where every client can be kept strictly inside its bounds, the rate is the root of one equation a round
(interior_leaders.py), or one that leaves clients at bounds but loses nobody, if that is cheaper. Where not, it is the
one at which the server's cost is lowest, the noise of those who remain weighed as aggregation over them weighs it.
Mechanisms with one price for each client have no rate: see mechanisms.py.

Tolerances and searches depend on units, equations do not: leaders work in natural units, in which a typical budget and
rate are about 1. These are powers of two, so nothing is rounded on the way there and back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy.optimize import brentq

from mppfl.arrays import Array, IntArray, require_number
from mppfl.errors import BadInput, NoEquilibrium, NotConverged
from mppfl.game.equilibrium import (
    EXACT_BELOW,
    NUM_SAMPLES,
    Path,
    Response,
    Samples,
    equilibrium_at,
    equilibrium_response,
    join_samples,
    response_path,
    sample_response,
    waking_rates,
)
from mppfl.game.model import Game, amplification, cost_without_absent
from mppfl.game.plan import AlongLine, PerRound, Stored

COMPILED_ABOVE = 100_000  # clients
DIGITS = 2e-15  # of a rate: some of its last bits


@dataclass(frozen=True, eq=False)
class RateCondition:
    """steepness·r − constant = (strength/t) Σ pull_i/(r·slope_i − offset_i)², for rates between lowest and highest."""

    steepness: float
    constant: float
    strength: float
    pull: Array
    slope: Array
    offset: Array
    lowest: float
    highest: float

    def value(self, rate: float, round_index: int) -> tuple[float, float]:
        """Left minus right side at a rate, and its derivative."""
        square, cube = self._sums(rate)
        weight = self.strength / round_index
        return self.steepness * rate - self.constant - weight * square, self.steepness + 2 * weight * cube

    def values(self, rates: Array, round_index: int) -> Array:
        """Left minus right side at many rates; for small games."""
        budgets = rates[:, None] * self.slope - self.offset  # [rates, clients]
        with np.errstate(divide="ignore"):  # infinite where somebody's budget vanishes
            noise = np.divide(self.pull, budgets**2, out=np.zeros_like(budgets), where=self.pull != 0).sum(axis=1)
        return np.asarray(self.steepness * rates - self.constant - self.strength / round_index * noise)

    def _sums(self, rate: float) -> tuple[float, float]:
        if len(self.pull) >= COMPILED_ABOVE:
            from mppfl.game import _kernels as kernels

            square, cube = kernels.pull_sums(self.pull, self.slope, self.offset, rate)
            return float(square), float(cube)
        inverse = 1.0 / (rate * self.slope - self.offset)
        terms = self.pull * inverse**2
        return float(terms.sum()), float((terms * inverse) @ self.slope)

    def holds(self, rate: float, round_index: int) -> bool:
        """Whether it holds to 1e-9 of its left side, or as nearly as the digits of the rate allow: just above a rate at
        which somebody's budget vanishes, the next number after the rate may change the right side by more than that.
        """
        gap, rise = self.value(rate, round_index)
        return abs(gap) <= max(1e-9 * (self.steepness * rate + abs(self.constant)), DIGITS * rate * abs(rise))


def rates_by_condition(condition: RateCondition, all_slopes_positive: bool, rounds: IntArray) -> Array | None:
    """The leader's rate of every round, where its condition has a root to rounding in each; else None."""
    if all_slopes_positive:
        rates = rising_rates(condition, rounds)
    else:
        roots = [crossing_rate(condition, int(t)) for t in rounds]
        if any(rate is None for rate in roots):
            return None
        rates = np.array(roots, dtype=np.float64)
    if not all(condition.holds(float(r), int(t)) for r, t in zip(rates, rounds, strict=True)):
        return None
    return rates


def rising_rates(condition: RateCondition, rounds: IntArray) -> Array:
    """The root of every round when all slopes are positive: unique, above `lowest`.

    Rounds are taken from the last, whose rate is lowest, to the first. The condition is concave and increasing, so
    Newton's steps rise to the root from anywhere left of it, and one step from the right lands left of it; each round
    starts where the ones before point.
    """
    rates = np.empty(len(rounds))
    start = _left_start(condition, int(rounds.max()))
    solved: list[tuple[float, float]] = []  # log round, log(rate − lowest) of the rounds already solved
    for position in np.argsort(-rounds, kind="stable"):
        round_index = int(rounds[position])
        guess = max(_pointed_at(solved, round_index, condition.lowest), start)
        rates[position] = start = _newton(condition, round_index, guess, start)
        if start > condition.lowest:
            solved = [*solved[-2:], (float(np.log(round_index)), float(np.log(start - condition.lowest)))]
    return rates


def rising_rates_each(condition: RateCondition, rounds: IntArray) -> Array:
    """`rising_rates` compiled, for small games asked many times; NaN where the condition does not hold."""
    from mppfl.game import _kernels as kernels

    order = np.argsort(-rounds, kind="stable")
    rates = np.empty(len(rounds))
    rates[order] = kernels.rising_rates(
        condition.steepness,
        condition.constant,
        condition.strength,
        condition.pull,
        condition.slope,
        condition.offset,
        condition.lowest,
        np.asarray(rounds, dtype=np.int64)[order],
    )
    return rates


def _pointed_at(solved: list[tuple[float, float]], round_index: int, lowest: float) -> float:
    """The rate that the last rounds' rates, as a polynomial in log t, lead to."""
    x = float(np.log(round_index))
    points = list(dict(solved).items())
    if not points:
        return lowest
    total = 0.0
    for i, (x_i, y_i) in enumerate(points):
        total += y_i * float(np.prod([(x - x_j) / (x_i - x_j) for j, (x_j, _) in enumerate(points) if j != i]))
    return lowest + float(np.exp(total))


def _newton(condition: RateCondition, round_index: int, rate: float, floor: float) -> float:
    """The root from a start near it; `floor` is a rate known to lie left of it."""
    for _ in range(200):
        gap, rise = condition.value(rate, round_index)
        step = -gap / rise
        above = rate - condition.lowest
        # The next error is about step²/above; what rounding leaves is no reason to go on.
        if step * step <= 1e-17 * rate * above or abs(step) <= 4e-16 * rate:
            return max(rate + step, float(np.nextafter(condition.lowest, np.inf)))
        if rate == floor and step < 0:
            return rate  # the condition holds nowhere above: a bound, not a pole, sets the lowest rate
        rate = max(rate + step, floor)
    raise NotConverged(f"the reward rate of round {round_index} did not settle (last {rate:.6g}).", rate, abs(gap))


def _left_start(condition: RateCondition, round_index: int) -> float:
    """A rate left of the root: the root that the most reluctant client alone would cause."""
    with np.errstate(divide="ignore"):
        thresholds = np.where(condition.slope > 0, condition.offset / condition.slope, -np.inf)
    most_reluctant = int(np.argmax(thresholds))
    if thresholds[most_reluctant] < condition.lowest or condition.pull[most_reluctant] <= 0:
        # budget_min, not zero, sets the lowest rate
        return float(np.nextafter(condition.lowest, np.inf))
    alone = condition.strength / round_index * condition.pull[most_reluctant] / condition.slope[most_reluctant] ** 2
    above = 1e-8 * max(1.0, abs(condition.lowest))
    for _ in range(100):
        above = float(
            np.sqrt(alone / max(condition.steepness * (condition.lowest + above) - condition.constant, 1e-300))
        )
    rate = condition.lowest + 0.5 * above
    return rate if rate > condition.lowest else float(np.nextafter(condition.lowest, np.inf))


def crossing_rate(condition: RateCondition, round_index: int, points: int = 400) -> float | None:
    """The lowest rate strictly inside a bounded interval where the condition turns from negative to positive."""
    low, high = condition.lowest, condition.highest
    if not np.isfinite(high):
        high = max(2 * abs(low), 1.0)
        while condition.value(high, round_index)[0] < 0 and high < 1e300:
            high *= 2
    inside = low + (high - low) * (0.5 - 0.5 * np.cos(np.pi * (np.arange(points) + 0.5) / points))
    start = low + max(1e-12 * (inside[0] - low), 4e-16 * abs(low))  # where somebody wakes at `low` it is steep there
    inside = np.concatenate([[start], inside])
    values = condition.values(inside, round_index)
    turns = np.flatnonzero((values[:-1] < 0) & (values[1:] >= 0))
    if len(turns) == 0:
        return None
    low, high = inside[turns[0]], inside[turns[0] + 1]
    root = brentq(lambda r: max(condition.value(r, round_index)[0], -1e300), low, high, xtol=1e-300, rtol=8.9e-16)
    return float(root)


UniformLeader = Literal["mean_field", "anticipating", "noise_aware", "budget_limited"]


def interior_rates_of(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None = None
) -> Array | None:
    """Rates of all rounds if each keeps every free client strictly inside its bounds, else None."""
    if leader == "budget_limited":
        if float(line.weights @ line.slope) <= 0:
            return None
        best = interior_rates_of(game, line, "anticipating", rounds)
        best = np.full(len(rounds), np.nan) if best is None else best
        rates = _limited_rates(game, line, rounds, float(payment_limit or 0.0), best)
    elif leader == "noise_aware":
        rates = _noise_aware_rates(game, line, rounds)
        edge = 1e-9 * max(1.0, line.lowest_rate)
        if (rates < line.lowest_rate + edge).any() or (rates > line.highest_rate - edge).any():
            return None  # the search ran into an end: the best rate lies where somebody is at a bound
    else:
        roots = rates_by_condition(rate_condition(game, line, leader), line.all_slopes_positive, rounds)
        if roots is None:
            return None
        rates = roots
    inside = (rates > line.lowest_rate) & (rates < line.highest_rate)
    return rates if inside.all() else None


def interior_rates_each(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None = None
) -> Array:
    """`interior_rates_of` each round alone, NaN where that is None; compiled where everybody gains interest."""
    none = np.full(len(rounds), np.nan)
    if not (line.has_interior and line.free.any()):
        return none
    if leader == "budget_limited":
        if float(line.weights @ line.slope) <= 0:
            return none
        best = interior_rates_each(game, line, "anticipating", rounds)
        rates = _limited_rates(game, line, rounds, float(payment_limit or 0.0), best)
    elif leader == "noise_aware":
        rates = _noise_aware_rates(game, line, rounds)
        edge = 1e-9 * max(1.0, line.lowest_rate)
        rates[(rates < line.lowest_rate + edge) | (rates > line.highest_rate - edge)] = np.nan
    elif line.all_slopes_positive:
        rates = rising_rates_each(rate_condition(game, line, leader), rounds)
    else:
        alone = [interior_rates_of(game, line, leader, rounds[k : k + 1]) for k in range(len(rounds))]
        rates = np.array([np.nan if root is None else root[0] for root in alone])
    return np.where((rates > line.lowest_rate) & (rates < line.highest_rate), rates, np.nan)


def rate_condition(game: Game, line: Response, leader: Literal["mean_field", "anticipating"]) -> RateCondition:
    """The first-order condition of the leader on a straight response; with somebody at 0, every ε_i is amplified.

    mean_field (eq. 16):    Σ τε_i/(2t a_i ρ_i²) = (1−τ) Σ(ρ_i + r/2a_i): external risk is taken as it stands
    anticipating (eq. 17):  Σ τε_i u_i/(t ρ_i²) = (1−τ)(2r Σw_iu_i − Σw_iv_i): the server knows that it moves
    """
    clients = game.clients
    part = line.free | (line.offset < 0)  # a client pinned at 0 is left out of the sum
    alone = np.where(line.free, line.weights / (2 * clients.quadratic_cost), 0.0)  # own answer, others unmoved
    paid_slope, paid_offset = float(line.weights @ line.slope), float(line.weights @ line.offset)
    if leader == "mean_field":
        pull, steepness = clients.noise_harm * alone, paid_slope + float(line.weights @ alone)
    else:
        pull, steepness = clients.noise_harm * line.slope, 2 * paid_slope
    return RateCondition(
        steepness=steepness,
        constant=paid_offset,
        strength=amplification(game, part) * game.accuracy_weight / (1 - game.accuracy_weight),
        pull=np.ascontiguousarray(pull[part]),
        slope=np.ascontiguousarray(line.slope[part]),
        offset=np.ascontiguousarray(line.offset[part]),
        lowest=line.lowest_rate,
        highest=line.highest_rate,
    )


def spending_rate(line: Response, payment_limit: float) -> float:
    """r = (V + √(V² + 4U·limit))/(2U): the rate whose payments are the limit exactly (model, eq. 19); needs U > 0."""
    slope, offset = float(line.weights @ line.slope), float(line.weights @ line.offset)
    return (offset + float(np.sqrt(offset**2 + 4 * slope * payment_limit))) / (2 * slope)


def _limited_rates(game: Game, line: Response, rounds: IntArray, payment_limit: float, best: Array) -> Array:
    """The best rate or the one that spends the limit, whichever is lower; NaN where the best is not known to be higher.

    Without a best rate inside (NaN) the limit is spent only where that still pays: where everybody gains interest, cost
    is convex, and falling at that rate it falls up to there. Otherwise the best rate may lie below the interior.
    """
    spending = spending_rate(line, payment_limit)
    lower = np.minimum(spending, best)
    if not (np.isnan(best).any() and line.all_slopes_positive and spending > line.lowest_rate):
        return np.asarray(lower)
    condition = rate_condition(game, line, "anticipating")
    falls = np.array([condition.value(spending, int(t))[0] < 0 for t in rounds])
    return np.where(np.isnan(best) & falls, spending, lower)


def noise_aware_sums(game: Game) -> tuple[Array, float]:
    """(n_i/n̄)² of every client, and τ N² ε̄/(1−τ): what the noise-aware leader weighs (model, eq. 18)."""
    clients = game.clients
    sizes = (clients.data_size / clients.data_size.mean()) ** 2
    weight = game.accuracy_weight / (1 - game.accuracy_weight)
    return sizes, weight * game.num_clients**2 * float(clients.noise_harm.mean())


def noise_aware_cost(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """τN²ε̄/(t·X) + (1−τ)Σp_iρ_i with X = Σ(n_i/n̄)²ρ_i (model, eq. 18): the cost under noise-aware aggregation."""
    sizes, strength = noise_aware_sums(game)
    effective = float(sizes @ budgets)
    if effective <= 0:
        return np.inf
    return (1 - game.accuracy_weight) * (strength / (round_index * effective) + float(np.sum(prices * budgets)))


def _noise_aware_rates(game: Game, line: Response, rounds: IntArray) -> Array:
    """Minimum of κ/(t·X(r)) + r·Y(r) with X and Y straight in r: its derivative has one root where both rise."""
    sizes, strength = noise_aware_sums(game)
    effective, paid = (np.array([[w @ line.slope, w @ line.offset]]) for w in (sizes, line.weights))
    ends = np.minimum([[line.lowest_rate, line.highest_rate]], 1e12)
    from mppfl.game import _kernels as kernels

    rates, _, _ = kernels.noise_aware_on_path(strength / rounds, effective, paid, ends)
    return np.asarray(rates)


# ---- The server's reward rate, by named leaders (docs/model.md, section 4) ------------------------------------------

# Where every client can be kept strictly inside its bounds, the rate is the root of one equation a round
# (interior_leaders.py), or one that leaves clients at bounds but loses nobody, if that is cheaper. Where not, it is the
# one at which the server's cost is lowest, the noise of those who remain weighed as aggregation over them weighs it.
# Mechanisms with one price for each client have no rate: see mechanisms.py.
#
# Tolerances and searches depend on units, equations do not: leaders work in natural units, in which a typical budget
# and
# rate are about 1. These are powers of two, so nothing is rounded on the way there and back.


@dataclass(frozen=True, slots=True)
class Units:
    """What one natural unit of budget and of reward rate is in the game's own."""

    budget: float
    rate: float

    @property
    def money(self) -> float:
        return self.budget * self.rate

    def budgets_back(self, budgets: PerRound) -> PerRound:
        """Budgets of every round in the game's own unit, given for rates in its own unit."""
        if isinstance(budgets, AlongLine):
            return AlongLine(budgets.slope * (self.budget / self.rate), budgets.offset * self.budget)
        if isinstance(budgets, Stored):
            return Stored(budgets.rows * self.budget, budgets.row_of_round)
        raise TypeError(f"budgets of a leader are on a line or stored, not {type(budgets).__name__}")


def natural_units(game: Game) -> Units:
    """From what a typical client would give, were it alone: ρ = (r − b)/2a where τε/ρ + (1−τ)rρ is least."""
    clients = game.clients
    harm = game.accuracy_weight / (1 - game.accuracy_weight) * clients.noise_harm
    with np.errstate(divide="ignore"):
        alone = np.minimum(np.cbrt(harm / (4 * clients.quadratic_cost)), np.sqrt(harm / clients.linear_cost))
    able = clients.budget_max > 0
    if not able.any():
        return Units(1.0, 1.0)
    budgets = np.clip(alone, clients.budget_min, clients.budget_max)[able]
    rates = clients.linear_cost[able] + 2 * clients.quadratic_cost[able] * budgets
    return Units(_power_of_two(budgets), _power_of_two(rates))


def slight_margin(game: Game) -> float:
    """Tolerance for participation decisions, in money: smaller gains are rounding error."""
    return 1e-12 * natural_units(game).money


def in_units(game: Game, units: Units) -> Game:
    """The same game in these units; what was factorised of its network is shared."""
    clients = game.clients
    scaled = replace(
        clients,
        quadratic_cost=clients.quadratic_cost * (units.budget / units.rate),
        linear_cost=clients.linear_cost / units.rate,
        noise_harm=clients.noise_harm / (units.budget * units.money),
        compute_cost=clients.compute_cost / units.money,
        budget_min=clients.budget_min / units.budget,
        budget_max=clients.budget_max / units.budget,
    )
    changed = replace(game, clients=scaled)
    vars(changed)["loss"] = game.loss
    return changed


def _power_of_two(values: Array) -> float:
    """The power of two nearest to their median, as ratios go."""
    return float(np.exp2(np.round(np.median(np.log2(values)))))


# ---- with clients at their bounds: the cheapest rate on the path of equilibria, or of its samples -----------------

VANISHING = 1e-9  # of the largest budget: rounding, not participating


@dataclass(frozen=True, eq=False)
class Rates:
    """The leader's choice: a reward rate per round, the budgets it leads to, and whether any bound is reached."""

    reward_rates: Array
    budgets: PerRound
    reaches_bounds: bool


def rates_at_bounds(
    game: Game,
    weights: Array,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    *,
    keep_everybody: bool = False,
    between: tuple[float, float] = (0.0, np.inf),
) -> Rates:
    """The best rate of every round with clients at their bounds where need be, and the budgets it leads to.

    keep_everybody  only rates at which all participate who may
    between         where the best rate is known to be, if anywhere; others may be looked at too
    """
    if game.num_clients <= EXACT_BELOW:
        path = response_path(game, weights, between[1])
        if keep_everybody:
            path = path.only(np.all(path.participating[:, game.clients.budget_max > 0], axis=1))
        if len(path) == 0:
            raise NoEquilibrium("no reward rate keeps everybody who may participate.")
        rates, segments = best_on_path(game, weights, path, leader, rounds, payment_limit, to_the_letter=keep_everybody)
        rows = np.array([path[k].budgets(float(rate)) for rate, k in zip(rates, segments, strict=True)])
        rows = np.minimum(rows, game.clients.budget_max)  # a line may pass the bound it ends at by rounding
        return Rates(rates, Stored(rows, np.arange(len(rates))), True)
    rates = _best_of_samples(game, weights, leader, rounds, payment_limit, keep_everybody, between)
    distinct, row_of_round = np.unique(rates, return_inverse=True)
    rows_found: list[Array] = []
    for rate in distinct:
        rows_found.append(equilibrium_at(game, rate * weights, rows_found[-1] if rows_found else None).budgets)
    return Rates(rates, Stored(np.array(rows_found), row_of_round), True)


def rates_where_no_root_is_inside(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None
) -> Rates:
    """The best rates of rounds in which the leader's condition has no root strictly inside the bounds.

    Where some rates keep everybody inside, the leader still loses nobody if it need not: it looks at rates at which all
    participate, some at a bound. Not so noise_aware, whose cost has no jump where somebody leaves. Each round is looked
    at alone: what it gets does not depend on the others.
    """
    if leader == "noise_aware" or not (line.has_interior and line.free.any()):
        return rates_at_bounds(game, line.weights, leader, rounds, payment_limit)
    try:
        return rates_at_bounds(game, line.weights, leader, rounds, payment_limit, keep_everybody=True)
    except (NoEquilibrium, NotConverged):  # no such rate was found, at least in one round
        if len(rounds) == 1:
            return rates_at_bounds(game, line.weights, leader, rounds, payment_limit)
    alone = [
        rates_where_no_root_is_inside(game, line, leader, rounds[k : k + 1], payment_limit) for k in range(len(rounds))
    ]
    rates = np.array([choice.reward_rates[0] for choice in alone])
    rows = np.array([choice.budgets.at(0, float(choice.reward_rates[0])) for choice in alone])
    return Rates(rates, Stored(rows, np.arange(len(rounds))), True)


def best_on_path(
    game: Game,
    weights: Array,
    path: Path,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None = None,
    *,
    to_the_letter: bool = False,
) -> tuple[Array, IntArray]:
    """The rate of every round at which the server's cost, noise weighed over those who participate, is lowest, and its
    segment; compiled twins of `best_of_round` and `noise_aware_of_rounds`.

    to_the_letter  mean_field takes a rate at which its own condition (16) holds wherever there is one, and not its cost
    """
    from mppfl.game import _kernels as kernels

    clients = game.clients
    if leader == "noise_aware":
        sizes, strength = noise_aware_sums(game)
        effective = np.column_stack([path.slope @ sizes, path.offset @ sizes])
        paid = np.column_stack([path.slope @ weights, path.offset @ weights])
        rates, segments, _ = kernels.noise_aware_on_path(
            strength / rounds, effective, paid, np.minimum(path.ends, 1e12)
        )
        return rates, segments
    sizes = clients.data_size
    with np.errstate(divide="ignore"):
        amplified = (float(sizes.sum()) / (path.participating @ sizes)) ** 2
    codes = {
        "mean_field": kernels.MEAN_FIELD,
        "anticipating": kernels.ANTICIPATING,
        "budget_limited": kernels.BUDGET_LIMITED,
    }

    def best(code: int) -> tuple[Array, IntArray]:
        rates, segments = kernels.best_on_path(
            path.ends,
            path.slope,
            path.offset,
            path.participating,
            amplified,
            weights,
            weights / (2 * clients.quadratic_cost),
            clients.noise_harm,
            game.accuracy_weight,
            np.asarray(rounds, dtype=np.int64),
            code,
            float(payment_limit or 0.0),
        )
        return rates, segments

    rates, segments = best(codes[leader])
    if leader == "mean_field" and to_the_letter:
        letter, where = best(kernels.CONDITION_ALONE)
        rates, segments = np.where(where < 0, rates, letter), np.where(where < 0, segments, where)
    if (segments < 0).any():
        limit = f" within payment_limit={payment_limit:g}. Raise it." if payment_limit is not None else "."
        first = int(rounds[np.argmax(segments < 0)])
        raise NoEquilibrium(f"no reward rate of round {first} moves any client to participate{limit}")
    return rates, segments


def _best_of_samples(
    game: Game,
    weights: Array,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    keep_everybody: bool,
    between: tuple[float, float],
) -> Array:
    """Large games: exact equilibria at sampled rates, refined twice around the rates that some round would choose."""
    low, high = waking_rates(game, weights)
    floor = max(low, 1e-3 * high, 1e-6, between[0])
    first = np.geomspace(floor, min(8 * max(high, floor), max(between[1], 2 * floor)), NUM_SAMPLES)
    if between[0] == 0 and game.clients.budget_min.any():  # some give their lowest budget for nothing
        first = np.concatenate([[0.0], first])
    samples = sample_response(game, weights, first)
    choice = _choose_samples(game, samples, leader, rounds, payment_limit, keep_everybody)
    for _ in range(2):
        chosen = np.unique(choice)
        near = np.unique(np.clip(np.concatenate([chosen - 1, chosen]), 0, len(samples.rates) - 2))
        middles = np.sqrt(samples.rates[near] * samples.rates[near + 1])
        samples = join_samples(samples, sample_response(game, weights, middles))
        choice = _choose_samples(game, samples, leader, rounds, payment_limit, keep_everybody)
    return np.asarray(samples.rates[choice])


def _choose_samples(
    game: Game,
    samples: Samples,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    keep_everybody: bool,
) -> IntArray:
    weight, fullest = game.accuracy_weight, amplification(game, game.clients.budget_max > 0)
    paid = (1 - weight) * samples.rates * samples.paid  # [samples]
    with np.errstate(divide="ignore", invalid="ignore"):
        if leader == "noise_aware":
            noise = (1 - weight) * noise_aware_sums(game)[1] / samples.strength
        else:
            noise = weight * samples.amplification * samples.noise
        cost = noise[None, :] / rounds[:, None] + paid[None, :]
    possible = samples.strength > 0
    if keep_everybody:
        possible &= samples.amplification <= fullest * (1 + 1e-12)
    if leader == "budget_limited":
        possible &= samples.rates * samples.paid <= float(payment_limit or 0.0)
    if not possible.any():
        raise NoEquilibrium(
            "no sampled reward rate moves any client to participate. Raise payment_limit or lower costs."
        )
    cost[:, ~possible] = np.inf
    return np.asarray(np.argmin(cost, axis=1))


# ---- with clients at bounds although everybody could be kept inside ------------------------------------------------

# A client at a floor above 0, or at a ceiling, still participates. Such a rate may cost far less than any inside:
# floors cost nothing, and where some can share no more, others who were crowded out share again. How high a rate can be
# worth trying follows from the least that any budgets at all would cost at it.

NEGLIGIBLE = 1e-9  # of a cost: less is no saving
DOUBLINGS = 40


def has_floors(game: Game) -> bool:
    """Whether somebody who responds to the rate participates at its lowest budget too."""
    clients = game.clients
    return bool(((clients.budget_min > 0) & (clients.budget_max > clients.budget_min)).any())


def has_ceilings(game: Game) -> bool:
    """Whether somebody who responds to the rate has a highest budget."""
    clients = game.clients
    return bool((np.isfinite(clients.budget_max) & (clients.budget_max > clients.budget_min)).any())


def cheaper_at_bounds(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None, inside: Array
) -> Rates:
    """The rates `inside` the bounds, or others that are cheaper, with some at a bound but nobody lost.

    noise_aware, whose cost knows no jump where somebody leaves, may also lose clients; in games too large for their
    path to be followed only where somebody can rest at a bound.
    """
    within = Rates(inside, AlongLine(line.slope, line.offset), False)
    loses = leader == "noise_aware"
    if not (has_floors(game) or has_ceilings(game) or (loses and game.num_clients <= EXACT_BELOW)):
        return within
    cost = noise_aware_cost if leader == "noise_aware" else cost_without_absent
    costs = np.array(
        [cost(game, int(t), r * line.weights, line.budgets(float(r))) for t, r in zip(rounds, inside, strict=True)]
    )
    between = rates_worth_trying(game, line, leader, rounds, costs)
    if between is None:
        return within
    try:
        other = rates_at_bounds(
            game, line.weights, leader, rounds, payment_limit, keep_everybody=not loses, between=between
        )
    except (NoEquilibrium, NotConverged):  # no such rate was found
        return within
    able, better = game.clients.budget_max > 0, np.zeros(len(rounds), dtype=bool)
    rows = []
    for k, (t, rate, elsewhere) in enumerate(zip(rounds, inside, other.reward_rates, strict=True)):
        theirs = other.budgets.at(k, float(elsewhere))
        fair = loses or bool((theirs[able] > VANISHING * theirs.max()).all())
        least = costs[k] * (1 - NEGLIGIBLE)
        better[k] = fair and cost(game, int(t), elsewhere * line.weights, theirs) < least
        rows.append(theirs if better[k] else line.budgets(float(rate)))
    if not better.any():
        return within
    return Rates(np.where(better, other.reward_rates, inside), Stored(np.array(rows), np.arange(len(rounds))), True)


def rates_worth_trying(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, costs: Array
) -> tuple[float, float] | None:
    """Between which rates clients may rest at bounds, all participating, for less than `costs`; None if nowhere.

    Below the interior somebody is lost unless floors are above 0, which only noise_aware may do.
    """
    low = 0.0 if has_floors(game) or leader == "noise_aware" else line.highest_rate
    if not np.isfinite(low):
        return None
    if (line.weights < 0).any():  # who is charged may make any rate pay
        return low, np.inf
    enough = costs * (1 - NEGLIGIBLE)
    tried = max(line.highest_rate, 0.0) if np.isfinite(line.highest_rate) else max(line.lowest_rate, 1.0)
    least = least_costs(game, line.weights, leader, rounds, tried)
    if low > 0 and not (least < enough).any():
        return None
    for _ in range(DOUBLINGS):
        if not (least < enough).any():
            return low, tried
        tried = 2 * max(tried, 1e-3)
        least = least_costs(game, line.weights, leader, rounds, tried)
    return low, np.inf


def least_costs(game: Game, weights: Array, leader: UniformLeader, rounds: IntArray, rate: float) -> Array:
    """What the server pays at least at this rate or a higher one, whatever budgets within the bounds clients choose.

    Of each client, noise against pay: k/ρ + pρ is least at √(k/p). Under noise-aware aggregation the same of all
    together, paid as whoever brings most for its pay.
    """
    clients, tau = game.clients, game.accuracy_weight
    able = clients.budget_max > 0
    prices = (1 - tau) * rate * weights[able]
    with np.errstate(divide="ignore", invalid="ignore"):
        if leader == "noise_aware":
            sizes, strength = noise_aware_sums(game)
            harm, price = (1 - tau) * strength / rounds, float((prices / sizes[able]).min())
            effective = np.fmin(np.sqrt(harm / price), float(sizes[able] @ clients.budget_max[able]))
            return np.nan_to_num(harm / effective) + np.nan_to_num(price * effective)
        costs, amplified = np.empty(len(rounds)), amplification(game, able)
        for k, t in enumerate(rounds):
            harm = tau * amplified * clients.noise_harm[able] / t
            budgets = np.clip(np.sqrt(harm / prices), clients.budget_min[able], clients.budget_max[able])
            noise, pay = np.nan_to_num(harm / budgets), np.nan_to_num(prices * budgets)  # 0/0 and 0·∞ count as 0
            costs[k] = float((noise + pay).sum())
    return costs


# ---- all of it ----------------------------------------------------------------------------------------------------


def choose_rates(
    game: Game,
    leader: UniformLeader,
    rounds: IntArray,
    *,
    payment_limit: float | None = None,
    weights: Array | None = None,
    may_leave: bool = False,
) -> Rates:
    """The leader's reward rate for every round in `rounds`, and the budgets it leads to.

    weights    personal prices per unit of rate, one each unless given (Pigouvian prices)
    may_leave  whether clients may opt out: bounds then hold only for those who stay, and where everybody can be kept
               strictly inside, no other rate is looked at. Nor does mean_field, which follows its condition wherever
               it can and not its cost
    """
    if leader not in get_args(UniformLeader):
        raise BadInput(f"leader={leader!r} must be one of {', '.join(get_args(UniformLeader))}.")
    if leader == "budget_limited":
        payment_limit = require_number(
            payment_limit if payment_limit is not None else np.nan, "payment_limit", 0, np.inf
        )
    require_somebody(game)
    units = natural_units(game)
    limit = None if payment_limit is None else payment_limit / units.money
    chosen = _rates_in_natural_units(in_units(game, units), leader, rounds, limit, weights, may_leave=may_leave)
    return Rates(chosen.reward_rates * units.rate, units.budgets_back(chosen.budgets), chosen.reaches_bounds)


def _rates_in_natural_units(
    game: Game,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    weights: Array | None,
    *,
    may_leave: bool,
) -> Rates:
    line = equilibrium_response(game, weights)
    inside = None
    if line.has_interior and line.free.any():
        inside = interior_rates_of(game, line, leader, rounds, payment_limit)
    if inside is None:
        inside = interior_rates_each(game, line, leader, rounds, payment_limit)
    none = np.isnan(inside)
    if none.all():
        return rates_where_no_root_is_inside(game, line, leader, rounds, payment_limit)
    within = Rates(inside[~none], AlongLine(line.slope, line.offset), False)
    if not may_leave and leader != "mean_field":
        within = cheaper_at_bounds(game, line, leader, rounds[~none], payment_limit, within.reward_rates)
    if not none.any():
        return within
    others = rates_where_no_root_is_inside(game, line, leader, rounds[none], payment_limit)
    rates, rows = np.empty(len(rounds)), np.empty((len(rounds), game.num_clients))
    for part, choice in ((~none, within), (none, others)):
        rates[part] = choice.reward_rates
        rows[part] = [choice.budgets.at(k, float(rate)) for k, rate in enumerate(choice.reward_rates)]
    return Rates(rates, Stored(rows, np.arange(len(rounds))), True)


def require_somebody(game: Game) -> None:
    """Raises NoEquilibrium where the bounds let nobody participate."""
    if (game.clients.budget_max <= 0).all():
        raise NoEquilibrium(
            "budget_max is 0 for everybody, so nobody can participate. Raise it for those who may share."
        )


def pigouvian_weights(game: Game) -> Array:
    """c = B⁻ᵀ1 (model, eq. 20): paid r·c_i, everybody does what all together would want done."""
    return game.loss.T.solve(np.ones(game.num_clients))
