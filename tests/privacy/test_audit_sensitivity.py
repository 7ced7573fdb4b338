"""The sensitivity audit catches the paper's clipped update, and lets every sound mechanism pass."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy import MECHANISMS, privacy_mechanism
from mppfl.privacy.audit import audit_sensitivity

SOUND = ("full_batch", "full_batch_steps", "dpsgd_shuffle", "client")
SMALL = {"num_examples": 200, "batch_size": 20, "local_epochs": 2}


def test_the_paper_with_five_local_epochs_fails():
    found = audit_sensitivity(privacy_mechanism("paper"), num_examples=300)
    assert found.verdict == "fail"
    assert found.claimed == approx(2 / 300)
    assert found.measured > 100 * found.claimed
    assert found.details["ratio"] == approx(found.measured / found.claimed)
    assert found.details["budget_multiplier"] == approx(found.details["ratio"] ** 2)
    assert "outlier x1000" in " ".join(found.details["between"])
    assert found.details["change_of_each"]["label flipped"] > found.claimed  # even an ordinary change


def test_the_papers_worst_case_is_never_passed():
    # The whole update is clipped to 𝒮, so no two can lie farther apart than 2𝒮 = n times the declared 2𝒮/n.
    found = audit_sensitivity(privacy_mechanism("paper"), **SMALL)
    nominal_to_real = privacy_mechanism("paper").worst_case_budget(1.0, work_of(SMALL))
    assert found.details["budget_multiplier"] <= nominal_to_real * (1 + 1e-9)


def work_of(options):
    from mppfl.privacy import LocalWork

    return LocalWork(options["num_examples"], options["local_epochs"], options["local_epochs"], options["batch_size"])


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_mechanism_passes(name, seed):
    found = audit_sensitivity(privacy_mechanism(name), **SMALL, seed=seed)
    assert found.verdict == "pass"
    assert found.measured <= found.claimed * (1 + 1e-9)
    assert found.details["budget_multiplier"] <= 1 + 1e-9


@pytest.mark.parametrize("name", ["full_batch", "full_batch_steps", "dpsgd_shuffle"])
def test_the_audit_is_sharp_where_a_gradient_can_be_turned_round(name):
    found = audit_sensitivity(privacy_mechanism(name), **SMALL)
    assert found.details["ratio"] > 0.9  # a sensitivity declared 10 % too small would be caught


@pytest.mark.parametrize(("name", "epochs"), [("dpsgd_shuffle", 1), ("dpsgd_shuffle", 3), ("full_batch_steps", 3)])
def test_a_record_touches_one_answer_per_epoch_or_step(name, epochs):
    found = audit_sensitivity(privacy_mechanism(name), **(SMALL | {"local_epochs": epochs}))
    assert found.details["answers_touched"] == found.details["answers_declared"] == epochs


def test_poisson_batches_pass_under_add_remove_and_say_what_is_not_measured():
    found = audit_sensitivity(privacy_mechanism("dpsgd_poisson"), **SMALL)
    assert (found.verdict, found.claimed) == ("pass", 1.0)
    assert "absent" in found.details["between"]
    assert "accountant" in found.details["meaning"]


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

    found = audit_sensitivity(Careless(), **SMALL)
    assert found.verdict == "fail"
    assert found.details["budget_multiplier"] == approx(4.0, rel=0.1)


def test_the_clip_norm_scales_what_a_step_can_tell():
    one = audit_sensitivity(privacy_mechanism("full_batch"), **SMALL, clip_norm=0.1)
    other = audit_sensitivity(privacy_mechanism("full_batch"), **SMALL, clip_norm=0.2)
    assert other.claimed == approx(2 * one.claimed)
    assert other.measured == approx(2 * one.measured, rel=1e-6)  # every gradient here is longer than both


def test_the_same_seed_gives_the_same_figures_and_the_global_generator_is_left_alone():
    import torch

    before = torch.get_rng_state()
    one, other = (audit_sensitivity(privacy_mechanism("paper"), **SMALL, seed=3) for _ in range(2))
    assert one == other
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_examples": 1},
        {"batch_size": 201},
        {"local_epochs": 0},
        {"clip_norm": 0.0},
        {"clip_norm": 1e-300},
        {"clip_norm": 1e300},
        {"learning_rate": math.nan},
        {"seed": -1},
    ],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        audit_sensitivity(privacy_mechanism("paper"), **(SMALL | wrong))


def test_a_training_that_overflows_says_so():
    with pytest.raises(BadInput, match="learning_rate=1e\\+200"):
        audit_sensitivity(privacy_mechanism("paper"), **SMALL, learning_rate=1e200)


def test_importing_the_audit_does_not_import_torch():
    script = "import sys; from mppfl.privacy.audit import audit_sensitivity; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
