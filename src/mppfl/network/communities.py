"""Communities of a social graph, at any size: who is closely linked to whom."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.arrays import IntArray
from mppfl.network.graph import SocialGraph, SparseMatrix

VISITS_EACH = 4  # a level ends after so many visits per node on average, settled or not
LAST_VISITS_EACH = 2
MOST_LEVELS = 64
COARSER = 0.7
SHUFFLED_TOGETHER = 1024  # clients that stand together are often linked, and then lie together in the cache

Labels = NDArray[np.int32]


def communities_of(graph: SocialGraph, rng: np.random.Generator) -> NDArray[np.int64]:
    """The community of each client, numbered from 0 in the order of their first members.

    Louvain's method (Blondel et al. 2008, arXiv:0803.0476v2) on the links as given, those of both directions added
    up; clients are visited in the order that `rng` draws. A client without any link is a community of its own.
    """
    return communities_of_links(graph.links(), rng).astype(np.int64)


def communities_of_links(links: SparseMatrix, rng: np.random.Generator, most: int | None = None) -> Labels:
    """The same for a csr_array of positive weights whose diagonal is zero.

    Where more than `most` communities are linked to others, coarser ones are looked for: what a random graph would
    have within a community counts less and less (Reichardt & Bornholdt 2006, arXiv:cond-mat/0603718v1).
    """
    from mppfl.network import community_kernels as kernels

    found: Labels = np.arange(int(links.shape[0]), dtype=np.int32)
    if links.nnz == 0:
        return found
    draw = np.random.default_rng(int(rng.integers(2**32)))  # one number of the caller's stream, however many levels
    all_indptr, all_neighbours, all_weights = kernels.links_of_both_directions(links.indptr, links.indices, links.data)
    indptr, neighbours, weights, inside = all_indptr, all_neighbours, all_weights, np.zeros(len(found))
    resolution = 1.0
    for _ in range(MOST_LEVELS):
        size = len(inside)
        community: Labels = np.arange(size, dtype=np.int32)
        order, visits = _order(size, draw), VISITS_EACH * size
        if kernels.move_nodes(indptr, neighbours, weights, inside, community, order, visits, resolution):
            count = kernels.number_by_first_member(community)
            found = community[found]
            indptr, neighbours, weights, inside = kernels.draw_together(
                indptr, neighbours, weights, inside, community, count
            )
        elif most is None or np.count_nonzero(np.diff(indptr)) <= most:
            break
        else:
            resolution *= COARSER
    # Whole communities have moved; now and then a client is better off elsewhere by then.
    order, visits, none = _order(len(found), draw), LAST_VISITS_EACH * len(found), np.zeros(len(found))
    kernels.move_nodes(all_indptr, all_neighbours, all_weights, none, found, order, visits, resolution)
    kernels.number_by_first_member(found)
    return found


def _order(size: int, draw: np.random.Generator) -> Labels:
    """Nodes in the order of their first visit: shuffled one by one, or block by block where there are many."""
    block = SHUFFLED_TOGETHER if size > 64 * SHUFFLED_TOGETHER else 1
    starts = draw.permutation(-(-size // block)) * block
    order = (starts[:, None] + np.arange(block)).ravel()
    return order[order < size].astype(np.int32)


def modularity(graph: SocialGraph, communities: IntArray) -> float:
    """Share of link weight within communities, less what a random graph of the same degrees would have there.

    Q = Σ_c (L_c/m − (d_c/2m)²): L_c the weight within community c, d_c the degrees of its members, m all weight.
    """
    links: Any = graph.links()
    rows = np.repeat(communities, np.diff(links.indptr))
    columns = communities[links.indices]
    total = float(links.data.sum())
    count = int(communities.max()) + 1
    degrees = np.bincount(rows, links.data, count) + np.bincount(columns, links.data, count)
    return float(links.data[rows == columns].sum() / total - ((degrees / (2 * total)) ** 2).sum())
