"""Compiled: the cheapest personal prices within bounds, by Newton's steps with conjugate gradients inside."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mppfl.arrays import Array

MAX_STEPS = 100
ENOUGH = 1e-13  # of the cost: what any client's budget can still save, to first order
ACCEPTABLE = 1e-11  # of the cost, where rounding stops the search before that


@njit(cache=True, error_model="numpy")
def _cost(harm: Array, linear: Array, pay: float, budgets: Array, mixed: Array) -> float:
    total = 0.0
    for i in range(len(budgets)):
        total += harm[i] / budgets[i] + pay * budgets[i] * (mixed[i] + linear[i])
    return total


@njit(cache=True, error_model="numpy")
def _step(matrix: Array, pay: float, bend: Array, slope: Array, moves: Any, goal: float) -> Any:
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
    cost = _cost(harm, linear, pay, budgets, mixed)
    worst = np.inf
    for _ in range(MAX_STEPS):
        slope = pay * (2.0 * mixed + linear) - harm / budgets**2
        moves = ~(((budgets <= low) & (slope > 0.0)) | ((budgets >= high) & (slope < 0.0)))
        worst = np.max(np.where(moves, np.abs(slope * budgets), 0.0)) / cost
        if worst <= ENOUGH:
            return budgets, True
        step = _step(matrix, pay, 2.0 * harm / budgets**3, slope, moves, min(0.1, worst))
        length = 1.0
        fell = False
        while length > 1e-6:
            tried = np.minimum(np.maximum(budgets + length * step, np.maximum(low, 0.1 * budgets)), high)
            image = np.dot(matrix, tried)
            other = _cost(harm, linear, pay, tried, image)
            if other <= cost * (1.0 + 1e-15):
                fell = True
                break
            length *= 0.5
        if not fell:
            break
        budgets, mixed, cost = tried, image, other
    return budgets, worst <= ACCEPTABLE
