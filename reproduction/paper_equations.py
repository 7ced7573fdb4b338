"""Expressions that the paper states and the library does not use: prices of anarchy as printed, the gap of welfare."""

from __future__ import annotations

from mppfl.arrays import Array
from mppfl.game import Game, wanted_loss


def welfare_gap(game: Game, reward_rate: float, weights: Array) -> float:
    """W_SW − W_MPP = Σ r²(1−c_i)²/(4a_i) inside the bounds, exactly (model, eq. 26)."""
    return float((reward_rate**2 * (1 - weights) ** 2 / (4 * game.clients.quadratic_cost)).sum())


def poa_as_in_paper(game: Game, reward_rate: float, budgets: Array, external_risk: Array) -> float | None:
    """1 + Σ αr(R_i − Nφ_i) / Σ[(r−b_i)²/(4a_i) − αr R_i], what Theorem 4 calls MPPFL's price of anarchy (eq. 28).

    It compares the equilibrium with itself and tends to 1 as the estimate φ (`external_risk`) tends to R/N, whatever
    the network does: it says how far Algorithm 1 has come, nothing about efficiency.
    """
    clients, strength = game.clients, game.externality_strength
    suffered = game.propagation @ budgets
    apart = strength * reward_rate * float((suffered - game.num_clients * external_risk).sum())
    alone = (reward_rate - clients.linear_cost) ** 2 / (4 * clients.quadratic_cost)
    reached = float((alone - strength * reward_rate * suffered).sum())
    return None if reached <= 0 else 1 + apart / reached


def poa_bound_of_theorem_3(game: Game, reward_rate: float) -> float | None:
    """1/(1 − ε²), the paper's lower bound for the social-agnostic price of anarchy (model, eq. 29).

    ε = αS ω_min/(1 − α²S²) · (αS − m_l/m_h). Empty at paper scale, false on some small graphs; None where |ε| >= 1 or
    αS >= 1, where it has no meaning.
    """
    wanted = wanted_loss(game, reward_rate)
    reach = game.externality_strength * game.propagation.geometric_sum
    if reach >= 1 or wanted.max() <= 0:
        return None
    smallest = float(game.propagation.influence.data.min())
    deviation = reach * smallest / (1 - reach**2) * (reach - float(wanted.min() / wanted.max()))
    return None if abs(deviation) >= 1 else 1 / (1 - deviation**2)
