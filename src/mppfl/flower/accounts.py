"""The server's book: what each client was asked for, must be presumed to have spent, and is owed.

One row for every client and round, in one SQLite file, so that the privacy account and the payments cannot drift apart:

    asked      the terms were sent; until an answer comes, the budget counts as spent
    paid       an upload came and was taken: spent, and paid
    rejected   an upload came and was not taken: spent, because it left the client, and not paid
    refused    the client said no: nothing spent, nothing paid
    lost       no answer came: it may have been spent and counts as such; not paid

The terms are written before they are sent and never change; a round that is repeated after a crash is asked once.
"""

from __future__ import annotations

import csv
import io
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.files import write_whole

APPLICATION_ID = 0x6D706163  # "mpac"
STATES = ("asked", "paid", "rejected", "refused", "lost")
SPENT = ("asked", "paid", "rejected", "lost")

SCHEMA = """
CREATE TABLE entries (
    run TEXT NOT NULL,
    round_index INTEGER NOT NULL,
    client TEXT NOT NULL,
    price REAL NOT NULL,
    game_budget REAL NOT NULL,
    budget REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('asked', 'paid', 'rejected', 'refused', 'lost')),
    amount REAL NOT NULL,
    reason TEXT NOT NULL,
    client_says REAL,
    PRIMARY KEY (run, round_index, client)
) STRICT, WITHOUT ROWID;
"""


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


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a client's round ended: a state after "asked", why, and what the client says it has spent in the run."""

    client: str
    state: str
    reason: str = ""
    client_says: float | None = None


class Accounts:
    """The book of one server over all its runs."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self.path = connection, path

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> Accounts:
        """The book at `path`, made if there is none and it may be written."""
        path = Path(path)
        try:
            if read_only and not path.is_file():
                raise BadFile(f"{path}: there are no accounts. Nothing has been run there yet.")
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = "ro" if read_only else "rwc"
            address = f"{path.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=60)
            try:
                _prepare(connection, path, read_only)
            except BaseException:
                connection.close()
                raise
        except (sqlite3.Error, OSError) as cause:
            raise BadFile(
                f"{path}: cannot be opened as accounts ({cause}). Check the path, or restore a copy."
            ) from cause
        return cls(connection, path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Accounts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ask(self, entries: Iterable[Entry]) -> None:
        """Notes terms before they are sent. The same terms again are fine; other terms for the same round are not."""
        with self._writing() as write:
            for entry in entries:
                if entry.state != "asked":
                    raise BadInput(
                        f"client {entry.client!r} can only be asked, not {entry.state!r}, before its answer."
                    )
                before = self._find(entry.run, entry.round_index, entry.client)
                if before is None:
                    write.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(COLUMNS))})", astuple(entry))
                    continue
                for name in ("price", "game_budget", "budget"):
                    if getattr(before, name) != getattr(entry, name):
                        raise BadInput(
                            f"client {entry.client!r} was asked in round {entry.round_index} of {entry.run!r} with "
                            f"{name}={getattr(before, name)!r}, not {getattr(entry, name)!r}. Terms do not change."
                        )

    def settle(self, run: str, round_index: int, settlements: Sequence[Settlement]) -> None:
        """Notes how the round ended for these clients, all or none.

        Who was paid stays paid. Any other state may still change: a lost upload may come when the round is repeated.
        """
        with self._writing() as write:
            for each in settlements:
                before = self._find(run, round_index, each.client)
                if before is None:
                    raise BadInput(f"client {each.client!r} was not asked in round {round_index} of {run!r}.")
                if each.state not in STATES[1:]:
                    raise BadInput(f"state={each.state!r} is no end of a round. Known: {', '.join(STATES[1:])}.")
                if before.state == "paid":
                    continue
                worth = replace(before, state=each.state).worth
                write.execute(
                    "UPDATE entries SET state = ?, amount = ?, reason = ?, client_says = ? "
                    "WHERE run = ? AND round_index = ? AND client = ?",
                    (each.state, worth, each.reason, each.client_says, run, round_index, each.client),
                )

    def entries(self, run: str | None = None) -> list[Entry]:
        """Every row, by run, round and client."""
        where, given = ("WHERE run = ? ", (run,)) if run is not None else ("", ())
        ask = f"SELECT {', '.join(COLUMNS)} FROM entries {where}ORDER BY run, round_index, client"
        try:
            return [Entry(*row) for row in self._connection.execute(ask, given)]
        except sqlite3.Error as cause:
            raise BadFile(f"{self.path}: the accounts cannot be read ({cause}). Restore a copy.") from cause

    def spent(self, run: str | None = None) -> dict[str, float]:
        """ρ that each client must be presumed to have spent: the rounds added up in their order, as its ledger does."""
        return _sums(self.entries(run), "spent")

    def owed(self, run: str | None = None) -> dict[str, float]:
        """Money that each client is owed."""
        return _sums(self.entries(run), "amount")

    def export_csv(self, path: str | Path) -> int:
        """Writes every row as a line of a CSV file; how many."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        rows = self.entries()
        writer.writerows(astuple(row) for row in rows)
        write_whole(Path(path), text.getvalue().encode("utf-8", "surrogatepass"))
        return len(rows)

    def _find(self, run: str, round_index: int, client: str) -> Entry | None:
        ask = f"SELECT {', '.join(COLUMNS)} FROM entries WHERE run = ? AND round_index = ? AND client = ?"
        row = self._connection.execute(ask, (run, round_index, client)).fetchone()
        return None if row is None else Entry(*row)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, undone as a whole where anything fails."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as cause:
            raise MppflError(
                f"{self.path}: the accounts could not be written ({cause}), so the round stops. Check the disk."
            ) from cause


def _prepare(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    """Makes a new file ours, and refuses one that is another program's."""
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if identity == 0 and tables == 0 and not read_only:
        connection.executescript(f"BEGIN; PRAGMA application_id={APPLICATION_ID}; {SCHEMA} COMMIT;")
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    elif identity != APPLICATION_ID:
        raise BadFile(f"{path}: is not an mppfl account book. Check the path.")
    if not read_only:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # a commit that returned is on the disk


def _sums(entries: Iterable[Entry], name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in entries:
        value: Any = getattr(entry, name)
        found[entry.client] = found.get(entry.client, 0.0) + value
    return found
