"""Prices that lower leakage: worked by hand, then what must hold for every game and every concave leak."""

import numpy as np
import pytest
from pytest import approx

import mppfl
from mppfl.errors import BadInput
from mppfl.game import Horizon, equilibrium_at, social_agnostic, wanted_loss
from mppfl.leakage import leakage_priced, least_leakage, price_leakage
from tests.game.games import paper_scale_game


def saturating(weights):
    """Σ w_j ln(1 + ρ_j): concave, and telling more for some than for others."""
    return lambda budgets: (float(weights @ np.log1p(budgets)), weights / (1 + budgets))


def alone(size, seed=0):
    """Clients whom nobody's budget touches: α = 0, a and b drawn."""
    rng = np.random.default_rng(seed)
    clients = mppfl.Clients(rng.uniform(0.5, 2, size), rng.uniform(0, 0.2, size), np.ones(size))
    ring = np.arange(size)
    return mppfl.make_game(mppfl.graph_from_edges(ring, (ring + 1) % size), clients, externality_strength=0.0)


def test_two_clients_with_a_linear_leak_are_worked_by_hand():
    # a = 1, b = 0, leak 2ρ_1: prices r - 2κ and r, so ρ = (r/2 - κ, r/2); with κ = 1/4 and Σρ = 1, r = 5/4.
    graph = mppfl.graph_from_edges(np.array([0, 1]), np.array([1, 0]))
    game = mppfl.make_game(graph, mppfl.Clients([1.0, 1.0], 0.0, 1.0), externality_strength=0.0)
    found = price_leakage(game, lambda rho: (2 * float(rho[0]), np.array([2.0, 0.0])), 0.25, total=1.0)
    assert found.budgets == approx([0.375, 0.625])
    assert found.reward_rate == approx(1.25)
    assert found.prices == approx([0.75, 1.25])
    assert found.leakage == approx(0.75)


@pytest.mark.parametrize("seed", range(5))
def test_the_leak_falls_with_its_price_while_the_total_stays_and_every_end_is_a_stationary_point(seed):
    game = paper_scale_game(seed, num_clients=25, externality_strength=0.03)
    leak = saturating(np.random.default_rng(seed).uniform(0, 1, 25))
    before = np.inf
    for leak_price in (0.0, 0.1, 0.5, 2.0):
        priced = price_leakage(game, leak, leak_price, total=5.0)
        assert priced.budgets.sum() == approx(5.0, rel=1e-6)
        assert priced.leakage <= before * (1 + 1e-9)
        before = priced.leakage
        prices = priced.reward_rate - leak_price * leak(priced.budgets)[1]
        answer = np.clip(wanted_loss(game, prices) - (game.loss @ priced.budgets - priced.budgets), 0.0, np.inf)
        assert np.abs(answer - priced.budgets).max() / priced.budgets.max() <= 1e-4
        assert priced.kkt_residual <= 1e-4


def test_the_least_leakage_is_with_those_who_tell_least_and_no_more_than_what_prices_reach():
    weights = np.array([3.0, 1.0, 2.0, 0.5])
    linear = lambda budgets: (float(weights @ budgets), weights)  # noqa: E731
    budgets, _, gap = least_leakage(linear, 2.5, np.zeros(4), np.ones(4), np.full(4, 0.625))
    assert budgets == approx([0, 1, 0.5, 1])
    assert gap == approx(0, abs=1e-12)
    game, leak = alone(15), saturating(np.linspace(0.1, 1, 15))
    priced = price_leakage(game, leak, 2.0, total=4.0)
    budgets, leakage, _ = least_leakage(leak, 4.0, np.zeros(15), np.full(15, 1.0), priced.budgets)
    assert leakage <= priced.leakage
    assert budgets.sum() == approx(4.0)


def test_a_plan_faces_common_rates_says_how_well_it_was_solved_and_offers_nothing_to_who_harms_more_than_he_earns():
    game, horizon = alone(8), Horizon(np.array([1, 2]), reward_rates=np.array([2.0, 1.5]))
    plan = leakage_priced(game, horizon, leak=saturating(np.ones(8)), leak_price=0.2)
    assert plan.mechanism == "leakage_priced"
    assert (plan.to_matrix() < social_agnostic(game, horizon).to_matrix()).all()
    assert "KKT residual" in plan.notes[0]
    unpriced = leakage_priced(game, Horizon(np.array([1, 3])), leak=saturating(np.arange(8.0)), leak_price=0.0)
    assert unpriced.to_matrix() == approx(social_agnostic(game, Horizon(np.array([1, 3]))).to_matrix(), rel=1e-6)
    leak = saturating(np.array([50.0, 0, 0, 0, 0, 0]))
    plan = leakage_priced(alone(6), Horizon(np.array([1])), leak=leak, leak_price=1.0)
    assert (plan[0].prices[0], plan[0].budgets[0]) == (0.0, 0.0)
    assert any("offered nothing" in note for note in plan.notes)


@pytest.mark.parametrize("strength", [0.0, 0.05])
@pytest.mark.parametrize("total", [1.2 + 1e-6, 4.0, 9.0, 15.0 - 1e-6])  # bounds add up to 1.2 and 15
def test_a_rate_is_found_for_every_total_within_the_bounds(strength, total):
    game = paper_scale_game(3, num_clients=12, externality_strength=strength).with_bounds(
        np.full(12, 0.1), np.linspace(0.5, 2.0, 12)
    )
    harm = np.linspace(0.0, 3.0, 12)
    leak = lambda rho: (float(harm @ rho), harm)  # noqa: E731
    priced = price_leakage(game, leak, 1.0, total=total)
    assert priced.budgets.sum() == approx(total, abs=1e-5)
    np.testing.assert_allclose(priced.budgets, equilibrium_at(game, priced.reward_rate - harm), atol=1e-5)
    with pytest.raises(BadInput, match="total=16"):
        price_leakage(game, leak, 1.0, total=16.0)
    with pytest.raises(BadInput, match="either total"):
        price_leakage(game, leak, 1.0)
