"""Compiled: the path of equilibria followed from bend to bend, one client at a time.

A bend is one client that meets or leaves a bound. The linear system of those who are free changes by one row and one
column there, and so does its inverse, by a rank-one update. No system is solved anew; `path.py` checks the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mppfl.arrays import Array

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
    own = tableau[k, k]
    slope, offset = slopes[k] / own, (offsets[k] + bound) / own  # how far k goes from its bound
    _move(tableau[:, k].copy(), slope, offset, state, slopes, offsets)
    state[k], slopes[k], offsets[k] = 0, slope, offset - bound
    pivot(tableau, k)


@njit(cache=True, error_model="numpy")
def _hold(k: int, side: int, bound: float, tableau: Array, state: Any, slopes: Array, offsets: Array) -> None:
    pivot(tableau, k)
    slope, offset = -slopes[k], -offsets[k] - bound  # from its budget back to the bound
    _move(tableau[:, k].copy(), slope, offset, state, slopes, offsets)
    own = tableau[k, k]
    state[k], slopes[k], offsets[k] = side, -own * slope, -bound - own * offset


@njit(cache=True, error_model="numpy")
def _first_across(
    ahead: float, low: Array, high: Array, num_able: int, state: Any, slopes: Array, offsets: Array
) -> Any:
    """Who among those on the wrong side at `ahead` crossed first, and where it belongs; -1 if nobody did."""
    first, who, side = np.inf, -1, 0
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
            if crossing < first or who < 0:
                first, who, side = crossing, i, goes
    return who, side


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
