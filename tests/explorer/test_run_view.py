"""Runs on the page: only those in the folder, as they stand, several over each other."""

import json
import os
import shutil

import numpy as np
import pytest

from mppfl.charts import MECHANISM_SLOTS, for_page, in_words
from mppfl.errors import BadFile, BadInput
from mppfl.experiment import run_experiment
from mppfl.explorer import RUN_CHARTS, RunReader, ledger_rows, progress, run_charts, run_view
from mppfl.privacy import Protection
from tests.experiment.runs import make_run
from tests.experiment.small import Killed, small, stop_after


def read_run(folder, name):
    return RunReader(folder).read(name)


def charts_of(folder, *names):
    return {chart.key: chart for chart in run_charts({name: read_run(folder, name) for name in names})}


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


@pytest.fixture(scope="module")
def tricky(folder, tmp_path_factory):
    """Runs beside others that are too deep, hidden, or led to from the folder by links, and links among them."""
    place = tmp_path_factory.mktemp("tricky")
    inside = place / "runs"
    shutil.copytree(folder / "demo", inside / "demo")
    for name in ("runs/a/b/c/d", "runs/.hidden", "runs/back\\slash", "runs/files", "secret"):
        shutil.copytree(folder / "demo" / "mppfl", place / name)
    (inside / "linked").symlink_to(place / "secret")
    (inside / "files" / "arrays.npz").unlink()
    (inside / "files" / "arrays.npz").symlink_to(place / "secret" / "arrays.npz")
    shutil.copytree(folder / "group" / "late", inside / "late")
    (inside / "late" / "experiment.toml").rename(place / "experiment.toml")
    (inside / "late" / "experiment.toml").symlink_to(place / "experiment.toml")
    (inside / "best").symlink_to(inside / "demo" / "mppfl")
    (inside / "self").symlink_to(inside / "self")
    (inside / "letters").mkdir()
    return place


# ---- which may be read -------------------------------------------------------------------------------------------


def test_runs_are_listed_by_their_paths(folder):
    names = ["demo/dp_fedavg", "demo/mppfl", "group/late/dp_fedavg", "group/late/mppfl"]
    assert RunReader(folder).list() == dict(zip(names, (True, True, False, False), strict=True))
    assert list(RunReader(folder / "demo").list()) == ["dp_fedavg", "mppfl"]
    for alone in (folder / "demo" / "mppfl", folder / "group" / "late" / "mppfl"):
        assert list(RunReader(alone).list()) == ["."]
        assert read_run(alone, ".").num_rounds == 4
    with pytest.raises(BadFile, match="no such folder"):
        RunReader(folder / "nowhere")


def test_what_is_listed_can_be_read_and_no_link_is_followed(tricky):
    reader = RunReader(tricky / "runs")
    assert list(reader.list()) == ["demo/dp_fedavg", "demo/mppfl"]
    assert all(reader.read(name).finished for name in reader.list())


@pytest.mark.parametrize(
    "name",
    ["../x", "../secret", "a/../../secret", "demo/../../secret", "/etc", "ABSOLUTE", "", "..", "./demo/mppfl", "demo",
     "demo//mppfl", "demo/mppfl/", "letters", "nothing", "demo\\mppfl", "a\0b", "linked", "files", "~",
     "x" * 5000, "demo/mppfl/../dp_fedavg", "a/b/c/d", ".hidden", "back\\slash", "late/mppfl", "self", "best"],
)  # fmt: skip
def test_a_name_that_was_not_listed_is_refused(tricky, name):
    with pytest.raises(BadInput, match="is not one of those in the folder") as caught:
        read_run(tricky / "runs", str(tricky / "secret") if name == "ABSOLUTE" else name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_folder_that_is_gone_is_told_once_while_it_is_followed(folder, tmp_path):
    shutil.copytree(folder / "demo", tmp_path / "runs" / "demo")
    reader, names = RunReader(tmp_path / "runs"), ("demo/mppfl",)
    before = run_view(reader, names, None)
    assert "demo/mppfl</b>: mppfl, finished, 4 rounds; ρ-zCDP for all data of a client" in before.texts["run-status"]
    shutil.rmtree(tmp_path / "runs")
    gone = run_view(reader, names, before.seen)
    assert (gone.options, gone.charts) == ([], ())
    assert gone.texts["run-status"].count("no such folder") == 1
    assert run_view(reader, names, gone.seen) is None


def test_finished_and_unfinished_runs_read_alike(folder):
    done, late = read_run(folder, "demo/mppfl"), read_run(folder, "group/late/mppfl")
    assert progress(late) == "round 3 of 4, curves every 2 rounds"
    assert progress(done) == "finished, 4 rounds"
    charts, begun = charts_of(folder, "demo/mppfl"), charts_of(folder, "group/late/mppfl")
    for key, shared in (("accuracy", 2), ("run-payments", 2), ("run-budgets", 3)):  # of the same seed and plan
        (line,), (whole,) = begun[key].lines, charts[key].lines
        assert line.x.tolist() == [1, 2, 3][:shared]
        assert line.y == pytest.approx(whole.y[:shared])
    assert done.is_simulation
    assert done.guarantee == late.guarantee == Protection(unit="client").guarantee
    assert any("seeded noise protects no one" in note for note in late.notes)


def test_a_training_is_followed_to_its_end_and_read_again_only_when_something_is_written(tmp_path):
    reader, seen = RunReader(tmp_path), []

    def look(records):
        run = reader.read("out/mppfl")
        assert reader.read("out/mppfl") is run
        seen.append((run.rounds_done, run.rounds_charged, run.finished))

    run_experiment(small(), folder=tmp_path / "out", on_round=look)
    assert seen == [(0, 1, False), (2, 2, False), (2, 3, False), (4, 4, False)]
    done = reader.read("out/mppfl")
    assert done.finished
    os.utime(tmp_path / "out" / "mppfl" / "run.json", (1, 1))
    assert reader.read("out/mppfl") is not done


# ---- over each other ---------------------------------------------------------------------------------------------


def test_every_chart_of_several_runs_can_be_drawn(folder):
    charts = charts_of(folder, *RunReader(folder).list())
    assert tuple(charts) == RUN_CHARTS
    for chart in charts.values():
        json.dumps(for_page(chart), allow_nan=False)
        assert not chart.is_empty
    accuracy, epsilons = charts["accuracy"], charts["dp-epsilon"]
    assert [line.name for line in accuracy.lines] == list(RunReader(folder).list())
    assert [line.slot for line in accuracy.lines[:2]] == [MECHANISM_SLOTS["dp_fedavg"], MECHANISM_SLOTS["mppfl"]]
    assert "every 2 rounds" in accuracy.note
    assert accuracy.y.label == "accuracy (% of test data)"
    assert "seeded noise protects no one" in epsilons.note
    assert (len(epsilons.labels), len(epsilons.bars)) == (5, 4)


def test_one_run_shows_the_epsilon_and_the_rest_of_every_client(folder):
    accounts, charts = read_run(folder, "demo/mppfl").accounts, charts_of(folder, "demo/mppfl")
    assert charts["dp-epsilon"].x.label == "ε (at δ = 1e-5)"
    for key in ("dp-epsilon", "remaining"):
        (group,) = charts[key].bars
        assert group.values.max() == pytest.approx(getattr(accounts, key.replace("-", "_")).max())
    assert {tuple(row[3:]) for row in ledger_rows(read_run(folder, "group/late/mppfl"))} == {("–", "–", "3")}
    none = charts_of(folder, "group/late/mppfl")["remaining"]
    assert none.is_empty
    assert "no client has a cap" in none.note


def test_nothing_chosen_is_an_empty_chart_and_no_error():
    for chart in run_charts({}):
        assert in_words(chart).endswith("nothing to show yet.")
        assert for_page(chart)["empty"]


def test_a_run_without_noise_and_one_of_many_clients_are_drawn_too(tmp_path):
    make_run("free", noiseless=True).save(tmp_path / "free")
    make_run("many", num_clients=200, evaluate_every=5, noise="gaussian").save(tmp_path / "many")
    free, many = read_run(tmp_path, "free"), read_run(tmp_path, "many")
    assert (free.noise, free.guarantee, many.is_simulation) == ("none", "", False)
    budgets = charts_of(tmp_path, "free", "many")["run-budgets"]
    assert "no budgets: free" in budgets.note
    assert [len(line.x) for line in budgets.lines] == [0, 12]
    charts, endless = charts_of(tmp_path, "many"), charts_of(tmp_path, "free")["dp-epsilon"]
    assert not charts["dp-epsilon"].bars
    assert charts["dp-epsilon"].lines[0].y == pytest.approx(np.sort(many.accounts.dp_epsilon)[::-1])
    assert charts["accuracy"].lines[0].x.tolist() == [5, 10, 12]  # rounds without evaluation are no gap
    assert endless.is_empty
    assert "20 infinite values cannot be drawn" in endless.note
