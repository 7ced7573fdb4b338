"""mppfl report: folders of runs in, one page out."""

from __future__ import annotations

import json
import sys

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


def test_a_page_needs_something_to_show(report):
    code, _, message = report()
    assert code == 1
    assert "report needs a folder of a run" in message
