"""Communities of a social graph (Louvain)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from mppfl.network.graph import SocialGraph, SparseMatrix, csr_arrays

VISITS_EACH = 4  # a level ends after so many visits per node on average, settled or not
LAST_VISITS_EACH = 2
MOST_LEVELS = 64
COARSER = 0.7
SHUFFLED_TOGETHER = 1024  # clients with near numbers often share edges, and then lie together in the cache

Labels = NDArray[np.int32]


def communities_of(graph: SocialGraph, rng: np.random.Generator) -> NDArray[np.int64]:
    """The community of each client, numbered from 0 in the order of their first members.

    Louvain's method (Blondel et al. 2008, arXiv:0803.0476v2) on the edges as given, the weights of both directions
    added up; clients are visited in the order that `rng` draws. A client without any edge is a community of its own.
    """
    return communities_of_edges(graph.edges(), rng).astype(np.int64)


def communities_of_edges(edges: SparseMatrix, rng: np.random.Generator, most: int | None = None) -> Labels:
    """The same for a csr_array of positive weights whose diagonal is zero.

    Where more than `most` communities have edges to others, the resolution falls until they are fewer and coarser
    (Reichardt & Bornholdt 2006, arXiv:cond-mat/0603718v1).
    """
    from mppfl.network import _kernels as kernels

    labels: Labels = np.arange(int(edges.shape[0]), dtype=np.int32)
    if edges.nnz == 0:
        return labels
    draw = np.random.default_rng(int(rng.integers(2**32)))  # one number of the caller's stream, however many levels
    both = (edges + edges.T).tocsr()
    network, degree = both, both.sum(axis=1)
    resolution = 1.0
    for _ in range(MOST_LEVELS):
        size = len(degree)
        community: Labels = np.arange(size, dtype=np.int32)
        order, visits = _order(size, draw), VISITS_EACH * size
        if kernels.move_nodes(csr_arrays(network), degree, community, order, visits, resolution):
            community = _numbered_by_first_member(community)
            labels = community[labels]
            members = sp.csr_array((np.ones(size), community, np.arange(size + 1)))
            drawn = (members.T @ network @ members).tocsr()  # edges between two communities are added up
            drawn -= sp.diags_array(drawn.diagonal(), format="csr")
            drawn.eliminate_zeros()
            network, degree = drawn, members.T @ degree
        elif most is None or np.count_nonzero(np.diff(network.indptr)) <= most:
            break
        else:
            resolution *= COARSER
    # Whole communities have moved; some single client may now be better off in another one.
    order, visits = _order(len(labels), draw), LAST_VISITS_EACH * len(labels)
    kernels.move_nodes(csr_arrays(both), both.sum(axis=1), labels, order, visits, resolution)
    return _numbered_by_first_member(labels)


def _numbered_by_first_member(community: Labels) -> Labels:
    """Communities renamed to 0, 1, ... in the order of their first members."""
    _, first, position = np.unique(community, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int32)[position]


def _order(size: int, draw: np.random.Generator) -> Labels:
    """Nodes in the order of their first visit: shuffled one by one, or block by block where there are many."""
    block = SHUFFLED_TOGETHER if size > 64 * SHUFFLED_TOGETHER else 1
    starts = draw.permutation(-(-size // block)) * block
    order = (starts[:, None] + np.arange(block)).ravel()
    return order[order < size].astype(np.int32)
