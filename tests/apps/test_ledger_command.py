"""mppfl ledger: show, epsilon, export and verify."""

from __future__ import annotations

import csv
import json
import sqlite3

import pytest

from mppfl.privacy.ledger import LedgerEntry, PrivacyLedger

approx = pytest.approx


def cost(client, budget, **terms):
    return LedgerEntry(
        client, **{"mechanism": "full_batch", "unit": "record", "adjacency": "replace-one", **terms}, budget=budget
    )


@pytest.fixture
def ledger(tmp_path):
    """ann spent 0.5 in two rounds of a cap of 2, bob 0.1 by the paper's mechanism, whose worst case is 1000."""
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path) as opened:
        opened.set_cap("ann", 2.0, "record")
        opened.reserve("run", 1, [cost("ann", 0.2), cost("bob", 0.1, mechanism="paper", worst_case_budget=1000.0)])
        opened.reserve("run", 2, [cost("ann", 0.3, noise_kind="seeded")])
    return path


def test_show_tells_what_was_spent_and_what_is_left(mppfl, ledger):
    found = mppfl("ledger", "show", ledger, "--json").json
    assert found["num_events"] == 3
    assert found["clients"] == [
        {"client": "ann", "unit": "record", "spent": 0.5, "worst_case": 0.5, "remaining": 1.5},
        {"client": "bob", "unit": "record", "spent": 0.1, "worst_case": 1000.0, "remaining": None},
    ]
    assert found["notes"][0] == "simulation: seeded noise protects no one"
    answer = mppfl("ledger", "show", ledger)
    assert answer.stdout.splitlines()[1].split() == ["ann", "record", "0.5", "0.5", "1.5"]
    assert "note: simulation: seeded noise protects no one" in answer.stderr


@pytest.mark.parametrize(("method", "wanted"), [("exact", 4.3772), ("rdp", 4.7284), ("zcdp", 5.2985)])
def test_epsilon_by_three_methods(mppfl, ledger, method, wanted):
    options = ("ledger", "epsilon", ledger, "--delta", "1e-5", "--method", method)
    (row,) = mppfl(*options, "--client", "ann", "--json").json["clients"]
    assert row["dp_epsilon"] == approx(wanted, abs=5e-5)
    both = mppfl(*options, "--json").json["clients"]
    assert [each["client"] for each in both] == ["ann", "bob"]
    assert both[1]["worst_case"] > 1000
    assert f"{wanted:.4f}" in mppfl(*options).stdout


def test_export_writes_every_release(mppfl, ledger, tmp_path):
    answer = mppfl("ledger", "export", ledger, "--out", tmp_path / "out.csv")
    assert answer.stdout == f"{tmp_path / 'out.csv'}: 3 releases\n"
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [float(row["budget"]) for row in csv.DictReader(file)] == [0.2, 0.1, 0.3]
    assert mppfl("ledger", "export", ledger, "--out", tmp_path / "out.json", "--json").json["num_events"] == 3
    assert len(json.loads((tmp_path / "out.json").read_text())["events"]) == 3


def test_verify_finds_what_was_changed(mppfl, ledger):
    assert mppfl("ledger", "verify", ledger, "--json").json["sound"] is True
    assert mppfl("ledger", "verify", ledger).stdout.startswith("sound: 3 releases; head ")
    with sqlite3.connect(ledger) as connection:
        connection.execute("UPDATE events SET budget = 0.01 WHERE id = 2")
    connection.close()
    assert "event 2 does not follow" in mppfl("ledger", "verify", ledger).error


def test_each_unit_has_its_own_lines(mppfl, ledger):
    with PrivacyLedger.open(ledger) as opened:
        opened.reserve("run", 3, [cost("ann", 0.7, unit="client", mechanism="client")])
    rows = mppfl("ledger", "show", ledger, "--json").json["clients"]
    assert [(row["client"], row["unit"], row["spent"]) for row in rows] == [
        ("ann", "record", 0.5),
        ("bob", "record", 0.1),
        ("ann", "client", 0.7),
        ("bob", "client", 0.0),
    ]
    assert {row["unit"] for row in mppfl("ledger", "show", ledger, "--unit", "client", "--json").json["clients"]} == {
        "client"
    }


def test_failures_are_one_line(mppfl, ledger, tmp_path):
    text = tmp_path / "text.db"
    text.write_text("no ledger")
    for command in (("show",), ("verify",), ("epsilon", "--delta", "1e-5"), ("export", "--out", tmp_path / "x.csv")):
        assert "no such ledger" in mppfl("ledger", command[0], tmp_path / "none.db", *command[1:]).error
        assert "not a privacy ledger" in mppfl("ledger", command[0], text, *command[1:]).error
        assert "is not a file" in mppfl("ledger", command[0], tmp_path, *command[1:]).error
    assert not (tmp_path / "none.db").exists()
    for delta in ("0", "-1", "nan", "inf", "1"):
        assert "dp_delta" in mppfl("ledger", "epsilon", ledger, f"--delta={delta}").error
    assert "'exat' is not known" in mppfl("ledger", "epsilon", ledger, "--delta", "1e-5", "--method", "exat").error
    assert "'zoe' is not in" in mppfl("ledger", "show", ledger, "--client", "zoe").error
    assert "'house' is not known" in mppfl("ledger", "show", ledger, "--unit", "house").error
    assert "must end in .csv or .json" in mppfl("ledger", "export", ledger, "--out", tmp_path / "x.txt").error
    assert "Check the path" in mppfl("ledger", "export", ledger, "--out", tmp_path / "nowhere" / "x.csv").error
