"""Whose a run is: a training is never taken for another of the same name, and its own rounds are charged once."""

from __future__ import annotations

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import TrainingConfig, train_rounds
from tests.privacy.test_ledger import cost
from tests.privacy.test_ledger_files import edited
from tests.training.trainings import pictures, plan_with, softmax_on

DATA, PLAN = pictures(), plan_with((0.5, 0.0, 2.0), 3)


@pytest.fixture
def ledger(tmp_path):
    with PrivacyLedger.open(tmp_path / "ledger.db") as opened:
        yield opened


def rounds(ledger, plan=PLAN, data=DATA, run="training", unit="record", noise="simulated", **changed):
    protection = {"unit": unit, "noise": noise, "clip_norm": 0.5}
    config = TrainingConfig(batch_size=4, protection=protection, **{"learning_rate": 0.1, **changed})
    return train_rounds(softmax_on(DATA), data, plan, config, ledger=ledger, run=run)


@pytest.mark.parametrize("noise", ["simulated", "gaussian"])
@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2},
        {"learning_rate": 0.3},
        {"unit": "client"},
        {"plan": plan_with((0.5, 0.0, 2.0), 4)},
        {"data": pictures((20, 20, 19))},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_training_under_the_name_of_a_run_is_refused_before_anything_is_paid(ledger, other, noise):
    list(rounds(ledger, noise=noise))
    before = ledger.head
    with pytest.raises(BadInput, match=r"^run='training' is another training in .*Use another run name") as refused:
        next(rounds(ledger, noise=noise, **other))
    assert "\n" not in str(refused.value)
    assert (len(ledger), ledger.head) == (6, before)
    if "unit" not in other:
        list(rounds(ledger, noise=noise, run="another", **other))
        assert ledger.spent("0") == pytest.approx(1.5 + 0.5 * len(other.get("plan", PLAN)))
    ledger.verify()


def test_a_training_that_is_started_again_is_charged_once(ledger):
    first = list(rounds(ledger))
    again = list(rounds(ledger, engine="loop", evaluate_every=3))  # neither decides what is released
    np.testing.assert_allclose(first[-1].weights, again[-1].weights, atol=1e-6)
    assert (len(ledger), ledger.spent("0")) == (6, 1.5)


def test_of_two_trainings_that_start_at_once_under_one_name_one_is_refused(ledger, tmp_path):
    with PrivacyLedger.open(tmp_path / "ledger.db") as another:
        one, other = rounds(ledger), rounds(another, seed=2)
        ledger.set_cap(["0", "2"], 0.1, "record")
        assert next(one).refused == ("0", "2")  # it has begun, and released nothing yet
        ledger.set_cap(["0", "2"], 9.0, "record")
        assert next(other).refused == ()
        with pytest.raises(BadInput, match="is another training"):
            next(one)
        assert another.spent("0") == 0.5


def test_a_training_that_was_refused_leaves_the_name_of_its_run_to_the_next(ledger):
    ledger.set_cap(["0", "2"], 0.1, "record")
    assert next(rounds(ledger)).refused == ("0", "2")
    ledger.set_cap(["0", "2"], 9.0, "record")
    list(rounds(ledger, seed=2))
    assert ledger.spent("0") == 1.5


def test_releases_that_no_training_is_noted_for_are_not_taken_for_its_own(ledger):
    ledger.reserve("training", 1, [cost("0")])
    with pytest.raises(BadInput, match=r"has releases in .*, and no training is noted that made them"):
        next(rounds(ledger))
    with pytest.raises(BadInput, match="no training is noted"):
        ledger.reserve_each("training", 2, [cost("0")], training="key")
    assert len(ledger) == 1


def test_the_training_of_a_run_is_part_of_the_chain(ledger, tmp_path):
    list(rounds(ledger))
    edited(tmp_path / "ledger.db", "UPDATE changes SET detail = 'another' WHERE kind = 'run'")
    with pytest.raises(BadInput, match="does not follow from what came before"):
        ledger.verify()


def test_a_run_without_a_noted_training_is_taken_up_only_where_its_rounds_are_paid_again(ledger):
    ledger.reserve("run", 1, [cost("ann")])
    with pytest.raises(BadInput, match="no training is noted"):
        ledger.require_run("run", "key", taken_up=False)
    ledger.require_run("run", "key", taken_up=True)
    assert ledger.reserve_each("run", 1, [cost("ann")], training="key").reserved == ()
    with pytest.raises(BadInput, match="is another training"):
        ledger.reserve_each("run", 2, [cost("ann")], training="another")
    ledger.verify()
