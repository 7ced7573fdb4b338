"""write_report: one or several trainings as one HTML page that needs nothing but itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from mppfl.arrays import IntArray
from mppfl.charts import Line, first_and_last, slots_of
from mppfl.errors import BadInput
from mppfl.experiment import COLUMNS, Run, comparison_cells, comparison_rows, require_folder
from mppfl.experiment.report import svg
from mppfl.experiment.report.sections import headline, labels_of, run_section, subtitle, verdict
from mppfl.files import write_whole
from mppfl.privacy.ledger import SIMULATION
from mppfl.text import delta, duration, epsilon, finite, number, percent, plainly, tooltip_number, tooltip_values

MOST_CELLS = 60_000  # figures given to the page's script for its slider


def write_report(runs: Sequence[Run], path: str | Path) -> Path:
    """Writes one HTML page about one or several trainings.

    The page shows curves, prices, the social graph, exposure, privacy accounts, payments and provenance. It is
    self-contained: it loads nothing, works without JavaScript, prints, and follows the reader's light or dark theme.

    Args:
        runs: The runs to show, as `train` returns and `load_run` reads them. Several are shown side by side.
        path: Where the page goes. Folders above it are made.

    Returns:
        The path of the page.

    Raises:
        BadInput: There is no run.
        MppflError: The page could not be written; whatever was at the path is untouched.

    Example:
        >>> from mppfl import write_report
        >>> write_report([], "report.html")
        Traceback (most recent call last):
        mppfl.errors.BadInput: a report needs at least one run.

        With a run, `write_report([load_run("runs/demo/mppfl")], "report.html")` returns the path of the page.
    """
    if not runs:
        raise BadInput("a report needs at least one run.")
    target = Path(path)
    require_folder(target.parent)
    write_whole(target, report_page(runs).encode("utf-8", "replace"))
    return target


def report_page(runs: Sequence[Run]) -> str:
    """The page as text."""
    labels, slots = labels_of(runs), slots_of([run.mechanism for run in runs])
    charts, chart_data = _charts(runs, labels, slots)
    graphs, graph_data = _graphs(runs, labels)
    sections = [run_section(k, *parts) for k, parts in enumerate(zip(slots, labels, runs, strict=True))]
    environment = Environment(
        loader=FunctionLoader(read_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = (number, percent, epsilon, delta, duration)
    environment.filters |= {function.__name__: function for function in words}
    return environment.get_template("report.html.j2").render(
        css=Markup(read_template("report.css")),
        js=Markup(read_template("report.js")),
        title=headline(runs),
        subtitle=subtitle(runs),
        verdict=verdict(runs, labels),
        simulation=SIMULATION,
        gradient=", ".join(svg.SCALE[::3]),
        legend=[{"label": label, "style": svg.style_of(slot)} for slot, label in zip(slots, labels, strict=True)],
        comparison=_comparison(runs, labels),
        charts=charts,
        graphs=graphs,
        sections=sections,
        notes=list(dict.fromkeys(note for run in runs for note in run.notes)),
        data={
            "scale": list(svg.SCALE),
            "charts": chart_data,
            "graphs": graph_data,
            "heats": {section["key"]: section["payments"]["data"] for section in sections},
        },
    )


def read_template(name: str) -> str:
    """The text of a template, style sheet or script."""
    return resources.files("mppfl.experiment.report").joinpath("templates", name).read_text("utf-8")


# ---- tables and figures over all runs ------------------------------------------------------------------------------


def _comparison(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, Any]:
    rows, cells = comparison_rows(runs), [comparison_cells(run) for run in runs]
    same = [heading for heading in ("mechanism", "aggregation") if len({row[heading] for row in cells}) == 1]
    if all(run.mechanism == label for run, label in zip(runs, labels, strict=True)):
        same.append("mechanism")  # the run's own name already says it
    protected = [k for k, row in enumerate(rows) if math.isfinite(row["median_spent"])]
    best: dict[str, set[int]] = {}
    for heading, (measure, *_), _, choose in COLUMNS:
        values = {k: rows[k][measure] for k in protected if choose and math.isfinite(rows[k][measure])}
        if choose and len(values) > 1:
            shown = cells[choose(values, key=values.__getitem__)][heading]
            best[heading] = {k for k in values if cells[k][heading] == shown}
    headings = [heading for heading in cells[0] if heading not in same]
    shared = f"All aggregate by {cells[0]['aggregation']}." if "aggregation" in same else ""
    return {"headings": headings, "shared": shared, "labels": labels, "cells": cells, "best": best}


def _charts(
    runs: Sequence[Run], labels: Sequence[str], slots: Sequence[int]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    every = list(zip(labels, slots, runs, strict=True))
    lines_of = partial(_lines_of, every)
    banded = len(runs) <= 3
    budget_title = "Budget ρ that the middle client spends" + (", band: middle 80 %" if banded else "")
    figures = [
        ("accuracy", "Accuracy on test data", lines_of("accuracy"), _tick_percent, "learning"),
        ("loss", "Loss on test data", lines_of("loss"), plainly, "learning"),
        ("reward_rate", "Reward rate, money per unit of budget", lines_of("reward_rate"), plainly, "money"),
        ("budgets", budget_title, [_budget_line(*parts, banded) for parts in every], plainly, "money"),
    ]
    charts, data = [], {}
    for key, title, lines, tick, group in figures:
        # Who pays nothing at all would only press the others' rates against the edge.
        drawn = [line for line in lines if key != "reward_rate" or line.y.any()] or lines
        alt_text = f"{title}: {'; '.join(f'{line.name} {first_and_last(line.y, tick)}' for line in lines)}"
        picture, frame = svg.line_chart(drawn, alt_text, key=key, tick=tick, from_zero=key == "budgets")
        note = " ".join(_chart_notes(lines, drawn))
        charts.append({"title": title, "svg": picture, "group": group, "note": note})
        if frame is not None:
            series = [{"name": line.name, "x": line.x.tolist(), "y": tooltip_values(line.y)} for line in lines]
            data[key] = asdict(frame) | {"percent": tick is _tick_percent, "series": series}
    return charts, data


def _lines_of(every: Sequence[tuple[str, int, Run]], name: str) -> list[Line]:
    """A figure of every run by rounds."""
    rounds = ((label, slot, run.history.rounds) for label, slot, run in every)
    return [Line(label, slot, figures["round_index"], figures[name]) for label, slot, figures in rounds]


def _chart_notes(lines: Sequence[Line], drawn: Sequence[Line]) -> list[str]:
    """What a reader cannot see: curves left out, and curves that lie on one another."""
    notes = []
    infinite = [line.name for line in drawn if np.isposinf(line.y).any()]
    if infinite:
        notes.append(f"Infinite, so not drawn: {', '.join(infinite)}.")
    if len(drawn) < len(lines):
        notes.append(f"Zero throughout, so not drawn: {', '.join(line.name for line in lines if line not in drawn)}.")
    left = [line for line in drawn if np.isfinite(line.y).any()]
    while left:
        same = [line for line in left if np.array_equal(line.y, left[0].y, equal_nan=True)]
        if len(same) > 1:
            notes.append(f"These lie on one another: {', '.join(line.name for line in same)}.")
        left = [line for line in left if line not in same]
    return notes


def _budget_line(label: str, slot: int, run: Run, banded: bool) -> Line:
    """What those who participated were charged: the middle one, and the tenth from either end."""
    budgets = np.where(run.history.clients["participating"], run.history.clients["spent"], np.nan)
    low, middle, high = (np.full(run.num_rounds, np.nan) for _ in range(3))
    for k in np.flatnonzero(~np.isnan(budgets).all(axis=1)):
        charged = budgets[k][~np.isnan(budgets[k])]
        if np.isfinite(charged).all():
            low[k], middle[k], high[k] = np.quantile(charged, (0.1, 0.5, 0.9))
        else:
            middle[k] = np.inf
    return Line(label, slot, run.history.rounds["round_index"], middle, *((low, high) if banded else ()))


def _tick_percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _graphs(runs: Sequence[Run], labels: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """One picture per run, on one colour scale; runs on the same network share its layout and its edges."""
    edges = [run.graph.influence for run in runs]
    owners = [next(k for k, b in enumerate(edges) if a.shape == b.shape and not (a != b).nnz) for a in edges]
    layouts = {k: svg.graph_layout(runs[k].graph) for k in dict.fromkeys(owners)}
    edges_ids = {k: f"edges-{number}" for number, k in enumerate(layouts)}
    most = {
        "spent": _largest([run.accounts.spent for run in runs]),
        "exposure": _largest([run.exposure for run in runs]),
        "budgets": _largest([run.history.clients["budgets"] for run in runs]),
        "payments": _largest([run.history.clients["payments"] for run in runs]),
    }
    ends = most["spent"], _largest([run.paid for run in runs])
    cells = sum(run.num_rounds * len(layouts[k].shown) for run, k in zip(runs, owners, strict=True))
    slides = cells * 2 <= MOST_CELLS and len({run.num_rounds for run in runs}) == 1 and runs[0].num_rounds > 1
    panels, data = [], {}
    for position, (label, run, owner) in enumerate(zip(labels, runs, owners, strict=True)):
        layout, key = layouts[owner], f"graph-{position}"
        size = f"{run.num_clients:,} clients, {run.graph.num_edges:,} edges"
        alt_text = f"Social graph under {label}: {size}; colour is spent ρ"
        picture = svg.graph_picture(layout, run, ends, alt_text, key=key, edges_id=edges_ids[owner])
        panels.append({"label": label, "svg": picture, "note": layout.note})
        data[key] = _graph_data(run, layout.shown, slides)
    pictures = {
        "panels": panels,
        "edges": [{"id": edges_ids[k], "path": layout.edges} for k, layout in layouts.items()],
        "top": number(most["spent"]),
        "slider": runs[0].num_rounds if slides else 0,
        "infinite": any(np.isposinf(run.accounts.spent).any() for run in runs),
    }
    return pictures, {"ends": {name: tooltip_number(value) for name, value in most.items()}, "runs": data}


def _largest(arrays: Sequence[Any]) -> float:
    """The largest finite value of all, 0 where there is none."""
    return max((float(finite(values).max(initial=0.0)) for values in arrays), default=0.0)


def _graph_data(run: Run, shown: IntArray, slides: bool) -> dict[str, Any]:
    """Figures of the clients that are drawn; those of every round only where the page has a slider over rounds."""
    tables = {name: run.history.clients[name][:, shown] if slides else () for name in ("budgets", "payments")}
    return {
        "names": [run.names[client] for client in shown.tolist()],
        "rounds": run.history.rounds["round_index"].tolist(),
        "spent": tooltip_values(run.accounts.spent[shown]),
        "exposure": tooltip_values(run.exposure[shown]),
        "paid": tooltip_values(run.paid[shown]),
        **{name: [tooltip_values(row) for row in rows] for name, rows in tables.items()},
    }
