"""Cells of the tables: which there are, in which order, and what decides them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

import numpy as np
import pytest
from reproduction.cells import (
    CELLS,
    PURPOSES,
    Cell,
    chosen_cells,
    configuration,
    counted_gflop,
    fingerprint,
    game_of,
    gflop_per_example,
    plan_of,
    training_choices,
)
from reproduction.settings import SETTINGS, Setting, printed_accuracy

from mppfl.errors import BadInput
from mppfl.experiment import Experiment

CELL = Cell("cifar-10", "dir0.3", 20, 0)
SIZES = np.full(20, 100)


def test_cells_stand_in_the_order_of_priority():
    assert list(dict.fromkeys((cell.dataset, cell.num_clients) for cell in CELLS)) == [
        ("fashion-mnist", 20),
        ("cifar-10", 20),
        ("cifar-10", 50),
        ("cifar-10", 80),
        ("cifar-100", 20),
        ("svhn", 20),
        ("cinic-10", 20),
        ("cinic-10", 50),
        ("cinic-10", 80),
    ]
    assert [cell.partition for cell in CELLS if cell.dataset == "cifar-100"] == ["dir0.3", "iid", "dir0.6"]
    assert len(set(CELLS)) == len(CELLS)


def test_every_cell_is_one_that_the_paper_prints():
    for cell in CELLS:
        place = (cell.dataset, cell.partition, cell.num_clients)
        assert printed_accuracy(1, *place) or printed_accuracy(2, *place)


def test_cells_are_chosen_by_how_their_path_begins():
    assert {cell.dataset for cell in chosen_cells(["svhn"])} == {"svhn"}
    assert {cell.num_clients for cell in chosen_cells(["cifar-10/dir0.3"])} == {20, 50, 80}
    assert chosen_cells(["cifar-10/dir0.3/n50/seed0"]) == [Cell("cifar-10", "dir0.3", 50, 0)]
    assert chosen_cells([]) == list(CELLS)
    with pytest.raises(BadInput, match="names no cell"):
        chosen_cells(["cifar"])  # a beginning of a word is not one of a path


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (("mnist", "iid", 20, 0), "mnist"),
        (("svhn", "dir0.5", 20, 0), "dir0.5"),
        (("svhn", "iid", 0, 0), "num_clients"),
        (("svhn", "iid", 20, -1), "seed=-1"),
    ],
)
def test_a_cell_that_is_not_the_papers_is_refused(place, said):
    with pytest.raises(BadInput, match=said):
        Cell(*place)


def test_seeds_are_drawn_as_an_experiment_draws_them():
    for purpose in PURPOSES:
        assert Cell("svhn", "iid", 20, 7).seed_of(purpose) == Experiment().seed_of(purpose, 7)


def test_the_configuration_is_what_a_file_can_hold_and_tells_cells_apart():
    facts = configuration(CELL, SETTINGS["cifar-10"])
    assert json.loads(json.dumps(facts)) == facts
    assert facts["learning_rate"] == 0.01
    assert facts["externality_strength"] == 0.05
    assert "norm" not in facts  # the CNN has none
    assert configuration(Cell("cifar-100", "iid", 20, 0), SETTINGS["cifar-100"])["norm"] == SETTINGS["cifar-100"].norm
    every = {fingerprint(configuration(cell, SETTINGS[cell.dataset])) for cell in CELLS}
    assert len(every) == len(CELLS)


def test_a_choice_of_training_counts_where_it_is_made():
    @dataclass(frozen=True)
    class Later(Setting):
        momentum: float = 0.0  # as if the paper's settings said more

    said = {each.name: getattr(SETTINGS["svhn"], each.name) for each in fields(Setting)}
    assert training_choices(Later(**said)) == training_choices(SETTINGS["svhn"])
    assert training_choices(Later(**said, momentum=0.9))["momentum"] == 0.9


def test_everybody_faces_the_rates_of_mppfl():
    game = game_of(CELL, SIZES)
    rates = plan_of(game, "mppfl", 5, 0).reward_rates
    for mechanism in ("social_agnostic", "fixed-min", "fixed-mean", "random"):
        assert np.array_equal(plan_of(game, mechanism, 5, 0).reward_rates, rates)


def test_dp_fedavg_takes_one_budget_by_either_rule():
    game = game_of(CELL, SIZES)
    least = plan_of(game, "fixed-min", 3, 0)[2].budgets
    assert np.allclose(least, plan_of(game, "mppfl", 3, 0)[0].budgets.min())
    mean = plan_of(game, "fixed-mean", 3, 0)[2].budgets
    assert np.allclose(mean, plan_of(game, "social_agnostic", 3, 0)[0].budgets.mean())


def test_arithmetic_of_the_cnn_is_worked_by_hand():
    # 28·28·32·25 + 14·14·64·32·25 + 3136·512 + 512·10 products, two operations each, three passes.
    products = 28 * 28 * 32 * 25 + 14 * 14 * 64 * 32 * 25 + 3136 * 512 + 512 * 10
    assert gflop_per_example(SETTINGS["fashion-mnist"]) == pytest.approx(6 * products / 1e9)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_recorded_arithmetic_is_that_of_the_model(setting):
    assert gflop_per_example(setting) == counted_gflop(setting)
