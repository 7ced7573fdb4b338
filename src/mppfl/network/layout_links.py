"""Which links a drawing shows: one line per linked pair, the strongest; and what groups have on each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.network.graph import SocialGraph, SparseMatrix

LINKS_AT_ONCE = 1 << 21  # links counted together: what is needed for that fits in 100 MB


class Lines(NamedTuple):
    """One line per linked pair, in its stronger direction.

    weights  influence along the line, both directions added
    mutual   whether it runs both ways
    """

    sources: IntArray
    targets: IntArray
    weights: Array
    mutual: BoolArray


def influence_between(graph: SocialGraph, place: IntArray, count: int) -> SparseMatrix:
    """Influence between groups, added up: entry (i, j) of what members of j have on members of i; place −1: in none."""
    influence = graph.influence
    total = np.zeros(count * count)
    rows = np.searchsorted(influence.indptr, np.arange(0, influence.nnz + LINKS_AT_ONCE, LINKS_AT_ONCE), side="left")
    for start, end in zip(rows[:-1].tolist(), np.minimum(rows[1:], graph.num_clients).tolist(), strict=True):
        links = slice(int(influence.indptr[start]), int(influence.indptr[end]))
        target = np.repeat(place[start:end], np.diff(influence.indptr[start : end + 1]))
        source = place[influence.indices[links]]
        counted = (target >= 0) & (source >= 0) & (target != source)
        key = target[counted].astype(np.int64) * count + source[counted]
        total += np.bincount(key, influence.data[links][counted], count * count)
    return sp.csr_array(total.reshape(count, count))


def strongest_lines(influence: SparseMatrix, most: int) -> tuple[Lines, int]:
    """One line per linked pair, the strongest first, at most about `most`; and how many linked pairs there are.

    The strongest of each node come before all others, so that nobody looks alone who is not.
    """
    both = sp.triu(influence + influence.T, k=1).tocoo()
    count = both.nnz
    kept: IntArray = np.arange(count)
    if count > most:
        strongest = np.zeros(influence.shape[0])
        np.maximum.at(strongest, both.row, both.data)
        np.maximum.at(strongest, both.col, both.data)
        needed = (both.data == strongest[both.row]) | (both.data == strongest[both.col])
        # Where all weigh the same, every line is its ends' strongest: one for each node will do.
        first = np.flatnonzero(needed)
        if len(first) > most:
            once = [np.unique(ends[first], return_index=True)[1] for ends in (both.row, both.col)]
            first = first[np.unique(np.concatenate(once))]
        rest = np.ones(count, dtype=np.bool_)
        rest[first] = False
        others = np.flatnonzero(rest)
        more = max(0, most - len(first))
        others = others[np.argpartition(-both.data[others], more)[:more]] if 0 < more < len(others) else others[:more]
        kept = np.sort(np.concatenate([first, others]))
    kept = kept[np.argsort(-both.data[kept], kind="stable")]
    rows, columns = both.row[kept].astype(np.int64), both.col[kept].astype(np.int64)
    down, up = _entries(influence, rows, columns), _entries(influence, columns, rows)  # column j exposes row i
    turned = up > down
    lines = Lines(
        np.where(turned, rows, columns), np.where(turned, columns, rows), both.data[kept], (down > 0) & (up > 0)
    )
    return lines, count


def _entries(matrix: SparseMatrix, rows: IntArray, columns: IntArray) -> Array:
    return np.asarray(matrix[rows, columns]).ravel() if len(rows) else np.empty(0)
