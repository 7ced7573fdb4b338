"""GPU kernels of group and batch norms with ReLU. How many lanes there are is not compiled in: it changes as lanes end.

Both share passes over one picture, channels last: `at` is where the picture begins, in entries; all else is one value
for each channel. Pixels go `block` at a time; sums are kept for each place of a block and added up once at the end,
because adding across threads makes them wait.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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


# ---- group norm: one program per example, which reads its picture from the cache after the first -------------------
# Sums run over pixels for each channel first, and over the channels of a group last.


def group_norm_forward(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """relu(normal(x) · scale + shift), and mean and 1/deviation of every group [2, lanes, examples, groups]."""
    lanes, examples, height, width, channels = x.shape
    y = torch.empty_like(x)
    of_groups = torch.empty((2, lanes, examples, groups), device=x.device, dtype=torch.float32)
    _group_norm[(lanes * examples,)](
        x, scale, shift, y, of_groups, lanes * examples, examples, height * width, channels, groups, eps,
        block_of(height * width, channels), num_warps=WARPS,
    )  # fmt: skip
    return y, of_groups


def group_norm_backward(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, of_groups: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    lanes, examples, height, width, channels = x.shape
    to_x = torch.empty_like(x)
    sums = torch.empty((2, lanes, examples, channels), device=x.device, dtype=torch.float32)
    _group_norm_back[(lanes * examples,)](
        upstream, x, scale, shift, of_groups, to_x, sums, lanes * examples, examples, height * width, channels,
        of_groups.shape[3], block_of(height * width, channels), num_warps=WARPS,
    )  # fmt: skip
    to_shift, to_scale = sums.sum(2)
    return to_x, to_scale.to(scale.dtype, copy=True), to_shift.to(shift.dtype, copy=True)  # they share memory, else


@triton.jit
def _of_channels(of_groups, channels: tl.constexpr, groups: tl.constexpr):
    """One value per group [groups] as one per channel [channels]."""
    spread = tl.broadcast_to(of_groups[:, None], (groups, channels // groups))
    return tl.reshape(spread, (channels,))


@triton.jit
def _of_groups(of_channels, channels: tl.constexpr, groups: tl.constexpr):
    """Sums over the channels of each group [groups]."""
    return tl.sum(tl.reshape(of_channels, (groups, channels // groups)), 1)


@triton.jit(do_not_specialize=["pictures"])
def _group_norm(
    x, scale, shift, y, of_groups, pictures, examples: tl.constexpr, pixels: tl.constexpr,
    channels: tl.constexpr, groups: tl.constexpr, eps: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    g = tl.arange(0, groups)
    count: tl.constexpr = pixels * channels // groups
    at = picture * pixels * channels
    own_mean, own_squares = moments(x, at, pixels, channels, block)
    mean_of_groups = _of_groups(own_mean, channels, groups) * groups / channels
    mean = _of_channels(mean_of_groups, channels, groups)
    apart = own_mean - mean
    squares = own_squares + pixels * apart * apart
    inverse_of_groups = 1.0 / tl.sqrt(_of_groups(squares, channels, groups) / count + eps)
    inverse = _of_channels(inverse_of_groups, channels, groups)
    tl.store(of_groups + picture * groups + g, mean_of_groups)
    tl.store(of_groups + (pictures + picture) * groups + g, inverse_of_groups)
    lane = picture // examples
    factor = inverse * tl.load(scale + lane * channels + c).to(tl.float32)
    offset = tl.load(shift + lane * channels + c).to(tl.float32) - mean * factor
    write_relu(x, y, at, factor, offset, pixels, channels, block)


@triton.jit(do_not_specialize=["pictures"])
def _group_norm_back(
    upstream, x, scale, shift, of_groups, to_x, sums, pictures, examples: tl.constexpr,
    pixels: tl.constexpr, channels: tl.constexpr, groups: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, channels)
    g = tl.arange(0, groups)
    count: tl.constexpr = pixels * channels // groups
    at = picture * pixels * channels
    mean = _of_channels(tl.load(of_groups + picture * groups + g), channels, groups)
    inverse = _of_channels(tl.load(of_groups + (pictures + picture) * groups + g), channels, groups)
    lane = picture // examples
    own_scale = tl.load(scale + lane * channels + c).to(tl.float32)
    own_shift = tl.load(shift + lane * channels + c).to(tl.float32)
    of_shift, of_scale = sums_of_errors(
        upstream, x, at, mean, inverse, own_scale, own_shift, pixels, channels, block
    )  # fmt: skip
    tl.store(sums + picture * channels + c, of_shift)
    tl.store(sums + (pictures + picture) * channels + c, of_scale)
    first = _of_channels(_of_groups(of_shift * own_scale, channels, groups) / count, channels, groups)
    second = _of_channels(_of_groups(of_scale * own_scale, channels, groups) / count, channels, groups)
    write_back(
        upstream, x, to_x, at, mean, inverse, own_scale, own_shift, first, second, pixels, channels, block
    )  # fmt: skip


# ---- batch norm: each way has three kernels -------------------------------------------------------------------------
# One program per example sums over its pixels, one per lane and few channels joins the examples of the batch, and one
# per example applies what came of them. Pictures are read twice and written once each way.

JOINED = 16  # channels whose examples one program joins


def batch_norm_forward(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """relu(normal(x) · scale + shift), and mean and 1/deviation of every channel [2, lanes, C]."""
    lanes, examples, height, width, channels = x.shape
    pixels, block, every = height * width, block_of(height * width, channels), triton.next_power_of_2(examples)
    own = torch.empty((2, lanes, examples, channels), device=x.device, dtype=torch.float32)
    of_channels = torch.empty((2, lanes, channels), device=x.device, dtype=torch.float32)
    y = torch.empty_like(x)
    _batch_moments[(lanes * examples,)](x, own, lanes * examples, pixels, channels, block, num_warps=WARPS)
    _join[(lanes, channels // JOINED)](own, present, of_channels, lanes, examples, every, pixels, channels, JOINED, eps)
    _apply[(lanes * examples,)](
        x, scale, shift, present, of_channels, y, lanes, examples, pixels, channels, block, num_warps=WARPS
    )  # fmt: skip
    return y, of_channels


def batch_norm_backward(
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


@triton.jit(do_not_specialize=["pictures"])
def _batch_moments(x, own, pictures, pixels: tl.constexpr, channels: tl.constexpr, block: tl.constexpr):
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
