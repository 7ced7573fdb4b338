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
    train_rounds,
)
from tests.training.trainings import pictures, plan_with

METHOD_NAMES = st.sampled_from(["exact", "rdp", "zcdp"])


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-6, 1e3), st.floats(1e-12, 0.1), METHOD_NAMES)
def test_the_largest_budget_keeps_epsilon_and_hardly_more_does_not(dp_epsilon, dp_delta, method):
    rho = largest_budget(dp_epsilon, dp_delta, method)
    assert epsilon(rho, dp_delta, method) <= dp_epsilon
    assert epsilon(rho * (1 + 1e-6), dp_delta, method) > dp_epsilon


@pytest.mark.parametrize("dp_epsilon", [1.0, 3.0, 8.0])
def test_the_largest_budget_agrees_with_an_independent_accountant(dp_epsilon):
    from dp_accounting import get_epsilon_gaussian

    rho = largest_budget(dp_epsilon, 1e-5)
    assert get_epsilon_gaussian(1 / math.sqrt(2 * rho), 1e-5) == approx(dp_epsilon, rel=1e-6)


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
        each = [unit * row[client] for row in rows]
        assert max(epsilon(sum(each), 1e-5, method), epsilon(sum(reversed(each)), 1e-5, method)) <= dp_epsilon


def test_infinite_budgets_and_empty_plans_have_no_unit():
    with pytest.raises(BadInput, match=r"dp_epsilon=3 cannot be kept by 'by hand', whose budgets are infinite"):
        budget_unit_for(plan_with([1.0, np.inf]), 3.0, 1e-5)
    with pytest.raises(BadInput, match="nobody participates"):
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
        *_, last = train_rounds(model, data, plan, config, ledger=ledger)
        ends = ledger.get_epsilon(list(data.names), config.dp_delta, epsilon_method(config))
    assert 3.0 * (1 - 1e-4) < max(ends) <= 3.0
    assert np.argmax(ends) == 0
    assert last.dp_epsilon <= 3.0


def test_noise_that_uses_up_delta_leaves_no_budget():
    config = TrainingConfig(privacy="client", noise="discrete", clip_norm=1.0)
    assert delta_for_budgets(config, 30.0, 15_000_000, 60) < config.dp_delta
    with pytest.raises(BadInput, match=r"dp_delta=1e-05 is used up by discrete noise on 15,000,000 parameters"):
        delta_for_budgets(config, 80.0, 15_000_000, 60)


WORK = LocalWork(num_examples=600, local_epochs=2, batch_size=32)


@pytest.mark.parametrize(("budget", "work"), [(0.003, WORK), (7.3, WORK), (0.5, LocalWork(20, 3, 1, 20))])
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


def test_the_ledger_knows_the_epsilon_of_a_poisson_training_and_adds_nothing_to_the_zcdp_sum():
    data, ledger = pictures((40, 30, 50)), PrivacyLedger.in_memory()
    config = TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0, batch_size=10, local_epochs=1, budget_unit=0.5)
    model = make_model("softmax", data.input_shape, 4)
    first, last = train_rounds(model, data, plan_with([1.0, 0.0, 1.0]), config, ledger=ledger)
    assert math.isnan(first.dp_epsilon)  # found after the last round
    assert ledger.get_epsilon("0", 1e-5, "pld") <= last.dp_epsilon  # an upper bound, however it is found
    assert last.dp_epsilon <= gaussian_epsilon(2 * 0.5, 1e-5)  # two rounds of ρ = 0.5
    np.testing.assert_array_equal(ledger.spent(["0", "2"]), 0.0)


def test_a_client_with_a_cap_in_zcdp_takes_no_part_in_poisson_sampling():
    data, ledger = pictures((40, 30, 50)), PrivacyLedger.in_memory()
    ledger.set_cap("2", 100.0, "record")
    config = TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0, batch_size=10, local_epochs=1)
    model = make_model("softmax", data.input_shape, 4)
    (record,) = train_rounds(model, data, plan_with([0.5] * 3, 1), config, ledger=ledger)
    assert record.refused == ("2",)


def test_a_poisson_training_ends_well_in_a_ledger_that_holds_client_level_releases_too():
    data, ledger = pictures((40, 30, 50)), PrivacyLedger.in_memory()
    model = make_model("softmax", data.input_shape, 4)
    config = TrainingConfig(privacy="client", clip_norm=1.0, batch_size=10, local_epochs=1)
    list(train_rounds(model, data, plan_with([0.5] * 3, 1), config, ledger=ledger, run="first"))
    config = TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0, batch_size=10, local_epochs=1)
    (record,) = train_rounds(model, data, plan_with([0.5] * 3, 1), config, ledger=ledger, run="then")
    assert record.dp_epsilon > 0


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
    config = TrainingConfig(
        **{
            "privacy": privacy, "clip_norm": CLIP, "learning_rate": TINY, "batch_size": BATCH, "local_epochs": EPOCHS,
            "num_steps": STEPS, "precision": "float64", "aggregation": "num_examples", "seed": 6, **changed,
        }
    )  # fmt: skip
    module = make_model(model, data.input_shape, data.num_classes)
    return list(train_rounds(module, data, plan_with(budgets, num_rounds), config))


def alone(client, budget=BUDGET):
    """Budgets with which one client alone participates: the model then moves by its upload."""
    return np.where(np.arange(3) == client, budget, 0.0)


def assert_of_std(noise, std):
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(noise))
    assert low <= (noise / std) @ (noise / std) <= high
    assert abs(noise.mean()) <= norm.ppf(1 - FALSE_ALARM / 2) * std / math.sqrt(len(noise))


@pytest.mark.parametrize("privacy", BY_THE_BOOK)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_the_noise_in_an_upload_is_what_the_record_states_and_the_budget_buys(privacy, client):
    (noisy,), (quiet,) = one_round(alone(client), privacy), one_round(alone(client, np.inf), privacy)
    std = noisy.noise_std[client]
    assert_of_std(noisy.weights - quiet.weights, std)
    assert std == approx(BY_THE_BOOK[privacy](SIZES[client]), rel=1e-9)
    assert len(noisy.weights) == NUM_PARAMETERS
    assert quiet.noise_std[client] == 0


@pytest.mark.parametrize("privacy", BY_THE_BOOK)
def test_the_noise_in_the_mean_is_that_of_independent_clients(privacy):
    (noisy,), (quiet,) = one_round([BUDGET] * 3, privacy), one_round([np.inf] * 3, privacy)
    assert_of_std(noisy.weights - quiet.weights, math.sqrt((noisy.theta**2 * noisy.noise_std**2).sum()))


@pytest.mark.parametrize("privacy", ["full_batch_steps", "dpsgd_shuffle"])
def test_momentum_counts_the_noise_of_early_steps_more_than_once(privacy):
    (noisy,) = one_round(alone(2), privacy, momentum=0.9)
    (quiet,) = one_round(alone(2, np.inf), privacy, momentum=0.9)
    assert_of_std(noisy.weights - quiet.weights, noisy.noise_std[2])
    (plain,) = one_round(alone(2), privacy)
    assert noisy.noise_std[2] > 1.5 * plain.noise_std[2]


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("privacy", ["client", "dpsgd_shuffle"])
def test_noise_that_protects_is_as_large_as_the_record_states(privacy, noise):
    (noisy,) = one_round(alone(0), privacy, noise=noise)
    (quiet,) = one_round(alone(0, np.inf), privacy)
    assert_of_std(noisy.weights - quiet.weights, noisy.noise_std[0])
    assert noisy.noise_std[0] > BY_THE_BOOK[privacy](SIZES[0])  # rounding is paid for with noise


@pytest.mark.parametrize("privacy", ["client", "dpsgd_shuffle"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_every_engine_adds_the_noise_that_the_record_states(privacy, engine):
    (noisy,) = one_round(alone(1), privacy, engine=engine)
    (quiet,) = one_round(alone(1, np.inf), privacy, engine=engine)
    assert_of_std(noisy.weights - quiet.weights, noisy.noise_std[1])


def test_adding_or_removing_a_client_takes_half_the_noise_of_replacing_one():
    (noisy,) = one_round(alone(0), "client", adjacency="add-remove")
    (quiet,) = one_round(alone(0, np.inf), "client")
    assert_of_std(noisy.weights - quiet.weights, noisy.noise_std[0])
    assert noisy.noise_std[0] == approx(CLIP / math.sqrt(2 * BUDGET))


def blank():
    """Pictures without a pixel: a linear model without bias has no gradient on them, so an update is its noise."""
    zeros = np.zeros_like(DATA.features)
    return client_data(zeros, DATA.labels, DATA.members, DATA.test_features, DATA.test_labels, num_classes=40)


def test_noise_is_fresh_for_every_round_and_client():
    data = blank()
    first, second = (record.weights for record in one_round(alone(0), "client", 2, "linear", data))
    (other,) = one_round(alone(1), "client", 1, "linear", data)
    drawn = np.array([first, second - first, other.weights])
    found = np.corrcoef(drawn)
    assert np.abs(found[~np.eye(3, dtype=bool)]).max() <= norm.ppf(1 - FALSE_ALARM) / math.sqrt(drawn.shape[1])


@pytest.mark.parametrize("engine", ["loop", "dense"])
def test_poisson_sampled_steps_add_the_multiplier_times_the_clip_norm_over_the_batch_size(engine):
    data, ledger = blank(), PrivacyLedger.in_memory()
    config = TrainingConfig(
        privacy="dpsgd_poisson", clip_norm=CLIP, learning_rate=0.1, batch_size=BATCH, local_epochs=EPOCHS,
        engine=engine, precision="float64",
    )  # fmt: skip
    model = make_model("linear", data.input_shape, 40)
    (record,) = train_rounds(model, data, plan_with(alone(2), 1), config, ledger=ledger)
    (event,) = ledger.events()
    steps = EPOCHS * math.ceil(12 / BATCH)
    assert (event["sampling_rate"], event["num_steps"]) == (BATCH / 12, steps)
    of_a_step = event["noise_multiplier"] * CLIP / BATCH
    assert record.noise_std[2] == approx(0.1 * of_a_step * math.sqrt(steps))
    assert_of_std(record.weights, record.noise_std[2])
