"""The state of a training, read from its folder while another process may still be writing there (store.py).

Nothing is ever half new: checkpoint.json names a set of checkpoints that is whole, each file is put in place in one
step, and where one is gone because the writer moved on, everything is read again. The ledger is read from a copy, so
the reader takes no lock that the writer could wait for and leaves no file behind.

Curves come from checkpoints, which are written every `output.checkpoint_every` rounds; what clients were charged comes
from the ledger, which is written every round before anything is released. The ledger is read last, so that it is never
behind the curves.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadFile, MppflError
from mppfl.experiment.experiment import Experiment
from mppfl.experiment.experiment_file import read_experiment
from mppfl.experiment.live_ledger import LiveAccounts, Mark, accounts_in, charged_after, copied_ledger, log_of, mark_of
from mppfl.experiment.run import Run
from mppfl.experiment.run_folder import SUMMARY, load_run
from mppfl.privacy.ledger import SIMULATION
from mppfl.training import PER_ROUND

# The names that store.py gives; it is not imported, because it brings PyTorch along.
EXPERIMENT, POINTER, LEDGER = "experiment.toml", "checkpoint.json", "ledger.sqlite"
OF_CLIENTS = ("payments", "spent", "participating")
TRIES = 8
MOST_COPIED = 2**29  # bytes of a ledger that is copied at every look

Marks = tuple[Mark | None, ...]


@dataclass(frozen=True, eq=False, slots=True)
class LiveRun:
    """One training of a folder, finished or not.

    rounds_done     rounds whose curves are known, which is where the last checkpoint was taken
    rounds_charged  rounds that stand in the ledger: never fewer, unless no ledger is kept
    rounds          one entry per round done, by the names of RoundRecord
    clients         payments, spent, participating: rounds done × clients
    charged_since   ρ by client in the rounds that the ledger has and the checkpoint has not; rounds × clients
    accounts        from the ledger, or from the finished run; None where neither is there
    noise           gaussian, discrete, seeded or none
    updated         when anything of it was last written, seconds since 1970
    """

    name: str
    mechanism: str
    finished: bool
    rounds_done: int
    rounds_charged: int
    num_rounds: int
    checkpoint_every: int
    rounds: dict[str, Array]
    clients: dict[str, Array]
    charged_since: Array
    accounts: LiveAccounts | None
    noise: str
    unit: str
    privacy: str
    dp_delta: float
    notes: tuple[str, ...]
    updated: float

    @property
    def is_simulation(self) -> bool:
        """Whether the noise came from a seed, which protects no one."""
        return self.noise == "seeded"


def is_run(folder: Path) -> bool:
    """Whether the folder holds one training, finished or not."""
    if (folder / SUMMARY).is_file():
        return True
    begun = (folder.parent / EXPERIMENT).is_file()
    return begun and ((folder / LEDGER).is_file() or any(folder.glob("checkpoint-*.npz")))


def marks_of(folder: Path) -> Marks:
    """What changes whenever anything is written: two equal marks mean that there is nothing new to read."""
    above = folder.parent
    places = (
        above / EXPERIMENT,
        above / POINTER,
        folder / SUMMARY,
        folder / "arrays.npz",
        folder / LEDGER,
        log_of(folder / LEDGER),
    )
    return tuple(map(mark_of, places))


def read_live(folder: str | Path) -> LiveRun:
    """The training in the folder, as it stood at one moment. Raises BadFile where it is damaged, or no training."""
    folder = Path(folder).absolute()
    for attempt in range(TRIES):
        before = marks_of(folder)
        try:
            return _finished(folder) if (folder / SUMMARY).is_file() else _unfinished(folder)
        except MppflError:
            # Where nothing was written meanwhile, the files are wrong and not just on the move.
            if attempt + 1 == TRIES or marks_of(folder) == before:
                raise
            time.sleep(0.02 * (attempt + 1))
    raise BadFile(f"{folder}: changed all the time. Look again later.")


def _finished(folder: Path) -> LiveRun:
    run = load_run(folder)
    accounts, history = run.accounts, run.history
    return LiveRun(
        name=run.name,
        mechanism=run.mechanism,
        finished=True,
        rounds_done=run.num_rounds,
        rounds_charged=run.num_rounds,
        num_rounds=run.num_rounds,
        checkpoint_every=int(run.setting("checkpoint_every", 1)),
        rounds=history.rounds,
        clients={name: history.clients[name] for name in OF_CLIENTS},
        charged_since=np.zeros((0, run.num_clients)),
        accounts=LiveAccounts(
            run.names,
            accounts.spent,
            accounts.worst_case_spent,
            accounts.dp_epsilon,
            accounts.worst_case_epsilon,
            _caps(run),
            run.rounds_taken_part,
        ),
        noise=accounts.noise,
        unit=accounts.unit,
        privacy=accounts.privacy,
        dp_delta=accounts.dp_delta,
        notes=tuple(dict.fromkeys((*accounts.notes, *run.notes))),
        updated=_updated(folder),
    )


def _caps(run: Run) -> Array:
    """As the experiment sets them: the ledger was given the same ones."""
    table = run.config.get("ledger", {})
    own, everybody = table.get("caps", {}), table.get("cap", math.inf)
    return np.array([own.get(name, everybody) for name in run.names], dtype=np.float64)


def _unfinished(folder: Path) -> LiveRun:
    experiment = read_experiment(folder.parent / EXPERIMENT)
    rounds_done, rounds, clients = _history(folder)
    config = experiment.training.config
    notes = [SIMULATION] if config.noise == "seeded" else []
    accounts, charged = None, np.zeros((0, clients["spent"].shape[1]))
    ledger, size = folder / LEDGER, _size(folder / LEDGER)
    if size > MOST_COPIED:
        notes.append(f"the ledger has {size / 1e9:.1f} GB: accounts are shown when the training has ended")
    elif ledger.is_file():
        with copied_ledger(ledger) as copy:
            accounts, told = accounts_in(copy, config, folder.name)
            charged = charged_after(copy, folder.name, rounds_done, clients["spent"].shape[1])
        notes += told
    else:
        notes.append("no ledger is kept: accounts are shown when the training has ended")
    protected = np.isfinite(clients["spent"]).all() and (accounts is None or np.isfinite(accounts.spent).all())
    return LiveRun(
        name=folder.name,
        mechanism=_mechanism(folder.name, experiment),
        finished=False,
        rounds_done=rounds_done,
        rounds_charged=rounds_done + len(charged),
        num_rounds=experiment.game.num_rounds,
        checkpoint_every=experiment.output.checkpoint_every,
        rounds=rounds,
        clients=clients,
        charged_since=charged,
        accounts=accounts,
        noise=config.noise if protected else "none",
        unit=config.mechanism.unit,
        privacy=config.privacy,
        dp_delta=config.dp_delta,
        notes=tuple(notes),
        updated=_updated(folder),
    )


def _mechanism(name: str, experiment: Experiment) -> str:
    """Of the case by its name, which begins with it (cases.py)."""
    return next((each for each in experiment.mechanisms if name == each or name.startswith(f"{each}-")), name)


# ---- curves --------------------------------------------------------------------------------------------------------


def _history(folder: Path) -> tuple[int, dict[str, Array], dict[str, Array]]:
    """Rounds done and their records, from the last whole set of checkpoints; the model in it is left unread."""
    pointer = folder.parent / POINTER
    try:
        rounds_done = int(json.loads(pointer.read_text())["rounds_done"])
    except FileNotFoundError:
        empty = np.zeros(0)
        return 0, dict.fromkeys(PER_ROUND, empty), dict.fromkeys(OF_CLIENTS, np.zeros((0, 0)))
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadFile(f"{pointer}: cannot be read ({_short(cause)}). Restore a copy, or train anew.") from cause
    path = folder / f"checkpoint-{rounds_done}.npz"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # an archive: read part by part
            rounds = {name: file[f"rounds.{name}"] for name in PER_ROUND}
            clients = {name: file[f"clients.{name}"] for name in OF_CLIENTS}
        if any(len(values) != rounds_done for values in (*rounds.values(), *clients.values())):
            raise ValueError(f"not {rounds_done} rounds")
        return rounds_done, rounds, clients
    except FileNotFoundError as cause:
        raise BadFile(f"{path}: is missing, though {POINTER} names it. Restore a copy, or train anew.") from cause
    except Exception as cause:  # a damaged archive fails in as many ways as there are bytes in it
        raise BadFile(f"{path}: not a whole checkpoint ({_short(cause)}). Restore a copy, or start anew.") from cause


# ---- files ---------------------------------------------------------------------------------------------------------


def _size(path: Path) -> int:
    mark = mark_of(path)
    return 0 if mark is None else mark[2]


def _updated(folder: Path) -> float:
    return max((mark[1] / 1e9 for mark in marks_of(folder) if mark is not None), default=0.0)


def _short(cause: Any) -> str:
    return " ".join(str(cause).split())[:120]
