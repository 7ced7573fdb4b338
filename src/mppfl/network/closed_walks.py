"""Closed walks: the diagonal of W + λ W² + ... + λ^(K-1) W^K, exact or estimated with its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.network.graph import SparseMatrix

Diagonal = Literal["auto", "exact", "estimate"]

DENSE_BELOW = 600  # clients; dense powers are then faster than sparse walks
EXACT_BELOW = 1000  # clients; the game forms Σ as a matrix there, with nothing estimated on its diagonal
WALKS_AT_MOST = 1e8  # steps of "auto"; about one second of one core
NUM_WALKERS = 4


@dataclass(frozen=True, slots=True)
class ClosedWalks:
    """Closed walks: the diagonal of Σ before it is removed, and its error.

    values          one per client
    standard_error  one per client; zero where exact
    exact_hops      hops up to which the values are exact; beyond, they are estimated
    """

    values: Array
    standard_error: Array
    exact_hops: int


def count_closed_walks(
    influence: SparseMatrix, max_hops: int, hop_decay: float, diagonal: Diagonal = "auto", seed: int = 0
) -> ClosedWalks:
    """Σ_k λ^{k-1}(W^k)_ii for every client i (the part of eq. 2 that is set to zero).

    "exact" counts them whatever the cost; "auto" counts as many hops as WALKS_AT_MOST permits and estimates the rest
    from NUM_WALKERS random walkers per client drawn with `seed`; "estimate" estimates everything beyond two hops.
    """
    if diagonal not in ("auto", "exact", "estimate"):
        raise BadInput(f'diagonal={diagonal!r} must be "auto", "exact" or "estimate".')
    size = influence.shape[0]
    if diagonal != "estimate" and _by_matrix_is_best(influence, max_hops):
        return ClosedWalks(_by_dense_powers(influence, max_hops, hop_decay), np.zeros(size), max_hops)
    exact_hops = max_hops
    if diagonal == "estimate":
        exact_hops = min(2, max_hops)
    elif diagonal == "auto":
        exact_hops = affordable_hops(influence, max_hops)
    values = _by_walking(influence, exact_hops, hop_decay)
    if exact_hops == max_hops:
        return ClosedWalks(values, np.zeros(size), max_hops)
    rest, error = _by_walkers(influence, exact_hops, max_hops, hop_decay, seed)
    return ClosedWalks(values + rest, error, exact_hops)


def kind_of_diagonal(num_clients: int, diagonal: Diagonal) -> Diagonal:
    """The kind to use: small networks are never estimated, since that would differ from the matrix of their game."""
    return "exact" if num_clients <= EXACT_BELOW and diagonal in ("auto", "estimate") else diagonal


def _by_matrix_is_best(influence: SparseMatrix, max_hops: int) -> bool:
    size = influence.shape[0]
    return size <= DENSE_BELOW or (size <= EXACT_BELOW and affordable_hops(influence, max_hops) < max_hops)


def affordable_hops(influence: SparseMatrix, max_hops: int) -> int:
    """The most hops whose closed walks cost at most WALKS_AT_MOST steps; at least 2."""
    lengths = np.diff(influence.indptr).astype(np.float64)
    back = np.bincount(influence.indices, minlength=len(lengths)).astype(np.float64)
    spent, grow = 0.0, float(back @ lengths)  # walks of two edges: what it costs to grow all vectors by one hop
    for hops in range(3, max_hops + 1):
        if spent + grow > WALKS_AT_MOST:
            return hops - 1
        spent += grow
        if hops >= 4 and hops % 2 == 0:  # from here on vectors are longer by one more edge
            pattern = influence.copy()
            pattern.data = np.ones_like(pattern.data)
            lengths = np.minimum(pattern @ lengths, influence.nnz)  # no step costs more than one pass over all edges
            grow = float(back @ lengths)
    return max_hops


def _by_dense_powers(influence: SparseMatrix, max_hops: int, hop_decay: float) -> Array:
    dense = influence.toarray()
    power, closed = dense, np.zeros(len(dense))
    for hops in range(2, max_hops + 1):
        power = power @ dense
        closed += hop_decay ** (hops - 1) * np.diag(power)
    return closed


def _by_walking(influence: SparseMatrix, max_hops: int, hop_decay: float) -> Array:
    closed = np.zeros(influence.shape[0])
    if max_hops < 2:
        return closed
    from mppfl.compiled import get_num_threads
    from mppfl.network import _kernels as kernels

    rows = influence.indptr, influence.indices, influence.data
    if max_hops == 2:
        return np.asarray(kernels.mutual_edges(rows, hop_decay, get_num_threads()))
    back = influence.tocsc()
    columns = back.indptr, back.indices, back.data
    kernels.closed_walks(rows, columns, max_hops, hop_decay, get_num_threads(), closed)
    return closed


def _by_walkers(
    influence: SparseMatrix, exact_hops: int, max_hops: int, hop_decay: float, seed: int
) -> tuple[Array, Array]:
    """Mean and standard error of the hops beyond `exact_hops`, from random walkers.

    Most walkers of a client may miss it by chance and suggest an error of 0, so no client's error is taken to be below
    the root mean square over all clients.
    """
    from mppfl.network import _kernels as kernels

    size = influence.shape[0]
    mean, squares = np.empty(size), np.empty(size)
    rows = influence.indptr, influence.indices, influence.data
    kernels.walkers(rows, exact_hops, max_hops, hop_decay, NUM_WALKERS, seed, mean, squares)
    variance = np.maximum(squares - mean**2, 0.0) / (NUM_WALKERS - 1)
    return mean, np.sqrt(np.maximum(variance, variance.mean()))
