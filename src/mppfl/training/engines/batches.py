"""The batches of many client slots laid side by side: in step k every slot sees its k-th batch.

Slots of unequal length are padded with visits of weight 0, at an example of their own, never at somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array, IntArray
from mppfl.training import ClientSlot


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
