"""Callbacks: levers in, what is to be seen of them out (alone: the server only ties them to the page)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update

from mppfl.charts import for_page
from mppfl.errors import BadInput, MppflError
from mppfl.experiment import CONSTANTS
from mppfl.explorer.client_view import ClientView, client_panel, client_view, what_if_panel
from mppfl.explorer.network_view import elements, paint
from mppfl.explorer.page import OF_GAME, RANDOM, SLIDERS, as_levers, lever
from mppfl.explorer.round_view import comparison, comparison_charts, comparison_table, round_charts, sentence, summary
from mppfl.explorer.run_view import run_view
from mppfl.explorer.state import Choices, ViewState, constants_of, from_link, to_link
from mppfl.explorer.world import Scene, Site
from mppfl.fields import from_text, hints
from mppfl.game import find_mechanism
from mppfl.spec import FAMILY_OPTIONS, WEIGHT_OPTIONS, GameSpec

log = logging.getLogger(__name__)

LEVERS = tuple(as_levers(Choices()))
STORED = ("opened", "rest")  # fields that are kept in a Store, not in an input
MOST_NAMES = 2_000  # offered while a client's name is typed


# ---- answers -------------------------------------------------------------------------------------------------------


def answer(site: Site, choices: Choices, dark: bool) -> dict[str, Any]:
    """What follows the levers in the tab that is open: alert, summary, texts by id, paint of the network, plots."""
    if choices.view.tab == "run":
        return {"alert": "", "summary": "trainings, finished and running" if site.runs is not None else ""}
    # The picture first: on a large network it is there long before the game is solved.
    picture = site.world.picture(choices) if choices.view.tab == "network" else None
    scene = site.world.scene(choices)
    alert = " ".join(map(sentence, scene.solution.warnings))
    said: dict[str, Any] = {"alert": alert, "summary": summary(scene)}
    if choices.view.tab == "rounds":
        return said | {"plots": [*map(for_page, round_charts(scene, choices.view.client))]}
    if picture is None:
        rows = comparison(site.world, choices)
        texts = {"comparison-table": comparison_table(rows, choices.game.num_rounds)}
        return said | {"texts": texts, "plots": [*map(for_page, comparison_charts(rows))]}
    view, error = _view_of(scene, choices.view.client)
    painted, legend = paint(picture, scene, choices.view.colour, view, dark)
    texts = {
        "legend": legend,
        "client-panel": client_panel(scene, view),
        "what-if": what_if_panel(scene, view, choices.view.other, choices.view.event),
    }
    return said | {"alert": f"{error} {alert}".strip(), "texts": texts, "paint": painted}


def _view_of(scene: Scene, name: str) -> tuple[ClientView | None, str]:
    """The chosen client, or why there is none: another network may not have the one that was chosen before."""
    if not name.strip():
        return None, ""
    try:
        return client_view(scene, scene.solution.game.graph.index(name.strip())), ""
    except BadInput as error:
        return None, str(error)


def drawn(site: Site, choices: Choices) -> tuple[Any, Any, Any, str]:
    """Elements of the picture, the way back out of opened communities, names to choose from, and what was left out."""
    picture, names = site.world.picture(choices), site.world.names(choices.game)
    trail: list[Any] = []
    if len(picture.trail) > 1:
        for depth, words in enumerate(picture.trail[:-1]):
            trail.append(html.Button(words, id={"trail": depth}, type="button"))
            trail.append(html.Span("›", **{"aria-hidden": "true"}))
        trail.append(html.Span(picture.trail[-1]))
    some = names if len(names) <= MOST_NAMES else [names[int(node[0])] for node in picture.members[:MOST_NAMES]]
    return elements(picture, names), trail, list(some), picture.note


def choices_of(state: Mapping[str, Any], start: Choices) -> Choices:
    """The levers' values as Choices; an empty number is the start's, and what a lever cannot mean here is left out."""
    if not state.get("graph"):  # the start's would be shown in place of the one that somebody asked for
        raise BadInput("no network is chosen. Choose one of the list.")
    begun = as_levers(start)
    held = {name: _from_lever(name, state.get(name), begun[name]) for name in LEVERS}
    view = ViewState(**{name: held[name] for name in hints(ViewState)})
    game = held["rest"] | {name: held[name] for name in OF_GAME}
    idle = _idle(game, view.mechanism)
    usual = as_levers(Choices(GameSpec(preset=game["preset"])))  # which need not be said
    said = {name: value for name, value in game.items() if name not in idle}
    kept = {name: value for name, value in said.items() if name == "payment_limit" or value != usual.get(name)}
    kept |= {"undirected": True} if kept.get("undirected") else {}
    kept["fixed_budget"] = from_text(hints(GameSpec)["fixed_budget"], game["fixed_budget"])
    return Choices(GameSpec(**{**kept, "preset": game["preset"]}), view)


def _idle(game: Mapping[str, Any], mechanism: str) -> list[str]:
    """Fields that mean nothing beside the others."""
    if game["graph"] == RANDOM:
        idle = ["graph", "undirected", "isolated", "self_loops"]
    else:
        idle = ["family", "num_clients", *WEIGHT_OPTIONS, *chain.from_iterable(FAMILY_OPTIONS.values())]
    idle += [] if game["participation"] == "rational" else ["against"]
    return idle + ([] if find_mechanism(mechanism).option == "payment_limit" else ["payment_limit"])


def _property(name: str) -> str:
    return "data" if name in STORED else "value"


def _from_lever(name: str, value: Any, begun: Any) -> Any:
    """What a component holds; an empty number is what it held at first."""
    if name == "budget_max":
        return None if value in (None, "") else float(value)
    if value is None:
        return "" if name in ("client", "other") else begun
    return type(begun)(float(value)) if isinstance(begun, (int, float)) else value


# ---- what the page asks --------------------------------------------------------------------------------------------


def connect(app: Dash, site: Site) -> None:
    """Ties the page to what the site knows."""
    _in_the_browser(app)

    @app.callback(
        [Output(lever(name), _property(name)) for name in LEVERS] + [Output("linked", "data")],
        Input("url", "search"),
    )
    def levers_of_link(search: str | None) -> list[Any]:
        """The levers as the link says; what is wrong in it is told, and the levers stay."""
        nothing = [no_update] * len(LEVERS)
        if not search:
            return [*nothing, None]
        try:
            choices = from_link(search)
            site.world.require_files(choices.game)
        except MppflError as error:
            return [*nothing, str(error)]
        return [*as_levers(choices).values(), None]

    @app.callback(
        Output("picture", "data"),
        Output("trail", "children"),
        Output("names", "data"),
        Output("picture-note", "children"),
        Input("picture-key", "data"),
        State("state", "data"),
    )
    def draw(key: str | None, state: dict[str, Any] | None) -> Any:
        if key is None or state is None:
            return no_update
        try:
            nodes_and_lines, *around = drawn(site, choices_of(state, site.start))
        except MppflError:  # told by `answer_levers`
            return no_update
        return {"key": key, "elements": nodes_and_lines}, *around

    @app.callback(
        Output("answer", "data"),
        Output(lever("round_shown"), "max"),
        Input("state", "data"),
        Input("picture-key", "data"),
        State("linked", "data"),
        State(lever("round_shown"), "max"),
    )
    def answer_levers(state: dict[str, Any] | None, key: str | None, linked: str | None, most: int) -> Any:
        """One answer to every change, as one value, which explorer.js puts where it belongs."""
        if state is None:
            return no_update
        try:
            choices = choices_of(state, site.start)
            answered = answer(site, choices, bool(state.get("dark")))
        except MppflError as error:
            return {"alert": str(error)}, no_update
        except Exception as error:  # told on the page in one line, and in full where the server runs
            log.exception("the page could not be answered")
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}."
            return {"alert": f"{words} This is a fault in mppfl; please report it."}, no_update
        answered |= {"alert": linked or answered["alert"], "query": to_link(choices)}
        if "paint" in answered:
            answered["paint"] |= {"sequence": state["sequence"], "picture": key}
        if "plots" in answered:
            charts = answered["plots"]
            answered["plots"] = {"tab": choices.view.tab, "sequence": state["sequence"], "charts": charts}
        return answered, no_update if most == choices.game.num_rounds else choices.game.num_rounds

    @app.callback(
        Output("run-answer", "data"),
        Output(lever("runs"), "options"),
        Output("followed", "data"),
        Input("clock", "n_intervals"),
        Input(lever("runs"), "value"),
        Input("clock", "disabled"),
        State("followed", "data"),
    )
    def follow(_: int | None, runs: list[str] | None, asleep: bool, seen: str | None) -> list[Any]:
        """The runs chosen, read again while the tab is open; nothing is sent where nothing changed."""
        view = None if asleep or site.runs is None else run_view(site.runs, runs or (), seen)
        if view is None:
            return [no_update] * 3
        plots = {"tab": "run", "sequence": None, "charts": [*map(for_page, view.charts)]}
        return [{"texts": view.texts, "plots": plots}, view.options, view.seen]

    @app.callback(
        Output(lever("opened"), "data", allow_duplicate=True),
        Input({"trail": ALL}, "n_clicks"),
        State(lever("opened"), "data"),
        prevent_initial_call=True,
    )
    def go_back(clicks: list[int | None], opened: list[int]) -> Any:
        if not any(clicks) or not isinstance(ctx.triggered_id, dict):
            return no_update
        return opened[: int(ctx.triggered_id["trail"])]

    @app.callback(
        [Output(lever(name), "value", allow_duplicate=True) for name in CONSTANTS],
        Input("constants", "n_clicks"),
        State(lever("preset"), "value"),
        prevent_initial_call=True,
    )
    def of_preset(_: int | None, name: Any) -> list[Any]:
        return list(constants_of(GameSpec(preset=name)).values())


def _in_the_browser(app: Dash) -> None:
    """What needs no server: see assets/explorer.js. The first of those that share an output may not say so."""

    def run(function: str, outputs: Sequence[Any], inputs: Sequence[Any], *states: Any, later: bool = False) -> None:
        asked = {"prevent_initial_call": True} if later else {}
        app.clientside_callback(ClientsideFunction("explorer", function), *outputs, *inputs, *states, **asked)

    def shared(name: str, part: str) -> Output:
        return Output(name, part, allow_duplicate=True)

    levers = [Input(lever(name), _property(name)) for name in LEVERS]
    shown = [Input(lever(name), "value") for name in ("tab", "mechanism", "graph", "participation")]
    node, opened = Input("graph", "tapNodeData"), State(lever("opened"), "data")
    chosen = [shared(lever("client"), "value"), shared(lever("opened"), "data")]
    themes = [Output("theme", "data"), Output("theme-button", "children")]
    run("gather", [Output("state", "data")], [*levers, Input("theme", "data")])
    run("pictureKey", [Output("picture-key", "data")], [Input("state", "data")])
    run("drawn", [Output("applied", "data")], [Input("picture", "data")])
    run("tapped", chosen, [node], opened, later=True)
    for function, store in (("named", "names"), ("answered", "answer"), ("answered", "run-answer")):
        run(function, [shared("applied", "data")], [Input(store, "data")], later=True)
    run("copied", [Output("copy", "children")], [Input("copy", "n_clicks")])
    run("theme", themes, [Input("theme-button", "n_clicks")])
    run("stylesheet", [Output("graph", "stylesheet")], [Input("theme", "data")])
    run("shown", [Output("clock", "disabled")], shown)
    words = {f"value-{name}": name for name in SLIDERS} | {"round-words": "round_shown"}
    for place, name in words.items():
        run("words", [Output(place, "children")], [Input(lever(name), "value")])
