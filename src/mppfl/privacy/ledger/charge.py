"""How a ledger is charged: caps, reservations and the chain of hashes, inside one transaction that the caller holds.

The chain runs through the events, one for each release, and the changes beside them:

    cap      subject a client, detail the unit and the δ of a cap in ε, or 0, budget the new cap
    status   subject the number of an event, detail its new status, sha256 that of the upload which was stored
    run      subject a run, detail the key of its training

A change says after how many events it came, so the chain runs through both tables in one order.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mppfl.errors import BadInput, BudgetExceeded
from mppfl.privacy.ledger.entries import ANY, Outcome, Refusal, ReleaseTerms, Reservation, changed_term, terms_of
from mppfl.privacy.ledger.epsilon import Limit, Total, after, refusal_of, uncounted
from mppfl.privacy.ledger.schema import caps_of, last_attempts, numbers_made, runs_of, totals_of


class Change(NamedTuple):
    """One change, as the table holds it."""

    kind: str
    subject: str
    detail: str
    budget: float | None = None
    sha256: bytes | None = None


def link(head: bytes, facts: tuple[Any, ...]) -> bytes:
    """The next head of the chain. An event has more facts than a change, so one cannot pass for the other."""
    return hashlib.sha256(head + repr(facts).encode()).digest()


def record(write: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """Adds the changes to the chain, after all that is in it."""
    events, head = write.execute("SELECT events, head FROM state").fetchone()
    (last,) = write.execute("SELECT coalesce(max(id), 0) FROM changes").fetchone()
    rows = []
    for number, change in enumerate(changes, last + 1):
        facts = (number, events, *change)
        head = link(head, facts)
        rows.append((*facts, head))
    write.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    write.execute("UPDATE state SET head = ?", (head,))


def training_of(read: sqlite3.Connection, run: str) -> str | None:
    """Key of the training that the run is; None where none is noted."""
    row = read.execute("SELECT detail FROM changes WHERE kind = 'run' AND subject = ?", (run,)).fetchone()
    return None if row is None else str(row[0])


def require_same_training(read: sqlite3.Connection, run: str, key: str, path: Path | str) -> bool:
    """Whether the run is noted as that of this training. Raises where its releases are, or may be, another's."""
    noted = training_of(read, run)
    if noted is not None and noted != key:
        raise BadInput(
            f"run={run!r} is another training in {path}: seed, configuration, plan, data or initial model differ, so "
            "its rounds would not be charged. Use another run name, or another ledger."
        )
    if noted is None and run in runs_of(read):
        raise BadInput(
            f"run={run!r} has releases in {path}, and no training is noted that made them, so rounds under this name "
            "would not be charged. Use another run name, or another ledger."
        )
    return noted is not None


def put_caps(
    write: sqlite3.Connection, names: Sequence[str], cap: float, limit: Limit, path: Path | str, *, only_lower: bool
) -> None:
    """Gives each of these clients the cap. Where it stays the same, or a lower one stays, the chain stays, too."""
    numbers, (unit, delta) = numbers_made(write, names, path), limit
    before, totals = caps_of(write, numbers), totals_of(write, numbers)
    for name, number in numbers.items():
        if cap < math.inf and (why := uncounted(totals[number], unit, delta)):
            raise BadInput(
                f"client {name!r} cannot have a cap per {unit}: {why}. Keep what is capped in another ledger."
            )

    def stays(number: int) -> bool:
        kept = before[number].get(limit, -1.0)
        return kept == cap or (only_lower and 0 <= kept < cap)

    changed = [name for name, number in numbers.items() if not stays(number)]
    rows = [(numbers[name], *limit, cap) for name in changed]
    write.executemany("INSERT OR REPLACE INTO caps VALUES (?, ?, ?, ?)", rows)
    record(write, [Change("cap", name, f"{unit} {delta}", cap) for name in changed])


def require_same_clients(write: sqlite3.Connection, names: Sequence[str], path: Path | str) -> None:
    """Makes the ledger that of these clients, if it is empty. Raises where it is that of others."""
    known, given = {name for (name,) in write.execute("SELECT name FROM clients")}, set(names)
    if known and known != given:
        client = min(known ^ given)
        here, there = ("this training", "the ledger") if client in given else ("the ledger", "this training")
        raise BadInput(
            f"{path} is the account of other clients: {client!r} is in {here} and not in {there} "
            f"({len(known ^ given):,} differ). Use a ledger of these clients, or a new file."
        )
    numbers_made(write, names, path)


def terms_by_client(entries: Iterable[Any], run: str, round_index: int) -> dict[str, ReleaseTerms]:
    """The terms of each client's release in one round. Raises where one is wrong, or a client stands there twice."""
    asked: dict[str, ReleaseTerms] = {}
    for entry in entries:
        client, terms = terms_of(entry, run, round_index)
        if client in asked:
            raise BadInput(f"client {client!r} stands twice in round {round_index}; give one release each.")
        asked[client] = terms
    return asked


def reserved(
    write: sqlite3.Connection, run: str, round_index: int, asked: dict[str, ReleaseTerms], session: str,
    path: Path | str, *, again: bool = False, all_or_nothing: bool = True, must_be_new: bool = False,
    training: str | None = None,
) -> Reservation:  # fmt: skip
    """Records what these releases cost, and answers each client.

    session         of the process that reserves, the only one that may store the uploads
    again           a client whose upload was never stored pays once more
    all_or_nothing  raises where a cap forbids any of them; else these clients are left out
    must_be_new     raises where a client has reserved this round before
    training        key of the training, noted with the first release of the run; None outside a training
    """
    is_unnoted = training is not None and not require_same_training(write, run, training, path)
    numbers = numbers_made(write, list(asked), path)
    earlier = last_attempts(write, run, round_index, numbers)
    totals, caps = totals_of(write, numbers), caps_of(write, numbers)
    outcomes: dict[str, Outcome] = {}
    attempts: dict[str, int] = {}
    refused: list[Refusal] = []
    rows, changed = [], []
    count, head = write.execute("SELECT events, head FROM state").fetchone()
    for client, terms in asked.items():
        number, attempt = numbers[client], 1
        if number in earlier:
            last, is_stored, before = earlier[number]
            _require_repeatable(f"round {round_index} of {run!r}", client, before, terms, must_be_new)
            attempts[client] = last
            if not again or is_stored:
                outcomes[client] = "already reserved"
                continue
            attempt = last + 1
        _require_addable(client, totals[number].get(terms.unit, Total()), terms)
        refusal = refusal_of(client, totals[number], terms, caps[number])
        if refusal:
            refused.append(refusal)
            outcomes[client] = "refused"
            continue
        totals[number] = after(totals[number], terms)
        changed.append(number)
        count += 1
        facts = (count, run, round_index, number, attempt, *terms, session)
        head = link(head, (client, *facts))
        rows.append((*facts, "reserved", head))
        outcomes[client], attempts[client] = "reserved", attempt
    if refused and all_or_nothing:
        raise BudgetExceeded(refused)
    write.executemany(f"INSERT INTO events VALUES ({', '.join('?' * 18)})", rows)
    write.executemany(
        f"INSERT OR REPLACE INTO totals VALUES ({', '.join('?' * 9)})",
        [(number, unit, *total.to_row()) for number in changed for unit, total in totals[number].items()],
    )
    write.execute("UPDATE state SET events = ?, head = ?", (count, head))
    if is_unnoted and rows:
        record(write, [Change("run", run, str(training))])
    return Reservation(outcomes, tuple(refused), attempts)


def _require_addable(client: str, total: Total, terms: ReleaseTerms) -> None:
    """Raises where the release is for another adjacency than those before it: what they add up to is for neither."""
    if total.adjacency not in (ANY, terms.adjacency):
        raise BadInput(
            f"client {client!r} has releases for adjacency {total.adjacency!r}; one for {terms.adjacency!r} does not "
            "add to them. Keep them in another ledger."
        )


def _require_repeatable(where: str, client: str, before: ReleaseTerms, terms: ReleaseTerms, must_be_new: bool) -> None:
    """Raises where a round that was reserved before is another release now, or had to be new."""
    if change := changed_term(before, terms):
        raise BadInput(
            f"{where} was reserved for client {client!r} with {change}. A changed release is a new one: use another "
            "round or run."
        )
    if must_be_new:
        raise BadInput(
            f"client {client!r} has reserved {where} before; noise drawn anew would be a second release for the price "
            "of one. Use another run."
        )
