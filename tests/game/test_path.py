"""The path of equilibria: the same answers as solving anew at every rate, with clients who join and leave."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from pytest import approx

import mppfl
from mppfl.game import (
    MECHANISMS,
    Followers,
    Horizon,
    equilibrium_at,
    gain_from_participating,
    response_path,
    utility,
    wanted_loss,
)
from tests.game.force import answers_by_force
from tests.game.games import bounded_game, games, paper_scale_game, two_friends, wide_game


def everybody(game):
    return Followers(game, np.ones(game.num_clients))


def along(game, path):
    """Segment, rate and budgets at some rates of every segment."""
    bounds = game.clients.budget_min, game.clients.budget_max
    for k, (low, high) in enumerate(path.ends):
        for share in (0.03, 0.5, 0.97):
            rate = low + share * ((high if np.isfinite(high) else 3 * low + 1) - low)
            yield k, rate, path.budgets(k, rate, *bounds)


def test_two_friends_with_a_ceiling_are_followed_by_hand():
    # Both share r/3 up to .4 at r = 1.2; then the second answers r/2 − .2.
    path = response_path(everybody(two_friends().with_bounds(np.zeros(2), np.array([0.4, np.inf]))))
    assert path.ends.tolist() == approx(np.array([[0.0, 1.2], [1.2, np.inf]]))
    assert path.slope == approx(np.array([[1 / 3, 1 / 3], [0.0, 0.5]]))
    assert path.offset == approx(np.array([[0.0, 0.0], [-0.4, 0.2]]))


@pytest.mark.parametrize("make", [bounded_game, wide_game])
@pytest.mark.parametrize("seed", range(0, 30, 2))
def test_the_path_is_what_solving_anew_at_every_rate_gives(make, seed):
    game = make(seed)
    path = response_path(everybody(game))
    assert (path.ends[1:, 0] == path.ends[:-1, 1]).all()
    for _, rate, budgets in along(game, path):
        forced = answers_by_force(game, np.ones(game.num_clients), np.array([rate]))[0]
        assert budgets == approx(forced, rel=1e-7, abs=1e-12 * wanted_loss(game, rate).max())
        assert equilibrium_at(game, rate) == approx(budgets, rel=1e-7, abs=1e-12 * wanted_loss(game, rate).max())


@settings(max_examples=40, deadline=None)
@given(games())
def test_a_rate_at_a_bend_puts_budgets_at_their_bounds_exactly(game):
    path = response_path(everybody(game))
    low, high = game.clients.budget_min, game.clients.budget_max
    for k, end in enumerate(path.ends[:-1, 1]):
        for budgets in (path.budgets(k, end, low, high), equilibrium_at(game, end)):
            near = (budgets - low < 1e-9) | (high - budgets < 1e-9)
            assert near.any()
            assert (near <= ((budgets == low) | (budgets == high))).all()


def test_a_path_may_stop_where_it_is_not_needed():
    game = bounded_game(1, num_clients=40)
    whole, part = response_path(everybody(game)), response_path(everybody(game), last=1.0)
    assert len(part) < len(whole)
    assert part.ends[-1, 0] < 1.0 <= part.ends[-1, 1]
    assert part.ends[:-1] == approx(whole.ends[: len(part) - 1])


@pytest.mark.parametrize("reach", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("seed", range(8))
def test_beyond_the_contraction_every_answer_is_an_equilibrium(reach, seed):
    game = bounded_game(seed, num_clients=12, max_hops=1, externality_strength=reach)
    for _, rate, budgets in [*along(game, response_path(everybody(game)))]:
        wish = wanted_loss(game, rate) - (game.loss @ budgets - budgets)
        assert budgets == approx(np.clip(wish, game.clients.budget_min, game.clients.budget_max), abs=1e-8 * (1 + rate))


def test_bounds_that_coincide_are_kept_beyond_the_contraction():
    # The first gives .3 whatever others do; the second answers r/2 − 1.5·.3.
    game = two_friends(1.5).with_bounds(np.array([0.3, 0.0]), np.array([0.3, np.inf]))
    assert equilibrium_at(game, 2.0) == approx([0.3, 0.55])
    path = response_path(everybody(game))
    assert path.budgets(path.segment_at(2.0), 2.0, *np.array([[0.3, 0.0], [0.3, np.inf]])) == approx([0.3, 0.55])


@pytest.mark.parametrize("rates", [None, np.array([2.0])])
def test_a_pair_at_full_exposure_has_a_one_hop_optimum(rates):
    plan = MECHANISMS["sarda_r"](two_friends(1.0), Horizon(np.array([1]), rates))
    # W = r(x + y) − 2(x + y)²: any split of r/4 is an optimum.
    assert plan[0].budgets.sum() == approx(plan.reward_rates[0] / 4)


# ---- clients who join and leave -------------------------------------------------------------------------------------


def is_at_rest(game, rate, against, inside):
    """Whether a crowd is: nobody in it loses, nobody outside would gain by joining."""
    clients = game.clients
    held = game.with_bounds(np.where(inside, clients.budget_min, 0.0), np.where(inside, clients.budget_max, 0.0))
    return not any(np.any(who) for who in restless(game, rate, against, equilibrium_at(held, rate)))


def restless(game, rate, against, budgets):
    """Who participates at a loss, and who would rather join; by utilities alone."""
    stays, joins = np.zeros((2, game.num_clients), dtype=bool)
    clients = game.clients
    for i in np.flatnonzero(clients.budget_max > 0):
        out, joined = budgets.copy(), budgets.copy()
        out[i] = 0.0
        wish = (rate - clients.linear_cost[i]) / (2 * clients.quadratic_cost[i]) - (game.loss @ out)[i]
        joined[i] = budgets[i] or np.clip(wish, clients.budget_min[i], clients.budget_max[i])
        other = utility(game, rate, out)[i] if against == "staying_out" else 0.0
        gain, slight = utility(game, rate, joined)[i] - other, 1e-9 * (rate * joined[i] + abs(other))
        stays[i] = budgets[i] > 0 and gain < -slight
        joins[i] = budgets[i] == 0 and joined[i] > 0 and gain > slight
    return stays, joins


def check_crowds(seed):
    """Points of the path, and those at which somebody outside would join although a crowd at rest exists."""
    game = bounded_game(seed)
    points = missed = 0
    for against in ("staying_out", "nothing"):
        for _, rate, budgets in along(game, response_path(everybody(game), against)):
            part = budgets > 0
            wish = wanted_loss(game, rate) - (game.loss @ budgets - budgets)
            answer = np.clip(wish, game.clients.budget_min, game.clients.budget_max)
            assert budgets[part] == approx(answer[part], rel=1e-9)
            stays, joins = restless(game, rate, against, budgets)
            assert not stays.any()
            points += 1
            if joins.any():  # they would come and go for ever, unless a crowd at rest was missed
                able = game.clients.budget_max > 0
                crowds = (np.array(crowd, dtype=bool) for crowd in product((0, 1), repeat=game.num_clients))
                missed += any(is_at_rest(game, rate, against, crowd) for crowd in crowds if not (crowd & ~able).any())
    return points, missed


@pytest.mark.parametrize("seed", range(25))
def test_nobody_stays_at_a_loss_and_nobody_outside_would_join(seed):
    assert check_crowds(seed)[1] <= 3  # the three points of one segment


@pytest.mark.slow
def test_nobody_stays_at_a_loss_and_nobody_outside_would_join_in_500_games():
    points, missed = np.sum([check_crowds(seed) for seed in range(500)], axis=0)
    assert points > 25_000
    assert missed <= 0.001 * points


def test_a_client_weighs_its_compute_cost_and_may_come_and_go():
    # Alone, i gains a(r/2a)² − C: with a = 1 the first joins at r = 2√.09, the second would at 2√.25.
    game = mppfl.make_game(
        two_friends().graph, mppfl.Clients(1.0, 0.0, 0.1, compute_cost=[0.09, 0.25]), externality_strength=0.0
    )
    path = response_path(everybody(game), "staying_out")
    assert path.ends[:, 1] == approx([0.6, 1.0, np.inf])
    assert path.participating.tolist() == [[False, False], [True, False], [True, True]]
    assert gain_from_participating(game, 0.6, np.zeros(2), "staying_out") == approx([0.0, 0.09 - 0.25])


def test_a_path_of_hundreds_of_bends_keeps_its_digits():
    game = paper_scale_game(2, num_clients=300, externality_strength=0.04, preset="paper-like")
    game = game.with_bounds(np.zeros(300), np.random.default_rng(0).uniform(0.05, 1.5, 300))
    path = response_path(everybody(game))
    assert len(path) > 500
    for k in range(0, len(path), 60):
        rate = path.ends[k, 0]
        budgets = path.budgets(k, rate, game.clients.budget_min, game.clients.budget_max)
        assert budgets == approx(equilibrium_at(game, rate), abs=1e-12)
