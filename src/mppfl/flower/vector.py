"""A model as Flower carries it, named arrays, and as the rest of mppfl does, one flat vector."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from mppfl.errors import BadInput

Vector = NDArray[np.floating[Any]]


def vector_of(record: ArrayRecord) -> Vector:
    """All entries of the arrays in their order. Refuses what cannot be clipped and made noisy as one vector."""
    parts = [array.numpy() for array in record.values()]
    kinds = {part.dtype for part in parts}
    if not parts or not sum(part.size for part in parts):
        raise BadInput("the model holds no numbers. Send at least one array of float32 or float64.")
    if len(kinds) > 1 or kinds.pop() not in (np.float32, np.float64):
        found = ", ".join(f"{name} {array.dtype}" for name, array in list(record.items())[:5])
        raise BadInput(
            f"the model's arrays must all be float32 or all float64, got {found}. Leave counters and other whole "
            "numbers out of what is trained."
        )
    return np.concatenate([part.reshape(-1) for part in parts])


def record_like(record: ArrayRecord, vector: Vector) -> ArrayRecord:
    """The vector as arrays of the same names and shapes as those of `record`."""
    shapes = {name: tuple(array.shape) for name, array in record.items()}
    found: OrderedDict[str, Array] = OrderedDict()
    start = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape, dtype=np.int64))
        found[name] = Array(np.ascontiguousarray(vector[start : start + size].reshape(shape)))
        start += size
    if start != vector.size:
        raise BadInput(f"{vector.size:,} numbers do not fill arrays of {start:,}.")
    return ArrayRecord(found)


def same_form(record: ArrayRecord, like: ArrayRecord) -> str:
    """What differs in names, shapes or types between two models, in a few words; empty if nothing does."""
    if list(record.keys()) != list(like.keys()):
        return f"arrays {list(record.keys())[:5]} instead of {list(like.keys())[:5]}"
    for name, array in record.items():
        other = like[name]
        if tuple(array.shape) != tuple(other.shape) or array.dtype != other.dtype:
            return f"array {name!r} is {array.dtype} {tuple(array.shape)}, not {other.dtype} {tuple(other.shape)}"
    return ""


def uploaded_vector(record: ArrayRecord, like: ArrayRecord) -> Vector:
    """All entries of a model that somebody else sent. Raises BadInput where it has not the form of `like`.

    What an array declares and what its bytes decode to are two things, and the sender writes both: each is held against
    `like`, and bytes that cannot be read are a fault of the upload, not of who reads it.
    """
    odd = same_form(record, like)
    if odd:
        raise BadInput(f"has a wrong form: {odd}")
    parts: list[NDArray[Any]] = []
    for name, array in record.items():
        try:
            part = array.numpy()  # refuses pickled objects, which could run anything
        except Exception as cause:  # damaged bytes fail in as many ways as there are bytes in them
            raise BadInput(f"has a wrong form: array {name!r} cannot be read ({type(cause).__name__})") from cause
        wanted = tuple(like[name].shape), like[name].dtype
        if not isinstance(part, np.ndarray) or (part.shape, str(part.dtype)) != wanted:  # an archive is no array
            found = f"{part.dtype} {part.shape}" if isinstance(part, np.ndarray) else "no array"
            raise BadInput(f"has a wrong form: array {name!r} holds {found:.80}, not {wanted[1]} {wanted[0]}")
        parts.append(part)
    return np.concatenate([part.reshape(-1) for part in parts])


def digest_of(record: ArrayRecord) -> str:
    """SHA-256 of the model's entries, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(vector_of(record)).data).hexdigest()
