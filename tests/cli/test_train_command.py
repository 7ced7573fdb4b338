"""mppfl train and mppfl compare --train: what they print, where results lie, and how they go on."""

from __future__ import annotations

import io
import sys

import pytest

from mppfl.cli import Clock
from mppfl.experiment import load_run
from mppfl.experiment import train as trained
from tests.experiment.test_tracking import FakeMlflow, record
from tests.homes import home
from tests.test_architecture import HEAVY, guarded

progress = home(Clock)

SMALL = (
    "seed = 3",
    'mechanisms = ["mppfl", "fixed"]',
    "[network]",
    "num_clients = 5",
    "[game]",
    "num_rounds = 3",
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
    assert "fixed: fixed budget " in answer.stdout
    assert "note: simulation: seeded noise protects no one" in answer.stdout
    assert f"results: {tmp_path / 'out'}\n" in answer.stdout
    assert answer.stdout.endswith(f"mppfl report {tmp_path / 'out'}\n")
    lines = answer.stderr.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["round", f"{k}/3", name] for k in (1, 2, 3) for name in ("mppfl", "fixed")
    ]
    assert all(word in lines[-1] for word in ("accuracy", "loss", "reward rate", "median budget", "largest ε"))


def test_caps_that_kept_clients_out_are_told(mppfl, experiment, tmp_path):
    cap = ("--set", "ledger.cap=0.02")
    answer = mppfl("train", experiment, "--output", tmp_path / "out", "--set", 'mechanism="mppfl"', *cap)
    refused = load_run(tmp_path / "out" / "mppfl").rounds_refused
    assert refused.sum() > 0
    told = f"mppfl: caps refused {refused.sum()} uploads of {(refused > 0).sum()} of the clients"
    assert told in answer.stdout.splitlines()


def test_json_is_one_object_and_quiet_is_quiet(mppfl, experiment, tmp_path):
    answer = mppfl("train", experiment, "--output", tmp_path / "out", "--json", "--quiet")
    found = answer.json
    assert answer.stderr == ""
    assert (found["name"], found["folder"]) == ("small", str(tmp_path / "out"))
    assert [run["mechanism"] for run in found["runs"]] == ["mppfl", "fixed"]
    kept = load_run(tmp_path / "out" / "mppfl")
    assert found["runs"][0]["final_accuracy"] == kept.final_accuracy
    assert found["runs"][0]["dp_epsilon"] == pytest.approx(kept.accounts.dp_epsilon.max())
    assert found["runs"][0]["num_rounds"] == 3


def test_without_a_folder_results_lie_in_runs_under_the_experiments_name(mppfl, experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mppfl("train", experiment, "--json", "--quiet", "--set", "game.num_rounds=1").json["folder"] == "runs/small"
    assert load_run(tmp_path / "runs" / "small" / "fixed").num_rounds == 1


def test_single_values_are_changed_on_the_command_line(mppfl, experiment, tmp_path):
    changes = ("--set", "mechanism=mppfl", "--set", "game.num_rounds=1", "--set", "training.clip_norm=0.5")
    found = mppfl("train", experiment, *changes, "--output", tmp_path / "out", "--json", "--quiet").json
    assert len(found["runs"]) == 1
    run = load_run(tmp_path / "out" / "mppfl")
    assert run.config["training"]["clip_norm"] == 0.5
    assert run.history.rounds["clip_norm"].tolist() == [0.5]


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


def test_a_training_that_is_refused_takes_nothing_from_the_one_before(mppfl, experiment, tmp_path):
    mppfl("train", experiment, "--output", tmp_path / "out", "--quiet")
    kept = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert not [path for path in kept if path.name == ".lock"]
    wrong = ("--overwrite", "--set", "training.average_rounds=99")
    assert "average_rounds=99" in mppfl("train", experiment, "--output", tmp_path / "out", "--quiet", *wrong).error
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == kept


def test_an_account_that_must_not_be_overwritten_is_left_as_it_was(mppfl, experiment, tmp_path):
    line = ("train", experiment, "--output", tmp_path / "out", "--quiet", "--set", "training.noise='gaussian'")
    assert mppfl(*line).code == 0
    (tmp_path / "out" / "checkpoint.json").unlink()  # so that the account itself is looked into
    kept = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert "account of real releases" in mppfl(*line, "--overwrite").error
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == kept


def test_a_missing_gpu_is_told_and_nothing_runs_on_the_cpu_instead(mppfl, experiment, tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = mppfl("train", experiment, "--output", tmp_path / "out", "--device", "cuda").error
    assert line == "training.device='cuda', but PyTorch finds no GPU here. Use 'cpu', or leave it out."
    assert not (tmp_path / "out").exists()


def test_a_finished_folder_is_resumed_or_overwritten_only_when_asked(mppfl, experiment, tmp_path):
    line = ("train", experiment, "--output", tmp_path / "out", "--json", "--quiet")
    first = mppfl(*line).json
    assert "holds a training already. Resume it, overwrite it, or choose another folder." in mppfl(*line).error
    for how in ("--resume", "--overwrite"):
        again = mppfl(*line, how).json
        assert [run["final_accuracy"] for run in again["runs"]] == [run["final_accuracy"] for run in first["runs"]]
    assert mppfl(*line, "--resume", "--overwrite").code == 2


def test_an_epsilon_for_the_whole_training_is_kept_and_the_unit_it_means_is_told(mppfl, experiment, tmp_path):
    line = ("train", experiment, "--output", tmp_path / "out", "--quiet", "--set", "training.dp_epsilon=2")
    answer = mppfl(*line)
    assert answer.code == 0, answer.stderr
    for name in ("mppfl", "fixed"):
        run = load_run(tmp_path / "out" / name)
        assert 1.999 < run.accounts.dp_epsilon.max() <= 2
        assert f"{name}: budget_unit={run.setting('budget_unit'):.6g} was chosen so that no client's" in answer.stdout
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
    monkeypatch.setattr("mppfl.experiment.train", interrupted)
    answer = mppfl(*line, "--quiet")
    again = f"mppfl train {experiment} --resume --set game.num_rounds=4 --output {tmp_path / 'out'}"
    assert (answer.code, answer.stdout, answer.stderr) == (130, "", f"stopped. Go on with: {again}\n")
    monkeypatch.setattr("mppfl.experiment.train", trained)
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


def test_a_narrow_terminal_loses_columns_and_no_digits():
    from rich.console import Console

    from mppfl.cli import DISPENSABLE, fit
    from mppfl.experiment import comparison_table
    from tests.experiment.small import small

    runs = trained(small(game={"num_rounds": 1}))
    wide, narrow = comparison_table(runs), comparison_table(runs)
    assert fit(wide, 200) == []
    assert fit(narrow, 80) == list(DISPENSABLE[: len(wide.columns) - len(narrow.columns)])
    text = io.StringIO()
    Console(width=80, file=text).print(narrow)
    assert "mppfl" in text.getvalue()
    assert "…" not in text.getvalue()


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
    assert "must be a file that ends in .html" in mppfl("compare", "--train", experiment, "--report", tmp_path).error
    assert "Give --train, too" in mppfl("compare", "--report", "page.html").error
    assert "mechanism='mpfl' is not known" in mppfl("compare", "--train", experiment, "--mechanisms", "mpfl").error


# ---- progress ---------------------------------------------------------------------------------------------------


def test_a_terminal_gets_a_table_with_a_bar_and_the_time_left():
    from rich.console import Console

    clock = progress.Clock(10)
    clock.tick(1)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(progress.live_table({"mppfl": record(2), "noiseless": record(2, dp_epsilon=float("inf"))}, clock))
    text = console.export_text()
    assert "round 2/10" in text
    assert "s left" in text
    assert "87.5 %" in text
    assert "∞" in text


def test_long_trainings_print_some_twenty_plain_lines(capsys):
    show = progress.plain_lines(200)
    for round_index in range(1, 201):
        show({"mppfl": record(round_index)})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    assert lines[-1].startswith("round 200/200  mppfl  accuracy 87.5 %  loss 0.500  reward rate 2  median budget 1")


def test_help_is_quick_because_nothing_heavy_is_imported():
    stdout, end = guarded([*HEAVY, "numpy", "scipy", "pydantic"], "train", "--help")
    assert end == {"code": 0, "found": []}
    assert "--resume" in stdout
