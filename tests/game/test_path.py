"""The path of equilibria, and the leader's choice on it: the fast way holds to the plain one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from pytest import approx

import mppfl
from mppfl.game import (
    equilibria_at,
    equilibrium_at,
    pivoting_path,
    plain_path,
    response_path,
)
from tests.game.games import games, paper_scale_game, three_cycle, two_friends
from tests.homes import home

LEADERS = ["mean_field", "anticipating", "noise_aware", "budget_limited"]


def bounded(seed, num_clients=40, **changes):
    """A game with clients at every kind of bound: none, a floor, a ceiling, no choice, kept out."""
    rng = np.random.default_rng(seed)
    game = paper_scale_game(seed, num_clients=num_clients, preset="paper-like", **changes)
    kind = rng.integers(0, 5, num_clients)
    low = np.where(kind == 1, 0.1, np.where(kind == 3, 0.3, 0.0))
    high = np.where(kind == 2, 0.6, np.where(kind == 3, 0.3, np.where(kind == 4, 0.0, np.inf)))
    return game.with_bounds(low, high)


@pytest.mark.parametrize("seed", range(8))
def test_updates_follow_the_same_path_as_an_equilibrium_solved_at_every_bend(seed):
    game = bounded(seed)
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, 40) if seed % 2 else np.ones(40)
    fast, plain = pivoting_path(game, weights), plain_path(game, weights)
    assert fast is not None
    assert len(fast) == len(plain)
    assert fast.ends[:-1] == approx(plain.ends[:-1], rel=1e-11)
    assert fast.slope == approx(plain.slope, abs=1e-11)
    assert fast.offset == approx(plain.offset, abs=1e-11)
    assert (fast.participating == plain.participating).all()


@settings(max_examples=60, deadline=None)
@given(games())
def test_updates_reach_the_equilibrium_at_every_rate_of_any_small_game(game):
    fast = pivoting_path(game, np.ones(game.num_clients))
    assert fast is not None
    for rate in np.geomspace(0.05, 20.0, 25):
        segment = fast.at(rate)
        budgets = game.clients.budget_min if segment is None else segment.budgets(rate)
        assert budgets == approx(equilibrium_at(game, rate).budgets, abs=1e-8)


def test_a_path_may_stop_where_it_is_not_needed():
    game = bounded(1)
    whole, part = response_path(game, np.ones(40)), response_path(game, np.ones(40), last=1.0)
    assert len(part) < len(whole)
    assert part[-1].low < 1.0 <= part[-1].high
    assert part.ends == approx(whole.ends[: len(part)])


def test_whether_an_equilibrium_is_surely_unique_is_asked_of_rows_and_then_of_the_symmetric_part():
    assert two_friends(0.5).loss.has_one_answer
    assert not two_friends(1.5).loss.has_one_answer  # (share, nothing) and (nothing, share) are both at rest
    strong = paper_scale_game(0, num_clients=30, preset="paper-like", externality_strength=0.35)
    assert strong.contraction >= 1
    assert strong.loss.has_one_answer


@pytest.mark.parametrize("game", [two_friends(1.5), replace(three_cycle(), externality_strength=2.5)])
def test_where_it_may_not_be_unique_the_path_is_followed_the_plain_way(game):
    ones = np.ones(game.num_clients)
    found, plain = response_path(game, ones), plain_path(game, ones)
    assert (found.ends == plain.ends).all()
    assert (found.slope == plain.slope).all()


def test_a_path_whose_lines_do_not_hold_is_given_up(monkeypatch):
    game = bounded(2)
    monkeypatch.setattr(home(equilibria_at), "PATH_TOLERANCE", 0.0)
    assert pivoting_path(game, np.ones(40)) is None
    assert len(response_path(game, np.ones(40))) == len(plain_path(game, np.ones(40)))


# ---- personal prices --------------------------------------------------------------------------------------------


def test_a_cost_that_is_not_convex_is_left_to_the_plain_way():
    game = two_friends(1.5)
    assert not game.loss.weighed_both_ways(game.clients.quadratic_cost)[1]
    found = mppfl.solve(game, "personalised", num_rounds=2)
    assert np.isfinite(found.outcome.server_costs).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.02, 3.0])  # rates between two bends, and across many
def test_equilibria_read_off_a_line_are_those_that_are_solved_for(seed, spread):
    game = bounded(seed)
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, game.num_clients)
    rates = np.sort(1.2 + spread * np.random.default_rng(seed + 1).random(30))
    alone = [equilibrium_at(game, rate * weights).budgets for rate in rates]
    assert equilibria_at(game, weights, rates) == approx(np.array(alone), abs=1e-9)
