"""mppfl report: folders of runs in, one page out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer

from mppfl.cli import main, report_command
from tests.experiment.runs import make_run
from tests.homes import home

cli = home(main)


@pytest.fixture
def report(monkeypatch, capsys):
    """Runs `mppfl report ...` and gives exit code, stdout and stderr."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.command("report")(report_command)
    monkeypatch.setattr(cli, "app", app)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["mppfl", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call


@pytest.fixture
def folder(tmp_path):
    for name in ("mppfl", "fixed"):
        make_run(name, num_clients=4, num_rounds=3).save(tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_a_folder_of_runs_becomes_one_page(report, folder, tmp_path):
    target = tmp_path / "page.html"
    code, out, _ = report(folder, "--output", target)
    assert (code, out) == (0, f"{target}\n")
    text = target.read_text(encoding="utf-8")
    assert "fixed" in text
    assert "4 clients learn digits" in text


def test_runs_given_twice_are_shown_once(report, folder, tmp_path):
    target = tmp_path / "page.html"
    code, out, _ = report(folder / "mppfl", folder, folder / "fixed", "--output", target, "--json")
    assert code == 0
    assert json.loads(out) == {"path": str(target), "runs": ["mppfl", "fixed"], "bytes": target.stat().st_size}


def test_the_page_goes_into_the_current_folder_by_default(report, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report(folder / "mppfl")[:2] == (0, "report.html\n")
    assert (tmp_path / "report.html").exists()


def test_failures_are_one_line_and_leave_no_page(report, folder, tmp_path):
    target = tmp_path / "page.html"
    (tmp_path / "empty").mkdir()
    whole = (folder / "fixed" / "arrays.npz").read_bytes()
    (folder / "fixed" / "arrays.npz").write_bytes(whole[:100])
    for arguments, wanted in (
        ((tmp_path / "none",), "no such folder"),
        ((tmp_path / "empty",), "neither a run nor a folder with runs"),
        ((folder,), "arrays.npz: damaged, or changed"),
        ((folder / "mppfl", "--output", tmp_path), "is a directory"),
        ((folder / "mppfl", "--output", tmp_path / "page.pdf"), "must end in .html"),
    ):
        options = arguments if "--output" in arguments else (*arguments, "--output", target)
        code, out, err = report(*options)
        assert (code, out) == (1, "")
        assert wanted in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    assert not target.exists()


def test_the_paper_measured_again_is_a_page_too(report, tmp_path, monkeypatch):
    root = Path(__file__).parents[2]
    target = tmp_path / "paper.html"
    code, out, _ = report("--paper", root / "results" / "paper", "--output", target, "--json")
    assert (code, json.loads(out)["folder"]) == (0, str(root / "results" / "paper"))
    text = target.read_text("utf-8")
    assert "Tables 1 and 2" in text
    assert "Accuracy round by round" in text
    monkeypatch.chdir(root)
    assert report("--paper", "--output", target)[0] == 0  # the folder of the repository, where none is named


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "report needs a folder of a run"),
        (["--paper", "one", "two"], "makes a page of one folder of results, and 2 are given"),
        (["--paper", "."], "holds no results of the paper"),
        (["--paper", "nowhere"], "holds no results of the paper"),
    ],
)
def test_a_page_needs_something_to_show(report, tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    code, _, said = report(*arguments)
    assert code == 1
    assert told in said
    assert not (tmp_path / "report.html").exists()
