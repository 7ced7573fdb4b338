"""What every client has spent: one durable row per release, written before the release leaves.

    ledger.reserve(run, round_index, costs)      checks every cap and records the costs, all or nothing; only whom the
                                                 answer calls "reserved" may draw noise and release
    ledger.store_upload(run, round_index, ...)   keeps the noisy upload, so that a repeated round sends the same one
    ledger.mark_sent(run, round_index, client)   after it left

In this order a crash can count a release that never happened; it cannot miss one that did. After a crash:

    stored       send `stored_upload` again, sent before or not: the same noise, released once, paid once
    not stored   it has left, or may have. Another process cannot store an upload for it: the retry is a second release
                 and is paid as one, by `reserve_again`, or does not happen

zCDP budgets add within one unit and one adjacency. Poisson-sampled releases are recorded, never added to a zCDP sum.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, overload

import numpy as np

from mppfl.arrays import Array, require_number
from mppfl.database import Database
from mppfl.errors import BadFile, BadInput, BudgetExceeded, LedgerUnavailable
from mppfl.privacy import Unit
from mppfl.privacy.ledger.changes import (
    Change,
    has_releases,
    record,
    require_same_training,
    training_of,
)
from mppfl.privacy.ledger.charge import put_caps, reserved, terms_by_client
from mppfl.privacy.ledger.entries import LedgerEntry, Refusal, Reservation, name_of, require_one_of, round_of
from mppfl.privacy.ledger.epsilon import KIND, Kind, dp_event, epsilons
from mppfl.privacy.ledger.export import write_csv, write_json
from mppfl.privacy.ledger.file import BOOK
from mppfl.privacy.ledger.notes import SIMULATION, notes_of
from mppfl.privacy.ledger.rows import account_of, events_of, last_event, numbers_of
from mppfl.privacy.ledger.totals import Account
from mppfl.privacy.ledger.verify import verify_all

__all__ = [
    "SIMULATION",
    "Account",
    "BudgetExceeded",
    "LedgerEntry",
    "LedgerUnavailable",
    "PrivacyLedger",
    "Refusal",
    "Reservation",
]

Names = list[str] | tuple[str, ...]


class PrivacyLedger(Database):
    """The account of all clients, over all runs and rounds, in one SQLite file.

    Several processes may write at once. A handle belongs to the thread and process that opened it.
    """

    BOOK = BOOK

    def __init__(self, connection: sqlite3.Connection, path: Path | str) -> None:
        super().__init__(connection, path)
        self._session = secrets.token_hex(8)

    # ---- writing ------------------------------------------------------------------------------------------------

    def set_cap(self, client: str | Iterable[str], budget: float, unit: Unit) -> None:
        """From now on each of these clients may spend at most `budget` in `unit`, counting what is already spent."""
        cap = require_number(budget, "cap", 0.0, math.inf, open_ends=False) + 0.0  # -0.0 would come back as 0.0
        require_one_of("unit", unit, ("record", "client"))
        names = [name_of(client)] if isinstance(client, (str, int)) else [name_of(each) for each in client]
        with self._writing() as write:
            put_caps(write, names, cap, unit, self.path)

    def require_run(self, run: str, training: str, *, taken_up: bool) -> None:
        """Raises where releases of `run` are those of another training than the one with this key.

        They would be taken for its own, and not be charged. `taken_up` says that the training is known to go on with
        what stands there, although a ledger from before runs were noted does not tell; it is noted now.
        """
        run = name_of(run, "run")
        with self._writing() as write:
            if taken_up and has_releases(write, run) and training_of(write, run) is None:
                record(write, [Change("run", run, training)])
            require_same_training(write, run, training, self.path)

    def reserve(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """Records what these releases cost, if no cap forbids any of them; else raises and records nothing.

        Return means it is on the disk. Whom the answer calls "reserved" may draw noise and release now, and nobody
        else: repeated with the same terms it records nothing and says "already reserved", because that release may have
        left; with other terms it raises.
        """
        return self._reserve(run, round_index, entries, again=False, all_or_nothing=True)

    def reserve_new(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """As `reserve`, for noise that is drawn anew each time: raises, too, where anybody reserved this round before.

        Return means that all of them may release.
        """
        return self._reserve(run, round_index, entries, again=False, all_or_nothing=True, must_be_new=True)

    def reserve_each(
        self, run: str, round_index: int, entries: Iterable[Any], *, training: str | None = None
    ) -> Reservation:
        """As `reserve`, but those who would pass their cap are left out, and named in the answer.

        training  key of the training that the run is, noted with its first release; under another one it raises
        """
        return self._reserve(run, round_index, entries, again=False, all_or_nothing=False, training=training)

    def reserve_again(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """A second, paid release of the same round, where the upload of the first was never stored.

        Who has one stored is "already reserved", pays nothing and may draw no noise: that upload is to be sent again.
        """
        return self._reserve(run, round_index, entries, again=True, all_or_nothing=True)

    def _reserve(
        self,
        run: str,
        round_index: int,
        entries: Iterable[Any],
        *,
        again: bool,
        all_or_nothing: bool,
        must_be_new: bool = False,
        training: str | None = None,
    ) -> Reservation:
        run, round_index = name_of(run, "run"), round_of(round_index)
        asked = terms_by_client(entries, run, round_index)
        with self._writing() as write:
            return reserved(
                write,
                run,
                round_index,
                asked,
                self._session,
                self.path,
                again=again,
                all_or_nothing=all_or_nothing,
                must_be_new=must_be_new,
                training=training,
            )

    def store_upload(self, run: str, round_index: int, client: str, content: bytes) -> str:
        """Keeps the noisy upload of a reserved release, before it is sent; its SHA-256 in hexadecimal.

        An upload can be stored once per paid release, by the process that reserved it. The same bytes again are fine.
        """
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise BadInput(f"an upload is kept as bytes, got {type(content).__name__}.")
        content = bytes(content)
        digest = hashlib.sha256(content)
        with self._writing() as write:
            event, status, session = self._last_event(write, run, round_index, client)
            if status != "reserved":
                (kept,) = write.execute("SELECT sha256 FROM uploads WHERE event = ?", (event,)).fetchone() or (b"",)
                if kept == digest.digest():
                    return digest.hexdigest()
                raise BadInput(
                    f"client {client!r} has another upload stored for round {round_index} of {run!r}; a second "
                    "one would be released for the price of the first. Send stored_upload again."
                )
            if session != self._session:
                raise BadInput(
                    f"round {round_index} of {run!r} was reserved for client {client!r} by another process, which "
                    "may have released it. Pay for this release with reserve_again."
                )
            write.execute("INSERT INTO uploads VALUES (?, ?, ?)", (event, digest.digest(), content))
            write.execute("UPDATE events SET status = 'stored' WHERE id = ?", (event,))
            record(write, [Change("status", str(event), "stored", sha256=digest.digest())])
        return digest.hexdigest()

    def stored_upload(self, run: str, round_index: int, client: str) -> bytes | None:
        """The upload kept for this release, to be sent again as it is; None if none was stored."""
        with self._reading() as read:
            event, _, _ = self._last_event(read, run, round_index, client)
            row = read.execute("SELECT sha256, content FROM uploads WHERE event = ?", (event,)).fetchone()
        if row is None:
            return None
        if hashlib.sha256(row[1]).digest() != row[0]:
            raise BadFile(f"{self.path}: the stored upload of {client!r} is damaged; do not send it. Restore a copy.")
        return bytes(row[1])

    def mark_sent(self, run: str, round_index: int, client: str) -> None:
        """Notes that the release has left."""
        with self._writing() as write:
            event, status, _ = self._last_event(write, run, round_index, client)
            if status != "sent":
                write.execute("UPDATE events SET status = 'sent' WHERE id = ?", (event,))
                record(write, [Change("status", str(event), "sent")])

    # ---- reading ------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[str, ...]:
        """Everybody known, in the order in which they came: the order of every array over clients."""
        with self._reading() as read:
            return tuple(name for (name,) in read.execute("SELECT name FROM clients ORDER BY id"))

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units in which anything was released."""
        with self._reading() as read:
            return tuple(unit for (unit,) in read.execute("SELECT DISTINCT unit FROM totals ORDER BY unit DESC"))

    def __len__(self) -> int:
        with self._reading() as read:
            return int(read.execute("SELECT events FROM state").fetchone()[0])

    @property
    def head(self) -> str:
        """The last link of the chain of events and changes; noted elsewhere, it shows whether they were rewritten."""
        with self._reading() as read:
            return bytes(read.execute("SELECT head FROM state").fetchone()[0]).hex()

    @property
    def is_simulation(self) -> bool:
        """Whether any noise came from a seed."""
        with self._reading() as read:
            return read.execute("SELECT 1 FROM totals WHERE seeded > 0 LIMIT 1").fetchone() is not None

    def notes(self) -> tuple[str, ...]:
        """What must be said beside every figure of this ledger."""
        with self._reading() as read:
            return notes_of(read)

    def account(self, clients: str | Names | None = None, unit: Unit | None = None) -> Account:
        """Sums and caps of these clients, or of everybody, in one unit: every array that the figures below come from.

        Without `unit` the ledger must hold one unit only: a record's ρ and a client's ρ do not add.
        """
        one = [name_of(clients)] if isinstance(clients, (str, int)) else None
        names = one if one or clients is None else [name_of(each) for each in clients]
        chosen = self._unit(unit)
        with self._reading() as read:
            return account_of(read, names, chosen, self.path)

    @overload
    def spent(self, clients: str, unit: Unit | None = ..., *, worst_case: bool = ...) -> float: ...
    @overload
    def spent(self, clients: Names | None = ..., unit: Unit | None = ..., *, worst_case: bool = ...) -> Array: ...
    def spent(
        self, clients: str | Names | None = None, unit: Unit | None = None, *, worst_case: bool = False
    ) -> float | Array:
        """zCDP budget that each client has spent in `unit`, nominal or worst case, without Poisson-sampled releases.

        Without `unit` the ledger must hold one unit only: a record's ρ and a client's ρ do not add.
        """
        account = self.account(clients, unit)
        return _one_or_all(clients, account.worst_case_budget if worst_case else account.budget)

    @overload
    def remaining(self, clients: str, unit: Unit | None = ...) -> float: ...
    @overload
    def remaining(self, clients: Names | None = ..., unit: Unit | None = ...) -> Array: ...
    def remaining(self, clients: str | Names | None = None, unit: Unit | None = None) -> float | Array:
        """What each client may still spend; infinite without a cap."""
        account = self.account(clients, unit)
        free = np.isinf(account.cap)
        left = np.where(free, np.inf, np.maximum(np.where(free, 0.0, account.cap) - account.budget, 0.0))
        return _one_or_all(clients, left)

    @overload
    def get_epsilon(
        self, clients: str, dp_delta: float, method: str = ..., *, unit: Unit | None = ..., worst_case: bool = ...
    ) -> float: ...
    @overload
    def get_epsilon(
        self,
        clients: Names | None,
        dp_delta: float,
        method: str = ...,
        *,
        unit: Unit | None = ...,
        worst_case: bool = ...,
    ) -> Array: ...
    def get_epsilon(
        self,
        clients: str | Names | None,
        dp_delta: float,
        method: str = "exact",
        *,
        unit: Unit | None = None,
        worst_case: bool = False,
    ) -> float | Array:
        """dp_epsilon of each client's releases so far, at `dp_delta` in all.

        What the releases add to δ by themselves is taken out of `dp_delta` first, (1 + e^ε) times; where that is more
        than there is, ε is infinite. "exact" needs Gaussian noise throughout. Clients with Poisson-sampled releases
        need the method "pld", some seconds for every different history, or "rdp", which is quick and some per cent
        larger.
        """
        delta = require_number(dp_delta, "dp_delta", 0.0, 1.0)
        account = self.account(clients, unit)
        with self._reading() as read:
            numbers = numbers_of(read, account.clients, self.path)
            return _one_or_all(clients, epsilons(read, account, numbers, delta, method, worst_case))

    def to_dp_events(self, client: str, unit: Unit | None = None, *, worst_case: bool = False) -> tuple[Any, ...]:
        """The client's releases as events of dp-accounting, oldest first, for accountants with ADD_OR_REMOVE_ONE."""
        chosen = self._unit(unit)
        ask = f"SELECT {KIND} FROM events WHERE client = ? AND unit = ? ORDER BY id"
        name = name_of(client)
        with self._reading() as read:
            number = numbers_of(read, [name], self.path)[name]
            rows = read.execute(ask, (number, chosen)).fetchall()
        return tuple(dp_event(Kind(*row), worst_case) for row in rows)

    def events(self) -> Iterator[dict[str, Any]]:
        """Every release as a plain record, oldest first."""
        with self._reading() as read:
            yield from events_of(read)

    def export_csv(self, path: str | Path) -> int:
        """Writes every release as a row of a CSV file; how many."""
        return write_csv(Path(path), self.events())

    def export_json(self, path: str | Path) -> int:
        """Writes every release, with the notes and the head of the chain, as one JSON object; how many."""
        return write_json(Path(path), self.events(), self.notes(), self.head)

    def verify(self) -> int:
        """How many events there are, after reading all of them again: pages, chain, sums, caps and uploads.

        Raises BadFile at the first thing that does not fit, a release beyond the cap that held then included. It
        notices accidents and careless edits; who rewrites the whole chain is noticed only by a `head` noted elsewhere.
        """
        with self._reading() as read:
            read.execute("BEGIN")
            try:
                return verify_all(read, self.path)
            finally:
                read.execute("COMMIT")

    # ---- inside -------------------------------------------------------------------------------------------------

    def _unit(self, unit: str | None) -> Unit:
        if unit is not None:
            chosen: Any = require_one_of("unit", unit, ("record", "client"))
            return chosen  # type: ignore[no-any-return]
        units = self.units
        if len(units) > 1:
            raise BadInput("the ledger holds releases per record and per client, which do not add. Choose the unit.")
        return units[0] if units else "record"

    def _last_event(
        self, connection: sqlite3.Connection, run: str, round_index: int, client: str
    ) -> tuple[int, str, str]:
        return last_event(connection, name_of(run, "run"), round_of(round_index), name_of(client), self.path)


def _one_or_all(clients: str | Names | None, values: Array) -> float | Array:
    return float(values[0]) if isinstance(clients, (str, int)) else values
