"""Figures for papers and pages: made with Matplotlib, readable in print and by the colour-blind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mppfl.game import Summary

OURS, OTHERS = "#0072B2", "#A7A9AC"  # Okabe & Ito's blue, and grey: told apart by everybody, and in print
TITLES = {"common": "Common reward", "own": "Own reward"}


def comparison_figure(summaries: Sequence[Summary], path: str | Path, num_rounds: int) -> None:
    """Server cost and client welfare of every mechanism, one row per reward convention, as .png, .pdf or .svg.

    Bars are means over games, whiskers one standard deviation.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    conventions = [c for c in TITLES if any(s.convention == c for s in summaries)]
    figure = Figure(figsize=(10, 3.4 * len(conventions)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(conventions), 2, squeeze=False)
    for row, convention in enumerate(conventions):
        mine = [s for s in summaries if s.convention == convention and abs(s.welfare) < float("inf")]
        labels = [s.mechanism.replace("_", " ") for s in mine]
        shades = [OURS if s.mechanism.startswith("mppfl") else OTHERS for s in mine]
        _bars(axes[row][0], labels, [s.server_cost for s in mine], [s.server_cost_sd for s in mine], shades)
        _bars(axes[row][1], labels, [s.welfare for s in mine], [s.welfare_sd for s in mine], shades)
        axes[row][0].set_title(f"{TITLES[convention]}: server cost", loc="left")
        axes[row][1].set_title(f"{TITLES[convention]}: client welfare", loc="left")
    for axis in axes[-1]:
        axis.set_xlabel(f"money, sum over {num_rounds} rounds")
    figure.savefig(path, dpi=150)


def _bars(axis: Any, labels: list[str], values: list[float], spreads: list[float], colours: list[str]) -> None:
    positions = range(len(labels))
    whiskers = {"xerr": spreads, "ecolor": "#555555", "capsize": 2} if any(spreads) else {}
    axis.barh(positions, values, color=colours, **whiskers)
    axis.set_yticks(positions, labels)
    axis.invert_yaxis()
    axis.axvline(0, color="#555555", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
