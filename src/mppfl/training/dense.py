"""Gradients of dense networks for all lanes at once, written out by hand: softmax regression and ReLU networks.

For a network of linear layers the gradient of one example in one layer is the product of two vectors, δ aᵀ, so its
length is |δ||a| and clipping needs no per-example gradients (Goodfellow 2015, arXiv:1510.01799).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mppfl.training.flat import FlatModel, computes_as, is_plain_flatten, is_plain_row
from mppfl.training.local import clip_factors, tell_what_overflows
from mppfl.training.lockstep import Parts

AT_ONCE = 20  # lanes in one call: more share its overhead; of many more, weights and examples leave the cache
FEW_CLASSES = 15  # which do not fill a vector register


def is_dense(module: nn.Module) -> bool:
    """Whether the module is Flatten and Linear layers with ReLU between them, and nothing else."""
    if not is_plain_row(module):
        return False
    layers = list(module.children())
    layers = layers[1:] if layers and is_plain_flatten(layers[0]) else layers
    linear = all(computes_as(layer, nn.Linear) for layer in layers[::2])
    return len(layers) % 2 == 1 and linear and all(computes_as(layer, nn.ReLU) for layer in layers[1::2])


class DenseGradients:
    """Gradients of cross-entropy for a module that `is_dense`."""

    def __init__(self, model: FlatModel) -> None:
        self.names = [name for name, layer in model.module.named_children() if isinstance(layer, nn.Linear)]

    def held(self, parts: Parts) -> Parts:
        """Matrices lie as [inputs, outputs]: a product with a transposed matrix takes three times as long on a CPU."""
        return {name: _copied(part.mT if part.ndim == 3 else part) for name, part in parts.items()}

    def given(self, parts: Parts) -> Parts:
        return {name: part.mT if part.ndim == 3 else part for name, part in parts.items()}

    def descend(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, learning_rate: float) -> None:
        activations, errors = self._forward(parts, inputs, labels)
        activations, errors = weighed(activations, errors, weight)
        deltas = self.backward(parts, activations, errors)
        for name, delta, before in zip(self.names, deltas, activations, strict=True):
            move_layer(parts, name, delta, before, learning_rate)

    def __call__(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float | None) -> Parts:
        activations, errors = self._forward(parts, inputs, labels)
        if clip_norm is None:
            activations, errors = weighed(activations, errors, weight)
            deltas = self.backward(parts, activations, errors)
        else:
            deltas = [delta.double() for delta in self.backward(parts, activations, errors)]
            activations = [before.double() for before in activations]  # lengths and sums: see `rounding_guard`
            squares = sum(
                delta.square().sum(2) * (before.square().sum(2) + (f"{name}.bias" in parts))
                for name, delta, before in zip(self.names, deltas, activations, strict=True)
            )
            norms = torch.as_tensor(squares).sqrt()
            factors = clip_factors(norms, clip_norm, weight.shape[1]) * weight
            if tell_what_overflows(norms):  # 0 times infinity is no number
                deltas, activations = (
                    [torch.where(factors[..., None] > 0, each, 0.0) for each in several]
                    for several in (deltas, activations)
                )
            deltas = [delta * factors[..., None] for delta in deltas]
        found: Parts = {}
        for name, delta, before in zip(self.names, deltas, activations, strict=True):
            found[f"{name}.weight"] = torch.bmm(before.mT, delta)
            if f"{name}.bias" in parts:
                found[f"{name}.bias"] = delta.sum(1)
        return found

    def _forward(self, parts: Parts, inputs: Tensor, labels: Tensor) -> tuple[list[Tensor], Tensor]:
        """What goes into each layer [lanes, examples, width], and the error at the end: probabilities minus truth."""
        inputs = inputs.flatten(2)
        return self.onward(parts, inputs, _out_of(parts, self.names[0], inputs), labels)

    def onward(self, parts: Parts, inputs: Tensor, out: Tensor, labels: Tensor) -> tuple[list[Tensor], Tensor]:
        """The same from what comes out of the first layer, which is overwritten."""
        activations = [inputs]
        for name in self.names[1:]:
            activations.append(out.relu_())
            out = _out_of(parts, name, activations[-1])
        errors = _softmax(out)
        minus_one = torch.full((), -1.0, dtype=errors.dtype, device=errors.device)
        return activations, errors.scatter_add_(2, labels[..., None], minus_one.expand(*labels.shape, 1))

    def backward(self, parts: Parts, activations: list[Tensor], errors: Tensor) -> list[Tensor]:
        """The error at the output of every layer, from the error at the end."""
        deltas = [errors]
        for number in range(len(self.names) - 1, 0, -1):
            back = torch.bmm(deltas[0], parts[f"{self.names[number]}.weight"].mT)
            deltas.insert(0, torch.ops.aten.threshold_backward(back, activations[number], 0))
        return deltas


def weighed(activations: list[Tensor], errors: Tensor, weight: Tensor) -> tuple[list[Tensor], Tensor]:
    """What went into each layer and the errors at the end, those times the weight of each example [lanes, examples].

    An example of weight 0 is padding, whose numbers may overflow where those of the lane itself never do, and 0 times
    infinity is no number. Nobody diverges by its padding, that is by how long others train.
    """
    if errors.is_cuda or bool(errors.sum().isnan()):
        inputs, *hidden = activations
        counts = weight[..., None] > 0
        activations = [inputs, *(torch.where(counts, before, 0.0) for before in hidden)]
        errors = torch.where(counts, errors, 0.0)
    return activations, errors * weight[..., None]


def _softmax(out: Tensor) -> Tensor:
    """Over the last dimension. In steps on a CPU, where the operator takes three times as long for a few classes."""
    if out.is_cuda or out.shape[-1] > FEW_CLASSES:
        return torch.softmax(out, -1)
    found = (out - out.amax(-1, keepdim=True)).exp_()
    return found.div_(found.sum(-1, keepdim=True))


def move_layer(parts: Parts, name: str, delta: Tensor, before: Tensor, learning_rate: float) -> None:
    """A layer ← layer − η · gradient, from the error behind it and what went in."""
    weights = parts[f"{name}.weight"]
    if weights.is_cuda or delta.shape[2] > FEW_CLASSES:  # added where the weights lie: no gradient is written down
        weights.baddbmm_(before.mT, delta, alpha=-learning_rate)
    else:
        # Into so narrow a matrix CPU libraries add example by example, and round the weights as often: 20 times the
        # error where examples are alike. A gradient of this size is written down in no time.
        weights.sub_(torch.bmm(before.mT, delta), alpha=learning_rate)
    if f"{name}.bias" in parts:
        parts[f"{name}.bias"].sub_(delta.sum(1), alpha=learning_rate)


def _out_of(parts: Parts, name: str, inputs: Tensor) -> Tensor:
    weights = parts[f"{name}.weight"]
    if f"{name}.bias" in parts:
        return torch.baddbmm(parts[f"{name}.bias"][:, None], inputs, weights)
    return torch.bmm(inputs, weights)


def _copied(part: Tensor) -> Tensor:
    """A copy of its own for every lane; what all lanes share is brought into order once."""
    if part.stride(0) == 0:
        return part[0].contiguous().expand(part.shape).clone(memory_format=torch.contiguous_format)
    return part.clone(memory_format=torch.contiguous_format)
