"""Augmentation: every look at a picture shows another view of it, shifted by up to four pixels and perhaps mirrored.

A view travels with its example in one number, row · VIEWS + view. So batches stay rows of numbers, every engine takes
them, and whoever computes a client sees the views that its stream drew. What lies outside a shifted picture is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import IntArray
from mppfl.errors import BadInput
from mppfl.privacy import LocalWork
from mppfl.training.batches import batches_of_round, order_of_round, stream
from mppfl.training.config import TrainingConfig
from mppfl.training.local import Table

MARGIN = 4  # pixels in each direction, as is usual for pictures of 32 × 32
SHIFTS = 2 * MARGIN + 1
VIEWS = 2 * SHIFTS**2


def looks_of_round(
    config: TrainingConfig, work: LocalWork, members: IntArray, round_index: int, client: int
) -> list[IntArray]:
    """What a client looks at in each step of a round: rows of the table, with their views where the table has some.

    members  rows of the client's own examples
    client   its position, which decides its random streams
    """
    order = order_of_round(config, round_index, client)
    rows = [members[batch] for batch in batches_of_round(work, config.privacy, order)]
    return (
        rows if config.augmentation == "none" else with_views(rows, stream(config.seed, "views", round_index, client))
    )


def with_views(batches: Sequence[IntArray], rng: np.random.Generator) -> list[IntArray]:
    """The same examples, each with a view drawn for it."""
    if not batches:
        return []
    rows = np.concatenate(batches)
    ends = np.cumsum([len(batch) for batch in batches[:-1]])
    return np.split(rows * VIEWS + rng.integers(VIEWS, size=len(rows)), ends)


def table_for(config: TrainingConfig, features: Tensor, labels: Tensor) -> Table:
    """The table that the configuration's batches point into."""
    if config.augmentation == "none":
        return Table(features, labels)
    if features.ndim != 4:
        raise BadInput(
            f"augmentation={config.augmentation!r} shifts pictures (channels, height, width), and the examples have "
            f"shape {tuple(features.shape[1:])}. Use augmentation='none'."
        )
    return ViewTable(features, labels)


class ViewTable(Table):
    """A table of pictures whose rows are examples with a view each."""

    __slots__ = ()

    def take(self, rows: IntArray) -> tuple[Tensor, Tensor]:
        return self.at(torch.as_tensor(rows, device=self.features.device))

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        example, view = rows // VIEWS, rows % VIEWS
        height, width = self.features.shape[2:]
        across, down = torch.arange(width, device=rows.device), torch.arange(height, device=rows.device)
        is_mirrored = (view % 2 == 1)[..., None]
        i = down + (view // (2 * SHIFTS))[..., None] - MARGIN  # [..., H]
        j = torch.where(is_mirrored, across.flip(0), across) + (view // 2 % SHIFTS)[..., None] - MARGIN  # [..., W]
        inside = _within(i, height)[..., :, None] & _within(j, width)[..., None, :]
        i, j = i.clamp(0, height - 1)[..., :, None], j.clamp(0, width - 1)[..., None, :]
        seen = self.features[example[..., None, None], :, i, j]  # [..., H, W, C]
        return (seen * inside[..., None]).movedim(-1, -3), self.labels[example]


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
