"""Which examples a client looks at: whole epochs, Poisson samples, streams of its own."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork
from mppfl.training import PURPOSES, TrainingConfig, batches_of_round, local_work, make_model, stream, training_rounds
from tests.tolerances import assert_float32_close
from tests.training.trainings import pictures, plan_with

FALSE_ALARM = 1e-7
works = st.integers(1, 60).flatmap(
    lambda size: st.builds(LocalWork, st.just(size), st.integers(1, 4), st.integers(1, 3), st.integers(1, size))
)


@settings(deadline=None)
@given(works, st.sampled_from(["paper", "client", "dpsgd_shuffle"]), st.integers(0, 2**32))
def test_every_epoch_shows_every_example_once(work, privacy, seed):
    batches = batches_of_round(work, privacy, np.random.default_rng(seed))
    assert len(batches) == work.num_batches
    per_epoch = work.num_batches // work.local_epochs
    for epoch in range(work.local_epochs):
        own = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(np.concatenate(own).tolist()) == list(range(work.num_examples))
        assert [len(batch) for batch in own[:-1]] == [work.batch_size] * (per_epoch - 1)
        assert len(own[-1]) == work.num_examples - (per_epoch - 1) * work.batch_size > 0


def test_the_last_batch_of_an_epoch_is_short_where_data_do_not_divide():
    batches = batches_of_round(LocalWork(11, 2, 1, 4), "paper", np.random.default_rng(0))
    assert [len(batch) for batch in batches] == [4, 4, 3, 4, 4, 3]
    assert not np.array_equal(np.concatenate(batches[:3]), np.concatenate(batches[3:]))  # shuffled anew


@pytest.mark.parametrize(("privacy", "steps"), [("full_batch", 1), ("full_batch_steps", 3)])
def test_full_batch_steps_see_all_examples_in_every_step(privacy, steps):
    batches = batches_of_round(LocalWork(7, 5, 3, 2), privacy, np.random.default_rng(0))
    assert [batch.tolist() for batch in batches] == [list(range(7))] * steps


def test_a_poisson_batch_holds_each_example_with_the_sampling_rate_and_on_its_own():
    work = LocalWork(num_examples=20, local_epochs=4000, batch_size=6)
    batches = batches_of_round(work, "dpsgd_poisson", np.random.default_rng(1))
    assert len(batches) == work.num_batches == 16_000
    inside = np.zeros((len(batches), 20), dtype=bool)
    for step, batch in enumerate(batches):
        inside[step, batch] = True
        assert len(set(batch.tolist())) == len(batch)
    counts = inside.sum(0)
    low, high = binom.ppf([FALSE_ALARM / 40, 1 - FALSE_ALARM / 40], len(batches), 0.3)  # for all 20 together
    assert (low <= counts).all()
    assert (counts <= high).all()
    sizes = inside.sum(1)  # independent inclusion: Binomial(20, 0.3), not a fixed size
    bins = [(0, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 20)]
    seen = np.array([((sizes >= a) & (sizes <= b)).sum() for a, b in bins])
    due = len(batches) * np.array([binom.cdf(b, 20, 0.3) - binom.cdf(a - 1, 20, 0.3) for a, b in bins])
    assert ((seen - due) ** 2 / due).sum() < chi2.ppf(1 - FALSE_ALARM, len(bins) - 1)


def test_poisson_sampling_at_rate_one_takes_everybody():
    batches = batches_of_round(LocalWork(5, 3, 1, 5), "dpsgd_poisson", np.random.default_rng(0))
    assert [batch.tolist() for batch in batches] == [list(range(5))] * 3


def test_streams_differ_by_seed_purpose_round_and_client_and_start_anew():
    keys = [(s, p, t, k) for s in (0, 1) for p in PURPOSES for t in (1, 2) for k in (0, 1)]
    drawn = {stream(*key).integers(2**62) for key in keys}
    assert len(drawn) == len(keys)
    assert stream(0, "noise", 1, 1).integers(2**62) == stream(0, "noise", 1, 1).integers(2**62)


def test_what_a_client_draws_does_not_depend_on_who_else_takes_part():
    config = TrainingConfig(batch_size=4, local_epochs=2, learning_rate=0.1, clip_norm=1.0, seed=8)
    data = pictures()
    model = make_model("softmax", data.input_shape, data.num_classes)
    # With client 0 alone in the mean, the model shows its upload: with or without others who are refused their budget.
    (alone,) = training_rounds(model, data, plan_with([2.0, 0.0, 0.0], 1), config)
    mixed = dataclasses.replace(config, aggregation="size")
    (both,) = training_rounds(model, data, plan_with([2.0, 2.0, 0.0], 1), mixed)
    (other,) = training_rounds(model, data, plan_with([0.0, 2.0, 0.0], 1), mixed)
    start = 9 / 14 * alone.weights + 5 / 14 * other.weights  # sizes 9 and 5
    assert_float32_close(both.weights, start, steps=100)


def test_a_batch_larger_than_a_clients_data_is_refused_with_its_name_and_what_would_do():
    config = TrainingConfig(batch_size=6)
    with pytest.raises(BadInput, match=r"batch_size=6 is more than the 5 examples of client 'ann'.*at most 5"):
        local_work(5, config, "ann")
    assert local_work(6, config, "ann").batch_size == 6
    whole = TrainingConfig(batch_size=6, privacy="full_batch", clip_norm=1.0)
    assert local_work(5, whole, "ann").batch_size == 5  # full batches have no batch size to exceed


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 4))
def test_local_work_is_the_configurations(size, batch_size, epochs):
    config = TrainingConfig(batch_size=min(size, batch_size), local_epochs=epochs, num_steps=3)
    assert local_work(size, config, "c") == LocalWork(size, epochs, 3, min(size, batch_size))
