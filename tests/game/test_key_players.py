"""Key players against removal and re-solving; harm against differences."""

from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

from mppfl.game import loss as loss_module
from mppfl.game.equilibrium import equilibrium_at, equilibrium_response
from mppfl.game.key_players import (
    budgets_after_leaving,
    effect_of_leaving,
    exposure_imposed,
    exposure_relief,
    harm_imposed,
)
from mppfl.game.model import privacy_cost, privacy_loss
from tests.game.games import paper_scale_game


def at_rest(seed):
    game = paper_scale_game(seed, num_clients=25, preset="benign")
    rate = equilibrium_response(game).lowest_rate + 1.5
    return game, rate, equilibrium_response(game).budgets(rate)


@pytest.mark.parametrize("seed", range(3))
def test_the_formula_of_leaving_equals_removing_and_solving_again(seed):
    game, rate, budgets = at_rest(seed)
    fall = effect_of_leaving(game, budgets)
    for client in (0, 8, 24):
        high = np.full(25, np.inf)
        high[client] = 0.0
        after = equilibrium_at(game.with_bounds(np.zeros(25), high), rate).budgets
        assert budgets_after_leaving(game, budgets, client) == approx(after, abs=1e-10)
        assert budgets.sum() - after.sum() == approx(fall[client], abs=1e-9)
        others = np.arange(25) != client
        relief = (game.propagation @ budgets - game.propagation @ after)[others].sum()
        assert exposure_relief(game, budgets, client) == approx(relief, abs=1e-9)


def test_large_networks_agree_with_small_ones(monkeypatch):
    game, _, budgets = at_rest(1)
    exact = effect_of_leaving(game, budgets, np.array([3, 9]))
    monkeypatch.setattr(loss_module, "DENSE_BELOW", 5)
    assert effect_of_leaving(replace(game), budgets, np.array([3, 9])) == approx(exact, abs=1e-9)


def test_harm_imposed_is_what_one_more_unit_costs_the_others():
    game, _, budgets = at_rest(2)
    step = 1e-6
    for client in (0, 11):
        more = budgets.copy()
        more[client] += step
        others = np.arange(25) != client
        change = (privacy_cost(game, privacy_loss(game, more)) - privacy_cost(game, privacy_loss(game, budgets)))[
            others
        ]
        assert harm_imposed(game, budgets)[client] == approx(budgets[client] * change.sum() / step, rel=1e-4)


def test_exposure_imposed_adds_up_to_exposure_suffered():
    game, _, budgets = at_rest(0)
    assert exposure_imposed(game, budgets).sum() == approx((game.propagation @ budgets).sum())
