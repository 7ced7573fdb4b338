"""Figures of the report as inline SVG: curves, heat maps, bars. The page's CSS gives the colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.text import number, plainly

NUM_COLOURS = 8  # --c0 to --c7 in report.css
DASHES = ("", "9 4", "3 3", "12 4 3 4", "6 2 2 2", "1 4", "14 3", "5 5")
VIRIDIS = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
LEVELS = 40
MOST_ROWS, MOST_COLUMNS = 60, 150


def style_of(slot: int) -> str:
    """Colour and dash of the curve of run number `slot`: told apart by colour, by the colour-blind, and in print."""
    dash = DASHES[(slot + slot // NUM_COLOURS) % len(DASHES)]
    return f"stroke:var(--c{slot % NUM_COLOURS})" + (f";stroke-dasharray:{dash}" if dash else "")


# ---- colours ------------------------------------------------------------------------------------------------------


def _mixed(share: float) -> str:
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    at = min(int(place), len(VIRIDIS) - 2)
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in VIRIDIS[at : at + 2]]
    return "#" + "".join(f"{round(a + (place - at) * (b - a)):02x}" for a, b in zip(*ends, strict=True))


SCALE = tuple(_mixed(level / (LEVELS - 1)) for level in range(LEVELS))


def level_of(values: Array, top: float) -> IntArray:
    """Place of every value on the colour scale from 0 to `top`: −1 where not known, LEVELS where infinite."""
    with np.errstate(invalid="ignore"):
        shares = np.nan_to_num(values / top if top > 0 else np.zeros_like(values), nan=0.0, posinf=1.0)
    levels = np.clip(np.rint(shares * (LEVELS - 1)), 0, LEVELS - 1).astype(np.int64)
    return np.where(np.isnan(values), -1, np.where(np.isposinf(values), LEVELS, levels))


def fill_of(level: int) -> str:
    """The paint of a level."""
    return SCALE[level] if 0 <= level < LEVELS else "var(--infinite)" if level == LEVELS else "var(--unknown)"


# ---- curves -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Series:
    """One curve: finite points are joined, others left out. A band lies between `low` and `high`."""

    name: str
    slot: int
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None


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


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    if not high > low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def line_chart(
    series: Sequence[Series], label: str, *, key: str, tick: Callable[[float], str] = plainly, from_zero: bool = False
) -> tuple[Markup, Frame | None]:
    """Curves over rounds. Without a single finite point: a sentence instead, and no frame."""
    pieces = [np.concatenate([each for each in (s.y, s.low, s.high) if each is not None]) for s in series]
    values = np.concatenate([piece[np.isfinite(piece)] for piece in pieces])
    if len(values) == 0:
        return Markup('<p class="none">Nothing to draw: no finite value in any round.</p>'), None
    low, high = float(values.min()), float(values.max())
    ticks = nice_ticks(min(low, 0.0) if from_zero else low, high)
    rounds = np.concatenate([s.x for s in series])
    first, last = float(rounds.min()), float(rounds.max())
    width, height = 560, 300
    margin = 16 + 8 * max(len(tick(value)) for value in ticks)
    wide = (first, last) if last > first else (first - 0.5, last + 0.5)
    frame = Frame(margin, width - 14, 14, height - 42, *wide, ticks[0], ticks[-1])
    out = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" class="lines" '
        f'data-chart="{escape(key)}">'
    ]
    for value in ticks:
        y = frame.y(value)
        out.append(f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{frame.right:.1f}"/>')
        out.append(
            f'<text class="tick" x="{frame.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick(value)}</text>'
        )
    for value in _round_ticks(first, last):
        x = frame.x(value)
        out.append(
            f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 18:.1f}" text-anchor="middle">{value:.0f}</text>'
        )
    middle = (frame.left + frame.right) / 2
    out.append(f'<text class="axis" x="{middle:.1f}" y="{height - 5}" text-anchor="middle">round</text>')
    for each in series:
        if each.low is not None and each.high is not None:
            out.append(_band(each, frame))
    out += [_curve(each, frame) for each in series]
    out.append('<path class="cursor" d=""/></svg>')
    return Markup("".join(out)), frame


def _round_ticks(first: float, last: float) -> list[float]:
    if last <= first:
        return [first]
    inner = [value for value in nice_ticks(first, last) if first < value < last and value == int(value)]
    gap = 0.06 * (last - first)
    return [first, *(value for value in inner if value - first > gap and last - value > gap), last]


def _points(x: Array, y: Array, frame: Frame) -> list[tuple[float, float]]:
    known = np.isfinite(y)
    return [(frame.x(a), frame.y(b)) for a, b in zip(x[known].tolist(), y[known].tolist(), strict=True)]


def _curve(series: Series, frame: Frame) -> str:
    points = _points(series.x, series.y, frame)
    title = f"<title>{escape(series.name)}</title>"
    dots = ""
    if len(points) <= 15:
        colour = f"fill:var(--c{series.slot % NUM_COLOURS})"
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" style="{colour}"/>' for x, y in points)
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    line = f'<path class="curve" style="{style_of(series.slot)}" d="M{path}"/>' if len(points) > 1 else ""
    return f"<g>{title}{line}{dots}</g>"


def _band(series: Series, frame: Frame) -> str:
    low = _points(series.x, np.asarray(series.low), frame)
    high = _points(series.x, np.asarray(series.high), frame)
    if len(low) < 2 or len(high) < 2:
        return ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*high, *reversed(low)])
    return f'<path class="band" style="fill:var(--c{series.slot % NUM_COLOURS})" d="M{path}Z"/>'


# ---- heat map -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class HeatMap:
    """Clients × rounds as a picture, and what it shows: `rows` are positions of clients, `columns` groups of rounds."""

    svg: Markup
    rows: IntArray
    columns: list[tuple[int, int]]  # first and last round of every column
    rounds_each: int  # how many rounds a column averages
    values: Array  # rows × columns
    top: float
    frame: tuple[float, float, float, float]  # left, top, width of a cell, height of a cell


def heat_map(
    values: Array, present: BoolArray, rounds: IntArray, names: Sequence[str], label: str, *, key: str
) -> HeatMap:
    """`values` and `present` are rounds × clients. Neighbouring rounds of long runs are averaged, large runs cut."""
    order = np.argsort(-np.nan_to_num(values, posinf=0.0).sum(axis=0), kind="stable")[:MOST_ROWS]
    each = math.ceil(len(rounds) / MOST_COLUMNS)
    groups = [np.arange(start, min(start + each, len(rounds))) for start in range(0, len(rounds), each)]
    shown = np.array([values[group][:, order].mean(axis=0) for group in groups]).T
    there = np.array([present[group][:, order].any(axis=0) for group in groups]).T
    finite = shown[np.isfinite(shown) & there]
    top = float(finite.max()) if len(finite) else 0.0
    levels = np.where(there, level_of(shown, top), -1)

    left, head, width, row = 122.0, 6.0, 1040.0, 17.0
    cell = (width - left - 6) / len(groups)
    cell = min(cell, 60.0)
    bottom = head + row * len(order)
    out = [f'<svg viewBox="0 0 {width:.0f} {bottom + 40:.0f}" role="img" aria-label="{escape(label)}" class="heat" ']
    out.append(f'data-heat="{escape(key)}">')
    for level in np.unique(levels).tolist():
        where = np.argwhere(levels == level).tolist()
        squares = "".join(
            f"M{left + column * cell:.1f} {head + line * row:.0f}h{cell - 0.8:.1f}v{row - 1:.0f}h-{cell - 0.8:.1f}z"
            for line, column in where
        )
        paint = 'class="absent"' if level < 0 else f'fill="{fill_of(level)}"'
        out.append(f'<path {paint} d="{squares}"/>')
    for line, client in enumerate(order.tolist()):
        text = escape(shortened(names[client], 16))
        y = head + line * row + 12
        out.append(f'<text class="tick" x="{left - 8:.0f}" y="{y:.0f}" text-anchor="end">{text}</text>')
    for column in _columns_named(len(groups), cell):
        x = left + (column + 0.5) * cell
        out.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.0f}" text-anchor="middle">'
            f"{int(rounds[groups[column][0]])}</text>"
        )
    out.append(f'<text class="axis" x="{left + len(groups) * cell / 2:.0f}" y="{bottom + 33:.0f}" ')
    out.append('text-anchor="middle">round</text></svg>')
    spans = [(int(rounds[group[0]]), int(rounds[group[-1]])) for group in groups]
    return HeatMap(Markup("".join(out)), order, spans, each, shown, top, (left, head, cell, row))


def _columns_named(count: int, cell: float) -> list[int]:
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * cell >= 34)
    if every == 1:
        return list(range(count))
    return [0, *range(every - 1, count, every)]


# ---- bars ---------------------------------------------------------------------------------------------------------


def exposure_bars(own: Array, through_others: Array, names: Sequence[str], label: str) -> tuple[Markup, IntArray]:
    """What each client spent itself, beside what others' budgets say about it, the most exposed first."""
    ranked = np.nan_to_num(through_others, posinf=np.inf, nan=-1.0)
    order = np.argsort(-ranked, kind="stable")[:MOST_ROWS]
    both = np.concatenate([own[order], through_others[order]])
    finite = both[np.isfinite(both)]
    top = nice_ticks(0.0, float(finite.max()) if len(finite) and finite.max() > 0 else 1.0, 4)
    left, gap, width, row, head = 122.0, 36.0, 1040.0, 19.0, 30.0
    panel = (width - left - gap - 60) / 2
    starts = (left, left + panel + gap)
    bottom = head + row * len(order)
    out = [f'<svg viewBox="0 0 {width:.0f} {bottom + 30:.0f}" role="img" aria-label="{escape(label)}" class="bars">']
    titles = ("own: spent ρ", "through others: exposure")
    for start, title in zip(starts, titles, strict=True):
        out.append(f'<text class="axis strong" x="{start:.0f}" y="16">{title}</text>')
        for value in top:
            x = start + panel * value / top[-1]
            out.append(f'<path class="grid" d="M{x:.1f} {head - 4:.0f}V{bottom:.0f}"/>')
            out.append(
                f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.0f}" text-anchor="middle">{plainly(value)}</text>'
            )
    for line, client in enumerate(order.tolist()):
        y = head + line * row
        name = escape(shortened(names[client], 16))
        out.append(f'<text class="tick" x="{left - 8:.0f}" y="{y + 13:.0f}" text-anchor="end">{name}</text>')
        for start, values, paint in zip(starts, (own, through_others), ("own", "others"), strict=True):
            value = float(values[client])
            out.append(_bar(start, y, panel, value, top[-1], paint))
    out.append("</svg>")
    return Markup("".join(out)), order


def _bar(start: float, y: float, panel: float, value: float, top: float, paint: str) -> str:
    if math.isnan(value):
        return f'<text class="tick" x="{start + 4:.0f}" y="{y + 13:.0f}">not known</text>'
    length = panel if math.isinf(value) else panel * value / top
    paint = "endless" if math.isinf(value) else paint
    bar = f'<rect class="{paint}" x="{start:.0f}" y="{y + 2:.0f}" width="{max(length, 0.5):.1f}" height="14" rx="2"/>'
    return f'{bar}<text class="value" x="{start + length + 5:.1f}" y="{y + 13:.0f}">{number(value)}</text>'


def shortened(name: str, most: int) -> str:
    """The name, cut with an ellipsis where it is too long for a label."""
    return name if len(name) <= most else name[: most - 1] + "…"
