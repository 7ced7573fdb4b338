"""What the server computes, devices' scores and their quality; and the files of listening data."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from examples.lastfm import server
from examples.lastfm.aggregation import Sums
from examples.lastfm.data import HeldOut, hold_out, read_lastfm, set_apart
from examples.lastfm.profiles import unit_rows
from examples.lastfm.scoring import quality
from pytest import approx

from mppfl.errors import BadFile, BadInput
from mppfl.privacy.ledger import PrivacyLedger
from tests.lastfm.drawn import FRIENDS_HEADER, LISTENS_HEADER, pairs_of, released, write_lastfm

EVERYBODY = np.ones(120, dtype=bool)
SMALL = server.SumConstants(looked_at=48 / (0.12 * np.sqrt(10)) ** 0.7)  # all artists of the drawn data at ρ = 10


def model_of(listening, lists, rho, level="record", constants=None):
    profiles = released(listening, lists, rho, level)
    constants = constants or server.Constants()
    prepared = server.prepare(profiles.variances, "noise_aware", listening.graph, lists.shape[1], level, constants)
    return server.taste_from_profiles(profiles, prepared, constants)


def sums_of(listening, rho):
    return Sums(
        np.full(120, rho), listening.users, PrivacyLedger.in_memory(), "simulated", np.random.default_rng(0), "x"
    )


@pytest.mark.parametrize(("level", "rho"), [("record", 10.0), ("client", 200.0), ("secure", 10.0)])
def test_with_little_noise_every_release_recommends_better_than_popularity(listening, split, level, rho):
    if level == "secure":
        model, profiles = server.taste_from_sums(sums_of(listening, rho), split.known, SMALL)
    else:
        model = model_of(listening, split.known, rho, level)
        profiles = split.known if level == "record" else unit_rows(split.known)
    ndcg = quality(server.scores_on_devices(profiles, model), split, EVERYBODY).ndcg
    assert ndcg > 1.3 * quality(server.popularity_scores(split.known), split, EVERYBODY).ndcg


def test_the_reference_without_noise_is_ridge_regression_of_each_artist_on_the_others(split):
    known, item = split.known, 5
    unit = unit_rows(known)
    others = np.delete(np.arange(48), item)
    gram = unit[:, others].T @ unit[:, others] + server.NOISELESS_RIDGE * np.eye(47)
    weights = np.linalg.solve(gram, unit[:, others].T @ unit[:, item])
    assert server.noiseless_scores(known)[:, item] == approx(known[:, others] @ weights)


def held(known, hidden):
    return HeldOut(np.array(known, dtype=float), sp.csr_array(np.array(hidden, dtype=float)))


def by_hand(scores, split, users):
    """One user at a time, as the definitions read."""
    ndcg, hit, recall = [], [], []
    for user in np.flatnonzero(users):
        hidden = set(np.flatnonzero(split.hidden.toarray()[user]))
        if not hidden:
            continue
        order = [artist for artist in np.argsort(-scores[user], kind="stable") if not split.known[user, artist]]
        gains = [1 / math.log2(rank + 2) for rank, artist in enumerate(order[:10]) if artist in hidden]
        ndcg.append(sum(gains) / sum(1 / math.log2(rank + 2) for rank in range(min(10, len(hidden)))))
        hit.append(bool(gains))
        recall.append(len(hidden & set(order[:20])) / len(hidden))
    return np.mean(ndcg), np.mean(hit), np.mean(recall)


def test_quality_is_what_the_definitions_say():
    rng = np.random.default_rng(0)
    listens = rng.random((40, 60)) < 0.3
    hidden = listens & (rng.random((40, 60)) < 0.3)
    split = held(listens & ~hidden, hidden)
    users = rng.random(40) < 0.7
    scores = rng.random((40, 60))
    answer = quality(scores, split, users)
    assert (answer.ndcg, answer.hit_rate, answer.recall) == approx(by_hand(scores, split, users))


def test_users_without_hidden_artists_are_left_out():
    split = held([[1, 0], [1, 0], [0, 0]], [[0, 1], [0, 0], [0, 0]])
    assert quality(np.zeros((3, 2)), split, EVERYBODY[:3]).num_users == 1
    with pytest.raises(BadInput, match="nothing can be scored"):
        quality(np.zeros((3, 2)), split, np.array([False, True, True]))


# ---- the two files, read whole or refused with the line that is wrong; splits --------------------------------------


def test_files_come_back_as_they_were_written_but_for_rare_artists(listening, lastfm_folder):
    friends, listens = pairs_of()
    assert listening.num_users == 120
    assert listening.degrees.sum() == 2 * len(friends)
    assert listening.listens.sum() == len(listens)
    pairs = {(listening.users[a], listening.artists[b]) for a, b in np.argwhere(listening.listens.toarray() > 0)}
    assert pairs == {(str(a + 1), str(b + 101)) for a, b in listens}
    counts = np.bincount(listens[:, 1])
    least = int(np.median(counts))
    kept = read_lastfm(lastfm_folder, least_listeners=least)
    assert set(kept.artists) == {str(artist + 101) for artist in np.flatnonzero(counts >= least)}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["userID,artistID,weight"], "line 1: must be the header userID, artistID, weight"),
        ([], "line 1: must be the header"),
        ([LISTENS_HEADER, "1\t101"], "line 2, '1\\t101': must be three whole numbers"),
        ([LISTENS_HEADER, "1\t101\t3", "1\tBjörk\t3"], "line 3"),
        ([LISTENS_HEADER, "1\t101\t-3"], "three whole numbers"),
        ([LISTENS_HEADER, "999\t101\t3"], "line 2: user 999 has no friend in user_friends.dat"),
        ([LISTENS_HEADER, "1\t101\t3", "1\t101\t4"], "line 3: user 1 and artist 101 stand in line 2 already"),
        ([LISTENS_HEADER, "1\t101\t3"], "0 artists have at least 10 listeners"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path, lines, message):
    write_lastfm(tmp_path)
    (tmp_path / "user_artists.dat").write_text("\n".join(lines))
    with pytest.raises(BadFile) as caught:
        read_lastfm(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(tmp_path):
    for folder, missing in (
        (tmp_path / "no", "no such folder"),
        (tmp_path, r"user_friends\.dat"),
        (tmp_path, r"user_artists\.dat"),
    ):
        with pytest.raises(BadFile, match=missing):
            read_lastfm(folder)
        if folder == tmp_path:
            (tmp_path / "user_friends.dat").write_text(f"{FRIENDS_HEADER}\n1\t2\n")


def test_a_split_hides_a_share_of_every_users_artists_and_loses_none(listening):
    held = hold_out(listening, 0.2, np.random.default_rng(1))
    counts = np.asarray(listening.listens.sum(axis=1)).ravel()
    np.testing.assert_array_equal(held.hidden.sum(axis=1), np.rint(0.2 * counts))
    np.testing.assert_array_equal(held.known + held.hidden.toarray(), listening.listens.toarray())
    assert set_apart(120, 0.25, np.random.default_rng(0)).sum() == 30
    with pytest.raises(BadInput, match="must leave users on both sides"):
        set_apart(10, 0.01, np.random.default_rng(0))
