"""The folders of trainings and runs: never written over in silence, read back bit for bit, and killed at any moment a
training goes on to the same end."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace

import numpy as np
import pytest

from mppfl.errors import BadFile, BadInput, MppflError, UnknownClient
from mppfl.experiment import find_runs, load_run, prepare, read_experiment, run_experiment
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import load_checkpoint
from tests.experiment.runs import CASES, STRANGE, make_run
from tests.experiment.small import require_same, small
from tests.homes import home

build = home(prepare)

# ---- runs ----------------------------------------------------------------------------------------------------


def same(a, b):
    """Whether two arrays are equal to the last bit, and of one type."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_comes_back_from_its_folder_bit_for_bit(case, tmp_path):
    run = make_run(**CASES[case])
    again = load_run(run.save(tmp_path / "run"))
    pairs = [(run, again), (run.accounts, again.accounts), (run.graph, again.graph), (run.history, again.history)]
    for before, after in pairs:
        for item in fields(before):
            value, other = getattr(before, item.name), getattr(after, item.name)
            if isinstance(value, np.ndarray):
                assert same(value, other), item.name
            elif item.name in ("rounds", "clients"):
                assert all(same(values, other[name]) for name, values in value.items())
            elif item.name == "influence":
                assert all(same(getattr(value, name), getattr(other, name)) for name in ("data", "indices", "indptr"))
            elif item.name not in ("history", "graph", "accounts"):
                assert value == other, item.name


def test_saving_twice_writes_the_same_bytes(tmp_path):
    run = make_run()
    first, second = run.save(tmp_path / "a"), load_run(run.save(tmp_path / "b")).save(tmp_path / "c")
    assert {path.name: path.read_bytes() for path in first.iterdir()} == {
        path.name: path.read_bytes() for path in second.iterdir()
    }


def test_people_and_spreadsheets_can_read_the_folder(tmp_path):
    run = make_run(num_clients=4, num_rounds=3, absent=True, names=STRANGE[:4])
    folder = run.save(tmp_path)

    def table(name):
        with (folder / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    clients = table("clients.csv")
    assert [row["name"] for row in clients] == STRANGE[:4]
    assert [float(row["payment"]) for row in clients] == run.paid.tolist()
    assert [int(row["rounds_taken_part"]) for row in clients] == [0, 1, 3, 3]
    assert [int(row["rounds_refused"]) for row in clients] == [0, 1, 0, 0]
    assert [float(row["accuracy"]) for row in table("rounds.csv")] == run.history.rounds["accuracy"].tolist()
    assert float(table("budgets.csv")[1][STRANGE[2]]) == run.history.clients["budgets"][1, 2]
    assert float(table("payments.csv")[2][STRANGE[3]]) == run.history.clients["payments"][2, 3]
    assert len(table("edges.csv")) == run.graph.num_edges
    assert {row["source"] for row in table("edges.csv")} <= set(STRANGE)
    assert np.load(folder / "weights.npz")["weights"].tolist() == run.weights.tolist()


def test_the_summary_is_strict_json_even_without_noise(tmp_path):
    text = (make_run(noiseless=True).save(tmp_path) / "run.json").read_text()
    summary = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert summary["accounts"]["spent"] == {"least": "inf", "median": "inf", "most": "inf"}
    assert summary["final"]["server_cost"] is None
    assert summary["config"]["game"]["payment_limit"] == {"number": "inf"}
    simulation = json.loads((make_run().save(tmp_path) / "run.json").read_text())["accounts"]
    assert simulation["simulation"] is True
    assert simulation["notes"][0] == "simulation: seeded noise protects no one"
    assert not make_run(privacy="client", noise="gaussian").accounts.notes


# ---- folders that are not what they should be ----------------------------------------------------------------------

FILES = ["run.json", "weights.npz", "arrays.npz"]
FILES += [f"{name}.csv" for name in ("rounds", "clients", "budgets", "payments", "edges")]


def refusal(folder):
    with pytest.raises(BadFile) as told:
        load_run(folder)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400
    return str(told.value)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_truncated_or_missing_file_is_named(name, tmp_path):
    folder = make_run(num_clients=4).save(tmp_path / "run")
    whole = (folder / name).read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), whole + b" x"):
        (folder / name).write_bytes(content)
        assert str(folder) in refusal(folder)
    (folder / name).unlink()
    assert name in refusal(folder)
    (folder / name).write_bytes(whole)
    load_run(folder)


def test_a_changed_figure_in_the_summary_is_noticed(tmp_path):
    folder = make_run().save(tmp_path)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"learning_rate": 0.01', '"learning_rate": 0.02'))
    assert "changed since it was written" in refusal(folder)


def test_foreign_folders_are_refused(tmp_path):
    assert "no such folder" in refusal(tmp_path / "none")
    assert "no run.json there" in refusal(tmp_path)
    kinds = ('{"kind": "other"}', '{"kind": "mppfl run"}', '{"kind": "mppfl run", "format": 9}')
    for text in ("[]", "{}", "null", "\x00", *kinds):
        (tmp_path / "run.json").write_text(text)
        refusal(tmp_path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    refusal(tmp_path)
    (tmp_path / "file").write_text("x")
    assert "no such folder" in refusal(tmp_path / "file")
    with pytest.raises(MppflError, match="could not be written"):
        make_run().save(tmp_path / "file")


def test_runs_are_found_alone_or_side_by_side_in_the_order_they_were_saved(tmp_path):
    for second, name in enumerate(("b", "a", "c")):
        make_run(name, num_clients=3, num_rounds=1).save(tmp_path / name)
        os.utime(tmp_path / name / "run.json", (second, second))
    assert find_runs(tmp_path) == (tmp_path / "b", tmp_path / "a", tmp_path / "c")
    assert find_runs(tmp_path / "a") == (tmp_path / "a",)
    assert refusal(tmp_path).endswith("holds 3 runs: b, a, c. Give the folder of one of them.")
    make_run("only", num_clients=3).save(tmp_path / "training" / "only")
    assert load_run(tmp_path / "training").name == "only"  # the path that `mppfl train` prints
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="neither a run nor a folder with runs"):
        find_runs(tmp_path / "empty")
    with pytest.raises(BadFile, match="no such folder"):
        find_runs(tmp_path / "none")


# ---- the folder -------------------------------------------------------------------------------------------------


def test_a_folder_keeps_runs_ledgers_and_the_experiment(tmp_path, undisturbed):
    runs = run_experiment(small(), folder=tmp_path / "out")
    require_same(runs, undisturbed)
    require_same([load_run(path) for path in find_runs(tmp_path / "out")], runs)
    assert read_experiment(tmp_path / "out" / "experiment.toml") == small()
    with PrivacyLedger.open(tmp_path / "out" / "mppfl" / "ledger.sqlite", must_exist=True) as ledger:
        assert ledger.spent(list(runs[0].names)) == pytest.approx(runs[0].accounts.spent)


def test_a_folder_that_holds_something_is_not_written_over(tmp_path):
    out = tmp_path / "out"
    run_experiment(small(game={"num_rounds": 1}), folder=out)
    with pytest.raises(BadInput, match="holds a training already"):
        run_experiment(small(), folder=out)
    runs = run_experiment(small(), folder=out, overwrite=True)
    assert load_run(out / "mppfl").num_rounds == runs[0].num_rounds == 4
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("keep me")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="is not empty, and holds no training"):
            run_experiment(small(), folder=tmp_path / "letters", overwrite=overwrite)
    assert (tmp_path / "letters" / "mine.txt").read_text() == "keep me"


def test_an_experiment_that_cannot_be_trained_leaves_the_folder_to_the_next(tmp_path):
    for _ in range(2):
        with pytest.raises(BadInput, match="batch_size=999"):
            run_experiment(small(training={"batch_size": 999}), folder=tmp_path / "out")
    run_experiment(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    with pytest.raises(BadInput, match="batch_size=999"):
        run_experiment(small(training={"batch_size": 999}), folder=tmp_path / "out", overwrite=True)
    assert load_run(tmp_path / "out" / "mppfl").num_rounds == 1
    with pytest.raises(UnknownClient, match=r"^ledger\.caps: client 'four' is not in the network"):
        run_experiment(small(ledger={"caps": {"four": 0.05}}), folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_the_account_of_real_releases_is_never_overwritten(tmp_path, monkeypatch, rounds):
    """Not before the first checkpoint, nor after the end; where nothing was released, there is nothing to lose."""
    real = small(training={"noise": "gaussian"}, game={"num_rounds": 4})

    def fail(*given):
        raise MemoryError("no room")

    with monkeypatch.context() as failing:
        if rounds == 0:
            failing.setattr("mppfl.training.train_many", fail)
        with pytest.raises((MemoryError, Killed)):
            run_experiment(real, folder=tmp_path / "out", on_round=stop_after(rounds))
    assert (tmp_path / "out" / "mppfl" / "ledger.sqlite").exists()
    if rounds == 0:
        assert run_experiment(real, folder=tmp_path / "out", overwrite=True)
    with pytest.raises(BadInput, match="account of real releases"):
        run_experiment(real, folder=tmp_path / "out", overwrite=True)


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_that_may_not_be_used_is_refused_before_any_work(tmp_path, monkeypatch, options):
    chosen = small(training={"noise": "gaussian"}, game={"num_rounds": 1}, ledger={"keep": False})
    run_experiment(chosen, folder=tmp_path / "out")
    assert not (tmp_path / "out" / "mppfl" / "ledger.sqlite").exists()
    monkeypatch.setattr(build, "load_dataset", lambda *_, **__: pytest.fail("began to work"))
    monkeypatch.setattr("mppfl.device.find_device", lambda *_: pytest.fail("began to work"))
    told = "holds a training already|ledger.keep=false left no account|account of real releases"
    with pytest.raises(BadInput, match=told):
        run_experiment(chosen, folder=tmp_path / "out", **options)


def test_two_trainings_do_not_share_a_folder(tmp_path):
    def meanwhile(records):
        with pytest.raises(MppflError, match="another training is at work there"):
            run_experiment(small(), folder=tmp_path / "out", resume=True)

    run_experiment(small(game={"num_rounds": 1}), folder=tmp_path / "out", on_round=meanwhile)


# ---- going on ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a process that ends there and then."""


def stop_after(rounds):
    counter = itertools.count(1)

    def stop(records):
        if next(counter) == rounds:
            raise Killed

    return stop


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_a_training_stopped_after_any_round_ends_as_if_nothing_had_happened(tmp_path, undisturbed, rounds):
    with pytest.raises(Killed):
        run_experiment(small(), folder=tmp_path / "out", on_round=stop_after(rounds))
    seen = []
    runs = run_experiment(
        small(), folder=tmp_path / "out", resume=True, on_round=lambda now: seen.append(now["mppfl"].round_index)
    )
    require_same(runs, undisturbed)
    assert seen == list(range(rounds // 2 * 2 + 1, 5))  # from the last checkpoint, taken every second round
    require_same(run_experiment(small(), folder=tmp_path / "out", resume=True), undisturbed)  # finished already


def test_ctrl_c_loses_no_finished_round(tmp_path, undisturbed):
    def interrupt(records):
        if records["mppfl"].round_index == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(small(), folder=tmp_path / "out", on_round=interrupt)
    assert load_checkpoint(tmp_path / "out" / "dp_fedavg" / "checkpoint-3.npz").rounds_done == 3
    require_same(run_experiment(small(), folder=tmp_path / "out", resume=True), undisturbed)


@pytest.mark.parametrize(
    ("loss", "told"),
    [("gone", r"ledger\.sqlite"), ("older", r"'mppfl' misses releases of client .* Restore the ledger")],
)
def test_a_training_does_not_go_on_without_the_ledger_of_what_it_released(tmp_path, loss, told):
    out = tmp_path / "out"
    with pytest.raises(Killed):
        run_experiment(small(), folder=out, on_round=stop_after(3))
    for file in (out / "mppfl").glob("ledger.sqlite*"):
        file.unlink()
    if loss == "older":
        PrivacyLedger.open(out / "mppfl" / "ledger.sqlite").close()
    with pytest.raises(MppflError, match=told):
        run_experiment(small(), folder=out, resume=True)
    assert (out / "mppfl" / "ledger.sqlite").exists() == (loss == "older")


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_training_killed_at_any_write_goes_on_to_the_same_end(tmp_path, undisturbed, monkeypatch, step):
    # Every file but the ledger's is made durable by os.fsync before it takes its place: dying there, at the first,
    # second, third ... call, is dying between any two steps of keeping a training.
    real, calls = os.fsync, itertools.count(1)

    def dying(at):
        def fsync(handle):
            if next(calls) == at:
                raise Killed
            real(handle)

        return fsync

    for at in itertools.count(2, step):
        calls = itertools.count(1)
        out = tmp_path / f"out{at}"
        monkeypatch.setattr(os, "fsync", dying(at))
        try:
            run_experiment(small(), folder=out)
        except Killed:
            monkeypatch.setattr(os, "fsync", real)
            started = (out / "experiment.toml").exists()
            require_same(run_experiment(small(), folder=out, resume=started), undisturbed)
        else:
            break
    assert at > 20


def test_resuming_another_experiment_is_refused_with_what_differs(tmp_path):
    run_experiment(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    with pytest.raises(BadInput, match=r"holds another experiment: game.num_rounds: 4, was 1. Undo that"):
        run_experiment(small(), folder=tmp_path / "out", resume=True)
    with pytest.raises(BadInput, match="holds no training to resume"):
        run_experiment(small(), folder=tmp_path / "elsewhere", resume=True)
    with pytest.raises(BadInput, match="nothing to resume without a folder"):
        run_experiment(small(), resume=True)


def test_changed_data_behind_the_same_names_are_noticed(tmp_path, monkeypatch):
    run_experiment(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    real = build.load_dataset

    def other(*arguments, **options):
        data = real(*arguments, **options)
        return replace(data, train=replace(data.train, labels=np.roll(data.train.labels, 1)))

    monkeypatch.setattr(build, "load_dataset", other)
    with pytest.raises(BadInput, match="belongs to another training"):
        run_experiment(small(game={"num_rounds": 1}), folder=tmp_path / "out", resume=True)


def test_a_full_disk_is_said_in_one_line_and_the_last_checkpoint_stays(tmp_path, undisturbed, monkeypatch):
    real = os.fsync

    def full(handle):
        if (tmp_path / "out" / "checkpoint.json").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MppflError, match=r"could not be .*: No space left on device") as told:
        run_experiment(small(), folder=tmp_path / "out")
    assert "\n" not in str(told.value)
    monkeypatch.setattr(os, "fsync", real)
    assert load_checkpoint(tmp_path / "out" / "mppfl" / "checkpoint-2.npz").rounds_done == 2
    require_same(run_experiment(small(), folder=tmp_path / "out", resume=True), undisturbed)


def rounds_kept(out):
    return (out / "checkpoint.json").read_bytes() if (out / "checkpoint.json").exists() else b""


def killed_at_random(path, out, times, rng):
    """Starts the training in a process of its own, again and again, and kills it -9 at random moments."""
    line = [sys.executable, "-m", "mppfl", "train", str(path), "--output", str(out), "--quiet", "--json"]
    for kill in range(times + 1):
        resume = ["--resume"] if (out / "experiment.toml").exists() else []
        before = rounds_kept(out)
        process = subprocess.Popen([*line, *resume], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if kill < times:
            while process.poll() is None and rounds_kept(out) == before:  # until it has gone on by itself
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
        assert process.returncode in ((0, -signal.SIGKILL) if kill < times else (0,)), told.decode()


@pytest.mark.parametrize(("times", "rounds"), [(2, 12), pytest.param(30, 90, marks=pytest.mark.slow)])
def test_a_training_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path, times, rounds):
    chosen = small(game={"num_rounds": rounds}, output={"checkpoint_every": 1})
    (tmp_path / "small.toml").write_text(chosen.to_toml())
    killed_at_random(tmp_path / "small.toml", tmp_path / "out", times, random.Random(times))
    runs = [load_run(path) for path in find_runs(tmp_path / "out")]
    require_same(runs, run_experiment(chosen))
