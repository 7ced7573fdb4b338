"""A chart as a Plotly figure: a plain dict, because checking one key by key takes longer than solving the game.

Lines are told apart by colour, dash and marker, bars by colour and pattern. Text is 13 pixels or more.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.explorer.chart import ON_DARK, ON_LIGHT, Axis, Chart, Line, band_opacity

MOST_POINTS = 2000  # of a line that are sent to the browser
MARKED_BELOW = 32  # points of a line that get a marker each
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")
PATTERNS = ("", "/", "x", ".", "-", "+")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
ONE_LINE = 26  # letters of an axis' name that fit beside a small figure
HEIGHT = 340  # pixels; charts of bars grow with their rows


def to_plotly(chart: Chart, dark: bool) -> dict[str, Any]:
    """The figure for Plotly on a light or a dark page; the reader's zoom is kept while chart.key is the same."""
    colours = ON_DARK if dark else ON_LIGHT
    traces: list[dict[str, Any]] = []
    for slot, line in enumerate(chart.lines):
        traces += _line(line, slot, colours[slot % len(colours)], chart)
    traces += [_bars(chart, slot, colours[slot % len(colours)]) for slot in range(len(chart.bars))]
    traces += [_cloud(chart, slot, colours[slot % len(colours)]) for slot in range(len(chart.points))]
    return {"data": traces, "layout": _layout(chart, dark, len(traces))}


def _line(line: Line, slot: int, colour: str, chart: Chart) -> list[dict[str, Any]]:
    kept = thinned(line.y)
    name = escape(line.name)
    about = f"<b>%{{fullData.name}}</b> %{{y:.4~g}} {escape(chart.y.unit)}"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if len(kept) < MARKED_BELOW else "lines",
        "name": name,
        "legendgroup": str(slot),
        "x": _values(line.x[kept]),
        "y": _values(line.y[kept]),
        "line": {"color": colour, "width": 2, "dash": DASHES[slot % len(DASHES)]},
        "marker": {"color": colour, "size": 6, "symbol": SYMBOLS[slot % len(SYMBOLS)]},
        "hovertemplate": about + "<extra></extra>",
    }
    if line.low is None or line.high is None:
        return [trace]
    low, high = line.low[kept], line.high[kept]
    trace["customdata"] = [list(pair) for pair in zip(_values(low), _values(high), strict=True)]
    trace["hovertemplate"] = about + "<br>from %{customdata[0]:.4~g} to %{customdata[1]:.4~g}<extra></extra>"
    known = np.isfinite(low) & np.isfinite(high)
    around = _values(line.x[kept][known])
    band = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": str(slot),
        "showlegend": False,
        "hoverinfo": "skip",
        "x": around + around[::-1],
        "y": _values(high[known]) + _values(low[known])[::-1],
        "fill": "toself",
        "fillcolor": faint(colour, band_opacity(chart)),
        "line": {"width": 0},
    }
    return [band, trace]


def _bars(chart: Chart, slot: int, colour: str) -> dict[str, Any]:
    group = chart.bars[slot]
    return {
        "type": "bar",
        "orientation": "h",
        "name": escape(group.name),
        # Places, not labels: two clients may have the same beginning, and Plotly would add up equal labels.
        "y": list(range(len(chart.labels))),
        "x": _values(group.values),
        "customdata": [escape(label) for label in chart.labels],
        "marker": {
            "color": colour,
            "pattern": {"shape": PATTERNS[slot % len(PATTERNS)], "size": 6, "solidity": 0.35},
        },
        "hovertemplate": f"%{{customdata}}: <b>%{{x:.4~g}}</b> {escape(chart.x.unit)}<extra>%{{fullData.name}}</extra>",
    }


def _cloud(chart: Chart, slot: int, colour: str) -> dict[str, Any]:
    cloud = chart.points[slot]
    many = len(cloud.labels) > 300
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(cloud.name),
        "x": _values(cloud.x),
        "y": _values(cloud.y),
        "customdata": [escape(label) for label in cloud.labels],
        "marker": {
            "color": colour,
            "size": 14 if slot and len(cloud.labels) == 1 else 6 if many else 9,
            "opacity": 0.55 if many else 0.85,
            "symbol": SYMBOLS[slot % len(SYMBOLS)],
        },
        "hovertemplate": "<b>%{customdata}</b>"
        f"<br>{escape(chart.x.name)} %{{x:.4~g}} {escape(chart.x.unit)}"
        f"<br>{escape(chart.y.name)} %{{y:.4~g}} {escape(chart.y.unit)}<extra></extra>",
    }


def _layout(chart: Chart, dark: bool, num_traces: int) -> dict[str, Any]:
    text = "#e6e9ed" if dark else "#1b1f24"
    grid = "#2c343d" if dark else "#e3e6ea"
    rows, groups = len(chart.labels), len(chart.bars)
    several = max(len(chart.lines), groups, len(chart.points)) > 1
    layout: dict[str, Any] = {
        "title": {
            "text": f"<b>{escape(chart.title)}</b>",
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "pad": {"l": 8, "t": 10},
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 16},
        },
        "font": {"family": FONT, "size": 13, "color": text},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 12, "t": 44, "b": 8},
        # Each further line of the legend, on a phone, would be taken from the figure.
        "height": HEIGHT + 20 * max(0, len(chart.lines) - 3)
        if not rows
        else max(220, 110 + 30 * several + rows * (8 + 14 * groups)),
        "autosize": True,
        "xaxis": _axis(chart.x, text, grid),
        "yaxis": _axis(chart.y, text, grid),
        "showlegend": several,
        # Under the x axis' name, growing downwards: it makes room for itself and covers nothing.
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 13},
            "bgcolor": "rgba(0,0,0,0)",
            "itemwidth": 40,
        },
        "hovermode": "x unified" if chart.lines else "closest",
        "hoverlabel": {
            "font": {"size": 13, "color": text},
            "bgcolor": "#1d242c" if dark else "#ffffff",
            "bordercolor": grid,
        },
        "uirevision": chart.key,
        "shapes": [],
        "annotations": [],
    }
    if chart.lines:
        layout["xaxis"] |= {"hoverformat": ".4~g", "zeroline": False}
        layout["xaxis"]["unifiedhovertitle"] = {"text": f"{escape(chart.x.name)} %{{x}}"}
    if rows:
        layout["bargap"], layout["bargroupgap"] = 0.25, 0.05
        layout["yaxis"] |= {
            "autorange": "reversed",
            "tickmode": "array",
            "tickvals": list(range(rows)),
            "ticktext": [escape(shortened(label)) for label in chart.labels],
            "showgrid": False,
            "zeroline": False,
        }
    if chart.at is not None:
        layout["shapes"] = [
            {"type": "line", "x0": chart.at, "x1": chart.at, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
             "line": {"color": text, "width": 1, "dash": "dot"}}
        ]  # fmt: skip
    if chart.is_empty or not num_traces:
        layout["annotations"] = [
            {"text": "nothing to show yet", "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
        ]
    return layout


def _axis(axis: Axis, text: str, grid: str) -> dict[str, Any]:
    return {
        "title": {"text": _broken(axis), "font": {"size": 14}, "standoff": 8},
        "type": "log" if axis.log else "linear",
        "automargin": True,
        "tickfont": {"size": 13},
        "gridcolor": grid,
        "linecolor": text,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "zeroline": not axis.log,
        "zerolinecolor": text,
        "zerolinewidth": 1,
        "exponentformat": "power",
    } | ({"dtick": 1} if axis.log else {})  # powers of ten alone: Plotly writes those between them too small to read


def _broken(axis: Axis) -> str:
    """The axis' name, in two lines where one would not fit on a phone."""
    between = "<br>" if len(axis.label) > ONE_LINE else " "
    return f"{escape(axis.name)}{between}({escape(axis.unit)})"


def thinned(values: Array, most: int = MOST_POINTS) -> IntArray:
    """Places of at most `most` values that draw the same curve: first, last, and both extremes of every piece."""
    if len(values) <= most:
        return np.arange(len(values))
    pieces = (most - 2) // 2
    width = math.ceil(len(values) / pieces)
    padded = np.full(pieces * width, np.nan)
    padded[: len(values)] = values
    table = padded.reshape(pieces, width)
    starts = np.arange(pieces) * width
    lowest = starts + np.where(np.isnan(table), np.inf, table).argmin(axis=1)
    highest = starts + np.where(np.isnan(table), -np.inf, table).argmax(axis=1)
    found = np.unique(np.concatenate([[0, len(values) - 1], lowest, highest]))
    return np.asarray(found[found < len(values)])


def shortened(label: str, most: int = 22) -> str:
    """A label that leaves room for its bar; hovering shows the whole."""
    return label if len(label) <= most else label[: most - 1] + "…"


def faint(colour: str, opacity: float) -> str:
    """A colour that lets others shine through."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _values(values: Array) -> list[float | None]:
    """As JSON can say them: what is infinite or not known is a gap."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
