"""Chart: what a figure shows, apart from how it is drawn: chart_plotly.py for the page, chart_files.py for papers.

Every axis has a name and a unit: a chart without them cannot be made.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.text import number

# Okabe & Ito's colours, in the orders in which they stand out from a white and from a dark page.
ON_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
ON_DARK = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#0072B2")


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
    """One curve, and the band around it where there is one. NaN is a gap."""

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise BadInput(f"line {self.name!r} has one end of a band. Give low and high, or neither.")
        for name in ("x", "y", "low", "high"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(getattr(self, name), f"{name} of {self.name!r}", len(self.x)))


@dataclass(frozen=True, eq=False, slots=True)
class Bars:
    """One group of bars, a value for each label of the chart; NaN where it is not known."""

    name: str
    values: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _numbers(self.values, f"values of {self.name!r}", len(self.values)))


@dataclass(frozen=True, eq=False, slots=True)
class Points:
    """A cloud of points, each with its own name."""

    name: str
    x: Array
    y: Array
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            object.__setattr__(self, name, _numbers(getattr(self, name), f"{name} of {self.name!r}", len(self.labels)))


@dataclass(frozen=True, eq=False, slots=True)
class Chart:
    """Lines, bars or points: one of the three.

    key     stable name of the figure: the page keeps a reader's zoom by it, files are called by it
    labels  of the bars, from the top; x is then the axis of their values and y says what the labels are
    at      a place on the x axis to be marked, such as the round shown
    note    what must be read beside the figure: what was left out, sampled or not known
    """

    key: str
    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    bars: tuple[Bars, ...] = ()
    labels: tuple[str, ...] = ()
    points: tuple[Points, ...] = ()
    at: float | None = None
    note: str = field(default="")

    def __post_init__(self) -> None:
        if not self.key or not self.title.strip():
            raise BadInput(f"chart key={self.key!r}, title={self.title!r}: give both.")
        if sum(map(bool, (self.lines, self.bars, self.points))) > 1:
            raise BadInput(f"chart {self.key!r} mixes lines, bars and points. Make one chart of each.")
        for group in self.bars:
            if len(group.values) != len(self.labels):
                raise BadInput(f"bars {group.name!r} have {len(group.values)} values for {len(self.labels)} labels.")

    @property
    def x_name(self) -> str:
        """Name and unit."""
        return self.x.label

    @property
    def y_name(self) -> str:
        """Name and unit."""
        return self.y.label

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        drawn = [line.y for line in self.lines] + [group.values for group in self.bars] + [p.y for p in self.points]
        return not any(np.isfinite(values).any() for values in drawn)


def band_opacity(chart: Chart) -> float:
    """How strong a band is drawn: the more lie over each other, the fainter."""
    return 0.18 if sum(line.low is not None for line in chart.lines) <= 2 else 0.07


def in_words(chart: Chart) -> str:
    """The figure in a sentence or two, for those who hear the page."""
    if chart.is_empty:
        return f"{chart.title}: nothing to show yet. {chart.note}".strip()
    said = [
        *(f"{line.name} from {_ends(line.y)}" for line in chart.lines),
        *(f"{group.name}: {_range(group.values)} over {len(group.values)} bars" for group in chart.bars),
        *(f"{len(cloud.labels):,} points {cloud.name}" for cloud in chart.points),
    ]
    return f"{chart.title}. {chart.y_name} against {chart.x_name}: {'; '.join(said)}. {chart.note}".strip()


def chart_csv(chart: Chart) -> str:
    """All values, one line each, under headings with units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if chart.bars:
        writer.writerow([chart.y.name, "group", chart.x_name])
        for group in chart.bars:
            writer.writerows(zip(chart.labels, [group.name] * len(chart.labels), _cells(group.values), strict=True))
    elif chart.points:
        writer.writerow(["name", "group", chart.x_name, chart.y_name])
        for cloud in chart.points:
            groups = [cloud.name] * len(cloud.labels)
            writer.writerows(zip(cloud.labels, groups, _cells(cloud.x), _cells(cloud.y), strict=True))
    else:
        writer.writerow(["line", chart.x_name, chart.y_name, "band from", "band to"])
        for line in chart.lines:
            ends = [[""] * len(line.x) if values is None else _cells(values) for values in (line.low, line.high)]
            writer.writerows(zip([line.name] * len(line.x), _cells(line.x), _cells(line.y), *ends, strict=True))
    return text.getvalue()


def chart_json(chart: Chart) -> str:
    """All values and words as one object; null is not known, "inf" infinite."""
    found: dict[str, Any] = {
        "key": chart.key,
        "title": chart.title,
        "x": {"name": chart.x.name, "unit": chart.x.unit},
        "y": {"name": chart.y.name, "unit": chart.y.unit},
        "note": chart.note,
    }
    if chart.bars:
        found["labels"] = chart.labels
        found["bars"] = [{"name": group.name, "values": _plain(group.values)} for group in chart.bars]
    elif chart.points:
        found["points"] = [
            {"name": cloud.name, "labels": cloud.labels, "x": _plain(cloud.x), "y": _plain(cloud.y)}
            for cloud in chart.points
        ]
    else:
        found["lines"] = [
            {"name": line.name}
            | {
                part: _plain(values)
                for part in ("x", "y", "low", "high")
                if (values := getattr(line, part)) is not None
            }
            for line in chart.lines
        ]
    return json.dumps(found, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _numbers(values: Any, what: str, length: int) -> Array:
    array = np.array(values, dtype=np.float64)
    if array.shape != (length,):
        raise BadInput(f"{what} have shape {array.shape}, not ({length},).")
    array.setflags(write=False)
    return array


def _cells(values: Array) -> list[str]:
    return ["" if math.isnan(value) else repr(value) for value in values.tolist()]


def _plain(values: Array) -> list[float | str | None]:
    return [value if math.isfinite(value) else None if math.isnan(value) else str(value) for value in values.tolist()]


def _ends(values: Array) -> str:
    known = values[np.isfinite(values)]
    return f"{number(known[0])} to {number(known[-1])}" if len(known) else "nothing known"


def _range(values: Array) -> str:
    known = values[np.isfinite(values)]
    return f"{number(known.min())} to {number(known.max())}" if len(known) else "nothing known"
