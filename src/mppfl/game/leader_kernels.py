"""Compiled: the leader's best rate on a path of equilibria, for all rounds at once.

The same candidates as in `bounded_leaders.candidates_of_segment`, but a segment is looked at only if even the least
noise and the least pay that any of its rates could bring would beat the best found so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mppfl.arrays import Array

MEAN_FIELD, ANTICIPATING, BUDGET_LIMITED = 0, 1, 2
CONDITION_ALONE = 3  # mean_field, where its condition (16) has a root and nowhere else
POINTS = 60  # at which a segment is searched for the leader's condition
VANISHING = 1e-9  # of the largest budget: rounding, not taking part


@njit(cache=True, error_model="numpy")
def _pulled(pull: Array, slope: Array, offset: Array, rate: float) -> float:
    """Σ g_i/ρ_i² over those who respond."""
    total = 0.0
    for i in range(len(pull)):
        if slope[i] != 0.0:
            inverse = 1.0 / (rate * slope[i] - offset[i])
            total += pull[i] * inverse * inverse
    return total


@njit(cache=True, error_model="numpy")
def _gap_and_rise(
    steepness: float, constant: float, weight: float, pull: Array, slope: Array, offset: Array, rate: float
) -> Any:
    """A·r − C − weight·Σ g_i/ρ_i², and its derivative."""
    square = 0.0
    cube = 0.0
    for i in range(len(pull)):
        if slope[i] != 0.0:
            inverse = 1.0 / (rate * slope[i] - offset[i])
            term = pull[i] * inverse * inverse
            square += term
            cube += term * inverse * slope[i]
    return steepness * rate - constant - weight * square, steepness + 2.0 * weight * cube


@njit(cache=True, error_model="numpy")
def _root_between(
    low: float,
    high: float,
    steepness: float,
    constant: float,
    weight: float,
    pull: Array,
    slope: Array,
    offset: Array,
) -> Any:
    """Where the condition turns from negative to positive: Newton's steps, halved where they would leave."""
    rate = 0.5 * (low + high)
    for _ in range(200):
        gap, rise = _gap_and_rise(steepness, constant, weight, pull, slope, offset, rate)
        if gap < 0.0:
            low = rate
        else:
            high = rate
        step = -gap / rise
        following = rate + step
        if not low < following < high:
            following = 0.5 * (low + high)
        if abs(following - rate) <= 4e-16 * abs(rate):
            return following
        rate = following
    return rate


@njit(cache=True, error_model="numpy")
def _crossing(
    low: float,
    high: float,
    sums: Array,
    known: Any,
    steepness: float,
    constant: float,
    weight: float,
    pull: Array,
    slope: Array,
    offset: Array,
) -> Any:
    """`rates.crossing_rate` at POINTS points, NaN where there is none; `sums` keeps what serves every round."""
    endless = not np.isfinite(high)
    if endless:
        high = max(2.0 * abs(low), 1.0)
        while high < 1e300 and steepness * high - constant - weight * _pulled(pull, slope, offset, high) < 0.0:
            high *= 2.0
    first = low + (high - low) * (0.5 - 0.5 * np.cos(np.pi * 0.5 / POINTS))
    before_rate = low + max(1e-12 * (first - low), 4e-16 * abs(low))
    before = steepness * before_rate - constant - weight * _pulled(pull, slope, offset, before_rate)
    for j in range(POINTS):
        rate = low + (high - low) * (0.5 - 0.5 * np.cos(np.pi * (j + 0.5) / POINTS))
        if endless:
            total = _pulled(pull, slope, offset, rate)
        else:
            if not known[j]:
                sums[j] = _pulled(pull, slope, offset, rate)
                known[j] = True
            total = sums[j]
        value = steepness * rate - constant - weight * total
        if before < 0.0 and value >= 0.0:
            return _root_between(before_rate, rate, steepness, constant, weight, pull, slope, offset)
        before_rate, before = rate, value
    return np.nan


@njit(cache=True, error_model="numpy")
def _noise_and_pay(
    rate: float, slope: Array, offset: Array, part: Any, size: float, weights: Array, harm: Array
) -> Any:
    """Σε/ρ and r·Σwρ at a rate of a segment; noise is infinite where somebody who takes part vanishes, or at NaN."""
    largest = 0.0
    smallest = np.inf
    noise = 0.0
    paid = 0.0
    for i in range(len(slope)):
        if part[i]:
            budget = rate * slope[i] - offset[i]
            if not budget > 1e-13 * size:
                return np.inf, 0.0
            largest = max(largest, budget)
            smallest = min(smallest, budget)
            noise += harm[i] / budget
            paid += weights[i] * budget
    return (noise, rate * paid) if smallest > VANISHING * largest and not np.isnan(rate) else (np.inf, 0.0)


@njit(cache=True, error_model="numpy")
def _least(low: float, high: float, slope: Array, offset: Array, part: Any, harm: Array, paid: Any) -> Any:
    """Bounds from below on noise Σε/ρ and pay r·Σwρ over one segment."""
    noise = 0.0
    for i in range(len(slope)):
        if part[i]:
            if np.isfinite(high):
                most = max(low * slope[i] - offset[i], high * slope[i] - offset[i])
            else:
                most = np.inf if slope[i] > 0.0 else low * slope[i] - offset[i]
            noise += harm[i] / max(most, 1e-300)
    least = low * (paid[0] * low - paid[1])
    if np.isfinite(high):
        least = min(least, high * (paid[0] * high - paid[1]))
    if paid[0] > 0.0:
        bottom = 0.5 * paid[1] / paid[0]
        if low < bottom < high:
            least = bottom * (paid[0] * bottom - paid[1])
    return noise, max(least, 0.0)


@njit(cache=True, error_model="numpy")
def _candidates(
    leader: int,
    low: float,
    high: float,
    sums: Array,
    known: Any,
    paid: Any,
    own: float,
    weight: float,
    limit: float,
    alone: Array,
    harm: Array,
    slope: Array,
    offset: Array,
) -> Any:
    """`bounded_leaders.candidates_of_segment`: the condition's root, both ends, the limit's rate; NaN where none."""
    found = np.full(4, np.nan)
    if leader in (MEAN_FIELD, CONDITION_ALONE):
        steepness = paid[0] + own
        found[0] = _crossing(low, high, sums[0], known[0], steepness, paid[1], weight, harm * alone, slope, offset)
    if leader == CONDITION_ALONE:
        return found
    if np.isnan(found[0]):
        found[0] = _crossing(low, high, sums[1], known[1], 2.0 * paid[0], paid[1], weight, harm * slope, slope, offset)
    if np.isnan(found[0]) or leader == BUDGET_LIMITED:
        found[1] = low
        found[2] = high if np.isfinite(high) else np.nan
    if leader == BUDGET_LIMITED:
        if paid[0] > 0.0:
            found[3] = (paid[1] + np.sqrt(paid[1] ** 2 + 4.0 * paid[0] * limit)) / (2.0 * paid[0])
        for c in range(4):
            if not low <= found[c] <= high:
                found[c] = np.nan
    return found


@njit(cache=True, error_model="numpy")
def best_on_path(
    ends: Array,
    slopes: Array,
    offsets: Array,
    taking_part: Any,
    grown: Array,
    weights: Array,
    alone: Array,
    harm: Array,
    accuracy_weight: float,
    rounds: Any,
    leader: int,
    limit: float,
) -> Any:
    """The cheapest candidate rate of every round and its segment, -1 where there is none.

    `grown` is the amplification of each segment, `alone` everybody's answer to a unit of rate with the others unmoved.
    """
    num_segments, n = slopes.shape
    paid = np.zeros((num_segments, 2))
    own = np.zeros(num_segments)
    size = np.ones(num_segments)
    num_part = np.zeros(num_segments, dtype=np.int64)
    least = np.empty((num_segments, 2))
    for k in range(num_segments):
        for i in range(n):
            paid[k, 0] += weights[i] * slopes[k, i]
            paid[k, 1] += weights[i] * offsets[k, i]
            own[k] += weights[i] * alone[i] if slopes[k, i] != 0.0 else 0.0
            size[k] = max(size[k], abs(offsets[k, i]))
            num_part[k] += taking_part[k, i]
        least[k, 0], least[k, 1] = _least(ends[k, 0], ends[k, 1], slopes[k], offsets[k], taking_part[k], harm, paid[k])
    sums = np.empty((num_segments, 2, POINTS))
    known = np.zeros((num_segments, 2, POINTS), dtype=np.bool_)
    chosen = np.full(len(rounds), -1, dtype=np.int64)
    rates = np.full(len(rounds), np.nan)
    for position in range(len(rounds)):
        noise_weight = accuracy_weight * grown / rounds[position]
        bound = np.full(num_segments, np.inf)
        for k in range(num_segments):
            if num_part[k] > 0:
                bound[k] = noise_weight[k] * least[k, 0] + (1.0 - accuracy_weight) * least[k, 1]
        best = np.inf
        while True:
            k = int(np.argmin(bound))
            if bound[k] == np.inf or bound[k] > best * (1.0 + 1e-9):
                break
            bound[k] = np.inf
            weight = noise_weight[k] / (1.0 - accuracy_weight)
            for rate in _candidates(
                leader,
                ends[k, 0],
                ends[k, 1],
                sums[k],
                known[k],
                paid[k],
                own[k],
                weight,
                limit,
                alone,
                harm,
                slopes[k],
                offsets[k],
            ):
                noise, pay = _noise_and_pay(rate, slopes[k], offsets[k], taking_part[k], size[k], weights, harm)
                too_dear = leader == BUDGET_LIMITED and pay > limit * (1.0 + 1e-12)
                cost = np.inf if too_dear else noise_weight[k] * noise + (1.0 - accuracy_weight) * pay
                if cost < best or (cost == best and rate < rates[position]):
                    best, rates[position], chosen[position] = cost, rate, k
    return rates, chosen


@njit(cache=True, error_model="numpy")
def _noise_aware_rate(
    strength: float, felt: float, felt_less: float, paid: float, paid_less: float, low: float, high: float
) -> float:
    """Where the derivative of strength/X + r·Y turns positive; see `interior_leaders.bisect_noise_aware`."""
    if felt > 0.0 and paid > 0.0:  # it rises, and is concave: Newton's steps come from the left
        x = felt * low - felt_less
        if x > 0.0 and 2.0 * paid * low - paid_less - strength * felt / (x * x) > 0.0:
            return low
        x = felt * high - felt_less
        if not (x > 0.0 and 2.0 * paid * high - paid_less - strength * felt / (x * x) > 0.0):
            return high
        left, right = low, high
        rate = 0.5 * (left + right)
        for _ in range(200):
            x = felt * rate - felt_less
            following = -np.inf
            gap = -np.inf
            if x > 0.0:
                pull = strength * felt / (x * x)
                gap = 2.0 * paid * rate - paid_less - pull
                following = rate - gap / (2.0 * paid + 2.0 * pull * felt / x)
            if gap > 0.0:
                right = rate
            else:
                left = rate
            if not left < following < right:
                following = 0.5 * (left + right)
            if abs(following - rate) <= 4e-16 * abs(rate):
                return following
            rate = following
        return rate
    for _ in range(100):
        middle = 0.5 * (low + high)
        x = felt * middle - felt_less
        if x > 0.0 and 2.0 * paid * middle - paid_less - strength * felt / (x * x) > 0.0:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


@njit(cache=True, error_model="numpy")
def noise_aware_on_path(strength: Array, felt: Array, paid: Array, ends: Array) -> Any:
    """The cheapest rate of every round (one `strength` each) over segments with X = felt₀r − felt₁ and
    Y = paid₀r − paid₁, the segment it lies on, and its cost.
    """
    rates = np.empty(len(strength))
    chosen = np.zeros(len(strength), dtype=np.int64)
    costs = np.full(len(strength), np.inf)
    for t in range(len(strength)):
        for k in range(len(ends)):
            low, high = ends[k]
            rate = _noise_aware_rate(strength[t], felt[k, 0], felt[k, 1], paid[k, 0], paid[k, 1], low, high)
            x = felt[k, 0] * rate - felt[k, 1]
            cost = (strength[t] / x if x > 0.0 else np.inf) + rate * (paid[k, 0] * rate - paid[k, 1])
            if k == 0 or cost < costs[t]:
                rates[t], chosen[t], costs[t] = rate, k, cost
    return rates, chosen, costs
