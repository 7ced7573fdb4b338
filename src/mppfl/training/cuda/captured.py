"""Steps of many slots recorded once as a CUDA graph and then replayed: the GPU never waits for Python.

A recorded step reads its batch at a counter that lies on the GPU and moves on with every replay. Slots stand in the
order of their length, so those that still have batches are always the first ones; as slots run out, shorter recordings
(seven eighths, six eighths, ... of the slots) take over, and no slot is computed long after its end.

Noise in gradients is seeded and drawn for all slots from one stream of the GPU: a simulation, whose noise depends on
who is computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mppfl.training import ClientSlot, Descent, FlatModel, Table
from mppfl.training.engines import SlotGradients, gpu_kernel, padded_steps, starts_of, write_updates

PARTS, FEW_PARTS = 8, 4  # recordings of fewer and fewer slots; each takes seconds to compile
MANY_SLOTS = 64  # from which on eight are worth it
WARM_UPS = 3  # runs before a recording, in which kernels are compiled and memory is found


@dataclass(eq=False, slots=True)
class _Buffers:
    """What all recordings of one number of slots share.

    rows, weight  [steps, slots, width] of the whole round
    moves         [steps, slots] 1 where the slot has a batch, else 0
    step          the number of the next step
    noise         [3, slots] of private slots: standard deviation on an answer; what sums are divided by before noise is
                  added, and after
    """

    rows: Tensor
    weight: Tensor
    moves: Tensor
    step: Tensor
    noise: Tensor
    parts: dict[str, Tensor]
    velocity: dict[str, Tensor]


class CapturedDescent:
    """Stochastic gradient descent of slots on one GPU, plain or with clipped examples and seeded noise in each step."""

    def __init__(self, model: FlatModel, table: Table, descent: Descent, gradients: SlotGradients, width: int) -> None:
        self.model, self.table, self.descent, self.gradients, self.width = model, table, descent, gradients, width
        self._buffers: dict[int, _Buffers] = {}
        self._graphs: dict[tuple[int, int, float | None], torch.cuda.CUDAGraph] = {}
        self._generator = torch.Generator(device=table.features.device)

    def updates(self, slots: Sequence[ClientSlot], padded_to: int, out: Tensor) -> None:
        """Writes the slots' updates to `out`; idle slots fill up to `padded_to`, so that recordings fit again."""
        order = sorted(range(len(slots)), key=lambda number: -len(slots[number].batches))
        sorted_slots = [slots[number] for number in order]
        starts = starts_of(sorted_slots)
        buffers = self._loaded(sorted_slots, starts, max(padded_to, len(slots)))
        noises = [slot.noise for slot in slots if slot.noise is not None]
        clip_norm = noises[0].clip_norm if noises else None
        lengths = [len(slot.batches) for slot in sorted_slots]
        recordings = [
            (self._graph(buffers, count, clip_norm), steps) for count, steps in stages(lengths, len(buffers.rows[0]))
        ]
        if noises:  # after recording, which draws too: a round has the same noise whether it was recorded before or not
            self._generator.manual_seed(sum(noise.next_seed() for noise in noises) % 2**62)
        for graph, steps in recordings:
            for _ in range(steps):
                graph.replay()
        parts = self.gradients.given({name: part[: len(slots)] for name, part in buffers.parts.items()})
        if order == list(range(len(slots))):
            write_updates(self.model, starts, parts, out)
        else:
            updates = torch.empty_like(out)
            write_updates(self.model, starts, parts, updates)
            out[torch.tensor(order, device=out.device)] = updates

    def forget(self) -> None:
        """Lets go of all recordings and their memory."""
        self._graphs, self._buffers = {}, {}

    def _loaded(self, slots: Sequence[ClientSlot], starts: Tensor, count: int) -> _Buffers:
        """The buffers for so many slots, holding this round's batches and starting weights."""
        num_steps = max(len(slot.batches) for slot in slots)
        buffers = self._buffers.get(count)
        device, dtype = self.table.features.device, self.table.features.dtype
        if buffers is None or len(buffers.rows) < num_steps:
            self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] != count}
            shape = (num_steps, count, self.width)
            idle = {
                name: torch.zeros((count, *size), device=device, dtype=dtype)
                for name, size in self.model.shapes.items()
            }
            parts = self.gradients.held(idle)
            momentum = self.descent.momentum
            buffers = _Buffers(
                torch.zeros(shape, device=device, dtype=torch.long),
                torch.zeros(shape, device=device, dtype=dtype),
                torch.zeros(shape[:2], device=device, dtype=dtype),
                torch.zeros((1,), device=device, dtype=torch.long),
                torch.ones((3, count), device=device, dtype=dtype),
                parts,
                {name: torch.zeros_like(part) for name, part in parts.items()} if momentum else {},
            )
            self._buffers[count] = buffers
        rows, weight, moves = padded_steps(slots, num_steps, self.width, self.table.features)
        buffers.rows[:num_steps, : len(slots)] = rows
        buffers.weight.zero_()
        buffers.weight[:num_steps, : len(slots)] = weight
        buffers.moves.zero_()
        buffers.moves[:num_steps, : len(slots)] = moves
        for number, slot in enumerate(slots):
            if slot.noise is not None:
                std = slot.noise.noise_std(self.model.num_parameters)
                buffers.noise[:, number] = torch.tensor([std, slot.noise.answer_divisor, slot.noise.step_divisor])
        self._rewind(buffers, starts)
        return buffers

    def _rewind(self, buffers: _Buffers, starts: Tensor) -> None:
        buffers.step.zero_()
        for name, part in self.gradients.held(self.model.parts(starts)).items():
            buffers.parts[name][: len(starts)] = part
        for velocity in buffers.velocity.values():
            velocity.zero_()

    def _graph(self, buffers: _Buffers, count: int, clip_norm: float | None) -> torch.cuda.CUDAGraph:
        """The recording of one step of the first `count` slots, made at its first use."""
        key = (buffers.rows.shape[1], count, clip_norm)
        if key in self._graphs:
            return self._graphs[key]
        saved = [tensor.clone() for tensor in self._changing(buffers)]
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UPS):
                buffers.step.zero_()  # a warm-up must not run past the last batch
                self._one_step(buffers, count, clip_norm)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        if clip_norm is not None:
            graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            self._one_step(buffers, count, clip_norm)
        for tensor, before in zip(self._changing(buffers), saved, strict=True):
            tensor.copy_(before)
        self._graphs[key] = graph
        return graph

    @staticmethod
    def _changing(buffers: _Buffers) -> list[Tensor]:
        return [buffers.step, *buffers.parts.values(), *buffers.velocity.values()]

    def _one_step(self, buffers: _Buffers, count: int, clip_norm: float | None) -> None:
        rows = buffers.rows.index_select(0, buffers.step)[0, :count]
        weight = buffers.weight.index_select(0, buffers.step)[0, :count]
        moves = buffers.moves.index_select(0, buffers.step)[0, :count]
        inputs, labels = self.table.at(rows)
        weights = {name: part[:count] for name, part in buffers.parts.items()}
        buffers.step.add_(1)
        if clip_norm is None and not buffers.velocity:  # a slot at its end has gradient 0
            self.gradients.descend(weights, inputs, labels, weight, self.descent.learning_rate)
            return
        direction = self.gradients(weights, inputs, labels, weight, clip_norm)
        pace = self.descent.learning_rate * moves
        for name, part in weights.items():
            if clip_norm is None:
                step = direction[name]
            elif not buffers.velocity and (descend_with_noise := _noise_kernel(part)):
                drawn, sums = self._drawn(part), direction[name].contiguous()
                descend_with_noise(part, sums, drawn, buffers.noise[:, :count], pace)
                continue
            else:
                std, before, after = (_over(row, part) for row in buffers.noise[:, :count])
                step = (direction[name] / before + std * self._drawn(part)) / after
            if buffers.velocity:
                step = buffers.velocity[name][:count].mul_(self.descent.momentum).add_(step)
            part.sub_(step * _over(pace, step))

    def _drawn(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self._generator, device=like.device, dtype=like.dtype)


def _noise_kernel(part: Tensor) -> Callable[..., Any] | None:
    return gpu_kernel("descend_with_noise") if part.is_cuda and part.dtype == torch.float32 else None


def _over(per_slot: Tensor, like: Tensor) -> Tensor:
    """One number per slot, shaped to multiply [slots, *shape]."""
    return per_slot.view(-1, *[1] * (like.ndim - 1))


def stages(lengths: list[int], most: int) -> list[tuple[int, int]]:
    """(slots computed, steps) one after another: of few sizes, the least that still holds everybody who moves.

    lengths  steps of each slot, the longest first
    most     slots there is room for
    """
    parts = PARTS if most >= MANY_SLOTS else FEW_PARTS
    sizes = sorted({max(1, -(-most * part // parts)) for part in range(1, parts + 1)}, reverse=True)
    counts, done = [], 0
    for number, size in enumerate(sizes):
        smaller = sizes[number + 1] if number + 1 < len(sizes) else 0
        until = lengths[smaller] if smaller < len(lengths) else done
        if until > done:
            counts.append((size, until - done))
            done = until
    return counts
