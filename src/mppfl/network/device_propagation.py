"""DevicePropagation: influence over every walk of at most K links, as an operator on a device of PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mppfl.network.device import to_device
from mppfl.network.device_matrix import DeviceMatrix, matrix_on_device
from mppfl.network.propagation import Propagation


@dataclass(frozen=True, eq=False)
class DevicePropagation:
    """Σ = W + λ W² + ... + λ^(K-1) W^K with a zero diagonal (model, eq. 2): `Propagation` with tensors.

    home  the diagonal of Σ before it is removed, one per client
    """

    influence: DeviceMatrix
    max_hops: int
    hop_decay: float
    home: Tensor

    @property
    def num_clients(self) -> int:
        return self.influence.num_clients

    def __matmul__(self, x: Tensor) -> Tensor:
        spread = x
        for _ in range(self.max_hops - 1):
            spread = self.influence.times(spread, self.hop_decay, x)  # Horner's rule: farthest hop first
        spread = self.influence.times(spread)
        # A client's own budget is counted once by the caller, not again when it comes back round a cycle.
        return torch.addcmul(spread, self.home if x.ndim == 1 else self.home[:, None], x, value=-1, out=spread)

    @cached_property
    def T(self) -> DevicePropagation:  # noqa: N802  (the name numpy and scipy use)
        turned = DevicePropagation(self.influence.T, self.max_hops, self.hop_decay, self.home)
        turned.__dict__["T"] = self
        return turned

    @property
    def geometric_sum(self) -> float:
        """S = 1 + λ + ... + λ^(K-1), which bounds every row sum of Σ when rows of W sum to 1 (model, eq. 4)."""
        return float(sum(self.hop_decay**k for k in range(self.max_hops)))


def propagation_on_device(propagation: Propagation, device: torch.device) -> DevicePropagation:
    """The same operator, brought to a device."""
    return DevicePropagation(
        matrix_on_device(propagation.influence, device),
        propagation.max_hops,
        propagation.hop_decay,
        to_device(propagation.home.values, device),
    )
