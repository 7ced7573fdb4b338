"""A figure's numbers and its file: configuration, series of every seed, provenance; one small JSON file each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadFile, BadInput

FORMAT = 1
DIGITS = 6  # more than a chart or a comparison of mechanisms needs; fewer than those in which machines may differ


@dataclass(frozen=True, eq=False, slots=True)
class Strand:
    """One quantity of one mechanism along a figure's axis, for every seed.

    setting     data set whose rounds and noise harm were played; "" where the axis itself runs over data sets
    convention  who sets the reward rate; "" where that means nothing
    values      [places on the axis, seeds]; NaN where there is no value
    """

    setting: str
    convention: str
    mechanism: str
    quantity: str
    values: Array

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.setting, self.convention, self.mechanism, self.quantity


@dataclass(frozen=True, eq=False, slots=True)
class Figure:
    """Everything that a chart of a figure and a verdict on it need.

    axis   what runs along x: "data set", "α", "K", "N" or "sweep"; `places` are its values
    """

    name: str
    configuration: Mapping[str, Any]
    seeds: int
    axis: str
    places: Sequence[Any]
    strands: Sequence[Strand]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        for strand in self.strands:
            if strand.values.shape != (len(self.places), self.seeds):
                raise BadInput(
                    f"{self.name}: {strand.key} has values of shape {strand.values.shape}, not "
                    f"{(len(self.places), self.seeds)}, one for each place and seed."
                )

    def values(self, mechanism: str, quantity: str, *, convention: str = "", setting: str = "") -> Array:
        """[places, seeds] of one strand."""
        wanted = (setting, convention, mechanism, quantity)
        for strand in self.strands:
            if strand.key == wanted:
                return strand.values
        raise BadInput(f"{self.name} has no strand {wanted}. Make the figure anew.")

    def mechanisms(self, convention: str) -> list[str]:
        """The mechanisms played under a convention, in the order of the file."""
        return list(dict.fromkeys(s.mechanism for s in self.strands if s.convention == convention))

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(strand.setting for strand in self.strands))


def figure_path(folder: str | Path, name: str) -> Path:
    """Where a figure lies."""
    return Path(folder) / f"{name}.json"


def write_figure(folder: str | Path, figure: Figure) -> Path:
    """Writes the figure's file in one step: whole, or the old one untouched."""
    from mppfl.files import write_whole

    path = figure_path(folder, figure.name)
    write_whole(path, _text(figure).encode())
    return path


def read_figure(folder: str | Path, name: str) -> Figure | None:
    """The figure as its file has it; None where it was not made yet. Refuses what is no such file."""
    path = figure_path(folder, name)
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != FORMAT or content["figure"] != name:
            raise ValueError(f"figure {content['figure']!r} of format {content['format']}")
        return Figure(
            name=name,
            configuration=content["configuration"],
            seeds=content["seeds"],
            axis=content["axis"],
            places=content["places"],
            strands=[_strand(each) for each in content["strands"]],
            provenance=content["provenance"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadFile(f"{path}: not a figure that this version reads ({cause}). Make it anew.") from cause


def _strand(content: Mapping[str, Any]) -> Strand:
    values = np.array([[math.nan if v is None else v for v in row] for row in content["values"]], dtype=np.float64)
    return Strand(content["setting"], content["convention"], content["mechanism"], content["quantity"], values)


def _text(figure: Figure) -> str:
    """JSON with one line for each strand, so that a change shows where it is."""
    head = {
        "figure": figure.name,
        "format": FORMAT,
        "configuration": dict(figure.configuration),
        "seeds": figure.seeds,
        "axis": figure.axis,
        "places": list(figure.places),
    }
    lines = [f' "{key}": {json.dumps(value, ensure_ascii=False)},' for key, value in head.items()]
    strands = []
    for strand in figure.strands:
        names = dict(zip(("setting", "convention", "mechanism", "quantity"), strand.key, strict=True))
        values = [[_rounded(value) for value in row] for row in strand.values.tolist()]
        strands.append("  " + json.dumps(names | {"values": values}, ensure_ascii=False, separators=(",", ":")))
    lines += [' "strands": [', ",\n".join(strands), " ],"]
    lines.append(f' "provenance": {json.dumps(dict(figure.provenance), ensure_ascii=False)}')
    return "{\n" + "\n".join(lines) + "\n}\n"


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    figure = float(f"{value:.{DIGITS}g}")
    return int(figure) if figure == int(figure) and abs(figure) < 1e15 else figure
