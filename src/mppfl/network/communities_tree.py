"""Communities within communities: a large graph divided step by step, until few enough clients are together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mppfl.arrays import IntArray
from mppfl.errors import BadInput
from mppfl.network.communities import communities_of_links
from mppfl.network.graph import SocialGraph, SparseMatrix

OTHERS = "others"


@dataclass(frozen=True, eq=False, slots=True)
class Branch:
    """Some clients under one name. `groups` are the communities that were put together in it, if it is no community."""

    name: str
    members: IntArray
    groups: tuple[IntArray, ...] = ()


class CommunityTree:
    """A graph divided into communities, those into their own, and so on; each is divided when it is first asked for.

    Branches are known by the way to them: numbers from the outside in, () for everybody. Every client is in exactly
    one branch of each division. Not safe to use from two threads at once.
    """

    def __init__(self, graph: SocialGraph, *, most_together: int, most_branches: int) -> None:
        self.graph = graph
        self.most_together = most_together
        self.most_branches = most_branches
        self._links: SparseMatrix | None = None
        self._inside: dict[tuple[int, ...], tuple[Branch, ...]] = {}

    def way(self, opened: tuple[int, ...]) -> tuple[Branch, ...]:
        """The branches on the way, everybody first. Raises where there is no such way."""
        count = self.graph.num_clients
        found = [Branch(f"all {count:,} clients", np.arange(count))]
        for depth, number in enumerate(opened):
            inside = self._divided(opened[:depth], found[-1])
            if not 0 <= number < len(inside):
                there = f"has communities 0 to {len(inside) - 1}" if inside else "has only clients"
                raise BadInput(f"opened={opened!r}: {found[-1].name} {there}, no community {number}. Go back up.")
            found.append(inside[number])
        return tuple(found)

    def inside(self, opened: tuple[int, ...]) -> tuple[Branch, ...]:
        """What the branch at the end of the way divides into, the largest first.

        () where it has at most `most_together` clients, or is so closely linked that it does not divide. Above
        `most_branches` communities the smallest are the last branch together.
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
        if self._links is None:
            self._links = self.graph.links()
        everybody = len(members) == self.graph.num_clients
        links = self._links if everybody else self._links[members][:, members]
        found = _parts(communities_of_links(links, np.random.default_rng(0), self.most_branches))
        groups = tuple(members[part] for part in found)
        if len(groups) < 2:
            return ()
        kept = len(groups) if len(groups) <= self.most_branches else self.most_branches - 1
        branches = tuple(Branch(f"community {number}", group) for number, group in enumerate(groups[:kept]))
        return branches if kept == len(groups) else (*branches, _together(OTHERS, groups[kept:]))

    def _bundles(self, groups: tuple[IntArray, ...]) -> tuple[Branch, ...]:
        """Communities one by one, or, where they are too many, whole ones bundled to about equally many clients."""
        if len(groups) <= self.most_branches:
            return tuple(Branch(f"community {number}", group) for number, group in enumerate(groups))
        sizes = np.array([len(group) for group in groups])
        middles = np.cumsum(sizes) - sizes / 2
        bundle = np.unique((middles * self.most_branches / sizes.sum()).astype(np.int64), return_inverse=True)[1]
        bundles = [tuple(groups[at] for at in places.tolist()) for places in _parts(bundle)]
        bundles.sort(key=lambda together: -sum(map(len, together)))
        return tuple(
            _together(f"bundle {number} of {len(each):,} communities", each)
            if len(each) > 1
            else Branch(f"community {number}", each[0])
            for number, each in enumerate(bundles)
        )


def _together(name: str, groups: tuple[IntArray, ...]) -> Branch:
    return Branch(name, np.sort(np.concatenate(groups)), groups)


def _parts(labels: IntArray) -> list[IntArray]:
    """Positions of each label, the largest group first."""
    counts = np.bincount(labels)
    groups = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    return [groups[label] for label in np.argsort(-counts, kind="stable").tolist()]
