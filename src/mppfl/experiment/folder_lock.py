"""A folder for one process at a time. The lock goes with the process, however it ends, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mppfl.errors import BadFile, MppflError

LOCK = ".lock"
TRIES = 1000  # each means that another process let go of the folder just now
PAUSE = 0.2  # seconds between two looks at a folder that another process holds


@contextmanager
def locked(
    folder: Path, taken: str = "another training is at work there. Wait", wait_seconds: float = 0.0
) -> Iterator[None]:
    """Nobody else works in the folder meanwhile. Folders that were made for it, and are still empty, go again.

    taken         who holds it where it is not free, and what to do besides choosing another folder
    wait_seconds  for a process that was just killed and may hold it a little longer
    """
    made: list[Path] = []
    try:
        try:
            lock = _acquired(folder, made, taken, time.monotonic() + wait_seconds)
        except OSError as cause:
            raise BadFile(f"{folder}: cannot be written ({cause.strerror or cause}). Choose another folder.") from cause
        try:
            yield
        finally:
            with suppress(OSError):  # where it cannot be removed it stays: a file that nobody holds is no lock
                if _is_in_place(lock, folder / LOCK):
                    (folder / LOCK).unlink()  # while it is held: afterwards it may be another's
            os.close(lock)
    finally:
        for each in reversed(made):
            with suppress(OSError):  # no longer empty, or gone already
                each.rmdir()


def _acquired(folder: Path, made: list[Path], taken: str, deadline: float) -> int:
    """The lock's file, held and in its place. Adds to `made` the folders that were not there."""
    tries = 0
    while tries < TRIES:
        try:
            _make(folder, made)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # whoever made the folder took it away again
            tries += 1
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            os.close(lock)
            if time.monotonic() >= deadline:
                raise MppflError(f"{folder}: {taken}, or choose another folder.") from cause
            time.sleep(PAUSE)
            continue
        # Between opening and locking the one before may have removed its file; a lock on that keeps nobody out.
        if _is_in_place(lock, folder / LOCK):
            return lock
        os.close(lock)
        tries += 1
    raise MppflError(f"{folder}: is made and taken away again by others, {TRIES} times. Choose another folder.")


def _is_in_place(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def _make(folder: Path, made: list[Path]) -> None:
    """The folder and all above it, each of which is noted if it was not there."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:
            continue  # another process was quicker
        made.append(each)
