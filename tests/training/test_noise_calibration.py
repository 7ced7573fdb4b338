"""The noise in what a real round releases is the noise its record states, and the noise that the budget buys."""

import math

import numpy as np
import pytest
from pytest import approx
from scipy.stats import chi2, norm

from mppfl.data import client_data
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import TrainingConfig, make_model, training_rounds
from tests.training.trainings import pictures, plan_with

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
            "num_steps": STEPS, "precision": "float64", "aggregation": "size", "seed": 6, **changed,
        }
    )  # fmt: skip
    module = make_model(model, data.input_shape, data.num_classes)
    return list(training_rounds(module, data, plan_with(budgets, num_rounds), config))


def alone(client, budget=BUDGET):
    """Budgets with which one client alone takes part: the model then moves by its upload."""
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
    (record,) = training_rounds(model, data, plan_with(alone(2), 1), config, ledger=ledger)
    (event,) = ledger.events()
    steps = EPOCHS * math.ceil(12 / BATCH)
    assert (event["sampling_rate"], event["num_steps"]) == (BATCH / 12, steps)
    of_a_step = event["noise_multiplier"] * CLIP / BATCH
    assert record.noise_std[2] == approx(0.1 * of_a_step * math.sqrt(steps))
    assert_of_std(record.weights, record.noise_std[2])
