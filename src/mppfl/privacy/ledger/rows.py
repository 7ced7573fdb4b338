"""What the tables of a ledger hold about clients: the questions that its readers and writers ask of SQLite."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.errors import BadInput, UnknownClient
from mppfl.privacy import Unit
from mppfl.privacy.ledger.entries import TERMS, Terms
from mppfl.privacy.ledger.totals import Account, Total

NAMES_AT_ONCE = 500  # SQLite takes a limited number of values in one question
EXPORTED = ("id", "run", "round_index", "client", "attempt", *TERMS, "status")


def rows_in_parts(read: sqlite3.Connection, ask: str, before: tuple[Any, ...], values: Sequence[Any]) -> Iterator[Any]:
    """Rows of a question whose last condition is `IN (...)`, for any number of values."""
    for start in range(0, len(values), NAMES_AT_ONCE):
        part = values[start : start + NAMES_AT_ONCE]
        yield from read.execute(f"{ask} IN ({', '.join('?' * len(part))})", (*before, *part))


def numbers_of(read: sqlite3.Connection, names: Sequence[str], path: Path | str) -> dict[str, int]:
    """The ids of these clients. Raises UnknownClient where one has none."""
    found = dict(rows_in_parts(read, "SELECT name, id FROM clients WHERE name", (), names))
    for name in names:
        if name not in found:
            raise UnknownClient(f"client {name!r} is not in {path}. Check the name.")
    return {name: found[name] for name in names}


def numbers_made(write: sqlite3.Connection, names: Sequence[str], path: Path | str) -> dict[str, int]:
    """The ids of these clients, who are made known where they were not."""
    known = dict(rows_in_parts(write, "SELECT name, id FROM clients WHERE name", (), names))
    missing = [name for name in names if name not in known]
    write.executemany("INSERT INTO clients (name) VALUES (?) ON CONFLICT DO NOTHING", [(name,) for name in missing])
    known.update(numbers_of(write, missing, path))
    return {name: known[name] for name in names}


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
) -> dict[int, tuple[int, bool, Terms]]:
    """The last attempt of each of these clients in this round: attempt, whether its upload is stored, terms."""
    is_stored = "EXISTS (SELECT 1 FROM uploads WHERE uploads.event = events.id)"
    columns = f"client, attempt, {is_stored}, {', '.join(TERMS)}"
    ask = f"SELECT {columns} FROM events WHERE run = ? AND round_index = ? AND client"
    found: dict[int, tuple[int, bool, Terms]] = {}
    for client, attempt, stored, *terms in rows_in_parts(read, ask, (run, round_index), list(numbers.values())):
        if client not in found or attempt > found[client][0]:
            found[client] = (attempt, bool(stored), Terms(*terms))
    return found


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
        found = {row[0]: row for row in rows_in_parts(read, f"{ask} WHERE c.name", (unit, unit), names)}
        rows = [found[name] for name in names]

    def column(place: int, otherwise: float = 0.0) -> Any:
        return np.array([otherwise if row[place] is None else row[place] for row in rows], dtype=np.float64)

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
