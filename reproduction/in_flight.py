"""Trainings that were stopped before their end: a checkpoint of each, from which the next run goes on.

    <folder>/in-flight/<source>-<device>-<precision>/<cell>-<fingerprint of its configuration>-<arm>-<unit>.npz
    ... .started                                     when it first began, UTC, beside each

They lie apart by source, device and precision, because an arm is a measurement of one code on one kind of machine; and
by configuration, so that a rehearsal or another variant of a data set's choice never goes on as something else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mppfl.errors import BadFile
from mppfl.experiment import Provenance
from mppfl.files import write_whole
from mppfl.training import Checkpoint, load_checkpoint, save_checkpoint
from reproduction.cells import ArmName, Cell, configuration, fingerprint
from reproduction.settings import Setting
from reproduction.units import Job

FOLDER = "in-flight"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Where one code keeps them on one kind of device."""

    place: Path

    def path(self, cell: Cell, setting: Setting, job: Job) -> Path:
        arm, unit = job
        which = f"{arm.mechanism}-{arm.aggregation}-{'noiseless' if unit is None else unit}"
        return self.place / f"{cell.name}-{fingerprint(configuration(cell, setting))}-{which}.npz"

    def waiting(self, cell: Cell, setting: Setting, jobs: Sequence[Job]) -> list[Job]:
        """Those of the jobs that have been stopped after the same round, with the first such; none where none was."""
        rounds = {job: found.rounds_done for job in jobs if (found := self.checkpoint(cell, setting, job)) is not None}
        return [job for job, done in rounds.items() if done == next(iter(rounds.values()))]

    def checkpoint(self, cell: Cell, setting: Setting, job: Job) -> Checkpoint | None:
        """Where the job was stopped; None where it never was. A damaged file is removed: its training starts anew."""
        path = self.path(cell, setting, job)
        if not path.exists():
            return None
        try:
            return load_checkpoint(path)
        except BadFile as error:
            log.warning("%s Its training starts anew.", error)
            self._forget(path)
            return None

    def started(self, cell: Cell, setting: Setting, job: Job) -> str | None:
        """When a job that was stopped first began; None where it never was, or where no file tells."""
        path = self.path(cell, setting, job)
        if not path.exists():  # a time alone is left of a run that was killed between two files
            return None
        try:
            return datetime.fromisoformat(_beside(path).read_text("utf-8")).isoformat(timespec="seconds")
        except (OSError, ValueError):
            log.warning("%s does not tell when the training began. The time it goes on is taken.", _beside(path))
            return None

    def keep(self, cell: Cell, setting: Setting, job: Job, checkpoint: Checkpoint, started: str) -> None:
        path = self.path(cell, setting, job)
        write_whole(_beside(path), started.encode())
        save_checkpoint(path, checkpoint)

    def drop(self, cell: Cell, setting: Setting, jobs: Iterable[Job]) -> None:
        """Forgets jobs that are at their end, and the folder with the last of them."""
        for job in jobs:
            self._forget(self.path(cell, setting, job))
        for folder in (self.place, self.place.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    @staticmethod
    def _forget(path: Path) -> None:
        path.unlink(missing_ok=True)
        _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_suffix(".started")


def in_flight(folder: Path, origin: Provenance, precision: str) -> InFlight:
    device = re.sub(r"\W+", "-", origin.gpu or origin.cpu).strip("-")
    return InFlight(folder / FOLDER / f"{origin.source}-{device}-{precision}")


def count_in_flight(folder: Path, cell: Cell, setting: Setting, missing: Iterable[ArmName]) -> int:
    """Of the arms that a cell lacks, those that some code on some device was stopped in."""
    begun = f"{cell.name}-{fingerprint(configuration(cell, setting))}"
    place = folder / FOLDER
    return sum(any(place.glob(f"*/{begun}-{arm.mechanism}-{arm.aggregation}-*.npz")) for arm in missing)
