"""The folder of a run: people can read it, and it comes back bit for bit or not at all."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import fields

import numpy as np
import pytest

from mppfl.errors import BadFile, MppflError
from mppfl.experiment import PER_ACCOUNT, find_runs, load_run
from tests.experiment.runs import CASES, STRANGE, make_run


def same(a, b):
    """Whether two arrays are equal to the last bit, and of one type."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_comes_back_from_its_folder_bit_for_bit(case, tmp_path):
    run = make_run(**CASES[case])
    again = load_run(run.save(tmp_path / "run"))
    for name in ("name", "mechanism", "config", "names", "provenance", "notes"):
        assert getattr(again, name) == getattr(run, name)
    for name in ("weights", "num_examples", "exposure", "server_cost", "welfare"):
        assert same(getattr(again, name), getattr(run, name))
    for name in PER_ACCOUNT:
        assert same(getattr(again.accounts, name), getattr(run.accounts, name))
    for each in fields(run.accounts):
        if each.name not in PER_ACCOUNT:
            assert getattr(again.accounts, each.name) == getattr(run.accounts, each.name)
    for tables in ("rounds", "clients"):
        for name, values in getattr(run.history, tables).items():
            assert same(getattr(again.history, tables)[name], values)
    assert again.history.engine == run.history.engine
    assert again.history.refused == run.history.refused
    for name in ("data", "indices", "indptr"):
        assert same(getattr(again.graph.influence, name), getattr(run.graph.influence, name))
    assert same(again.graph.strengths, run.graph.strengths)
    assert (again.graph.names, again.graph.normalisation) == (run.graph.names, run.graph.normalisation)


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
    assert len(table("links.csv")) == run.graph.num_links
    assert {row["source"] for row in table("links.csv")} <= set(STRANGE)
    assert np.load(folder / "weights.npz")["weights"].tolist() == run.weights.tolist()


def test_the_summary_is_strict_json_even_without_noise(tmp_path):
    text = (make_run(noiseless=True).save(tmp_path) / "run.json").read_text()
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["accounts"]["spent"] == {"least": "inf", "median": "inf", "most": "inf"}
    assert found["final"]["server_cost"] is None
    assert found["config"]["game"]["payment_limit"] == {"number": "inf"}


def test_seeded_noise_is_called_a_simulation(tmp_path):
    run = make_run()
    assert run.accounts.simulation
    assert run.accounts.notes[0] == "simulation: seeded noise protects no one"
    found = json.loads((run.save(tmp_path) / "run.json").read_text())
    assert found["accounts"]["simulation"] is True
    assert not make_run(privacy="client", noise="gaussian").accounts.notes


# ---- folders that are not what they should be ----------------------------------------------------------------------

FILES = (
    "run.json",
    "rounds.csv",
    "clients.csv",
    "budgets.csv",
    "payments.csv",
    "links.csv",
    "weights.npz",
    "arrays.npz",
)


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
    for text in (
        "[]",
        "{}",
        "null",
        '{"kind": "other"}',
        '{"kind": "mppfl run"}',
        "\x00",
        '{"kind": "mppfl run", "format": 9}',
    ):
        (tmp_path / "run.json").write_text(text)
        refusal(tmp_path)
    (tmp_path / "run.json").write_bytes(b"\xff\xfe\x00")
    refusal(tmp_path)
    (tmp_path / "file").write_text("x")
    assert "no such folder" in refusal(tmp_path / "file")


def test_a_folder_overwritten_half_is_refused_not_mixed(tmp_path):
    folder = make_run(seed=1).save(tmp_path / "a")
    other = make_run(seed=2).save(tmp_path / "b")
    (folder / "arrays.npz").write_bytes((other / "arrays.npz").read_bytes())
    assert "arrays.npz: damaged, or changed" in refusal(folder)


def test_what_else_lies_in_the_folder_does_not_matter(tmp_path):
    folder = make_run().save(tmp_path)
    (folder / "ledger.sqlite").write_text("x")
    (folder / "report.html").write_text("x")
    assert load_run(folder).name == "mppfl"


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(MppflError, match="could not be written"):
        make_run().save(tmp_path / "file")


def test_runs_are_found_alone_or_side_by_side_in_the_order_they_were_saved(tmp_path):
    for second, name in enumerate(("b", "a", "c")):
        make_run(name, num_clients=3, num_rounds=1).save(tmp_path / name)
        os.utime(tmp_path / name / "run.json", (second, second))
    assert find_runs(tmp_path) == (tmp_path / "b", tmp_path / "a", tmp_path / "c")
    assert find_runs(tmp_path / "a") == (tmp_path / "a",)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="neither a run nor a folder with runs"):
        find_runs(tmp_path / "empty")
    with pytest.raises(BadFile, match="no such folder"):
        find_runs(tmp_path / "none")
