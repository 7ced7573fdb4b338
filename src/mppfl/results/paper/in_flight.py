"""Trainings that were stopped before their end: a checkpoint of each, from which the next run goes on.

    <folder>/in-flight/<source>-<device>-<precision>/<cell>-<arm>-<unit>.npz

They lie apart by source, device and precision, because an arm is a measurement of one code on one kind of machine.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mppfl.errors import BadFile
from mppfl.learning.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from mppfl.results.paper.cells import Cell
from mppfl.results.paper.units import Job
from mppfl.results.provenance import Provenance

FOLDER = "in-flight"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Where one code keeps them on one kind of device."""

    place: Path

    def path(self, cell: Cell, job: Job) -> Path:
        arm, unit = job
        return self.place / f"{cell.name}-{arm.mechanism}-{arm.aggregation}-{'noiseless' if unit is None else unit}.npz"

    def waiting(self, cell: Cell, jobs: Sequence[Job]) -> list[Job]:
        """Those of the jobs that have been stopped after the same round, with the first such; none where none was."""
        rounds = {job: found.rounds_done for job in jobs if (found := self.checkpoint(cell, job)) is not None}
        return [job for job, done in rounds.items() if done == next(iter(rounds.values()))]

    def checkpoint(self, cell: Cell, job: Job) -> Checkpoint | None:
        """Where the job was stopped; None where it never was. A damaged file is removed: its training starts anew."""
        path = self.path(cell, job)
        if not path.exists():
            return None
        try:
            return load_checkpoint(path)
        except BadFile as error:
            log.warning("%s Its training starts anew.", error)
            path.unlink()
            return None

    def keep(self, cell: Cell, job: Job, checkpoint: Checkpoint) -> None:
        save_checkpoint(self.path(cell, job), checkpoint)

    def drop(self, cell: Cell, jobs: Iterable[Job]) -> None:
        """Forgets jobs that are at their end, and the folder with the last of them."""
        for job in jobs:
            self.path(cell, job).unlink(missing_ok=True)
        for folder in (self.place, self.place.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def in_flight(folder: Path, origin: Provenance, precision: str) -> InFlight:
    device = re.sub(r"\W+", "-", origin.gpu or origin.cpu).strip("-")
    return InFlight(folder / FOLDER / f"{origin.source}-{device}-{precision}")


def count_in_flight(folder: Path, cell: Cell) -> int:
    """Arms of a cell that some code on some device was stopped in."""
    return len({path.name for path in (folder / FOLDER).glob(f"*/{cell.name}-*.npz")})
