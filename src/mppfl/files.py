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
    """Nobody else works in the folder meanwhile. The lock goes with the process.

    Folders that were made for it, and are still empty, go again.

    taken         who holds it where it is not free, and what to do besides choosing another folder
    wait_seconds  for a process that was just killed and may hold it a little longer
    """
    from filelock import FileLock, Timeout

    made = [above for above in (folder, *folder.parents) if not above.exists()]
    lock = FileLock(folder / LOCK)
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=wait_seconds)
        except Timeout as cause:
            raise MppflError(f"{folder}: {taken}, or choose another folder.") from cause
        except OSError as cause:
            raise BadFile(f"{folder}: cannot be written ({cause.strerror or cause}). Choose another folder.") from cause
        try:
            yield
        finally:
            with suppress(OSError):  # on Windows an open file cannot be removed, and stays
                (folder / LOCK).unlink(missing_ok=True)
            lock.release()
    finally:
        for above in made:
            with suppress(OSError):  # no longer empty, or gone already
                above.rmdir()


def toml_text(values: Mapping[str, Any]) -> str:
    """A mapping of plain values, NumPy's numbers among them, as TOML."""
    import tomli_w

    return tomli_w.dumps(_plain(values))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value.item() if hasattr(value, "item") else value
