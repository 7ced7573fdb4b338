"""The page: levers on the left, four tabs on the right. What they show comes from callbacks.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import dash_cytoscape as cytoscape
from dash import dcc, html

from mppfl.experiment import Family
from mppfl.explorer.network_view import stylesheet
from mppfl.explorer.state import CLIENTS_ARE, COLOURS, LEADERS, Choices
from mppfl.game import PRESETS, Participation

STORES = (
    "state",
    "picture-key",
    "picture",
    "answer",
    "names",
    "theme",
    "applied",
    "linked",
    "followed",
    "run-answer",
)
TABS = {"network": "Network", "rounds": "Rounds", "comparison": "Comparison", "run": "Runs"}
FAMILY_NAMES = {
    "erdos_renyi": "random edges (Erdős–Rényi, the paper's)",
    "barabasi_albert": "hubs (Barabási–Albert)",
    "watts_strogatz": "small world (Watts–Strogatz)",
    "stochastic_block": "communities (stochastic blocks)",
    "skewed": "skewed popularity",
}
CLIENT_WORDS = {
    "mppfl": "know the network (MPPFL)",
    "social_agnostic": "answer as if alone (SA)",
    "random": "random budgets",
    "dp_fedavg": "one fixed budget (DP-FedAvg)",
    "sarda_like": "SARDA-like",
    "sarda_r": "SARDA-r",
}
LEADER_WORDS = {
    "mean_field": "the paper's server (mean field)",
    "anticipating": "foresees exposure (exact)",
    "noise_aware": "noise-aware weights",
    "budget_limited": "with a payment limit",
    "pigouvian": "welfare prices (Pigou)",
    "personalised": "a price for each client",
}
COLOUR_WORDS = {
    "budget": "budget",
    "own_risk": "own risk so far",
    "external_risk": "risk through others so far",
    "utility": "utility",
}
PARTICIPATION_WORDS = {
    "always": "everybody, always",
    "if_better_than_opting_out": "who gains by joining",
    "if_non_negative": "who does not lose",
}


@dataclass(frozen=True, slots=True)
class Slider:
    """A lever that is drawn along: its letter, what it is, and between what it moves."""

    field: str
    words: str
    low: float
    high: float
    step: float
    help: str


SLIDERS = (
    Slider(
        "externality_strength",
        "α · strength of exposure",
        0.0,
        0.3,
        0.005,
        "What others' budgets add to one's own privacy loss; no unit.",
    ),
    Slider("max_hops", "K · longest walk", 1, 10, 1, "Links along which privacy leaks."),
    Slider("hop_decay", "λ · decay per hop", 0.05, 0.95, 0.05, "Decay factor per hop; no unit."),
    Slider(
        "accuracy_weight",
        "τ · weight of accuracy",
        0.05,
        0.95,
        0.05,
        "The server's weight on accuracy; the rest is on payments.",
    ),
    Slider("num_rounds", "rounds", 1, 200, 1, "How many rounds are played."),
)


# ---- levers --------------------------------------------------------------------------------------------------------


def lever(field: str) -> str:
    """The id of the component that holds a field of Choices."""
    return f"lever-{field}"


def _options(names: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"label": label, "value": name} for name, label in names.items()]


def _labelled(field: str, words: Any, control: Any, **label: str) -> html.Div:
    return html.Div([html.Label(words, htmlFor=lever(field), **label), control], className="lever")


def _select(field: str, words: str, names: Mapping[str, str], start: Choices) -> html.Div:
    value = getattr(start, field)
    box = dcc.Dropdown(_options(names), value, id=lever(field), clearable=False, searchable=False, className="select")
    return _labelled(field, words, box, id=f"words-{field}")


def _slider(slider: Slider, start: Choices) -> html.Div:
    field, ends = slider.field, {"min": slider.low, "max": slider.high, "step": slider.step}
    control = dcc.Input(id=lever(field), type="range", value=getattr(start, field), **ends)
    return _labelled(field, [f"{slider.words} ", html.Output(id=f"value-{field}")], control, title=slider.help)


def _number(field: str, words: str, start: Choices, low: float, high: float | None, step: Any) -> html.Div:
    limits = {"min": low} | ({} if high is None else {"max": high})
    value = getattr(start, field)
    box = dcc.Input(id=lever(field), type="number", value=value, step=step, debounce=True, **limits)
    return _labelled(field, words, box)


def _text(field: str, words: str) -> html.Div:
    box = dcc.Input(
        id=lever(field),
        type="text",
        value="",
        list="client-names",
        debounce=True,
        autoComplete="off",
        spellCheck="false",
    )
    return _labelled(field, words, box)


def _radio(field: str, names: Mapping[str, str], start: Choices, style: str = "choice") -> dcc.RadioItems:
    return dcc.RadioItems(_options(names), getattr(start, field), id=lever(field), inline=True, className=style)


def _download(name: str, words: str, style: str = "") -> html.A:
    """A link to a file; explorer.js puts the query of the moment behind it."""
    path = f"/download/{name}"
    about = {"title": f"Download {name}", "data-path": path, "download": name}
    return html.A(words, href=path, className=style, **about)


# ---- the page ------------------------------------------------------------------------------------------------------


def page(start: Choices, networks: Mapping[str, str], runs: Sequence[str]) -> html.Div:
    """Everything that is there before anything is computed.

    start     what is chosen when no link says otherwise
    networks  names of those there are, by their key in Choices
    """
    figures = html.Div(_tabs(start, runs), id="figures", className="figures")
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            *(dcc.Store(id=name) for name in STORES),
            dcc.Store(id=lever("opened"), data=[]),
            dcc.Store(id=lever("isolated"), data=start.isolated),
            dcc.Store(id=lever("self_loops"), data=start.self_loops),
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


def _levers(start: Choices, networks: Mapping[str, str]) -> html.Div:
    families = {name: FAMILY_NAMES[name] for name in get_args(Family)}
    rules = {name: PARTICIPATION_WORDS[name] for name in get_args(Participation)}
    both_ways = dcc.Checklist(
        [{"label": "every edge runs both ways", "value": "yes"}], [], id=lever("undirected"), className="choice"
    )
    return html.Div(
        [
            html.H2("Network", id="h-network"),
            _select("network", "Links", networks, start),
            html.Div(
                [
                    _select("family", "Family", families, start),
                    _number("num_clients", "Clients", start, 2, 2000, 1),
                    _number("seed", "Seed", start, 0, 2**31, 1),
                ],
                id="random-levers",
            ),
            html.Div(both_ways, id="file-levers"),
            html.H2("Game"),
            _select("preset", "Clients' costs", {name: name for name in PRESETS}, start),
            html.Button("α, K, λ and τ of these costs", id="constants", type="button", className="small"),
            *(_slider(slider, start) for slider in SLIDERS),
            _select("clients_are", "Mechanism: clients", {name: CLIENT_WORDS[name] for name in CLIENTS_ARE}, start),
            html.Div(
                _select("leader", "Leader: the server", {name: LEADER_WORDS[name] for name in LEADERS}, start),
                id="leader-lever",
            ),
            html.Div(
                _number("payment_limit", "Payment limit (money per round)", start, 0, None, "any"),
                id="payment-lever",
            ),
            html.Div(
                _select("fixed_budget", "Fixed budget", {"min": "the least anybody gives", "mean": "the mean"}, start),
                id="fixed-lever",
            ),
            html.Fieldset(
                [
                    html.Legend("Bounds (ρ of each round)"),
                    _number("budget_min", "least", start, 0, None, "any"),
                    _number("budget_max", "most (empty: none)", start, 0, None, "any"),
                ]
            ),
            _select("participation", "Who participates", rules, start),
        ],
        className="levers",
        role="region",
        **{"aria-label": "Levers"},
    )


def _tabs(start: Choices, runs: Sequence[str]) -> list[Any]:
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


def _picture(start: Choices) -> html.Div:
    round_shown = dcc.Input(id=lever("round_shown"), type="range", min=1, max=start.num_rounds, step=1, value=1)
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
                    _radio("colour", {name: COLOUR_WORDS[name] for name in COLOURS}, start),
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


def _client(start: Choices) -> html.Div:
    events = {"leaves": "leaves", "doubles": "doubles its budget"}
    return html.Div(
        [
            html.H2("A client"),
            html.P("Click a node, or name a client.", className="soft"),
            _text("client", "Client"),
            html.Datalist(id="client-names"),
            html.Div(id="client-panel"),
            html.H3("What if"),
            html.Div([_text("other", "another client"), _radio("event", events, start)], className="row"),
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
