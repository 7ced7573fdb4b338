"""GPU kernels of bias, ReLU and pooling: a program takes some rows of pixels of one example, all channels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ENTRIES = 2048  # of the pooled picture that a program holds at once


def relu_pool(x: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """max-pool(relu(x + shift)), and which pixel of each four it came from."""
    lanes, examples, height, width, channels = x.shape
    shape = (lanes, examples, height // 2, width // 2, channels)
    y = torch.empty(shape, device=x.device, dtype=x.dtype)
    codes = torch.empty(shape, device=x.device, dtype=torch.uint8)
    block = max(1, ENTRIES // channels)
    pixels = height * width // 4
    _relu_pool[(lanes * examples, triton.cdiv(pixels, block))](
        x, x if shift is None else shift, y, codes, examples, pixels, width // 2, channels, shift is not None, block,
        num_warps=4,
    )  # fmt: skip
    return y, codes


def relu_pool_back(upstream: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the shift."""
    lanes, examples, height, width, channels = upstream.shape
    to_x = torch.empty((lanes, examples, 2 * height, 2 * width, channels), device=upstream.device, dtype=upstream.dtype)
    block = max(1, ENTRIES // channels)
    parts = triton.cdiv(height * width, block)
    sums = torch.empty((lanes, examples * parts, channels), device=upstream.device, dtype=torch.float32)
    _relu_pool_back[(lanes * examples, parts)](
        upstream, codes, to_x, sums, height * width, width, channels, block, num_warps=4
    )
    return to_x, sums.sum(1).to(upstream.dtype)


@triton.jit
def _relu_pool(
    x, shift, y, codes, examples: tl.constexpr, pixels: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    has_shift: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * block + tl.arange(0, block)
    c = tl.arange(0, channels)
    known = (p < pixels)[:, None]
    # Pixel (i, j) comes from (2i, 2j) and its right, lower and lower right neighbours in a row of 2 · width pixels.
    corner = picture * 4 * pixels + (p // width) * (4 * width) + (p % width) * 2
    place = x + corner[:, None] * channels + c[None, :]
    offset = tl.zeros((channels,), dtype=tl.float32)
    if has_shift:
        offset += tl.load(shift + (picture // examples) * channels + c).to(tl.float32)
    best = tl.load(place, mask=known, other=0.0).to(tl.float32)
    which = tl.zeros((block, channels), dtype=tl.int32)
    for k in tl.static_range(1, 4):
        entries = tl.load(place + ((k // 2) * 2 * width + k % 2) * channels, mask=known, other=0.0).to(tl.float32)
        which = tl.where(entries > best, k, which)
        best = tl.maximum(entries, best, propagate_nan=tl.PropagateNan.ALL)
    best += offset[None, :]
    which = tl.where(best > 0, which, 4)
    out = (picture * pixels + p)[:, None] * channels + c[None, :]
    best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + out, best.to(y.dtype.element_ty), mask=known)
    tl.store(codes + out, which.to(tl.uint8), mask=known)


@triton.jit
def _relu_pool_back(
    upstream, codes, to_x, sums, pixels: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr
):
    picture = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * block + tl.arange(0, block)
    c = tl.arange(0, channels)
    known = (p < pixels)[:, None]
    at = (picture * pixels + p)[:, None] * channels + c[None, :]
    error = tl.load(upstream + at, mask=known, other=0.0)
    which = tl.load(codes + at, mask=known, other=4).to(tl.int32)
    corner = picture * 4 * pixels + (p // width) * (4 * width) + (p % width) * 2
    place = to_x + corner[:, None] * channels + c[None, :]
    for k in tl.static_range(4):
        tl.store(place + ((k // 2) * 2 * width + k % 2) * channels, tl.where(which == k, error, 0.0), mask=known)
    own = tl.sum(tl.where(which < 4, error.to(tl.float32), 0.0), 0)
    tl.store(sums + (picture * tl.num_programs(1) + tl.program_id(1)) * channels + c, own)
