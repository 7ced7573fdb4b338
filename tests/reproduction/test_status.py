"""Where the reproduction stands: measured, partly, missing, not measurable, and for how long."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from reproduction.cells import CELLS, NOISELESS, Cell, arms_of, gflop_per_example
from reproduction.settings import SETTINGS
from reproduction.status import status
from reproduction.store import add_arms, add_trials, note_unavailable
from reproduction.units import FALLBACK

from reproduction import status as module
from tests.reproduction.test_store import measured
from tests.reproduction.test_tables import row_of

IID, SKEWED = Cell("cifar-10", "iid", 20, 0), Cell("cifar-10", "dir0.3", 20, 0)
SETTING = SETTINGS["cifar-10"]


@pytest.fixture
def here(monkeypatch):
    """Only CIFAR-10 is there."""
    whole = SimpleNamespace(missing=())
    monkeypatch.setattr(module, "find_files", lambda name, folder: whole if name == "cifar-10" else None)


def fill(folder, cell, count=None):
    add_arms(folder, cell, SETTING, [measured(arm, 60.0) for arm in arms_of(cell)[:count]])


def test_nothing_measured_leaves_hours_unknown(tmp_path, here):
    found = status(tmp_path)
    assert len(found.cells) == len(CELLS)
    assert (found.count("measured"), found.count("partly")) == (0, 0)
    assert found.count("missing") == len(CELLS)
    assert {each.cell.dataset for each in found.cells if each.reason == "not yet trained"} == {"cifar-10"}
    assert (found.hours_left, found.device) == (None, "")
    assert found.unit_trials["cifar-10"] == 7


def test_files_that_are_elsewhere_are_told_from_data_that_nobody_had(tmp_path, here):
    note_unavailable(tmp_path, "svhn")
    cells = [Cell(name, "iid", 20, 0) for name in ("cifar-10", "cifar-100", "svhn")]
    found = status(tmp_path, cells=cells)
    assert [(each.state, each.reason) for each in found.cells] == [
        ("missing", "not yet trained"),
        ("missing", "not yet trained; no files here"),
        ("not measurable", "data not available"),
    ]
    assert [row_of(tmp_path, cell).verdict for cell in cells[1:]] == [  # as docs/reproduction.md says it
        "not measured: not yet trained",
        "not measured: data not available",
    ]
    assert found.as_dict()["not_here"] == found.not_here == {
        "cifar-100": "cifar-100: no files here. Give --data DIR or set MPPFL_DATA to the folder of the official files "
        "(https://www.cs.toronto.edu/~kriz/cifar.html), or install mppfl[hub] and run `mppfl data get cifar-100 "
        "--folder DIR`.",
        "svhn": "svhn: data not available. Give --data DIR or set MPPFL_DATA to the folder of the official files "
        "(http://ufldl.stanford.edu/housenumbers), or install mppfl[hub] and run `mppfl data get svhn --folder DIR`.",
    }  # fmt: skip


def test_a_measured_cell_needs_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_files", lambda name, folder: None)
    fill(tmp_path, IID)
    fill(tmp_path, SKEWED, 5)
    assert status(tmp_path, cells=[IID]).not_here == {}
    found = status(tmp_path, cells=[IID, SKEWED])
    assert [(each.state, each.reason) for each in found.cells] == [("measured", ""), ("partly", "no files here")]
    assert list(found.not_here) == ["cifar-10"]


def test_files_that_are_here_in_part_are_named(tmp_path):
    place = tmp_path / "data" / "cifar-100"
    place.mkdir(parents=True)
    (place / "train.npz").touch()
    found = status(tmp_path, data=tmp_path / "data", cells=[Cell("cifar-100", "iid", 20, 0)])
    assert (found.cells[0].state, found.cells[0].reason) == ("missing", "not yet trained; files here in part")
    assert found.not_here["cifar-100"].startswith(f"test.npz of cifar-100 is missing in {place}. Give --data DIR")


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


def test_where_the_protocol_fixes_the_unit_sa_is_still_to_be_trained(tmp_path, here):
    arms = arms_of(IID)
    below = [measured(NOISELESS, 60.0, unit=None)]  # the paper's SA has 66.49: no trial of SA was needed
    add_trials(tmp_path, IID, SETTING, below)
    found = status(tmp_path, cells=[IID])
    assert found.unit_trials == {"cifar-10": 0}
    assert found.hours_left == pytest.approx((12 - 1) * 50 / 3600)  # all but noiseless
    add_trials(tmp_path, IID, SETTING, [measured(arms[0], 50.0, unit=FALLBACK), measured(arms[5], 50.0, unit=5e-4)])
    assert status(tmp_path, cells=[IID]).hours_left == pytest.approx((12 - 2) * 50 / 3600)  # one SA with that unit


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
