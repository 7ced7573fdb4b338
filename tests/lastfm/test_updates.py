"""Updates of a federated model: within the clip, with the noise declared, and audited for what friends give away."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from examples.lastfm.data import hold_out, read_lastfm, set_apart
from examples.lastfm.factorisation import (
    Training,
    begin_round,
    clipped,
    local_update,
    local_updates,
    noise_stds,
    scores_of,
    server_weights,
    start_factors,
    train,
)
from examples.lastfm.leakage import field_attacker, over_users_and_draws, taste_axis
from examples.lastfm.profiles import ONCE, unit_rows
from examples.lastfm.scoring import quality
from examples.lastfm.updates import (
    DRAWS,
    FOLDS,
    audit_updates,
    drawn_noise,
    learn_directions,
)
from pytest import approx

from mppfl.errors import BadInput
from mppfl.leakage import Signals
from mppfl.privacy import privacy_mechanism, release_updates
from tests.lastfm.drawn import write_lastfm

SMALL = Training(width=4, start=0.1)


@pytest.fixture(scope="module")
def lists(listening):
    return listening.listens.toarray()


@pytest.fixture(scope="module")
def factors(lists):
    return start_factors(lists.shape[1], SMALL, np.random.default_rng(0))


@pytest.fixture(scope="module")
def rows(lists):
    return sp.csr_array(unit_rows(lists))


@pytest.fixture(scope="module")
def strong(tmp_path_factory):
    """Two communities with tastes of their own."""
    folder = write_lastfm(tmp_path_factory.mktemp("two"), num_users=240, num_groups=2)
    return read_lastfm(folder, least_listeners=5)


def formed(updates):
    """Every update as a matrix."""
    pulled = updates.rows.toarray()[:, :, None] * updates.pulls[:, None, :]
    return pulled + np.matmul(updates.factors, updates.turns)


def audited(listening, mean_budgets, lists=None, seed=0):
    lists = listening.listens.toarray() if lists is None else lists
    size = len(lists)
    public = set_apart(size, 0.4, np.random.default_rng(5))
    attacker = field_attacker(listening.graph, taste_axis(lists, public)[1], public, np.random.default_rng(2))
    split = hold_out(listening, 0.2, np.random.default_rng(3))
    everybody = np.ones(size)
    return audit_updates(
        attacker, lists, split, np.ones(size, dtype=bool), shape=everybody, index=everybody, degrees=listening.degrees,
        mean_budgets=mean_budgets, num_rounds=2, dp_delta=1e-5, seed=(seed,), training=SMALL,
    )  # fmt: skip


# ---- training and release -----------------------------------------------------------------------------------------


def test_all_clients_at_once_move_as_each_does_alone(factors, lists, rows):
    together = formed(local_updates(factors, rows, SMALL))
    for at in (0, 7, 50):
        np.testing.assert_allclose(together[at], local_update(factors, unit_rows(lists)[at], SMALL), atol=1e-12)


def test_products_sums_and_lengths_are_those_of_the_updates_as_matrices(factors, rows):
    updates = local_updates(factors, rows, SMALL)
    flat = formed(updates).reshape(len(updates.pulls), -1)
    weights, direction = np.random.default_rng(1).random(len(flat)), np.random.default_rng(2).random(factors.shape)
    np.testing.assert_allclose(updates.products(), flat @ flat.T, atol=1e-10)
    np.testing.assert_allclose(updates.lengths(), np.linalg.norm(flat, axis=1))
    np.testing.assert_allclose(updates.total(weights).ravel(), weights @ flat, atol=1e-10)
    np.testing.assert_allclose(updates.along(direction), flat @ direction.ravel(), atol=1e-10)


def test_no_update_is_longer_than_the_clip_norm_and_short_ones_stay(factors, rows):
    updates = local_updates(factors, rows, SMALL)
    clip_norm = float(np.median(updates.lengths()))
    before, after = updates.lengths(), np.linalg.norm(formed(clipped(updates, clip_norm)), axis=(1, 2))
    assert after.max() <= clip_norm * (1 + 1e-12)
    np.testing.assert_allclose(after[before <= clip_norm], before[before <= clip_norm])


def test_noise_hides_a_whole_client_and_the_silent_have_none():
    # Replacing a list moves a clipped update by at most 2C, so that ρ = (2C)²/(2σ²).
    stds = noise_stds(np.array([0.5, math.inf, 0.0]), 3.0)
    assert stds == approx([6.0, 0.0, math.inf])


def test_noise_along_a_direction_and_in_the_sum_is_that_of_noise_on_every_number():
    rng = np.random.default_rng(0)
    size, shape, budgets = 12, (3, 2), np.linspace(0.5, 2.0, 12)
    weights = rng.random(size) / size
    directions = [each / np.linalg.norm(each) for each in rng.standard_normal((2, *shape))]
    reader = np.arange(size) % 2
    chosen = np.array(directions)[reader].reshape(size, -1)
    stds = noise_stds(budgets, 1.0)
    ours, plain = [], []
    for _ in range(4_000):
        read, total = drawn_noise(stds, weights, directions, reader, 2, rng)
        ours.append([*read[1], *total.ravel()])  # a second draw along the same path of the model
        full = release_updates(
            np.zeros((size, 6)), budgets, mechanism=privacy_mechanism("client"), clip_norm=1.0, work=ONCE,
            noise="seeded", rng=rng, round_index=1, run="test",
        ).updates  # fmt: skip
        plain.append([*np.einsum("ij,ij->i", full, chosen), *(weights @ full)])
    found, wanted = np.cov(np.array(ours).T), np.cov(np.array(plain).T)
    scale = np.sqrt(np.outer(np.diagonal(wanted), np.diagonal(wanted)))
    # Correlations have a standard error of 1/√4000 on either side; 6 of them for 324 pairs: below 1e-6.
    assert np.abs(found - wanted).max() <= 6 * math.sqrt(2 / 4_000) * scale.max()
    assert (np.abs(found - wanted) / scale).max() < 6 * math.sqrt(4 / 4_000)
    assert np.diagonal(found)[:size] == approx(stds**2, rel=0.2)


def test_who_is_silent_has_no_weight_and_noise_shrinks_the_step():
    weights, share = server_weights(noise_stds(np.array([1.0, 1.0, 0.0]), 1.0), 1.0, 100)
    assert weights == approx([0.5, 0.5, 0.0])
    assert 0 < share < 0.1
    assert server_weights(np.zeros(3), 1.0, 100)[1] == 1.0
    with pytest.raises(BadInput, match="every budget is 0"):
        server_weights(np.full(3, math.inf), 1.0, 100)


def test_training_without_noise_recommends_better_than_it_began(listening, factors):
    split = hold_out(listening, 0.2, np.random.default_rng(3))
    everybody = np.ones(listening.num_users, dtype=bool)
    budgets = np.full(listening.num_users, math.inf)
    trained = train(split.known, everybody, budgets, 8, SMALL, np.random.default_rng(0))
    before, after = (quality(scores_of(each, split.known, SMALL), split, everybody).ndcg for each in (factors, trained))
    assert after > 1.5 * before


def test_a_direction_parts_users_it_was_not_learned_from(listening, lists, factors, rows):
    everybody = np.ones(listening.num_users, dtype=bool)
    sides = taste_axis(lists, everybody)[1]
    this = begin_round(factors, rows, everybody, np.full(len(lists), math.inf), SMALL)
    folds = np.random.default_rng(0).integers(FOLDS, size=len(lists))
    directions = learn_directions(this.updates, sides, folds, 0.0)
    assert [np.linalg.norm(each) for each in directions] == approx([1.0] * (FOLDS + 1))
    places = np.choose(folds, [this.updates.along(each) for each in directions[:FOLDS]])
    assert np.corrcoef(places, sides)[0, 1] > 0.4


# ---- audit --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(strong):
    return audited(strong, (0.5, math.inf))


def test_updates_of_friends_give_a_user_away_and_those_of_strangers_do_not(found):
    for leak in (found.one_round[-1], found.several_rounds[-1], found.bits[-1]):
        assert leak.side.leak.low > 0.05
        assert leak.side.accuracy > leak.side.prior
    for leak in (*found.one_round, *found.several_rounds, *found.bits):
        assert leak.side.null.low <= 0 <= leak.side.null.high
        assert leak.side.null.high < found.one_round[-1].side.leak.low


def test_a_real_update_tells_less_than_a_bit_of_the_same_budget(found):
    assert found.one_round[0].side.effective_share < found.bits[0].side.effective_share
    assert found.bits[0].side.effective_share == approx(1.0)
    assert found.one_round[0].side.leak.mean < found.bits[0].side.leak.mean


def test_the_audit_says_what_was_known_without_any_upload(found):
    assert found.without_uploads.low > 0
    assert found.accuracy_without > 0.6
    assert abs(found.one_round[0].added.mean) < 0.05  # noise adds nothing to what the public users tell


def test_nothing_leaks_where_friends_have_nothing_in_common(strong):
    lists = strong.listens.toarray()
    strangers = lists[np.random.default_rng(8).permutation(len(lists))]
    audit = audited(strong, (math.inf,), strangers)
    for leak in (*audit.one_round, *audit.several_rounds):
        assert leak.side.leak.low <= 0


def test_noise_alone_tells_nothing_however_alike_friends_are(strong):
    # Smoothed over friends, one draw of noise resembles any taste that communities share: many draws keep it apart.
    lists = strong.listens.toarray()
    public = set_apart(len(lists), 0.4, np.random.default_rng(5))
    attacker = field_attacker(strong.graph, taste_axis(lists, public)[1], public, np.random.default_rng(2))
    silent = np.zeros(len(lists))
    signals = Signals(silent, silent + 1, silent + 5)
    noise = 5 * np.random.default_rng(4).standard_normal((2 * DRAWS, len(lists)))
    leak = attacker.side_leak(signals, noise[:DRAWS], noise[DRAWS:], silent + 1).leak
    assert leak.low <= 0
    assert leak.high < 0.05


def test_an_interval_counts_draws_that_move_all_users_together():
    users, draws = np.random.default_rng(0).standard_normal((2, 200))
    alone, shared = over_users_and_draws(users[:, None]), over_users_and_draws(users[:, None] + draws[:20])
    assert shared.high - shared.low > 1.5 * (alone.high - alone.low)


def test_what_cannot_be_audited_is_refused_in_one_line(strong):
    with pytest.raises(BadInput, match="update_budgets=0 must be above 0"):
        audited(strong, (0.0,))
    with pytest.raises(BadInput, match="most public users have an empty list"):
        train(np.zeros((4, 5)), np.ones(4, dtype=bool), np.ones(4), 1, SMALL, np.random.default_rng(0))
