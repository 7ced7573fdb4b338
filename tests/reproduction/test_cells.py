"""Cells of the tables: which there are, in which order, and what decides them."""

import json

import numpy as np
import pytest
from reproduction.settings import SETTINGS

from mppfl.errors import BadInput
from mppfl.experiment import Experiment
from reproduction import cells

CELL = cells.Cell("cifar-10", "dir0.3", 20, 0)
SIZES = np.full(20, 100)


def test_cells_are_chosen_by_how_their_path_begins():
    assert {cell.dataset for cell in cells.chosen_cells(["svhn"])} == {"svhn"}
    assert {cell.num_clients for cell in cells.chosen_cells(["cifar-10/dir0.3"])} == {20, 50, 80}
    assert cells.chosen_cells(["cifar-10/dir0.3/n50/seed0"]) == [cells.Cell("cifar-10", "dir0.3", 50, 0)]
    assert cells.chosen_cells([]) == list(cells.CELLS)
    with pytest.raises(BadInput, match="names no cell"):
        cells.chosen_cells(["cifar"])  # a beginning of a word is not one of a path


def test_a_cell_that_is_not_the_papers_is_refused_and_seeds_are_those_of_an_experiment():
    for place, wrong, message in (
        (0, "mnist", "mnist"),
        (1, "dir0.5", "dir0.5"),
        (2, 0, "num_clients"),
        (3, -1, "seed=-1"),
    ):
        parts = ["svhn", "iid", 20, 0]
        parts[place] = wrong
        with pytest.raises(BadInput, match=message):
            cells.Cell(*parts)
    for purpose in cells.PURPOSES:
        assert cells.Cell("svhn", "iid", 20, 7).seed_of(purpose) == Experiment().seed_of(purpose, 7)


def test_the_configuration_is_what_a_file_can_hold_and_tells_cells_apart():
    facts = cells.configuration(CELL, SETTINGS["cifar-10"])
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["learning_rate"], facts["externality_strength"]) == (0.01, 0.05)
    assert "norm" not in facts  # the CNN has none
    other = SETTINGS["cifar-100"]
    assert cells.configuration(cells.Cell("cifar-100", "iid", 20, 0), other)["norm"] == other.norm
    prints = {cells.fingerprint(cells.configuration(cell, SETTINGS[cell.dataset])) for cell in cells.CELLS}
    assert len(prints) == len(cells.CELLS)


def test_everybody_faces_the_rates_of_mppfl_and_dp_fedavg_takes_one_budget_by_either_rule():
    game = cells.game_of(CELL, SIZES)
    names = ("mppfl", "social_agnostic", "fixed-min", "fixed-mean", "random")
    plans = {name: cells.plan_of(game, name, 5, 0) for name in names}
    for plan in plans.values():
        assert np.array_equal(plan.reward_rates, plans["mppfl"].reward_rates)
    assert np.allclose(plans["fixed-min"][2].budgets, plans["mppfl"][0].budgets.min())
    assert np.allclose(plans["fixed-mean"][2].budgets, plans["social_agnostic"][0].budgets.mean())


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_recorded_arithmetic_is_that_of_the_model(setting):
    assert cells.gflop_per_example(setting) == cells.counted_gflop(setting)
    if setting.dataset == "fashion-mnist":  # products of the CNN by hand, two operations each, three passes
        products = 28 * 28 * 32 * 25 + 14 * 14 * 64 * 32 * 25 + 3136 * 512 + 512 * 10
        assert cells.gflop_per_example(setting) == pytest.approx(6 * products / 1e9)
