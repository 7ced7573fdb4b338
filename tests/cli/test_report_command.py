"""mppfl report: folders of runs in, one page out."""

from __future__ import annotations

import pytest

from tests.experiment.runs import make_run


@pytest.fixture
def folder(tmp_path):
    for name in ("mppfl", "dp_fedavg"):
        make_run(name, num_clients=4, num_rounds=3).save(tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_runs_become_one_page_in_the_current_folder_or_where_asked(mppfl, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = mppfl("report", folder)
    assert (answer.code, answer.stdout) == (0, "report.html\n")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "dp_fedavg" in text
    assert "4 clients learn digits" in text
    target = tmp_path / "page.html"
    answer = mppfl("report", folder / "mppfl", folder, folder / "dp_fedavg", "--output", target, "--json")  # shown once
    assert answer.json == {"path": str(target), "runs": ["mppfl", "dp_fedavg"], "bytes": target.stat().st_size}


def test_failures_are_one_line_and_leave_no_page(mppfl, folder, tmp_path):
    target = tmp_path / "page.html"
    (tmp_path / "empty").mkdir()
    whole = (folder / "dp_fedavg" / "arrays.npz").read_bytes()
    (folder / "dp_fedavg" / "arrays.npz").write_bytes(whole[:100])
    for folders, output, message in (
        ((), target, "report needs a folder of a run"),
        ((tmp_path / "none",), target, "no such folder"),
        ((tmp_path / "empty",), target, "neither a run nor a folder with runs"),
        ((folder,), target, "arrays.npz: damaged, or changed"),
        ((folder / "mppfl",), tmp_path, "is a directory"),
        ((folder / "mppfl",), tmp_path / "page.pdf", "must end in .html"),
    ):
        assert message in mppfl("report", *folders, "--output", output).error
    assert not target.exists()
