"""A chart as a file for papers: PNG, SVG or PDF by Matplotlib. The same chart makes the same bytes."""

from __future__ import annotations

import io
import textwrap
import threading
from typing import Any, Literal, get_args

import numpy as np

from mppfl.errors import BadInput
from mppfl.explorer.chart import ON_LIGHT, ROUNDS, Chart, band_opacity
from mppfl.text import plainly

FileKind = Literal["png", "svg", "pdf"]
DASHES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (8, 2, 2, 2)))
SYMBOLS = ("o", "s", "D", "^", "x", "*", "+")
HATCHES = ("", "///", "xxx", "...", "---", "+++")
# Without dates and program names, the same chart is the same file.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
SETTINGS: Any = {
    "svg.hashsalt": "mppfl",
    "svg.fonttype": "none",  # words stay words, which can be searched and edited
    "pdf.fonttype": 42,
    "font.size": 11,
    "text.parse_math": False,  # a client may be called $1$
}
_ONE_AT_A_TIME = threading.Lock()  # Matplotlib's settings belong to the whole process


def chart_file(chart: Chart, kind: FileKind) -> bytes:
    """The chart as a file of this kind, on white; PNG at 200 dots an inch."""
    if kind not in get_args(FileKind):
        raise BadInput(f"kind={kind!r} must be one of {', '.join(get_args(FileKind))}.")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 4.0 if not chart.bars else max(2.4, 1.3 + len(chart.labels) * (0.08 + 0.16 * len(chart.bars)))
    with _ONE_AT_A_TIME, rc_context(SETTINGS):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        FigureCanvasAgg(figure)
        axis = figure.add_subplot()
        _draw(chart, axis)
        axis.set_title(chart.title, loc="left", fontweight="bold", fontsize=12)
        axis.set_xlabel(chart.x_name)
        # An axis' name is broken where it would be longer than the axis.
        axis.set_ylabel(chart.y_name if len(chart.y_name) <= 34 else f"{chart.y.name}\n({chart.y.unit})")
        axis.spines[["top", "right"]].set_visible(False)
        note = "\n".join(textwrap.wrap(chart.note, 100))
        if max(len(chart.lines), len(chart.bars), len(chart.points)) > 1:
            # The note goes with the legend: each for itself would be laid over the other.
            legend = figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=10, title=note)
            legend.set_alignment("left")
            legend.get_title().set_fontsize(9)
        elif note:
            figure.supxlabel(note, fontsize=9, x=0.01, ha="left")
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=200, metadata=METADATA[kind])
    return content.getvalue()


def _draw(chart: Chart, axis: Any) -> None:
    for slot, line in enumerate(chart.lines):
        colour = ON_LIGHT[slot % len(ON_LIGHT)]
        if line.low is not None and line.high is not None:
            axis.fill_between(line.x, line.low, line.high, color=colour, alpha=band_opacity(chart), linewidth=0)
        axis.plot(
            line.x,
            np.where(np.isfinite(line.y), line.y, np.nan),
            label=line.name,
            color=colour,
            linestyle=DASHES[slot % len(DASHES)],
            linewidth=1.6,
            marker=SYMBOLS[slot % len(SYMBOLS)],
            markevery=max(1, len(line.x) // 12),
            markersize=4.5,
        )
    _draw_bars(chart, axis)
    for slot, cloud in enumerate(chart.points):
        alone = slot > 0 and len(cloud.labels) == 1
        axis.scatter(
            cloud.x,
            cloud.y,
            s=70 if alone else 14,
            label=cloud.name,
            color=ON_LIGHT[slot % len(ON_LIGHT)],
            marker=SYMBOLS[slot % len(SYMBOLS)],
            alpha=1.0 if alone or len(cloud.labels) <= 300 else 0.5,
            rasterized=len(cloud.labels) > 1000,
        )
    if chart.at is not None:
        axis.axvline(chart.at, color="#555555", linewidth=0.8, linestyle=":")
    for scale, ticks, log in ((axis.set_xscale, axis.xaxis, chart.x.log), (axis.set_yscale, axis.yaxis, chart.y.log)):
        if log:
            scale("log")
            ticks.set_major_formatter(lambda value, _: plainly(value))  # Matplotlib's own would be a formula
    if chart.x == ROUNDS:
        axis.xaxis.get_major_locator().set_params(integer=True)
    if not chart.bars:
        axis.grid(color="#e3e6ea", linewidth=0.6)
        axis.set_axisbelow(True)
    if chart.is_empty:
        axis.text(0.5, 0.5, "nothing to show yet", transform=axis.transAxes, ha="center", va="center")


def _draw_bars(chart: Chart, axis: Any) -> None:
    if not chart.bars:
        return
    places, thickness = np.arange(len(chart.labels)), 0.8 / len(chart.bars)
    for slot, group in enumerate(chart.bars):
        axis.barh(
            places + (slot - (len(chart.bars) - 1) / 2) * thickness,
            np.where(np.isfinite(group.values), group.values, np.nan),
            thickness,
            label=group.name,
            color=ON_LIGHT[slot % len(ON_LIGHT)],
            hatch=HATCHES[slot % len(HATCHES)],
            edgecolor="white",
            linewidth=0.5,
        )
    axis.set_yticks(places, chart.labels)
    axis.set_ylim(len(chart.labels) - 0.5, -0.5)
    if not chart.x.log:
        axis.axvline(0, color="#555555", linewidth=0.8)
