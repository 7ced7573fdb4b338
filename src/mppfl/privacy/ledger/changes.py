"""What changes in a ledger beside its releases, each change a link of the same chain: caps, statuses, whose a run is.

    cap      subject a client, detail the unit, budget the new cap
    status   subject the number of an event, detail its new status, sha256 that of the upload which was stored
    run      subject a run, detail the key of the training that it is

A change says after how many events it came, so the chain runs through both tables in one order.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mppfl.errors import BadInput


class Change(NamedTuple):
    """One change, as the table holds it."""

    kind: str
    subject: str
    detail: str
    budget: float | None = None
    sha256: bytes | None = None


def link_of_change(head: bytes, facts: tuple[Any, ...]) -> bytes:
    """The next head of the chain. An event has more facts than a change, so one cannot pass for the other."""
    return hashlib.sha256(head + repr(facts).encode()).digest()


def record(write: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """Adds the changes to the chain, after all that is in it."""
    events, head = write.execute("SELECT events, head FROM state").fetchone()
    (last,) = write.execute("SELECT coalesce(max(id), 0) FROM changes").fetchone()
    rows = []
    for number, change in enumerate(changes, last + 1):
        facts = (number, events, *change)
        head = link_of_change(head, facts)
        rows.append((*facts, head))
    write.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    write.execute("UPDATE state SET head = ?", (head,))


def training_of(read: sqlite3.Connection, run: str) -> str | None:
    """Key of the training that the run is; None where none is noted."""
    found = read.execute("SELECT detail FROM changes WHERE kind = 'run' AND subject = ?", (run,)).fetchone()
    return None if found is None else str(found[0])


def has_releases(read: sqlite3.Connection, run: str) -> bool:
    return read.execute("SELECT 1 FROM events WHERE run = ? LIMIT 1", (run,)).fetchone() is not None


def require_same_training(read: sqlite3.Connection, run: str, key: str, path: Path | str) -> bool:
    """Whether the run is known for that of this training. Raises where its releases are, or may be, another's."""
    known = training_of(read, run)
    if known is not None and known != key:
        raise BadInput(
            f"run={run!r} is another training in {path}: seed, configuration, plan, data or initial model differ, so "
            "its rounds would not be charged. Use another run name, or another ledger."
        )
    if known is None and has_releases(read, run):
        raise BadInput(
            f"run={run!r} has releases in {path}, and no training is noted that made them, so rounds under this name "
            "would not be charged. Use another run name, or another ledger."
        )
    return known is not None
