"""The state of a training, read from its folder while another process may still be writing there (store.py).

Nothing is ever half new: checkpoint.json names a set of checkpoints that is whole, each file is put in place in one
step, and where one is gone because the writer moved on, everything is read again. The ledger is read from a copy that
SQLite makes of one moment, so the writer never waits for a reader, and no file is left behind.

Curves come from checkpoints, which are written every `output.checkpoint_every` rounds; what clients were charged comes
from the ledger, which is written every round before anything is released. The ledger is read last, so that it is never
behind the curves.
"""

from __future__ import annotations

import math
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.experiment.build import run_in_ledger
from mppfl.experiment.file import read_experiment
from mppfl.experiment.run import PER_ACCOUNT
from mppfl.experiment.store import EXPERIMENT, LEDGER, POINTER, SUMMARY, ledger_path, load_run, rounds_checkpointed
from mppfl.files import errors_in_one_line
from mppfl.privacy.ledger import SIMULATION, PrivacyLedger
from mppfl.spec import Experiment
from mppfl.text import one_line
from mppfl.training import PER_ROUND, TrainingConfig

OF_CLIENTS = ("payments", "spent", "participating")
TRIES = 8
MOST_COPIED = 2**29  # bytes of a ledger that is copied at every look

Mark = tuple[int, int, int]  # which file it is, when it was written, how long it is
Marks = tuple[Mark | None, ...]


@dataclass(frozen=True, eq=False, slots=True)
class LiveAccounts:
    """What everybody has spent so far: one entry per client. cap and remaining are infinite where there is none."""

    names: tuple[str, ...]
    spent: Array
    dp_epsilon: Array
    cap: Array
    remaining: Array
    rounds: IntArray


@dataclass(frozen=True, eq=False, slots=True)
class LiveRun:
    """One training of a folder, finished or not.

    marks           of its files before they were read
    rounds_done     rounds whose curves are known, which is where the last checkpoint was taken
    rounds          one entry per round done, by the names of RoundRecord
    clients         payments, spent, participating: rounds done × clients
    charged_since   ρ by client in the rounds that the ledger has and the checkpoint has not; rounds × clients
    accounts        from the ledger, or from the finished run; None where neither is there
    noise           gaussian, discrete, simulated or none
    guarantee       what a budget of ρ per round promises, in words; "" without noise
    """

    marks: Marks
    mechanism: str
    finished: bool
    num_rounds: int
    checkpoint_every: int
    rounds_done: int
    rounds: dict[str, Array]
    clients: dict[str, Array]
    charged_since: Array
    accounts: LiveAccounts | None
    noise: str
    unit: str
    dp_delta: float
    guarantee: str
    notes: tuple[str, ...]

    @property
    def rounds_charged(self) -> int:
        """Rounds that stand in the ledger: never fewer than are done, unless no ledger is kept."""
        return self.rounds_done + len(self.charged_since)

    @property
    def is_simulation(self) -> bool:
        """Whether the noise came from a seed, which protects no one."""
        return self.noise == "simulated"


def is_run(folder: Path) -> bool:
    """Whether the folder holds one training, finished or not."""
    if (folder / SUMMARY).is_file():
        return True
    begun = (folder.parent / EXPERIMENT).is_file()
    return begun and ((folder / LEDGER).is_file() or any(folder.glob("checkpoint-*.npz")))


def marks_of(folder: Path) -> Marks:
    """What changes whenever anything is written: two equal marks mean that there is nothing new to read."""
    above, ledger = [folder.parent / name for name in (EXPERIMENT, POINTER)], folder / LEDGER
    if (mark := _mark(above[0])) is not None and not (folder / SUMMARY).is_file():
        with suppress(MppflError):  # told by who reads it
            ledger = ledger_path(folder.parent, _experiment(above[0], mark), folder.name)
    log = ledger.with_name(f"{ledger.name}-wal")
    return tuple(map(_mark, (*above, folder / SUMMARY, folder / "arrays.npz", ledger, log)))


@lru_cache(maxsize=64)
def _experiment(path: Path, mark: Mark) -> Experiment:
    """The experiment in a file that has not changed since it had this mark."""
    return read_experiment(path)


def _mark(path: Path) -> Mark | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_live(folder: str | Path) -> LiveRun:
    """The training in the folder, as it stood at one moment. Raises BadFile where it is damaged, or no training."""
    folder = Path(folder).absolute()
    for attempt in range(TRIES):
        marks = marks_of(folder)
        try:
            return _finished(folder, marks) if (folder / SUMMARY).is_file() else _unfinished(folder, marks)
        except MppflError:
            # Where nothing was written meanwhile, the files are wrong and not just on the move.
            if attempt + 1 == TRIES or marks_of(folder) == marks:
                raise
            time.sleep(0.02 * (attempt + 1))
    raise BadFile(f"{folder}: changed all the time. Look again later.")


def _finished(folder: Path, marks: Marks) -> LiveRun:
    run = load_run(folder)
    accounts, table = run.accounts, run.config.get("ledger", {})
    caps, everybody = table.get("caps", {}), table.get("cap", math.inf)  # the ledger was given the same ones
    cap = np.array([caps.get(name, everybody) for name in run.names], dtype=np.float64)
    left = np.maximum(cap - np.where(np.isinf(cap), 0.0, accounts.spent), 0.0)
    figures = {name: getattr(accounts, name) for name in PER_ACCOUNT}
    return LiveRun(
        marks,
        run.mechanism,
        finished=True,
        num_rounds=run.num_rounds,
        checkpoint_every=int(run.setting("checkpoint_every", 1)),
        rounds_done=run.num_rounds,
        rounds=run.history.rounds,
        clients={name: run.history.clients[name] for name in OF_CLIENTS},
        charged_since=np.zeros((0, run.num_clients)),
        accounts=LiveAccounts(run.names, **figures, cap=cap, remaining=left, rounds=run.rounds_taken_part),
        noise=accounts.noise,
        unit=accounts.unit,
        dp_delta=accounts.dp_delta,
        guarantee="" if accounts.noise == "none" else accounts.guarantee,
        notes=tuple(dict.fromkeys((*accounts.notes, *run.notes))),
    )


def _unfinished(folder: Path, marks: Marks) -> LiveRun:
    experiment, name = read_experiment(folder.parent / EXPERIMENT), folder.name
    rounds_done, rounds, clients = _history(folder)
    config, num_clients = experiment.training, clients["spent"].shape[1]
    notes = [SIMULATION] if config.protection.is_simulated else []
    accounts, charged = None, np.zeros((0, num_clients))
    ledger, run = ledger_path(folder.parent, experiment, name), run_in_ledger(experiment, name)
    mark = _mark(ledger)
    if mark is None:
        notes.append("no ledger is kept: accounts are shown when the training has ended")
    elif mark[2] > MOST_COPIED:
        notes.append(f"the ledger has {mark[2] / 1e9:.1f} GB: accounts are shown when the training has ended")
    else:
        with _copied_ledger(ledger) as copy:
            accounts, account_notes = _accounts(copy, config, run)
            charged = _charged_after(copy, run, rounds_done, num_clients)
        notes += account_notes
    protected = np.isfinite(clients["spent"]).all() and (accounts is None or np.isfinite(accounts.spent).all())
    return LiveRun(
        marks,
        # The folder has the name of the case, which begins with its mechanism (build.py).
        next((m for m in experiment.mechanisms if name == m or name.startswith(f"{m}-")), name),
        finished=False,
        num_rounds=experiment.game.num_rounds,
        checkpoint_every=experiment.output.checkpoint_every,
        rounds_done=rounds_done,
        rounds=rounds,
        clients=clients,
        charged_since=charged,
        accounts=accounts,
        noise=config.protection.noise if protected else "none",
        unit=config.protection.unit,
        dp_delta=config.protection.dp_delta,
        guarantee=config.protection.guarantee if protected else "",
        notes=tuple(notes),
    )


# ---- curves --------------------------------------------------------------------------------------------------------


def _history(folder: Path) -> tuple[int, dict[str, Array], dict[str, Array]]:
    """Rounds done and their records, from the last whole set of checkpoints; the model in it is left unread."""
    rounds_done = rounds_checkpointed(folder.parent)
    if rounds_done == 0:
        return 0, dict.fromkeys(PER_ROUND, np.zeros(0)), dict.fromkeys(OF_CLIENTS, np.zeros((0, 0)))
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
        raise BadFile(f"{path}: not a whole checkpoint ({one_line(cause)}). Restore a copy, or start anew.") from cause


# ---- the ledger ----------------------------------------------------------------------------------------------------


@contextmanager
def _copied_ledger(path: Path) -> Iterator[Path]:
    """A private copy of a ledger as of one moment; gone afterwards.

    SQLite is asked for write access where there is any: the last process to close a ledger then puts its log away, be
    it the reader. Without write access, a ledger without a log is read as a file that nobody changes.
    """
    log = _mark(path.with_name(f"{path.name}-wal"))
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    mode = "mode=rw" if writable else "mode=ro" if log and log[2] else "immutable=1"
    with tempfile.TemporaryDirectory(prefix="mppfl-") as folder:
        copy = Path(folder) / path.name
        with (
            errors_in_one_line(path),
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as ledger,
            closing(sqlite3.connect(copy)) as target,
        ):
            target.execute("PRAGMA synchronous=OFF")  # the copy need not outlive a power cut
            ledger.backup(target)
        yield copy


def _accounts(ledger: Path, config: TrainingConfig, run: str) -> tuple[LiveAccounts | None, list[str]]:
    """What the ledger says of every client it knows, and what must be said beside it; None while it knows nobody."""
    unit, notes = config.protection.unit, []
    with PrivacyLedger.open(ledger, must_exist=True) as opened:
        if not (runs := opened.runs):
            return None, []
        account = opened.account(None, unit)
        method = config.protection.accounting if account.accounting == "exact" else account.accounting
        if method == "pld":
            method = "rdp"  # composing loss distributions takes seconds for every client
            notes.append("ε by RDP while the training lasts: some per cent larger than in the finished run")
        if len(runs) > 1:
            notes.append(f"ε and spent ρ are those of all {len(runs)} runs in the ledger")
        try:
            epsilons = opened.get_epsilon(None, config.protection.dp_delta, method, unit=unit)
        except BadInput as cause:
            epsilons = np.full(len(account.clients), np.nan)
            notes.append(f"no ε: {cause}")
    counts = "SELECT c.name, count(DISTINCT e.round_index) FROM events e JOIN clients c ON c.id = e.client"
    rounds = dict(_rows(ledger, f"{counts} WHERE e.run = ? GROUP BY c.name", run))
    return LiveAccounts(
        account.clients,
        account.budget,
        epsilons,
        account.cap,
        account.remaining,
        np.array([rounds.get(name, 0) for name in account.clients], dtype=np.int64),
    ), notes


def _charged_after(ledger: Path, run: str, after: int, num_clients: int) -> Array:
    """ρ by round and client in later rounds; 0 for a client that was not charged, NaN where a release has no ρ."""
    sums = "SELECT round_index, client, total(budget), count(budget) FROM events WHERE run = ? AND round_index > ?"
    rows = _rows(ledger, f"{sums} GROUP BY round_index, client", run, after)
    ((in_ledger,),) = _rows(ledger, "SELECT count(*) FROM clients")
    last = max((row[0] for row in rows), default=after)
    table = np.zeros((last - after, max(num_clients, in_ledger)))
    for round_index, client, budget, counted in rows:
        table[round_index - after - 1, client - 1] = budget if counted else np.nan  # ids run from 1 without gaps
    return table


def _rows(ledger: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with errors_in_one_line(ledger), closing(sqlite3.connect(ledger)) as connection:
        return connection.execute(query, values).fetchall()
