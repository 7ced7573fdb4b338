"""mppfl solve: the JSON contract, the numbers by hand, and what every option does."""

from __future__ import annotations

import subprocess

import pytest

approx = pytest.approx
HEADER = "name,quadratic_cost,linear_cost,noise_harm"


def test_names_of_any_alphabet_survive_a_terminal_that_knows_no_letters_but_ascii(mppfl_process, write):
    graph = write("edges.csv", "Zoë,Ωmega", "Ωmega,李", "李,Zoë")
    answer = mppfl_process("solve", "--graph", graph, "--rounds", 1, "--json", PYTHONIOENCODING="ascii")
    assert list(answer.json["rounds"][0]["budgets"]) == ["Zoë", "Ωmega", "李"]
    assert answer.stderr == ""
    assert mppfl_process("solve", "--graph", graph, PYTHONIOENCODING="ascii").code == 0


def test_a_reader_who_leaves_early_is_not_shouted_at(command):
    pipe = f"'{command}' solve --num-clients 300 --json --seed 1 | head -c 10"
    done = subprocess.run(pipe, shell=True, capture_output=True, timeout=300, check=True, text=True)
    assert (done.stdout, done.stderr) == ('{"num_clie', "")


def test_without_json_a_reader_gets_labelled_lines(mppfl, friends):
    lines = mppfl("solve", *friends, "--rounds", 8).stdout.splitlines()
    assert lines[0] == "network           2 clients, 2 edges, up to 1 hops, decay 0.5, αS = 0.5"
    assert lines[1] == "mechanism         mppfl, 8 rounds"
    assert lines[2].split() == ["round", "1", "round", "8"]
    (rates,) = (line.split() for line in lines if line.startswith("reward rate"))
    assert [float(rates[2]), float(rates[7])] == approx([3 * 0.2 ** (1 / 3), 3 * 0.025 ** (1 / 3)], rel=1e-3)
    assert "equilibrium proved unique; solved in" in lines[-1]
    one = mppfl("solve", *friends, "--rounds", 1).stdout.splitlines()
    assert (one[1], one[2].split()) == ("mechanism         mppfl, 1 round", ["round", "1"])


@pytest.mark.parametrize(
    ("mechanism", "divisor"),
    [
        # With s = 1.5 ρ and p = 3ρ, ρ = (1/(divisor · t))^(1/3) from each server's first-order condition:
        ("mppfl", 5),  # 1/(2tρ²) = ρ + r/2 = 2.5 ρ
        ("mppfl_exact", 6),  # the minimum of 1/(tρ) + 3ρ²
        ("mppfl_noise_aware", 6),  # τ N²/(t·2ρ) + (1 − τ) 2pρ = 1/(tρ) + 3ρ², the same
        ("pigouvian", 6),
        ("personalised", 6),
        ("mppfl_secure_sum", 12),  # X² = 4ρ: τ N²/(t·4ρ) + (1 − τ) 2pρ, the minimum of 1/(tρ) + 6ρ²
        ("personalised_secure_sum", 12),
        ("sarda_r", 9),  # the optimum at p has s = p/3, so p = 4.5 ρ: the minimum of 1/(tρ) + 4.5 ρ²
        ("social_agnostic", 4),  # expects s = ρ, so p = 2ρ: the minimum of 1/(tρ) + 2ρ²
        ("sarda_like", 4.5),  # 1/(tρ²) = 1.5 · 3ρ: the harm to both friends
    ],
)
def test_two_friends_share_what_each_mechanism_asks_by_hand(mppfl, friends, mechanism, divisor):
    rounds = mppfl("solve", *friends, "--rounds", 3, "--mechanism", mechanism, "--json").json["rounds"]
    for this in rounds:
        expected = (1 / (divisor * this["round_index"])) ** (1 / 3)
        assert this["budgets"] == approx({"ann": expected, "bob": expected}, rel=1e-6)


def test_a_gpu_that_is_not_there_is_one_line_before_anything_is_read(mppfl, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = mppfl("solve", "--graph", "nowhere.csv", "--device", "cuda").error
    assert error == "--device cuda, but PyTorch finds no GPU here. Use 'cpu', or leave it out."
