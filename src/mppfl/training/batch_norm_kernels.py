"""GPU kernels behind batch_norm.py. Each way has three: one program per example sums over its pixels, one per lane and
few channels joins the examples of the batch, and one per example applies what came of them.

Pictures are read twice and written once each way. How many lanes there are is not compiled in, because it changes as
lanes end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mppfl.training.picture_kernels import WARPS, block_of, moments, sums_of_errors, write_back, write_relu

JOINED = 16  # channels whose examples one program joins


def norm_relu(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """relu(normal(x) · scale + shift), and mean and 1/deviation of every channel [2, lanes, C]."""
    lanes, examples, height, width, channels = x.shape
    pixels, block, every = height * width, block_of(height * width, channels), triton.next_power_of_2(examples)
    own = torch.empty((2, lanes, examples, channels), device=x.device, dtype=torch.float32)
    of_channels = torch.empty((2, lanes, channels), device=x.device, dtype=torch.float32)
    y = torch.empty_like(x)
    _moments[(lanes * examples,)](x, own, lanes * examples, pixels, channels, block, num_warps=WARPS)
    _join[(lanes, channels // JOINED)](own, present, of_channels, lanes, examples, every, pixels, channels, JOINED, eps)
    _apply[(lanes * examples,)](
        x, scale, shift, present, of_channels, y, lanes, examples, pixels, channels, block, num_warps=WARPS
    )  # fmt: skip
    return y, of_channels


def norm_relu_back(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, of_channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    lanes, examples, height, width, channels = x.shape
    pixels, block, every = height * width, block_of(height * width, channels), triton.next_power_of_2(examples)
    own = torch.empty((2, lanes, examples, channels), device=x.device, dtype=torch.float32)
    shares = torch.empty_like(of_channels)
    to_x, to_scale, to_shift = (torch.empty_like(each) for each in (x, scale, shift))
    _sums_back[(lanes * examples,)](
        upstream, x, scale, shift, present, of_channels, own, lanes, examples, pixels, channels, block,
        num_warps=WARPS,
    )  # fmt: skip
    _join_back[(lanes, channels // JOINED)](
        own, scale, present, shares, to_scale, to_shift, lanes, examples, every, pixels, channels, JOINED
    )  # fmt: skip
    _apply_back[(lanes * examples,)](
        upstream, x, scale, shift, present, of_channels, shares, to_x, lanes, examples, pixels, channels, block,
        num_warps=WARPS,
    )  # fmt: skip
    return to_x, to_scale, to_shift


@triton.jit
def _batch(present, lane, examples: tl.constexpr, every: tl.constexpr, pixels: tl.constexpr):
    """Which examples of a lane are there [every], and over how many entries its channels are averaged."""
    e = tl.arange(0, every)
    there = tl.load(present + lane * examples + e, mask=e < examples, other=0.0)
    return there, tl.maximum(tl.sum(there, 0) * pixels, 1.0)


@triton.jit
def _of_examples(
    own, lane, c, lanes, examples: tl.constexpr, every: tl.constexpr, channels: tl.constexpr
):  # fmt: skip
    """The two sums of every example of a lane for channels c [every, channels joined]."""
    e = tl.arange(0, every)
    place = (lane * examples + e)[:, None] * channels + c[None, :]
    known = (e < examples)[:, None]
    first = tl.load(own + place, mask=known, other=0.0)
    return first, tl.load(own + lanes * examples * channels + place, mask=known, other=0.0)


# ---- forward ------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["pictures"])
def _moments(x, own, pictures, pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr):
    """Mean of each channel of an example, and the sum of squares about it."""
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    mean, squares = moments(x, picture * pixels * channels, pixels, channels, block)
    tl.store(own + picture * channels + c, mean)
    tl.store(own + (pictures + picture) * channels + c, squares)


@triton.jit(do_not_specialize=["lanes"])
def _join(
    own, present, of_channels, lanes, examples: tl.constexpr, every: tl.constexpr, pixels: tl.constexpr,
    channels: tl.constexpr, joined: tl.constexpr, eps: tl.constexpr,
):  # fmt: skip
    """Mean and 1/deviation of some channels of a lane from those of its examples."""
    lane = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * joined + tl.arange(0, joined)
    there, count = _batch(present, lane, examples, every, pixels)
    means, squares = _of_examples(own, lane, c, lanes, examples, every, channels)
    mean = tl.sum(means * there[:, None], 0) * pixels / count
    apart = means - mean[None, :]
    total = tl.sum((squares + pixels * apart * apart) * there[:, None], 0)
    tl.store(of_channels + lane * channels + c, mean)
    tl.store(of_channels + (lanes + lane) * channels + c, 1.0 / tl.sqrt(total / count + eps))


@triton.jit(do_not_specialize=["lanes"])
def _apply(
    x, scale, shift, present, of_channels, y, lanes, examples: tl.constexpr, pixels: tl.constexpr,
    channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The result; 0 for padding."""
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    of_lane = picture // examples * channels + c
    mean, inverse, own_scale, own_shift = _of_lane(of_channels, scale, shift, of_lane, lanes * channels)
    there = tl.load(present + picture)
    factor = inverse * own_scale * there
    offset = own_shift * there - mean * factor
    write_relu(x, y, picture * pixels * channels, factor, offset, pixels, channels, block)


@triton.jit
def _of_lane(of_channels, scale, shift, place, apart):
    """Mean, 1/deviation, scale and shift of a lane's channels."""
    mean, inverse = tl.load(of_channels + place), tl.load(of_channels + apart + place)
    return mean, inverse, tl.load(scale + place).to(tl.float32), tl.load(shift + place).to(tl.float32)


# ---- back ---------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["lanes"])
def _sums_back(
    upstream, x, scale, shift, present, of_channels, own, lanes, examples: tl.constexpr, pixels: tl.constexpr,
    channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Sums over an example's pixels of what comes back, and of what comes back times what was normalised."""
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    of_lane = picture // examples * channels + c
    mean, inverse, own_scale, own_shift = _of_lane(of_channels, scale, shift, of_lane, lanes * channels)
    of_shift, of_scale = sums_of_errors(
        upstream, x, picture * pixels * channels, mean, inverse, own_scale, own_shift, pixels, channels, block
    )  # fmt: skip
    there = tl.load(present + picture)
    tl.store(own + picture * channels + c, of_shift * there)
    tl.store(own + (lanes * examples + picture) * channels + c, of_scale * there)


@triton.jit(do_not_specialize=["lanes"])
def _join_back(
    own, scale, present, shares, to_scale, to_shift, lanes, examples: tl.constexpr, every: tl.constexpr,
    pixels: tl.constexpr, channels: tl.constexpr, joined: tl.constexpr,
):  # fmt: skip
    """Gradients of scale and shift, and what an entry that was averaged over gives up for mean and deviation."""
    lane = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * joined + tl.arange(0, joined)
    _, count = _batch(present, lane, examples, every, pixels)
    shifts, scales = _of_examples(own, lane, c, lanes, examples, every, channels)
    of_shift, of_scale = tl.sum(shifts, 0), tl.sum(scales, 0)
    own_scale = tl.load(scale + lane * channels + c).to(tl.float32)
    tl.store(shares + lane * channels + c, of_shift * own_scale / count)
    tl.store(shares + (lanes + lane) * channels + c, of_scale * own_scale / count)
    tl.store(to_shift + lane * channels + c, of_shift.to(to_shift.dtype.element_ty))
    tl.store(to_scale + lane * channels + c, of_scale.to(to_scale.dtype.element_ty))


@triton.jit(do_not_specialize=["lanes"])
def _apply_back(
    upstream, x, scale, shift, present, of_channels, shares, to_x, lanes, examples: tl.constexpr,
    pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    of_lane = picture // examples * channels + c
    mean, inverse, own_scale, own_shift = _of_lane(of_channels, scale, shift, of_lane, lanes * channels)
    first = tl.load(shares + of_lane)
    second = tl.load(shares + lanes * channels + of_lane)
    inverse *= tl.load(present + picture)  # nothing goes back to padding
    write_back(
        upstream, x, to_x, picture * pixels * channels, mean, inverse, own_scale, own_shift, first, second, pixels,
        channels, block,
    )  # fmt: skip
