"""GPU kernels of a step in one pass: weights descend, rounded for the next step as they go, or with noise added."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


def descend(exact: Tensor, low: Tensor, gradient: Tensor, learning_rate: float) -> None:
    """exact ← exact − η · gradient and low ← exact, in place; all contiguous and of one shape."""
    count = exact.numel()
    _descend[(triton.cdiv(count, BLOCK),)](exact, low, gradient, learning_rate, count, BLOCK, num_warps=4)


def descend_with_noise(part: Tensor, sums: Tensor, drawn: Tensor, noise: Tensor, pace: Tensor) -> None:
    """part ← part − pace · (sums / before + std · drawn) / after, in place.

    part, sums, drawn  [lanes, ...], contiguous
    noise              [3, lanes]: std, before and after of each lane
    pace               [lanes]
    """
    lanes = len(part)
    size = part.numel() // lanes
    _descend_with_noise[(triton.cdiv(size, BLOCK), lanes)](
        part, sums, drawn, noise, pace, size, noise.stride(0), BLOCK, num_warps=4
    )


@triton.jit
def _descend_with_noise(part, sums, drawn, noise, pace, size, stride, block: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    within = tl.program_id(0) * block + tl.arange(0, block)
    known, at = within < size, lane * size + within
    std, before, after = tl.load(noise + lane), tl.load(noise + stride + lane), tl.load(noise + 2 * stride + lane)
    answer = tl.load(sums + at, mask=known).to(tl.float32) / before + std * tl.load(drawn + at, mask=known)
    moved = tl.load(part + at, mask=known) - tl.load(pace + lane) * (answer / after)
    tl.store(part + at, moved, mask=known)


@triton.jit
def _descend(exact, low, gradient, learning_rate, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    known = at < count
    moved = tl.load(exact + at, mask=known) - learning_rate * tl.load(gradient + at, mask=known).to(tl.float32)
    tl.store(exact + at, moved, mask=known)
    tl.store(low + at, moved.to(low.dtype.element_ty), mask=known)
