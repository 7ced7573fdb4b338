"""Figures of the Last.fm page as inline SVG: curves with bands over named places, drawn with the report's own parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from mppfl.charts import Line, nice_ticks
from mppfl.experiment import report as draw
from mppfl.text import plainly

WIDTH, HEIGHT = 560, 320
TOP, RIGHT, BOTTOM = 14, 14, 62


def curve_chart(
    series: Sequence[Line], places: Sequence[tuple[float, str]], x_name: str, y_name: str, label: str
) -> Markup:
    """Curves over the named `places` of an axis, from zero or below; a series over two places alone is a level."""
    pieces = [np.concatenate([each for each in (s.y, s.low, s.high) if each is not None]) for s in series]
    values = np.concatenate([piece[np.isfinite(piece)] for piece in pieces])
    if not len(values):
        return Markup('<p class="none">Nothing to draw: no finite value.</p>')
    ticks = nice_ticks(min(0.0, float(values.min())), float(values.max()))
    left = 40 + 8 * max(len(plainly(value)) for value in ticks)
    first, last = places[0][0], places[-1][0]
    pad = 0.03 * (last - first) if last > first else 0.5
    frame = draw.Frame(left, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM, first - pad, last + pad, ticks[0], ticks[-1])
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" class="lines">']
    for value in ticks:
        y = frame.y(value)
        out.append(f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{frame.right:.1f}"/>')
        out.append(_text(frame.left - 8, y + 4, plainly(value), "tick", "end"))
    out += [_text(frame.x(at), frame.bottom + 18, name, "tick") for at, name in places]
    out.append(_text((frame.left + frame.right) / 2, HEIGHT - 12, x_name, "axis"))
    middle = (frame.top + frame.bottom) / 2
    out.append(
        f'<text class="axis" transform="translate(14 {middle:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>"
    )
    out += [draw.band_path(each, frame) for each in series if each.low is not None]
    out += [draw.curve_path(each, frame) for each in series]
    out.append("</svg>")
    return Markup("".join(out))


def _text(x: float, y: float, words: str, style: str, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def legend(series: Sequence[Line]) -> Markup:
    """The names of the curves beside their colour and dash."""
    keys = "".join(
        f'<li><svg class="key" viewBox="0 0 30 10" aria-hidden="true"><path style="{draw.style_of(each.slot)}" '
        f'd="M0 5H30"/></svg>{escape(each.name)}</li>'
        for each in series
    )
    return Markup(f'<ul class="legend">{keys}</ul>')


def over(name: str, slot: int, x: Sequence[float], rows: Sequence[tuple[float, float, float]]) -> Line:
    """A curve with its band from (value, low, high) at every place."""
    y, low, high = (np.array([row[part] for row in rows], dtype=np.float64) for part in range(3))
    return Line(name, slot, np.asarray(x, dtype=np.float64), y, low, high)


def level(name: str, slot: int, places: Sequence[tuple[float, str]], value: float) -> Line:
    """A horizontal line from the first place to the last."""
    return Line(name, slot, np.array([places[0][0], places[-1][0]]), np.array([value, value]))


def on_log_axis(budgets: Sequence[float]) -> list[tuple[float, str]]:
    """Places of budgets on a logarithmic axis, with their names."""
    return [(math.log10(rho), plainly(rho)) for rho in budgets]
