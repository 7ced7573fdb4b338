"""From budgets to noise: the unit from a total ε, Poisson sampling, and the noise in what a round releases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy.stats import chi2, norm

from mppfl.data import client_data
from mppfl.errors import BadInput
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy import LocalWork, epsilon, gaussian_epsilon, history_epsilon
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    TrainingConfig,
    budget_unit_for,
    delta_for_budgets,
    epsilon_method,
    largest_budget,
    make_model,
    poisson_multiplier,
)
from tests.training.trainings import pictures, plan_with, trained

METHOD_NAMES = st.sampled_from(["exact", "rdp", "zcdp"])


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-6, 1e3), st.floats(1e-12, 0.1), METHOD_NAMES)
def test_the_largest_budget_keeps_epsilon_and_hardly_more_does_not(dp_epsilon, dp_delta, method):
    rho = largest_budget(dp_epsilon, dp_delta, method)
    assert epsilon(rho, dp_delta, method) <= dp_epsilon
    assert epsilon(rho * (1 + 1e-6), dp_delta, method) > dp_epsilon


def test_the_unit_is_set_by_the_client_who_gives_most_over_all_rounds():
    # Sums over rounds: 3, 4 and 0.5, so 4 units of the game are all that ε allows.
    plan = plan_from_rounds(
        "by hand",
        [RoundTerms(1, 1.0, 1.0, np.array([3.0, 1.0, 0.5])), RoundTerms(2, 1.0, 1.0, np.array([-1.0, 3.0, 0.0]))],
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
    plan = plan_from_rounds("by hand", [RoundTerms(t + 1, 1.0, 1.0, np.array(row)) for t, row in enumerate(rows)])
    unit = budget_unit_for(plan, dp_epsilon, 1e-5, method)
    for client in (0, 1):
        spent = [unit * row[client] for row in rows]
        assert max(epsilon(sum(spent), 1e-5, method), epsilon(sum(reversed(spent)), 1e-5, method)) <= dp_epsilon


def test_infinite_budgets_and_empty_plans_have_no_unit():
    with pytest.raises(BadInput, match=r"dp_epsilon=3 cannot be kept by 'by hand', whose budgets are infinite"):
        budget_unit_for(plan_with([1.0, np.inf]), 3.0, 1e-5)
    with pytest.raises(BadInput, match="nobody participates"):
        budget_unit_for(plan_with([0.0, 0.0]), 3.0, 1e-5)
    with pytest.raises(BadInput, match=r"dp_epsilon=0 must lie in \[1e-06, 1000\]"):
        budget_unit_for(plan_with([1.0]), 0.0, 1e-5)


@pytest.mark.parametrize("noise", ["seeded", "gaussian", "discrete"])
def test_the_ledger_of_a_training_ends_at_epsilon_and_not_above(noise):
    plan, model = plan_with([1.0, 0.3, 0.7], num_rounds=3), make_model("linear", (1, 8, 8), 4)
    asked = {"privacy": "full_batch_steps", "num_steps": 2, "clip_norm": 0.3, "noise": noise}
    config = TrainingConfig(**asked)
    delta = delta_for_budgets(config, 3.0, 4 * 64, len(plan))
    assert delta == approx(config.dp_delta, rel=1e-12)
    unit = budget_unit_for(plan, 3.0, delta, epsilon_method(config))
    with PrivacyLedger.in_memory() as ledger:
        *_, last = trained(plan=plan, model=model, ledger=ledger, budget_unit=unit, evaluate_every=3, **asked)
        ends = ledger.get_epsilon(["0", "1", "2"], config.dp_delta, epsilon_method(config))
    assert 3.0 * (1 - 1e-4) < max(ends) <= 3.0
    assert np.argmax(ends) == 0
    assert last.dp_epsilon <= 3.0


def test_noise_that_uses_up_delta_leaves_no_budget():
    config = TrainingConfig(privacy="client", noise="discrete", clip_norm=1.0)
    assert delta_for_budgets(config, 30.0, 15_000_000, 60) < config.dp_delta
    with pytest.raises(BadInput, match=r"dp_delta=1e-05 is used up by discrete noise on 15,000,000 parameters"):
        delta_for_budgets(config, 80.0, 15_000_000, 60)


WORK = LocalWork(num_examples=600, local_epochs=2, batch_size=32)


FEW_STEPS = LocalWork(239, 1, 1, 120)  # with a large budget: sampling by half hides nothing that the bound can tell


@pytest.mark.parametrize(
    ("budget", "work"), [(0.003, WORK), (7.3, WORK), (0.5, LocalWork(20, 3, 1, 20)), (50.0, FEW_STEPS)]
)
def test_a_round_costs_no_more_than_the_budget_it_was_calibrated_for(budget, work):
    multiplier = poisson_multiplier(budget, 1e-5, work)
    allowed = gaussian_epsilon(budget, 1e-5)
    assert history_epsilon([(multiplier, work.sampling_rate, work.num_batches)], 1e-5) <= allowed
    # and the noise is not absurd: half of it would cost more than the budget
    assert history_epsilon([(multiplier / 2, work.sampling_rate, work.num_batches)], 1e-5) > allowed


@pytest.mark.parametrize(
    ("budget", "match"),
    [(math.inf, "no noiseless form"), (0.0, "above 0"), (-1.0, "above 0"), (math.nan, "above 0"), (1e9, "budget_unit")],
)
def test_a_budget_without_a_calibration_is_refused(budget, match):
    with pytest.raises(BadInput, match=match):
        poisson_multiplier(budget, 1e-5, WORK)


def test_a_poisson_training_has_an_epsilon_and_no_part_in_zcdp_sums_and_caps_nor_in_releases_per_client():
    asked = {"data": pictures((40, 30, 50)), "ledger": PrivacyLedger.in_memory(), "clip_norm": 1.0, "batch_size": 10}
    trained([0.5] * 3, 1, run="before", privacy="client", **asked)
    ledger = asked["ledger"]
    ledger.set_cap("2", 100.0, "record")  # in zCDP, which Poisson sampling cannot be held to
    first, last = trained([1.0, 0.0, 1.0], 2, run="then", privacy="dpsgd_poisson", budget_unit=0.5, **asked)
    assert first.refused == last.refused == ("2",)
    assert math.isnan(first.dp_epsilon)  # known after the last round
    assert ledger.get_epsilon("0", 1e-5, "pld", unit="record") <= last.dp_epsilon  # an upper bound, however it is found
    assert last.dp_epsilon <= gaussian_epsilon(2 * 0.5, 1e-5)  # two rounds of ρ = 0.5
    assert ledger.spent("0", "record") == 0.0


FALSE_ALARM = 1e-8  # of each comparison; some fifty of them
CLIP, BUDGET, BATCH, EPOCHS, STEPS = 0.7, 0.8, 4, 2, 3
TINY = 1e-7  # a learning rate at which noise moves no later gradient: steps just add up
SIZES = (9, 5, 12)
DATA = pictures(SIZES, shape=(1, 32, 32), num_classes=40)
NUM_PARAMETERS = 40 * 1025

# The standard deviation in the whole update that PRIVACY.md, section 1, gives for a client with n examples.
BY_THE_BOOK = {
    "paper": lambda n: CLIP * math.sqrt(2 / BUDGET) / n,
    "client": lambda n: CLIP * math.sqrt(2 / BUDGET),
    "full_batch": lambda n: TINY * CLIP * math.sqrt(2 / BUDGET) / n,
    "full_batch_steps": lambda n: TINY * CLIP * math.sqrt(2 * STEPS / BUDGET) / n * math.sqrt(STEPS),
    "dpsgd_shuffle": lambda n: (
        TINY * CLIP * math.sqrt(2 * EPOCHS / BUDGET) / BATCH * math.sqrt(EPOCHS * math.ceil(n / BATCH))
    ),
}


def one_round(budgets, privacy, num_rounds=1, model="softmax", data=DATA, **changed):
    asked = {
        "privacy": privacy, "clip_norm": CLIP, "learning_rate": TINY, "batch_size": BATCH, "local_epochs": EPOCHS,
        "num_steps": STEPS, "precision": "float64", "aggregation": "num_examples", "seed": 6, **changed,
    }  # fmt: skip
    return trained(budgets, num_rounds, model=make_model(model, (1, 32, 32), 40), data=data, **asked)


def alone(client, budget=BUDGET):
    """Budgets with which one client alone participates: the model then moves by its upload."""
    return np.where(np.arange(3) == client, budget, 0.0)


def assert_of_std(noise, std):
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(noise))
    assert low <= (noise / std) @ (noise / std) <= high
    assert abs(noise.mean()) <= norm.ppf(1 - FALSE_ALARM / 2) * std / math.sqrt(len(noise))


def stated_noise(privacy, client, **changed):
    """The noise that the record of a client alone states, and that really is in its upload."""
    (noisy,), (quiet,) = (one_round(alone(client, budget), privacy, **changed) for budget in (BUDGET, np.inf))
    assert_of_std(noisy.weights - quiet.weights, noisy.noise_std[client])
    assert len(noisy.weights) == NUM_PARAMETERS
    assert quiet.noise_std[client] == 0
    return noisy.noise_std[client]


@pytest.mark.parametrize("privacy", BY_THE_BOOK)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_the_noise_in_an_upload_is_what_the_record_states_and_the_budget_buys(privacy, client):
    assert stated_noise(privacy, client) == approx(BY_THE_BOOK[privacy](SIZES[client]), rel=1e-9)


@pytest.mark.parametrize("privacy", ["client", "dpsgd_shuffle"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_every_engine_adds_the_noise_that_the_record_states(privacy, engine):
    assert stated_noise(privacy, 1, engine=engine) == approx(BY_THE_BOOK[privacy](SIZES[1]), rel=1e-9)


@pytest.mark.parametrize("privacy", BY_THE_BOOK)
def test_the_noise_in_the_mean_is_that_of_independent_clients(privacy):
    (noisy,), (quiet,) = one_round([BUDGET] * 3, privacy), one_round([np.inf] * 3, privacy)
    assert_of_std(noisy.weights - quiet.weights, math.sqrt((noisy.theta**2 * noisy.noise_std**2).sum()))


@pytest.mark.parametrize("privacy", ["full_batch_steps", "dpsgd_shuffle"])
def test_momentum_counts_the_noise_of_early_steps_more_than_once(privacy):
    assert stated_noise(privacy, 2, momentum=0.9) > 1.5 * BY_THE_BOOK[privacy](SIZES[2])


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("privacy", ["client", "dpsgd_shuffle"])
def test_noise_that_protects_is_as_large_as_the_record_states(privacy, noise):
    assert stated_noise(privacy, 0, noise=noise) > BY_THE_BOOK[privacy](SIZES[0])  # rounding is paid for with noise


def test_adding_or_removing_a_client_takes_half_the_noise_of_replacing_one():
    assert stated_noise("client", 0, adjacency="add-remove") == approx(CLIP / math.sqrt(2 * BUDGET))


def blank():
    """Pictures without a pixel: a linear model without bias has no gradient on them, so an update is its noise."""
    zeros = np.zeros_like(DATA.features)
    return client_data(zeros, DATA.labels, DATA.members, DATA.test_features, DATA.test_labels, num_classes=40)


def test_noise_is_fresh_for_every_round_and_client():
    data = blank()
    first, second = (record.weights for record in one_round(alone(0), "client", 2, "linear", data))
    (other,) = one_round(alone(1), "client", 1, "linear", data)
    drawn = np.array([first, second - first, other.weights])
    correlations = np.corrcoef(drawn)
    assert np.abs(correlations[~np.eye(3, dtype=bool)]).max() <= norm.ppf(1 - FALSE_ALARM) / math.sqrt(drawn.shape[1])


@pytest.mark.parametrize("engine", ["loop", "dense"])
def test_poisson_sampled_steps_add_the_multiplier_times_the_clip_norm_over_the_batch_size(engine):
    ledger = PrivacyLedger.in_memory()
    (record,) = one_round(
        alone(2), "dpsgd_poisson", 1, "linear", blank(), ledger=ledger, learning_rate=0.1, engine=engine
    )
    (event,) = ledger.events()
    steps = EPOCHS * math.ceil(12 / BATCH)
    assert (event["sampling_rate"], event["num_steps"]) == (BATCH / 12, steps)
    of_a_step = event["noise_multiplier"] * CLIP / BATCH
    assert record.noise_std[2] == approx(0.1 * of_a_step * math.sqrt(steps))
    assert_of_std(record.weights, record.noise_std[2])
