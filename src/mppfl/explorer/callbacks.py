"""Callbacks: the state of the levers in, everything that is to be seen of it out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update

from mppfl.errors import BadInput, MppflError
from mppfl.explorer import answers
from mppfl.explorer.choices import Choices, from_query, to_query, with_preset
from mppfl.explorer.graph_style import stylesheet
from mppfl.explorer.levers import lever
from mppfl.explorer.page import SLIDERS
from mppfl.explorer.site import Site
from mppfl.explorer.words import what_went_wrong

log = logging.getLogger(__name__)

LEVERS = tuple(each.name for each in fields(Choices))
STORED = ("opened", "isolated", "self_loops")  # fields that are kept in a Store, not in an input


def connect(app: Dash, site: Site) -> None:
    """Ties the page to what the site knows."""
    _in_the_browser(app)

    @app.callback(
        [Output(lever(name), _property(name)) for name in LEVERS]
        + [Output(lever("network"), "options"), Output("linked", "data")],
        Input("url", "search"),
        State(lever("network"), "options"),
    )
    def from_link(search: str | None, options: list[dict[str, str]]) -> list[Any]:
        """The levers as the link says; what is wrong in it is told, and the levers stay."""
        nothing = [no_update] * (len(LEVERS) + 1)
        if not search:
            return [*nothing, None]
        try:
            choices = from_query(search)
            site.world.require_network(choices.network)
        except MppflError as error:
            return [*nothing, str(error)]
        levers = [_as_lever(name, getattr(choices, name)) for name in LEVERS]
        return [*levers, _with_option(options, choices.network, site), None]

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
            elements, *around = answers.drawn(site, choices_of(state, site.start))
        except MppflError:  # told by `answer`
            return no_update
        return {"key": key, "elements": elements}, *around

    @app.callback(
        Output("answer", "data"),
        Output(lever("round_shown"), "max"),
        Input("state", "data"),
        Input("picture-key", "data"),
        State("linked", "data"),
        State(lever("round_shown"), "max"),
    )
    def answer(state: dict[str, Any] | None, key: str | None, linked: str | None, most: int) -> Any:
        """One answer to every change: figures of the tab that is open, and what stands around them.

        It travels as one value, which explorer.js puts where it belongs.
        """
        if state is None:
            return no_update
        try:
            choices = choices_of(state, site.start)
            found = answers.answer(site, choices, dark=bool(state.get("dark")))
        except MppflError as error:
            return {"alert": str(error)}, no_update
        except Exception as error:  # told on the page in one line, and in full where the server runs
            log.exception("the page could not be answered")
            return {"alert": what_went_wrong(error)}, no_update
        told: dict[str, Any] = {
            "alert": linked or found.warning,
            "summary": found.summary,
            "query": to_query(choices),
            "texts": found.texts,
        }
        if found.paint is not None:
            told["paint"] = found.paint | {"sequence": state["sequence"], "picture": key}
        if found.plots is not None:
            told["plots"] = _plots(choices.tab, state["sequence"], found.plots)
        return told, no_update if most == choices.num_rounds else choices.num_rounds

    @app.callback(
        Output("run-answer", "data"),
        Output(lever("runs"), "options"),
        Output("followed", "data"),
        Input("clock", "n_intervals"),
        Input(lever("runs"), "value"),
        Input("clock", "disabled"),
        Input("theme", "data"),
        State("followed", "data"),
    )
    def follow(_: int | None, runs: list[str] | None, asleep: bool, theme: str | None, seen: str | None) -> list[Any]:
        """The runs chosen, read again while the tab is open; nothing is sent where nothing changed."""
        nothing: list[Any] = [no_update] * 3
        if asleep or site.runs is None:
            return nothing
        found = answers.runs(site, tuple(runs or ()), theme == "dark", seen)
        if found is None:
            return nothing
        return [{"texts": found.texts, "plots": _plots("run", None, found.plots)}, found.options, found.seen]

    @app.callback(
        Output(lever("network"), "options", allow_duplicate=True),
        Output(lever("network"), "value", allow_duplicate=True),
        Output("upload-answer", "children"),
        Input("upload", "contents"),
        State("upload", "filename"),
        State(lever("undirected"), "value"),
        State(lever("network"), "options"),
        prevent_initial_call=True,
    )
    def upload(contents: str | None, name: str | None, undirected: list[str] | None, options: Any) -> Any:
        if contents is None:
            return no_update
        try:
            key, words = site.upload(contents, name or "the file", undirected=bool(undirected))
        except MppflError as error:
            return no_update, no_update, html.P(str(error), className="wrong")
        return _with_option(options, key, site), key, html.P(words)

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

    constants = ("max_hops", "hop_decay", "externality_strength", "accuracy_weight")

    @app.callback(
        [Output(lever(name), "value", allow_duplicate=True) for name in constants],
        Input("constants", "n_clicks"),
        State(lever("preset"), "value"),
        prevent_initial_call=True,
    )
    def of_preset(_: int | None, name: Any) -> list[Any]:
        found = with_preset(site.start, name)
        return [getattr(found, each) for each in constants]

    @app.callback(Output("graph", "stylesheet"), Input("theme", "data"))
    def themed(theme: str | None) -> Any:
        return stylesheet(theme or "light")


def _plots(tab: str, sequence: int | None, charts: list[dict[str, Any]]) -> dict[str, Any]:
    """Charts of a tab, and the number of the question that they answer."""
    return {"tab": tab, "sequence": sequence, "charts": charts}


def _with_option(options: list[dict[str, str]], network: str, site: Site) -> list[dict[str, str]]:
    """The networks that a page offers, with this one: an upload is offered to who sent it, or has a link to it."""
    option = {"label": site.networks.get(network, network), "value": network}
    if network in (each["value"] for each in options):
        return [option if each["value"] == network else each for each in options]
    return [*options, option]


def choices_of(state: Mapping[str, Any], start: Choices) -> Choices:
    """The levers' values as Choices; an empty number is the start's."""
    if not state.get("network"):  # the start's would be shown in place of the one that somebody asked for
        raise BadInput("no network is chosen. Choose one of the list, or open a file of links.")
    values = {name: _from_lever(name, state.get(name), getattr(start, name)) for name in LEVERS}
    return Choices(**values)


def _property(name: str) -> str:
    return "data" if name in STORED else "value"


def _as_lever(name: str, value: Any) -> Any:
    """A field's value as its component holds it."""
    if name == "undirected":
        return ["yes"] if value else []
    return list(value) if isinstance(value, tuple) else value


def _from_lever(name: str, value: Any, usual: Any) -> Any:
    """A field's value from what its component holds; an empty number is the usual one."""
    if name == "undirected":
        return bool(value)
    if isinstance(usual, tuple):
        return tuple(value or ())
    if name == "budget_max":
        return None if value in (None, "") else float(value)
    if value is None:
        return "" if name in ("client", "other") else usual
    return value if isinstance(usual, str) else type(usual)(float(value))


def _in_the_browser(app: Dash) -> None:
    """What needs no server: see assets/explorer.js."""

    def run(function: str, *parts: Any, **options: Any) -> None:
        app.clientside_callback(ClientsideFunction("explorer", function), *parts, **options)

    run(
        "gather",
        Output("state", "data"),
        [Input(lever(name), _property(name)) for name in LEVERS] + [Input("theme", "data")],
    )
    run("pictureKey", Output("picture-key", "data"), Input("state", "data"))
    run("drawn", Output("applied", "data"), Input("picture", "data"))
    run(
        "tapped",
        Output(lever("client"), "value", allow_duplicate=True),
        Output(lever("opened"), "data", allow_duplicate=True),
        Input("graph", "tapNodeData"),
        State(lever("opened"), "data"),
        prevent_initial_call=True,
    )
    run("named", Output("applied", "data", allow_duplicate=True), Input("names", "data"), prevent_initial_call=True)
    for store in ("answer", "run-answer"):
        applied = Output("applied", "data", allow_duplicate=True)
        run("answered", applied, Input(store, "data"), prevent_initial_call=True)
    run("copied", Output("copy", "children"), Input("copy", "n_clicks"))
    run("theme", Output("theme", "data"), Output("theme-button", "children"), Input("theme-button", "n_clicks"))
    shown = [Input(lever(name), "value") for name in ("tab", "clients_are", "leader", "network")]
    run("shown", Output("clock", "disabled"), shown)
    for each in SLIDERS:
        run("words", Output(f"value-{each.field}", "children"), Input(lever(each.field), "value"))
    run("words", Output("round-words", "children"), Input(lever("round_shown"), "value"))
