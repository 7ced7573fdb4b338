"""Protections and releases: updates clipped, made noisy, and priced."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytest import approx
from scipy.stats import norm

from mppfl.errors import BadInput
from mppfl.privacy import (
    NOISE_KINDS,
    LocalWork,
    Protection,
    clip_rows,
    grid_of,
    noisy_answer,
    release_on_device,
    release_updates,
    require_budget,
    round_cost,
    std_with_grid,
)
from tests.tolerances import assert_of_std

WORK = LocalWork(num_examples=50, local_epochs=4, num_steps=9, batch_size=10)
CLIENT = Protection(unit="client", noise="gaussian")
SIMULATED = replace(CLIENT, noise="simulated")
STEPS = Protection(release="steps")
POISSON = Protection(release="steps", batches="poisson", noise="gaussian")
ZCDP = {
    "client": CLIENT,
    "client, zero_out": Protection(unit="client", adjacency="zero_out"),
    "gradient": Protection(),
    "steps": STEPS,
    "shuffled": Protection(release="steps", batches="shuffled"),
}


@pytest.mark.parametrize("name", ZCDP)
@given(st.floats(1e-9, 1e9), st.floats(1e-3, 1e3))
def test_noise_costs_the_budget_it_was_bought_with(name, budget, clip_norm):
    protection = ZCDP[name].with_clip_norm(clip_norm)
    multiplier = protection.noise_std(budget, WORK) / protection.sensitivity(WORK)
    assert protection.queries(WORK) / (2 * multiplier**2) == approx(budget)


def test_clip_norms_and_budgets_that_cannot_be_are_refused():
    with pytest.raises(BadInput, match="poisson_noise_of_plan finds it"):  # Poisson-sampled noise has no zCDP budget
        POISSON.noise_std(0.5, WORK)
    for clip_norm in (0, -1.0, math.nan, math.inf):
        with pytest.raises(BadInput, match="clip_norm"):
            Protection(clip_norm=clip_norm)
    for budget in (0, -1, math.nan, -math.inf, 1e-300, 1e300, 5e-324, "much", None):
        with pytest.raises(BadInput, match="budget="):
            require_budget(budget)


@pytest.mark.parametrize(
    ("protection", "accounting"),
    [
        (CLIENT, "exact"),
        (replace(CLIENT, noise="discrete"), "rdp"),
        (POISSON, "pld"),
        (replace(CLIENT, trust="server"), "rdp"),
        (Protection(trust="secure_sum"), "rdp"),
    ],
)
def test_noise_decides_how_what_it_costs_is_counted(protection, accounting):
    assert protection.accounting == accounting


# ---- one release --------------------------------------------------------------------------------------------------


def released(updates, budgets, protection=CLIENT, **changed):
    asked = {"work": WORK, "rng": np.random.default_rng(5), "round_index": 3, "run": "test"}
    return release_updates(updates, budgets, protection, **asked | changed)


@pytest.mark.parametrize("noise", NOISE_KINDS)
@pytest.mark.parametrize("name", ZCDP)
def test_an_update_or_an_answer_carries_the_noise_that_its_share_of_the_budget_buys(name, noise):
    protection, size = replace(ZCDP[name], noise=noise), 100_000
    if protection.clips_examples:
        answer, cost = noisy_answer(np.zeros(size), 0.5, protection, WORK, np.random.default_rng(6))
    else:
        release = released(np.zeros(size), 0.5, protection)
        answer, cost = release.updates, release.costs[0]
    assert_of_std(answer, cost.noise_std)
    assert cost.budget * protection.queries(WORK) == approx(0.5)
    assert 1 / (2 * cost.noise_multiplier**2) == approx(cost.budget)
    moved = protection.sensitivity(WORK) + grid_of(cost.noise_std, noise) * math.sqrt(size)
    assert moved**2 / (2 * cost.noise_std**2) == approx(cost.budget)  # rounding included


@given(st.floats(1e-4, 1e6), st.floats(1e-3, 1e3), st.integers(1, 10**7), st.sampled_from(NOISE_KINDS))
def test_noise_on_a_grid_is_raised_until_rounding_is_paid_for(multiplier, sensitivity, size, kind):
    try:
        std = std_with_grid(sensitivity, multiplier, size, kind)
    except BadInput:
        assert kind != "simulated"
        assert multiplier * math.sqrt(size) > 2**13
        return
    assert std == approx(multiplier * (sensitivity + grid_of(std, kind) * math.sqrt(size)))


@given(
    arrays(np.float64, (3, 5), elements=st.floats(-1e200, 1e200)),
    st.floats(1e-100, 1e100),
    st.sampled_from(["float32", "float64"]),
)
def test_clipping_shortens_long_rows_and_leaves_short_ones(rows, clip_norm, dtype):
    raw = rows.clip(-1e37, 1e37).astype(dtype)
    clip_norm = max(clip_norm, 1e-30)
    clipped, was = clip_rows(raw, clip_norm)
    assert (np.linalg.norm(clipped.astype(float), axis=1) <= clip_norm * (1 + 1e-12)).all()
    assert (clipped[~was] == raw[~was]).all()
    assert clipped.dtype == dtype


def test_a_clipped_update_keeps_its_direction_and_budget_0_releases_nothing_and_pays_nothing():
    updates, names = np.array([[3.0, 4.0], [1.0, 1.0], [0.3, 0.4], [3.0, 4.0]]), ["ann", "bob", "cy", "dan"]
    got = released(updates, [math.inf, 0.0, math.inf, 1.0], clients=names)
    assert got.updates[:3] == approx(np.array([[0.6, 0.8], [0.0, 0.0], [0.3, 0.4]]), rel=1e-6)
    assert (got.updates[3] != [0.6, 0.8]).all()
    assert got.clipped.tolist() == [True, False, False, True]
    assert got.participating.tolist() == [True, False, True, True]
    assert [cost.client for cost in got.costs] == ["ann", "cy", "dan"]
    without_noise = got.costs[0]
    assert (without_noise.budget, without_noise.noise_kind, without_noise.noise_multiplier) == (math.inf, "none", 0.0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_refused_by_name(wrong):
    updates = np.ones((2, 3))
    updates[1, 2] = wrong
    with pytest.raises(BadInput, match="client 'bob' holds NaN or infinity"):
        released(updates, [1.0, 1.0], clients=["ann", "bob"])
    with pytest.raises(BadInput, match="The update of client 'c1' holds NaN or infinity and is not released"):
        release_on_device(torch.from_numpy(updates), costs_of([1.0, 1.0], 3), SIMULATED, [0, 1])
    with pytest.raises(BadInput, match="example number 1"):
        clip_rows(updates, 1.0)


@given(st.floats(allow_nan=True), st.sampled_from(NOISE_KINDS), st.floats(allow_nan=True))
def test_every_release_is_finite_and_priced_or_refused(budget, noise, clip_norm):
    try:
        protection = replace(CLIENT, noise=noise, clip_norm=clip_norm)
        got = released(np.array([1e3, -2.0, 0.0]), budget, protection)
    except BadInput:
        return
    assert np.isfinite(got.updates).all()
    assert [cost.budget for cost in got.costs] == ([budget] if budget else [])


def test_each_protection_is_sent_to_the_function_that_fits_it():
    for protection in (Protection(), Protection(unit="client", trust="server")):
        with pytest.raises(BadInput, match=r"release_updates is for whole updates.*Protection\(unit='client'\)"):
            released(np.zeros(3), 1.0, protection)
    with pytest.raises(BadInput, match="use release_updates"):
        noisy_answer(np.zeros(3), 1.0, CLIENT, WORK)
    with pytest.raises(BadInput, match="noise_multiplier alone"):
        noisy_answer(np.zeros(3), 1.0, POISSON, WORK)


@pytest.mark.parametrize(
    "changed", [{"clients": ["ann"]}, {"work": [WORK]}, {"budgets": [1.0]}, {"updates": np.zeros((2, 3), dtype=int)}]
)
def test_lists_of_the_wrong_length_are_refused(changed):
    asked = {"updates": np.zeros((2, 3)), "budgets": [1.0, 1.0]} | changed
    with pytest.raises(BadInput):
        released(asked.pop("updates"), asked.pop("budgets"), **asked)


# ---- the cost of a round, before it happens ---------------------------------------------------------------------


OF_ANN = {"client": "ann", "round_index": 3, "run": "test"}


def price(protection, budget, num_parameters=40, **changed):
    asked = {"work": WORK, **OF_ANN} | changed
    return round_cost(protection, budget, num_parameters=num_parameters, **asked)


@pytest.mark.parametrize("budget", [1e-3, 0.7, math.inf])
@pytest.mark.parametrize("noise", NOISE_KINDS)
@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_the_cost_of_an_update_is_known_exactly_before_it_is_made(adjacency, noise, budget):
    protection = replace(CLIENT, adjacency=adjacency, noise=noise)
    got = released(np.ones((1, 40)), [budget], protection, clients=["ann"])
    assert price(protection, budget) == got.costs[0]


@pytest.mark.parametrize("budget", [1e-3, 0.7, math.inf])
@pytest.mark.parametrize("noise", NOISE_KINDS)
@pytest.mark.parametrize("name", ["gradient", "steps", "shuffled"])
def test_the_answers_of_a_round_add_up_to_what_was_known_before(name, noise, budget):
    protection, rng = replace(ZCDP[name], noise=noise), np.random.default_rng(1)
    answers = [noisy_answer(np.ones(40), budget, protection, WORK, rng)[1] for _ in range(protection.num_answers(WORK))]
    before, queries = price(protection, budget), protection.queries(WORK)
    assert before.budget == budget
    assert all(answer == answers[0] for answer in answers)
    assert answers[0].budget == approx(budget / queries)
    assert before.noise_std == answers[0].noise_std
    assert before.extra_delta == queries * answers[0].extra_delta


@pytest.mark.parametrize("noise", NOISE_KINDS)
def test_a_poisson_round_is_one_entry_with_its_rate_and_steps(noise):
    poisson, rng = replace(POISSON, noise=noise), np.random.default_rng(1)
    answers = [noisy_answer(np.ones(40), None, poisson, WORK, rng, noise_multiplier=1.5)[1] for _ in range(20)]
    before = price(poisson, None, noise_multiplier=1.5)
    assert before.budget is None
    assert (before.sampling_rate, before.num_steps) == (10 / 50, 4 * 5)
    assert before.noise_multiplier == answers[0].noise_multiplier == approx(1.5)
    assert answers[0].noise_std == approx(1.5, rel=0.01)  # and what rounding costs
    assert before.extra_delta == approx(20 * answers[0].extra_delta)
    uneven = LocalWork(num_examples=51, local_epochs=4, batch_size=10)
    assert price(poisson, None, noise_multiplier=1.5, work=uneven).num_steps == 4 * 6


@pytest.mark.parametrize(
    ("protection", "budget", "changed", "says"),
    [
        (CLIENT, 0.0, {}, "client 'ann' cannot be met"),
        (CLIENT, math.nan, {}, "client 'ann' cannot be met"),
        (CLIENT, None, {}, "a budget alone"),
        (CLIENT, 1.0, {"noise_multiplier": 1.0}, "a budget alone"),
        (CLIENT, 1.0, {"num_parameters": 0}, "num_parameters=0"),
        (CLIENT, 1e40, {}, "too little for a grid"),
        (
            replace(CLIENT, noise="discrete"),
            1e-20,
            {},
            "client 'ann'.*drowns in its own rounding.*noise='gaussian'",
        ),
        (POISSON, None, {"noise_multiplier": 1e-20}, "too little for a grid"),
        (POISSON, 1.0, {}, "noise_multiplier alone"),
        (
            POISSON,
            None,
            {"noise_multiplier": 1.0, "work": LocalWork(5, batch_size=6)},
            "batch_size=6 is more than num_examples=5",
        ),
    ],
)
def test_a_round_that_cannot_be_is_refused_before_it_starts(protection, budget, changed, says):
    with pytest.raises(BadInput, match=says) as refused:
        price(protection, budget, **changed)
    assert "\n" not in str(refused.value)


# ---- a stack of updates released where it lies: the same promises, on tensors ------------------------------------


def costs_of(budgets, num_parameters, protection=SIMULATED):
    return [price(protection, budget, num_parameters, client=f"c{k}") for k, budget in enumerate(budgets)]


def lengths(rows):
    return torch.linalg.vector_norm(rows.double(), dim=1)


@given(st.integers(0, 2**32), st.sampled_from([torch.float32, torch.float64]), st.floats(-20, 20), st.floats(1e-3, 1e3))
def test_no_released_row_is_longer_than_the_clip_norm(seed, dtype, exponent, clip_norm):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.standard_normal((6, 40)) * clip_norm * 10.0**exponent).to(dtype)
    costs = costs_of([np.inf] * 6, 40)
    out, clipped = release_on_device(rows, costs, SIMULATED.with_clip_norm(clip_norm), range(6))
    assert (lengths(out) <= clip_norm).all()
    assert clipped.tolist() == (lengths(rows) > clip_norm).tolist()
    assert out.dtype == dtype
    assert torch.equal(out[~clipped], rows[~clipped])  # short rows are left, not stretched
    torch.testing.assert_close(
        out.double() / lengths(out)[:, None], rows.double() / lengths(rows)[:, None], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_row_gets_the_noise_its_cost_states(adjacency, dtype):
    size = 60_000
    costs = costs_of([0.02, 0.5, 8.0, np.inf], size, replace(SIMULATED, adjacency=adjacency))
    rows = torch.full((4, size), 0.5 / np.sqrt(size), dtype=dtype)
    out, _ = release_on_device(rows, costs, SIMULATED, [3, 4, 5, 6])
    noise = (out.double() - rows.double()).numpy()
    for row, cost in zip(noise[:3], costs[:3], strict=True):
        assert_of_std(row, cost.noise_std)
    assert torch.equal(out[3], rows[3])  # an infinite budget buys no noise
    correlations = np.corrcoef(noise[:3])[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() <= norm.ppf(1 - 1e-8) / np.sqrt(size)


def test_the_same_seed_gives_the_same_noise_and_another_seed_another():
    rows, costs = torch.zeros((3, 20)), costs_of([1.0] * 3, 20)
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first, _ = release_on_device(rows, costs, SIMULATED, [5, 5, 6])
    assert torch.equal(torch.rand(2), expected)  # the global generator is not touched
    alone, _ = release_on_device(rows[1:2], costs[1:2], SIMULATED, [5])
    assert torch.equal(first[0], first[1])
    assert torch.equal(first[1], alone[0])  # whoever else is in the stack
    assert not torch.equal(first[0], first[2])
    assert not rows.any()  # what came in stays as it was


@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
def test_noise_that_is_to_protect_is_not_drawn_on_a_device(kind):
    costs = costs_of([1.0, 1.0], 8)
    costs[1] = costs_of([1.0], 8, replace(CLIENT, noise=kind))[0]
    with pytest.raises(BadInput, match=f"noise '{kind}' is not drawn on a device; use mppfl.privacy.release"):
        release_on_device(torch.zeros((2, 8)), costs, SIMULATED, [0, 1])


def test_every_row_needs_a_cost_and_a_seed():
    for num_costs, num_seeds in ((1, 2), (2, 1), (3, 2)):
        with pytest.raises(BadInput, match=f"2 updates came with {num_costs} costs and {num_seeds} seeds"):
            release_on_device(torch.zeros((2, 8)), costs_of([1.0] * num_costs, 8), SIMULATED, range(num_seeds))
