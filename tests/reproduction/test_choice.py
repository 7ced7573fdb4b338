"""What the paper leaves open is chosen among all variants, once, before anything else is trained of a data set."""

import json
from dataclasses import replace

import pytest
from reproduction.cells import NOISELESS, Cell
from reproduction.settings import SETTINGS
from reproduction.status import status
from reproduction.store import read_trials
from reproduction.units import place_of_unit

from mppfl.errors import BadFile, BadInput
from reproduction import batch, choice, measure
from tests.reproduction.test_cells import measured
from tests.reproduction.test_measure import drawn

NAME = "cifar-100"
CELL = Cell(NAME, "dir0.3", 20, 0)
SETTING = replace(SETTINGS[NAME], num_train=160, num_test=20, batch_size=8, local_epochs=1)
BEST = {"norm": "batch", "augmentation": "crop_and_flip"}


def variant(setting):
    """What a training of this variant would leave; nothing is trained: what is tested is the choice."""
    percent = {"group": 30.0, "batch": 40.0}[setting.norm] + (10.0 if setting.augmentation != "none" else 0.0)
    examples = setting.num_rounds * setting.local_epochs * setting.num_train
    return measured(NOISELESS, percent, None, num_examples=examples)


def settled(folder, setting=SETTING, most=4):
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
    assert choice.read_choice(tmp_path, NAME)["chosen"] is None
    assert choice.settings_of(tmp_path) == SETTINGS
    assert choice.missing_variants(tmp_path, SETTING) == [choice.VARIANTS[3]]
    assert settled(tmp_path) == (replace(SETTING, **BEST), [choice.VARIANTS[3]])
    assert settled(tmp_path) == (replace(SETTING, **BEST), [])
    assert settled(tmp_path / "at once") == (replace(SETTING, **BEST), list(choice.VARIANTS))
    assert choice.read_choice(tmp_path, NAME)["chosen"] == BEST
    assert choice.settings_of(tmp_path) == SETTINGS | {NAME: replace(SETTINGS[NAME], **BEST)}
    assert choice.missing_variants(tmp_path, SETTINGS["svhn"]) == list(choice.VARIANTS)
    assert choice.missing_variants(tmp_path, SETTINGS["cifar-10"]) == []


def test_rehearsals_and_damaged_files_decide_nothing(tmp_path):
    settled(tmp_path)
    with pytest.raises(BadInput, match="has variants of 40 rounds, not 3"):
        settled(tmp_path, replace(SETTING, num_rounds=3))
    with pytest.raises(BadInput, match="trained on 6400 examples, not 12800"):
        settled(tmp_path, replace(SETTING, num_train=320))
    path = choice.choice_path(tmp_path, NAME)
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


# ---- as a part of measuring ---------------------------------------------------------------------------------------


@pytest.fixture
def trainings(monkeypatch):
    """Drawn pictures, and trainings that take no time: (norm, augmentation, rounds, arms) of each batch."""
    asked = []

    def trained(case, jobs, *args, **options):
        setting = case.setting
        asked.append((setting.norm, setting.augmentation, setting.num_rounds, [str(arm) for arm, _ in jobs]))
        return [replace(variant(setting), arm=arm, unit=unit) for arm, unit in jobs]

    monkeypatch.setattr(measure, "loaded", lambda setting, folder: drawn(SETTING))
    monkeypatch.setattr(batch, "trained", trained)
    return asked


def run(folder, **options):
    settings = SETTINGS | {NAME: SETTING}
    return measure.measure([CELL], folder, settings=settings, tell=lambda line: None, **options)


def test_what_is_open_is_chosen_before_the_unit_holds_for_every_cell_and_is_part_of_what_is_left(tmp_path, trainings):
    def left():
        cells = [CELL, Cell("cifar-10", "iid", 20, 0)]
        return status(tmp_path, cells=cells, settings=SETTINGS | {NAME: SETTING})

    assert left().variants == {NAME: 4}
    assert run(tmp_path, at_most_arms=3).out_of_time
    assert left().variants == left().as_dict()["variants"] == {NAME: 1}
    assert run(tmp_path, at_most_arms=3).out_of_time
    assert left().variants == {}
    tried = [(norm, augmentation, 40, ["noiseless/size"]) for norm, augmentation in choice.VARIANTS]
    assert trainings[:4] == tried
    assert all(training[:3] == ("batch", "crop_and_flip", 100) for training in trainings[4:])
    assert sum(len(training[3]) for training in trainings) == 6
    assert len(read_trials(tmp_path, place_of_unit(NAME), replace(SETTING, **BEST))) == 2
    run(tmp_path, at_most_arms=1)
    assert trainings[-1][:3] == ("batch", "crop_and_flip", 100)
