"""What friends' profiles and updates give away: something where friends share taste, nothing among strangers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from examples.lastfm import factorisation, leakage
from examples.lastfm.data import hold_out, read_lastfm, set_apart
from examples.lastfm.profiles import ONCE, unit_rows
from examples.lastfm.scoring import quality
from examples.lastfm.updates import FOLDS, audit_updates, drawn_noise, learn_directions
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy import Protection, release_updates
from tests.lastfm.drawn import released, write_lastfm

SMALL = factorisation.Training(width=4, start=0.1)


@pytest.fixture(scope="module")
def public(listening):
    return set_apart(listening.num_users, 0.3, np.random.default_rng(5))


def attacker_of(listening, lists, public):
    sides = leakage.taste_axis(lists, public)[1]
    return leakage.field_attacker(listening.graph, sides, public, np.random.default_rng(2))


def test_friends_are_alike_and_give_a_user_away_and_strangers_do_not(listening, lists, public):
    apart = leakage.distances(listening.graph)
    strangers = lists[np.random.default_rng(3).permutation(len(lists))]
    real, null = (leakage.similarity_by_hop(of, apart, 2)[0] for of in (lists, strangers))
    assert real.low > 0.1
    assert abs(null.mean) < 0.05
    draws = [released(listening, lists, 4.0, seed=seed) for seed in range(2)]
    (near, _) = leakage.attack_by_hop(draws, lists, apart, public, 2, np.random.default_rng(1))
    assert near.gain.low > 0.05
    assert near.precision.mean == approx(near.precision_by_popularity.mean() + near.gain.mean)
    assert abs(near.null.mean) < 0.05
    assert near.null.mean < near.gain.low


def test_the_attacker_never_reads_the_targets_own_profile(listening, lists, public):
    targets = np.flatnonzero(~public & (lists.sum(axis=1) >= 10))
    honest = released(listening, lists, 100.0)
    loud = honest.profiles.copy()
    loud[targets[0]] = 50 * lists[targets[0]]  # shouted: whoever read it would guess all ten
    apart = leakage.distances(listening.graph)
    first, second = (
        leakage.attack_by_hop([profiles], lists, apart, public, 1, np.random.default_rng(1))[0]
        for profiles in (honest, replace(honest, profiles=loud))
    )
    assert first.precision_by_popularity[0] == second.precision_by_popularity[0]
    assert first.gains[0] == second.gains[0]


# ---- training and release of updates ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def factors(lists):
    return factorisation.start_factors(lists.shape[1], SMALL, np.random.default_rng(0))


@pytest.fixture(scope="module")
def rows(lists):
    return sp.csr_array(unit_rows(lists))


def formed(updates):
    """Every update as a matrix."""
    return updates.rows.toarray()[:, :, None] * updates.pulls[:, None, :] + np.matmul(updates.factors, updates.turns)


def test_updates_of_all_clients_at_once_are_those_of_each_alone_as_matrices(factors, lists, rows):
    updates = factorisation.local_updates(factors, rows, SMALL)
    together = formed(updates)
    for client in (0, 7, 50):
        alone = factorisation.local_update(factors, unit_rows(lists)[client], SMALL)
        np.testing.assert_allclose(together[client], alone, atol=1e-12)
    flat = together.reshape(len(together), -1)
    weights, direction = np.random.default_rng(1).random(len(flat)), np.random.default_rng(2).random(factors.shape)
    for ours, plain in (
        (updates.products(), flat @ flat.T),
        (updates.lengths(), np.linalg.norm(flat, axis=1)),
        (updates.total(weights).ravel(), weights @ flat),
        (updates.along(direction), flat @ direction.ravel()),
    ):
        np.testing.assert_allclose(ours, plain, atol=1e-10)
    clip_norm = float(np.median(updates.lengths()))  # none is longer after clipping, and short ones stay
    before, after = updates.lengths(), np.linalg.norm(formed(factorisation.clipped(updates, clip_norm)), axis=(1, 2))
    assert after.max() <= clip_norm * (1 + 1e-12)
    np.testing.assert_allclose(after[before <= clip_norm], before[before <= clip_norm])


def test_noise_hides_a_whole_client_shrinks_the_step_and_who_is_silent_has_no_weight():
    # Replacing a list moves a clipped update by at most 2C, so that ρ = (2C)²/(2σ²).
    assert factorisation.noise_stds(np.array([0.5, math.inf, 0.0]), 3.0) == approx([6.0, 0.0, math.inf])
    weights, share = factorisation.server_weights(factorisation.noise_stds(np.array([1.0, 1.0, 0.0]), 1.0), 1.0, 100)
    assert weights == approx([0.5, 0.5, 0.0])
    assert 0 < share < 0.1
    assert factorisation.server_weights(np.zeros(3), 1.0, 100)[1] == 1.0
    with pytest.raises(BadInput, match="every budget is 0"):
        factorisation.server_weights(np.full(3, math.inf), 1.0, 100)


def test_noise_along_a_direction_and_in_the_sum_is_that_of_noise_on_every_number():
    rng = np.random.default_rng(0)
    size, shape, budgets = 12, (3, 2), np.linspace(0.5, 2.0, 12)
    weights = rng.random(size) / size
    directions = [vector / np.linalg.norm(vector) for vector in rng.standard_normal((2, *shape))]
    reader = np.arange(size) % 2
    chosen = np.array(directions)[reader].reshape(size, -1)
    stds = factorisation.noise_stds(budgets, 1.0)
    ours, plain = [], []
    for _ in range(4_000):
        read, total = drawn_noise(stds, weights, directions, reader, 2, rng)
        ours.append([*read[1], *total.ravel()])  # a second draw along the same path of the model
        full = release_updates(
            np.zeros((size, 6)), budgets, Protection(unit="client"), work=ONCE, rng=rng, round_index=1, run="test"
        ).updates
        plain.append([*np.einsum("ij,ij->i", full, chosen), *(weights @ full)])
    covariance, expected = np.cov(np.array(ours).T), np.cov(np.array(plain).T)
    scale = np.sqrt(np.outer(np.diagonal(expected), np.diagonal(expected)))
    # Correlations have a standard error of 1/√4000 on either side; 6 of them for 324 pairs: below 1e-6.
    assert np.abs(covariance - expected).max() <= 6 * math.sqrt(2 / 4_000) * scale.max()
    assert (np.abs(covariance - expected) / scale).max() < 6 * math.sqrt(4 / 4_000)
    assert np.diagonal(covariance)[:size] == approx(stds**2, rel=0.2)


def test_training_without_noise_recommends_better_than_it_began_and_updates_part_users_unseen(
    listening, lists, split, factors, rows
):
    everybody, budgets = np.ones(listening.num_users, dtype=bool), np.full(listening.num_users, math.inf)
    trained = factorisation.train(split.known, everybody, budgets, 8, SMALL, np.random.default_rng(0))
    models = (factorisation.scores_of(model, split.known, SMALL) for model in (factors, trained))
    before, after = (quality(scores, split, everybody).ndcg for scores in models)
    assert after > 1.5 * before
    sides = leakage.taste_axis(lists, everybody)[1]
    this = factorisation.begin_round(factors, rows, everybody, budgets, SMALL)
    folds = np.random.default_rng(0).integers(FOLDS, size=len(lists))
    directions = learn_directions(this.updates, sides, folds, 0.0)
    assert [np.linalg.norm(direction) for direction in directions] == approx([1.0] * (FOLDS + 1))
    places = np.choose(folds, [this.updates.along(direction) for direction in directions[:FOLDS]])
    assert np.corrcoef(places, sides)[0, 1] > 0.4


@pytest.fixture(scope="module")
def strong(tmp_path_factory):
    """Two communities with tastes of their own."""
    folder = write_lastfm(tmp_path_factory.mktemp("two"), num_users=240, num_groups=2)
    return read_lastfm(folder, least_listeners=5)


def audited(listening, mean_budgets, lists=None):
    lists = listening.listens.toarray() if lists is None else lists
    public, everybody = set_apart(len(lists), 0.4, np.random.default_rng(5)), np.ones(len(lists))
    split = hold_out(listening, 0.2, np.random.default_rng(3))
    return audit_updates(
        attacker_of(listening, lists, public), lists, split, everybody > 0, shape=everybody, index=everybody,
        degrees=listening.degrees, mean_budgets=mean_budgets, num_rounds=2, dp_delta=1e-5, seed=(0,), training=SMALL,
    )  # fmt: skip


def test_updates_of_friends_give_a_user_away_less_than_a_bit_would_and_those_of_strangers_do_not(strong):
    audit = audited(strong, (0.5, math.inf))
    for leaks in (audit.one_round, audit.several_rounds, audit.bits):
        assert leaks[-1].side.leak.low > 0.05
        assert leaks[-1].side.accuracy > leaks[-1].side.prior
        for leak in leaks:
            assert leak.side.null.low <= 0 <= leak.side.null.high < audit.one_round[-1].side.leak.low
    update, bit = audit.one_round[0], audit.bits[0]  # of the same budget
    assert update.side.effective_share < bit.side.effective_share
    assert bit.side.effective_share == approx(1.0)
    assert update.side.leak.mean < bit.side.leak.mean
    assert audit.without_uploads.low > 0
    assert audit.accuracy_without > 0.6
    assert abs(update.added.mean) < 0.05  # noise adds nothing to what the public users tell


def test_nothing_leaks_where_friends_have_nothing_in_common_or_noise_is_all_there_is(strong):
    lists = strong.listens.toarray()
    strangers = lists[np.random.default_rng(8).permutation(len(lists))]
    audit = audited(strong, (math.inf,), strangers)
    for leak in (*audit.one_round, *audit.several_rounds):
        assert leak.side.leak.low <= 0


def test_what_cannot_be_audited_is_refused_in_one_line(strong):
    with pytest.raises(BadInput, match="update_budgets=0 must be above 0"):
        audited(strong, (0.0,))
    lists = strong.listens.toarray()
    attacker = attacker_of(strong, lists, set_apart(len(lists), 0.4, np.random.default_rng(5)))
    with pytest.raises(BadInput, match="at least 2"):
        leakage.side_leak(attacker, [released(strong, lists, 4.0)], lists)
    with pytest.raises(BadInput, match="nothing to compare with"):
        leakage.similarity_by_hop(np.eye(3), np.ones((3, 3)), 1)
    with pytest.raises(BadInput, match="most public users have an empty list"):
        factorisation.train(np.zeros((4, 5)), np.ones(4, dtype=bool), np.ones(4), 1, SMALL, np.random.default_rng(0))
