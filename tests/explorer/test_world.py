"""World and Scene: what the page shows is what the game says; solved once, forgotten in order, refused if endless."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from mppfl.errors import BadGraph, BadInput
from mppfl.explorer import COLOURS, Choices, Memory, World, require_quick, warm_up
from mppfl.game import utility
from mppfl.network import graph_from_edges
from mppfl.spec import GameSpec
from tests.explorer.chosen import altered, choose
from tests.homes import home

world_module = home(World)

approx = pytest.approx
SMALL = choose(num_clients=8, num_rounds=5)
LEAVING = {"participation": "rational", "against": "nothing"}  # clients leave one after the other


def test_a_scene_shows_one_round_of_the_solution():
    scene = World().scene(altered(SMALL, round_shown=3))
    terms, game = scene.solution.terms(3), scene.solution.game
    assert scene.round_index == 3
    figures = scene.figures
    assert np.array_equal(figures["budget"], terms.budgets)
    assert figures["privacy_loss"] == approx(figures["budget"] + game.externality_strength * figures["external_risk"])
    assert figures["utility"] == approx(utility(game, terms.prices, terms.budgets))
    for colour in COLOURS:
        values, legend = scene.coloured_by(colour)
        assert (values.shape, ", " in legend) == ((8,), True)  # and a unit
    spent = scene.solution.plan.to_matrix()[:3].sum(axis=0)
    assert scene.coloured_by("own_risk")[0] == approx(spent)
    assert scene.coloured_by("external_risk")[0] == approx(game.propagation @ spent)
    assert World().scene(altered(SMALL, round_shown=77)).round_index == 5


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
    weighed = world.game(replace(SMALL.game, accuracy_weight=0.3))  # what was factorised for the network serves here
    assert weighed.loss is first.solution.game.loss


def test_two_requests_do_not_solve_the_same_thing_twice(monkeypatch):
    solved, real, all_ask = [], world_module.solve_all, threading.Event()

    def slowly(*arguments):
        solved.append(1)
        all_ask.wait()
        return real(*arguments)

    monkeypatch.setattr(world_module, "solve_all", slowly)
    world, found = World(), []
    threads = [threading.Thread(target=lambda: found.append(world.scene(SMALL).solution)) for _ in range(6)]
    for thread in threads:
        thread.start()
    all_ask.set()
    for thread in threads:
        thread.join()
    assert len(solved) == 1
    assert len({id(each) for each in found}) == 1


def test_the_least_recently_used_is_forgotten_first_and_a_failure_is_not_remembered():
    memory, made = Memory(2), []
    with pytest.raises(ZeroDivisionError):
        memory.get("a", lambda: 1 / 0)
    for key in ("a", "b", "a", "c", "a", "b"):
        assert memory.get(key, lambda key=key: made.append(key) or key) == key
    assert made == ["a", "b", "c", "b"]


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


@pytest.mark.parametrize(
    ("changed", "most", "told"),
    [
        ({"mechanism": "personalised"}, 50_000, "mechanism='personalised' on 50,001 clients takes minutes"),
        ({"participation": "rational"}, 50_000, "participation='rational' on 50,001"),
        ({"budget_max": 1.0}, 50_000, "bounds on budgets on 50,001 clients takes minutes"),
        (LEAVING, 1_000, 'against="nothing" on 1,001 clients and 60 rounds may take'),
        (LEAVING | {"budget_max": 1.0}, 400, "on 401 clients"),  # at bounds each leaving is worked out anew
    ],
)
def test_what_takes_minutes_on_a_large_network_is_refused(changed, most, told):
    require_quick(choose(**changed), most)
    with pytest.raises(BadInput, match=told):
        require_quick(choose(**changed), most + 1)
    require_quick(choose(**changed, num_rounds=1), 2 * most if changed is LEAVING else most)
    require_quick(choose(), 10_000_000)
