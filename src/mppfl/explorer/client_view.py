"""One client of a scene: who exposes it, what it is paid and loses; what if another client leaves or doubles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.explorer.markup import facts, table, tag
from mppfl.explorer.state import EVENTS
from mppfl.explorer.world import Scene
from mppfl.game import Game, equilibrium_at, privacy_cost, privacy_loss, server_cost, utility, welfare
from mppfl.network import Walk, exposure_sources, strongest_walks
from mppfl.text import number

SETTLED = 1e-6  # residual of budgets that are an equilibrium


@dataclass(frozen=True, slots=True)
class ExposureSource:
    """One source's part in a client's external risk: over walks of `hop` edges, or of any length where hop is 0."""

    source: int
    name: str
    hop: int
    amount: float
    share: float  # of all external risk


@dataclass(frozen=True, slots=True)
class ClientOutcome:
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
    outcome: ClientOutcome
    rows: tuple[ExposureSource, ...]
    sources: tuple[ExposureSource, ...]
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
    terms = exposure_sources(game.propagation, client, budgets)
    total = float(terms.amounts.sum())
    by_hop = np.bincount(terms.hops, weights=terms.amounts, minlength=game.propagation.max_hops + 1)[1:]
    by_source = np.bincount(terms.sources, weights=terms.amounts, minlength=game.num_clients)
    exposing = np.flatnonzero(by_source)
    largest = exposing[np.argsort(-by_source[exposing], kind="stable")][:most].tolist()

    def exposure(source: int, hop: int, amount: float) -> ExposureSource:
        return ExposureSource(source, scene.names[source], hop, amount, amount / total)

    first = (part[:most].tolist() for part in (terms.sources, terms.hops, terms.amounts))
    rows = tuple(exposure(*term) for term in zip(*first, strict=True) if term[2] > 0)
    outcome = outcome_of(game, scene.prices, budgets, scene.losses, scene.external, client)
    return ClientView(
        client=client,
        name=scene.names[client],
        outcome=outcome,
        rows=rows,
        sources=tuple(exposure(source, 0, float(by_source[source])) for source in largest),
        by_hop=tuple(by_hop.tolist()),
        walks=strongest_walks(game.propagation, client, budgets, largest),
        num_sources=len(exposing),
        left_out=total - sum(row.amount for row in rows),
        price=float(scene.prices[client]),
        through_others=outcome.privacy_loss - outcome.budget,
        compute_cost=float(game.clients.compute_cost[client]) if outcome.budget > 0 else 0.0,
        spent=float(scene.cumulative.spent[client]),
        external_so_far=float(scene.cumulative.external[client]),
    )


def outcome_of(game: Game, prices: Array, budgets: Array, losses: Array, external: Array, client: int) -> ClientOutcome:
    """How one client fares."""
    return ClientOutcome(
        budget=float(budgets[client]),
        external_risk=float(external[client]),
        privacy_loss=float(losses[client]),
        payment=float(prices[client] * budgets[client]),
        privacy_cost=float(privacy_cost(game, losses)[client]),
        utility=float(utility(game, prices, budgets, losses)[client]),
    )


# ---- what if another moves ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Totals:
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
    before: ClientOutcome
    after: ClientOutcome
    total_before: Totals
    total_after: Totals
    budgets: Array


def what_if(scene: Scene, client: int, other: int, event: Literal["leaves", "doubles"] | str) -> WhatIf:
    """The round shown with one client held at 0 ("leaves") or at twice its budget ("doubles"), prices unchanged.

    Clients who know the network settle anew around it, within their bounds; who had opted out opts out. The others
    answer as if alone, or do not choose, so that nobody's budget moves but that of `other`.
    """
    game, prices, before = scene.solution.game, scene.prices, scene.budgets
    if event not in EVENTS:
        raise BadInput(f"event={event!r:.60} must be one of {', '.join(EVENTS)}.")
    if client == other:
        raise BadInput(f"client {scene.names[client]!r} cannot be its own other. Choose another client who {event}.")
    moved = before.copy()
    moved[other] = 0.0 if event == "leaves" else 2 * before[other]
    responds = scene.solution.verification.residual < SETTLED  # in equilibrium: they know the network
    after = _settled_anew(scene, moved, other) if responds else moved
    return WhatIf(
        client=client,
        other=other,
        event=event,
        others_respond=responds,
        before=outcome_of(game, prices, before, scene.losses, scene.external, client),
        after=outcome_of(game, prices, after, privacy_loss(game, after), game.propagation @ after, client),
        total_before=_totals(game, scene.round_index, prices, before),
        total_after=_totals(game, scene.round_index, prices, after),
        budgets=after,
    )


def _settled_anew(scene: Scene, moved: Array, other: int) -> Array:
    """The equilibrium at the same prices with `other` held at its new budget."""
    game = scene.solution.game
    low, high = game.clients.budget_min.copy(), game.clients.budget_max.copy()
    if scene.choices.game.participation == "rational":
        outside = scene.budgets <= 0
        low[outside] = high[outside] = 0.0
    low[other] = high[other] = moved[other]
    return equilibrium_at(game.with_bounds(low, high), scene.prices, moved).budgets


def _totals(game: Game, round_index: int, prices: Array, budgets: Array) -> Totals:
    return Totals(
        budgets=float(budgets.sum()),
        external_risk=float((game.propagation @ budgets).sum()),
        payments=float(np.sum(prices * budgets)),
        welfare=welfare(game, prices, budgets),
        server_cost=server_cost(game, round_index, prices, budgets),
    )


# ---- as parts of the page ------------------------------------------------------------------------------------------

ROUNDING = 1e-9  # a change below this share of the value is none
UNITS = {
    "budget": "budget (ρ)",
    "external_risk": "external risk (ρ)",
    "privacy_loss": "privacy loss (ρ)",
    "payment": "is paid (money)",
    "privacy_cost": "privacy cost (money)",
    "utility": "utility (money)",
}


def client_panel(scene: Scene, view: ClientView | None) -> Markup:
    """What is known of the chosen client in the round shown; nothing where none is chosen."""
    if view is None:
        return Markup()
    outcome = view.outcome
    values = {
        "budget it gives (ρ)": outcome.budget,
        "price (money per ρ)": view.price,
        "is paid (money)": outcome.payment,
        "loses by itself (ρ)": outcome.budget,
        "loses through others (ρ)": view.through_others,
        "privacy cost (money)": outcome.privacy_cost,
        "compute cost (money)": view.compute_cost,
        "utility (money)": outcome.utility,
        "spent so far (ρ)": view.spent,
        "external risk so far (ρ)": view.external_so_far,
    }
    parts = [
        tag("h3", f"Client {view.name}, round {scene.round_index}"),
        facts((name, number(value)) for name, value in values.items()),
        tag("h3", "Who exposes it"),
    ]
    if not view.rows:
        return Markup().join([*parts, tag("p", "Nobody exposes it.")])
    hops = [[f"{hop} edge{'s' * (hop > 1)}", number(amount)] for hop, amount in enumerate(view.by_hop, start=1)]
    rows = [[row.name, str(row.hop), number(row.amount), f"{100 * row.share:.1f} %"] for row in view.rows]
    more = f"{len(rows)} largest terms from {view.num_sources:,} sources; the others add up to {number(view.left_out)}"
    parts += [
        table(["over", "external risk (ρ)"], hops, "By hop"),
        table(["source", "edges", "external risk (ρ)", "share"], rows, "By source"),
        tag("p", more, class_="soft"),
    ]
    return Markup().join(parts)


def what_if_panel(scene: Scene, view: ClientView | None, other: str, event: str) -> Markup:
    """Before and after for the chosen client, when the other leaves or doubles its budget."""
    if view is None or not other.strip():
        return tag("p", "Choose two clients: the one you look at, and the one who moves.", class_="soft")
    try:
        change = what_if(scene, view.client, scene.solution.game.graph.index(other.strip()), event)
    except BadInput as error:
        return tag("p", str(error), class_="wrong")
    rows = [[words, *_change(change.before, change.after, name)] for name, words in UNITS.items()]
    for name, words in (("external_risk", "all: external risk (ρ)"), ("welfare", "all: welfare (money)")):
        rows.append([words, *_change(change.total_before, change.total_after, name)])
    how = (
        "The others settle anew at the same prices."
        if change.others_respond
        else "These clients do not answer each other: budgets of the others stay, exposure changes."
    )
    caption = f"Client {view.name} when {other.strip()} {'leaves' if event == 'leaves' else 'doubles its budget'}"
    return table(["what", "before", "after", "change"], rows, caption) + tag("p", how, class_="soft")


def _change(before: ClientOutcome | Totals, after: ClientOutcome | Totals, name: str) -> list[str]:
    old, new = getattr(before, name), getattr(after, name)
    moved = new - old
    if abs(moved) <= ROUNDING * max(abs(old), abs(new)):
        return [number(old), number(new), "0"]
    return [number(old), number(new), ("+" if moved > 0 else "") + number(moved)]
