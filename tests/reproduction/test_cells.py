"""Cells of the tables: which there are, what decides them, their files, and how trials find the unit of budgets."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from reproduction.cells import NOISELESS, ArmName
from reproduction.settings import SETTINGS
from reproduction.units import FALLBACK, GRID, MOST_TRIALS, next_trials, reusable, units_of

from mppfl.errors import BadFile, BadInput
from mppfl.experiment import Experiment
from reproduction import cells, store

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


FILED = cells.Cell("cifar-10", "iid", 20, 0)
SETTING = SETTINGS["cifar-10"]
SA, MPPFL = ArmName("social_agnostic", "size"), ArmName("mppfl", "size")


def measured(arm, percent, unit=1e-3, **changes):
    """An arm that reached so many percent."""
    share = percent / 100
    usual = store.Measured(
        arm=arm,
        unit=unit,
        accuracy=share,
        best_accuracy=share,
        curve={"round": [80], "accuracy": [round(share, 4)]},
        clip_norm=1.03,
        fixed_budget=0.25 if arm.mechanism.startswith("fixed") else None,
        share_clipped=0.5,
        budgets={"round": [1], "participating": [20], "mean": [1.1], "harmonic_mean": [0.8]},
        dp_epsilon=None if unit is None else 1.5,
        dp_delta=1e-5,
        num_rounds=80,
        num_examples=20_000_000,
        seconds=50.0,
        arms_together=12,
        samples_per_second=400_000.0,
        tflop_per_second=40.0,
        gflop_per_example=0.1,
        engine="batched",
        precision="bf16",
        device="a GPU",
        versions={"torch": "2"},
        commit="unknown",
        source="0123456789ab",
        started="2026-01-01T00:00:00+00:00",
    )
    return replace(usual, **changes)


def test_what_is_written_is_read_back_and_refused_for_another_configuration_with_what_differs(tmp_path):
    arms = [measured(SA, 66.5), measured(MPPFL, 62.6), measured(NOISELESS, 70.4, unit=None)]
    store.add_arms(tmp_path, FILED, SETTING, arms[:1])
    store.add_arms(tmp_path, FILED, SETTING, [measured(SA, 10.0), *arms[1:]])  # what is there is kept as it is
    assert store.read_cell(tmp_path, FILED, SETTING) == {row.arm: row for row in arms}
    content = json.loads(store.cell_path(tmp_path, FILED).read_text())
    assert content["configuration"]["partition"] == "iid"
    assert "after the last round" in content["accuracy"]
    with pytest.raises(BadFile, match=r"measured with learning_rate=0\.01, here it is 0\.1") as caught:
        store.read_cell(tmp_path, FILED, replace(SETTING, learning_rate=0.1))
    assert "\n" not in str(caught.value)


def test_trials_are_kept_in_order_and_a_training_in_two_files_counts_once(tmp_path):
    store.add_trials(tmp_path, FILED, SETTING, [measured(SA, 60.0, unit=5e-4)])
    store.add_trials(tmp_path, FILED, SETTING, [measured(SA, 66.5, unit=1e-3)], {"size": {"unit": 1e-3}})
    assert [trial.unit for trial in store.read_trials(tmp_path, FILED, SETTING)] == [5e-4, 1e-3]
    assert json.loads(store.unit_path(tmp_path, "cifar-10").read_text())["units"]["size"]["unit"] == 1e-3
    store.add_arms(tmp_path, FILED, SETTING, [measured(SA, 66.5), measured(MPPFL, 62.6)])
    (tmp_path / "fig-phi.json").write_text('{"name": "fig-phi"}')
    trained = sorted((str(row.arm), row.unit) for _, row in store.every_training(tmp_path))
    assert trained == [("mppfl/size", 1e-3), ("social_agnostic/size", 5e-4), ("social_agnostic/size", 1e-3)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: "[]", "cannot be read"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "of format 9"),
        (lambda text: text.replace('"clip_norm": 1.03, ', ""), "an arm is not whole"),
        (lambda text: text.replace('"accuracy": 0.665, "best', '"accuracy": 66.5, "best'), "an arm is not whole"),
        (lambda text: re.sub(r'"arm": "[^"]*"', '"arm": 3', text), "an arm is not whole"),
        (lambda text: re.sub(r'"unit": [^,]*', '"unit": "x"', text), "an arm is not whole"),
        (lambda text: re.sub(r'"curve": {[^}]*}', '"curve": {}', text), "an arm is not whole"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, damage, message):
    store.add_arms(tmp_path, FILED, SETTING, [measured(SA, 66.5)])
    path = store.cell_path(tmp_path, FILED)
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    with pytest.raises(BadFile, match=message):
        store.read_cell(tmp_path, FILED, SETTING)


# ---- the unit, fixed once on SA and IID by trials that approach the paper's accuracy ------------------------------


NAME = "cifar-100"  # one aggregation
TRIED = ArmName("social_agnostic", "noise_aware")
TARGET = 48.83


def trials(accuracies, ceiling=60.0):
    noiseless = [] if ceiling is None else [measured(NOISELESS, ceiling, unit=None)]
    return [*noiseless, *(measured(TRIED, accuracy, unit=unit) for unit, accuracy in accuracies.items())]


def searched(accuracy_of, name=NAME, ceiling=60.0):
    """Trials until the protocol is content, with accuracies from a curve."""
    tried = []
    while jobs := next_trials(name, tried):
        assert len(set(jobs)) == len(jobs)
        tried += [measured(arm, ceiling if unit is None else accuracy_of(arm, unit), unit=unit) for arm, unit in jobs]
        assert len(tried) < 40
    return tried


@pytest.mark.parametrize("right", [3e-5, 7e-4, 1.4e-3, 9e-3])
def test_the_search_ends_within_tolerance_wherever_the_right_unit_lies(right):
    tried = searched(lambda arm, unit: TARGET + 4 * math.tanh(math.log(unit / right)))
    unit = units_of(NAME, tried)["noise_aware"]
    assert abs(unit.accuracy - TARGET) <= 0.3
    assert unit.unit == pytest.approx(right, rel=0.1)
    assert len(tried) <= 1 + MOST_TRIALS


def test_each_aggregation_gets_its_own_unit():
    right = {"noise_aware": 6e-4, "size": 3e-3}
    curve = lambda arm, unit: 66.49 + 5 * math.tanh(math.log(unit / right[arm.aggregation]))  # noqa: E731
    units = units_of("cifar-10", searched(curve, "cifar-10", ceiling=80.0))
    assert {weights: units[weights].unit for weights in right} == pytest.approx(right, rel=0.1)


def test_a_unit_that_no_trial_can_reach_is_the_protocols_or_the_nearest_trials_and_that_is_said():
    unit = units_of(NAME, trials({}, ceiling=38.3))["noise_aware"]  # noiseless training stays below the paper
    assert (unit.unit, unit.accuracy) == (FALLBACK, None)
    assert "below the paper's SA" in unit.why
    assert next_trials(NAME, trials({}, ceiling=38.3)) == []
    tried = searched(lambda arm, unit: 40.0 if unit < 1.37e-3 else 52.0)  # a jump over the target
    unit = units_of(NAME, tried)["noise_aware"]
    assert len(tried) == 1 + MOST_TRIALS
    assert unit.accuracy == pytest.approx(52.0)
    assert "not within 0.3" in unit.why


def test_what_a_trial_rules_out_is_not_tried():
    assert next_trials(NAME, trials({2e-3: TARGET - 10})) != []
    assert all(unit > 2e-3 for _, unit in next_trials(NAME, trials({2e-3: TARGET - 10})))
    assert next_trials(NAME, trials({1e-3: TARGET - 1})) == [(TRIED, 2e-3)]
    assert next_trials(NAME, trials({1e-3: TARGET + 1})) == [(TRIED, 5e-4)]
    assert next_trials(NAME, trials({1e-3: TARGET + 1, 5e-4: TARGET - 1}))[0][1] == pytest.approx(7e-4, rel=0.1)
    tried = trials({2e-3: TARGET + 4, 1e-3: TARGET + 0.1, 5e-4: TARGET - 3})  # these fix the unit, and serve again
    assert [(trial.arm, trial.unit) for trial in reusable(NAME, tried)] == [(NOISELESS, None), (TRIED, 1e-3)]


def test_beyond_what_was_tried_noise_costs_a_power_of_the_unit():
    def accuracy(unit):  # noise costs 20 points at .002 and falls with the root of the unit
        return 60.0 - 20 * (unit / 2e-3) ** -0.5

    right = 2e-3 * (20 / (60.0 - TARGET)) ** 2
    below = trials({unit: accuracy(unit) for unit in (1e-3, 2e-3)})
    assert next_trials(NAME, below) == [(TRIED, pytest.approx(right, rel=1e-2))]
    units = dict(zip(GRID, (8 * right, 4 * right, 2 * right), strict=True))
    above = trials({unit: accuracy(as_if) for unit, as_if in units.items()})
    assert next_trials(NAME, above) == [(TRIED, pytest.approx(min(GRID) / 2, rel=1e-2))]
