"""Compiled part of `communities`: nodes move to where their links are, and communities are drawn together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mppfl.arrays import Array, IntArray


@njit(cache=True)
def links_of_both_directions(indptr: Any, indices: Any, data: Any) -> Any:
    """Rows of W + Wᵀ, a link that runs both ways standing twice: nobody downstream minds, and no sum is formed."""
    size = len(indptr) - 1
    both = np.zeros(size + 1, dtype=np.int64)
    for row in range(size):
        both[row + 1] += indptr[row + 1] - indptr[row]
        for at in range(indptr[row], indptr[row + 1]):
            both[indices[at] + 1] += 1
    for row in range(size):
        both[row + 1] += both[row]
    free = both[:-1].copy()
    neighbours = np.empty(both[-1], dtype=np.int32)
    weights = np.empty(both[-1], dtype=np.float64)
    for row in range(size):
        for at in range(indptr[row], indptr[row + 1]):
            other = indices[at]
            neighbours[free[row]], weights[free[row]] = other, data[at]
            free[row] += 1
            neighbours[free[other]], weights[free[other]] = row, data[at]
            free[other] += 1
    return both, neighbours, weights


@njit(cache=True)
def move_nodes(
    indptr: IntArray,
    neighbours: IntArray,
    weights: Array,
    inside: Array,
    community: IntArray,
    order: IntArray,
    most_visits: int,
    resolution: float,
) -> int:
    """Moves nodes in place until none gains by moving alone, or so many were visited; returns how many moved.

    Only the neighbours of one who moved are visited again. `inside` is the weight a node has with itself.
    """
    size = len(indptr) - 1
    degree = inside.copy()
    for node in range(size):
        for at in range(indptr[node], indptr[node + 1]):
            degree[node] += weights[at]
    total = degree.sum()
    held = np.zeros(size)  # degrees of all members of each community, added up
    for node in range(size):
        held[community[node]] += degree[node]
    towards = np.zeros(size)  # weight from the node visited to each community
    met = np.empty(size, dtype=np.int32)
    waiting = order.copy()  # a ring: nobody waits twice, so it never overflows
    waits = np.ones(size, dtype=np.bool_)
    first, length, moves, visits = 0, size, 0, 0
    while length > 0 and visits < most_visits:
        node = waiting[first]
        first = first + 1 if first + 1 < size else 0
        length -= 1
        visits += 1
        waits[node] = False
        home = community[node]
        count = 0
        for at in range(indptr[node], indptr[node + 1]):
            there = community[neighbours[at]]
            if towards[there] == 0.0:
                met[count] = there
                count += 1
            towards[there] += weights[at]
        share = resolution * degree[node] / total
        held[home] -= degree[node]
        stays = towards[home] - share * held[home]
        best, gain = home, stays + 1e-12 * degree[node]  # rounding alone must not move anybody to and fro
        for k in range(count):
            there = met[k]
            here = towards[there] - share * held[there]
            if here > gain:
                best, gain = there, here
            towards[there] = 0.0
        held[best] += degree[node]
        if best != home:
            community[node] = best
            moves += 1
            for at in range(indptr[node], indptr[node + 1]):
                other = neighbours[at]
                if not waits[other] and community[other] != best:
                    waits[other] = True
                    last = first + length
                    waiting[last if last < size else last - size] = other
                    length += 1
    return moves


@njit(cache=True)
def number_by_first_member(community: IntArray) -> int:
    """Renames communities in place to 0, 1, ... in the order of their first members; returns how many there are."""
    new = np.full(len(community), -1, dtype=np.int32)
    count = 0
    for node in range(len(community)):
        old = community[node]
        if new[old] < 0:
            new[old] = count
            count += 1
        community[node] = new[old]
    return count


@njit(cache=True)
def draw_together(
    indptr: IntArray, neighbours: IntArray, weights: Array, inside: Array, community: IntArray, count: int
) -> Any:
    """The graph whose nodes are the communities: links between two are added up, those within one become `inside`."""
    size = len(indptr) - 1
    start = np.zeros(count + 1, dtype=np.int64)
    for node in range(size):
        start[community[node] + 1] += 1
    for c in range(count):
        start[c + 1] += start[c]
    members = np.empty(size, dtype=np.int32)
    free = start[:-1].copy()
    for node in range(size):
        members[free[community[node]]] = node
        free[community[node]] += 1

    new_indptr = np.zeros(count + 1, dtype=np.int64)
    new_inside = np.zeros(count)
    new_neighbours = np.empty(len(neighbours), dtype=np.int32)  # too long; what is never written takes no memory
    new_weights = np.empty(len(neighbours), dtype=np.float64)
    place = np.full(count, -1, dtype=np.int64)
    filled = 0
    for c in range(count):
        begin = filled
        for k in range(start[c], start[c + 1]):
            node = members[k]
            new_inside[c] += inside[node]
            for at in range(indptr[node], indptr[node + 1]):
                there = community[neighbours[at]]
                if there == c:
                    new_inside[c] += weights[at]
                elif place[there] < begin:
                    place[there] = filled
                    new_neighbours[filled], new_weights[filled] = there, weights[at]
                    filled += 1
                else:
                    new_weights[place[there]] += weights[at]
        new_indptr[c + 1] = filled
    return new_indptr, new_neighbours[:filled].copy(), new_weights[:filled].copy(), new_inside
