"""Group normalisation with ReLU for many lanes at once, channels last, each lane with scale and shift of its own.

Normalising is all memory traffic. The plain way is left to the compiler, which passes over the pictures a dozen times;
on a GPU, normalisation_kernels.py passes over them as often as must be. Both stand behind one operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mppfl.training.kernels import kernels_over_channels


def group_norm_relu(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> Tensor:
    """relu(normal(x) · scale + shift) of [lanes, examples, H, W, C]; scale and shift [lanes, C]."""
    found, _ = _norm_relu(x.contiguous(), scale.contiguous(), shift.contiguous(), groups, eps)
    result: Tensor = found
    return result


def group_normal(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x with mean 0 and variance 1 within each example and group of channels; mean and 1/deviation [..., groups]."""
    lanes, examples, height, width, _ = x.shape
    grouped = x.reshape(lanes, examples, height * width, groups, -1)
    exact = grouped.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(exact, (2, 4), correction=0, keepdim=True)
    inverse = torch.rsqrt(variance + eps)
    return ((exact - mean) * inverse).to(x.dtype).view(x.shape), mean.flatten(2), inverse.flatten(2)


@torch.library.custom_op("mppfl::group_norm_relu", mutates_args=())
def _norm_relu(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """The result, and mean and 1/deviation of every group [2, lanes, examples, groups]."""
    if kernels := kernels_over_channels("normalisation_kernels", x):
        y, of_groups = kernels.norm_relu(x, scale, shift, groups, eps)
        return y, of_groups
    normal, mean, inverse = group_normal(x, groups, eps)
    scaled = normal * scale[:, None, None, None] + shift[:, None, None, None]
    return scaled.relu(), torch.stack([mean, inverse])


@_norm_relu.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    kind = torch.promote_types(x.dtype, torch.float32)
    return torch.empty_like(x), x.new_empty((2, *x.shape[:2], groups), dtype=kind)


@torch.library.custom_op("mppfl::group_norm_relu_back", mutates_args=())
def _back(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, of_groups: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    if kernels := kernels_over_channels("normalisation_kernels", x):
        to_x, to_scale, to_shift = kernels.norm_relu_back(upstream, x, scale, shift, of_groups)
        return to_x, to_scale, to_shift
    lanes, examples, height, width, channels = x.shape
    groups = of_groups.shape[3]
    mean, inverse = (each[:, :, None, :, None] for each in of_groups)
    grouped = x.reshape(lanes, examples, height * width, groups, -1).to(of_groups.dtype)
    normal = ((grouped - mean) * inverse).view(x.shape)
    wide_scale = scale.to(of_groups.dtype)[:, None, None, None]
    is_open = normal * wide_scale + shift.to(of_groups.dtype)[:, None, None, None] > 0
    error = upstream.to(of_groups.dtype) * is_open
    to_normal = (error * wide_scale).reshape(grouped.shape)
    flat = normal.view(grouped.shape)
    count = height * width * channels // groups
    first = to_normal.sum((2, 4), keepdim=True) / count
    second = (to_normal * flat).sum((2, 4), keepdim=True) / count
    to_x = (inverse * (to_normal - first - flat * second)).reshape(x.shape).to(x.dtype)
    to_scale, to_shift = (error * normal).sum((1, 2, 3)).to(scale.dtype), error.sum((1, 2, 3)).to(shift.dtype)
    return to_x, to_scale, to_shift


@_back.register_fake
def _(upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, of_groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(shift)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, scale, shift, _, _ = inputs
    ctx.save_for_backward(x, scale, shift, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
    to_x, to_scale, to_shift = _back(upstream.contiguous(), *ctx.saved_tensors)
    return to_x, to_scale, to_shift, None, None


_norm_relu.register_autograd(_backward, setup_context=_remember)
