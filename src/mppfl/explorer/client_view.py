"""One client of a scene: who exposes it, what it is paid and loses; what if another client leaves or doubles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.explorer.markup import facts, table, tag
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


def client_panel(scene: Scene, view: ClientView | None) -> Markup:
    """What is known of the chosen client in the round shown; nothing where none is chosen."""
    if view is None:
        return Markup()
    parts = [
        tag("h3", f"Client {view.name}, round {scene.round_index}"),
        facts((name, number(value)) for name, value in client_facts(scene, view.client).items()),
        tag("h3", "Who exposes it"),
    ]
    if not view.terms:
        return Markup().join([*parts, tag("p", "Nobody exposes it.")])
    total = sum(view.by_hop)
    hops = [[f"{hop} edge{'s' * (hop > 1)}", number(amount)] for hop, amount in enumerate(view.by_hop, start=1)]
    rows = [[source, str(hop), number(amount), f"{100 * amount / total:.1f} %"] for source, hop, amount in view.terms]
    left_out = number(total - sum(amount for *_, amount in view.terms))
    more = f"{len(rows)} largest terms from {view.num_sources:,} sources; the others add up to {left_out}"
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
        after, settled = what_if(scene, view.client, scene.solution.game.graph.index(other.strip()), event)
    except BadInput as error:
        return tag("p", str(error), class_="wrong")

    client, before = view.client, scene.figures
    rows = [_moved(words, before[name][client], after[name][client]) for name, words in UNITS.items()]
    rows.append(_moved("all: external risk (ρ)", before["external_risk"].sum(), after["external_risk"].sum()))
    parts = ([figures[name] for name in ("price", "budget", "privacy_loss")] for figures in (before, after))
    rows.append(_moved("all: welfare (money)", *(welfare(scene.solution.game, *of_all) for of_all in parts)))
    how = (
        "The others settle anew at the same prices."
        if settled
        else "These clients do not answer each other: budgets of the others stay, exposure changes."
    )
    caption = f"Client {view.name} when {other.strip()} {'leaves' if event == 'leaves' else 'doubles its budget'}"
    return table(["what", "before", "after", "change"], rows, caption) + tag("p", how, class_="soft")


def _moved(words: str, old: float, new: float) -> list[str]:
    moved = new - old if abs(new - old) > ROUNDING * max(abs(old), abs(new)) else 0.0
    return [words, number(old), number(new), ("+" if moved > 0 else "") + number(moved)]
