"""The server's check of uploads: an honest client passes but with the stated chance, others do not."""

import numpy as np
import pytest
from scipy import stats

from mppfl.flower import HonestUpload, fault_of, honest_upload, work_of
from mppfl.privacy import Protection, release_updates, round_cost
from mppfl.training import TrainingConfig, noise_in_update


def cost_of(config, budget, num_parameters):
    work = work_of(config, config.protection, 40)
    return work, round_cost(config.protection, budget, work, num_parameters, "ann", 1, "run")


CLIENT = TrainingConfig(protection=Protection(unit="client", noise="gaussian"))


@pytest.mark.parametrize("num_parameters", [1, 2, 17, 650, 40_000])
@pytest.mark.parametrize("length_over_noise", [0.0, 0.3, 5.0, 80.0])
def test_the_bound_is_above_the_exact_quantile_and_not_far_above(num_parameters, length_over_noise):
    # Second route: the quantile of the noncentral χ² from scipy.
    rate = 1e-6
    bound = HonestUpload(length_over_noise, 1.0, 0.0, adapts=False).longest(num_parameters, rate)
    exact = np.sqrt(stats.ncx2.isf(rate, num_parameters, length_over_noise**2 + 1e-12))
    assert exact <= bound <= 1.25 * exact + 1


def test_honest_uploads_at_full_length_pass_at_the_stated_rate():
    # 4,000 uploads at a rate of 1 %: an exact test would reject 40; the bound rejects fewer. P(more than 80) < 1e-8.
    work, cost = cost_of(CLIENT, 0.5, 30)
    honest = honest_upload(CLIENT, work, cost, 30)
    update = np.full(30, 1.0)  # longer than the clip norm: it leaves at full length
    faults = 0
    for _ in range(4_000):
        sent = release_updates(update, [0.5], CLIENT.protection, work=work, round_index=1, run="run").updates
        faults += bool(fault_of(sent, honest, 0.01))
    assert faults <= 80


@pytest.mark.parametrize(
    ("update", "noise", "fault"),
    [
        ([0.6, 0.8], 0.0, ""),  # without noise the clip norm itself is the bound
        ([0.6, 0.801], 0.0, "measures 1"),
        *(([1.0, odd], 1.0, "1 entries") for odd in (np.nan, np.inf, -np.inf)),
        ([1e300, 1e300], 1.0, "measures 1.4"),  # numbers whose squares overflow are measured
    ],
)
def test_an_upload_that_cannot_be_honest_is_named_with_its_fault(update, noise, fault):
    dtype = np.float64 if noise else np.float32
    message = fault_of(np.array(update, dtype=dtype), HonestUpload(1.0, noise, 0.0, adapts=False))
    assert fault in message
    assert bool(message) == bool(fault)


@pytest.mark.parametrize(
    "protection",
    [
        Protection(noise="gaussian"),
        Protection(release="steps", noise="gaussian"),
        Protection(release="steps", batches="shuffled", noise="gaussian"),
    ],
    ids=lambda protection: protection.name,
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_in_gradients_is_found_again_in_the_update(protection, momentum):
    # Steps of pure noise: the spread of the sum must be what noise_in_update says. 20,000 draws, 5 standard errors.
    config = TrainingConfig(protection=protection, learning_rate=0.3, momentum=momentum, num_steps=4, batch_size=8,
                            local_epochs=2)  # fmt: skip
    work, cost = cost_of(config, 0.5, 10)
    steps = {"gradient": 1, "steps": 4}[protection.release] if protection.batches == "whole" else work.num_batches
    divisor = work.batch_size if protection.batches == "shuffled" else 1
    rng = np.random.default_rng(1)
    total, velocity = np.zeros(20_000), np.zeros(20_000)
    for _ in range(steps):
        velocity = momentum * velocity + rng.normal(0, cost.noise_std, 20_000) / divisor
        total -= 0.3 * velocity
    assert total.std() == pytest.approx(noise_in_update(config, work, cost), rel=5 / np.sqrt(2 * 20_000))
