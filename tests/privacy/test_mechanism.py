"""The named mechanisms: which noise a budget buys, and what it costs."""

import math

import dp_accounting
import pytest
from dp_accounting import rdp
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy import MECHANISMS, LocalWork, privacy_mechanism, require_budget

WORK = LocalWork(num_examples=50, local_epochs=4, num_steps=9, batch_size=10)
ZCDP = [name for name, found in MECHANISMS.items() if found.is_zcdp]


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [  # clip norm 3, ρ = 0.5, n = 50: 3·√(2/0.5) = 6
        ("paper", 6 / 50),
        ("full_batch", 6 / 50),
        ("full_batch_steps", 6 * 3 / 50),
        ("dpsgd_shuffle", 6 * 2),
        ("client", 6),
    ],
)
def test_noise_follows_the_table_of_mechanisms(name, by_hand):
    assert privacy_mechanism(name).noise_std(0.5, 3.0, WORK) == approx(by_hand)


def test_hiding_that_a_client_is_there_at_all_takes_half_the_noise_of_replacing_it():
    assert privacy_mechanism("client", "add-remove").noise_std(0.5, 3.0, WORK) == approx(3.0)  # 3/√(2·0.5)


@pytest.mark.parametrize("name", ZCDP)
@given(st.floats(1e-9, 1e9), st.floats(1e-3, 1e3))
def test_noise_costs_the_budget_it_was_bought_with(name, budget, clip_norm):
    mechanism = privacy_mechanism(name)
    multiplier = mechanism.noise_std(budget, clip_norm, WORK) / mechanism.sensitivity(clip_norm, WORK)
    assert mechanism.queries(WORK) / (2 * multiplier**2) == approx(budget)


def test_the_papers_budget_is_n_squared_times_larger_in_the_worst_case():
    assert privacy_mechanism("paper").worst_case_budget(0.5, WORK) == approx(0.5 * 50**2)
    for name in set(ZCDP) - {"paper"}:
        assert privacy_mechanism(name).worst_case_budget(0.5, WORK) == 0.5


@pytest.mark.parametrize("name", ZCDP)
def test_an_independent_accountant_finds_the_same_cost(name):  # second route: dp-accounting
    mechanism = privacy_mechanism(name)
    multiplier = mechanism.noise_std(0.3, 3.0, WORK) / mechanism.sensitivity(3.0, WORK)
    as_gaussians, as_budget = rdp.RdpAccountant(), rdp.RdpAccountant()
    as_gaussians.compose(dp_accounting.GaussianDpEvent(multiplier), mechanism.queries(WORK))
    as_budget.compose(dp_accounting.ZCDpEvent(0.3))
    assert as_gaussians.get_epsilon(1e-5) == approx(as_budget.get_epsilon(1e-5), rel=1e-9)


def test_poisson_sampled_noise_has_no_zcdp_budget():
    with pytest.raises(BadInput, match="calibrate it"):
        privacy_mechanism("dpsgd_poisson").noise_std(0.5, 1.0, WORK)


@pytest.mark.parametrize("budget", [0, -1, math.nan, -math.inf, 1e-300, 1e300, 5e-324, "much", None])
def test_a_budget_that_cannot_be_is_refused_with_its_value(budget):
    with pytest.raises(BadInput, match="budget="):
        require_budget(budget)


@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(ZCDP))
def test_every_budget_is_answered_or_refused(budget, name):
    try:
        std = privacy_mechanism(name).noise_std(budget, 1.0, WORK)
    except BadInput:
        return
    assert std > 0 if math.isfinite(budget) else std == 0


@pytest.mark.parametrize("clip_norm", [0, -1.0, math.nan, math.inf])
def test_a_clip_norm_that_cannot_be_is_refused(clip_norm):
    with pytest.raises(BadInput, match="clip_norm"):
        privacy_mechanism("client").noise_std(1.0, clip_norm, WORK)


def test_unknown_mechanisms_and_adjacencies_are_refused():
    with pytest.raises(BadInput, match="Known: paper"):
        privacy_mechanism("magic")
    with pytest.raises(BadInput, match="replace-one"):
        privacy_mechanism("full_batch", "add-remove")
