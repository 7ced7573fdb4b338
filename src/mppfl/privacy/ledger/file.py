"""The file of a privacy ledger: how it is made and opened, and what its failures mean in one line.

SQLite with a write-ahead log and synchronous=FULL: a commit that returned is on the disk. A new ledger is made beside
its place and then linked there whole, so an empty or foreign file in that place is never taken for a new ledger.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from mppfl.errors import BadFile, LedgerUnavailable

APPLICATION_ID = 0x6D70706C  # "mppl"
VERSION = 2  # since then changes are in the chain
READ = (1, VERSION)
WAIT_MS = 120_000  # how long a writer waits for the others

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
    checksum BLOB NOT NULL,
    PRIMARY KEY (client, unit)
) STRICT, WITHOUT ROWID;
CREATE TABLE uploads (event INTEGER PRIMARY KEY REFERENCES events, sha256 BLOB NOT NULL, content BLOB NOT NULL) STRICT;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), events INTEGER NOT NULL, head BLOB NOT NULL) STRICT;
INSERT INTO state VALUES (1, 0, zeroblob(32));
"""
CHANGES = """
CREATE TABLE changes (
    id INTEGER PRIMARY KEY,
    after_event INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('begun', 'cap', 'status', 'run')),
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    budget REAL,
    sha256 BLOB,
    chain BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_training_each ON changes (subject) WHERE kind = 'run';
"""


def open_file(path: Path, *, must_exist: bool, read_only: bool) -> sqlite3.Connection:
    """A connection to the ledger at `path`, which is made where there is none yet."""
    with failures_in_one_line(path):
        if not path.exists():
            if must_exist or read_only:
                raise BadFile(f"{path}: there is no such ledger. Check the path.")
            _make(path)
        _require_ledger(path)
        if not read_only and not os.access(path, os.W_OK):
            raise BadFile(f"{path}: the ledger cannot be written to. Give write permission, or open it read-only.")
        connection = _connect(path, read_only)
        try:
            _require_ours(connection, path)
            if not read_only:
                _write_ahead(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def open_in_memory() -> sqlite3.Connection:
    """A ledger that lives as long as the process, for simulations."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _write_schema(connection)
    return connection


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    address = path.absolute().as_uri() + ("?mode=ro" if read_only else "?mode=rw")
    log = path.with_name(path.name + "-wal")
    if read_only and not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size):
        address += "&immutable=1"  # a folder that cannot be written to cannot hold the log's index either
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=WAIT_MS / 1000)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA cache_size=-65536")  # 64 MB: the pages of a large round stay in memory
    return connection


def _make(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            _write_schema(connection)
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was quicker; its ledger is as new as ours
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        for rest in (draft, draft.with_name(draft.name + "-journal")):
            rest.unlink(missing_ok=True)


def _write_schema(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    connection.executescript(
        f"BEGIN; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION}; {SCHEMA} {CHANGES} COMMIT;"
    )


def _require_ledger(path: Path) -> None:
    """Refuses what is plainly not a ledger before SQLite touches it."""
    if not path.is_file():
        raise BadFile(f"{path}: is not a file. Give the path of a ledger, such as ledger.db.")
    with path.open("rb") as file:
        start = file.read(100)
    if not start:
        raise BadFile(f"{path}: is empty, so it was cut short. Restore it from a copy, or remove it to begin anew.")
    if not start.startswith(b"SQLite format 3\0"):
        raise BadFile(f"{path}: is not a privacy ledger. Check the path.")
    page_size = int.from_bytes(start[16:18], "big")
    size, log = path.stat().st_size, path.with_name(path.name + "-wal")
    whole = page_size > 1 and size % page_size == 0
    if not whole and not (log.exists() and log.stat().st_size):  # with a log, SQLite writes the missing part anew
        raise BadFile(f"{path}: was cut short after {size:,} bytes. Restore it from a copy.")


def _require_ours(connection: sqlite3.Connection, path: Path) -> None:
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    version = version_of(connection)
    if identity != APPLICATION_ID:
        raise BadFile(f"{path}: is a database of another program, not a privacy ledger. Check the path.")
    if version not in READ:
        known = " and ".join(map(str, READ))
        raise BadFile(f"{path}: is a ledger of version {version}; this program reads versions {known}.")
    connection.execute("SELECT events, head FROM state").fetchone()


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the ledger's tables."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turns the write-ahead log on; SQLite does not wait by itself while others do the same."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def failures_in_one_line(path: Path | str) -> Iterator[None]:
    """Turns what SQLite and the operating system say into one line: what, where, remedy."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a fault of the caller's code, such as a closed ledger
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            text = (
                f"{path}: the disk is full; nothing was recorded, so nothing may be released. Make room, then repeat."
            )
            raise LedgerUnavailable(text) from error
        if code == sqlite3.SQLITE_READONLY:
            raise BadFile(
                f"{path}: the ledger cannot be written to. Give write permission to it and its folder."
            ) from error
        if code == sqlite3.SQLITE_CANTOPEN:
            raise BadFile(f"{path}: cannot be opened. Check the path, and the permissions of its folder.") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise BadFile(f"{path}: the ledger is damaged ({error}). Restore it from a copy.") from error
        if code == sqlite3.SQLITE_BUSY:
            text = f"{path}: others kept the ledger busy for {WAIT_MS // 1000} s; nothing was recorded. Repeat."
            raise LedgerUnavailable(text) from error
        text = (
            f"{path}: {error}; nothing was recorded, so nothing may be released. Check the path, permissions and disk."
        )
        raise LedgerUnavailable(text) from error
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}. Check the path, permissions and free space.") from error
