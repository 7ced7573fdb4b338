"""numba's compiler where it is installed; without it the same loops run as plain Python: alike, and slowly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

try:
    from numba import get_num_threads, njit, prange

    HAS_NUMBA = True
except ModuleNotFoundError:
    HAS_NUMBA = False
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


__all__ = ["HAS_NUMBA", "get_num_threads", "njit", "prange"]
