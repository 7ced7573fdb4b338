"""From an experiment to its trainings: the game with and without data, arms ready to start, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mppfl.data import Dataset, Examples
from mppfl.errors import BadInput, NoEquilibrium, UnknownClient
from mppfl.experiment import experiment_from, prepare, read_experiment, run_experiment, solve_all
from mppfl.training import require_trainable
from mppfl.training.engines import Engine
from tests.experiment.small import SMALL, small
from tests.homes import home

rounds = home(require_trainable)
build = home(prepare)


def test_a_training_plays_the_same_game_but_for_the_numbers_of_examples():
    chosen = small(data={"uneven": 0.5})
    trained, game = prepare(chosen)[0].solution.game, chosen.game.build()
    assert (trained.graph.influence != game.graph.influence).nnz == 0
    for name in ("quadratic_cost", "linear_cost", "noise_harm", "budget_min", "budget_max"):
        assert np.array_equal(getattr(trained.clients, name), getattr(game.clients, name))
    assert (game.clients.data_size == 1).all()
    assert np.array_equal(trained.clients.data_size, prepare(chosen)[0].data.num_examples)
    assert len(set(trained.clients.data_size)) > 1


def test_inside_the_bounds_the_numbers_of_examples_change_no_budget():
    chosen = small()
    solved = solve_all(chosen.game, chosen.mechanisms, chosen.game.build())
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
        (tmp_path / "edges.csv").write_text("ann,bob\nbob,cat\ncat,ann\n")
        lines = "ann,1,0.5,0.1,0,inf\nbob,1,0.5,0.1,0,inf\ncat,1,0.5,0.1,0.1,0.2\n"
        header = "name,quadratic_cost,linear_cost,noise_harm,budget_min,budget_max\n"
        (tmp_path / "who.csv").write_text(header + lines)
        text = f'[game]\ngraph = "edges.csv"\nclients = "who.csv"\n{game}\n'
        (tmp_path / "three.toml").write_text(text)
        return read_experiment(tmp_path / "three.toml")

    return read


def test_the_narrower_of_two_bounds_counts(three_friends):
    clients = three_friends("budget_min = 0.05\nbudget_max = 1").game.build().clients
    assert clients.budget_min.tolist() == [0.05, 0.05, 0.1]
    assert clients.budget_max.tolist() == [1.0, 1.0, 0.2]


def test_bounds_that_leave_somebody_no_budget_name_the_client(three_friends):
    with pytest.raises(BadInput, match=r"leave client 'cat' no budget: at least 0\.3, at most 0\.2 \(1 such\)"):
        three_friends("budget_min = 0.3").game.build()


def test_nobody_to_play_with_is_said(tmp_path, three_friends):
    chosen = three_friends("")
    text = (tmp_path / "who.csv").read_text().replace("inf", "0").replace("0.1,0.2", "0,0")
    (tmp_path / "who.csv").write_text(text)
    with pytest.raises(NoEquilibrium, match="budget_max is 0 for all 3 clients"):
        chosen.game.build()


def test_no_torch_is_loaded_for_it():
    names = "build_game, load_run, prepare, read_experiment, read_live, train"
    code = f"import sys; from mppfl.experiment import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_another_seed_of_one_purpose_changes_that_purpose_alone():
    one, other = (prepare(small(training={"seed": seed}))[0] for seed in (1, 2))
    assert np.array_equal(one.solution.plan.to_matrix(), other.solution.plan.to_matrix())
    assert all(np.array_equal(a, b) for a, b in zip(one.data.members, other.data.members, strict=True))
    assert one.config.seed != other.config.seed
    moved = prepare(small(data={"seed": 7}))[0]
    assert (moved.solution.game.graph.influence != one.solution.game.graph.influence).nnz == 0
    assert not all(np.array_equal(a, b) for a, b in zip(one.data.members, moved.data.members, strict=True))


def test_seeds_and_aggregations_multiply_the_trainings():
    chosen = small(seeds=[1, 2], mechanisms=["mppfl"], aggregations=["num_examples", "noise_aware"])
    assert [case.name for case in prepare(chosen)] == [
        "mppfl-num_examples-seed1",
        "mppfl-noise_aware-seed1",
        "mppfl-num_examples-seed2",
        "mppfl-noise_aware-seed2",
    ]


def test_own_reward_lets_each_server_set_its_rates():
    ours, theirs = prepare(small(mechanisms=["mppfl", "social_agnostic"], game={"reward_rate": "own"}))
    assert not np.allclose(ours.solution.plan.reward_rates, theirs.solution.plan.reward_rates)


def test_a_case_keeps_the_options_of_its_own_mechanism_alone():
    game = {"reward_rate": "own", "fixed_budget": "mean", "payment_limit": 2.0}
    cases = prepare(small(mechanisms=["mppfl", "dp_fedavg", "budget_limited"], game=game))
    options = [(case.experiment.game.fixed_budget, case.experiment.game.payment_limit) for case in cases]
    assert options == [("min", None), ("mean", None), ("min", 2.0)]


def test_a_network_and_clients_of_ones_own_are_read(tmp_path):
    (tmp_path / "edges.csv").write_text("ann,bob\nbob,cat\ncat,ann\n")
    lines = "".join(f"{name},0.5,0.5,0.1,3\n" for name in ("ann", "bob", "cat"))
    (tmp_path / "who.csv").write_text(f"name,quadratic_cost,linear_cost,noise_harm,data_size\n{lines}")
    text = 'mechanism = "mppfl"\n[game]\ngraph = "edges.csv"\nnum_clients = 3\nclients = "who.csv"\n'
    (tmp_path / "own.toml").write_text(text)
    chosen = read_experiment(tmp_path / "own.toml")
    (case,) = prepare(chosen)
    assert case.data.names == ("ann", "bob", "cat")
    assert "data_size of the clients file was replaced" in case.notes[0]
    with pytest.raises(BadInput, match=r"num_clients=4, but .* has 3 clients"):
        prepare(replace(chosen, game=replace(chosen.game, num_clients=4)))
    capped = replace(chosen, ledger=replace(chosen.ledger, caps={"dan": 1.0}))
    with pytest.raises(UnknownClient, match="dan"):
        run_experiment(capped)


def test_batches_that_the_smallest_client_cannot_fill_are_refused_with_the_largest_that_fits():
    with pytest.raises(BadInput, match=r"training.batch_size=400, but client '\d' has 28\d examples. Use at most 28\d"):
        run_experiment(small(training={"batch_size": 400}))
    prepare(small(training={"batch_size": 400, "privacy": "full_batch", "clip_norm": 1.0}))  # takes all there is


@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_a_gpu_that_is_not_there_is_said_to_be_missing(device, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=f"training.device='{device}', but PyTorch finds no GPU here"):
        run_experiment(small(training={"device": device}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadInput, match="there are 2 GPUs"):
        run_experiment(small(training={"device": "cuda:7"}))
    with pytest.raises(BadInput, match=r"training\.device='gpu' is not known"):
        run_experiment(small(training={"device": "gpu"}))


def test_all_seeds_are_computed_in_one_batch(monkeypatch):
    chosen = small(seeds=[1, 2, 3], game={"num_rounds": 1})
    assert len({case.arm().computed_with for case in prepare(chosen)}) == 1
    lanes: list[int] = []

    class Counted(Engine):
        def updates(self, given):
            lanes.append(len(given))
            return super().updates(given)

    monkeypatch.setattr(rounds, "Engine", Counted)
    run_experiment(chosen)
    assert lanes == [6 * 5]  # every client of every seed and mechanism, at once


def test_a_shared_table_changes_nothing_but_where_it_lies():
    several, alone = prepare(small(seeds=[1, 2])), prepare(small(seeds=[2]))
    shared, own = several[-1].data, alone[-1].data
    assert shared.features is several[0].data.features
    assert not shared.features.flags.writeable
    for name in ("features", "labels", "test_features", "test_labels"):
        assert np.array_equal(getattr(shared, name), getattr(own, name))
    assert all(np.array_equal(a, b) for a, b in zip(shared.members, own.members, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(shared.members, several[0].data.members, strict=True))


def test_fixed_features_stand_in_for_pictures(monkeypatch):
    rng = np.random.default_rng(0)
    parts = [Examples(rng.integers(0, 256, (60, 16, 16, 1)).astype(np.uint8), np.arange(60) % 3) for _ in range(2)]
    drawn = Dataset("drawn", *parts, 3, ("a", "b", "c"), "drawn", (0.5,), (0.25,))
    monkeypatch.setattr(build, "load_dataset", lambda *_, **__: drawn)
    training = {"model": "linear", "batch_size": 4}
    pictures, numbers = (
        prepare(small(data={"features": name}, training=training))[0].data for name in ("none", "oriented_gradients")
    )
    assert pictures.input_shape == (1, 16, 16)
    assert numbers.input_shape == (788,)
    assert np.linalg.norm(numbers.features, axis=1) == pytest.approx(np.ones(60), abs=1e-5)


def test_infinite_budgets_keep_no_epsilon():
    raw = SMALL | {"mechanisms": ["mppfl", "noiseless"], "training": {"model": "softmax", "dp_epsilon": 2.0}}
    with pytest.raises(BadInput, match=r"dp_epsilon=2 cannot be kept by 'noiseless', whose budgets are infinite"):
        prepare(experiment_from(raw))


def test_the_papers_epsilon_is_called_nominal():
    (case, _) = prepare(experiment_from(SMALL | {"training": {"model": "softmax", "dp_epsilon": 2.0}}))
    assert "so that no client's final nominal ε exceeds" in case.notes[-2]


def test_the_private_recipe_asks_every_client_for_the_same_in_every_round():
    recipe = Path(__file__).parents[2] / "examples" / "fashion_mnist_private.toml"
    (case,) = prepare(read_experiment(recipe, ["data.name=digits", "data.features=none"]))
    assert np.array_equal(case.solution.plan.to_matrix(), np.ones((60, 20)))
    assert 60 * case.config.budget_unit == pytest.approx(0.2585649)  # ρ of ε = 3 at δ = 1e-5, by dp-accounting
