"""GPU kernels behind first_layer.py: products whose rows are what four neighbouring pixels see together.

Four pixels that compete in a pool see (k+1)·(k+1) places of the picture, each its own k·k of them. So a row of the
first factor holds those places, read once, and each of the four has its own second factor: the taps, moved by a row or
a column, and 0 where it does not look. The way back is the same turned round, and adds up what the four factors share.
Shapes are compiled in; how many lanes there are is not.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SMALLEST = 16  # block of a product
CLOSED = tl.constexpr(4)  # the code of four pixels none of which is above 0
PIXELS = 128  # of the pooled picture in a tile
LARGEST_OUT, LARGEST_OUT_BACK = 64, 32  # output channels in a tile; the fastest of many on an H200
FOLDED, AT_ONCE = 128, tl.constexpr(32)  # numbers of the taps in a program that adds up; shares it adds at once


def convolved_relu_pool(x: Tensor, taps: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """max-pool(relu(x * taps + shift)), and which pixel of each four it came from."""
    lanes, examples, height, width, channels = x.shape
    _, high, wide, _, out = taps.shape
    shape = (lanes, examples, height // 2, width // 2, out)
    y = torch.empty(shape, device=x.device, dtype=x.dtype)
    codes = torch.empty(shape, device=x.device, dtype=torch.uint8)
    pixels = examples * height * width // 4
    block_n = _block_of(out, LARGEST_OUT)
    _forward[(triton.cdiv(pixels, PIXELS), triton.cdiv(out, block_n), lanes)](
        x, taps, shift, y, codes, pixels, height, width, channels, out, high, wide, PIXELS, block_n,
        _block_of((high + 1) * (wide + 1) * channels), num_warps=4, num_stages=1,
    )  # fmt: skip
    return y, codes


def convolved_relu_pool_back(x: Tensor, upstream: Tensor, codes: Tensor, high: int, wide: int) -> tuple[Tensor, Tensor]:
    """Gradients of the taps [lanes, k, k, C, out] and of the shift [lanes, out]."""
    lanes, examples, height, width, channels = x.shape
    out = upstream.shape[4]
    pixels = examples * height * width // 4
    block_n, block_k = _block_of(out, LARGEST_OUT_BACK), _block_of((high + 1) * (wide + 1) * channels)
    # Each lane's pixels are shared out among several programs and their sums added.
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = triton.cdiv(out, block_n) * lanes
    shares = max(1, min(triton.cdiv(4 * processors, tiles), pixels // (4 * PIXELS)))
    steps = triton.cdiv(triton.cdiv(pixels, shares), PIXELS)
    sums = torch.empty((shares, lanes, 4, block_k, out), device=x.device, dtype=torch.float32)
    sums_of_shift = torch.empty((shares, lanes, out), device=x.device, dtype=torch.float32)
    _back[(shares, triton.cdiv(out, block_n), lanes)](
        x, upstream, codes, sums, sums_of_shift, lanes, steps, pixels, height, width, channels, out, high, wide,
        PIXELS, block_n, block_k, num_warps=4, num_stages=2,
    )  # fmt: skip
    to_taps = torch.empty((lanes, high, wide, channels, out), device=x.device, dtype=x.dtype)
    _fold[(triton.cdiv(to_taps[0].numel(), FOLDED), lanes)](
        sums, to_taps, lanes, shares, channels, out, high, wide, block_k, FOLDED, num_warps=4
    )
    return to_taps, sums_of_shift.sum(0).to(x.dtype)


def _block_of(size: int, most: int = 2**30) -> int:
    return int(min(most, max(SMALLEST, triton.next_power_of_2(size))))


@triton.jit
def _seen(
    x, q, k, pixels: tl.constexpr, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    high: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """What the four pixels behind each pooled pixel q see [q, k]; what lies outside the picture counts as 0."""
    per_row: tl.constexpr = (wide + 1) * channels
    y = 2 * ((q // (width // 2)) % (height // 2))[:, None] + (k // per_row - high // 2)[None, :]
    column = 2 * (q % (width // 2))[:, None] + ((k // channels) % (wide + 1) - wide // 2)[None, :]
    inside = (y >= 0) & (y < height) & (column >= 0) & (column < width)
    inside = inside & (q < pixels)[:, None] & (k < (high + 1) * per_row)[None, :]
    picture = (q // (height * width // 4))[:, None]
    at = ((picture * height + y) * width + column) * channels + (k % channels)[None, :]
    return tl.load(x + at, mask=inside, other=0.0)


@triton.jit
def _forward(
    x, taps, shift, y, codes, pixels: tl.constexpr, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    out: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, block_q: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr,
):  # fmt: skip
    """One tile: block_q pooled pixels by block_n output channels of one lane."""
    lane = tl.program_id(2).to(tl.int64)
    q = tl.program_id(0) * block_q + tl.arange(0, block_q)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    k = tl.arange(0, block_k)
    seen = _seen(x + lane * pixels * 4 * channels, q, k, pixels, height, width, channels, high, wide)
    taps += lane * high * wide * channels * out
    best = tl.zeros((block_q, block_n), dtype=tl.float32)
    which = tl.zeros((block_q, block_n), dtype=tl.int32)
    for position in tl.static_range(4):
        row = k // ((wide + 1) * channels) - position // 2
        column = (k // channels) % (wide + 1) - position % 2
        looks = (row >= 0) & (row < high) & (column >= 0) & (column < wide)
        at = ((row * wide + column) * channels + k % channels) * out
        kernel = tl.load(taps + at[:, None] + n[None, :], mask=looks[:, None] & (n < out)[None, :], other=0.0)
        entries = tl.dot(seen, kernel)
        if position == 0:
            best = entries
        else:
            which = tl.where(entries > best, position, which)
            best = tl.maximum(entries, best, propagate_nan=tl.PropagateNan.ALL)
    best += tl.load(shift + lane * out + n, mask=n < out, other=0.0).to(tl.float32)[None, :]
    which = tl.where(best > 0, which, CLOSED)
    best = tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL)
    place = (lane * pixels + q)[:, None] * out + n[None, :]
    known = (q < pixels)[:, None] & (n < out)[None, :]
    tl.store(y + place, best.to(y.dtype.element_ty), mask=known)
    tl.store(codes + place, which.to(tl.uint8), mask=known)


@triton.jit(do_not_specialize=["lanes"])
def _back(
    x, upstream, codes, sums, sums_of_shift, lanes, steps: tl.constexpr, pixels: tl.constexpr, height: tl.constexpr,
    width: tl.constexpr, channels: tl.constexpr, out: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    block_q: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """What a share of one lane's pixels adds to the four factors [4, block_k, out] and to the shift."""
    lane = tl.program_id(2).to(tl.int64)
    share = tl.program_id(0)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    k = tl.arange(0, block_k)
    x += lane * pixels * 4 * channels
    first = tl.zeros((block_k, block_n), dtype=tl.float32)
    second = tl.zeros((block_k, block_n), dtype=tl.float32)
    third = tl.zeros((block_k, block_n), dtype=tl.float32)
    fourth = tl.zeros((block_k, block_n), dtype=tl.float32)
    of_shift = tl.zeros((block_n,), dtype=tl.float32)
    for step in range(0, steps):
        q = (share * steps + step) * block_q + tl.arange(0, block_q)
        seen = tl.trans(_seen(x, q, k, pixels, height, width, channels, high, wide))
        place = (lane * pixels + q)[:, None] * out + n[None, :]
        known = (q < pixels)[:, None] & (n < out)[None, :]
        error = tl.load(upstream + place, mask=known, other=0.0)
        which = tl.load(codes + place, mask=known, other=CLOSED).to(tl.int32)
        first = tl.dot(seen, tl.where(which == 0, error, 0.0).to(error.dtype), first)
        second = tl.dot(seen, tl.where(which == 1, error, 0.0).to(error.dtype), second)
        third = tl.dot(seen, tl.where(which == 2, error, 0.0).to(error.dtype), third)
        fourth = tl.dot(seen, tl.where(which == 3, error, 0.0).to(error.dtype), fourth)
        of_shift += tl.sum(tl.where(which < CLOSED, error.to(tl.float32), 0.0), 0)
    sums += (share * lanes + lane) * 4 * block_k * out
    at = k[:, None] * out + n[None, :]
    known = (n < out)[None, :]
    tl.store(sums + at, first, mask=known)
    tl.store(sums + block_k * out + at, second, mask=known)
    tl.store(sums + 2 * block_k * out + at, third, mask=known)
    tl.store(sums + 3 * block_k * out + at, fourth, mask=known)
    tl.store(sums_of_shift + (share * lanes + lane) * out + n, of_shift, mask=n < out)


@triton.jit(do_not_specialize=["lanes"])
def _fold(
    sums, to_taps, lanes, shares: tl.constexpr, channels: tl.constexpr, out: tl.constexpr, high: tl.constexpr,
    wide: tl.constexpr, block_k: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The taps' gradient from all shares of the four factors in which a tap stands at four places."""
    lane = tl.program_id(1).to(tl.int64)
    size: tl.constexpr = high * wide * channels * out
    t = tl.program_id(0) * block + tl.arange(0, block)
    known = t < size
    n = t % out
    channel = (t // out) % channels
    column = (t // (out * channels)) % wide
    row = t // (out * channels * wide)
    total = tl.zeros((block,), dtype=tl.float32)
    for first in range(0, shares, AT_ONCE):
        share = first + tl.arange(0, AT_ONCE)
        start = (share * lanes + lane) * 4 * block_k * out
        for position in tl.static_range(4):
            k = ((row + position // 2) * (wide + 1) + column + position % 2) * channels + channel
            at = start[:, None] + ((position * block_k + k) * out + n)[None, :]
            total += tl.sum(tl.load(sums + at, mask=(share < shares)[:, None] & known[None, :], other=0.0), 0)
    tl.store(to_taps + lane * size + t, total.to(to_taps.dtype.element_ty), mask=known)
