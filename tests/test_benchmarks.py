"""The race against other simulators and the accuracy under ε: their bookkeeping and the form of their records.

Nothing is timed here.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pytest import approx

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "peers"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from torch_models import layers_of

import leaders
import peers
import private_accuracy
from mppfl.training import make_model


def a_run(cpu, wall, loss=1.0):
    return {
        "warm_up_seconds": 1.0, "wall_seconds": [wall], "cpu_seconds": cpu, "versions": {"python": "3"}, "note": "",
        "other_seconds": 1.0, "load_before": 0.0, "loss": loss,
    }  # fmt: skip


def a_result(plain_cpu=5.0, peer_loss=1.0, failure=None):
    """A race of two peers against an mppfl that takes 1 s."""
    race = replace(peers.RACES[0], peers=(peers.PLAIN, peers.FLOWER), turns=1)
    plain = peers.TrainingState(peers.PLAIN, [a_run(plain_cpu, 5.0)], [a_run(1.0, 1.0)])
    flower = peers.TrainingState(peers.FLOWER, [a_run(9.0, 9.0, peer_loss)], [a_run(1.0, 1.0)], failure)
    weights = {name: {"1.weight": np.zeros(3)} for name in ("mppfl", peers.PLAIN.name, peers.FLOWER.name)}
    return peers.summary(race, [plain, flower], weights, loss_before=2.3)


@pytest.mark.parametrize("model", ["mlp", "cnn_fmnist"])
def test_peers_train_the_model_that_mppfl_trains(model):
    ours = make_model(model, (1, 28, 28), 10)
    theirs = torch.nn.Sequential(*layers_of(model))
    theirs.load_state_dict(ours.state_dict())
    inputs = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(inputs), theirs(inputs))


def test_a_bar_is_reached_or_missed_by_the_median_ratio_to_the_run_just_before_or_not_measured():
    theirs, ours = [a_run(4.0, 8.0), a_run(9.0, 3.0)], [a_run(2.0, 2.0), a_run(3.0, 3.0)]
    assert peers.ratios(theirs, ours, "cpu") == approx([2.0, 3.0])
    assert peers.ratios(theirs, ours, "wall") == approx([4.0, 1.0])
    for result, reached in (
        (a_result(plain_cpu=5.0), [True, True]),
        (a_result(plain_cpu=3.9), [False, True]),
        (a_result(failure="exit code 1: no such module"), [True, None]),
    ):
        assert [bar["reached"] for bar in result["bars"]] == reached
        assert peers.is_well(result) == (reached == [True, True])
    assert "NOT MEASURED  exit code 1: no such module" in peers.table(result)


def test_a_peer_that_ends_at_another_loss_is_told_and_agreement_without_progress_says_nothing():
    result = a_result(peer_loss=1.0 + 2 * peers.LOSS_TOLERANCE)
    assert [row["agrees"] for row in result["rows"]] == [True, True, False]
    assert " NO " in peers.table(result)
    assert not peers.is_well(result)
    assert not peers.agrees([a_run(1, 1, loss=2.3)], reference=2.3, before=2.3)


def test_a_cell_of_private_accuracy_keeps_its_epsilon_takes_the_best_held_out_choice_and_is_made_once(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "record.json"
    order = ["--quick", "--only", "secure_sum, ε = 1", "--record", str(path)]
    private_accuracy.main(order)
    rows = json.loads(path.read_text())["results"]
    assert [(row["cell"], row["adjacency"]) for row in rows] == [
        ("record, secure_sum, ε = 1", "replace_one"),
        ("client, secure_sum, ε = 1", "replace_one"),
    ]
    for row in rows:
        best = max(row["held_out"], key=lambda trial: trial["accuracy"])
        assert best.items() - {"accuracy": best["accuracy"]}.items() <= row["chosen"].items()
        assert row["dp_epsilon_of_ledger"] == approx(1, rel=1e-6)
        assert row["dp_epsilon_of_ledger"] <= 1
    monkeypatch.setattr(private_accuracy, "measured", None)
    private_accuracy.main(order)  # all of it stands in the record
    assert capsys.readouterr().out.count("client, secure_sum, ε = 1") == 2


def test_leaders_choose_for_few_clients_and_all_mechanisms_are_compared_on_a_given_network(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "trust.txt").write_text("0 1\n1 2\n2 0\n2 3\n3 0\n")
    order = ["--most", "20", "--repeats", "1", "--filmtrust", str(tmp_path), "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["leaders.py", *order])
    leaders.main()
    record = json.loads(Path(capsys.readouterr().out.splitlines()[-1]).read_text())
    assert [row["mechanism"] for row in record["rows"]] == ["mppfl", "mppfl_exact", "mppfl_noise_aware"]
    assert all(row["leader_regret"] < 1e-12 * row["server_cost"] for row in record["rows"][1:])
    assert (record["comparison"]["clients"], len(record["comparison"]["mechanisms"])) == (4, 13)
