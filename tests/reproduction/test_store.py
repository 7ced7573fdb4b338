"""Files of cells: whole, readable, and refused where they were measured otherwise."""

import json
import re
from dataclasses import replace

import pytest
from reproduction.cells import NOISELESS, ArmName, Cell
from reproduction.settings import SETTINGS

from mppfl.errors import BadFile
from reproduction import store

CELL = Cell("cifar-10", "iid", 20, 0)
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
    store.add_arms(tmp_path, CELL, SETTING, arms[:1])
    store.add_arms(tmp_path, CELL, SETTING, [measured(SA, 10.0), *arms[1:]])  # what is there is kept as it is
    assert store.read_cell(tmp_path, CELL, SETTING) == {row.arm: row for row in arms}
    content = json.loads(store.cell_path(tmp_path, CELL).read_text())
    assert content["configuration"]["partition"] == "iid"
    assert "after the last round" in content["accuracy"]
    with pytest.raises(BadFile, match=r"measured with learning_rate=0\.01, here it is 0\.1") as caught:
        store.read_cell(tmp_path, CELL, replace(SETTING, learning_rate=0.1))
    assert "\n" not in str(caught.value)


def test_trials_are_kept_in_order_and_a_training_in_two_files_counts_once(tmp_path):
    store.add_trials(tmp_path, CELL, SETTING, [measured(SA, 60.0, unit=5e-4)])
    store.add_trials(tmp_path, CELL, SETTING, [measured(SA, 66.5, unit=1e-3)], {"size": {"unit": 1e-3}})
    assert [trial.unit for trial in store.read_trials(tmp_path, CELL, SETTING)] == [5e-4, 1e-3]
    assert json.loads(store.unit_path(tmp_path, "cifar-10").read_text())["units"]["size"]["unit"] == 1e-3
    store.add_arms(tmp_path, CELL, SETTING, [measured(SA, 66.5), measured(MPPFL, 62.6)])
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
    store.add_arms(tmp_path, CELL, SETTING, [measured(SA, 66.5)])
    path = store.cell_path(tmp_path, CELL)
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    with pytest.raises(BadFile, match=message):
        store.read_cell(tmp_path, CELL, SETTING)
