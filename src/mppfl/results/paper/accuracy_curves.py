"""Accuracy round by round (Appendix E, CIFAR-100's three figures): curves from the cells' files, and what they show.

The paper says two things about its curves: MPPFL stays close to SA under every split, and DP-FedAvg and SARDA stay
below. Both are judged on the second half of the rounds, where accuracy has settled, and for every data set on file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mppfl.arrays import Array
from mppfl.results.paper.cells import Cell
from mppfl.results.paper.claims import Finding
from mppfl.results.paper.settings import SETTINGS, Setting
from mppfl.results.paper.store import Measured
from mppfl.results.paper.tables import COLUMNS, JUDGED, MPPFL_WITHIN, of_aggregation, seeds_on_file

SPLITS = ("dir0.3", "dir0.6", "iid")  # as the paper orders them
CLIENTS = 20
BELOW = ("sarda_like", "fixed-min", "fixed-mean")


@dataclass(frozen=True, eq=False, slots=True)
class Curves:
    """One cell's accuracies, noise-aware weights, mean over seeds that have all judged mechanisms, if any has.

    rounds    that were evaluated, the same for all
    percent   accuracy in them, by mechanism
    """

    dataset: str
    partition: str
    rounds: Array
    percent: Mapping[str, Array]

    @property
    def settled(self) -> Array:
        """Which rounds count: those of the second half."""
        return np.asarray(self.rounds > self.rounds[-1] / 2)


def read_curves(folder: Path, settings: Mapping[str, Setting] = SETTINGS) -> list[Curves]:
    """Curves of all cells with 20 clients that have any."""
    found = []
    for dataset, setting in settings.items():
        for partition in SPLITS:
            several = seeds_on_file(folder, Cell(dataset, partition, CLIENTS, 0), setting).values()
            every = [of_aggregation(each, "noise_aware") for each in several]
            arms = [each for each in every if set(JUDGED) <= set(each)] or every
            curves = _joined(dataset, partition, {name: [a[name] for a in arms if name in a] for name in COLUMNS})
            if curves is not None:
                found.append(curves)
    return found


def _joined(dataset: str, partition: str, arms: Mapping[str, list[Measured]]) -> Curves | None:
    some = next((found[0] for found in arms.values() if found), None)
    if some is None:
        return None
    rounds = np.asarray(some.curve["round"], dtype=np.float64)
    alike = {
        name: [each.curve["accuracy"] for each in found if each.curve["round"] == some.curve["round"]]
        for name, found in arms.items()
    }
    percent = {name: 100 * np.mean(several, axis=0) for name, several in alike.items() if several}
    return Curves(dataset, partition, rounds, percent)


def stays_close(curves: Curves) -> Finding | None:
    """Whether MPPFL stays within a point of SA; None where one of them is not measured."""
    if not {"mppfl", "social_agnostic"} <= set(curves.percent):
        return None
    apart = (curves.percent["social_agnostic"] - curves.percent["mppfl"])[curves.settled]
    mean, largest = float(apart.mean()), float(np.abs(apart).max())
    reason = f"MPPFL lies {mean:.2f} points below SA on average, {largest:.2f} away at most".replace("-", "−")
    if largest <= MPPFL_WITHIN:
        return Finding("reproduced", "", reason)
    if abs(mean) <= MPPFL_WITHIN:
        return Finding("under a stated condition", "on average over the rounds", reason)
    return Finding("not reproduced", "", reason)


def others_stay_below(curves: Curves) -> Finding | None:
    """Whether SARDA-like and DP-FedAvg lie below MPPFL in every round; None where one of them is not measured."""
    if not {"mppfl", *BELOW} <= set(curves.percent):
        return None
    rounds = int(curves.settled.sum())
    counts = {name: int((curves.percent[name] < curves.percent["mppfl"])[curves.settled].sum()) for name in BELOW}
    told = "; ".join(f"{COLUMNS[name][0]}: {count}" for name, count in counts.items())
    reason = f"rounds of {rounds} below MPPFL: {told}"
    kept = [name for name in BELOW if counts[name] == rounds]
    if len(kept) == len(BELOW):
        return Finding("reproduced", "", reason)
    if "sarda_like" in kept and len(kept) > 1:
        lost = next(COLUMNS[name][0] for name in BELOW if name not in kept)
        return Finding("under a stated condition", f"not {lost}", reason)
    return Finding("not reproduced", "", reason)
