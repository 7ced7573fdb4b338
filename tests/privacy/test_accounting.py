"""From budgets to (ε, δ): golden numbers, other accountants, and numbers that cannot be."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.privacy import (
    added_delta,
    composed_epsilon,
    epsilon,
    filter_room,
    gaussian_epsilon,
    history_epsilon,
    poisson_noise_of_plan,
    renyi_losses,
    to_dp_event,
)
from tests.homes import home

accounting = home(added_delta)

approx = pytest.approx
EXTREMES = [0.0, 5e-324, 1e-300, 1e-30, 1e-5, 0.5, 1.0, 1e30, 1e300, 1.79e308, math.inf]
budgets = st.one_of(st.floats(0, 100), st.floats(0, math.inf), st.sampled_from(EXTREMES))
deltas = st.one_of(st.floats(1e-12, 0.5), st.floats(5e-324, 1 - 1e-16))


@given(budgets, deltas)
def test_the_three_methods_never_fall_below_the_exact_curve(rho, delta):
    exact, renyi, zcdp = (epsilon(rho, delta, method) for method in ("exact", "rdp", "zcdp"))
    assert 0 <= exact <= renyi * (1 + 1e-9) + 1e-300
    assert renyi <= zcdp * (1 + 1e-9) + 1e-300


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=8), deltas)
def test_more_budget_never_means_less_epsilon(rhos, delta):
    for method in ("exact", "rdp", "zcdp"):
        epsilons = epsilon(np.sort(np.array(rhos)), delta, method)
        assert (np.diff(epsilons) >= -1e-9 * epsilons[1:]).all()


def test_an_array_is_answered_as_its_entries_are_nothing_spent_with_0_and_no_noise_with_infinity():
    rhos = np.array([[0.0, 1e-9, 0.01], [0.5, 30.0, math.inf]])
    for method in ("exact", "rdp", "zcdp"):
        one_by_one = [[epsilon(float(rho), 1e-5, method) for rho in row] for row in rhos]
        assert epsilon(rhos, 1e-5, method) == approx(np.array(one_by_one), rel=1e-14)
        assert (one_by_one[0][0], one_by_one[1][2]) == (0, math.inf)  # nothing spent; no noise
    assert epsilon(np.array([0.5, 0.5]), np.array([1e-5, 1e-6]))[1] == approx(epsilon(0.5, 1e-6))


# ---- a second route ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.02, 0.5, 4.0, 60.0])
def test_exact_and_rdp_agree_with_an_independent_accountant(rho, delta):
    assert gaussian_epsilon(rho, delta) == approx(
        dp_accounting.get_epsilon_gaussian(1 / math.sqrt(2 * rho), delta), rel=1e-8, abs=1e-12
    )
    best = 1 + math.sqrt(math.log(1 / delta) / rho)
    orders = 1 + np.geomspace((best - 1) / 10, (best - 1) * 3, 3000)
    accountant = rdp.RdpAccountant(orders=orders)
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    assert epsilon(rho, delta, "rdp") == approx(accountant.get_epsilon(delta), rel=1e-5)
    assert epsilon(rho, delta, "rdp") <= accountant.get_epsilon(delta) + 1e-12


def test_poisson_sampling_agrees_with_an_independent_accountant():
    accountant = pld.PLDAccountant()
    accountant.compose(to_dp_event(noise_multiplier=0.598, sampling_rate=32 / 2500, num_steps=391))
    assert history_epsilon([(0.598, 32 / 2500, 391)], 1e-5) == approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert history_epsilon([(1.0, 1.0, 10)], 1e-5) == gaussian_epsilon(5.0, 1e-5)  # nobody left out, nothing gained
    assert history_epsilon([(1.0, 1e-7, 10)], 1e-5) == 0.0  # hardly ever drawn


@pytest.mark.parametrize("rate", [1e-3, 0.013, 0.3, 0.999, 1.0])
def test_renyi_losses_agree_with_an_independent_accountant(rate):
    for noise in (0.05, 0.6, 1.0, 4.0, 50.0):
        for order, loss in list(zip(accounting.ORDERS, renyi_losses([(noise, rate, 3)], 0.01), strict=True))[::7]:
            accountant = rdp.RdpAccountant(orders=[order])
            accountant.compose(to_dp_event(noise_multiplier=noise, sampling_rate=rate), 3)
            accountant.compose(to_dp_event(budget=0.01))
            # No part of δ, so that dp-accounting adds nothing but what the order does.
            assert accountant.get_epsilon(1e-200) == approx(loss + accounting._order_cost(order, 1e-200), rel=1e-9)


@pytest.mark.parametrize(("dp_epsilon", "dp_delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-3), (60.0, 0.1)])
def test_a_filter_spends_its_delta_once_over_all_its_orders(dp_epsilon, dp_delta):
    costs = accounting._filter_costs(dp_epsilon, dp_delta)
    used = np.flatnonzero(np.isfinite(costs))
    orders = accounting.ORDERS[used]
    parts = np.exp((np.log1p(-1 / orders) - costs[used]) * (orders - 1)) / orders  # ε = 0 at order α is this δ
    assert parts.sum() + accounting.DELTA_OF_NOISE * dp_delta == approx(dp_delta)
    nothing = renyi_losses([], 0.0)
    room = filter_room(nothing, dp_epsilon, dp_delta)
    assert epsilon(room, dp_delta, "rdp") <= dp_epsilon
    assert epsilon(room * 1.1, dp_delta, "rdp") > dp_epsilon or dp_epsilon in (0.1, 60.0)
    assert filter_room(renyi_losses([], room / 3), dp_epsilon, dp_delta) == approx(room * 2 / 3)
    assert filter_room(nothing, dp_epsilon, dp_delta, extra=dp_delta) == -math.inf


PLANS = {
    "equal rounds": ([0.02] * 30, 0.1, 10),
    "few large": ([2.0, 1.0, 0.5], 0.05, 40),
    "small": (np.linspace(5e-4, 1e-3, 10), 0.01, 94),
    "60 unequal, some without it": (np.where(np.arange(60) % 3, np.geomspace(0.09, 1e-3, 60), 0.0), 0.02, 20),
    "barely a budget": ([1e-7, 0.0, 2e-7], 0.1, 10),
    "nearly everybody": ([0.1, 0.2], 0.97, 5),
}


@pytest.mark.parametrize(("budgets", "rate", "steps"), PLANS.values(), ids=PLANS)
def test_a_whole_plan_ends_just_below_the_epsilon_that_its_budgets_stand_for(budgets, rate, steps):
    budgets = np.array(budgets)
    noises, takes_part = poisson_noise_of_plan(budgets, rate, steps, 1e-5), np.array(budgets) > 0
    assert (noises > 0).tolist() == takes_part.tolist()
    target = gaussian_epsilon(float(budgets.sum()), 1e-5)
    reached = history_epsilon([(noise, rate, steps) for noise in noises[takes_part]], 1e-5)
    assert reached <= target
    assert reached >= 0.99 * target or target < 1e-2  # where the finest grid of losses is coarse for it
    # In proportion to 1/√ρ but for rounding, in at most twelve sizes.
    scale = np.log(noises[takes_part] * np.sqrt(budgets[takes_part]))
    assert np.ptp(scale) < 0.23
    assert len(set(noises)) <= 13


@pytest.mark.parametrize("strange", [math.nan, math.inf, -1.0, "x", None, [[0.1]], 1e9])
def test_strange_plans_are_refused_in_one_line(strange):
    with pytest.raises(BadInput) as refused:
        poisson_noise_of_plan([0.1, strange], 0.1, 10, 1e-5)
    assert "\n" not in str(refused.value)


def test_a_plan_of_nobody_has_no_noise_and_where_nobody_is_left_out_the_budgets_decide_it():
    assert poisson_noise_of_plan([0.0, 0.0], 0.1, 10, 1e-5).tolist() == [0, 0]
    assert poisson_noise_of_plan([0.5], 1.0, 1, 1e-5) == approx(1.0, abs=1e-5)


def test_events_carry_noise_over_sensitivity():
    assert to_dp_event(budget=0.5) == dp_accounting.GaussianDpEvent(1.0)
    assert to_dp_event(budget=0.5, is_gaussian=False) == dp_accounting.ZCDpEvent(0.5)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0))
    assert to_dp_event(noise_multiplier=2.0, sampling_rate=0.1) == sampled
    repeated = to_dp_event(noise_multiplier=2.0, sampling_rate=0.1, num_steps=7)
    assert repeated == dp_accounting.SelfComposedDpEvent(sampled, 7)
    assert to_dp_event(budget=math.inf) == dp_accounting.NonPrivateDpEvent()
    with pytest.raises(BadInput, match="either a budget or a noise_multiplier"):
        to_dp_event()
    with pytest.raises(BadInput, match="use the method rdp"):
        composed_epsilon([(dp_accounting.ZCDpEvent(0.5), 1)], 1e-5)


# ---- mixed histories, which could take for ever -----------------------------------------------------------------

MIXED = [(1.5, 0.05, 40), (2.5, 0.1, 30)]


def by_another_accountant(sampled, budget, accountant):
    for noise, rate, steps in sampled:
        accountant.compose(to_dp_event(noise_multiplier=noise, sampling_rate=rate), steps)
    if budget:
        accountant.compose(to_dp_event(budget=budget))
    return accountant.get_epsilon(1e-5)


def grids_used(monkeypatch):
    """The grids on which anything was composed from now on."""
    used, compose = [], accounting.composed_epsilon
    monkeypatch.setattr(
        accounting, "composed_epsilon", lambda *given, grid: used.append(grid) or compose(*given, grid=grid)
    )
    return used


def test_the_same_steps_in_other_words_are_the_same_history():
    assert history_epsilon([(2.0, 1.0, 6)], 1e-5, budget=0.1) == approx(gaussian_epsilon(0.1 + 6 / 8, 1e-5))
    assert history_epsilon([], 1e-5, budget=0.5) == gaussian_epsilon(0.5, 1e-5)
    assert history_epsilon([(2.0, 0.1, 5), (2.0, 0.1, 25)], 1e-5) == history_epsilon([(2.0, 0.1, 30)], 1e-5)


def test_a_history_with_many_points_is_composed_on_a_coarser_grid_and_hardly_overstated(monkeypatch):
    fine = history_epsilon(MIXED, 1e-5, budget=0.05)
    for points in (3e3, 1e3):
        monkeypatch.setattr(accounting, "MOST_LOSS_POINTS", points)
        used = grids_used(monkeypatch)
        coarse = history_epsilon(MIXED, 1e-5, budget=0.05)
        assert used[0] > 10 * accounting.FINEST_GRID
        assert fine * (1 - 1e-9) <= coarse <= fine * 1.02


@pytest.mark.parametrize(("limit", "value"), [("MOST_LOSS_POINTS", 10), ("MOST_KINDS", 1)])
def test_a_history_too_large_to_compose_is_bounded_by_rdp(monkeypatch, limit, value):
    fine = history_epsilon(MIXED, 1e-5, budget=0.05)
    monkeypatch.setattr(accounting, limit, value)
    used = grids_used(monkeypatch)
    found = history_epsilon(MIXED, 1e-5, budget=0.05)
    assert used == []
    orders = [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]
    assert found == approx(by_another_accountant(MIXED, 0.05, rdp.RdpAccountant(orders=orders)))
    assert fine < found < 2 * fine


def test_many_kinds_that_hardly_differ_are_taken_together_and_hardly_overstated():
    many = [(2 + number / 1000, 0.01, 10) for number in range(100)]
    found = history_epsilon(many, 1e-5)
    tenths = [(2 + number / 100, 0.01, 100) for number in range(10)]  # the least noise of every ten
    assert history_epsilon([(2.1, 0.01, 1000)], 1e-5) < found <= history_epsilon(tenths, 1e-5) * 1.01
    assert found <= history_epsilon([(2.0, 0.01, 1000)], 1e-5)


def test_any_number_of_kinds_is_bounded():
    bound = history_epsilon([(1.1 + number / 50, 0.01, 10) for number in range(500)], 1e-5)
    assert bound < history_epsilon([(1.1, 0.01, 5000)], 1e-5)


def test_noise_too_small_or_steps_too_many_for_a_distribution_are_bounded(monkeypatch):
    used = grids_used(monkeypatch)
    for sampled, budget in (([(1e-3, 0.5, 10)], 1.0), ([(5.0, 0.01, 10**8)], 0.0), ([(1.0, 0.1, 5)], 1e9)):
        unsampled = budget + sum(steps / (2 * noise**2) for noise, _, steps in sampled)
        assert 0 < history_epsilon(sampled, 1e-5, budget=budget) <= gaussian_epsilon(unsampled, 1e-5)
    assert len(used) <= 1
    assert history_epsilon(MIXED, 1e-5, budget=math.inf) == math.inf


STRANGE = [0, -0.0, -1, math.nan, math.inf, -math.inf, 1e-300, 1e300, 5e-324, 1 - 1e-16, 0.5, "x", None, [], 1j]


def is_answered_or_refused(question, *arguments):
    try:
        return bool(np.all(np.asarray(question(*arguments)) >= 0))
    except BadInput as error:
        return "\n" not in str(error)


@pytest.mark.parametrize("method", ["exact", "rdp", "zcdp", "", None, 3])
def test_strange_budgets_and_deltas_are_answered_or_refused_in_one_line(method):
    for rho in STRANGE:
        for delta in STRANGE:
            assert is_answered_or_refused(epsilon, rho, delta, method)


@settings(max_examples=40)
@given(*[st.sampled_from([0, -1, math.nan, math.inf, 1e-300, 1e300, 0.3, 1e-5, 1, 2, 10**9, 10**12, "x", None])] * 4)
@example(1.0, 1e-5, 0.3, 10**12)
def test_strange_sampling_is_answered_or_refused_in_one_line(noise, delta, rate, steps):
    assert is_answered_or_refused(lambda: history_epsilon([(noise, rate, steps)], delta))
