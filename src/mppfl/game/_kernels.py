"""Compiled sums over millions of clients; alone: numba is imported on first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.compiled import njit, prange

BLOCK = 8192


@njit(cache=True)
def noise_sums(harm: Array, pull: Array, slope: Array, offset: Array, rate: float) -> Any:
    """Σ ε_i/ρ_i, Σ g_i/ρ_i² and Σ g_i u_i/ρ_i³ at ρ = r·u − v; who has no harm is left out.

    By one thread: it is called hundreds of times, and threads that wait for each other on busy cores cost more.
    """
    sums = np.zeros(3)
    for start in range(0, len(pull), BLOCK):
        noise = square = cube = 0.0
        for i in range(start, min(len(pull), start + BLOCK)):
            if harm[i] > 0.0:
                inverse = 1.0 / max(rate * slope[i] - offset[i], 0.0)
                noise += harm[i] * inverse
                if pull[i] != 0.0:
                    term = pull[i] * inverse * inverse
                    square += term
                    cube += term * inverse * slope[i]
        sums += np.array([noise, square, cube])
    return sums


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
    response, largest gain from moving alone, the same over the client's utility scale; see `outcome._sums`.
    """
    n, num_rounds = len(slope), len(rates)
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
            parts[block, t] = noise, paid, welfare, below, taking, distance, gain, relative
    out = np.zeros((num_rounds, 8))
    for block in range(blocks):
        out[:, :5] += parts[block, :, :5]
        out[:, 5:] = np.maximum(out[:, 5:], parts[block, :, 5:])
    return out
