"""One client: which examples it sees, in which views, and how gradients are shortened."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, Protection
from mppfl.training import (
    MARGIN,
    PURPOSES,
    SHIFTS,
    VIEWS,
    ViewTable,
    batches_of_round,
    clip_factors,
    stream,
    table_for,
    with_views,
)
from tests.training.trainings import CLIENT, FREE, POISSON, SHUFFLED, STEPS, configured, small_cnn, trained

FALSE_ALARM = 1e-7
works = st.integers(1, 60).flatmap(
    lambda size: st.builds(LocalWork, st.just(size), st.integers(1, 4), st.integers(1, 3), st.integers(1, size))
)


@given(works, st.sampled_from([CLIENT, SHUFFLED]), st.integers(0, 2**32))
def test_every_epoch_shows_every_example_once(work, way, seed):
    batches = batches_of_round(work, Protection(**way), np.random.default_rng(seed))
    assert len(batches) == work.num_batches
    per_epoch = work.num_batches // work.local_epochs
    for epoch in range(work.local_epochs):
        of_epoch = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(np.concatenate(of_epoch).tolist()) == list(range(work.num_examples))
        assert [len(batch) for batch in of_epoch[:-1]] == [work.batch_size] * (per_epoch - 1)
        assert len(of_epoch[-1]) == work.num_examples - (per_epoch - 1) * work.batch_size > 0


@pytest.mark.parametrize(("way", "steps"), [({}, 1), (STEPS, 3)])
def test_full_batch_steps_see_all_examples_in_every_step(way, steps):
    batches = batches_of_round(LocalWork(7, 5, 3, 2), Protection(**way), np.random.default_rng(0))
    assert [batch.tolist() for batch in batches] == [list(range(7))] * steps


def test_a_poisson_batch_holds_each_example_with_the_sampling_rate_and_on_its_own():
    work = LocalWork(num_examples=20, local_epochs=4000, batch_size=6)
    batches = batches_of_round(work, Protection(**POISSON), np.random.default_rng(1))
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


def test_streams_differ_by_seed_purpose_round_and_client_and_start_anew():
    keys = [(s, p, t, k) for s in (0, 1) for p in PURPOSES for t in (1, 2) for k in (0, 1)]
    drawn = {stream(*key).integers(2**62) for key in keys}
    assert len(drawn) == len(keys)
    assert stream(0, "noise", 1, 1).integers(2**62) == stream(0, "noise", 1, 1).integers(2**62)


def test_what_a_client_draws_does_not_depend_on_who_else_takes_part():
    # With one client alone in the mean, the model shows its upload.
    alone, other, both = (
        trained(budgets, 1, local_epochs=2, clip_norm=1.0, seed=8, aggregation="num_examples", **CLIENT)[0].weights
        for budgets in ([2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [2.0, 2.0, 0.0])
    )
    np.testing.assert_allclose(both, 9 / 14 * alone + 5 / 14 * other, atol=1e-6)  # sizes 9 and 5


PICTURES = torch.arange(2 * 3 * 6 * 5, dtype=torch.float64).reshape(2, 3, 6, 5) + 1
TABLE = ViewTable(PICTURES, torch.tensor([7, 8]))


def shown(picture, down, right, mirrored):
    """The view by padding and cutting."""
    padded = torch.nn.functional.pad(picture, (MARGIN,) * 4)
    cut = padded[:, down : down + picture.shape[1], right : right + picture.shape[2]]
    return cut.flip(2) if mirrored else cut


def test_a_view_is_a_cut_out_of_the_padded_picture_perhaps_mirrored():
    codes = torch.arange(VIEWS)
    inputs, labels = TABLE.at(torch.stack([codes, VIEWS + codes]))
    assert inputs.shape == (2, VIEWS, 3, 6, 5)
    assert labels.tolist() == [[7] * VIEWS, [8] * VIEWS]
    for example in range(2):
        for view in range(VIEWS):
            expected = shown(PICTURES[example], view // (2 * SHIFTS), view // 2 % SHIFTS, view % 2 == 1)
            torch.testing.assert_close(inputs[example, view], expected)


def test_every_view_is_drawn_about_as_often():
    (batch,) = with_views([np.full(VIEWS * 200, 3)], np.random.default_rng(0))
    assert (batch // VIEWS == 3).all()
    counts = np.bincount(batch % VIEWS, minlength=VIEWS)
    # χ² with 161 degrees of freedom is above 240 once in 20,000 draws.
    assert ((counts - 200) ** 2 / 200).sum() < 240


@pytest.mark.parametrize("engine", ["processes", "vmap", "batched"])
def test_every_engine_sees_the_views_that_the_plain_loop_sees(engine):
    asked = {"precision": "float64", "learning_rate": 0.2, "local_epochs": 2, "clip_norm": 5.0, **CLIENT}
    plain, fast, still = (
        trained(FREE, 2, model=small_cnn(), engine=name, augmentation=views, **asked)[-1]
        for name, views in (("loop", "crop_and_flip"), (engine, "crop_and_flip"), ("loop", "none"))
    )
    np.testing.assert_allclose(fast.weights, plain.weights, atol=1e-9, rtol=0)
    assert np.abs(still.weights - plain.weights).max() > 1e-4


def test_examples_that_are_no_pictures_have_no_views():
    config = configured(augmentation="crop_and_flip")
    with pytest.raises(BadInput, match=r"the examples have shape \(8,\). Use augmentation='none'"):
        table_for(config, torch.zeros(3, 8), torch.zeros(3, dtype=torch.long))


CLIP = 0.5


@pytest.mark.parametrize("norm", [CLIP * (1 - 2.0**-24), CLIP, CLIP * (1 + 1e-9), 1e3, 1e30])
@pytest.mark.parametrize("num_summed", [1, 50, 2**14, 10**6])
def test_clip_factors_leave_room_for_the_rounding_of_the_sum(norm, num_summed):
    factor = clip_factors(torch.tensor([norm], dtype=torch.float64), CLIP, num_summed).item()
    excess = num_summed * (num_summed + 3) * 2.0**-53
    assert factor * norm * (1 + excess) < CLIP
    assert factor * norm > CLIP * (1 - 4 * max(excess, 2.0**-24))
