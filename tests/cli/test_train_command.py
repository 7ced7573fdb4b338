"""mppfl train, mppfl compare --train and mppfl report: what they print, where results lie, and how they go on."""

from __future__ import annotations

import sys

import pytest

from mppfl import experiment as experiments
from mppfl.experiment import load_run
from mppfl.experiment import run_experiment as trained
from tests.experiment.runs import make_run
from tests.experiment.small import small
from tests.experiment.test_tracking import fake_mlflow


@pytest.fixture
def experiment(write):
    """A training of a second."""
    return write("small.toml", small(game={"num_rounds": 3}, output={"checkpoint_every": 10}).to_toml())


def test_results_go_to_stdout_and_progress_to_stderr(mppfl, experiment, tmp_path):
    answer = mppfl("train", experiment, "--output", tmp_path / "out")
    assert answer.code == 0, answer.stderr
    assert answer.stdout.count("noise_aware") == 2
    assert "dp_fedavg: fixed budget " in answer.stdout
    assert "note: simulation: " in answer.stdout
    assert f"results: {tmp_path / 'out'}\n" in answer.stdout
    assert answer.stdout.endswith(f"mppfl report {tmp_path / 'out'}\n")
    lines = answer.stderr.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["round", f"{k}/3", name] for k in (1, 2, 3) for name in ("mppfl", "dp_fedavg")
    ]
    assert all(word in lines[-1] for word in ("accuracy", "loss", "reward rate", "median budget", "largest ε"))


def test_caps_that_kept_clients_out_are_told(mppfl, experiment, tmp_path):
    line = ("train", experiment, "--output", tmp_path / "out", "--set", 'mechanism="mppfl"', "--set", "ledger.cap=0.02")
    lines = mppfl(*line).stdout.splitlines()
    refused = load_run(tmp_path / "out" / "mppfl").rounds_refused
    assert refused.sum() > 0
    assert f"mppfl: caps refused {refused.sum()} uploads of {(refused > 0).sum()} of the clients" in lines


def test_without_a_folder_results_lie_in_runs_under_the_experiments_name(mppfl, experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mppfl("train", experiment, "--json", "--quiet", "--set", "game.num_rounds=1").json["folder"] == "runs/small"
    assert load_run(tmp_path / "runs" / "small" / "dp_fedavg").num_rounds == 1


def test_ctrl_c_says_how_to_go_on(mppfl, experiment, tmp_path, monkeypatch):
    def interrupted(chosen, *, on_round, **options):
        def stop(records):
            on_round(records)
            if records["mppfl"].round_index == 2:
                raise KeyboardInterrupt

        return trained(chosen, on_round=stop, **options)

    line = ("train", experiment, "--output", tmp_path / "out", "--set", "game.num_rounds=4")
    monkeypatch.setattr(experiments, "run_experiment", interrupted)
    answer = mppfl(*line, "--quiet")
    again = f"mppfl train {experiment} --resume --set game.num_rounds=4 --output {tmp_path / 'out'}"
    assert (answer.code, answer.stdout, answer.stderr) == (130, "", f"stopped. Go on with: {again}\n")
    monkeypatch.setattr(experiments, "run_experiment", trained)
    answer = mppfl(*again.split()[1:])
    assert answer.code == 0
    assert answer.stderr.startswith("round 3/4")


def test_rounds_are_tracked_where_asked(mppfl, experiment, tmp_path, monkeypatch):
    fake = fake_mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    assert mppfl("train", experiment, "--output", tmp_path / "out", "--quiet", "--track", "mlflow").code == 0
    assert [step for _, key, _, step in fake.metrics if key == "accuracy"] == [1, 1, 2, 2, 3, 3]


def test_a_narrow_terminal_loses_columns_and_no_digits(mppfl, experiment, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what Rich takes for a terminal
    for options in (("--train", experiment, "--quiet"), ("--num-clients", 4)):
        answer = mppfl("compare", *options)
        assert answer.code == 0
        assert "left out, the terminal is too narrow: " in answer.stdout
        assert "…" not in answer.stdout


def test_long_trainings_print_some_twenty_plain_lines(mppfl, experiment, tmp_path):
    line = ("train", experiment, "--output", tmp_path / "out", "--set", "game.num_rounds=43", "--json")
    lines = mppfl(*line).stderr.splitlines()
    assert len(lines) == 2 * 15  # every third round, and the last
    assert lines[-1].startswith("round 43/43  dp_fedavg  accuracy ")
    assert lines[4].endswith(" left")


def test_compare_trains_several_mechanisms_and_reports_where_asked(mppfl, experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    answer = mppfl("compare", "--train", experiment, "--mechanisms", "social_agnostic,random", "--json", "--quiet")
    assert [run["mechanism"] for run in answer.json["runs"]] == ["social_agnostic", "random"]
    assert answer.json["folder"] is None
    assert sorted(tmp_path.iterdir()) == before  # nothing is kept
    shown = mppfl("compare", "--train", experiment, "--report", "page.html", "--quiet")
    assert (shown.code, shown.stderr) == (0, "")
    assert shown.stdout.count("noise_aware") == 2
    assert shown.stdout.endswith("report: page.html\n")
    assert "<html" in (tmp_path / "page.html").read_text("utf-8")


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
    (folder / "dp_fedavg" / "arrays.npz").write_bytes(b"damaged")
    assert "arrays.npz: damaged, or changed" in mppfl("report", folder, "--output", tmp_path / "other.html").error
    assert not (tmp_path / "other.html").exists()
