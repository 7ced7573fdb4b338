"""mppfl risk --attribute: index, bound and level side by side, and who leaks about whom."""

from __future__ import annotations

import numpy as np
import pytest
from pytest import approx

from mppfl.leakage import r_bound, r_leak, read_values
from mppfl.network import read_graph


@pytest.fixture
def circles(write):
    """Forty people in two circles as options of `risk`, and a public sample of every other one."""
    rng = np.random.default_rng(2)
    group = np.arange(40) % 2
    chance = np.where(group[:, None] == group, 0.35, 0.03)
    ends = np.argwhere(np.triu(rng.random((40, 40)) < chance, 1))
    graph = write("edges.csv", *(f"{i},{j}" for i, j in ends))
    sample = write("public.csv", *(f"{i},{int((i % 4) < 2)}" for i in range(0, 40, 3)))
    return graph, sample, ("risk", "--graph", graph, "--undirected", "--mechanism", "dp_fedavg", "--fixed-budget", 0.3)


def test_three_columns_stand_side_by_side_with_what_they_assume(mppfl, circles):
    path, sample, options = circles
    found = mppfl(*options, "--attribute", sample, "--coupling", 0.02, "--top", 40, "--json").json
    graph = read_graph(path, undirected=True)
    level, bound = r_leak(graph, 0.3, read_values(sample)).nats, r_bound(graph, 0.02, 0.3).nats
    assert {row["name"]: row["r_leak"] for row in found["columns"]} == approx(
        {graph.name(i): level[i] for i in range(40)}, abs=1e-9
    )
    assert {row["name"]: row["r_bound"] for row in found["columns"]} == approx(
        {graph.name(i): bound[i] for i in range(40)}
    )
    exposed = {row["name"]: row["external_risk"] for row in found["most_exposed"]}
    assert {row["name"]: row["r_model"] for row in found["columns"]} == approx(exposed)
    assert "no unit" in found["assumes"]["r_model"]
    assert "Ising" in found["assumes"]["r_bound"]
    assert "Gaussian field" in found["assumes"]["r_leak"]
    assert found["total_leak"] == approx(level.sum())


def test_a_column_that_cannot_be_had_is_empty_and_says_why(mppfl, circles):
    _, sample, options = circles
    found = mppfl(*options, "--attribute", sample, "--json").json
    assert all(row["r_bound"] is None for row in found["columns"])
    assert "no couplings" in found["assumes"]["r_bound"]
    strong = mppfl(*options, "--coupling", 2.0, "--json").json
    assert all(row["r_bound"] is None and row["r_leak"] is None for row in strong["columns"])
    assert "spectral radius" in strong["assumes"]["r_bound"]


def test_one_client_is_told_who_leaks_and_what_protection_costs(mppfl, circles):
    _, sample, options = circles
    most = mppfl(*options, "--attribute", sample, "--json").json["columns"][0]
    found = mppfl(*options, "--attribute", sample, "--client", most["name"], "--protect-share", 0.4, "--json").json
    one = found["about_client"]
    assert one["r_leak"] == approx(most["r_leak"])
    assert one["leaks_from"][0]["slope"] >= one["leaks_from"][1]["slope"] > 0
    assert most["name"] not in [row["name"] for row in one["leaks_from"] if row["slope"] > 0]
    cost = one["protection"]
    assert cost["level_after"] == approx(0.4 * most["r_leak"], rel=1e-6)
    assert 0 < cost["budget_withdrawn"] <= 0.3 * 39
    assert cost["share_of_all_budgets"] == approx(cost["budget_withdrawn"] / 12)
    assert cost["rewards_forgone"] == approx(found["reward_rate"] * cost["budget_withdrawn"])


def test_the_text_shows_columns_and_protection(mppfl, circles):
    _, sample, options = circles
    answer = mppfl(*options, "--attribute", sample, "--client", 5, "--top", 3)
    assert (answer.code, answer.stderr) == (0, "")
    for text in ("R_model, no unit", "R_leak, nats", "Leak most about others", "protection: to bring it down"):
        assert text in answer.stdout


def test_leak_prices_lower_what_leaks_at_the_same_total(mppfl, circles):
    path, sample, _ = circles
    options = ("risk", "--graph", path, "--undirected", "--attribute", sample, "--top", 40, "--json")
    free = mppfl(*options, "--mechanism", "social_agnostic").json
    answer = mppfl(*options, "--mechanism", "leakage_priced", "--leak-price", 0.5)
    priced = answer.json
    assert sum(row["budget"] for row in priced["most_exposed"]) == approx(
        sum(row["budget"] for row in free["most_exposed"]), rel=1e-4
    )
    assert priced["total_leak"] < free["total_leak"]
    assert "KKT residual" in answer.stderr


def test_a_leak_price_needs_its_mechanism_and_the_mechanism_its_sample(mppfl, circles):
    _, sample, options = circles
    assert "means nothing to dp_fedavg" in mppfl(*options, "--attribute", sample, "--leak-price", 1).error
    assert "needs --leak-price" in mppfl("risk", "--mechanism", "leakage_priced").error
