"""Clients who decide themselves, asked over Flower's messages."""

import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadInput, MppflError
from mppfl.flower import OFFER, Attendance, NodeSettings, asking_over
from mppfl.game import agree_on_budgets, equilibrium_at
from tests.flower.federation import FakeGrid, private_app
from tests.game.games import paper_scale_game

CLIENTS = [f"client {at}" for at in range(6)]


def grid_of(game, folder, leave_out=()):
    """Every client of the game at a node, with its costs in its own settings."""
    costs = zip(game.clients.quadratic_cost.tolist(), game.clients.linear_cost.tolist(), strict=True)
    nodes = [
        NodeSettings(
            client,
            folder / f"{at}.sqlite",
            quadratic_cost=None if client in leave_out else quadratic,
            linear_cost=linear,
            budget_max=2.0,
        )
        for at, (client, (quadratic, linear)) in enumerate(zip(CLIENTS, costs, strict=True))
    ]
    return FakeGrid({500 - at: private_app(node) for at, node in enumerate(nodes)})


def asked(grid, game, rates):
    ask = asking_over(grid, Attendance(CLIENTS, None), CLIENTS, timeout=1)
    return agree_on_budgets(
        ask, game.propagation, externality_strength=game.externality_strength, reward_rates=np.array(rates)
    )


def test_budgets_agreed_on_over_flower_are_the_solvers_and_only_offers_and_budgets_travelled(tmp_path):
    game = paper_scale_game(1, num_clients=6, preset="benign")
    bounded = game.with_bounds(np.zeros(6), np.full(6, 2.0))
    grid = grid_of(game, tmp_path)
    found = asked(grid, game, [1.0, 3.0])
    for terms in found.plan:
        assert terms.budgets == approx(equilibrium_at(bounded, terms.reward_rate).budgets, abs=1e-9)
    offers = [message for message in grid.sent if OFFER in message.content]
    assert found.num_messages == 2 * len(offers)
    assert all(set(message.content) == {OFFER} for message in offers)
    assert all(set(message.content[OFFER]) == {"reward_rates", "exposures"} for message in offers)
    answers = [reply for reply in grid.got if OFFER in reply.content]
    assert all(set(reply.content) == {OFFER} and set(reply.content[OFFER]) == {"budgets"} for reply in answers)
    assert not list(tmp_path.glob("*.sqlite"))  # an offer releases nothing of the data, and charges nothing


def test_a_client_without_stated_costs_is_named(tmp_path):
    game = paper_scale_game(1, num_clients=6, preset="benign")
    with pytest.raises(BadInput, match="'client 3' answered an offer without 1 budgets"):
        asked(grid_of(game, tmp_path, leave_out=("client 3",)), game, [1.0])


def test_a_client_that_is_gone_is_named(tmp_path):
    game = paper_scale_game(1, num_clients=6, preset="benign")
    grid = grid_of(game, tmp_path)
    del grid.apps[498]
    with pytest.raises(MppflError, match="'client 2' is not connected"):
        asked(grid, game, [1.0])
