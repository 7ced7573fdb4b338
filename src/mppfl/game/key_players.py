"""Key players: whose departure lowers everybody's exposure most, and whose budget costs the others most."""

from __future__ import annotations

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.game.model import Game


def effect_of_leaving(game: Game, budgets: Array, who: IntArray | None = None) -> Array:
    """By how much Σρ falls when a client leaves and the others settle anew, c_k ρ_k/(B⁻¹)_kk (model, eq. 32).

    For the clients in `who` (default: all of a small network), inside the bounds. One linear solve each on large
    networks, one inverse on small ones.
    """
    positions = np.arange(game.num_clients) if who is None else np.asarray(who)
    weights = game.loss.T.solve(np.ones(game.num_clients))
    if game.loss.is_dense:
        home = np.diag(np.linalg.inv(game.loss.dense))[positions]
    else:
        home = np.empty(len(positions))
        for k, position in enumerate(positions):
            unit = np.zeros(game.num_clients)
            unit[position] = 1.0
            home[k] = game.loss.solve(unit)[position]
    return np.asarray(weights[positions] * budgets[positions] / home)


def budgets_after_leaving(game: Game, budgets: Array, client: int) -> Array:
    """Everybody's budget after one client left and the rest settled anew, ρ − B⁻¹e_k ρ_k/(B⁻¹)_kk (model, eq. 32)."""
    unit = np.zeros(game.num_clients)
    unit[client] = 1.0
    column = game.loss.solve(unit)
    after = budgets - column * (budgets[client] / column[client])
    after[client] = 0.0
    return np.asarray(after)


def exposure_imposed(game: Game, budgets: Array) -> Array:
    """External risk that each client's budget causes all others together, (Σᵀ1)_j ρ_j (model, eq. 33)."""
    return np.asarray(game.propagation.column_sums * budgets)


def harm_imposed(game: Game, budgets: Array) -> Array:
    """What each client's budget costs the others, in money: αρ_j Σ_i σ_ij (2a_i s_i + b_i) (model, eq. 33)."""
    marginal = 2 * game.clients.quadratic_cost * (game.loss @ budgets) + game.clients.linear_cost
    return np.asarray(game.externality_strength * budgets * (game.propagation.T @ marginal))


def exposure_relief(game: Game, budgets: Array, client: int) -> float:
    """By how much everybody's external risk together falls when a client leaves and the others settle anew."""
    after = budgets_after_leaving(game, budgets, client)
    others = np.arange(game.num_clients) != client
    return float((game.propagation @ (budgets - after))[others].sum())
