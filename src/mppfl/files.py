"""Files: written whole or not at all, and a folder for one process at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mppfl.errors import BadFile, MppflError

LOCK = ".lock"
LOCK_TRIES = 1000  # each fails only where another process leaves the folder at that very moment


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Puts the content at `path` in one step: durable and whole, or the old file untouched and a clear error."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as cause:
        raise MppflError(
            f"{path} could not be written: {cause.strerror or cause}. Whatever was there is untouched; make room or "
            "choose another folder."
        ) from cause
    finally:
        with suppress(OSError):  # where the folder itself could not be made, there is no draft
            draft.unlink(missing_ok=True)
    if os.name == "nt":  # Windows cannot make a folder durable by itself
        return
    try:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name itself must survive a power cut
        finally:
            os.close(folder)
    except OSError as cause:
        raise MppflError(
            f"{path} is written, but its folder could not be made durable: {cause.strerror or cause}. After a power "
            "cut the file before it may be back; check the disk."
        ) from cause


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
