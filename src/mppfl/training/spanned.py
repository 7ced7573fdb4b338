"""Dense clients with few examples: the first layer moves within the span of the client's own examples.

Every gradient of the first layer is a sum of δ xᵀ over examples x, so after any number of steps its weights are

    W₀ + Cᵀ X,    X [examples, inputs] the client's own,  C [examples, outputs] what the steps have added up.

What a step needs of them, W x for the examples x of its batch, is W₀ x, found once for all steps of the round, and a
product of C with the Gram matrix X Xᵀ, which stays the same in all rounds. A look at an example then costs as many
products as the client has examples, not as the example has inputs. Results are those of the plain loop up to rounding.
Noise in every step would leave the span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import IntArray
from mppfl.training.dense import AT_ONCE, DenseGradients, move_layer, weighed
from mppfl.training.flat import FlatModel
from mppfl.training.local import Lane, Table
from mppfl.training.lockstep import MOST_ENTRIES, Parts, starts_of
from mppfl.training.schedule import Schedule, schedule_of

WORTH = 1.1  # times the plain way's arithmetic may be spent: the weights of all lanes are not copied and compared
ALIKE = 1.1  # times the looks of another: lanes that step side by side, however many are multiplied at once
MOST_ALIKE = 500  # of them


class SpannedDescent:
    """Plain stochastic gradient descent of lanes on a CPU, the first layer held as C.

    Keeps the Gram matrices of its clients, which have no more entries than the table of examples.
    """

    def __init__(self, model: FlatModel, table: Table, learning_rate: float, gradients: DenseGradients) -> None:
        self.model, self.learning_rate, self.gradients = model, learning_rate, gradients
        self.features, self.labels = table.features.flatten(1), table.labels
        self.weight, self.bias = (f"{gradients.names[0]}.{part}" for part in ("weight", "bias"))
        largest = float(self.features.abs().max()) if self.features.numel() else 0.0
        self.is_tame = self.features.shape[1] * largest**2 < torch.finfo(self.features.dtype).max  # products are finite
        self._grams: dict[bytes, Tensor] = {}  # by the client's rows
        self._kept = 0  # their entries

    def which_pay(self, lanes: Sequence[Lane]) -> list[int]:
        """The lanes that are computed faster so, those with few looks first: lanes of one group are padded alike."""
        if not self.is_tame:
            return []
        looks = [sum(map(len, lane.batches)) for lane in lanes]
        chosen = [
            at
            for at, lane in enumerate(lanes)
            if lane.noise is None and is_less_work(looks[at], lane.epochs, self.features.shape[1])
        ]
        return sorted(chosen, key=lambda at: looks[at])

    def updates(self, lanes: Sequence[Lane], chosen: Sequence[int], at_once: int | None, out: Tensor) -> None:
        """Writes the updates of the chosen lanes to their rows of `out` [lanes, parameters].

        chosen   those with few looks first
        at_once  how many in a group; None for as many as are alike and fit
        """
        looks = [sum(map(len, lanes[at].batches)) for at in chosen]
        done = 0
        while done < len(chosen):
            group = chosen[done : done + self._together(looks[done:], at_once)]
            first, some = group[0], [lanes[at] for at in group]
            if group == list(range(first, first + len(group))):
                self._write(some, out[first : first + len(group)])
            else:
                found = torch.empty((len(group), out.shape[1]), dtype=out.dtype)
                self._write(some, found)
                out[torch.tensor(group)] = found
            done += len(group)

    def _together(self, looks: Sequence[int], at_once: int | None) -> int:
        """How many of lanes with so many looks, the fewest first, make the next group."""
        if at_once is None:
            alike = bisect_right(looks, ALIKE * looks[0], hi=min(len(looks), MOST_ALIKE))
            at_once = max(alike, AT_ONCE)
        longest = looks[min(at_once, len(looks)) - 1]
        return min(at_once, max(1, MOST_ENTRIES // (longest * self.features.shape[1])))

    def _write(self, lanes: Sequence[Lane], out: Tensor) -> None:
        starts, moved = self.model.parts(starts_of(lanes)), self.model.parts(out)
        schedule = schedule_of(lanes, max(len(lane.batches) for lane in lanes))
        own, counts, position = own_examples(schedule)
        weights = starts[self.weight]
        is_shared = weights.stride(0) == 0  # by all lanes, whose examples then are rows of one product
        turned = weights.mT if is_shared else weights.mT.contiguous()
        inputs = torch.empty((*own.shape, weights.shape[2]), dtype=weights.dtype)
        at_start = torch.empty((*own.shape, weights.shape[1]), dtype=weights.dtype)
        some = [slice(first, first + AT_ONCE) for first in range(0, len(lanes), AT_ONCE)]
        for at in some:
            flat = inputs[at].view(-1, inputs.shape[2])
            torch.index_select(self.features, 0, torch.from_numpy(own[at].reshape(-1)), out=flat)
            if is_shared:
                torch.mm(flat, turned[0], out=at_start[at].view(len(flat), -1))
            else:
                torch.bmm(inputs[at], turned[at], out=at_start[at])
        if self.bias in starts:
            at_start += starts[self.bias][:, None]
        later = {name: part for name, part in starts.items() if name not in (self.weight, self.bias)}
        held = self.gradients.held(later)
        added = self._descend(held, at_start, self._grams_of(own, counts, inputs), schedule, position)
        for at in some:
            torch.bmm(added[at].mT, inputs[at], out=moved[self.weight][at])
        if self.bias in moved:
            torch.sum(added, 1, out=moved[self.bias])
        for name, part in self.gradients.given(held).items():
            torch.sub(part, later[name], out=moved[name])

    def _descend(self, parts: Parts, at_start: Tensor, grams: Tensor, schedule: Schedule, position: IntArray) -> Tensor:
        """C of all lanes after the round [lanes, examples, outputs]; `parts`, the later layers, move in place."""
        lanes, examples, outputs = at_start.shape
        places, rows, shares = (
            torch.from_numpy(each).transpose(0, 1).contiguous()  # [steps, lanes, width]
            for each in (
                schedule.laid_out(schedule.lane * examples + position),
                schedule.laid_out(schedule.rows),
                schedule.weights([False] * lanes),
            )
        )
        added = torch.zeros_like(at_start)
        for at, row, share in zip(places.flatten(1), rows, shares.to(at_start), strict=True):
            out = at_start.view(-1, outputs).index_select(0, at).view(lanes, -1, outputs)
            out.baddbmm_(grams.view(-1, examples).index_select(0, at).view(lanes, -1, examples), added)
            activations, errors = weighed(*self.gradients.onward(parts, out, out, self.labels[row]), share)
            first, *deltas = self.gradients.backward(parts, activations, errors)
            added.view(-1, outputs).index_add_(0, at, first.reshape(-1, outputs), alpha=-self.learning_rate)
            for name, delta, before in zip(self.gradients.names[1:], deltas, activations[1:], strict=True):
                move_layer(parts, name, delta, before, self.learning_rate)
        return added

    def _grams_of(self, own: IntArray, counts: IntArray, inputs: Tensor) -> Tensor:
        """X Xᵀ of every lane [lanes, examples, examples], plus 1 where a bias moves along with the weights."""
        lanes = zip(own, counts.tolist(), inputs, strict=True)
        several = [self._gram(rows[:count], examples[:count]) for rows, count, examples in lanes]
        if counts.min() == counts.max():
            return torch.stack(several)
        found = torch.zeros((*own.shape, own.shape[1]), dtype=inputs.dtype)
        for place, gram in zip(found, several, strict=True):
            place[: len(gram), : len(gram)] = gram
        return found

    def _gram(self, rows: IntArray, examples: Tensor) -> Tensor:
        key = rows.tobytes()
        if key not in self._grams:
            gram = examples @ examples.mT + (self.bias in self.model.shapes)
            if self._kept + gram.numel() > self.features.numel():  # clients have other examples in every round
                self._grams, self._kept = {}, 0
            self._grams[key] = gram
            self._kept += gram.numel()
        return self._grams[key]


def is_less_work(looks: int, epochs: int, num_inputs: int) -> bool:
    """Whether so many looks cost less in the span, the Gram matrix being no larger than the examples themselves."""
    examples = looks / epochs
    in_span, plainly = examples * (4 * num_inputs + 2 * looks), 4 * looks * num_inputs
    return 0 < examples <= num_inputs and in_span <= WORTH * plainly


def own_examples(schedule: Schedule) -> tuple[IntArray, IntArray, IntArray]:
    """Each lane's own rows of the table [lanes, examples], how many they are [lanes], and at which of them a look is.

    Padding repeats a lane's first row.
    """
    num_lanes, most = len(schedule.moves), int(schedule.rows.max()) + 1
    seen, which = np.unique(schedule.lane * most + schedule.rows, return_inverse=True)
    lane, row = np.divmod(seen, most)
    counts = np.bincount(lane, minlength=num_lanes)
    before = np.cumsum(counts) - counts
    own = np.repeat(row[before][:, None], counts.max(), axis=1)
    own[lane, np.arange(len(seen)) - before[lane]] = row
    return own, counts, which - before[schedule.lane]
