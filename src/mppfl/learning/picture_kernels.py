"""On a GPU: passes over one picture, channels last, that group and batch norms share.

`at` is where the picture begins, in entries; all else is one value for each channel. Pixels go `block` at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

ENTRIES = 8192  # of a picture that a program holds at once


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
    of_shift = tl.zeros((channels,), dtype=tl.float32)
    of_scale = tl.zeros((channels,), dtype=tl.float32)
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        place = at + p[:, None] * channels + c[None, :]
        error, normal = _error(upstream, x, place, (p < pixels)[:, None], mean, inverse, scale, shift)
        of_shift += tl.sum(error, 0)
        of_scale += tl.sum(error * normal, 0)
    return of_shift, of_scale


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
