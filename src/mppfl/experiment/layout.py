"""Positions of the nodes of a drawing by a force layout."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, dijkstra

from mppfl.arrays import Array, BoolArray, IntArray, read_only, require, require_number
from mppfl.compiled import njit
from mppfl.errors import BadInput
from mppfl.network import communities_of_edges

PIVOTS = 24  # nodes from which distances are measured for the start
MOST_STEPS, FEWEST_STEPS, NODE_STEPS = 300, 80, 150_000  # steps for few nodes, for many, and nodes · steps between
WITHIN_COMMUNITIES, BETWEEN_COMMUNITIES = 2.0, 0.15  # pull of an edge, relative to one in a graph without groups
CENTRING = 0.6

_Edges: TypeAlias = Any  # scipy.sparse.coo_array, nodes × nodes: weights, each edge in one direction


class Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float


def lay_out(
    num_nodes: int,
    firsts: IntArray,
    seconds: IntArray,
    weights: Array | None = None,
    *,
    radii: Array | float = 3.0,
    width: float = 1000.0,
    height: float = 700.0,
) -> tuple[Array, Array]:
    """x and y of every node, all within the box, y downwards. Edges have no direction and are given by their ends.

    Each connected part has a share of the box by its number of nodes; nodes without edges are in rows below. Nodes
    are circles of `radii` that do not overlap where there is room. Costs 80 num_nodes²: half a second for 2,000.
    """
    require_number(width, "width", 0.0, math.inf)
    require_number(height, "height", 0.0, math.inf)
    firsts, seconds = np.asarray(firsts, dtype=np.int32), np.asarray(seconds, dtype=np.int32)
    pull = np.ones(len(firsts)) if weights is None else read_only(weights, "weights")
    require(pull, "weights", np.isfinite(pull) & (pull > 0), "a positive number")
    if not len(firsts) == len(seconds) == len(pull):
        raise BadInput(f"{len(firsts)} firsts, {len(seconds)} seconds and {len(pull)} weights do not match.")
    ends = np.concatenate([firsts, seconds])
    if len(wrong := ends[(ends < 0) | (ends >= num_nodes)]):
        raise BadInput(f"edge end {int(wrong[0])} is not one of {num_nodes} nodes.")
    apart = firsts != seconds
    edges = sp.coo_array((pull[apart], (firsts[apart], seconds[apart])), shape=(num_nodes, num_nodes))
    sizes = np.broadcast_to(np.asarray(radii, dtype=np.float64), (num_nodes,))
    x, y = np.full(num_nodes, width / 2), np.full(num_nodes, height / 2)
    connected = np.isin(np.arange(num_nodes), ends[np.tile(apart, 2)])
    floor = _rows_below(x, y, connected, sizes, width, height)
    if connected.any():
        _place_parts(x, y, edges, connected, sizes, Box(0.0, 0.0, width, floor))
    return x, y


def _rows_below(x: Array, y: Array, connected: BoolArray, radii: Array, width: float, height: float) -> float:
    """Puts nodes without edges into rows, in place; returns how far down the others may reach."""
    alone = np.flatnonzero(~connected)
    if len(alone) == 0:
        return height
    share = len(alone) / len(connected)
    room = height if share == 1.0 else height * min(0.5, max(0.06, 0.8 * share))
    widest = 2.6 * float(radii[alone].max())
    # Rows as far from each other as neighbours in a row, and no farther than looks like one group.
    step = min(math.sqrt(width * room / len(alone)), max(widest, 34.0))
    a_row = max(1, int(width / step))
    rows = math.ceil(len(alone) / a_row)
    room = min(room, rows * step) if share < 1.0 else room
    row, place = np.divmod(np.arange(len(alone)), a_row)
    start = (width - min(a_row, len(alone)) * step) / 2
    x[alone] = start + (place + 0.5) * step
    y[alone] = height - room + (row + 0.5) * room / rows
    return height - room - min(16.0, 0.03 * height)


def _place_parts(x: Array, y: Array, edges: _Edges, connected: BoolArray, radii: Array, box: Box) -> None:
    """Each connected part into a box of its own, in place."""
    matrix = edges.tocsr()
    _, part = connected_components(matrix, directed=False)
    counts = np.bincount(part[connected], minlength=int(part.max()) + 1)
    order = np.flatnonzero(counts)[np.argsort(-counts[counts > 0], kind="stable")]
    boxes = _shares(counts[order].astype(np.float64) + 3.0, box)  # a pair needs more room than two of two thousand
    spacing = math.sqrt(boxes[0].width * boxes[0].height / counts[order[0]])
    communities = communities_of_edges(matrix, np.random.default_rng(0))
    for number, room in zip(order.tolist(), boxes, strict=True):
        nodes = np.flatnonzero(part == number)
        inner = matrix[nodes][:, nodes].tocoo()
        # Nodes of a small part stand no farther apart than those of the largest, not at the ends of their box.
        limit = math.inf if number == order[0] else 0.8 * spacing * math.sqrt(len(nodes))
        x[nodes], y[nodes] = _one_part(inner, communities[nodes], radii[nodes], room, limit)


def _shares(sizes: Array, box: Box) -> list[Box]:
    """The box cut into one for each size, in proportion: halves of about equal sum, cut across the longer side."""
    if len(sizes) == 1:
        return [box]
    sums = np.cumsum(sizes)
    cut = min(max(1, int(np.searchsorted(sums, sums[-1] / 2)) + (sizes[0] < sums[-1] / 2)), len(sizes) - 1)
    share = float(sums[cut - 1] / sums[-1])
    left, top, width, height = box
    if width >= height:
        one, two = Box(left, top, share * width, height), Box(left + share * width, top, (1 - share) * width, height)
    else:
        one, two = Box(left, top, width, share * height), Box(left, top + share * height, width, (1 - share) * height)
    return _shares(sizes[:cut], one) + _shares(sizes[cut:], two)


def _one_part(edges: _Edges, communities: IntArray, radii: Array, box: Box, limit: float) -> tuple[Array, Array]:
    """Positions of one connected part in its box, of which it uses at most `limit` each way."""
    x, y = _settled(edges, communities, np.ones(len(radii)))
    points = _filling(np.column_stack([x, y]))
    gap = np.minimum(radii + 1.0, 0.42 * math.sqrt(box.width * box.height / len(radii)))
    across, down = (min(max(side - 2.4 * float(gap.max()), 1e-3), limit) for side in (box.width, box.height))
    x, y = (points[:, 0] - 0.5) * across + box.width / 2, (points[:, 1] - 0.5) * down + box.height / 2
    move_apart(x, y, gap, box.width, box.height, 60)
    return box.left + x, box.top + y


def _settled(edges: _Edges, communities: IntArray, sizes: Array) -> tuple[Array, Array]:
    """Positions of nodes with `sizes` members each where forces are in balance; a member has a unit of area."""
    firsts, seconds, weights = edges.row.astype(np.int32), edges.col.astype(np.int32), edges.data
    count, spread = len(sizes), math.sqrt(float(sizes.sum()))
    labels, group = np.unique(communities, return_inverse=True)
    in_groups = 1 < len(labels) <= count // 3
    x, y = _by_community(edges, group, sizes) if in_groups else spread * _by_distance(edges)
    degree = np.bincount(firsts, minlength=count) + np.bincount(seconds, minlength=count)
    mass = (sizes * (1.0 + degree)) ** 0.5
    near = np.where(group[firsts] == group[seconds], WITHIN_COMMUNITIES, BETWEEN_COMMUNITIES) if in_groups else 1.0
    pull = near * (weights / weights.mean() / np.minimum(degree[firsts], degree[seconds])) ** 0.5
    steps = min(max(NODE_STEPS // count, FEWEST_STEPS), MOST_STEPS)
    heat = (1.5 if in_groups else 0.25 * spread) * (1 - np.arange(steps) / steps) ** 1.5
    across, down, heavy, pulls, hot = (np.ascontiguousarray(a, dtype=np.float32) for a in (x, y, mass, pull, heat))
    settle(across, down, heavy, firsts, seconds, pulls, np.float32(CENTRING), hot)
    return across.astype(np.float64), down.astype(np.float64)


def _by_community(edges: _Edges, group: IntArray, sizes: Array) -> Array:
    """First positions, 2 × nodes: communities laid out as nodes, the members of each on a disc around its middle."""
    members = np.bincount(group, sizes).astype(np.float64)
    between = sp.csr_array((edges.data, (group[edges.row], group[edges.col])), shape=(len(members), len(members)))
    one_group = np.zeros(len(members), dtype=np.int32)
    middles = np.array(_settled(sp.triu(between + between.T, k=1).tocoo(), one_group, members))
    reach = np.sqrt(members / math.pi)
    side = 1.3 * math.sqrt(float(sizes.sum())) + 2 * float(reach.max())
    low = middles.min(axis=1, keepdims=True)
    middles = (middles - low) / np.maximum(middles.max(axis=1, keepdims=True) - low, 1e-9) * side
    move_apart(middles[0], middles[1], reach, side, side, 60)
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    start: Array = middles[:, group] - side / 2 + reach[group] * _spiral(rank, counts[group])
    return start


def _spiral(rank: IntArray, count: IntArray | int) -> Array:
    """Points spread evenly over a disc of radius 1, 2 × nodes: neighbours in rank are a golden angle apart."""
    turn, out = 2.39996 * rank, np.sqrt((rank + 0.5) / count)
    return np.array([out * np.cos(turn), out * np.sin(turn)])


def _by_distance(edges: _Edges) -> Array:
    """First positions, 2 × nodes, by distances in edges from a few far nodes (pivot MDS, Brandes & Pich 2006)."""
    matrix, size = edges.tocsr(), edges.shape[0]
    pivots, distances = [0], []
    nearest = np.full(size, np.inf)
    for _ in range(min(PIVOTS, size)):
        distances.append(dijkstra(matrix, directed=False, indices=pivots[-1], unweighted=True))
        nearest = np.minimum(nearest, distances[-1])
        pivots.append(int(np.argmax(nearest)))
    square = np.array(distances).T ** 2
    centred = square - square.mean(axis=0) - square.mean(axis=1)[:, None] + square.mean()
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    start = 0.25 * _spiral(np.arange(size), size)  # parts nodes that are equally far from everything
    for axis in range(min(2, left.shape[1])):
        along = left[:, axis] * (np.sign(left[np.argmax(np.abs(left[:, axis])), axis]) or 1.0)
        start[axis] += along / max(float(np.abs(along).max()), 1e-12)
    return start


def _filling(points: Array) -> Array:
    """Points turned so that the longer way lies across, spread more evenly from the middle, in the unit square."""
    points = points - points.mean(axis=0)
    if len(points) > 2:
        _, axes = np.linalg.eigh(points.T @ points)
        points = points @ (axes[:, ::-1] * np.sign(axes[0, ::-1] + 1e-12))
    scale = np.abs(points).max(axis=0)
    points = points / np.where(scale > 1e-9, scale, 1.0)
    far = np.hypot(points[:, 0], points[:, 1])
    even = np.sqrt((np.argsort(np.argsort(far, kind="stable"), kind="stable") + 0.5) / len(far))
    points = points * (0.7 + 0.3 * even * far.max() / np.maximum(far, 1e-9))[:, None]
    low, high = points.min(axis=0), points.max(axis=0)
    return np.where(high - low > 1e-9, (points - low) / np.maximum(high - low, 1e-9), 0.5)


@njit(cache=True, fastmath=True)
def settle(x: Any, y: Any, mass: Any, firsts: Any, seconds: Any, pull: Any, centring: Any, heat: Any) -> None:
    """Moves nodes in place, one step for each entry of `heat`, the longest way a node may go in that step.

    Every two nodes push each other apart by mass · mass / distance; an edge pulls its ends together by pull · distance;
    everything is drawn to the middle by centring · mass · distance. All of one float type, so that loops vectorise.
    """
    size = len(x)
    push_x, push_y = np.empty_like(x), np.empty_like(y)
    for step in range(len(heat)):
        for i in range(size):
            here_x, here_y = x[i], y[i]
            sum_x = sum_y = np.float32(0.0)
            for j in range(size):
                right, down = here_x - x[j], here_y - y[j]
                push = mass[j] / (right * right + down * down + np.float32(1e-3))
                sum_x += right * push
                sum_y += down * push
            push_x[i] = mass[i] * (sum_x - centring * here_x)
            push_y[i] = mass[i] * (sum_y - centring * here_y)
        for k in range(len(firsts)):
            a, b = firsts[k], seconds[k]
            pull_x, pull_y = pull[k] * (x[b] - x[a]), pull[k] * (y[b] - y[a])
            push_x[a] += pull_x
            push_y[a] += pull_y
            push_x[b] -= pull_x
            push_y[b] -= pull_y
        for i in range(size):
            # Heavy nodes are pushed and pulled more; by their mass they also move less.
            way_x, way_y = push_x[i] / mass[i], push_y[i] / mass[i]
            length = np.sqrt(way_x * way_x + way_y * way_y) + np.float32(1e-9)
            share = min(np.float32(0.2), heat[step] / length)
            x[i] += share * way_x
            y[i] += share * way_y


@njit(cache=True)
def move_apart(x: Any, y: Any, radii: Any, width: float, height: float, sweeps: int) -> int:
    """Moves touching nodes off each other in place, within the box; returns how many pairs touched at the last sweep.

    Two at the very same point part along a direction of their own, so that the result does not depend on chance.
    """
    size = len(x)
    touching = 0
    for _ in range(sweeps):
        touching = 0
        for i in range(size):
            for j in range(i):
                apart = radii[i] + radii[j]
                right = x[i] - x[j]
                if right > apart or right < -apart:
                    continue
                down = y[i] - y[j]
                square = right * right + down * down
                if square >= apart * apart:
                    continue
                touching += 1
                distance = np.sqrt(square)
                if distance < 1e-6:
                    right, down, distance = np.cos(2.4 * i), np.sin(2.4 * i), 1.0
                    missing = 0.5 * apart
                else:
                    missing = 0.5 * (1.02 * apart - distance)
                x[i] += missing * right / distance
                y[i] += missing * down / distance
                x[j] -= missing * right / distance
                y[j] -= missing * down / distance
        for i in range(size):
            x[i] = min(max(x[i], radii[i]), width - radii[i])
            y[i] = min(max(y[i], radii[i]), height - radii[i])
        if touching == 0:
            break
    return touching
