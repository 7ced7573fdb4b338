"""What the paper leaves open is chosen among all variants, once, and the settings say what the file says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mppfl.data.dataset import Dataset, Examples
from mppfl.errors import BadFile, BadInput
from mppfl.results.paper import batch
from mppfl.results.paper import choose as module
from mppfl.results.paper.choose import VARIANTS, choice_path, choose, read_choice
from mppfl.results.paper.settings import SETTINGS

COMMITTED = Path(__file__).parents[3] / "results" / "paper"
HERE = SETTINGS | {
    "cifar-100": replace(SETTINGS["cifar-100"], num_train=160, num_test=20, batch_size=8, local_epochs=1)
}


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    def pictures(size, seed):
        rng = np.random.default_rng(seed)
        return Examples(rng.integers(0, 255, (size, 32, 32, 3)).astype(np.uint8), np.arange(size) % 100)

    names, half = tuple(f"c{k}" for k in range(100)), (0.5,) * 3
    dataset = Dataset("cifar-100", pictures(160, 0), pictures(20, 1), 100, names, "drawn", half, half)
    monkeypatch.setattr(module, "loaded", lambda setting, folder: dataset)


@pytest.fixture
def quick(monkeypatch):
    """Trains nothing, and gives each variant an accuracy of its own: what is tested is the choice."""
    asked = []

    def trained(case, jobs, device, precision, origin, tell):
        setting = case.setting
        asked.append((setting.norm, setting.augmentation))
        reached = {"group": 0.3, "batch": 0.4}[setting.norm] + (0.1 if setting.augmentation != "none" else 0)
        return [FOUND(reached)]

    monkeypatch.setattr(module, "trained", trained)
    return asked


class FOUND:
    def __init__(self, accuracy):
        self.accuracy = accuracy

    def as_dict(self):
        return {"accuracy": self.accuracy}


def test_the_most_accurate_of_all_variants_is_chosen_and_none_is_trained_twice(tmp_path, quick):
    told = []
    assert choose("cifar-100", tmp_path, 3, settings=HERE, tell=told.append) == {
        "norm": "batch",
        "augmentation": "crop_and_flip",
    }
    assert quick == list(VARIANTS)
    assert choose("cifar-100", tmp_path, 3, settings=HERE, tell=told.append)["norm"] == "batch"
    assert quick == list(VARIANTS)
    assert read_choice(tmp_path, "cifar-100")["chosen"]["norm"] == "batch"


def test_a_choice_among_some_is_no_choice(tmp_path, quick):
    choose("cifar-100", tmp_path, 3, settings=HERE, tell=lambda line: None)
    content = json.loads(choice_path(tmp_path, "cifar-100").read_text())
    content["variants"].pop()
    content["chosen"] = None
    choice_path(tmp_path, "cifar-100").write_text(json.dumps(content))
    assert choose("cifar-100", tmp_path, 3, settings=HERE, tell=lambda line: None)["norm"] == "batch"
    assert len(quick) == len(VARIANTS) + 1


def test_other_rounds_other_data_sets_and_damaged_files_are_refused(tmp_path, quick):
    choose("cifar-100", tmp_path, 3, settings=HERE, tell=lambda line: None)
    with pytest.raises(BadInput, match="variants of 3 rounds, not 5"):
        choose("cifar-100", tmp_path, 5, settings=HERE)
    with pytest.raises(BadInput, match="'cifar-10' leaves nothing to choose"):
        choose("cifar-10", tmp_path, 3)
    choice_path(tmp_path, "cifar-100").write_text("{")
    with pytest.raises(BadFile, match="cannot be read as a choice"):
        read_choice(tmp_path, "cifar-100")


@pytest.mark.slow
def test_a_variant_is_really_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "VARIANTS", (("group", "crop_and_flip"),))
    assert module.trained is batch.trained
    found = choose("cifar-100", tmp_path, 1, settings=HERE, tell=lambda line: None)
    assert found == {"norm": "group", "augmentation": "crop_and_flip"}
    assert 0 <= read_choice(tmp_path, "cifar-100")["variants"][0]["accuracy"] <= 1


@pytest.mark.parametrize("dataset", ["cifar-100", "svhn"])
def test_the_settings_say_what_was_chosen(dataset):
    chosen = read_choice(COMMITTED, dataset)["chosen"]
    if chosen is None:
        assert (SETTINGS[dataset].norm, SETTINGS[dataset].augmentation) == ("group", "none")  # nothing chosen yet
    else:
        assert (SETTINGS[dataset].norm, SETTINGS[dataset].augmentation) == (chosen["norm"], chosen["augmentation"])
