"""Links taken without direction, and what couples along them: forests, couplings, sums over paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mppfl.arrays import Array, IntArray, require_number
from mppfl.errors import BadInput
from mppfl.network import SocialGraph, SparseMatrix


def friendships(graph: SocialGraph) -> SparseMatrix:
    """Who is linked to whom in either direction: a symmetric csr_array of ones."""
    links = graph.influence
    ones = sp.csr_array((np.ones(links.nnz), links.indices, links.indptr), shape=links.shape)
    return ones.maximum(ones.T).tocsr()


def is_forest(graph: SocialGraph) -> bool:
    """Whether the links, taken without direction, have no cycle."""
    linked = friendships(graph)
    parts, _ = connected_components(linked, directed=False)
    return bool(linked.nnz // 2 == graph.num_clients - parts)


def coupled_links(graph: SocialGraph, couplings: Any) -> tuple[IntArray, IntArray, Array]:
    """Each undirected link once: its two ends and its coupling J."""
    above = sp.triu(friendships(graph), 1).tocoo()
    firsts, seconds = above.row.astype(np.int64), above.col.astype(np.int64)
    if np.ndim(couplings) == 0 and not sp.issparse(couplings):
        one = require_number(couplings, "couplings", -np.inf, np.inf)
        return firsts, seconds, np.full(len(firsts), one)
    matrix = sp.csr_array(couplings, dtype=np.float64)
    size = graph.num_clients
    if matrix.shape != (size, size):
        raise BadInput(f"couplings have shape {matrix.shape} for {size} clients; give one number or an N×N matrix.")
    if not np.isfinite(matrix.data).all() or abs(matrix - matrix.T).max() > 0:
        raise BadInput("couplings must be finite and symmetric: J of a link is the same seen from both ends.")
    strengths = np.asarray(matrix[firsts, seconds]).ravel() if len(firsts) else np.zeros(0)
    if np.count_nonzero(strengths) * 2 != matrix.count_nonzero():
        raise BadInput("couplings are not zero between clients without a link. Remove them, or add the links.")
    return firsts, seconds, strengths


def path_sums(size: int, firsts: IntArray, seconds: IntArray, shares: Array, amounts: Array) -> Array:
    """Σ_{j≠i} (product of `shares` along the path from i to j) · amounts_j on a forest: up to the roots, then down."""
    ends = (np.concatenate([firsts, seconds]), np.concatenate([seconds, firsts]))
    linked = sp.csr_array((np.ones(len(ends[0])), ends), shape=(size, size))
    share_of = {(int(a), int(b)): float(s) for a, b, s in zip(firsts, seconds, shares, strict=True)}
    _, part = connected_components(linked, directed=False)
    order: list[int] = []
    parent = np.full(size, -1)
    for root in np.unique(part, return_index=True)[1]:
        if linked.indptr[root] == linked.indptr[root + 1]:
            continue
        seen, before = breadth_first_order(linked, root, directed=False)
        order += seen.tolist()
        parent[seen[1:]] = before[seen[1:]]
    up = np.zeros(size)  # what a client's subtree sends to its parent, before the link to it
    share = np.zeros(size)
    for node in reversed(order):
        up[node] += amounts[node]
        above = int(parent[node])
        if above >= 0:
            share[node] = share_of[(min(node, above), max(node, above))]
            up[above] += share[node] * up[node]
    total = np.zeros(size)
    for node in order:
        above = int(parent[node])
        total[node] = up[node] - amounts[node]
        if above >= 0:
            total[node] += share[node] * (amounts[above] + total[above] - share[node] * up[node])
    return np.maximum(total, 0.0)
