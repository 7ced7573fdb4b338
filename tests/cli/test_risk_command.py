"""mppfl risk: who exposes a client, by source and hop; who is most exposed; whose leaving matters most."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cli.by_hand import seven_clients

approx = pytest.approx


@pytest.fixture
def solved(mppfl, write):
    """Seven clients, their budgets in round 2 as `solve` finds them, and the options of the game."""
    game = seven_clients()
    options = game.options(write)
    second = mppfl("solve", *options, "--rounds", 2, "--json").json["rounds"][1]
    return game, options, np.array([second["budgets"][name] for name in game.names]), second["reward_rate"]


def test_lists_of_the_most_exposed_the_costliest_and_the_key_players(mppfl, solved):
    game, options, budgets, rate = solved
    answer = mppfl("risk", *options, "--round", 2, "--json")
    risk = answer.json
    assert (answer.stderr, risk["notes"]) == ("", [])
    lists = {"most_exposed", "cost_others_most", "key_players"}
    assert set(risk) == {"round_index", "reward_rate", "key_players_assume", "notes"} | lists
    assert risk["key_players_assume"] == "the others settle anew at the same prices, within their bounds"
    assert (risk["round_index"], risk["reward_rate"]) == (2, approx(rate))
    listed, exposure = risk["most_exposed"], game.propagation() @ budgets
    assert {row["name"]: row["external_risk"] for row in listed} == approx(game.by_name(exposure))
    assert {row["name"]: row["budget"] for row in listed} == approx(game.by_name(budgets))
    assert [row["name"] for row in listed] == [game.names[i] for i in np.argsort(-exposure)]
    short = mppfl("risk", *options, "--top", 3, "--json").json
    assert [len(short[key]) for key in sorted(lists)] == [3, 3, 3]


def test_names_are_shown_as_they_are_brackets_and_colons_included(mppfl, write):
    edges = write("br.csv", "x[a],x[b]\nx[b],x[a]\nx[/a],x[a]\nx[b],x[/a]\n:cat:,x[a]\nx[a],:cat:\n")
    shown = mppfl("risk", "--graph", edges, "--client", "x[/a]").stdout
    assert "x[/a]: own budget" in shown
    for name in ("x[a]", "x[b]", "x[/a]", ":cat:"):
        assert sum(line.split()[:1] == [name] for line in shown.splitlines()) >= 3, name


def test_budgets_that_are_no_best_responses_are_said_to_be_so(mppfl, solved):
    text = mppfl("risk", *solved[1], "--mechanism", "dp_fedavg").stdout
    assert "key players: budgets here are no best responses to prices" in text


def test_attribution_adds_up_by_hop_and_by_source(mppfl, solved):
    game, options, budgets, rate = solved
    for k, name in enumerate(game.names):
        client = mppfl("risk", *options, "--round", 2, "--client", name, "--json").json["client"]
        assert client["external_risk"] == approx((game.propagation() @ budgets)[k])
        assert sum(client["by_hop"].values()) == approx(client["external_risk"])
        assert sum(source["amount"] for source in client["sources"]) == approx(client["external_risk"])
        assert all(source["amount"] == approx(sum(source["by_hop"].values())) for source in client["sources"])
        loss = game.losses(budgets)[k]
        assert client["privacy_loss"] == approx(loss)
        cost = game.quadratic_cost[k] * loss**2 + game.linear_cost[k] * loss
        assert client["utility"] == approx(rate * budgets[k] - cost)


def test_the_text_explains_a_client_and_lists_the_others(mppfl, solved):
    game, options, _, _ = solved
    answer = mppfl("risk", *options, "--client", game.names[3], "--top", 2)
    assert (answer.code, answer.stderr) == (0, "")
    for text in (f"{game.names[3]}: own budget", "at hop 4", "Exposed by", "Most exposed", "Key players"):
        assert text in answer.stdout


def test_a_client_whom_nobody_exposes_has_no_sources(mppfl, friends, write):
    options = (*friends, "--graph", write("one_way.csv", "ann,bob"), "--isolated", "keep", "--client", "ann", "--json")
    client = mppfl("risk", *options).json["client"]
    assert (client["external_risk"], client["sources"]) == (0.0, [])
