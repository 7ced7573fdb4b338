"""How good recommendations are: NDCG@10, HR@10 and Recall@20 of lists ranked over the whole catalogue.

Every artist that a user does not know yet is ranked; none is sampled away. Users without hidden artists are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from examples.lastfm.data import HeldOut

from mppfl.arrays import BoolArray
from mppfl.errors import BadInput
from mppfl.privacy import Floats

SHORT, LONG = 10, 20
DISCOUNTS = 1 / np.log2(np.arange(SHORT) + 2.0)
IDEAL = np.concatenate([[0.0], np.cumsum(DISCOUNTS)])  # DCG of a list that begins with so many hits


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over the scored users.

    ndcg      NDCG@10: hits discounted by 1/log2(1 + rank), over the best that could be had
    hit_rate  HR@10: share of users with at least one hit
    recall    Recall@20: share of a user's hidden artists that were found
    """

    ndcg: float
    hit_rate: float
    recall: float
    num_users: int


def quality(scores: Floats, held_out: HeldOut, users: BoolArray) -> Quality:
    """Quality of `scores` [users, artists] for those of `users` who have hidden artists."""
    if scores.shape != held_out.known.shape:
        raise BadInput(f"scores of shape {scores.shape} for listening data of shape {held_out.known.shape}.")
    counts = np.diff(held_out.hidden.indptr)
    scored = np.flatnonzero(users & (counts > 0))
    if not len(scored):
        raise BadInput("none of the users has a hidden artist, so nothing can be scored. Hide a larger share.")
    wanted = held_out.hidden[scored].toarray()
    order = best_first(np.where(held_out.known[scored] > 0, -np.inf, scores[scored]), LONG)
    hits = np.take_along_axis(wanted, order, axis=1)
    short = hits[:, :SHORT]
    ideal = IDEAL[np.minimum(counts[scored], SHORT)]
    return Quality(
        float((short @ DISCOUNTS[: short.shape[1]] / ideal).mean()),
        float(short.any(axis=1).mean()),
        float((hits.sum(axis=1) / counts[scored]).mean()),
        len(scored),
    )


def best_first(scores: Floats, most: int) -> Any:
    """Columns of the `most` largest scores of every row, largest first."""
    most = min(most, scores.shape[1])
    some = np.argpartition(-scores, most - 1, axis=1)[:, :most]
    order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)
