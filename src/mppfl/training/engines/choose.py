"""Engine: all clients of a round at once. Chooses how, holds the examples where they are computed, says what it chose.

dense      dense networks, gradients written out, clients in step               CPU and GPU
           (on a CPU those with few examples in the span of these)
batched    rows of layers, every layer with one kernel per client, in step      GPU
vmap       any module, clients in step by torch.func.vmap                       GPU
processes  the plain loop, one single-threaded process per core                 CPU
loop       the plain loop: what the others are held equal to                    CPU and GPU
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from itertools import islice

import joblib
import numpy as np
import torch
from joblib.externals.loky import get_reusable_executor
from torch import Tensor, nn

from mppfl.arrays import Array
from mppfl.device import find_device, free_bytes, to_device
from mppfl.errors import BadInput, MppflError
from mppfl.training import (
    ClientSlot,
    Descent,
    EngineName,
    FlatModel,
    Precision,
    Stack,
    Table,
    TrainingConfig,
    as_array,
    flat_model,
    local_update,
    normalises_over_examples,
    table_for,
)
from mppfl.training.cuda import CapturedDescent
from mppfl.training.engines.dense import AT_ONCE, DenseGradients, SpannedDescent, is_dense
from mppfl.training.engines.layered import LayeredGradients, is_layered
from mppfl.training.engines.stacked import MOST_ENTRIES, SlotGradients, VmappedGradients, stacked_updates

GROUPS_PER_PROCESS = 2  # of clients, which travel together: more share the work better, fewer carry less
IDLE_SECONDS = 300  # after which processes end; starting one takes seconds


def can_travel(module: nn.Module) -> bool:
    """Whether another process can load the module: its classes must lie in importable files."""
    if any(type(layer).__module__ == "__main__" for layer in module.modules()):
        return False
    try:
        pickle.dumps(module)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return False
    return True


class WorkerProcesses:
    """Computes slots in `count` processes. Its file goes when it goes."""

    def __init__(self, model: FlatModel, table: Table, count: int) -> None:
        self.count = count
        try:
            folder = tempfile.mkdtemp(prefix="mppfl-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._file = f"{folder}/model_and_examples"
            joblib.dump((model.module, type(table), as_array(table.features), as_array(table.labels)), self._file)
        except OSError as cause:
            raise MppflError(
                f"the examples could not be written for worker processes: {cause}. Use engine='loop', or free some "
                f"room in {tempfile.gettempdir()}."
            ) from cause

    def updates(self, slots: Sequence[ClientSlot], descent: Descent, out: Tensor) -> None:
        """Writes the updates of all slots to `out`, the longest slots first so that no core waits at the end."""
        longest_first = sorted(range(len(slots)), key=lambda number: -slots[number].num_visits)
        num_groups = min(len(slots), GROUPS_PER_PROCESS * self.count)
        groups = [longest_first[first::num_groups] for first in range(num_groups)]
        members = [[slots[number] for number in group] for group in groups]
        try:
            executor = get_reusable_executor(max_workers=self.count, timeout=IDLE_SECONDS)
            answers = list(executor.map(partial(_updates_of_group, self._file, descent), members))
        except BrokenProcessPool as cause:
            raise MppflError(
                "a worker process ended in the middle of a round, perhaps because memory ran out. Use fewer "
                "processes; a training with checkpoints goes on with --resume."
            ) from cause
        for group, rows in zip(groups, answers, strict=True):
            for number, row in zip(group, rows, strict=True):
                out[number] = torch.from_numpy(row)


@lru_cache(maxsize=1)
def _loaded(file: str) -> tuple[FlatModel, Table]:
    # Copy-on-write maps: all processes share the pages of the file, and PyTorch may have its writable tensor.
    module, kind, features, labels = joblib.load(file, mmap_mode="c")
    return flat_model(module), kind(torch.from_numpy(features), torch.from_numpy(labels))


def _updates_of_group(file: str, descent: Descent, slots: list[ClientSlot]) -> list[Array]:
    torch.set_num_threads(1)
    model, table = _loaded(file)
    return [as_array(local_update(model, slot, table, descent)) for slot in slots]


# ---- Engine: all clients of a round at once. Chooses how, holds the examples where they are computed -----------------

# dense      dense networks, gradients written out, clients in step               CPU and GPU
#            (on a CPU those with few examples in the span of these)
# batched    rows of layers, every layer with one kernel per client, in step      GPU
# vmap       any module, clients in step by torch.func.vmap                       GPU
# processes  the plain loop, one single-threaded process per core                 CPU
# loop       the plain loop: what the others are held equal to                    CPU and GPU

log = logging.getLogger(__name__)

HELD = 2**26  # entries of updates at once: 256 MB in float32
SHARE_OF_MEMORY = 0.6  # of a GPU's free memory that a step may take


class Engine:
    """Computes client slots on one device, by the way that `choose_engine` chose."""

    def __init__(
        self, model: FlatModel, features: np.ndarray, labels: np.ndarray, config: TrainingConfig, num_slots: int
    ) -> None:
        self.model, self.config, self.num_slots = model, config, num_slots
        self.device = find_device(config.device)
        self.dtype = torch.float64 if config.precision == "float64" else torch.float32
        self.chosen = choose_engine(model, config, self.device, num_slots)
        self.table = table_for(
            config, to_device(features, self.device).to(self.dtype), to_device(labels, self.device)
        )  # fmt: skip
        model.module.to(self.device, self.dtype)
        if self.device.type == "cpu" and self.chosen in ("loop", "processes") and isinstance(model.module, Stack):
            # Convolutions and pooling then take a third less time. Not for a module of the user's own, which may rely
            # on the order in memory, as `view` does.
            model.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.descent = Descent(config.learning_rate, config.momentum)
        self.at_once = min(num_slots, config.clients_at_once or AT_ONCE)
        self.num_processes = min(config.processes or os.cpu_count() or 1, num_slots)
        self._workers: WorkerProcesses | None = None
        if self.chosen == "processes":
            self._workers = WorkerProcesses(model, self.table, self.num_processes)
        self._planned_for = 0  # examples in a step for which `at_once` was chosen
        self._gradients = self._slot_gradients()
        self._captured, self._spanned = self._captured_descent(), self._spanned_descent()

    def _slot_gradients(self) -> SlotGradients | None:
        if self.chosen == "dense":
            return DenseGradients(self.model)
        if self.chosen == "vmap":
            return VmappedGradients(self.model)
        if self.chosen != "batched":
            return None
        low = torch.bfloat16 if self.config.precision == "bf16" else None
        plain = not self.config.momentum and not self.config.protection.clips_examples
        return LayeredGradients(self.model, low, self.device.type == "cuda", low is not None and plain)

    def _captured_descent(self) -> CapturedDescent | None:
        """Recorded steps on a GPU, for batches of one length, where noise need not protect."""
        protection = self.config.protection
        seeded = not protection.clips_examples or protection.is_simulated
        one_length = not protection.clips_examples or protection.batches == "shuffled"
        if self._gradients is None or self.chosen != "batched" or self.device.type != "cuda":
            return None
        if not seeded or not one_length:
            return None
        return CapturedDescent(self.model, self.table, self.descent, self._gradients, self.config.batch_size)

    def _spanned_descent(self) -> SpannedDescent | None:
        plain = not self.config.momentum and self.config.augmentation == "none"
        if not plain or self.device.type != "cpu" or not isinstance(self._gradients, DenseGradients):
            return None
        return SpannedDescent(self.model, self.table, self.config.learning_rate, self._gradients)

    def updates(self, slots: Iterable[ClientSlot]) -> Iterator[Tensor]:
        """What each slot's round gives (`local_update`), on the engine's device: some slots after others.

        Holds at most HELD entries, or the slots that are computed at once: the next rows take the place of the last.
        Slots are taken as they are computed, so there need not be more of them at a time.
        """
        size = self.model.num_parameters
        at_once = max(self.at_once, HELD // size, 1)
        dtype = self.dtype
        if self.config.protection.release == "gradient":
            dtype, size = torch.float64, self.config.protection.num_entries(size)
        coming, held = iter(slots), None
        while group := list(islice(coming, at_once)):
            held = torch.empty((len(group), size), device=self.device, dtype=dtype) if held is None else held
            rows = held[: len(group)]
            with arithmetic(self.config.precision, self.device):
                self._write(group, rows)
            yield rows

    def _write(self, slots: Sequence[ClientSlot], out: Tensor) -> None:
        if self._workers is not None:
            self._workers.updates(slots, self.descent, out)
        elif self._gradients is None:
            for slot, row in zip(slots, out, strict=True):
                row.copy_(local_update(self.model, slot, self.table, self.descent))
        elif self._spanned is None:
            self._in_step(slots, self._gradients, out)
        else:
            self._in_span(slots, self._spanned, self._gradients, out)

    def server_arithmetic(self) -> AbstractContextManager[None]:
        """For what is done with the updates: float32 is full, and no threads are woken for next to nothing."""
        return arithmetic("float32", self.device)

    def _in_step(self, slots: Sequence[ClientSlot], gradients: SlotGradients, updates: Tensor) -> None:
        """Slots in groups of `at_once`; smaller groups where the GPU's memory does not suffice after all."""
        longest = max((len(batch) for slot in slots for batch in slot.batches), default=1)
        longest = -(-longest // 8) * 8  # sampled batches then come in few shapes
        width = longest if self.chosen == "batched" else None
        if self.config.clients_at_once is None and longest > self._planned_for:
            self._planned_for, self.at_once = longest, self._fitting(longest)
        done = 0
        while done < len(slots):
            group = slots[done : done + self.at_once]
            rows = updates[done : done + len(group)]
            try:
                if self._captured is not None:
                    self._captured.updates(group, _rounded_up(len(group), self.at_once), rows)
                else:
                    stacked_updates(self.model, group, self.table, self.descent, gradients, width, rows)
                done += len(group)
            except torch.cuda.OutOfMemoryError:
                if self.at_once == 1:
                    raise
                self.at_once = max(1, self.at_once // 2)
                log.warning("out of GPU memory: %d clients at once from now on", self.at_once)
                if self._captured is not None:
                    self._captured.forget()
                torch.cuda.empty_cache()

    def _in_span(
        self, slots: Sequence[ClientSlot], spanned: SpannedDescent, gradients: SlotGradients, out: Tensor
    ) -> None:
        """Slots with few examples in the span of those, the others in step."""
        small = spanned.which_pay(slots)
        if small:
            spanned.updates(slots, small, self.config.clients_at_once, out)
        if not small:
            self._in_step(slots, gradients, out)
        elif others := sorted(set(range(len(slots))) - set(small)):
            rows = torch.empty_like(out[: len(others)])
            self._in_step([slots[number] for number in others], gradients, rows)
            out[others] = rows

    def _fitting(self, examples: int) -> int:
        """How many slots fit into memory in step, with so many examples in each."""
        input_shape = tuple(self.table.features.shape[1:])
        if self.device.type == "cpu":
            fitting = min(AT_ONCE, MOST_ENTRIES // max(1, examples * math.prod(input_shape)))
        else:
            per_slot = bytes_per_slot(self.model, input_shape, examples)
            fitting = int(SHARE_OF_MEMORY * free_bytes(self.device) / per_slot)
        return min(self.num_slots, max(1, fitting))

    @property
    def name(self) -> str:
        """What computes the clients, in words."""
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        how = {"processes": f"{self.num_processes} processes", "loop": "one client at a time"}
        at_once = how.get(self.chosen, f"{self.at_once} clients at once")
        return f"{self.chosen}, {where}, {self.config.precision}, {at_once}"


def choose_engine(model: FlatModel, config: TrainingConfig, device: torch.device, num_slots: int) -> EngineName:
    """The engine asked for, if it can do the work; for "auto" the fastest that can."""
    private = config.protection.clips_examples
    if config.engine != "auto":
        if reason := _reason_against(config.engine, model, config, device):
            raise BadInput(f"engine={config.engine!r} cannot run this training: {reason}. Use engine='auto'.")
        return config.engine
    several = num_slots > 1 and (config.processes or os.cpu_count() or 1) > 1
    order: list[EngineName] = ["dense", "batched"] if device.type == "cuda" else ["dense"]
    if device.type == "cuda" and not private:
        order.append("vmap")  # with clipping it would hold every example's gradient in every slot
    if device.type == "cpu" and several:
        order.append("processes")
    for name in (*order, "loop", "batched"):
        if _reason_against(name, model, config, device) is None:
            return name
    raise BadInput(f"precision={config.precision!r} has no engine for this model. Use precision='float32'.")


def _reason_against(name: str, model: FlatModel, config: TrainingConfig, device: torch.device) -> str | None:
    """Why this engine cannot run this training; None where it can."""
    if name != "batched" and config.precision == "bf16":
        return "it computes in float32"
    if name == "processes" and device.type != "cpu":
        return "it computes on the CPU alone"
    if name == "processes" and not can_travel(model.module):
        return "the model's class cannot be loaded by another process"
    return None if name in ("loop", "processes") else _reason_against_step(name, model, config)


def _reason_against_step(name: str, model: FlatModel, config: TrainingConfig) -> str | None:
    """The same for engines that compute clients in step."""
    module, mixes = model.module, normalises_over_examples(model.module)
    if model.draws_at_random:
        return "the model has layers that draw at random"
    if name == "dense":
        return None if is_dense(module) else "the model is not Linear layers with ReLU between them"
    if name == "vmap":
        return "the model normalises over a batch, which padding would change" if mixes else None
    if not is_layered(module):
        return "the model is not a row of layers that it knows"
    return "the model normalises over the batch" if mixes and config.protection.clips_examples else None


def _rounded_up(count: int, most: int) -> int:
    """The least of `most`, most/2, most/4, ... that holds `count`: few sizes, so that recordings serve again."""
    while most > 1 and -(-most // 2) >= count:
        most = -(-most // 2)
    return most


def bytes_per_slot(model: FlatModel, input_shape: tuple[int, ...], examples: int) -> int:
    """About what one slot takes in one step: weights and gradients, activations and the patches of convolutions."""
    entries = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal entries
        patch = math.prod(layer.kernel_size) if isinstance(layer, nn.Conv2d) else 1
        entries += 3 * output.numel() + patch * inputs[0].numel()

    parameter = next(model.module.parameters())
    hooks = [layer.register_forward_hook(count) for layer in model.module.modules() if not list(layer.children())]
    try:
        with torch.no_grad():
            model.module(torch.zeros((2, *input_shape), device=parameter.device, dtype=parameter.dtype))
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
