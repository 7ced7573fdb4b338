"""How much arithmetic a model is, so that speeds of different models can be compared."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def gflop_per_example(model: nn.Module, input_shape: Sequence[int]) -> float:
    """Products of convolutions and dense layers for one example, forward once and backward twice."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            total += 2 * output.numel() * layer.in_channels * math.prod(layer.kernel_size)
        elif isinstance(layer, nn.Linear):
            total += 2 * output.numel() * layer.in_features

    counted = copy.deepcopy(model).cpu()  # hooks of ours stay out of the caller's module
    for layer in counted.modules():
        layer.register_forward_hook(count)
    with torch.no_grad():
        counted(torch.zeros(1, *input_shape))
    return 3 * total / 1e9
