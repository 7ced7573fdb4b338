"""Clients' equilibrium: golden cases, properties, and second routes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy.optimize import minimize_scalar

import mppfl
from mppfl.game import LossOperator, equilibrium_at, equilibrium_response, privacy_loss, utility, wanted_loss
from tests.game.games import games, paper_scale_game, star, three_cycle, two_friends
from tests.homes import home

loss_module = home(LossOperator)


def test_two_friends_share_a_third_of_the_reward_rate():
    # a = 1, b = 0, α = 1/2, one edge each way: r = 2(ρ + ρ/2), so ρ = r/3.
    assert equilibrium_response(two_friends()).budgets(3.0) == approx([1.0, 1.0])
    assert equilibrium_at(two_friends(), 3.0) == approx([1.0, 1.0])


def test_without_externality_everybody_answers_as_if_alone():
    game = paper_scale_game(3, externality_strength=0.0)
    response = equilibrium_response(game)
    rate = response.lowest_rate + 1.0
    assert response.budgets(rate) == approx(wanted_loss(game, rate))
    found = mppfl.solve(game, "mppfl", num_rounds=4)
    agnostic = mppfl.solve(game, "social_agnostic", num_rounds=4)
    assert found.outcome.reward_rates == approx(agnostic.outcome.reward_rates)
    assert found.verification.leader_regret == approx(0.0, abs=1e-10)  # without exposure the two leaders agree


def test_leaves_of_the_star_share_less_the_more_is_paid():
    # hub: ρ_h + .2ρ_l = 10(r−1); leaf: ρ_l + .2ρ_h = r/2. Hence u_h = 9.9/.96, u_l = .5 − .2u_h.
    response = equilibrium_response(star())
    assert response.slope[0] == approx(9.9 / 0.96)
    assert response.slope[1:] == approx(np.full(10, 0.5 - 0.2 * 9.9 / 0.96))
    assert response.lowest_rate == approx(1.0 + 0.01 / 0.99)
    assert response.highest_rate == approx(4.0 / 3.0)


@pytest.mark.parametrize(
    ("rate", "hub", "leaf"), [(0.5, 0.0, 0.25), (1.2, 47 / 24, 5 / 24), (1.4, 4.0, 0.0), (3.0, 20.0, 0.0)]
)
def test_star_past_its_bounds_is_worked_by_hand(rate, hub, leaf):
    assert equilibrium_at(star(), rate) == approx([hub] + [leaf] * 10, abs=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "budgets"),
    [(0.0, 0.4, [0.4, 1.3]), (2.0, np.inf, [2.0, 0.5])],  # the second solves ρ_2 = r/2 − .5·ρ_1
)
def test_a_client_stays_at_its_bound_and_the_other_answers_it(low, high, budgets):
    game = two_friends().with_bounds(np.array([low, 0.0]), np.array([high, np.inf]))
    assert equilibrium_at(game, 3.0) == approx(budgets)


def test_the_three_cycle_has_the_equilibrium_that_sweeps_miss():
    terms = mppfl.solve(three_cycle()).terms(1)
    assert terms.budgets == approx([61.2288, 6.44326, 0.355981], rel=1e-5)


@settings(max_examples=150, deadline=None)
@given(games(), st.floats(0.01, 6.0))
def test_no_client_gains_by_moving_alone(game, rate):
    at_rest = equilibrium_at(game, rate)
    now = utility(game, rate, at_rest)
    for i in range(game.num_clients):

        def lost(budget, i=i):
            moved = at_rest.copy()
            moved[i] = budget
            # Compute cost is zero in these games, so leaving and joining need no special care.
            return -utility(game, rate, moved)[i]

        low, high = game.clients.budget_min[i], min(game.clients.budget_max[i], 1e3)
        best = minimize_scalar(lost, bounds=(low, high), method="bounded", options={"xatol": 1e-12})
        assert -best.fun - now[i] <= 1e-9 * max(1.0, abs(now[i]))


@pytest.mark.parametrize("strength", [0.05, 0.15, 0.24])
def test_krylov_steps_agree_with_factorisation(monkeypatch, strength):
    game = paper_scale_game(11, num_clients=70, externality_strength=strength, preset="paper-like")
    exact, at_two = equilibrium_response(game), equilibrium_at(game, 1.2)
    monkeypatch.setattr(loss_module, "DENSE_BELOW", 5)
    again = replace(game)
    assert not again.loss.is_dense
    assert equilibrium_response(again).slope == approx(exact.slope, abs=1e-9)
    assert equilibrium_response(again).offset == approx(exact.offset, abs=1e-9)
    assert equilibrium_at(again, 1.2) == approx(at_two, abs=1e-9)
    right = np.linspace(1, 2, 70)
    assert again.loss.T.solve(right) == approx(game.loss.T.solve(right), abs=1e-9)


def test_beyond_the_contraction_a_solution_is_still_sought_and_said_to_be_unproved():
    game = paper_scale_game(2, num_clients=30, externality_strength=0.4, preset="paper-like")
    assert game.contraction > 1
    found = mppfl.solve(game, num_rounds=3, participation="voluntary")
    assert not found.is_unique
    assert any("αS" in note for note in found.warnings)
    assert found.verification.residual <= 1e-9


def test_privacy_losses_on_the_inside_are_the_same_on_every_network():
    # s_i = m_i(r) whatever the network: only its split into own and external risk depends on friends.
    game = paper_scale_game(8)
    terms = mppfl.solve(game, "mppfl").terms(1)
    assert (terms.budgets > 0).all()
    assert privacy_loss(game, terms.budgets) == approx(wanted_loss(game, terms.reward_rate))
