"""What all clients together gain: welfare, its optimum, the price of anarchy, and the paper's bounds beside them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.errors import NotConverged
from mppfl.game.equilibrium import equilibrium_response
from mppfl.game.leaders import pigouvian_weights
from mppfl.game.model import Game, privacy_cost, privacy_loss, server_cost


def welfare(game: Game, prices: Array | float, budgets: Array, losses: Array | None = None) -> float:
    """W = Σ_i [p_i ρ_i − a_i s_i² − b_i s_i]: all clients together, compute cost left out (model, eq. 23)."""
    losses = privacy_loss(game, budgets) if losses is None else losses
    return float(np.sum(prices * budgets) - privacy_cost(game, losses).sum())


def total_welfare(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """W − U_t/(1−τ): clients and server together, payments cancelling (model, eq. 24)."""
    cost = server_cost(game, round_index, prices, budgets)
    return welfare(game, prices, budgets) - cost / (1 - game.accuracy_weight)


@dataclass(frozen=True, eq=False)
class SocialOptimum:
    """Budgets that make welfare largest at a reward rate, within the bounds.

    reaches_bounds  whether a bound changes the answer; if not, `welfare` is Σ(r c_i − b_i)²/(4a_i) exactly
    """

    budgets: Array
    welfare: float
    reaches_bounds: bool


def social_optimum(game: Game, reward_rate: float, weights: Array | None = None) -> SocialOptimum:
    """The welfare optimum at a rate (model, eq. 25): s* = (r c − b)/(2a) inside the bounds, else a convex QP.

    Args:
        game: whose clients' welfare is maximised.
        reward_rate: paid to everybody per unit of budget.
        weights: c of eq. 20, where it is at hand.

    Returns:
        Budgets, their welfare, and whether a bound changed them.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> mppfl.game.social_optimum(game, 2.0).budgets.shape
        (2,)
    """
    return SocialOptima(game, weights).at(reward_rate)


class SocialOptima:
    """The welfare optimum of a game at one rate after another.

    Who sits at a bound seldom differs between nearby rates. While it does not, budgets are a line in the rate, which is
    checked against the conditions of the optimum instead of being solved for again.
    """

    def __init__(self, game: Game, weights: Array | None = None) -> None:
        self.game = game
        self._weights = pigouvian_weights(game) if weights is None else weights
        self._unbounded = equilibrium_response(game, self._weights)
        self._line: tuple[IntArray, Array, Array] | None = None  # who is where, budgets at rate 0, budgets per rate
        self._totals: dict[bytes, float] = {}

    def at(self, reward_rate: float) -> SocialOptimum:
        game, clients = self.game, self.game.clients
        budgets = self._unbounded.budgets(reward_rate)
        # Whose bounds leave no choice is held there by the line itself, which is then no optimum of the others.
        inside = (budgets >= clients.budget_min) & (budgets <= clients.budget_max) & self._unbounded.free
        if inside.all():
            return SocialOptimum(budgets, unbounded_optimal_welfare(game, reward_rate, self._weights), False)
        if game.loss.is_dense:
            budgets = self._bounded(reward_rate)
        else:
            start = np.clip(budgets, clients.budget_min, clients.budget_max)
            budgets = _bounded_optimum_by_descent(game, reward_rate, start)
        return SocialOptimum(budgets, welfare(game, reward_rate, budgets), True)

    def total(self, reward_rates: Array) -> float:
        """Optimal welfare summed over rounds at these rates; mechanisms under a common reward all ask for the same."""
        key = reward_rates.tobytes()
        if key not in self._totals:
            self._totals[key] = sum(self.at(float(rate)).welfare for rate in reward_rates)
        return self._totals[key]

    @cached_property
    def _programme(self) -> tuple[Array, Array]:
        """M = 2BᵀAB and Bᵀb: inside the bounds, Mρ = r − Bᵀb."""
        dense = self.game.loss.dense
        return 2 * dense.T @ (
            self.game.clients.quadratic_cost[:, None] * dense
        ), dense.T @ self.game.clients.linear_cost

    def _bounded(self, reward_rate: float) -> Array:
        matrix, cost = self._programme
        low, high = self.game.clients.budget_min, self.game.clients.budget_max
        state: IntArray | None = None
        if self._line is not None:
            state, at_zero, per_rate = self._line
            budgets = at_zero + reward_rate * per_rate
            if not any(group.any() for group in _misplaced(matrix, reward_rate - cost, low, high, state, budgets)):
                return np.clip(budgets, low, high)
        budgets, state = box_complementarity(matrix, reward_rate - cost, low, high, state)
        free = state == 0
        held = np.where(state < 0, low, np.where(state > 0, high, 0.0))
        right = np.column_stack([-cost - matrix @ held, np.ones(len(cost))])[free]
        lines = np.linalg.solve(matrix[np.ix_(free, free)], right)
        at_zero, per_rate = held.copy(), np.zeros(len(cost))
        at_zero[free], per_rate[free] = lines.T
        self._line = state, at_zero, per_rate
        return budgets


def unbounded_optimal_welfare(game: Game, reward_rate: float, weights: Array) -> float:
    """W_SW = Σ (r c_i − b_i)²/(4a_i), the optimum if budgets could have any sign (model, eq. 25)."""
    clients = game.clients
    return float(((reward_rate * weights - clients.linear_cost) ** 2 / (4 * clients.quadratic_cost)).sum())


def _bounded_optimum_by_descent(game: Game, reward_rate: float, start: Array) -> Array:
    clients = game.clients

    def loss_and_slope(budgets: Array) -> tuple[float, Array]:
        losses = game.loss @ budgets
        marginal = 2 * clients.quadratic_cost * losses + clients.linear_cost
        return -welfare(game, reward_rate, budgets, losses), game.loss.T @ marginal - reward_rate

    limits = np.column_stack([clients.budget_min, clients.budget_max])
    options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 20}
    minimum = minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return np.asarray(minimum.x)


def box_complementarity(
    matrix: Array, right: Array, low: Array, high: Array, start: IntArray | None = None
) -> tuple[Array, IntArray]:
    """x in [low, high] with (Mx − q)_i = 0 inside, >= 0 at low, <= 0 at high, for a positive definite M; and who is
    where: -1 at low, 0 free, 1 at high. `start` guesses that.

    Active sets; where one returns, single clients are moved in order of their number (Murty's rule), which ends.
    """
    state = np.zeros(len(right), dtype=np.int64) if start is None else start.copy()
    seen: set[bytes] = set()
    for _ in range(200 + 20 * len(right)):
        x = np.where(state < 0, low, np.where(state > 0, high, 0.0))
        free = state == 0
        x[free] = np.linalg.solve(matrix[np.ix_(free, free)], (right - matrix @ x)[free])
        to_low, to_high, released = _misplaced(matrix, right, low, high, state, x)
        wrong: BoolArray = to_low | to_high | released
        if not wrong.any():
            return np.clip(x, low, high), state
        key = state.tobytes()
        move = wrong if key not in seen else np.arange(len(right)) == np.argmax(wrong)
        seen.add(key)
        state[move & to_low] = -1
        state[move & to_high] = 1
        state[move & released] = 0
    slack = (matrix @ x - right) / np.diag(matrix)
    raise NotConverged("the social optimum within bounds did not settle.", x, float(np.abs(slack[wrong]).max()))


def _misplaced(
    matrix: Array, right: Array, low: Array, high: Array, state: IntArray, x: Array
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Who is free and below low, free and above high, held and better off free."""
    slack = (matrix @ x - right) / np.diag(matrix)
    tolerance = 1e-12 * max(1.0, float(np.abs(x).max()))
    free = state == 0
    released = ((state < 0) & (slack < -tolerance)) | ((state > 0) & (slack > tolerance))
    return free & (x < low - tolerance), free & (x > high + tolerance), released


def price_of_anarchy(optimal_welfare: float, reached_welfare: float) -> float | None:
    """optimum/reached (model, eq. 27), or None where welfare is not positive and a ratio would mean nothing."""
    if not (reached_welfare > 0 and np.isfinite(reached_welfare)):
        return None
    return optimal_welfare / reached_welfare
