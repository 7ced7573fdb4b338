"""Engine "dense", alone: one of several ways. Gradients of dense networks for all slots at once, written out by hand.

For a network of linear layers the gradient of one example in one layer is the product of two vectors, δ aᵀ, so its
length is |δ||a| and clipping needs no per-example gradients (Goodfellow 2015, arXiv:1510.01799).

For clients with few examples `SpannedDescent` holds the first layer in the span of the client's own examples. Every
gradient of that layer is a sum of δ xᵀ over examples x, so after any number of steps its weights are

    W₀ + Cᵀ X,    X [examples, inputs] the client's own,  C [examples, outputs] what the steps have added up.

What a step needs of them, W x for the examples x of its batch, is W₀ x, computed once for all steps of the round, and a
product of C with the Gram matrix X Xᵀ, which stays the same in all rounds. A visit to an example then costs as many
products as the client has examples, not as the example has inputs. Results are those of the plain loop up to rounding.
Noise in every step would leave the span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mppfl.arrays import IntArray
from mppfl.training import (
    ClientSlot,
    FlatModel,
    Table,
    clip_factors,
    computes_as,
    is_plain_flatten,
    is_plain_row,
    warn_of_overflow,
)
from mppfl.training.engines.stacked import MOST_ENTRIES, NUM_LONG, Parts, Schedule, schedule_of, starts_of

AT_ONCE = 20  # slots in one call: more share its overhead; of many more, weights and examples leave the cache
IN_CACHE = 2**17  # entries in float64: 1 MB
FEW_CLASSES = 15  # which do not fill a vector register
WORTH = 1.1  # times the plain way's arithmetic may be spent: the weights of all slots are not copied and compared
ALIKE = 1.1  # times the visits of another: slots that step side by side, however many are multiplied at once
MOST_ALIKE = 500  # of them


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
        activations, errors = weighed(*self._forward(parts, inputs, labels), weight)
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
            squares = sum(
                squared_lengths(delta) * (squared_lengths(before) + (f"{name}.bias" in parts))
                for name, delta, before in zip(self.names, deltas, activations, strict=True)
            )
            norms = torch.as_tensor(squares).sqrt()
            factors = clip_factors(norms, clip_norm, weight.shape[1])
            num_long = ((factors < 1) & (weight > 0)).sum(1, keepdim=True)
            factors = factors * weight
            if warn_of_overflow(norms):  # 0 times infinity is no number
                deltas, activations = (
                    [torch.where(factors[..., None] > 0, tensor, 0.0) for tensor in tensors]
                    for tensors in (deltas, activations)
                )
            deltas = [delta * factors[..., None] for delta in deltas]
        gradients: Parts = {} if clip_norm is None else {NUM_LONG: num_long}
        for name, delta, before in zip(self.names, deltas, activations, strict=True):
            gradients[f"{name}.weight"] = sums_of_products(before, delta)
            if f"{name}.bias" in parts:
                gradients[f"{name}.bias"] = delta.sum(1)
        return gradients

    def _forward(self, parts: Parts, inputs: Tensor, labels: Tensor) -> tuple[list[Tensor], Tensor]:
        """What goes into each layer [slots, examples, width], and the error at the end: probabilities minus truth."""
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
    """What went into each layer and the errors at the end, those times the weight of each example [slots, examples].

    An example of weight 0 is padding, whose numbers may overflow where those of the slot itself never do, and 0 times
    infinity is no number. Nobody diverges by its padding, that is by how long others train.
    """
    if errors.is_cuda or bool(errors.sum().isnan()):
        inputs, *hidden = activations
        counts = weight[..., None] > 0
        activations = [inputs, *(torch.where(counts, before, 0.0) for before in hidden)]
        errors = torch.where(counts, errors, 0.0)
    return activations, errors * weight[..., None]


def squared_lengths(vectors: Tensor) -> Tensor:
    """Of vectors [slots, examples, width], in float64 as `rounding_guard` asks for."""
    rows = vectors.flatten(0, 1)
    parts = torch.split(rows, _at_once(rows))
    return torch.cat([part.double().square().sum(1) for part in parts]).view(vectors.shape[:2])


def sums_of_products(before: Tensor, delta: Tensor) -> Tensor:
    """Σ a δᵀ over the examples of each slot [slots, inputs, outputs], in the precision of δ, which is no lower."""
    at_once = _at_once(before[0])
    if before.dtype == delta.dtype or before.shape[1] <= at_once:
        return torch.bmm(before.to(delta.dtype).mT, delta)
    sums = delta.new_zeros((len(before), before.shape[2], delta.shape[2]))
    for total, inputs, errors in zip(sums, before, delta, strict=True):
        for rows, row_errors in zip(torch.split(inputs, at_once), torch.split(errors, at_once), strict=True):
            total.addmm_(rows.to(delta.dtype).mT, row_errors)
    return sums


def _at_once(rows: Tensor) -> int:
    """Rows that are copied to float64 at once: on a CPU as many as its cache holds, which takes a fifth of the time."""
    return len(rows) if rows.is_cuda else max(1, IN_CACHE // rows.shape[1])


def _softmax(out: Tensor) -> Tensor:
    """Over the last dimension. In steps on a CPU, where the operator takes three times as long for a few classes."""
    if out.is_cuda or out.shape[-1] > FEW_CLASSES:
        return torch.softmax(out, -1)
    exponentials = (out - out.amax(-1, keepdim=True)).exp_()
    return exponentials.div_(exponentials.sum(-1, keepdim=True))


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
    """A copy of its own for every slot; what all slots share is brought into order once."""
    if part.stride(0) == 0:
        return part[0].contiguous().expand(part.shape).clone(memory_format=torch.contiguous_format)
    return part.clone(memory_format=torch.contiguous_format)


# ---- the span of a client's own examples --------------------------------------------------------------------------


class SpannedDescent:
    """Plain stochastic gradient descent of slots on a CPU, the first layer held as C.

    Keeps the Gram matrices of its clients, which have no more entries than the table of examples.
    """

    def __init__(self, model: FlatModel, table: Table, learning_rate: float, gradients: DenseGradients) -> None:
        self.model, self.learning_rate, self.gradients = model, learning_rate, gradients
        self.features, self.labels = table.features.flatten(1), table.labels
        self.weight, self.bias = (f"{gradients.names[0]}.{part}" for part in ("weight", "bias"))
        # No abs(): it would take as much memory as the examples once more.
        largest = max(map(abs, self.features.aminmax())).item() if self.features.numel() else 0.0
        self.is_tame = self.features.shape[1] * largest**2 < torch.finfo(self.features.dtype).max  # products are finite
        self._grams: dict[bytes, Tensor] = {}  # by the client's rows
        self._kept = 0  # their entries

    def which_pay(self, slots: Sequence[ClientSlot]) -> list[int]:
        """The slots that are computed faster so, those with few visits first: slots of one group are padded alike."""
        if not self.is_tame:
            return []
        chosen = [
            number
            for number, slot in enumerate(slots)
            if slot.noise is None and is_less_work(slot.num_visits, slot.epochs, self.features.shape[1])
        ]
        return sorted(chosen, key=lambda number: slots[number].num_visits)

    def updates(self, slots: Sequence[ClientSlot], chosen: Sequence[int], at_once: int | None, out: Tensor) -> None:
        """Writes the updates of the chosen slots to their rows of `out` [slots, parameters].

        chosen   those with few visits first
        at_once  how many in a group; None for as many as are alike and fit
        """
        visits = [slots[number].num_visits for number in chosen]
        done = 0
        while done < len(chosen):
            group = chosen[done : done + self._together(visits[done:], at_once)]
            first, some = group[0], [slots[number] for number in group]
            if group == list(range(first, first + len(group))):
                self._write(some, out[first : first + len(group)])
            else:
                rows = torch.empty((len(group), out.shape[1]), dtype=out.dtype)
                self._write(some, rows)
                out[torch.tensor(group)] = rows
            done += len(group)

    def _together(self, visits: Sequence[int], at_once: int | None) -> int:
        """How many of slots with so many visits, the fewest first, make the next group."""
        if at_once is None:
            alike = bisect_right(visits, ALIKE * visits[0], hi=min(len(visits), MOST_ALIKE))
            at_once = max(alike, AT_ONCE)
        longest = visits[min(at_once, len(visits)) - 1]
        return min(at_once, max(1, MOST_ENTRIES // (longest * self.features.shape[1])))

    def _write(self, slots: Sequence[ClientSlot], out: Tensor) -> None:
        starts, moved = self.model.parts(starts_of(slots)), self.model.parts(out)
        schedule = schedule_of(slots, max(len(slot.batches) for slot in slots))
        rows, counts, position = own_examples(schedule)
        weights = starts[self.weight]
        is_shared = weights.stride(0) == 0  # by all slots, whose examples then are rows of one product
        turned = weights.mT if is_shared else weights.mT.contiguous()
        inputs = torch.empty((*rows.shape, weights.shape[2]), dtype=weights.dtype)
        at_start = torch.empty((*rows.shape, weights.shape[1]), dtype=weights.dtype)
        blocks = [slice(first, first + AT_ONCE) for first in range(0, len(slots), AT_ONCE)]
        for block in blocks:
            flat = inputs[block].view(-1, inputs.shape[2])
            torch.index_select(self.features, 0, torch.from_numpy(rows[block].reshape(-1)), out=flat)
            if is_shared:
                torch.mm(flat, turned[0], out=at_start[block].view(len(flat), -1))
            else:
                torch.bmm(inputs[block], turned[block], out=at_start[block])
        if self.bias in starts:
            at_start += starts[self.bias][:, None]
        later = {name: part for name, part in starts.items() if name not in (self.weight, self.bias)}
        held = self.gradients.held(later)
        added = self._descend(held, at_start, self._grams_of(rows, counts, inputs), schedule, position)
        for block in blocks:
            torch.bmm(added[block].mT, inputs[block], out=moved[self.weight][block])
        if self.bias in moved:
            torch.sum(added, 1, out=moved[self.bias])
        for name, part in self.gradients.given(held).items():
            torch.sub(part, later[name], out=moved[name])

    def _descend(self, parts: Parts, at_start: Tensor, grams: Tensor, schedule: Schedule, position: IntArray) -> Tensor:
        """C of all slots after the round [slots, examples, outputs]; `parts`, the later layers, move in place."""
        num_slots, examples, outputs = at_start.shape
        positions, rows, shares = (
            torch.from_numpy(layout).transpose(0, 1).contiguous()  # [steps, slots, width]
            for layout in (
                schedule.laid_out(schedule.slot * examples + position),
                schedule.laid_out(schedule.rows),
                schedule.weights([False] * num_slots),
            )
        )
        added = torch.zeros_like(at_start)
        for visited, row, share in zip(positions.flatten(1), rows, shares.to(at_start), strict=True):
            out = at_start.view(-1, outputs).index_select(0, visited).view(num_slots, -1, outputs)
            out.baddbmm_(grams.view(-1, examples).index_select(0, visited).view(num_slots, -1, examples), added)
            activations, errors = weighed(*self.gradients.onward(parts, out, out, self.labels[row]), share)
            first, *deltas = self.gradients.backward(parts, activations, errors)
            added.view(-1, outputs).index_add_(0, visited, first.reshape(-1, outputs), alpha=-self.learning_rate)
            for name, delta, before in zip(self.gradients.names[1:], deltas, activations[1:], strict=True):
                move_layer(parts, name, delta, before, self.learning_rate)
        return added

    def _grams_of(self, rows: IntArray, counts: IntArray, inputs: Tensor) -> Tensor:
        """X Xᵀ of every slot [slots, examples, examples], plus 1 where a bias moves along with the weights."""
        grams = [self._gram(row[:n], examples[:n]) for row, n, examples in zip(rows, counts, inputs, strict=True)]
        if counts.min() == counts.max():
            return torch.stack(grams)
        padded = torch.zeros((*rows.shape, rows.shape[1]), dtype=inputs.dtype)
        for target, gram in zip(padded, grams, strict=True):
            target[: len(gram), : len(gram)] = gram
        return padded

    def _gram(self, rows: IntArray, examples: Tensor) -> Tensor:
        key = rows.tobytes()
        if key not in self._grams:
            gram = examples @ examples.mT + (self.bias in self.model.shapes)
            # Where clients have other examples in every round, or are very many, those of before are let go.
            if self._kept + gram.numel() > min(self.features.numel(), MOST_ENTRIES):
                self._grams, self._kept = {}, 0
            self._grams[key] = gram
            self._kept += gram.numel()
        return self._grams[key]


def is_less_work(visits: int, epochs: int, num_inputs: int) -> bool:
    """Whether so many visits cost less in the span, the Gram matrix being no larger than the examples themselves."""
    examples = visits / epochs
    in_span, plainly = examples * (4 * num_inputs + 2 * visits), 4 * visits * num_inputs
    return 0 < examples <= num_inputs and in_span <= WORTH * plainly


def own_examples(schedule: Schedule) -> tuple[IntArray, IntArray, IntArray]:
    """Each slot's own rows of the table [slots, examples], how many they are [slots], and at which of them a visit is.

    Padding repeats a slot's first row.
    """
    num_slots, most = len(schedule.moves), int(schedule.rows.max()) + 1
    distinct, which = np.unique(schedule.slot * most + schedule.rows, return_inverse=True)
    slot, row = np.divmod(distinct, most)
    counts = np.bincount(slot, minlength=num_slots)
    before = np.cumsum(counts) - counts
    rows = np.repeat(row[before][:, None], counts.max(), axis=1)
    rows[slot, np.arange(len(distinct)) - before[slot]] = row
    return rows, counts, which - before[schedule.slot]
