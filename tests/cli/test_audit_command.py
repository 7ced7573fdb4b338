"""mppfl audit: what a reader is told and the exit code; tests/contract has the numbers."""

from __future__ import annotations

import shlex

import pytest
from pytest import approx

from tests.experiment.small import small

SIMULATED = "mechanism --set protection.noise=simulated --dimension 400 --num-canaries 400"


@pytest.mark.parametrize(
    ("line", "labels", "words"),
    [
        ("sensitivity trial.toml --client 3", [], "sum client update, softmax in float32, client 3|pass: no change"),
        ("training trial.toml --num-coins 20", ["accuracy"], "2 rounds, |pass"),
        (SIMULATED, ["noise"], "local record gradient, simulated noise, noise multiplier 1|pass"),
        ("float --noise plain-float32", [], "fail: the last bits tell 0 from 1"),
        ("neighbour --graph path.csv --coupling 0.5 --budget 1", ["accuracy"], "4 clients|pass"),
    ],
)
def test_every_audit_says_what_was_audited_claimed_and_measured_and_its_verdict(
    mppfl, write, monkeypatch, tmp_path, line, labels, words
):
    monkeypatch.chdir(tmp_path)
    write("trial.toml", small(game={"num_rounds": 2}, protection={"trust": "secure_sum"}).to_toml())
    write("path.csv", "ann,bob", "bob,cat", "cat,dan")
    kind, *rest = shlex.split(line)
    answer = mppfl("audit", kind, *rest)
    failed = "fail" in words
    assert (answer.code, answer.stderr) == (int(failed), f"audit {kind} failed\n" * failed)
    shown = [row[:14].strip() for row in answer.stdout.splitlines()]
    assert shown == ["audit", "audited", "claimed", "measured", *labels, "verdict"]
    assert all(part in answer.stdout for part in words.split("|"))


def test_a_budget_and_its_noise_multiplier_say_the_same(mppfl):
    simulated = ("audit", *shlex.split(SIMULATED))
    budget, multiplier = (
        mppfl(*simulated, *option, "--json").json for option in (("--budget", 0.125), ("--noise-multiplier", 2))
    )
    assert budget == multiplier
    assert tuple(budget)[:5] == ("audit", "verdict", "claimed", "measured", "confidence")
    assert budget["budget"] == approx(0.125)
    poisson = (*simulated, "--set", "protection.release=steps", "--set", "protection.batches=poisson")
    assert "samples have no noise from a zCDP budget" in mppfl(*poisson, "--budget", 1).error
    assert mppfl(*poisson, "--noise-multiplier", 1, "--json").json["budget"] is None
