"""Links as they come out of a file or another library, and words for messages about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mppfl.arrays import Array, IntArray

INTEGER = re.compile(r"-?[0-9]{1,300}")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Links:
    """Links between positions; `names` says who stands there."""

    sources: IntArray
    targets: IntArray
    weights: Array | None
    names: tuple[str, ...]
    undirected: bool = False


def count_of(fields: list[str]) -> str:
    return f"{len(fields)} field{'s' * (len(fields) != 1)}"


def shown_path(path: Path) -> str:
    return str(path) if str(path).isprintable() else repr(str(path))


def shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def one_line(cause: BaseException) -> str:
    return " ".join(f"{type(cause).__name__}: {cause}".split())[:160]
