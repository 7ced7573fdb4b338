"""Engine "batched", alone: one of several ways. Gradients of a row of layers, with weights of its own in each slot.

Pictures travel channels last, [slots, examples, height, width, channels]. Convolution, normalisation and pooling are
operators that torch.compile knows: plain PyTorch computes them everywhere and in every precision, a kernel of
mppfl.training.cuda where it applies and saves memory traffic.

Clipping needs the length of every example's gradient. It follows, layer by layer, from what went into the layer and the
error that came back to its output (ghost norms: Goodfellow 2015, arXiv:1510.01799; Li et al. 2022, arXiv:2110.05679),
and so does the sum of what clipping leaves, once the errors are shortened: one backward pass serves both (book-keeping:
Bu et al. 2023, arXiv:2210.00038).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, pad

from mppfl.errors import BadInput
from mppfl.training import (
    FlatModel,
    clip_factors,
    computes_as,
    is_plain_flatten,
    is_plain_row,
    normalises_over_examples,
)
from mppfl.training.engines.stacked import NUM_LONG, Parts, descend_along, gpu_kernel

ROUNDED = ", rounded"  # ends the names of rounded copies
POOLED = [nn.ReLU, nn.MaxPool2d]
CLOSED = 4  # the code of four pixels none of which is above 0
# Examples whose clipped gradients are added in float32; such parts are added in float64. A changed record then changes
# the rounding of one part, by less than ROUNDING_GUARD leaves, however many examples there are.
ADDED_AT_ONCE = 64
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

    Weights are held as they are multiplied and as their gradients come: [slots, k, k, C, out] and [slots, in, out].
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
        exact = {
            name: self._turned(name, part, (0, 3, 4, 2, 1)).clone(memory_format=torch.contiguous_format)
            for name, part in parts.items()
        }
        if self._rounded_to is None:
            return exact
        return exact | {name + ROUNDED: part.to(self._rounded_to) for name, part in exact.items()}

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
        gradients = self._plain(parts, inputs, labels, weight)
        return {name: torch.zeros_like(parts[name]) if part is None else part for name, part in gradients.items()}

    def _plain(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor) -> dict[str, Tensor | None]:
        """Gradients; None of what the loss does not depend on."""
        leaves = {name: part.detach().requires_grad_() for name, part in parts.items()}
        total, _ = self._loss(leaves, inputs, labels, weight, None)
        return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()), allow_unused=True), strict=True))

    def _weighted_loss(
        self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, perturbations: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        logits, entered = slot_logits(self.model.module, parts, inputs, weight, perturbations)
        losses = cross_entropy(logits.flatten(0, 1).to(weight.dtype), labels.flatten(), reduction="none")
        return (losses * weight.flatten()).sum(), entered

    def _clipped(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float) -> Parts:
        """Sums of clipped gradients; a weight of 0 leaves its example out, because its error is 0."""
        perturbations = [tensor.requires_grad_() for tensor in _zero_outputs(self.model, parts, inputs)]
        total, entered = self._loss(parts, inputs, labels, weight, perturbations)
        errors = torch.autograd.grad(total, perturbations)
        with torch.no_grad():
            sums: Parts = {}
            for start in range(0, weight.shape[1], ADDED_AT_ONCE):
                examples = slice(start, start + ADDED_AT_ONCE)
                before = [tensor.detach()[:, examples] for tensor in entered]
                back = [tensor[:, examples] for tensor in errors]
                parts_of_sums = self._clipped_sums(self.model.module, before, back, clip_norm, weight[:, examples])
                for name, part in parts_of_sums.items():
                    sums[name] = sums[name].add_(part) if name in sums else part.double()
            return sums


def _descend_rounded(exact: Tensor, low: Tensor, gradient: Tensor, learning_rate: float) -> None:
    if exact.is_cuda and exact.dtype == torch.float32 and (descend := gpu_kernel("descend")):
        descend(exact, low, gradient.contiguous(), learning_rate)
        return
    exact.sub_(gradient.to(exact.dtype), alpha=learning_rate)
    low.copy_(exact)


def _compiled(function: Any) -> Any:
    """By torch.compile, which gives up on a function after a few shapes unless told that there may be more."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(function, dynamic=False)  # kernels for any shape would be several times slower


def slot_logits(
    module: nn.Module, parts: Parts, inputs: Tensor, weight: Tensor, perturbations: list[Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """What every slot's model says about that slot's inputs [slots, examples, classes].

    With `perturbations`, one is added to the output of each layer that has weights, so that its gradient is the error
    there; then what entered each of those layers is returned too.
    """
    # Pictures [slots, examples, C, H, W] become channels last; flat inputs stay as they are.
    x = inputs.permute(0, 1, 3, 4, 2) if inputs.ndim == 5 else inputs
    entered: list[Tensor] = []
    layers = list(module.named_children())
    kinds = [type(layer) for _, layer in layers]
    position = 0
    while position < len(layers):
        name, layer = layers[position]
        ahead, num_layers = kinds[position + 1 : position + 3], 1
        weights = {kind: parts[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in parts}
        if perturbations is None and (fused := _fused(layer, ahead, x, weights, weight)):
            x, num_layers = fused
        elif weights:
            is_pooled = isinstance(layer, nn.Conv2d) and ahead == POOLED and _halves(x)
            if is_pooled:  # the perturbation comes before the bias, which comes to the same
                entering, x = x, slot_convolution(x, weights["weight"])
            else:
                entering, x = _weighted(layer, x, weights, weight)
            if perturbations is not None:
                x = x + perturbations[len(entered)]
                entered.append(entering)
            if is_pooled:
                x, num_layers = relu_pool(x, weights["bias"]), 3
        else:
            x = _without_weights(layer, x, kinds[position - 1 : position] == [nn.ReLU])
        position += num_layers
    return x, entered


def _fused(
    layer: nn.Module, ahead: list[type[nn.Module]], x: Tensor, weights: dict[str, Tensor], weight: Tensor
) -> tuple[Tensor, int] | None:
    """A layer and those that one operator computes with it: the output and how many layers; None for the others."""
    if isinstance(layer, nn.GroupNorm) and ahead[:1] == [nn.ReLU]:
        return group_norm_relu(x, weights["weight"], weights["bias"], layer.num_groups, layer.eps), 2
    if isinstance(layer, nn.BatchNorm2d) and ahead[:1] == [nn.ReLU]:
        return batch_norm_relu(x, weights["weight"], weights["bias"], weight > 0, layer.eps), 2
    if isinstance(layer, nn.Conv2d) and ahead[:1] == [nn.BatchNorm2d]:
        return slot_convolution(x, weights["weight"]), 1  # a batch norm takes away whatever bias adds
    return None


def _weighted(layer: nn.Module, x: Tensor, weights: dict[str, Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
    """A layer that has weights: what they are multiplied with, and what comes out."""
    if isinstance(layer, nn.Conv2d):
        return x, slot_convolution(x, weights["weight"]) + weights["bias"][:, None, None, None]
    if isinstance(layer, nn.Linear):
        product = torch.bmm(x, weights["weight"])
        return x, product + weights["bias"][:, None] if "bias" in weights else product
    if isinstance(layer, nn.GroupNorm):
        normal, _, _ = group_normal(x, layer.num_groups, layer.eps)
    elif isinstance(layer, nn.BatchNorm2d):
        normal, _, _ = batch_normal(x, weight > 0, layer.eps)
    else:
        raise BadInput(f"{type(layer).__name__} is not a layer that engine='batched' knows. Use engine='vmap'.")
    return normal, normal * weights["weight"][:, None, None, None] + weights["bias"][:, None, None, None]


def _without_weights(layer: nn.Module, x: Tensor, follows_relu: bool) -> Tensor:
    if isinstance(layer, nn.ReLU):
        return x.relu()
    if isinstance(layer, nn.Flatten):
        return (x.permute(0, 1, 4, 2, 3) if x.ndim == 5 else x).flatten(2)
    if follows_relu and _halves(x):  # nothing below 0 comes in, so ReLU once more changes nothing
        return relu_pool(x)
    small = max_pool2d(x.flatten(0, 1).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    return small.reshape(*x.shape[:2], *small.shape[1:])


def clipped_sums(
    module: nn.Module, entered: list[Tensor], errors: list[Tensor], clip_norm: float, weight: Tensor
) -> Parts:
    """Sums over the examples of each slot of their gradients, none longer than `clip_norm`: in float32 at least.

    An example whose gradient is no number counts as 0, as `clip_factors` says; 0 times infinity would be none either.

    entered  what entered each layer that has weights [slots, examples, ...], in whatever precision
    errors   the gradient of the loss there, at the layer's output
    weight   0 where an example is padding, which is not counted [slots, examples]
    """
    guard = ROUNDING_GUARD[errors[0].dtype]
    factors = clip_factors(squared_norms(module, entered, errors).double().sqrt() / guard, clip_norm)
    sums = {NUM_LONG: ((factors < 1) & (weight > 0)).sum(1, keepdim=True)}
    for (name, layer), entering, error in zip(_layers_with_weights(module), entered, errors, strict=True):
        factor = factors.to(_exact(error).dtype).view(*factors.shape, *[1] * (error.ndim - 2))
        left = torch.where(factor > 0, _exact(error) * factor, 0.0)
        right = torch.where(factor > 0, entering, 0.0)
        if isinstance(layer, nn.Conv2d):
            sums[f"{name}.weight"] = gradient_of_taps(right, left, *layer.kernel_size)
        elif isinstance(layer, nn.Linear):
            sums[f"{name}.weight"] = torch.bmm(_exact(right).transpose(1, 2), left)
        else:
            sums[f"{name}.weight"] = (left * right).sum((1, 2, 3))
        if layer.bias is not None:
            sums[f"{name}.bias"] = left.sum(tuple(range(1, left.ndim - 1)))
    return sums


def squared_norms(module: nn.Module, entered: list[Tensor], errors: list[Tensor]) -> Tensor:
    """|gradient|² of every example over all weights [slots, examples], from what entered each layer and its error."""
    total: Tensor | None = None
    for (_, layer), entering, error in zip(_layers_with_weights(module), entered, errors, strict=True):
        if isinstance(layer, nn.Conv2d):
            squares = squared_norms_of_taps(entering, error, *layer.kernel_size)
            squares = squares + _exact(error).sum((2, 3)).square().sum(2)
        elif isinstance(layer, nn.Linear):
            inner = _exact(entering).square().sum(2) + (layer.bias is not None)
            squares = _exact(error).square().sum(2) * inner
        else:
            scale = (_exact(error) * _exact(entering)).sum((2, 3))
            squares = scale.square().sum(2) + _exact(error).sum((2, 3)).square().sum(2)
        total = squares if total is None else total + squares
    if total is None:
        raise BadInput("the model has no weights to clip.")
    return total


def _layers_with_weights(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return (named for named in module.named_children() if any(True for _ in named[1].parameters(recurse=False)))


def _zero_outputs(model: FlatModel, parts: Parts, inputs: Tensor) -> list[Tensor]:
    """Zeros in the shape of every weighted layer's output; one zero seen everywhere, which takes no memory to read."""
    if normalises_over_examples(model.module):
        raise BadInput("a layer that normalises over the batch leaves no example a gradient of its own.")
    slots, examples = inputs.shape[:2]
    height, width = inputs.shape[3:] if inputs.ndim == 5 else (1, 1)
    zero = torch.zeros((), device=inputs.device, dtype=inputs.dtype)
    outputs = []
    for name, layer in model.module.named_children():
        if isinstance(layer, nn.MaxPool2d):
            height, width = height // 2, width // 2
        elif isinstance(layer, nn.Linear):
            outputs.append(zero.expand(slots, examples, layer.out_features))
        elif isinstance(layer, (nn.Conv2d, nn.GroupNorm)):
            channels = parts[f"{name}.bias"].shape[1]
            outputs.append(zero.expand(slots, examples, height, width, channels))
    return outputs


def _halves(x: Tensor) -> bool:
    return x.ndim == 5 and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0


def _exact(x: Tensor) -> Tensor:
    """In a type in which sums of squares are worth something."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _kernel_over_channels(name: str, x: Tensor) -> Callable[..., Any] | None:
    """The GPU kernel, where it applies to pictures [..., channels]: CUDA, and channels that fill a block."""
    channels = x.shape[-1]
    fits = channels & (channels - 1) == 0 and 16 <= channels <= 2048 and x.dtype in (torch.bfloat16, torch.float32)
    return gpu_kernel(name) if x.is_cuda and fits else None


# ---- convolution: same size, stride 1, each slot with kernels of its own ------------------------------------------


def slot_convolution(x: Tensor, taps: Tensor) -> Tensor:
    """[slots, examples, H, W, C] with taps [slots, k, k, C, out] of each slot -> [slots, examples, H, W, out]."""
    return cast(Tensor, _convolve(x.contiguous(), taps.contiguous()))


@torch.library.custom_op("mppfl::convolve", mutates_args=())
def _convolve(x: Tensor, taps: Tensor) -> Tensor:
    """x [slots, examples, H, W, C], taps [slots, k, k, C, out]."""
    if convolve := _product_kernel("convolve", x):
        return cast(Tensor, convolve(x, taps))
    slots, high, wide, channels, out = taps.shape
    return torch.bmm(patches(x, high, wide), taps.reshape(slots, high * wide * channels, out)).view(*x.shape[:4], out)


@_convolve.register_fake
def _(x: Tensor, taps: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:4], taps.shape[4]))


@torch.library.custom_op("mppfl::convolve_back", mutates_args=())
def _convolve_back(upstream: Tensor, taps: Tensor) -> Tensor:
    """Gradient of the pictures [slots, examples, H, W, C]: a convolution with the kernel turned round."""
    if convolve := _product_kernel("convolve", upstream):
        return cast(Tensor, convolve(upstream, taps, turned=True))
    slots, high, wide, channels, out = taps.shape
    turned = taps.flip(1, 2).transpose(3, 4).reshape(slots, high * wide * out, channels)
    return torch.bmm(patches(upstream, high, wide), turned).view(*upstream.shape[:4], channels)


@_convolve_back.register_fake
def _(upstream: Tensor, taps: Tensor) -> Tensor:
    return upstream.new_empty((*upstream.shape[:4], taps.shape[3]))


@torch.library.custom_op("mppfl::convolve_back_to_taps", mutates_args=())
def _back_to_taps(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    """Gradient of the taps [slots, k, k, C, out], in the type of the errors that came back.

    Errors in float32 beside pictures in bfloat16 are multiplied in two parts of bfloat16 on a GPU, which together hold
    16 of their digits; sums are in float32.
    """
    if back_to_taps := _product_kernel("back_to_taps", x):
        if x.dtype == upstream.dtype:
            return cast(Tensor, back_to_taps(x, upstream, high, wide))
        upper = upstream.to(x.dtype)
        lower = (upstream - upper).to(x.dtype)
        upper_sum, lower_sum = (back_to_taps(x, part, high, wide, upstream.dtype) for part in (upper, lower))
        return cast(Tensor, upper_sum + lower_sum)
    x = x.to(upstream.dtype)
    slots, channels, out = x.shape[0], x.shape[4], upstream.shape[4]
    flat = torch.bmm(patches(x, high, wide).transpose(1, 2), upstream.reshape(slots, -1, out))
    return flat.view(slots, high, wide, channels, out)


@_back_to_taps.register_fake
def _(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    return upstream.new_empty((x.shape[0], high, wide, x.shape[4], upstream.shape[4]))


def _save_convolution(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward_of_convolution(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, taps = ctx.saved_tensors
    upstream = upstream.contiguous()
    to_taps = _back_to_taps(x, upstream, taps.shape[1], taps.shape[2]) if ctx.needs_input_grad[1] else None
    return _convolve_back(upstream, taps) if ctx.needs_input_grad[0] else None, to_taps


_convolve.register_autograd(_backward_of_convolution, setup_context=_save_convolution)


def gradient_of_taps(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    """What the pictures that entered and the errors that came back make of the taps [slots, k, k, C, out]."""
    return cast(Tensor, _back_to_taps(x.contiguous(), upstream.contiguous(), high, wide))


def squared_norms_of_taps(x: Tensor, upstream: Tensor, high: int, wide: int) -> Tensor:
    """|gradient of the taps|² that each example alone would give [slots, examples]."""
    alone = gradient_of_taps(x.flatten(0, 1)[:, None], upstream.flatten(0, 1)[:, None], high, wide)
    squares = _exact(alone.flatten(1)).square()
    return squares.sum(1).view(x.shape[:2])


def patches(x: Tensor, high: int, wide: int) -> Tensor:
    """The neighbourhood of every pixel as a row [slots, examples·H·W, high·wide·C]."""
    padded = pad(x, (0, 0, wide // 2, wide // 2, high // 2, high // 2))
    around = padded.unfold(2, high, 1).unfold(3, wide, 1)  # [slots, examples, H, W, C, high, wide]
    return around.permute(0, 1, 2, 3, 5, 6, 4).reshape(x.shape[0], -1, high * wide * x.shape[4])


def _product_kernel(name: str, x: Tensor) -> Callable[..., Any] | None:
    """The GPU kernel, where it applies: CUDA, and a precision in which tensor cores multiply."""
    if not x.is_cuda:
        return None
    fast = x.dtype == torch.bfloat16 or (x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest")
    return gpu_kernel(name) if fast else None


# ---- normalisation with ReLU, each slot with scale and shift of its own -------------------------------------------


def group_norm_relu(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> Tensor:
    """relu(normal(x) · scale + shift) of [slots, examples, H, W, C]; scale and shift [slots, C]."""
    return cast(Tensor, _group_norm(x.contiguous(), scale.contiguous(), shift.contiguous(), groups, eps)[0])


def group_normal(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x with mean 0 and variance 1 within each example and group of channels; mean and 1/deviation [..., groups]."""
    slots, examples, height, width, _ = x.shape
    grouped = _exact(x.reshape(slots, examples, height * width, groups, -1))
    variance, mean = torch.var_mean(grouped, (2, 4), correction=0, keepdim=True)
    inverse = torch.rsqrt(variance + eps)
    return ((grouped - mean) * inverse).to(x.dtype).view(x.shape), mean.flatten(2), inverse.flatten(2)


@torch.library.custom_op("mppfl::group_norm_relu", mutates_args=())
def _group_norm(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """The result, and mean and 1/deviation of every group [2, slots, examples, groups]."""
    if forward := _kernel_over_channels("group_norm_forward", x):
        return cast(tuple[Tensor, Tensor], forward(x, scale, shift, groups, eps))
    normal, mean, inverse = group_normal(x, groups, eps)
    scaled = normal * scale[:, None, None, None] + shift[:, None, None, None]
    return scaled.relu(), torch.stack([mean, inverse])


@_group_norm.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    kind = torch.promote_types(x.dtype, torch.float32)
    return torch.empty_like(x), x.new_empty((2, *x.shape[:2], groups), dtype=kind)


@torch.library.custom_op("mppfl::group_norm_relu_back", mutates_args=())
def _group_norm_back(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, of_groups: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    if backward := _kernel_over_channels("group_norm_backward", x):
        return cast(tuple[Tensor, Tensor, Tensor], backward(upstream, x, scale, shift, of_groups))
    slots, examples, height, width, channels = x.shape
    groups = of_groups.shape[3]
    mean, inverse = (statistic[:, :, None, :, None] for statistic in of_groups)
    grouped = x.reshape(slots, examples, height * width, groups, -1).to(of_groups.dtype)
    normal = ((grouped - mean) * inverse).view(x.shape)
    wide_scale = scale.to(of_groups.dtype)[:, None, None, None]
    is_open = normal * wide_scale + shift.to(of_groups.dtype)[:, None, None, None] > 0
    error = upstream.to(of_groups.dtype) * is_open
    to_normal = (error * wide_scale).reshape(grouped.shape)
    flat = normal.view(grouped.shape)
    count = height * width * channels // groups
    first = to_normal.sum((2, 4), keepdim=True) / count
    second = (to_normal * flat).sum((2, 4), keepdim=True) / count
    to_x = (inverse * (to_normal - first - flat * second)).reshape(x.shape).to(x.dtype)
    to_scale, to_shift = (error * normal).sum((1, 2, 3)).to(scale.dtype), error.sum((1, 2, 3)).to(shift.dtype)
    return to_x, to_scale, to_shift


@_group_norm_back.register_fake
def _(upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, of_groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(shift)


def batch_norm_relu(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> Tensor:
    """relu(normal(x) · scale + shift) of [slots, examples, H, W, C], each slot normalised over its own batch.

    present  [slots, examples]; false where an example is padding. Padding is left out of mean and deviation, and gives
             0: a slot that is all padding has no deviation to be divided by, and layer by layer its numbers would grow
             past all bounds.
    """
    counts = present.to(torch.promote_types(x.dtype, torch.float32))
    return cast(Tensor, _batch_norm(x.contiguous(), scale.contiguous(), shift.contiguous(), counts, eps)[0])


def batch_normal(x: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x with mean 0 and variance 1 within each slot and channel, 0 for padding; mean and 1/deviation [slots, C]."""
    counts = present.to(torch.promote_types(x.dtype, torch.float32))[:, :, None, None, None]
    exact = x.to(counts.dtype)
    count = _num_entries(present, x.shape[2] * x.shape[3]).to(counts.dtype)[:, None, None, None]
    mean = (exact * counts).sum((1, 2, 3), keepdim=True) / count
    variance = ((exact - mean).square() * counts).sum((1, 2, 3), keepdim=True) / count
    inverse = torch.rsqrt(variance + eps)
    return _without_padding(((exact - mean) * inverse).to(x.dtype), present), mean.flatten(1), inverse.flatten(1)


def _num_entries(present: Tensor, pixels: int) -> Tensor:
    """Over how many entries each slot's channels are averaged [slots, 1]; 1 where a slot is all padding."""
    return (present.sum(1, keepdim=True) * pixels).clamp(min=1)


def _without_padding(pictures: Tensor, present: Tensor) -> Tensor:
    """The same with 0 for padding, whatever that was."""
    return torch.where(present[:, :, None, None, None] > 0, pictures, torch.zeros_like(pictures))


@torch.library.custom_op("mppfl::batch_norm_relu", mutates_args=())
def _batch_norm(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result, and mean and 1/deviation of every channel [2, slots, C]."""
    if forward := _kernel_over_channels("batch_norm_forward", x):
        return cast(tuple[Tensor, Tensor], forward(x, scale, shift, present, eps))
    normal, mean, inverse = batch_normal(x, present, eps)
    scaled = normal * scale[:, None, None, None] + shift[:, None, None, None]
    return _without_padding(scaled.relu(), present), torch.stack([mean, inverse])


@_batch_norm.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), present.new_empty((2, x.shape[0], x.shape[4]))


@torch.library.custom_op("mppfl::batch_norm_relu_back", mutates_args=())
def _batch_norm_back(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, of_channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and shift."""
    if backward := _kernel_over_channels("batch_norm_backward", x):
        return cast(tuple[Tensor, Tensor, Tensor], backward(upstream, x, scale, shift, present, of_channels))
    mean, inverse = (statistic[:, None, None, None] for statistic in of_channels)
    wide_scale, wide_shift = (vector.to(mean.dtype)[:, None, None, None] for vector in (scale, shift))
    normal = (x.to(mean.dtype) - mean) * inverse
    error = _without_padding(upstream.to(mean.dtype) * (normal * wide_scale + wide_shift > 0), present)
    of_shift, of_scale = error.sum((1, 2, 3)), (error * normal).sum((1, 2, 3))
    count = _num_entries(present, x.shape[2] * x.shape[3])
    first, second = (
        (total * scale.to(mean.dtype) / count)[:, None, None, None] for total in (of_shift, of_scale)
    )  # what every entry that was averaged over changes mean and deviation by
    to_x = inverse * (error * wide_scale - present[:, :, None, None, None] * (first + normal * second))
    return to_x.to(x.dtype), of_scale.to(scale.dtype), of_shift.to(shift.dtype)


@_batch_norm_back.register_fake
def _(
    upstream: Tensor, x: Tensor, scale: Tensor, shift: Tensor, present: Tensor, of_channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(shift)


def _register_backward(norm: Any, back: Any, num_saved: int) -> None:
    """Gradients of a norm's x, scale and shift come from its first `num_saved` inputs and its statistics."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:num_saved], output[1])
        ctx.mark_non_differentiable(output[1])

    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
        to_x, to_scale, to_shift = back(upstream.contiguous(), *ctx.saved_tensors)
        return to_x, to_scale, to_shift, None, None

    norm.register_autograd(backward, setup_context=save)


_register_backward(_group_norm, _group_norm_back, 3)
_register_backward(_batch_norm, _batch_norm_back, 4)


# ---- bias, ReLU and 2×2 max-pooling: what is kept for the way back is which of four pixels went on, in one byte ----


def relu_pool(x: Tensor, shift: Tensor | None = None) -> Tensor:
    """max-pool(relu(x + shift)) of [slots, examples, H, W, C] with H and W even; shift [slots, C] or none."""
    return cast(Tensor, _relu_pool(x.contiguous(), None if shift is None else shift.contiguous())[0])


@torch.library.custom_op("mppfl::relu_pool", mutates_args=())
def _relu_pool(x: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """The result, and which pixel of each four it came from [..., C] uint8."""
    if forward := _kernel_over_channels("relu_pool", x):
        return cast(tuple[Tensor, Tensor], forward(x, shift))
    shifted = x if shift is None else x + shift[:, None, None, None]
    slots, examples, height, width, channels = x.shape
    apart = shifted.reshape(slots, examples, height // 2, 2, width // 2, 2, channels).transpose(3, 4)
    largest, which = apart.reshape(slots, examples, height // 2, width // 2, 4, channels).max(4)
    return largest.relu(), torch.where(largest > 0, which, CLOSED).to(torch.uint8)


@_relu_pool.register_fake
def _(x: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    slots, examples, height, width, channels = x.shape
    shape = (slots, examples, height // 2, width // 2, channels)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("mppfl::relu_pool_back", mutates_args=())
def _relu_pool_back(upstream: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the shift [slots, C]."""
    if backward := _kernel_over_channels("relu_pool_back", upstream):
        return cast(tuple[Tensor, Tensor], backward(upstream, codes))
    slots, examples, height, width, channels = upstream.shape
    pixels = torch.arange(4, device=codes.device, dtype=torch.uint8)[:, None]
    quads = upstream.unsqueeze(4) * (codes.unsqueeze(4) == pixels)
    apart = quads.view(slots, examples, height, width, 2, 2, channels).transpose(3, 4)
    to_x = apart.reshape(slots, examples, 2 * height, 2 * width, channels)
    return to_x, _exact(upstream * (codes != CLOSED)).sum((1, 2, 3)).to(upstream.dtype)


@_relu_pool_back.register_fake
def _(upstream: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    slots, examples, height, width, channels = upstream.shape
    return upstream.new_empty((slots, examples, 2 * height, 2 * width, channels)), upstream.new_empty((slots, channels))


def _save_pooling(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.has_shift = inputs[1] is not None


def _backward_of_pooling(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor, Tensor | None]:
    to_x, to_shift = _relu_pool_back(upstream.contiguous(), *ctx.saved_tensors)
    return to_x, to_shift if ctx.has_shift else None


_relu_pool.register_autograd(_backward_of_pooling, setup_context=_save_pooling)
