"""Torch devices: which exist, how much memory is free, arrays on them, and Propagation as an operator on them.

What comes in and goes out of an operator are tensors on one device; nothing is copied back.
"""

from __future__ import annotations

import logging
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.errors import BadInput
from mppfl.exports import require

require("torch")  # says how to install it

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

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
    """W as sparse tensors of some of its rows each, the first rows first: 12 bytes an edge, 12 bytes a client."""

    blocks: tuple[Tensor, ...]

    def times(self, x: Tensor, scale: float = 1.0, plus: Tensor | None = None) -> Tensor:
        """plus + scale · W x for one column [clients] or several [clients, columns].

        A few columns are multiplied one by one: on an H200 two columns at once took 1.14 ms, one after the other 0.36.
        """
        if x.ndim == 2 and x.shape[1] <= FEW_COLUMNS:
            added = [None] * x.shape[1] if plus is None else plus.unbind(1)
            pairs = zip(x.unbind(1), added, strict=True)
            return torch.stack([self.times(column.contiguous(), scale, term) for column, term in pairs], 1)
        if plus is None:
            parts = [(block @ x).mul_(scale) for block in self.blocks]
        else:
            add = torch.addmv if x.ndim == 1 else torch.addmm
            terms = torch.split(plus, [block.shape[0] for block in self.blocks])
            parts = [add(term, block, x, alpha=scale) for term, block in zip(terms, self.blocks, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def matrix_bytes(num_clients: int, num_edges: int) -> int:
    """Memory of a DeviceMatrix and of what its products need beside it."""
    return 12 * num_edges + 12 * num_clients


@dataclass(frozen=True, eq=False)
class DevicePropagation:
    """`Propagation` with tensors: Σ = W + λ W² + ... + λ^(K-1) W^K with a zero diagonal (model, eq. 2).

    home    the diagonal of Σ before it is removed, one per client
    source  the `Propagation` of which this is a copy
    """

    influence: DeviceMatrix
    max_hops: int
    hop_decay: float
    home: Tensor
    source: Any

    @property
    def num_clients(self) -> int:
        return int(self.source.num_clients)

    @property
    def geometric_sum(self) -> float:
        return float(self.source.geometric_sum)

    def __matmul__(self, x: Tensor) -> Tensor:
        spread = x
        for _ in range(self.max_hops - 1):
            spread = self.influence.times(spread, self.hop_decay, x)  # Horner's rule: farthest hop first
        spread = self.influence.times(spread)
        # A client's own budget is counted once by the caller, not again when it comes back round a cycle.
        return torch.addcmul(spread, self.home if x.ndim == 1 else self.home[:, None], x, value=-1, out=spread)

    @cached_property
    def T(self) -> DevicePropagation:  # noqa: N802  (the name numpy and scipy use)
        transposed = propagation_on_device(self.source.T, self.home.device)
        transposed.__dict__["T"] = self
        return transposed


def propagation_on_device(propagation: Any, device: torch.device) -> DevicePropagation:
    """The same operator on a device."""
    influence = propagation.influence
    starts = influence.indptr.astype(np.int64)
    blocks, first = [], 0
    while first < len(starts) - 1:
        last = max(int(np.searchsorted(starts, starts[first] + EDGES_PER_BLOCK, side="right")) - 1, first + 1)
        blocks.append(_rows(influence, first, last, device))
        first = last
    home = to_device(propagation.home.values, device)
    return DevicePropagation(
        DeviceMatrix(tuple(blocks)), propagation.max_hops, propagation.hop_decay, home, propagation
    )


def _rows(matrix: Any, first: int, last: int, device: torch.device) -> Tensor:
    """Some rows of a csr_array as a sparse tensor."""
    edges = slice(matrix.indptr[first], matrix.indptr[last])
    starts = (matrix.indptr[first : last + 1] - edges.start).astype(np.int32)
    # cuSPARSE reads both index arrays as the type of the starts: columns of 64 bits give wrong products, unnoticed.
    columns = to_device(matrix.indices[edges].astype(np.int32, copy=False), device)
    values = to_device(matrix.data[edges], device)
    size = last - first, matrix.shape[1]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta|Sparse invariant checks")
        return torch.sparse_csr_tensor(to_device(starts, device), columns, values, size=size, check_invariants=False)
