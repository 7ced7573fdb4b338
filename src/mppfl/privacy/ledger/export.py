"""A ledger written down as a table for other programs."""

from __future__ import annotations

import csv
import json
import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mppfl.database import errors_in_one_line
from mppfl.privacy.ledger.rows import EXPORTED


def write_csv(path: Path, events: Iterable[dict[str, Any]]) -> int:
    """Every release as a row; how many."""
    count = 0
    with _replacing(path) as file:
        writer = csv.DictWriter(file, EXPORTED)
        writer.writeheader()
        for event in events:
            writer.writerow({key: repr(each) if isinstance(each, float) else each for key, each in event.items()})
            count += 1
    return count


def write_json(path: Path, events: Iterable[dict[str, Any]], notes: Sequence[str], head: str) -> int:
    """Every release, with the notes and the head of the chain, as one object; how many."""
    rows = [{key: "Infinity" if each == math.inf else each for key, each in event.items()} for event in events]
    with _replacing(path) as file:
        json.dump({"notes": notes, "head": head, "events": rows}, file, ensure_ascii=False, allow_nan=False, indent=1)
        file.write("\n")
    return len(rows)


@contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """A text file that takes its place only when it is whole."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    with errors_in_one_line(path):
        try:
            with draft.open("w", encoding="utf-8", newline="") as file:
                yield file
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
