"""Files of data sets: opened, unzipped, held against their checksums; what fails is a BadFile in one line."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mppfl.errors import BadFile, BadInput
from mppfl.text import one_line, shown_path


def bytes_of(path: Path, md5: Mapping[str, str]) -> bytes:
    """What the file holds, unzipped if it is gzipped; held against its sum in `md5` where that has one."""
    with failures_in_one_line(path):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    require_md5(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), md5)
    return content


def verify_md5(path: Path, md5: Mapping[str, str]) -> None:
    """Holds a file that is too large to keep in memory against its sum, where `md5` has one."""
    if path.name not in md5:
        return
    with failures_in_one_line(path), open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    require_md5(path, found, md5)


def require_md5(path: Path, found: str, md5: Mapping[str, str]) -> None:
    wanted = md5.get(path.name.removesuffix(".gz"), found)
    if found != wanted:
        held = "what it holds has" if path.suffix == ".gz" else "it has"
        raise BadFile(
            f"{shown_path(path)} is not the official file: {held} md5 {found}, expected {wanted}. Fetch it again."
        )


@contextmanager
def failures_in_one_line(path: Path) -> Iterator[None]:
    """Whatever the system or gzip objects to becomes a BadFile that names the file."""
    shown = shown_path(path)
    try:
        yield
    except FileNotFoundError as cause:
        raise BadFile(f"{shown} does not exist. Check the path.") from cause
    except IsADirectoryError as cause:
        raise BadFile(f"{shown} is a directory where a file was expected. Check the path.") from cause
    except PermissionError as cause:
        raise BadFile(f"{shown} may not be read. Check its permissions.") from cause
    except EOFError as cause:
        raise BadFile(f"{shown} is a gzip file that ends too early. Fetch it again.") from cause
    except (gzip.BadGzipFile, zlib.error) as cause:
        raise BadFile(f"{shown} is a damaged gzip file ({one_line(cause)}). Fetch it again.") from cause
    except OSError as cause:
        raise BadFile(f"{shown} cannot be read: {cause.strerror or one_line(cause)}. Check the path.") from cause


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's name before what is wrong with its content."""
    try:
        yield
    except BadInput as cause:
        raise BadFile(f"{shown_path(path)}: {cause}") from cause


def plain_or_gzipped(folder: Path, name: str) -> Path | None:
    """The file of that name, or its gzipped form, if either is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if os.path.lexists(path)), None)
