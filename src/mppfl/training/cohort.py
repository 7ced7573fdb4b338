"""All clients at once: chooses how, holds the examples where they are computed, and says what it chose.

dense      dense networks, gradients written out, clients in step               CPU and GPU
           (on a CPU those with few examples in the span of these: spanned.py)
batched    rows of layers, every layer with one kernel per client, in step      GPU
vmap       any module, clients in step by torch.func.vmap                       GPU
processes  the plain loop, one single-threaded process per core                 CPU
loop       the plain loop: what the others are held equal to                    CPU and GPU
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import numpy as np
import torch
from torch import Tensor, nn

from mppfl.errors import BadInput
from mppfl.network import find_device, free_bytes, to_device
from mppfl.training.captured import CapturedDescent
from mppfl.training.config import Engine, Precision, TrainingConfig
from mppfl.training.dense import AT_ONCE, DenseGradients, is_dense
from mppfl.training.flat import FlatModel, normalises_over_examples
from mppfl.training.layered import LayeredGradients, is_layered
from mppfl.training.local import Descent, Lane, local_update
from mppfl.training.lockstep import MOST_ENTRIES, LaneGradients, VmappedGradients, lockstep_updates
from mppfl.training.models import Stack
from mppfl.training.processes import Workers, can_travel
from mppfl.training.spanned import SpannedDescent
from mppfl.training.views import table_for

log = logging.getLogger(__name__)

SHARE_OF_MEMORY = 0.6  # of a GPU's free memory that a step may take


class Cohort:
    """Computes lanes on one device by one engine. Close it when done, or use `with`."""

    def __init__(
        self, model: FlatModel, features: np.ndarray, labels: np.ndarray, config: TrainingConfig, num_lanes: int
    ) -> None:
        self.model, self.config, self.num_lanes = model, config, num_lanes
        self.device = find_device(config.device)
        self.dtype = torch.float64 if config.precision == "float64" else torch.float32
        self.engine = choose_engine(model, config, self.device, num_lanes)
        placed = to_device(features, self.device).to(self.dtype), to_device(labels, self.device)
        self.table = table_for(config, *placed)
        model.module.to(self.device, self.dtype)
        if self.device.type == "cpu" and self.engine in ("loop", "processes") and isinstance(model.module, Stack):
            # Convolutions and pooling then take a third less time. Not for a module of the user's own, which may rely
            # on the order in memory, as `view` does.
            model.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.descent = Descent(config.learning_rate, config.momentum)
        self._gradients: LaneGradients | None = None
        self._workers: Workers | None = None
        processes = min(config.processes or os.cpu_count() or 1, num_lanes)
        if self.engine == "processes":
            self._workers = Workers(model, self.table, processes)
        elif self.engine == "dense":
            self._gradients = DenseGradients(model)
        elif self.engine == "vmap":
            self._gradients = VmappedGradients(model)
        elif self.engine == "batched":
            low = torch.bfloat16 if config.precision == "bf16" else None
            plain = not config.momentum and config.mechanism.noise_on == "update"
            self._gradients = LayeredGradients(model, low, self.device.type == "cuda", low is not None and plain)
        self.at_once = min(num_lanes, config.clients_at_once or AT_ONCE)
        self._captured: CapturedDescent | None = None
        self._spanned: SpannedDescent | None = None
        plain = not config.momentum and config.augmentation == "none"
        if isinstance(self._gradients, DenseGradients) and self.device.type == "cpu" and plain:
            self._spanned = SpannedDescent(model, self.table, config.learning_rate, self._gradients)
        seeded = config.mechanism.noise_on == "update" or config.noise == "seeded"
        records = self.engine == "batched" and self.device.type == "cuda" and seeded
        sampled = config.privacy in ("dpsgd_poisson", "full_batch", "full_batch_steps")  # batches of other lengths
        if records and not sampled and self._gradients is not None:
            self._captured = CapturedDescent(model, self.table, self.descent, self._gradients, config.batch_size)
        self._planned_for = 0  # examples in a step for which `at_once` was found
        self._processes = processes

    def updates(self, lanes: Sequence[Lane]) -> Tensor:
        """How far each lane's training moves its weights [lanes, parameters], on the cohort's device."""
        with arithmetic(self.config.precision, self.device):
            if self._workers is not None:
                return self._workers.updates(lanes, self.descent)
            if self._gradients is None:
                return torch.stack([local_update(self.model, lane, self.table, self.descent) for lane in lanes])
            if self._spanned is None:
                return self._in_step(lanes, self._gradients)
            return self._in_span(lanes, self._spanned, self._gradients)

    def server_arithmetic(self) -> AbstractContextManager[None]:
        """For what is done with the updates: float32 is full, and no threads are woken for next to nothing."""
        return arithmetic("float32", self.device)

    def _in_step(self, lanes: Sequence[Lane], gradients: LaneGradients) -> Tensor:
        """Lanes in groups of `at_once`; smaller groups where the GPU's memory does not suffice after all."""
        longest = _longest_batch(lanes)
        width = longest if self.engine == "batched" else None
        if self.config.clients_at_once is None and longest > self._planned_for:
            self._planned_for, self.at_once = longest, self._fitting(longest)
        found = torch.empty((len(lanes), self.model.num_parameters), device=self.device, dtype=self.dtype)
        done = 0
        while done < len(lanes):
            group = lanes[done : done + self.at_once]
            own = found[done : done + len(group)]
            try:
                if self._captured is not None:
                    self._captured.updates(group, _rounded_up(len(group), self.at_once), own)
                else:
                    lockstep_updates(self.model, group, self.table, self.descent, gradients, width, own)
                done += len(group)
            except torch.cuda.OutOfMemoryError:
                if self.at_once == 1:
                    raise
                self.at_once = max(1, self.at_once // 2)
                log.warning("out of GPU memory: %d clients at once from now on", self.at_once)
                if self._captured is not None:
                    self._captured.forget()
                torch.cuda.empty_cache()
        return found

    def _in_span(self, lanes: Sequence[Lane], spanned: SpannedDescent, gradients: LaneGradients) -> Tensor:
        """Lanes with few examples in the span of those, the others in step."""
        small = spanned.which_pay(lanes)
        if not small:
            return self._in_step(lanes, gradients)
        found = torch.empty((len(lanes), self.model.num_parameters), dtype=self.dtype)
        spanned.updates(lanes, small, self.config.clients_at_once, found)
        if others := sorted(set(range(len(lanes))) - set(small)):
            found[others] = self._in_step([lanes[at] for at in others], gradients)
        return found

    def _fitting(self, examples: int) -> int:
        """How many lanes fit into memory in step, with so many examples in each."""
        if self.device.type == "cpu":
            entries = examples * math.prod(self.table.features.shape[1:])
            return min(self.num_lanes, max(1, min(AT_ONCE, MOST_ENTRIES // max(1, entries))))
        free = free_bytes(self.device)
        per_lane = bytes_per_lane(self.model, tuple(self.table.features.shape[1:]), examples)
        return min(self.num_lanes, max(1, int(SHARE_OF_MEMORY * free / per_lane)))

    @property
    def name(self) -> str:
        """What computes the clients, in words."""
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        how = {"processes": f"{self._processes} processes", "loop": "one client at a time"}
        return f"{self.engine}, {where}, {self.config.precision}, " + how.get(
            self.engine, f"{self.at_once} clients at once"
        )

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> Cohort:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def choose_engine(model: FlatModel, config: TrainingConfig, device: torch.device, num_lanes: int) -> Engine:
    """The engine asked for, if it can do the work; for "auto" the fastest that can."""
    wanted, module = config.engine, model.module
    private = config.mechanism.noise_on != "update"
    mixes = normalises_over_examples(module)
    reasons: dict[str, str | None] = {
        "loop": None,
        "processes": "it computes on the CPU alone" if device.type != "cpu" else _cannot_travel(module),
        "dense": None if is_dense(module) else "the model is not Linear layers with ReLU between them",
        "batched": _not_batched(module, private),
        "vmap": "the model normalises over a batch, which padding would change" if mixes else None,
    }
    if model.draws_at_random:
        reasons |= dict.fromkeys(("dense", "batched", "vmap"), "the model has layers that draw at random")
    if config.precision == "bf16":
        reasons |= {name: "it computes in float32" for name in reasons if name != "batched" and reasons[name] is None}
    if wanted != "auto":
        if reasons[wanted] is not None:
            raise BadInput(f"engine={wanted!r} cannot run this training: {reasons[wanted]}. Use engine='auto'.")
        return wanted
    several = num_lanes > 1 and (config.processes or os.cpu_count() or 1) > 1
    order: list[Engine] = ["dense", "batched"] if device.type == "cuda" else ["dense"]
    if device.type == "cuda" and not private:
        order.append("vmap")  # with clipping it would hold every example's gradient in every lane
    if device.type == "cpu" and several:
        order.append("processes")
    for name in (*order, "loop", "batched"):
        if reasons[name] is None:
            return name
    raise BadInput(f"precision={config.precision!r} has no engine for this model. Use precision='float32'.")


def _longest_batch(lanes: Sequence[Lane]) -> int:
    """To which all batches are padded: a multiple of 8, so that sampled batches come in few shapes."""
    longest = max((len(batch) for lane in lanes for batch in lane.batches), default=1)
    return -(-longest // 8) * 8


def _rounded_up(count: int, most: int) -> int:
    """The least of `most`, most/2, most/4, ... that holds `count`: few sizes, so that recordings serve again."""
    while most > 1 and -(-most // 2) >= count:
        most = -(-most // 2)
    return most


def _cannot_travel(module: nn.Module) -> str | None:
    return None if can_travel(module) else "the model's class cannot be loaded by another process"


def _not_batched(module: nn.Module, private: bool) -> str | None:
    if not is_layered(module):
        return "the model is not a row of layers that it knows"
    return "the model normalises over the batch" if private and normalises_over_examples(module) else None


def bytes_per_lane(model: FlatModel, input_shape: tuple[int, ...], examples: int) -> int:
    """About what one lane takes in one step: weights and gradients, activations and the patches of convolutions."""
    entries = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal entries
        patch = math.prod(layer.kernel_size) if isinstance(layer, nn.Conv2d) else 1
        entries += 3 * output.numel() + patch * inputs[0].numel()

    device = next(model.module.parameters()).device
    hooks = [layer.register_forward_hook(count) for layer in model.module.modules() if not list(layer.children())]
    try:
        with torch.no_grad():
            model.module(torch.zeros((2, *input_shape), device=device, dtype=next(model.module.parameters()).dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return 4 * (5 * model.num_parameters + entries // 2 * examples)


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """One thread on a CPU, so that results do not depend on how many cores there are; TF32 only where asked for."""
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    tf32 = torch.backends.cudnn.allow_tf32
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        else:
            torch.set_float32_matmul_precision("high" if precision in ("tf32", "bf16") else "highest")
            torch.backends.cudnn.allow_tf32 = precision in ("tf32", "bf16")
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = tf32
