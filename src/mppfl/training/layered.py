"""Gradients of a row of layers for all lanes at once: every layer with weights of its own in each lane.

Pictures travel channels last, [lanes, examples, height, width, channels].

Clipping needs the length of every example's gradient. It follows, layer by layer, from what went into the layer and the
error that came back to its output (ghost norms: Goodfellow 2015, arXiv:1510.01799; Li et al. 2022, arXiv:2110.05679),
and so does the sum of what clipping leaves, once the errors are shortened: one backward pass serves both (book-keeping:
Bu et al. 2023, arXiv:2210.00038).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d

from mppfl.errors import BadInput
from mppfl.training.batch_norm import batch_norm_relu, batch_normal
from mppfl.training.convolution import gradient_of_taps, lane_convolution, squared_norms_of_taps
from mppfl.training.flat import FlatModel, computes_as, is_plain_flatten, is_plain_row, normalises_over_examples
from mppfl.training.kernels import gpu_kernels
from mppfl.training.local import clip_factors
from mppfl.training.lockstep import Parts, descend_along
from mppfl.training.normalisation import group_norm_relu, group_normal
from mppfl.training.pooling import relu_pool

ROUNDED = ", rounded"  # ends the names of rounded copies
POOLED = [nn.ReLU, nn.MaxPool2d]
# By how much an example's gradient may come out longer than computed, where products are rounded.
ROUNDING_GUARD = {torch.bfloat16: 1 - 2.0**-6, torch.float32: 1 - 2.0**-9, torch.float64: 1.0}


def is_layered(module: nn.Module) -> bool:
    """Whether the module is a row of layers that this engine knows."""
    return is_plain_row(module) and all(_is_known(layer) for layer in module.children())


def _is_known(layer: nn.Module) -> bool:
    if computes_as(layer, nn.Conv2d):
        return _keeps_the_size(cast(nn.Conv2d, layer))
    if computes_as(layer, nn.MaxPool2d):
        return _halves_the_size(cast(nn.MaxPool2d, layer))
    if computes_as(layer, nn.GroupNorm) or computes_as(layer, nn.BatchNorm2d):
        return layer.weight is not None and getattr(layer, "running_mean", None) is None
    return is_plain_flatten(layer) or computes_as(layer, nn.ReLU) or computes_as(layer, nn.Linear)


def _keeps_the_size(layer: nn.Conv2d) -> bool:
    """And is nothing but a convolution with a bias."""
    odd = all(side % 2 == 1 for side in layer.kernel_size)
    same = layer.padding == tuple(side // 2 for side in layer.kernel_size) and layer.stride == (1, 1)
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return bool(odd and same and plain and layer.bias is not None)


def _halves_the_size(layer: nn.MaxPool2d) -> bool:
    of_four = layer.kernel_size in (2, (2, 2)) and layer.stride in (2, (2, 2)) and layer.padding in (0, (0, 0))
    return bool(of_four and layer.dilation in (1, (1, 1)) and not layer.ceil_mode and not layer.return_indices)


class LayeredGradients:
    """Gradients of cross-entropy for a module that `is_layered`.

    precision  of products, activations and gradients, such as bfloat16; the weights that descend stay as they are
    compiled   by torch.compile, which takes some seconds once
    rounded    beside the weights, their copies in `precision` are held, which each step renews as it descends. For
               plain descent alone: whatever else moves the weights would leave the copies behind.

    Weights are held as they are multiplied and as their gradients come: [lanes, k, k, C, out] and [lanes, in, out].
    """

    def __init__(
        self, model: FlatModel, precision: torch.dtype | None = None, compiled: bool = False, rounded: bool = False
    ) -> None:
        self.model, self.precision = model, precision
        self._rounded_to = precision if rounded else None
        layers = dict(model.module.named_children())
        self._convolutions = {f"{name}.weight" for name, layer in layers.items() if isinstance(layer, nn.Conv2d)}
        self._linear = {f"{name}.weight" for name, layer in layers.items() if isinstance(layer, nn.Linear)}
        self._loss = _compiled(self._weighted_loss) if compiled else self._weighted_loss
        self._clipped_sums = _compiled(clipped_sums) if compiled else clipped_sums

    def held(self, parts: Parts) -> Parts:
        found = {
            name: self._turned(name, part, (0, 3, 4, 2, 1)).clone(memory_format=torch.contiguous_format)
            for name, part in parts.items()
        }
        if self._rounded_to is not None:
            found |= {name + ROUNDED: part.to(self._rounded_to) for name, part in found.items()}
        return found

    def given(self, parts: Parts) -> Parts:
        exact = {name: part for name, part in parts.items() if not name.endswith(ROUNDED)}
        return {name: self._turned(name, part, (0, 4, 3, 1, 2)) for name, part in exact.items()}

    def _turned(self, name: str, part: Tensor, axes: tuple[int, ...]) -> Tensor:
        if name in self._convolutions:
            return part.permute(axes)
        return part.transpose(1, 2) if name in self._linear else part

    def descend(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, learning_rate: float) -> None:
        if self._rounded_to is None:
            descend_along(parts, self(parts, inputs, labels, weight, None), learning_rate)
            return
        low = {name.removesuffix(ROUNDED): part for name, part in parts.items() if name.endswith(ROUNDED)}
        for name, gradient in self._plain(low, inputs.to(self._rounded_to), labels, weight).items():
            if gradient is not None:
                _descend_rounded(parts[name], low[name], gradient, learning_rate)

    def __call__(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float | None) -> Parts:
        if self.precision is not None:
            parts = {name: part.to(self.precision) for name, part in parts.items()}
            inputs = inputs.to(self.precision)
        if clip_norm is not None:
            return self._clipped(parts, inputs, labels, weight, clip_norm)
        found = self._plain(parts, inputs, labels, weight)
        return {name: torch.zeros_like(parts[name]) if part is None else part for name, part in found.items()}

    def _plain(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor) -> dict[str, Tensor | None]:
        """Gradients; None of what the loss does not depend on."""
        leaves = {name: part.detach().requires_grad_() for name, part in parts.items()}
        total, _ = self._loss(leaves, inputs, labels, weight, None)
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()), allow_unused=True), strict=True))

    def _weighted_loss(
        self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, nudges: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        logits, seen = lane_logits(self.model.module, parts, inputs, weight, nudges)
        each = cross_entropy(logits.flatten(0, 1).to(weight.dtype), labels.flatten(), reduction="none")
        return (each * weight.flatten()).sum(), seen

    def _clipped(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float) -> Parts:
        """Sums of clipped gradients; a weight of 0 leaves its example out, because its error is 0."""
        nudges = [tensor.requires_grad_() for tensor in _outputs_like(self.model, parts, inputs)]
        total, seen = self._loss(parts, inputs, labels, weight, nudges)
        errors = torch.autograd.grad(total, nudges)
        with torch.no_grad():
            found: Parts = self._clipped_sums(
                self.model.module, [tensor.detach() for tensor in seen], list(errors), clip_norm
            )
        return found


def _descend_rounded(exact: Tensor, low: Tensor, gradient: Tensor, learning_rate: float) -> None:
    if exact.is_cuda and exact.dtype == torch.float32 and (kernels := gpu_kernels("descent_kernels")):
        kernels.descend(exact, low, gradient.contiguous(), learning_rate)
        return
    exact.sub_(gradient.to(exact.dtype), alpha=learning_rate)
    low.copy_(exact)


def _compiled(function: Any) -> Any:
    """By torch.compile, which gives up on a function after a few shapes unless told that there may be more."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(function, dynamic=False)  # kernels for any shape would be several times slower


def lane_logits(
    module: nn.Module, parts: Parts, inputs: Tensor, weight: Tensor, nudges: list[Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """What every lane's model says about that lane's inputs [lanes, examples, classes].

    With `nudges`, one is added to the output of each layer that has weights, so that its gradient is the error there;
    then what went into each of those layers is returned too.
    """
    # Pictures [lanes, examples, C, H, W] become channels last; flat inputs stay as they are.
    x = inputs.permute(0, 1, 3, 4, 2) if inputs.ndim == 5 else inputs
    seen: list[Tensor] = []
    layers = list(module.named_children())
    kinds = [type(layer) for _, layer in layers]
    at = 0
    while at < len(layers):
        name, layer = layers[at]
        own = {kind: parts[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in parts}
        together = 1  # layers computed by one operator
        if isinstance(layer, nn.GroupNorm) and kinds[at + 1 : at + 2] == [nn.ReLU] and nudges is None:
            x, together = group_norm_relu(x, own["weight"], own["bias"], layer.num_groups, layer.eps), 2
        elif isinstance(layer, nn.Conv2d) and kinds[at + 1 : at + 2] == [nn.BatchNorm2d] and nudges is None:
            x = lane_convolution(x, own["weight"])  # a batch norm takes away whatever bias adds
        elif isinstance(layer, nn.BatchNorm2d) and kinds[at + 1 : at + 2] == [nn.ReLU]:
            x, together = batch_norm_relu(x, own["weight"], own["bias"], weight > 0, layer.eps), 2
        elif isinstance(layer, nn.Conv2d) and kinds[at + 1 : at + 3] == POOLED and _halves(x):
            entering, x = x, lane_convolution(x, own["weight"])
            if nudges is not None:  # before the bias, which comes to the same
                x = x + nudges[len(seen)]
                seen.append(entering)
            x, together = relu_pool(x, own["bias"]), 3
        elif isinstance(layer, nn.ReLU):
            x = x.relu()
        elif isinstance(layer, nn.MaxPool2d):
            is_open = kinds[at - 1 : at] == [nn.ReLU]  # nothing below 0 comes in, so ReLU once more changes nothing
            x = relu_pool(x) if is_open and _halves(x) else _pooled(x)
        elif isinstance(layer, nn.Flatten):
            x = (x.permute(0, 1, 4, 2, 3) if x.ndim == 5 else x).flatten(2)
        else:
            entering, x = _weighted(layer, x, own, weight)
            if nudges is not None:
                x = x + nudges[len(seen)]
                seen.append(entering)
        at += together
    return x, seen


def _weighted(layer: nn.Module, x: Tensor, own: dict[str, Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
    """A layer that has weights: what its weights are multiplied with, and what comes out."""
    if isinstance(layer, nn.Conv2d):
        return x, lane_convolution(x, own["weight"]) + own["bias"][:, None, None, None]
    if isinstance(layer, nn.Linear):
        product = torch.bmm(x, own["weight"])
        return x, product + own["bias"][:, None] if "bias" in own else product
    if isinstance(layer, nn.GroupNorm):
        normal, _, _ = group_normal(x, layer.num_groups, layer.eps)
    elif isinstance(layer, nn.BatchNorm2d):
        normal, _, _ = batch_normal(x, weight > 0, layer.eps)
    else:
        raise BadInput(f"{type(layer).__name__} is not a layer that engine='batched' knows. Use engine='vmap'.")
    return normal, normal * own["weight"][:, None, None, None] + own["bias"][:, None, None, None]


def clipped_sums(module: nn.Module, seen: list[Tensor], errors: list[Tensor], clip_norm: float) -> Parts:
    """Sums over the examples of each lane of their gradients, none longer than `clip_norm`.

    seen    what entered each layer that has weights [lanes, examples, ...]
    errors  the gradient of the loss there, at the layer's output
    """
    guard = ROUNDING_GUARD[errors[0].dtype]
    factors = clip_factors(squared_norms(module, seen, errors).double().sqrt() / guard, clip_norm)
    found = {}
    for (name, layer), entering, error in zip(_layers_with_weights(module), seen, errors, strict=True):
        left = (error * factors.to(_exact(error).dtype).view(*factors.shape, *[1] * (error.ndim - 2))).to(error.dtype)
        if isinstance(layer, nn.Conv2d):
            found[f"{name}.weight"] = gradient_of_taps(entering, left, *layer.kernel_size)
        elif isinstance(layer, nn.Linear):
            found[f"{name}.weight"] = torch.bmm(entering.transpose(1, 2), left)
        else:
            found[f"{name}.weight"] = (_exact(left) * _exact(entering)).sum((1, 2, 3))
        if layer.bias is not None:
            found[f"{name}.bias"] = _exact(left).sum(tuple(range(1, left.ndim - 1)))
    return found


def squared_norms(module: nn.Module, seen: list[Tensor], errors: list[Tensor]) -> Tensor:
    """|gradient|² of every example over all weights [lanes, examples], from what entered each layer and its error."""
    total: Tensor | None = None
    for (_, layer), entering, error in zip(_layers_with_weights(module), seen, errors, strict=True):
        if isinstance(layer, nn.Conv2d):
            found = squared_norms_of_taps(entering, error, *layer.kernel_size)
            found = found + _exact(error).sum((2, 3)).square().sum(2)
        elif isinstance(layer, nn.Linear):
            inner = _exact(entering).square().sum(2) + (layer.bias is not None)
            found = _exact(error).square().sum(2) * inner
        else:
            scale = (_exact(error) * _exact(entering)).sum((2, 3))
            found = scale.square().sum(2) + _exact(error).sum((2, 3)).square().sum(2)
        total = found if total is None else total + found
    if total is None:
        raise BadInput("the model has no weights to clip.")
    return total


def _layers_with_weights(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return (named for named in module.named_children() if any(True for _ in named[1].parameters(recurse=False)))


def _outputs_like(model: FlatModel, parts: Parts, inputs: Tensor) -> list[Tensor]:
    """Zeros in the shape of every weighted layer's output; one zero seen everywhere, which takes no memory to read."""
    if normalises_over_examples(model.module):
        raise BadInput("a layer that normalises over the batch leaves no example a gradient of its own.")
    lanes, examples = inputs.shape[:2]
    height, width = inputs.shape[3:] if inputs.ndim == 5 else (1, 1)
    nothing = torch.zeros((), device=inputs.device, dtype=inputs.dtype)
    found = []
    for name, layer in model.module.named_children():
        if isinstance(layer, nn.MaxPool2d):
            height, width = height // 2, width // 2
        elif isinstance(layer, nn.Linear):
            found.append(nothing.expand(lanes, examples, layer.out_features))
        elif isinstance(layer, (nn.Conv2d, nn.GroupNorm)):
            channels = parts[f"{name}.bias"].shape[1]
            found.append(nothing.expand(lanes, examples, height, width, channels))
    return found


def _halves(x: Tensor) -> bool:
    return x.ndim == 5 and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0


def _pooled(x: Tensor) -> Tensor:
    lanes, examples = x.shape[:2]
    small = max_pool2d(x.flatten(0, 1).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    return small.reshape(lanes, examples, *small.shape[1:])


def _exact(x: Tensor) -> Tensor:
    """In a type in which sums of squares are worth something."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
