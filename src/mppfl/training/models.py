"""Models by name: linear, softmax, MLP, the two CNNs of the paper's experiments, VGG-11 and VGG-16.

Each is a plain row of layers, so that an engine can walk through it with many clients at once. Any other `nn.Module`
trains as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mppfl.errors import BadInput

Norm = Literal["group", "batch", "none"]
MODEL_NAMES = ("linear", "softmax", "mlp", "cnn_fmnist", "cnn_cifar", "vgg11", "vgg16")
NORMS: tuple[Norm, ...] = ("group", "batch", "none")

# Channels of the convolutions; "pool" halves the picture (Simonyan & Zisserman 2015, configurations A and D).
VGG_LAYERS: dict[str, tuple[int | str, ...]] = {
    "vgg11": (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"),
    "vgg16": (64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512, 512, 512, "pool", 512, 512, 512, "pool"),
}


class ZeroLinear(nn.Linear):
    """A linear layer without bias that starts from zero: no weight is spent on what noise would drown."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs, bias=False)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class Stack(nn.Sequential):
    """Layers in a row, whose weights can be drawn anew from a seed."""

    def draw(self, seed: int) -> None:
        """Draws all weights by PyTorch's default rules, from this seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in self.modules():
                if layer is not self and callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()


def make_model(
    name: str,
    input_shape: Sequence[int],
    num_classes: int,
    *,
    norm: Norm = "group",
    hidden: Sequence[int] = (64,),
    seed: int = 0,
) -> Stack:
    """The model of that name, its weights drawn from the seed.

    Args:
        name: one of linear, softmax, mlp, cnn_fmnist, cnn_cifar, vgg11, vgg16.
        input_shape: of one example, (channels, height, width) or (numbers,).
        num_classes: how many classes it tells apart.
        norm: of the VGGs. "batch" keeps no running statistics, because nothing but the noisy update may leave a
            client: evaluation normalises with the test batch's own. Record-level mechanisms refuse it.
        hidden: widths of the MLP's hidden layers.
        seed: of the weights. A training draws them anew from its own seed.

    Returns:
        A torch module, layers in a row.

    Raises:
        BadInput: if the name is not known, or the shape does not fit the model.

    Example:
        >>> model = make_model("mlp", (1, 8, 8), 10, hidden=(32,))
        >>> sum(parameter.numel() for parameter in model.parameters())
        2410
    """
    with torch.random.fork_rng(devices=[]):  # layers draw when they are made, before they are drawn anew from the seed
        model = Stack(*_layers(name, input_shape, num_classes, norm, hidden))
    model.draw(seed)
    return model


def _layers(
    name: str, input_shape: Sequence[int], num_classes: int, norm: Norm, hidden: Sequence[int]
) -> list[nn.Module]:
    if norm not in NORMS:
        raise BadInput(f"norm={norm!r} is not known. Known: {', '.join(NORMS)}.")
    if not isinstance(input_shape, Sequence) or not all(isinstance(side, int) for side in (*input_shape, num_classes)):
        raise BadInput(
            f"input_shape={input_shape!r} and num_classes={num_classes!r} must be a shape such as (1, 28, 28) and a "
            "whole number, as ClientData.input_shape and ClientData.num_classes are."
        )
    size = math.prod(input_shape)
    if size < 1 or num_classes < 1:
        raise BadInput(f"inputs of shape {tuple(input_shape)} in {num_classes} classes leave nothing to learn.")
    if name == "linear":
        layers: list[nn.Module] = [nn.Flatten(), ZeroLinear(size, num_classes)]
    elif name == "softmax":
        layers = [nn.Flatten(), nn.Linear(size, num_classes)]
    elif name == "mlp":
        layers = [nn.Flatten()]
        widths = [size, *hidden]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        layers.append(nn.Linear(widths[-1], num_classes))
    elif name in ("cnn_fmnist", "cnn_cifar"):
        layers = _cnn(name, input_shape, num_classes)
    elif name in VGG_LAYERS:
        layers = _vgg(name, input_shape, num_classes, norm)
    else:
        raise BadInput(f"model {name!r} is not known. Known: {', '.join(MODEL_NAMES)}; or give an nn.Module.")
    return layers


def _cnn(name: str, input_shape: Sequence[int], num_classes: int) -> list[nn.Module]:
    """Two 5×5 convolutions with pooling, then one or two dense layers (McMahan et al. 2017)."""
    channels, height, width = _picture(name, input_shape, smallest=4)
    first, second, dense = (32, 64, (512,)) if name == "cnn_fmnist" else (64, 64, (384, 192))
    layers: list[nn.Module] = [
        nn.Conv2d(channels, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]
    widths = [second * (height // 4) * (width // 4), *dense]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return [*layers, nn.Linear(widths[-1], num_classes)]


def _vgg(name: str, input_shape: Sequence[int], num_classes: int, norm: Norm) -> list[nn.Module]:
    """3×3 convolutions with pooling and one dense layer, as usual for 32×32 pictures."""
    channels, height, width = _picture(name, input_shape, smallest=32)
    layers: list[nn.Module] = []
    for num_filters in VGG_LAYERS[name]:
        if isinstance(num_filters, str):
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, num_filters, 3, padding=1))
        if norm == "group":
            layers.append(nn.GroupNorm(32, num_filters))
        elif norm == "batch":
            layers.append(nn.BatchNorm2d(num_filters, track_running_stats=False))
        layers.append(nn.ReLU())
        channels = num_filters
    return [*layers, nn.Flatten(), nn.Linear(channels * (height // 32) * (width // 32), num_classes)]


def _picture(name: str, input_shape: Sequence[int], smallest: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise BadInput(
            f"{name} takes pictures (channels, height, width) of at least {smallest}×{smallest}, not inputs of shape "
            f"{tuple(input_shape)}. Use softmax or mlp."
        )
    return input_shape[0], input_shape[1], input_shape[2]


def gflop_per_example(model: nn.Module, input_shape: Sequence[int]) -> float:
    """Arithmetic of convolutions and dense layers for one example, forward once and backward twice, in 10⁹ products."""
    parameter = next(model.parameters())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *input_shape, device=parameter.device, dtype=parameter.dtype))
    return 3 * float(counter.get_total_flops()) / 1e9
