"""Figures of the report as inline SVG: curves, heat maps, bars, the social graph. The style sheet gives the colours.

Drawn by hand, not by Matplotlib: the page's script finds curves and cells in them, and they follow the reader's theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.charts import ON_LIGHT, VIRIDIS, Line, cut, dash_of, mixed_colours, nice_ticks
from mppfl.experiment import Run
from mppfl.network import SocialGraph, SparseMatrix
from mppfl.text import number, plainly, tooltip_values

LEVELS = 40
SCALE = tuple(mixed_colours(np.linspace(0, 1, LEVELS), VIRIDIS))
MOST_ROWS, MOST_COLUMNS = 60, 150
SIDE = 460.0  # of the picture of the graph
MOST_NODES, NODES_SAMPLED, MOST_EDGES, MOST_LABELS = 500, 300, 6_000, 40


def style_of(slot: int) -> str:
    """Colour and dash of a slot's curve, as CSS."""
    dash = dash_of(slot)
    return f"stroke:{_colour(slot)}" + (f";stroke-dasharray:{dash}" if dash else "")


def _colour(slot: int) -> str:
    return f"var(--c{slot % len(ON_LIGHT)})"


def _text(x: float, y: float, words: str, anchor: str = "middle", style: str = "tick") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(width: float, height: float, label: str, style: str, parts: Sequence[str], key: str = "") -> Markup:
    """An image with its alt text; the page's script finds it by `key`, such as data-chart="loss"."""
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" class="{style}" {key}>'
    return Markup("".join([head, *parts, "</svg>"]))


# ---- colours -------------------------------------------------------------------------------------------------------


def level_of(values: Array, top: float) -> IntArray:
    """Position of every value on the colour scale from 0 to `top`: −1 where not known, LEVELS where infinite."""
    with np.errstate(invalid="ignore"):
        shares = np.nan_to_num(values / top if top > 0 else np.zeros_like(values), nan=0.0, posinf=1.0)
    levels = np.clip(np.rint(shares * (LEVELS - 1)), 0, LEVELS - 1).astype(np.int64)
    return np.where(np.isnan(values), -1, np.where(np.isposinf(values), LEVELS, levels))


def fill_of(level: int) -> str:
    """The paint of a level."""
    return SCALE[level] if 0 <= level < LEVELS else "var(--infinite)" if level == LEVELS else "var(--unknown)"


# ---- curves --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a chart's axes lie, in its own units; the page's script reads it for the cursor."""

    left: float
    right: float
    top: float
    bottom: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * (value - self.y_low) / (self.y_high - self.y_low)


def line_chart(
    lines: Sequence[Line], label: str, *, key: str, tick: Callable[[float], str] = plainly, from_zero: bool = False
) -> tuple[Markup, Frame | None]:
    """Curves over rounds. Without a single finite point: a sentence instead, and no frame."""
    values = np.concatenate([part for line in lines for part in (line.y, line.low, line.high) if part is not None])
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return Markup('<p class="none">Nothing to draw: no finite value in any round.</p>'), None
    low, high = float(values.min()), float(values.max())
    ticks = nice_ticks(min(low, 0.0) if from_zero else low, high)
    rounds = np.concatenate([line.x for line in lines])
    first, last = float(rounds.min()), float(rounds.max())
    width, height = 560, 300
    margin = 16 + 8 * max(len(tick(value)) for value in ticks)
    ends = (first, last) if last > first else (first - 0.5, last + 0.5)
    frame = Frame(margin, width - 14, 14, height - 42, *ends, ticks[0], ticks[-1])
    parts = []
    for value in ticks:
        y = frame.y(value)
        parts.append(f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{frame.right:.1f}"/>')
        parts.append(_text(frame.left - 8, y + 4, tick(value), "end"))
    parts += [_text(frame.x(x), frame.bottom + 18, f"{x:.0f}") for x in _round_ticks(first, last)]
    parts.append(_text((frame.left + frame.right) / 2, height - 5, "round", style="axis"))
    parts += [band_path(line, frame) for line in lines] + [curve_path(line, frame) for line in lines]
    parts.append('<path class="cursor" d=""/>')
    return _svg(width, height, label, "lines", parts, f'data-chart="{escape(key)}"'), frame


def _round_ticks(first: float, last: float) -> list[float]:
    if last <= first:
        return [first]
    gap = 0.06 * (last - first)
    inner = [value for value in nice_ticks(first, last) if value == int(value)]
    return [first, *(value for value in inner if value - first > gap and last - value > gap), last]


def _points(x: Array, y: Array, frame: Frame) -> list[tuple[float, float]]:
    drawn = np.isfinite(y)
    return [(frame.x(a), frame.y(b)) for a, b in zip(x[drawn].tolist(), y[drawn].tolist(), strict=True)]


def curve_path(line: Line, frame: Frame) -> str:
    """A line's curve, its finite points joined; few points get a dot each."""
    points = _points(line.x, line.y, frame)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" style="fill:{_colour(line.slot)}"/>'
        for x, y in (points if len(points) <= 15 else ())
    )
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    curve = f'<path class="curve" style="{style_of(line.slot)}" d="M{path}"/>' if len(points) > 1 else ""
    return f"<g><title>{escape(line.name)}</title>{curve}{dots}</g>"


def band_path(line: Line, frame: Frame) -> str:
    """The band around a line; "" where it has none."""
    if line.low is None or line.high is None:
        return ""
    low, high = _points(line.x, line.low, frame), _points(line.x, line.high, frame)
    if len(low) < 2 or len(high) < 2:
        return ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*high, *reversed(low)])
    return f'<path class="band" style="fill:{_colour(line.slot)}" d="M{path}Z"/>'


# ---- heat map ------------------------------------------------------------------------------------------------------


def heat_map(
    values: Array, present: BoolArray, rounds: IntArray, names: Sequence[str], label: str, *, key: str
) -> tuple[Markup, float, dict[str, Any]]:
    """Clients × rounds as a picture, its largest value, and what it shows for the page's script.

    `values` and `present` are rounds × clients. Neighbouring rounds of long runs are averaged, large runs cut.
    """
    order = np.argsort(-np.nan_to_num(values, posinf=0.0).sum(axis=0), kind="stable")[:MOST_ROWS]
    rounds_each = math.ceil(len(rounds) / MOST_COLUMNS)
    groups = [np.arange(start, min(start + rounds_each, len(rounds))) for start in range(0, len(rounds), rounds_each)]
    shown = np.array([values[group][:, order].mean(axis=0) for group in groups]).T
    participating = np.array([present[group][:, order].any(axis=0) for group in groups]).T
    finite = shown[np.isfinite(shown) & participating]
    top = float(finite.max()) if len(finite) else 0.0
    levels = np.where(participating, level_of(shown, top), -1)

    left, head, width, row = 122.0, 6.0, 1040.0, 17.0
    cell = min((width - left - 6) / len(groups), 60.0)
    bottom = head + row * len(order)
    parts = []
    for level in np.unique(levels).tolist():
        squares = "".join(
            f"M{left + column * cell:.1f} {head + line * row:.0f}h{cell - 0.8:.1f}v{row - 1:.0f}h-{cell - 0.8:.1f}z"
            for line, column in np.argwhere(levels == level).tolist()
        )
        paint = 'class="absent"' if level < 0 else f'fill="{fill_of(level)}"'
        parts.append(f'<path {paint} d="{squares}"/>')
    for line, client in enumerate(order.tolist()):
        parts.append(_text(left - 8, head + line * row + 12, cut(names[client], 16), "end"))
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * cell >= 34)  # columns that have their round
    for column in sorted({0, *range(every - 1, len(groups), every)}):
        first = int(rounds[groups[column][0]])
        parts.append(_text(left + (column + 0.5) * cell, bottom + 15, str(first)))
    parts.append(_text(left + len(groups) * cell / 2, bottom + 33, "round", style="axis"))
    svg = _svg(width, bottom + 40, label, "heat", parts, f'data-heat="{escape(key)}"')
    spans = [(int(rounds[group[0]]), int(rounds[group[-1]])) for group in groups]
    data = {
        "names": [names[client] for client in order.tolist()],
        "columns": spans,  # first and last round of every column
        "values": [tooltip_values(line) for line in shown],
        "frame": (left, head, cell, row),  # left, top, width and height of a cell
    }
    return svg, top, data


# ---- the social graph ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class NetworkPicture:
    """Where the drawn clients stand, in a square of `SIDE`, and the edges between them as one path.

    shown     positions of the clients that are drawn: all, or those around the best connected one
    note      what was left out, or ""
    """

    shown: IntArray
    x: Array
    y: Array
    edges: str
    note: str


def graph_layout(graph: SocialGraph) -> NetworkPicture:
    """Where clients stand. Above `MOST_NODES` clients only the surroundings of the best connected are drawn."""
    from mppfl.experiment import lay_out  # its loops are compiled, and the compiler is slow to load

    either = (graph.influence + graph.influence.T).tocsr()
    shown: IntArray = np.arange(graph.num_clients)
    notes = []
    if graph.num_clients > MOST_NODES:
        shown = _surroundings(either, NODES_SAMPLED)
        notes.append(f"{len(shown):,} of {graph.num_clients:,} clients are drawn: those around the best connected one")
    among = either[shown][:, shown].tocoo()
    once = among.row < among.col
    firsts, seconds, strengths = among.row[once], among.col[once], among.data[once]
    if len(firsts) > MOST_EDGES:
        notes.append(f"only the {MOST_EDGES:,} strongest of {len(firsts):,} edges are drawn")
        kept = np.argsort(-strengths, kind="stable")[:MOST_EDGES]
        firsts, seconds = firsts[kept], seconds[kept]
    margin = 16.0
    box = SIDE - 2 * margin
    x, y = lay_out(len(shown), firsts, seconds, radii=_radius(len(shown))[1], width=box, height=box)
    x, y = (x + margin).round(1), (y + margin).round(1)
    ends = zip(firsts.tolist(), seconds.tolist(), strict=True)
    edges = "".join(f"M{x[a]:.0f} {y[a]:.0f}L{x[b]:.0f} {y[b]:.0f}" for a, b in ends)
    return NetworkPicture(shown, x, y, edges, "; ".join(notes))


def _radius(num_nodes: int) -> tuple[float, float]:
    """Of the client who is paid least and most."""
    return (6.0, 15.0) if num_nodes <= 60 else (3.0, 8.0)


def _surroundings(either: SparseMatrix, count: int) -> IntArray:
    """So many clients: those nearest to the best connected one, then the best connected of those it does not reach."""
    from scipy.sparse.csgraph import breadth_first_order

    by_degree = np.argsort(-np.diff(either.indptr), kind="stable")
    reached = breadth_first_order(either, by_degree[0], directed=False, return_predecessors=False)
    others = by_degree[~np.isin(by_degree, reached)]
    return np.sort(np.concatenate([reached, others])[:count])


def graph_picture(
    layout: NetworkPicture, run: Run, ends: tuple[float, float], label: str, *, key: str, edges_id: str
) -> Markup:
    """The social graph: colour says what a client spent, size what it was paid; `ends` are the most of both."""
    top, most = ends
    spent, paid, names = run.accounts.spent, run.paid, run.names
    levels = level_of(spent[layout.shown], top)
    money = np.nan_to_num(paid[layout.shown], posinf=0.0)
    small, large = _radius(len(layout.shown))
    radii = small + (large - small) * np.sqrt(np.clip(money / most, 0, 1)) if most > 0 else np.full(len(money), small)
    circles, labels = [f'<use href="#{escape(edges_id)}"/>'], []
    for client, x, y, radius, level in zip(layout.shown, layout.x, layout.y, radii, levels, strict=True):
        title = f"{names[client]}: spent ρ {number(spent[client])}, paid {number(paid[client])}"
        circle = f'cx="{x:g}" cy="{y:g}" r="{radius:.1f}" fill="{fill_of(int(level))}"'
        circles.append(f"<circle {circle}><title>{escape(title)}</title></circle>")
        name = escape(cut(names[client], 12))
        labels.append(f'<text x="{x:g}" y="{y - radius - 4:.1f}" text-anchor="middle">{name}</text>')
    parts = circles + labels if len(labels) <= MOST_LABELS else circles
    return _svg(SIDE, SIDE, label, "graph", parts, f'data-graph="{escape(key)}"')
