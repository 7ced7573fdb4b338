"""Charts: one description of a figure, for a page that draws it or by Matplotlib into a file; colours; alt text.

Every axis has a name and a unit: a chart without them cannot be made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadInput
from mppfl.text import finite, number

# ---- colours -------------------------------------------------------------------------------------------------------

# Okabe & Ito's colours, darker where paper needs it; --c0 to --c7 of the pages' style sheets are the same.
ON_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b8569a", "#c98a00", "#3a9bd9", "#5d5d5d", "#948600")
DASHES = ("", "9 4", "3 3", "12 4 3 4", "6 2 2 2", "1 4", "14 3", "5 5")  # lengths of strokes and gaps, pixels
VIRIDIS = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
# Colour and dash of each mechanism, the same on every page. From 8 on, colours repeat with another dash.
MECHANISM_SLOTS = {
    "mppfl": 0,
    "social_agnostic": 1,
    "dp_fedavg": 2,
    "sarda_like": 3,
    "sarda_r": 4,
    "mppfl_noise_aware": 5,
    "random": 6,
    "mppfl_exact": 7,
    "budget_limited": 8,
    "pigouvian": 10,
    "personalised": 11,
    "mppfl_secure_sum": 12,
    "personalised_secure_sum": 13,
    "noiseless": 14,
}


def slots_of(mechanisms: Sequence[str]) -> list[int]:
    """The slot of each run: its mechanism's, or a free one where the mechanism is unknown or comes again."""
    first = {name: MECHANISM_SLOTS[name] for name in mechanisms if name in MECHANISM_SLOTS}
    taken = set(first.values())
    free = (slot for slot in itertools.count() if slot not in taken)
    return [first.pop(name) if name in first else next(free) for name in mechanisms]


def colour_of(slot: int) -> str:
    """The colour of a slot on paper."""
    return ON_LIGHT[slot % len(ON_LIGHT)]


def dash_of(slot: int) -> str:
    """Strokes and gaps of a slot's line as SVG writes them; "" for a solid line."""
    return DASHES[(slot + slot // len(ON_LIGHT)) % len(DASHES)]


def mixed_colours(shares: Array, scale: Sequence[str]) -> list[str]:
    """A colour for each share from 0 to 1, mixed from the two nearest of the scale."""
    parts = np.array([[int(colour[part : part + 2], 16) for part in (1, 3, 5)] for colour in scale], dtype=np.float64)
    places = np.clip(shares, 0.0, 1.0) * (len(scale) - 1)
    red, green, blue = (
        np.rint(np.interp(places, np.arange(len(scale)), column)).astype(np.int64) for column in parts.T
    )
    return [f"#{colour:06x}" for colour in ((red << 16) | (green << 8) | blue).tolist()]


# ---- one description of a figure -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis measures, and in what; `log` for powers of ten."""

    name: str
    unit: str
    log: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.unit.strip():
            raise BadInput(
                f"axis name={self.name!r}, unit={self.unit!r}: give both, such as 'reward rate' and 'money'."
            )

    @property
    def label(self) -> str:
        """As it stands beside the axis."""
        return f"{self.name} ({self.unit})"


ROUNDS = Axis("round", "number")


@dataclass(frozen=True, eq=False, slots=True)
class Line:
    """One curve in the colour and dash of its slot, and the band around it where there is one. NaN is a gap.

    With `labels` it is a cloud of points instead, each with its own name.
    """

    name: str
    slot: int
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise BadInput(f"line {self.name!r} has one end of a band. Give low and high, or neither.")
        _keep_numbers(self, len(self.labels or self.x), "x", "y", "low", "high")


@dataclass(frozen=True, eq=False, slots=True)
class Bars:
    """One group of bars, a value for each label of the chart, NaN where it is not known; `spread` is a whisker's."""

    name: str
    slot: int
    values: Array
    spread: Array | None = None

    def __post_init__(self) -> None:
        _keep_numbers(self, len(self.values), "values", "spread")


@dataclass(frozen=True, eq=False, slots=True)
class Chart:
    """Lines or bars.

    key          stable name of the figure; the page keeps a reader's zoom by it
    labels       of the bars, from the top; x is then the axis of their values and y says what the labels are
    label_slots  the colour of each label, where bars are coloured by what they stand for; () for one colour a group
    marked       a value on the x axis to be marked, such as the round shown
    note         what must be read beside the figure: what was left out, sampled or not known
    """

    key: str
    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    bars: tuple[Bars, ...] = ()
    labels: tuple[str, ...] = ()
    label_slots: tuple[int, ...] = ()
    marked: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not self.key or not self.title.strip():
            raise BadInput(f"chart key={self.key!r}, title={self.title!r}: give both.")
        if self.lines and self.bars:
            raise BadInput(f"chart {self.key!r} mixes lines and bars. Make one chart of each.")
        for group in self.bars:
            if len(group.values) != len(self.labels):
                raise BadInput(f"bars {group.name!r} have {len(group.values)} values for {len(self.labels)} labels.")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        values = [line.y for line in self.lines] + [group.values for group in self.bars]
        return not any(np.isfinite(array).any() for array in values)


def mechanism_chart(
    key: str, title: str, axis: Axis, mechanisms: Sequence[str], bars: tuple[Bars, ...], note: str = ""
) -> Chart:
    """Bars side by side for each mechanism, in its colour."""
    labels = tuple(name.replace("_", " ") for name in mechanisms)
    slots = tuple(MECHANISM_SLOTS.get(name, 0) for name in mechanisms)
    return Chart(key, title, axis, Axis("mechanism", "name"), bars=bars, labels=labels, label_slots=slots, note=note)


def _keep_numbers(group: Line | Bars, length: int, *names: str) -> None:
    """Makes the arrays of a line or bars, as far as there are any, read-only numbers of this length."""
    for name in names:
        if (values := getattr(group, name)) is None:
            continue
        array = np.array(values, dtype=np.float64)
        if array.shape != (length,):
            raise BadInput(f"{name} of {group.name!r} have shape {array.shape}, not ({length},).")
        array.setflags(write=False)
        object.__setattr__(group, name, array)


def in_words(chart: Chart) -> str:
    """The alt text of a chart: its title, its axes, and where each line, bar or cloud lies."""
    if chart.is_empty:
        return f"{chart.title}: nothing to show yet."
    parts = [
        *(f"{line.name} {first_and_last(line.y)}" for line in chart.lines if not line.labels),
        *(f"{len(cloud.labels):,} points {cloud.name}" for cloud in chart.lines if cloud.labels),
        *(f"{group.name} {_least_and_most(group.values)} over {len(group.values)} bars" for group in chart.bars),
    ]
    return f"{chart.title}. {chart.y.label} against {chart.x.label}: {'; '.join(parts)}."


def first_and_last(values: Array, tick: Callable[[float], str] = number) -> str:
    """Where a curve begins and ends, in words."""
    known = finite(values)
    return f"from {tick(known[0])} to {tick(known[-1])}" if len(known) else "not known"


def _least_and_most(values: Array) -> str:
    known = finite(values)
    return f"between {number(known.min())} and {number(known.max())}" if len(known) else "not known"


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    if not high > low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def cut(label: str, most: int) -> str:
    """A label of at most so many letters, with an ellipsis where some are missing."""
    return label if len(label) <= most else label[: most - 1] + "…"


# ---- for a page, whose script draws it by Plotly -------------------------------------------------------------------

MOST_POINTS = 2000  # of a line that are sent to the browser


def for_page(chart: Chart) -> dict[str, Any]:
    """The chart as JSON, which the explorer's charts.js draws in the page's colours: lines thinned, gaps as null."""
    lines = []
    for line in chart.lines:
        kept, arrays = thinned(line.y), {"x": line.x, "y": line.y, "low": line.low, "high": line.high}
        values = {name: None if array is None else _values(array[kept]) for name, array in arrays.items()}
        said = {"name": line.name, "slot": line.slot, "dash": dash_of(line.slot), "labels": line.labels}
        lines.append(said | values)
    return {
        **{name: getattr(chart, name) for name in ("key", "title", "labels", "label_slots", "marked", "note")},
        "x": asdict(chart.x),
        "y": asdict(chart.y),
        "lines": lines,
        "bars": [{"name": bars.name, "slot": bars.slot, "values": _values(bars.values)} for bars in chart.bars],
        "words": in_words(chart),
        "empty": chart.is_empty,
    }


def thinned(values: Array, most: int = MOST_POINTS) -> IntArray:
    """Positions of at most `most` values that draw the same curve: first, last, and both extremes of every piece."""
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
    kept = np.unique(np.concatenate([[0, len(values) - 1], lowest, highest]))
    return np.asarray(kept[kept < len(values)])


def _values(values: Array) -> list[float | None]:
    """As JSON can say them: what is infinite or not known is a gap."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


# ---- for a file, by Matplotlib -------------------------------------------------------------------------------------


def write_figure(charts: Sequence[Chart], path: str | Path, columns: int = 2) -> None:
    """Charts of bars, so many side by side, as .png, .pdf or .svg by the ending of the path."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = math.ceil(len(charts) / columns)
    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(5 * columns, 3.4 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for panel, chart in zip(panels.flat, charts, strict=False):
            _draw_bars(panel, chart)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def _draw_bars(panel: Any, chart: Chart) -> None:
    thickness = 0.8 / max(1, len(chart.bars))
    for position, group in enumerate(chart.bars):
        whiskers = {"xerr": group.spread, "ecolor": "#555555", "capsize": 2} if group.spread is not None else {}
        panel.barh(
            np.arange(len(chart.labels)) + (position - (len(chart.bars) - 1) / 2) * thickness,
            group.values,
            thickness,
            color=[colour_of(slot) for slot in chart.label_slots] or colour_of(group.slot),
            label=group.name,
            **whiskers,
        )
    panel.set_yticks(range(len(chart.labels)), chart.labels)
    panel.invert_yaxis()
    panel.axvline(0, color="#555555", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(chart.title, loc="left")
    panel.set_xlabel(chart.x.label)
