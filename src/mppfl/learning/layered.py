"""Gradients of a row of layers for all lanes at once: every layer with weights of its own in each lane.

Pictures travel channels last, [lanes, examples, height, width, channels]; a convolution is a batched matrix product of
picture patches with kernels, which keeps a GPU's matrix units busy although every lane has another kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, pad

from mppfl.errors import BadInput
from mppfl.learning.flat import FlatModel
from mppfl.learning.lockstep import LaneGradients, Parts

KNOWN_LAYERS = (nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.GroupNorm, nn.BatchNorm2d)


def is_layered(module: nn.Module) -> bool:
    """Whether the module is a row of layers that this engine knows."""
    return isinstance(module, nn.Sequential) and all(_is_known(layer) for layer in module)


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        odd = all(side % 2 == 1 for side in layer.kernel_size)
        same = layer.padding == tuple(side // 2 for side in layer.kernel_size) and layer.stride == (1, 1)
        return bool(odd and same and layer.groups == 1 and layer.dilation == (1, 1) and layer.bias is not None)
    if isinstance(layer, nn.MaxPool2d):
        return layer.kernel_size in (2, (2, 2)) and layer.stride in (2, (2, 2)) and layer.padding in (0, (0, 0))
    if isinstance(layer, nn.Linear):
        return layer.bias is not None
    if isinstance(layer, (nn.GroupNorm, nn.BatchNorm2d)):
        return layer.weight is not None and getattr(layer, "running_mean", None) is None
    return isinstance(layer, (nn.ReLU, nn.Flatten))


def layered_gradients(model: FlatModel, precision: torch.dtype | None = None, compiled: bool = False) -> LaneGradients:
    """Gradients of cross-entropy for a module that `is_layered`.

    precision  of products and activations, such as bfloat16; weights and their gradients stay as they are
    compiled   by torch.compile, which takes some seconds once
    """

    def loss(parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        if precision is not None:
            parts, inputs = {name: part.to(precision) for name, part in parts.items()}, inputs.to(precision)
        logits = lane_logits(model.module, parts, inputs, weight)
        each = cross_entropy(logits.flatten(0, 1).to(weight.dtype), labels.flatten(), reduction="none")
        return (each * weight.flatten()).sum()

    if compiled:
        loss = torch.compile(loss, dynamic=False)

    def gradients(parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float | None) -> Parts:
        if clip_norm is not None:
            raise BadInput(
                "engine='batched' clips whole updates alone. Use engine='loop' or 'vmap' for this mechanism."
            )
        leaves = {name: part.detach().requires_grad_() for name, part in parts.items()}
        found = torch.autograd.grad(loss(leaves, inputs, labels, weight), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    return gradients


def lane_logits(module: nn.Module, parts: Parts, inputs: Tensor, weight: Tensor) -> Tensor:
    """What every lane's model says about that lane's inputs [lanes, examples, classes]."""
    # Pictures [lanes, examples, C, H, W] become channels last; flat inputs stay as they are.
    x = inputs.permute(0, 1, 3, 4, 2) if inputs.ndim == 5 else inputs
    for name, layer in module.named_children():
        own = {kind: parts[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in parts}
        if isinstance(layer, nn.Conv2d):
            x = lane_convolution(x, own["weight"]) + own["bias"][:, None, None, None]
        elif isinstance(layer, nn.Linear):
            x = torch.baddbmm(own["bias"][:, None], x, own["weight"].transpose(1, 2))
        elif isinstance(layer, nn.ReLU):
            x = x.relu()
        elif isinstance(layer, nn.MaxPool2d):
            x = _pooled(x)
        elif isinstance(layer, nn.Flatten):
            x = (x.permute(0, 1, 4, 2, 3) if x.ndim == 5 else x).flatten(2)
        elif isinstance(layer, nn.GroupNorm):
            x = _group_normed(x, own["weight"], own["bias"], layer)
        elif isinstance(layer, nn.BatchNorm2d):
            x = _batch_normed(x, own["weight"], own["bias"], layer, weight)
    return x


class _Convolution(torch.autograd.Function):
    """Stride 1, same size: patches times kernels, one matrix product per lane."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernels)
        return torch.bmm(patches(x, kernels.shape[3:]), _as_matrix(kernels)).view(*x.shape[:4], -1)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor]:
        x, kernels = ctx.saved_tensors
        lanes, out, channels, *sides = kernels.shape
        back = upstream[0].contiguous()
        flat = torch.bmm(patches(x, sides).transpose(1, 2), back.view(lanes, -1, out))
        to_kernels = flat.view(lanes, *sides, channels, out).permute(0, 4, 3, 1, 2)
        if not ctx.needs_input_grad[0]:
            return None, to_kernels
        turned = kernels.flip(3, 4).transpose(1, 2)  # the adjoint of a convolution is one with the kernel turned round
        return torch.bmm(patches(back, sides), _as_matrix(turned)).view(*x.shape[:4], channels), to_kernels


def lane_convolution(x: Tensor, kernels: Tensor) -> Tensor:
    """[lanes, examples, H, W, C] with kernels [lanes, out, C, k, k] of each lane -> [lanes, examples, H, W, out]."""
    found: Tensor = _Convolution.apply(x, kernels)  # type: ignore[no-untyped-call]
    return found


def patches(x: Tensor, sides: Any) -> Tensor:
    """The neighbourhood of every pixel as a row [lanes, examples·H·W, sides·C]."""
    high, wide = sides
    padded = pad(x, (0, 0, wide // 2, wide // 2, high // 2, high // 2))
    around = padded.unfold(2, high, 1).unfold(3, wide, 1)  # [lanes, examples, H, W, C, high, wide]
    return around.permute(0, 1, 2, 3, 5, 6, 4).reshape(x.shape[0], -1, high * wide * x.shape[4])


def _as_matrix(kernels: Tensor) -> Tensor:
    lanes, out = kernels.shape[:2]
    return kernels.permute(0, 3, 4, 2, 1).reshape(lanes, -1, out)


def _pooled(x: Tensor) -> Tensor:
    lanes, examples, height, width, channels = x.shape
    if height % 2 == 0 and width % 2 == 0:
        return x.reshape(lanes, examples, height // 2, 2, width // 2, 2, channels).amax((3, 5))
    small = max_pool2d(x.flatten(0, 1).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    return small.reshape(lanes, examples, *small.shape[1:])


def _group_normed(x: Tensor, weight: Tensor, bias: Tensor, layer: nn.GroupNorm) -> Tensor:
    lanes, examples, height, width, _ = x.shape
    groups = x.reshape(lanes, examples, height * width, layer.num_groups, -1)
    exact = groups.float() if groups.dtype in (torch.bfloat16, torch.float16) else groups
    variance, mean = torch.var_mean(exact, (2, 4), correction=0, keepdim=True)
    normal = ((exact - mean) * torch.rsqrt(variance + layer.eps)).to(x.dtype).view(x.shape)
    return normal * weight[:, None, None, None] + bias[:, None, None, None]


def _batch_normed(x: Tensor, scale: Tensor, bias: Tensor, layer: nn.BatchNorm2d, weight: Tensor) -> Tensor:
    """Over the examples of each lane's batch, padding left out."""
    present = (weight > 0).to(torch.promote_types(x.dtype, torch.float32))[:, :, None, None, None]
    exact = x.to(present.dtype)
    count = (present.sum(1, keepdim=True) * (x.shape[2] * x.shape[3])).clamp(min=1)
    mean = (exact * present).sum((1, 2, 3), keepdim=True) / count
    variance = ((exact - mean).square() * present).sum((1, 2, 3), keepdim=True) / count
    normal = ((exact - mean) * torch.rsqrt(variance + layer.eps)).to(x.dtype)
    return normal * scale[:, None, None, None] + bias[:, None, None, None]
