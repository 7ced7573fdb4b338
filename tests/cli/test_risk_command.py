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
    found = mppfl("solve", *options, "--rounds", 2, "--json").json["rounds"][1]
    return game, options, np.array([found["budgets"][name] for name in game.names]), found["reward_rate"]


def terms_of(game, client, budgets):
    """λ^(k−1) (W^k)_ij ρ_j as an array over hops k and sources j, the client itself left out."""
    influence, power = game.influence(), np.eye(len(game.names))
    rows = []
    for hop in range(game.max_hops):
        power = power @ influence
        rows.append(game.hop_decay**hop * power[client] * budgets)
    table = np.array(rows)
    table[:, client] = 0.0
    return table


def test_json_has_lists_of_the_most_exposed_the_costliest_and_the_key_players(mppfl, solved):
    _, options, _, rate = solved
    answer = mppfl("risk", *options, "--round", 2, "--top", 3, "--json")
    found = answer.json
    assert answer.stderr == ""
    lists = {"most_exposed", "cost_others_most", "key_players"}
    assert set(found) == {"round_index", "reward_rate", "key_players_assume", "notes"} | lists
    assert found["notes"] == []
    assert found["key_players_assume"] == "the others settle anew at the same prices, within their bounds"
    assert (found["round_index"], found["reward_rate"]) == (2, approx(rate))
    assert [len(found[key]) for key in ("most_exposed", "cost_others_most", "key_players")] == [3, 3, 3]


def test_names_are_shown_as_they_are_brackets_and_colons_included(mppfl, write):
    edges = write("br.csv", "x[a],x[b]\nx[b],x[a]\nx[/a],x[a]\nx[b],x[/a]\n:cat:,x[a]\nx[a],:cat:\n")
    shown = mppfl("risk", "--graph", edges, "--client", "x[/a]").stdout
    assert "x[/a]: own budget" in shown
    for name in ("x[a]", "x[b]", "x[/a]", ":cat:"):
        assert sum(line.split()[:1] == [name] for line in shown.splitlines()) >= 3, name


def test_an_equilibrium_that_may_not_be_the_only_one_is_said_to_be_so(mppfl, write):
    options = ("--graph", write("g.csv", "A,B\nB,C\nC,A\n"), "--externality-strength", 5)
    note = mppfl("solve", *options, "--rounds", 1, "--json").json["notes"][-1]
    assert "it may not be the only equilibrium" in note
    answer = mppfl("risk", *options, "--json")
    assert answer.json["notes"] == [note]
    assert answer.stderr == f"note: {note}\n"


def test_external_risk_is_propagation_times_budgets(mppfl, solved):
    game, options, budgets, _ = solved
    listed = mppfl("risk", *options, "--round", 2, "--json").json["most_exposed"]
    risks = game.propagation() @ budgets
    assert {row["name"]: row["external_risk"] for row in listed} == approx(game.by_name(risks))
    assert {row["name"]: row["budget"] for row in listed} == approx(game.by_name(budgets))
    assert [row["name"] for row in listed] == [game.names[i] for i in np.argsort(-risks)]


def test_harm_is_what_a_budget_costs_the_others_in_money(mppfl, solved):
    game, options, budgets, _ = solved
    spread = game.propagation()
    marginal = 2 * game.quadratic_cost * game.losses(budgets) + game.linear_cost
    harm = game.externality_strength * budgets * (spread.T @ marginal)
    listed = mppfl("risk", *options, "--round", 2, "--json").json["cost_others_most"]
    assert {row["name"]: row["harm_imposed"] for row in listed} == approx(game.by_name(harm))
    caused = spread.sum(axis=0) * budgets
    assert {row["name"]: row["exposure_imposed"] for row in listed} == approx(game.by_name(caused))


def test_key_players_are_those_whose_leaving_relieves_the_others_most(mppfl, solved):
    game, options, budgets, rate = solved
    spread, size = game.propagation(), len(game.names)
    wanted = (rate - game.linear_cost) / (2 * game.quadratic_cost)
    relief, lost = {}, {}
    for k, name in enumerate(game.names):  # the others settle anew at the same rate, without k
        rest = [i for i in range(size) if i != k]
        after = np.zeros(size)
        inner = np.eye(size - 1) + game.externality_strength * spread[np.ix_(rest, rest)]
        after[rest] = np.linalg.solve(inner, wanted[rest])
        relief[name] = (spread @ (budgets - after))[rest].sum()
        lost[name] = (budgets - after).sum()
    listed = mppfl("risk", *options, "--round", 2, "--json").json["key_players"]
    assert {row["name"]: row["exposure_relief"] for row in listed} == approx(relief)
    assert {row["name"]: row["budgets_lost"] for row in listed} == approx(lost)
    assert [row["name"] for row in listed] == sorted(relief, key=lambda name: -relief[name])


def test_key_players_are_found_within_the_bounds(mppfl, write):
    # The tutorial's friends, all but one of whom may give a tenth at most, and a server that some do not follow.
    game = seven_clients()
    options = (*game.options(write), "--round", 2, "--json")
    capped = write(
        "capped.csv",
        "name,quadratic_cost,linear_cost,noise_harm,budget_max",
        *(
            f"{name},{a},{b},{e},{'inf' if k == 0 else 0.1}"
            for k, (name, a, b, e) in enumerate(
                zip(game.names, game.quadratic_cost, game.linear_cost, game.noise_harm, strict=True)
            )
        ),
    )
    options = (*options, "--clients", capped)
    high = np.where(np.arange(7) == 0, np.inf, 0.1)
    found = mppfl("risk", *options).json
    wanted = (found["reward_rate"] - game.linear_cost) / (2 * game.quadratic_cost)
    spread = game.propagation()

    def settled(gone):
        budgets = np.zeros(7)
        for _ in range(2000):  # sweeps of best responses, without those who are gone
            wish = np.clip(wanted - game.externality_strength * spread @ budgets, 0.0, high)
            budgets = np.where(np.isin(np.arange(7), gone), 0.0, wish)
        return budgets

    before = settled([])
    for row in found["key_players"]:
        k = game.names.index(row["name"])
        fall = before - settled([k])
        assert row["budgets_lost"] == approx(fall.sum())
        assert row["exposure_relief"] == approx(np.delete(spread @ fall, k).sum())


@pytest.mark.parametrize("mechanism", ["dp_fedavg", "random", "social_agnostic"])
def test_clients_who_answer_nobody_keep_their_budgets_when_somebody_leaves(mppfl, solved, mechanism):
    _, options, _, _ = solved
    found = mppfl("risk", *options, "--mechanism", mechanism, "--json").json
    caused = {row["name"]: (row["exposure_imposed"], row["budget"]) for row in found["cost_others_most"]}
    removed = {row["name"]: (row["exposure_relief"], row["budgets_lost"]) for row in found["key_players"]}
    assert removed == caused
    assert "the others are taken to keep theirs" in found["key_players_assume"]
    text = mppfl("risk", *options, "--mechanism", mechanism).stdout
    assert "key players: budgets here are no best responses to prices" in text


def test_attribution_adds_up_by_hop_and_by_source(mppfl, solved):
    game, options, budgets, rate = solved
    for k, name in enumerate(game.names):
        one = mppfl("risk", *options, "--round", 2, "--client", name, "--json").json["client"]
        table = terms_of(game, k, budgets)
        assert one["external_risk"] == approx((game.propagation() @ budgets)[k])
        assert one["by_hop"] == approx({str(hop): total for hop, total in enumerate(table.sum(axis=1), start=1)})
        assert sum(one["by_hop"].values()) == approx(one["external_risk"])
        assert sum(source["amount"] for source in one["sources"]) == approx(one["external_risk"])
        for source in one["sources"]:
            column = table[:, game.names.index(source["name"])]
            assert source["amount"] == approx(column.sum()) == approx(sum(source["by_hop"].values()))
            assert source["by_hop"] == approx({str(h): a for h, a in enumerate(column, start=1) if a > 0})
        loss = game.losses(budgets)[k]
        assert one["privacy_loss"] == approx(loss)
        cost = game.quadratic_cost[k] * loss**2 + game.linear_cost[k] * loss
        assert one["utility"] == approx(rate * budgets[k] - cost)


def test_a_directed_edge_exposes_its_target_only(mppfl, friends, write):
    one_way = write("one_way.csv", "ann,bob")
    options = (*friends, "--graph", one_way, "--isolated", "keep", "--json")
    of_ann = mppfl("risk", *options, "--client", "ann").json["client"]
    of_bob = mppfl("risk", *options, "--client", "bob").json["client"]
    assert (of_ann["external_risk"], of_ann["sources"]) == (0.0, [])
    assert [source["name"] for source in of_bob["sources"]] == ["ann"]
    assert of_bob["external_risk"] == approx(of_ann["budget"])


def test_the_text_explains_a_client_and_lists_the_others(mppfl, solved):
    game, options, _, _ = solved
    answer = mppfl("risk", *options, "--client", game.names[3], "--top", 2)
    assert (answer.code, answer.stderr) == (0, "")
    for text in (f"{game.names[3]}: own budget", "at hop 4", "Exposed by", "Most exposed", "Key players"):
        assert text in answer.stdout
