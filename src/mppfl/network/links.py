"""Links as they come out of a file or another library."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
