"""A thousand random games of the paper's scale: residuals, regrets, orders and closed forms."""

import numpy as np
import pytest
from reproduction.paper_equations import welfare_gap

import mppfl
from mppfl.game import (
    choose_rates,
    equilibrium_response,
    pigouvian_weights,
    rate_condition,
    rounds_up_to,
    server_cost,
    social_optimum,
    unbounded_optimal_welfare,
    wanted_loss,
    welfare,
)
from tests.game.games import paper_scale_game

ROUNDS = np.array([1, 20, 60])


@pytest.mark.parametrize("block", range(10))
def test_games_of_the_papers_scale_are_solved_to_rounding(block):
    for seed in range(100 * block, 100 * (block + 1)):
        game = paper_scale_game(seed)
        response = equilibrium_response(game)
        paper = choose_rates(game, "mean_field", ROUNDS)
        exact = choose_rates(game, "anticipating", ROUNDS)
        for k, t in enumerate(ROUNDS):
            rate = paper.reward_rates[k]
            budgets = paper.budgets.at(k, rate)
            cost = server_cost(game, t, rate, budgets)
            other = exact.reward_rates[k]
            exact_cost = server_cost(game, t, other, exact.budgets.at(k, other))
            if (exact.budgets.at(k, other) > 0).sum() == (budgets > 0).sum():
                assert exact_cost <= cost * (1 + 1e-12)
            if paper.reaches_bounds:
                continue
            wanted = wanted_loss(game, rate)
            residual = np.abs(game.loss @ budgets - wanted).max()
            assert residual <= 1e-10 * max(1.0, np.abs(wanted).max())
            assert rate_condition(game, response, "mean_field").holds(rate, t)
            if not exact.reaches_bounds:
                assert rate_condition(game, response, "anticipating").holds(other, t)
        plan_check = mppfl.solve(game, "mppfl", num_rounds=2).verification
        assert plan_check.relative_regret <= 1e-9


@pytest.mark.parametrize("block", range(10))
def test_welfare_orders_and_the_gap_has_its_closed_form(block):
    ordered = 0
    for seed in range(100 * block, 100 * (block + 1)):
        game = paper_scale_game(seed)
        weights = pigouvian_weights(game)
        response = equilibrium_response(game)
        if not response.has_interior:
            continue
        rate = min(response.lowest_rate * 1.3 + 0.1, 0.5 * (response.lowest_rate + response.highest_rate))
        inside = response.budgets(rate)
        reached = welfare(game, rate, inside)
        optimum = unbounded_optimal_welfare(game, rate, weights)
        gap = welfare_gap(game, rate, weights)
        assert optimum - reached == pytest.approx(gap, rel=1e-9, abs=1e-9 * abs(optimum))
        agnostic = wanted_loss(game, rate)
        column_bound = game.externality_strength * game.propagation.column_sums.max() < 1
        if column_bound and (agnostic >= 0).all():
            ordered += 1
            assert optimum >= reached - 1e-9 * abs(optimum)
            assert reached >= welfare(game, rate, agnostic) - 1e-9 * abs(optimum)
        bounded = social_optimum(game, rate, weights)
        assert reached - 1e-9 * abs(optimum) <= bounded.welfare <= optimum + 1e-9 * abs(optimum)
    assert ordered >= 50  # of 100: the order was really looked at


def test_most_games_of_the_papers_scale_are_inside_their_bounds():
    """Guards the two tests above: they must not pass because everything was skipped."""
    inside = sum(
        not choose_rates(paper_scale_game(seed), "mean_field", rounds_up_to(1)).reaches_bounds for seed in range(50)
    )
    assert inside >= 40
