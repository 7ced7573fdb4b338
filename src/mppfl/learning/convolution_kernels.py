"""GPU kernels behind convolution.py: matrix products that read pictures in place instead of gathered neighbourhoods.

A row of a patch lies contiguous in a channels-last picture: k·C numbers that start at pixel x − k//2. So the inner loop
runs over rows of the kernel and, within a row, over blocks of those numbers; what lies outside the picture counts as 0.
Shapes are compiled in, because divisions by constants are cheap and a training has few of them; how many lanes there
are is not, because it changes as lanes end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def convolve(x: Tensor, taps: Tensor, turned: bool = False) -> Tensor:
    """[lanes, examples, H, W, C] with taps [lanes, k, k, C, out] -> [lanes, examples, H, W, out].

    `turned` takes x [..., out] to [..., C] with the kernels turned round: the way back.
    """
    lanes, examples, height, width, channels = x.shape
    _, high, wide, _, out = taps.shape
    out = taps.shape[3] if turned else out
    found = torch.empty((lanes, examples, height, width, out), device=x.device, dtype=x.dtype)
    pixels = examples * height * width
    block_n = min(128, max(16, triton.next_power_of_2(out)))
    block_k = min(64 if x.dtype == torch.bfloat16 else 32, max(16, triton.next_power_of_2(wide * channels)))
    block_m = 128
    grid = (triton.cdiv(pixels, block_m), triton.cdiv(out, block_n), lanes)
    _convolve[grid](
        x, taps, found, pixels, height, width, channels, out, high, wide * channels, high // 2, wide // 2 * channels,
        turned, block_m, block_n, block_k, num_warps=8 if block_n == 128 else 4, num_stages=3,
    )  # fmt: skip
    return found


def back_to_taps(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    """Gradient of the taps [lanes, k, k, C, out], in the type of x."""
    lanes, examples, height, width, channels = x.shape
    out = upstream.shape[4]
    pixels = examples * height * width
    largest = 128 if x.dtype == torch.bfloat16 else 64
    block_m = 64 if x.dtype == torch.bfloat16 else 32
    block_n = min(largest, max(16, triton.next_power_of_2(out)))
    block_j = min(largest, max(16, triton.next_power_of_2(wide * channels)))
    blocks_j, blocks_n = triton.cdiv(wide * channels, block_j), triton.cdiv(out, block_n)
    # Where tiles are few, each lane's pixels are shared out among several and their sums added.
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = high * blocks_j * blocks_n * lanes
    shares = max(1, min(triton.cdiv(4 * processors, tiles), pixels // (8 * block_m)))
    found = torch.empty(
        (shares, lanes, high, wide, channels, out), device=x.device, dtype=x.dtype if shares == 1 else torch.float32
    )
    _back_to_taps[(high * blocks_j * shares, blocks_n, lanes)](
        x, upstream, found, lanes, shares, triton.cdiv(triton.cdiv(pixels, shares), block_m), pixels, height,
        width, channels, out, blocks_j, wide * channels, high, high // 2, wide // 2 * channels,
        block_m, block_n, block_j, num_warps=8 if block_n * block_j > 8192 else 4, num_stages=3,
    )  # fmt: skip
    return found[0] if shares == 1 else found.sum(0).to(x.dtype)


@triton.jit
def _convolve(
    x, taps, found, pixels: tl.constexpr, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    out: tl.constexpr, high: tl.constexpr, row: tl.constexpr, pad_high: tl.constexpr, pad_row: tl.constexpr,
    turned: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """One tile: block_m pixels by block_n output channels of one lane. `row` is k·C, `pad_row` is k//2·C."""
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * block_m + tl.arange(0, block_m)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    picture = m // (height * width)
    y = (m // width) % height
    first = (m % width) * channels - pad_row  # where the patch's row starts within the picture's row
    x += lane * pixels * channels
    taps += lane * high * row * out
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for up in range(high):
        above = y + up - pad_high
        inside = (above >= 0) & (above < height) & (m < pixels)
        start = (picture * height + above) * (width * channels)
        for j0 in range(0, row, block_k):
            j = j0 + tl.arange(0, block_k)
            at = first[:, None] + j[None, :]
            known = inside[:, None] & (at >= 0) & (at < width * channels) & (j < row)[None, :]
            patch = tl.load(x + start[:, None] + at, mask=known, other=0.0)
            if turned:  # taps lie as [k, k, out, channels]: the last row first, the last column first
                whole = (high - 1 - up) * row + (row // channels - 1 - j // channels) * channels
                place = whole[:, None] * out + n[None, :] * channels + (j % channels)[:, None]
            else:
                place = (up * row + j)[:, None] * out + n[None, :]
            kernel = tl.load(taps + place, mask=(j < row)[:, None] & (n < out)[None, :], other=0.0)
            total = tl.dot(patch, kernel, total)
    found += lane * pixels * out
    tl.store(
        found + m[:, None] * out + n[None, :],
        total.to(found.dtype.element_ty),
        mask=(m < pixels)[:, None] & (n < out)[None, :],
    )


@triton.jit(do_not_specialize=["lanes"])
def _back_to_taps(
    x, upstream, found, lanes, shares: tl.constexpr, steps: tl.constexpr, pixels: tl.constexpr, height: tl.constexpr,
    width: tl.constexpr, channels: tl.constexpr, out: tl.constexpr, blocks_j: tl.constexpr, row: tl.constexpr,
    high: tl.constexpr, pad_high: tl.constexpr, pad_row: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_j: tl.constexpr,
):  # fmt: skip
    """One tile: block_j numbers of a row of the kernel by block_n channels of one lane, over a share of the pixels."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0) % shares
    up = tl.program_id(0) // shares // blocks_j
    j = (tl.program_id(0) // shares % blocks_j) * block_j + tl.arange(0, block_j)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    x += lane * pixels * channels
    upstream += lane * pixels * out
    total = tl.zeros((block_j, block_n), dtype=tl.float32)
    for step in range(0, steps):
        m = (part * steps + step) * block_m + tl.arange(0, block_m)
        above = (m // width) % height + up - pad_high
        inside = (above >= 0) & (above < height) & (m < pixels)
        start = ((m // (height * width)) * height + above) * (width * channels)
        at = (m % width)[None, :] * channels - pad_row + j[:, None]
        known = inside[None, :] & (at >= 0) & (at < width * channels) & (j < row)[:, None]
        patch = tl.load(x + start[None, :] + at, mask=known, other=0.0)  # [block_j, block_m]
        back = tl.load(
            upstream + m[:, None] * out + n[None, :], mask=(m < pixels)[:, None] & (n < out)[None, :], other=0.0
        )
        total = tl.dot(patch, back, total)
    found += ((part * lanes + lane) * high + up) * row * out
    tl.store(
        found + j[:, None] * out + n[None, :],
        total.to(found.dtype.element_ty),
        mask=(j < row)[:, None] & (n < out)[None, :],
    )
