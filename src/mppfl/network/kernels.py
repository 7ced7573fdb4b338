"""Compiled loops over sparse rows: products with a few columns, and walks that return home.

Every row is summed by one thread in storage order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import get_num_threads, njit, prange

from mppfl.arrays import Array, IntArray


def even_cuts(indptr: IntArray, pieces_per_thread: int = 16) -> IntArray:
    """Row numbers that cut the matrix into pieces of about equally many links."""
    pieces = get_num_threads() * pieces_per_thread
    goals = np.linspace(0, int(indptr[-1]), pieces + 1)
    cuts = np.searchsorted(indptr, goals, side="left")
    cuts[0], cuts[-1] = 0, len(indptr) - 1
    return cuts.astype(np.int64)


@njit(parallel=True, cache=True)
def csr_times_vector(
    indptr: Any, indices: Any, data: Any, x: Any, scale: Any, plus: Any, cuts: IntArray, out: Any
) -> None:
    """out = plus + scale · W x; nothing is added where `plus` is empty."""
    adds = len(plus) > 0
    for piece in prange(len(cuts) - 1):
        zero = np.zeros(1, data.dtype)[0]
        for row in range(cuts[piece], cuts[piece + 1]):
            total = zero
            for at in range(indptr[row], indptr[row + 1]):
                total += data[at] * x[indices[at]]
            out[row] = plus[row] + scale * total if adds else scale * total


@njit(parallel=True, cache=True)
def csr_times_pair(
    indptr: Any, indices: Any, data: Any, x: Any, scale: Any, plus: Any, cuts: IntArray, out: Any
) -> None:
    """out = plus + scale · W x for two columns: one pass over the matrix serves both.

    Two links at a time, with sums of their own, so that a link need not wait for the one before to arrive.
    """
    adds = len(plus) > 0
    for piece in prange(len(cuts) - 1):
        zero = np.zeros(1, data.dtype)[0]
        for row in range(cuts[piece], cuts[piece + 1]):
            left = left_too = right = right_too = zero
            at = np.int64(indptr[row])
            end = np.int64(indptr[row + 1])
            while at + 1 < end:
                one = indices[at]
                two = indices[at + 1]
                left += data[at] * x[one, 0]
                right += data[at] * x[one, 1]
                left_too += data[at + 1] * x[two, 0]
                right_too += data[at + 1] * x[two, 1]
                at += 2
            if at < end:
                left += data[at] * x[indices[at], 0]
                right += data[at] * x[indices[at], 1]
            if adds:
                out[row, 0] = plus[row, 0] + scale * (left + left_too)
                out[row, 1] = plus[row, 1] + scale * (right + right_too)
            else:
                out[row, 0] = scale * (left + left_too)
                out[row, 1] = scale * (right + right_too)


@njit(cache=True)
def _expand(
    indptr: Any, indices: Any, data: Any, value: Array, support: Any, size: int, new: Array, reached: Any
) -> int:
    """One hop further: new = value · W on sparse vectors; clears `value`; returns how many entries `reached` holds."""
    count = 0
    for s in range(size):
        j = support[s]
        carried = value[j]
        value[j] = 0.0
        for at in range(indptr[j], indptr[j + 1]):
            k = indices[at]
            if new[k] == 0.0:
                reached[count] = k
                count += 1
            new[k] += carried * data[at]
    return count


@njit(cache=True)
def _gather(indptr: Any, indices: Any, data: Any, value: Array, support: Any, size: int, other: Array) -> float:
    """value · W · other, without writing the product down."""
    total = 0.0
    for s in range(size):
        j = support[s]
        inner = 0.0
        for at in range(indptr[j], indptr[j + 1]):
            inner += data[at] * other[indices[at]]
        total += value[j] * inner
    return total


@njit(cache=True)
def _links_from(indptr: Any, support: Any, size: int) -> int:
    total = 0
    for s in range(size):
        total += indptr[support[s] + 1] - indptr[support[s]]
    return total


@njit(cache=True)
def _dot(value: Array, support: Any, size: int, other: Array) -> float:
    total = 0.0
    for s in range(size):
        total += value[support[s]] * other[support[s]]
    return total


@njit(cache=True)
def _load(indptr: Any, indices: Any, data: Any, row: int, value: Array, support: Any) -> int:
    count = 0
    for at in range(indptr[row], indptr[row + 1]):
        value[indices[at]] = data[at]
        support[count] = indices[at]
        count += 1
    return count


@njit(cache=True)
def _clear(value: Array, support: Any, size: int) -> None:
    for s in range(size):
        value[support[s]] = 0.0


@njit(parallel=True, cache=True)
def closed_walks(  # noqa: PLR0912  (compiled: one loop is what makes it fast)
    indptr: Any,
    indices: Any,
    data: Any,
    back_indptr: Any,
    back_indices: Any,
    back_data: Any,
    max_hops: int,
    hop_decay: float,
    threads: int,
    out: Array,
) -> None:
    """out_i = Σ_{k=2..max_hops} λ^{k-1} (W^k)_ii, by walks that meet in the middle (model, eq. 2).

    From client i one sparse vector goes out along the links, x = e_i W^p, one comes back, y = W^q e_i;
    (W^{p+q})_ii = x·y. The two grow in turns, and the last hop, x·W·y, is only gathered, from its cheaper side.
    """
    n = len(indptr) - 1
    for thread in prange(threads):
        x, x_next = np.zeros(n), np.zeros(n)
        y, y_next = np.zeros(n), np.zeros(n)
        at_x, at_x_next = np.empty(n, np.int32), np.empty(n, np.int32)
        at_y, at_y_next = np.empty(n, np.int32), np.empty(n, np.int32)
        for i in range(thread, n, threads):
            size_x = _load(indptr, indices, data, i, x, at_x)
            size_y = _load(back_indptr, back_indices, back_data, i, y, at_y)
            total = 0.0
            decay = hop_decay
            if size_x <= size_y:
                total += decay * _dot(x, at_x, size_x, y)
            else:
                total += decay * _dot(y, at_y, size_y, x)
            for hops in range(3, max_hops + 1):
                decay *= hop_decay
                if size_x == 0 or size_y == 0:
                    break
                if hops == max_hops:
                    if _links_from(indptr, at_x, size_x) <= _links_from(back_indptr, at_y, size_y):
                        total += decay * _gather(indptr, indices, data, x, at_x, size_x, y)
                    else:
                        total += decay * _gather(back_indptr, back_indices, back_data, y, at_y, size_y, x)
                    break
                if hops % 2 == 1:
                    size_x = _expand(indptr, indices, data, x, at_x, size_x, x_next, at_x_next)
                    x, x_next = x_next, x
                    at_x, at_x_next = at_x_next, at_x
                else:
                    size_y = _expand(back_indptr, back_indices, back_data, y, at_y, size_y, y_next, at_y_next)
                    y, y_next = y_next, y
                    at_y, at_y_next = at_y_next, at_y
                if size_x <= size_y:
                    total += decay * _dot(x, at_x, size_x, y)
                else:
                    total += decay * _dot(y, at_y, size_y, x)
            out[i] = total
            _clear(x, at_x, size_x)
            _clear(y, at_y, size_y)


@njit(cache=True)
def _scrambled(state: Any) -> Any:
    """SplitMix64's output function: a well-mixed 64-bit number from a counter (Steele, Lea & Flood 2014)."""
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@njit(cache=True)
def _entry(indptr: Any, indices: Any, data: Any, row: Any, column: Any) -> float:
    """W[row, column], by bisection in the sorted row."""
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
def mutual_links(indptr: Any, indices: Any, data: Any, hop_decay: float, threads: int) -> Any:
    """λ Σ_j W_ij W_ji of every client i: closed walks of two links, without a transposed copy of the network.

    A link is looked up from its end of lower number only, and what it finds is noted for both ends.
    """
    n = len(indptr) - 1
    found = np.zeros((threads, n))
    for thread in prange(threads):
        for i in range(thread, n, threads):
            total = 0.0
            for at in range(indptr[i + 1] - 1, indptr[i] - 1, -1):  # columns are sorted: from the highest down
                j = np.int64(indices[at])
                if j < i:
                    break
                both = data[at] * _entry(indptr, indices, data, j, np.int64(i))
                if both > 0.0:
                    total += both
                    found[thread, j] += both
            found[thread, i] += total
    return hop_decay * found.sum(axis=0)


@njit(parallel=True, cache=True)
def walkers(
    indptr: Any,
    indices: Any,
    data: Any,
    exact_hops: int,
    max_hops: int,
    hop_decay: float,
    num_walkers: int,
    seed: int,
    mean: Array,
    squares: Array,
) -> None:
    """Random walkers from every client: mean and mean square of Σ_{k>exact_hops} λ^{k-1} (W^k)_ii.

    A walker takes a link at random and carries the weight that makes it unbiased; wherever it stands after k−1 links,
    the weight of the link back home finishes a closed walk of k links. Randomness is a function of the seed, the
    client, the walker and the step alone.
    """
    n = len(indptr) - 1
    golden = np.uint64(0x9E3779B97F4A7C15)
    for i in prange(n):
        total = 0.0
        total_squares = 0.0
        for walker in range(num_walkers):
            state = _scrambled(np.uint64(seed) * golden + np.uint64(i) * np.uint64(num_walkers) + np.uint64(walker))
            here = np.int64(i)
            carried = 1.0
            found = 0.0
            for step in range(1, max_hops):
                length = np.int64(indptr[here + 1]) - np.int64(indptr[here])
                if length == 0:
                    break
                state += golden
                at = np.int64(indptr[here]) + np.int64(_scrambled(state) % np.uint64(length))
                carried *= data[at] * length
                if step > 1:
                    carried *= hop_decay
                here = np.int64(indices[at])
                if step >= exact_hops and here != i:
                    found += carried * hop_decay * _entry(indptr, indices, data, here, np.int64(i))
            total += found
            total_squares += found * found
        mean[i] = total / num_walkers
        squares[i] = total_squares / num_walkers
