"""mppfl audit: verdicts, exit codes, and what is printed."""

from __future__ import annotations

import json

import pytest
from pytest import approx
from typer.main import get_command

from mppfl.cli import app
from mppfl.privacy import NOISE_KINDS
from tests.experiment.small import small
from tests.privacy.test_audit import everywhere, quiet

SHARED = ("audit", "verdict", "claimed", "measured", "confidence")
QUICK = ("--dimension", 400, "--num-canaries", 400)


def object_of(answer):
    """The one JSON object of an audit, whether it passed or failed."""
    assert answer.stderr == ""
    assert answer.stdout.count("\n") == 1
    result = json.loads(answer.stdout, parse_constant=pytest.fail)
    assert tuple(result)[: len(SHARED)] == SHARED
    assert answer.code == (0 if result["verdict"] == "pass" else 1)
    return result


def choices_of(command, option):
    (parameter,) = (p for p in get_command(app).commands["audit"].commands[command].params if p.name == option)
    return tuple(parameter.type.choices)


def labels_of(answer):
    return [line[:14].strip() for line in answer.stdout.splitlines()]


def test_the_commands_offer_what_the_library_has():
    assert choices_of("float", "noise") == (*NOISE_KINDS, "plain-float32", "plain-float64")


@pytest.fixture
def trial(write):
    """A training of a second, whose server sees sums alone."""
    return write("trial.toml", small(game={"num_rounds": 2}, protection={"trust": "secure_sum"}).to_toml())


def test_the_sensitivity_of_an_experiment_is_audited_in_words_and_numbers(mppfl, trial):
    line = ("audit", "sensitivity", trial, "--client", "3")
    result = object_of(mppfl(*line, "--json"))
    assert (result["audit"], result["verdict"], result["confidence"]) == ("sensitivity", "pass", None)
    assert (result["claimed"], result["client"], result["protection"]) == (2.0, "3", "secure sum client update")
    assert result["ratio_in_sum"] <= 1
    answer = mppfl(*line)
    assert (answer.code, answer.stderr) == (0, "")
    assert labels_of(answer) == ["audit", "audited", "claimed", "measured", "verdict"]
    assert "secure sum client update, softmax in float32, client 3 with" in answer.stdout
    assert "pass: no change moved it farther than declared" in answer.stdout


def test_values_of_the_experiment_and_the_seed_reach_the_audit(mppfl, trial):
    changes = ("--set", "protection.unit=record", "--set", "protection.release=gradient", "--set")
    line = ("audit", "sensitivity", trial, *changes, "protection.clip_norm=0.5", "--json", "--seed")
    first, second = (object_of(mppfl(*line, seed)) for seed in (1, 2))
    assert first["claimed"] == second["claimed"] == approx(1 / first["num_examples"])
    assert first["measured"] != second["measured"]


def test_without_clipping_the_audit_fails_with_code_1_and_one_line(mppfl, trial, monkeypatch):
    everywhere(monkeypatch, "clip_factors", lambda norms, *_: norms.double() ** 0)
    line = ("audit", "sensitivity", trial, "--set", "protection={}")
    assert object_of(mppfl(*line, "--json"))["budget_ratio"] > 4
    answer = mppfl(*line)
    assert (answer.code, answer.stderr) == (1, "audit sensitivity failed\n")
    assert "fail: one changed record moves it" in answer.stdout


def test_a_whole_training_is_audited_and_fails_without_its_noise(mppfl, trial, monkeypatch):
    changes = ['training={model="mlp",hidden=[256],learning_rate=3.0}', "protection={total_epsilon=0.5,clip_norm=3}"]
    values = [part for change in (*changes, "game.num_rounds=150") for part in ("--set", change)]
    line = ("audit", "training", trial, *values)
    answer = mppfl(*line)
    assert (answer.code, answer.stderr) == (0, "")
    assert labels_of(answer) == ["audit", "audited", "claimed", "measured", "accuracy", "verdict"]
    assert "150 rounds, 200 coins" in answer.stdout
    everywhere(monkeypatch, "add_noise", lambda values, std, kind, rng=None, out=None: quiet(values, out))
    result = object_of(mppfl(*line, "--json"))
    assert result["verdict"] == "fail"
    assert result["measured"] > 1 > result["claimed"] == approx(0.5, rel=0.01)


def test_a_budget_and_its_noise_multiplier_say_the_same(mppfl, trial):
    simulated = ("audit", "mechanism", "--set", 'protection.noise="simulated"', *QUICK)
    budget, multiplier = (
        object_of(mppfl(*simulated, *option, "--json")) for option in (("--budget", 0.125), ("--noise-multiplier", 2))
    )
    assert budget == multiplier
    assert budget["budget"] == approx(0.125)
    answer = mppfl(*simulated)
    assert labels_of(answer) == ["audit", "audited", "claimed", "measured", "noise", "verdict"]
    assert "local record gradient, simulated noise, noise multiplier 1" in answer.stdout
    poisson = ("audit", "mechanism", "--set", 'protection={release="steps",batches="poisson"}', *QUICK)
    assert "samples have no noise from a zCDP budget" in mppfl(*poisson, "--budget", 1).error
    assert object_of(mppfl(*poisson, "--noise-multiplier", 1, "--json"))["budget"] is None


def test_the_float_and_the_neighbour_audit_speak_in_words(mppfl, write):
    answer = mppfl("audit", "float", "--noise", "plain-float32")
    assert (answer.code, answer.stderr) == (1, "audit float failed\n")
    assert "fail: the last bits tell 0 from 1" in answer.stdout
    path = write("path.csv", "ann,bob", "bob,cat", "cat,dan")
    answer = mppfl("audit", "neighbour", "--graph", path, "--coupling", 0.5, "--budget", 1)
    assert (answer.code, answer.stderr) == (0, "")
    assert labels_of(answer) == ["audit", "audited", "claimed", "measured", "accuracy", "verdict"]
    assert "4 clients" in answer.stdout
