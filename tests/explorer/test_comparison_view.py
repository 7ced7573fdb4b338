"""The comparison: the rows of mppfl compare, kept whichever mechanism is shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.explorer import LEFT_OUT, Choices, World, comparison
from mppfl.game import COMPARED, compare
from mppfl.network import graph_from_links
from tests.homes import home

comparison_view = home(comparison)

SMALL = Choices(num_clients=6, num_rounds=3, fixed_budget="mean", seed=2)


def test_rows_are_those_of_the_library():
    world = World()
    found = comparison(world, SMALL)
    rows = compare(world.game(SMALL), num_rounds=3, fixed_budget="mean", seed=2)
    for mine, theirs in zip(found.rows, rows, strict=True):
        assert (mine.mechanism, mine.convention) == (theirs.mechanism, theirs.convention)
        assert (mine.server_cost, mine.welfare) == (theirs.server_cost, theirs.welfare)
    assert [row.mechanism for row in found.under("own")] == list(COMPARED)
    assert found.num_rounds == 3


def test_the_row_of_the_mechanism_shown_agrees_with_its_scene():
    world = World()
    for changed in ({}, {"clients_are": "random"}, {"leader": "pigouvian"}):
        chosen = replace(SMALL, **changed)
        (row,) = [each for each in comparison(world, chosen).under("own") if each.mechanism == chosen.mechanism]
        assert row.server_cost == pytest.approx(world.scene(chosen).solution.outcome.server_costs.sum(), rel=1e-12)


def test_it_is_kept_whichever_mechanism_and_round_is_shown(monkeypatch):
    world = World()
    found = comparison(world, SMALL)
    monkeypatch.setattr(comparison_view, "compare", None)
    assert comparison(world, replace(SMALL, clients_are="fixed", round_shown=3, tab="comparison")) is found


def test_that_everybody_takes_part_is_said_where_the_page_lets_them_stay_out():
    assert comparison(World(), SMALL).notes == ()
    assert comparison(World(), replace(SMALL, participation="if_non_negative")).notes == (LEFT_OUT,)


def test_a_large_network_is_refused():
    ring = np.arange(10_001)
    world = World(graph=graph_from_links(ring, np.roll(ring, 1)))
    with pytest.raises(BadInput, match="on 10,001 clients takes minutes"):
        comparison(world, Choices(network="file"))
