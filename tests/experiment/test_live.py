"""A training's folder read while it is written: never torn, never in the writer's way, and cheap to look at again."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from mppfl.errors import BadFile, BadInput
from mppfl.experiment import (
    LiveRun,
    copied_ledger,
    is_run,
    load_run,
    marks_of,
    read_experiment,
    read_live,
    run_experiment,
)
from mppfl.privacy.ledger import SIMULATION, PrivacyLedger
from tests.experiment.small import small
from tests.experiment.test_store import Killed, stop_after
from tests.homes import home

live = home(LiveRun)

EXAMPLES = Path(__file__).parents[2] / "examples"


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_demo_can_be_watched_round_by_round(tmp_path):
    """A real training: curves grow with checkpoints, accounts with every round."""
    changes = ["game.num_rounds=5", "output.checkpoint_every=2", "ledger.cap=0.5", 'mechanisms=["mppfl", "dp_fedavg"]']
    demo = read_experiment(EXAMPLES / "demo.toml", changes)
    out, seen = tmp_path / "demo", []

    def look(records):
        before = names_in(out)
        state = read_live(out / "mppfl")
        assert names_in(out) == before  # a reader leaves nothing behind
        record, now = records["mppfl"], records["mppfl"].round_index
        assert state.finished is (state.rounds_charged > now)
        assert (state.rounds_done, state.rounds_charged) == (now // 2 * 2, now)
        assert len(state.charged_since) == now % 2
        if now % 2:
            assert sorted(state.charged_since[-1]) == pytest.approx(sorted(record.spent))
        else:
            assert state.rounds["accuracy"][-1] == record.accuracy
            assert state.clients["spent"][-1] == pytest.approx(record.spent)
        assert state.accounts.dp_epsilon.max() == pytest.approx(record.dp_epsilon)
        assert state.accounts.remaining == pytest.approx(0.5 - state.accounts.spent)
        assert (state.accounts.rounds == now).all()
        seen.append(now)

    runs = run_experiment(demo, folder=out, on_round=look)
    assert seen == [1, 2, 3, 4, 5]
    end = read_live(out / "mppfl")
    assert end.finished
    assert (end.mechanism, end.rounds_done, end.num_rounds) == ("mppfl", 5, 5)
    assert end.rounds["loss"] == pytest.approx(runs[0].history.rounds["loss"])
    assert end.accounts.worst_case_epsilon == pytest.approx(runs[0].accounts.worst_case_epsilon)
    assert end.accounts.cap == pytest.approx(0.5)
    assert end.is_simulation
    assert SIMULATION in end.notes
    # What a finished run says is what was read from the ledger the moment before.
    (out / "mppfl" / "run.json").rename(out / "mppfl" / "hidden.json")
    unfinished = read_live(out / "mppfl")
    assert not unfinished.finished
    assert unfinished.accounts.names == end.accounts.names
    assert unfinished.accounts.spent == pytest.approx(end.accounts.spent)
    assert unfinished.accounts.dp_epsilon == pytest.approx(end.accounts.dp_epsilon)


def test_a_reader_beside_the_writer_never_sees_a_torn_state(tmp_path):
    """Checkpoints after every round, so files come and go all the time; what is seen must hang together, and grow."""
    out, failures, looks = tmp_path / "out", [], []
    rounds, over = 30, threading.Event()
    chosen = small(game={"num_rounds": rounds}, output={"checkpoint_every": 1}, mechanisms=["mppfl"])

    def watch():
        last = (0, 0)
        try:
            while not over.is_set():
                if not is_run(out / "mppfl"):
                    continue
                state = read_live(out / "mppfl")
                assert all(len(values) == state.rounds_done for values in state.rounds.values())
                assert state.rounds["round_index"].tolist() == list(range(1, state.rounds_done + 1))
                assert last <= (state.rounds_done, state.rounds_charged)
                assert state.rounds_done <= state.rounds_charged
                if state.accounts is not None and state.rounds_done:
                    together = state.clients["spent"].sum() + state.charged_since.sum()
                    assert state.accounts.spent.sum() == pytest.approx(together)
                last = (state.rounds_done, state.rounds_charged)
                looks.append(last)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=watch)
    reader.start()
    try:
        run_experiment(chosen, folder=out)
    finally:
        over.set()
        reader.join()
    assert not failures, failures
    assert len(set(looks)) > 3  # it did look in between
    left = {f"checkpoint-{rounds}.npz", "ledger.sqlite", "arrays.npz", "weights.npz", "run.json"}
    assert {name for name in names_in(out / "mppfl") if not name.endswith(".csv")} == left


WRITER = """
import sqlite3, sys
from pathlib import Path

with sqlite3.connect(sys.argv[1], isolation_level=None) as writer:
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=8")  # the log is emptied and begun anew all the time
    writer.execute("CREATE TABLE events (name TEXT)")
    while not Path(sys.argv[2]).exists():
        writer.execute("INSERT INTO events VALUES (?), (?)", ("a" * 900, "b" * 900))
writer.close()
"""


def test_a_ledger_is_copied_whole_while_another_process_writes_to_it(tmp_path):
    """Every transaction writes two rows: an odd number of them, or a damaged file, would be a torn copy."""
    path, over, counts = tmp_path / "ledger.sqlite", tmp_path / "over", []
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(over)])
    try:
        while len(counts) < 60 and writer.poll() is None:
            not_yet = suppress(BadFile, sqlite3.OperationalError)  # no file, or no table
            with not_yet, copied_ledger(path) as copy, closing(sqlite3.connect(copy)) as reader:
                counts += reader.execute("SELECT count(*) FROM events").fetchone()
                assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        over.touch()
        assert writer.wait(timeout=300) == 0
    assert len(counts) == 60
    assert all(count % 2 == 0 for count in counts)
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    assert sorted(os.listdir(tmp_path)) == ["ledger.sqlite", "over"]  # the writer put everything in order at its end


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A training that died after its third round, one round after its checkpoint."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(Killed):
        run_experiment(small(), folder=out, on_round=stop_after(3))
    return out


def copied(folder, place):
    shutil.copytree(folder, place)
    return place


def test_a_training_that_died_is_read_as_far_as_it_came(stopped):
    before = names_in(stopped)
    state = read_live(stopped / "dp_fedavg")
    assert (state.mechanism, state.finished, state.rounds_done, state.rounds_charged) == ("dp_fedavg", False, 2, 3)
    assert state.num_rounds == 4
    assert state.checkpoint_every == 2
    assert np.isinf(state.accounts.cap).all()
    assert np.isinf(state.accounts.remaining).all()
    assert names_in(stopped) == before


def test_what_changed_shows_in_the_marks(stopped, tmp_path):
    out = copied(stopped, tmp_path / "out")
    before = marks_of(out / "mppfl")
    assert marks_of(out / "mppfl") == before
    with PrivacyLedger.open(out / "mppfl" / "ledger.sqlite") as ledger:
        ledger.set_cap("0", 1.0, "record")
        assert marks_of(out / "mppfl") != before


@pytest.mark.parametrize("name", ["checkpoint-2.npz", "../checkpoint.json", "ledger.sqlite", "../experiment.toml"])
@pytest.mark.parametrize("how", ["cut", "noise", "empty", "gone"])
def test_damage_is_told_in_one_line(stopped, tmp_path, name, how):
    out = copied(stopped, tmp_path / "out")
    file = out / "mppfl" / name
    content = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "noise": b"\x93" * len(content), "empty": b""}[how])
    if (name, how) in (("../checkpoint.json", "gone"), ("ledger.sqlite", "gone")):
        state = read_live(out / "mppfl")  # as before the first checkpoint, or without a ledger
        assert state.rounds_done == 0 or state.accounts is None
        return
    if (name, how) == ("../experiment.toml", "empty"):
        return  # an experiment with all defaults
    with pytest.raises(BadInput) as caught:
        read_live(out / "mppfl")
    assert "\n" not in str(caught.value)
    assert file.name in str(caught.value)


def test_damage_to_a_finished_run_is_told_in_one_line(tmp_path):
    out = tmp_path / "out"
    run_experiment(small(game={"num_rounds": 1}, mechanisms=["mppfl"]), folder=out)
    assert read_live(out / "mppfl").rounds_done == load_run(out / "mppfl").num_rounds == 1
    (out / "mppfl" / "arrays.npz").write_bytes(b"x")
    with pytest.raises(BadFile, match=r"arrays\.npz: damaged"):
        read_live(out / "mppfl")
    (out / "mppfl" / "run.json").write_text("{")
    with pytest.raises(BadFile, match="not a whole run"):
        read_live(out / "mppfl")


def test_a_set_of_checkpoints_that_was_replaced_meanwhile_is_read_again(stopped, tmp_path, monkeypatch):
    """The pointer is read, then the writer goes on to the end and removes what it named."""
    out = copied(stopped, tmp_path / "out")
    real, moved = json.loads, []

    def overtaken(text):
        found = real(text)
        if not moved:
            moved.append(found)
            run_experiment(small(), folder=out, resume=True)
        return found

    monkeypatch.setattr(live.json, "loads", overtaken)
    state = read_live(out / "mppfl")
    assert moved == [{"rounds_done": 2}]
    assert not (out / "mppfl" / "checkpoint-2.npz").exists()
    assert (state.finished, state.rounds_done) == (True, 4)


def test_without_a_kept_ledger_curves_are_shown_and_accounts_wait(tmp_path):
    chosen = small(ledger={"keep": False})
    with pytest.raises(Killed):
        run_experiment(chosen, folder=tmp_path / "out", on_round=stop_after(2))
    state = read_live(tmp_path / "out" / "mppfl")
    assert (state.rounds_done, state.rounds_charged, state.accounts) == (2, 2, None)
    assert any("no ledger is kept" in note for note in state.notes)


def test_a_training_without_noise_is_said_to_have_none(tmp_path):
    chosen = small(mechanisms=["noiseless"], game={"num_rounds": 2, "reward_rate": "own"})
    with pytest.raises(Killed):
        run_experiment(chosen, folder=tmp_path / "out", on_round=stop_after(2))
    state = read_live(tmp_path / "out" / "noiseless")
    assert state.noise == "none"
    assert not state.is_simulation


def test_poisson_sampling_has_its_epsilon_by_orders_while_it_lasts(tmp_path):
    training = {"privacy": "dpsgd_poisson", "clip_norm": 1.0, "budget_unit": 0.05}
    chosen = small(mechanisms=["dp_fedavg"], training=training)
    with pytest.raises(Killed):
        run_experiment(chosen, folder=tmp_path / "out", on_round=stop_after(1))
    state = read_live(tmp_path / "out" / "dp_fedavg")
    assert state.rounds_charged == 1
    assert np.isnan(state.charged_since).all()
    assert (state.accounts.dp_epsilon > 0).all()
    assert any("by RDP" in note for note in state.notes)
