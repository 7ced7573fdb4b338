"""The panel of one client: what it gives, is paid and loses, who exposes it, and what if another moves."""

from __future__ import annotations

from typing import Any

from dash import html

from mppfl.errors import BadInput
from mppfl.explorer.exposure_view import ClientView, Standing, what_if
from mppfl.explorer.words import facts, table
from mppfl.explorer.world import Scene
from mppfl.text import number

ROUNDING = 1e-9  # a change below this share of the value is none
UNITS = {
    "budget": "budget (ρ)",
    "external_risk": "external risk (ρ)",
    "privacy_loss": "privacy loss (ρ)",
    "payment": "is paid (money)",
    "privacy_cost": "privacy cost (money)",
    "utility": "utility (money)",
}


def client_panel(scene: Scene, view: ClientView | None) -> Any:
    """What is known of the chosen client in the round shown; nothing where none is chosen."""
    if view is None:
        return []
    now = view.standing
    known = facts(
        [
            ("budget it gives (ρ)", number(now.budget)),
            ("price (money per ρ)", number(view.price)),
            ("is paid (money)", number(now.payment)),
            ("loses by itself (ρ)", number(now.budget)),
            ("loses through others (ρ)", number(view.through_others)),
            ("privacy cost (money)", number(now.privacy_cost)),
            ("compute cost (money)", number(view.compute_cost)),
            ("utility (money)", number(now.utility)),
            ("spent so far (ρ)", number(view.spent)),
            ("external risk so far (ρ)", number(view.external_so_far)),
        ]
    )
    hops = [[f"{hop} link{'s' * (hop > 1)}", number(amount)] for hop, amount in enumerate(view.by_hop, start=1)]
    rows = [[row.name, str(row.hop), number(row.amount), f"{100 * row.share:.1f} %"] for row in view.rows]
    more = f"{len(rows)} largest terms from {view.num_sources:,} sources; the others add up to {number(view.left_out)}"
    return [
        html.H3(f"Client {view.name}, round {scene.round_index}"),
        known,
        html.H3("Who exposes it"),
        table(["over", "external risk (ρ)"], hops, "By hop") if rows else html.P("Nobody exposes it."),
        table(["source", "links", "external risk (ρ)", "share"], rows, "By source") if rows else None,
        html.P(more, className="soft") if rows else None,
    ]


def what_if_panel(scene: Scene, view: ClientView | None, other: str, event: str) -> Any:
    """Before and after for the chosen client, when the other leaves or doubles its budget."""
    if view is None or not other.strip():
        return html.P("Choose two clients: the one you look at, and the one who moves.", className="soft")
    try:
        found = what_if(scene, view.client, scene.solution.game.graph.index(other.strip()), event)
    except BadInput as error:
        return html.P(str(error), className="wrong")
    rows = [[words, *_change(found.before, found.after, name)] for name, words in UNITS.items()]
    all_before, all_after = found.everybody_before, found.everybody_after
    for name, words in (("external_risk", "all: external risk (ρ)"), ("welfare", "all: welfare (money)")):
        rows.append([words, *_change(all_before, all_after, name)])
    how = (
        "The others settle anew at the same prices."
        if found.others_respond
        else "These clients do not answer each other: budgets of the others stay, exposure changes."
    )
    caption = f"Client {view.name} when {other.strip()} {'leaves' if event == 'leaves' else 'doubles its budget'}"
    return [table(["what", "before", "after", "change"], rows, caption), html.P(how, className="soft")]


def _change(before: Standing | Any, after: Standing | Any, name: str) -> list[str]:
    one, other = getattr(before, name), getattr(after, name)
    moved = other - one
    if abs(moved) <= ROUNDING * max(abs(one), abs(other)):
        return [number(one), number(other), "0"]
    return [number(one), number(other), ("+" if moved > 0 else "") + number(moved)]
