"""Key players: whose departure lowers everybody's exposure most, and whose budget costs the others most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.errors import BadInput
from mppfl.game.equilibrium import equilibrium_at
from mppfl.game.model import Game, wanted_loss

AT_REST = 1e-6  # of the largest budget: clients nearer to their best responses than that have settled
TRY_ALL_BELOW = 200  # clients; at bounds every departure is an equilibrium of its own

SETTLE = "the others settle anew at the same prices, within their bounds"
KEEP = "budgets here are no best responses to prices, so the others are taken to keep theirs"


def budgets_after_leaving(game: Game, budgets: Array, client: int, prices: Array | float | None = None) -> Array:
    """Everybody's budget after one client left and the rest settled anew: ρ − B⁻¹e_k ρ_k/(B⁻¹)_kk inside the bounds
    (model, eq. 32), the equilibrium at the same `prices` at them.

    Budgets must be an equilibrium. Without prices everybody must be inside its bounds before and after, or it raises:
    how much more a client at a bound would want, its budget does not tell.
    """
    start, within = budgets, _strictly_inside(game, budgets)
    within[client] = True  # whatever it gave, it leaves
    if prices is None or within.all():
        unit = (np.arange(game.num_clients) == client).astype(np.float64)
        column = game.loss.solve(unit)
        start = np.where(unit == 1, 0.0, budgets - column * (budgets[client] / column[client]))
        within &= ((start >= game.clients.budget_min) & (start <= game.clients.budget_max)) | (unit == 1)
        if within.all():  # everybody's equation of eq. 13 still holds, and nobody is in the way of a bound
            return start
        if prices is None:
            raise BadInput(
                f"client {game.graph.name(int(np.argmin(within)))!r} is at a bound of its budget before or after "
                f"{game.graph.name(client)!r} leaves ({int((~within).sum()):,} such). Give prices, and budgets are "
                "found within the bounds."
            )
    low, high = (np.array(bound) for bound in (game.clients.budget_min, game.clients.budget_max))
    low[client] = high[client] = 0.0
    return equilibrium_at(game.with_bounds(low, high), prices, start)


def exposure_relief(game: Game, budgets: Array, client: int, prices: Array | float | None = None) -> float:
    """By how much everybody's external risk together falls when a client leaves and the others settle anew.

    Bounds and `prices` are those of `budgets_after_leaving`.
    """
    return _fall(game, budgets, client, prices)[0]


def _fall(game: Game, budgets: Array, client: int, prices: Array | float | None) -> tuple[float, float]:
    """By how much all others' external risk, and all budgets, fall together when a client leaves."""
    fall = budgets - budgets_after_leaving(game, budgets, client, prices)
    return float(np.delete(game.propagation @ fall, client).sum()), float(fall.sum())


def _strictly_inside(game: Game, budgets: Array) -> BoolArray:
    return np.asarray((budgets > game.clients.budget_min) & (budgets < game.clients.budget_max))


@dataclass(frozen=True, eq=False)
class KeyPlayers:
    """Those whose leaving relieves the others most, in that order.

    clients          their positions
    exposure_relief  by how much all others' external risk falls together
    budgets_lost     by how much all budgets fall together
    assumes          what the others are taken to do, and who was tried
    """

    clients: IntArray
    exposure_relief: Array
    budgets_lost: Array
    assumes: str


def key_players(game: Game, prices: Array | float, budgets: Array, top: int) -> KeyPlayers:
    """The `top` clients whose leaving relieves the others most.

    Where everybody is at its best response to the prices, the others settle anew. Where they are not (budgets that the
    server mandates, clients who ignore the network), nothing would make them move, and they keep their budgets. Every
    client is tried in networks of at most 200, and of at most 1,000 where nobody is at a bound; elsewhere the 2·top who
    impose most exposure.
    """
    wish = wanted_loss(game, prices) - (game.loss @ budgets - budgets)
    distance = np.abs(np.clip(wish, game.clients.budget_min, game.clients.budget_max) - budgets).max()
    if distance > max(AT_REST * float(budgets.max()), 1e-11):
        imposed = exposure_imposed(game, budgets)
        order = np.argsort(-imposed, kind="stable")[:top]
        return KeyPlayers(order, imposed[order], budgets[order], KEEP)
    tried, among = np.arange(game.num_clients), ""
    by_formula = game.loss.is_dense and bool(_strictly_inside(game, budgets).all())  # eq. 32, one product each
    if not by_formula and game.num_clients > max(TRY_ALL_BELOW, 2 * top):
        tried = np.argsort(-exposure_imposed(game, budgets), kind="stable")[: 2 * top]
        among = f"; tried for the {2 * top} who impose most"
    relief, lost = np.array([_fall(game, budgets, int(client), prices) for client in tried]).T
    order = np.argsort(-relief, kind="stable")[:top]
    return KeyPlayers(tried[order], relief[order], lost[order], f"{SETTLE}{among}")


def exposure_imposed(game: Game, budgets: Array) -> Array:
    """External risk that each client's budget causes all others together, (Σᵀ1)_j ρ_j (model, eq. 33)."""
    return np.asarray(game.propagation.column_sums * budgets)


def harm_imposed(game: Game, budgets: Array) -> Array:
    """What each client's budget costs the others, in money: αρ_j Σ_i σ_ij (2a_i s_i + b_i) (model, eq. 33)."""
    marginal = 2 * game.clients.quadratic_cost * (game.loss @ budgets) + game.clients.linear_cost
    return np.asarray(game.externality_strength * budgets * (game.propagation.T @ marginal))
