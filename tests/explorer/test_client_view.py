"""One client: who exposes it, what-if is the game settled anew, and names stay words."""

from __future__ import annotations

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.explorer import ClientView, World, client_view, panel, what_if
from mppfl.network import graph_from_edges
from mppfl.spec import GameSpec
from tests.explorer.chosen import altered, choose

approx = pytest.approx
TOGETHER = ("mppfl", "mppfl_exact", "mppfl_noise_aware", "budget_limited", "pigouvian", "personalised")
ALONE = ("social_agnostic", "random", "dp_fedavg", "sarda_like", "sarda_r")
SMALL = choose(num_clients=8, num_rounds=3)


def test_whom_nobody_exposes_has_no_sources():
    graph = graph_from_edges(np.array([0, 1]), np.array([1, 2]), isolated="keep")
    view = client_view(World(given=GameSpec(graph="g.csv"), graph=graph).scene(choose(graph="g.csv", num_rounds=1)), 0)
    assert (view.terms, view.sources, view.walks, view.num_sources, sum(view.by_hop)) == ((), {}, (), 0, 0.0)


@pytest.mark.parametrize("mechanism", ALONE)
def test_clients_who_do_not_answer_each_other_keep_their_budgets(mechanism):
    scene = World().scene(altered(SMALL, mechanism=mechanism))
    after, settled = what_if(scene, 0, 3, "doubles")
    assert not settled
    assert after["budget"] == approx(scene.figures["budget"] * np.where(np.arange(8) == 3, 2, 1))
    assert after["external_risk"][0] > scene.figures["external_risk"][0]
    assert after["utility"][0] < scene.figures["utility"][0]


@pytest.mark.parametrize("leader", TOGETHER)
@pytest.mark.parametrize(("event", "factor"), [("leaves", 0.0), ("doubles", 2.0)])
def test_afterwards_everybody_but_the_one_who_moved_is_at_its_best_response(leader, event, factor):
    scene = World().scene(altered(SMALL, mechanism=leader, payment_limit=2.0, budget_min=0.01, budget_max=0.8))
    spread, clients = scene.solution.game.propagation.to_dense(), scene.solution.game.clients
    after, settled = what_if(scene, 0, 1, event)
    budgets = after["budget"]
    assert settled
    wish = (scene.figures["price"] - clients.linear_cost) / (2 * clients.quadratic_cost) - 0.05 * spread @ budgets
    rest = np.arange(8) != 1
    assert budgets[rest] == approx(np.clip(wish, 0.01, 0.8)[rest], abs=1e-9)
    assert budgets[1] == factor * scene.figures["budget"][1]
    losses, payments = budgets + 0.05 * spread @ budgets, scene.figures["price"] * budgets
    costs = clients.quadratic_cost * losses**2 + clients.linear_cost * losses
    for name, values in (
        ("external_risk", spread @ budgets),
        ("payment", payments),
        ("privacy_cost", costs),
        ("utility", payments - costs),
    ):
        assert after[name] == approx(values)


def test_who_stays_out_stays_out_and_nobody_is_its_own_other():
    scene = World().scene(altered(SMALL, participation="rational", against="nothing", num_clients=20))
    outside = scene.figures["budget"] == 0
    first, second, *_ = np.flatnonzero(~outside).tolist()
    assert outside.any()
    assert (what_if(scene, first, second, "leaves")[0]["budget"][outside] == 0).all()
    with pytest.raises(BadInput, match="cannot be its own other"):
        what_if(scene, 3, 3, "leaves")


def test_a_table_keeps_its_parts_and_names_are_escaped_wherever_they_stand():
    assert panel("table", heads=["client", "ρ"], rows=[["ann", "1"]], caption="Budgets").strip() == (
        '<table><caption>Budgets</caption><thead><tr><th scope="col">client</th><th scope="col">ρ</th></tr></thead>'
        "<tbody><tr><td>ann</td><td>1</td></tr></tbody></table>"
    )
    name = '<img src=x onerror="alert(1)">'
    view = ClientView(0, name, ((name, 1, 0.5),), {0: 0.5}, (0.5,), (), 1)
    for text in (
        panel("table", heads=[name], rows=[[name]], caption=name),
        panel("client", view=view, facts={name: 1.0}, round_index=1),
        panel("status", lines={name: name}, notes={name: [name]}, errors=[name]),
    ):
        assert "<img" not in text
        assert 'onerror="' not in text
        assert "&lt;img" in text
