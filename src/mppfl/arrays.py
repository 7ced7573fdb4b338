"""Arrays over clients: their types, and checks at the border."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.errors import BadInput

Array = NDArray[np.float64]
IntArray = NDArray[np.integer[Any]]
BoolArray = NDArray[np.bool_]


def read_only(values: Any, name: str, *, length: int | None = None) -> Array:
    """A read-only float64 vector; a scalar is repeated `length` times. Raises where an entry is not a finite number."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise BadInput(f"{name} must be numbers, got {values!r:.80}.") from cause
    if array.ndim == 0 and length is not None:
        array = np.full(length, float(array))
    if array.ndim != 1:
        raise BadInput(f"{name} must have one entry per client, got an array of shape {array.shape}.")
    if length is not None and len(array) != length:
        raise BadInput(f"{name} has {len(array)} entries for {length} clients; give one per client.")
    array.setflags(write=False)
    return array


def require(array: Array, name: str, holds: BoolArray, wanted: str) -> None:
    """Raises with the first offending entry unless `holds` everywhere."""
    if not holds.all():
        where = int(np.argmin(holds))
        raise BadInput(
            f"{name}={array[where]:.6g} of client number {where} must be {wanted} "
            f"({int((~holds).sum()):,} such of {len(array):,}). Correct or remove them."
        )


def require_number(value: float, name: str, low: float, high: float, *, open_ends: bool = True) -> float:
    """The value as a float if it lies between `low` and `high`, else an error that says so."""
    try:
        number = float(value)
    except OverflowError as cause:
        raise BadInput(f"{name} has more than 308 digits; it must lie in [{low:g}, {high:g}].") from cause
    except (TypeError, ValueError) as cause:
        raise BadInput(f"{name}={value!r} is not a number.") from cause
    inside = low < number < high if open_ends else low <= number <= high
    if not inside:
        brackets = "()" if open_ends else "[]"
        raise BadInput(f"{name}={number:.6g} must lie in {brackets[0]}{low:g}, {high:g}{brackets[1]}.")
    return number


def require_count(value: int, name: str, least: int = 1) -> int:
    """The value as an int if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise BadInput(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def require_generator(rng: Any) -> None:
    """Raises where a seed, or anything else, was given in place of a random generator."""
    if not isinstance(rng, np.random.Generator):
        raise BadInput(f"rng={rng!r} is no random generator. Pass numpy.random.default_rng(seed).")
