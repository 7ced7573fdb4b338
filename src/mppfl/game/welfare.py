"""What all clients together gain: welfare, its optimum, the price of anarchy, and the paper's bounds beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array
from mppfl.game.convex import optimal_budgets
from mppfl.game.equilibrium import equilibrium_response
from mppfl.game.leader import pigouvian_weights
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


def social_optimum(game: Game, reward_rate: float) -> SocialOptimum:
    """The welfare optimum at a rate (model, eq. 25): s* = (r c − b)/(2a) inside the bounds, else a convex QP."""
    return SocialOptima(game).at(reward_rate)


class SocialOptima:
    """The welfare optimum of a game at one rate after another, each started from the one before."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self._weights = pigouvian_weights(game)
        self._unbounded = equilibrium_response(game, self._weights)
        self._last: Array | None = None
        self._known: dict[float, SocialOptimum] = {}

    def at(self, reward_rate: float) -> SocialOptimum:
        if reward_rate not in self._known:
            game, clients = self.game, self.game.clients
            budgets, reached = self._unbounded.budgets(reward_rate), False
            # Whose bounds leave no choice is held there by the line itself, which is then no optimum of the others.
            inside = (budgets >= clients.budget_min) & (budgets <= clients.budget_max) & self._unbounded.free
            most = unbounded_optimal_welfare(game, reward_rate, self._weights)
            if not inside.all():
                start = np.clip(budgets, clients.budget_min, clients.budget_max) if self._last is None else self._last
                self._last = budgets = optimal_budgets(game, reward_rate, start)
                most, reached = welfare(game, reward_rate, budgets), True
            self._known[reward_rate] = SocialOptimum(budgets, most, reached)
        return self._known[reward_rate]

    def total(self, reward_rates: Array) -> float:
        """Optimal welfare summed over rounds at these rates."""
        return sum(self.at(float(rate)).welfare for rate in reward_rates)


def unbounded_optimal_welfare(game: Game, reward_rate: float, weights: Array) -> float:
    """W_SW = Σ (r c_i − b_i)²/(4a_i), the optimum if budgets could have any sign (model, eq. 25)."""
    clients = game.clients
    return float(((reward_rate * weights - clients.linear_cost) ** 2 / (4 * clients.quadratic_cost)).sum())


def price_of_anarchy(optimal_welfare: float, reached_welfare: float) -> float | None:
    """optimum/reached (model, eq. 27), or None where welfare is not positive and a ratio would mean nothing."""
    is_gain = reached_welfare > 0 and np.isfinite(reached_welfare)
    return optimal_welfare / reached_welfare if is_gain else None
