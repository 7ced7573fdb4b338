"""DeviceMatrix: direct influence W on a device of PyTorch's, and its products with a few columns.

The twin of a csr_array with product.py. What comes in and goes out are tensors on one device; nothing is copied back.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from mppfl.network.device import to_device
from mppfl.network.graph import SparseMatrix

LINKS_PER_BLOCK = 2**30  # products take 32-bit positions: half the memory of 64-bit ones, and below their limit
FEW_COLUMNS = 4


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """W by rows: 12 bytes a link, 12 bytes a client.

    starts   int64 [clients + 1], where each row begins
    columns  int32 [links], rising in every row
    values   float64 [links]
    """

    starts: Tensor
    columns: Tensor
    values: Tensor

    @property
    def num_clients(self) -> int:
        return len(self.starts) - 1

    @property
    def num_links(self) -> int:
        return len(self.columns)

    @property
    def device(self) -> torch.device:
        return self.values.device

    @cached_property
    def longest_row(self) -> int:
        return int(self.starts.diff().max())

    @cached_property
    def _blocks(self) -> tuple[Tensor, ...]:
        """Rows cut into sparse tensors that share the columns and values held here."""
        cuts = self.row_cuts(LINKS_PER_BLOCK)
        return tuple(self.rows(first, last) for first, last in pairwise(cuts))

    def times(self, x: Tensor, scale: float = 1.0, plus: Tensor | None = None) -> Tensor:
        """plus + scale · W x for one column [clients] or several [clients, columns].

        A few columns are multiplied one by one: on an H200 two columns at once took 1.14 ms, one after the other 0.36.
        """
        if x.ndim == 2 and x.shape[1] <= FEW_COLUMNS:
            alone = [None if plus is None else plus[:, k] for k in range(x.shape[1])]
            return torch.stack([self.times(x[:, k].contiguous(), scale, each) for k, each in enumerate(alone)], 1)
        parts = []
        begin = 0
        for block in self._blocks:
            rows = slice(begin, begin + block.shape[0])
            begin = rows.stop
            if plus is None:
                part = block @ x
                parts.append(part if scale == 1.0 else part.mul_(scale))
            else:
                add = torch.addmv if x.ndim == 1 else torch.addmm
                parts.append(add(plus[rows], block, x, beta=1, alpha=scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def T(self) -> DeviceMatrix:  # noqa: N802  (the name numpy and scipy use)
        """The transpose by rows; while it is made, another 40 bytes a link or so are taken."""
        sources = torch.repeat_interleave(
            torch.arange(self.num_clients, dtype=torch.int32, device=self.device), self.starts.diff()
        )
        order = torch.argsort(self.columns, stable=True)
        lengths = torch.bincount(self.columns, minlength=self.num_clients)
        turned = DeviceMatrix(_starts_of(lengths), sources[order], self.values[order])
        turned.__dict__["T"] = self
        return turned

    def row_cuts(self, links_at_once: int) -> list[int]:
        """Row numbers that cut the matrix into pieces of at most `links_at_once` links, or of one longer row."""
        cuts, size = [0], self.num_clients
        while cuts[-1] < size:
            goal = self.starts[cuts[-1]] + links_at_once
            last = int(torch.searchsorted(self.starts, goal, right=True)) - 1
            cuts.append(min(max(last, cuts[-1] + 1), size))
        return cuts

    def rows(self, first: int, last: int, values: Tensor | None = None) -> Tensor:
        """Rows first..last−1 as a sparse tensor; with other values on these links if they are given."""
        begin, end = self.starts[[first, last]].tolist()
        starts = (self.starts[first : last + 1] - begin).to(torch.int32)
        held = self.values[begin:end] if values is None else values
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta|Sparse invariant checks")
            return torch.sparse_csr_tensor(
                starts,
                self.columns[begin:end],
                held,
                size=(last - first, self.num_clients),
                check_invariants=False,
            )

    def entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """W[row, column] for int64 rows and columns side by side, by bisection in the sorted rows; 0 for no link."""
        low, end = self.starts[rows], self.starts[rows + 1]
        high, last = end, self.num_links - 1
        for _ in range(self.longest_row.bit_length()):
            middle = (low + high) // 2
            before = (self.columns[middle.clamp(max=last)] < columns) & (low < high)
            low, high = torch.where(before, middle + 1, low), torch.where(before, high, middle)
        at = low.clamp(max=last)
        return torch.where((low < end) & (self.columns[at] == columns), self.values[at], 0.0)


def matrix_on_device(influence: SparseMatrix, device: torch.device) -> DeviceMatrix:
    """A csr_array with sorted columns, brought to a device."""
    return DeviceMatrix(
        to_device(influence.indptr, device).to(torch.int64),
        to_device(influence.indices, device).to(torch.int32),
        to_device(influence.data, device),
    )


def matrix_bytes(num_clients: int, num_links: int) -> int:
    """Memory that a DeviceMatrix takes, with what its products need beside it."""
    return 12 * num_links + 12 * num_clients


def _starts_of(lengths: Tensor) -> Tensor:
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=starts[1:])
    return starts
