"""What all clients together gain: welfare, its optimum, the price of anarchy, and the paper's bounds beside them."""

from __future__ import annotations

import numpy as np

from mppfl.arrays import Array
from mppfl.game.convex import society_of
from mppfl.game.leader import answers_along
from mppfl.game.model import Game, privacy_cost, privacy_loss, server_cost
from mppfl.game.plan import AlongLine


def welfare(game: Game, prices: Array | float, budgets: Array, losses: Array | None = None) -> float:
    """W = Σ_i [p_i ρ_i − a_i s_i² − b_i s_i]: all clients together, compute cost left out (model, eq. 23)."""
    losses = privacy_loss(game, budgets) if losses is None else losses
    return float(np.sum(prices * budgets) - privacy_cost(game, losses).sum())


def total_welfare(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """W − U_t/(1−τ): clients and server together, payments cancelling (model, eq. 24)."""
    cost = server_cost(game, round_index, prices, budgets)
    return welfare(game, prices, budgets) - cost / (1 - game.accuracy_weight)


def social_optimum(game: Game, reward_rate: float) -> Array:
    """Budgets within the bounds that make welfare largest at a rate (model, eq. 25); inside, s* = (r c − b)/(2a)."""
    return answers_along(society_of(game), np.array([reward_rate])).at(0, reward_rate)


class SocialOptima:
    """The welfare optima of a game, at the rates of one plan after another."""

    def __init__(self, game: Game) -> None:
        self._society = society_of(game)
        self._totals: dict[bytes, float] = {}

    def total(self, reward_rates: Array) -> float:
        """Optimal welfare summed over rounds at these rates."""
        key = reward_rates.tobytes()
        if key not in self._totals:
            game, weights, rates = self._society.game, self._society.weights, reward_rates.tolist()
            budgets = answers_along(self._society, reward_rates)
            if isinstance(budgets, AlongLine):  # nobody is at a bound
                self._totals[key] = sum(unbounded_optimal_welfare(game, rate, weights) for rate in rates)
            else:
                self._totals[key] = sum(welfare(game, rate, budgets.at(k, rate)) for k, rate in enumerate(rates))
        return self._totals[key]


def unbounded_optimal_welfare(game: Game, reward_rate: float, weights: Array) -> float:
    """W_SW = Σ (r c_i − b_i)²/(4a_i), the optimum if budgets could have any sign (model, eq. 25)."""
    clients = game.clients
    return float(((reward_rate * weights - clients.linear_cost) ** 2 / (4 * clients.quadratic_cost)).sum())


def price_of_anarchy(optimal_welfare: float, reached_welfare: float) -> float | None:
    """optimum/reached (model, eq. 27), or None where welfare is not positive and a ratio would mean nothing."""
    is_gain = reached_welfare > 0 and np.isfinite(reached_welfare)
    return optimal_welfare / reached_welfare if is_gain else None
