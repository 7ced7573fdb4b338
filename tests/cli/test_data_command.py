"""mppfl data: list, check and get."""

from __future__ import annotations

import sys

import pytest

from mppfl.data import Examples, find_files, has_hub
from tests.data.drawn import draw, small, write_npz
from tests.homes import home


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch):
    monkeypatch.delenv("MPPFL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr(home(has_hub), "has_hub", lambda: False)
    monkeypatch.setattr(home(find_files), "has_hub", lambda: False)


@pytest.fixture
def small_svhn(monkeypatch):
    monkeypatch.setattr(home(find_files), "KNOWN", {"svhn": small("svhn")})


def test_list_tells_what_there_is_what_is_here_and_which_files_a_set_lacks(mppfl, tmp_path):
    def rows():
        return {row["name"]: row for row in mppfl("data", "list", "--folder", tmp_path, "--json").json["data_sets"]}

    (tmp_path / "svhn").mkdir()
    write_npz(tmp_path / "svhn", draw((32, 32, 3)))
    listed = rows()
    assert list(listed) == ["digits", "fashion-mnist", "cifar-10", "cifar-100", "svhn", "cinic-10"]
    assert {name: row["here"] for name, row in listed.items() if row["here"]} == {"digits": "built in", "svhn": ".npz"}
    (tmp_path / "svhn" / "test.npz").unlink()
    batches = tmp_path / "cifar-10-batches-bin"
    batches.mkdir()
    for number in (1, 2, 4):
        (batches / f"data_batch_{number}.bin").touch()
    (batches / "test_batch.bin").touch()
    answer = mppfl("data", "list", "--folder", tmp_path)
    lines = answer.stdout.splitlines()
    assert "svhn              73,257  26,032       10  in part        house numbers" in answer.stdout
    assert f"test.npz of svhn is missing in {tmp_path / 'svhn'}. Fetch what is missing, or remove the rest." in lines
    assert f"data_batch_3.bin, data_batch_5.bin of cifar-10 are missing in {batches}" in answer.stdout
    listed = rows()
    svhn = [listed["svhn"][key] for key in ("here", "folder", "missing")]
    assert svhn == [None, str(tmp_path / "svhn"), ["test.npz"]]
    assert listed["cifar-10"]["missing"] == ["data_batch_3.bin", "data_batch_5.bin"]


def test_check_reads_aloud(mppfl):
    answer = mppfl("data", "check", "digits")
    lines = answer.stdout.splitlines()
    assert (answer.code, answer.stderr) == (0, "")
    assert "examples        1,433 to train, 364 to test; 8 x 8 x 1, float32" in lines
    assert "  3                  146      37" in lines
    assert lines[-1] == "sound"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("check", "svhn"), "MPPFL_DATA is not set"),
        (("check", "weather"), "Known: digits"),
        (("get", "svhn"), "Give --folder"),
        (("get", "svhn", "--folder", "."), "mppfl[hub]"),
        (("get", "digits"), "built in"),
    ],
)
def test_what_cannot_be_checked_or_fetched_is_told_in_one_line(mppfl, tmp_path, monkeypatch, line, told):
    monkeypatch.chdir(tmp_path)
    assert told in mppfl("data", *line).error
    assert list(tmp_path.iterdir()) == []


def test_get_keeps_what_the_hub_gave_with_its_provenance(mppfl, tmp_path, monkeypatch, small_svhn):
    parts = {part: Examples(*drawn) for part, drawn in draw((32, 32, 3)).items()}
    monkeypatch.setattr(home(find_files), "read_hub", lambda known: (*parts.values(), "Hugging Face hub, svhn"))
    answer = mppfl("data", "get", "svhn", "--folder", tmp_path / "new")
    assert answer.stdout == f"{tmp_path / 'new' / 'svhn'}: 9 examples to train, 4 to test\n"
    assert sorted(path.name for path in (tmp_path / "new" / "svhn").iterdir()) == ["test.npz", "train.npz"]
    found = mppfl("data", "check", "svhn", "--folder", tmp_path / "new", "--json").json
    assert found["provenance"] == "Hugging Face hub, svhn, kept as .npz"
    assert "is there already" in mppfl("data", "get", "svhn", "--folder", tmp_path / "new").error
