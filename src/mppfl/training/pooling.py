"""Bias, ReLU and 2×2 max-pooling for many lanes at once, channels last.

The three are one operator, because only one of four pixels goes on: what is remembered for the way back is which, a
quarter of the pictures in single bytes, and the gradient is written without reading the pictures again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mppfl.training.kernels import kernels_over_channels

CLOSED = 4  # the code of four pixels none of which is above 0


def relu_pool(x: Tensor, shift: Tensor | None = None) -> Tensor:
    """max-pool(relu(x + shift)) of [lanes, examples, H, W, C] with H and W even; shift [lanes, C] or none."""
    found: tuple[Tensor, Tensor] = _relu_pool(x.contiguous(), None if shift is None else shift.contiguous())
    return found[0]


def _quads(x: Tensor) -> Tensor:
    """The four pixels that become one, side by side [lanes, examples, H/2, W/2, 4, C]."""
    lanes, examples, height, width, channels = x.shape
    apart = x.reshape(lanes, examples, height // 2, 2, width // 2, 2, channels)
    return apart.transpose(3, 4).reshape(lanes, examples, height // 2, width // 2, 4, channels)


def _from_quads(quads: Tensor) -> Tensor:
    lanes, examples, height, width, _, channels = quads.shape
    apart = quads.view(lanes, examples, height, width, 2, 2, channels).transpose(3, 4)
    return apart.reshape(lanes, examples, 2 * height, 2 * width, channels)


@torch.library.custom_op("mppfl::relu_pool", mutates_args=())
def _relu_pool(x: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """The result, and which pixel of each four it came from [..., C] uint8."""
    if kernels := kernels_over_channels("pooling_kernels", x):
        y, codes = kernels.relu_pool(x, shift)
        return y, codes
    shifted = x if shift is None else x + shift[:, None, None, None]
    largest, which = _quads(shifted).max(4)
    return largest.relu(), torch.where(largest > 0, which, CLOSED).to(torch.uint8)


@_relu_pool.register_fake
def _(x: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    lanes, examples, height, width, channels = x.shape
    shape = (lanes, examples, height // 2, width // 2, channels)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("mppfl::relu_pool_back", mutates_args=())
def _back(upstream: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the shift [lanes, C]."""
    if kernels := kernels_over_channels("pooling_kernels", upstream):
        to_x, to_shift = kernels.relu_pool_back(upstream, codes)
        return to_x, to_shift
    places = torch.arange(4, device=codes.device, dtype=torch.uint8)[:, None]
    to_x = _from_quads(upstream.unsqueeze(4) * (codes.unsqueeze(4) == places))
    exact = (upstream * (codes != CLOSED)).to(torch.promote_types(upstream.dtype, torch.float32))
    return to_x, exact.sum((1, 2, 3)).to(upstream.dtype)


@_back.register_fake
def _(upstream: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    lanes, examples, height, width, channels = upstream.shape
    return upstream.new_empty((lanes, examples, 2 * height, 2 * width, channels)), upstream.new_empty((lanes, channels))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.has_shift = inputs[1] is not None


def _backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor, Tensor | None]:
    to_x, to_shift = _back(upstream.contiguous(), *ctx.saved_tensors)
    return to_x, to_shift if ctx.has_shift else None


_relu_pool.register_autograd(_backward, setup_context=_remember)
