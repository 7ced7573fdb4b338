"""The folder of a training, which survives being killed at any moment.

    experiment.toml          what is trained, written before anything else
    checkpoint.json          after how many rounds the checkpoints below were taken
    <arm>/checkpoint-<n>.npz where that training stood after n rounds
    <arm>/ledger.sqlite      what every client has spent
    <arm>/run.json, ...      the finished run

All arms' checkpoints are written, then checkpoint.json, then the older ones are removed: whenever the process dies,
checkpoint.json names a set that is whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mppfl.errors import BadFile, BadInput
from mppfl.experiment.cases import Case
from mppfl.experiment.experiment import Experiment, differences
from mppfl.experiment.experiment_file import read_experiment
from mppfl.experiment.run import Run
from mppfl.experiment.run_folder import SUMMARY, save_run
from mppfl.files import LOCK, locked, write_whole
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import Checkpoint, Log, load_checkpoint, save_checkpoint

EXPERIMENT, POINTER, LEDGER = "experiment.toml", "checkpoint.json", "ledger.sqlite"


@contextmanager
def storage(experiment: Experiment, folder: str | Path | None, *, resume: bool, overwrite: bool) -> Iterator[Store]:
    """A place for the training's files, locked against a second training; nowhere if `folder` is None."""
    with ExitStack() as open_things:
        if folder is None:
            if resume:
                raise BadInput("there is nothing to resume without a folder. Give the one the training was kept in.")
            yield Store(None, open_things)
            return
        place = Path(folder)
        open_things.enter_context(locked(place))
        require_free(place, experiment, resume=resume, overwrite=overwrite)
        yield Store(place, open_things, resume)


@dataclass(slots=True)
class Store:
    """The files of a training, or their absence."""

    folder: Path | None
    open_things: ExitStack
    resume: bool = False
    rounds_kept: int = 0

    def begin(self, experiment: Experiment) -> None:
        """Makes the folder this experiment's, now that it is known to be one that can be trained."""
        if self.folder is None or self.resume:
            return
        (self.folder / POINTER).unlink(missing_ok=True)
        files = [file for name in (LEDGER, SUMMARY, "checkpoint-*.npz") for file in self.folder.glob(f"*/{name}")]
        for kept in {file.parent for file in files}:
            shutil.rmtree(kept)
        write_whole(self.folder / EXPERIMENT, experiment.to_toml().encode())

    def ledger(self, case: Case) -> PrivacyLedger:
        """The account of one case, with every client's cap."""
        if self.folder is None or not case.experiment.ledger.keep:
            ledger = self.open_things.enter_context(PrivacyLedger.in_memory())
        else:
            path = self.folder / case.name / LEDGER
            path.parent.mkdir(parents=True, exist_ok=True)
            begun = self.resume and (self.folder / POINTER).exists()  # an empty ledger would forget what was spent
            ledger = self.open_things.enter_context(PrivacyLedger.open(path, must_exist=begun))
        unit = case.config.mechanism.unit
        caps, graph = case.experiment.ledger, case.solution.game.graph
        if caps.cap is not None:
            ledger.set_cap(case.data.names, caps.cap, unit)
        for client, cap in caps.caps.items():
            ledger.set_cap(case.data.names[graph.index(client)], cap, unit)
        return ledger

    def checkpoints(self, cases: list[Case]) -> dict[str, Checkpoint]:
        """The last whole set of checkpoints, by case; empty if there is none yet."""
        if self.folder is None or not (self.folder / POINTER).exists():
            return {}
        try:
            self.rounds_kept = int(json.loads((self.folder / POINTER).read_text())["rounds_done"])
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise BadFile(f"{self.folder / POINTER}: cannot be read ({cause}). Train anew, with overwrite.") from cause
        file = f"checkpoint-{self.rounds_kept}.npz"
        return {case.name: load_checkpoint(self.folder / case.name / file) for case in cases}

    def keep(self, logs: Mapping[str, Log]) -> None:
        """Checkpoints of all cases after the same round; the set before stays whole until this one is."""
        done = {log.rounds_done for log in logs.values()}
        if self.folder is None or len(done) > 1 or done <= {0, self.rounds_kept}:
            return
        (rounds_done,) = done
        places = {name: self.folder / name / f"checkpoint-{rounds_done}.npz" for name in logs}
        for name, place in places.items():
            save_checkpoint(place, logs[name].checkpoint())
        write_whole(self.folder / POINTER, json.dumps({"rounds_done": rounds_done}).encode())
        self.rounds_kept = rounds_done
        for place in places.values():
            for old in place.parent.glob("*checkpoint-*.npz*"):
                if old != place:
                    old.unlink(missing_ok=True)

    def save(self, run: Run) -> None:
        if self.folder is not None:
            save_run(run, self.folder / run.name)


def require_free(folder: Path, experiment: Experiment, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder that is not this experiment's, or holds what must not be lost."""
    stored = read_experiment(folder / EXPERIMENT) if (folder / EXPERIMENT).exists() else None
    if stored is None:
        if resume:
            raise BadInput(f"{folder} holds no training to resume. Check the folder, or start without resume.")
        if any(path.name != LOCK for path in folder.iterdir()):
            raise BadInput(f"{folder} is not empty, and holds no training. Choose another folder.")
    elif resume:
        changed = differences(experiment, stored)
        if changed:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise BadInput(f"{folder} holds another experiment: {changed[0]}{more}. Undo that, or train elsewhere.")
        if not experiment.ledger.keep:
            raise BadInput("ledger.keep=false left no account of what was spent, so the training cannot be resumed.")
    elif not overwrite:
        raise BadInput(f"{folder} holds a training already. Resume it, overwrite it, or choose another folder.")
    elif stored.training.config.noise != "seeded" and not _released_nothing(folder, stored):
        raise BadInput(
            f"{folder} holds the account of real releases (noise={stored.training.config.noise!r}), which must not be "
            "forgotten. Choose another folder."
        )


def _released_nothing(folder: Path, stored: Experiment) -> bool:
    """Whether a training with real noise ended before its first release: its accounts are there, and empty."""
    if not stored.ledger.keep or (folder / POINTER).exists():
        return False
    accounts = list(folder.glob(f"*/{LEDGER}"))
    for account in accounts:
        with PrivacyLedger.open(account, must_exist=True) as ledger:  # who only reads leaves SQLite's log behind
            if len(ledger):
                return False
    return bool(accounts)
