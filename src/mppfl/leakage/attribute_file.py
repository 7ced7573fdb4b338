"""The CSV of one number per client, `name,value`: an attribute, or numbers of examples.

What is not known of a client is said by leaving its line out.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from mppfl.errors import BadFile


def read_values(path: Path) -> dict[str, float]:
    """Values by name; a first line without a number is a heading. Raises BadFile with the line that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as cause:
        raise BadFile(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from cause
    found: dict[str, float] = {}
    for line, row in enumerate(csv.reader(text.splitlines()), start=1):
        if not row:
            continue
        try:
            name, value = row[0].strip(), float(row[1])
        except (ValueError, IndexError):
            if line == 1:
                continue
            raise BadFile(_no_number(path, line, row)) from None
        if not math.isfinite(value):  # to Python the text "nan" is a number, to readers of the values an unknown one
            raise BadFile(_no_number(path, line, row))
        if name in found:
            raise BadFile(f"{path}, line {line}: {name!r} stands twice. Keep one line for each client.")
        found[name] = value
    return found


def _no_number(path: Path, line: int, row: list[str]) -> str:
    shown = f"{','.join(row)!r:.60}"
    return (
        f"{path}, line {line}: {shown} must be name,value with a number as value. Leave out the line of a client whose "
        "value is not known."
    )
