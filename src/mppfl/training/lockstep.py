"""Many clients in step: the k-th batches of all lanes at once, each lane with weights of its own.

Lanes of unequal length are padded with examples of weight 0, and a lane that has run out of batches stands still. What
differs between engines is only how the gradients of all lanes are found; see dense.py and layered.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mppfl.training.flat import FlatModel
from mppfl.training.local import Descent, Lane, Table, clip_factors, tell_what_overflows
from mppfl.training.schedule import steps_of

MOST_ENTRIES = 2**26  # of the examples that lanes hold at once on a CPU: 256 MB in float32
Parts = dict[str, Tensor]  # of all lanes: [lanes, *shape]


class LaneGradients(Protocol):
    """Gradients of all lanes at once.

    `weight` [lanes, examples] multiplies each example's gradient: 1/batch for a mean, 0 for padding. With `clip_norm`
    each example's gradient is shortened first, weight is 1 or 0, and sums are as exact as `clip_factors` asks for.

    Weights and gradients are in the layout that the engine likes best: `held` brings named tensors [lanes, *shape] into
    it, as copies, and `given` brings them back.
    """

    def held(self, parts: Parts) -> Parts: ...

    def given(self, parts: Parts) -> Parts: ...

    def descend(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, learning_rate: float) -> None:
        """One plain step, in place: parts ← parts − η · gradient."""

    def __call__(
        self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float | None
    ) -> Parts: ...


def lockstep_updates(
    model: FlatModel,
    lanes: Sequence[Lane],
    table: Table,
    descent: Descent,
    gradients: LaneGradients,
    width: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Updates of all lanes [lanes, parameters], in `out` where it is given.

    `width` pads every batch to one length, so that shapes stay alike.
    """
    starts = starts_of(lanes)
    parts = gradients.held(model.parts(starts))
    velocity = {name: torch.zeros_like(part) for name, part in parts.items()} if descent.momentum else {}
    private = lanes[0].noise is not None
    clip_norm = lanes[0].noise.clip_norm if lanes[0].noise else None
    for step in steps_of(lanes, table.features, width):
        inputs, labels = table.at(step.rows)
        if not private and not descent.momentum:  # a lane that stands still has gradient 0
            gradients.descend(parts, inputs, labels, step.weight, descent.learning_rate)
            continue
        found = gradients(parts, inputs, labels, step.weight, clip_norm)
        if private:
            found = gradients.held(_made_private(model, gradients.given(found), lanes, step.moves))
        for name, part in parts.items():
            if descent.momentum:
                velocity[name].mul_(descent.momentum).add_(found[name])
            direction = velocity[name] if descent.momentum else found[name]
            moves = (descent.learning_rate * step.moves).view(-1, *[1] * (part.ndim - 1))
            part.sub_(moves * direction)
    return moved(model, starts, gradients.given(parts), out)


def starts_of(lanes: Sequence[Lane]) -> Tensor:
    """Where the lanes start [lanes, parameters]: one row seen many times where they all start from the same."""
    first = lanes[0].start
    if all(lane.start is first for lane in lanes):
        return first.expand(len(lanes), -1)
    return torch.stack([lane.start for lane in lanes])


def moved(model: FlatModel, starts: Tensor, parts: Parts, out: Tensor | None = None) -> Tensor:
    """How far the parts are from where they started [lanes, parameters]."""
    found = torch.empty(starts.shape, dtype=starts.dtype, device=starts.device) if out is None else out
    before = model.parts(starts)
    for name, place in model.parts(found).items():  # views: every entry is written once, where it is to lie
        torch.sub(parts[name], before[name], out=place)
    return found


def _made_private(model: FlatModel, sums: Parts, lanes: Sequence[Lane], moves: Tensor) -> Parts:
    """Each lane's noisy gradient from its sum of clipped ones; a lane that stands still answers nothing."""
    seeded = all(lane.noise is not None and lane.noise.kind == "seeded" for lane in lanes)
    flat = torch.cat([part.flatten(1).to(torch.promote_types(part.dtype, moves.dtype)) for part in sums.values()], 1)
    if flat.is_cuda and seeded:
        return model.parts(_made_private_on_device(flat.to(moves.dtype), lanes, moves))
    found = flat.to(moves.dtype)
    for row, total, lane, is_moving in zip(found, flat, lanes, moves.tolist(), strict=True):
        if is_moving and lane.noise is not None:
            row.copy_(lane.noise.gradient(total))
    return model.parts(found)


def _made_private_on_device(sums: Tensor, lanes: Sequence[Lane], moves: Tensor) -> Tensor:
    """The same with seeded noise drawn where the sums lie: a simulation need not carry them to the CPU and back."""
    generator = torch.Generator(device=sums.device)
    found = torch.zeros_like(sums)
    for row, total, lane, is_moving in zip(found, sums, lanes, moves.tolist(), strict=True):
        if is_moving and lane.noise is not None:
            generator.manual_seed(lane.noise.next_seed())
            noise = torch.randn(row.shape, generator=generator, device=row.device, dtype=row.dtype)
            std = lane.noise.noise_std(len(row))
            row.copy_((total / lane.noise.answer_divisor + std * noise) / lane.noise.step_divisor)
    return found


def descend_along(parts: Parts, gradients: Parts, learning_rate: float) -> None:
    """parts ← parts − η · gradients, in place."""
    torch._foreach_add_(list(parts.values()), [gradients[name] for name in parts], alpha=-learning_rate)


class VmappedGradients:
    """Gradients of any module, by torch.func.vmap over lanes (and over examples where each is clipped)."""

    def __init__(self, model: FlatModel) -> None:
        def weighted_loss(parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
            return (cross_entropy(model.logits(parts, inputs), labels, reduction="none") * weight).sum()

        def loss_of_one(parts: Parts, example: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(model.logits(parts, example[None]), label[None])

        self._of_lanes = torch.func.vmap(torch.func.grad(weighted_loss))
        self._of_examples = torch.func.vmap(torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0)))

    def held(self, parts: Parts) -> Parts:
        return {name: part.clone() for name, part in parts.items()}

    def given(self, parts: Parts) -> Parts:
        return parts

    def descend(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, learning_rate: float) -> None:
        descend_along(parts, self(parts, inputs, labels, weight, None), learning_rate)

    def __call__(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float | None) -> Parts:
        if clip_norm is None:
            found = dict(self._of_lanes(parts, inputs, labels, weight))
            return found if weight.is_cuda else self._of_own_alone(found, parts, inputs, labels, weight)
        each = self._of_examples(parts, inputs, labels)  # [lanes, examples, *shape]
        squares = sum(part.double().flatten(2).square().sum(2) for part in each.values())
        norms = torch.as_tensor(squares).sqrt()
        factors = clip_factors(norms, clip_norm, weight.shape[1]) * weight
        if tell_what_overflows(norms):
            each = {name: _only(part, factors) for name, part in each.items()}
        return {name: torch.einsum("le,le...->l...", factors, part.double()) for name, part in each.items()}

    def _of_own_alone(self, found: Parts, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor) -> Parts:
        """The same with lanes that overflow computed anew without their padding: 0 times infinity is no number, and
        nobody diverges by how long others train. Not on a GPU, which would have to be waited for in every step.
        """
        padded = (weight == 0).any(1)
        if not padded.any():
            return found
        finite = torch.stack([part.flatten(1).sum(1) for part in found.values()]).isfinite().all(0)
        for at in (~finite & padded).nonzero()[:, 0].tolist():
            lane, own = slice(at, at + 1), weight[at] > 0
            some = {name: part[lane] for name, part in parts.items()}
            alone = self._of_lanes(some, inputs[lane, own], labels[lane, own], weight[lane, own]) if own.any() else {}
            for name, part in found.items():
                part[lane] = alone[name] if own.any() else 0.0
        return found


def _only(each: Tensor, factors: Tensor) -> Tensor:
    """The examples' gradients [lanes, examples, *shape] that count; 0 times infinity is no number."""
    return torch.where(factors.view(*factors.shape, *[1] * (each.ndim - 2)) > 0, each, 0.0)
