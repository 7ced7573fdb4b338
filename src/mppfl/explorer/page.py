"""The page: levers on the left, four tabs on the right. What they show comes from callbacks.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import dash_cytoscape as cytoscape
from dash import dcc, html

from mppfl.experiment import Family
from mppfl.explorer.choices import CLIENTS_ARE, COLOURS, LEADERS, Choices
from mppfl.explorer.graph_style import stylesheet
from mppfl.explorer.levers import (
    Slider,
    check_lever,
    downloads,
    lever,
    link_to,
    number_lever,
    radio_lever,
    select_lever,
    slider_lever,
    text_lever,
)
from mppfl.explorer.scene_charts import MEASURES
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
ROUND_CHARTS = ("reward-rate", "server-cost", "welfare", "budgets-by-round", "budgets-sorted", "utility-by-risk")
COMPARISON_CHARTS = tuple(key for key, *_ in MEASURES)
CHART_KINDS = ("png", "svg", "pdf", "csv", "json")  # that a chart can be downloaded as
RUN_CHARTS = ("accuracy", "loss", "run-budgets", "run-payments", "dp-epsilon", "remaining")
FAMILY_NAMES = {
    "erdos_renyi": "random links (Erdős–Rényi, the paper's)",
    "barabasi_albert": "hubs (Barabási–Albert)",
    "watts_strogatz": "small world (Watts–Strogatz)",
    "stochastic_block": "communities (stochastic blocks)",
    "skewed": "skewed popularity",
}
CLIENT_WORDS = {
    "mppfl": "know the network (MPPFL)",
    "social_agnostic": "answer as if alone (SA)",
    "random": "random budgets",
    "fixed": "one fixed budget (DP-FedAvg)",
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
    "if_better_than_staying_out": "who gains by joining",
    "if_non_negative": "who does not lose",
}


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
    Slider("hop_decay", "λ · decay per link", 0.05, 0.95, 0.05, "What remains after each further link; no unit."),
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


def page(start: Choices, networks: dict[str, str], runs: Sequence[str], upload_megabytes: float) -> html.Div:
    """Everything that is there before anything is computed.

    start     what is chosen when no link says otherwise
    networks  names of those there are, by their key in Choices
    """
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
            html.Main(
                [
                    _levers(start, networks, upload_megabytes),
                    html.Div(_tabs(start, runs), id="figures", className="figures"),
                ],
                className="columns",
            ),
            dcc.Interval(id="clock", interval=1000, disabled=True),
        ],
        id="page",
    )


def _header() -> html.Header:
    return html.Header(
        [
            html.Div([html.H1("mppfl explorer"), html.P(id="summary", className="summary")], className="title"),
            html.Div(
                [
                    html.Button(
                        "Copy link", id="copy", type="button", title="A link that holds everything chosen here"
                    ),
                    downloads("everything", "Data", ("csv", "json"), "data"),
                    html.A("TOML", className="button", **link_to("experiment", "toml")),
                    html.Button("Dark", id="theme-button", type="button", title="Light or dark"),
                ],
                className="actions",
            ),
        ],
        className="top",
    )


def _levers(start: Choices, networks: dict[str, str], upload_megabytes: float) -> html.Div:
    return html.Div(
        [
            html.H2("Network", id="h-network"),
            select_lever("network", "Links", networks, start.network),
            html.Div(
                [
                    select_lever(
                        "family", "Family", {name: FAMILY_NAMES[name] for name in get_args(Family)}, start.family
                    ),
                    number_lever("num_clients", "Clients", start.num_clients, 2, 2000, 1),
                    number_lever("seed", "Seed", start.seed, 0, 2**31, 1),
                ],
                id="random-levers",
            ),
            html.Div(check_lever("undirected", "every link runs both ways"), id="file-levers"),
            dcc.Upload(
                html.Span(
                    [
                        "Open an edge list",
                        html.Small(f"source, target[, weight] · up to {upload_megabytes:g} MB · stays on this machine"),
                    ]
                ),
                id="upload",
                max_size=int(upload_megabytes * 1e6),
                className="upload",
                className_active="upload upload-active",
                className_reject="upload upload-reject",
            ),
            html.P(id="upload-refused", role="alert", className="wrong", **{"data-most": int(upload_megabytes * 1e6)}),
            html.Div(id="upload-answer", role="status"),
            html.H2("Game"),
            select_lever("preset", "Clients' costs", {name: name for name in PRESETS}, start.preset),
            html.Button("α, K, λ and τ of these costs", id="constants", type="button", className="small"),
            *(slider_lever(each, getattr(start, each.field)) for each in SLIDERS),
            select_lever(
                "clients_are",
                "Mechanism: clients",
                {name: CLIENT_WORDS.get(name, name) for name in CLIENTS_ARE},
                start.clients_are,
            ),
            html.Div(
                select_lever(
                    "leader",
                    "Leader: the server",
                    {name: LEADER_WORDS.get(name, name) for name in LEADERS},
                    start.leader,
                ),
                id="leader-lever",
            ),
            html.Div(
                number_lever("payment_limit", "Payment limit (money per round)", start.payment_limit, 0, None, "any"),
                id="payment-lever",
            ),
            html.Div(
                select_lever(
                    "fixed_budget",
                    "Fixed budget",
                    {"min": "the least anybody gives", "mean": "the mean"},
                    start.fixed_budget,
                ),
                id="fixed-lever",
            ),
            html.Fieldset(
                [
                    html.Legend("Bounds (ρ of each round)"),
                    number_lever("budget_min", "least", start.budget_min, 0, None, "any"),
                    number_lever("budget_max", "most (empty: none)", start.budget_max, 0, None, "any"),
                ]
            ),
            select_lever(
                "participation",
                "Who takes part",
                {name: PARTICIPATION_WORDS[name] for name in get_args(Participation)},
                start.participation,
            ),
        ],
        className="levers",
        role="region",
        **{"aria-label": "Levers"},
    )


def _tabs(start: Choices, runs: Sequence[str]) -> list[Any]:
    panels = {
        "network": _network_tab(start),
        "rounds": [_charts()],
        "comparison": [
            html.P(
                "Every mechanism on this network: at MPPFL's reward rates (common), and with its own server (own).",
                className="soft",
            ),
            html.Div(
                id="comparison-table", className="scroll", tabIndex=0, role="region", **{"aria-label": "Mechanisms"}
            ),
            _charts(),
        ],
        "run": _run_tab(runs),
    }
    return [
        dcc.RadioItems(
            [{"label": words, "value": name} for name, words in TABS.items()],
            start.tab,
            id=lever("tab"),
            inline=True,
            className="tabs",
        ),
        *(
            html.Section(content, id=f"panel-{name}", className="panel", **{"aria-label": TABS[name]})
            for name, content in panels.items()
        ),
    ]


def _charts(*names: str) -> html.Div:
    """Where explorer.js puts charts: each part that Dash knows of would make every lever answer later."""
    return html.Div(className=" ".join(("charts", *names)), **{"data-kinds": " ".join(CHART_KINDS)})


def _network_tab(start: Choices) -> list[Any]:
    return [
        html.Div(
            [
                html.Div(
                    [
                        html.Span("Colour", id="colour-words", className="words"),
                        dcc.RadioItems(
                            [{"label": COLOUR_WORDS[name], "value": name} for name in COLOURS],
                            start.colour,
                            id=lever("colour"),
                            inline=True,
                            className="choice",
                        ),
                    ],
                    className="row",
                ),
                html.Div(
                    [
                        html.Label(["Round ", html.Output(id="round-words")], htmlFor=lever("round_shown")),
                        dcc.Input(id=lever("round_shown"), type="range", min=1, max=start.num_rounds, step=1, value=1),
                    ],
                    className="row round",
                ),
                html.Nav(id="trail", className="trail", **{"aria-label": "Communities opened"}),
                html.Div(
                    cytoscape.Cytoscape(
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
                    ),
                    className="graph-frame",
                    tabIndex=0,
                    role="group",
                    **{"aria-label": "The network. Arrow keys move it, plus and minus zoom, 0 shows all of it."},
                ),
                html.Div(id="legend", className="legend"),
                html.P(id="picture-note", className="soft"),
                html.Div(downloads("picture", "Picture", ("png", "svg", "pdf"), "network"), className="row"),
            ],
            className="picture",
        ),
        html.Div(
            [
                html.H2("A client"),
                html.P("Click a node, or name a client.", className="soft"),
                text_lever("client", "Client", "client-names"),
                html.Datalist(id="client-names"),
                html.Div(id="client-panel"),
                html.H3("What if"),
                html.Div(
                    [
                        text_lever("other", "another client", "client-names"),
                        radio_lever("event", {"leaves": "leaves", "doubles": "doubles its budget"}, start.event),
                    ],
                    className="row",
                ),
                html.Div(id="what-if", role="status"),
            ],
            className="client",
        ),
    ]


def _run_tab(runs: Sequence[str]) -> list[Any]:
    """Hint and figures both stand ready: the style sheet shows the one or the others, by whether there are runs yet."""
    hint = [
        "No run is open. Train one with ",
        html.Code("mppfl train examples/demo.toml"),
        ", then open its folder with ",
        html.Code("mppfl explore --run FOLDER"),
        "; a training may still be running.",
    ]
    return [
        html.P(hint, className="without-runs"),
        html.Fieldset(
            [
                html.Legend("Runs, one over the other"),
                dcc.Checklist(list(runs), list(runs[:5]), id=lever("runs"), inline=True, className="choice"),
            ],
            className="with-runs",
        ),
        html.Div(id="run-status", role="status"),
        _charts("with-runs"),
        html.Div(
            [
                html.H2("Ledger"),
                html.Div(id="ledger", className="scroll", tabIndex=0, role="region", **{"aria-label": "Ledger"}),
            ],
            className="with-runs",
        ),
    ]
