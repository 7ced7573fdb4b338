"""Propagation: influence over every walk of at most K links, as an operator; attribution by source and hop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mppfl.arrays import Array, IntArray, read_only, require, require_count, require_number
from mppfl.errors import BadInput
from mppfl.network.graph import Normalisation, SocialGraph, SparseMatrix
from mppfl.network.product import times
from mppfl.network.walks import Diagonal, ReturnsHome, kind_of_diagonal, returns_home


@dataclass(frozen=True, eq=False)
class Propagation:
    """Influence over every walk of at most `max_hops` links (model, eq. 2).

    Σ = W + λ W² + ... + λ^(K-1) W^K with a zero diagonal, as an operator: `propagation @ budgets` is everybody's
    external risk (eq. 3), costs O(max_hops · links) and never forms the matrix. `propagation.T` is its transpose.
    """

    influence: SparseMatrix
    max_hops: int
    hop_decay: float
    home: ReturnsHome  # the diagonal of Σ before it is removed
    normalisation: Normalisation = "row"

    @property
    def num_clients(self) -> int:
        return int(self.influence.shape[0])

    def __matmul__(self, x: Array) -> Array:
        spread = x
        for _ in range(self.max_hops - 1):
            spread = times(self.influence, spread, self.hop_decay, x)  # Horner's rule: farthest hop first
        spread = np.asarray(times(self.influence, spread))
        # A client's own budget is counted once by the caller, not again when it comes back round a cycle.
        spread -= self.home.values * x if x.ndim == 1 else self.home.values[:, None] * x
        return spread

    @cached_property
    def T(self) -> Propagation:  # noqa: N802  (the name numpy and scipy use)
        turned = Propagation(self.influence.T.tocsr(), self.max_hops, self.hop_decay, self.home, self.normalisation)
        turned.__dict__["T"] = self
        return turned

    def to_dense(self) -> Array:
        """Σ as an N×N array; for small networks."""
        dense = self.influence.toarray()
        power, total = dense, dense.copy()
        for hop in range(2, self.max_hops + 1):
            power = power @ dense
            total += self.hop_decay ** (hop - 1) * power
        np.fill_diagonal(total, 0.0)
        return np.asarray(total)

    @cached_property
    def light_influence(self) -> SparseMatrix:
        """W in single precision, sharing its columns: for steps whose errors are corrected afterwards."""
        given = self.influence
        light = given.data.astype(np.float32)
        light.setflags(write=False)
        return type(given)((light, given.indices, given.indptr), shape=given.shape)

    @property
    def geometric_sum(self) -> float:
        """S = 1 + λ + ... + λ^(K-1), which bounds every row sum of Σ when rows of W sum to 1 (model, eq. 4)."""
        return float(sum(self.hop_decay**k for k in range(self.max_hops)))

    @cached_property
    def row_sums(self) -> Array:
        """What each client would suffer if everybody's budget were 1."""
        return self @ np.ones(self.num_clients)

    @cached_property
    def column_sums(self) -> Array:
        """What all others together suffer from each client's unit budget."""
        return self.T @ np.ones(self.num_clients)

    def largest_row_sum(self) -> float:
        """What the contraction check uses: S where rows of W sum to 1, else the largest true row sum of Σ."""
        return self.geometric_sum if self.normalisation == "row" else float(self.row_sums.max())


def propagate(
    graph: SocialGraph,
    max_hops: int = 5,
    hop_decay: float = 0.9,
    *,
    diagonal: Diagonal = "auto",
    seed: int = 0,
    device: str | None = None,
) -> Propagation:
    """How privacy loss spreads over `graph` (model, eq. 2), with the walks that return home taken out.

    `diagonal` says how those are found: "exact", "estimate" (with its standard error in `home`), or "auto"; up to
    1,000 clients they are always exact. `device` says where: by NumPy and compiled code unless "cuda", "cuda:1" or
    "cpu" asks for PyTorch.
    """
    hops = require_count(max_hops, "max_hops")
    decay = require_number(hop_decay, "hop_decay", 0.0, 1.0)
    kind = kind_of_diagonal(graph.num_clients, diagonal)
    if device is None:
        home = returns_home(graph.influence, hops, decay, kind, seed)
    else:
        from mppfl.network.device_walks import home_by_device

        home = home_by_device(graph.influence, hops, decay, kind, seed, device)
    return Propagation(graph.influence, hops, decay, home, graph.normalisation)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who exposes one client, at which hop, by how much: parallel arrays, largest amount first."""

    sources: IntArray
    hops: IntArray
    amounts: Array


def attribute(propagation: Propagation, client: int, budgets: Array) -> Attribution:
    """Every term λ^{k-1}(W^k)_ij ρ_j of client i's external risk, over sources j and hops k (model, eq. 3).

    The amounts sum to `(propagation @ budgets)[client]`.
    """
    if not isinstance(client, (int, np.integer)) or not 0 <= client < propagation.num_clients:
        raise BadInput(f"client={client!r} must be a position from 0 to {propagation.num_clients - 1}.")
    budgets = read_only(budgets, "budgets", length=propagation.num_clients)
    require(budgets, "budgets", budgets >= 0, "at least 0")
    reached = propagation.influence[[client]]
    sources, hops, amounts = [], [], []
    for hop in range(1, propagation.max_hops + 1):
        others = reached.indices != client
        sources.append(reached.indices[others].astype(np.int64))
        hops.append(np.full(int(others.sum()), hop))
        amounts.append(propagation.hop_decay ** (hop - 1) * reached.data[others] * budgets[sources[-1]])
        if hop < propagation.max_hops:
            reached = (reached @ propagation.influence).tocsr()
    everything = np.concatenate(amounts)
    order = np.argsort(-everything, kind="stable")
    return Attribution(np.concatenate(sources)[order], np.concatenate(hops)[order], everything[order])
