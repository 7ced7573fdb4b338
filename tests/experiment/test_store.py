"""The folders of trainings and runs: never written over in silence, read back bit for bit, also while they are written,
and killed at any moment a training goes on to the same end."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.experiment import find_runs, load_run, marks_of, prepare, read_experiment, read_live, run_experiment
from mppfl.privacy.ledger import SIMULATION, PrivacyLedger
from mppfl.training import load_checkpoint
from tests.experiment.runs import CASES, make_run
from tests.experiment.small import Killed, require_same, small, stop_after
from tests.homes import home

build = home(prepare)
EXAMPLES = Path(__file__).parents[2] / "examples"


def contents(run):
    """All that a run holds, as plain dictionaries and arrays."""
    values = asdict(run)
    values["graph"]["influence"] = values["graph"]["influence"].toarray()
    return values


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_comes_back_from_its_folder_bit_for_bit_and_is_saved_again_as_the_same_bytes(case, tmp_path):
    run = make_run(**CASES[case])
    again = load_run(run.save(tmp_path / "run"))
    again.save(tmp_path / "again")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("run", "again")
    )
    assert first == second
    np.testing.assert_equal(contents(again), contents(run))


def test_the_summary_is_strict_json_even_without_noise(tmp_path):
    text = (make_run(noiseless=True).save(tmp_path) / "run.json").read_text()
    summary = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert summary["accounts"]["spent"] == {"least": "inf", "median": "inf", "most": "inf"}
    assert summary["final"]["server_cost"] is None


def refusal(folder):
    with pytest.raises(BadFile) as told:
        load_run(folder)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400
    return str(told.value)


def test_a_damaged_truncated_missing_or_changed_file_is_named(tmp_path):
    folder = make_run(num_clients=4).save(tmp_path / "run")
    for file in folder.iterdir():
        whole = file.read_bytes()
        for content in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), whole + b" x"):
            file.write_bytes(content)
            assert str(folder) in refusal(folder)
        file.unlink()
        assert file.name in refusal(folder)
        file.write_bytes(whole)
        load_run(folder)
    summary = folder / "run.json"
    summary.write_text(summary.read_text().replace('"learning_rate": 0.01', '"learning_rate": 0.02'))
    assert "changed since it was written" in refusal(folder)


def test_foreign_folders_are_refused(tmp_path):
    for name in ("none", "file"):
        assert "no such folder" in refusal(tmp_path / name)
        (tmp_path / "file").write_text("x")
    assert "no run.json there" in refusal(tmp_path)
    kinds = (b'{"kind": "other"}', b'{"kind": "mppfl run"}', b'{"kind": "mppfl run", "format": 9}')
    for content in (b"[]", b"{}", b"null", b"\x00", b"\xff\xfe\x00", *kinds):
        (tmp_path / "run.json").write_bytes(content)
        refusal(tmp_path)
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


# ---- the folder -------------------------------------------------------------------------------------------------


def test_a_folder_keeps_runs_ledgers_and_the_experiment_and_two_trainings_do_not_share_it(tmp_path, undisturbed):
    out = tmp_path / "out"

    def meanwhile(records):
        with pytest.raises(MppflError, match="another training is at work there"):
            run_experiment(small(), folder=out, resume=True)

    runs = run_experiment(small(), folder=out, on_round=meanwhile)
    require_same(runs, undisturbed)
    require_same([load_run(path) for path in find_runs(out)], runs)
    assert read_experiment(out / "experiment.toml") == small()
    with PrivacyLedger.open(out / "mppfl" / "ledger.sqlite", must_exist=True) as ledger:
        assert ledger.spent(list(runs[0].names)) == pytest.approx(runs[0].accounts.spent)


def test_what_a_folder_holds_is_not_lost_to_an_experiment_that_may_not_or_cannot_be_trained_there(tmp_path):
    out, letters = tmp_path / "out", tmp_path / "letters"
    letters.mkdir()
    (letters / "mine.txt").write_text("keep me")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="is not empty, and holds no training"):
            run_experiment(small(), folder=letters, overwrite=overwrite)
    assert (letters / "mine.txt").read_text() == "keep me"
    run_experiment(small(game={"num_rounds": 1}), folder=out)
    with pytest.raises(BadInput, match="batch_size=999"):
        run_experiment(small(training={"batch_size": 999}), folder=out, overwrite=True)
    assert load_run(out / "mppfl").num_rounds == 1
    with pytest.raises(BadInput, match="nothing to resume without a folder"):
        run_experiment(small(), resume=True)


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_the_account_of_real_releases_is_never_overwritten(tmp_path, monkeypatch, rounds):
    """Not before the first checkpoint, nor after the end; where nothing was released, there is nothing to lose."""
    real = small(mechanisms=["mppfl"], protection={"noise": "gaussian"}, game={"num_rounds": 4})

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
    alone = {"mechanisms": ["mppfl"], "protection": {"noise": "gaussian"}}
    chosen = small(**alone, game={"num_rounds": 1}, ledger={"keep": False})
    run_experiment(chosen, folder=tmp_path / "out")
    assert not (tmp_path / "out" / "mppfl" / "ledger.sqlite").exists()
    monkeypatch.setattr(build, "load_dataset", lambda *_, **__: pytest.fail("began to work"))
    monkeypatch.setattr("mppfl.device.find_device", lambda *_: pytest.fail("began to work"))
    told = "holds a training already|ledger.keep=false left no account|account of real releases"
    with pytest.raises(BadInput, match=told):
        run_experiment(chosen, folder=tmp_path / "out", **options)


# ---- going on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "error", "first"), [(1, Killed, 1), (3, Killed, 3), (4, Killed, 5), (3, KeyboardInterrupt, 4)]
)
def test_a_training_stopped_after_any_round_ends_as_if_nothing_had_happened(
    tmp_path, undisturbed, rounds, error, first
):
    """From the last checkpoint, taken every second round; Ctrl-C loses no finished round."""
    seen, again = [], {"folder": tmp_path / "out", "resume": True}
    with pytest.raises(error):
        run_experiment(small(), folder=tmp_path / "out", on_round=stop_after(rounds, error))
    require_same(
        run_experiment(small(), on_round=lambda now: seen.append(now["mppfl"].round_index), **again), undisturbed
    )
    assert seen == list(range(first, 5))
    require_same(run_experiment(small(), **again), undisturbed)  # finished already


@pytest.mark.parametrize(
    ("loss", "told"),
    [("gone", r"ledger\.sqlite"), ("older", r"'mppfl' misses releases of client .* Restore the ledger")],
)
def test_a_training_does_not_go_on_without_the_ledger_of_what_it_released(stopped, tmp_path, loss, told):
    out = shutil.copytree(stopped, tmp_path / "out")
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
    real = os.fsync
    for at in itertools.count(2, step):
        calls, out = itertools.count(1), tmp_path / f"out{at}"

        def fsync(handle, at=at, calls=calls):
            if next(calls) == at:
                raise Killed
            real(handle)

        with suppress(Killed), monkeypatch.context() as dying:
            dying.setattr(os, "fsync", fsync)
            run_experiment(small(), folder=out)
            break
        require_same(run_experiment(small(), folder=out, resume=(out / "experiment.toml").exists()), undisturbed)
    assert at > 20


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
    with suppress(FileNotFoundError):
        return (out / "checkpoint.json").read_bytes()
    return b""


@pytest.mark.parametrize(("times", "rounds"), [(2, 12), pytest.param(30, 90, marks=pytest.mark.slow)])
def test_a_training_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path, times, rounds):
    """A process of its own, killed -9 each time it has gone on by itself."""
    chosen = small(game={"num_rounds": rounds}, output={"checkpoint_every": 1})
    path, out = tmp_path / "small.toml", tmp_path / "out"
    path.write_text(chosen.to_toml())
    line = [sys.executable, "-m", "mppfl", "train", str(path), "--output", str(out), "--quiet"]
    for kill in range(times):
        before = rounds_kept(out)
        with subprocess.Popen([*line, *(["--resume"] if kill else [])]) as process:
            while process.poll() is None and rounds_kept(out) == before:
                time.sleep(0.01)
            process.kill()
        assert process.returncode in (0, -signal.SIGKILL)
    subprocess.run([*line, "--resume"], check=True)
    require_same([load_run(run) for run in find_runs(out)], run_experiment(chosen))


# ---- a folder read while it is written: never torn, never in the writer's way ------------------------------------


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_demo_can_be_watched_round_by_round(tmp_path):
    """A real training: curves grow with checkpoints, accounts with every round."""
    changes = ["game.num_rounds=5", "output.checkpoint_every=2", "ledger.cap=0.5", 'mechanisms=["mppfl", "dp_fedavg"]']
    out, seen = tmp_path / "demo", []

    def look(records):
        before, record = names_in(out), records["mppfl"]
        state, now = read_live(out / "mppfl"), record.round_index
        assert names_in(out) == before  # a reader leaves nothing behind
        assert (state.rounds_done, state.rounds_charged, len(state.charged_since)) == (now // 2 * 2, now, now % 2)
        if now % 2:
            assert sorted(state.charged_since[-1]) == pytest.approx(sorted(record.spent))
        else:
            assert state.rounds["accuracy"][-1] == record.accuracy
            assert state.clients["spent"][-1] == pytest.approx(record.spent)
        assert state.accounts.dp_epsilon.max() == pytest.approx(record.dp_epsilon)
        assert state.accounts.remaining == pytest.approx(0.5 - state.accounts.spent)
        assert (state.accounts.rounds == now).all()
        seen.append(now)

    run, _ = run_experiment(read_experiment(EXAMPLES / "demo.toml", changes), folder=out, on_round=look)
    assert seen == [1, 2, 3, 4, 5]
    end = read_live(out / "mppfl")
    assert (end.finished, end.mechanism, end.rounds_done, end.num_rounds) == (True, "mppfl", 5, 5)
    assert end.rounds["loss"] == pytest.approx(run.history.rounds["loss"])
    assert end.is_simulation
    assert SIMULATION in end.notes
    left = {"checkpoint-5.npz", "ledger.sqlite", "arrays.npz", "weights.npz", "run.json"}
    assert {name for name in names_in(out / "mppfl") if not name.endswith(".csv")} == left


def killed_after(rounds, chosen, out):
    with pytest.raises(Killed):
        run_experiment(chosen, folder=out, on_round=stop_after(rounds))
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A training that died after its third round, one round after its checkpoint."""
    return killed_after(3, small(), tmp_path_factory.mktemp("stopped") / "out")


def test_a_training_that_died_is_read_as_far_as_it_came_and_what_changed_shows_in_the_marks(stopped, tmp_path):
    out = shutil.copytree(stopped, tmp_path / "out")
    case, before = out / "dp_fedavg", names_in(out)
    marks, state = marks_of(case), read_live(case)
    assert (state.mechanism, state.finished, state.rounds_done, state.rounds_charged) == ("dp_fedavg", False, 2, 3)
    assert (state.num_rounds, state.checkpoint_every) == (4, 2)
    assert np.isinf([state.accounts.cap, state.accounts.remaining]).all()
    assert (names_in(out), marks_of(case)) == (before, marks)
    with PrivacyLedger.open(case / "ledger.sqlite") as ledger:
        ledger.set_cap("0", 1.0, "record")
        assert marks_of(case) != marks


@pytest.mark.parametrize("name", ["checkpoint-2.npz", "../checkpoint.json", "ledger.sqlite", "../experiment.toml"])
@pytest.mark.parametrize("how", ["cut", "noise", "empty", "gone"])
def test_damage_is_told_in_one_line(stopped, tmp_path, name, how):
    file = shutil.copytree(stopped, tmp_path / "out") / "mppfl" / name
    content = file.read_bytes()
    file.unlink()
    if how != "gone":
        file.write_bytes({"cut": content[: len(content) // 2], "noise": b"\x93" * len(content), "empty": b""}[how])
    if (name, how) in (("../checkpoint.json", "gone"), ("ledger.sqlite", "gone")):
        state = read_live(tmp_path / "out" / "mppfl")  # as before the first checkpoint, or without a ledger
        assert state.rounds_done == 0 or state.accounts is None
    elif (name, how) != ("../experiment.toml", "empty"):  # an experiment with all defaults
        with pytest.raises(BadInput) as caught:
            read_live(tmp_path / "out" / "mppfl")
        assert "\n" not in str(caught.value)
        assert file.name in str(caught.value)


def test_a_set_of_checkpoints_that_was_replaced_meanwhile_is_read_again_and_damage_is_told(
    stopped, tmp_path, monkeypatch
):
    """The pointer is read, then the writer goes on to the end and removes what it named."""
    out = shutil.copytree(stopped, tmp_path / "out")
    real, moved = json.loads, []

    def overtaken(text):
        pointer = real(text)
        if not moved:
            moved.append(pointer)
            run_experiment(small(), folder=out, resume=True)
        return pointer

    monkeypatch.setattr(json, "loads", overtaken)
    state = read_live(out / "mppfl")
    assert moved == [{"rounds_done": 2}]
    assert not (out / "mppfl" / "checkpoint-2.npz").exists()
    assert (state.finished, state.rounds_done) == (True, 4)
    (out / "mppfl" / "arrays.npz").write_bytes(b"x")
    with pytest.raises(BadFile, match=r"arrays\.npz: damaged"):
        read_live(out / "mppfl")


def test_without_a_kept_ledger_or_without_noise_that_is_said(tmp_path):
    state = read_live(killed_after(2, small(ledger={"keep": False}), tmp_path / "out") / "mppfl")
    assert (state.rounds_done, state.rounds_charged, state.accounts) == (2, 2, None)
    assert any("no ledger is kept" in note for note in state.notes)
    chosen = small(mechanisms=["noiseless"], game={"num_rounds": 2, "reward_rate": "own"})
    state = read_live(killed_after(2, chosen, tmp_path / "bare") / "noiseless")
    assert (state.noise, state.is_simulation) == ("none", False)


def test_poisson_sampling_has_its_epsilon_by_orders_while_it_lasts(tmp_path):
    poisson = {"unit": "record", "release": "steps", "batches": "poisson", "budget_unit": 0.05}
    out = killed_after(1, small(mechanisms=["dp_fedavg"], protection=poisson), tmp_path / "out")
    state = read_live(out / "dp_fedavg")
    assert state.rounds_charged == 1
    assert np.isnan(state.charged_since).all()
    assert (state.accounts.dp_epsilon > 0).all()
    assert any("by RDP" in note for note in state.notes)
