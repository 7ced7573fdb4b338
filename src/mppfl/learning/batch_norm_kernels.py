"""GPU kernels behind batch_norm.py: one program per example sums over its pixels, the examples of a lane are joined,
and one program per example applies what came of them.

Pictures are read twice and written once each way. Squares are summed about each example's own mean, and examples are
joined by the rule of Chan, Golub and LeVeque (1983), so that nothing cancels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mppfl.learning.batch_norm import num_entries

ENTRIES = 8192  # of a picture that a program holds at once


def norm_relu(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """relu(normal(x) · scale + shift), and mean and 1/deviation of every channel [2, lanes, C]."""
    lanes, examples, height, width, channels = x.shape
    pixels, block = height * width, max(1, ENTRIES // channels)
    own = torch.empty((2, lanes, examples, channels), device=x.device, dtype=torch.float32)
    _moments[(lanes * examples,)](x, own, lanes * examples, pixels, channels, block, num_warps=8)
    there, count = present[:, :, None], num_entries(present, pixels)
    mean = (own[0] * there).sum(1) * pixels / count
    squares = ((own[1] + pixels * (own[0] - mean[:, None]).square()) * there).sum(1)
    of_channels = torch.stack([mean, torch.rsqrt(squares / count + eps)])
    y = torch.empty_like(x)
    _apply[(lanes * examples,)](
        x, scale, shift, of_channels, y, examples, lanes, pixels, channels, block, num_warps=8
    )  # fmt: skip
    return y, of_channels


def norm_relu_back(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, of_channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    lanes, examples, height, width, channels = x.shape
    pixels, block = height * width, max(1, ENTRIES // channels)
    own = torch.empty((2, lanes, examples, channels), device=x.device, dtype=torch.float32)
    _sums_back[(lanes * examples,)](
        upstream, x, scale, shift, of_channels, own, examples, lanes, pixels, channels, block, num_warps=8
    )  # fmt: skip
    sums = own.sum(2)
    shares = (sums * scale.float() / num_entries(present, pixels)).contiguous()
    to_x = torch.empty_like(x)
    _apply_back[(lanes * examples,)](
        upstream, x, scale, shift, present, of_channels, shares, to_x, examples, lanes, pixels, channels, block,
        num_warps=8,
    )  # fmt: skip
    of_shift, of_scale = sums
    return to_x, of_scale.to(scale.dtype, copy=True), of_shift.to(shift.dtype, copy=True)  # both, else, are of `sums`


@triton.jit
def _moments(x, own, pictures: tl.constexpr, pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr):
    """Mean of each channel of an example, and the sum of squares about it."""
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    at = picture * pixels * channels
    total = tl.zeros((channels,), dtype=tl.float32)
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        entries = tl.load(x + at + p[:, None] * channels + c[None, :], mask=(p < pixels)[:, None], other=0.0)
        total += tl.sum(entries.to(tl.float32), 0)
    mean = total / pixels
    squares = tl.zeros((channels,), dtype=tl.float32)
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        entries = tl.load(x + at + p[:, None] * channels + c[None, :], mask=(p < pixels)[:, None], other=0.0)
        apart = tl.where((p < pixels)[:, None], entries.to(tl.float32) - mean[None, :], 0.0)
        squares += tl.sum(apart * apart, 0)
    tl.store(own + picture * channels + c, mean)
    tl.store(own + (pictures + picture) * channels + c, squares)


@triton.jit
def _apply(
    x, scale, shift, of_channels, y, examples: tl.constexpr, lanes: tl.constexpr, pixels: tl.constexpr,
    channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    of_lane = picture // examples * channels + c
    at = picture * pixels * channels
    mean = tl.load(of_channels + of_lane)
    factor = tl.load(of_channels + lanes * channels + of_lane) * tl.load(scale + of_lane).to(tl.float32)
    offset = tl.load(shift + of_lane).to(tl.float32) - mean * factor
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        place = at + p[:, None] * channels + c[None, :]
        entries = tl.load(x + place, mask=(p < pixels)[:, None], other=0.0)
        result = tl.maximum(entries.to(tl.float32) * factor[None, :] + offset[None, :], 0.0)
        tl.store(y + place, result.to(y.dtype.element_ty), mask=(p < pixels)[:, None])


@triton.jit
def _sums_back(
    upstream, x, scale, shift, of_channels, own, examples: tl.constexpr, lanes: tl.constexpr, pixels: tl.constexpr,
    channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Sums over an example's pixels of what comes back, and of what comes back times what was normalised."""
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    of_lane = picture // examples * channels + c
    at = picture * pixels * channels
    mean = tl.load(of_channels + of_lane)
    inverse = tl.load(of_channels + lanes * channels + of_lane)
    own_scale = tl.load(scale + of_lane).to(tl.float32)
    own_shift = tl.load(shift + of_lane).to(tl.float32)
    of_shift = tl.zeros((channels,), dtype=tl.float32)
    of_scale = tl.zeros((channels,), dtype=tl.float32)
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        place = at + p[:, None] * channels + c[None, :]
        known = (p < pixels)[:, None]
        normal = (tl.load(x + place, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        error = tl.load(upstream + place, mask=known, other=0.0).to(tl.float32)
        error = tl.where(normal * own_scale[None, :] + own_shift[None, :] > 0, error, 0.0)
        of_shift += tl.sum(error, 0)
        of_scale += tl.sum(error * normal, 0)
    tl.store(own + picture * channels + c, of_shift)
    tl.store(own + (lanes * examples + picture) * channels + c, of_scale)


@triton.jit
def _apply_back(
    upstream, x, scale, shift, present, of_channels, shares, to_x, examples: tl.constexpr, lanes: tl.constexpr,
    pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    of_lane = picture // examples * channels + c
    at = picture * pixels * channels
    mean = tl.load(of_channels + of_lane)
    inverse = tl.load(of_channels + lanes * channels + of_lane)
    own_scale = tl.load(scale + of_lane).to(tl.float32)
    own_shift = tl.load(shift + of_lane).to(tl.float32)
    there = tl.load(present + picture)  # padding changes neither mean nor deviation
    first = tl.load(shares + of_lane) * there
    second = tl.load(shares + lanes * channels + of_lane) * there
    for start in range(0, pixels, block):
        p = start + tl.arange(0, block)
        place = at + p[:, None] * channels + c[None, :]
        known = (p < pixels)[:, None]
        normal = (tl.load(x + place, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        error = tl.load(upstream + place, mask=known, other=0.0).to(tl.float32)
        error = tl.where(normal * own_scale[None, :] + own_shift[None, :] > 0, error, 0.0)
        found = inverse[None, :] * (error * own_scale[None, :] - first[None, :] - normal * second[None, :])
        tl.store(to_x + place, found.to(to_x.dtype.element_ty), mask=known)
