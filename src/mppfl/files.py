"""Files: written whole or not at all, one process in a folder, TOML, and books kept by SQLite."""

from __future__ import annotations

import gzip
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self, cast

from mppfl.errors import BadFile, BadInput, LedgerUnavailable, MppflError
from mppfl.text import one_line, shown_path

LOCK = ".lock"
LOCK_TRIES = 1000  # each fails only where another process leaves the folder at that very moment


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Puts the content at `path` in one step, in a folder that is made if there is none; see `replaced`."""
    with suppress(OSError):  # what stands in the way is told when the file is written
        path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as file:
        file.write(content)


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A new file, gzipped if the path ends in .gz, that takes the path's place once it is complete and on the disk.

    Until then, and on failure, the old one stays.
    """
    draft = path.parent / f".{secrets.token_hex(8)}.new"
    try:
        with open(draft, "xb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
                    yield cast(IO[bytes], zipped)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        _make_durable(path.parent)
    except OSError as cause:
        raise BadFile(
            f"{shown_path(path)} could not be written: {cause.strerror or cause}. Check the folder, make room, or "
            "choose another one."
        ) from cause
    finally:
        with suppress(OSError):
            draft.unlink()


def _make_durable(folder: Path) -> None:
    """A new name in the folder survives a power cut, too; Windows cannot promise that."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def failures_in_one_line(path: Path) -> Iterator[None]:
    """Every failure of the system or of gzip becomes a BadFile that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as cause:
        kinds = (kind for kind in _FAILURES if isinstance(cause, kind))
        reason = getattr(cause, "strerror", None) or one_line(cause)
        words = _FAILURES[next(kinds)].format(reason=reason)
        raise BadFile(f"{shown_path(path)} {words}") from cause


_DAMAGED = "is a damaged gzip file ({reason}). Fetch or make it again."
_FAILURES: dict[type[BaseException], str] = {  # what is said of each; the first that fits
    FileNotFoundError: "does not exist. Check the path.",
    IsADirectoryError: "is a directory where a file was expected. Check the path.",
    PermissionError: "may not be read. Check its permissions.",
    EOFError: "is a gzip file that ends too early. Fetch or make it again.",
    gzip.BadGzipFile: _DAMAGED,
    zlib.error: _DAMAGED,
    OSError: "cannot be read: {reason}. Check the path.",
}


@contextmanager
def locked(
    folder: Path, taken: str = "another training is at work there. Wait", wait_seconds: float = 0.0
) -> Iterator[None]:
    """Keeps every other process out of the folder. The lock goes with the process.

    Folders that were made for it, and are still empty, go again.

    taken         who holds a folder that is not free, and what to do besides choosing another one
    wait_seconds  for a process that was just killed and may hold the lock a little longer
    """
    from filelock import FileLock, Timeout

    made: list[Path] = []
    lock = FileLock(folder / LOCK)
    try:
        for attempt in range(LOCK_TRIES):
            made = sorted({*made, *(path for path in (folder, *folder.parents) if not path.exists())}, reverse=True)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=wait_seconds)
                break
            except Timeout as cause:
                raise MppflError(f"{folder}: {taken}, or choose another folder.") from cause
            except OSError as cause:
                # A process that leaves removes the folder, perhaps between the two lines above.
                removed = isinstance(cause, (FileNotFoundError, FileExistsError)) and not folder.is_file()
                if not removed or attempt + 1 == LOCK_TRIES:
                    reason = "Not a directory" if folder.is_file() else cause.strerror or cause
                    raise BadFile(f"{folder}: cannot be written ({reason}). Choose another folder.") from cause
        try:
            yield
        finally:
            with suppress(OSError):  # on Windows an open file cannot be removed, and stays
                (folder / LOCK).unlink(missing_ok=True)
            lock.release()
    finally:
        for path in made:  # the deepest first
            with suppress(OSError):  # no longer empty, or gone already
                path.rmdir()


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says; a file that cannot be read, or is none, is told in one line."""
    import tomllib

    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as cause:
        raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check the path.") from cause
    except UnicodeDecodeError as cause:
        raise BadFile(f"{path}: not UTF-8 text (byte {cause.start}). Save the file as UTF-8.") from cause
    except (tomllib.TOMLDecodeError, RecursionError) as cause:
        raise BadFile(f"{path}: not TOML ({cause or 'nested too deeply'}). Correct that place.") from cause


def toml_text(values: Mapping[str, Any]) -> str:
    """A mapping of plain values, NumPy's numbers among them, as TOML."""
    import tomli_w

    return tomli_w.dumps(_plain(values))


def toml_value(value: Any) -> str:
    """One value as TOML writes it, on one line; what TOML cannot say as Python shows it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    try:
        return repr(value) if isinstance(value, Mapping) else toml_text({"x": value}).removeprefix("x = ").rstrip("\n")
    except TypeError:
        return repr(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value.item() if hasattr(value, "item") else value


# ---- SQLite files that belong to the package: the clients' privacy ledger and the server's account book -------------

# A file is made whole beside its path and then linked there, so an empty or foreign file is never taken for a new one.
# It has a write-ahead log and synchronous=FULL: a commit that returned is on the disk. Errors are one line.

WAIT_SECONDS = 120  # how long a writer waits for the others


@dataclass(frozen=True, slots=True)
class Book:
    """What a kind of file is called and holds.

    noun            its name in messages, as "ledger"
    title           the same with its article, as "a privacy ledger"
    application_id  number in the file's head by which it is recognised
    version         of the tables; a file of another version is refused
    schema          SQL that makes the tables
    """

    noun: str
    title: str
    application_id: int
    version: int
    schema: str


class Database:
    """One open file. Several processes may write at once; a handle belongs to the thread and process that opened it."""

    BOOK: ClassVar[Book]

    def __init__(self, connection: sqlite3.Connection, path: Path | str) -> None:
        self.path = path
        self._connection = connection
        self._process = os.getpid()

    @classmethod
    def open(cls, path: str | Path, *, must_exist: bool = False, read_only: bool = False) -> Self:
        """The file at `path`, made if there is none. Refuses any other file there, and leaves it as it is."""
        path, book = Path(path), cls.BOOK
        with errors_in_one_line(path, book.noun):
            if not path.exists():
                if must_exist or read_only:
                    raise BadFile(f"{path}: there is no such {book.noun}. Check the path.")
                _make(path, book)
            _require_whole(path, book)
            if not read_only and not os.access(path, os.W_OK):
                raise BadFile(
                    f"{path}: the {book.noun} cannot be written to. Give write permission, or open it read-only."
                )
            connection = _connect(path, read_only)
            try:
                _require_book(connection, path, book)
                if not read_only:
                    _write_ahead(connection)
            except BaseException:
                connection.close()
                raise
        return cls(connection, path)

    @classmethod
    def in_memory(cls) -> Self:
        """One without a file, for simulations: gone with the process."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        _write_schema(connection, cls.BOOK)
        return cls(connection, f"{cls.BOOK.noun} in memory")

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._process:
            raise BadInput(f"{self.path}: was opened in another process; open the {self.BOOK.noun} anew after a fork.")
        with errors_in_one_line(self.path, self.BOOK.noun):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that excludes other writers; undone as a whole where anything fails."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    address = path.absolute().as_uri() + ("?mode=ro" if read_only else "?mode=rw")
    if read_only and not os.access(path.parent, os.W_OK) and not _has_log(path):
        address += "&immutable=1"  # a folder that cannot be written to cannot hold the log's index either
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=WAIT_SECONDS)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA cache_size=-65536")  # 64 MB: the pages of a large round stay in memory
    return connection


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def _make(path: Path, book: Book) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            _write_schema(connection, book)
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was quicker; its file is as new as ours
        _make_durable(path.parent)
    finally:
        for rest in (draft, draft.with_name(draft.name + "-journal")):
            rest.unlink(missing_ok=True)


def _write_schema(connection: sqlite3.Connection, book: Book) -> None:
    head = f"PRAGMA application_id={book.application_id}; PRAGMA user_version={book.version};"
    connection.execute("PRAGMA synchronous=FULL")
    connection.executescript(f"BEGIN; {head} {book.schema} COMMIT;")


def _require_whole(path: Path, book: Book) -> None:
    """Refuses what is plainly not such a file before SQLite touches it."""
    if not path.is_file():
        raise BadFile(f"{path}: is not a file. Give the path of {book.title}.")
    with path.open("rb") as file:
        start = file.read(100)
    if not start:
        raise BadFile(f"{path}: is empty, so it was cut short. Restore a copy, or remove it to begin anew.")
    if not start.startswith(b"SQLite format 3\0"):
        raise BadFile(f"{path}: is not {book.title}. Check the path.")
    page_size, size = int.from_bytes(start[16:18], "big"), path.stat().st_size
    whole = page_size > 1 and size % page_size == 0
    if not whole and not _has_log(path):  # with a log, SQLite writes the missing part anew
        raise BadFile(f"{path}: was cut short after {size:,} bytes. Restore a copy.")


def _require_book(connection: sqlite3.Connection, path: Path, book: Book) -> None:
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if identity != book.application_id:
        raise BadFile(f"{path}: is a database of another program, not {book.title}. Check the path.")
    if version != book.version:
        raise BadFile(
            f"{path}: is {book.title} of version {version}; this program reads version {book.version}. Begin a new one."
        )
    connection.execute("SELECT * FROM sqlite_master").fetchone()


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turns the write-ahead log on; SQLite does not wait by itself while others do the same."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def errors_in_one_line(path: Path | str, noun: str = "file") -> Iterator[None]:
    """Turns errors of SQLite and the operating system into one line: what, where, remedy."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a fault of the caller's code, such as a closed file
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_READONLY:
            raise BadFile(
                f"{path}: the {noun} cannot be written to. Give write permission, also to its folder."
            ) from error
        if code == sqlite3.SQLITE_CANTOPEN:
            raise BadFile(f"{path}: cannot be opened. Check the path, and the permissions of its folder.") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise BadFile(f"{path}: the {noun} is damaged ({error}). Restore a copy.") from error
        if code == sqlite3.SQLITE_FULL:
            cause, remedy = "the disk is full", "Make room, then repeat"
        elif code == sqlite3.SQLITE_BUSY:
            cause, remedy = f"others kept the {noun} busy for {WAIT_SECONDS} s", "Repeat"
        else:
            cause, remedy = str(error), "Check the path, permissions and disk"
        raise LedgerUnavailable(
            f"{path}: {cause}; nothing was recorded, so nothing may be released. {remedy}."
        ) from error
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}. Check the path, permissions and free space.") from error
