"""The ledger of a training that may still be running, read from a copy: no lock to wait for, no file left behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.database import errors_in_one_line
from mppfl.errors import BadFile, BadInput
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import TrainingConfig, epsilon_method

TRIES = 40  # some two seconds: a writer that never rests on a busy machine spoils every other copy

Mark = tuple[int, int, int]


@dataclass(frozen=True, eq=False, slots=True)
class LiveAccounts:
    """What everybody has spent so far: one entry per client. cap is infinite where there is none."""

    names: tuple[str, ...]
    spent: Array
    worst_case_spent: Array
    dp_epsilon: Array
    worst_case_epsilon: Array
    cap: Array
    rounds: IntArray

    @property
    def remaining(self) -> Array:
        """What each client may still spend; infinite without a cap."""
        left = np.maximum(np.where(np.isinf(self.cap), 0.0, self.cap) - self.spent, 0.0)
        return np.where(np.isinf(self.cap), np.inf, left)


@contextmanager
def copied_ledger(path: Path) -> Iterator[Path]:
    """A private copy of a ledger as of one moment; gone afterwards.

    SQLite changes the file itself only by moving pages there from its log, and begins the log anew, under another
    mark, only after all were moved. So file and then log, with the same mark before and after, are one state: a page
    that was changed in the file meanwhile stands in the log as well. A last transaction that is not whole in the log is
    left out by SQLite. For readers in a process of their own: reading the file as a file drops the locks that SQLite
    holds on it in the same process.
    """
    with tempfile.TemporaryDirectory(prefix="mppfl-") as place:
        copy = Path(place) / path.name
        for attempt in range(TRIES):
            if _copied(path, copy):
                break
            time.sleep(0.01 * min(attempt + 1, 6))
        else:
            raise BadFile(f"{path}: changed while it was read, {TRIES} times. Look again later.")
        yield copy


def _copied(path: Path, copy: Path) -> bool:
    """Copies the ledger and its log; whether they belong together."""
    log_of(copy).unlink(missing_ok=True)
    began, mark = _start_of_log(path), mark_of(path)
    try:
        shutil.copyfile(path, copy)
        if began:
            shutil.copyfile(log_of(path), log_of(copy))
    except FileNotFoundError:  # the log goes when the writer ends, the ledger when a simulation is written over
        return False
    except OSError as cause:
        raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check its permissions.") from cause
    return _start_of_log(path) == began and (bool(began) or mark_of(path) == mark)


def accounts_in(ledger: Path, config: TrainingConfig, run: str) -> tuple[LiveAccounts | None, list[str]]:
    """What the ledger says of everybody it knows, and what must be said beside it; None while it knows nobody."""
    unit, method, told = config.mechanism.unit, epsilon_method(config), []
    if method == "pld":
        method = "rdp"  # composing loss distributions takes seconds for every client
        told.append("ε by RDP while the training lasts: some per cent larger than in the finished run")
    with PrivacyLedger.open(ledger, must_exist=True) as opened:
        account = opened.account(None, unit)
        if not account.clients:
            return None, []
        try:
            nominal = opened.get_epsilon(None, config.dp_delta, method, unit=unit)
            worst = opened.get_epsilon(None, config.dp_delta, method, unit=unit, worst_case=True)
        except BadInput as cause:
            nominal = worst = np.full(len(account.clients), np.nan)
            told.append(f"no ε: {cause}")
    with _asking(ledger) as read:
        ask = "SELECT c.name, count(DISTINCT e.round_index) FROM events e JOIN clients c ON c.id = e.client"
        rounds = dict(read.execute(f"{ask} WHERE e.run = ? GROUP BY c.name", (run,)).fetchall())
    if (account.worst_case_budget > account.budget).any():
        told.append(f"{config.privacy}: the worst case costs more than the nominal budget")
    return LiveAccounts(
        account.clients,
        account.budget,
        account.worst_case_budget,
        nominal,
        worst,
        account.cap,
        np.array([rounds.get(name, 0) for name in account.clients], dtype=np.int64),
    ), told


def charged_after(ledger: Path, run: str, after: int, num_clients: int) -> Array:
    """ρ by round and client in the rounds after this one; 0 for who was not charged, NaN where a release has no ρ."""
    ask = "SELECT round_index, client, total(budget), count(budget) FROM events WHERE run = ? AND round_index > ?"
    with _asking(ledger) as read:
        (known,) = read.execute("SELECT count(*) FROM clients").fetchone()
        rows = read.execute(f"{ask} GROUP BY round_index, client", (run, after)).fetchall()
    last = max((row[0] for row in rows), default=after)
    table = np.zeros((last - after, max(num_clients, known)))
    for round_index, client, budget, counted in rows:
        table[round_index - after - 1, client - 1] = budget if counted else np.nan  # ids run from 1 without gaps
    return table


@contextmanager
def _asking(path: Path) -> Iterator[sqlite3.Connection]:
    with errors_in_one_line(path), closing(sqlite3.connect(path)) as connection:
        yield connection


def log_of(ledger: Path) -> Path:
    """Where SQLite keeps what was written last."""
    return ledger.with_name(ledger.name + "-wal")


def mark_of(path: Path) -> Mark | None:
    """Which file it is, when it was written and how long it is; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _start_of_log(path: Path) -> bytes:
    """The head of the log, which is another one whenever the log begins anew; nothing without a log."""
    try:
        with log_of(path).open("rb") as file:
            return file.read(32)
    except FileNotFoundError:
        return b""
