"""Compiled: one step of settling who takes part, for all rounds that have come to the same crowd."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mppfl.arrays import Array
from mppfl.game.rates import DIGITS

TIED = 1e-12  # margins that differ by less, as a share, differ by rounding: the lower number goes first


@njit(cache=True, error_model="numpy")
def without(tableau: Array, k: int) -> Any:
    """A copy of the inverse on the free clients with client k out of it (or back in it): see `path_kernels.pivot`."""
    n = len(tableau)
    changed = np.empty_like(tableau)
    scale = 1.0 / tableau[k, k]
    row = tableau[k] * scale
    for i in range(n):
        factor = tableau[i, k]
        if i == k:
            for j in range(n):
                changed[k, j] = -row[j]
        else:
            for j in range(n):
                changed[i, j] = tableau[i, j] - factor * row[j]
            changed[i, k] = factor * scale
    changed[k, k] = scale
    return changed


@njit(cache=True, error_model="numpy")
def _sums(pull: Array, slope: Array, offset: Array, rate: float) -> Any:
    square = 0.0
    cube = 0.0
    for i in range(len(pull)):
        inverse = 1.0 / (rate * slope[i] - offset[i])
        term = pull[i] * inverse * inverse
        square += term
        cube += term * inverse * slope[i]
    return square, cube


@njit(cache=True, error_model="numpy")
def _left_start(
    steepness: float, constant: float, weight: float, pull: Array, slope: Array, offset: Array, lowest: float
) -> Any:
    """`rates._left_start`: the root that the most reluctant client alone would cause."""
    at, highest = -1, -np.inf
    for i in range(len(pull)):
        threshold = offset[i] / slope[i] if slope[i] > 0.0 else -np.inf
        if threshold > highest:
            at, highest = i, threshold
    just_above = np.nextafter(lowest, np.inf)
    if at < 0 or highest < lowest or pull[at] <= 0.0:
        return just_above
    alone = weight * pull[at] / slope[at] ** 2
    above = 1e-8 * max(1.0, abs(lowest))
    for _ in range(100):
        above = np.sqrt(alone / max(steepness * (lowest + above) - constant, 1e-300))
    return max(lowest + 0.5 * above, just_above)


@njit(cache=True, error_model="numpy")
def rising_rates(
    steepness: float,
    constant: float,
    strength: float,
    pull: Array,
    slope: Array,
    offset: Array,
    lowest: float,
    rounds: Any,
) -> Any:
    """`rates.rising_rates` round by round, NaN where the condition has no root; `rounds` fall."""
    rates = np.full(len(rounds), np.nan)
    floor = _left_start(steepness, constant, strength / rounds[0], pull, slope, offset, lowest)
    rate = floor
    for position in range(len(rounds)):
        weight = strength / rounds[position]
        for _ in range(200):
            square, cube = _sums(pull, slope, offset, rate)
            gap = steepness * rate - constant - weight * square
            step = -gap / (steepness + 2.0 * weight * cube)
            above = rate - lowest
            if step * step <= 1e-17 * rate * above or abs(step) <= 4e-16 * rate:
                rate = max(rate + step, np.nextafter(lowest, np.inf))
                square, cube = _sums(pull, slope, offset, rate)
                gap = steepness * rate - constant - weight * square
                rise = steepness + 2.0 * weight * cube
                if abs(gap) <= max(1e-9 * (steepness * rate + abs(constant)), DIGITS * rate * abs(rise)):
                    rates[position] = rate
                    floor = rate
                break
            if rate == floor and step < 0.0:
                break
            rate = max(rate + step, floor)
        rate = floor
    return rates


@njit(cache=True, error_model="numpy")
def _first_of_worst(margins: Array, who: Any) -> int:
    most = -1.0
    for i in range(len(who)):
        if who[i]:
            most = max(most, abs(margins[i]))
    for i in range(len(who)):
        if who[i] and abs(margins[i]) >= most * (1.0 - TIED):
            return i
    return -1


@njit(cache=True, error_model="numpy")
def who_moves(
    budgets: Array,
    losses: Array,
    rates: Array,
    weights: Array,
    quadratic: Array,
    linear: Array,
    compute: Array,
    low: Array,
    high: Array,
    out: Any,
    may_return: bool,
    slight: float,
) -> Any:
    """Per round: who leaves first, who comes back first, -1 for nobody; `participation._decide` and `_worst_first`."""
    n = len(out)
    moves = np.empty((len(rates), 2), dtype=np.int64)
    margins = np.empty(n)
    leave = np.zeros(n, dtype=np.bool_)
    come_back = np.zeros(n, dtype=np.bool_)
    for t in range(len(rates)):
        for i in range(n):
            budget, loss, price = budgets[t, i], losses[t, i], rates[t] * weights[i]
            if may_return:
                wish = (price - linear[i]) / (2 * quadratic[i]) - (loss - budget)
                given = budget if budget > 0.0 else min(max(wish, low[i]), high[i])
                margin = quadratic[i] * (wish**2 - (wish - given) ** 2) - compute[i]
            else:
                spent = compute[i] if budget > 0.0 else 0.0
                margin = price * budget - spent - (quadratic[i] * loss**2 + linear[i] * loss)
            margins[i] = margin
            leave[i] = budget > 0.0 and not out[i] and margin < -slight
            come_back[i] = may_return and out[i] and high[i] > 0.0 and margin > slight
        moves[t, 0] = _first_of_worst(margins, leave)
        moves[t, 1] = _first_of_worst(margins, come_back)
    return moves
