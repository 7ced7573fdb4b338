"""Compiled loops over clients, rounds and segments; alone: numba is imported on first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.compiled import njit, prange
from mppfl.game.leaders import DIGITS

BLOCK = 8192


@njit(parallel=True, cache=True)
def pull_sums(pull: Array, slope: Array, offset: Array, rate: float) -> Any:
    """Σ g_i/ρ_i² and Σ g_i u_i/ρ_i³ at ρ = r·u − v."""
    n = len(pull)
    blocks = (n + BLOCK - 1) // BLOCK
    parts = np.empty((blocks, 2))
    for block in prange(blocks):
        square = 0.0
        cube = 0.0
        for i in range(block * BLOCK, min(n, (block + 1) * BLOCK)):
            inverse = 1.0 / (rate * slope[i] - offset[i])
            term = pull[i] * inverse * inverse
            square += term
            cube += term * inverse * slope[i]
        parts[block, 0] = square
        parts[block, 1] = cube
    return parts.sum(axis=0)


@njit(parallel=True, cache=True)
def line_totals(
    slope: Array,
    offset: Array,
    loss_slope: Array,
    loss_offset: Array,
    quadratic: Array,
    linear: Array,
    compute: Array,
    low: Array,
    high: Array,
    harm: Array,
    weights: Array,
    rates: Array,
) -> Any:
    """Per round: Σε/ρ, Σpρ, Σ(pρ−cost), negative utilities, participants, largest distance from the best
    response, largest gain from moving alone, the same over the client's utility scale; see `totals_of_rounds`.
    """
    n = len(slope)
    num_rounds = len(rates)
    blocks = (n + BLOCK - 1) // BLOCK
    parts = np.zeros((blocks, num_rounds, 8))
    for block in prange(blocks):
        for t in range(num_rounds):
            rate = rates[t]
            noise = paid = welfare = below = taking = distance = gain = relative = 0.0
            for i in range(block * BLOCK, min(n, (block + 1) * BLOCK)):
                budget = rate * slope[i] - offset[i]
                loss = rate * loss_slope[i] - loss_offset[i]
                price = rate * weights[i]
                cost = quadratic[i] * loss * loss + linear[i] * loss
                participates = budget > 0.0
                if participates:
                    noise += harm[i] / budget
                    taking += 1.0
                paid += price * budget
                welfare += price * budget - cost
                spent = cost + (compute[i] if participates else 0.0)
                size = abs(price * budget) + abs(spent)
                if price * budget - spent < -1e-12 * size:
                    below += 1.0
                wish = (price - linear[i]) / (2 * quadratic[i]) - (loss - budget)
                answer = min(max(wish, low[i]), high[i])
                distance = max(distance, abs(answer - budget))
                mine = quadratic[i] * ((budget - wish) ** 2 - (answer - wish) ** 2)
                gain = max(gain, mine)
                relative = max(relative, mine / max(size, 1e-300))
            parts[block, t, 0] = noise
            parts[block, t, 1] = paid
            parts[block, t, 2] = welfare
            parts[block, t, 3] = below
            parts[block, t, 4] = taking
            parts[block, t, 5] = distance
            parts[block, t, 6] = gain
            parts[block, t, 7] = relative
    out = np.zeros((num_rounds, 8))
    for block in range(blocks):
        for t in range(num_rounds):
            for k in range(5):
                out[t, k] += parts[block, t, k]
            for k in range(5, 8):
                out[t, k] = max(out[t, k], parts[block, t, k])
    return out


# ---- Compiled: the leader's best rate on a path of equilibria, for all rounds at once -------------------------------

# The same candidates as in `bounded_leaders.candidates_of_segment`, but a segment is looked at only if even the least
# noise and the least pay that any of its rates could bring would beat the best found so far.

MEAN_FIELD, ANTICIPATING, BUDGET_LIMITED = 0, 1, 2
CONDITION_ALONE = 3  # mean_field, where its condition (16) has a root and nowhere else
POINTS = 60  # at which a segment is searched for the leader's condition
VANISHING = 1e-9  # of the largest budget: rounding, not participating


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
    low: float, high: float, steepness: float, constant: float, weight: float, pull: Array, slope: Array, offset: Array
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
    is_summed: Any,
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
            if not is_summed[j]:
                sums[j] = _pulled(pull, slope, offset, rate)
                is_summed[j] = True
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
    """Σε/ρ and r·Σwρ at a rate of a segment; noise is infinite where somebody who participates vanishes, or at NaN."""
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
    is_summed: Any,
    paid: Any,
    alone_slope: float,
    weight: float,
    limit: float,
    alone: Array,
    harm: Array,
    slope: Array,
    offset: Array,
) -> Any:
    """`bounded_leaders.candidates_of_segment`: the condition's root, both ends, the limit's rate; NaN where none."""
    candidates = np.full(4, np.nan)
    if leader in (MEAN_FIELD, CONDITION_ALONE):
        steepness = paid[0] + alone_slope
        candidates[0] = _crossing(
            low, high, sums[0], is_summed[0], steepness, paid[1], weight, harm * alone, slope, offset
        )
    if leader == CONDITION_ALONE:
        return candidates
    if np.isnan(candidates[0]):
        candidates[0] = _crossing(
            low, high, sums[1], is_summed[1], 2.0 * paid[0], paid[1], weight, harm * slope, slope, offset
        )
    if np.isnan(candidates[0]) or leader == BUDGET_LIMITED:
        candidates[1] = low
        candidates[2] = high if np.isfinite(high) else np.nan
    if leader == BUDGET_LIMITED:
        if paid[0] > 0.0:
            candidates[3] = (paid[1] + np.sqrt(paid[1] ** 2 + 4.0 * paid[0] * limit)) / (2.0 * paid[0])
        for c in range(4):
            if not low <= candidates[c] <= high:
                candidates[c] = np.nan
    return candidates


@njit(cache=True, error_model="numpy")
def best_on_path(
    ends: Array,
    slopes: Array,
    offsets: Array,
    participating: Any,
    amplified: Array,
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
    alone_slope = np.zeros(num_segments)
    size = np.ones(num_segments)
    num_part = np.zeros(num_segments, dtype=np.int64)
    least = np.empty((num_segments, 2))
    for k in range(num_segments):
        for i in range(n):
            paid[k, 0] += weights[i] * slopes[k, i]
            paid[k, 1] += weights[i] * offsets[k, i]
            alone_slope[k] += weights[i] * alone[i] if slopes[k, i] != 0.0 else 0.0
            size[k] = max(size[k], abs(offsets[k, i]))
            num_part[k] += participating[k, i]
        least[k, 0], least[k, 1] = _least(
            ends[k, 0], ends[k, 1], slopes[k], offsets[k], participating[k], harm, paid[k]
        )
    sums = np.empty((num_segments, 2, POINTS))
    is_summed = np.zeros((num_segments, 2, POINTS), dtype=np.bool_)
    chosen = np.full(len(rounds), -1, dtype=np.int64)
    rates = np.full(len(rounds), np.nan)
    for position in range(len(rounds)):
        noise_weight = accuracy_weight * amplified / rounds[position]
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
                is_summed[k],
                paid[k],
                alone_slope[k],
                weight,
                limit,
                alone,
                harm,
                slopes[k],
                offsets[k],
            ):
                noise, pay = _noise_and_pay(rate, slopes[k], offsets[k], participating[k], size[k], weights, harm)
                too_dear = leader == BUDGET_LIMITED and pay > limit * (1.0 + 1e-12)
                cost = np.inf if too_dear else noise_weight[k] * noise + (1.0 - accuracy_weight) * pay
                if cost < best or (cost == best and rate < rates[position]):
                    best, rates[position], chosen[position] = cost, rate, k
    return rates, chosen


@njit(cache=True, error_model="numpy")
def _noise_aware_rate(
    strength: float, effective: float, effective_less: float, paid: float, paid_less: float, low: float, high: float
) -> float:
    """Where the derivative of strength/X + r·Y turns positive; see `interior_leaders.bisect_noise_aware`."""
    if effective > 0.0 and paid > 0.0:  # it rises, and is concave: Newton's steps come from the left
        x = effective * low - effective_less
        if x > 0.0 and 2.0 * paid * low - paid_less - strength * effective / (x * x) > 0.0:
            return low
        x = effective * high - effective_less
        if not (x > 0.0 and 2.0 * paid * high - paid_less - strength * effective / (x * x) > 0.0):
            return high
        left, right = low, high
        rate = 0.5 * (left + right)
        for _ in range(200):
            x = effective * rate - effective_less
            following = -np.inf
            gap = -np.inf
            if x > 0.0:
                pull = strength * effective / (x * x)
                gap = 2.0 * paid * rate - paid_less - pull
                following = rate - gap / (2.0 * paid + 2.0 * pull * effective / x)
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
        x = effective * middle - effective_less
        if x > 0.0 and 2.0 * paid * middle - paid_less - strength * effective / (x * x) > 0.0:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


@njit(cache=True, error_model="numpy")
def noise_aware_on_path(strength: Array, effective: Array, paid: Array, ends: Array) -> Any:
    """The cheapest rate of every round (one `strength` each) over segments with X = felt₀r − felt₁ and
    Y = paid₀r − paid₁, the segment it lies on, and its cost.
    """
    rates = np.empty(len(strength))
    chosen = np.zeros(len(strength), dtype=np.int64)
    costs = np.full(len(strength), np.inf)
    for t in range(len(strength)):
        for k in range(len(ends)):
            low, high = ends[k]
            rate = _noise_aware_rate(strength[t], effective[k, 0], effective[k, 1], paid[k, 0], paid[k, 1], low, high)
            x = effective[k, 0] * rate - effective[k, 1]
            cost = (strength[t] / x if x > 0.0 else np.inf) + rate * (paid[k, 0] * rate - paid[k, 1])
            if k == 0 or cost < costs[t]:
                rates[t], chosen[t], costs[t] = rate, k, cost
    return rates, chosen, costs


# ---- Compiled: the path of equilibria followed from bend to bend, one client at a time ------------------------------

# A bend is one client that meets or leaves a bound. The linear system of those who are free changes by one row and one
# column there, and so does its inverse, by a rank-one update. No system is solved anew; `path.py` checks the result.

FINISHED, STUCK, FULL = 0, 1, 2


@njit(cache=True, error_model="numpy")
def pivot(tableau: Array, k: int) -> None:
    """Client k comes free, or is held: in place, its row of outcome and input change sides.

    The tableau takes (wanted loss of the free, budget of the held) to (budget of the free, loss of the held). With
    nobody free it is B, with everybody free B⁻¹; each exchange is undone by the next of the same client. The tableau
    may have more rows than columns: those below belong to clients who never move.
    """
    scale = 1.0 / tableau[k, k]
    row = tableau[k] * scale
    for i in range(tableau.shape[0]):
        if i != k:
            factor = tableau[i, k]
            if factor != 0.0:
                for j in range(tableau.shape[1]):
                    tableau[i, j] -= factor * row[j]
            tableau[i, k] = factor * scale
    for j in range(tableau.shape[1]):
        tableau[k, j] = -row[j]
    tableau[k, k] = scale


@njit(cache=True, error_model="numpy")
def _move(column: Array, slope: float, offset: float, state: Any, slopes: Array, offsets: Array) -> None:
    """Everybody's line after one input moved by r·slope − offset: budgets of the free, wishes of the held."""
    for i in range(len(slopes)):
        change = column[i] if state[i] == 0 else -column[i]
        slopes[i] += change * slope
        offsets[i] += change * offset


@njit(cache=True, error_model="numpy")
def _set_free(k: int, bound: float, tableau: Array, state: Any, slopes: Array, offsets: Array) -> None:
    pivot_value = tableau[k, k]
    slope, offset = slopes[k] / pivot_value, (offsets[k] + bound) / pivot_value  # how far k goes from its bound
    _move(tableau[:, k].copy(), slope, offset, state, slopes, offsets)
    state[k], slopes[k], offsets[k] = 0, slope, offset - bound
    pivot(tableau, k)


@njit(cache=True, error_model="numpy")
def _hold(k: int, side: int, bound: float, tableau: Array, state: Any, slopes: Array, offsets: Array) -> None:
    pivot(tableau, k)
    slope, offset = -slopes[k], -offsets[k] - bound  # from its budget back to the bound
    _move(tableau[:, k].copy(), slope, offset, state, slopes, offsets)
    pivot_value = tableau[k, k]
    state[k], slopes[k], offsets[k] = side, -pivot_value * slope, -bound - pivot_value * offset


@njit(cache=True, error_model="numpy")
def _first_across(
    ahead: float, low: Array, high: Array, num_able: int, state: Any, slopes: Array, offsets: Array
) -> Any:
    """Who among those on the wrong side at `ahead` crossed first, and where it belongs; -1 if nobody did."""
    first, first_client, side = np.inf, -1, 0
    for i in range(num_able):
        value = ahead * slopes[i] - offsets[i]
        bound, goes = 0.0, 2
        if state[i] < 0:
            if value > low[i] and slopes[i] > 0.0:
                bound, goes = low[i], 0
        elif state[i] > 0:
            if value < high[i] and slopes[i] < 0.0:
                bound, goes = high[i], 0
        elif value < low[i] and slopes[i] < 0.0:
            bound, goes = low[i], -1
        elif value > high[i] and slopes[i] > 0.0:
            bound, goes = high[i], 1
        if goes != 2:
            crossing = (offsets[i] + bound) / slopes[i]
            if crossing < first or first_client < 0:
                first, first_client, side = crossing, i, goes
    return first_client, side


@njit(cache=True, error_model="numpy")
def _next_bend(
    ahead: float, low: Array, high: Array, num_able: int, state: Any, slopes: Array, offsets: Array
) -> float:
    """The first rate past `ahead` at which a line meets a bound. Who never moves counts as held from below."""
    end = np.inf
    for i in range(len(slopes)):
        slope = slopes[i]
        if slope > 1e-14:
            bound = high[i] if state[i] == 0 else low[i]
            if (state[i] <= 0 or i >= num_able) and bound < np.inf:
                crossing = (offsets[i] + bound) / slope
                if ahead < crossing < end:
                    end = crossing
        elif slope < -1e-14 and i < num_able and state[i] >= 0:
            bound = low[i] if state[i] == 0 else high[i]
            crossing = (offsets[i] + bound) / slope
            if ahead < crossing < end:
                end = crossing
    return end


@njit(cache=True, error_model="numpy")
def _is_off(ahead: float, low: Array, high: Array, num_able: int, state: Any, slopes: Array, offsets: Array) -> bool:
    """Whether somebody is on the wrong side of its bound by more than rounding."""
    for i in range(num_able):
        value = ahead * slopes[i] - offsets[i]
        allowed = 1e-9 * max(1.0, abs(offsets[i]))
        if state[i] <= 0 and not value <= (high[i] if state[i] == 0 else low[i]) + allowed:
            return True
        if state[i] >= 0 and not value >= (low[i] if state[i] == 0 else high[i]) - allowed:
            return True
    return False


@njit(cache=True, error_model="numpy")
def just_past(rate: float, widest: float) -> float:
    """A rate just past a bend, where it is clear who is on which side.

    Where everybody goes from its lowest budget to its highest within `widest`, a small part of that, or the bends of a
    game with low ceilings would all be passed at once.
    """
    step = min(1e-9 * max(1.0, rate), 1e-4 * widest)
    return rate + max(step, 4e-16 * rate)  # at least the next number


@njit(cache=True, error_model="numpy")
def follow(
    tableau: Array,
    slopes: Array,
    offsets: Array,
    low: Array,
    high: Array,
    rate: float,
    last: float,
    widest: float,
    capacity: int,
) -> Any:
    """Segments of the path from `rate` to `last`, as in `path.response_path`.

    At the start everybody is held at `low`: `tableau` is B (columns of those who can move, who come first) and `slopes`
    and `offsets` are everybody's wishes; all three are overwritten. Returns how it ended, the number of segments, their
    two ends, and slope, offset and state (-1 at low, 0 free, 1 at high) of everybody on each.
    """
    n, num_able = len(slopes), tableau.shape[1]
    state = np.full(n, -1, dtype=np.int8)
    ends = np.empty((capacity, 2))
    lines = np.zeros((2, capacity, n))
    states = np.empty((capacity, n), dtype=np.int8)
    for count in range(capacity):
        ahead = just_past(rate, widest)
        for _ in range(2 * n + 2):
            k, side = _first_across(ahead, low, high, num_able, state, slopes, offsets)
            if k < 0:
                break
            if side == 0:
                _set_free(k, low[k] if state[k] < 0 else high[k], tableau, state, slopes, offsets)
            else:
                _hold(k, side, low[k] if side < 0 else high[k], tableau, state, slopes, offsets)
        if k >= 0 or _is_off(ahead, low, high, num_able, state, slopes, offsets):
            return STUCK, count, ends, lines, states
        end = _next_bend(ahead, low, high, num_able, state, slopes, offsets)
        ends[count, 0], ends[count, 1] = rate, end
        for i in range(n):
            states[count, i] = state[i]
            if state[i] == 0:
                lines[0, count, i], lines[1, count, i] = slopes[i], offsets[i]
            else:
                lines[1, count, i] = -low[i] if state[i] < 0 else -high[i]
        if end >= last:
            return FINISHED, count + 1, ends, lines, states
        rate = max(end, ahead)
    return FULL, capacity, ends, lines, states


# ---- Compiled: the cheapest personal prices within bounds, by Newton's steps with conjugate gradients inside --------

MAX_STEPS = 100
ENOUGH = 1e-13  # of the cost: what any client's budget can still save, to first order
ACCEPTABLE = 1e-11  # of the cost, where rounding stops the search before that


@njit(cache=True, error_model="numpy")
def _personal_cost(harm: Array, linear: Array, pay: float, budgets: Array, mixed: Array) -> float:
    total = 0.0
    for i in range(len(budgets)):
        total += harm[i] / budgets[i] + pay * budgets[i] * (mixed[i] + linear[i])
    return total


@njit(cache=True, error_model="numpy")
def _newton_step(matrix: Array, pay: float, bend: Array, slope: Array, moves: Any, goal: float) -> Any:
    """d with (2·pay·M + diag(bend)) d = −slope on those who move, 0 elsewhere, to `goal` of the start."""
    n = len(slope)
    step = np.zeros(n)
    rest = np.where(moves, -slope, 0.0)
    scale = np.empty(n)
    for i in range(n):
        scale[i] = 1.0 / (2.0 * pay * matrix[i, i] + bend[i])
    scaled = rest * scale
    search = scaled.copy()
    strength = np.dot(rest, scaled)
    first = strength
    for _ in range(200):
        if strength <= goal * goal * first:
            break
        image = 2.0 * pay * np.dot(matrix, search) + bend * search
        curve = np.dot(search, image)
        if not curve > 0.0:
            break
        length = strength / curve
        for i in range(n):
            if moves[i]:
                step[i] += length * search[i]
                rest[i] -= length * image[i]
                scaled[i] = rest[i] * scale[i]
        before, strength = strength, np.dot(rest, scaled)
        search = scaled + strength / before * search
    return step


@njit(cache=True, error_model="numpy")
def cheapest_budgets(
    matrix: Array, linear: Array, harm: Array, pay: float, low: Array, high: Array, start: Array
) -> Any:
    """Budgets between `low` and `high` that minimise Σ harm_i/ρ_i + pay·(ρᵀMρ + linearᵀρ), and whether they were found.

    M is symmetric and positive definite, so there is one such point. Who is at a bound and pressed against it rests;
    the others take Newton's step, shortened until the cost does not rise and no budget falls to less than a tenth.
    """
    budgets = np.minimum(np.maximum(start, low), high)
    mixed = np.dot(matrix, budgets)
    cost = _personal_cost(harm, linear, pay, budgets, mixed)
    worst = np.inf
    for _ in range(MAX_STEPS):
        slope = pay * (2.0 * mixed + linear) - harm / budgets**2
        moves = ~(((budgets <= low) & (slope > 0.0)) | ((budgets >= high) & (slope < 0.0)))
        worst = np.max(np.where(moves, np.abs(slope * budgets), 0.0)) / cost
        if worst <= ENOUGH:
            return budgets, True
        step = _newton_step(matrix, pay, 2.0 * harm / budgets**3, slope, moves, min(0.1, worst))
        length = 1.0
        fell = False
        while length > 1e-6:
            tried = np.minimum(np.maximum(budgets + length * step, np.maximum(low, 0.1 * budgets)), high)
            image = np.dot(matrix, tried)
            other = _personal_cost(harm, linear, pay, tried, image)
            if other <= cost * (1.0 + 1e-15):
                fell = True
                break
            length *= 0.5
        if not fell:
            break
        budgets, mixed, cost = tried, image, other
    return budgets, worst <= ACCEPTABLE


# ---- one step of settling who participates, for all rounds of the same crowd ---------------------------------------

TIED = 1e-12  # margins that differ by less, as a share, differ by rounding: the lower number goes first


@njit(cache=True, error_model="numpy")
def without(tableau: Array, k: int) -> Any:
    """A copy of the inverse on the free clients with client k out of it, or back in it: see `pivot`."""
    changed = tableau.copy()
    pivot(changed, k)
    return changed


@njit(cache=True, error_model="numpy")
def _pull_sums(pull: Array, slope: Array, offset: Array, rate: float) -> Any:
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
    most_reluctant, highest = -1, -np.inf
    for i in range(len(pull)):
        threshold = offset[i] / slope[i] if slope[i] > 0.0 else -np.inf
        if threshold > highest:
            most_reluctant, highest = i, threshold
    just_above = np.nextafter(lowest, np.inf)
    if most_reluctant < 0 or highest < lowest or pull[most_reluctant] <= 0.0:
        return just_above
    alone = weight * pull[most_reluctant] / slope[most_reluctant] ** 2
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
            square, cube = _pull_sums(pull, slope, offset, rate)
            gap = steepness * rate - constant - weight * square
            step = -gap / (steepness + 2.0 * weight * cube)
            above = rate - lowest
            if step * step <= 1e-17 * rate * above or abs(step) <= 4e-16 * rate:
                rate = max(rate + step, np.nextafter(lowest, np.inf))
                square, cube = _pull_sums(pull, slope, offset, rate)
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
def _first_of_worst(margins: Array, concerned: Any) -> int:
    most = -1.0
    for i in range(len(concerned)):
        if concerned[i]:
            most = max(most, abs(margins[i]))
    for i in range(len(concerned)):
        if concerned[i] and abs(margins[i]) >= most * (1.0 - TIED):
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
