"""write_report: one or several trainings as one HTML page that needs nothing but itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.experiment import Run, comparison_cells, comparison_rows, require_folder
from mppfl.experiment.report import figures as draw
from mppfl.experiment.report import graph as report_graph
from mppfl.experiment.report.run_sections import run_section
from mppfl.experiment.report.words import headline, labels_of, subtitle, tiles, verdict
from mppfl.files import write_whole
from mppfl.privacy.ledger import SIMULATION
from mppfl.text import duration, epsilon, finite, number, percent, plainly, tooltip_number, tooltip_values

MOST_CELLS = 60_000  # figures given to the page's script for its slider


def write_report(runs: Sequence[Run], path: str | Path) -> Path:
    """Writes the page at `path`: curves, prices, the social graph, exposure, accounts, payments and provenance.

    Self-contained: it loads nothing, works without JavaScript, prints, and follows the reader's light or dark theme.
    """
    if not runs:
        raise BadInput("a report needs at least one run.")
    target = Path(path)
    require_folder(target.parent)
    write_whole(target, report_page(runs).encode("utf-8", "replace"))
    return target


def report_page(runs: Sequence[Run]) -> str:
    """The page as text."""
    labels = labels_of(runs)
    charts, chart_data = _charts(runs, labels)
    graphs, graph_data = _graphs(runs, labels)
    sections = [run_section(slot, label, run) for slot, (label, run) in enumerate(zip(labels, runs, strict=True))]
    page = _templates().get_template("report.html.j2")
    return page.render(
        css=Markup(_read("report.css")),
        js=Markup(_read("report.js")),
        title=headline(runs),
        subtitle=subtitle(runs),
        verdict=verdict(runs, labels),
        tiles=tiles(runs),
        simulation=SIMULATION if any(run.accounts.simulation for run in runs) else "",
        legend=[{"label": label, "style": draw.style_of(slot)} for slot, label in enumerate(labels)],
        comparison=_comparison(runs, labels),
        charts=charts,
        graphs=graphs,
        sections=sections,
        notes=list(dict.fromkeys(note for run in runs for note in run.notes)),
        data={
            "scale": list(draw.SCALE),
            "charts": chart_data,
            "graphs": graph_data,
            "heats": {section["key"]: section["payments"]["data"] for section in sections},
        },
    )


def _templates() -> Environment:
    found = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"number": number, "percent": percent, "epsilon": epsilon, "duration": duration}
    return found


def _read(name: str) -> str:
    return resources.files("mppfl.experiment.report").joinpath("templates", name).read_text("utf-8")


# ---- tables and figures over all runs ------------------------------------------------------------------------------


def _comparison(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, Any]:
    rows = comparison_rows(runs)
    cells = [comparison_cells(row) for row in rows]
    said = [heading for heading in ("mechanism", "aggregation") if len({each[heading] for each in cells}) == 1]
    if all(row.mechanism == label for row, label in zip(rows, labels, strict=True)):
        said.append("mechanism")  # the run's own name already says it
    wins: dict[str, set[int]] = {}
    for heading, values, sign in (
        ("final accuracy", [row.final_accuracy for row in rows], -1),
        ("best accuracy", [row.best_accuracy for row in rows], -1),
        ("server cost", [row.server_cost for row in rows], 1),
        ("client welfare", [row.welfare for row in rows], -1),
        ("largest ε", [row.dp_epsilon for row in rows], 1),
        ("worst case ε", [row.worst_case_epsilon for row in rows], 1),
        ("median spent ρ", [row.median_spent for row in rows], 1),
    ):
        protected = [math.isfinite(row.median_spent) for row in rows]
        ranked = [(sign * v, at) for at, v in enumerate(values) if math.isfinite(v) and protected[at]]
        if len(ranked) > 1:
            best = cells[min(ranked)[1]][heading]
            wins[heading] = {at for _, at in ranked if cells[at][heading] == best}
    return {
        "headings": [heading for heading in cells[0] if heading not in said],
        "shared": f"All aggregate by {cells[0]['aggregation']}." if "aggregation" in said else "",
        "rows": [
            {
                "label": label,
                "style": draw.style_of(at),
                "cells": [
                    {
                        "text": text,
                        "best": at in wins.get(heading, ()),
                        "words": heading in ("mechanism", "aggregation"),
                    }
                    for heading, text in cells[at].items()
                    if heading not in said
                ],
            }
            for at, label in enumerate(labels)
        ],
    }


def _charts(runs: Sequence[Run], labels: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    def series(values: str) -> list[draw.Series]:
        return [
            draw.Series(label, slot, run.history.rounds["round_index"], run.history.rounds[values])
            for slot, (label, run) in enumerate(zip(labels, runs, strict=True))
        ]

    banded = len(runs) <= 3
    asked = [
        ("accuracy", "Accuracy on test data", series("accuracy"), _tick_percent, False, "learning"),
        ("loss", "Loss on test data", series("loss"), plainly, False, "learning"),
        ("reward_rate", "Reward rate, money per unit of budget", series("reward_rate"), plainly, False, "money"),
        ("budgets", "Budget ρ that the middle client spends" + (", band: middle 80 %" if banded else ""),
         [_budget_series(label, slot, run, banded) for slot, (label, run) in enumerate(zip(labels, runs, strict=True))],
         plainly, True, "money"),
    ]  # fmt: skip
    found, data = [], {}
    for key, title, curves, tick, from_zero, group in asked:
        # Who pays nothing at all would only press the others' rates against the edge.
        drawn = [each for each in curves if key != "reward_rate" or each.y.any()] or curves
        label = f"{title}: {_in_words(curves, tick)}"
        svg, frame = draw.line_chart(drawn, label, key=key, tick=tick, from_zero=from_zero)
        notes = " ".join(_chart_notes(curves, drawn))
        found.append({"key": key, "title": title, "svg": svg, "group": group, "note": notes})
        if frame is not None:
            data[key] = asdict(frame) | {
                "percent": tick is _tick_percent,
                "series": [
                    {"name": c.name, "slot": c.slot, "x": c.x.tolist(), "y": tooltip_values(c.y)} for c in curves
                ],
            }
    return found, data


def _chart_notes(curves: Sequence[draw.Series], drawn: Sequence[draw.Series]) -> list[str]:
    """What a reader cannot see: curves left out, and curves that lie on one another."""
    notes = []
    endless = [each.name for each in drawn if np.isposinf(each.y).any()]
    if endless:
        notes.append(f"Infinite, so not drawn: {', '.join(endless)}.")
    if len(drawn) < len(curves):
        notes.append(f"Zero throughout, so not drawn: {', '.join(each.name for each in curves if each not in drawn)}.")
    left = [each for each in drawn if np.isfinite(each.y).any()]
    while left:
        same = [each for each in left if np.array_equal(each.y, left[0].y, equal_nan=True)]
        if len(same) > 1:
            notes.append(f"These lie on one another: {', '.join(each.name for each in same)}.")
        left = [each for each in left if each not in same]
    return notes


def _budget_series(label: str, slot: int, run: Run, banded: bool) -> draw.Series:
    """What those who took part were charged: the middle one, and the tenth from either end."""
    budgets = np.where(run.history.clients["participating"], run.history.clients["spent"], np.nan)
    low, middle, high = (np.full(run.num_rounds, np.nan) for _ in range(3))
    some = np.flatnonzero(~np.isnan(budgets).all(axis=1))
    for at in some:
        here = budgets[at][~np.isnan(budgets[at])]
        if np.isfinite(here).all():
            low[at], middle[at], high[at] = np.quantile(here, (0.1, 0.5, 0.9))
        else:
            middle[at] = np.inf
    rounds = run.history.rounds["round_index"]
    return draw.Series(label, slot, rounds, middle, low, high) if banded else draw.Series(label, slot, rounds, middle)


def _tick_percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _in_words(curves: Sequence[draw.Series], tick: Any) -> str:
    """First and last value of every curve, for those who hear the page."""
    ends = []
    for each in curves:
        known = finite(each.y)
        ends.append(
            f"{each.name} from {tick(known[0])} to {tick(known[-1])}" if len(known) else f"{each.name} not known"
        )
    return "; ".join(ends)


def _graphs(runs: Sequence[Run], labels: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """One picture per run, on one colour scale; runs on the same network share its layout and its links."""
    layouts: list[tuple[Run, report_graph.Layout]] = []
    of_run: list[int] = []
    for run in runs:
        same = next((at for at, (other, _) in enumerate(layouts) if _same_links(run, other)), None)
        if same is None:
            layouts.append((run, report_graph.lay_out(run.graph)))
        of_run.append(len(layouts) - 1 if same is None else same)
    spent = finite(np.concatenate([run.accounts.spent for run in runs]))
    exposed = finite(np.concatenate([run.exposure for run in runs]))
    top, most_exposed = (float(values.max()) if len(values) else 0.0 for values in (spent, exposed))
    paid = finite(np.concatenate([run.paid for run in runs]))
    most_paid = float(paid.max()) if len(paid) else 0.0
    panels, data = [], {}
    for slot, (label, run) in enumerate(zip(labels, runs, strict=True)):
        layout = layouts[of_run[slot]][1]
        key = f"graph-{slot}"
        said = (
            f"Social graph under {label}: {run.num_clients:,} clients, {run.graph.num_links:,} links; colour is spent ρ"
        )
        links_id = f"links-{of_run[slot]}"
        svg = report_graph.graph_picture(
            layout, run.names, run.accounts.spent, run.paid, (top, most_paid), said, key=key, links_id=links_id
        )
        panels.append({"label": label, "style": draw.style_of(slot), "svg": svg, "note": layout.note})
        data[key] = _graph_data(run, layout)
    cells = sum(run.num_rounds * len(layouts[at][1].shown) for run, at in zip(runs, of_run, strict=True))
    small = cells * 2 <= MOST_CELLS and len({run.num_rounds for run in runs}) == 1 and runs[0].num_rounds > 1
    if not small:
        for each in data.values():
            each.update(budgets=[], payments=[])
    ends = {"spent": top, "exposure": most_exposed} | {
        name: max((float(values.max(initial=0.0)) for values in _finite_of(runs, name)), default=0.0)
        for name in ("budgets", "payments")
    }
    pictures = {
        "panels": panels,
        "links": [{"id": f"links-{at}", "path": layout.links} for at, (_, layout) in enumerate(layouts)],
        "top": number(top),
        "slider": runs[0].num_rounds if small else 0,
        "gradient": ", ".join(draw.SCALE[::3]),
        "infinite": any(np.isposinf(run.accounts.spent).any() for run in runs),
    }
    return pictures, {"ends": {name: tooltip_number(end) for name, end in ends.items()}, "runs": data}


def _graph_data(run: Run, layout: report_graph.Layout) -> dict[str, Any]:
    shown = layout.shown
    return {
        "names": [run.names[at] for at in shown.tolist()],
        "rounds": run.history.rounds["round_index"].tolist(),
        "spent": tooltip_values(run.accounts.spent[shown]),
        "exposure": tooltip_values(run.exposure[shown]),
        "paid": tooltip_values(run.paid[shown]),
        "budgets": [tooltip_values(row) for row in run.history.clients["budgets"][:, shown]],
        "payments": [tooltip_values(row) for row in run.history.clients["payments"][:, shown]],
    }


def _finite_of(runs: Sequence[Run], name: str) -> list[Array]:
    return [finite(run.history.clients[name]) for run in runs]


def _same_links(one: Run, other: Run) -> bool:
    a, b = one.graph.influence, other.graph.influence
    return (
        a.shape == b.shape
        and a.nnz == b.nnz
        and bool((a.indptr == b.indptr).all() and (a.indices == b.indices).all() and (a.data == b.data).all())
    )
