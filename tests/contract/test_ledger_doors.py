"""Ledgers: what a training writes down, what `mppfl ledger` tells of it, and what it refuses."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sqlite3

import pytest

import mppfl
from tests.cli.conftest import cost
from tests.contract.doors import command, json_of

ACCOUNTS = 1e-9  # ε is found by bisection and by sums over a grid

EXPERIMENT = """
seed = 2
mechanism = "mppfl"
[game]
num_clients = 5
num_rounds = 3
[training]
model = "softmax"
learning_rate = 0.1
local_epochs = 1
[protection]
unit = "{unit}"
clip_norm = 0.5
budget_unit = {budget_unit}
noise = "{noise}"
[ledger]
cap = {cap}
caps = {{ "1" = 0.001, "3" = 5.0 }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Per record with simulated noise, where a cap keeps client 1 out, and per client with real noise."""
    place = tmp_path_factory.mktemp("ledgers")
    terms = {
        "record": {"unit": "record", "budget_unit": 0.01, "noise": "simulated", "cap": 0.02},
        "client": {"unit": "client", "budget_unit": 1.0, "noise": "gaussian", "cap": 1.5},
    }
    for name, values in terms.items():
        (place / f"{name}.toml").write_text(EXPERIMENT.format(**values), encoding="utf-8")
        command("train", place / f"{name}.toml", "--output", place / name, "--quiet")
    return place


def ledger_of(folder, name):
    return folder / name / "mppfl" / "ledger.sqlite"


def rows_of(told, *figures):
    return [[row["client"], row["unit"], *(row[name] for name in figures)] for row in told["clients"]]


@pytest.mark.parametrize("name", ["record", "client"])
def test_show_tells_what_everybody_spent_and_what_the_caps_leave(folder, golden, name):
    told = json_of("ledger", "show", ledger_of(folder, name))
    golden.check(
        {"releases": told["num_events"], "notes": told["notes"], "clients": rows_of(told, "spent", "remaining")},
        relative=ACCOUNTS,
    )
    words = command("ledger", "show", ledger_of(folder, name), "--client", "3").stdout.splitlines()
    assert words[1].split()[:2] == ["3", name]


def test_caps_keep_clients_out_of_rounds_and_the_ledger_says_so(folder, golden):
    found = {}
    for name in ("record", "client"):
        run = mppfl.load_run(folder / name / "mppfl")
        found[name] = {
            "refused": run.rounds_refused.tolist(),
            "participating": run.history.clients["participating"].tolist(),
            "paid": run.paid.tolist(),
            "server cost": run.server_cost.tolist(),
            "welfare": run.welfare.tolist(),
        }
        told = json_of("ledger", "show", ledger_of(folder, name))
        assert all(row["remaining"] >= 0 for row in told["clients"])
        assert told["num_events"] == run.history.clients["participating"].sum()
    assert sum(found["record"]["refused"]) > 0
    golden.check(found, relative=ACCOUNTS)


@pytest.mark.parametrize("method", ["exact", "rdp", "zcdp", "pld"])
def test_epsilon_of_both_ledgers_by_each_method(folder, golden, method):
    found = {}
    for name in ("record", "client"):
        clients = () if name == "client" else ("--client", "0", "--client", "4")
        told = json_of("ledger", "epsilon", ledger_of(folder, name), "--delta", 1e-6, "--method", method, *clients)
        assert (told["dp_delta"], told["method"]) == (1e-6, method)
        found[name] = rows_of(told, "dp_epsilon")
    golden.check(found, relative=1e-6 if method == "pld" else ACCOUNTS)


def test_exports_hold_every_release(folder, tmp_path, golden):
    path = ledger_of(folder, "record")
    told = json_of("ledger", "export", path, "--out", tmp_path / "out.csv")
    json_of("ledger", "export", path, "--out", tmp_path / "out.json")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    whole = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    events = whole["events"]
    assert told["num_events"] == len(rows) == len(events)
    assert [float(row["budget"]) for row in rows] == [event["budget"] for event in events]
    assert whole["head"] == json_of("ledger", "show", path)["head"]
    kept = ("round_index", "client", "protection", "unit", "adjacency", "budget", "noise_kind")
    golden.check(
        {
            "columns": sorted(rows[0]),
            "notes": whole["notes"],
            "releases": [[event[name] for name in (*kept, "noise_multiplier")] for event in events],
        },
        relative=ACCOUNTS,
    )
    assert "must end in .csv or .json" in command("ledger", "export", path, "--out", tmp_path / "x.txt", code=1).stderr


def test_a_sound_ledger_is_verified_and_a_changed_one_fails_with_code_1(folder, tmp_path, golden):
    path = ledger_of(folder, "record")
    told = json_of("ledger", "verify", path)
    assert told["sound"] is True
    assert json_of("ledger", "verify", path, "--head", told["head"])["sound"] is True
    assert "head" in command("ledger", "verify", path, "--head", "ab" * 32, code=1).stderr
    assert told["head"] == json_of("ledger", "show", path)["head"]
    changes = {
        "a budget": "UPDATE events SET budget = budget / 2 WHERE id = 2",
        "a release": "DELETE FROM events WHERE id = 3",
        "a cap": "UPDATE caps SET budget = 9.0",
    }
    said = {}
    for name, change in changes.items():
        copy = tmp_path / f"{name}.sqlite"
        shutil.copy(path, copy)
        with sqlite3.connect(copy) as connection:
            connection.execute(change)
        connection.close()
        failure = command("ledger", "verify", copy, code=1).stderr
        assert failure.startswith("error: ")
        assert failure.count("\n") == 1
        said[name] = failure.replace(str(tmp_path), "FOLDER")
    (tmp_path / "no.sqlite").write_text("no ledger")
    assert "not a privacy ledger" in command("ledger", "verify", tmp_path / "no.sqlite", code=1).stderr
    assert "no such ledger" in command("ledger", "verify", tmp_path / "none.sqlite", code=1).stderr
    golden.check({"releases": told["num_events"], "changed": said})


def test_with_a_network_show_adds_what_the_others_released(folder, tmp_path, golden):
    path = tmp_path / "line.csv"
    path.write_text("0,1\n1,2\n2,3\n3,4\n", encoding="utf-8")
    network = ("--graph", path, "--undirected", "--max-hops", 2, "--hop-decay", 0.5, "--coupling", 0.4)
    figures = ("spent", "R_model", "R_bound", "R_leak")
    found = {}
    for name, more in (("client", ()), ("record", ("--num-examples", 287))):
        told = json_of("ledger", "show", ledger_of(folder, name), *network, *more)
        found[name] = {"clients": rows_of(told, *figures), "about": told["external"]}
    golden.check(found, relative=1e-6)


def test_from_python_a_cap_refuses_and_a_round_is_paid_for_once(tmp_path, golden):
    with mppfl.PrivacyLedger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("ann", 0.5, "record")
        rounds = [
            ledger.reserve("run", 1, [cost("ann", 0.2), cost("bob", 0.1)]),
            ledger.reserve("run", 1, [cost("ann", 0.2)]),
            ledger.reserve_each("run", 2, [cost("ann", 0.4), cost("bob", 0.4, noise_kind="discrete")]),
            ledger.reserve("run", 3, [cost("bob", math.inf, noise_kind="none")]),
        ]
        with pytest.raises(mppfl.MppflError, match=r"client 'ann' has spent 0\.2 and asks for 0\.4 of a cap of 0\.5"):
            ledger.reserve("run", 4, [cost("bob", 0.1), cost("ann", 0.4)])
        names = ["ann", "bob"]
        answer = {
            "outcomes": [each.outcomes for each in rounds],
            "refused": [[str(refusal) for refusal in each.refused] for each in rounds],
            "spent": [str(each) for each in ledger.spent(names, "record")],
            "remaining": [str(each) for each in ledger.remaining(names, "record")],
            "releases": len(ledger),
            "notes": list(ledger.notes()),
        }
    shown = command("ledger", "show", tmp_path / "ledger.sqlite").stdout
    golden.check(answer | {"shown": shown.splitlines()})
    assert json_of("ledger", "verify", tmp_path / "ledger.sqlite")["num_events"] == 4
