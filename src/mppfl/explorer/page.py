"""The page: levers on the left, four tabs on the right. What they show comes from callbacks.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dash_cytoscape as cytoscape
from dash import dcc, html

from mppfl.explorer.network_view import stylesheet
from mppfl.explorer.state import READ_AS, SHOWN, Choices, constants_of, num_clients_of
from mppfl.fields import about
from mppfl.game import MECHANISMS, PRESETS
from mppfl.spec import GameSpec

STORES = ("state", "picture-key", "picture", "answer", "names", "theme", "applied", "linked", "followed", "run-answer")
TABS = {"network": "Network", "rounds": "Rounds", "comparison": "Comparison", "run": "Runs"}
FAMILY_NAMES = {
    "erdos_renyi": "random edges (Erdős–Rényi, the paper's)",
    "barabasi_albert": "hubs (Barabási–Albert)",
    "watts_strogatz": "small world (Watts–Strogatz)",
    "stochastic_block": "communities (stochastic blocks)",
    "skewed": "skewed popularity",
}
COLOUR_WORDS = {
    "budget": "budget",
    "own_risk": "own risk so far",
    "external_risk": "risk through others so far",
    "utility": "utility",
}
PARTICIPATION_WORDS = {
    "everyone": "everybody",
    "voluntary": "who gives a budget",
    "rational": "who gains by participating",
}
TRUST_WORDS = {"local": "every upload", "secure_sum": "the sum, unseen", "server": "the sum, by the server"}
AGAINST_WORDS = {"staying_out": "than by staying out", "nothing": "than nothing"}


class Slider(NamedTuple):
    """A lever that is drawn along: what it is called, and between what it moves."""

    field: str
    words: str
    low: float
    high: float
    step: float


SLIDERS = (
    Slider("externality_strength", "α · strength of exposure", 0.0, 0.3, 0.005),
    Slider("max_hops", "K · longest walk", 1, 10, 1),
    Slider("hop_decay", "λ · decay per hop", 0.05, 0.95, 0.05),
    Slider("accuracy_weight", "τ · weight of accuracy", 0.05, 0.95, 0.05),
    Slider("num_rounds", "rounds", 1, 200, 1),
)
RANDOM = "random"  # what the lever of the network holds where there is no file
OF_GAME = (  # fields of the game that have a lever of their own
    *("graph", "undirected", "family", "num_clients", "seed", "preset", *(slider.field for slider in SLIDERS)),
    *("payment_limit", "fixed_budget", "budget_min", "budget_max", "trust", "participation", "against"),
)
Start = Mapping[str, Any]  # what the levers hold at first, by field


# ---- levers --------------------------------------------------------------------------------------------------------


def lever(field: str) -> str:
    """The id of the component that holds a field of the game or the view."""
    return f"lever-{field}"


def _options(names: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"label": label, "value": name} for name, label in names.items()]


def _labelled(field: str, words: Any, control: Any, **label: str) -> html.Div:
    return html.Div([html.Label(words, htmlFor=lever(field), **label), control], className="lever")


def as_levers(choices: Choices) -> dict[str, Any]:
    """What the levers hold: every field that has one, and in "rest" what else the game says."""
    game, view = choices.game, choices.view.values()
    values = game.values() | constants_of(game) | view
    values |= {"graph": game.graph or RANDOM, "undirected": ["yes"] if game.undirected else []}
    values |= {"family": game.family or "erdos_renyi", "num_clients": num_clients_of(game)}
    values |= {
        "trust": game.trust or "local",
        "payment_limit": game.payment_limit or 1.0,
        "opened": list(view["opened"]),
        "runs": list(view["runs"]),
    }
    values["fixed_budget"] = str(game.fixed_budget)
    rest = {name: value for name, value in game.changed().items() if name not in OF_GAME}
    rest = (READ_AS if game.graph is None else {}) | rest
    return {name: values[name] for name in (*OF_GAME, *view)} | {"rest": rest}


def _select(field: str, words: str, names: Mapping[str, str], start: Start) -> html.Div:
    value = start[field]
    box = dcc.Dropdown(_options(names), value, id=lever(field), clearable=False, searchable=False, className="select")
    return _labelled(field, words, box, id=f"words-{field}")


def _input(field: str, words: Any, value: Any, label: Mapping[str, str] = {}, **options: Any) -> html.Div:
    return _labelled(field, words, dcc.Input(id=lever(field), value=value, **options), **label)


def _slider(slider: Slider, start: Start) -> html.Div:
    field: str = slider.field
    ends: dict[str, Any] = {"min": slider.low, "max": slider.high, "step": slider.step}
    words = [f"{slider.words} ", html.Output(id=f"value-{field}")]
    return _input(field, words, start[field], {"title": about(GameSpec, field).help}, type="range", **ends)


def _number(field: str, words: str, start: Start, step: Any = "any", **limits: Any) -> html.Div:
    return _input(field, words, start[field], type="number", step=step, debounce=True, **limits)


def _client_name(field: str, words: str) -> html.Div:
    listed: dict[str, Any] = {"list": "client-names", "autoComplete": "off", "spellCheck": "false"}
    return _input(field, words, "", type="text", debounce=True, **listed)


def _radio(field: str, names: Mapping[str, str], start: Start, style: str = "choice") -> dcc.RadioItems:
    return dcc.RadioItems(_options(names), start[field], id=lever(field), inline=True, className=style)


def _download(name: str, words: str, style: str = "") -> html.A:
    """A link to a file; explorer.js puts the query of the moment behind it."""
    path = f"/download/{name}"
    about = {"title": f"Download {name}", "data-path": path, "download": name}
    return html.A(words, href=path, className=style, **about)


# ---- the page ------------------------------------------------------------------------------------------------------


def page(choices: Choices, networks: Mapping[str, str], runs: Sequence[str]) -> html.Div:
    """Everything that is there before anything is computed.

    choices   what is chosen when no link says otherwise
    networks  names of those there are, by the paths of their files
    """
    start = as_levers(choices)
    figures = html.Div(_tabs(start, runs), id="figures", className="figures")
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            *(dcc.Store(id=name) for name in STORES),
            dcc.Store(id=lever("opened"), data=[]),
            dcc.Store(id=lever("rest"), data=start["rest"]),
            html.A("Skip to the figures", href="#figures", className="skip"),
            _header(),
            html.Div(id="alert", role="alert", className="alert"),
            html.Main([_levers(start, networks), figures], className="columns"),
            dcc.Interval(id="clock", interval=1000, disabled=True),
        ],
        id="page",
    )


def _header() -> html.Header:
    link = "A link that holds everything chosen here"
    data = [html.Span("Data:", className="soft"), _download("data.csv", "CSV"), _download("data.json", "JSON")]
    actions = [
        html.Button("Copy link", id="copy", type="button", title=link),
        html.Span(data, className="downloads", id="downloads"),
        _download("experiment.toml", "TOML", "button"),
        html.Button("Dark", id="theme-button", type="button", title="Light or dark"),
    ]
    title = [html.H1("mppfl explorer"), html.P(id="summary", className="summary")]
    return html.Header([html.Div(title, className="title"), html.Div(actions, className="actions")], className="top")


def _of_mechanism(option: str, control: html.Div) -> html.Div:
    """A lever that explorer.js shows beside the mechanism whose option it is."""
    owner = next(name for name in SHOWN if MECHANISMS[name].option == option)
    return html.Div(control, **{"data-mechanism": owner})


def _levers(start: Start, networks: Mapping[str, str]) -> html.Div:
    fixed = {"min": "the least anybody gives", "mean": "the mean"}
    both_ways = dcc.Checklist(
        [{"label": "every edge runs both ways", "value": "yes"}],
        start["undirected"],
        id=lever("undirected"),
        className="choice",
    )
    return html.Div(
        [
            html.H2("Network", id="h-network"),
            _select("graph", "Edges", networks, start),
            html.Div(
                [
                    _select("family", "Family", FAMILY_NAMES, start),
                    _number("num_clients", "Clients", start, 1, min=2, max=2000),
                    _number("seed", "Seed", start, 1, min=0, max=2**31),
                ],
                id="random-levers",
            ),
            html.Div(both_ways, id="file-levers"),
            html.H2("Game"),
            _select("preset", "Clients' costs", {name: name for name in PRESETS}, start),
            html.Button("α, K, λ and τ of these costs", id="constants", type="button", className="small"),
            *(_slider(slider, start) for slider in SLIDERS),
            _select("mechanism", "Mechanism", {name: MECHANISMS[name].title for name in SHOWN}, start),
            _of_mechanism("payment_limit", _number("payment_limit", "Payment limit (money)", start, min=0)),
            _of_mechanism("fixed_budget", _select("fixed_budget", "Fixed budget", fixed, start)),
            html.Fieldset(
                [
                    html.Legend("Bounds (ρ of each round)"),
                    _number("budget_min", "least", start, min=0),
                    _number("budget_max", "most (empty: none)", start, min=0),
                ]
            ),
            _select("trust", "Noise lies on", TRUST_WORDS, start),
            _select("participation", "Who participates", PARTICIPATION_WORDS, start),
            html.Div(_select("against", "Gains more", AGAINST_WORDS, start), id="against-lever"),
        ],
        className="levers",
        role="region",
        **{"aria-label": "Levers"},
    )


def _tabs(start: Start, runs: Sequence[str]) -> list[Any]:
    compared = "Every mechanism on this network: at MPPFL's reward rates (common), and with its own server (own)."
    panels = {
        "network": [_picture(start), _client(start)],
        "rounds": [_charts()],
        "comparison": [html.P(compared, className="soft"), _table("comparison-table", "Mechanisms"), _charts()],
        "run": _run_tab(runs),
    }
    return [
        _radio("tab", TABS, start, "tabs"),
        *(
            html.Section(content, id=f"panel-{name}", className="panel", **{"aria-label": TABS[name]})
            for name, content in panels.items()
        ),
    ]


def _charts(style: str = "") -> html.Div:
    """Where explorer.js puts charts: each part that Dash knows of would make every lever answer later."""
    return html.Div(className=f"charts {style}")


def _table(name: str, words: str) -> html.Div:
    return html.Div(id=name, className="scroll", tabIndex=0, role="region", **{"aria-label": words})


def _picture(start: Start) -> html.Div:
    round_shown = dcc.Input(id=lever("round_shown"), type="range", min=1, max=start["num_rounds"], step=1, value=1)
    graph = cytoscape.Cytoscape(
        id="graph",
        elements=[],
        layout={"name": "preset", "fit": False},
        style={"width": "100%", "height": "100%"},
        stylesheet=stylesheet("light"),
        wheelSensitivity=1,
        minZoom=0.1,
        maxZoom=8,
        boxSelectionEnabled=False,
        autoungrabify=True,
        responsive=False,
    )
    keys = "The network. Arrow keys move it, plus and minus zoom, 0 shows all of it."
    round_label = html.Label(["Round ", html.Output(id="round-words")], htmlFor=lever("round_shown"))
    return html.Div(
        [
            html.Div(
                [
                    html.Span("Colour", id="colour-words", className="words"),
                    _radio("colour", COLOUR_WORDS, start),
                ],
                className="row",
            ),
            html.Div([round_label, round_shown], className="row round"),
            html.Nav(id="trail", className="trail", **{"aria-label": "Communities opened"}),
            html.Div(graph, className="graph-frame", tabIndex=0, role="group", **{"aria-label": keys}),
            html.Div(id="legend", className="legend"),
            html.P(id="picture-note", className="soft"),
        ],
        className="picture",
    )


def _client(start: Start) -> html.Div:
    events = {"leaves": "leaves", "doubles": "doubles its budget"}
    return html.Div(
        [
            html.H2("A client"),
            html.P("Click a node, or name a client.", className="soft"),
            _client_name("client", "Client"),
            html.Datalist(id="client-names"),
            html.Div(id="client-panel"),
            html.H3("What if"),
            html.Div([_client_name("other", "another client"), _radio("event", events, start)], className="row"),
            html.Div(id="what-if", role="status"),
        ],
        className="client",
    )


def _run_tab(runs: Sequence[str]) -> list[Any]:
    """Hint and figures both stand ready: the style sheet shows the one or the others, by whether there are runs yet."""
    hint = [
        "No run is open. Train one with ",
        html.Code("mppfl train examples/demo.toml"),
        ", then open its folder with ",
        html.Code("mppfl explore --run FOLDER"),
        "; a training may still be running.",
    ]
    names = dcc.Checklist(list(runs), list(runs[:5]), id=lever("runs"), inline=True, className="choice")
    return [
        html.P(hint, className="without-runs"),
        html.Fieldset([html.Legend("Runs, one over the other"), names], className="with-runs"),
        html.Div(id="run-status", role="status"),
        _charts("with-runs"),
        html.Div([html.H2("Ledger"), _table("ledger", "Ledger")], className="with-runs"),
    ]
