"""Accuracy round by round (Appendix E, CIFAR-100's three figures): curves from the cells' files, and what they show.

The paper says two things about its curves: MPPFL stays close to SA under every split, and DP-FedAvg and SARDA stay
below. Both are judged on the second half of the rounds, where accuracy has settled, and for every data set on file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mppfl.arrays import Array
from reproduction.cells import Cell
from reproduction.choice import settings_of
from reproduction.claims import Finding, judged
from reproduction.store import Measured, seeds_on_file
from reproduction.tables import COLUMNS, JUDGED, MPPFL_WITHIN, of_aggregation
from reproduction.units import within

SPLITS = ("dir0.3", "dir0.6", "iid")  # as the paper orders them
CLIENTS = 20
BELOW = ("sarda_like", "fixed-min", "fixed-mean")


@dataclass(frozen=True, eq=False, slots=True)
class Curves:
    """One cell's accuracies, noise-aware weights, of seeds that have all judged mechanisms, if any has.

    rounds   that were evaluated, the same for all
    by_seed  accuracy in them, 0 to 1, by mechanism and seed; a mechanism may lack some seeds
    """

    dataset: str
    partition: str
    rounds: Array
    by_seed: Mapping[str, Mapping[int, Array]]

    @property
    def percent(self) -> dict[str, Array]:
        """Each mechanism's mean accuracy in percent over the seeds it has: to be shown, not to be compared."""
        return {name: _mean_percent(seeds.values()) for name, seeds in self.by_seed.items()}

    @property
    def settled(self) -> Array:
        """Which rounds count: those of the second half."""
        return np.asarray(self.rounds > self.rounds[-1] / 2)

    def side_by_side(self, first: str, second: str) -> tuple[Array, Array] | None:
        """Two mechanisms' percents over the seeds that both have, in rounds that count; None where there is none."""
        one, other = self.by_seed.get(first, {}), self.by_seed.get(second, {})
        shared = [seed for seed in one if seed in other]
        if not shared:
            return None
        ours, theirs = (_mean_percent([found[seed] for seed in shared])[self.settled] for found in (one, other))
        return ours, theirs


def read_curves(folder: Path) -> list[Curves]:
    """Curves of all cells with 20 clients that have any."""
    found = []
    for dataset, setting in settings_of(folder).items():
        for partition in SPLITS:
            several = seeds_on_file(folder, Cell(dataset, partition, CLIENTS, 0), setting)
            every = {seed: of_aggregation(each, "noise_aware") for seed, each in several.items()}
            seeds = {seed: each for seed, each in every.items() if set(JUDGED) <= set(each)} or every
            curves = _joined(dataset, partition, seeds)
            if curves is not None:
                found.append(curves)
    return found


def _joined(dataset: str, partition: str, seeds: Mapping[int, Mapping[str, Measured]]) -> Curves | None:
    some = next((arms[name] for name in COLUMNS for arms in seeds.values() if name in arms), None)
    if some is None:
        return None
    rounds = np.asarray(some.curve["round"], dtype=np.float64)
    by_seed = {
        name: {
            seed: np.asarray(arms[name].curve["accuracy"], dtype=np.float64)
            for seed, arms in seeds.items()
            if name in arms and arms[name].curve["round"] == some.curve["round"]
        }
        for name in COLUMNS
    }
    return Curves(dataset, partition, rounds, {name: found for name, found in by_seed.items() if found})


def _mean_percent(curves: Iterable[Array]) -> Array:
    return np.asarray(100 * np.mean(list(curves), axis=0))


def stays_close(curves: Curves) -> Finding | None:
    """Whether MPPFL stays within a point of SA; None where no seed has both."""
    both = curves.side_by_side("social_agnostic", "mppfl")
    if both is None:
        return None
    apart = both[0] - both[1]
    mean, largest = float(apart.mean()), float(np.abs(apart).max())
    reason = f"MPPFL lies {mean:.2f} points below SA on average, {largest:.2f} away at most".replace("-", "−")
    condition = "on average over the rounds" if within(mean, MPPFL_WITHIN) else ""
    return judged(reason, within(largest, MPPFL_WITHIN), condition)


def others_stay_below(curves: Curves) -> Finding | None:
    """Whether SARDA-like and DP-FedAvg lie below MPPFL in every round, each over the seeds that it shares with MPPFL.

    None where one of them shares none.
    """
    counts = {}
    for name in BELOW:
        both = curves.side_by_side(name, "mppfl")
        if both is None:
            return None
        counts[name] = int((both[0] < both[1]).sum())
    rounds = int(curves.settled.sum())
    told = "; ".join(f"{COLUMNS[name][0]}: {count}" for name, count in counts.items())
    reason = f"rounds of {rounds} below MPPFL: {told}"
    lost = [name for name in BELOW if counts[name] < rounds]
    only_one = len(lost) == 1 and lost != ["sarda_like"]
    return judged(reason, not lost, f"not {COLUMNS[lost[0]][0]}" if only_one else "")
