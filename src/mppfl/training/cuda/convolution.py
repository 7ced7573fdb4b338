"""GPU kernels of convolution: matrix products that read pictures in place instead of gathered neighbourhoods.

Channels last, a pixel's neighbour is a fixed distance away in memory. So a product runs in one loop over taps of the
kernel and blocks of channels, long enough for loads to be under way while products are computed; what lies outside the
picture counts as 0. Where channels fill no block (the colours of a picture), a whole row of the kernel is one block:
k·C numbers that lie side by side.
Shapes are compiled in, because divisions by constants are cheap and a training has few of them; how many lanes there
are is not, because it changes as lanes end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SMALLEST = 16  # block of a product
FEW_PLACES = 16  # in a picture: of every nine taps, three and more reach beyond it
FEWEST_PLACES = 4  # most of them do
Tile = tuple[int, int, int, int, int]  # three blocks of a product; warps and stages


def convolve(x: Tensor, taps: Tensor, turned: bool = False) -> Tensor:
    """[lanes, examples, H, W, C] with taps [lanes, k, k, C, out] -> [lanes, examples, H, W, out].

    `turned` takes x [..., out] to [..., C] with the kernels turned round: the way back.
    """
    lanes, examples, height, width, channels = x.shape
    _, high, wide, _, out = taps.shape
    out = taps.shape[3] if turned else out
    found = torch.empty((lanes, examples, height, width, out), device=x.device, dtype=x.dtype)
    pixels, by_place = examples * height * width, height * width <= FEWEST_PLACES
    block_m, block_n, block_k, warps, stages = _tile_of_pixels(channels, out, by_place, x)
    grid = (triton.cdiv(pixels, block_m), triton.cdiv(out, block_n), lanes)
    if channels % block_k == 0:
        _convolve[grid](
            x, taps, found, examples, height, width, channels, out, high, wide, turned, by_place, block_m, block_n,
            block_k, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    else:
        block_k = min(_largest_depth(x.dtype), max(SMALLEST, triton.next_power_of_2(wide * channels)))
        _convolve_rows[grid](
            x, taps, found, pixels, height, width, channels, out, high, wide * channels, high // 2,
            wide // 2 * channels, turned, block_m, block_n, block_k, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return found


def back_to_taps(x: Tensor, upstream: Tensor, high: int, wide: int, dtype: torch.dtype | None = None) -> Tensor:
    """Gradient of the taps [lanes, k, k, C, out], in the type of x or another `dtype`."""
    dtype = dtype or x.dtype
    lanes, examples, height, width, channels = x.shape
    out = upstream.shape[4]
    pixels, rows = examples * height * width, high * wide * channels
    few = height * width <= FEW_PLACES
    block_m, block_n, block_j, warps, stages = _tile_of_taps(rows, out, few, x)
    blocks_j, blocks_n = triton.cdiv(rows, block_j), triton.cdiv(out, block_n)
    # Where tiles are few, each lane's pixels are shared out among several and their sums added.
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = blocks_j * blocks_n * lanes
    shares = max(1, min(triton.cdiv(4 * processors, tiles), pixels // (8 * block_m)))
    found = torch.empty(
        (shares, lanes, high, wide, channels, out), device=x.device, dtype=dtype if shares == 1 else torch.float32
    )
    grid = (blocks_j * shares, blocks_n, lanes)
    if few and channels % block_j == 0 and examples % block_m == 0:
        _back_to_one_tap[grid](
            x, upstream, found, lanes, shares, examples, height, width, channels, out, high, wide, block_m, block_n,
            block_j, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    else:
        steps = triton.cdiv(triton.cdiv(pixels, shares), block_m)
        _back_to_taps[grid](
            x, upstream, found, lanes, shares, steps, pixels, height, width, channels, out, high, wide, block_m,
            block_n, block_j, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return found[0] if shares == 1 else found.sum(0).to(dtype)


# ---- tiles: the fastest of many that were timed on the shapes of VGG-16, 20 lanes of 64 examples, on an H200 --------


def _tile_of_pixels(channels: int, out: int, by_place: bool, x: Tensor) -> Tile:
    """Pixels, output channels and input channels."""
    block_k = max(SMALLEST, min(_largest_depth(x.dtype), channels & -channels))
    if by_place and out >= 128 and x.dtype == torch.bfloat16:
        return 64, 128, block_k, 4, 4
    widest = 256 if channels >= 64 and _has_room(x) else 128
    block_n = min(widest, max(SMALLEST, triton.next_power_of_2(out)))
    return 128, block_n, block_k, 8 if block_n >= 128 else 4, 3


def _tile_of_taps(rows: int, out: int, few: bool, x: Tensor) -> Tile:
    """Pixels, output channels and numbers of the kernel."""
    largest = 128 if x.dtype == torch.bfloat16 else 64
    widest = 256 if few and _has_room(x) else largest
    block_n = min(widest, max(SMALLEST, triton.next_power_of_2(out)))
    # Of few channels numbers are gathered one by one: a block that they do not fill costs more than reading twice.
    most = largest if x.shape[4] >= SMALLEST else 32
    block_j = min(most, max(SMALLEST, triton.next_power_of_2(rows)))
    return largest // 2, block_n, block_j, 8 if block_n * block_j > 8192 else 4, 3


def _has_room(x: Tensor) -> bool:
    """Whether a processor's shared memory holds three stages of tiles of 256 channels (147 KB)."""
    room = torch.cuda.get_device_properties(x.device).shared_memory_per_multiprocessor
    return x.dtype == torch.bfloat16 and room >= 200 * 1024


def _largest_depth(dtype: torch.dtype) -> int:
    """How much of a product's inner sum a tile holds at once."""
    return 64 if dtype == torch.bfloat16 else 32


@triton.jit
def _convolve(
    x, taps, found, examples: tl.constexpr, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    out: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, turned: tl.constexpr, by_place: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """One tile: block_m pixels by block_n output channels of one lane; block_k divides the channels.

    by_place  the tile has one place of many pictures beside the next, and taps that no place of it needs are left out
    """
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * block_m + tl.arange(0, block_m)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    k = tl.arange(0, block_k)
    pixels: tl.constexpr = height * width
    num_taps: tl.constexpr = high * wide
    place = m // examples if by_place else m % pixels
    pixel = (m % examples) * pixels + place if by_place else m
    y = place // width
    column = place % width
    first_up = 0
    first_side = 0
    ups = high
    sides = wide
    if by_place:
        first = tl.program_id(0) * block_m // examples
        last = tl.minimum((tl.program_id(0) * block_m + block_m - 1) // examples, pixels - 1)
        top, bottom = first // width, last // width
        left = tl.where(top == bottom, first % width, 0)
        right = tl.where(top == bottom, last % width, width - 1)
        first_up = tl.maximum(0, high // 2 - bottom)
        first_side = tl.maximum(0, wide // 2 - right)
        ups = tl.minimum(high, height + high // 2 - top) - first_up
        sides = tl.minimum(wide, width + wide // 2 - left) - first_side
    x += lane * examples * pixels * channels
    taps += lane * num_taps * channels * out
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in range(0, ups * sides * (channels // block_k)):
        at_tap = step % (ups * sides)
        c = step // (ups * sides) * block_k + k
        row, side = first_up + at_tap // sides, first_side + at_tap % sides
        up, over = row - high // 2, side - wide // 2
        inside = (y + up >= 0) & (y + up < height) & (column + over >= 0) & (column + over < width)
        if examples * pixels % block_m != 0:
            inside = inside & (m < examples * pixels)
        neighbour = (pixel * channels + (up * width + over) * channels)[:, None] + c[None, :]
        patch = tl.load(x + neighbour, mask=inside[:, None], other=0.0)
        tap = row * wide + side
        if turned:  # taps lie as [k, k, out, channels]: the last tap first
            at = (num_taps - 1 - tap) * channels * out + n[None, :] * channels + c[:, None]
        else:
            at = (tap * channels + c)[:, None] * out + n[None, :]
        kernel = tl.load(taps + at, mask=(n < out)[None, :], other=0.0)
        total = tl.dot(patch, kernel, total)
    found += lane * examples * pixels * out
    tl.store(
        found + pixel[:, None] * out + n[None, :],
        total.to(found.dtype.element_ty),
        mask=(m < examples * pixels)[:, None] & (n < out)[None, :],
    )


@triton.jit
def _convolve_rows(
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
    width: tl.constexpr, channels: tl.constexpr, out: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_j: tl.constexpr,
):  # fmt: skip
    """One tile: block_j numbers of the kernel by block_n channels of one lane, over a share of the pixels."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0) % shares
    first = tl.program_id(0) // shares * block_j
    j = first + tl.arange(0, block_j)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    x += lane * pixels * channels
    upstream += lane * pixels * out
    rows: tl.constexpr = high * wide * channels
    within_tap: tl.constexpr = channels % block_j == 0
    tap = first // channels if within_tap else j // channels
    up = tap // wide - high // 2
    side = tap % wide - wide // 2
    offset = (up * width + side) * channels + j % channels
    total = tl.zeros((block_j, block_n), dtype=tl.float32)
    for step in range(0, steps):
        m = (part * steps + step) * block_m + tl.arange(0, block_m)
        y = (m // width) % height
        column = m % width
        if within_tap:
            above, beside = (y + up)[None, :], (column + side)[None, :]
            inside = (above >= 0) & (above < height) & (beside >= 0) & (beside < width) & (m < pixels)[None, :]
        else:
            above, beside = y[None, :] + up[:, None], column[None, :] + side[:, None]
            inside = (above >= 0) & (above < height) & (beside >= 0) & (beside < width)
            inside = inside & (m < pixels)[None, :] & (j < rows)[:, None]
        patch = tl.load(x + offset[:, None] + (m * channels)[None, :], mask=inside, other=0.0)  # [block_j, block_m]
        back = tl.load(
            upstream + m[:, None] * out + n[None, :], mask=(m < pixels)[:, None] & (n < out)[None, :], other=0.0
        )
        total = tl.dot(patch, back, total)
    found += (part * lanes + lane) * rows * out
    tl.store(
        found + j[:, None] * out + n[None, :],
        total.to(found.dtype.element_ty),
        mask=(j < rows)[:, None] & (n < out)[None, :],
    )


@triton.jit(do_not_specialize=["lanes"])
def _back_to_one_tap(
    x, upstream, found, lanes, shares: tl.constexpr, examples: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    channels: tl.constexpr, out: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, block_j: tl.constexpr,
):  # fmt: skip
    """The same where a tile lies within one tap: only places whose neighbour lies in the picture, one at a time."""
    lane = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0) % shares
    first = tl.program_id(0) // shares * block_j
    j = first + tl.arange(0, block_j)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    e = tl.arange(0, block_m)
    pixels: tl.constexpr = height * width
    rows: tl.constexpr = high * wide * channels
    crowds: tl.constexpr = examples // block_m
    tap = first // channels
    up = tap // wide - high // 2
    over = tap % wide - wide // 2
    top, left = tl.maximum(0, -up), tl.maximum(0, -over)
    across = tl.maximum(0, width - tl.abs(over))
    steps = tl.maximum(0, height - tl.abs(up)) * across * crowds
    share = (steps + shares - 1) // shares
    x += lane * examples * pixels * channels
    upstream += lane * examples * pixels * out
    offset = (up * width + over) * channels + j % channels
    total = tl.zeros((block_j, block_n), dtype=tl.float32)
    for step in range(part * share, tl.minimum(steps, (part + 1) * share)):
        place = step // crowds
        pixel = (step % crowds * block_m + e) * pixels + (top + place // across) * width + left + place % across
        patch = tl.load(x + offset[:, None] + (pixel * channels)[None, :])  # [block_j, block_m]
        back = tl.load(upstream + pixel[:, None] * out + n[None, :], mask=(n < out)[None, :], other=0.0)
        total = tl.dot(patch, back, total)
    found += (part * lanes + lane) * rows * out
    tl.store(found + j[:, None] * out + n[None, :], total.to(found.dtype.element_ty), mask=(n < out)[None, :])
