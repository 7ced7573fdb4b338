"""Where the reproduction stands: measured, partly, missing, not measurable, and for how long."""

from __future__ import annotations

import pytest

from mppfl.results.paper import status as module
from mppfl.results.paper.cells import CELLS, Cell, arms_of, gflop_per_example
from mppfl.results.paper.settings import SETTINGS
from mppfl.results.paper.status import status
from mppfl.results.paper.store import add_arms, add_trials
from tests.results.paper.test_store import measured

IID, SKEWED = Cell("cifar-10", "iid", 20, 0), Cell("cifar-10", "dir0.3", 20, 0)
SETTING = SETTINGS["cifar-10"]


@pytest.fixture
def here(monkeypatch):
    """Only CIFAR-10 is there."""
    monkeypatch.setattr(module, "find_files", lambda name, folder: name if name == "cifar-10" else None)


def fill(folder, cell, count=None):
    add_arms(folder, cell, SETTING, [measured(arm, 60.0) for arm in arms_of(cell)[:count]])


def test_nothing_measured_leaves_hours_unknown(tmp_path, here):
    found = status(tmp_path)
    assert len(found.cells) == len(CELLS)
    assert (found.count("measured"), found.count("partly")) == (0, 0)
    assert {each.cell.dataset for each in found.cells if each.state == "missing"} == {"cifar-10"}
    assert {each.reason for each in found.cells if each.state == "not measurable"} == {"data not available"}
    assert (found.hours_left, found.device) == (None, "")
    assert found.unit_trials["cifar-10"] == 7


def test_cells_are_whole_or_in_part(tmp_path, here):
    fill(tmp_path, IID)
    fill(tmp_path, SKEWED, 5)
    found = {each.cell: each for each in status(tmp_path).cells}
    assert (found[IID].state, found[IID].hours) == ("measured", 0.0)
    assert (found[SKEWED].state, found[SKEWED].measured, found[SKEWED].arms) == ("partly", 5, 12)
    assert found[SKEWED].hours == pytest.approx(7 * 50 / 3600)  # what arms of this data set took


def test_other_data_sets_are_estimated_by_their_arithmetic(tmp_path, here):
    fill(tmp_path, IID)
    vgg = SETTINGS["cifar-100"]
    each = next(each for each in status(tmp_path).cells if each.cell.dataset == "cifar-100")
    per_gflop = 50 / 20_000_000 / 0.1
    seconds = 100 * 5 * 50_000 * gflop_per_example(vgg) * per_gflop
    assert each.hours == pytest.approx(7 * seconds / 3600)
    assert status(tmp_path).hours_left > each.hours


def test_trials_of_the_unit_are_counted_by_themselves(tmp_path, here):
    fill(tmp_path, SKEWED, 5)
    found = status(tmp_path, cells=[IID])
    assert found.cells[0].hours == pytest.approx((12 - 3) * 50 / 3600)  # SA twice and noiseless come from trials
    assert found.unit_hours == pytest.approx(7 * 50 / 3600)
    assert found.hours_left == pytest.approx((9 + 7) * 50 / 3600)


def test_a_fixed_unit_needs_no_more_trials(tmp_path, here):
    arms = arms_of(IID)
    add_trials(
        tmp_path,
        IID,
        SETTING,
        [measured(arms[-1], 70.0, unit=None), measured(arms[0], 66.49), measured(arms[5], 66.49)],
    )
    assert status(tmp_path, cells=[IID]).unit_trials == {"cifar-10": 0}


def test_the_object_for_programs_says_the_same(tmp_path, here):
    fill(tmp_path, IID)
    found = status(tmp_path, cells=[IID, SKEWED]).as_dict()
    assert found["counts"] == {"measured": 1, "partly": 0, "missing": 1, "not measurable": 0}
    assert [each["cell"] for each in found["cells"]] == [IID.path, SKEWED.path]
    assert (found["device"], found["precision"]) == ("a GPU", "bf16")
