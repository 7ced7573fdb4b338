"""What the server computes: weights, Gram matrix, the edge of the noise, friends' means; and the device's scores."""

import numpy as np
import pytest
from examples.lastfm.aggregation import Sums
from examples.lastfm.data import hold_out
from examples.lastfm.profiles import release_profiles, unit_rows
from examples.lastfm.scoring import quality
from examples.lastfm.server import (
    NOISELESS_RIDGE,
    Constants,
    SumConstants,
    neighbour_means,
    noiseless_scores,
    popularity_scores,
    prepare,
    score_on_device,
    scores_on_devices,
    taste_from_profiles,
    taste_from_sums,
    weights_of,
)
from pytest import approx

from mppfl.privacy.ledger import PrivacyLedger

EVERYBODY = np.ones(120, dtype=bool)
SMALL = SumConstants(looked_at=48 / (0.12 * np.sqrt(10)) ** 0.7)  # all artists of the drawn data at ρ = 10


@pytest.fixture(scope="module")
def split(listening):
    return hold_out(listening, 0.2, np.random.default_rng(4))


def released(listening, lists, budgets, level="record", seed=0):
    return release_profiles(lists, budgets, level, users=listening.users, rng=np.random.default_rng(seed))


def model_of(listening, lists, rho, level="record", weighting="noise_aware", constants=None):
    found = released(listening, lists, np.full(len(lists), rho), level)
    constants = constants or Constants()
    prepared = prepare(found.variances, weighting, listening.graph, lists.shape[1], level, constants)
    return taste_from_profiles(found, prepared, constants), prepared


# ---- weights ------------------------------------------------------------------------------------------------------


def test_little_noise_counts_much_and_silence_nothing():
    weights = weights_of(np.array([0.5, 50.0, np.inf]), "noise_aware", 0.05)
    assert weights[0] / weights[1] == approx(50.05 / 0.55)
    assert weights[2] == 0
    assert weights[:2].mean() == approx(1.0)


# ---- the Gram matrix and its noise --------------------------------------------------------------------------------


def test_the_edge_of_noise_is_that_of_the_theory(listening):
    size, artists, variance = listening.num_users, 400, 0.7
    alone = Constants(friends_in_gram=0.0)
    found = prepare(np.full(size, variance), "equal", listening.graph, artists, "record", alone)
    # Marchenko and Pastur: σ²(√m + √N)², less the σ²N that is taken from the diagonal.
    assert found.edge == approx(variance * (2 * np.sqrt(size * artists) + artists), rel=0.05)


def test_pure_noise_has_hardly_an_axis_and_taste_has_some(listening, split):
    noise, _ = model_of(listening, np.zeros((120, 48)), 1.0, constants=Constants(edge=1.2))
    taste, _ = model_of(listening, split.known, 10.0, constants=Constants(edge=1.2))
    assert noise.gains.max() < 0.3
    assert taste.gains.max() > 0.95


def test_without_noise_axes_are_those_of_the_clean_gram_matrix(listening, split):
    clean, _ = model_of(listening, split.known, np.inf, constants=Constants(friends_in_gram=0.0))
    values, vectors = np.linalg.eigh(split.known.T @ split.known)
    assert abs(clean.axes[:, -1] @ vectors[:, -1]) == approx(1.0, abs=1e-4)
    assert values[-1] > 0


# ---- friends ------------------------------------------------------------------------------------------------------


def test_friends_means_without_noise_are_plain_means(listening, split):
    found = released(listening, split.known, np.full(120, np.inf))
    near = prepare(found.variances, "equal", listening.graph, 48, "record").near[0]
    base = split.known.mean(axis=0)
    pull = neighbour_means(found, np.ones(120), near, base)
    friends = near[[7]].indices
    assert pull[7] == approx(split.known[friends].mean(axis=0) - base)


def test_friends_means_of_pure_noise_are_shrunk_to_next_to_nothing(listening):
    found = released(listening, np.zeros((120, 48)), np.full(120, 0.1))
    near = prepare(found.variances, "equal", listening.graph, 48, "record").near[0]
    plain = near @ found.profiles / near.sum(axis=1)[:, None]
    pull = neighbour_means(found, np.ones(120), near, np.zeros(48))
    assert np.square(pull).mean() < 0.05 * np.square(plain).mean()


# ---- devices ------------------------------------------------------------------------------------------------------


def test_all_devices_at_once_score_as_each_does_alone(listening, split):
    model, _ = model_of(listening, split.known, 1.0)
    together = scores_on_devices(split.known, model)
    alone = [score_on_device(split.known[at], model.axes, model.gains, model.extra[at]) for at in range(120)]
    np.testing.assert_allclose(together, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", ["record", "client"])
def test_with_little_noise_released_profiles_recommend_better_than_popularity(listening, split, level):
    rho = 10.0 if level == "record" else 200.0
    model, _ = model_of(listening, split.known, rho, level)
    own = split.known if level == "record" else unit_rows(split.known)
    ours = quality(scores_on_devices(own, model), split, EVERYBODY).ndcg
    assert ours > 1.3 * quality(popularity_scores(split.known), split, EVERYBODY).ndcg


def test_secure_sums_recommend_better_than_popularity(listening, split):
    sums = Sums(np.full(120, 10.0), listening.users, PrivacyLedger.in_memory(), "seeded", np.random.default_rng(0), "x")
    model, profiles = taste_from_sums(sums, split.known, SMALL)
    ours = quality(scores_on_devices(profiles, model), split, EVERYBODY).ndcg
    assert ours > 1.3 * quality(popularity_scores(split.known), split, EVERYBODY).ndcg


def test_fewer_artists_are_looked_at_where_budgets_are_small(listening, split):
    def looked_at(rho):
        ledger, rng = PrivacyLedger.in_memory(), np.random.default_rng(0)
        model, _ = taste_from_sums(Sums(np.full(120, rho), listening.users, ledger, "seeded", rng, "x"), split.known)
        return int(model.axes.any(axis=1).sum())

    assert 2 <= looked_at(1e-4) < looked_at(0.02) <= 48


def test_the_reference_without_noise_is_ridge_regression_of_each_artist_on_the_others(split):
    known, item = split.known, 5
    unit = unit_rows(known)
    others = np.delete(np.arange(48), item)
    gram = unit[:, others].T @ unit[:, others] + NOISELESS_RIDGE * np.eye(47)
    weights = np.linalg.solve(gram, unit[:, others].T @ unit[:, item])
    assert noiseless_scores(known)[:, item] == approx(known[:, others] @ weights)
