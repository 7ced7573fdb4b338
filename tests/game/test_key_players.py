"""Key players against removal and re-solving; harm against differences."""

from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadInput
from mppfl.game import (
    MECHANISMS,
    SETTLE,
    Horizon,
    LossOperator,
    budgets_after_leaving,
    equilibrium_response,
    exposure_imposed,
    exposure_relief,
    harm_imposed,
    key_players,
    privacy_cost,
    privacy_loss,
    rounds_up_to,
)
from tests.game.games import paper_scale_game
from tests.homes import home


def at_rest(seed):
    game = paper_scale_game(seed, num_clients=25, preset="benign")
    rate = equilibrium_response(game).lowest_rate + 1.5
    return game, rate, equilibrium_response(game).budgets(rate)


def left_by_force(game, prices, client):
    """Budgets without a client, by sweeps of best responses from nothing."""
    high = np.where(np.arange(game.num_clients) == client, 0.0, game.clients.budget_max)
    low = np.minimum(game.clients.budget_min, high)
    budgets = np.zeros(game.num_clients)
    for _ in range(3000):
        wanted = (prices - game.clients.linear_cost) / (2 * game.clients.quadratic_cost)
        budgets = np.clip(wanted - game.externality_strength * (game.propagation @ budgets), low, high)
    return budgets


@pytest.mark.parametrize("seed", range(3))
def test_the_formula_of_leaving_equals_removing_and_solving_again(seed):
    game, rate, budgets = at_rest(seed)
    for client in (0, 8, 24):
        after = left_by_force(game, rate, client)
        assert budgets_after_leaving(game, budgets, client) == approx(after, abs=1e-9)
        relief = np.delete(game.propagation @ (budgets - after), client).sum()
        assert exposure_relief(game, budgets, client) == approx(relief, abs=1e-8)


def test_large_networks_agree_with_small_ones(monkeypatch):
    game, _, budgets = at_rest(1)
    exact = budgets_after_leaving(game, budgets, 3)
    monkeypatch.setattr(home(LossOperator), "DENSE_BELOW", 5)
    assert budgets_after_leaving(replace(game), budgets, 3) == approx(exact, abs=1e-9)


def test_harm_imposed_is_what_one_more_unit_costs_the_others_and_exposure_imposed_adds_up_to_exposure_suffered():
    game, _, budgets = at_rest(2)
    step = 1e-6
    for client in (0, 11):
        more = budgets + step * (np.arange(25) == client)
        costs = [privacy_cost(game, privacy_loss(game, given)) for given in (budgets, more)]
        change = np.delete(costs[1] - costs[0], client).sum()
        assert harm_imposed(game, budgets)[client] == approx(budgets[client] * change / step, rel=1e-4)
    assert exposure_imposed(game, budgets).sum() == approx((game.propagation @ budgets).sum())


# ---- at the bounds ------------------------------------------------------------------------------------------------


def at_bounds(seed, name="mppfl_noise_aware"):
    game = paper_scale_game(seed, num_clients=20, preset="paper-like", externality_strength=0.05)
    terms = MECHANISMS[name](game, Horizon(rounds_up_to(1), participation="voluntary"))[0]
    return game, terms


@pytest.mark.parametrize("seed", range(3))
def test_at_bounds_leaving_equals_removing_and_settling_by_sweeps(seed):
    game, terms = at_bounds(seed)
    assert (terms.budgets == 0).any()
    found = key_players(game, terms.prices, terms.budgets, 20)
    for k, relief, lost in zip(found.clients, found.exposure_relief, found.budgets_lost, strict=True):
        fall = terms.budgets - left_by_force(game, terms.prices, k)
        assert lost == approx(fall.sum(), abs=1e-8)
        assert relief == approx(np.delete(game.propagation @ fall, k).sum(), abs=1e-8)
        assert exposure_relief(game, terms.budgets, int(k), terms.prices) == approx(relief)
    assert (np.diff(found.exposure_relief) <= 0).all()


def test_nobody_gives_more_than_it_may_after_somebody_left():
    game, rate, budgets = at_rest(0)
    capped = game.with_bounds(np.zeros(25), budgets * (1 + 1e-6))  # inside now; not once somebody has left
    after = budgets_after_leaving(capped, budgets, 3, rate)
    assert (after <= capped.clients.budget_max).all()
    assert after == approx(left_by_force(capped, rate, 3), abs=1e-9)
    with pytest.raises(BadInput, match=r"is at a bound of its budget before or after.* Give prices"):
        budgets_after_leaving(capped, budgets, 3)


@pytest.mark.parametrize("name", ["dp_fedavg", "random", "social_agnostic", "sarda_like", "pigouvian", "personalised"])
def test_best_responses_settle_anew_and_budgets_that_are_none_stay_where_they_are(name):
    game, terms = at_bounds(1, name)
    found = key_players(game, terms.prices, terms.budgets, 5)
    if name in ("pigouvian", "personalised"):
        assert found.assumes == SETTLE
    else:
        assert "taken to keep theirs" in found.assumes
        assert found.exposure_relief == approx(exposure_imposed(game, terms.budgets)[found.clients])
        assert found.budgets_lost == approx(terms.budgets[found.clients])


def test_of_many_clients_at_bounds_those_who_impose_most_are_tried():
    game = paper_scale_game(5, num_clients=210, preset="paper-like", externality_strength=0.01)
    terms = MECHANISMS["mppfl_noise_aware"](game, Horizon(rounds_up_to(1), participation="voluntary"))[0]
    assert (terms.budgets == 0).any()
    found = key_players(game, terms.prices, terms.budgets, 2)
    assert found.assumes.endswith("; tried for the 4 who impose most")
    k = int(found.clients[0])
    fall = terms.budgets - left_by_force(game, terms.prices, k)
    assert found.exposure_relief[0] == approx(np.delete(game.propagation @ fall, k).sum(), abs=1e-8)
