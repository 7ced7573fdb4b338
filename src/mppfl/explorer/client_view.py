"""One client of a scene: who exposes it, what it is paid and loses; what if another client leaves or doubles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.explorer.markup import panel
from mppfl.explorer.state import EVENTS
from mppfl.explorer.world import Scene, figures_of
from mppfl.game import equilibrium_at, welfare
from mppfl.network import Walk, exposure_sources, strongest_walks
from mppfl.text import number

SETTLED = 1e-6  # residual of budgets that are an equilibrium
ROUNDING = 1e-9  # a change below this share of the value is none
UNITS = {  # what is shown of one client before and after another moves
    "budget": "budget (ρ)",
    "external_risk": "external risk (ρ)",
    "privacy_loss": "privacy loss (ρ)",
    "payment": "is paid (money)",
    "privacy_cost": "privacy cost (money)",
    "utility": "utility (money)",
}


@dataclass(frozen=True, slots=True)
class ClientView:
    """Who exposes one client in the round shown.

    terms        source, hop and amount of the largest terms λ^(k-1)(W^k)_ij ρ_j of its external risk, largest first
    sources      external risk over all hops by position of the source, the largest, largest first
    by_hop       external risk by hop, from 1 to K; adds up to the external risk
    walks        the single strongest walk of each of `sources`
    num_sources  how many there are in all
    """

    client: int
    name: str
    terms: tuple[tuple[str, int, float], ...]
    sources: dict[int, float]
    by_hop: tuple[float, ...]
    walks: tuple[Walk, ...]
    num_sources: int


def client_view(scene: Scene, client: int, most: int = 12) -> ClientView:
    """Who exposes a client in the round shown, by source, hop and walk."""
    game, budgets = scene.solution.game, scene.figures["budget"]
    exposure = exposure_sources(game.propagation, client, budgets)
    by_hop = np.bincount(exposure.hops, weights=exposure.amounts, minlength=game.propagation.max_hops + 1)[1:]
    by_source = np.bincount(exposure.sources, weights=exposure.amounts, minlength=game.num_clients)
    exposing = np.flatnonzero(by_source)
    largest = exposing[np.argsort(-by_source[exposing], kind="stable")][:most].tolist()
    first = (part[:most].tolist() for part in (exposure.sources, exposure.hops, exposure.amounts))
    terms = ((scene.names[source], hop, amount) for source, hop, amount in zip(*first, strict=True) if amount > 0)
    return ClientView(
        client=client,
        name=scene.names[client],
        terms=tuple(terms),
        sources={source: float(by_source[source]) for source in largest},
        by_hop=tuple(by_hop.tolist()),
        walks=strongest_walks(game.propagation, client, budgets, largest),
        num_sources=len(exposing),
    )


def what_if(scene: Scene, client: int, other: int, event: str) -> tuple[dict[str, Array], bool]:
    """Figures of all clients with one held at 0 ("leaves") or at twice its budget ("doubles"), prices unchanged.

    Clients who know the network settle anew around it, within their bounds; who had opted out opts out. The others
    answer as if alone, or do not choose, so that nobody's budget moves but that of `other`. Also whether they settle.
    """
    game, before = scene.solution.game, scene.figures
    if client == other:
        raise BadInput(f"client {scene.names[client]!r} cannot be its own other. Choose another client who {event}.")
    budgets = before["budget"].copy()
    budgets[other] *= EVENTS[event]
    responds = scene.solution.verification.residual < SETTLED  # in equilibrium: they know the network
    if responds:
        low, high = game.clients.budget_min.copy(), game.clients.budget_max.copy()
        if scene.solution.plan.participation == "rational":
            outside = before["budget"] <= 0
            low[outside] = high[outside] = 0.0
        low[other] = high[other] = budgets[other]
        budgets = equilibrium_at(game.with_bounds(low, high), before["price"], budgets)
    return figures_of(game, before["price"], budgets), responds


# ---- as parts of the page ------------------------------------------------------------------------------------------


def client_facts(scene: Scene, client: int) -> dict[str, float]:
    """What the panel says of one client in the round shown."""
    figures = {name: float(values[client]) for name, values in scene.figures.items()}
    compute_cost = scene.solution.game.clients.compute_cost[client]
    return {
        "budget it gives (ρ)": figures["budget"],
        "price (money per ρ)": figures["price"],
        "is paid (money)": figures["payment"],
        "loses by itself (ρ)": figures["budget"],
        "loses through others (ρ)": figures["privacy_loss"] - figures["budget"],
        "privacy cost (money)": figures["privacy_cost"],
        "compute cost (money)": float(compute_cost) if figures["budget"] > 0 else 0.0,
        "utility (money)": figures["utility"],
        "spent so far (ρ)": float(scene.spent[client]),
        "external risk so far (ρ)": float(scene.external[client]),
    }


def client_panel(scene: Scene, view: ClientView | None) -> str:
    """What is known of the chosen client in the round shown; nothing where none is chosen."""
    if view is None:
        return ""
    return panel("client", view=view, facts=client_facts(scene, view.client), round_index=scene.round_index)


def what_if_panel(scene: Scene, view: ClientView | None, other: str, event: str) -> str:
    """Before and after for the chosen client, when the other leaves or doubles its budget."""
    if view is None or not other.strip():
        return panel("what_if")
    try:
        after, settled = what_if(scene, view.client, scene.solution.game.graph.index(other.strip()), event)
    except BadInput as error:
        return panel("what_if", error=str(error))
    client, before = view.client, scene.figures
    rows = [_moved(words, before[name][client], after[name][client]) for name, words in UNITS.items()]
    rows.append(_moved("all: external risk (ρ)", before["external_risk"].sum(), after["external_risk"].sum()))
    parts = ([figures[name] for name in ("price", "budget", "privacy_loss")] for figures in (before, after))
    rows.append(_moved("all: welfare (money)", *(welfare(scene.solution.game, *of_all) for of_all in parts)))
    caption = f"Client {view.name} when {other.strip()} {'leaves' if event == 'leaves' else 'doubles its budget'}"
    return panel("what_if", rows=rows, caption=caption, settled=settled)


def _moved(words: str, old: float, new: float) -> list[str]:
    moved = new - old if abs(new - old) > ROUNDING * max(abs(old), abs(new)) else 0.0
    return [words, number(old), number(new), ("+" if moved > 0 else "") + number(moved)]
