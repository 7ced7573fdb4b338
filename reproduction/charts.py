"""The figures of the game as SVG, drawn from their files: curves and bars with bands, light and dark.

Bands and whiskers run from the tenth to the ninetieth percentile of the seeds, lines and bars stand at the median. The
report's style sheet gives the colours: a page has it, a file of its own carries it along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from markupsafe import Markup, escape

from mppfl.arrays import Array
from mppfl.charts import Line, nice_ticks
from mppfl.experiment import report as draw
from mppfl.text import plainly
from reproduction.claims import CONVENTIONS, TITLES
from reproduction.figure_files import Figure
from reproduction.game_figures import HELD
from reproduction.settings import SETTINGS

WIDTH = 1040.0
ROW = 310.0  # height of a row of panels
GAP, MARGIN = 18.0, 82.0  # between panels; left of a panel, for its ticks and the name of its axis
SLOTS = {  # colour and dash of every mechanism: the same in all figures
    "mppfl": 0,
    "mppfl_exact": 7,
    "social_agnostic": 1,
    "random": 6,
    "fixed_min": 5,
    "fixed_mean": 2,
    "sarda_like": 3,
    "sarda_r": 4,
    HELD: 8,  # MPPFL's colour, broken
}
AXES = {
    "α": "α, how strongly exposure counts",
    "K": "K, longest walk along which privacy leaks, edges",
    "N": "N, clients",
    "sweep": "sweep of Algorithm 1",
}
QUANTITIES = {"server_cost": "Server cost", "welfare": "Welfare of all clients"}
STYLE = """
svg .frame { fill: var(--card); } svg .zero { stroke: var(--soft); fill: none; } svg .title { font-weight: 600; }
svg .whisker { stroke: var(--ink); stroke-width: 1.1; fill: none; opacity: .6; } svg .bar { stroke: none; }
svg .bands { opacity: .6; }
"""
RATES_HELD = "MPPFL, rates held"
FLOOR = 1e-12  # of a distance on a logarithmic axis: what is nearer is rounding


@dataclass(frozen=True, slots=True)
class Box:
    """Where a panel's axes lie."""

    left: float
    top: float
    width: float = (WIDTH - 2 * MARGIN - GAP - 8) / 2
    height: float = 220.0

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


# ---- one figure ---------------------------------------------------------------------------------------------------


def chart(figure: Figure) -> Markup:
    """The figure as SVG for a page that has the report's style sheet and `STYLE`."""
    return {"fig-phi": _phi, "fig-cost": _bars, "fig-welfare": _bars}.get(figure.name, _curves)(figure)


def as_file(svg: Markup) -> str:
    """The same as a file of its own, with the style sheet's colours and a ground to stand on."""
    sheet = resources.files("mppfl.experiment.report").joinpath("templates", "report.css").read_text("utf-8")
    colours = sheet.split("\n* {")[0]  # both themes stand before the first rule
    rules = "\n".join(line for line in sheet.splitlines() if line.startswith(("svg text", "svg .")))
    head, rest = str(svg).split(">", 1)
    size = " ".join(head.split('viewBox="0 0 ')[1].split('"')[0].split())
    width, height = size.split()
    head = head.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" ', 1)
    ground = f'<rect class="frame" width="{width}" height="{height}" rx="10"/>'
    return f"{head}>\n<style>\n{colours}\n{rules}\n{STYLE.strip()}\n</style>\n{ground}{rest}\n"


def _curves(figure: Figure) -> Markup:
    """Welfare and cost along an axis, one column per convention, two rows per setting."""
    keys = [(TITLES[name], SLOTS[name]) for name in figure.mechanisms("own")]
    held = bool(figure.mechanisms(HELD))
    out, top = legend([*keys, (RATES_HELD, SLOTS[HELD])] if held else keys)
    several = len(figure.settings) > 1
    for setting in figure.settings:
        rounds = figure.configuration["num_rounds"][setting]
        for quantity, what in QUANTITIES.items():
            for box, (convention, title) in zip(row_of_boxes(top), CONVENTIONS.items(), strict=True):
                curves = [
                    _series(TITLES[name], SLOTS[name], figure, name, quantity, convention, setting)
                    for name in figure.mechanisms(convention)
                ]
                if held and convention == "own":
                    curves.append(_series(RATES_HELD, SLOTS[HELD], figure, "mppfl", quantity, HELD, setting))
                head = f"{SETTINGS[setting].title}: {what.lower()}" if several else what
                out += panel(
                    curves, box, f"{head}, {title}", AXES[figure.axis], f"money, {rounds} rounds", figure.places
                )
            top += ROW
    return whole(out, top - 16, f"{figure.name}: {_said(figure)}")


def _series(
    label: str, slot: int, figure: Figure, mechanism: str, quantity: str, convention: str, setting: str
) -> Line:
    values = figure.values(mechanism, quantity, convention=convention, setting=setting)
    low, middle, high = np.nanquantile(values, (0.1, 0.5, 0.9), axis=1)
    return Line(label, slot, np.asarray(figure.places, dtype=np.float64), middle, low, high)


def _bars(figure: Figure) -> Markup:
    """One quantity per data set and mechanism, one row per convention."""
    quantity = figure.strands[0].quantity
    out, top = legend([(TITLES[name], SLOTS[name]) for name in figure.mechanisms("own")], square=True)
    for convention, title in CONVENTIONS.items():
        names = figure.mechanisms(convention)
        spread = np.array(
            [np.quantile(figure.values(n, quantity, convention=convention), (0.1, 0.5, 0.9), axis=1) for n in names]
        )  # [mechanisms, percentiles, data sets]
        box = Box(MARGIN, top + 26, WIDTH - MARGIN - 8, 240)
        ticks = nice_ticks(min(0.0, float(spread.min())), max(0.0, float(spread.max())), 6)
        frame = draw.Frame(box.left, box.right, box.top, box.bottom, 0, len(figure.places), ticks[0], ticks[-1])
        out += _ground(box, frame, ticks, f"{QUANTITIES[quantity]}, {title}", "", "money, all rounds")
        for place, dataset in enumerate(figure.places):
            out += _group(frame, place, names, spread[:, :, place])
            rounds = figure.configuration["num_rounds"][dataset]
            harm = figure.configuration["noise_harm"][dataset]
            out.append(_text(frame.x(place + 0.5), box.bottom + 19, SETTINGS[dataset].title, "strong"))
            facts = f"T = {rounds}, ε = {plainly(f'{harm:.2g}')}"
            out.append(_text(frame.x(place + 0.5), box.bottom + 36, facts, "tick"))
        top = box.bottom + 54
    return whole(out, top, f"{figure.name}: {_said(figure)}")


def _group(frame: draw.Frame, place: int, names: Sequence[str], spread: Array) -> list[str]:
    """The bars of one data set, with whiskers."""
    out, zero = [], frame.y(0.0)
    step = 0.84 / len(names)
    for at, name in enumerate(names):
        low, middle, high = (frame.y(value) for value in spread[at].tolist())
        left, right = frame.x(place + 0.08 + at * step), frame.x(place + 0.08 + (at + 0.86) * step)
        centre = (left + right) / 2
        out.append(
            f'<rect class="bar" style="fill:var(--c{SLOTS[name]})" x="{left:.1f}" y="{min(zero, middle):.1f}" '
            f'width="{right - left:.1f}" height="{max(abs(zero - middle), 0.6):.1f}"><title>{escape(TITLES[name])}'
            f'</title></rect><path class="whisker" d="M{centre:.1f} {low:.1f}V{high:.1f}"/>'
        )
    return out


def _phi(figure: Figure) -> Markup:
    """φ₁ on one network, solved and to the letter; below, the distance from the equilibrium over all networks."""
    (setting,) = figure.settings
    rounds = figure.mechanisms("solved")
    sweeps = np.asarray(figure.places, dtype=np.float64)
    out, top = legend([(f"round {name}", slot) for slot, name in enumerate(rounds)])
    for box, version in zip(row_of_boxes(top), ("solved", "literal"), strict=True):
        curves = [
            Line(name, slot, sweeps, figure.values(name, "external_risk", convention=version, setting=setting)[:, 0])
            for slot, name in enumerate(rounds)
        ]
        title = "Rate solved in every sweep" if version == "solved" else "To the letter (peaks are cut off)"
        ticks = () if version == "solved" else (-0.5, 0, 0.5, 1, 1.5)
        out += panel(curves, box, title, AXES["sweep"], "φ₁ of one network, units of budget", [1, 5, 10, 15, 20], ticks)
    top += ROW
    box = Box(MARGIN, top + 26, WIDTH - MARGIN - 8, 230)
    curves = []
    for version in ("solved", "literal"):
        for slot, name in enumerate(rounds):
            far = figure.values(name, "distance", convention=version, setting=setting)
            low, middle, high = np.log10(np.maximum(np.nanquantile(far, (0.1, 0.5, 0.9), axis=1), FLOOR))
            curves.append(Line(f"{version}, {name}", slot, sweeps, middle, low, high))
    out += panel(
        curves,
        box,
        "Distance from the equilibrium, all networks",
        AXES["sweep"],
        "|φ₁ − φ₁*| / φ₁*",
        [1, 5, 10, 15, 20],
        range(-12, 3, 2),
        tick=_power_of_ten,
    )
    out.append(_text(box.right - 10, box.top + 20, "to the letter", "strong", "end"))
    out.append(_text(box.left + 0.42 * box.width, box.top + 0.5 * box.height, "rate solved", "strong", "start"))
    out.append(_text(box.left + 10, box.bottom - 12, "nearer than 10⁻¹² is rounding", "tick", "start"))
    return whole(out, box.bottom + 48, f"{figure.name}: {_said(figure)}")


# ---- panels and their parts ---------------------------------------------------------------------------------------


def row_of_boxes(top: float) -> tuple[Box, Box]:
    first = Box(MARGIN, top + 26)
    return first, Box(first.right + GAP + MARGIN, top + 26)


def panel(
    curves: Sequence[Line],
    box: Box,
    title: str,
    x_name: str,
    y_name: str,
    x_ticks: Sequence[float],
    ticks: Sequence[float] = (),
    tick: Callable[[float], str] = plainly,
) -> list[str]:
    """Axes, bands and curves. Without `ticks` the axis holds all values; with them, what lies beyond is cut off."""
    known = np.concatenate([np.concatenate([x for x in (c.y, c.low, c.high) if x is not None]) for c in curves])
    known = known[np.isfinite(known)]
    ticks = ticks or nice_ticks(float(known.min()), float(known.max()), 6)
    first, last = float(curves[0].x[0]), float(curves[0].x[-1])
    pad = 0.02 * (last - first)
    frame = draw.Frame(box.left, box.right, box.top, box.bottom, first - pad, last + pad, ticks[0], ticks[-1])
    out = _ground(box, frame, ticks, title, x_name, y_name, tick)
    out += [_text(frame.x(value), box.bottom + 18, plainly(value), "tick") for value in x_ticks]
    # A nested svg cuts what leaves the axes, with no names that two charts on one page could share.
    out.append(
        f'<svg aria-hidden="true" x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" viewBox="{box.left:.1f} {box.top:.1f} {box.width:.1f} {box.height:.1f}">'
    )
    out += ['<g class="bands">', *(draw.band_path(each, frame) for each in curves if each.low is not None), "</g>"]
    out += [draw.curve_path(each, frame) for each in reversed(curves)]  # the first, MPPFL, on top
    out.append("</svg>")
    return out


def _ground(
    box: Box,
    frame: draw.Frame,
    ticks: Sequence[float],
    title: str,
    x_name: str,
    y_name: str,
    tick: Callable[[float], str] = plainly,
) -> list[str]:
    out = [_text(box.left, box.top - 12, title, "title", "start")]
    for value in ticks:
        y = frame.y(value)
        line = "zero" if value == 0 and ticks[0] < 0 else "grid"
        out.append(f'<path class="{line}" d="M{box.left:.1f} {y:.1f}H{box.right:.1f}"/>')
        out.append(_text(box.left - 8, y + 4, tick(value), "tick", "end"))
    if x_name:
        out.append(_text((box.left + box.right) / 2, box.bottom + 38, x_name, "axis"))
    middle = (box.top + box.bottom) / 2
    out.append(
        f'<text class="axis" transform="translate({box.left - 68:.1f} {middle:.1f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_name)}</text>'
    )
    return out


def _power_of_ten(power: float) -> str:
    return "1" if power == 0 else "10" + f"{power:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _text(x: float, y: float, words: str, style: str, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def legend(keys: Sequence[tuple[str, int]], *, square: bool = False) -> tuple[list[str], float]:
    """Names beside their colour and dash, and where the first panel may begin."""
    out, x, y = [], 14.0, 24.0
    for name, slot in keys:
        width = (48 if square else 58) + 6.8 * len(name)
        if x + width > WIDTH:
            x, y = 14.0, y + 22
        mark = (
            f'<rect class="bar" style="fill:var(--c{slot})" x="{x + 8:.1f}" y="{y - 9:.1f}" width="12" height="12"/>'
            if square
            else f'<path class="curve" style="{draw.style_of(slot)}" d="M{x:.1f} {y - 4:.1f}h28"/>'
        )
        out += [mark, _text(x + (28 if square else 36), y, name, "axis", "start")]
        x += width
    return out, y + 20


def whole(out: Sequence[str], height: float, label: str) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" class="lines">'
    return Markup("\n".join([head, *out, "</svg>"]))


def _said(figure: Figure) -> str:
    """What the picture shows, for those who hear the page."""
    shown = ", ".join(TITLES.get(s, s) for s in dict.fromkeys(strand.mechanism for strand in figure.strands))
    return f"{shown} along {figure.axis}, median of {figure.seeds} seeds with the tenth to the ninetieth percentile"
