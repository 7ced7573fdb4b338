"""The leader with one price for each client: the budgets that are cheapest for the server, and the prices for them."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from mppfl.arrays import Array
from mppfl.game.leaders import require_somebody
from mppfl.game.model import Game


def personalised_budgets(game: Game, round_index: int, start: Array | None = None) -> Array:
    """Budgets that minimise τ/t Σε/ρ + (1−τ) ρᵀ(2ABρ + b): the cheapest a server can do with one price each (eq. 21)
    where every budget_min is 0.

    A client gets the price 2a_i(Bρ)_i + b_i at which its budget is its best response; at a floor above 0 any lower
    price would do as well, which this cost does not know. On small networks where
    AB + BᵀA is positive definite, compiled Newton's steps within the bounds; else `personalised_plainly`.
    """
    require_somebody(game)
    clients = game.clients
    value = game.accuracy_weight / (1 - game.accuracy_weight) * clients.noise_harm / round_index
    alone = np.sqrt(value / (clients.linear_cost + clients.quadratic_cost))
    first = alone if start is None else np.where(start > 0, start, alone)
    if game.loss.is_dense:
        found = personalised_compiled(game, round_index, first)
        if found is not None:
            return found
    return personalised_plainly(game, round_index, first)


def personalised_compiled(game: Game, round_index: int, first: Array) -> Array | None:
    """The one minimum of a convex cost, to 1e-13 of it; None where the cost is not convex or the steps fail."""
    from mppfl.game import personalised_kernels as kernels

    clients = game.clients
    matrix, is_convex = game.loss.weighed_both_ways(clients.quadratic_cost)
    if not is_convex:
        return None
    able = clients.budget_max > 0
    part = np.flatnonzero(able)
    found, settled = kernels.cheapest_budgets(
        matrix if able.all() else matrix[np.ix_(part, part)],
        clients.linear_cost[part],
        game.accuracy_weight * clients.noise_harm[part] / round_index,
        1 - game.accuracy_weight,
        clients.budget_min[part],
        clients.budget_max[part],
        first[part],
    )
    if not settled:
        return None
    budgets = np.zeros(game.num_clients)
    budgets[part] = found
    return budgets


def personalised_plainly(game: Game, round_index: int, first: Array) -> Array:
    """Newton's steps on small networks; where bounds are reached, or on large ones, a quasi-Newton search over log
    budgets, which is good to about 1e-7.
    """
    clients = game.clients
    able = clients.budget_max > 0
    if game.loss.is_dense:
        budgets = _personalised_by_newton(game, round_index, np.where(able, first, 0.0))
        if budgets is not None and ((budgets >= clients.budget_min) & (budgets <= clients.budget_max)).all():
            return budgets
    return _personalised_by_search(game, round_index, first)


def _personalised_slope(game: Game, round_index: int, budgets: Array) -> tuple[float, Array]:
    """The server's cost with personal prices, and its gradient."""
    clients, pay = game.clients, 1 - game.accuracy_weight
    harm = game.accuracy_weight * clients.noise_harm / round_index
    prices = 2 * clients.quadratic_cost * (game.loss @ budgets) + clients.linear_cost
    spill = game.loss.T @ (2 * clients.quadratic_cost * budgets)
    part = budgets > 0
    noise = np.divide(harm, budgets, out=np.zeros_like(budgets), where=part)
    steep = np.divide(harm, budgets**2, out=np.zeros_like(budgets), where=part)
    return float(noise.sum() + pay * (prices @ budgets)), pay * (prices + spill) - steep


def _personalised_by_newton(game: Game, round_index: int, start: Array) -> Array | None:
    """The minimum over those with a positive start, the others staying at 0; None if Newton's steps fail."""
    able = start > 0
    harm = game.accuracy_weight * game.clients.noise_harm[able] / round_index
    scaled = game.clients.quadratic_cost[:, None] * game.loss.dense
    curve = (2 * (1 - game.accuracy_weight) * (scaled + scaled.T))[np.ix_(able, able)]
    budgets = start.copy()
    for _ in range(60):
        cost, slope = _personalised_slope(game, round_index, budgets)
        if np.abs(slope * budgets).max() <= 1e-13 * cost:
            return budgets
        step = np.zeros_like(budgets)
        try:
            step[able] = -np.linalg.solve(curve + np.diag(2 * harm / budgets[able] ** 3), slope[able])
        except np.linalg.LinAlgError:
            return None
        length = min(1.0, 0.9 / max(1e-300, float((-step[able] / budgets[able]).max())))  # stay positive
        while length > 1e-6 and _personalised_slope(game, round_index, budgets + length * step)[0] > cost * (1 + 1e-15):
            length *= 0.5
        budgets = budgets + length * step
    return budgets if np.abs(slope * budgets).max() <= 1e-9 * cost else None


def _personalised_by_search(game: Game, round_index: int, start: Array) -> Array:
    clients = game.clients
    able = clients.budget_max > 0

    def cost_and_slope(logs: Array) -> tuple[float, Array]:
        budgets = np.zeros(game.num_clients)
        budgets[able] = np.exp(logs)
        cost, slope = _personalised_slope(game, round_index, budgets)
        return cost, (slope * budgets)[able]

    with np.errstate(divide="ignore"):
        low, high = np.log(clients.budget_min[able]), np.log(clients.budget_max[able])
        first = np.clip(np.log(start[able]), -60.0, 60.0)
    bounds = np.column_stack([np.maximum(low, -60.0), np.minimum(high, 60.0)])
    options = {"maxiter": 3000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-11, "maxcor": 20}
    found = minimize(cost_and_slope, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    budgets = np.zeros(game.num_clients)
    budgets[able] = np.exp(found.x)
    return budgets


def personalised_prices(game: Game, budgets: Array) -> Array:
    """p = 2ABρ + b: the price at which each client's budget is its best response; 0 for those who stay out (eq. 21).

    It is the only such price inside the bounds, the lowest at budget_max, the highest at budget_min.
    """
    prices = 2 * game.clients.quadratic_cost * (game.loss @ budgets) + game.clients.linear_cost
    return np.where(budgets > 0, prices, 0.0)
