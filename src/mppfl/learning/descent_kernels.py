"""GPU kernel of a step in mixed precision: exact weights descend and are rounded for the next step in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


def descend(exact: Tensor, low: Tensor, gradient: Tensor, learning_rate: float) -> None:
    """exact ← exact − η · gradient and low ← exact, in place; all contiguous and of one shape."""
    count = exact.numel()
    _descend[(triton.cdiv(count, BLOCK),)](exact, low, gradient, learning_rate, count, BLOCK, num_warps=4)


@triton.jit
def _descend(exact, low, gradient, learning_rate, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    known = at < count
    moved = tl.load(exact + at, mask=known) - learning_rate * tl.load(gradient + at, mask=known).to(tl.float32)
    tl.store(exact + at, moved, mask=known)
    tl.store(low + at, moved.to(low.dtype.element_ty), mask=known)
