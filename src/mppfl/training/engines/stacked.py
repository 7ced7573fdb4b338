"""Many clients in step: the k-th batches of all slots at once, each slot with weights of its own, stacked.

Slots of unequal length are padded with examples of weight 0, and a slot that has run out of batches stands still. What
differs between engines is only how the gradients of all slots are found: dense.py, layered.py, and here by vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mppfl.arrays import Array, IntArray
from mppfl.training import ClientSlot, Descent, FlatModel, Table, clip_factors, warn_of_overflow


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """Every visit of every slot to an example, slot after slot and step after step.

    rows    [visits] of the table
    slot    [visits] whose visit it is
    share   [visits] of its batch: 1/batch
    target  [visits] where it lies among [slots, steps, width], counted flat
    moves   [slots, steps] 1 where the slot still has a batch, else 0
    width   of the longest batch, or more
    """

    rows: IntArray
    slot: IntArray
    share: Array
    target: IntArray
    moves: Array
    width: int

    def laid_out(self, numbers: IntArray) -> IntArray:
        """A number of every visit at its target [slots, steps, width]; the padding repeats the slot's first."""
        layout = np.zeros((*self.moves.shape, self.width), dtype=np.int64)
        slots, first = np.unique(self.slot, return_index=True)
        layout[slots] = numbers[first][:, None, None]
        layout.reshape(-1)[self.target] = numbers
        return layout

    def weights(self, in_whole: Sequence[bool]) -> Array:
        """What each visit counts [slots, steps, width]: its share of the batch, or 1 where a slot counts `in_whole`."""
        layout = np.zeros((*self.moves.shape, self.width))
        layout.reshape(-1)[self.target] = np.where(np.array(in_whole)[self.slot], 1.0, self.share)
        return layout


def schedule_of(slots: Sequence[ClientSlot], num_steps: int, width: int | None = None) -> Schedule:
    """The visits of the slots; every batch padded to `width`, or to the longest."""
    batches = [batch for slot in slots for batch in slot.batches]
    lengths = np.fromiter(map(len, batches), np.int64, len(batches))
    in_slot = np.array([len(slot.batches) for slot in slots], dtype=np.int64)
    slot = np.repeat(np.arange(len(slots)), in_slot)  # of every batch
    step = np.arange(len(batches)) - np.repeat(np.cumsum(in_slot) - in_slot, in_slot)
    width = width or int(lengths.max(initial=0)) or 1
    before = (slot * num_steps + step) * width - (np.cumsum(lengths) - lengths)  # padding before each batch
    moves = np.zeros((len(slots), num_steps))
    moves[slot, step] = 1
    return Schedule(
        np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64),
        np.repeat(slot, lengths),
        np.repeat(1.0 / np.maximum(lengths, 1), lengths),
        np.arange(lengths.sum()) + np.repeat(before, lengths),
        moves,
        width,
    )


def steps_of(
    slots: Sequence[ClientSlot], features: Tensor, width: int | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows and weights [slots, width] of each step, and who moves [slots]; as wide as the longest batch, or `width`."""
    num_steps = max(len(slot.batches) for slot in slots)
    rows, weight, moves = padded_steps(slots, num_steps, width, features)
    for k in range(num_steps):
        longest = width or max((len(slot.batches[k]) for slot in slots if k < len(slot.batches)), default=0) or 1
        yield rows[k, :, :longest], weight[k, :, :longest], moves[k]


def padded_steps(
    slots: Sequence[ClientSlot], num_steps: int, width: int | None, features: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and weights [steps, slots, width] of the round, and who moves [steps, slots], where the features lie.

    A weight of 0 is padding. All steps of the round travel there at once, and what slots share travels once.
    """
    first: dict[tuple[int, bool], int] = {}  # jobs of one seed share batches
    which = [first.setdefault((id(slot.batches), slot.noise is None), len(first)) for slot in slots]
    distinct = list(dict(zip(which, slots, strict=True)).values())
    schedule = schedule_of(distinct, num_steps, width)
    in_whole = [slot.noise is not None for slot in distinct]
    chosen = torch.tensor(which, device=features.device)
    rows, weight, moves = (
        torch.from_numpy(layout).to(features.device)[chosen].transpose(0, 1).contiguous()
        for layout in (schedule.laid_out(schedule.rows), schedule.weights(in_whole), schedule.moves)
    )
    return rows, weight.to(features.dtype), moves.to(features.dtype)


# ---- gradients of all slots at once, and descending along them ------------------------------------------------------

MOST_ENTRIES = 2**26  # of the examples that slots hold at once on a CPU: 256 MB in float32
Parts = dict[str, Tensor]  # of all slots: [slots, *shape]
NUM_LONG = "number too long"  # beside sums of clipped gradients: how many were shortened [slots, 1]


@cache
def gpu_kernel(name: str) -> Callable[..., Any] | None:
    """The kernel of that name in mppfl.training.cuda; None where there is no Triton, and plain PyTorch computes it."""
    try:
        kernel: Callable[..., Any] = getattr(import_module("mppfl.training.cuda"), name)
    except ImportError:
        return None
    return kernel


class SlotGradients(Protocol):
    """Gradients of all slots at once.

    `weight` [slots, examples] multiplies each example's gradient: 1/batch for a mean, 0 for padding. With `clip_norm`
    each example's gradient is shortened first, weight is 1 or 0, sums are as exact as `clip_factors` asks for, and
    NUM_LONG stands beside them.

    Weights and gradients are in the layout that the engine likes best: `held` brings named tensors [slots, *shape] into
    it, as copies, and `given` brings them back.
    """

    def held(self, parts: Parts) -> Parts: ...

    def given(self, parts: Parts) -> Parts: ...

    def descend(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, learning_rate: float) -> None:
        """One plain step, in place: parts ← parts − η · gradient."""

    def __call__(
        self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float | None
    ) -> Parts: ...


def stacked_updates(
    model: FlatModel,
    slots: Sequence[ClientSlot],
    table: Table,
    descent: Descent,
    gradients: SlotGradients,
    width: int | None,
    out: Tensor,
) -> None:
    """Writes the updates of all slots to `out` [slots, parameters].

    `width` pads every batch to one length, so that shapes stay alike.
    """
    starts = starts_of(slots)
    parts = gradients.held(model.parts(starts))
    velocity = {name: torch.zeros_like(part) for name, part in parts.items()} if descent.momentum else {}
    private = slots[0].noise is not None
    clip_norm = slots[0].noise.clip_norm if slots[0].noise else None
    for rows, weight, moves in steps_of(slots, table.features, width):
        inputs, labels = table.at(rows)
        if slots[0].noise is not None and slots[0].noise.protection.release == "gradient":
            sums = gradients(parts, inputs, labels, weight, clip_norm)
            num_long = sums.pop(NUM_LONG)
            write_gradients(gradients.given(sums), num_long, slots, descent.learning_rate, out)
            return
        if not private and not descent.momentum:  # a slot that stands still has gradient 0
            gradients.descend(parts, inputs, labels, weight, descent.learning_rate)
            continue
        direction = gradients(parts, inputs, labels, weight, clip_norm)
        if private:
            del direction[NUM_LONG]
            direction = gradients.held(_made_private(model, gradients.given(direction), slots, moves))
        for name, part in parts.items():
            if descent.momentum:
                direction[name] = velocity[name].mul_(descent.momentum).add_(direction[name])
            pace = (descent.learning_rate * moves).view(-1, *[1] * (part.ndim - 1))
            part.sub_(pace * direction[name])
    write_updates(model, starts, gradients.given(parts), out)


def write_gradients(
    sums: Parts, num_long: Tensor, slots: Sequence[ClientSlot], learning_rate: float, out: Tensor
) -> None:
    """Writes −η times each slot's noisy mean gradient to `out`, from its sum of clipped ones, and its count if any."""
    flat = torch.cat([part.flatten(1).double() for part in sums.values()], 1)
    for row, total, count, slot in zip(out, flat, num_long.double(), slots, strict=True):
        if slot.noise is not None:
            row.copy_(-learning_rate * slot.noise.gradient(slot.noise.with_count(total, count, slot.num_visits)))


def starts_of(slots: Sequence[ClientSlot]) -> Tensor:
    """Where the slots start [slots, parameters]: one row seen many times where they all start from the same."""
    first = slots[0].start
    if all(slot.start is first for slot in slots):
        return first.expand(len(slots), -1)
    return torch.stack([slot.start for slot in slots])


def write_updates(model: FlatModel, starts: Tensor, parts: Parts, out: Tensor) -> None:
    """Writes to `out` [slots, parameters] how far the parts are from where they started."""
    before = model.parts(starts)
    for name, target in model.parts(out).items():  # views: every entry is written once, where it is to lie
        torch.sub(parts[name], before[name], out=target)


def _made_private(model: FlatModel, sums: Parts, slots: Sequence[ClientSlot], moves: Tensor) -> Parts:
    """Each slot's noisy gradient from its sum of clipped ones; a slot that stands still answers nothing.

    Simulated noise is drawn on the GPU where the sums lie there: a simulation need not carry them to the CPU and back.
    """
    noises = [slot.noise for slot in slots if slot.noise is not None]
    seeded = all(noise.protection.is_simulated and not noise.adds_nothing for noise in noises)
    flat = torch.cat([part.flatten(1).to(torch.promote_types(part.dtype, moves.dtype)) for part in sums.values()], 1)
    answers = flat.to(moves.dtype)
    on_device = flat.is_cuda and seeded
    for row, total, slot, is_moving in zip(answers, flat, slots, moves.tolist(), strict=True):
        if is_moving and slot.noise is not None:
            if not on_device:
                row.copy_(slot.noise.gradient(total))
                continue
            generator = torch.Generator(device=row.device).manual_seed(slot.noise.next_seed())
            noise = torch.randn(row.shape, generator=generator, device=row.device, dtype=row.dtype)
            std = slot.noise.noise_std(len(row))
            row.copy_((row / slot.noise.answer_divisor + std * noise) / slot.noise.step_divisor)
        elif on_device:
            row.zero_()
    return model.parts(answers)


def descend_along(parts: Parts, gradients: Parts, learning_rate: float) -> None:
    """parts ← parts − η · gradients, in place."""
    torch._foreach_add_(list(parts.values()), [gradients[name] for name in parts], alpha=-learning_rate)


class VmappedGradients:
    """Gradients of any module, by torch.func.vmap over slots (and over examples where each is clipped)."""

    def __init__(self, model: FlatModel) -> None:
        def weighted_loss(parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
            return (cross_entropy(model.logits(parts, inputs), labels, reduction="none") * weight).sum()

        def loss_of_one(parts: Parts, example: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(model.logits(parts, example[None]), label[None])

        self._of_slots = torch.func.vmap(torch.func.grad(weighted_loss))
        self._of_examples = torch.func.vmap(torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0)))

    def held(self, parts: Parts) -> Parts:
        return {name: part.clone() for name, part in parts.items()}

    def given(self, parts: Parts) -> Parts:
        return parts

    def descend(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, learning_rate: float) -> None:
        descend_along(parts, self(parts, inputs, labels, weight, None), learning_rate)

    def __call__(self, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor, clip_norm: float | None) -> Parts:
        if clip_norm is None:
            gradients = dict(self._of_slots(parts, inputs, labels, weight))
            return gradients if weight.is_cuda else self._without_padding(gradients, parts, inputs, labels, weight)
        stack = self._of_examples(parts, inputs, labels)  # [slots, examples, *shape]
        squares = sum(part.double().flatten(2).square().sum(2) for part in stack.values())
        norms = torch.as_tensor(squares).sqrt()
        factors = clip_factors(norms, clip_norm, weight.shape[1])
        num_long = ((factors < 1) & (weight > 0)).sum(1, keepdim=True)
        factors = factors * weight
        if warn_of_overflow(norms):  # 0 times infinity is no number
            counts = {name: factors.view(*factors.shape, *[1] * (part.ndim - 2)) > 0 for name, part in stack.items()}
            stack = {name: torch.where(counts[name], part, 0.0) for name, part in stack.items()}
        sums = {name: torch.einsum("le,le...->l...", factors, part.double()) for name, part in stack.items()}
        return sums | {NUM_LONG: num_long}

    def _without_padding(self, gradients: Parts, parts: Parts, inputs: Tensor, labels: Tensor, weight: Tensor) -> Parts:
        """The same with slots that overflow computed anew without their padding: 0 times infinity is no number, and
        nobody diverges by how long others train. Not on a GPU, which would have to be waited for in every step.
        """
        padded = (weight == 0).any(1)
        if not padded.any():
            return gradients
        finite = torch.stack([part.flatten(1).sum(1) for part in gradients.values()]).isfinite().all(0)
        for number in (~finite & padded).nonzero()[:, 0].tolist():
            slot, counts = slice(number, number + 1), weight[number] > 0
            some = {name: part[slot] for name, part in parts.items()}
            examples = inputs[slot, counts], labels[slot, counts], weight[slot, counts]
            alone = self._of_slots(some, *examples) if counts.any() else {}
            for name, part in gradients.items():
                part[slot] = alone[name] if counts.any() else 0.0
        return gradients
