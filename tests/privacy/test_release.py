"""Protections and releases: updates clipped, made noisy, and priced."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytest import approx
from scipy.stats import chi2, norm

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
from mppfl.privacy.ledger import PrivacyLedger
from tests.tolerances import assert_float32_close

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
EVERY = {**ZCDP, "poisson": POISSON}
FALSE_ALARM = 1e-7


# ---- protections: which noise a budget buys -----------------------------------------------------------------------


# Δ and how many answers one unit touches, worked by hand for n = 50, 4 epochs, 9 steps, batches of 10 and 𝒮 = 1.
BY_HAND = {
    "client": (2.0, 1, 1),
    "gradient": (2 / 50, 1, 1),
    "steps": (2 / 50, 9, 9),
    "shuffled": (2.0, 4, 20),
    "poisson": (1.0, 1, 20),
}


@pytest.mark.parametrize(("name", "by_hand"), BY_HAND.items())
def test_how_far_a_neighbour_moves_which_answers(name, by_hand):
    protection = EVERY[name]
    assert (protection.sensitivity(WORK), protection.queries(WORK), protection.num_answers(WORK)) == approx(by_hand)
    halved = replace(protection, adjacency="zero_out").sensitivity(WORK)
    assert halved == approx(by_hand[0] * (1.0 if protection.adjacency == "zero_out" else 0.5))


@pytest.mark.parametrize("name", ZCDP)
@given(st.floats(1e-9, 1e9), st.floats(1e-3, 1e3))
def test_noise_costs_the_budget_it_was_bought_with(name, budget, clip_norm):
    protection = ZCDP[name].with_clip_norm(clip_norm)
    multiplier = protection.noise_std(budget, WORK) / protection.sensitivity(WORK)
    assert protection.queries(WORK) / (2 * multiplier**2) == approx(budget)


@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(sorted(ZCDP)))
def test_every_budget_is_answered_or_refused(budget, name):
    try:
        std = ZCDP[name].noise_std(budget, WORK)
    except BadInput:
        return
    assert std > 0 if math.isfinite(budget) else std == 0


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
    ("protection", "guarantee", "accounting"),
    [
        (Protection(), "ρ-zCDP for each record of a client, against everybody who sees its gradient", "exact"),
        (CLIENT, "ρ-zCDP for all data of a client, against everybody who sees its update", "exact"),
        (replace(CLIENT, noise="discrete"), CLIENT.guarantee, "rdp"),
        (STEPS, "ρ-zCDP for each record of a client, against everybody who sees its update", "exact"),
        (POISSON, "(ε, δ)-DP for each record of a client, against everybody who sees its update", "pld"),
        (replace(CLIENT, trust="server"), "ρ-zCDP for all data of a client, against everybody but the server", "rdp"),
        (
            Protection(trust="secure_sum"),
            "ρ-zCDP for each record of a client, against everybody who sees the sum of a round",
            "rdp",
        ),
    ],
)  # fmt: skip
def test_a_protection_says_what_it_promises_and_how_that_is_counted(protection, guarantee, accounting):
    assert (protection.guarantee, protection.accounting) == (guarantee, accounting)


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
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], size)
    assert low <= (answer / cost.noise_std) @ (answer / cost.noise_std) <= high
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


def test_the_cost_says_who_when_what_and_how():
    cost = released(np.zeros((1, 4)), [2.0], replace(CLIENT, noise="discrete"), clients=["ann"]).costs[0]
    assert (cost.client, cost.round_index, cost.run, cost.protection) == ("ann", 3, "test", "local client update")
    assert (cost.unit, cost.adjacency, cost.noise_kind) == ("client", "replace_one", "discrete")
    assert cost.budget == 2.0
    assert 0 < cost.extra_delta < 1e-10
    assert cost.noise_multiplier == approx(0.5)


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


@pytest.mark.parametrize("budget", [-1.0, math.nan, 1e-300, 1e300, -math.inf])
def test_a_budget_that_cannot_be_is_refused_by_name(budget):
    with pytest.raises(BadInput, match="client 'bob'"):
        released(np.ones((2, 3)), [1.0, budget], clients=["ann", "bob"])


@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
def test_a_budget_too_small_for_its_rounding_is_told_what_would_help(kind):
    with pytest.raises(BadInput, match="drowns in its own rounding") as refused:
        std_with_grid(1.0, 1e9, 10**6, kind)
    assert ("noise='gaussian'" in str(refused.value)) == (kind == "discrete")


@given(st.floats(allow_nan=True), st.sampled_from(NOISE_KINDS), st.floats(allow_nan=True))
def test_every_release_is_finite_and_priced_or_refused(budget, noise, clip_norm):
    try:
        protection = replace(CLIENT, noise=noise, clip_norm=clip_norm)
        got = released(np.array([1e3, -2.0, 0.0]), budget, protection)
    except BadInput:
        return
    assert np.isfinite(got.updates).all()
    assert [cost.budget for cost in got.costs] == ([budget] if budget else [])


def test_one_update_or_a_stack_of_one_are_the_same():
    one = released(np.arange(4.0), 1.0, SIMULATED).updates
    stack = released(np.arange(4.0)[None], [1.0], SIMULATED).updates
    assert one.shape == (4,)
    assert (one == stack[0]).all()


class SharedNoise(Protection):
    """A protection of one's own: the noise that would hide a record in a mean, on a whole update."""

    def sensitivity(self, work):
        return self.reach() / work.num_examples

    def charged(self, budget, work):
        return budget * work.num_examples**2


def test_a_protection_of_ones_own_decides_noise_and_cost_which_may_differ_between_clients():
    works = [LocalWork(num_examples=10), LocalWork(num_examples=1000)]
    few, many = released(np.zeros((2, 3)), [1.0, 1.0], SharedNoise(unit="client"), work=works).costs
    assert few.noise_std == approx(100 * many.noise_std, rel=1e-3)
    assert (few.budget, many.budget) == (1e2, 1e6)


def test_poisson_sampled_answers_take_a_multiplier_and_have_no_budget():
    poisson = POISSON.with_clip_norm(2.0)
    _, cost = noisy_answer(np.zeros(9), None, poisson, WORK, noise_multiplier=1.5)
    assert cost.budget is None
    assert cost.noise_multiplier == approx(1.5)
    assert cost.noise_std == approx(3.0, rel=1e-4)
    with pytest.raises(BadInput, match="noise_multiplier alone"):
        noisy_answer(np.zeros(9), 1.0, poisson, WORK)


def test_each_protection_is_sent_to_the_function_that_fits_it():
    for protection in (Protection(), Protection(unit="client", trust="server")):
        with pytest.raises(BadInput, match=r"release_updates is for whole updates.*Protection\(unit='client'\)"):
            released(np.zeros(3), 1.0, protection)
    with pytest.raises(BadInput, match="use release_updates"):
        noisy_answer(np.zeros(3), 1.0, CLIENT, WORK)


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
    assert before.extra_delta == approx(20 * answers[0].extra_delta)
    uneven = LocalWork(num_examples=51, local_epochs=4, batch_size=10)
    assert price(poisson, None, noise_multiplier=1.5, work=uneven).num_steps == 4 * 6


@pytest.mark.parametrize("noise", NOISE_KINDS)
@pytest.mark.parametrize("name", EVERY)
def test_every_rounds_cost_can_be_reserved_as_it_is(name, noise):
    poisson = name == "poisson"
    protection = replace(EVERY[name], noise=noise)
    paid = price(protection, None if poisson else 0.5, noise_multiplier=2.0 if poisson else None)
    with PrivacyLedger.in_memory() as ledger:
        assert ledger.reserve("test", 3, [paid]).reserved == ("ann",)
        assert ledger.spent("ann") == (0 if poisson else 0.5)
        (event,) = ledger.events()
    assert (event["sampling_rate"], event["num_steps"]) == ((0.2, 20) if poisson else (None, None))
    assert event["noise_kind"] == noise


@pytest.mark.parametrize(
    ("protection", "budget", "changed", "says"),
    [
        (CLIENT, 0.0, {}, "client 'ann' cannot be met"),
        (CLIENT, math.nan, {}, "client 'ann' cannot be met"),
        (CLIENT, None, {}, "a budget alone"),
        (CLIENT, 1.0, {"noise_multiplier": 1.0}, "a budget alone"),
        (CLIENT, 1.0, {"num_parameters": 0}, "num_parameters=0"),
        (CLIENT, 1e40, {}, "too little for a grid"),
        (replace(CLIENT, noise="discrete"), 1e-20, {}, "client 'ann' cannot be met.*drowns in its own rounding"),
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


@settings(deadline=None)
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


def test_rows_near_the_end_of_float32_are_shortened_as_well():
    rng = np.random.default_rng(0)
    rows = torch.from_numpy((rng.uniform(0.5, 1.0, (50, 4000)) * 3e38).astype(np.float32))
    out, _ = release_on_device(rows, costs_of([np.inf] * 50, 4000), SIMULATED, range(50))
    assert (lengths(out) <= 1.0).all()


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_row_gets_the_noise_its_cost_states(adjacency, dtype):
    size = 60_000
    costs = costs_of([0.02, 0.5, 8.0, np.inf], size, replace(SIMULATED, adjacency=adjacency))
    rows = torch.full((4, size), 0.5 / np.sqrt(size), dtype=dtype)
    out, _ = release_on_device(rows, costs, SIMULATED, [3, 4, 5, 6])
    noise = (out.double() - rows.double()).numpy()
    low, high = chi2.ppf([FALSE_ALARM / 6, 1 - FALSE_ALARM / 6], size)
    for row, cost in zip(noise[:3], costs[:3], strict=True):
        assert low <= (row / cost.noise_std) @ (row / cost.noise_std) <= high
        assert abs(row.mean()) <= norm.ppf(1 - FALSE_ALARM / 6) * cost.noise_std / np.sqrt(size)
    assert torch.equal(out[3], rows[3])  # an infinite budget buys no noise
    correlations = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in ((noise[0], noise[1]), (noise[1], noise[2]))
    ]
    assert np.abs(correlations).max() <= norm.ppf(1 - FALSE_ALARM / 4) / np.sqrt(size)


def test_without_noise_it_releases_what_release_does_at_the_same_cost():
    rows = np.random.default_rng(1).standard_normal((3, 30)).astype(np.float32)
    rows[1] *= 1e-3
    costs = costs_of([np.inf] * 3, 30)
    plain = released(rows, [np.inf] * 3, SIMULATED, clients=["c0", "c1", "c2"])
    on_device, clipped = release_on_device(torch.from_numpy(rows), costs, SIMULATED, [0, 1, 2])
    for row, expected in zip(on_device.numpy(), plain.updates, strict=True):
        assert_float32_close(row, expected, steps=4)
    np.testing.assert_array_equal(clipped.numpy(), plain.clipped)
    assert tuple(costs) == plain.costs


@settings(deadline=None)
@given(st.floats(1e-3, 1e3), st.sampled_from(["replace_one", "zero_out"]))
def test_the_noise_of_the_cost_is_the_noise_of_the_budget(budget, adjacency):
    protection = replace(SIMULATED, adjacency=adjacency)
    (cost,) = costs_of([budget], 10, protection)
    out, _ = release_on_device(torch.zeros((1, 10), dtype=torch.float64), [cost], SIMULATED, [7])
    unit, _ = release_on_device(
        torch.zeros((1, 10), dtype=torch.float64), [replace(cost, noise_std=1.0)], SIMULATED, [7]
    )
    torch.testing.assert_close(out, unit * protection.noise_std(budget, WORK), rtol=1e-9, atol=0)


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
