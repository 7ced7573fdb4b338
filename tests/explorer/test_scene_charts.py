"""Charts of a solved game show the solution's own figures, for twenty clients as for many."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mppfl.explorer import Choices, World, budgets_by_round, comparison, to_plotly
from mppfl.game import AlongLine
from tests.homes import home

charts = home(budgets_by_round)

ROUNDS = 8


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def scene(world):
    return world.scene(Choices(num_clients=20, num_rounds=ROUNDS, round_shown=3, client="7"))


def line(chart, name):
    (found,) = (each for each in chart.lines if each.name.startswith(name))
    return found


def test_every_chart_of_a_scene_has_its_own_key_and_can_be_drawn(scene):
    found = charts.scene_charts(scene)
    assert len({chart.key for chart in found}) == len(found) == 6
    for chart in found:
        assert not chart.is_empty
        assert len(chart.title) <= 45  # fits on a phone
        assert to_plotly(chart, True)["data"]


def test_the_server_cost_is_the_sum_of_its_parts(scene):
    chart = charts.server_costs(scene)
    parts = line(chart, "τ·accuracy").y + line(chart, "(1−τ)·payments").y
    assert parts == pytest.approx(line(chart, "server cost").y)
    assert line(chart, "server cost").y == pytest.approx(scene.solution.outcome.server_costs)
    assert chart.at == 3
    assert charts.reward_rates(scene).lines[0].y == pytest.approx(scene.solution.plan.reward_rates)
    both = charts.welfare(scene)
    gone = line(both, "clients and server").y - scene.solution.outcome.welfare
    assert gone == pytest.approx(-2 * scene.solution.outcome.server_costs)  # τ = 1/2


def test_budgets_by_round_are_those_of_the_plan(scene):
    chart = charts.budgets_by_round(scene)
    matrix = scene.solution.plan.to_matrix()
    median = line(chart, "median")
    assert median.y == pytest.approx(np.median(matrix, axis=1))
    assert median.low == pytest.approx(np.quantile(matrix, 0.1, axis=1))
    assert line(chart, "client 7").y == pytest.approx(matrix[:, 7])
    assert chart.note == ""
    unknown = SimpleNamespace(**scene_parts(scene) | {"choices": replace(scene.choices, client="nobody")})
    assert len(charts.budgets_by_round(unknown).lines) == 1


def scene_parts(scene):
    names = ("choices", "solution", "round_index", "budgets", "prices", "losses", "external", "utilities", "names")
    return {name: getattr(scene, name) for name in names}


def test_few_clients_get_a_bar_each_and_many_a_curve(scene, world):
    few = charts.budgets_sorted(scene)
    assert len(few.labels) == 20
    assert "▸ 7" in few.labels
    assert (np.diff(few.bars[0].values) <= 0).all()
    assert sorted(few.bars[0].values) == pytest.approx(sorted(scene.budgets))
    assert few.x.name == "budget"
    many = charts.budgets_sorted(world.scene(Choices(num_clients=61, num_rounds=2, client="5")))
    assert not many.bars
    curve, chosen = many.lines
    assert curve.y[int(chosen.x[0]) - 1] == chosen.y[0]
    assert many.y.name == "budget"


def test_points_are_clients_with_their_names(scene):
    clients, chosen = charts.utility_by_risk(scene).points
    assert clients.labels == scene.names
    assert clients.x == pytest.approx(scene.external)
    assert clients.y == pytest.approx(scene.utilities)
    assert chosen.labels == ("7",)


def of_many(size, client):
    """What the charts ask of a scene, for more clients than a test could solve for."""
    rng = np.random.default_rng(1)
    budgets = AlongLine(rng.uniform(0.5, 1.5, size), np.zeros(size))
    rounds = np.arange(1, 5)
    plan = SimpleNamespace(
        num_clients=size, reward_rates=4.0 / rounds, rounds=rounds, budgets=budgets, prices=None, __len__=None
    )
    plan = type("Plan", (), {**vars(plan), "__len__": lambda self: 4})()
    graph = SimpleNamespace(index=int)
    return SimpleNamespace(
        choices=SimpleNamespace(client=client),
        solution=SimpleNamespace(plan=plan, game=SimpleNamespace(graph=graph)),
        round_index=1,
        budgets=budgets.at(0, 4.0),
        external=rng.uniform(size=size),
        utilities=rng.uniform(size=size),
        names=tuple(map(str, range(size))),
    )


def test_of_very_many_clients_a_sample_is_drawn_and_said_so():
    many = of_many(50_000, "49999")
    chart = charts.budgets_by_round(many)
    assert "2,000 clients drawn from 50,000" in chart.note
    # The median of 2,000 of them is within 0.05 of 1 except with a chance below one in a billion.
    assert line(chart, "median").y == pytest.approx(4 / np.arange(1, 5), rel=0.05)
    assert line(chart, "client 49999").y[0] == many.budgets[-1]
    assert charts.budgets_by_round(many).lines[0].y == pytest.approx(chart.lines[0].y, abs=0)  # the same sample
    points = charts.utility_by_risk(many)
    assert len(points.points[0].labels) == 2000
    assert "2,000 clients drawn from 50,000" in points.note
    sorted_ = charts.budgets_sorted(many)
    assert len(sorted_.lines[0].x) == 50_000
    assert len(to_plotly(sorted_, False)["data"][0]["x"]) <= 2000


def test_mechanisms_stand_side_by_side_under_both_rewards(world):
    found = comparison(world, Choices(num_clients=20, num_rounds=ROUNDS))
    drawn = {chart.key: chart for chart in charts.comparison_charts(found)}
    assert list(drawn) == [
        "compared-server-cost",
        "compared-welfare",
        "compared-budgets",
        "compared-anarchy",
        "compared-below-zero",
    ]
    cost, anarchy = drawn["compared-server-cost"], drawn["compared-anarchy"]
    assert [group.name for group in cost.bars] == ["common reward", "own reward"]
    assert cost.labels[:2] == ("mppfl", "mppfl exact")
    (row,) = (row for row in found.rows if row.mechanism == "fixed" and row.convention == "common")
    assert cost.bars[0].values[cost.labels.index("fixed")] == pytest.approx(row.server_cost)
    below = drawn["compared-below-zero"]
    assert below.bars[0].values[below.labels.index("fixed")] == pytest.approx(100 * row.below_zero)
    assert np.isnan(anarchy.bars[0].values[anarchy.labels.index("personalised")])
    assert anarchy.note


def test_infinite_values_are_said_and_not_drawn():
    chart = charts.sorted_chart("k", "T", charts.Axis("budget", "ρ"), {"b": np.array([1.0, np.inf])}, ("a", "b"))
    assert chart.note == "1 infinite values cannot be drawn"
    assert to_plotly(chart, False)["data"][0]["x"] == [None, 1.0]
