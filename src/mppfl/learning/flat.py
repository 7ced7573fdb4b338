"""FlatModel: a module and its weights as one flat vector, which is what clients upload and servers add."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mppfl.errors import BadInput
from mppfl.learning.models import Stack


@dataclass(frozen=True, eq=False, slots=True)
class FlatModel:
    """A module as a function of a flat vector of weights.

    module   a copy of the caller's, in which the plain loop trains
    shapes   of its parameters, by name, in the order in which they lie in the vector
    """

    module: nn.Module
    shapes: dict[str, torch.Size]

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def draws_at_random(self) -> bool:
        """Whether a forward pass itself is random, as with Dropout."""
        return any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in self.module.modules())

    def parts(self, weights: Tensor) -> dict[str, Tensor]:
        """Views of [..., parameters] as named tensors [..., *shape]."""
        return dict(self._parts(weights))

    def _parts(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]:
        start = 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            yield name, weights[..., start : start + size].reshape(*weights.shape[:-1], *shape)
            start += size

    def logits(self, parts: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """What the module says about the inputs under these weights."""
        answer: Tensor = torch.func.functional_call(self.module, parts, (inputs,))
        return answer

    def load(self, weights: Tensor) -> None:
        """Puts the flat vector into the module's own parameters."""
        with torch.no_grad():
            for parameter, part in zip(self.module.parameters(), self.parts(weights).values(), strict=True):
                parameter.copy_(part)

    def initial_weights(self, seed: int) -> Tensor:
        """Where training starts: named models are drawn from the seed, your own module starts from its own weights."""
        if isinstance(self.module, Stack):
            self.module.draw(seed)
        return flattened(dict(self.module.named_parameters()).values())


def flattened(tensors: Iterable[Tensor]) -> Tensor:
    """One vector of all entries, detached."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def flat_model(module: nn.Module) -> FlatModel:
    """The module as a function of its weights. Refuses what cannot travel as one vector of weights."""
    if not isinstance(module, nn.Module):
        raise BadInput(f"a model must be a torch.nn.Module, got {type(module).__name__}; name one with make_model.")
    parameters = dict(module.named_parameters())
    if not parameters:
        raise BadInput(f"{type(module).__name__} has no parameters to train.")
    for name, value in parameters.items():
        if not torch.isfinite(value).all():
            raise BadInput(f"parameter {name} holds NaN or infinity; training cannot start from it.")
    for name, layer in module.named_modules():
        if getattr(layer, "running_mean", None) is not None:
            raise BadInput(
                f"layer {name!r} keeps running statistics of its batches, which no noise would protect. Use GroupNorm, "
                "or track_running_stats=False."
            )
    own = copy.deepcopy(module).train()  # the caller's module stays as it is
    return FlatModel(own, {name: value.shape for name, value in parameters.items()})


def normalises_over_examples(module: nn.Module) -> bool:
    """Whether one example changes what the module says about another, so that clipping each protects nobody."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
