"""Convolutions of many lanes at once, each lane with kernels of its own: same size, stride 1, channels last.

The plain way gathers the neighbourhood of every pixel into a matrix and multiplies; it runs everywhere and in every
precision. On a GPU in TF32 or bfloat16, convolution_kernels.py multiplies without gathering, which saves most of the
memory traffic. Both stand behind one operator that torch.compile knows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mppfl.training.kernels import gpu_kernels


def lane_convolution(x: Tensor, taps: Tensor) -> Tensor:
    """[lanes, examples, H, W, C] with taps [lanes, k, k, C, out] of each lane -> [lanes, examples, H, W, out]."""
    found: Tensor = _convolve(x.contiguous(), taps.contiguous())
    return found


@torch.library.custom_op("mppfl::convolve", mutates_args=())
def _convolve(x: Tensor, taps: Tensor) -> Tensor:
    """x [lanes, examples, H, W, C], taps [lanes, k, k, C, out]."""
    if kernels := _kernels_for(x):
        found: Tensor = kernels.convolve(x, taps)
        return found
    lanes, high, wide, channels, out = taps.shape
    return torch.bmm(patches(x, high, wide), taps.reshape(lanes, high * wide * channels, out)).view(*x.shape[:4], out)


@_convolve.register_fake
def _(x: Tensor, taps: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:4], taps.shape[4]))


@torch.library.custom_op("mppfl::convolve_back", mutates_args=())
def _back(upstream: Tensor, taps: Tensor) -> Tensor:
    """Gradient of the pictures [lanes, examples, H, W, C]: a convolution with the kernel turned round."""
    if kernels := _kernels_for(upstream):
        found: Tensor = kernels.convolve(upstream, taps, turned=True)
        return found
    lanes, high, wide, channels, out = taps.shape
    turned = taps.flip(1, 2).transpose(3, 4).reshape(lanes, high * wide * out, channels)
    return torch.bmm(patches(upstream, high, wide), turned).view(*upstream.shape[:4], channels)


@_back.register_fake
def _(upstream: Tensor, taps: Tensor) -> Tensor:
    return upstream.new_empty((*upstream.shape[:4], taps.shape[3]))


@torch.library.custom_op("mppfl::convolve_back_to_taps", mutates_args=())
def _back_to_taps(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    """Gradient of the taps [lanes, k, k, C, out]."""
    if kernels := _kernels_for(x):
        found: Tensor = kernels.back_to_taps(x, upstream, high, wide)
        return found
    lanes, channels, out = x.shape[0], x.shape[4], upstream.shape[4]
    flat = torch.bmm(patches(x, high, wide).transpose(1, 2), upstream.reshape(lanes, -1, out))
    return flat.view(lanes, high, wide, channels, out)


@_back_to_taps.register_fake
def _(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    return x.new_empty((x.shape[0], high, wide, x.shape[4], upstream.shape[4]))


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, taps = ctx.saved_tensors
    upstream = upstream.contiguous()
    to_taps = _back_to_taps(x, upstream, taps.shape[1], taps.shape[2]) if ctx.needs_input_grad[1] else None
    if not ctx.needs_input_grad[0]:
        return None, to_taps
    return _back(upstream, taps), to_taps


_convolve.register_autograd(_backward, setup_context=_remember)


def gradient_of_taps(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    """What the pictures that entered and the errors that came back make of the taps [lanes, k, k, C, out]."""
    found: Tensor = _back_to_taps(x.contiguous(), upstream.contiguous(), high, wide)
    return found


def squared_norms_of_taps(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    """|gradient of the taps|² that each example alone would give [lanes, examples]."""
    lanes, examples = x.shape[:2]
    alone = gradient_of_taps(
        x.reshape(lanes * examples, 1, *x.shape[2:]),
        upstream.reshape(lanes * examples, 1, *upstream.shape[2:]),
        high,
        wide,
    )
    squares = alone.flatten(1).to(torch.promote_types(x.dtype, torch.float32)).square()
    return squares.sum(1).view(lanes, examples)


def patches(x: Tensor, high: int, wide: int) -> Tensor:
    """The neighbourhood of every pixel as a row [lanes, examples·H·W, high·wide·C]."""
    padded = pad(x, (0, 0, wide // 2, wide // 2, high // 2, high // 2))
    around = padded.unfold(2, high, 1).unfold(3, wide, 1)  # [lanes, examples, H, W, C, high, wide]
    return around.permute(0, 1, 2, 3, 5, 6, 4).reshape(x.shape[0], -1, high * wide * x.shape[4])


def _kernels_for(x: Tensor) -> Any:
    """The module of GPU kernels, where they apply: CUDA, and a precision in which tensor cores multiply."""
    if not x.is_cuda:
        return None
    fast = x.dtype == torch.bfloat16 or (x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest")
    return gpu_kernels("convolution_kernels") if fast else None
