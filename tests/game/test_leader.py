"""The server's rate: brute force over thousands of rates, continuity in every bound, games worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

import mppfl
from mppfl.errors import NoEquilibrium
from mppfl.game import (
    Answers,
    Followers,
    choose_rates,
    cost_of,
    equilibrium_at,
    equilibrium_response,
    leader_savings,
    pigouvian_weights,
    response_path,
)
from tests.game.force import answers_by_force, costs_by_force
from tests.game.games import bounded_game, paper_scale_game, star, three_cycle

ROUNDS = np.array([1, 7, 60])
COST_LEADERS = ("anticipating", "noise_aware", "budget_limited")


def weights_of(game):
    return np.ones(game.num_clients)


def terms_of(game, chosen):
    return [(float(rate), chosen.budgets.at(k, float(rate))) for k, rate in enumerate(chosen.reward_rates)]


def cheapest_by_force(game, leader, round_index, rule, limit):
    """The least cost over rates on a grid and just beside every bend, clients solved for at each."""
    path, able = response_path(Followers(game, weights_of(game))), game.clients.budget_max > 0
    top = 3 * float(path.ends[np.isfinite(path.ends)].max()) + 1
    bends = path.ends[np.isfinite(path.ends)]
    rates = np.unique(np.concatenate([np.linspace(0, top, 1500), bends * (1 - 1e-10), bends * (1 + 1e-10)]))
    budgets = answers_by_force(game, weights_of(game), rates)
    costs = costs_by_force(game, leader, round_index, weights_of(game), rates, budgets)
    allowed = rates * budgets.sum(axis=1) <= limit
    if rule == "everyone":
        allowed &= (budgets[:, able] > 0).all(axis=1)
    return costs[allowed].min(initial=np.inf)


@pytest.mark.parametrize("rule", ["everyone", "voluntary"])
@pytest.mark.parametrize("seed", range(12))
def test_no_rate_that_the_rule_allows_is_cheaper_than_the_leaders(seed, rule):
    game = bounded_game(seed)
    for leader in COST_LEADERS:
        limit = 2.0 if leader == "budget_limited" else np.inf
        try:
            chosen = choose_rates(game, leader, ROUNDS, participation=rule, payment_limit=limit)
        except NoEquilibrium:
            assert not np.isfinite(cheapest_by_force(game, leader, 1, rule, limit))
            continue
        for t, (rate, budgets) in zip(ROUNDS, terms_of(game, chosen), strict=True):
            assert budgets == approx(equilibrium_at(game, rate).budgets, abs=1e-10)
            mine = cost_of(game, leader, int(t), rate, budgets)
            assert mine <= cheapest_by_force(game, leader, int(t), rule, limit) * (1 + 1e-6)


@pytest.mark.slow  # some minutes
@pytest.mark.parametrize("rule", ["everyone", "voluntary"])
def test_no_rate_is_cheaper_in_five_hundred_games(rule):
    for seed in range(100, 600):
        test_no_rate_that_the_rule_allows_is_cheaper_than_the_leaders(seed, rule)


@pytest.mark.parametrize("against", ["staying_out", "nothing"])
@pytest.mark.parametrize("seed", range(8))
def test_nobody_rational_stays_at_a_loss_and_no_rate_of_the_path_is_cheaper(seed, against):
    game = bounded_game(seed)
    try:
        solution = mppfl.solve(game, "mppfl_exact", num_rounds=3, participation="rational", against=against)
    except NoEquilibrium:
        return
    assert solution.verification.leader_regret <= 1e-9 * solution.outcome.server_costs.max()
    for terms in solution.plan:
        gains = mppfl.game.gain_from_participating(game, terms.prices, terms.budgets, against)
        paid = np.abs(terms.prices * terms.budgets) + 1e-3
        assert (gains[terms.participating] >= -1e-8 * paid[terms.participating]).all()


def least_cost(game, leader, rule):
    return float(Answers(Followers(game, weights_of(game)), rule).least(leader, np.array([2]))[0])


@pytest.mark.parametrize("rule", ["everyone", "voluntary"])
@pytest.mark.parametrize("leader", ["anticipating", "noise_aware"])
@pytest.mark.parametrize("field", ["budget_max", "budget_min", "linear_cost", "noise_harm"])
def test_cost_is_continuous_in_every_bound_and_cost(field, leader, rule):
    game = paper_scale_game(3, num_clients=8, externality_strength=0.05)
    alone = mppfl.solve(game, "mppfl_exact", num_rounds=2).terms(2).budgets[0]
    ends = {"budget_max": (0.5, 1.5), "budget_min": (0.0, 1.2)}.get(field)
    low, high = (alone * ends[0], alone * ends[1]) if ends else np.array([0.5, 1.5]) * getattr(game.clients, field)[0]
    costs = []
    for value in np.linspace(low, high, 120):
        values = getattr(game.clients, field).copy()
        values[0] = value
        costs.append(least_cost(replace(game, clients=replace(game.clients, **{field: values})), leader, rule))
    steps = np.abs(np.diff(costs))
    around = np.maximum(np.roll(steps, 1), np.roll(steps, -1))[1:-1]
    # A jump would stand alone; a bend changes the slope, to which the neighbours on one side still come.
    assert (steps[1:-1] <= 3 * around + 1e-6 * max(costs)).all()


def test_lowering_one_ceiling_moves_rate_and_cost_by_little():
    game = mppfl.GameSpec(num_rounds=1).build()
    free = mppfl.solve(game, "mppfl_exact").terms(1)
    costs = []
    for share in (1.01, 0.99, 0.9):
        ceilings = np.full(game.num_clients, np.inf)
        ceilings[0] = share * free.budgets[0]
        solution = mppfl.solve(game.with_bounds(game.clients.budget_min, ceilings), "mppfl_exact")
        assert solution.outcome.participating.tolist() == [game.num_clients]
        costs.append(float(solution.outcome.server_costs[0]))
    assert costs == approx([costs[0]] * 3, rel=0.05)


def test_a_star_is_kept_between_the_rates_at_which_its_hub_comes_and_its_leaves_go():
    game = star()
    for name in ("mppfl", "mppfl_exact", "mppfl_noise_aware"):
        solution = mppfl.solve(game, name, num_rounds=2)
        assert (solution.plan.reward_rates > 1.0).all()
        assert (solution.plan.reward_rates < 4 / 3 + 1e-9).all()
        assert solution.outcome.participating.tolist() == [11, 11]


def test_where_no_rate_keeps_everybody_the_clients_who_cannot_be_kept_are_named():
    game = star()
    careless = replace(game, clients=replace(game.clients, linear_cost=0 * game.clients.linear_cost))
    with pytest.raises(NoEquilibrium, match=r"no reward rate keeps all 11 clients.*participation=.voluntary."):
        mppfl.solve(careless)
    assert mppfl.solve(careless, participation="voluntary").outcome.participating[0] < 11


def test_the_three_cycle_is_solved_where_sweeps_diverge():
    assert mppfl.solve(three_cycle()).terms(1).budgets == approx([61.2, 6.44, 0.356], rel=2e-3)


def test_the_paper_leader_solves_its_equation_and_never_costs_less_than_the_exact_one():
    for seed in range(6):
        game = paper_scale_game(seed)
        a, tau = game.clients.quadratic_cost, game.accuracy_weight
        for terms in mppfl.solve(game, "mppfl", num_rounds=3).plan:
            left = tau * (game.clients.noise_harm / (2 * terms.round_index * a * terms.budgets**2)).sum()
            assert left == approx((1 - tau) * (terms.budgets + terms.reward_rate / (2 * a)).sum(), rel=1e-9)
        paper, exact = (mppfl.solve(game, name, num_rounds=3).outcome.server_costs for name in ("mppfl", "mppfl_exact"))
        assert (paper >= exact * (1 - 1e-12)).all()


@pytest.mark.parametrize(("money", "budget"), [(1e-9, 1.0), (1e9, 1e-6), (3.0, 1e7)])
def test_answers_scale_with_the_units_of_money_and_budget(money, budget):
    for seed in range(6):
        game = bounded_game(seed)
        c = game.clients
        scaled = replace(
            c,
            quadratic_cost=c.quadratic_cost * money / budget**2,
            linear_cost=c.linear_cost * money / budget,
            noise_harm=c.noise_harm * money * budget,
            compute_cost=c.compute_cost * money,
            budget_min=c.budget_min * budget,
            budget_max=c.budget_max * budget,
        )
        for rule in ("voluntary", "rational"):
            first = mppfl.solve(game, "mppfl_exact", num_rounds=2, participation=rule)
            other = mppfl.solve(replace(game, clients=scaled), "mppfl_exact", num_rounds=2, participation=rule)
            assert other.plan.reward_rates == approx(first.plan.reward_rates * money / budget, rel=1e-8)
            assert other.plan.to_matrix() == approx(first.plan.to_matrix() * budget, rel=1e-7, abs=1e-9 * budget)


def test_a_rate_at_a_bend_leaves_the_client_who_just_wakes_at_nothing():
    game = bounded_game(1)
    path = response_path(Followers(game, weights_of(game)))
    for rate in path.ends[1:-1, 0]:
        budgets = equilibrium_at(game, float(rate)).budgets
        assert ((budgets == 0) | (budgets > 1e-12)).all()


def test_sampled_wishes_come_near_the_path_and_bound_its_saving(monkeypatch):
    rng = np.random.default_rng(0)
    graph = mppfl.random_graph("barabasi_albert", 320, rng=rng, edges_each=5)
    clients = mppfl.draw_clients("paper-like", 320, rng)
    game = mppfl.make_game(graph, replace(clients, budget_max=rng.uniform(0.1, 2.0, 320)))
    exact = mppfl.solve(game, "mppfl_exact", num_rounds=3, participation="voluntary")
    monkeypatch.setitem(Answers.choose.__globals__, "PATH_BELOW", 100)
    sampled = mppfl.solve(game, "mppfl_exact", num_rounds=3, participation="voluntary")
    costs = [
        [cost_of(game, "anticipating", t.round_index, t.prices, t.budgets) for t in solution.plan]
        for solution in (exact, sampled)
    ]
    assert costs[1] == approx(costs[0], rel=3e-3)
    positions = np.arange(3)
    assert (leader_savings(game, sampled.plan, sampled.mechanism, positions) >= np.subtract(*costs[::-1]) - 1e-9).all()


def test_pigouvian_prices_make_the_equilibrium_the_social_optimum():
    game = paper_scale_game(5, num_clients=12, externality_strength=0.03)
    weights = pigouvian_weights(game)
    rate = 2 * equilibrium_response(game, weights).lowest_rate
    assert equilibrium_at(game, rate * weights).budgets == approx(mppfl.game.social_optimum(game, rate).budgets)
