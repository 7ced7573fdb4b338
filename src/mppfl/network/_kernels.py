"""Compiled loops (numba): closed walks, preferential attachment, communities.

`rows` is a sparse matrix as the tuple (indptr, indices, data). Every row is summed by one thread in storage order, so
results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.compiled import get_num_threads, njit, prange, set_num_threads

THREADS_ABOVE = 1_000_000  # edges


@contextmanager
def threads_for(num_edges: int) -> Iterator[int]:
    """How many threads compiled loops have inside: one for a small network, lest threads wait on busy cores."""
    usual = get_num_threads()
    set_num_threads(usual if num_edges >= THREADS_ABOVE else 1)
    try:
        yield get_num_threads()
    finally:
        set_num_threads(usual)


@njit(cache=True)
def _expand(rows: Any, value: Array, support: Any, size: int, new: Array, reached: Any) -> int:
    """One hop further: new = value · W on sparse vectors; clears `value`; returns how many entries `reached` holds."""
    indptr, indices, data = rows
    count = 0
    for s in range(size):
        j = support[s]
        carried = value[j]
        value[j] = 0.0
        for edge in range(indptr[j], indptr[j + 1]):
            k = indices[edge]
            if new[k] == 0.0:
                reached[count] = k
                count += 1
            new[k] += carried * data[edge]
    return count


@njit(cache=True)
def _gather(rows: Any, value: Array, support: Any, size: int, other: Array) -> float:
    """value · W · other, without writing the product down."""
    indptr, indices, data = rows
    total = 0.0
    for s in range(size):
        j = support[s]
        inner = 0.0
        for edge in range(indptr[j], indptr[j + 1]):
            inner += data[edge] * other[indices[edge]]
        total += value[j] * inner
    return total


@njit(cache=True)
def _edges_from(rows: Any, support: Any, size: int) -> int:
    total = 0
    for s in range(size):
        total += rows[0][support[s] + 1] - rows[0][support[s]]
    return total


@njit(cache=True)
def _inner(x: Array, in_x: Any, size_x: int, y: Array, in_y: Any, size_y: int) -> float:
    """x·y of two sparse vectors, by the entries of the shorter one."""
    total = 0.0
    for s in range(min(size_x, size_y)):
        entry = in_x[s] if size_x <= size_y else in_y[s]
        total += x[entry] * y[entry]
    return total


@njit(parallel=True, cache=True)
def closed_walks(rows: Any, back: Any, max_hops: int, hop_decay: float, threads: int, out: Array) -> None:
    """out_i = Σ_{k=2..max_hops} λ^{k-1} (W^k)_ii, by walks that meet in the middle (model, eq. 2).

    From client i one sparse vector goes out along the edges, x = e_i W^p, one comes back, y = W^q e_i;
    (W^{p+q})_ii = x·y. The two grow in turns, and the last hop, x·W·y, is only gathered, from its cheaper side. `back`
    has the columns of W as `rows` has its rows.
    """
    n = len(rows[0]) - 1
    for thread in prange(threads):
        x, x_next = np.zeros(n), np.zeros(n)
        y, y_next = np.zeros(n), np.zeros(n)
        in_x, in_x_next = np.empty(n, np.int32), np.empty(n, np.int32)
        in_y, in_y_next = np.empty(n, np.int32), np.empty(n, np.int32)
        for i in range(thread, n, threads):
            x[i] = y[i] = 1.0
            in_x[0] = in_y[0] = i
            size_x = size_y = 1
            decay, total = 1.0, 0.0
            for hops in range(1, max_hops):
                if hops % 2 == 1:
                    size_x = _expand(rows, x, in_x, size_x, x_next, in_x_next)
                    x, x_next = x_next, x
                    in_x, in_x_next = in_x_next, in_x
                else:
                    size_y = _expand(back, y, in_y, size_y, y_next, in_y_next)
                    y, y_next = y_next, y
                    in_y, in_y_next = in_y_next, in_y
                total += decay * _inner(x, in_x, size_x, y, in_y, size_y)
                decay *= hop_decay
            if _edges_from(rows, in_x, size_x) <= _edges_from(back, in_y, size_y):
                total += decay * _gather(rows, x, in_x, size_x, y)
            else:
                total += decay * _gather(back, y, in_y, size_y, x)
            out[i] = total
            for s in range(size_x):
                x[in_x[s]] = 0.0
            for s in range(size_y):
                y[in_y[s]] = 0.0


@njit(cache=True)
def _scrambled(state: Any) -> Any:
    """SplitMix64's output function: a well-mixed 64-bit number from a counter (Steele, Lea & Flood 2014)."""
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@njit(cache=True)
def _entry(rows: Any, row: Any, column: Any) -> float:
    """W[row, column], by bisection in the sorted row."""
    indptr, indices, data = rows
    low = np.int64(indptr[row])
    high = np.int64(indptr[row + 1])
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < column:
            low = middle + 1
        else:
            high = middle
    if low < indptr[row + 1] and indices[low] == column:
        return float(data[low])
    return 0.0


@njit(parallel=True, cache=True)
def mutual_edges(rows: Any, values: Array, share: float, threads: int) -> Any:
    """Σ_j m_ij (value_j − share·m_ij) of every client i, m_ij = W_ij W_ji, without a transposed copy of the network.

    A pair is looked up from its end of lower number only, and counted for both ends.
    """
    indptr, indices, data = rows
    n = len(indptr) - 1
    sums = np.zeros((threads, n))
    for thread in prange(threads):
        for i in range(thread, n, threads):
            for edge in range(indptr[i + 1] - 1, indptr[i] - 1, -1):  # columns are sorted: from the highest down
                j = np.int64(indices[edge])
                if j < i:
                    break
                both = data[edge] * _entry(rows, j, np.int64(i)) if values[j] > 0.0 else 0.0
                if both > 0.0:
                    sums[thread, i] += both * (values[j] - share * both)
                    sums[thread, j] += both * (values[i] - share * both)
    return sums.sum(axis=0)


@njit(parallel=True, cache=True)
def walkers(
    rows: Any,
    exact_hops: int,
    max_hops: int,
    hop_decay: float,
    num_walkers: int,
    seed: int,
    backtracking: bool,
    mean: Any,
    squares: Any,
) -> None:
    """Random walkers from every client: mean and mean square of Σ_{k>exact_hops} λ^{k-1} (W^k)_ii.

    backtracking  whether walks of four edges that turn back on an edge count

    A walker takes an edge at random and carries the weight that makes it unbiased; after k−1 edges the weight of the
    edge back to its client closes a walk of k edges. Randomness depends on the seed, the client, the walker and the
    step alone.
    """
    indptr, indices, data = rows
    n = len(indptr) - 1
    golden = np.uint64(0x9E3779B97F4A7C15)
    for i in prange(n):
        total = 0.0
        total_squares = 0.0
        for walker in range(num_walkers):
            state = _scrambled(np.uint64(seed) * golden + np.uint64(i) * np.uint64(num_walkers) + np.uint64(walker))
            here = np.int64(i)
            before = second = np.int64(i)
            carried = 1.0
            closed = 0.0
            for step in range(1, max_hops):
                length = np.int64(indptr[here + 1]) - np.int64(indptr[here])
                if length == 0:
                    break
                state += golden
                edge = np.int64(indptr[here]) + np.int64(_scrambled(state) % np.uint64(length))
                carried *= data[edge] * length
                if step > 1:
                    carried *= hop_decay
                before, second = second, here
                here = np.int64(indices[edge])
                turned = step == 3 and (second == i or before == here)
                if step >= exact_hops and here != i and (backtracking or not turned):
                    closed += carried * hop_decay * _entry(rows, here, np.int64(i))
            total += closed
            total_squares += closed * closed
        mean[i] = total / num_walkers
        squares[i] = total_squares / num_walkers


# ---- random graphs ---------------------------------------------------------------------------------------------------


@njit(cache=True)
def attach_newcomers(num_clients: int, edges_each: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Both ends of all edges: a star of edges_each + 1 clients, then newcomers who choose `edges_each` others each.

    A client stands in `ends` once for each of its edges, so a uniform draw from it is a draw by number of edges; one
    already chosen by the same newcomer is drawn again.
    """
    num_edges = edges_each * (num_clients - edges_each)
    ends = np.empty(2 * num_edges, dtype=np.int32)
    chosen_by = np.full(num_clients, -1, dtype=np.int32)
    filled = 2 * edges_each
    ends[0:filled:2] = edges_each
    ends[1:filled:2] = np.arange(edges_each)
    for newcomer in range(edges_each + 1, num_clients):
        known = filled
        for _ in range(edges_each):
            friend = ends[rng.integers(0, known)]
            while chosen_by[friend] == newcomer:
                friend = ends[rng.integers(0, known)]
            chosen_by[friend] = newcomer
            ends[filled], ends[filled + 1] = newcomer, friend
            filled += 2
    return ends[0::2], ends[1::2]


# ---- communities -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def move_nodes(
    rows: Any, degree: Array, community: IntArray, order: IntArray, most_visits: int, resolution: float
) -> int:
    """Moves nodes in place until none gains by moving alone, or so many were visited; returns how many moved.

    Only the neighbours of a node that moved are visited again. `degree` is the weight of all edges of a node, with
    those within it.
    """
    indptr, neighbours, weights = rows
    size = len(indptr) - 1
    total = degree.sum()
    held = np.bincount(community, degree, size)  # degrees of all members of each community, added up
    towards = np.zeros(size)  # weight from the node visited to each community
    labels_met = np.empty(size, dtype=np.int32)
    waiting = order.copy()  # a ring: nobody waits twice, so it never overflows
    is_waiting = np.ones(size, dtype=np.bool_)
    first, length, moves, visits = 0, size, 0, 0
    while length > 0 and visits < most_visits:
        node = waiting[first]
        first = (first + 1) % size
        length -= 1
        visits += 1
        is_waiting[node] = False
        current = community[node]
        count = 0
        for edge in range(indptr[node], indptr[node + 1]):
            label = community[neighbours[edge]]
            if towards[label] == 0.0:
                labels_met[count] = label
                count += 1
            towards[label] += weights[edge]
        share = resolution * degree[node] / total
        held[current] -= degree[node]
        stays = towards[current] - share * held[current]
        best, gain = current, stays + 1e-12 * degree[node]  # rounding alone must not move anybody to and fro
        for k in range(count):
            label = labels_met[k]
            score = towards[label] - share * held[label]
            if score > gain:
                best, gain = label, score
            towards[label] = 0.0
        held[best] += degree[node]
        if best != current:
            community[node] = best
            moves += 1
            for edge in range(indptr[node], indptr[node + 1]):
                other = neighbours[edge]
                if not is_waiting[other] and community[other] != best:
                    is_waiting[other] = True
                    waiting[(first + length) % size] = other
                    length += 1
    return moves
