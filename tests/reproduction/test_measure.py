"""Cells are trained side by side, filed as soon as they are done, and never trained twice."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
from reproduction.cells import NOISELESS, ArmName, Cell, arms_of
from reproduction.measure import measure, missing_arms
from reproduction.settings import SETTINGS
from reproduction.status import status
from reproduction.store import cell_path, every_training, read_cell, read_trials, unit_path
from reproduction.units import place_of_unit, units_of

from mppfl.data import Dataset, Examples
from mppfl.errors import BadFile, BadInput
from mppfl.experiment import provenance_here
from mppfl.training import train_many
from reproduction import batch, choice
from reproduction import measure as module
from tests.reproduction.test_cells import measured

NAME = "fashion-mnist"
SETTING = replace(
    SETTINGS[NAME], model="softmax", num_train=800, num_test=200, num_rounds=4, batch_size=8, local_epochs=1
)
SETTINGS_HERE = SETTINGS | {NAME: SETTING}
IID, SKEWED = Cell(NAME, "iid", 20, 0), Cell(NAME, "dir0.3", 20, 0)


def drawn(setting=SETTING, folder=None):
    """Pictures of a setting's classes, each a spot of light in a place of its own."""
    rng, (channels, *sides) = np.random.default_rng(0), setting.input_shape

    def part(size):
        labels = np.arange(size) % setting.num_classes
        pictures = rng.integers(0, 60, (size, *sides, channels))
        pictures[np.arange(size), 2 * (labels % 10), 2 * (labels // 10 + labels % 10) % 28] = 255
        return Examples(pictures.astype(np.uint8), labels)

    names, tenths = tuple(map(str, range(setting.num_classes))), (0.1,) * channels
    train, test = part(setting.num_train), part(setting.num_test)
    return Dataset(setting.dataset, train, test, names, "drawn", tenths, tenths)


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(module, "loaded", lambda setting, folder: drawn() if setting.dataset == NAME else None)
    return []


def run(folder, lines, cells=(IID,), **options):
    return measure(list(cells), folder, settings=SETTINGS_HERE, tell=lines.append, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one cell that was measured without a break, and what the run said of itself."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "loaded", drawn)
        return folder, run(folder, [])


def test_a_cell_has_all_its_arms_with_how_each_was_trained_and_the_trial_of_the_unit_is_one_of_them(finished):
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
    least, mean = (arms[ArmName(rule, "size")].fixed_budget for rule in ("fixed-min", "fixed-mean"))
    assert 0 < least < mean
    for arm, row in arms.items():
        assert row.curve["round"][-1] == row.num_rounds == 4
        assert row.curve["accuracy"][-1] == pytest.approx(row.accuracy, abs=1e-4)
        assert row.best_accuracy >= row.accuracy
        assert row.num_examples == 4 * 800
        assert row.tflop_per_second == pytest.approx(row.samples_per_second * row.gflop_per_example / 1e3, rel=1e-3)
        assert row.precision == "float32"
        assert (row.dp_epsilon is None) == (row.unit is None) == (arm.mechanism == "noiseless")
        assert row.budgets["participating"][0] > 0
        if arm.mechanism != "noiseless":
            means = zip(row.budgets["harmonic_mean"], row.budgets["mean"], strict=True)
            assert all(harmonic <= mean for harmonic, mean in means)


LOST = ("mppfl/size", "random/noise_aware")


@pytest.fixture
def begun(finished, tmp_path):
    """The same folder without two arms, and what its arms gave."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    before = results(tmp_path)
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


def results(folder):
    """What a training gives, however often it was stopped."""
    parts = attrgetter("curve", "budgets", "clip_norm", "num_rounds", "dp_epsilon")
    return {arm: parts(row) for arm, row in read_cell(folder, IID, SETTING).items()}


@pytest.mark.parametrize("how", [KeyboardInterrupt, RuntimeError("the machine is lost")])
def test_a_run_that_is_stopped_goes_on_from_where_it_was(begun, lines, monkeypatch, how):
    folder, before = begun
    monkeypatch.setattr(batch, "KEPT_EVERY", 0.0)  # who is stopped without warning has what was kept last
    with monkeypatch.context() as broken:
        broken.setattr(batch, "train_many", stopping(2, how)[0])
        with pytest.raises(type(how) if isinstance(how, Exception) else how):
            run(folder, lines)
    assert {str(arm) for arm in missing_arms(folder, IID, SETTING)} == set(LOST)
    rounds, done = stopping(math.inf, None)
    monkeypatch.setattr(batch, "train_many", rounds)
    assert run(folder, lines).trained == 2
    assert done == [3, 4]
    assert any("2 arms go on" in line for line in lines)
    assert results(folder) == before
    assert not (folder / "in-flight").exists()
    assert run(folder, lines).trained == 0  # what is there is not trained again


def test_a_checkpoint_that_is_damaged_or_of_other_code_or_settings_is_not_gone_on_from(
    begun, lines, monkeypatch, caplog
):
    folder, before = begun
    run(folder, lines, minutes=1e-9)
    (path,) = (folder / "in-flight").rglob("*.npz")
    assert "1 arms stopped before their end" in status(folder, cells=[IID], settings=SETTINGS_HERE).cells[0].reason
    elsewhere = folder / "elsewhere"
    shutil.copytree(folder / "in-flight", elsewhere / "in-flight")
    longer = SETTINGS | {NAME: replace(SETTING, num_rounds=5)}
    assert measure([IID], elsewhere, settings=longer, tell=lines.append, at_most_arms=1).trained == 1
    assert [other.name for other in (elsewhere / "in-flight").rglob("*.npz")] == [path.name]  # it is not ours
    path.write_bytes(path.read_bytes()[:100])
    rounds, done = stopping(math.inf, None)
    monkeypatch.setattr(batch, "train_many", rounds)
    run(folder, lines, minutes=1e-9)
    assert "not a whole checkpoint" in caplog.text
    assert "Its training starts anew." in caplog.text
    other = path.parent.with_name("other-code")
    path.parent.rename(other)
    run(folder, lines)
    assert done == [1, 1, 2, 3, 4]
    assert results(folder) == before
    assert other.exists()  # nor is this


def test_what_does_not_end_in_time_ends_in_later_runs_began_with_its_first_and_took_the_sum_of_all(
    begun, lines, monkeypatch
):
    folder, before = begun
    clock = iter(datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(8))

    def of_a_second(model, arms):
        for records in train_many(model, arms):
            yield {name: replace(record, seconds=1.0) for name, record in records.items()}

    monkeypatch.setattr(batch, "datetime", SimpleNamespace(now=lambda zone: next(clock)))
    monkeypatch.setattr(batch, "train_many", of_a_second)
    runs = [run(folder, lines, minutes=1e-9) for _ in range(8)]  # two arms of four rounds, a round at a time
    assert [done.trained for done in runs] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert [done.out_of_time for done in runs] == [True] * 7 + [False]
    assert "fashion-mnist/iid/n20/seed0: stopped after round 1; the next run goes on from there" in lines
    assert results(folder) == before
    rows = [row for arm, row in read_cell(folder, IID, SETTING).items() if str(arm) in LOST]
    assert sorted(row.started for row in rows) == [f"2026-01-01T0{hour}:00:00+00:00" for hour in (0, 1)]
    assert [row.seconds for row in rows] == [SETTING.num_rounds] * 2
    assert not (folder / "in-flight").exists()


def test_a_run_takes_only_what_should_fit_by_what_earlier_ones_took(tmp_path, lines, monkeypatch):
    run(tmp_path, lines, at_most_arms=2)
    lines.clear()
    monkeypatch.setattr(module, "seconds_per_arm", lambda *known: 100.0)
    done = run(tmp_path, lines, minutes=1.0)
    assert done.trained == 1  # never fewer
    assert done.out_of_time
    assert "about 100 s for an arm, 60 s left: 1 of" in lines[0]
    lines.clear()
    run(tmp_path, lines, minutes=4.5)
    assert "about 100 s for an arm, 270 s left: 2 of" in lines[0]


def test_data_that_are_not_there_stop_nobody_else_and_the_commit_is_told_or_unknown(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(module, "provenance_here", lambda device: replace(provenance_here(device), commit=""))
    done = run(tmp_path, lines, [Cell("svhn", "iid", 20, 0), IID], at_most_arms=1)
    assert (done.unavailable, done.trained) == (("svhn",), 1)
    assert "svhn: not measured: data not available" in lines
    monkeypatch.setenv("MPPFL_COMMIT", "abc123")
    run(tmp_path, lines, at_most_arms=1)
    assert [trial.commit for trial in read_trials(tmp_path, IID, SETTING)] == ["unknown", "abc123"]
    others = SETTINGS | {NAME: replace(SETTING, learning_rate=0.5)}
    with pytest.raises(BadFile, match=r"measured with learning_rate=0\.01, here it is 0\.5"):
        measure([IID], tmp_path, settings=others)
    assert unit_path(tmp_path, NAME).exists()


OPEN = "cifar-100"
OPEN_CELL = Cell(OPEN, "dir0.3", 20, 0)
OPEN_SETTING = replace(SETTINGS[OPEN], num_train=160, num_test=20, batch_size=8, local_epochs=1)
BEST = {"norm": "batch", "augmentation": "crop_and_flip"}


def variant(setting):
    """What a training of this variant would leave; nothing is trained: what is tested is the choice."""
    percent = {"group": 30.0, "batch": 40.0}[setting.norm] + (10.0 if setting.augmentation != "none" else 0.0)
    examples = setting.num_rounds * setting.local_epochs * setting.num_train
    return measured(NOISELESS, percent, None, num_examples=examples)


def settled(folder, setting=OPEN_SETTING, most=4):
    """The setting as chosen, and which variants were trained for it."""
    asked = []

    def train(tried):
        if len(asked) == most:
            return None
        asked.append((tried.norm, tried.augmentation))
        assert tried.num_rounds == min(choice.CHOICE_ROUNDS, setting.num_rounds)
        return variant(tried)

    return choice.settle_choice(folder, setting, train, lambda line: None), asked


def test_the_most_accurate_of_all_variants_is_chosen_for_its_data_set_and_none_is_trained_twice(tmp_path):
    assert settled(tmp_path, most=3) == (None, list(choice.VARIANTS[:3]))  # a choice among some is none, and goes on
    assert choice.read_choice(tmp_path, OPEN)["chosen"] is None
    assert choice.settings_of(tmp_path) == SETTINGS
    assert choice.missing_variants(tmp_path, OPEN_SETTING) == [choice.VARIANTS[3]]
    assert settled(tmp_path) == (replace(OPEN_SETTING, **BEST), [choice.VARIANTS[3]])
    assert settled(tmp_path) == (replace(OPEN_SETTING, **BEST), [])
    assert settled(tmp_path / "at once") == (replace(OPEN_SETTING, **BEST), list(choice.VARIANTS))
    assert choice.read_choice(tmp_path, OPEN)["chosen"] == BEST
    assert choice.settings_of(tmp_path) == SETTINGS | {OPEN: replace(SETTINGS[OPEN], **BEST)}
    assert choice.missing_variants(tmp_path, SETTINGS["svhn"]) == list(choice.VARIANTS)
    assert choice.missing_variants(tmp_path, SETTINGS["cifar-10"]) == []


def test_rehearsals_and_damaged_files_decide_nothing(tmp_path):
    settled(tmp_path)
    with pytest.raises(BadInput, match="has variants of 40 rounds, not 3"):
        settled(tmp_path, replace(OPEN_SETTING, num_rounds=3))
    with pytest.raises(BadInput, match="trained on 6400 examples, not 12800"):
        settled(tmp_path, replace(OPEN_SETTING, num_train=320))
    path = choice.choice_path(tmp_path, OPEN)
    content = json.loads(path.read_text())
    unknown = [*content["variants"], content["variants"][0] | {"norm": "layer"}]
    for wrong, message in (
        (json.dumps(content | {"chosen": {"norm": "group", "augmentation": "none"}}), "is not what its variants say"),
        (json.dumps(content | {"variants": unknown}), "is no variant that is tried"),
        ("{", "cannot be read as a choice"),
    ):
        path.write_text(wrong)
        with pytest.raises(BadFile, match=message):
            choice.settings_of(tmp_path)


@pytest.fixture
def trainings(monkeypatch):
    """Drawn pictures, and trainings that take no time: (norm, augmentation, rounds, arms) of each batch."""
    asked = []

    def trained(case, jobs, *args, **options):
        setting = case.setting
        asked.append((setting.norm, setting.augmentation, setting.num_rounds, [str(arm) for arm, _ in jobs]))
        return [replace(variant(setting), arm=arm, unit=unit) for arm, unit in jobs]

    monkeypatch.setattr(module, "loaded", lambda setting, folder: drawn(OPEN_SETTING))
    monkeypatch.setattr(batch, "trained", trained)
    return asked


def run_open(folder, **options):
    settings = SETTINGS | {OPEN: OPEN_SETTING}
    return measure([OPEN_CELL], folder, settings=settings, tell=lambda line: None, **options)


def test_what_is_open_is_chosen_before_the_unit_holds_for_every_cell_and_is_part_of_what_is_left(tmp_path, trainings):
    def left():
        cells = [OPEN_CELL, Cell("cifar-10", "iid", 20, 0)]
        return status(tmp_path, cells=cells, settings=SETTINGS | {OPEN: OPEN_SETTING})

    assert left().variants == {OPEN: 4}
    assert run_open(tmp_path, at_most_arms=3).out_of_time
    assert left().variants == left().as_dict()["variants"] == {OPEN: 1}
    assert run_open(tmp_path, at_most_arms=3).out_of_time
    assert left().variants == {}
    tried = [(norm, augmentation, 40, ["noiseless/size"]) for norm, augmentation in choice.VARIANTS]
    assert trainings[:4] == tried
    assert all(training[:3] == ("batch", "crop_and_flip", 100) for training in trainings[4:])
    assert sum(len(training[3]) for training in trainings) == 6
    assert len(read_trials(tmp_path, place_of_unit(OPEN), replace(OPEN_SETTING, **BEST))) == 2
    run_open(tmp_path, at_most_arms=1)
    assert trainings[-1][:3] == ("batch", "crop_and_flip", 100)


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
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "8", done.stderr
    assert len(every_training(tmp_path)) == 8
    assert all(math.isfinite(row.accuracy) for _, row in every_training(tmp_path))
    assert place_of_unit(NAME) == IID
