"""The models of the race as plain PyTorch, for every peer that trains with it."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn


def layers_of(model: str) -> list[nn.Module]:
    """As mppfl.training.models has them, so that weights go by the same names."""
    if model == "mlp":
        return [nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)]
    if model == "cnn_fmnist":
        return [
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
        ]  # fmt: skip
    if model == "cnn_cifar":
        return [
            nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(4096, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
        ]  # fmt: skip
    raise ValueError(f"no model {model!r} in the race")


def put(weights: Mapping[str, np.ndarray], module: nn.Module) -> None:
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})


def taken(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy() for name, value in module.named_parameters()}
