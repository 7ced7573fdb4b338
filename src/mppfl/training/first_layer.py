"""The first layer of a small convolutional network in one operator: convolution, bias, ReLU and 2×2 max-pooling.

Its pictures have few channels, its outputs are the largest tensors of the network, and three of four of their pixels go
no further. The plain way writes them down and pools them. On a GPU in bfloat16, first_layer_kernels.py computes the
four pixels that compete side by side and writes down the one that goes on; on the way back it reads the error once and
knows from a byte which of the four it belongs to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mppfl.training import convolution, pooling
from mppfl.training.kernels import gpu_kernels

MOST_NUMBERS = 128  # of a picture that four neighbouring pixels see, in a kernel's one block


def convolved_relu_pool(x: Tensor, taps: Tensor, shift: Tensor) -> Tensor:
    """max-pool(relu(x * taps + shift)) of [lanes, examples, H, W, C] with H and W even.

    taps [lanes, k, k, C, out] and shift [lanes, out] are each lane's own.
    """
    found, _ = _forward(x.contiguous(), taps.contiguous(), shift.contiguous())
    result: Tensor = found
    return result


@torch.library.custom_op("mppfl::convolved_relu_pool", mutates_args=())
def _forward(x: Tensor, taps: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and which pixel of each four it came from [..., out] uint8, as pooling.py has it."""
    if kernels := _kernels_for(x, taps.shape[1], taps.shape[2]):
        y, codes = kernels.convolved_relu_pool(x, taps, shift)
        return y, codes
    found, which = pooling.relu_pool_with_codes(convolution.lane_convolution(x, taps), shift)
    return found, which


@_forward.register_fake
def _(x: Tensor, taps: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    lanes, examples, height, width, _ = x.shape
    shape = (lanes, examples, height // 2, width // 2, taps.shape[4])
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("mppfl::convolved_relu_pool_back", mutates_args=())
def _back(x: Tensor, upstream: Tensor, codes: Tensor, high: int, wide: int) -> tuple[Tensor, Tensor]:
    """Gradients of the taps and of the shift."""
    if kernels := _kernels_for(x, high, wide):
        to_taps, to_shift = kernels.convolved_relu_pool_back(x, upstream, codes, high, wide)
        return to_taps, to_shift
    error, to_shift = pooling.relu_pool_back(upstream, codes)
    return convolution.gradient_of_taps(x, error, high, wide), to_shift


@_back.register_fake
def _(x: Tensor, upstream: Tensor, codes: Tensor, high: int, wide: int) -> tuple[Tensor, Tensor]:
    lanes, out = x.shape[0], upstream.shape[4]
    return x.new_empty((lanes, high, wide, x.shape[4], out)), x.new_empty((lanes, out))


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    x, taps, _ = inputs
    ctx.save_for_backward(x, taps, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, Tensor, Tensor]:
    x, taps, codes = ctx.saved_tensors
    upstream = upstream.contiguous()
    to_taps, to_shift = _back(x, upstream, codes, taps.shape[1], taps.shape[2])
    if not ctx.needs_input_grad[0]:
        return None, to_taps, to_shift
    error, _ = pooling.relu_pool_back(upstream, codes)
    return convolution.gradient_of_pictures(error, taps), to_taps, to_shift


_forward.register_autograd(_backward, setup_context=_remember)


def _kernels_for(x: Tensor, high: int, wide: int) -> Any:
    """The module of GPU kernels, where they apply."""
    fits = (high + 1) * (wide + 1) * x.shape[4] <= MOST_NUMBERS
    return gpu_kernels("first_layer_kernels") if x.is_cuda and x.dtype == torch.bfloat16 and fits else None
