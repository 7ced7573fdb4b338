"""Compiled part of `generate`: preferential attachment, where every step depends on all before it."""

from __future__ import annotations

import numba
import numpy as np

from mppfl.arrays import IntArray


@numba.njit(cache=True)
def attach_newcomers(num_clients: int, links_each: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Both ends of all links: a star of links_each + 1 clients, then newcomers who choose `links_each` others each.

    A client stands in `ends` once for each of its links, so a uniform draw from it is a draw by number of links; one
    already chosen by the same newcomer is drawn again.
    """
    num_links = links_each * (num_clients - links_each)
    ends = np.empty(2 * num_links, dtype=np.int32)
    chosen_by = np.full(num_clients, -1, dtype=np.int32)
    filled = 0
    for leaf in range(links_each):
        ends[filled], ends[filled + 1] = links_each, leaf
        filled += 2
    for newcomer in range(links_each + 1, num_clients):
        known = filled
        for _ in range(links_each):
            friend = ends[rng.integers(0, known)]
            while chosen_by[friend] == newcomer:
                friend = ends[rng.integers(0, known)]
            chosen_by[friend] = newcomer
            ends[filled], ends[filled + 1] = newcomer, friend
            filled += 2
    return ends[0::2], ends[1::2]
