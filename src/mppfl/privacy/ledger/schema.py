"""The tables of a privacy ledger, and what is asked of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mppfl.errors import BadInput, UnknownClient
from mppfl.files import Book
from mppfl.privacy import Unit
from mppfl.privacy.ledger.entries import ANY, TERMS, ReleaseTerms, name_of, round_of
from mppfl.privacy.ledger.epsilon import Account, Limit, Total, account_from, after

SCHEMA = """
CREATE TABLE clients (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    round_index INTEGER NOT NULL,
    client INTEGER NOT NULL REFERENCES clients,
    attempt INTEGER NOT NULL,
    protection TEXT NOT NULL,
    unit TEXT NOT NULL,
    adjacency TEXT NOT NULL,
    budget REAL,
    noise_multiplier REAL,
    sampling_rate REAL,
    num_steps INTEGER,
    noise_kind TEXT NOT NULL,
    extra_delta REAL NOT NULL,
    in_sum INTEGER NOT NULL,
    session TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('reserved', 'stored', 'sent')),
    chain BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_event_each ON events (run, round_index, client, attempt);
CREATE TABLE totals (
    client INTEGER NOT NULL REFERENCES clients,
    unit TEXT NOT NULL,
    adjacency TEXT NOT NULL,
    budget REAL NOT NULL,
    extra_delta REAL NOT NULL,
    not_gaussian INTEGER NOT NULL,
    poisson INTEGER NOT NULL,
    simulated INTEGER NOT NULL,
    sampled TEXT NOT NULL,
    PRIMARY KEY (client, unit)
) STRICT, WITHOUT ROWID;
CREATE TABLE caps (
    client INTEGER NOT NULL REFERENCES clients,
    unit TEXT NOT NULL,
    delta REAL NOT NULL,
    budget REAL NOT NULL,
    PRIMARY KEY (client, unit, delta)
) STRICT, WITHOUT ROWID;
CREATE TABLE uploads (event INTEGER PRIMARY KEY REFERENCES events, sha256 BLOB NOT NULL, content BLOB NOT NULL) STRICT;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), events INTEGER NOT NULL, head BLOB NOT NULL) STRICT;
INSERT INTO state VALUES (1, 0, zeroblob(32));
CREATE TABLE changes (
    id INTEGER PRIMARY KEY,
    after_event INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('cap', 'status', 'run')),
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    budget REAL,
    sha256 BLOB,
    chain BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_training_each ON changes (subject) WHERE kind = 'run';
"""
BOOK = Book("ledger", "a privacy ledger", 0x6D70706C, 5, SCHEMA)  # "mppl"
AMONG = "IN (SELECT value FROM json_each(?))"  # any number of values, as one of JSON
EXPORTED = ("id", "run", "round_index", "client", "attempt", *TERMS[:-1], "status")


def numbers_of(read: sqlite3.Connection, names: Sequence[str], path: Path | str) -> dict[str, int]:
    """The ids of these clients. Raises UnknownClient where one has none."""
    ids = dict(read.execute(f"SELECT name, id FROM clients WHERE name {AMONG}", (json.dumps(list(names)),)))
    for name in names:
        if name not in ids:
            raise UnknownClient(f"client {name!r} is not in {path}. Check the name.")
    return {name: ids[name] for name in names}


def numbers_made(write: sqlite3.Connection, names: Sequence[str], path: Path | str) -> dict[str, int]:
    """The ids of these clients; new ones get one."""
    write.executemany("INSERT INTO clients (name) VALUES (?) ON CONFLICT DO NOTHING", [(name,) for name in names])
    return numbers_of(write, names, path)


def totals_of(read: sqlite3.Connection, numbers: dict[str, int]) -> dict[int, dict[str, Total]]:
    """The sums of each of these clients by unit."""
    totals: dict[int, dict[str, Total]] = {number: {} for number in numbers.values()}
    for client, unit, *row in read.execute(f"SELECT * FROM totals WHERE client {AMONG}", (json.dumps(list(totals)),)):
        totals[client][unit] = Total.of_row(row)
    return totals


def totals_in_run(read: sqlite3.Connection, numbers: dict[str, int], run: str) -> dict[int, dict[str, Total]]:
    """The same of a single run. Raises where it has no releases."""
    if run not in (runs := runs_of(read)):
        raise BadInput(f"run={run!r} has no releases in this ledger. Runs: {', '.join(runs) or 'none'}.")
    totals: dict[int, dict[str, Total]] = {number: {} for number in numbers.values()}
    for client, *terms in read.execute(
        f"SELECT client, {', '.join(TERMS)} FROM events WHERE run = ? ORDER BY id", (run,)
    ):
        if client in totals:
            totals[client] = after(totals[client], ReleaseTerms(*terms))
    return totals


def runs_of(read: sqlite3.Connection) -> tuple[str, ...]:
    """Names of all runs with releases, in the order in which they began."""
    return tuple(run for (run,) in read.execute("SELECT run FROM events GROUP BY run ORDER BY min(id)"))


def caps_of(read: sqlite3.Connection, numbers: dict[str, int]) -> dict[int, dict[Limit, float]]:
    """The caps of each of these clients."""
    caps: dict[int, dict[Limit, float]] = {number: {} for number in numbers.values()}
    for client, *limit, cap in read.execute(f"SELECT * FROM caps WHERE client {AMONG}", (json.dumps(list(caps)),)):
        caps[client][limit[0], limit[1]] = cap
    return caps


def last_attempts(
    read: sqlite3.Connection, run: str, round_index: int, numbers: dict[str, int]
) -> dict[int, tuple[int, bool, ReleaseTerms]]:
    """The last attempt of each of these clients in this round: attempt, whether its upload is stored, terms."""
    is_stored = "EXISTS (SELECT 1 FROM uploads WHERE uploads.event = events.id)"
    columns = f"client, attempt, {is_stored}, {', '.join(TERMS)}"
    ask = f"SELECT {columns} FROM events WHERE run = ? AND round_index = ? AND client {AMONG} ORDER BY attempt"
    rows = read.execute(ask, (run, round_index, json.dumps(list(numbers.values()))))
    return {client: (attempt, bool(stored), ReleaseTerms(*terms)) for client, attempt, stored, *terms in rows}


def last_event(
    read: sqlite3.Connection, run: str, round_index: int, client: str, path: Path | str
) -> tuple[int, str, str]:
    """Id, status and session of a client's last release in this round. Raises where there is none."""
    facts = name_of(run, "run"), round_of(round_index), numbers_of(read, [name_of(client)], path)[name_of(client)]
    ask = (
        "SELECT id, status, session FROM events WHERE run = ? AND round_index = ? AND client = ? ORDER BY attempt DESC"
    )
    row = read.execute(ask, facts).fetchone()
    if row is None:
        raise BadInput(f"client {client!r} reserved nothing in round {round_index} of {run!r}. Call reserve first.")
    return row[0], row[1], row[2]


def account_of(
    read: sqlite3.Connection, names: Sequence[str] | None, unit: Unit, run: str | None, path: Path | str
) -> Account:
    """Sums and caps in one unit of these clients, or of everybody; of a single run the sums alone."""
    if names is None:
        names = [name for (name,) in read.execute("SELECT name FROM clients ORDER BY id")]
    numbers = numbers_of(read, names, path)
    sums = totals_of(read, numbers) if run is None else totals_in_run(read, numbers, run)
    caps = caps_of(read, numbers if run is None else {})
    totals = [sums[numbers[name]].get(unit, Total()) for name in names]
    return account_from(names, unit, totals, [caps.get(numbers[name], {}) for name in names])


def events_of(read: sqlite3.Connection, run: str | None) -> Iterator[dict[str, Any]]:
    """Every release, or those of one run, as a plain record, oldest first."""
    columns = ", ".join("c.name" if name == "client" else f"e.{name}" for name in EXPORTED)
    ask = f"SELECT {columns} FROM events e JOIN clients c ON c.id = e.client"
    for row in read.execute(f"{ask} WHERE ? IS NULL OR e.run = ? ORDER BY e.id", (run, run)):
        yield dict(zip(EXPORTED, row, strict=True))


SIMULATION = "simulation: seeded noise protects no one"


def notes_of(read: sqlite3.Connection) -> tuple[str, ...]:
    """What must be said beside every figure of this ledger."""
    ask = "SELECT coalesce(sum(simulated), 0), coalesce(sum(poisson), 0) FROM totals"
    simulated, poisson = read.execute(ask).fetchone()
    ask = "SELECT unit, count(*) FROM totals WHERE adjacency != ? GROUP BY unit"
    released = dict(read.execute(ask, (ANY,)))
    lines = []
    if simulated:
        lines.append(SIMULATION)
    if poisson:
        lines.append(f"{poisson:,} Poisson-sampled releases are not part of any zCDP sum; ask for the method pld")
    if len(released) > 1:
        lines.append(
            f"figures per client leave out what {released['record']:,} clients released per record, which bounds "
            "nothing for all data of a client; figures per record count everything"
        )
    return tuple(lines)
