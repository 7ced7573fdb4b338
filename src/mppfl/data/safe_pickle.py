"""Pickled NumPy arrays, read without running what the file says.

A pickle may name any function in Python and have it called. Here only the names by which NumPy pickles an array are
admitted, and even they lead to inert stand-ins: no code of NumPy sees what the file holds until it is checked.
"""

from __future__ import annotations

import io
import pickle
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.errors import BadFile
from mppfl.text import one_line, shown_path


class _ArrayName:
    """Stands for the class numpy.ndarray; only ever handed on."""

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("an array has no such state")


class _Type:
    """Stands for a numpy.dtype: remembers its code."""

    def __init__(self, code: Any = "", *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment, which a type of one byte does not have."""


class _Array:
    """Stands for an array: remembers shape and bytes."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self) -> NDArray[np.uint8]:
        """The array, if it is one of unsigned bytes in C order."""
        _, shape, kind, in_columns, content = self.state
        is_sound = isinstance(kind, _Type) and kind.code == "u1" and not in_columns and isinstance(content, bytes)
        if not is_sound or prod(shape) != len(content):
            raise pickle.UnpicklingError("an array that is not of unsigned bytes, or not whole")
        return np.frombuffer(content, np.uint8).reshape(shape)


class _Bytes:
    """Stands for _codecs.encode, by which Python 3 writes bytes in the old protocols."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"bytes as {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("bytes have no state")


# Each has a __setstate__ of its own, so that a file cannot set attributes on the class itself.
_ADMITTED = {
    ("numpy", "ndarray"): _ArrayName,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Bytes,
}


class _OnlyArrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ADMITTED:
            return _ADMITTED[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def dictionary_of_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of plain values and arrays of unsigned bytes. `path` is for messages."""
    try:
        found = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(found, dict):
            raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a dictionary")
        return {
            key.decode("latin1") if isinstance(key, bytes) else str(key): each.pixels()
            if isinstance(each, _Array)
            else each
            for key, each in found.items()
        }
    except Exception as cause:  # a damaged pickle fails in whatever opcode meets the damage
        raise BadFile(
            f"{shown_path(path)} is no pickle that can be read safely ({one_line(cause)}). Fetch it again."
        ) from cause
