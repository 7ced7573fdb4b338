"""mppfl audit: verdicts, exit codes, and what is printed."""

from __future__ import annotations

import json

import pytest
from pytest import approx
from typer.main import get_command

from mppfl.cli import app
from mppfl.privacy import MECHANISMS, NOISE_KINDS, epsilon

SHARED = ("audit", "verdict", "claimed", "measured", "confidence")
FEW = ("--num-examples", 150, "--local-epochs", 2)
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
    assert choices_of("sensitivity", "mechanism") == choices_of("mechanism", "mechanism") == tuple(MECHANISMS)
    assert choices_of("mechanism", "noise") == NOISE_KINDS
    assert choices_of("float", "noise") == (*NOISE_KINDS, "plain-float32", "plain-float64")


def test_the_paper_fails_with_code_1_and_nothing_on_stderr_but_in_words(mppfl):
    result = object_of(mppfl("audit", "sensitivity", "--mechanism", "paper", *FEW, "--json"))
    assert (result["audit"], result["verdict"], result["confidence"]) == ("sensitivity", "fail", None)
    assert result["claimed"] == approx(2 / 150)
    assert result["budget_multiplier"] > 100
    assert result["worst_case_multiplier"] == 150**2

    answer = mppfl("audit", "sensitivity", "--mechanism", "paper", *FEW)
    assert (answer.code, answer.stderr) == (1, "audit sensitivity failed\n")
    assert labels_of(answer) == ["audit", "audited", "claimed", "measured", "worst case", "verdict"]
    assert "22,500    times every nominal budget" in answer.stdout
    assert "fail: one changed record moves the update" in answer.stdout


def test_the_seed_and_the_clip_norm_reach_the_audit(mppfl):
    first, second = (
        object_of(mppfl("audit", "sensitivity", *FEW, "--clip-norm", 0.5, "--seed", seed, "--json")) for seed in (1, 2)
    )
    assert first["claimed"] == second["claimed"] == approx(1 / 150)
    assert first["change_of_each"] != second["change_of_each"]


def test_a_budget_and_its_noise_multiplier_say_the_same_and_the_papers_is_told_nominal_and_worst_case(mppfl):
    seeded = ("audit", "mechanism", "--noise", "seeded", *QUICK)
    budget, multiplier = (
        object_of(mppfl(*seeded, *option, "--json")) for option in (("--budget", 0.125), ("--noise-multiplier", 2))
    )
    assert budget == multiplier
    assert budget["budget"] == budget["worst_case_budget"] == approx(0.125)
    paper = (*seeded, "--mechanism", "paper", "--num-examples", 10)
    result = object_of(mppfl(*paper, "--json"))
    assert (result["budget"], result["worst_case_budget"]) == (approx(0.5), approx(50))
    assert result["claimed"] == approx(4.3772, abs=1e-4)
    assert result["worst_case_epsilon"] == approx(epsilon(50.0, 1e-5))
    answer = mppfl(*paper)
    assert labels_of(answer) == ["audit", "audited", "claimed", "measured", "worst case", "noise", "verdict"]
    assert "for ρ = 50; the claim is for the nominal 0.5" in answer.stdout


def test_the_float_and_the_neighbour_audit_speak_in_words(mppfl, write):
    answer = mppfl("audit", "float", "--noise", "plain-float32")
    assert (answer.code, answer.stderr) == (1, "audit float failed\n")
    assert "fail: the last bits tell 0 from 1" in answer.stdout
    path = write("path.csv", "ann,bob", "bob,cat", "cat,dan")
    answer = mppfl("audit", "neighbour", "--graph", path, "--coupling", 0.5, "--budget", 1)
    assert (answer.code, answer.stderr) == (0, "")
    assert labels_of(answer) == ["audit", "audited", "claimed", "measured", "accuracy", "verdict"]
    assert "4 clients" in answer.stdout
