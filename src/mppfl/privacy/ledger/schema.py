"""The tables of a privacy ledger, and what is asked of them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.errors import BadInput, UnknownClient
from mppfl.files import Book
from mppfl.privacy import Unit
from mppfl.privacy.ledger.entries import TERMS, ReleaseTerms
from mppfl.privacy.ledger.epsilon import Account, Total

SCHEMA = """
CREATE TABLE clients (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    round_index INTEGER NOT NULL,
    client INTEGER NOT NULL REFERENCES clients,
    attempt INTEGER NOT NULL,
    mechanism TEXT NOT NULL,
    unit TEXT NOT NULL,
    adjacency TEXT NOT NULL,
    budget REAL,
    worst_case_budget REAL,
    noise_multiplier REAL,
    sampling_rate REAL,
    num_steps INTEGER,
    noise_kind TEXT NOT NULL,
    extra_delta REAL NOT NULL,
    session TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('reserved', 'stored', 'sent')),
    chain BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_event_each ON events (run, round_index, client, attempt);
CREATE TABLE totals (
    client INTEGER NOT NULL REFERENCES clients,
    unit TEXT NOT NULL,
    adjacency TEXT NOT NULL,
    events INTEGER NOT NULL,
    budget REAL NOT NULL,
    worst_case_budget REAL NOT NULL,
    extra_delta REAL NOT NULL,
    not_gaussian INTEGER NOT NULL,
    poisson INTEGER NOT NULL,
    seeded INTEGER NOT NULL,
    PRIMARY KEY (client, unit)
) STRICT, WITHOUT ROWID;
CREATE TABLE caps (
    client INTEGER NOT NULL REFERENCES clients,
    unit TEXT NOT NULL,
    budget REAL NOT NULL,
    PRIMARY KEY (client, unit)
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
BOOK = Book("ledger", "a privacy ledger", 0x6D70706C, 3, SCHEMA)  # "mppl"
NAMES_AT_ONCE = 500  # SQLite takes a limited number of values in one question
EXPORTED = ("id", "run", "round_index", "client", "attempt", *TERMS, "status")


def rows_in_parts(read: sqlite3.Connection, ask: str, before: tuple[Any, ...], values: Sequence[Any]) -> Iterator[Any]:
    """Rows of a question whose last condition is `IN (...)`, for any number of values."""
    for start in range(0, len(values), NAMES_AT_ONCE):
        part = values[start : start + NAMES_AT_ONCE]
        yield from read.execute(f"{ask} IN ({', '.join('?' * len(part))})", (*before, *part))


def numbers_of(read: sqlite3.Connection, names: Sequence[str], path: Path | str) -> dict[str, int]:
    """The ids of these clients. Raises UnknownClient where one has none."""
    ids = dict(rows_in_parts(read, "SELECT name, id FROM clients WHERE name", (), names))
    for name in names:
        if name not in ids:
            raise UnknownClient(f"client {name!r} is not in {path}. Check the name.")
    return {name: ids[name] for name in names}


def numbers_made(write: sqlite3.Connection, names: Sequence[str], path: Path | str) -> dict[str, int]:
    """The ids of these clients; new ones get one."""
    ids = dict(rows_in_parts(write, "SELECT name, id FROM clients WHERE name", (), names))
    missing = [name for name in names if name not in ids]
    write.executemany("INSERT INTO clients (name) VALUES (?) ON CONFLICT DO NOTHING", [(name,) for name in missing])
    ids.update(numbers_of(write, missing, path))
    return {name: ids[name] for name in names}


def totals_of(read: sqlite3.Connection, numbers: dict[str, int]) -> dict[tuple[int, str], Total]:
    """The sums of these clients, by id and unit."""
    rows = rows_in_parts(read, "SELECT * FROM totals WHERE client", (), list(numbers.values()))
    return {(row[0], row[1]): Total(*row[2:]) for row in rows}


def caps_of(read: sqlite3.Connection, numbers: dict[str, int]) -> dict[tuple[int, str], float]:
    """The caps of these clients, by id and unit."""
    rows = rows_in_parts(read, "SELECT client, unit, budget FROM caps WHERE client", (), list(numbers.values()))
    return {(client, unit): budget for client, unit, budget in rows}


def last_attempts(
    read: sqlite3.Connection, run: str, round_index: int, numbers: dict[str, int]
) -> dict[int, tuple[int, bool, ReleaseTerms]]:
    """The last attempt of each of these clients in this round: attempt, whether its upload is stored, terms."""
    is_stored = "EXISTS (SELECT 1 FROM uploads WHERE uploads.event = events.id)"
    columns = f"client, attempt, {is_stored}, {', '.join(TERMS)}"
    ask = f"SELECT {columns} FROM events WHERE run = ? AND round_index = ? AND client"
    last: dict[int, tuple[int, bool, ReleaseTerms]] = {}
    for client, attempt, stored, *terms in rows_in_parts(read, ask, (run, round_index), list(numbers.values())):
        if client not in last or attempt > last[client][0]:
            last[client] = (attempt, bool(stored), ReleaseTerms(*terms))
    return last


def last_event(
    read: sqlite3.Connection, run: str, round_index: int, client: str, path: Path | str
) -> tuple[int, str, str]:
    """Id, status and session of a client's last release in this round. Raises where there is none."""
    number = numbers_of(read, [client], path)[client]
    row = read.execute(
        "SELECT id, status, session FROM events WHERE run = ? AND round_index = ? AND client = ? "
        "ORDER BY attempt DESC LIMIT 1",
        (run, round_index, number),
    ).fetchone()
    if row is None:
        raise BadInput(f"client {client!r} reserved nothing in round {round_index} of {run!r}. Call reserve first.")
    return row[0], row[1], row[2]


def account_of(read: sqlite3.Connection, names: Sequence[str] | None, unit: Unit, path: Path | str) -> Account:
    """Sums and caps in one unit of these clients, or of everybody."""
    ask = (
        "SELECT c.name, t.budget, t.worst_case_budget, t.extra_delta, t.not_gaussian, t.poisson, t.adjacency, p.budget "
        "FROM clients c LEFT JOIN totals t ON t.client = c.id AND t.unit = ? "
        "LEFT JOIN caps p ON p.client = c.id AND p.unit = ?"
    )
    if names is None:
        rows = read.execute(f"{ask} ORDER BY c.id", (unit, unit)).fetchall()
    else:
        numbers_of(read, names, path)
        by_name = {row[0]: row for row in rows_in_parts(read, f"{ask} WHERE c.name", (unit, unit), names)}
        rows = [by_name[name] for name in names]

    def column(index: int, default: float = 0.0) -> Any:
        return np.array([default if row[index] is None else row[index] for row in rows], dtype=np.float64)

    return Account(
        clients=tuple(row[0] for row in rows),
        unit=unit,
        budget=column(1),
        worst_case_budget=column(2),
        extra_delta=column(3),
        cap=column(7, math.inf),
        not_gaussian=column(4),
        poisson=column(5),
        add_remove=np.array([row[6] == "add-remove" for row in rows], dtype=np.bool_),
    )


def events_of(read: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every release as a plain record, oldest first."""
    columns = ", ".join(f"e.{term}" for term in TERMS)
    for row in read.execute(
        f"SELECT e.id, e.run, e.round_index, c.name, e.attempt, {columns}, e.status "
        "FROM events e JOIN clients c ON c.id = e.client ORDER BY e.id"
    ):
        yield dict(zip(EXPORTED, row, strict=True))


# What is ρ-zCDP for replacing all of a client's data is so for replacing one record of it. What is ρ-zCDP for a client
# that leaves is 4ρ for a record: taking the client out and putting it back changed is twice the distance.
LEFT_OUT_PER_RECORD = """
    SELECT count(*), max(coalesce(r.budget, 0) + c.budget * CASE c.adjacency WHEN 'add-remove' THEN 4 ELSE 1 END)
    FROM totals c LEFT JOIN totals r ON r.client = c.client AND r.unit = 'record'
    WHERE c.unit = 'client' AND c.events > 0 AND (
        EXISTS (SELECT 1 FROM totals WHERE unit = 'record') OR EXISTS (SELECT 1 FROM caps WHERE unit = 'record')
    )
"""
SIMULATION = "simulation: seeded noise protects no one"


def notes_of(read: sqlite3.Connection) -> tuple[str, ...]:
    """What must be said beside every figure of this ledger."""
    ask = "SELECT coalesce(sum(seeded), 0), coalesce(sum(poisson), 0) FROM totals"
    seeded, poisson = read.execute(ask).fetchone()
    worse = read.execute("SELECT count(*) FROM totals WHERE worst_case_budget > budget").fetchone()[0]
    left_out, largest = read.execute(LEFT_OUT_PER_RECORD).fetchone()
    lines = []
    if seeded:
        lines.append(SIMULATION)
    if worse:
        lines.append(f"{worse:,} clients used a mechanism whose worst case costs more than its nominal budget")
    if poisson:
        lines.append(f"{poisson:,} Poisson-sampled releases are not part of any zCDP sum; ask for the method pld")
    if left_out:
        lines.append(
            f"figures and caps per record leave out what {left_out:,} clients released per client, although it "
            f"costs their records, too; with it a record has spent ρ up to {largest:.4g}"
        )
    return tuple(lines)
