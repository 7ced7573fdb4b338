"""One client: amounts add up, walks lead to it, and what-if is the game solved anew by hand."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.explorer import CLIENTS_ARE, LEADERS, Choices, World, client_view, what_if
from mppfl.network import graph_from_edges

approx = pytest.approx
SMALL = Choices(num_clients=8, num_rounds=3)


@pytest.mark.parametrize("round_shown", [1, 3])
def test_amounts_add_up_to_the_external_risk(world, round_shown):
    scene = world.scene(replace(SMALL, round_shown=round_shown))
    for client in range(8):
        view = client_view(scene, client, most=1000)
        for amounts in ([row.amount for row in view.rows], view.by_hop, [source.amount for source in view.sources]):
            assert sum(amounts) == approx(scene.external[client])
        assert sum(row.share for row in view.rows) == approx(1.0)
        assert view.left_out == approx(0.0, abs=1e-12)
        assert len(view.by_hop) == 5


def test_the_largest_come_first_and_walks_lead_from_them_to_the_client(world):
    scene = world.scene(SMALL)
    view, everything = client_view(scene, 2, most=3), client_view(scene, 2, most=1000)
    assert view.rows == everything.rows[:3]
    assert view.sources == everything.sources[:3]
    amounts = [row.amount for row in everything.rows]
    assert amounts == sorted(amounts, reverse=True)
    assert view.left_out == approx(sum(amounts[3:]))
    assert view.num_sources == len(everything.sources) == 7
    influence = scene.solution.game.graph.influence
    for walk, source in zip(view.walks, view.sources, strict=True):
        assert (walk.clients[0], walk.clients[-1]) == (source.source, 2)
        assert all(influence[to, by] > 0 for by, to in pairwise(walk.clients))
        assert 0 < walk.amount <= source.amount * (1 + 1e-12)


def test_money_and_losses_of_a_client_are_those_of_the_game(world):
    scene = world.scene(replace(SMALL, round_shown=2))
    view = client_view(scene, 4)
    outcome, clients = view.outcome, scene.solution.game.clients
    assert outcome.budget == scene.budgets[4]
    assert outcome.payment == approx(view.price * outcome.budget)
    assert view.through_others == approx(0.05 * outcome.external_risk)
    assert outcome.privacy_loss == approx(outcome.budget + view.through_others)
    cost = clients.quadratic_cost[4] * outcome.privacy_loss**2 + clients.linear_cost[4] * outcome.privacy_loss
    assert outcome.privacy_cost == approx(cost)
    assert outcome.utility == approx(outcome.payment - outcome.privacy_cost - view.compute_cost)
    assert view.spent == approx(scene.solution.plan.to_matrix()[:2, 4].sum())


def test_whom_nobody_exposes_has_no_rows():
    world = World(graph=graph_from_edges(np.array([0, 1]), np.array([1, 2]), isolated="keep"))
    view = client_view(world.scene(Choices(network="file", num_rounds=1)), 0)
    assert (view.rows, view.sources, view.walks, view.num_sources) == ((), (), (), 0)
    assert (sum(view.by_hop), view.outcome.external_risk) == (0.0, 0.0)


# ---- what if ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{}, {"budget_min": 0.01, "budget_max": 0.8}])
@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("event", ["leaves", "doubles"])
def test_afterwards_everybody_but_the_one_who_moved_is_at_its_best_response(world, leader, event, bounds):
    scene = world.scene(replace(SMALL, leader=leader, payment_limit=2.0, **bounds))
    change, outcome, clients = what_if(scene, 0, 1, event), scene.solution.outcome, scene.solution.game.clients
    influence = scene.solution.game.graph.influence.toarray()
    walks = [scene.choices.hop_decay**hop * np.linalg.matrix_power(influence, hop + 1) for hop in range(5)]
    spread, budgets = sum(walks) * (1 - np.eye(8)), change.budgets
    wish = (scene.prices - clients.linear_cost) / (2 * clients.quadratic_cost) - 0.05 * spread @ budgets
    rest = np.arange(8) != 1
    least, most = bounds.get("budget_min", 0.0), bounds.get("budget_max", np.inf)
    assert change.others_respond
    assert budgets[rest] == approx(np.clip(wish, least, most)[rest], abs=1e-9)
    assert budgets[1] == (0.0 if event == "leaves" else 2 * scene.budgets[1])
    losses = budgets + 0.05 * spread @ budgets
    costs = clients.quadratic_cost * losses**2 + clients.linear_cost * losses
    assert (change.after.budget, change.after.external_risk) == approx((budgets[0], (spread @ budgets)[0]))
    assert change.after.utility == approx(scene.prices[0] * budgets[0] - costs[0])
    assert change.total_after.external_risk == approx((spread @ budgets).sum())
    assert change.total_after.welfare == approx(scene.prices @ budgets - costs.sum())
    assert change.total_before.welfare == approx(outcome.welfare[0])
    assert change.total_before.server_cost == approx(outcome.server_costs[0])
    assert change.before.utility == approx(scene.utilities[0])


@pytest.mark.parametrize("kind", CLIENTS_ARE[1:])
def test_clients_who_do_not_answer_each_other_keep_their_budgets(world, kind):
    scene = world.scene(replace(SMALL, clients_are=kind))
    change, moved = what_if(scene, 0, 3, "doubles"), scene.budgets.copy()
    moved[3] *= 2
    assert not change.others_respond
    assert np.array_equal(change.budgets, moved)
    assert change.after.budget == change.before.budget
    assert change.after.external_risk > change.before.external_risk
    assert change.after.utility < change.before.utility


def test_those_who_stay_out_stay_out_and_a_client_is_not_its_own_other(world):
    scene = world.scene(replace(SMALL, participation="if_non_negative", num_clients=20))
    outside = scene.budgets == 0
    client, other, *_ = np.flatnonzero(~outside).tolist()
    assert outside.any()
    assert (what_if(scene, client, other, "leaves").budgets[outside] == 0).all()
    with pytest.raises(BadInput, match="cannot be its own other"):
        what_if(scene, 3, 3, "leaves")
    with pytest.raises(BadInput, match="event='explodes' must be one of leaves, doubles"):
        what_if(scene, 3, 4, "explodes")
