"""On a GPU: passes over one picture, channels last, that group and batch norms share.

`at` is where the picture begins, in entries; all else is one value for each channel. Pixels go `block` at a time; sums
are kept for each place of a block and added up once at the end, because adding across threads makes them wait.
"""

from __future__ import annotations

import triton
import triton.language as tl

ENTRIES = 4096  # of a picture that a program holds at once
WARPS = 8


def block_of(pixels: int, channels: int) -> int:
    """How many pixels go at a time."""
    return int(min(max(1, ENTRIES // channels), triton.next_power_of_2(pixels)))


@triton.jit
def moments(x, at, pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr):
    """Mean over pixels, and the sum of squares about it.

    Squares are summed about means, and parts joined by the rule of Chan, Golub and LeVeque (1983): nothing cancels.
    """
    c = tl.arange(0, channels)
    own_mean = tl.zeros((block, channels), dtype=tl.float32)
    own_squares = tl.zeros((block, channels), dtype=tl.float32)
    whole: tl.constexpr = pixels // block
    for turn in range(0, whole):
        p = turn * block + tl.arange(0, block)
        entries = tl.load(x + at + p[:, None] * channels + c[None, :]).to(tl.float32)
        step = entries - own_mean
        own_mean += step * (1.0 / (turn + 1.0))
        own_squares += step * (entries - own_mean)
    mean = tl.sum(own_mean, 0) / block
    apart = own_mean - mean[None, :]
    squares = tl.sum(own_squares + whole * apart * apart, 0)
    left: tl.constexpr = pixels - whole * block
    if left > 0:
        p = tl.arange(0, block)
        known = (p < left)[:, None]
        place = at + (whole * block + p)[:, None] * channels + c[None, :]
        entries = tl.load(x + place, mask=known, other=0.0).to(tl.float32)
        rest = tl.sum(entries, 0) / left
        apart = tl.where(known, entries - rest[None, :], 0.0)
        step = rest - mean
        mean += step * (left / pixels)
        squares += tl.sum(apart * apart, 0) + step * step * (left * (whole * block) / pixels)
    return mean, squares


@triton.jit
def write_relu(
    x, y, at, factor, offset, pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """y = relu(x · factor + offset)."""
    c = tl.arange(0, channels)
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        place = at + p[:, None] * channels + c[None, :]
        entries = tl.load(x + place, mask=(p < pixels)[:, None], other=0.0)
        result = tl.maximum(entries.to(tl.float32) * factor[None, :] + offset[None, :], 0.0)
        tl.store(y + place, result.to(y.dtype.element_ty), mask=(p < pixels)[:, None])


@triton.jit
def sums_of_errors(
    upstream, x, at, mean, inverse, scale, shift, pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Sums over pixels of what comes back through the ReLU, and of that times what was normalised."""
    c = tl.arange(0, channels)
    of_shift = tl.zeros((block, channels), dtype=tl.float32)
    of_scale = tl.zeros((block, channels), dtype=tl.float32)
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        place = at + p[:, None] * channels + c[None, :]
        error, normal = _error(upstream, x, place, (p < pixels)[:, None], mean, inverse, scale, shift)
        of_shift += error
        of_scale += error * normal
    return tl.sum(of_shift, 0), tl.sum(of_scale, 0)


@triton.jit
def write_back(
    upstream, x, to_x, at, mean, inverse, scale, shift, first, second, pixels: tl.constexpr, channels: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """The gradient of x: what comes back, less what x gives up for its mean (`first`) and its deviation (`second`)."""
    c = tl.arange(0, channels)
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        place = at + p[:, None] * channels + c[None, :]
        known = (p < pixels)[:, None]
        error, normal = _error(upstream, x, place, known, mean, inverse, scale, shift)
        found = inverse[None, :] * (error * scale[None, :] - first[None, :] - normal * second[None, :])
        tl.store(to_x + place, found.to(to_x.dtype.element_ty), mask=known)


@triton.jit
def _error(upstream, x, place, known, mean, inverse, scale, shift):
    """What comes back where the ReLU was open, and what was normalised."""
    normal = (tl.load(x + place, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    error = tl.load(upstream + place, mask=known, other=0.0).to(tl.float32)
    return tl.where(normal * scale[None, :] + shift[None, :] > 0, error, 0.0), normal
