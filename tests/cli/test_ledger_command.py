"""mppfl ledger: show, epsilon, export and verify."""

from __future__ import annotations

from math import sqrt

import pytest
from scipy.stats import norm

from mppfl.privacy import epsilon
from mppfl.privacy.ledger import SIMULATION, PrivacyLedger
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
    assert [(row["spent"], row["remaining"]) for row in account["clients"]] == [(0.5, 1.5), (0.1, "Infinity")]
    answer = mppfl("ledger", "show", ledger, "--client", "ann", "--client", "ann")  # asked for twice, shown once
    assert answer.stdout.splitlines()[1].split() == ["ann", "record", "0.5", "1.5"]
    assert answer.stdout.splitlines()[2] == "3 releases in the ledger, of all its clients"
    assert f"note: {SIMULATION}" in answer.stderr
    twice = ("--delta", "1e-5", "--client", "bob", "--client", "ann", "--client", "bob", "--json")
    assert [row["client"] for row in mppfl("ledger", "epsilon", ledger, *twice).json["clients"]] == ["bob", "ann"]
    assert mppfl("ledger", "verify", ledger).stdout.startswith("sound: 3 releases; head ")
    words = mppfl("ledger", "epsilon", ledger, "--delta", "1e-5").stdout
    assert words.splitlines()[0].split() == ["client", "unit", "dp_epsilon"]
    assert "at dp_delta 1e-05 by the method exact" in words


def test_what_is_infinite_is_not_told_as_unknown(mppfl, tmp_path):
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path) as opened:
        opened.reserve("run", 1, [cost("ann", float("inf"), noise_kind="none")])
    (row,) = mppfl("ledger", "show", path, "--json").json["clients"]
    assert (row["spent"], row["remaining"]) == ("Infinity", "Infinity")
    (row,) = mppfl("ledger", "epsilon", path, "--delta", "1e-5", "--json").json["clients"]
    assert row["dp_epsilon"] == "Infinity"


def test_each_unit_has_its_own_lines_and_figures_per_client_say_what_they_leave_out(mppfl, ledger):
    with PrivacyLedger.open(ledger) as opened:
        opened.reserve("run", 3, [cost("ann", 0.7, unit="client")])
    rows = mppfl("ledger", "show", ledger, "--json").json["clients"]
    spent = [(row["client"], row["unit"], row["spent"]) for row in rows]
    assert spent == [("ann", "record", 1.2), ("bob", "record", 0.1), ("ann", "client", 0.7), ("bob", "client", 0.0)]
    rows = mppfl("ledger", "show", ledger, "--unit", "client", "--json").json["clients"]
    assert {row["unit"] for row in rows} == {"client"}
    for command in (("show", ledger), ("epsilon", ledger, "--delta", "1e-5")):
        message = "figures per client leave out what 2 clients released per record"
        assert message in mppfl("ledger", *command).stderr


def test_a_head_noted_earlier_must_be_on_the_way_to_the_present_one(mppfl, ledger, tmp_path):
    noted = mppfl("ledger", "verify", ledger, "--json").json["head"]
    with PrivacyLedger.open(ledger) as opened:
        opened.reserve("run", 3, [cost("bob", 0.1)])
    now = mppfl("ledger", "verify", ledger, "--head", noted, "--json").json
    assert (now["sound"], now["num_events"], now["head"] != noted) == (True, 4, True)
    account_of_twelve(tmp_path / "other.db")
    assert noted[:12] in mppfl("ledger", "verify", tmp_path / "other.db", "--head", noted).error
    assert "noted" in mppfl("ledger", "verify", ledger, "--head", "ab").error


def test_runs_of_a_shared_ledger_are_told_apart(mppfl, ledger):
    with PrivacyLedger.open(ledger) as opened:
        first = opened.runs[0]
        opened.set_cap("bob", 9.0, "record", dp_delta=1e-6)
        opened.reserve("autumn/mppfl", 1, [cost("bob", 0.2)])
    rows = {run: mppfl("ledger", "show", ledger, *run, "--json").json for run in ((), ("--run", "autumn/mppfl"))}
    assert [[row["spent"] for row in told["clients"]] for told in rows.values()] == [[0.5, approx(0.3)], [0.0, 0.2]]
    assert rows[()]["runs"] == [first, "autumn/mppfl"]
    assert f"spent in 2 runs: {first}, autumn/mppfl" in mppfl("ledger", "show", ledger).stdout
    options = ("ledger", "epsilon", ledger, "--delta", "1e-5", "--client", "bob")
    alone = mppfl(*options, "--run", "autumn/mppfl", "--json").json
    assert alone["clients"][0]["dp_epsilon"] == approx(epsilon(0.2, 1e-5))
    assert "autumn/mppfl is one of 2 runs: what people gave in all is more" in alone["notes"][-1]
    both = mppfl(*options, "--json").json
    assert both["clients"][0]["dp_epsilon"] == approx(epsilon(0.3, 1e-5))
    record = mppfl("ledger", "label", ledger, "bob", "--json").json["units"]["record"]
    assert both["meaning"]["record"] == record["meaning"]
    assert record["dp_epsilon by run"] == approx({first: epsilon(0.1, 1e-5), "autumn/mppfl": epsilon(0.2, 1e-5)})
    words = mppfl("ledger", "label", ledger, "bob").stdout
    assert "cap of ε at δ = 1e-06   9" in words
    assert f"dp_epsilon by run       {first} 1.76, autumn/mppfl 2.594" in words
    assert mppfl("ledger", "verify", ledger).stdout.startswith("sound: 4 releases of 2 runs; head ")
    assert "--run spring has no releases in this ledger" in mppfl("ledger", "show", ledger, "--run", "spring").error


def test_show_with_a_network_adds_three_columns(mppfl, twelve, write):
    sample = write("sample.csv", "name,value", *(f"c{n},{int(n < 6)}" for n in range(12)))
    network = ("ledger", "show", twelve[0], "--graph", twelve[1], "--undirected")
    full = (*network, "--max-hops", 1, "--attribute", sample, "--coupling", 0.5)
    lines = mppfl(*full).stdout.splitlines()
    assert lines[0].split()[-3:] == ["R_model", "R_bound", "R_leak"]
    assert len(lines[1].split()) == 7
    assert any(line.startswith("R_bound   per client: nats, by tree, if forest") for line in lines)

    lines = mppfl(*network).stdout.splitlines()  # empty columns say why they are empty
    assert lines[1].split()[-2:] == ["-", "-"]
    assert any(line.startswith("R_bound   per client: none: no couplings were given") for line in lines)
    assert any(line.startswith("R_leak    per client: none: no public sample") for line in lines)


def test_budgets_per_record_need_counts_for_nats(mppfl, ledger, write):
    network = ("--graph", write("two.csv", "ann,bob"), "--undirected", "--max-hops", 1, "--coupling", 0.5)
    found = mppfl("ledger", "show", ledger, *network, "--json").json
    assert [(row["R_model"], row["R_bound"]) for row in found["clients"]] == [(0.1, None), (0.5, None)]
    assert "attribute that all records share" in found["external"]["record"]["R_bound"]["reason"]
    for counts in ("100", write("counts.csv", "ann,100", "bob,100")):
        counted = mppfl("ledger", "show", ledger, *network, "--num-examples", counts)
        assert counted.stdout.splitlines()[2].split()[:6] == ["bob", "record", "0.1", "inf", "0.5", "0.6931"]
        assert "R_bound and R_leak are for an attribute that all n records share" in counted.stderr


def test_a_label_says_what_was_released_of_one_client_and_what_it_means(mppfl, ledger):
    label = mppfl("ledger", "label", ledger, "ann", "--json").json
    assert (label["releases"], label["rounds"], label["runs"]) == (2, 2, ["run"])
    record = label["units"]["record"]
    assert (record["spent"], record["cap"], record["accounting"]) == (approx(0.5), 2.0, "exact")
    assert record["dp_epsilon"] == approx(epsilon(0.5, 1e-5, "exact"))
    assert record["attacker's advantage"] == approx(2 * norm.cdf(sqrt(0.25)) - 1, rel=1e-6)
    words = mppfl("ledger", "label", ledger, "ann").stdout
    assert "An attacker who accuses 1 in 100 by mistake recognises 9 in 100 members." in words
    assert "client 'zoe' is not in" in mppfl("ledger", "label", ledger, "zoe").error
