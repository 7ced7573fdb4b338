"""The named mechanisms: which noise a budget buys, and what it costs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy import MECHANISMS, LocalWork, privacy_mechanism, require_budget

WORK = LocalWork(num_examples=50, local_epochs=4, num_steps=9, batch_size=10)
ZCDP = [name for name, mechanism in MECHANISMS.items() if mechanism.is_zcdp]


@pytest.mark.parametrize("name", ZCDP)
@given(st.floats(1e-9, 1e9), st.floats(1e-3, 1e3))
def test_noise_costs_the_budget_it_was_bought_with(name, budget, clip_norm):
    mechanism = privacy_mechanism(name)
    multiplier = mechanism.noise_std(budget, clip_norm, WORK) / mechanism.sensitivity(clip_norm, WORK)
    assert mechanism.queries(WORK) / (2 * multiplier**2) == approx(budget)


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
