"""DeviceLoss, alone: torch is imported only where a device is asked for. B = I + αΣ and its inverse by PyTorch.

It stands where LossOperator stands, with NumPy's arrays in and out, so that what is above it need not know. The steps
are those of loss.py, in double precision throughout; vectors stay on the device while equations are solved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array
from mppfl.device import DevicePropagation, find_device, matrix_bytes, propagation_on_device, require_room, to_device
from mppfl.game.loss import KRYLOV_BASIS, LossOperator
from mppfl.game.model import Game

PAIRS_AT_ONCE = 12  # pairs of vectors that a solution holds beside its Krylov basis
WORKING_BYTES = 2**30  # sums over clients, and what the sparse products ask for


def game_on_device(game: Game, device: str) -> Game:
    """The same game whose network's equations a device solves; BadInput where it does not fit into its memory."""
    torch_device = find_device(device)
    size, edges = game.num_clients, game.graph.num_edges
    require_room(torch_device, solution_bytes(size, edges), f"equilibria of {size:,} clients and {edges:,} edges")
    loss = DeviceLoss(
        game.propagation, game.externality_strength, propagation_on_device(game.propagation, torch_device)
    )
    # Σ·1, which the proof of uniqueness asks for, is kept where NumPy would keep it.
    game.propagation.__dict__.setdefault("row_sums", loss._given_back(loss.spread @ loss._taken(np.ones(size))))
    moved = replace(game)
    moved.__dict__["loss"] = loss
    return moved


def solution_bytes(num_clients: int, num_edges: int) -> int:
    """Memory that a game takes on a device while it is solved: the network, a Krylov basis and the vectors around it.

    12 bytes an edge and some 480 a client (a pair of vectors is 16), and a working space that small games do not fill.
    """
    pairs = 16 * (KRYLOV_BASIS + PAIRS_AT_ONCE) * num_clients
    working = min(WORKING_BYTES, 1000 * num_clients)
    return matrix_bytes(num_clients, num_edges) + pairs + 48 * num_clients + working


@dataclass(frozen=True, eq=False)
class DeviceLoss(LossOperator):
    """B = I + αΣ (model, eq. 5) on a device, where Σ is `moved`."""

    moved: DevicePropagation

    library: ClassVar[Any] = torch
    tolerance: ClassVar[float] = 1e-13  # double precision has room for it, and a step costs little here
    step_error: ClassVar[float] = 1e-14

    @property
    def is_dense(self) -> bool:
        return False

    @property
    def spread(self) -> DevicePropagation:
        return self.moved

    @cached_property
    def T(self) -> DeviceLoss:  # noqa: N802  (the name numpy and scipy use)
        turned = DeviceLoss(self.propagation.T, self.externality_strength, self.moved.T)
        turned.__dict__["T"] = self
        return turned

    @property
    def _home(self) -> Tensor:
        return self.moved.home

    def _taken(self, values: Array) -> Tensor:
        return to_device(np.ascontiguousarray(values), self.moved.home.device)

    def _given_back(self, values: Tensor) -> Array:
        return np.asarray(values.cpu().numpy())

    def _light(self, vector: Tensor) -> Tensor:
        return vector

    def _hop(self, columns: Tensor) -> Tensor:
        return self.moved.influence.times(columns)

    def _vector(self, columns: Tensor) -> Tensor:
        return columns if columns.ndim == 1 else torch.view_as_complex(columns.contiguous())

    def _columns(self, vector: Tensor) -> Tensor:
        return torch.view_as_real(vector) if vector.is_complex() else vector
