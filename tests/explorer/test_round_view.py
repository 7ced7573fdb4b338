"""Charts of a solved game show the solution's own figures, for twenty clients as for many; mechanisms compared."""

from dataclasses import replace

import numpy as np
import pytest

from mppfl.charts import to_plotly
from mppfl.errors import BadInput
from mppfl.explorer import (
    COMPARISON_CHARTS,
    LEFT_OUT,
    ROUND_CHARTS,
    Choices,
    World,
    comparison,
    comparison_charts,
    round_charts,
)
from mppfl.game import COMPARED, compare
from mppfl.network import graph_from_edges
from tests.homes import home

ROUNDS = 8
SMALL = Choices(num_clients=6, num_rounds=3, fixed_budget="mean", seed=2)


@pytest.fixture(scope="module")
def scene(world):
    return world.scene(Choices(num_clients=20, num_rounds=ROUNDS, round_shown=3, client="7"))


def charts_of(scene):
    return {chart.key: chart for chart in round_charts(scene)}


def line(chart, name):
    (curve,) = (curve for curve in chart.lines if curve.name.startswith(name))
    return curve


def ring(size):
    clients = np.arange(size)
    return World(graph=graph_from_edges(clients, np.roll(clients, 1)))


def test_every_chart_of_a_scene_shows_its_own_figures_and_can_be_drawn(scene):
    plan, outcome, charts = scene.solution.plan, scene.solution.outcome, charts_of(scene)
    assert tuple(charts) == ROUND_CHARTS
    for chart in charts.values():
        assert not chart.is_empty
        assert len(chart.title) <= 45  # fits on a phone
        assert to_plotly(chart, True)["data"]
    costs, matrix = charts["server-cost"], plan.to_matrix()
    parts = line(costs, "τ·accuracy").y + line(costs, "(1−τ)·payments").y
    assert parts == pytest.approx(line(costs, "server cost").y)
    assert parts == pytest.approx(outcome.server_costs)
    assert costs.marked == 3
    assert charts["reward-rate"].lines[0].y == pytest.approx(plan.reward_rates)
    gone = line(charts["welfare"], "clients and server").y - outcome.welfare
    assert gone == pytest.approx(-2 * outcome.server_costs)  # τ = 1/2
    budgets = charts["budgets-by-round"]
    assert line(budgets, "median").y == pytest.approx(np.median(matrix, axis=1))
    assert line(budgets, "median").low == pytest.approx(np.quantile(matrix, 0.1, axis=1))
    assert line(budgets, "client 7").y == pytest.approx(matrix[:, 7])
    assert budgets.note == ""
    clients, chosen = charts["utility-by-risk"].points
    assert clients.labels == scene.names
    assert clients.x == pytest.approx(scene.external)
    assert clients.y == pytest.approx(scene.utilities)
    assert chosen.labels == ("7",)
    unknown = replace(scene, choices=replace(scene.choices, client="nobody"))
    assert len(charts_of(unknown)["budgets-by-round"].lines) == 1


def test_few_clients_get_a_bar_each_and_many_a_curve(scene, world):
    few = charts_of(scene)["budgets-sorted"]
    assert len(few.labels) == 20
    assert "▸ 7" in few.labels
    assert few.bars[0].values.tolist() == sorted(scene.budgets, reverse=True)
    assert few.x.name == "budget"
    many = charts_of(world.scene(Choices(num_clients=61, num_rounds=2, client="5")))["budgets-sorted"]
    assert not many.bars
    curve, chosen = many.lines
    assert curve.y[int(chosen.x[0]) - 1] == chosen.y[0]
    assert many.y.name == "budget"


def test_of_very_many_clients_a_sample_is_drawn_and_said_so():
    scene = ring(25_000).scene(Choices(network="file", num_rounds=4, client="24999", max_hops=1))
    matrix, charts, again = scene.solution.plan.to_matrix(), charts_of(scene), charts_of(scene)
    budgets, points, sorted_ = (charts[key] for key in ("budgets-by-round", "utility-by-risk", "budgets-sorted"))
    assert "2,000 clients drawn from 25,000" in budgets.note
    # The median of 2,000 of them is among the middle tenth of all except with a chance of one in a hundred thousand.
    low, high = np.quantile(matrix, [0.45, 0.55], axis=1)
    assert (low < line(budgets, "median").y).all()
    assert (line(budgets, "median").y < high).all()
    assert line(budgets, "client 24999").y.tolist() == matrix[:, -1].tolist()
    assert again["budgets-by-round"].lines[0].y == pytest.approx(budgets.lines[0].y, abs=0)  # the same sample
    assert len(points.points[0].labels) == 2000
    assert "2,000 clients drawn from 25,000" in points.note
    assert len(sorted_.lines[0].x) == 25_000
    assert len(to_plotly(sorted_, False)["data"][0]["x"]) <= 2000


def test_mechanisms_stand_side_by_side_under_both_rewards(world):
    compared = comparison(world, Choices(num_clients=20, num_rounds=ROUNDS))
    drawn = {chart.key: chart for chart in comparison_charts(compared)}
    assert tuple(drawn) == COMPARISON_CHARTS
    cost, anarchy, below = (drawn[f"compared-{name}"] for name in ("server-cost", "anarchy", "negative-utility"))
    assert [group.name for group in cost.bars] == ["common reward", "own reward"]
    assert cost.labels[:2] == ("mppfl", "mppfl exact")
    (row,) = (row for row in compared.rows if row.mechanism == "dp_fedavg" and row.convention == "common")
    assert cost.bars[0].values[cost.labels.index("dp fedavg")] == pytest.approx(row.server_cost)
    assert below.bars[0].values[below.labels.index("dp fedavg")] == pytest.approx(100 * row.negative_utility)
    assert np.isnan(anarchy.bars[0].values[anarchy.labels.index("personalised")])
    assert anarchy.note


def test_compared_rows_are_those_of_the_library_and_of_the_scene_shown(world, monkeypatch):
    compared = comparison(world, SMALL)
    for mine, theirs in zip(
        compared.rows, compare(world.game(SMALL), num_rounds=3, fixed_budget="mean", seed=2), strict=True
    ):
        assert (mine.mechanism, mine.convention) == (theirs.mechanism, theirs.convention)
        assert (mine.server_cost, mine.welfare) == (theirs.server_cost, theirs.welfare)
    assert [row.mechanism for row in compared.under("own")] == list(COMPARED)
    assert (compared.num_rounds, compared.notes) == (3, ())
    for changed in ({}, {"clients_are": "random"}, {"leader": "pigouvian"}):
        chosen = replace(SMALL, **changed)
        (row,) = [row for row in comparison(world, chosen).under("own") if row.mechanism == chosen.mechanism]
        assert row.server_cost == pytest.approx(world.scene(chosen).solution.outcome.server_costs.sum(), rel=1e-12)
    # That everybody takes part is said where the page lets them stay out.
    assert comparison(world, replace(SMALL, participation="if_non_negative")).notes == (LEFT_OUT,)
    # A comparison is kept, whichever mechanism and round is shown.
    monkeypatch.setattr(home(comparison), "compare", None)
    assert comparison(world, replace(SMALL, clients_are="dp_fedavg", round_shown=3, tab="comparison")) is compared


def test_a_comparison_on_a_large_network_is_refused():
    with pytest.raises(BadInput, match="on 10,001 clients takes minutes"):
        comparison(ring(10_001), Choices(network="file"))
