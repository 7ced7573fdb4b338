"""What every client has spent: one durable row per release, written before the release leaves.

    ledger.reserve(run, round_index, costs)      checks every cap and records the costs, all or nothing
    ledger.store_upload(run, round_index, ...)   keeps the noisy upload, so that a repeated round sends the same one
    ledger.mark_sent(run, round_index, client)   after it left

In this order a crash can count a release that never happened; it cannot miss one that did. After a crash:

    stored or sent   send `stored_upload` again: the same noise, released once, paid once
    only reserved    it may have left without being stored. Another process cannot store an upload for it: the retry is
                     a second release and is paid as one, by `reserve_again`, or does not happen

zCDP budgets add within one unit and one adjacency. Poisson-sampled releases are recorded, never added to a zCDP sum.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np

from mppfl.arrays import Array, require_count, require_number
from mppfl.errors import BadFile, BadInput, MppflError, UnknownClient
from mppfl.privacy import accounting
from mppfl.privacy.ledger_file import LedgerUnavailable, failures_in_one_line, open_file, open_in_memory
from mppfl.privacy.mechanism import Adjacency, Unit, require_budget

__all__ = ["BudgetExceeded", "LedgerEntry", "LedgerUnavailable", "PrivacyLedger", "Refusal", "Reservation"]

Names = list[str] | tuple[str, ...]
Outcome = Literal["reserved", "already reserved", "refused"]

CAP_SLACK = 1e-12  # three times 0.1 may fill a cap of 0.3, although their sum in binary is larger
GAUSSIAN_KINDS = ("gaussian", "seeded", "none")
NOISE_KINDS = (*GAUSSIAN_KINDS, "discrete")
SIMULATION = "simulation: seeded noise protects no one"
NAMES_AT_ONCE = 500  # SQLite takes a limited number of values in one question
TERMS = (
    "mechanism",
    "unit",
    "adjacency",
    "budget",
    "worst_case_budget",
    "noise_multiplier",
    "sampling_rate",
    "num_steps",
    "noise_kind",
    "extra_delta",
)
EXPORTED = ("id", "run", "round_index", "client", "attempt", *TERMS, "status")
SELECT_EVENTS = "SELECT e.id, e.run, e.round_index, c.name, e.attempt, " + ", ".join(f"e.{term}" for term in TERMS)


class BudgetExceeded(MppflError):
    """A release that would take a client past its cap; nothing of its round was recorded.

    refusals  who was refused, with what was spent, asked and allowed
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        more = f" (and {len(refusals) - 1:,} others)" if len(refusals) > 1 else ""
        super().__init__(f"{refusals[0]}{more}. Ask for less, leave the client out, or raise its cap.")
        self.refusals = tuple(refusals)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client who may not release, and why."""

    client: str
    spent: float
    asked: float
    cap: float

    def __str__(self) -> str:
        spent, asked, cap = (f"{value:.6g}" for value in (self.spent, self.asked, self.cap))
        return f"client {self.client!r} has spent {spent} and asks for {asked} of a cap of {cap}"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one release costs one client. Any object with these attributes will do; the last two may be missing.

    budget             ρ-zCDP as declared; None for a Poisson-sampled release
    worst_case_budget  ρ that really holds, where the mechanism declares too little
    noise_multiplier   σ/C, needed with sampling_rate and num_steps for a Poisson-sampled release
    noise_kind         gaussian, discrete, seeded or none
    extra_delta        δ beyond what the budget says, such as truncated noise
    """

    client: str
    mechanism: str
    unit: Unit
    adjacency: Adjacency
    budget: float | None
    worst_case_budget: float | None = None
    noise_multiplier: float | None = None
    noise_kind: str = "gaussian"
    extra_delta: float = 0.0
    sampling_rate: float | None = None
    num_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """What became of each client's request.

    Only who is "reserved" may draw noise and release. Who is "already reserved" sends the stored upload again, or pays
    once more with `reserve_again`.
    """

    outcomes: dict[str, Outcome]
    refused: tuple[Refusal, ...] = ()

    @property
    def reserved(self) -> tuple[str, ...]:
        """Who may release now."""
        return tuple(client for client, outcome in self.outcomes.items() if outcome == "reserved")


@dataclass(slots=True)
class _Total:
    """Sums over one client's events of one unit, as the table holds them."""

    adjacency: str
    events: int = 0
    budget: float = 0.0
    worst_case_budget: float = 0.0
    extra_delta: float = 0.0
    not_gaussian: int = 0
    poisson: int = 0
    seeded: int = 0

    def add(self, terms: tuple[Any, ...]) -> None:
        _, _, adjacency, budget, worst, _, _, _, noise_kind, extra_delta = terms
        self.events += 1
        self.extra_delta += extra_delta
        self.seeded += noise_kind == "seeded"
        if budget is None:
            self.poisson += 1
            return
        if self.budget == 0:
            self.adjacency = adjacency  # until now only Poisson events, which are not part of the sum
        self.budget += budget
        self.worst_case_budget += worst
        self.not_gaussian += noise_kind not in GAUSSIAN_KINDS

    @property
    def row(self) -> tuple[Any, ...]:
        return (self.adjacency, self.events, self.budget, self.worst_case_budget, self.extra_delta,
                self.not_gaussian, self.poisson, self.seeded)  # fmt: skip


class PrivacyLedger:
    """The account of all clients, over all runs and rounds, in one SQLite file.

    Several processes may write at once. A handle belongs to the thread and process that opened it.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | str) -> None:
        self.path = path
        self._connection = connection
        self._session = secrets.token_hex(8)
        self._process = os.getpid()

    @classmethod
    def open(cls, path: str | Path, *, must_exist: bool = False, read_only: bool = False) -> PrivacyLedger:
        """The ledger at `path`, made if there is none. Refuses whatever else lies there, and leaves it as it is."""
        path = Path(path)
        return cls(open_file(path, must_exist=must_exist, read_only=read_only), path)

    @classmethod
    def in_memory(cls) -> PrivacyLedger:
        """A ledger for simulations: gone with the process."""
        return cls(open_in_memory(), "ledger in memory")

    def close(self) -> None:
        """Lets go of the file."""
        self._connection.close()

    def __enter__(self) -> PrivacyLedger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- writing ------------------------------------------------------------------------------------------------

    def set_cap(self, client: str | Iterable[str], budget: float, unit: Unit) -> None:
        """From now on each of these clients may spend at most `budget` in `unit`, counting what is already spent."""
        cap = require_number(budget, "cap", 0.0, math.inf, open_ends=False)
        _require_one_of("unit", unit, ("record", "client"))
        names = [_name(client)] if isinstance(client, (str, int)) else [_name(each) for each in client]
        with self._writing() as write:
            numbers = self._numbers(names, make=True)
            write.executemany(
                "INSERT OR REPLACE INTO caps VALUES (?, ?, ?, ?)",
                [(numbers[name], unit, cap, _checksum(name, unit, cap)) for name in names],
            )

    def reserve(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """Records what these releases cost, if no cap forbids any of them; else raises and records nothing.

        Return means it is on the disk: now the releases may leave. Repeated with the same terms it records nothing and
        says "already reserved"; with other terms it raises.
        """
        return self._reserve(run, round_index, entries, again=False, all_or_nothing=True)

    def reserve_each(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """As `reserve`, but those who would pass their cap are left out, and named in the answer."""
        return self._reserve(run, round_index, entries, again=False, all_or_nothing=False)

    def reserve_again(self, run: str, round_index: int, entries: Iterable[Any]) -> Reservation:
        """A second, paid release of the same round, where the first was reserved and its upload never stored."""
        return self._reserve(run, round_index, entries, again=True, all_or_nothing=True)

    def _reserve(
        self, run: str, round_index: int, entries: Iterable[Any], *, again: bool, all_or_nothing: bool
    ) -> Reservation:
        run, round_index = _name(run, "run"), _round(round_index)
        asked: dict[str, tuple[Any, ...]] = {}
        for entry in entries:
            client, terms = _terms(entry, run, round_index)
            if client in asked:
                raise BadInput(f"client {client!r} stands twice in round {round_index}; give one release each.")
            asked[client] = terms
        with self._writing() as write:
            numbers = self._numbers(list(asked), make=True)
            earlier = self._earlier(run, round_index, numbers)
            totals, caps = self._totals_of(numbers), self._caps_of(numbers)
            outcomes: dict[str, Outcome] = {}
            refused: list[Refusal] = []
            rows, changed = [], {}
            count, head = write.execute("SELECT events, head FROM state").fetchone()
            for client, terms in asked.items():
                number, unit = numbers[client], terms[1]
                attempt = 1
                if number in earlier:
                    last, status, before = earlier[number]
                    if before != terms:
                        raise BadInput(_other_terms(client, run, round_index, before, terms))
                    if not again or status != "reserved":
                        outcomes[client] = "already reserved"
                        continue
                    attempt = last + 1
                total = totals.get((number, unit)) or _Total(terms[2])
                _require_addable(client, total, terms)
                refusal = _refusal(client, total, terms, caps.get((number, unit), math.inf))
                if refusal:
                    refused.append(refusal)
                    outcomes[client] = "refused"
                    continue
                total.add(terms)
                changed[number, unit] = total
                count += 1
                facts = (count, run, round_index, number, attempt, *terms, self._session)
                head = _link(head, client, facts)
                rows.append((*facts, "reserved", head))
                outcomes[client] = "reserved"
            if refused and all_or_nothing:
                raise BudgetExceeded(refused)
            write.executemany(f"INSERT INTO events VALUES ({', '.join('?' * 18)})", rows)
            write.executemany(
                f"INSERT OR REPLACE INTO totals VALUES ({', '.join('?' * 10)})",
                [(*key, *total.row) for key, total in changed.items()],
            )
            write.execute("UPDATE state SET events = ?, head = ?", (count, head))
        return Reservation(outcomes, tuple(refused))

    def store_upload(self, run: str, round_index: int, client: str, content: bytes) -> str:
        """Keeps the noisy upload of a reserved release, before it is sent; its SHA-256 in hexadecimal.

        An upload can be stored once per paid release, by the process that reserved it. The same bytes again are fine.
        """
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise BadInput(f"an upload is kept as bytes, got {type(content).__name__}.")
        content = bytes(content)
        digest = hashlib.sha256(content)
        with self._writing() as write:
            event, status, session = self._last_event(run, round_index, client)
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
        return digest.hexdigest()

    def stored_upload(self, run: str, round_index: int, client: str) -> bytes | None:
        """The upload kept for this release, to be sent again as it is; None if none was stored."""
        with self._reading() as read:
            event, _, _ = self._last_event(run, round_index, client)
            row = read.execute("SELECT sha256, content FROM uploads WHERE event = ?", (event,)).fetchone()
        if row is None:
            return None
        if hashlib.sha256(row[1]).digest() != row[0]:
            raise BadFile(f"{self.path}: the stored upload of {client!r} is damaged; do not send it. Restore a copy.")
        return bytes(row[1])

    def mark_sent(self, run: str, round_index: int, client: str) -> None:
        """Notes that the release has left."""
        with self._writing() as write:
            event, _, _ = self._last_event(run, round_index, client)
            write.execute("UPDATE events SET status = 'sent' WHERE id = ?", (event,))

    # ---- reading ------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[str, ...]:
        """Everybody known, in the order in which they came: the order of every array over clients."""
        with self._reading() as read:
            return tuple(name for (name,) in read.execute("SELECT name FROM clients ORDER BY id"))

    @property
    def units(self) -> tuple[str, ...]:
        """The units in which anything was released."""
        with self._reading() as read:
            return tuple(unit for (unit,) in read.execute("SELECT DISTINCT unit FROM totals ORDER BY unit DESC"))

    def __len__(self) -> int:
        with self._reading() as read:
            return int(read.execute("SELECT events FROM state").fetchone()[0])

    @property
    def head(self) -> str:
        """The last link of the chain over all events; noted elsewhere, it shows whether history was rewritten."""
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
            ask = "SELECT coalesce(sum(seeded), 0), coalesce(sum(poisson), 0) FROM totals"
            seeded, poisson = read.execute(ask).fetchone()
            worse = read.execute("SELECT count(*) FROM totals WHERE worst_case_budget > budget").fetchone()[0]
        lines = []
        if seeded:
            lines.append(SIMULATION)
        if worse:
            lines.append(f"{worse:,} clients used a mechanism whose worst case costs more than its nominal budget")
        if poisson:
            lines.append(f"{poisson:,} Poisson-sampled releases are not part of any zCDP sum; ask for the method pld")
        return tuple(lines)

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
        column = "worst_case_budget" if worst_case else "budget"
        return _one_or_all(clients, self._columns(clients, unit)[column])

    @overload
    def remaining(self, clients: str, unit: Unit | None = ...) -> float: ...
    @overload
    def remaining(self, clients: Names | None = ..., unit: Unit | None = ...) -> Array: ...
    def remaining(self, clients: str | Names | None = None, unit: Unit | None = None) -> float | Array:
        """What each client may still spend; infinite without a cap."""
        columns = self._columns(clients, unit)
        free = np.isinf(columns["cap"])
        left = np.where(free, np.inf, np.maximum(np.where(free, 0.0, columns["cap"]) - columns["budget"], 0.0))
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

        What the releases add to δ by themselves is taken out of `dp_delta` first. "exact" needs Gaussian noise
        throughout. Clients with Poisson-sampled releases need the method "pld", about a second per history.
        """
        delta = require_number(dp_delta, "dp_delta", 0.0, 1.0)
        columns = self._columns(clients, unit)
        names = columns["names"]
        left = delta - columns["extra_delta"]
        if (left <= 0).any():
            worst = int(np.argmin(left))
            raise BadInput(
                f"dp_delta={delta:g} is used up by client {names[worst]!r}, whose noise alone costs "
                f"{columns['extra_delta'][worst]:.3g}. Ask for a larger dp_delta."
            )
        if method == "pld":
            found = self._pld_epsilons(columns, left, worst_case)
            return _one_or_all(clients, found)
        if columns["poisson"].any():
            name = names[int(np.argmax(columns["poisson"] > 0))]
            raise BadInput(
                f"client {name!r} has Poisson-sampled releases, which are no part of a zCDP sum. Use the method pld."
            )
        if method == "exact" and columns["not_gaussian"].any():
            name = names[int(np.argmax(columns["not_gaussian"] > 0))]
            raise BadInput(f"client {name!r} has releases whose noise was not Gaussian. Use the method rdp.")
        budgets = columns["worst_case_budget" if worst_case else "budget"]
        return _one_or_all(clients, accounting.epsilon(budgets, left, method))

    def to_dp_events(self, client: str, unit: Unit | None = None, *, worst_case: bool = False) -> tuple[Any, ...]:
        """The client's releases as events of dp-accounting, oldest first, for accountants with ADD_OR_REMOVE_ONE."""
        chosen = self._unit(unit)
        ask = (
            "SELECT budget, worst_case_budget, noise_multiplier, sampling_rate, num_steps, noise_kind FROM events "
            "WHERE client = ? AND unit = ? ORDER BY id"
        )
        with self._reading() as read:
            number = self._numbers([_name(client)], make=False)[_name(client)]
            rows = read.execute(ask, (number, chosen)).fetchall()
        return tuple(_dp_event(row, worst_case) for row in rows)

    def events(self) -> Iterator[dict[str, Any]]:
        """Every release as a plain record, oldest first."""
        with self._reading() as read:
            for row in read.execute(
                f"{SELECT_EVENTS}, e.status FROM events e JOIN clients c ON c.id = e.client ORDER BY e.id"
            ):
                yield dict(zip(EXPORTED, row, strict=True))

    def export_csv(self, path: str | Path) -> int:
        """Writes every release as a row of a CSV file; how many."""
        with _replacing(Path(path)) as file:
            writer = csv.DictWriter(file, EXPORTED)
            writer.writeheader()
            count = 0
            for count, event in enumerate(self.events(), 1):  # noqa: B007
                writer.writerow({key: repr(each) if isinstance(each, float) else each for key, each in event.items()})
        return count

    def export_json(self, path: str | Path) -> int:
        """Writes every release, with the notes and the head of the chain, as one JSON object; how many."""
        events = [
            {key: "Infinity" if each == math.inf else each for key, each in event.items()} for event in self.events()
        ]
        with _replacing(Path(path)) as file:
            content = {"notes": self.notes(), "head": self.head, "events": events}
            json.dump(content, file, ensure_ascii=False, allow_nan=False, indent=1)
            file.write("\n")
        return len(events)

    def verify(self) -> int:
        """How many events there are, after reading all of them again: pages, chain, sums, caps and uploads.

        Raises BadFile at the first thing that does not fit. It notices accidents and careless edits; who rewrites the
        whole chain is noticed only by a `head` noted elsewhere.
        """
        with self._reading() as read:
            read.execute("BEGIN")
            try:
                return self._verify(read)
            finally:
                read.execute("COMMIT")

    def _verify(self, read: sqlite3.Connection) -> int:
        def refuse(what: str) -> None:
            raise BadFile(f"{self.path}: {what}. The ledger was edited or damaged; restore it from a copy.")

        for (line,) in read.execute("PRAGMA integrity_check(1)"):
            if line != "ok":
                refuse(f"integrity check says: {' '.join(line.split())}")
        if read.execute("PRAGMA foreign_key_check").fetchone():
            refuse("a row names a client or event that does not exist")
        count, head = 0, bytes(32)
        sums: dict[tuple[int, str], _Total] = {}
        ask = (
            f"SELECT c.name, e.id, e.run, e.round_index, e.client, e.attempt, "
            f"{', '.join(f'e.{term}' for term in TERMS)}, e.session, e.chain "
            "FROM events e JOIN clients c ON c.id = e.client ORDER BY e.id"
        )
        for name, *facts, chain in read.execute(ask):
            count += 1
            head = _link(head, name, tuple(facts))
            if head != chain or facts[0] != count:
                refuse(f"event {facts[0]} does not follow from the one before")
            terms = tuple(facts[5:15])
            sums.setdefault((facts[3], terms[1]), _Total(terms[2])).add(terms)
        if read.execute("SELECT events, head FROM state").fetchone() != (count, head):
            refuse(f"the ledger ends after {count} events, but had more")
        kept = {(row[0], row[1]): _Total(*row[2:]) for row in read.execute("SELECT * FROM totals")}
        if kept.keys() != sums.keys() or not all(_agree(kept[key].row, sums[key].row) for key in sums):
            refuse("the sums do not agree with the events")
        for name, unit, cap, checksum in read.execute(
            "SELECT c.name, p.unit, p.budget, p.checksum FROM caps p JOIN clients c ON c.id = p.client"
        ):
            if _checksum(name, unit, cap) != checksum:
                refuse(f"the cap of client {name!r} was changed")
        if read.execute(
            "SELECT 1 FROM events WHERE status = 'stored' AND id NOT IN (SELECT event FROM uploads) LIMIT 1"
        ).fetchone():
            refuse("a stored upload is missing")
        for event, digest, content in read.execute("SELECT event, sha256, content FROM uploads"):
            if hashlib.sha256(content).digest() != digest:
                refuse(f"the upload of event {event} was changed")
        return count

    # ---- inside -------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            raise BadInput(f"{self.path}: was opened in another process; open the ledger anew after a fork.")
        with failures_in_one_line(self.path):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that no other writer can come between; undone as a whole where anything fails."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _unit(self, unit: str | None) -> str:
        if unit is not None:
            return _require_one_of("unit", unit, ("record", "client"))
        units = self.units
        if len(units) > 1:
            raise BadInput("the ledger holds releases per record and per client, which do not add. Choose the unit.")
        return units[0] if units else "record"

    def _in_parts(self, ask: str, before: tuple[Any, ...], values: Sequence[Any]) -> Iterator[Any]:
        """Rows of a question whose last condition is `IN (...)`, for any number of values."""
        for start in range(0, len(values), NAMES_AT_ONCE):
            part = values[start : start + NAMES_AT_ONCE]
            yield from self._connection.execute(f"{ask} IN ({', '.join('?' * len(part))})", (*before, *part))

    def _numbers(self, names: Sequence[str], *, make: bool) -> dict[str, int]:
        ask = "SELECT name, id FROM clients WHERE name"
        found = dict(self._in_parts(ask, (), names))
        if make and len(found) < len(names):
            missing = [name for name in names if name not in found]
            insert = "INSERT INTO clients (name) VALUES (?) ON CONFLICT DO NOTHING"
            self._connection.executemany(insert, [(name,) for name in missing])
            found.update(self._in_parts(ask, (), missing))
        for name in names:
            if name not in found:
                raise UnknownClient(f"client {name!r} is not in {self.path}. Check the name.")
        return {name: found[name] for name in names}

    def _totals_of(self, numbers: dict[str, int]) -> dict[tuple[int, str], _Total]:
        rows = self._in_parts("SELECT * FROM totals WHERE client", (), list(numbers.values()))
        return {(row[0], row[1]): _Total(*row[2:]) for row in rows}

    def _caps_of(self, numbers: dict[str, int]) -> dict[tuple[int, str], float]:
        rows = self._in_parts("SELECT client, unit, budget FROM caps WHERE client", (), list(numbers.values()))
        return {(client, unit): budget for client, unit, budget in rows}

    def _earlier(
        self, run: str, round_index: int, numbers: dict[str, int]
    ) -> dict[int, tuple[int, str, tuple[Any, ...]]]:
        """The last attempt of each of these clients in this round: attempt, status, terms."""
        columns = f"client, attempt, status, {', '.join(TERMS)}"
        ask = f"SELECT {columns} FROM events WHERE run = ? AND round_index = ? AND client"
        found: dict[int, tuple[int, str, tuple[Any, ...]]] = {}
        for client, attempt, status, *terms in self._in_parts(ask, (run, round_index), list(numbers.values())):
            if client not in found or attempt > found[client][0]:
                found[client] = (attempt, status, tuple(terms))
        return found

    def _last_event(self, run: str, round_index: int, client: str) -> tuple[int, str, str]:
        number = self._numbers([_name(client)], make=False)[_name(client)]
        row = self._connection.execute(
            "SELECT id, status, session FROM events WHERE run = ? AND round_index = ? AND client = ? "
            "ORDER BY attempt DESC LIMIT 1",
            (_name(run, "run"), _round(round_index), number),
        ).fetchone()
        if row is None:
            raise BadInput(f"client {client!r} reserved nothing in round {round_index} of {run!r}. Call reserve first.")
        return row[0], row[1], row[2]

    def _columns(self, clients: str | Names | None, unit: str | None) -> dict[str, Any]:
        """Sums and caps in one unit, as arrays over these clients."""
        chosen = self._unit(unit)
        ask = (
            "SELECT c.name, t.budget, t.worst_case_budget, t.extra_delta, t.not_gaussian, t.poisson, p.budget "
            "FROM clients c LEFT JOIN totals t ON t.client = c.id AND t.unit = ? "
            "LEFT JOIN caps p ON p.client = c.id AND p.unit = ?"
        )
        with self._reading() as read:
            if clients is None:
                rows = read.execute(f"{ask} ORDER BY c.id", (chosen, chosen)).fetchall()
            else:
                names = [_name(clients)] if isinstance(clients, (str, int)) else [_name(each) for each in clients]
                self._numbers(names, make=False)
                found = {row[0]: row for row in self._in_parts(f"{ask} WHERE c.name", (chosen, chosen), names)}
                rows = [found[name] for name in names]
        keys = ("budget", "worst_case_budget", "extra_delta", "not_gaussian", "poisson")
        columns: dict[str, Any] = {"names": [row[0] for row in rows], "unit": chosen}
        for place, key in enumerate(keys, 1):
            columns[key] = np.array([row[place] or 0.0 for row in rows], dtype=np.float64)
        columns["cap"] = np.array([math.inf if row[6] is None else row[6] for row in rows], dtype=np.float64)
        return columns

    def _pld_epsilons(self, columns: dict[str, Any], deltas: Array, worst_case: bool) -> Array:
        """By composing each client's loss distributions; clients with the same history share the work."""
        terms = "budget, worst_case_budget, noise_multiplier, sampling_rate, num_steps, noise_kind"
        ask = f"SELECT client, {terms}, count(*) FROM events WHERE unit = ? GROUP BY client, {terms}"
        histories: dict[int, list[tuple[Any, ...]]] = {}
        with self._reading() as read:
            numbers = self._numbers(columns["names"], make=False)
            wanted = set(numbers.values())
            for client, *row in read.execute(ask, (columns["unit"],)):
                if client in wanted:
                    histories.setdefault(client, []).append(tuple(row))
        known: dict[Any, float] = {}
        answers = []
        for name, delta in zip(columns["names"], deltas, strict=True):
            history = tuple(histories.get(numbers[name], ()))
            if (history, delta) not in known:
                known[history, delta] = _pld_epsilon(history, float(delta), worst_case)
            answers.append(known[history, delta])
        return np.array(answers, dtype=np.float64)


def _pld_epsilon(history: tuple[tuple[Any, ...], ...], delta: float, worst_case: bool) -> float:
    """Gaussian releases add up to one; each kind of Poisson-sampled release is composed as often as it happened."""
    column = 1 if worst_case else 0
    total = math.fsum(row[column] * row[6] for row in history if row[column] is not None)
    poisson = [row for row in history if row[0] is None]
    if any(row[0] is not None and row[5] not in GAUSSIAN_KINDS for row in history):
        raise BadInput("releases whose noise was not Gaussian have no loss distribution here. Use the method rdp.")
    if not poisson or math.isinf(total):
        return accounting.epsilon(total, delta)
    if len(poisson) == 1 and total == 0:
        _, _, noise, rate, steps, _, count = poisson[0]
        return accounting.poisson_epsilon(noise, delta, rate, steps * count)
    events = [
        (accounting.to_dp_event(noise_multiplier=noise, sampling_rate=rate), steps * count)
        for _, _, noise, rate, steps, _, count in poisson
    ]
    if total > 0:
        events.append((accounting.to_dp_event(budget=total), 1))
    return accounting.composed_epsilon(events, delta)


def _dp_event(row: tuple[Any, ...], worst_case: bool) -> Any:
    budget, worst, noise, rate, steps, kind = row
    if budget is None:
        return accounting.to_dp_event(noise_multiplier=noise, sampling_rate=rate, num_steps=steps)
    return accounting.to_dp_event(budget=worst if worst_case else budget, is_gaussian=kind in GAUSSIAN_KINDS)


# ---- what an entry must be --------------------------------------------------------------------------------------


def _terms(entry: Any, run: str, round_index: int) -> tuple[str, tuple[Any, ...]]:
    """The client and the terms of a release, in the order of TERMS, or one line on what is wrong with them."""
    try:
        client, unit, adjacency = _name(entry.client), entry.unit, entry.adjacency
        mechanism, kind, extra = entry.mechanism, entry.noise_kind, entry.extra_delta
        budget, worst, noise = entry.budget, entry.worst_case_budget, entry.noise_multiplier
    except AttributeError as cause:
        raise BadInput(f"{type(entry).__name__} is no release: {cause}.") from cause
    for name, wanted in (("run", run), ("round_index", round_index)):
        own = getattr(entry, name, None)
        if own is not None and own != wanted:
            raise BadInput(f"the release of client {client!r} belongs to {name}={own!r}, not to {wanted!r}.")
    mechanism = _name(getattr(mechanism, "name", mechanism), "mechanism")
    unit = _require_one_of("unit", unit, ("record", "client"))
    adjacency = _require_one_of("adjacency", adjacency, ("replace-one", "add-remove"))
    kind = _require_one_of("noise_kind", kind, NOISE_KINDS)
    extra = require_number(0.0 if extra is None else extra, "extra_delta", 0.0, 1.0, open_ends=False)
    rate, steps = getattr(entry, "sampling_rate", None), getattr(entry, "num_steps", None)
    if mechanism == "dpsgd_poisson" or rate is not None:
        if noise is None or rate is None or steps is None:
            raise BadInput(
                f"the Poisson-sampled release of client {client!r} needs noise_multiplier, sampling_rate and num_steps."
            )
        if budget is not None:
            raise BadInput(
                f"a Poisson-sampled release has no zCDP budget, but client {client!r} has budget={budget!r}."
            )
        noise, rate, steps = accounting._sampling(noise, rate, steps)
        return client, (mechanism, unit, adjacency, None, None, noise, rate, steps, kind, extra)
    rho = require_budget(budget)
    worst = rho if worst is None else require_budget(worst)
    if worst < rho:
        raise BadInput(f"worst_case_budget={worst:g} of client {client!r} is below its budget={rho:g}.")
    if kind == "none" and not math.isinf(rho):
        raise BadInput(f"client {client!r} adds no noise, so its budget is infinite, not {rho:g}.")
    noise = None if noise is None else require_number(noise, "noise_multiplier", 0.0, math.inf, open_ends=False)
    return client, (mechanism, unit, adjacency, rho, worst, noise, None, None, kind, extra)


def _name(value: Any, what: str = "client") -> str:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        value = str(int(value))
    if not isinstance(value, str) or not value or "\0" in value or not value.isprintable() or len(value) > 1000:
        raise BadInput(f"{what}={value!r:.60} must be a name: printable text of 1 to 1,000 characters.")
    return str(value)


def _round(value: Any) -> int:
    if require_count(value, "round_index") > 2**62:
        raise BadInput(f"round_index={value} is too large.")
    return int(value)


def _require_one_of(name: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise BadInput(f"{name}={value!r:.60} is not known. Known: {', '.join(known)}.")
    return str(value)


def _require_addable(client: str, total: _Total, terms: tuple[Any, ...]) -> None:
    if terms[3] is not None and total.budget > 0 and total.adjacency != terms[2]:
        raise BadInput(
            f"client {client!r} has releases for adjacency {total.adjacency!r}; one for {terms[2]!r} does not add "
            "to them. Keep them in another ledger."
        )


def _refusal(client: str, total: _Total, terms: tuple[Any, ...], cap: float) -> Refusal | None:
    """Why this release may not be, or None. A cap in ρ cannot be kept where a release has no ρ."""
    if math.isinf(cap):
        return None
    asked = math.inf if terms[3] is None else terms[3]
    return Refusal(client, total.budget, asked, cap) if total.budget + asked > cap * (1 + CAP_SLACK) else None


def _other_terms(client: str, run: str, round_index: int, before: tuple[Any, ...], terms: tuple[Any, ...]) -> str:
    which = next(place for place, term in enumerate(TERMS) if before[place] != terms[place])
    return (
        f"round {round_index} of {run!r} was reserved for client {client!r} with {TERMS[which]}={before[which]!r}, not "
        f"{terms[which]!r}. A changed release is a new one: use another round or run."
    )


def _link(head: bytes, client: str, facts: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(head + repr((client, *facts)).encode()).digest()


def _checksum(client: str, unit: str, cap: float) -> bytes:
    return hashlib.sha256(repr((client, unit, float(cap))).encode()).digest()


def _agree(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return one[0] == other[0] and all(
        a == b or math.isclose(a, b, rel_tol=1e-9) for a, b in zip(one[1:], other[1:], strict=True)
    )


def _one_or_all(clients: str | Names | None, values: Array) -> float | Array:
    return float(values[0]) if isinstance(clients, (str, int)) else values


@contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """A text file that takes its place only when it is whole."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    with failures_in_one_line(path):
        try:
            with draft.open("w", encoding="utf-8", newline="") as file:
                yield file
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
