"""The server's account book: what each client was asked for, is presumed to have spent, and is owed.

One row per client and round, in one SQLite file, so that the privacy account and the payments cannot drift apart:

    asked      the terms were sent; until an answer comes, the budget counts as spent
    paid       an upload was accepted: spent, and paid
    rejected   an upload was not accepted: spent, because it left the client, and not paid
    refused    the client refused: nothing spent, nothing paid
    lost       no answer came: it may have been spent and counts as spent; not paid

The terms are written before they are sent and never change; a round that is repeated after a crash is asked once.
"""

from __future__ import annotations

import csv
import io
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from mppfl.errors import BadInput
from mppfl.files import Book, Database, write_whole

STATES = ("asked", "paid", "rejected", "refused", "lost")
SPENT = ("asked", "paid", "rejected", "lost")


@dataclass(frozen=True, slots=True)
class Entry:
    """One client in one round.

    price        money per unit of the game's budget
    game_budget  ρ of the game that the plan asks for; 0 is paid where it is infinite
    budget       ρ of the training that the upload costs
    amount       what is owed for the round
    client_says  what the client said its ledger holds for the whole run after this round; None if it said nothing
    """

    run: str
    round_index: int
    client: str
    price: float
    game_budget: float
    budget: float
    state: str = "asked"
    amount: float = 0.0
    reason: str = ""
    client_says: float | None = None

    @property
    def spent(self) -> float:
        """ρ that must be presumed spent."""
        return self.budget if self.state in SPENT else 0.0

    @property
    def worth(self) -> float:
        """What the terms and the state make of the round; `amount` is that, as it was written down."""
        return self.price * self.game_budget if self.state == "paid" and math.isfinite(self.game_budget) else 0.0


COLUMNS = tuple(field.name for field in fields(Entry))
TYPES = {"str": "TEXT NOT NULL", "int": "INTEGER NOT NULL", "float": "REAL NOT NULL", "float | None": "REAL"}
SCHEMA = f"""CREATE TABLE entries (
    {", ".join(f"{field.name} {TYPES[str(field.type)]}" for field in fields(Entry))},
    CHECK (state IN {STATES}),
    PRIMARY KEY (run, round_index, client)
) STRICT, WITHOUT ROWID;
"""
SELECT = f"SELECT {', '.join(COLUMNS)} FROM entries"
THIS_ENTRY = "WHERE run = ? AND round_index = ? AND client = ?"


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a client's round ended: its state, the reason, and what the client says it has spent in the run."""

    client: str
    state: str
    reason: str = ""
    client_says: float | None = None


class Accounts(Database):
    """The account book of one server over all its runs."""

    BOOK = Book("account book", "an mppfl account book", application_id=0x6D706163, version=0, schema=SCHEMA)

    def ask(self, entries: Iterable[Entry]) -> None:
        """Records terms before they are sent. The same terms again are fine; other terms for the same round are not."""
        with self._writing() as write:
            for entry in entries:
                before = _entry_in(write, entry.run, entry.round_index, entry.client)
                if before is None:
                    write.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(COLUMNS))})", astuple(entry))
                    continue
                for name in ("price", "game_budget", "budget"):
                    if (asked := getattr(before, name)) != getattr(entry, name):
                        raise BadInput(
                            f"client {entry.client!r} was asked in round {entry.round_index} of {entry.run!r} with "
                            f"{name}={asked!r}, not {getattr(entry, name)!r}. Terms do not change."
                        )

    def settle(self, run: str, round_index: int, settlements: Sequence[Settlement]) -> None:
        """Records how the round ended for these clients, all or none.

        A paid entry stays paid. Any other state may still change: a lost upload may come when the round is repeated.
        """
        with self._writing() as write:
            for end in settlements:
                before = _entry_in(write, run, round_index, end.client)
                if before is None:
                    raise BadInput(f"client {end.client!r} was not asked in round {round_index} of {run!r}.")
                if before.state == "paid":
                    continue
                worth = replace(before, state=end.state).worth
                values = (end.state, worth, end.reason, end.client_says, run, round_index, end.client)
                write.execute(
                    f"UPDATE entries SET state = ?, amount = ?, reason = ?, client_says = ? {THIS_ENTRY}", values
                )

    def entries(self, run: str | None = None) -> list[Entry]:
        """Every row, by run, round and client."""
        query = f"{SELECT} WHERE run = ifnull(?, run) ORDER BY run, round_index, client"
        with self._reading() as read:
            return [Entry(*row) for row in read.execute(query, (run,))]

    def owed(self, run: str | None = None) -> dict[str, float]:
        """Money that each client is owed."""
        sums: dict[str, float] = {}
        for entry in self.entries(run):
            sums[entry.client] = sums.get(entry.client, 0.0) + entry.amount
        return sums

    def export_csv(self, path: str | Path) -> int:
        """Writes every row as a line of a CSV file, and returns how many."""
        rows = [astuple(entry) for entry in self.entries()]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
        write_whole(Path(path), text.getvalue().encode("utf-8", "surrogatepass"))
        return len(rows)


def _entry_in(read: sqlite3.Connection, run: str, round_index: int, client: str) -> Entry | None:
    row = read.execute(f"{SELECT} {THIS_ENTRY}", (run, round_index, client)).fetchone()
    return None if row is None else Entry(*row)
