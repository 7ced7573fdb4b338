"""GPU kernels behind normalisation.py: one program per example, which reads its picture from the cache after the first.

Sums run over pixels for each channel first, and over the channels of a group last. How many lanes there are is not
compiled in, because it changes as lanes end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mppfl.training.picture_kernels import WARPS, block_of, moments, sums_of_errors, write_back, write_relu


def norm_relu(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """relu(normal(x) · scale + shift), and mean and 1/deviation of every group [2, lanes, examples, groups]."""
    lanes, examples, height, width, channels = x.shape
    y = torch.empty_like(x)
    of_groups = torch.empty((2, lanes, examples, groups), device=x.device, dtype=torch.float32)
    _norm_relu[(lanes * examples,)](
        x, scale, shift, y, of_groups, lanes * examples, examples, height * width, channels, groups, eps,
        block_of(height * width, channels), num_warps=WARPS,
    )  # fmt: skip
    return y, of_groups


def norm_relu_back(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, of_groups: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    lanes, examples, height, width, channels = x.shape
    to_x = torch.empty_like(x)
    sums = torch.empty((2, lanes, examples, channels), device=x.device, dtype=torch.float32)
    _norm_relu_back[(lanes * examples,)](
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
def _norm_relu(
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
def _norm_relu_back(
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
