"""numba's compiler where it is installed; without it the same loops run as plain Python: alike, and slowly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

HAS_NUMBA = find_spec("numba") is not None

if TYPE_CHECKING or HAS_NUMBA:
    from numba import get_num_threads, njit, prange, set_num_threads
else:
    prange = range
    logging.getLogger(__name__).warning(
        "numba is not installed: loops that it compiles run as plain Python. Run: pip install 'mppfl[fast]'"
    )

    def njit(*functions: Callable[..., Any], **options: Any) -> Any:
        """The function itself, uncompiled."""
        return functions[0] if functions else lambda function: function

    def get_num_threads() -> int:
        """One: plain Python runs loops one after another."""
        return 1

    def set_num_threads(count: int) -> None:
        """Nothing: there is but one."""


__all__ = ["HAS_NUMBA", "get_num_threads", "njit", "prange", "set_num_threads"]
