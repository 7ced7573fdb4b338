"""The unit of budgets from an ε for the whole training: as large as can be, and never above."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from mppfl.errors import BadInput
from mppfl.game import Terms, plan_of_rounds
from mppfl.privacy import epsilon
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    TrainingConfig,
    budget_unit_for,
    delta_for_budgets,
    epsilon_method,
    largest_budget,
    make_model,
    training_rounds,
)
from tests.training.trainings import pictures, plan_with

METHOD_NAMES = st.sampled_from(["exact", "rdp", "zcdp"])


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-6, 1e3), st.floats(1e-12, 0.1), METHOD_NAMES)
def test_the_largest_budget_keeps_epsilon_and_hardly_more_does_not(dp_epsilon, dp_delta, method):
    rho = largest_budget(dp_epsilon, dp_delta, method)
    assert epsilon(rho, dp_delta, method) <= dp_epsilon
    assert epsilon(rho * (1 + 1e-6), dp_delta, method) > dp_epsilon


@pytest.mark.parametrize(("dp_epsilon", "method"), [(4.3772, "exact"), (4.7284, "rdp"), (5.2985, "zcdp")])
def test_half_a_unit_of_budget_is_found_from_its_epsilon(dp_epsilon, method):
    assert largest_budget(dp_epsilon, 1e-5, method) == approx(0.5, rel=1e-4)


@pytest.mark.parametrize("dp_epsilon", [1.0, 3.0, 8.0])
def test_the_largest_budget_agrees_with_an_independent_accountant(dp_epsilon):
    from dp_accounting import get_epsilon_gaussian

    rho = largest_budget(dp_epsilon, 1e-5)
    assert get_epsilon_gaussian(1 / math.sqrt(2 * rho), 1e-5) == approx(dp_epsilon, rel=1e-6)


def test_the_unit_is_set_by_the_client_who_gives_most_over_all_rounds():
    # Sums over rounds: 3, 4 and 0.5, so 4 units of the game are all that ε allows.
    plan = plan_of_rounds(
        "by hand", [Terms(1, 1.0, 1.0, np.array([3.0, 1.0, 0.5])), Terms(2, 1.0, 1.0, np.array([-1.0, 3.0, 0.0]))]
    )
    assert budget_unit_for(plan, 3.0, 1e-5) == approx(largest_budget(3.0, 1e-5) / 4, rel=1e-8)


@settings(deadline=None, max_examples=50)
@given(
    st.floats(0.01, 50.0),
    METHOD_NAMES,
    st.lists(st.lists(st.floats(0.0, 9.0), min_size=2, max_size=2), min_size=1, max_size=40),
)
def test_nobody_ends_above_epsilon_however_the_rounds_are_added_up(dp_epsilon, method, rows):
    rows = [*rows, [1.0, 0.1]]
    plan = plan_of_rounds("by hand", [Terms(t + 1, 1.0, 1.0, np.array(row)) for t, row in enumerate(rows)])
    unit = budget_unit_for(plan, dp_epsilon, 1e-5, method)
    for client in (0, 1):
        each = [unit * row[client] for row in rows]
        assert max(epsilon(sum(each), 1e-5, method), epsilon(sum(reversed(each)), 1e-5, method)) <= dp_epsilon


def test_infinite_budgets_and_empty_plans_have_no_unit():
    with pytest.raises(BadInput, match=r"dp_epsilon=3 cannot be kept by 'by hand', whose budgets are infinite"):
        budget_unit_for(plan_with([1.0, np.inf]), 3.0, 1e-5)
    with pytest.raises(BadInput, match="nobody takes part"):
        budget_unit_for(plan_with([0.0, 0.0]), 3.0, 1e-5)
    with pytest.raises(BadInput, match=r"dp_epsilon=0 must lie in \[1e-06, 1000\]"):
        budget_unit_for(plan_with([1.0]), 0.0, 1e-5)


@pytest.mark.parametrize("noise", ["seeded", "gaussian", "discrete"])
def test_the_ledger_of_a_training_ends_at_epsilon_and_not_above(noise):
    data, plan = pictures(), plan_with([1.0, 0.3, 0.7], num_rounds=3)
    model = make_model("linear", data.input_shape, data.num_classes)
    config = TrainingConfig(privacy="full_batch_steps", num_steps=2, clip_norm=0.3, noise=noise)
    delta = delta_for_budgets(config, 3.0, 4 * 64, len(plan))
    assert delta == approx(config.dp_delta, rel=1e-12)
    unit = budget_unit_for(plan, 3.0, delta, epsilon_method(config))
    config = TrainingConfig(
        privacy="full_batch_steps", num_steps=2, clip_norm=0.3, noise=noise, budget_unit=unit, evaluate_every=3
    )
    with PrivacyLedger.in_memory() as ledger:
        *_, last = training_rounds(model, data, plan, config, ledger=ledger)
        ends = ledger.get_epsilon(list(data.names), config.dp_delta, epsilon_method(config))
    assert 3.0 * (1 - 1e-4) < max(ends) <= 3.0
    assert np.argmax(ends) == 0
    assert last.dp_epsilon <= 3.0


def test_noise_that_uses_up_delta_leaves_no_budget():
    config = TrainingConfig(privacy="client", noise="discrete", clip_norm=1.0)
    assert delta_for_budgets(config, 30.0, 15_000_000, 60) < config.dp_delta
    with pytest.raises(BadInput, match=r"dp_delta=1e-05 is used up by discrete noise on 15,000,000 parameters"):
        delta_for_budgets(config, 80.0, 15_000_000, 60)
