"""mppfl ledger: show, epsilon, export and verify."""

from __future__ import annotations

import pytest

from mppfl.privacy import epsilon
from mppfl.privacy.ledger import PrivacyLedger
from tests.cli.conftest import account_of_twelve, account_of_two, cost

approx = pytest.approx


@pytest.fixture
def ledger(tmp_path):
    account_of_two(tmp_path / "ledger.db")
    return tmp_path / "ledger.db"


@pytest.fixture
def twelve(tmp_path, write):
    """The account of everybody on a path of twelve, and the network."""
    account_of_twelve(tmp_path / "client.db")
    return tmp_path / "client.db", write("path.csv", *(f"c{n},c{n + 1}" for n in range(11)))


def test_show_tells_what_was_spent_and_what_is_left(mppfl, ledger):
    account = mppfl("ledger", "show", ledger, "--json").json
    assert account["num_events"] == 3
    assert account["clients"] == [
        {"client": "ann", "unit": "record", "spent": 0.5, "worst_case": 0.5, "remaining": 1.5},
        {"client": "bob", "unit": "record", "spent": 0.1, "worst_case": 1000.0, "remaining": "Infinity"},
    ]
    assert account["notes"][0] == "simulation: seeded noise protects no one"
    answer = mppfl("ledger", "show", ledger, "--client", "ann", "--client", "ann")  # asked for twice, shown once
    assert answer.stdout.splitlines()[1].split() == ["ann", "record", "0.5", "0.5", "1.5"]
    assert answer.stdout.splitlines()[2] == "3 releases in the ledger, of all its clients"
    assert "note: simulation: seeded noise protects no one" in answer.stderr
    twice = ("--delta", "1e-5", "--client", "bob", "--client", "ann", "--client", "bob", "--json")
    assert [row["client"] for row in mppfl("ledger", "epsilon", ledger, *twice).json["clients"]] == ["bob", "ann"]
    assert mppfl("ledger", "verify", ledger).stdout.startswith("sound: 3 releases; head ")


def test_what_is_infinite_is_not_told_as_unknown(mppfl, tmp_path):
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path) as opened:
        opened.reserve("run", 1, [cost("ann", float("inf"), noise_kind="none")])
    (row,) = mppfl("ledger", "show", path, "--json").json["clients"]
    assert (row["spent"], row["worst_case"], row["remaining"]) == ("Infinity",) * 3
    (row,) = mppfl("ledger", "epsilon", path, "--delta", "1e-5", "--json").json["clients"]
    assert (row["dp_epsilon"], row["worst_case"]) == ("Infinity", "Infinity")


def test_each_unit_has_its_own_lines_and_figures_per_record_say_what_they_leave_out(mppfl, ledger):
    with PrivacyLedger.open(ledger) as opened:
        opened.reserve("run", 3, [cost("ann", 0.7, unit="client", mechanism="client")])
    rows = mppfl("ledger", "show", ledger, "--json").json["clients"]
    spent = [(row["client"], row["unit"], row["spent"]) for row in rows]
    assert spent == [("ann", "record", 0.5), ("bob", "record", 0.1), ("ann", "client", 0.7), ("bob", "client", 0.0)]
    rows = mppfl("ledger", "show", ledger, "--unit", "client", "--json").json["clients"]
    assert {row["unit"] for row in rows} == {"client"}
    for command in (("show", ledger), ("epsilon", ledger, "--delta", "1e-5")):
        message = "figures and caps per record leave out what 1 clients released per client"
        assert message in mppfl("ledger", *command).stderr


def test_epsilon_of_the_papers_mechanism_is_shown_nominal_and_worst_case(mppfl, ledger):
    options = ("ledger", "epsilon", ledger, "--delta", "1e-5", "--client", "bob")
    (row,) = mppfl(*options, "--json").json["clients"]
    assert (row["dp_epsilon"], row["worst_case"]) == (approx(epsilon(0.1, 1e-5)), approx(epsilon(1000.0, 1e-5)))
    answer = mppfl(*options)
    assert answer.stdout.splitlines()[0].split()[-3:] == ["dp_epsilon", "worst", "case"]
    assert "worst case costs more than its nominal budget" in answer.stderr
    shown = mppfl("ledger", "show", ledger, "--client", "bob")
    assert shown.stdout.splitlines()[1].split() == ["bob", "record", "0.1", "1000", "inf"]
    assert "worst case costs more than its nominal budget" in shown.stderr


# ---- what the others' releases say ------------------------------------------------------------------------------


def test_show_with_a_network_adds_three_columns(mppfl, twelve, write):
    sample = write("sample.csv", "name,value", *(f"c{n},{int(n < 6)}" for n in range(12)))
    network = ("ledger", "show", twelve[0], "--graph", twelve[1], "--undirected")
    full = (*network, "--max-hops", 1, "--attribute", sample, "--coupling", 0.5)
    lines = mppfl(*full).stdout.splitlines()
    assert lines[0].split()[-3:] == ["R_model", "R_bound", "R_leak"]
    assert len(lines[1].split()) == 8
    assert any(line.startswith("R_bound   per client: nats, by tree, if forest") for line in lines)

    lines = mppfl(*network).stdout.splitlines()  # empty columns say why they are empty
    assert lines[1].split()[-2:] == ["-", "-"]
    assert any(line.startswith("R_bound   per client: none: no couplings were given") for line in lines)
    assert any(line.startswith("R_leak    per client: none: no public sample") for line in lines)
    rows = mppfl(*network, "--client", "c3", "--json").json["clients"]
    assert [(row["client"], row["R_bound"], row["R_leak"]) for row in rows] == [("c3", None, None)]
    assert mppfl(*network, "--hop-decay", 0.1, "--json").json["clients"][0]["R_model"] != approx(0.1)


def test_budgets_per_record_are_shown_nominal_and_worst_case_and_need_counts_for_nats(mppfl, ledger, write):
    network = ("--graph", write("two.csv", "ann,bob"), "--undirected", "--max-hops", 1, "--coupling", 0.5)
    found = mppfl("ledger", "show", ledger, *network, "--json").json
    ann, bob = found["clients"]
    assert (ann["R_model"], ann["R_model_worst_case"], bob["R_model"]) == (0.1, 1000.0, 0.5)
    assert ann["R_bound"] is None
    assert "attribute that all records share" in found["external"]["record"]["R_bound"]["reason"]
    for counts in ("100", write("counts.csv", "ann,100", "bob,100")):
        counted = mppfl("ledger", "show", ledger, *network, "--num-examples", counts)
        assert counted.stdout.splitlines()[2].split()[:7] == ["bob", "record", "0.1", "1000", "inf", "0.5", "0.6931"]
        assert "nominal budgets, R_bound is of worst-case" in counted.stderr
