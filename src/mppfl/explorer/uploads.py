"""Uploads: an edge list from the browser, checked and kept in a folder of the server's own until it ends."""

from __future__ import annotations

import base64
import binascii
import hashlib
import tempfile
from pathlib import Path

from mppfl.arrays import require_number
from mppfl.errors import BadFile, BadInput
from mppfl.network import SocialGraph, read_graph

MEGABYTE = 1_000_000
MOST_MEGABYTES = 1e6  # more than any page could draw
ENDINGS = (".csv", ".tsv", ".txt", ".edges", ".graphml")


class Uploads:
    """Files that came from the browser, by the key that the page's address holds."""

    def __init__(self, most_megabytes: float = 25.0) -> None:
        self.most_bytes = int(require_number(most_megabytes, "--upload-limit", 0.0, MOST_MEGABYTES) * MEGABYTE)
        self._folder = tempfile.TemporaryDirectory(prefix="mppfl-uploads-")

    @property
    def request_limit(self) -> int:
        """The largest request to be read at all: the file travels as base64, with some words around it."""
        return self.most_bytes * 4 // 3 + MEGABYTE

    def keep(self, contents: str, name: str) -> tuple[str, Path]:
        """The key and the place of an uploaded file, from the data URL that the browser sends.

        Its own name is for messages alone: on disk it is called by what it holds.
        """
        try:
            content = base64.b64decode(contents.partition(",")[2], validate=True)
        except (binascii.Error, ValueError) as cause:
            raise BadFile(f"{shown(name)}: arrived damaged. Send it again.") from cause
        if len(content) > self.most_bytes:
            raise BadInput(
                f"{shown(name)}: {len(content) / MEGABYTE:.1f} MB is more than {self.most_bytes / MEGABYTE:g} MB. "
                "Open it with --graph, or raise --upload-limit."
            )
        ending = Path(name).suffix.lower()
        if ending not in ENDINGS:
            raise BadInput(f"{shown(name)}: not an edge list by its name. Send one of {', '.join(ENDINGS)}.")
        key = f"upload-{hashlib.sha256(content + ending.encode()).hexdigest()[:16]}"
        path = Path(self._folder.name) / f"{key}{ending}"
        if not path.exists():
            path.write_bytes(content)
        return key, path

    def close(self) -> None:
        self._folder.cleanup()


def check(path: Path, name: str, undirected: bool) -> SocialGraph:
    """The graph of an uploaded file; what is wrong with it is told by the name that the user knows."""
    try:
        return read_graph(path, undirected=undirected, isolated="keep", self_loops="drop")
    except (BadFile, BadInput) as cause:
        raise BadFile(str(cause).replace(str(path), shown(name)).replace(path.name, shown(name))) from cause


def last_part(name: str) -> str:
    """A file's name without the folders before it, however they are written."""
    return name.replace("\\", "/").rpartition("/")[2]


def shown(name: str) -> str:
    """A file's name for a message: its last part, cut where it is long."""
    last = last_part(name) or "the file"
    return last if len(last) <= 60 else f"{last[:57]}…"
