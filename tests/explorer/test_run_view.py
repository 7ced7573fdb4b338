"""Runs on the page: only those in the folder, as they stand, several over each other."""

from __future__ import annotations

import json
import os
import shutil
import time

import numpy as np
import pytest

from mppfl.charts import MECHANISM_SLOTS, in_words, to_plotly
from mppfl.errors import BadFile, BadInput
from mppfl.experiment import run_experiment
from mppfl.explorer import RUN_CHARTS, RunReader, ledger_rows, list_runs, run_charts, run_view
from tests.experiment.runs import make_run
from tests.experiment.small import small
from tests.experiment.test_store import Killed, stop_after


def read_run(folder, name):
    return RunReader(folder).read(name)


def chart_of(states, key):
    (chart,) = (each for each in run_charts(states) if each.key == key)
    return chart


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """demo/mppfl and demo/dp_fedavg finished; group/late/* died after round 3 of 4; and what is no run."""
    place = tmp_path_factory.mktemp("runs")
    run_experiment(small(ledger={"cap": 0.5, "caps": {"1": 0.9}}), folder=place / "demo")
    with pytest.raises(Killed):
        run_experiment(small(), folder=place / "group" / "late", on_round=stop_after(3))
    (place / "letters").mkdir()
    (place / "letters" / "mine.txt").write_text("not a run")
    return place


# ---- which may be read -------------------------------------------------------------------------------------------


def test_runs_are_listed_by_their_paths(folder):
    listed = list_runs(folder)
    assert [entry.name for entry in listed] == [
        "demo/dp_fedavg",
        "demo/mppfl",
        "group/late/dp_fedavg",
        "group/late/mppfl",
    ]
    assert [entry.finished for entry in listed] == [True, True, False, False]
    assert all(0 <= time.time() - entry.updated < 600 for entry in listed)
    assert [entry.name for entry in list_runs(folder / "demo")] == ["dp_fedavg", "mppfl"]
    for alone in (folder / "demo" / "mppfl", folder / "group" / "late" / "mppfl"):
        assert [entry.name for entry in list_runs(alone)] == ["."]
        assert read_run(alone, ".").run.num_rounds == 4
    with pytest.raises(BadFile, match="no such folder"):
        list_runs(folder / "nowhere")


def test_folders_too_deep_or_hidden_are_not_looked_into(folder, tmp_path):
    shutil.copytree(folder / "demo" / "mppfl", tmp_path / "a" / "b" / "c" / "d")
    shutil.copytree(folder / "demo" / "mppfl", tmp_path / ".hidden")
    assert list_runs(tmp_path) == ()
    for name in ("a/b/c/d", ".hidden"):
        with pytest.raises(BadInput, match="is not one of those in the folder"):
            read_run(tmp_path, name)


@pytest.mark.parametrize(
    "name",
    ["../x", "../secret", "a/../../secret", "demo/../../secret", "/etc", "ABSOLUTE", "", "..", "./demo/mppfl", "demo",
     "demo//mppfl", "demo/mppfl/", "letters", "nothing", "demo\\mppfl", "a\0b", "linked", "files", "~",
     "x" * 5000, "demo/mppfl/../dp_fedavg"],
)  # fmt: skip
def test_a_name_that_was_not_listed_is_refused(folder, tmp_path, name):
    inside = tmp_path / "runs"
    shutil.copytree(folder / "demo", inside / "demo")
    shutil.copytree(folder / "demo" / "mppfl", tmp_path / "secret")
    (inside / "linked").symlink_to(tmp_path / "secret")
    shutil.copytree(folder / "demo" / "mppfl", inside / "files")
    (inside / "files" / "arrays.npz").unlink()
    (inside / "files" / "arrays.npz").symlink_to(tmp_path / "secret" / "arrays.npz")
    (inside / "letters").mkdir()
    assert [entry.name for entry in list_runs(inside)] == ["demo/dp_fedavg", "demo/mppfl"]
    wanted = str(tmp_path / "secret") if name == "ABSOLUTE" else name
    with pytest.raises(BadInput, match="is not one of those in the folder") as caught:
        read_run(inside, wanted)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_experiment_that_is_a_link_to_elsewhere_is_not_read(folder, tmp_path):
    shutil.copytree(folder / "group" / "late", tmp_path / "runs" / "late")
    assert len(list_runs(tmp_path / "runs")) == 2
    (tmp_path / "runs" / "late" / "experiment.toml").rename(tmp_path / "experiment.toml")
    (tmp_path / "runs" / "late" / "experiment.toml").symlink_to(tmp_path / "experiment.toml")
    assert list_runs(tmp_path / "runs") == ()


def test_what_is_listed_can_be_read(folder, tmp_path):
    for name in ("plain", "back\\slash", ".hidden"):
        shutil.copytree(folder / "demo" / "mppfl", tmp_path / name)
    reader = RunReader(tmp_path)
    assert [reader.read(entry.name).name for entry in reader.list()] == ["plain"]


def test_a_folder_that_is_gone_is_told_once_while_it_is_followed(folder, tmp_path):
    shutil.copytree(folder / "demo", tmp_path / "runs" / "demo")
    reader, names = RunReader(tmp_path / "runs"), ("demo/mppfl",)
    before = run_view(reader, names, False, None)
    assert "demo/mppfl</b>: mppfl, finished, 4 rounds" in before.texts["run-status"]
    shutil.rmtree(tmp_path / "runs")
    gone = run_view(reader, names, False, before.seen)
    assert (gone.options, gone.charts) == ([], ())
    assert gone.texts["run-status"].count("no such folder") == 1
    assert run_view(reader, names, False, gone.seen) is None


def test_a_link_inside_the_folder_is_a_run_like_any_other(folder, tmp_path):
    shutil.copytree(folder / "demo", tmp_path / "demo")
    (tmp_path / "best").symlink_to(tmp_path / "demo" / "mppfl")
    (tmp_path / "demo" / "round").symlink_to(tmp_path)  # a circle ends
    (tmp_path / "self").symlink_to(tmp_path / "self")  # and one that leads nowhere is passed over
    assert "best" in [entry.name for entry in list_runs(tmp_path)]
    assert read_run(tmp_path, "best").run.finished


# ---- how they stand ----------------------------------------------------------------------------------------------


def test_finished_and_unfinished_runs_read_alike(folder):
    done, late = read_run(folder, "demo/mppfl"), read_run(folder, "group/late/mppfl")
    assert late.progress == "round 3 of 4, curves every 2 rounds"
    assert done.progress == "finished, 4 rounds"
    # The same seed and plan: the rounds they share are the same.
    assert late.accuracy == pytest.approx(done.accuracy[:2])
    assert late.payments == pytest.approx(done.payments[:2])
    assert late.charged_rounds.tolist() == [1, 2, 3]
    assert late.budget_middle == pytest.approx(done.budget_middle[:3])
    assert late.budget_high == pytest.approx(done.budget_high[:3])
    assert (done.accuracy >= 0).all()
    assert (done.accuracy <= 100).all()
    assert done.run.is_simulation
    assert any("seeded noise protects no one" in note for note in late.run.notes)


def test_the_table_holds_what_each_client_spent_and_may_still_spend(folder):
    state = read_run(folder, "demo/mppfl")
    accounts, rows = state.run.accounts, ledger_rows(state)
    names, *columns, rounds = zip(*rows, strict=True)
    spent, nominal, worst, caps, left = ([float(text.replace(",", "")) for text in column] for column in columns)
    assert sorted(names) == list("01234")
    assert spent == sorted(spent, reverse=True)
    assert spent[0] == pytest.approx(accounts.spent.max(), rel=0.01)
    assert all(high >= low for high, low in zip(worst, nominal, strict=True))
    assert dict(zip(names, caps, strict=True)) == {"0": 0.5, "1": 0.9, "2": 0.5, "3": 0.5, "4": 0.5}
    assert left[names.index("1")] == pytest.approx(0.9 - accounts.spent[accounts.names.index("1")], abs=0.001)
    assert set(rounds) == {"4"}
    assert len(ledger_rows(state, most=2)) == 2
    assert {tuple(row[4:]) for row in ledger_rows(read_run(folder, "group/late/mppfl"))} == {("–", "–", "3")}


def test_nothing_is_read_again_until_something_is_written(folder, tmp_path):
    shutil.copytree(folder / "demo", tmp_path / "demo")
    reader = RunReader(tmp_path)
    first = reader.read("demo/mppfl")
    assert reader.read("demo/mppfl") is first
    os.utime(tmp_path / "demo" / "mppfl" / "run.json", (1, 1))
    second = reader.read("demo/mppfl")
    assert second is not first
    assert [entry.name for entry in reader.list()] == ["demo/dp_fedavg", "demo/mppfl"]


def test_a_training_is_followed_to_its_end(tmp_path):
    reader = RunReader(tmp_path)
    seen = []

    def look(records):
        state = reader.read("out/mppfl")
        seen.append((state.run.rounds_done, len(state.charged_rounds), state.run.finished))

    run_experiment(small(), folder=tmp_path / "out", on_round=look)
    assert seen == [(0, 1, False), (2, 2, False), (2, 3, False), (4, 4, False)]
    assert reader.read("out/mppfl").run.finished


def test_damage_is_told_in_one_line(folder, tmp_path):
    shutil.copytree(folder / "group" / "late", tmp_path / "late")
    (tmp_path / "late" / "mppfl" / "checkpoint-2.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "late" / "dp_fedavg" / "ledger.sqlite").write_bytes(b"SQLite format 3\0")
    reader = RunReader(tmp_path)
    for name, words in (("late/mppfl", "not a whole checkpoint"), ("late/dp_fedavg", "the file is damaged")):
        with pytest.raises(BadFile, match=words) as caught:
            reader.read(name)
        assert "\n" not in str(caught.value)


# ---- over each other ---------------------------------------------------------------------------------------------


def test_every_chart_of_several_runs_can_be_drawn(folder):
    states = [read_run(folder, entry.name) for entry in list_runs(folder)]
    charts = dict(zip(RUN_CHARTS, run_charts(states), strict=True))
    for key, chart in charts.items():
        json.dumps(to_plotly(chart, False), allow_nan=False)
        assert chart.key == key
        assert not chart.is_empty
    accuracy = charts["accuracy"]
    assert [line.name for line in accuracy.lines] == [state.name for state in states]
    assert [line.slot for line in accuracy.lines[:2]] == [MECHANISM_SLOTS["dp_fedavg"], MECHANISM_SLOTS["mppfl"]]
    assert "every 2 rounds" in accuracy.note
    assert accuracy.y.label == "accuracy (% of test data)"
    epsilons = charts["dp-epsilon"]
    assert "seeded noise protects no one" in epsilons.note
    assert (len(epsilons.labels), len(epsilons.bars)) == (5, 4)


def test_one_run_shows_epsilon_nominal_and_in_the_worst_case(folder):
    state = read_run(folder, "demo/mppfl")
    chart = chart_of([state], "dp-epsilon")
    assert [group.name for group in chart.bars] == ["nominal", "worst case"]
    assert chart.bars[0].values.max() == pytest.approx(state.run.accounts.dp_epsilon.max())
    assert chart.x.label == "ε (at δ = 1e-5)"
    left = chart_of([state], "remaining")
    assert left.bars[0].values.max() == pytest.approx(state.run.accounts.remaining.max())
    none = chart_of([read_run(folder, "group/late/mppfl")], "remaining")
    assert none.is_empty
    assert "no client has a cap" in none.note


def test_nothing_chosen_is_an_empty_chart_and_no_error():
    for chart in run_charts([]):
        assert in_words(chart).endswith("nothing to show yet.")
        assert to_plotly(chart, True)["layout"]["annotations"]


def test_a_run_without_noise_and_one_of_many_clients_are_drawn_too(tmp_path):
    make_run("free", noiseless=True).save(tmp_path / "free")
    make_run("many", num_clients=200, evaluate_every=5, noise="gaussian").save(tmp_path / "many")
    free, many = read_run(tmp_path, "free"), read_run(tmp_path, "many")
    assert free.run.noise == "none"
    assert not many.run.is_simulation
    budgets = chart_of([free, many], "run-budgets")
    assert "no budgets: free" in budgets.note
    assert [len(line.x) for line in budgets.lines] == [0, 12]
    epsilons = chart_of([many], "dp-epsilon")
    assert not epsilons.bars
    assert epsilons.lines[0].y == pytest.approx(np.sort(many.run.accounts.dp_epsilon)[::-1])
    assert chart_of([many], "accuracy").lines[0].x.tolist() == [5, 10, 12]  # rounds without evaluation are no gap
    endless = chart_of([free], "dp-epsilon")
    assert endless.is_empty
    assert "20 infinite values cannot be drawn" in endless.note
