"""What every client has spent: one durable row per release, written before the release leaves.

    ledger.reserve(run, round_index, costs)      checks every cap and records the costs, all or nothing; only clients
                                                 that the answer calls "reserved" may draw noise and release
    ledger.store_upload(run, round_index, ...)   keeps the noisy upload, so that a repeated round sends the same one
    ledger.mark_sent(run, round_index, client)   after it left

In this order a crash can count a release that never happened; it cannot miss one that did. After a crash:

    stored       send `stored_upload` again, sent before or not: the same noise, released once, paid once
    not stored   it has left, or may have. Another process cannot store an upload for it: the retry is a second release
                 and is paid as one, by `reserve_again`, or does not happen

zCDP budgets add within one adjacency. What is released per client counts per record, too, and not the other way round.
Poisson-sampled releases are never added to a zCDP sum; a cap in ε counts them by their Rényi divergences.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array, require_number
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.files import Database
from mppfl.privacy import AttackRisk, Unit, attack_risk
from mppfl.privacy.ledger.charge import (
    Change,
    put_caps,
    record,
    require_same_clients,
    require_same_training,
    reserved,
    terms_by_client,
    training_of,
)
from mppfl.privacy.ledger.entries import ANY, TERMS, ReleaseTerms, Reservation, name_of, require_one_of, round_of
from mppfl.privacy.ledger.epsilon import Account, Total, dp_event, epsilons, histories_of
from mppfl.privacy.ledger.schema import (
    BOOK,
    SIMULATION,
    account_of,
    events_of,
    last_event,
    notes_of,
    numbers_of,
    runs_of,
)
from mppfl.privacy.ledger.verify import verify_all, write_csv, write_json

Names = list[str] | tuple[str, ...]


class PrivacyLedger(Database):
    """The privacy account of all clients, over all runs and rounds, in one SQLite file.

    A release is reserved, which checks the cap and writes the cost to the disk, before noise is drawn. Costs are
    `ReleaseCost` objects, or any object with these attributes. Several processes may write at once; a handle belongs to
    the thread and process that opened it.

    Attributes:
        path: Where the file is.
        clients: Names of all clients, in the order of every array over clients.
        units: The units in which anything was released: "record", "client" or both.
        runs: Names of the runs with releases, in the order in which they began.
        protections: Under which anything was released, and whether each is of sums in which one noise hides everybody.
        head: Last link of the chain of hashes; noted elsewhere, it shows whether the file was rewritten.
        is_simulation: Whether any noise came from a seed.

    Example:
        >>> import mppfl
        >>> from mppfl.privacy import ReleaseCost
        >>> ledger = mppfl.PrivacyLedger.in_memory()
        >>> ledger.set_cap(["ann", "bob"], 0.5, "client")
        >>> costs = [ReleaseCost(name, "local client update", "client", "replace_one", 0.2) for name in ("ann", "bob")]
        >>> ledger.reserve("survey", 1, costs).reserved
        ('ann', 'bob')
        >>> ledger.remaining("ann")
        0.3
        >>> round(ledger.get_epsilon("ann", dp_delta=1e-5), 2)
        2.59
        >>> ledger
        PrivacyLedger('ledger in memory'): 2 releases of 2 clients
        account per client, 2 clients
        client  spent    cap  remaining
        ann     0.200  0.500      0.300
        bob     0.200  0.500      0.300
    """

    BOOK = BOOK

    def __init__(self, connection: sqlite3.Connection, path: Path | str) -> None:
        super().__init__(connection, path)
        self._session = secrets.token_hex(8)

    def __repr__(self) -> str:
        try:
            count, clients = len(self), len(self.clients)
        except (MppflError, sqlite3.ProgrammingError):
            return f"PrivacyLedger({str(self.path)!r}), closed or not readable"
        title = f"PrivacyLedger({str(self.path)!r}): {count:,} releases of {clients:,} clients"
        return "\n".join([title, *(repr(self.account(unit=unit)) for unit in self.units[:1])])

    def set_cap(
        self, client: str | Iterable[str], budget: float, unit: Unit,
        *, dp_delta: float | None = None, only_lower: bool = False,
    ) -> None:  # fmt: skip
        """From now on each of these clients may spend at most `budget` in `unit`, what is already spent included.

        A client may have caps per record and per client, in ρ and in ε; no release passes any. What no ρ counts is
        refused under a cap in ρ: Poisson-sampled releases, and noise that costs δ by itself; under a cap in ε these
        count. Under a cap per client so are releases per record, which bound nothing for all data of a client.

        Args:
            client: Name of a client, or several names.
            budget: Largest ρ-zCDP in all, over all runs, or largest ε; infinity takes the cap away.
            unit: "record" or "client".
            dp_delta: The δ of a cap in ε, a filter by Rényi divergences; one at another δ stays beside it.
            only_lower: Whether a cap that is lower already stays.

        Raises:
            BadInput: A client has releases that the cap cannot count, or the cap is too small to admit anything.
        """
        cap = require_number(budget, "cap", 0.0, math.inf, open_ends=False) + 0.0  # -0.0 would come back as 0.0
        delta = 0.0 if dp_delta is None else require_number(dp_delta, "dp_delta", 0.0, 1.0)
        if delta and math.isfinite(cap):
            Total().room(cap, delta)  # raises where it is too small
        require_one_of("unit", unit, ("record", "client"))
        names = [name_of(client)] if isinstance(client, (str, int)) else [name_of(name) for name in client]
        with self._writing() as write:
            put_caps(write, names, cap, (unit, delta), self.path, only_lower=only_lower)

    def require_clients(self, clients: Iterable[str]) -> None:
        """Makes the ledger the account of these clients, known by their names.

        Args:
            clients: Names of all clients of a training.

        Raises:
            BadInput: The ledger is the account of others: a name is in one of the two lists alone.
        """
        names = [name_of(client) for client in clients]
        with self._writing() as write:
            require_same_clients(write, names, self.path)

    def require_run(self, run: str, training: str, *, taken_up: bool) -> None:
        """Raises where releases of `run` are those of another training than the one with this key.

        They would be taken for its own, and not be charged.

        Args:
            run: Name of the run.
            training: Key of the training.
            taken_up: Whether releases that no training is noted for belong to this one; it is noted now.
        """
        run = name_of(run, "run")
        with self._writing() as write:
            if taken_up and run in runs_of(write) and training_of(write, run) is None:
                record(write, [Change("run", run, training)])
            require_same_training(write, run, training, self.path)

    def reserve(
        self, run: str, round_index: int, entries: Iterable[Any], *, training: str | None = None
    ) -> Reservation:
        """Records what these releases cost, if no cap forbids any of them; else raises and records nothing.

        Repeated with the same terms it records nothing and answers "already reserved", because that release may have
        left.

        Args:
            run: Name of the run.
            round_index: Round, from 1.
            entries: One `ReleaseCost` for each client that will release.
            training: Key of the training, noted with the first release of the run; another one raises.

        Returns:
            The answer to each client, when it is on the disk. Only clients that are "reserved" may draw noise and
            release now.

        Raises:
            BudgetExceeded: A client would pass its cap.
            BadInput: An entry is wrong, or the round was reserved with other terms.
            LedgerUnavailable: The file could not be written.
        """
        return self._reserve(run, round_index, entries, training=training)

    def reserve_new(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """As `reserve`, for noise that is drawn anew each time: raises, too, where a client reserved this round before.

        Returns:
            An answer by which all of these clients may release.
        """
        return self._reserve(run, round_index, entries, must_be_new=True)

    def reserve_each(
        self, run: str, round_index: int, entries: Iterable[Any], *, training: str | None = None
    ) -> Reservation:
        """As `reserve`, but clients that would pass their cap are left out, and named in the answer.

        Args:
            run: Name of the run.
            round_index: Round, from 1.
            entries: One `ReleaseCost` for each client.
            training: Key of the training, noted with the first release of the run; another one raises.
        """
        return self._reserve(run, round_index, entries, all_or_nothing=False, training=training)

    def reserve_again(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """A second, paid release of the same round, where the upload of the first was never stored.

        A client with a stored upload is "already reserved", pays nothing and may draw no noise: it is sent again.
        """
        return self._reserve(run, round_index, entries, again=True)

    def _reserve(self, run: str, round_index: int, entries: Iterable[Any], **how: Any) -> Reservation:
        run, round_index = name_of(run, "run"), round_of(round_index)
        terms = terms_by_client(entries, run, round_index)
        with self._writing() as write:
            return reserved(write, run, round_index, terms, self._session, self.path, **how)

    def store_upload(self, run: str, round_index: int, client: str, content: bytes) -> str:
        """Keeps the noisy upload of a reserved release, before it is sent.

        An upload can be stored once per paid release, by the process that reserved it. The same bytes again are fine.

        Returns:
            Its SHA-256 in hexadecimal.
        """
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise BadInput(f"an upload is kept as bytes, got {type(content).__name__}.")
        content = bytes(content)
        digest = hashlib.sha256(content)
        with self._writing() as write:
            event, status, session = last_event(write, run, round_index, client, self.path)
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
            event, _, _ = last_event(read, run, round_index, client, self.path)
            row = read.execute("SELECT sha256, content FROM uploads WHERE event = ?", (event,)).fetchone()
        if row is None:
            return None
        if hashlib.sha256(row[1]).digest() != row[0]:
            raise BadFile(f"{self.path}: the stored upload of {client!r} is damaged; do not send it. Restore a copy.")
        return bytes(row[1])

    def mark_sent(self, run: str, round_index: int, client: str) -> None:
        """Notes that the release has left."""
        with self._writing() as write:
            event, status, _ = last_event(write, run, round_index, client, self.path)
            if status != "sent":
                write.execute("UPDATE events SET status = 'sent' WHERE id = ?", (event,))
                record(write, [Change("status", str(event), "sent")])

    @property
    def clients(self) -> tuple[str, ...]:
        """All clients in the order in which they came: the order of every array over clients."""
        with self._reading() as read:
            return tuple(name for (name,) in read.execute("SELECT name FROM clients ORDER BY id"))

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units in which anything was released."""
        with self._reading() as read:
            ask = "SELECT DISTINCT unit FROM totals WHERE adjacency != ? ORDER BY unit DESC"
            return tuple(unit for (unit,) in read.execute(ask, (ANY,)))

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs with releases, in the order in which they began."""
        with self._reading() as read:
            return runs_of(read)

    @property
    def protections(self) -> dict[str, bool]:
        """Under which anything was released, and whether each is of sums in which one noise hides everybody."""
        with self._reading() as read:
            ask = "SELECT protection, max(in_sum) FROM events GROUP BY protection ORDER BY protection"
            return {name: bool(in_sum) for name, in_sum in read.execute(ask)}

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
        return SIMULATION in self.notes()

    def notes(self) -> tuple[str, ...]:
        """What must be said beside every figure of this ledger."""
        with self._reading() as read:
            return notes_of(read)

    def account(self, clients: str | Names | None = None, unit: Unit | None = None, run: str | None = None) -> Account:
        """Sums and caps of these clients, or of all, in one unit; `.to_pandas()` makes a table of it.

        Without `unit` the ledger must hold one unit only. Per record it counts releases of both units. With `run` it
        counts that run alone.
        """
        one = [name_of(clients)] if isinstance(clients, (str, int)) else None
        names = one if one or clients is None else [name_of(name) for name in clients]
        chosen = self._unit(unit)
        with self._reading() as read:
            return account_of(read, names, chosen, run, self.path)

    def spent(self, clients: str | Names | None = None, unit: Unit | None = None, run: str | None = None) -> Any:
        """ρ that each client has spent, without Poisson-sampled releases: a number for one name, else an array.

        Args:
            clients: Name of one client, several names, or None for all.
            unit: "record" or "client"; may be left out where the ledger holds one unit only.
            run: Counts this run alone.
        """
        return _one_or_all(clients, self.account(clients, unit, run).budget)

    def remaining(self, clients: str | Names | None = None, unit: Unit | None = None) -> Any:
        """The ρ that each client may still spend under all its caps in the unit: a number or an array, as `spent`."""
        return _one_or_all(clients, self.account(clients, unit).remaining)

    def get_epsilon(
        self, clients: str | Names | None, dp_delta: float, method: str = "exact",
        *, unit: Unit | None = None, run: str | None = None,
    ) -> Any:  # fmt: skip
        """dp_epsilon of each client's releases so far, at `dp_delta` in all: a number or an array, as `spent`.

        What the releases add to δ by themselves is taken out of `dp_delta` first, (1 + e^ε) times; where that is more
        than there is, ε is infinite.

        Args:
            clients: Name of one client, several names, or None for all.
            dp_delta: δ of the statement, as 1e-5.
            method: "exact" needs Gaussian noise throughout; "rdp" and "zcdp" are looser. Clients with Poisson-sampled
                releases need "pld", some seconds for every different history, or "rdp", quick and some per cent larger.
            unit: "record" or "client"; may be left out where the ledger holds one unit only.
            run: Counts this run alone, which bounds nothing where others released the same people's data.
        """
        delta = require_number(dp_delta, "dp_delta", 0.0, 1.0)
        return _one_or_all(clients, epsilons(self.account(clients, unit, run), delta, method))

    def get_attack_risk(
        self, clients: str | Names | None = None, *, unit: Unit | None = None, run: str | None = None
    ) -> AttackRisk:
        """What somebody who sees each client's releases can tell: arrays over clients, or numbers for one name.

        Args:
            clients: Name of one client, several names, or None for all.
            unit: "record" or "client"; may be left out where the ledger holds one unit only.
            run: Counts this run alone.
        """
        account = self.account(clients, unit, run)
        histories_of(account)  # raises where they are too many
        risk = attack_risk(account).beside(account.extra_delta)
        return AttackRisk(*(_one_or_all(clients, np.asarray(part)) for part in risk))

    def to_dp_events(self, client: str, unit: Unit | None = None) -> tuple[Any, ...]:
        """The client's releases as events of dp-accounting, oldest first, for accountants with ADD_OR_REMOVE_ONE."""
        chosen = self._unit(unit)
        ask = f"SELECT {', '.join(TERMS)} FROM events WHERE client = ? ORDER BY id"
        name = name_of(client)
        with self._reading() as read:
            number = numbers_of(read, [name], self.path)[name]
            charges = [ReleaseTerms(*row).charges() for row in read.execute(ask, (number,))]
        return tuple(dp_event(charge[chosen]) for charge in charges if chosen in charge)

    def events(self, run: str | None = None) -> Iterator[dict[str, Any]]:
        """Every release, or those of one run, as a plain record, oldest first."""
        with self._reading() as read:
            yield from events_of(read, run)

    def export_csv(self, path: str | Path) -> int:
        """Writes every release as a row of a CSV file; how many."""
        return write_csv(Path(path), self.events())

    def export_json(self, path: str | Path) -> int:
        """Writes every release, with the notes and the head of the chain, as one JSON object; how many."""
        return write_json(Path(path), self.events(), self.notes(), self.head)

    def verify(self, head: str | None = None) -> int:
        """Reads everything again: pages, chain, sums, caps and uploads.

        By itself it notices accidents and careless edits. A ledger that was cut back to an earlier event, or rewritten
        as a whole, is noticed by a `head` that was noted elsewhere.

        Args:
            head: The ledger's `head` at any earlier time.

        Returns:
            How many releases there are.

        Raises:
            BadFile: The first thing that does not fit: a release beyond the cap of its time, or a noted head that is
                not in the chain.
        """
        with self._reading() as read:
            read.execute("BEGIN")
            try:
                return verify_all(read, self.path, head)
            finally:
                read.execute("COMMIT")

    def _unit(self, unit: str | None) -> Unit:
        if unit is not None:
            chosen: Any = require_one_of("unit", unit, ("record", "client"))
            return chosen  # type: ignore[no-any-return]
        units = self.units
        if len(units) > 1:
            raise BadInput("the ledger holds releases per record and per client, which do not add. Choose the unit.")
        return units[0] if units else "record"


def _one_or_all(clients: str | Names | None, values: Array) -> float | Array:
    return float(values[0]) if isinstance(clients, (str, int)) else values
