"""A ledger read as a whole, to verify or to export it (alone: no writer needs it)."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mppfl.errors import BadFile
from mppfl.files import replaced
from mppfl.privacy.ledger.charge import Change, link
from mppfl.privacy.ledger.entries import TERMS, ReleaseTerms
from mppfl.privacy.ledger.epsilon import Limit, Total, after, refusal_of
from mppfl.privacy.ledger.schema import EXPORTED

EMPTY_CHAIN = bytes(32)


class Replayed:
    """Caps, statuses and uploads as the chain tells them, change by change.

    caps      of each client
    statuses  of events that are no longer just reserved
    uploads   SHA-256 of what was stored, by event
    """

    def __init__(self, read: sqlite3.Connection) -> None:
        self.caps: dict[str, dict[Limit, float]] = {}
        self.statuses: dict[int, str] = {}
        self.uploads: dict[int, bytes] = {}
        ask = "SELECT id, after_event, kind, subject, detail, budget, sha256, chain FROM changes ORDER BY id"
        self._rows: Iterator[tuple[Any, ...]] = iter(read.execute(ask))
        self._next = next(self._rows, None)
        self._count = 0

    def follow(self, head: bytes, num_events: int, refuse: Callable[[str], NoReturn]) -> bytes:
        """The head of the chain after all changes that came before the next event."""
        while self._next is not None and self._next[1] == num_events:
            *facts, chain = self._next
            head = link(head, tuple(facts))
            self._count += 1
            if head != chain or facts[0] != self._count:
                refuse(f"change {facts[0]} of a cap, status or run does not follow from what came before")
            self._apply(Change(*facts[2:]))
            self._next = next(self._rows, None)
        return head

    @property
    def is_at_end(self) -> bool:
        return self._next is None

    def _apply(self, change: Change) -> None:
        if change.kind == "cap" and change.budget is not None:
            unit, delta = change.detail.split(" ")
            self.caps.setdefault(change.subject, {})[unit, float(delta)] = change.budget
        elif change.kind == "status":
            self.statuses[int(change.subject)] = change.detail
            if change.sha256 is not None:
                self.uploads[int(change.subject)] = change.sha256


def verify_all(read: sqlite3.Connection, path: Path | str, noted: str | None = None) -> int:
    """How many events there are; raises BadFile at the first thing that does not fit.

    noted  a head that the chain must have, or have had
    """

    def refuse(what: str) -> NoReturn:
        raise BadFile(f"{path}: {what}. The ledger was edited or damaged; restore it from a copy.")

    for (line,) in read.execute("PRAGMA integrity_check(1)"):
        if line != "ok":
            refuse(f"integrity check says: {' '.join(line.split())}")
    if read.execute("PRAGMA foreign_key_check").fetchone():
        refuse("a row names a client or event that does not exist")
    count, head = 0, EMPTY_CHAIN
    sums: dict[int, dict[str, Total]] = {}
    changes = Replayed(read)
    ask = (
        f"SELECT c.name, e.id, e.run, e.round_index, e.client, e.attempt, "
        f"{', '.join(f'e.{term}' for term in TERMS)}, e.session, e.chain "
        "FROM events e JOIN clients c ON c.id = e.client ORDER BY e.id"
    )
    for name, *facts, chain in read.execute(ask):
        head = changes.follow(head, count, refuse)
        count += 1
        head = link(head, (name, *facts))
        if head != chain or facts[0] != count:
            refuse(f"event {facts[0]} does not follow from the one before")
        terms, totals = ReleaseTerms(*facts[5:-1]), sums.get(facts[3], {})
        # Whoever raised a cap by hand, and put it back after the release, is found out here.
        if refusal_of(name, totals, terms, changes.caps.get(name, {})):
            refuse(f"event {count} passes the cap that client {name!r} had then")
        sums[facts[3]] = after(totals, terms)
    head = changes.follow(head, count, refuse)
    if read.execute("SELECT events, head FROM state").fetchone() != (count, head) or not changes.is_at_end:
        refuse(f"the ledger ends after {count} events, but had more")
    if noted is not None and not _has_link(read, noted.strip().lower()):
        refuse(f"the noted head {noted.strip():.16}… is no link of its chain, so what came up to it is not all there")
    if not _sums_agree(read, sums):
        refuse("the sums do not agree with the events")
    _verify_changes(read, changes, refuse)
    return count


def _has_link(read: sqlite3.Connection, noted: str) -> bool:
    """Whether a head was ever that of this ledger; the one before the first event is all zeros."""
    ask = "SELECT chain FROM events UNION ALL SELECT chain FROM changes UNION ALL SELECT zeroblob(32)"
    return any(chain.hex() == noted for (chain,) in read.execute(ask))


def _sums_agree(read: sqlite3.Connection, sums: dict[int, dict[str, Total]]) -> bool:
    kept = {(row[0], row[1]): row[2:] for row in read.execute("SELECT * FROM totals")}
    expected = {(client, unit): total for client, totals in sums.items() for unit, total in totals.items()}
    return kept.keys() == expected.keys() and all(total.agrees(kept[key]) for key, total in expected.items())


def _verify_changes(read: sqlite3.Connection, changes: Replayed, refuse: Callable[[str], NoReturn]) -> None:
    """Caps, uploads by their digests, and what became of each release, as the chain tells it."""
    if read.execute(
        "SELECT 1 FROM events WHERE status = 'stored' AND id NOT IN (SELECT event FROM uploads) LIMIT 1"
    ).fetchone():
        refuse("a stored upload is missing")
    caps: dict[str, dict[Limit, float]] = {}
    for name, unit, delta, cap in read.execute(
        "SELECT c.name, p.unit, p.delta, p.budget FROM caps p JOIN clients c ON c.id = p.client"
    ):
        caps.setdefault(name, {})[unit, delta] = cap
    uploads: dict[int, bytes] = {}
    for event, digest, content in read.execute("SELECT event, sha256, content FROM uploads"):
        uploads[event] = digest
        if hashlib.sha256(content).digest() != digest:
            refuse(f"the upload of event {event} was changed")
    statuses = dict(read.execute("SELECT id, status FROM events WHERE status != 'reserved'"))
    told: tuple[tuple[str, dict[Any, Any], dict[Any, Any]], ...] = (
        ("cap of client", caps, changes.caps),
        ("status of event", statuses, changes.statuses),
        ("upload of event", uploads, changes.uploads),
    )
    for what, kept, expected in told:
        if differing := [key for key in {**kept, **expected} if kept.get(key) != expected.get(key)]:
            refuse(f"the {what} {min(differing)!r} was changed")


def write_csv(path: Path, events: Iterable[dict[str, Any]]) -> int:
    """Every release as a row; how many."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, EXPORTED)
    writer.writeheader()
    rows = [{key: repr(value) if isinstance(value, float) else value for key, value in row.items()} for row in events]
    writer.writerows(rows)
    with replaced(path) as file:
        file.write(text.getvalue().encode())
    return len(rows)


def write_json(path: Path, events: Iterable[dict[str, Any]], notes: Sequence[str], head: str) -> int:
    """Every release, with the notes and the head of the chain, as one object; how many."""
    rows = [{key: "Infinity" if value == math.inf else value for key, value in event.items()} for event in events]
    content = {"notes": notes, "head": head, "events": rows}
    with replaced(path) as file:
        file.write(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1).encode() + b"\n")
    return len(rows)
