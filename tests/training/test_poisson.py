"""The noise that a budget buys under Poisson sampling costs no more than the budget."""

import math
from itertools import pairwise

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, gaussian_epsilon, history_epsilon
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import TrainingConfig, make_model, poisson_multiplier, training_rounds
from tests.training.trainings import pictures, plan_with

WORK = LocalWork(num_examples=600, local_epochs=2, batch_size=32)


@pytest.mark.parametrize(("budget", "work"), [(0.003, WORK), (7.3, WORK), (0.5, LocalWork(20, 3, 1, 20))])
def test_a_round_costs_no_more_than_the_budget_it_was_calibrated_for(budget, work):
    multiplier = poisson_multiplier(budget, 1e-5, work)
    allowed = gaussian_epsilon(budget, 1e-5)
    assert history_epsilon([(multiplier, work.sampling_rate, work.num_batches)], 1e-5) <= allowed
    # and the noise is not absurd: half of it would cost more than the budget
    assert history_epsilon([(multiplier / 2, work.sampling_rate, work.num_batches)], 1e-5) > allowed


def test_more_budget_buys_less_noise():
    found = [poisson_multiplier(budget, 1e-5, WORK) for budget in (0.003, 0.5, 0.55, 7.3)]
    assert all(more >= less for more, less in pairwise(found))
    assert found[0] > 3 * found[-1]


def test_sampling_saves_noise_and_further_steps_cost_noise():
    at_once = LocalWork(600, 1, 1, 600)
    assert poisson_multiplier(0.5, 1e-5, LocalWork(600, 1, 1, 32)) < poisson_multiplier(0.5, 1e-5, WORK)
    # Without sampling one step is plain Gaussian noise, 1/√(2ρ), up to rounding the budget down by at most 2^(1/4).
    least = 1 / math.sqrt(2 * 0.5)
    assert least <= poisson_multiplier(0.5, 1e-5, at_once) <= least * 2**0.125 * 1.1


@pytest.mark.parametrize(
    ("budget", "match"),
    [(math.inf, "no noiseless form"), (0.0, "above 0"), (-1.0, "above 0"), (math.nan, "above 0"), (1e9, "budget_unit")],
)
def test_a_budget_without_a_calibration_is_refused(budget, match):
    with pytest.raises(BadInput, match=match):
        poisson_multiplier(budget, 1e-5, WORK)


def test_the_ledger_knows_the_epsilon_of_a_poisson_training_and_adds_nothing_to_the_zcdp_sum():
    data, ledger = pictures((40, 30, 50)), PrivacyLedger.in_memory()
    config = TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0, batch_size=10, local_epochs=1, budget_unit=0.5)
    model = make_model("softmax", data.input_shape, 4)
    first, last = training_rounds(model, data, plan_with([1.0, 0.0, 1.0]), config, ledger=ledger)
    assert math.isnan(first.dp_epsilon)  # found after the last round
    assert ledger.get_epsilon("0", 1e-5, "pld") <= last.dp_epsilon  # an upper bound, however it is found
    assert last.dp_epsilon <= gaussian_epsilon(2 * 0.5, 1e-5)  # two rounds of ρ = 0.5
    np.testing.assert_array_equal(ledger.spent(["0", "2"]), 0.0)


def test_a_client_with_a_cap_in_zcdp_takes_no_part_in_poisson_sampling():
    data, ledger = pictures((40, 30, 50)), PrivacyLedger.in_memory()
    ledger.set_cap("2", 100.0, "record")
    config = TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0, batch_size=10, local_epochs=1)
    model = make_model("softmax", data.input_shape, 4)
    (record,) = training_rounds(model, data, plan_with([0.5] * 3, 1), config, ledger=ledger)
    assert record.refused == ("2",)


def test_a_poisson_training_ends_well_in_a_ledger_that_holds_client_level_releases_too():
    data, ledger = pictures((40, 30, 50)), PrivacyLedger.in_memory()
    model = make_model("softmax", data.input_shape, 4)
    config = TrainingConfig(privacy="client", clip_norm=1.0, batch_size=10, local_epochs=1)
    list(training_rounds(model, data, plan_with([0.5] * 3, 1), config, ledger=ledger, run="first"))
    config = TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0, batch_size=10, local_epochs=1)
    (record,) = training_rounds(model, data, plan_with([0.5] * 3, 1), config, ledger=ledger, run="then")
    assert record.dp_epsilon > 0
