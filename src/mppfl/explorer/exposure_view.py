"""One client of a scene: who exposes it and along which walks, what it is paid and loses; and what if another moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.explorer.choices import EVENTS
from mppfl.explorer.world import Scene
from mppfl.game import Game, equilibrium_at, privacy_cost, privacy_loss, server_cost, utility, welfare
from mppfl.network import Walk, attribute, strongest_walks


@dataclass(frozen=True, slots=True)
class Exposure:
    """One source's part in a client's external risk: over walks of `hop` links, or of any length where hop is 0."""

    source: int
    name: str
    hop: int
    amount: float
    share: float  # of all external risk


@dataclass(frozen=True, slots=True)
class Standing:
    """How one client fares in one round: budgets, risk and loss in units of a budget, the rest in money."""

    budget: float
    external_risk: float
    privacy_loss: float
    payment: float
    privacy_cost: float
    utility: float


@dataclass(frozen=True, slots=True)
class ClientView:
    """Everything the page says about one client in the round shown.

    rows         the largest terms λ^(k-1)(W^k)_ij ρ_j, largest first
    sources      the largest sources over all hops, largest first
    by_hop       external risk by hop, from 1 to K; adds up to the external risk
    walks        the single strongest walk of each of `sources`
    left_out     external risk that is not in `rows`
    through_others  α times the external risk, what others add to the privacy loss
    spent, external_so_far   up to and with this round
    """

    client: int
    name: str
    standing: Standing
    rows: tuple[Exposure, ...]
    sources: tuple[Exposure, ...]
    by_hop: tuple[float, ...]
    walks: tuple[Walk, ...]
    num_sources: int
    left_out: float
    price: float
    through_others: float
    compute_cost: float
    spent: float
    external_so_far: float


def client_view(scene: Scene, client: int, most: int = 12) -> ClientView:
    """Who exposes a client in the round shown, by source, hop and walk; what it is paid, and what it loses."""
    game, budgets = scene.solution.game, scene.budgets
    found = attribute(game.propagation, client, budgets)
    total = float(found.amounts.sum())
    by_hop = np.bincount(found.hops, weights=found.amounts, minlength=game.propagation.max_hops + 1)[1:]
    by_source = np.bincount(found.sources, weights=found.amounts, minlength=game.num_clients)
    exposing = np.flatnonzero(by_source)
    largest = exposing[np.argsort(-by_source[exposing], kind="stable")][:most].tolist()

    def exposure(source: int, hop: int, amount: float) -> Exposure:
        return Exposure(source, scene.names[source], hop, amount, amount / total)

    first = (part[:most].tolist() for part in (found.sources, found.hops, found.amounts))
    rows = tuple(exposure(*term) for term in zip(*first, strict=True) if term[2] > 0)
    standing = standing_of(game, scene.prices, budgets, scene.losses, scene.external, client)
    return ClientView(
        client=client,
        name=scene.names[client],
        standing=standing,
        rows=rows,
        sources=tuple(exposure(source, 0, float(by_source[source])) for source in largest),
        by_hop=tuple(by_hop.tolist()),
        walks=strongest_walks(game.propagation, client, budgets, largest),
        num_sources=len(exposing),
        left_out=total - sum(row.amount for row in rows),
        price=float(scene.prices[client]),
        through_others=standing.privacy_loss - standing.budget,
        compute_cost=float(game.clients.compute_cost[client]) if standing.budget > 0 else 0.0,
        spent=float(scene.so_far.spent[client]),
        external_so_far=float(scene.so_far.external[client]),
    )


def standing_of(game: Game, prices: Array, budgets: Array, losses: Array, external: Array, client: int) -> Standing:
    """How one client fares."""
    return Standing(
        budget=float(budgets[client]),
        external_risk=float(external[client]),
        privacy_loss=float(losses[client]),
        payment=float(prices[client] * budgets[client]),
        privacy_cost=float(privacy_cost(game, losses)[client]),
        utility=float(utility(game, prices, budgets, losses)[client]),
    )


# ---- what if another moves ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Everybody:
    """Sums over all clients in one round: budgets and risk in units of a budget, the rest in money."""

    budgets: float
    external_risk: float
    payments: float
    welfare: float
    server_cost: float


@dataclass(frozen=True, eq=False, slots=True)
class WhatIf:
    """What happens to a client, and to all, when another leaves or doubles its budget.

    others_respond  True: everybody else settles anew at the same prices. False: these clients do not answer each other,
                    so the others' budgets stay and only exposure changes.
    budgets         everybody's, afterwards
    """

    client: int
    other: int
    event: str
    others_respond: bool
    before: Standing
    after: Standing
    everybody_before: Everybody
    everybody_after: Everybody
    budgets: Array


def what_if(scene: Scene, client: int, other: int, event: Literal["leaves", "doubles"] | str) -> WhatIf:
    """The round shown with one client held at 0 ("leaves") or at twice its budget ("doubles"), prices unchanged.

    Clients who know the network settle anew around it, within their bounds; who had stayed out stays out. The others
    answer as if alone, or do not choose, so that nobody's budget moves but that of `other`.
    """
    game, prices, before = scene.solution.game, scene.prices, scene.budgets
    if event not in EVENTS:
        raise BadInput(f"event={event!r:.60} must be one of {', '.join(EVENTS)}.")
    if client == other:
        raise BadInput(f"client {scene.names[client]!r} cannot be its own other. Choose another client who {event}.")
    moved = before.copy()
    moved[other] = 0.0 if event == "leaves" else 2 * before[other]
    responds = scene.choices.clients_are == "mppfl"
    after = _settled_anew(scene, moved, other) if responds else moved
    return WhatIf(
        client=client,
        other=other,
        event=event,
        others_respond=responds,
        before=standing_of(game, prices, before, scene.losses, scene.external, client),
        after=_standing_at(game, prices, after, client),
        everybody_before=_everybody(game, scene.round_index, prices, before),
        everybody_after=_everybody(game, scene.round_index, prices, after),
        budgets=after,
    )


def _settled_anew(scene: Scene, moved: Array, other: int) -> Array:
    """The equilibrium at the same prices with `other` held at its new budget."""
    game = scene.solution.game
    low, high = game.clients.budget_min.copy(), game.clients.budget_max.copy()
    if scene.choices.participation != "always":
        outside = scene.budgets <= 0
        low[outside] = high[outside] = 0.0
    low[other] = high[other] = moved[other]
    return equilibrium_at(game.with_bounds(low, high), scene.prices, moved).budgets


def _standing_at(game: Game, prices: Array, budgets: Array, client: int) -> Standing:
    return standing_of(game, prices, budgets, privacy_loss(game, budgets), game.propagation @ budgets, client)


def _everybody(game: Game, round_index: int, prices: Array, budgets: Array) -> Everybody:
    return Everybody(
        budgets=float(budgets.sum()),
        external_risk=float((game.propagation @ budgets).sum()),
        payments=float(np.sum(prices * budgets)),
        welfare=welfare(game, prices, budgets),
        server_cost=server_cost(game, round_index, prices, budgets),
    )
