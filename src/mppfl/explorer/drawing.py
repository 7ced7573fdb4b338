"""The network as a picture: which clients or communities are drawn, where, with which links, and in what colour."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.experiment.report import VIRIDIS, nice_ticks, shortened
from mppfl.network import OTHERS, Branch, CommunityTree, Lines, SocialGraph, influence_between, lay_out, strongest_lines
from mppfl.text import plainly

WIDTH, HEIGHT = 1000.0, 700.0
MOST_CLIENTS, MOST_LINKS = 2_000, 2_000  # more lines say no more, and take a browser longer than a blink
FEW_LINKS, LINKS_EACH = 600, 5  # of fewer clients: at least so many lines, and so many for each client
MOST_COMMUNITIES, MOST_COMMUNITY_LINKS = 150, 600
MOST_NAMED, COMMUNITIES_NAMED = 60, 24  # nodes that have their names beside them: all clients or none; the largest


@dataclass(frozen=True, eq=False)
class Picture:
    """What is drawn, in a box of 1000 × 700, y downwards.

    shown             positions of the clients drawn, or the numbers of the communities
    sources, targets  ends of each line as places in `shown`; one line per pair, in the stronger direction
    weights           influence along each line, both directions added
    mutual            whether the line runs both ways
    sizes, members    how many clients each drawn thing stands for, and their positions
    diameters         of each drawn thing, in the unit of x and y
    labels            "community 7 · 31,022" or "others · 4,210"; () for clients, who have names
    note              what was left out, or ""
    trail             what was opened to come here, from the outside in
    """

    shown: IntArray
    x: Array
    y: Array
    sources: IntArray
    targets: IntArray
    weights: Array
    mutual: BoolArray
    sizes: IntArray
    diameters: Array
    is_community: bool
    members: tuple[IntArray, ...]
    labels: tuple[str, ...]
    note: str
    trail: tuple[str, ...]


class Drawn:
    """A graph and what was drawn of it, found once each, when it is asked for. Safe to use from threads."""

    def __init__(self, graph: SocialGraph) -> None:
        self.graph = graph
        self._tree = CommunityTree(graph, most_together=MOST_CLIENTS, most_branches=MOST_COMMUNITIES)
        self._pictures: dict[tuple[int, ...], Picture] = {}
        self._lock = threading.Lock()

    def picture(self, opened: tuple[int, ...] = ()) -> Picture:
        """All clients up to 2,000 of them, else communities; `opened` are communities by number, outermost first."""
        opened = tuple(opened)
        with self._lock:
            if opened not in self._pictures:
                way, inside = self._tree.way(opened), self._tree.inside(opened)
                trail = (way[0].name, *(f"{branch.name} ({len(branch.members):,} clients)" for branch in way[1:]))
                self._pictures[opened] = (
                    _community_picture(self.graph, inside, trail)
                    if inside
                    else _client_picture(self.graph, way[-1].members, trail)
                )
            return self._pictures[opened]


def picture(graph: SocialGraph, opened: tuple[int, ...] = ()) -> Picture:
    """What `Drawn(graph).picture(opened)` gives; keep a `Drawn` instead where more than one picture is wanted."""
    return Drawn(graph).picture(opened)


# ---- pictures -----------------------------------------------------------------------------------------------------


def _client_picture(graph: SocialGraph, members: IntArray, trail: tuple[str, ...]) -> Picture:
    notes = []
    count = len(members)
    influence = graph.influence
    if count > MOST_CLIENTS:
        among = influence[members][:, members]
        degrees = np.diff(among.indptr) + np.bincount(among.indices, minlength=count)
        members = np.sort(members[np.argsort(-degrees, kind="stable")[:MOST_CLIENTS]])
        notes.append(f"the {MOST_CLIENTS:,} best connected of {count:,} clients are drawn")
    everybody = len(members) == graph.num_clients
    rows = influence if everybody else influence[members]
    among = rows if everybody else rows[:, members]
    if among.nnz < rows.nnz:
        notes.append(f"{rows.nnz - among.nnz:,} links from clients elsewhere are not drawn")
    most = min(MOST_LINKS, max(FEW_LINKS, LINKS_EACH * len(members)))
    lines, pairs = strongest_lines(among, most)
    if len(lines.weights) < pairs:
        notes.append(f"{len(lines.weights):,} of {pairs:,} linked pairs are drawn, the strongest of each client first")
    diameter = min(26.0, max(7.0, 0.3 * math.sqrt(WIDTH * HEIGHT / len(members))))
    diameters = np.full(len(members), diameter)
    ones = np.ones(len(members), dtype=np.int64)
    each = tuple(members[:, None])
    return _assembled(members, ones, diameters, lines, each, (), notes, trail)


def _community_picture(graph: SocialGraph, inside: tuple[Branch, ...], trail: tuple[str, ...]) -> Picture:
    count = len(inside)
    place = np.full(graph.num_clients, -1, dtype=np.int16)
    for number, branch in enumerate(inside):
        place[branch.members] = number
    between = influence_between(graph, place, count)
    notes = []
    groups = inside[-1].groups
    if inside[-1].name == OTHERS:
        notes.append(f"the {len(groups):,} smallest communities, at most {len(groups[0]):,} clients each, are one node")
    lines, pairs = strongest_lines(between, MOST_COMMUNITY_LINKS)
    if len(lines.weights) < pairs:
        notes.append(f"{len(lines.weights):,} of {pairs:,} links between communities are drawn, the strongest first")
    sizes = np.array([len(branch.members) for branch in inside])
    # Area by members; the discs together cover a sixth of the box, none of them more than a tenth of its height.
    diameters = np.sqrt(sizes / sizes.sum() * WIDTH * HEIGHT / 6 * 4 / math.pi)
    diameters = np.clip(diameters, 9.0, 110.0)
    labels = tuple(f"{branch.name} · {len(branch.members):,}" for branch in inside)
    members = tuple(branch.members for branch in inside)
    return _assembled(np.arange(count), sizes, diameters, lines, members, labels, notes, trail)


def _assembled(
    shown: IntArray,
    sizes: IntArray,
    diameters: Array,
    lines: Lines,
    members: tuple[IntArray, ...],
    labels: tuple[str, ...],
    notes: list[str],
    trail: tuple[str, ...],
) -> Picture:
    x, y = lay_out(
        len(shown), lines.sources, lines.targets, lines.weights, radii=diameters / 2, width=WIDTH, height=HEIGHT
    )
    return Picture(
        shown=shown,
        x=x.round(1),
        y=y.round(1),
        sources=lines.sources,
        targets=lines.targets,
        weights=lines.weights,
        mutual=lines.mutual,
        sizes=sizes,
        diameters=diameters.round(1),
        is_community=bool(labels),
        members=members,
        labels=labels,
        note="; ".join(notes),
        trail=trail,
    )


# ---- for the page -------------------------------------------------------------------------------------------------


def elements(picture: Picture, names: Sequence[str]) -> list[dict[str, Any]]:
    """Nodes "n<place>" and lines "e<number>" for dash_cytoscape, without colours. `names` are those of all clients.

    A node's class is client, community or others, and named where its label has room; its data hold place, label,
    name, size (clients) and diameter. A line's classes are w1 (thin) to w4 (the strongest twentieth), and mutual
    where it runs both ways.
    """
    whole = picture.labels or tuple(names[client] for client in picture.shown.tolist())
    short = whole if picture.is_community else tuple(shortened(name, 14) for name in whole)
    kinds = [
        "client" if not picture.is_community else "others" if name.startswith(OTHERS) else "community" for name in whole
    ]
    named = COMMUNITIES_NAMED if picture.is_community else len(whole) if len(whole) <= MOST_NAMED else 0
    kinds = [f"{kind} named" if at < named else kind for at, kind in enumerate(kinds)]
    numbers = (each.tolist() for each in (picture.sizes, picture.diameters, picture.x, picture.y))
    nodes: list[dict[str, Any]] = [
        {
            "data": {"id": f"n{at}", "place": at, "label": label, "name": name, "size": size, "diameter": diameter},
            "position": {"x": x, "y": y},
            "classes": kind,
        }
        for at, (label, name, kind, size, diameter, x, y) in enumerate(zip(short, whole, kinds, *numbers, strict=True))
    ]
    edges = np.quantile(picture.weights, [0.5, 0.8, 0.95]) if len(picture.weights) else np.zeros(3)
    strength = np.searchsorted(edges, picture.weights * (1 - 1e-12), side="left").tolist()
    kinds_of_line = [[f"w{level}", f"w{level} mutual"] for level in (1, 2, 3, 4)]
    ends = (each.tolist() for each in (picture.sources, picture.targets, picture.weights, picture.mutual))
    lines: list[dict[str, Any]] = [
        {
            "data": {"id": f"e{at}", "source": f"n{source}", "target": f"n{target}", "weight": weight},
            "classes": kinds_of_line[level][mutual],
        }
        for at, (source, target, weight, mutual, level) in enumerate(zip(*ends, strength, strict=True))
    ]
    return nodes + lines


def community_values(picture: Picture, values: Array) -> Array:
    """The mean over the members of each drawn thing, those whose value is not known or not finite left out."""
    if not picture.is_community:
        return np.asarray(values, dtype=np.float64)[picture.shown]
    chosen = np.asarray(values, dtype=np.float64)[np.concatenate(picture.members)]
    known = np.isfinite(chosen)
    starts = np.cumsum(picture.sizes) - picture.sizes
    sums = np.add.reduceat(np.where(known, chosen, 0.0), starts)
    counts = np.add.reduceat(known.astype(np.int64), starts)
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


@dataclass(frozen=True, slots=True)
class Scale:
    """The legend of a colouring.

    low, high    its ends
    ticks        place in per cent from the left, and text, of each mark
    colours      of equal steps from low to high
    unknown      the colour of what is not known or not finite, and how many such there are
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    colours: tuple[str, ...]
    unknown: str
    num_unknown: int

    @property
    def gradient(self) -> str:
        """The scale as CSS, from left to right."""
        last = len(self.colours) - 1
        steps = ", ".join(f"{colour} {100 * at / last:g}%" for at, colour in enumerate(self.colours))
        return f"linear-gradient(to right, {steps})"


def node_paint(values: Array, dark: bool, diverging: bool) -> tuple[list[str], Scale]:
    """A colour for each value, and the legend: viridis from the least to the most, or orange to blue around 0."""
    values = np.asarray(values, dtype=np.float64)
    known = np.isfinite(values)
    finite = values[known]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if diverging:
        low, high = min(low, 0.0), max(high, 0.0)
    colours = _colours(np.where(known, values, low), low, high, dark, diverging)
    colours = [colour if there else UNKNOWN[dark] for colour, there in zip(colours, known.tolist(), strict=True)]
    marks = [mark for mark in nice_ticks(low, high, 5) if low <= mark <= high] if high > low else []
    if len(marks) < 2:
        marks = [low, high] if high > low else [low]
    wide = high - low
    ticks = tuple((round(100 * (mark - low) / wide, 2) if wide > 0 else 50.0, plainly(mark)) for mark in marks)
    steps = tuple(_colours(np.linspace(low, high, STOPS), low, high, dark, diverging))
    return colours, Scale(low, high, ticks if len(finite) else (), steps, UNKNOWN[dark], int((~known).sum()))


def _colours(values: Array, low: float, high: float, dark: bool, diverging: bool) -> list[str]:
    """Mixed from the two nearest of the scale's own colours; all alike where all values are."""
    if diverging:
        most = max(-low, high)
        share = 0.5 + 0.5 * values / most if most > 0 else np.full(len(values), 0.5)
        named: tuple[str, ...] = ORANGE_TO_BLUE[dark]
    else:
        share = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
        share = FIRST_COLOUR[dark] + (LAST_COLOUR[dark] - FIRST_COLOUR[dark]) * share
        named = VIRIDIS
    parts = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in named], dtype=np.float64)
    place = np.clip(share, 0.0, 1.0) * (len(named) - 1)
    mixed = np.column_stack([np.interp(place, np.arange(len(named)), parts[:, part]) for part in range(3)])
    red, green, blue = np.rint(mixed).astype(np.int64).T
    return [f"#{colour:06x}" for colour in ((red << 16) | (green << 8) | blue).tolist()]
