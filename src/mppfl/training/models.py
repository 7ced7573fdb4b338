"""Models by name, and any module as a function of one flat vector of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
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


# ---- FlatModel: a module and its weights as one flat vector, which is what clients upload and servers add -----------

RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


@dataclass(frozen=True, eq=False, slots=True)
class FlatModel:
    """A module as a function of a flat vector of weights.

    module   a copy of the caller's, in which the plain loop trains
    shapes   of the parameters that are trained, by name, in the order in which they lie in the vector; those with
             requires_grad=False stay as they are: they are neither moved nor sent, and no noise goes on them
    """

    module: nn.Module
    shapes: dict[str, torch.Size]

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def draws_at_random(self) -> bool:
        """Whether a layer itself is random, as Dropout is; what a module's own code draws shows in `draws_on` alone."""
        return any(isinstance(layer, RANDOM_LAYERS) for layer in self.module.modules())

    def draws_on(self, inputs: Tensor) -> bool:
        """Whether a forward pass in training draws from PyTorch's generators, in a layer or in code of the module's."""
        with seeded_layers(0, inputs.device), torch.no_grad():
            before = _generator_state(inputs.device)
            self.module(inputs)
            return not torch.equal(before, _generator_state(inputs.device))

    def remembers(self, inputs: Tensor) -> bool:
        """Whether a forward pass in training leaves something in the module: in a buffer, a frozen parameter, or
        anything else that the next answers depend on. No noise would protect it."""
        module = copy.deepcopy(self.module)
        before = [value.clone() for value in (*module.buffers(), *module.parameters())]
        answers = []
        with torch.no_grad():
            for given in (inputs, inputs + 1, inputs):
                with seeded_layers(0, inputs.device):
                    answers.append(module(given))
        after = (*module.buffers(), *module.parameters())
        same = len(before) == len(after) and all(map(torch.equal, before, after))
        return not (same and torch.equal(answers[0], answers[2]))

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
        # Tied by name, a layer that comes twice would not get its own weights back.
        is_tied = shares_weights_between_layers(self.module)
        answer: Tensor = torch.func.functional_call(self.module, parts, (inputs,), tie_weights=is_tied)
        return answer

    def load(self, weights: Tensor) -> None:
        """Puts the flat vector into the module's own parameters."""
        with torch.no_grad():
            for parameter, part in zip(trained_parameters(self.module), self.parts(weights).values(), strict=True):
                parameter.copy_(part)

    def initial_weights(self, seed: int) -> Tensor:
        """Where training starts: named models are drawn from the seed, your own module starts from its own weights."""
        if isinstance(self.module, Stack) and not has_frozen(self.module):
            self.module.draw(seed)
        return flattened(trained_parameters(self.module))


@contextmanager
def seeded_layers(seed: int, device: torch.device) -> Iterator[None]:
    """PyTorch's own generators start from the seed inside, and are outside as if nothing had been drawn."""
    if device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(seed)
            yield
        return
    before = torch.get_rng_state()  # fork_rng would ask for GPUs as well, every time
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(before)


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those that training moves, in their order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def shares_weights_between_layers(module: nn.Module) -> bool:
    """Whether two layers hold the same weights; a layer that comes twice is one."""
    weights = [parameter for layer in module.modules() for parameter in layer.parameters(recurse=False)]
    return len(weights) != len(set(map(id, weights)))


def has_frozen(module: nn.Module) -> bool:
    return not all(parameter.requires_grad for parameter in module.parameters())


def computes_as(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the layer computes just what PyTorch's own of that kind does: engines that write its arithmetic out must
    not train something else than the module says."""
    if not isinstance(layer, kind) or type(layer).forward is not kind.forward or hasattr(layer, "parametrizations"):
        return False
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(layer, name) for name in hooks)


def is_plain_row(module: nn.Module) -> bool:
    """Whether the module is layers in a row, each there once, all of them trained, with weights of their own.

    `children` and `named_parameters` leave out what comes a second time.
    """
    if not computes_as(module, nn.Sequential) or has_frozen(module):
        return False
    weights = list(module.named_parameters(remove_duplicate=False))
    return len(list(module.children())) == len(cast(nn.Sequential, module)) and len(weights) == len(
        list(module.parameters())
    )


def is_plain_flatten(layer: nn.Module) -> bool:
    return computes_as(layer, nn.Flatten) and [layer.start_dim, layer.end_dim] == [1, -1]


def flattened(tensors: Iterable[Tensor]) -> Tensor:
    """One vector of all entries, detached."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def flat_model(module: nn.Module) -> FlatModel:
    """The module as a function of its weights. Refuses what cannot travel as one vector of weights."""
    if not isinstance(module, nn.Module):
        raise BadInput(f"a model must be a torch.nn.Module, got {type(module).__name__}; name one with make_model.")
    parameters = dict(module.named_parameters())
    if not trained_parameters(module):
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
    trained = copy.deepcopy(module).train()  # the caller's module stays as it is
    return FlatModel(trained, {name: value.shape for name, value in parameters.items() if value.requires_grad})


def normalises_over_examples(module: nn.Module) -> bool:
    """Whether one example changes what the module says about another, so that clipping each protects nobody."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def load_weights(model: nn.Module, weights: Any) -> nn.Module:
    """Puts a training's weights into a module of the same layers, in place.

    Args:
        model: the module that was trained, or one made alike.
        weights: a flat vector, or anything that has one as `weights`: a RoundRecord, a Checkpoint or a Run.

    Returns:
        The module itself.

    Raises:
        BadInput: if the module has another number of trained parameters.

    Example:
        >>> from mppfl.training import make_model
        >>> model = load_weights(make_model("linear", (3,), 2), [1, 2, 3, 4, 5, 6])
        >>> model[1].weight.tolist()
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    """
    vector = torch.from_numpy(np.array(getattr(weights, "weights", weights), dtype=np.float64))
    parameters = trained_parameters(model)
    expected = sum(parameter.numel() for parameter in parameters)
    if vector.shape != (expected,):
        raise BadInput(
            f"{type(model).__name__} trains {expected:,} parameters, but the weights have shape {tuple(vector.shape)}. "
            "Make the model as for the training, with the same input shape, classes and layers."
        )
    with torch.no_grad():
        for parameter, part in zip(parameters, torch.split(vector, [p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view(parameter.shape))
    return model
