"""A game is the same game in every unit of money and of budget, and so are its prices and budgets."""

import numpy as np
import pytest

from mppfl.game import MECHANISMS, Clients, Horizon, cost_without_absent, make_game, solve
from mppfl.network import graph_from_matrix

MONEY_AND_BUDGET = ((1e-4, 1.0), (1e5, 1.0), (1.0, 1e-7), (1e-3, 1e4), (1.0, 1e-10), (1.0, 1e10))


def drawn(seed):
    """A small game with ceilings and floors for some."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    edges = (rng.random((n, n)) < 0.6) * (1 - np.eye(n))
    edges[np.arange(n), (np.arange(n) + 1) % n] = 1
    ceilings = np.where(rng.random(n) < 0.5, np.inf, rng.uniform(0.1, 1.0, n))
    floors = np.where(rng.random(n) < 0.3, rng.uniform(0, 0.1, n), 0.0)
    costs = rng.uniform(0.2, 1, n), rng.uniform(0.1, 1.5, n), rng.uniform(0.01, 0.5, n)
    return edges, costs, floors, ceilings, rng.uniform(0.05, 0.6)


def game_in(seed, money, budget):
    edges, (quadratic, linear, harm), floors, ceilings, strength = drawn(seed)
    clients = Clients(
        quadratic * money / budget**2,
        linear * money / budget,
        harm * money * budget,
        budget_min=floors * budget,
        budget_max=ceilings * budget,
    )
    return make_game(graph_from_matrix(edges), clients, max_hops=2, externality_strength=strength)


@pytest.mark.parametrize("mechanism", ["mppfl", "mppfl_exact", "mppfl_noise_aware", "pigouvian"])
@pytest.mark.parametrize("seed", range(12))
def test_budgets_do_not_depend_on_units(mechanism, seed):
    usual = solve(game_in(seed, 1.0, 1.0), mechanism, num_rounds=3)
    for money, budget in MONEY_AND_BUDGET:
        found = solve(game_in(seed, money, budget), mechanism, num_rounds=3)
        np.testing.assert_allclose(found.plan.to_matrix() / budget, usual.plan.to_matrix(), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found.plan.reward_rates * budget / money, usual.plan.reward_rates, rtol=1e-6)
        assert found.verification.leader_regret == pytest.approx(
            usual.verification.leader_regret * money, rel=1e-3, abs=1e-9 * money
        )


@pytest.mark.parametrize("mechanism", ["social_agnostic", "dp_fedavg", "random", "sarda_like"])
@pytest.mark.parametrize("seed", range(4))
def test_how_far_a_plan_is_from_an_equilibrium_does_not_depend_on_units(mechanism, seed):
    usual = solve(game_in(seed, 1.0, 1.0), mechanism, num_rounds=2).verification
    for money, budget in MONEY_AND_BUDGET:
        found = solve(game_in(seed, money, budget), mechanism, num_rounds=2).verification
        # Natural units are powers of two, and change by steps.
        assert usual.residual / 2.01 <= found.residual <= 2.01 * usual.residual
        assert found.relative_regret == pytest.approx(usual.relative_regret)


def with_low_ceilings(seed, most, num_clients=None):
    """Ordinary costs, and budgets so small that a rise of the rate by as little takes anybody from nothing to all."""
    rng = np.random.default_rng(seed)
    n = num_clients or int(rng.integers(2, 8))
    edges = (rng.random((n, n)) < 0.6) * (1 - np.eye(n))
    edges[np.arange(n), (np.arange(n) + 1) % n] = 1
    costs = rng.uniform(0.2, 1, n), rng.uniform(0.1, 1.5, n), rng.uniform(0.01, 0.5, n)
    clients = Clients(*costs, budget_max=most * rng.uniform(0.5, 1, n))
    strength = rng.uniform(0.05, 0.6)
    return make_game(graph_from_matrix(edges), clients, max_hops=2, externality_strength=strength)


@pytest.mark.parametrize("rule", ["always", "if_better_than_opting_out", "if_non_negative"])
@pytest.mark.parametrize("mechanism", ["mppfl", "mppfl_exact", "mppfl_noise_aware", "pigouvian"])
@pytest.mark.parametrize("seed", range(6))
def test_ceilings_however_low_are_reached_by_the_same_clients(mechanism, seed, rule):
    usual, found = (
        solve(with_low_ceilings(seed, most), mechanism, num_rounds=2, participation=rule) for most in (1e-6, 1e-10)
    )
    assert found.verification.residual < 1e-5  # a rate of about 1 is known to 2e-16, of which 1e-10 has few digits
    np.testing.assert_allclose(found.plan.to_matrix() / 1e-10, usual.plan.to_matrix() / 1e-6, rtol=1e-4, atol=1e-5)
    assert (found.plan.to_matrix() <= with_low_ceilings(seed, 1e-10).clients.budget_max).all()


def test_low_ceilings_do_not_keep_a_crowd_from_being_moved():
    found = solve(with_low_ceilings(3, 1e-10, num_clients=400), num_rounds=2)
    assert found.plan[0].participating.all()
    assert found.verification.residual < 1e-5


def test_a_rate_just_above_where_somebody_wakes_is_found_in_every_round():
    """Little harm makes the best rate leave the most reluctant client next to nothing, less from round to round."""
    ring = graph_from_matrix(np.roll(np.eye(3), 1, axis=0))
    clients = Clients([1e-3, 5e-4, 7e-4], [1.0, 0.2, 0.7], [1e-6, 1.5e-6, 2e-6])
    found = solve(make_game(ring, clients), num_rounds=1000)
    assert found.plan.reward_rates == pytest.approx(found.plan.reward_rates[0], rel=1e-6)
    assert (np.diff(found.plan.reward_rates) <= 0).all()
    assert found.outcome.server_costs.max() == pytest.approx(found.outcome.server_costs[0])
    assert found.plan.notes == ()


def test_a_root_close_to_the_start_of_a_long_segment_is_found():
    """One ceiling that is reached at a rate far beyond all others makes a segment ten million wide."""
    pair = graph_from_matrix(1 - np.eye(2))
    far = Clients([0.2, 1.0], [0.6, 0.8], [0.46, 0.08], budget_max=[2e7, 0.6])
    near = Clients([0.2, 1.0], [0.6, 0.8], [0.46, 0.08], budget_max=[np.inf, 0.6])
    rates = [
        solve(make_game(pair, each, max_hops=1, externality_strength=0.9), "mppfl_exact").plan.reward_rates
        for each in (far, near)
    ]
    assert rates[0] == pytest.approx(rates[1])


@pytest.mark.parametrize("seed", range(6))
def test_the_server_of_sarda_r_pays_the_least_for_the_answer_that_it_gets(seed):
    game = game_in(seed, 1.0, 1.0)
    found = solve(game, "sarda_r", num_rounds=2)
    for k, (rate, cost) in enumerate(zip(found.plan.reward_rates, found.outcome.server_costs, strict=True)):
        others = rate * np.linspace(0.4, 2.5, 200)
        plan = MECHANISMS["sarda_r"](game, Horizon(np.full(len(others), k + 1), others))
        costs = [cost_without_absent(game, k + 1, other, plan[j].budgets) for j, other in enumerate(others)]
        assert cost <= min(costs) * (1 + 1e-4)


def test_a_rate_that_moves_nobody_could_be_bettered_beyond_all_measure():
    game = make_game(graph_from_matrix(np.roll(np.eye(3), 1, axis=0)), Clients(1.0, [0.5, 0.6, 0.7], 1.0))
    assert solve(game, reward_rates=np.array([0.1])).verification.leader_regret == np.inf
    assert np.isfinite(solve(game, reward_rates=np.array([0.9])).verification.leader_regret)


@pytest.mark.parametrize("rule", ["if_better_than_opting_out", "if_non_negative"])
@pytest.mark.parametrize("seed", range(6))
def test_who_takes_part_does_not_depend_on_the_unit_of_money(rule, seed):
    games = [game_in(seed, money, 1.0) for money in (1.0, 1e-6, 1e7)]
    usual, *others = [solve(each, "mppfl_exact", num_rounds=3, participation=rule).plan.to_matrix() for each in games]
    for found in others:
        np.testing.assert_allclose(found, usual, rtol=1e-6, atol=1e-8)


def test_a_loss_in_small_coins_is_a_loss():
    """One client's whole stake is a millionth of a millionth of a coin; it leaves where it would lose."""
    ring = graph_from_matrix(np.roll(np.eye(3), 1, axis=0))
    participating = []
    for money in (1.0, 1e-13):
        costs = money * np.array([0.5, 0.6, 1.0]), money * np.array([0.2, 0.2, 0.9])
        game = make_game(ring, Clients(*costs, money * 1.0, compute_cost=money * np.array([0, 0, 0.3])))
        plan = solve(game, num_rounds=1, participation="if_better_than_opting_out").plan
        participating.append(plan[0].participating.tolist())
    assert participating[0] == participating[1] == [True, True, False]
