"""The folder of a training: never written over in silence; killed at any moment, it goes on to the same end."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from mppfl.errors import BadInput, MppflError, UnknownClient
from mppfl.experiment import Case, find_runs, load_run, read_experiment, train
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import load_checkpoint
from tests.experiment.small import require_same, small
from tests.homes import home

cases = home(Case)

# ---- the folder -------------------------------------------------------------------------------------------------


def test_a_folder_keeps_runs_ledgers_and_the_experiment(tmp_path, undisturbed):
    runs = train(small(), folder=tmp_path / "out")
    require_same(runs, undisturbed)
    require_same([load_run(path) for path in find_runs(tmp_path / "out")], runs)
    assert read_experiment(tmp_path / "out" / "experiment.toml") == small()
    with PrivacyLedger.open(tmp_path / "out" / "mppfl" / "ledger.sqlite", must_exist=True) as ledger:
        assert ledger.spent(list(runs[0].names)) == pytest.approx(runs[0].accounts.spent)


def test_a_folder_that_holds_something_is_not_written_over(tmp_path):
    out = tmp_path / "out"
    train(small(game={"num_rounds": 1}), folder=out)
    with pytest.raises(BadInput, match="holds a training already"):
        train(small(), folder=out)
    runs = train(small(), folder=out, overwrite=True)
    assert load_run(out / "mppfl").num_rounds == runs[0].num_rounds == 4
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("keep me")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="is not empty, and holds no training"):
            train(small(), folder=tmp_path / "letters", overwrite=overwrite)
    assert (tmp_path / "letters" / "mine.txt").read_text() == "keep me"


def test_an_experiment_that_cannot_be_trained_leaves_the_folder_to_the_next(tmp_path):
    for _ in range(2):
        with pytest.raises(BadInput, match="batch_size=999"):
            train(small(training={"batch_size": 999}), folder=tmp_path / "out")
    train(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    with pytest.raises(BadInput, match="batch_size=999"):
        train(small(training={"batch_size": 999}), folder=tmp_path / "out", overwrite=True)
    assert load_run(tmp_path / "out" / "mppfl").num_rounds == 1


def test_a_cap_for_nobody_leaves_the_folder_to_the_next(tmp_path):
    real = {"training": {"noise": "gaussian"}, "game": {"num_rounds": 1}}
    with pytest.raises(UnknownClient, match=r"^ledger\.caps: client 'four' is not in the network"):
        train(small(**real, ledger={"caps": {"four": 0.05}}), folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    train(small(**real, ledger={"caps": {"4": 0.05}}), folder=tmp_path / "out")


def test_a_training_with_real_noise_that_released_nothing_may_be_overwritten(tmp_path, monkeypatch):
    real = small(training={"noise": "gaussian"}, game={"num_rounds": 1})

    def fail(*given):
        raise MemoryError("no room")

    with monkeypatch.context() as failing:
        failing.setattr("mppfl.training.rounds_together", fail)
        with pytest.raises(MemoryError):
            train(real, folder=tmp_path / "out")
    assert (tmp_path / "out" / "mppfl" / "ledger.sqlite").exists()
    train(real, folder=tmp_path / "out", overwrite=True)
    with pytest.raises(BadInput, match="account of real releases"):
        train(real, folder=tmp_path / "out", overwrite=True)


def test_releases_before_the_first_checkpoint_are_not_overwritten(tmp_path):
    real = small(training={"noise": "gaussian"})
    with pytest.raises(Killed):
        train(real, folder=tmp_path / "out", on_round=stop_after(1))
    assert not (tmp_path / "out" / "checkpoint.json").exists()
    with pytest.raises(BadInput, match="account of real releases"):
        train(real, folder=tmp_path / "out", overwrite=True)


def test_a_training_without_a_kept_ledger_cannot_be_resumed(tmp_path):
    chosen = small(game={"num_rounds": 1}, ledger={"keep": False})
    train(chosen, folder=tmp_path / "out")
    assert not (tmp_path / "out" / "mppfl" / "ledger.sqlite").exists()
    with pytest.raises(BadInput, match=r"ledger\.keep=false left no account"):
        train(chosen, folder=tmp_path / "out", resume=True)


def test_the_account_of_real_releases_is_never_overwritten(tmp_path):
    real = small(training={"noise": "gaussian"}, game={"num_rounds": 1})
    train(real, folder=tmp_path / "out")
    with pytest.raises(BadInput, match="account of real releases"):
        train(real, folder=tmp_path / "out", overwrite=True)


def test_two_trainings_do_not_share_a_folder(tmp_path):
    def meanwhile(records):
        with pytest.raises(MppflError, match="another training is at work there"):
            train(small(), folder=tmp_path / "out", resume=True)

    train(small(game={"num_rounds": 1}), folder=tmp_path / "out", on_round=meanwhile)


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
        train(small(), folder=tmp_path / "out", on_round=stop_after(rounds))
    seen = []
    runs = train(
        small(), folder=tmp_path / "out", resume=True, on_round=lambda now: seen.append(now["mppfl"].round_index)
    )
    require_same(runs, undisturbed)
    assert seen == list(range(rounds // 2 * 2 + 1, 5))  # from the last checkpoint, taken every second round


def test_ctrl_c_loses_no_finished_round(tmp_path, undisturbed):
    def interrupt(records):
        if records["mppfl"].round_index == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(small(), folder=tmp_path / "out", on_round=interrupt)
    assert load_checkpoint(tmp_path / "out" / "fixed" / "checkpoint-3.npz").rounds_done == 3
    require_same(train(small(), folder=tmp_path / "out", resume=True), undisturbed)


@pytest.mark.parametrize(
    ("loss", "told"),
    [("gone", r"ledger\.sqlite"), ("older", r"'mppfl' misses releases of client .* Restore the ledger")],
)
def test_a_training_does_not_go_on_without_the_ledger_of_what_it_released(tmp_path, loss, told):
    out = tmp_path / "out"
    with pytest.raises(Killed):
        train(small(), folder=out, on_round=stop_after(3))
    for file in (out / "mppfl").glob("ledger.sqlite*"):
        file.unlink()
    if loss == "older":
        PrivacyLedger.open(out / "mppfl" / "ledger.sqlite").close()
    with pytest.raises(MppflError, match=told):
        train(small(), folder=out, resume=True)
    assert (out / "mppfl" / "ledger.sqlite").exists() == (loss == "older")


def test_a_finished_training_resumed_is_the_finished_training(tmp_path, undisturbed):
    train(small(), folder=tmp_path / "out")
    require_same(train(small(), folder=tmp_path / "out", resume=True), undisturbed)


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
            train(small(), folder=out)
        except Killed:
            monkeypatch.setattr(os, "fsync", real)
            started = (out / "experiment.toml").exists()
            require_same(train(small(), folder=out, resume=started), undisturbed)
        else:
            break
    assert at > 20


def test_resuming_another_experiment_is_refused_with_what_differs(tmp_path):
    train(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    with pytest.raises(BadInput, match=r"holds another experiment: game.num_rounds: 4, was 1. Undo that"):
        train(small(), folder=tmp_path / "out", resume=True)
    with pytest.raises(BadInput, match="holds no training to resume"):
        train(small(), folder=tmp_path / "elsewhere", resume=True)
    with pytest.raises(BadInput, match="nothing to resume without a folder"):
        train(small(), resume=True)


def test_changed_data_behind_the_same_names_are_noticed(tmp_path, monkeypatch):
    train(small(game={"num_rounds": 1}), folder=tmp_path / "out")
    real = cases.load_data

    def other(*arguments, **options):
        data = real(*arguments, **options)
        return replace(data, train=replace(data.train, labels=np.roll(data.train.labels, 1)))

    monkeypatch.setattr(cases, "load_data", other)
    with pytest.raises(BadInput, match="belongs to another training"):
        train(small(game={"num_rounds": 1}), folder=tmp_path / "out", resume=True)


def test_a_full_disk_is_said_in_one_line_and_the_last_checkpoint_stays(tmp_path, undisturbed, monkeypatch):
    real = os.fsync

    def full(handle):
        if (tmp_path / "out" / "checkpoint.json").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MppflError, match=r"could not be .*: No space left on device") as told:
        train(small(), folder=tmp_path / "out")
    assert "\n" not in str(told.value)
    monkeypatch.setattr(os, "fsync", real)
    assert load_checkpoint(tmp_path / "out" / "mppfl" / "checkpoint-2.npz").rounds_done == 2
    require_same(train(small(), folder=tmp_path / "out", resume=True), undisturbed)


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
    require_same(runs, train(chosen))
