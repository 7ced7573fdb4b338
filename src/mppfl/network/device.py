"""Torch devices: which exist, how much memory is free, arrays on them, and Propagation as an operator on them.

What comes in and goes out of an operator are tensors on one device; nothing is copied back.
"""

from __future__ import annotations

import logging
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mppfl.errors import BadInput
from mppfl.network.propagation import Propagation

log = logging.getLogger(__name__)
GIB = 2**30
EDGES_PER_BLOCK = 2**30  # products take 32-bit positions: half the memory of 64-bit ones, and below their limit
FEW_COLUMNS = 4


def find_device(name: str) -> torch.device:
    """The device called "cuda", "cuda:1" or "cpu". Raises BadInput where it does not exist; takes no other instead."""
    if not isinstance(name, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadInput(f"device={name!r} is not known. Use 'cuda', 'cuda:1' or 'cpu'.")
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise BadInput(f"device={name!r}, but PyTorch finds no GPU here. Use 'cpu', or leave it out.")
    number = int(name.partition(":")[2] or 0)
    if number >= torch.cuda.device_count():
        raise BadInput(f"device={name!r}, but there are {torch.cuda.device_count()} GPUs, from cuda:0 on.")
    return torch.device("cuda", number)


def free_bytes(device: torch.device) -> float:
    """Free memory of a device in bytes; infinite where it cannot be found out."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    listed = Path("/proc/meminfo")
    available = re.search(r"MemAvailable:\s+(\d+) kB", listed.read_text()) if listed.exists() else None
    return 1024.0 * int(available[1]) if available else float("inf")


def require_room(device: torch.device, needed: float, what: str) -> None:
    """Logs the memory that `what` needs, and raises BadInput where it is not free; called before any allocation."""
    free = free_bytes(device)
    log.info("%s: %.2f GiB on %s, of %.2f free", what, needed / GIB, device, free / GIB)
    if needed > free:
        raise BadInput(
            f"{what} need {needed / GIB:.3g} GiB on {device}, where {free / GIB:.3g} GiB are free. "
            "Choose a device with more memory, or leave it out, and NumPy solves."
        )


def to_device(values: Any, device: torch.device) -> Tensor:
    """A NumPy array, perhaps a read-only one, as a tensor on the device; nothing may be written into the tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values).to(device)


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """W by rows: 12 bytes an edge, 12 bytes a client.

    starts   int64 [clients + 1], where each row begins
    columns  int32 [edges], rising in every row
    values   float64 [edges]
    """

    starts: Tensor
    columns: Tensor
    values: Tensor

    @property
    def num_clients(self) -> int:
        return len(self.starts) - 1

    @property
    def num_edges(self) -> int:
        return len(self.columns)

    @cached_property
    def _blocks(self) -> tuple[Tensor, ...]:
        """Rows cut into sparse tensors of at most EDGES_PER_BLOCK edges, or one longer row, that share these arrays."""
        cuts = [0]
        while cuts[-1] < self.num_clients:
            goal = self.starts[cuts[-1]] + EDGES_PER_BLOCK
            last = int(torch.searchsorted(self.starts, goal, right=True)) - 1
            cuts.append(min(max(last, cuts[-1] + 1), self.num_clients))
        return tuple(self._rows(first, last) for first, last in pairwise(cuts))

    def _rows(self, first: int, last: int) -> Tensor:
        begin, end = self.starts[[first, last]].tolist()
        starts = (self.starts[first : last + 1] - begin).to(torch.int32)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta|Sparse invariant checks")
            return torch.sparse_csr_tensor(
                starts,
                self.columns[begin:end],
                self.values[begin:end],
                size=(last - first, self.num_clients),
                check_invariants=False,
            )

    def times(self, x: Tensor, scale: float = 1.0, plus: Tensor | None = None) -> Tensor:
        """plus + scale · W x for one column [clients] or several [clients, columns].

        A few columns are multiplied one by one: on an H200 two columns at once took 1.14 ms, one after the other 0.36.
        """
        if x.ndim == 2 and x.shape[1] <= FEW_COLUMNS:
            columns = range(x.shape[1])
            added = [None if plus is None else plus[:, k] for k in columns]
            return torch.stack([self.times(x[:, k].contiguous(), scale, added[k]) for k in columns], 1)
        parts = []
        begin = 0
        for block in self._blocks:
            rows = slice(begin, begin + block.shape[0])
            begin = rows.stop
            if plus is None:
                parts.append((block @ x).mul_(scale))
            else:
                add = torch.addmv if x.ndim == 1 else torch.addmm
                parts.append(add(plus[rows], block, x, beta=1, alpha=scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def T(self) -> DeviceMatrix:  # noqa: N802  (the name numpy and scipy use)
        """The transpose by rows; making it takes another 40 bytes an edge or so."""
        device, size = self.values.device, self.num_clients
        targets = torch.repeat_interleave(torch.arange(size, dtype=torch.int32, device=device), self.starts.diff())
        order = torch.argsort(self.columns, stable=True)
        starts = torch.zeros(size + 1, dtype=torch.int64, device=device)
        torch.cumsum(torch.bincount(self.columns, minlength=size), 0, out=starts[1:])
        transposed = DeviceMatrix(starts, targets[order], self.values[order])
        transposed.__dict__["T"] = self
        return transposed


def matrix_bytes(num_clients: int, num_edges: int) -> int:
    """Memory of a DeviceMatrix and of what its products need beside it."""
    return 12 * num_edges + 12 * num_clients


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
        transposed = DevicePropagation(self.influence.T, self.max_hops, self.hop_decay, self.home)
        transposed.__dict__["T"] = self
        return transposed

    @property
    def geometric_sum(self) -> float:
        """S = 1 + λ + ... + λ^(K-1), which bounds every row sum of Σ when rows of W sum to 1 (model, eq. 4)."""
        return float(sum(self.hop_decay**k for k in range(self.max_hops)))


def propagation_on_device(propagation: Propagation, device: torch.device) -> DevicePropagation:
    """The same operator on a device."""
    influence = propagation.influence
    matrix = DeviceMatrix(
        to_device(influence.indptr, device).to(torch.int64),
        to_device(influence.indices, device).to(torch.int32),
        to_device(influence.data, device),
    )
    home = to_device(propagation.home.values, device)
    return DevicePropagation(matrix, propagation.max_hops, propagation.hop_decay, home)
