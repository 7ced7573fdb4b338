"""status: which cells are measured, in part or not at all, which cannot be here, and how long the rest will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mppfl.data import KNOWN, VARIABLE, find_files, what_is_missing
from reproduction.cells import CELLS, NOISELESS, ArmName, Cell, arms_of
from reproduction.choice import CHOICE_ROUNDS, missing_variants, settings_of
from reproduction.in_flight import count_in_flight
from reproduction.measure import missing_arms, seconds_per_arm
from reproduction.settings import SETTINGS, Setting
from reproduction.store import NO_DATA, NO_FILES, NOT_TRAINED, every_training, is_unavailable, read_trials
from reproduction.units import SA, next_trials, place_of_unit, reusable, units_of

State = Literal["measured", "partly", "missing", "not measurable"]
IN_PART = "files here in part"


@dataclass(frozen=True, slots=True)
class CellStatus:
    """Where one cell stands.

    state   missing: not yet trained, whether the files are here or not; not measurable: the data could not be had
    hours   of what is left, on the device of the others; None where nothing tells
    """

    cell: Cell
    state: State
    measured: int
    arms: int
    hours: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """All cells, the trials that units still need, and variants of what the paper leaves open.

    device, precision  of most of what is measured, for which hours are estimated; "" where nothing is
    unit_trials        by data set, at least: each round of trials decides whether another is needed
    variants           by data set where any are left, of norm and augmentation
    not_here           by data set that is needed and has not all files here: what to do, in one line
    """

    cells: tuple[CellStatus, ...]
    device: str
    precision: str
    unit_trials: dict[str, int]
    unit_hours: float | None
    variants: dict[str, int]
    variant_hours: float | None
    not_here: dict[str, str]

    @property
    def hours_left(self) -> float | None:
        """Of all that is not measured, whether its data are here or not; None where nothing tells."""
        return _all_hours([*(each.hours for each in self.cells), self.unit_hours, self.variant_hours])

    def count(self, state: State) -> int:
        return sum(each.state == state for each in self.cells)

    def as_dict(self) -> dict[str, Any]:
        counts = {state: self.count(state) for state in get_args(State)}
        cells = [asdict(each) | {"cell": each.cell.path} for each in self.cells]
        return asdict(self) | {"counts": counts, "hours_left": self.hours_left, "cells": cells}


def status(
    folder: str | Path = "reproduction/results",
    *,
    data: str | Path | None = None,
    cells: Sequence[Cell] = CELLS,
    settings: Mapping[str, Setting] = SETTINGS,
) -> Status:
    """What the files say of the cells, and whether the data of the others are in `data` (default: MPPFL_DATA)."""
    place = Path(folder)
    settings = settings_of(place, settings)
    device, precision = _usual_device(place)
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    lacking = {name: _lacking(name, data) for name in datasets}
    seconds = {name: seconds_per_arm(place, settings[name], device, precision) for name in datasets}
    found = [
        _status_of(place, cell, settings[cell.dataset], lacking[cell.dataset], seconds[cell.dataset]) for cell in cells
    ]
    undone = {each.cell.dataset for each in found if each.state != "measured"}
    trials = {
        name: len(next_trials(name, read_trials(place, place_of_unit(name), settings[name])))
        for name in datasets
        if name in undone
    }
    variants = {name: count for name in trials if (count := len(missing_variants(place, settings[name])))}
    of_units = _all_hours([_hours(count, seconds[name]) for name, count in trials.items()])
    parts = {name: min(1.0, CHOICE_ROUNDS / settings[name].num_rounds) for name in variants}
    of_variants = _all_hours([_hours(count * parts[name], seconds[name]) for name, count in variants.items()])
    not_here = {name: _what_to_do(place, name, data) for name in trials if lacking[name]}
    return Status(tuple(found), device, precision, trials, of_units, variants, of_variants, not_here)


def remedy(dataset: str) -> str:
    """How the files of a data set come here."""
    return (
        f"Give --data DIR or set {VARIABLE} to the folder of the official files ({KNOWN[dataset].source}), or install "
        f"mppfl[hub] and run `mppfl data get {dataset} --folder DIR`."
    )


def _lacking(dataset: str, data: str | Path | None) -> str:
    """What is wrong with the data set's files here; "" where all are there."""
    found = find_files(dataset, data)
    return NO_FILES if found is None else IN_PART if found.missing else ""


def _what_to_do(folder: Path, dataset: str, data: str | Path | None) -> str:
    found = find_files(dataset, data)
    if found is not None:
        return f"{what_is_missing(dataset, found)}. {remedy(dataset)}"
    return f"{dataset}: {NO_DATA if is_unavailable(folder, dataset) else NO_FILES}. {remedy(dataset)}"


def _status_of(folder: Path, cell: Cell, setting: Setting, lacking: str, seconds: float | None) -> CellStatus:
    arms, missing = len(arms_of(cell)), missing_arms(folder, cell, setting)
    measured = arms - len(missing)
    if not missing:
        return CellStatus(cell, "measured", measured, arms, 0.0, "")
    hours = _hours(len(missing) - len(_from_trials(folder, cell, setting, missing)), seconds)
    waiting = count_in_flight(folder, cell, setting, missing)
    begun = f"{waiting} arms stopped before their end" if waiting else ""
    state: State = "missing"
    if measured:
        state, reasons = "partly", [lacking, begun]
    elif lacking and is_unavailable(folder, cell.dataset):
        state, reasons = "not measurable", [NO_DATA, begun]
    else:
        reasons = [NOT_TRAINED, lacking, begun]
    return CellStatus(cell, state, measured, arms, hours, "; ".join(filter(None, reasons)))


def _from_trials(folder: Path, cell: Cell, setting: Setting, missing: Sequence[ArmName]) -> list[ArmName]:
    """Of the arms that the unit's cell lacks, those that trials of the unit are, which are counted by themselves.

    A unit that the protocol fixed, because training without noise stays below the paper, may have no trial of SA.
    """
    if cell != place_of_unit(cell.dataset):
        return []
    trials = read_trials(folder, cell, setting)
    fixed = units_of(cell.dataset, trials)
    there = {each.arm for each in reusable(cell.dataset, trials)}
    return [
        arm
        for arm in missing
        if arm in there or arm == NOISELESS or (arm.mechanism == SA and arm.aggregation not in fixed)
    ]


def _all_hours(hours: Sequence[float | None]) -> float | None:
    return None if None in hours else sum(each for each in hours if each is not None)


def _hours(arms: float, seconds: float | None) -> float | None:
    return 0.0 if arms == 0 else None if seconds is None else arms * seconds / 3600


def _usual_device(folder: Path) -> tuple[str, str]:
    """Device and precision on which most arms were trained."""
    counted = Counter((each.device, each.precision) for _, each in every_training(folder))
    return counted.most_common(1)[0][0] if counted else ("", "")
