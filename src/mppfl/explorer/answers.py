"""Answers: what the page says to a state of its levers, as parts of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import html

from mppfl.errors import BadInput, MppflError
from mppfl.explorer.chart import Chart
from mppfl.explorer.chart_plotly import to_plotly
from mppfl.explorer.choices import Choices
from mppfl.explorer.client_panel import client_panel, what_if_panel
from mppfl.explorer.comparison_view import Comparison, comparison
from mppfl.explorer.drawing import Picture, Scale, community_values, elements, node_paint
from mppfl.explorer.exposure_view import ClientView, client_view
from mppfl.explorer.run_charts import run_charts
from mppfl.explorer.run_view import RunState, ledger_rows
from mppfl.explorer.scene_charts import comparison_charts, scene_charts
from mppfl.explorer.site import Site
from mppfl.explorer.words import as_text, table
from mppfl.explorer.world import Scene
from mppfl.text import number

MOST_NAMES = 2_000  # offered while a client's name is typed


@dataclass(frozen=True, slots=True)
class Answer:
    """Parts of the page that follow the levers; what belongs to a tab that is closed is left as it is."""

    summary: str
    warning: str
    paint: dict[str, Any] | None = None
    texts: dict[str, str] | None = None  # what is written where, by the id of the place
    plots: list[dict[str, Any]] | None = None


def answer(site: Site, choices: Choices, *, dark: bool) -> Answer:
    """What is to be seen of the choices in the tab that is open."""
    if choices.tab == "run":
        return Answer("trainings, finished and running" if site.runs is not None else "", "")
    # The picture first: on a large network it is there long before the game is solved.
    picture = site.picture(choices) if choices.tab == "network" else None
    scene = site.world.scene(choices)
    said: dict[str, Any] = {
        "summary": summary(scene),
        "warning": " ".join(_sentence(each) for each in scene.solution.warnings),
    }
    if choices.tab == "rounds":
        return Answer(**said, plots=plots_of(scene_charts(scene), dark))
    if choices.tab == "comparison" or picture is None:
        found = comparison(site.world, choices)
        compared = {"comparison-table": as_text(_compared(found))}
        return Answer(**said, texts=compared, plots=plots_of(comparison_charts(found), dark))
    view, wrong = _viewed(scene, choices.client)
    said["warning"] = f"{wrong} {said['warning']}".strip()
    paint, scale, words = painted(picture, scene, view, dark)
    texts = {
        "legend": _legend(scale, words),
        "client-panel": client_panel(scene, view),
        "what-if": what_if_panel(scene, view, choices.other, choices.event),
    }
    return Answer(**said, paint=paint, texts={place: as_text(part) for place, part in texts.items()})


def _viewed(scene: Scene, name: str) -> tuple[ClientView | None, str]:
    """The chosen client, or why there is none: another network may not have the one that was chosen before."""
    if not name.strip():
        return None, ""
    try:
        return client_view(scene, client_named(scene, name)), ""
    except BadInput as error:
        return None, str(error)


def summary(scene: Scene) -> str:
    """The game in one line."""
    game, solution, at = scene.solution.game, scene.solution, scene.round_index - 1
    return (
        f"{game.num_clients:,} clients, {game.graph.num_links:,} links, αS = {number(game.contraction)} · "
        f"{solution.plan.mechanism}, round {scene.round_index} of {len(solution.plan)}: reward rate "
        f"{number(solution.plan.reward_rates[at])}, server cost {number(solution.outcome.server_costs[at])}, "
        f"{int(solution.outcome.below_zero[at]):,} clients below zero"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


# ---- the picture ------------------------------------------------------------------------------------------------


def drawn(site: Site, choices: Choices) -> tuple[Any, Any, Any, str]:
    """Elements of the picture, the way back out of opened communities, names to choose from, and what was left out."""
    picture, names = site.picture(choices), site.world.names(choices)
    found = elements(picture, names)
    for place in range(len(picture.members) if picture.is_community else 0):
        found[place]["data"] |= {"community": int(picture.shown[place])}
    trail: list[Any] = []
    if len(picture.trail) > 1:
        for depth, words in enumerate(picture.trail):
            last = depth == len(picture.trail) - 1
            trail.append(html.Span(words) if last else html.Button(words, id={"trail": depth}, type="button"))
            trail += [] if last else [html.Span("›", **{"aria-hidden": "true"})]
    some = names if len(names) <= MOST_NAMES else [names[int(each[0])] for each in picture.members[:MOST_NAMES]]
    return found, trail, list(some), picture.note


def painted(picture: Picture, scene: Scene, view: ClientView | None, dark: bool) -> tuple[dict[str, Any], Scale, str]:
    """Colours of what is drawn, in its order; the chosen client, those who expose it and the walks between them."""
    values, words = scene.coloured_by(scene.choices.colour)
    here = community_values(picture, values)
    colours, scale = node_paint(here, dark, diverging=scene.choices.colour == "utility")
    found: dict[str, Any] = {"colours": colours, "communities": picture.is_community}
    if view is None:
        return found | {"chosen": None, "sources": [], "walks": []}, scale, words
    place = places_of(picture, scene.solution.game.num_clients)
    walks = [[int(each) for each in place[list(walk.clients)]] for walk in view.walks]
    walks = [_without_stays(walk) for walk in walks if min(walk) >= 0]
    sources = sorted({int(place[each.source]) for each in view.sources} - {-1, int(place[view.client])})
    chosen = int(place[view.client])
    return found | {"chosen": chosen if chosen >= 0 else None, "sources": sources, "walks": walks}, scale, words


def places_of(picture: Picture, num_clients: int) -> Any:
    """Where each client is drawn, −1 where it is not: its own node, or its community's."""
    places = np.full(num_clients, -1)
    for place, members in enumerate(picture.members):
        places[members] = place
    return places


def _without_stays(walk: list[int]) -> list[int]:
    """A walk between communities without the steps that stay in one."""
    return [each for at, each in enumerate(walk) if at == 0 or each != walk[at - 1]]


def client_named(scene: Scene, name: str) -> int:
    """The position of a client by its name."""
    return scene.solution.game.graph.index(name.strip())


def _legend(scale: Scale, words: str) -> list[Any]:
    ticks = [html.Span(text, style={"left": f"{place:g}%"}) for place, text in scale.ticks]
    return [
        html.Div(words),
        html.Div(className="bar", style={"background": scale.gradient}),
        html.Div(ticks, className="ticks"),
        *([html.Div(f"grey: {scale.num_unknown:,} not known or without limit")] if scale.num_unknown else []),
    ]


# ---- figures ----------------------------------------------------------------------------------------------------


def plots_of(charts: Sequence[Chart], dark: bool) -> list[dict[str, Any]]:
    """What explorer.js draws, each into its frame."""
    return [{"key": chart.key, "note": chart.note, **to_plotly(chart, dark)} for chart in charts]


def _compared(found: Comparison) -> Any:
    heads = [
        "mechanism",
        "reward",
        "server cost (money)",
        "welfare (money)",
        "mean budget (ρ per round)",
        "price of anarchy",
        "below zero (% of clients)",
    ]
    rows = [
        [
            row.mechanism.replace("_", " "),
            row.convention,
            number(row.server_cost),
            number(row.welfare),
            number(row.mean_budget),
            "–" if row.price_of_anarchy is None else number(row.price_of_anarchy),
            f"{100 * row.below_zero:.1f}",
        ]
        for row in found.rows
    ]
    notes = [html.P(_sentence(note), className="soft") for note in found.notes]
    return [table(heads, rows, f"Sums over {found.num_rounds} rounds"), *notes]


# ---- runs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Followed:
    """The tab of runs, as far as it has changed."""

    texts: dict[str, str]
    options: list[str]
    plots: list[dict[str, Any]]
    seen: str


def runs(site: Site, names: tuple[str, ...], dark: bool, seen: str | None) -> Followed | None:
    """How the chosen runs stand; None where the page has `seen` it all: each page tells what it saw last."""
    reader = site.runs
    if reader is None:
        return None
    states, wrong = [], []
    try:
        listed = [entry.name for entry in reader.list()]
    except MppflError as error:  # the whole folder is gone: one line for all of its runs
        listed, names, wrong = [], (), [str(error)]
    for name in names:
        try:
            states.append(reader.read(name))
        except BadInput as error:  # BadFile is one
            wrong.append(str(error))
    marks = [(state.name, state.updated, state.rounds_done, state.rounds_charged, state.finished) for state in states]
    now = repr((listed, marks, wrong, dark))
    if now == seen:
        return None
    charts = run_charts(states) if states else ()
    texts = {"run-status": _standing(states, wrong), "ledger": [_ledger(state) for state in states]}
    return Followed(
        {place: as_text(part) for place, part in texts.items()},
        listed,
        plots_of(charts, dark),
        now,
    )


def _standing(states: Sequence[RunState], wrong: Sequence[str]) -> list[Any]:
    lines = [html.Li([html.B(state.name), f": {state.mechanism}, {state.standing}"]) for state in states]
    simulated = [state.name for state in states if state.is_simulation]
    found: list[Any] = [html.Ul(lines, className="status")]
    if simulated:
        found.append(
            html.P(
                f"Simulation: the noise of {', '.join(simulated)} comes from a seed and protects no one.",
                className="soft",
            )
        )
    return found + [html.P(line, className="wrong") for line in wrong]


def _ledger(state: RunState) -> Any:
    heads = [
        "client",
        "spent (ρ)",
        f"ε at δ = {state.dp_delta:g}",
        "ε, worst case",
        "cap (ρ)",
        "remaining (ρ)",
        "rounds",
    ]
    rows = [
        [row.client, row.spent, row.dp_epsilon, row.worst_case_epsilon, row.cap, row.remaining, f"{row.rounds:,}"]
        for row in ledger_rows(state)
    ]
    if not rows:
        return html.P(f"{state.name}: no account is known yet.", className="soft")
    return table(heads, rows, f"{state.name}, a {state.unit}'s privacy")
