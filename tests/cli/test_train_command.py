"""mppfl train and mppfl compare --train: what they print, where results lie, and how they go on."""

from __future__ import annotations

import sys

import pytest

from mppfl import experiment as experiments
from mppfl.experiment import load_run
from mppfl.experiment import run_experiment as trained
from tests.experiment.test_tracking import FakeMlflow
from tests.test_architecture import HEAVY, guarded

SMALL = (
    "seed = 3",
    'mechanisms = ["mppfl", "dp_fedavg"]',
    "[game]",
    "num_clients = 5",
    "num_rounds = 3",
    'reward_rate = "common"',
    "[training]",
    'model = "softmax"',
    "local_epochs = 1",
    "budget_unit = 0.01",
)


@pytest.fixture
def experiment(write):
    """A training of a second."""
    return write("small.toml", *SMALL)


# ---- train ------------------------------------------------------------------------------------------------------


def test_results_go_to_stdout_and_progress_to_stderr(mppfl, experiment, tmp_path):
    answer = mppfl("train", experiment, "--output", tmp_path / "out")
    assert answer.code == 0, answer.stderr
    assert answer.stdout.count("noise_aware") == 2
    assert "dp_fedavg: fixed budget " in answer.stdout
    assert "note: simulation: seeded noise protects no one" in answer.stdout
    assert f"results: {tmp_path / 'out'}\n" in answer.stdout
    assert answer.stdout.endswith(f"mppfl report {tmp_path / 'out'}\n")
    lines = answer.stderr.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["round", f"{k}/3", name] for k in (1, 2, 3) for name in ("mppfl", "dp_fedavg")
    ]
    assert all(word in lines[-1] for word in ("accuracy", "loss", "reward rate", "median budget", "largest ε"))


def test_caps_that_kept_clients_out_are_told(mppfl, experiment, tmp_path):
    cap = ("--set", "ledger.cap=0.02")
    answer = mppfl("train", experiment, "--output", tmp_path / "out", "--set", 'mechanism="mppfl"', *cap)
    refused = load_run(tmp_path / "out" / "mppfl").rounds_refused
    assert refused.sum() > 0
    told = f"mppfl: caps refused {refused.sum()} uploads of {(refused > 0).sum()} of the clients"
    assert told in answer.stdout.splitlines()


def test_without_a_folder_results_lie_in_runs_under_the_experiments_name(mppfl, experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mppfl("train", experiment, "--json", "--quiet", "--set", "game.num_rounds=1").json["folder"] == "runs/small"
    assert load_run(tmp_path / "runs" / "small" / "dp_fedavg").num_rounds == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--set", "training.clip_nrom=1"), "'training.clip_nrom' is not known. Did you mean 'clip_norm'?"),
        (("--set", "training.batch_size=999"), "training.batch_size=999, but client "),
        (("--device", "tpu"), "training.device='tpu' is not known. Use 'cpu', 'cuda' or 'cuda:1'."),
        (("--resume",), "holds no training to resume"),
        (("--track", "wandb"), "track='wandb' is not known"),
    ],
)
def test_what_cannot_be_trained_is_told_in_one_line(mppfl, experiment, tmp_path, options, told):
    assert told in mppfl("train", experiment, "--output", tmp_path / "out", "--quiet", *options).error


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["training.batch_size=9999"], "batch_size=9999"),
        (["training.average_rounds=99"], "average_rounds=99"),
        (["training.model='cnn_fmnist'", "training.engine='dense'"], "engine='dense' cannot run this training"),
        (["ledger.caps={nobody=1.0}"], "ledger.caps: client 'nobody' is not in the network"),
    ],
)
def test_a_training_that_is_refused_leaves_nothing_behind(mppfl, experiment, tmp_path, settings, told):
    line = ("train", experiment, "--quiet", *(f"--set={setting}" for setting in settings), "--output")
    before = sorted(tmp_path.rglob("*"))
    assert told in mppfl(*line, tmp_path / "runs" / "small").error
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "mine").mkdir()
    assert told in mppfl(*line, tmp_path / "mine").error
    assert list((tmp_path / "mine").iterdir()) == []  # a folder of yours stays


def test_a_missing_gpu_is_told_and_nothing_runs_on_the_cpu_instead(mppfl, experiment, tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = mppfl("train", experiment, "--output", tmp_path / "out", "--device", "cuda").error
    assert line == "training.device='cuda', but PyTorch finds no GPU here. Use 'cpu', or leave it out."
    assert not (tmp_path / "out").exists()


def test_an_epsilon_for_the_whole_training_is_kept_and_the_unit_it_means_is_told(mppfl, experiment, tmp_path):
    line = ("train", experiment, "--output", tmp_path / "out", "--quiet", "--set", "training.dp_epsilon=2")
    answer = mppfl(*line)
    assert answer.code == 0, answer.stderr
    for name in ("mppfl", "dp_fedavg"):
        run = load_run(tmp_path / "out" / name)
        assert 1.999 < run.accounts.dp_epsilon.max() <= 2
        chosen = f"{name}: budget_unit={run.setting('budget_unit'):.6g} was chosen so that no client's"
        assert chosen in answer.stdout
    again = mppfl(*line, "--resume", "--json").json
    assert all(run["dp_epsilon"] <= 2 for run in again["runs"])
    assert "training.dp_epsilon: 3.0, was 2.0" in mppfl(*line[:-1], "training.dp_epsilon=3", "--resume").error


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
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    assert mppfl("train", experiment, "--output", tmp_path / "out", "--quiet", "--track", "mlflow").code == 0
    assert [step for _, key, _, step in fake.metrics if key == "accuracy"] == [1, 1, 2, 2, 3, 3]
    monkeypatch.setitem(sys.modules, "mlflow", None)
    line = mppfl("train", experiment, "--output", tmp_path / "other", "--track", "mlflow").error
    assert "pip install 'mppfl[track]'" in line


def test_a_narrow_terminal_loses_columns_and_no_digits(mppfl, experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what Rich takes for a terminal
    for line in (("train", experiment, "--output", tmp_path / "out", "--quiet"), ("compare", "--num-clients", 4)):
        answer = mppfl(*line)
        assert answer.code == 0
        assert "left out, the terminal is too narrow: " in answer.stdout
        assert "…" not in answer.stdout


def test_long_trainings_print_some_twenty_plain_lines(mppfl, experiment, tmp_path):
    line = ("train", experiment, "--output", tmp_path / "out", "--set", "game.num_rounds=43", "--json")
    lines = mppfl(*line).stderr.splitlines()
    assert len(lines) == 2 * 15  # every third round, and the last
    assert lines[-1].startswith("round 43/43  dp_fedavg  accuracy ")
    assert lines[4].endswith(" left")


# ---- compare --train --------------------------------------------------------------------------------------------


def test_compare_trains_several_mechanisms_side_by_side(mppfl, experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    answer = mppfl("compare", "--train", experiment, "--mechanisms", "social_agnostic,random", "--json", "--quiet")
    assert [run["mechanism"] for run in answer.json["runs"]] == ["social_agnostic", "random"]
    assert answer.json["folder"] is None
    assert sorted(tmp_path.iterdir()) == before  # nothing is kept
    shown = mppfl("compare", "--train", experiment, "--quiet")
    assert (shown.code, shown.stderr) == (0, "")
    assert shown.stdout.count("noise_aware") == 2


def test_compare_writes_a_report_where_asked(mppfl, experiment, tmp_path):
    answer = mppfl("compare", "--train", experiment, "--report", tmp_path / "page.html", "--quiet")
    assert answer.code == 0, answer.stderr
    assert answer.stdout.endswith(f"report: {tmp_path / 'page.html'}\n")
    assert "<html" in (tmp_path / "page.html").read_text("utf-8")


def test_options_that_would_change_nothing_are_refused(mppfl, experiment, tmp_path):
    assert mppfl("compare", "--train", experiment, "--rounds", 3).error.startswith(
        "--rounds means nothing with --train"
    )
    assert "is a directory" in mppfl("compare", "--train", experiment, "--report", tmp_path).error
    assert "Give --train, too" in mppfl("compare", "--report", "page.html").error
    assert "mechanism='mpfl' is not known" in mppfl("compare", "--train", experiment, "--mechanisms", "mpfl").error


def test_help_is_quick_because_nothing_heavy_is_imported():
    stdout, end = guarded([*HEAVY, "numpy", "scipy", "pydantic"], "train", "--help")
    assert end == {"code": 0, "found": []}
    assert "--resume" in stdout
