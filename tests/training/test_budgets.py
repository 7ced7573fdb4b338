"""From budgets to noise: the unit from a total ε, Poisson sampling, and the noise in what a round releases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy.stats import norm

from mppfl.data import client_data
from mppfl.errors import BadInput
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy import epsilon, gaussian_epsilon
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    budget_unit_for,
    delta_for_budgets,
    largest_budget,
    make_model,
    with_budget_unit,
)
from tests.tolerances import assert_of_std
from tests.training.trainings import WAYS, configured, pictures, plan_with, trained

METHOD_NAMES = st.sampled_from(["exact", "rdp", "zcdp"])


@settings(max_examples=50)
@given(st.floats(1e-6, 1e3), st.floats(1e-12, 0.1), METHOD_NAMES)
def test_the_largest_budget_keeps_epsilon_and_hardly_more_does_not(dp_epsilon, dp_delta, method):
    rho = largest_budget(dp_epsilon, dp_delta, method)
    assert epsilon(rho, dp_delta, method) <= dp_epsilon
    assert epsilon(rho * (1 + 1e-6), dp_delta, method) > dp_epsilon


@settings(max_examples=50)
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


def kept_epsilon(way, noise, **changed):
    """What a client's ε of 3 in all, chosen for the training, becomes by its end: in its record and in the ledger."""
    plan, model = plan_with([1.0, 0.3, 0.7], num_rounds=3), make_model("linear", (1, 8, 8), 4)
    asked = {**WAYS[way], "noise": noise, "total_epsilon": 3.0, "clip_norm": 0.3, "num_steps": 2, **changed}
    with PrivacyLedger.in_memory() as ledger:
        *_, last = trained(plan=plan, model=model, ledger=ledger, evaluate_every=3, **asked)
        protection = configured(**asked).protection
        ends = ledger.get_epsilon(["0", "1", "2"], protection.dp_delta, protection.accounting)
    return last.dp_epsilon, ends


REAL = {way: (["discrete"] if way.startswith("secure") else ["gaussian", "discrete"]) for way in WAYS}


@pytest.mark.parametrize(
    ("way", "noise"),
    [(way, noise) for way in WAYS if way not in ("nominal", "poisson") for noise in ("simulated", *REAL[way])],
)
def test_a_training_ends_at_its_total_epsilon_and_not_above(way, noise):
    # Where all can be used up by every sum, so can ε: weights follow the roots of the budgets.
    record, ledger = kept_epsilon(way, noise, dispersion=0.0)
    assert 3.0 * (1 - 1e-4) < max(ledger) <= 3.0
    assert np.argmax(ledger) == 0
    assert record == approx(max(ledger), rel=1e-9)


def test_poisson_batches_end_at_their_total_epsilon_and_not_above():
    data, model = pictures((40, 30, 50)), make_model("linear", (1, 8, 8), 4)
    asked = {**WAYS["poisson"], "total_epsilon": 3.0, "clip_norm": 0.3, "batch_size": 10}
    *_, last = trained([1.0, 0.3, 0.7], 3, data=data, model=model, **asked)
    assert 3.0 * 0.8 < last.dp_epsilon <= 3.0


def test_the_unit_that_keeps_epsilon_is_a_value_like_any_other():
    plan, config = plan_with([1.0, 0.3, 0.7]), configured(total_epsilon=3.0)
    found = with_budget_unit(config, plan, 256).protection
    assert found.total_epsilon is None
    assert epsilon(2 * found.budget_unit, 1e-5) == approx(3.0, rel=1e-6)
    given = configured(budget_unit=0.3)
    assert with_budget_unit(given, plan, 256) is given
    with pytest.raises(BadInput, match="total_epsilon=3 chooses the unit of budgets, and budget_unit=2 gives it"):
        configured(total_epsilon=3.0, budget_unit=2.0)


def test_noise_that_uses_up_delta_leaves_no_budget():
    config, plan = configured(**WAYS["client"], noise="discrete", clip_norm=1.0), plan_with([1.0], 60)
    assert delta_for_budgets(config, 30.0, 15_000_000, plan) < config.protection.dp_delta
    with pytest.raises(BadInput, match=r"dp_delta=1e-05 is used up by discrete noise on 15,000,000 parameters"):
        delta_for_budgets(config, 80.0, 15_000_000, plan)


def test_a_poisson_training_has_an_epsilon_and_no_part_in_zcdp_sums_and_caps():
    asked = {"data": pictures((40, 30, 50)), "ledger": PrivacyLedger.in_memory(), "clip_norm": 1.0, "batch_size": 10}
    trained([0.5] * 3, 1, run="before", **WAYS["client"], **asked)
    ledger = asked["ledger"]
    ledger.set_cap("2", 100.0, "record")  # in zCDP, which Poisson sampling cannot be held to
    first, last = trained([1.0, 0.0, 1.0], 2, run="then", **WAYS["poisson"], budget_unit=0.5, **asked)
    assert first.refused == last.refused == ("2",)
    assert math.isnan(first.dp_epsilon)  # known after the last round
    assert ledger.get_epsilon("0", 1e-5, "pld", unit="record") <= last.dp_epsilon  # an upper bound, however it is found
    # Two rounds of ρ = 0.5, beside what hid the whole client before, and so its records.
    assert last.dp_epsilon <= gaussian_epsilon(0.5 + 2 * 0.5, 1e-5)
    assert ledger.spent("0", "record") == ledger.spent("0", "client") == 0.5  # of the run before


CLIP, BUDGET, BATCH, EPOCHS, STEPS = 0.7, 0.8, 4, 2, 3
TINY = 1e-7  # a learning rate at which noise moves no later gradient: steps just add up
SIZES = (9, 5, 12)
DATA = pictures(SIZES, shape=(1, 32, 32), num_classes=40)
NUM_PARAMETERS = 40 * 1025

# The standard deviation in the whole update that PRIVACY.md, section 1, gives for a client with n examples.
BY_THE_BOOK = {
    "client": lambda n: CLIP * math.sqrt(2 / BUDGET),
    "gradient": lambda n: TINY * CLIP * math.sqrt(2 / BUDGET) / n,
    "steps": lambda n: TINY * CLIP * math.sqrt(2 * STEPS / BUDGET) / n * math.sqrt(STEPS),
    "shuffled": lambda n: (
        TINY * CLIP * math.sqrt(2 * EPOCHS / BUDGET) / BATCH * math.sqrt(EPOCHS * math.ceil(n / BATCH))
    ),
}


def one_round(budgets, way, num_rounds=1, model="softmax", data=DATA, **changed):
    asked = {
        **WAYS[way], "clip_norm": CLIP, "learning_rate": TINY, "batch_size": BATCH, "local_epochs": EPOCHS,
        "num_steps": STEPS, "precision": "float64", "aggregation": "num_examples", "seed": 6, **changed,
    }  # fmt: skip
    return trained(budgets, num_rounds, model=make_model(model, (1, 32, 32), 40), data=data, **asked)


def alone(client, budget=BUDGET):
    """Budgets with which one client alone participates: the model then moves by its upload."""
    return np.where(np.arange(3) == client, budget, 0.0)


def stated_noise(way, client, **changed):
    """The noise that the record of a client alone states, and that really is in its upload."""
    (noisy,), (quiet,) = (one_round(alone(client, budget), way, **changed) for budget in (BUDGET, np.inf))
    assert_of_std(noisy.weights - quiet.weights, noisy.noise_std[client])
    assert len(noisy.weights) == NUM_PARAMETERS
    assert quiet.noise_std[client] == 0
    return noisy.noise_std[client]


@pytest.mark.parametrize("way", BY_THE_BOOK)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_the_noise_in_an_upload_is_what_the_record_states_and_the_budget_buys(way, client):
    std = BY_THE_BOOK[way](SIZES[client])
    assert stated_noise(way, client) == approx(std, rel=1e-9)
    if way == "client":  # replaced by nothing it moves half as far as replaced by another
        assert stated_noise(way, client, adjacency="zero_out") == approx(std / 2, rel=1e-9)


@pytest.mark.parametrize("way", BY_THE_BOOK)
def test_the_noise_in_the_mean_is_that_of_independent_clients(way):
    (noisy,), (quiet,) = one_round([BUDGET] * 3, way), one_round([np.inf] * 3, way)
    assert_of_std(noisy.weights - quiet.weights, math.sqrt((noisy.theta**2 * noisy.noise_std**2).sum()))


@pytest.mark.parametrize("way", ["steps", "shuffled"])
def test_momentum_counts_the_noise_of_early_steps_more_than_once(way):
    assert stated_noise(way, 2, momentum=0.9) > 1.5 * BY_THE_BOOK[way](SIZES[2])


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
@pytest.mark.parametrize("way", ["client", "shuffled"])
def test_noise_that_protects_is_as_large_as_the_record_states(way, noise):
    assert stated_noise(way, 0, noise=noise) > BY_THE_BOOK[way](SIZES[0])  # rounding is paid for with noise


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
    assert np.abs(correlations[~np.eye(3, dtype=bool)]).max() <= norm.ppf(1 - 1e-8) / math.sqrt(drawn.shape[1])


@pytest.mark.parametrize("engine", ["loop", "dense"])
def test_poisson_sampled_steps_add_the_multiplier_times_the_clip_norm_over_the_batch_size(engine):
    ledger = PrivacyLedger.in_memory()
    (record,) = one_round(alone(2), "poisson", 1, "linear", blank(), ledger=ledger, learning_rate=0.1, engine=engine)
    (event,) = ledger.events()
    steps = EPOCHS * math.ceil(12 / BATCH)
    assert (event["sampling_rate"], event["num_steps"]) == (BATCH / 12, steps)
    of_a_step = event["noise_multiplier"] * CLIP / BATCH
    assert record.noise_std[2] == approx(0.1 * of_a_step * math.sqrt(steps))
    assert_of_std(record.weights, record.noise_std[2])
