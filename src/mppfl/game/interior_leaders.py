"""The reward rate that keeps every client strictly inside its bounds: the root of the leader's condition.

Every leader of the paper's kind asks for the root of  A·r − C = (κ/t) Σ g_i/(r·u_i − v_i)²  in r; they differ only in
A, C and the pull g. With u_i > 0 both sides are monotone and Newton's steps rise to the root from the left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from mppfl.arrays import Array, IntArray
from mppfl.errors import NotConverged
from mppfl.game.equilibrium import Response
from mppfl.game.model import Game, amplification

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
