"""One client: amounts add up, walks lead to it, and what-if is the game solved anew by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.explorer import World, client_view, what_if
from mppfl.network import graph_from_edges
from mppfl.spec import GameSpec
from tests.explorer.chosen import altered, choose

approx = pytest.approx
TOGETHER = ("mppfl", "mppfl_exact", "mppfl_noise_aware", "budget_limited", "pigouvian", "personalised")
ALONE = ("social_agnostic", "random", "dp_fedavg", "sarda_like", "sarda_r")
SMALL = choose(num_clients=8, num_rounds=3)


@pytest.mark.parametrize("round_shown", [1, 3])
def test_amounts_add_up_to_the_external_risk_and_the_largest_come_first(round_shown):
    scene = World().scene(altered(SMALL, round_shown=round_shown))
    for client in range(8):
        view = client_view(scene, client, most=1000)
        assert sum(row.amount for row in view.rows) == approx(scene.external[client])
        assert sum(view.by_hop) == approx(scene.external[client])
        assert sum(source.amount for source in view.sources) == approx(scene.external[client])
        assert sum(row.share for row in view.rows) == approx(1.0)
        assert view.left_out == approx(0.0, abs=1e-12)
        assert len(view.by_hop) == 5
        few, amounts = client_view(scene, client, most=3), [row.amount for row in view.rows]
        assert (few.rows, few.sources, few.num_sources) == (view.rows[:3], view.sources[:3], len(view.sources))
        assert amounts == sorted(amounts, reverse=True)
        assert few.left_out == approx(sum(amounts[3:]))


def test_walks_run_along_links_from_the_largest_sources_to_the_client():
    scene = World().scene(SMALL)
    view, influence = client_view(scene, 2, most=4), scene.solution.game.graph.influence
    assert [walk.clients[0] for walk in view.walks] == [source.source for source in view.sources]
    for walk, source in zip(view.walks, view.sources, strict=True):
        assert walk.clients[-1] == 2
        assert all(influence[to, by] > 0 for by, to in zip(walk.clients, walk.clients[1:], strict=False))
        assert 0 < walk.amount <= source.amount * (1 + 1e-12)


def test_money_and_losses_of_a_client_are_those_of_the_game():
    scene = World().scene(altered(SMALL, round_shown=2))
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
    graph = graph_from_edges(np.array([0, 1]), np.array([1, 2]), isolated="keep")
    view = client_view(World(given=GameSpec(graph="g.csv"), graph=graph).scene(choose(graph="g.csv", num_rounds=1)), 0)
    assert (view.rows, view.sources, view.walks, view.num_sources) == ((), (), (), 0)
    assert (sum(view.by_hop), view.outcome.external_risk) == (0.0, 0.0)


# ---- what if ------------------------------------------------------------------------------------------------------


def dense_game(scene):
    """Σ, B and the constants of a scene in plain NumPy."""
    game = scene.solution.game
    influence = game.graph.influence.toarray()
    power, spread = np.eye(len(influence)), np.zeros_like(influence)
    for hop in range(game.propagation.max_hops):
        power = power @ influence
        spread += game.propagation.hop_decay**hop * power
    np.fill_diagonal(spread, 0.0)
    return spread, np.eye(len(spread)) + game.externality_strength * spread, game.clients


@pytest.mark.parametrize(("event", "factor"), [("leaves", 0.0), ("doubles", 2.0)])
@pytest.mark.parametrize("leader", ["mppfl", "personalised"])
def test_the_rest_settle_anew_at_the_same_prices(event, factor, leader):
    scene = World().scene(altered(SMALL, mechanism=leader))
    spread, loss, clients = dense_game(scene)
    held = factor * scene.budgets[5]
    rest = np.arange(8) != 5
    wanted = (scene.prices - clients.linear_cost) / (2 * clients.quadratic_cost) - loss[:, 5] * held
    budgets = np.full(8, held)
    budgets[rest] = np.linalg.solve(loss[np.ix_(rest, rest)], wanted[rest])
    assert (budgets[rest] > 0).all()
    found = what_if(scene, 1, 5, event)
    assert found.others_respond
    assert found.budgets == approx(budgets)
    assert (found.after.budget, found.after.external_risk) == approx((budgets[1], (spread @ budgets)[1]))
    losses = loss @ budgets
    costs = clients.quadratic_cost * losses**2 + clients.linear_cost * losses
    assert found.after.utility == approx(scene.prices[1] * budgets[1] - costs[1])
    assert found.total_after.external_risk == approx((spread @ budgets).sum())
    assert found.total_after.welfare == approx(scene.prices @ budgets - costs.sum())
    assert found.total_before.welfare == approx(scene.solution.outcome.welfare[0])
    assert found.total_before.server_cost == approx(scene.solution.outcome.server_costs[0])
    assert found.before.utility == approx(scene.utilities[1])


@pytest.mark.parametrize("mechanism", ALONE)
def test_clients_who_do_not_answer_each_other_keep_their_budgets(mechanism):
    scene = World().scene(altered(SMALL, mechanism=mechanism))
    found = what_if(scene, 0, 3, "doubles")
    assert not found.others_respond
    moved = scene.budgets.copy()
    moved[3] *= 2
    assert np.array_equal(found.budgets, moved)
    assert found.after.budget == found.before.budget
    assert found.after.external_risk > found.before.external_risk
    assert found.after.utility < found.before.utility


@pytest.mark.parametrize("leader", TOGETHER)
@pytest.mark.parametrize("event", ["leaves", "doubles"])
def test_afterwards_everybody_but_the_one_who_moved_is_at_its_best_response(leader, event):
    scene = World().scene(altered(SMALL, mechanism=leader, payment_limit=2.0, budget_min=0.01, budget_max=0.8))
    spread, _, clients = dense_game(scene)
    budgets = what_if(scene, 0, 1, event).budgets
    wish = (scene.prices - clients.linear_cost) / (2 * clients.quadratic_cost) - 0.05 * spread @ budgets
    rest = np.arange(8) != 1
    assert budgets[rest] == approx(np.clip(wish, 0.01, 0.8)[rest], abs=1e-9)
    assert budgets[1] == (0.0 if event == "leaves" else 2 * scene.budgets[1])


def test_bounds_and_those_who_stay_out_are_respected():
    capped = World().scene(altered(SMALL, budget_max=0.5))
    assert what_if(capped, 0, 3, "leaves").budgets.max() <= 0.5 + 1e-12
    scene = World().scene(altered(SMALL, participation="rational", against="nothing", num_clients=20))
    outside = scene.budgets == 0
    inside = np.flatnonzero(~outside)
    assert outside.any()
    assert len(inside) > 1
    found = what_if(scene, int(inside[0]), int(inside[1]), "leaves")
    assert (found.budgets[outside] == 0).all()


def test_a_client_is_not_its_own_other():
    scene = World().scene(SMALL)
    with pytest.raises(BadInput, match="cannot be its own other"):
        what_if(scene, 3, 3, "leaves")
    with pytest.raises(BadInput, match="event='explodes' must be one of leaves, doubles"):
        what_if(scene, 3, 4, "explodes")
