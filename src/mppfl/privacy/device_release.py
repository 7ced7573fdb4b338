"""Clip and noise for a stack of updates where they lie, on a GPU: simulation, with seeded noise alone.

The noise and its cost are those of release.py, which stays the only way out for noise that protects: PyTorch's normals
are seeded, float32 and cut off near 5.8 standard deviations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mppfl.errors import BadInput
from mppfl.privacy.cost import ReleaseCost
from mppfl.privacy.release import NORM_GUARD


def release_on_device(
    updates: Tensor, costs: Sequence[ReleaseCost], clip_norm: float, seeds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Each row shortened to `clip_norm` with the noise its cost states, and which rows were shortened.

    updates  [clients, parameters] on any device; one cost (from `round_cost`) and one seed for each row
    """
    if not len(updates) == len(costs) == len(seeds):
        raise BadInput(f"{len(updates)} updates came with {len(costs)} costs and {len(seeds)} seeds.")
    for cost in costs:
        if cost.noise_kind not in ("seeded", "none"):
            raise BadInput(f"noise {cost.noise_kind!r} is not drawn on a device; use mppfl.privacy.release.")
    norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    for cost, finite in zip(costs, torch.isfinite(norms).tolist(), strict=True):
        if not finite:
            raise BadInput(
                f"The update of client {cost.client!r} holds NaN or infinity and is not released. Check its training."
            )
    scales = torch.where(norms <= clip_norm, 1.0, NORM_GUARD * clip_norm / norms)
    released = torch.empty_like(updates)
    for row, update, scale in zip(released, updates, scales, strict=True):
        row.copy_(update.double() * scale)  # row by row, so that float64 takes little memory
    generator = torch.Generator(device=updates.device)
    for row, cost, seed in zip(released, costs, seeds, strict=True):
        if cost.noise_std > 0:
            generator.manual_seed(seed)
            row.add_(
                torch.randn(row.shape, generator=generator, device=row.device, dtype=row.dtype), alpha=cost.noise_std
            )
    return released, scales < 1
