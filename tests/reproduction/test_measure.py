"""Cells are trained side by side, filed as soon as they are done, and never trained twice."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from reproduction.batch import trained
from reproduction.cells import ArmName, Case, Cell, arms_of, clients_of
from reproduction.measure import measure, missing_arms
from reproduction.settings import SETTINGS
from reproduction.status import status
from reproduction.store import cell_path, every_training, read_cell, read_trials, unit_path
from reproduction.units import place_of_unit, units_of

from mppfl.data import Dataset, Examples
from mppfl.errors import BadFile, BadInput
from mppfl.experiment import provenance_here
from mppfl.training import train_many
from reproduction import batch
from reproduction import measure as module

NAME = "fashion-mnist"
SETTING = replace(
    SETTINGS[NAME], model="softmax", num_train=800, num_test=200, num_rounds=4, batch_size=8, local_epochs=1
)
SETTINGS_HERE = SETTINGS | {NAME: SETTING}
IID, SKEWED = Cell(NAME, "iid", 20, 0), Cell(NAME, "dir0.3", 20, 0)


def drawn(setting=SETTING, folder=None):
    """Pictures of ten classes, each a spot of light in a place of its own."""
    rng = np.random.default_rng(0)

    def part(size):
        labels = np.arange(size) % 10
        pictures = rng.integers(0, 60, (size, 28, 28, 1))
        pictures[np.arange(size), 2 * labels, 2 * labels] = 255
        return Examples(pictures.astype(np.uint8), labels)

    return Dataset(
        NAME, part(setting.num_train), part(setting.num_test), 10, tuple("abcdefghij"), "drawn", (0.1,), (0.1,)
    )


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(module, "loaded", lambda setting, folder: drawn() if setting.dataset == NAME else None)
    return []


def run(folder, told, cells=(IID,), **options):
    return measure(list(cells), folder, settings=SETTINGS_HERE, tell=told.append, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one cell that was measured without a break, and what the run said of itself."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "loaded", drawn)
        return folder, run(folder, [])


def test_a_cell_is_measured_with_all_its_arms_and_the_trial_of_the_unit_is_one_of_them(finished):
    folder, done = finished
    arms, trials = read_cell(folder, IID, SETTING), read_trials(folder, IID, SETTING)
    assert set(arms) == set(arms_of(IID))
    assert done.cells == (IID,)
    units = units_of(NAME, trials)
    for weights in ("noise_aware", "size"):
        sa = arms[ArmName("social_agnostic", weights)]
        assert sa in trials  # the very same training
        assert sa.unit == units[weights].unit
    assert done.trained == len(trials) + len(arms) - 3  # SA twice and noiseless came from the trials


def test_an_arm_says_what_it_was_trained_with_and_how_fast(finished):
    arms = read_cell(finished[0], IID, SETTING)
    least, mean = (arms[ArmName(rule, "size")].fixed_budget for rule in ("fixed-min", "fixed-mean"))
    assert 0 < least < mean
    for arm, each in arms.items():
        assert each.curve["round"][-1] == each.num_rounds == 4
        assert each.curve["accuracy"][-1] == pytest.approx(each.accuracy, abs=1e-4)
        assert each.best_accuracy >= each.accuracy
        assert each.num_examples == 4 * 800
        assert each.tflop_per_second == pytest.approx(each.samples_per_second * each.gflop_per_example / 1e3, rel=1e-3)
        assert each.precision == "float32"
        assert (each.dp_epsilon is None) == (each.unit is None) == (arm.mechanism == "noiseless")
        assert each.budgets["participating"][0] > 0
        if arm.mechanism != "noiseless":
            assert all(
                low <= high for low, high in zip(each.budgets["harmonic_mean"], each.budgets["mean"], strict=True)
            )


def test_what_is_there_is_not_trained_again_and_a_lost_arm_is_trained_as_it_was(finished, tmp_path, told):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    before = read_cell(tmp_path, IID, SETTING)
    assert run(tmp_path, told).trained == 0
    path = cell_path(tmp_path, IID)
    content = json.loads(path.read_text())
    content["arms"] = [row for row in content["arms"] if row["arm"] != "mppfl/size"]
    path.write_text(json.dumps(content))
    assert run(tmp_path, told).trained == 1
    after = read_cell(tmp_path, IID, SETTING)
    assert {arm: each.curve for arm, each in after.items()} == {arm: each.curve for arm, each in before.items()}


LOST = ("mppfl/size", "random/noise_aware")


@pytest.fixture
def begun(finished, tmp_path):
    """The same folder without two arms, and the arms it had."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    before = read_cell(tmp_path, IID, SETTING)
    content = json.loads(cell_path(tmp_path, IID).read_text())
    content["arms"] = [row for row in content["arms"] if row["arm"] not in LOST]
    cell_path(tmp_path, IID).write_text(json.dumps(content))
    return tmp_path, before


def stopping(after, how):
    """train_many that is stopped after so many rounds, and how many it did."""
    done = []

    def rounds(model, arms):
        for records in train_many(model, arms):
            done.append(next(iter(records.values())).round_index)
            yield records
            if len(done) == after:
                raise how

    return rounds, done


def same_results(folder, before):
    after = read_cell(folder, IID, SETTING)
    return all(
        (each.curve, each.budgets, each.clip_norm, each.num_rounds, each.dp_epsilon)
        == (after[arm].curve, after[arm].budgets, after[arm].clip_norm, after[arm].num_rounds, after[arm].dp_epsilon)
        for arm, each in before.items()
    )


@pytest.mark.parametrize("how", [KeyboardInterrupt, RuntimeError("the machine is lost")])
def test_a_run_that_is_stopped_goes_on_from_where_it_was(begun, told, monkeypatch, how):
    folder, before = begun
    monkeypatch.setattr(batch, "KEPT_EVERY", 0.0)  # who is stopped without warning has what was kept last
    with monkeypatch.context() as broken:
        broken.setattr(batch, "train_many", stopping(2, how)[0])
        with pytest.raises(type(how) if isinstance(how, Exception) else how):
            run(folder, told)
    assert {str(arm) for arm in missing_arms(folder, IID, SETTING)} == set(LOST)
    rounds, done = stopping(math.inf, None)
    monkeypatch.setattr(batch, "train_many", rounds)
    assert run(folder, told).trained == 2
    assert done == [3, 4]
    assert any("2 arms go on" in line for line in told)
    assert same_results(folder, before)
    assert not (folder / "in-flight").exists()


def test_what_does_not_end_in_time_is_stopped_and_ends_in_later_runs(begun, told):
    folder, before = begun
    runs = [run(folder, told, minutes=1e-9) for _ in range(8)]  # two arms of four rounds, a round at a time
    assert [done.trained for done in runs] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert [done.out_of_time for done in runs] == [True] * 7 + [False]
    assert same_results(folder, before)
    assert "fashion-mnist/iid/n20/seed0: stopped after round 1; the next run goes on from there" in told


def test_a_checkpoint_that_is_damaged_or_of_other_code_is_not_gone_on_from(begun, told, monkeypatch, caplog):
    folder, before = begun
    run(folder, told, minutes=1e-9)
    (path,) = (folder / "in-flight").rglob("*.npz")
    assert "1 arms stopped before their end" in status(folder, cells=[IID], settings=SETTINGS_HERE).cells[0].reason
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    rounds, done = stopping(math.inf, None)
    monkeypatch.setattr(batch, "train_many", rounds)
    run(folder, told, minutes=1e-9)
    assert "not a whole checkpoint" in caplog.text
    assert "Its training starts anew." in caplog.text
    other = path.parent.with_name("other-code")
    path.parent.rename(other)
    run(folder, told)
    assert done == [1, 1, 2, 3, 4]
    assert same_results(folder, before)
    assert other.exists()  # it is not ours


def test_a_training_in_pieces_began_with_its_first_and_took_the_sum_of_all(begun, told, monkeypatch):
    folder, _ = begun
    clock = iter(datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(8))

    class Clock:
        @staticmethod
        def now(zone):
            return next(clock)

    def of_a_second(model, arms):
        for records in train_many(model, arms):
            yield {name: replace(record, seconds=1.0) for name, record in records.items()}

    monkeypatch.setattr(batch, "datetime", Clock)
    monkeypatch.setattr(batch, "train_many", of_a_second)
    for _ in range(8):  # two arms of four rounds, a round at a time
        run(folder, told, minutes=1e-9)
    found = {str(arm): each for arm, each in read_cell(folder, IID, SETTING).items()}
    assert [found[name].started for name in LOST] == ["2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"]
    assert [found[name].seconds for name in LOST] == [SETTING.num_rounds, SETTING.num_rounds]
    assert not (folder / "in-flight").exists()


def test_work_can_be_done_in_short_runs(finished, tmp_path, told):
    shutil.copy(unit_path(finished[0], NAME), tmp_path)
    counts = []
    while missing_arms(tmp_path, SKEWED, SETTING):
        done = run(tmp_path, told, [SKEWED], at_most_arms=5)
        counts.append(done.trained)
        assert done.out_of_time == bool(missing_arms(tmp_path, SKEWED, SETTING))
    assert counts == [5, 5, 2]
    assert not cell_path(tmp_path, IID).exists()  # another cell than was asked for


def test_a_run_takes_only_what_should_fit_by_what_earlier_ones_took(tmp_path, told, monkeypatch):
    run(tmp_path, told, at_most_arms=2)
    told.clear()
    monkeypatch.setattr(module, "seconds_per_arm", lambda *known: 100.0)
    done = run(tmp_path, told, minutes=1.0)
    assert done.trained == 1  # never fewer
    assert done.out_of_time
    assert "about 100 s for an arm, 60 s left: 1 of" in told[0]
    told.clear()
    run(tmp_path, told, minutes=4.5)
    assert "about 100 s for an arm, 270 s left: 2 of" in told[0]


@pytest.mark.parametrize(("spoilt", "refused"), [(11, True), (10, False)])
def test_arms_whose_updates_are_mostly_no_numbers_are_not_filed(told, monkeypatch, spoilt, refused):
    def spoiling(model, arms):
        for records in train_many(model, arms):
            yield {name: replace(record, diverged=tuple(map(str, range(spoilt)))) for name, record in records.items()}

    monkeypatch.setattr(batch, "train_many", spoiling)
    case = Case(IID, SETTING, clients_of(IID, SETTING, drawn()))
    jobs = [(ArmName("social_agnostic", "noise_aware"), 1e-3)]
    if refused:
        with pytest.raises(BadInput, match=r"33 of the first 60 updates of social_agnostic.* hold NaN"):
            trained(case, jobs, "cpu", "float32", provenance_here(), tell=told.append)
    else:
        (found,) = trained(case, jobs, "cpu", "float32", provenance_here(), tell=told.append)
        assert found.diverged == 10 * SETTING.num_rounds
        assert any("(10 diverged)" in line for line in told)


def test_where_git_is_missing_the_commit_is_told_or_unknown(tmp_path, told, monkeypatch):
    monkeypatch.setattr(module, "provenance_here", lambda device: replace(provenance_here(device), commit=""))
    run(tmp_path, told, at_most_arms=1)
    monkeypatch.setenv("MPPFL_COMMIT", "abc123")
    run(tmp_path, told, at_most_arms=1)
    assert [each.commit for each in read_trials(tmp_path, IID, SETTING)] == ["unknown", "abc123"]


def test_data_that_are_not_there_stop_nobody_else(tmp_path, told):
    elsewhere = Cell("svhn", "iid", 20, 0)
    done = run(tmp_path, told, [elsewhere, IID], at_most_arms=1)
    assert done.unavailable == ("svhn",)
    assert done.trained == 1
    assert "svhn: not measured: data not available" in told


def test_a_file_of_another_configuration_is_refused(tmp_path, told):
    run(tmp_path, told, at_most_arms=1)
    others = SETTINGS | {NAME: replace(SETTING, learning_rate=0.5)}
    with pytest.raises(BadFile, match=r"measured with learning_rate=0\.01, here it is 0\.5"):
        measure([IID], tmp_path, settings=others)
    assert unit_path(tmp_path, NAME).exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minutes": -1}, "minutes"),
        ({"at_most_arms": 0}, "at_most_arms"),
        ({"precision": "half"}, 'precision="half"'),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, told, options, said):
    with pytest.raises(BadInput, match=said) as caught:
        run(tmp_path, told, **options)
    assert "\n" not in str(caught.value)


GUARD = """
import sys

FORBIDDEN = {"typer", "click", "pydantic", "numba", "dp_accounting", "rich", "sklearn", "matplotlib"}

sys.modules |= dict.fromkeys(FORBIDDEN)  # importing one of these fails
from tests.reproduction import test_measure as here
here.module.loaded = here.drawn
done = here.measure([here.IID], sys.argv[1], settings=here.SETTINGS_HERE, at_most_arms=8)
print(done.trained)
"""


def test_measuring_needs_torch_numpy_and_scipy_alone(tmp_path):
    line = [sys.executable, "-c", GUARD, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "8", done.stderr
    assert len(every_training(tmp_path)) == 8
    assert all(math.isfinite(each.accuracy) for _, each in every_training(tmp_path))
    assert place_of_unit(NAME) == IID


def test_a_stopped_run_of_other_settings_is_left_alone(begun, told):
    folder, _ = begun
    run(folder, told, minutes=1e-9)
    (stopped,) = (folder / "in-flight").rglob("*.npz")
    longer = SETTINGS | {NAME: replace(SETTING, num_rounds=5)}
    elsewhere = folder / "elsewhere"
    shutil.copytree(folder / "in-flight", elsewhere / "in-flight")
    done = measure([IID], elsewhere, settings=longer, tell=told.append, at_most_arms=1)
    assert done.trained == 1
    assert [path.name for path in (elsewhere / "in-flight").rglob("*.npz")] == [stopped.name]
