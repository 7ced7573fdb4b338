"""Engine "processes", alone: one of several ways. The plain loop in one single-threaded process per core.

For convolutions on a CPU, where stacking buys nothing. joblib starts the processes and keeps them for the next round;
they never run the caller's script again. Model and examples lie in a file that all of them map into memory.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial

import joblib
import torch
from joblib.externals.loky import get_reusable_executor
from torch import Tensor, nn

from mppfl.arrays import Array
from mppfl.errors import MppflError
from mppfl.training import ClientSlot, Descent, FlatModel, Table, as_array, flat_model, local_update

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
        self.count, self.num_parameters = count, model.num_parameters
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

    def updates(self, slots: Sequence[ClientSlot], descent: Descent) -> Tensor:
        """Updates of all slots [slots, parameters], the longest slots first so that no core waits at the end."""
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
        updates = torch.empty((len(slots), self.num_parameters), dtype=slots[0].start.dtype)
        for group, rows in zip(groups, answers, strict=True):
            for number, row in zip(group, rows, strict=True):
                updates[number] = torch.from_numpy(row)
        return updates


@lru_cache(maxsize=1)
def _loaded(file: str) -> tuple[FlatModel, Table]:
    # Copy-on-write maps: all processes share the pages of the file, and PyTorch may have its writable tensor.
    module, kind, features, labels = joblib.load(file, mmap_mode="c")
    return flat_model(module), kind(torch.from_numpy(features), torch.from_numpy(labels))


def _updates_of_group(file: str, descent: Descent, slots: list[ClientSlot]) -> list[Array]:
    torch.set_num_threads(1)
    model, table = _loaded(file)
    return [as_array(local_update(model, slot, table, descent)) for slot in slots]
