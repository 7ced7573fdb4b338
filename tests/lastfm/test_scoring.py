"""NDCG, hit rate and recall, against a plain loop and by hand."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from examples.lastfm.data import HeldOut
from examples.lastfm.scoring import quality
from pytest import approx

from mppfl.errors import BadInput

EVERYBODY = np.ones(3, dtype=bool)


def held(known, hidden):
    return HeldOut(np.array(known, dtype=float), sp.csr_array(np.array(hidden, dtype=float)))


def by_hand(scores, split, users):
    """One user at a time, as the definitions read."""
    ndcg, hit, recall = [], [], []
    for user in np.flatnonzero(users):
        wanted = set(np.flatnonzero(split.hidden.toarray()[user]))
        if not wanted:
            continue
        order = [at for at in np.argsort(-scores[user], kind="stable") if not split.known[user, at]]
        gains = [1 / math.log2(rank + 2) for rank, at in enumerate(order[:10]) if at in wanted]
        ndcg.append(sum(gains) / sum(1 / math.log2(rank + 2) for rank in range(min(10, len(wanted)))))
        hit.append(bool(gains))
        recall.append(len(wanted & set(order[:20])) / len(wanted))
    return np.mean(ndcg), np.mean(hit), np.mean(recall)


def test_quality_is_what_the_definitions_say():
    rng = np.random.default_rng(0)
    listens = rng.random((40, 60)) < 0.3
    hidden = listens & (rng.random((40, 60)) < 0.3)
    split = held(listens & ~hidden, hidden)
    users = rng.random(40) < 0.7
    scores = rng.random((40, 60))
    found = quality(scores, split, users)
    assert (found.ndcg, found.hit_rate, found.recall) == approx(by_hand(scores, split, users))


def test_a_perfect_list_scores_one_and_known_artists_never_count():
    split = held([[1, 0, 0, 0]] * 3, [[0, 1, 1, 0]] * 3)
    best = quality(np.array([[9.0, 3, 2, 1]] * 3), split, EVERYBODY)
    assert (best.ndcg, best.hit_rate, best.recall) == approx((1, 1, 1))


def test_users_without_hidden_artists_are_left_out():
    split = held([[1, 0], [1, 0], [0, 0]], [[0, 1], [0, 0], [0, 0]])
    assert quality(np.zeros((3, 2)), split, EVERYBODY).num_users == 1
    with pytest.raises(BadInput, match="nothing can be scored"):
        quality(np.zeros((3, 2)), split, np.array([False, True, True]))
