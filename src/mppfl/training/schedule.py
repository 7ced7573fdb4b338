"""The batches of many lanes laid side by side: in step k every lane looks at its k-th batch.

Lanes of unequal length are padded with looks of weight 0, at an example of their own, never at somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array, IntArray
from mppfl.training.local import Lane


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """Every look of every lane at an example, lane after lane and step after step.

    rows   [looks] of the table
    lane   [looks] whose look it is
    share  [looks] of its batch: 1/batch
    place  [looks] where it lies among [lanes, steps, width], counted flat
    moves  [lanes, steps] 1 where the lane still has a batch, else 0
    width  of the longest batch, or more
    """

    rows: IntArray
    lane: IntArray
    share: Array
    place: IntArray
    moves: Array
    width: int

    def laid_out(self, numbers: IntArray) -> IntArray:
        """A number of every look in its place [lanes, steps, width]; the padding repeats the lane's first."""
        found = np.zeros((*self.moves.shape, self.width), dtype=np.int64)
        who, first = np.unique(self.lane, return_index=True)
        found[who] = numbers[first][:, None, None]
        found.reshape(-1)[self.place] = numbers
        return found

    def weights(self, in_whole: Sequence[bool]) -> Array:
        """What each look counts [lanes, steps, width]: its share of the batch, or 1 for lanes that count `in_whole`."""
        found = np.zeros((*self.moves.shape, self.width))
        found.reshape(-1)[self.place] = np.where(np.array(in_whole)[self.lane], 1.0, self.share)
        return found


def schedule_of(lanes: Sequence[Lane], num_steps: int, width: int | None = None) -> Schedule:
    """The looks of the lanes; every batch padded to `width`, or to the longest."""
    batches = [batch for lane in lanes for batch in lane.batches]
    lengths = np.fromiter(map(len, batches), np.int64, len(batches))
    in_lane = np.array([len(lane.batches) for lane in lanes], dtype=np.int64)
    lane = np.repeat(np.arange(len(lanes)), in_lane)  # of every batch
    step = np.arange(len(batches)) - np.repeat(np.cumsum(in_lane) - in_lane, in_lane)
    width = width or int(lengths.max(initial=0)) or 1
    before = (lane * num_steps + step) * width - (np.cumsum(lengths) - lengths)  # padding before each batch
    moves = np.zeros((len(lanes), num_steps))
    moves[lane, step] = 1
    return Schedule(
        np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64),
        np.repeat(lane, lengths),
        np.repeat(1.0 / np.maximum(lengths, 1), lengths),
        np.arange(lengths.sum()) + np.repeat(before, lengths),
        moves,
        width,
    )


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One step of all lanes.

    rows    [lanes, width] rows of the table; padding points to one of the lane's own, never to somebody else's
    weight  [lanes, width] weight of each example, 0 for padding
    moves   [lanes] 1 where the lane still has a batch, else 0
    """

    rows: Tensor
    weight: Tensor
    moves: Tensor


def steps_of(lanes: Sequence[Lane], features: Tensor, width: int | None = None) -> Iterator[Step]:
    """The lanes' batches side by side, step by step, each as wide as its longest batch or as `width`."""
    num_steps = max(len(lane.batches) for lane in lanes)
    rows, weight, moves = padded_steps(lanes, num_steps, width, features)
    for k in range(num_steps):
        longest = width or max((len(lane.batches[k]) for lane in lanes if k < len(lane.batches)), default=0) or 1
        yield Step(rows[k, :, :longest], weight[k, :, :longest], moves[k])


def padded_steps(
    lanes: Sequence[Lane], num_steps: int, width: int | None, features: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and weights [steps, lanes, width] of the round, and who moves [steps, lanes], where the features lie.

    All steps of the round travel there at once, and what lanes share travels once.
    """
    first: dict[tuple[int, bool], int] = {}  # arms of one seed share batches
    which = [first.setdefault((id(lane.batches), lane.noise is None), len(first)) for lane in lanes]
    unlike = list(dict(zip(which, lanes, strict=True)).values())
    schedule = schedule_of(unlike, num_steps, width)
    in_whole = [lane.noise is not None for lane in unlike]
    chosen = torch.tensor(which, device=features.device)
    rows, weight, moves = (
        torch.from_numpy(each).to(features.device)[chosen].transpose(0, 1).contiguous()
        for each in (schedule.laid_out(schedule.rows), schedule.weights(in_whole), schedule.moves)
    )
    return rows, weight.to(features.dtype), moves.to(features.dtype)
