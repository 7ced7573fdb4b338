"""Whether a ledger is sound: the chain over its events, and everything read again."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

from mppfl.errors import BadFile
from mppfl.privacy.ledger_entries import TERMS, Terms
from mppfl.privacy.ledger_totals import Total, agree

EMPTY_CHAIN = bytes(32)


def link(head: bytes, client: str, facts: tuple[Any, ...]) -> bytes:
    """The next head of the chain: every event is hashed together with all before it."""
    return hashlib.sha256(head + repr((client, *facts)).encode()).digest()


def checksum(client: str, unit: str, cap: float) -> bytes:
    """What a cap is stored with."""
    return hashlib.sha256(repr((client, unit, float(cap))).encode()).digest()


def verify_all(read: sqlite3.Connection, path: Path | str) -> int:
    """How many events there are; raises BadFile at the first thing that does not fit."""

    def refuse(what: str) -> None:
        raise BadFile(f"{path}: {what}. The ledger was edited or damaged; restore it from a copy.")

    for (line,) in read.execute("PRAGMA integrity_check(1)"):
        if line != "ok":
            refuse(f"integrity check says: {' '.join(line.split())}")
    if read.execute("PRAGMA foreign_key_check").fetchone():
        refuse("a row names a client or event that does not exist")
    count, head = 0, EMPTY_CHAIN
    sums: dict[tuple[int, str], Total] = {}
    ask = (
        f"SELECT c.name, e.id, e.run, e.round_index, e.client, e.attempt, "
        f"{', '.join(f'e.{term}' for term in TERMS)}, e.session, e.chain "
        "FROM events e JOIN clients c ON c.id = e.client ORDER BY e.id"
    )
    for name, *facts, chain in read.execute(ask):
        count += 1
        head = link(head, name, tuple(facts))
        if head != chain or facts[0] != count:
            refuse(f"event {facts[0]} does not follow from the one before")
        terms = Terms(*facts[5:15])
        sums.setdefault((facts[3], terms.unit), Total(terms.adjacency)).add(terms)
    if read.execute("SELECT events, head FROM state").fetchone() != (count, head):
        refuse(f"the ledger ends after {count} events, but had more")
    kept = {(row[0], row[1]): Total(*row[2:]) for row in read.execute("SELECT * FROM totals")}
    if kept.keys() != sums.keys() or not all(agree(kept[key], sums[key]) for key in sums):
        refuse("the sums do not agree with the events")
    for name, unit, cap, kept_sum in read.execute(
        "SELECT c.name, p.unit, p.budget, p.checksum FROM caps p JOIN clients c ON c.id = p.client"
    ):
        if checksum(name, unit, cap) != kept_sum:
            refuse(f"the cap of client {name!r} was changed")
    if read.execute(
        "SELECT 1 FROM events WHERE status = 'stored' AND id NOT IN (SELECT event FROM uploads) LIMIT 1"
    ).fetchone():
        refuse("a stored upload is missing")
    for event, digest, content in read.execute("SELECT event, sha256, content FROM uploads"):
        if hashlib.sha256(content).digest() != digest:
            refuse(f"the upload of event {event} was changed")
    return count
