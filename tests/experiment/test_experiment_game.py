"""The game of an experiment, with and without its data: the same but for how many examples clients hold."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mppfl.errors import BadInput, NoEquilibrium
from mppfl.experiment import experiment_from, game_without_data, mechanism_of, prepare, read_experiment, solve_all
from tests.experiment.small import small


def test_a_training_plays_the_same_game_but_for_the_numbers_of_examples():
    chosen = small(data={"uneven": 0.5})
    trained, game = prepare(chosen)[0].solution.game, game_without_data(chosen, 3)
    assert (trained.graph.influence != game.graph.influence).nnz == 0
    for name in ("quadratic_cost", "linear_cost", "noise_harm", "budget_min", "budget_max"):
        assert np.array_equal(getattr(trained.clients, name), getattr(game.clients, name))
    assert (game.clients.data_size == 1).all()
    assert not (trained.clients.data_size == 1).any()


def test_inside_the_bounds_the_numbers_of_examples_change_no_budget():
    chosen = small(mechanisms=["mppfl", "fixed"])
    solved = solve_all(chosen, game_without_data(chosen, 3), 3)
    for case in prepare(chosen):
        assert np.array_equal(case.solution.plan.to_matrix(), solved[case.name].plan.to_matrix())


def test_bounds_for_everybody_hold_in_a_training_too():
    chosen = small(game={"budget_min": 0.05, "budget_max": 0.3})
    for case in prepare(chosen):
        budgets = case.solution.plan.to_matrix()
        assert budgets.min() >= 0.05 - 1e-12
        assert budgets.max() <= 0.3 + 1e-12


@pytest.fixture
def three_friends(tmp_path):
    """An experiment with a clients file that bounds cat to [0.1, 0.2]."""

    def read(game: str):
        (tmp_path / "links.csv").write_text("ann,bob\nbob,cat\ncat,ann\n")
        lines = "ann,1,0.5,0.1,0,inf\nbob,1,0.5,0.1,0,inf\ncat,1,0.5,0.1,0.1,0.2\n"
        header = "name,quadratic_cost,linear_cost,noise_harm,budget_min,budget_max\n"
        (tmp_path / "who.csv").write_text(header + lines)
        text = f'[network]\nsource = "links.csv"\n[game]\nclients = "who.csv"\n{game}\n'
        (tmp_path / "three.toml").write_text(text)
        return read_experiment(tmp_path / "three.toml")

    return read


def test_the_narrower_of_two_bounds_counts(three_friends):
    clients = game_without_data(three_friends("budget_min = 0.05\nbudget_max = 1"), 0).clients
    assert clients.budget_min.tolist() == [0.05, 0.05, 0.1]
    assert clients.budget_max.tolist() == [1.0, 1.0, 0.2]


def test_bounds_that_leave_somebody_no_budget_name_the_client(three_friends):
    with pytest.raises(BadInput, match=r"leave client 'cat' no budget: at least 0\.3, at most 0\.2 \(1 such\)"):
        game_without_data(three_friends("budget_min = 0.3"), 0)


def test_a_limit_is_needed_by_who_keeps_it():
    with pytest.raises(BadInput, match=r"needs game\.payment_limit"):
        mechanism_of(small(), "budget_limited")


def test_nobody_to_play_with_is_said(tmp_path, three_friends):
    chosen = three_friends("")
    text = (tmp_path / "who.csv").read_text().replace("inf", "0").replace("0.1,0.2", "0,0")
    (tmp_path / "who.csv").write_text(text)
    with pytest.raises(NoEquilibrium, match="budget_max is 0 for all clients"):
        game_without_data(chosen, 0)


def test_no_torch_is_loaded_for_it():
    names = "game_without_data, load_run, prepare, read_experiment, read_live, train"
    code = f"import sys; from mppfl.experiment import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_seed_draws_network_and_clients_from_streams_of_their_own():
    one, other = (game_without_data(experiment_from({"seed": 1, "network": {"seed": seed}}), 1) for seed in (4, 5))
    assert (one.graph.influence != other.graph.influence).nnz > 0
    assert np.array_equal(one.clients.linear_cost, other.clients.linear_cost)
