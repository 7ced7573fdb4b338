"""The network as a picture: which clients or communities are drawn, where, with which edges, and in what colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, IntArray
from mppfl.charts import VIRIDIS, cut, mixed_colours, nice_ticks
from mppfl.errors import BadInput
from mppfl.explorer.markup import panel
from mppfl.network import SocialGraph, SparseMatrix, communities_of_edges
from mppfl.text import plainly

if TYPE_CHECKING:
    from mppfl.explorer.client_view import ClientView
    from mppfl.explorer.world import Scene

WIDTH, HEIGHT = 1000.0, 700.0
MOST_CLIENTS, MOST_LINKS = 2_000, 2_000  # more lines say no more, and take a browser longer than a blink
FEW_LINKS, LINKS_EACH = 600, 5  # of fewer clients: at least so many lines, and so many for each client
MOST_COMMUNITIES, MOST_COMMUNITY_LINKS = 150, 600
MOST_NAMED, COMMUNITIES_NAMED = 60, 24  # nodes that have their names beside them: all clients or none; the largest
OTHERS = "others"


class Lines(NamedTuple):
    """One line per pair of connected nodes, in its stronger direction; weights are influence, both directions added."""

    sources: IntArray
    targets: IntArray
    weights: Array


@dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """What is drawn, in a box of 1000 × 700, y downwards.

    members    positions of the clients that each node stands for: one, or those of a community
    labels     "community 7 · 31,022" or "others · 4,210"; () for clients, who have names
    lines      whose ends are numbers of nodes
    diameters  of the nodes, in the unit of x and y
    note       what was left out, or ""
    trail      what was opened to come here, from the outside in
    """

    members: tuple[IntArray, ...]
    labels: tuple[str, ...]
    lines: Lines
    x: Array
    y: Array
    diameters: Array
    note: str
    trail: tuple[str, ...]

    @property
    def sizes(self) -> IntArray:
        """How many clients each node stands for."""
        return np.array([len(members) for members in self.members])


def draw(tree: CommunityTree, opened: tuple[int, ...] = ()) -> Picture:
    """All clients up to 2,000 of them, else communities; `opened` are communities by number, outermost first."""
    way, inside = tree.way(opened), tree.inside(opened)
    trail = (way[0].name, *(f"{branch.name} ({len(branch.members):,} clients)" for branch in way[1:]))
    if inside:
        return _community_picture(tree.graph, inside, trail)
    return _client_picture(tree.graph, way[-1].members, trail)


# ---- pictures -----------------------------------------------------------------------------------------------------


def _client_picture(graph: SocialGraph, members: IntArray, trail: tuple[str, ...]) -> Picture:
    notes = []
    count = len(members)
    if count > MOST_CLIENTS:
        among = graph.influence[members][:, members]
        degrees = np.diff(among.indptr) + np.bincount(among.indices, minlength=count)
        members = np.sort(members[np.argsort(-degrees, kind="stable")[:MOST_CLIENTS]])
        notes.append(f"the {MOST_CLIENTS:,} best connected of {count:,} clients are drawn")
    rows = graph.influence[members]
    among = rows[:, members]
    if among.nnz < rows.nnz:
        notes.append(f"{rows.nnz - among.nnz:,} edges from clients elsewhere are not drawn")
    lines, pairs = strongest_lines(among, min(MOST_LINKS, max(FEW_LINKS, LINKS_EACH * len(members))))
    if len(lines.weights) < pairs:
        notes.append(f"{len(lines.weights):,} of {pairs:,} linked pairs are drawn, the strongest of each client first")
    diameter = min(26.0, max(7.0, 0.3 * math.sqrt(WIDTH * HEIGHT / len(members))))
    return _laid_out(tuple(members[:, None]), (), lines, np.full(len(members), diameter), notes, trail)


def _community_picture(graph: SocialGraph, inside: tuple[Branch, ...], trail: tuple[str, ...]) -> Picture:
    community_of = np.full(graph.num_clients, -1, dtype=np.int16)
    for number, branch in enumerate(inside):
        community_of[branch.members] = number
    notes = []
    groups = inside[-1].groups
    if inside[-1].name == OTHERS:
        notes.append(f"the {len(groups):,} smallest communities, at most {len(groups[0]):,} clients each, are one node")
    lines, pairs = strongest_lines(influence_between(graph, community_of, len(inside)), MOST_COMMUNITY_LINKS)
    if len(lines.weights) < pairs:
        notes.append(f"{len(lines.weights):,} of {pairs:,} edges between communities are drawn, the strongest first")
    sizes = np.array([len(branch.members) for branch in inside])
    # Area by members; the discs together cover a sixth of the box, none of them more than a tenth of its height.
    diameters = np.clip(np.sqrt(sizes / sizes.sum() * WIDTH * HEIGHT / 6 * 4 / math.pi), 9.0, 110.0)
    labels = tuple(f"{branch.name} · {len(branch.members):,}" for branch in inside)
    return _laid_out(tuple(branch.members for branch in inside), labels, lines, diameters, notes, trail)


def _laid_out(
    members: tuple[IntArray, ...],
    labels: tuple[str, ...],
    lines: Lines,
    diameters: Array,
    notes: list[str],
    trail: tuple[str, ...],
) -> Picture:
    from mppfl.experiment import lay_out  # its loops are compiled, and the compiler is slow to load

    x, y = lay_out(len(members), *lines, radii=diameters / 2, width=WIDTH, height=HEIGHT)
    return Picture(members, labels, lines, x.round(1), y.round(1), diameters.round(1), "; ".join(notes), trail)


# ---- communities within communities -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Branch:
    """Some clients under one name. `groups` are the communities in it, where it holds several."""

    name: str
    members: IntArray
    groups: tuple[IntArray, ...] = ()


class CommunityTree:
    """A graph divided into communities, these into smaller ones, and so on; each is divided at first use.

    A branch is named by its path: numbers from the outside in, () for all clients. Every client is in exactly one
    branch of each division.
    """

    def __init__(
        self, graph: SocialGraph, *, most_together: int = MOST_CLIENTS, most_branches: int = MOST_COMMUNITIES
    ) -> None:
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
            inside = self.inside(opened[:depth])
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
        if opened not in self._inside:
            branch = self.way(opened)[-1]
            self._inside[opened] = self._divided(branch) if len(branch.members) > self.most_together else ()
        return self._inside[opened]

    def _divided(self, branch: Branch) -> tuple[Branch, ...]:
        if len(branch.groups) > self.most_branches:
            return self._bundles(branch.groups)
        groups = branch.groups or self._communities(branch.members)
        kept = len(groups) if len(groups) <= self.most_branches else self.most_branches - 1
        branches = tuple(Branch(f"community {number}", group) for number, group in enumerate(groups[:kept]))
        if len(groups) < 2:
            return ()
        return branches if kept == len(groups) else (*branches, _joined(OTHERS, groups[kept:]))

    def _communities(self, members: IntArray) -> tuple[IntArray, ...]:
        if self._edges is None:
            self._edges = self.graph.edges()
        everybody = len(members) == self.graph.num_clients
        edges = self._edges if everybody else self._edges[members][:, members]
        labels = communities_of_edges(edges, np.random.default_rng(0), self.most_branches)
        return tuple(members[part] for part in _parts(labels))

    def _bundles(self, groups: tuple[IntArray, ...]) -> tuple[Branch, ...]:
        """Whole communities bundled to about equally many clients."""
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


# ---- edges that are drawn ------------------------------------------------------------------------------------------


def influence_between(graph: SocialGraph, place: IntArray, count: int) -> SparseMatrix:
    """Influence between groups: entry (i, j) sums that of members of j on members of i. `place` −1: in no group."""
    grouped = np.flatnonzero(place >= 0)
    member = sp.csr_array((np.ones(len(grouped)), (grouped, place[grouped])), shape=(len(place), count))
    between = (member.T @ (graph.influence @ member)).toarray()
    np.fill_diagonal(between, 0.0)
    return sp.csr_array(between)


def strongest_lines(influence: SparseMatrix, most: int) -> tuple[Lines, int]:
    """One line per connected pair, the strongest first, at most about `most`; and the number of connected pairs.

    The strongest of each node come before all others, so that no connected node looks isolated.
    """
    both = sp.triu(influence + influence.T, k=1).tocoo()
    kept = np.argsort(-both.data, kind="stable")
    if both.nnz > most:
        ends = np.stack([both.row[kept], both.col[kept]], axis=1).ravel()
        first = np.unique(np.unique(ends, return_index=True)[1] // 2)  # of each node
        others = np.setdiff1d(np.arange(both.nnz), first)[: max(0, most - len(first))]
        kept = kept[np.union1d(first, others)]
    rows, columns = both.row[kept].astype(np.int64), both.col[kept].astype(np.int64)
    turned = _entries(influence, columns, rows) > _entries(influence, rows, columns)  # column j exposes row i
    return Lines(np.where(turned, rows, columns), np.where(turned, columns, rows), both.data[kept]), both.nnz


def _entries(matrix: SparseMatrix, rows: IntArray, columns: IntArray) -> Array:
    return np.asarray(matrix[rows, columns]).ravel() if len(rows) else np.empty(0)


# ---- for the page -------------------------------------------------------------------------------------------------


def elements(picture: Picture, names: Sequence[str]) -> list[dict[str, Any]]:
    """Nodes "n<position>" and lines "e<number>" for Cytoscape, without colours. `names` are those of all clients.

    A node's class is client, community or others, and named where its label has room; its data hold label, name,
    size (clients) and diameter. A line's class is w1 (thin) to w4 (the strongest twentieth).
    """
    whole = picture.labels or tuple(names[int(members[0])] for members in picture.members)
    num_named = COMMUNITIES_NAMED if picture.labels else len(whole) if len(whole) <= MOST_NAMED else 0
    numbers = (array.tolist() for array in (picture.sizes, picture.diameters, picture.x, picture.y))
    nodes: list[dict[str, Any]] = []
    for k, (name, size, diameter, x, y) in enumerate(zip(whole, *numbers, strict=True)):
        kind = "client" if not picture.labels else "others" if name.startswith(OTHERS) else "community"
        label = name if picture.labels else cut(name, 14)
        data = {"id": f"n{k}", "label": label, "name": name, "size": size, "diameter": diameter}
        if picture.labels:
            data["community"] = k
        classes = f"{kind} named" if k < num_named else kind
        nodes.append({"data": data, "position": {"x": x, "y": y}, "classes": classes})
    weights = picture.lines.weights
    limits = np.quantile(weights, [0.5, 0.8, 0.95]) if len(weights) else np.zeros(3)
    strength = (1 + np.searchsorted(limits, weights * (1 - 1e-12), side="left")).tolist()
    ends = (array.tolist() for array in picture.lines)
    lines: list[dict[str, Any]] = [
        {
            "data": {"id": f"e{k}", "source": f"n{source}", "target": f"n{target}", "weight": weight},
            "classes": f"w{level}",
        }
        for k, (source, target, weight, level) in enumerate(zip(*ends, strength, strict=True))
    ]
    return nodes + lines


def node_values(picture: Picture, values: Array) -> Array:
    """The mean over the clients of each node, those whose value is not known or not finite left out."""
    of_members = np.asarray(values, dtype=np.float64)[np.concatenate(picture.members)]
    is_finite = np.isfinite(of_members)
    starts = np.cumsum(picture.sizes) - picture.sizes
    sums = np.add.reduceat(np.where(is_finite, of_members, 0.0), starts)
    counts = np.add.reduceat(is_finite.astype(np.int64), starts)
    means: Array = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


# ---- colours ------------------------------------------------------------------------------------------------------

# Orange is below zero and blue above: told apart by everybody. Zero is pale on a light page, dull on a dark one.
ORANGE_TO_BLUE = {
    False: ("#7f3b08", "#c9650f", "#f2a65a", "#e4e4e4", "#7fb2dc", "#2b73b5", "#08306b"),
    True: ("#ffc078", "#f08c28", "#a85c1a", "#4a4e55", "#2f6fa8", "#4f9fe0", "#b3dbff"),
}
# The end of viridis that would vanish in the page's ground is left out.
FIRST_COLOUR, LAST_COLOUR = {False: 0.0, True: 0.22}, {False: 0.9, True: 1.0}
UNKNOWN = {False: "#9a9ca1", True: "#83868c"}
STOPS = 13


class Scale(NamedTuple):
    """The legend of a colouring.

    ticks        position in per cent from the left, and text, of each mark
    gradient     the scale as CSS, from left to right
    num_unknown  how many values are not known or not finite
    """

    ticks: tuple[tuple[float, str], ...]
    gradient: str
    num_unknown: int


def node_paint(values: Array, dark: bool, diverging: bool) -> tuple[list[str], Scale]:
    """A colour for each value, and the legend: viridis from the least to the most, or orange to blue around 0."""
    is_finite = np.isfinite(values)
    finite = values[is_finite]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if diverging:
        low, high = min(low, 0.0), max(high, 0.0)
    colours = _colours(np.where(is_finite, values, low), low, high, dark, diverging)
    colours = [colour if drawn else UNKNOWN[dark] for colour, drawn in zip(colours, is_finite.tolist(), strict=True)]
    marks = [mark for mark in nice_ticks(low, high, 5) if low <= mark <= high] if high > low else []
    if len(marks) < 2:
        marks = [low, high] if high > low else [low]
    width = high - low
    ticks = tuple((round(100 * (mark - low) / width, 2) if width > 0 else 50.0, plainly(mark)) for mark in marks)
    steps = _colours(np.linspace(low, high, STOPS), low, high, dark, diverging)
    gradient = ", ".join(f"{colour} {100 * k / (STOPS - 1):g}%" for k, colour in enumerate(steps))
    unknown = int((~is_finite).sum())
    return colours, Scale(ticks if len(finite) else (), f"linear-gradient(to right, {gradient})", unknown)


def _colours(values: Array, low: float, high: float, dark: bool, diverging: bool) -> list[str]:
    """Mixed from the two nearest of the scale's own colours; all alike where all values are."""
    if diverging:
        most = max(-low, high)
        return mixed_colours(0.5 + 0.5 * values / most if most > 0 else np.full(len(values), 0.5), ORANGE_TO_BLUE[dark])
    shares = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    return mixed_colours(FIRST_COLOUR[dark] + (LAST_COLOUR[dark] - FIRST_COLOUR[dark]) * shares, VIRIDIS)


def paint(
    picture: Picture, scene: Scene, colour: str, view: ClientView | None, dark: bool
) -> tuple[dict[str, Any], str]:
    """Colours of what is drawn, in its order, the chosen client, those who expose it and the walks; and the legend."""
    values, words = scene.coloured_by(colour)
    colours, scale = node_paint(node_values(picture, values), dark, diverging=colour == "utility")
    painted: dict[str, Any] = {"colours": colours, "communities": bool(picture.labels)}
    painted |= {"chosen": None, "sources": [], "walks": []}
    if view is not None:
        node_of = np.full(scene.solution.game.num_clients, -1)  # its own node or its community's; -1: not drawn
        for node, members in enumerate(picture.members):
            node_of[members] = node
        chosen = int(node_of[view.client])
        walks = [node_of[list(walk.clients)].tolist() for walk in view.walks]
        painted["chosen"] = chosen if chosen >= 0 else None
        painted["sources"] = sorted({int(node_of[source]) for source in view.sources} - {-1, chosen})
        # Of a walk between communities, without the steps that stay in one.
        painted["walks"] = [[node for node, _ in groupby(walk)] for walk in walks if min(walk) >= 0]
    return painted, panel("legend", scale=scale, words=words)
