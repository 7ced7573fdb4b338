"""Downloads: figures, data and the experiment file of a state of the page, made anew from its link."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.errors import BadInput
from mppfl.explorer.answers import client_named, painted
from mppfl.explorer.chart import Chart, chart_csv, chart_json
from mppfl.explorer.chart_files import chart_file
from mppfl.explorer.choices import Choices, commands, from_query, to_query, to_toml
from mppfl.explorer.comparison_view import comparison
from mppfl.explorer.exposure_view import client_view
from mppfl.explorer.network_file import network_file
from mppfl.explorer.page import COMPARISON_CHARTS, ROUND_CHARTS, RUN_CHARTS
from mppfl.explorer.run_charts import run_charts
from mppfl.explorer.scene_charts import comparison_charts, scene_charts
from mppfl.explorer.site import Site
from mppfl.explorer.world import Scene

FIGURES = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
TEXTS = {"csv": "text/csv", "json": "application/json", "toml": "application/toml"}


@dataclass(frozen=True, slots=True)
class File:
    """What is sent, and what it is called."""

    name: str
    kind: str
    content: bytes


def download(site: Site, what: str, kind: str, query: str) -> File:
    """The file of that name for the state of the page that the query holds."""
    choices = from_query(query)
    if kind not in FIGURES and kind not in TEXTS:
        raise BadInput(f"{kind[:20]!r} is no kind of file made here. Ask for {', '.join((*FIGURES, *TEXTS))}.")
    makers: dict[str, Callable[[], bytes]] = {
        "experiment.toml": lambda: to_toml(choices, site.source(choices)).encode(),
        "data.csv": lambda: scene_csv(site.world.scene(choices)).encode(),
        "data.json": lambda: scene_json(site.world.scene(choices)).encode(),
        **{f"network.{each}": lambda: _network(site, choices, kind) for each in FIGURES},
    }
    name = f"{what}.{kind}"
    if name in makers:  # "experiment.toml" becomes choices.DOWNLOADED, which the file itself speaks of
        return File(f"mppfl-{name}", (FIGURES | TEXTS)[kind], makers[name]())
    chart = chart_named(site, choices, what)
    content = {"csv": lambda: chart_csv(chart).encode(), "json": lambda: chart_json(chart).encode()}.get(kind)
    if content is None and kind not in FIGURES:
        raise BadInput(f"{name!r} is not made here. Ask for {', '.join((*FIGURES, 'csv', 'json'))}.")
    made = content() if content is not None else chart_file(chart, kind)  # type: ignore[arg-type]
    return File(f"mppfl-{name}", (FIGURES | TEXTS)[kind], made)


def chart_named(site: Site, choices: Choices, key: str) -> Chart:
    """The chart of that key."""
    if key in ROUND_CHARTS:
        charts = scene_charts(site.world.scene(choices))
    elif key in COMPARISON_CHARTS:
        charts = comparison_charts(comparison(site.world, choices))
    elif key in RUN_CHARTS and site.runs is not None:
        charts = run_charts([site.runs.read(name) for name in choices.runs])
    else:
        raise BadInput(f"{key[:40]!r} is no figure of this page.")
    return next(chart for chart in charts if chart.key == key)


def scene_csv(scene: Scene) -> str:
    """One line a client: the round shown."""
    columns = _columns(scene)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def scene_json(scene: Scene) -> str:
    """The round shown, what was chosen, and how to make it again."""
    columns = _columns(scene)
    clients = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    choices = scene.choices
    found: dict[str, Any] = {
        "link": to_query(choices),
        "commands": list(commands(choices)),
        "mechanism": choices.mechanism,
        "round_index": scene.round_index,
        "reward_rate": float(scene.solution.plan.reward_rates[scene.round_index - 1]),
        "server_cost": float(scene.solution.outcome.server_costs[scene.round_index - 1]),
        "welfare": float(scene.solution.outcome.welfare[scene.round_index - 1]),
        "clients": clients,
    }
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _columns(scene: Scene) -> dict[str, list[Any]]:
    values = {
        "budget": scene.budgets,
        "price": scene.prices,
        "payment": scene.prices * scene.budgets,
        "external_risk": scene.external,
        "privacy_loss": scene.losses,
        "utility": scene.utilities,
        "spent_so_far": scene.so_far.spent,
        "external_risk_so_far": scene.so_far.external,
    }
    finite = {name: [value if np.isfinite(value) else None for value in each.tolist()] for name, each in values.items()}
    return {"name": list(scene.names), **finite}


def _network(site: Site, choices: Choices, kind: str) -> bytes:
    scene, picture = site.world.scene(choices), site.picture(choices)
    view = client_view(scene, client_named(scene, choices.client)) if choices.client else None
    paint, scale, words = painted(picture, scene, view, dark=False)
    return network_file(picture, paint, scale, words, scene.names, kind)
