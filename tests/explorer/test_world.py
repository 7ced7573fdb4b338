"""World and Scene: what the page shows is what the game says; solved once, forgotten in order, refused if endless."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from mppfl.errors import BadGraph, BadInput, NoEquilibrium
from mppfl.explorer import COLOURS, SHOWN, Choices, Memory, World, require_quick, warm_up
from mppfl.game import privacy_loss, utility
from mppfl.network import graph_from_edges
from mppfl.spec import GameSpec
from tests.explorer.chosen import altered, choose
from tests.homes import home

world_module = home(World)

approx = pytest.approx
SMALL = choose(num_clients=8, num_rounds=5)


# ---- what a scene shows -------------------------------------------------------------------------------------------


def test_a_scene_shows_one_round_of_the_solution():
    scene = World().scene(altered(SMALL, round_shown=3))
    terms, game = scene.solution.terms(3), scene.solution.game
    assert scene.round_index == 3
    figures = scene.figures
    assert np.array_equal(figures["budget"], terms.budgets)
    assert (figures["price"] == terms.prices).all()
    assert figures["privacy_loss"] == approx(privacy_loss(game, terms.budgets))
    assert figures["privacy_loss"] == approx(figures["budget"] + game.externality_strength * figures["external_risk"])
    assert figures["utility"] == approx(utility(game, terms.prices, terms.budgets))
    assert scene.names == tuple("01234567")
    for colour in COLOURS:
        values, legend = scene.coloured_by(colour)
        assert (values.shape, ", " in legend) == ((8,), True)  # and a unit
    assert World().scene(altered(SMALL, round_shown=77)).round_index == 5


@pytest.mark.parametrize("mechanism", [name for name in SHOWN if name != "budget_limited"])
@pytest.mark.parametrize("bounds", [{}, {"budget_min": 0.01, "budget_max": 0.4}])
def test_own_risk_is_what_was_spent_up_to_the_round_shown(mechanism, bounds):
    choices = altered(SMALL, mechanism=mechanism, round_shown=4, **bounds)
    scene = World().scene(choices)
    budgets = scene.solution.plan.to_matrix()
    assert budgets.min() >= choices.game.budget_min - 1e-12
    assert budgets.max() <= (choices.game.budget_max or np.inf) + 1e-12
    spent = budgets[:4].sum(axis=0)
    assert scene.coloured_by("own_risk")[0] == approx(spent)
    assert scene.coloured_by("external_risk")[0] == approx(scene.solution.game.propagation @ spent)


# ---- what is kept -------------------------------------------------------------------------------------------------


def test_looks_reuse_the_solution_and_levers_do_not():
    world = World()
    first = world.scene(SMALL)
    looks = {"colour": "utility", "client": "3", "other": "4", "event": "doubles", "tab": "rounds"}
    for changed in (*({name: value} for name, value in looks.items()), {"opened": (1,)}, {"runs": ("a",)}):
        assert world.scene(altered(SMALL, **changed)) is first
    assert world.scene(altered(SMALL, round_shown=2)).solution is first.solution
    assert world.scene(altered(SMALL, payment_limit=7.0)).solution is first.solution  # means nothing to mppfl
    for changed in ({"max_hops": 2}, {"seed": 1}, {"mechanism": "mppfl_exact"}, {"budget_max": 9.0}, {"num_rounds": 6}):
        assert world.scene(altered(SMALL, **changed)).solution is not first.solution


def test_what_was_factorised_for_the_network_serves_other_levers():
    world = World()
    one, other, third = (
        world.game(replace(SMALL.game, **values))
        for values in (
            {},
            {"accuracy_weight": 0.3, "preset": "benign", "hop_decay": 0.9},
            {"externality_strength": 0.2},
        )
    )
    assert one.loss is other.loss is not third.loss
    assert one.propagation is third.propagation


def test_two_requests_do_not_solve_the_same_thing_twice(monkeypatch):
    solved, real = [], world_module.solve_all

    def slowly(*arguments):
        solved.append(1)
        time.sleep(0.1)
        return real(*arguments)

    monkeypatch.setattr(world_module, "solve_all", slowly)
    world, found = World(), []
    threads = [threading.Thread(target=lambda: found.append(world.scene(SMALL).solution)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(solved) == 1
    assert len({id(each) for each in found}) == 1


def test_the_least_recently_used_is_forgotten_first():
    memory, made = Memory(2), []

    def ask(key):
        return memory.get(key, lambda: made.append(key) or key)

    for key in ("a", "b", "a", "c", "a", "b"):
        assert ask(key) == key
    assert made == ["a", "b", "c", "b"]


def test_a_failure_is_raised_and_not_remembered():
    memory, tries = Memory(2), []

    def fails_once():
        tries.append(1)
        if len(tries) == 1:
            raise NoEquilibrium("not yet.")
        return "found"

    with pytest.raises(NoEquilibrium):
        memory.get("key", fails_once)
    assert memory.get("key", fails_once) == "found"


# ---- networks -----------------------------------------------------------------------------------------------------


def test_a_network_is_drawn_given_or_read_from_a_file_that_is_offered_both_ways_where_the_reader_wishes(tmp_path):
    links = tmp_path / "edges.csv"
    links.write_text("ann,bob\nbob,cat\n", encoding="utf-8")
    given, of_file = graph_from_edges(np.array([0, 1, 2]), np.array([1, 2, 0])), GameSpec(graph="given.csv")
    world, offered = World([str(links)], of_file, given), GameSpec(graph=links, isolated="keep")
    assert world.graph(of_file) is given
    assert world.graph(offered).names == world.scene(Choices(offered)).names == ("ann", "bob", "cat")
    assert [world.graph(replace(offered, undirected=both)).num_edges for both in (False, True)] == [2, 4]
    assert world.graph(SMALL.game).num_clients == 8
    for other in ({"graph": "/etc/passwd"}, {"clients": "/etc/passwd"}):
        with pytest.raises(BadInput, match=r"'/etc/passwd' is not here \(any more\)\. Leave it out, or choose: "):
            world.scene(choose(**other))
    with pytest.raises(BadGraph, match="isolated"):
        world.graph(GameSpec(graph=links))


def test_warming_up_plays_leaders_bounds_and_rules():
    assert warm_up() == 6 * 2 * 4 + 2


# ---- large networks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"mechanism": "personalised"}, "mechanism='personalised' on 50,001 clients takes minutes"),
        ({"participation": "rational"}, "participation='rational' on 50,001"),
        ({"budget_max": 1.0}, "bounds on budgets on 50,001 clients takes minutes"),
    ],
)
def test_what_takes_minutes_on_a_huge_network_is_refused(changed, told):
    with pytest.raises(BadInput, match=told):
        require_quick(choose(**changed), 50_001)
    require_quick(choose(**changed), 50_000)
    require_quick(choose(), 10_000_000)


def test_clients_who_leave_one_after_the_other_are_refused_where_they_are_many():
    leaving = choose(participation="rational", against="nothing")
    require_quick(leaving, 1_000)
    require_quick(altered(leaving, num_rounds=1), 2_000)
    with pytest.raises(BadInput, match='against="nothing" on 1,001 clients and 60 rounds may take'):
        require_quick(leaving, 1_001)
    bounded = altered(leaving, budget_max=1.0)  # at bounds each leaving is worked out anew
    require_quick(bounded, 400)
    with pytest.raises(BadInput, match="on 401 clients"):
        require_quick(bounded, 401)
