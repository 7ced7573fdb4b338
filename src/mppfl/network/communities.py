"""Communities of a social graph (Louvain), and communities within communities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mppfl.arrays import IntArray
from mppfl.errors import BadInput
from mppfl.network.graph import SocialGraph, SparseMatrix

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
    all_rows = kernels.edges_of_both_directions((edges.indptr, edges.indices, edges.data))
    rows, inside = all_rows, np.zeros(len(labels))
    resolution = 1.0
    for _ in range(MOST_LEVELS):
        size = len(inside)
        community: Labels = np.arange(size, dtype=np.int32)
        order, visits = _order(size, draw), VISITS_EACH * size
        if kernels.move_nodes(rows, inside, community, order, visits, resolution):
            count = kernels.number_by_first_member(community)
            labels = community[labels]
            rows, inside = kernels.draw_together(rows, inside, community, count)
        elif most is None or np.count_nonzero(np.diff(rows[0])) <= most:
            break
        else:
            resolution *= COARSER
    # Whole communities have moved; some single client may now be better off in another one.
    order, visits, none = _order(len(labels), draw), LAST_VISITS_EACH * len(labels), np.zeros(len(labels))
    kernels.move_nodes(all_rows, none, labels, order, visits, resolution)
    kernels.number_by_first_member(labels)
    return labels


def _order(size: int, draw: np.random.Generator) -> Labels:
    """Nodes in the order of their first visit: shuffled one by one, or block by block where there are many."""
    block = SHUFFLED_TOGETHER if size > 64 * SHUFFLED_TOGETHER else 1
    starts = draw.permutation(-(-size // block)) * block
    order = (starts[:, None] + np.arange(block)).ravel()
    return order[order < size].astype(np.int32)


OTHERS = "others"


@dataclass(frozen=True, eq=False, slots=True)
class Branch:
    """Some clients under one name. `groups` are the communities in it, where it holds several."""

    name: str
    members: IntArray
    groups: tuple[IntArray, ...] = ()


class CommunityTree:
    """A graph divided into communities, these into smaller ones, and so on; each is divided at first use.

    A branch is named by its path: numbers from the outside in, () for all clients. Every client is in exactly one
    branch of each division. Not safe to use from two threads at once.
    """

    def __init__(self, graph: SocialGraph, *, most_together: int, most_branches: int) -> None:
        self.graph = graph
        self.most_together = most_together
        self.most_branches = most_branches
        self._edges: SparseMatrix | None = None
        self._inside: dict[tuple[int, ...], tuple[Branch, ...]] = {}

    def way(self, opened: tuple[int, ...]) -> tuple[Branch, ...]:
        """The branches along a path, all clients first. Raises BadInput where there is no such path."""
        count = self.graph.num_clients
        branches = [Branch(f"all {count:,} clients", np.arange(count))]
        for depth, number in enumerate(opened):
            inside = self._divided(opened[:depth], branches[-1])
            if not 0 <= number < len(inside):
                content = f"has communities 0 to {len(inside) - 1}" if inside else "has only clients"
                raise BadInput(f"opened={opened!r}: {branches[-1].name} {content}, no community {number}. Go back up.")
            branches.append(inside[number])
        return tuple(branches)

    def inside(self, opened: tuple[int, ...]) -> tuple[Branch, ...]:
        """The branches into which the end of a path divides, the largest first.

        () where it has at most `most_together` clients, or does not divide. Above `most_branches` communities the
        smallest form the last branch together.
        """
        return self._divided(opened, self.way(opened)[-1])

    def _divided(self, opened: tuple[int, ...], branch: Branch) -> tuple[Branch, ...]:
        if opened not in self._inside:
            if len(branch.members) <= self.most_together:
                self._inside[opened] = ()
            elif branch.groups:
                self._inside[opened] = self._bundles(branch.groups)
            else:
                self._inside[opened] = self._communities(branch.members)
        return self._inside[opened]

    def _communities(self, members: IntArray) -> tuple[Branch, ...]:
        if self._edges is None:
            self._edges = self.graph.edges()
        everybody = len(members) == self.graph.num_clients
        edges = self._edges if everybody else self._edges[members][:, members]
        labels = communities_of_edges(edges, np.random.default_rng(0), self.most_branches)
        groups = tuple(members[part] for part in _parts(labels))
        if len(groups) < 2:
            return ()
        kept = len(groups) if len(groups) <= self.most_branches else self.most_branches - 1
        branches = tuple(Branch(f"community {number}", group) for number, group in enumerate(groups[:kept]))
        return branches if kept == len(groups) else (*branches, _joined(OTHERS, groups[kept:]))

    def _bundles(self, groups: tuple[IntArray, ...]) -> tuple[Branch, ...]:
        """Communities one by one, or, where they are too many, whole ones bundled to about equally many clients."""
        if len(groups) <= self.most_branches:
            return tuple(Branch(f"community {number}", group) for number, group in enumerate(groups))
        sizes = np.array([len(group) for group in groups])
        middles = np.cumsum(sizes) - sizes / 2
        bundle = np.unique((middles * self.most_branches / sizes.sum()).astype(np.int64), return_inverse=True)[1]
        bundles = [tuple(groups[i] for i in positions.tolist()) for positions in _parts(bundle)]
        bundles.sort(key=lambda communities: -sum(map(len, communities)))
        return tuple(
            _joined(f"bundle {number} of {len(communities):,} communities", communities)
            if len(communities) > 1
            else Branch(f"community {number}", communities[0])
            for number, communities in enumerate(bundles)
        )


def _joined(name: str, groups: tuple[IntArray, ...]) -> Branch:
    return Branch(name, np.sort(np.concatenate(groups)), groups)


def _parts(labels: IntArray) -> list[IntArray]:
    """Positions of each label, the largest group first."""
    counts = np.bincount(labels)
    groups = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    return [groups[label] for label in np.argsort(-counts, kind="stable").tolist()]
