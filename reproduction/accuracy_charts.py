"""Accuracy curves as SVG, one chart per data set with a panel for each split; the look of the game's figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from mppfl.charts import Line
from reproduction.accuracy_curves import CLIENTS, Curves, read_curves
from reproduction.charts import ROW, SLOTS, legend, panel, row_of_boxes, whole
from reproduction.settings import SETTINGS
from reproduction.tables import COLUMNS, PARTITION_TITLES

# The same colours as in the game's figures; what is without noise stands for itself.
SLOT_OF = SLOTS | {
    "fixed-min": SLOTS["fixed_min"],
    "fixed-mean": SLOTS["fixed_mean"],
    "noiseless": SLOTS["mppfl_exact"],
}


def curve_charts(folder: Path) -> dict[str, Markup]:
    """A chart for every data set that has curves, by the name of its file."""
    found: dict[str, list[Curves]] = {}
    for curves in read_curves(folder):
        found.setdefault(curves.dataset, []).append(curves)
    return {chart_name(dataset): _chart(dataset, several) for dataset, several in found.items()}


def chart_name(dataset: str) -> str:
    return f"fig-curves-{dataset}"


def _chart(dataset: str, several: Sequence[Curves]) -> Markup:
    shown = [name for name in COLUMNS if any(name in curves.percent for curves in several)]
    first = ("mppfl", *(name for name in shown if name != "mppfl")) if "mppfl" in shown else tuple(shown)
    out, top = legend([(COLUMNS[name][0], SLOT_OF[name]) for name in first])
    for at in range(0, len(several), 2):
        for box, curves in zip(row_of_boxes(top), several[at : at + 2], strict=False):
            last = int(curves.rounds[-1])
            lines = [
                Line(COLUMNS[name][0], SLOT_OF[name], curves.rounds, curves.percent[name])
                for name in first
                if name in curves.percent
            ]
            title = f"{SETTINGS[dataset].title}, {PARTITION_TITLES[curves.partition]}, N = {CLIENTS}"
            step = next((size for size in (1, 2, 5, 10, 20, 50) if 5 * size >= last), last)
            ticks = range(step, last + 1, step)
            out += panel(lines, box, title, "round", "test accuracy, percent", ticks)
        top += ROW
    splits = ", ".join(PARTITION_TITLES[curves.partition] for curves in several)
    names = ", ".join(COLUMNS[name][0] for name in first)
    return whole(out, top - 16, f"{SETTINGS[dataset].title}: accuracy after every evaluated round of {names}; {splits}")
