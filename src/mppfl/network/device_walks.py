"""Walks that return home, counted on a device of PyTorch's: exact, or estimated with their error.

The twin of walks.py. The walkers are those of kernels.py, link for link, so both estimates are the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mppfl.errors import BadInput
from mppfl.network.device import find_device, require_room
from mppfl.network.device_matrix import DeviceMatrix, matrix_bytes, matrix_on_device
from mppfl.network.graph import SparseMatrix
from mppfl.network.walks import NUM_WALKERS, Diagonal, ReturnsHome

EXACT_AT_MOST = 1e10  # clients × links × hops that "auto" works off exactly: a tenth of a second of a large GPU
LINKS_AT_ONCE = 2**24  # looked up together: some 100 bytes each
WALKERS_AT_ONCE = 2**23
UNIT_ENTRIES = 2**26  # entries of the block of unit columns that is followed
WORKING_BYTES = 3 * 2**30  # what the above take together, at most
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class DeviceReturns:
    """`ReturnsHome` with tensors: the diagonal of the walk sum, its standard error, and the hops that are exact."""

    values: Tensor
    standard_error: Tensor
    exact_hops: int


def home_by_device(
    influence: SparseMatrix, max_hops: int, hop_decay: float, diagonal: Diagonal, seed: int, device: str
) -> ReturnsHome:
    """The diagonal of a csr_array's walk sum, found on a device and brought back."""
    where = find_device(device)
    size, links = influence.shape[0], influence.nnz
    needed = matrix_bytes(size, links) + 40 * size + _working_bytes(size, links)
    require_room(where, needed, f"closed walks of {size:,} clients and {links:,} links")
    found = returns_on_device(matrix_on_device(influence, where), max_hops, hop_decay, diagonal, seed)
    return ReturnsHome(found.values.cpu().numpy(), found.standard_error.cpu().numpy(), found.exact_hops)


def returns_on_device(
    influence: DeviceMatrix, max_hops: int, hop_decay: float, diagonal: Diagonal = "auto", seed: int = 0
) -> DeviceReturns:
    """Σ_k λ^{k-1}(W^k)_ii for every client i (the part of eq. 2 that is set to zero).

    "exact" costs clients · links · max_hops beyond two hops; "auto" is exact where that is at most EXACT_AT_MOST;
    beyond, and with "estimate", two hops are exact and the others found by walks.NUM_WALKERS random walkers a client.
    """
    if diagonal not in ("auto", "exact", "estimate"):
        raise BadInput(f'diagonal={diagonal!r} must be "auto", "exact" or "estimate".')
    nothing = torch.zeros(influence.num_clients, dtype=torch.float64, device=influence.device)
    if max_hops == 1:
        return DeviceReturns(nothing, nothing, 1)
    if max_hops == 2:
        return DeviceReturns(_mutual_links(influence, hop_decay), nothing, 2)
    work = float(influence.num_clients) * influence.num_links * (max_hops - 1)
    if diagonal == "exact" or (diagonal == "auto" and work <= EXACT_AT_MOST):
        return DeviceReturns(_by_unit_columns(influence, max_hops, hop_decay), nothing, max_hops)
    rest, error = _by_walkers(influence, 2, max_hops, hop_decay, seed)
    return DeviceReturns(_mutual_links(influence, hop_decay).add_(rest), error, 2)


def _working_bytes(num_clients: int, num_links: int) -> int:
    """What the look-ups, the walkers or the unit columns take at a time; less for small networks."""
    return min(WORKING_BYTES, 200 * (num_links + NUM_WALKERS * num_clients) + 8192 * num_clients)


def _mutual_links(influence: DeviceMatrix, hop_decay: float) -> Tensor:
    """λ Σ_j W_ij W_ji of every client i: closed walks of two links, without a transposed copy of the network."""
    ones = torch.ones(influence.num_clients, dtype=torch.float64, device=influence.device)
    home = torch.empty_like(ones)
    cuts = influence.row_cuts(LINKS_AT_ONCE)
    for first, last in pairwise(cuts):
        begin, end = influence.starts[[first, last]].tolist()
        lengths = influence.starts[first : last + 1].diff()
        targets = torch.repeat_interleave(torch.arange(first, last, device=influence.device), lengths)
        both = influence.entries(influence.columns[begin:end].long(), targets).mul_(influence.values[begin:end])
        # A product with ones sums every row in storage order, which atomic additions would not.
        home[first:last] = influence.rows(first, last, both) @ ones
    return home.mul_(hop_decay)


def _by_unit_columns(influence: DeviceMatrix, max_hops: int, hop_decay: float) -> Tensor:
    """Follows a unit of every client, many at a time, and reads off what comes home after each hop."""
    size, device = influence.num_clients, influence.device
    home = torch.zeros(size, dtype=torch.float64, device=device)
    at_once = min(512, max(1, UNIT_ENTRIES // size), size)
    for start in range(0, size, at_once):
        places = torch.arange(start, min(start + at_once, size), device=device)
        columns = torch.arange(len(places), device=device)
        reached = torch.zeros((size, len(places)), dtype=torch.float64, device=device)
        reached[places, columns] = 1.0
        for hops in range(1, max_hops + 1):
            reached = influence.times(reached)
            if hops > 1:
                home[places] += hop_decay ** (hops - 1) * reached[places, columns]
    return home


def _by_walkers(
    influence: DeviceMatrix, exact_hops: int, max_hops: int, hop_decay: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Mean and standard error of the hops beyond `exact_hops`, from random walkers; see walks.py, kernels.py.

    Most walkers of a client may miss home by chance and suggest an error of 0, so no client's error is taken to be
    below the root mean square over all clients.
    """
    size = influence.num_clients
    mean = torch.zeros(size, dtype=torch.float64, device=influence.device)
    squares = torch.zeros_like(mean)
    for start in range(0, size, WALKERS_AT_ONCE):
        clients = torch.arange(start, min(start + WALKERS_AT_ONCE, size), device=influence.device)
        for walker in range(NUM_WALKERS):
            found = _walk(influence, clients, walker, exact_hops, max_hops, hop_decay, seed)
            mean[clients] += found
            squares[clients] += found.square_()
    mean /= NUM_WALKERS
    variance = (squares / NUM_WALKERS - mean**2).clamp_(min=0.0) / (NUM_WALKERS - 1)
    return mean, torch.maximum(variance, variance.mean()).sqrt_()


def _walk(
    influence: DeviceMatrix,
    clients: Tensor,
    walker: int,
    exact_hops: int,
    max_hops: int,
    hop_decay: float,
    seed: int,
) -> Tensor:
    """What one walker of every client finds; `kernels.walkers` says how, one client at a time."""
    state = _scrambled(clients * NUM_WALKERS + _signed(seed * GOLDEN + walker))
    here = clients
    carried = torch.ones(len(clients), dtype=torch.float64, device=clients.device)
    found = torch.zeros_like(carried)
    for step in range(1, max_hops):
        begin = influence.starts[here]
        length = influence.starts[here + 1] - begin
        state = state + _signed(GOLDEN)
        at = begin + _remainder(_scrambled(state), length.clamp(min=1))
        at.clamp_(max=influence.num_links - 1)
        carried = carried * (influence.values[at] * length)  # nothing goes on from an empty row: its length is 0
        if step > 1:
            carried *= hop_decay
        here = influence.columns[at].long()
        if step >= exact_hops:
            closing = torch.where(here == clients, 0.0, influence.entries(here, clients))
            found += carried * hop_decay * closing
    return found


# ---- 64-bit numbers without sign, written with those that have one ------------------------------------------------


def _signed(number: int) -> int:
    """The signed number with the same 64 bits."""
    low = number % 2**64
    return low - 2**64 if low >= 2**63 else low


def _shifted(bits: Tensor, by: int) -> Tensor:
    return torch.bitwise_and(bits >> by, (1 << (64 - by)) - 1)


def _scrambled(state: Tensor) -> Tensor:
    """SplitMix64's output function, as in kernels.py: tensors of int64 wrap around as numbers without sign do."""
    mixed = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    return mixed ^ _shifted(mixed, 31)


def _remainder(bits: Tensor, divisor: Tensor) -> Tensor:
    """The remainder of the number without sign; divisors are below 2^31, so halves can be put together again."""
    half = _shifted(bits, 1) % divisor
    return (2 * half + (bits & 1)) % divisor
