"""Reward rates on a straight response: the leader's first-order condition, solved for every round.

Every leader of the paper's kind asks for the root of  A·r − C = (κ/t) Σ g_i/(r·u_i − v_i)²  in r; they differ only in
A, C and the pull g. With u_i > 0 both sides are monotone and Newton's steps rise to the root from the left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from mppfl.arrays import Array, IntArray
from mppfl.errors import NotConverged

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
            from mppfl.game import kernels

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


def rates_by_condition(condition: RateCondition, everybody_gains_interest: bool, rounds: IntArray) -> Array | None:
    """The leader's rate of every round, where its condition has a root to rounding in each; else None."""
    if everybody_gains_interest:
        rates = rising_rates(condition, rounds)
    else:
        found = [crossing_rate(condition, int(t)) for t in rounds]
        if any(rate is None for rate in found):
            return None
        rates = np.array(found, dtype=np.float64)
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
    known: list[tuple[float, float]] = []  # log round, log(rate − lowest) of the rounds already solved
    for position in np.argsort(-rounds, kind="stable"):
        round_index = int(rounds[position])
        guess = max(_pointed_at(known, round_index, condition.lowest), start)
        rates[position] = start = _newton(condition, round_index, guess, start)
        if start > condition.lowest:
            known = [*known[-2:], (float(np.log(round_index)), float(np.log(start - condition.lowest)))]
    return rates


def rising_rates_each(condition: RateCondition, rounds: IntArray) -> Array:
    """`rising_rates` compiled, for small games asked many times; NaN where the condition does not hold."""
    from mppfl.game import settling_kernels as kernels

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


def _pointed_at(known: list[tuple[float, float]], round_index: int, lowest: float) -> float:
    """The rate that the last rounds' rates, as a polynomial in log t, lead to."""
    x = float(np.log(round_index))
    points = list(dict(known).items())
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
    at = int(np.argmax(thresholds))
    if thresholds[at] < condition.lowest or condition.pull[at] <= 0:  # budget_min, not zero, sets the lowest rate
        return float(np.nextafter(condition.lowest, np.inf))
    alone = condition.strength / round_index * condition.pull[at] / condition.slope[at] ** 2
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
