"""Audits: sensitivity by neighbouring data, ε by canaries, last bits. Sound mechanisms pass, others are found out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy import MECHANISMS, LocalWork, add_noise, privacy_mechanism
from mppfl.privacy.audit import audit_float, audit_mechanism, audit_sensitivity, clip_and_noise
from tests.homes import home

noise_module = home(add_noise)


# ---- sensitivity: the paper's clipped update is caught -----------------------------------------------------------

SMALL = {"num_examples": 200, "batch_size": 20, "local_epochs": 2}


def test_the_papers_worst_case_is_never_passed_and_the_seed_decides_the_figures():
    # The whole update is clipped to 𝒮, so no two can lie farther apart than 2𝒮 = n times the declared 2𝒮/n.
    before = torch.get_rng_state()
    audit, again = (audit_sensitivity(privacy_mechanism("paper"), **SMALL, seed=3) for _ in range(2))
    nominal_to_real = privacy_mechanism("paper").worst_case_budget(1.0, LocalWork(200, 2, 2, 20))
    assert audit.details["budget_multiplier"] <= nominal_to_real * (1 + 1e-9)
    assert audit == again
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["full_batch", "full_batch_steps", "dpsgd_shuffle", "client"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_mechanism_passes_and_the_audit_is_sharp_where_a_gradient_can_be_turned_round(name, seed):
    audit = audit_sensitivity(privacy_mechanism(name), **SMALL, seed=seed)
    assert audit.verdict == "pass"
    assert audit.measured <= audit.claimed * (1 + 1e-9)
    assert audit.details["budget_multiplier"] <= 1 + 1e-9
    assert name == "client" or audit.details["ratio"] > 0.9  # a sensitivity declared 10 % too small would be caught


@pytest.mark.parametrize(("name", "epochs"), [("dpsgd_shuffle", 1), ("dpsgd_shuffle", 3), ("full_batch_steps", 3)])
def test_a_record_touches_one_answer_per_epoch_or_step(name, epochs):
    audit = audit_sensitivity(privacy_mechanism(name), **(SMALL | {"local_epochs": epochs}))
    assert audit.details["answers_touched"] == audit.details["answers_declared"] == epochs


def test_poisson_batches_pass_under_add_remove_and_say_what_is_not_measured():
    audit = audit_sensitivity(privacy_mechanism("dpsgd_poisson"), **SMALL)
    assert (audit.verdict, audit.claimed) == ("pass", 1.0)
    assert "absent" in audit.details["between"]
    assert "accountant" in audit.details["meaning"]


def test_a_client_may_replace_everything_or_be_absent():
    replaced = audit_sensitivity(privacy_mechanism("client"), **SMALL)
    absent = audit_sensitivity(privacy_mechanism("client", "add-remove"), **SMALL)
    assert (replaced.claimed, absent.claimed) == (2.0, 1.0)
    assert replaced.verdict == absent.verdict == "pass"
    assert "every label flipped" in replaced.details["change_of_each"]
    assert absent.measured == approx(1.0)  # an outlier fills the ball


def test_a_declared_sensitivity_that_is_too_small_is_caught():
    class Careless:
        """full_batch, which says that its answers move half as far as they do."""

        def __getattr__(self, name):
            return getattr(MECHANISMS["full_batch"], name)

        def sensitivity(self, clip_norm, work):
            return MECHANISMS["full_batch"].sensitivity(clip_norm, work) / 2

    audit = audit_sensitivity(Careless(), **SMALL)
    assert audit.verdict == "fail"
    assert audit.details["budget_multiplier"] == approx(4.0, rel=0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_examples", 1), ("batch_size", 201), ("local_epochs", 0), ("clip_norm", 0.0), ("clip_norm", 1e-300),
        ("clip_norm", 1e300), ("learning_rate", math.nan), ("seed", -1),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(name, value):
    with pytest.raises(BadInput, match=name):
        audit_sensitivity(privacy_mechanism("paper"), **(SMALL | {name: value}))


def test_a_training_that_overflows_says_so():
    with pytest.raises(BadInput, match="learning_rate=1e\\+200"):
        audit_sensitivity(privacy_mechanism("paper"), **SMALL, learning_rate=1e200)


# ---- canaries: the ε that a mechanism has, and less noise than it says --------------------------------------------

WORK = LocalWork(num_examples=100, local_epochs=3, num_steps=2)
TRUE_EPSILON = 4.3772  # noise multiplier 1, δ = 1e-5


def with_canaries(seed, mechanism="dpsgd_poisson", noise="seeded", **changed):
    asked = {"dimension": 2000, "num_canaries": 2000, "work": WORK} | changed
    return audit_mechanism(mechanism, noise_multiplier=1.0, noise=noise, rng=np.random.default_rng(seed), **asked)


def with_noise_times(factor, seed, mechanism=MECHANISMS["dpsgd_poisson"]):
    """Sound code, but for the size of its noise."""
    return clip_and_noise(mechanism, factor, 1.0, WORK, "seeded", np.random.default_rng(seed))


def test_the_lower_bound_is_close_to_the_truth_and_rarely_above_it():
    bounds = np.array([with_canaries(seed).measured for seed in range(40)])
    assert ((bounds >= 3.8) & (bounds <= TRUE_EPSILON)).mean() >= 0.9


@pytest.mark.parametrize("mechanism", [MECHANISMS["dpsgd_poisson"], privacy_mechanism("client", "add-remove")])
def test_half_the_declared_noise_is_caught_every_time(mechanism):
    for seed in range(5):
        answer = with_noise_times(0.5, seed, mechanism)
        audit = with_canaries(seed, mechanism, answer=answer, num_canaries=500)
        assert audit.verdict == "fail"
        assert audit.measured > TRUE_EPSILON
        assert audit.details["variance_p_value"] < 1e-9


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "paper"])
@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_every_sound_mechanism_passes_through_the_real_code(name, noise):
    # A 99.9999 % bound; with the χ² test at 1e-3 a run fails once in a thousand, so two of two once in a million.
    runs = (with_canaries(seed, name, noise, confidence=1 - 1e-6, num_canaries=500).verdict for seed in (1, 2))
    assert "pass" in runs


def test_the_papers_noise_code_without_clipping_or_noise_and_more_noise_than_declared_are_caught():
    rng = np.random.default_rng(1)
    paper = with_canaries(1, "paper", "gaussian", num_canaries=100)
    unclipped = with_canaries(1, answer=lambda rows: rows.sum(axis=0) + rng.standard_normal(rows.shape[1]))
    silent = with_canaries(1, answer=lambda rows: rows.sum(axis=0), num_canaries=100)
    loud = with_canaries(1, answer=with_noise_times(2.0, 1))
    assert [audit.verdict for audit in (paper, unclipped, silent, loud)] == ["fail"] * 4
    assert paper.measured > 1000
    assert unclipped.details["variance_p_value"] > 1e-6  # noise as declared; the canaries show too strongly
    assert loud.measured < 2


def test_an_answer_of_the_wrong_shape_is_refused():
    with pytest.raises(BadInput, match="shape"):
        with_canaries(1, answer=lambda rows: rows[:, :5])


# ---- last bits: noise that gives the value away, and noise on a grid ----------------------------------------------


@pytest.mark.parametrize("noise", ["plain-float32", "plain-float64", "seeded"])
def test_noise_added_in_floating_point_gives_the_value_away(noise):
    audit = audit_float(noise, trials=50_000)
    assert audit.verdict == "fail"
    assert audit.measured > 0.2  # δ of 0.26 at any ε, as measured in the literature and here
    precision = noise.removeprefix("plain-") if "plain" in noise else "float64"
    assert audit.details["events"][precision]["off_grid_at_1"] == 0


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_noise_on_a_grid_does_not_unless_it_tells_the_sign_of_zero(noise, monkeypatch):
    audit = audit_float(noise, trials=50_000)
    assert (audit.verdict, audit.measured, audit.confidence) == ("pass", 0, 0.999)
    monkeypatch.setattr(noise_module, "whole_numbers", lambda values, grid: np.rint(values.astype(float) / grid))
    audit = audit_float(noise, trials=50_000)
    assert audit.verdict == "fail"
    assert audit.measured > 0.02  # half of the tenth of all noise that is 0, less what 50,000 trials leave open
    assert audit.details["events"]["float64"]["minus_zero_at_0"] == 0


def test_unknown_noise_is_refused():
    with pytest.raises(BadInput, match="Known: seeded"):
        audit_float("loud")
