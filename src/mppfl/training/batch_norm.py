"""Batch normalisation with ReLU for many lanes at once, channels last, each lane with scale and shift of its own.

Every lane is normalised over the examples of its own batch; padding is left out of mean and deviation, and comes out as
0: a lane that is all padding has no deviation to be divided by, and layer by layer its numbers would grow past all
bounds. As with group norms (normalisation.py) the plain way and the GPU's kernels stand behind one operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mppfl.training.kernels import kernels_over_channels


def batch_norm_relu(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> Tensor:
    """relu(normal(x) · scale + shift) of [lanes, examples, H, W, C]; scale and shift [lanes, C].

    present  [lanes, examples]; false where an example is padding, which gives 0
    """
    there = present.to(torch.promote_types(x.dtype, torch.float32))
    found, _ = _norm_relu(x.contiguous(), scale.contiguous(), shift.contiguous(), there, eps)
    result: Tensor = found
    return result


def batch_normal(x: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x with mean 0 and variance 1 within each lane and channel, 0 for padding; mean and 1/deviation [lanes, C]."""
    there = present.to(torch.promote_types(x.dtype, torch.float32))[:, :, None, None, None]
    exact = x.to(there.dtype)
    count = _num_entries(present, x.shape[2] * x.shape[3]).to(there.dtype)[:, None, None, None]
    mean = (exact * there).sum((1, 2, 3), keepdim=True) / count
    variance = ((exact - mean).square() * there).sum((1, 2, 3), keepdim=True) / count
    inverse = torch.rsqrt(variance + eps)
    return _only(((exact - mean) * inverse).to(x.dtype), present), mean.flatten(1), inverse.flatten(1)


def _num_entries(present: Tensor, pixels: int) -> Tensor:
    """Over how many entries each lane's channels are averaged [lanes, 1]; 1 where a lane is all padding."""
    return (present.sum(1, keepdim=True) * pixels).clamp(min=1)


def _only(pictures: Tensor, present: Tensor) -> Tensor:
    """The same with 0 for padding, whatever that was."""
    return torch.where(present[:, :, None, None, None] > 0, pictures, torch.zeros_like(pictures))


@torch.library.custom_op("mppfl::batch_norm_relu", mutates_args=())
def _norm_relu(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result, and mean and 1/deviation of every channel [2, lanes, C]."""
    if kernels := kernels_over_channels("batch_norm_kernels", x):
        y, of_channels = kernels.norm_relu(x, scale, shift, present, eps)
        return y, of_channels
    normal, mean, inverse = batch_normal(x, present, eps)
    scaled = normal * scale[:, None, None, None] + shift[:, None, None, None]
    return _only(scaled.relu(), present), torch.stack([mean, inverse])


@_norm_relu.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), present.new_empty((2, x.shape[0], x.shape[4]))


@torch.library.custom_op("mppfl::batch_norm_relu_back", mutates_args=())
def _back(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, of_channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    if kernels := kernels_over_channels("batch_norm_kernels", x):
        to_x, to_scale, to_shift = kernels.norm_relu_back(upstream, x, scale, shift, present, of_channels)
        return to_x, to_scale, to_shift
    mean, inverse = (each[:, None, None, None] for each in of_channels)
    wide_scale, wide_shift = (each.to(mean.dtype)[:, None, None, None] for each in (scale, shift))
    normal = (x.to(mean.dtype) - mean) * inverse
    error = _only(upstream.to(mean.dtype) * (normal * wide_scale + wide_shift > 0), present)
    of_shift, of_scale = error.sum((1, 2, 3)), (error * normal).sum((1, 2, 3))
    count = _num_entries(present, x.shape[2] * x.shape[3])
    first, second = (
        (each * scale.to(mean.dtype) / count)[:, None, None, None] for each in (of_shift, of_scale)
    )  # what every entry that was averaged over changes mean and deviation by
    to_x = inverse * (error * wide_scale - present[:, :, None, None, None] * (first + normal * second))
    return to_x.to(x.dtype), of_scale.to(scale.dtype), of_shift.to(shift.dtype)


@_back.register_fake
def _(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, of_channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(shift)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, scale, shift, present, _ = inputs
    ctx.save_for_backward(x, scale, shift, present, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
    to_x, to_scale, to_shift = _back(upstream.contiguous(), *ctx.saved_tensors)
    return to_x, to_scale, to_shift, None, None


_norm_relu.register_autograd(_backward, setup_context=_remember)
