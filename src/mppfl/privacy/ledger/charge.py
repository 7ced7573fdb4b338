"""How a ledger is charged: caps and reservations, written inside one transaction that the caller holds."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mppfl.errors import BadInput, BudgetExceeded
from mppfl.privacy.ledger.changes import Change, record, require_same_training
from mppfl.privacy.ledger.entries import Outcome, Refusal, Reservation, Terms, other_terms, same_terms, terms_of
from mppfl.privacy.ledger.rows import caps_of, last_attempts, numbers_made, totals_of
from mppfl.privacy.ledger.totals import Total, refusal_of, require_addable
from mppfl.privacy.ledger.verify import link


def put_caps(write: sqlite3.Connection, names: Sequence[str], cap: float, unit: str, path: Path | str) -> None:
    """Gives each of these clients the cap. Who has just that one already stays as it is, and so does the chain."""
    numbers = numbers_made(write, names, path)
    before = caps_of(write, numbers)
    changed = [name for name in numbers if before.get((numbers[name], unit)) != cap]
    write.executemany("INSERT OR REPLACE INTO caps VALUES (?, ?, ?)", [(numbers[name], unit, cap) for name in changed])
    record(write, [Change("cap", name, unit, cap) for name in changed])


def terms_by_client(entries: Iterable[Any], run: str, round_index: int) -> dict[str, Terms]:
    """The terms of each client's release in one round. Raises where one is wrong, or a client stands there twice."""
    asked: dict[str, Terms] = {}
    for entry in entries:
        client, terms = terms_of(entry, run, round_index)
        if client in asked:
            raise BadInput(f"client {client!r} stands twice in round {round_index}; give one release each.")
        asked[client] = terms
    return asked


def reserved(
    write: sqlite3.Connection,
    run: str,
    round_index: int,
    asked: dict[str, Terms],
    session: str,
    path: Path | str,
    *,
    again: bool,
    all_or_nothing: bool,
    must_be_new: bool,
    training: str | None,
) -> Reservation:
    """Records what these releases cost, and says what became of each request.

    session         of the process that reserves, the only one that may store the uploads
    again           whose upload was never stored pays once more
    all_or_nothing  raises where a cap forbids any of them; else who would pass it is left out
    must_be_new     raises where anybody has reserved this round before
    training        key of the training that the run is, noted with its first release; None where it is none
    """
    is_unnoted = training is not None and not require_same_training(write, run, training, path)
    numbers = numbers_made(write, list(asked), path)
    earlier = last_attempts(write, run, round_index, numbers)
    totals, caps = totals_of(write, numbers), caps_of(write, numbers)
    outcomes: dict[str, Outcome] = {}
    attempts: dict[str, int] = {}
    refused: list[Refusal] = []
    rows, changed = [], {}
    count, head = write.execute("SELECT events, head FROM state").fetchone()
    for client, terms in asked.items():
        number, unit, attempt = numbers[client], terms.unit, 1
        if number in earlier:
            last, is_stored, before = earlier[number]
            if not same_terms(before, terms):
                raise BadInput(other_terms(client, run, round_index, before, terms))
            if must_be_new:
                raise BadInput(
                    f"client {client!r} has reserved round {round_index} of {run!r} before; noise drawn anew "
                    "would be a second release for the price of one. Use another run."
                )
            attempts[client] = last
            if not again or is_stored:
                outcomes[client] = "already reserved"
                continue
            attempt = last + 1
        total = totals.get((number, unit)) or Total(terms.adjacency)
        require_addable(client, total, terms)
        refusal = refusal_of(client, total, terms, caps.get((number, unit), math.inf))
        if refusal:
            refused.append(refusal)
            outcomes[client] = "refused"
            continue
        total.add(terms)
        changed[number, unit] = total
        count += 1
        facts = (count, run, round_index, number, attempt, *terms, session)
        head = link(head, client, facts)
        rows.append((*facts, "reserved", head))
        outcomes[client], attempts[client] = "reserved", attempt
    if refused and all_or_nothing:
        raise BudgetExceeded(refused)
    write.executemany(f"INSERT INTO events VALUES ({', '.join('?' * 18)})", rows)
    write.executemany(
        f"INSERT OR REPLACE INTO totals VALUES ({', '.join('?' * 10)})",
        [(*key, *total.row) for key, total in changed.items()],
    )
    write.execute("UPDATE state SET events = ?, head = ?", (count, head))
    if is_unnoted and rows:
        record(write, [Change("run", run, str(training))])
    return Reservation(outcomes, tuple(refused), attempts)
