"""Canaries find the ε that a mechanism has, and a mechanism that has less noise than it says."""

import dp_accounting
import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy import MECHANISMS, LocalWork, privacy_mechanism
from mppfl.privacy.audit import (
    audit_mechanism,
    clip_and_noise,
    epsilon_of_gaussian,
)

WORK = LocalWork(num_examples=100, local_epochs=3, num_steps=2)
TRUE_EPSILON = 4.3772  # noise multiplier 1, δ = 1e-5


def sound(seed, mechanism="dpsgd_poisson", noise="seeded", **changed):
    asked = {"dimension": 2000, "num_canaries": 2000, "work": WORK} | changed
    return audit_mechanism(mechanism, noise_multiplier=1.0, noise=noise, rng=np.random.default_rng(seed), **asked)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 2.0, 4.0])
def test_epsilon_of_gaussian_noise_agrees_with_an_independent_accountant(multiplier):  # second route
    expected = dp_accounting.get_epsilon_gaussian(multiplier, 1e-5)
    assert epsilon_of_gaussian(multiplier, 1e-5) == approx(expected, rel=1e-6)


def test_the_lower_bound_is_close_to_the_truth_and_rarely_above_it():
    bounds = np.array([sound(seed).measured for seed in range(40)])
    assert ((bounds >= 3.8) & (bounds <= TRUE_EPSILON)).mean() >= 0.9


@pytest.mark.parametrize("mechanism", ["dpsgd_poisson", privacy_mechanism("client", "add-remove")])
def test_half_the_declared_noise_is_caught_every_time(mechanism):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        answer = clip_and_noise(
            privacy_mechanism(mechanism) if isinstance(mechanism, str) else mechanism, 0.5, 1.0, WORK, "seeded", rng
        )
        found = sound(seed, mechanism, answer=answer, num_canaries=500)
        assert found.verdict == "fail"
        assert found.measured > TRUE_EPSILON
        assert found.details["variance_p_value"] < 1e-9


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "paper"])
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_every_sound_mechanism_passes_through_the_real_code(name, noise):
    # A 99.9999 % bound; with the χ² test at 1e-3 a run fails once in a thousand, so two of two once in a million.
    runs = (sound(seed, name, noise, confidence=1 - 1e-6, num_canaries=500).verdict for seed in (1, 2))
    assert "pass" in runs


def test_the_papers_noise_on_a_whole_update_is_caught():
    found = sound(1, "paper", "gaussian", num_canaries=100)
    assert found.verdict == "fail"
    assert found.measured > 1000


def test_code_that_does_not_clip_is_caught():
    rng = np.random.default_rng(1)
    found = sound(1, "dpsgd_poisson", answer=lambda rows: rows.sum(axis=0) + rng.standard_normal(rows.shape[1]))
    assert found.verdict == "fail"
    assert found.details["variance_p_value"] > 1e-6  # its noise is as declared; the canaries show too strongly


def test_code_that_adds_no_noise_is_caught():
    assert sound(1, answer=lambda rows: rows.sum(axis=0), num_canaries=100).verdict == "fail"


def test_more_noise_than_declared_is_reported_too():
    rng = np.random.default_rng(1)
    answer = clip_and_noise(MECHANISMS["dpsgd_poisson"], 2.0, 1.0, WORK, "seeded", rng)
    found = sound(1, answer=answer)
    assert (found.verdict, found.measured < 2) == ("fail", True)


def test_an_answer_of_the_wrong_shape_is_refused():
    with pytest.raises(BadInput, match="shape"):
        sound(1, answer=lambda rows: rows[:, :5])
