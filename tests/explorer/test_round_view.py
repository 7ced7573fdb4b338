"""Charts of a solved game show the solution's own figures, for twenty clients as for many; mechanisms compared."""

from __future__ import annotations

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.explorer import World, comparison, round_charts
from mppfl.network import graph_from_edges
from mppfl.spec import GameSpec
from tests.explorer.chosen import altered, choose
from tests.homes import home

ROUNDS = 8
SMALL = choose(num_clients=6, num_rounds=3, fixed_budget="mean", seed=2)


@pytest.fixture(scope="module")
def scene(world):
    return world.scene(choose(num_clients=20, num_rounds=ROUNDS, round_shown=3))


def world_of_a_ring(size):
    ring = np.arange(size)
    return World(given=GameSpec(graph="g.csv"), graph=graph_from_edges(ring, np.roll(ring, 1)))


def chart_of(scene, key, client="7"):
    (chart,) = (each for each in round_charts(scene, client) if each.key == key)
    return chart


def line(chart, name):
    (found,) = (each for each in chart.lines if each.name.startswith(name))
    return found


def test_few_clients_get_a_bar_each_and_many_a_curve(scene, world):
    few = chart_of(scene, "budgets-sorted")
    assert len(few.labels) == 20
    assert "▸ 7" in few.labels
    assert (np.diff(few.bars[0].values) <= 0).all()
    assert sorted(few.bars[0].values) == pytest.approx(sorted(scene.figures["budget"]))
    assert few.x.name == "budget"
    many = chart_of(world.scene(choose(num_clients=61, num_rounds=2)), "budgets-sorted")
    assert not many.bars
    curve, chosen = many.lines
    assert curve.y[int(chosen.x[0]) - 1] == chosen.y[0]
    assert many.y.name == "budget"


def test_of_very_many_clients_a_sample_is_drawn_and_said_so():
    scene = world_of_a_ring(20_001).scene(choose(graph="g.csv", num_rounds=2))
    chart, again = (chart_of(scene, "budgets-by-round", "20000") for _ in range(2))
    assert "2,000 clients drawn from 20,001" in chart.note
    # Half of all are below their median, so of the sample 50 % with a standard error of 1.1 %.
    assert (scene.figures["budget"] < line(chart, "median").y[0]).mean() == pytest.approx(0.5, abs=0.07)
    assert line(chart, "client 20000").y[0] == scene.figures["budget"][-1]
    assert again.lines[0].y == pytest.approx(chart.lines[0].y, abs=0)  # the same sample
    points = chart_of(scene, "utility-by-risk")
    assert len(points.lines[0].labels) == 2000
    assert "2,000 clients drawn from 20,001" in points.note
    assert len(chart_of(scene, "budgets-sorted").lines[0].x) == 20_001


def test_a_row_agrees_with_the_scene_of_its_mechanism_and_is_kept_whichever_is_shown(world, monkeypatch):
    rows = comparison(world, SMALL)
    costs = {row.mechanism: row.server_cost for row in rows if row.convention == "own"}
    for mechanism in ("mppfl", "random", "pigouvian"):
        scene = world.scene(altered(SMALL, mechanism=mechanism))
        assert costs[mechanism] == pytest.approx(scene.solution.outcome.server_costs.sum(), rel=1e-12)
    monkeypatch.setattr(home(comparison), "compare", None)
    assert comparison(world, altered(SMALL, mechanism="dp_fedavg", round_shown=3, tab="comparison")) is rows


def test_a_comparison_on_a_large_network_is_refused():
    with pytest.raises(BadInput, match="on 10,001 clients takes minutes"):
        comparison(world_of_a_ring(10_001), choose(graph="g.csv"))
