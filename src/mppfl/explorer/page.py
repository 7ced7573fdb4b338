"""The page: levers on the left, four tabs on the right; see templates/page.html.j2. callbacks.py fills it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from inspect import signature
from typing import Any

import dash_cytoscape
from dash import dcc, html

from mppfl.explorer.markup import template
from mppfl.explorer.state import READ_AS, SHOWN, Choices, constants_of, num_clients_of
from mppfl.fields import about
from mppfl.game import MECHANISMS, PRESETS
from mppfl.spec import GameSpec

STORES = ("state", "picture-key", "picture", "answer", "names", "theme", "applied", "linked", "followed", "run-answer")
FAMILY_NAMES = {
    "erdos_renyi": "random edges (Erdős–Rényi, the paper's)",
    "barabasi_albert": "hubs (Barabási–Albert)",
    "watts_strogatz": "small world (Watts–Strogatz)",
    "stochastic_block": "communities (stochastic blocks)",
    "skewed": "skewed popularity",
}
PARTICIPATION_WORDS = {
    "everyone": "everybody",
    "voluntary": "who gives a budget",
    "rational": "who gains by participating",
}
SLIDERS = ("externality_strength", "max_hops", "hop_decay", "accuracy_weight", "num_rounds")
RANDOM = "random"  # what the lever of the network holds where there is no file
OF_GAME = (  # fields of the game that have a lever of their own
    *("graph", "undirected", "family", "num_clients", "seed", "preset", *SLIDERS),
    *("payment_limit", "fixed_budget", "budget_min", "budget_max", "trust", "participation", "against"),
)
OF_DASH = (dcc.Checklist, dcc.Dropdown, dcc.Input, dcc.Interval, dcc.Location, dcc.RadioItems, dcc.Store)
PARTS = {f"dcc-{kind.__name__.lower()}": kind for kind in OF_DASH} | {"cytoscape": dash_cytoscape.Cytoscape}


# ---- levers --------------------------------------------------------------------------------------------------------


def lever(field: str) -> str:
    """The id of the component that holds a field of the game or the view."""
    return f"lever-{field}"


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


# ---- the page ------------------------------------------------------------------------------------------------------


def page(choices: Choices, networks: Mapping[str, str], runs: Sequence[str]) -> Any:
    """Everything that is there before anything is computed, as a component of Dash.

    choices   what is chosen when no link says otherwise
    networks  names of those there are, by the paths of their files
    """
    text = template("page.html.j2").render(
        start=as_levers(choices),
        stores=STORES,
        networks=networks,
        families=FAMILY_NAMES,
        participation=PARTICIPATION_WORDS,
        runs=runs,
        presets={name: name for name in PRESETS},
        helps={name: about(GameSpec, name).help for name in SLIDERS},
        mechanisms={name: MECHANISMS[name].title for name in SHOWN},
        owner={MECHANISMS[name].option: name for name in reversed(SHOWN)},  # which mechanism has an option
    )
    reader = _Components()
    reader.feed(text)
    return reader.open[0][2][0]


class _Components(HTMLParser):
    """Reads HTML as components of Dash; the values of its own parts, such as <dcc-input>, are JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, Mapping[str, Any], list[Any]]] = [("", {}, [])]  # tag, attributes, what is inside

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        name, attributes, inside = self.open.pop()
        self.open[-1][2].append(_component(name, attributes, inside))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.open[-1][2].append(data)


def _component(tag: str, attributes: Mapping[str, str], inside: list[Any]) -> Any:
    kind = PARTS.get(tag) or getattr(html, tag.capitalize())
    names = {name.lower(): name for name in signature(kind).parameters} | {"class": "className", "for": "htmlFor"}
    plain = attributes if tag not in PARTS else ("id", "class")
    values = {name: text if name in plain else json.loads(text) for name, text in attributes.items()}
    content = {"children": inside} if inside else {}
    return kind(**content, **{names.get(name, name): value for name, value in values.items()})
