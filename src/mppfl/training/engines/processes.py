"""The plain loop in one process per core, for convolutions on a CPU (alone: one file an engine).

joblib starts the processes and keeps them for the next round. They never run the caller's script again.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import Tensor, nn

from mppfl.arrays import Array
from mppfl.errors import MppflError
from mppfl.training import ClientSlot, Descent, FlatModel, Table, as_array, flat_model, local_update

GROUPS_PER_PROCESS = 4  # of clients, which travel together: more share the work better, fewer carry less


def can_travel(module: nn.Module) -> bool:
    """Whether another process can load the module: its classes must lie in importable files."""
    if any(type(layer).__module__ == "__main__" for layer in module.modules()):
        return False
    try:
        pickle.dumps(module)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return False
    return True


def updates_by_processes(
    model: FlatModel, table: Table, slots: Sequence[ClientSlot], descent: Descent, processes: int
) -> Tensor:
    """Updates of all slots [slots, parameters]. A group of clients travels with its own examples alone."""
    longest_first = sorted(range(len(slots)), key=lambda number: -slots[number].num_visits)
    count = min(len(slots), GROUPS_PER_PROCESS * processes)
    groups = [longest_first[first::count] for first in range(count)]
    module = pickle.dumps(model.module, protocol=pickle.HIGHEST_PROTOCOL)
    jobs = (
        delayed(_updates_of_group)(module, *_own_examples(table, [slots[number] for number in group]), descent)
        for group in groups
    )
    updates = torch.empty((len(slots), model.num_parameters), dtype=table.features.dtype)
    try:
        answers = Parallel(n_jobs=processes, batch_size=1, pre_dispatch="all", max_nbytes=None)(jobs)
    except BrokenProcessPool as cause:
        raise MppflError(
            "a worker process ended in the middle of a round, perhaps because memory ran out. Use fewer processes; a "
            "training with checkpoints goes on with --resume."
        ) from cause
    for group, rows in zip(groups, answers, strict=True):
        updates[group] = torch.from_numpy(rows)
    return updates


def _own_examples(table: Table, slots: Sequence[ClientSlot]) -> tuple[type[Table], Array, Array, list[ClientSlot]]:
    """Kind, features and labels of a table of these slots' examples alone, and the slots with their rows in it."""
    batches = [batch for slot in slots for batch in slot.batches]
    rows, views = np.divmod(np.concatenate(batches or [np.zeros(0, dtype=np.int64)]), table.num_views)
    distinct, position = np.unique(rows, return_inverse=True)
    ends = np.cumsum([len(batch) for batch in batches])[:-1]
    renumbered = iter(np.split(position * table.num_views + views, ends))
    moved = [replace(slot, batches=[next(renumbered) for _ in slot.batches]) for slot in slots]
    index = torch.from_numpy(distinct)
    return type(table), as_array(table.features[index]), as_array(table.labels[index]), moved


def _updates_of_group(
    module: bytes, kind: type[Table], features: Array, labels: Array, slots: list[ClientSlot], descent: Descent
) -> Array:
    torch.set_num_threads(1)
    model, table = flat_model(pickle.loads(module)), kind(torch.from_numpy(features), torch.from_numpy(labels))
    return np.stack([as_array(local_update(model, slot, table, descent)) for slot in slots])
