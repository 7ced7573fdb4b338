"""World and Scene: what the page shows is what the game says; solved once, forgotten in order, refused if endless."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from mppfl.errors import BadGraph, BadInput, NoEquilibrium
from mppfl.explorer import CLIENTS_ARE, COLOURS, LEADERS, Choices, Memory, World, require_quick, spent_in, warm_up
from mppfl.game import privacy_loss, utility
from mppfl.network import graph_from_edges, random_graph, read_graph
from tests.homes import home

world_module = home(World)

approx = pytest.approx
SMALL = Choices(num_clients=8, num_rounds=5)


# ---- what a scene shows -------------------------------------------------------------------------------------------


def test_a_scene_shows_one_round_of_the_solution():
    scene = World().scene(replace(SMALL, round_shown=3))
    terms, game = scene.solution.terms(3), scene.solution.game
    assert scene.round_index == 3
    assert np.array_equal(scene.budgets, terms.budgets)
    assert (scene.prices == terms.prices).all()
    assert scene.losses == approx(privacy_loss(game, terms.budgets))
    assert scene.losses == approx(scene.budgets + game.externality_strength * scene.external)
    assert scene.utilities == approx(utility(game, terms.prices, terms.budgets))
    assert scene.names == tuple("01234567")
    assert World().scene(replace(SMALL, round_shown=77)).round_index == 5
    for colour in COLOURS:
        values, legend = scene.coloured_by(colour)
        assert values.shape == (8,)
        assert ", " in legend
    with pytest.raises(BadInput, match="colour='red' must be one of budget"):
        scene.coloured_by("red")


@pytest.mark.parametrize("kind", CLIENTS_ARE)
@pytest.mark.parametrize("bounds", [{}, {"budget_min": 0.01, "budget_max": 0.4}])
def test_own_risk_is_what_was_spent_up_to_the_round_shown(kind, bounds):
    choices = replace(SMALL, clients_are=kind, round_shown=4, **bounds)
    scene = World().scene(choices)
    budgets = scene.solution.plan.to_matrix()
    assert budgets.min() >= choices.budget_min - 1e-12
    assert budgets.max() <= (choices.budget_max or np.inf) + 1e-12
    spent = budgets[:4].sum(axis=0)
    assert scene.coloured_by("own_risk")[0] == approx(spent)
    assert scene.coloured_by("external_risk")[0] == approx(scene.solution.game.propagation @ spent)
    assert spent_in(scene.solution.plan, 5) == approx(budgets.sum(axis=0))


# ---- what is kept -------------------------------------------------------------------------------------------------


def test_looks_reuse_the_solution_and_levers_do_not():
    world = World()
    first = world.scene(SMALL)
    looks = {"colour": "utility", "client": "3", "other": "4", "event": "doubles", "tab": "rounds", "opened": (1,)}
    for name, value in {**looks, "runs": ("a",)}.items():
        again = world.scene(replace(SMALL, **{name: value}))
        assert again.solution is first.solution
        assert again.choices == replace(SMALL, **{name: value})
        assert again.cumulative is first.cumulative
    for changed in ({"round_shown": 2}, {"payment_limit": 7.0}):  # which means nothing to mppfl
        assert world.scene(replace(SMALL, **changed)).solution is first.solution
    for changed in ({"max_hops": 2}, {"seed": 1}, {"leader": "anticipating"}, {"budget_max": 9.0}, {"num_rounds": 6}):
        assert world.scene(replace(SMALL, **changed)).solution is not first.solution


def test_what_was_factorised_for_the_network_serves_other_levers():
    world = World()
    one, other = world.game(SMALL), world.game(replace(SMALL, accuracy_weight=0.3, preset="benign"))
    assert one.loss is other.loss
    assert world.game(replace(SMALL, externality_strength=0.2)).loss is not one.loss
    assert world.game(replace(SMALL, externality_strength=0.2)).propagation is one.propagation


def test_two_requests_do_not_solve_the_same_thing_twice(monkeypatch):
    solved, real = [], world_module.solve_all

    def slowly(*arguments):
        solved.append(1)
        time.sleep(0.1)
        return real(*arguments)

    monkeypatch.setattr(world_module, "solve_all", slowly)
    world = World()
    with ThreadPoolExecutor(6) as threads:
        solutions = list(threads.map(lambda _: world.scene(SMALL).solution, range(6)))
    assert len(solved) == len(set(map(id, solutions))) == 1


def test_the_least_recently_used_is_forgotten_first_and_a_failure_at_once():
    memory, made = Memory(2), []

    def make(key):
        made.append(key)
        if made == ["a"]:
            raise NoEquilibrium("not yet.")
        return key

    with pytest.raises(NoEquilibrium):
        memory.get("a", lambda: make("a"))
    for key in ("a", "b", "a", "c", "a", "b"):
        assert memory.get(key, lambda key=key: make(key)) == key
    assert made == ["a", "a", "b", "c", "b"]


# ---- networks -----------------------------------------------------------------------------------------------------


def test_networks_come_from_the_command_line_from_a_run_and_by_chance(tmp_path):
    links = tmp_path / "edges.csv"
    links.write_text("ann,bob\nbob,ann\n", encoding="utf-8")
    given = graph_from_edges(np.array([0, 1, 2]), np.array([1, 2, 0]))
    world = World(graph=given, run_source=links)
    assert world.networks == ("random", "file", "run")
    assert world.graph(Choices(network="file")) is given
    assert world.graph(Choices(network="run")).names == world.scene(Choices(network="run")).names == ("ann", "bob")
    assert world.graph(SMALL).num_clients == 8
    assert (world.source(Choices(network="run")), world.source(SMALL)) == (links, None)
    with pytest.raises(BadInput, match=r"network='run' is not here \(any more\)\. Choose one of random, file\."):
        World(graph=given).graph(Choices(network="run"))


def test_warming_up_plays_every_leader_bound_and_rule():
    assert warm_up() == len(LEADERS) * 2 * 3 + 2


def test_a_file_is_read_both_ways_where_the_reader_wishes(tmp_path):
    links = tmp_path / "edges.csv"
    links.write_text("ann,bob\nbob,cat\n", encoding="utf-8")
    world = World(source=links)
    assert world.graph(Choices(network="file")).num_edges == 2
    assert world.graph(Choices(network="file", undirected=True)).num_edges == 4
    both_ways = read_graph(links, undirected=True)
    world = World(graph=both_ways, source=links, undirected=True)
    assert world.graph(Choices(network="file", undirected=True)) is both_ways
    assert world.graph(Choices(network="file")).num_edges == 2
    with pytest.raises(BadGraph, match="isolated"):
        world.graph(Choices(network="file", isolated="error"))


# ---- large networks -----------------------------------------------------------------------------------------------


LEAVING = {"participation": "if_non_negative"}


@pytest.mark.parametrize(
    ("changed", "most", "message"),
    [
        ({"leader": "personalised"}, 50_000, "mechanism='personalised' on 50,001 clients takes minutes"),
        ({"participation": "if_better_than_opting_out"}, 50_000, "participation='if_better_than_opting_out' on 50,001"),
        ({"budget_max": 1.0}, 50_000, "bounds on budgets on 50,001 clients takes minutes"),
        (LEAVING, 1_000, "participation='if_non_negative' on 1,001 clients and 60 rounds may take"),
        ({**LEAVING, "budget_max": 1.0}, 400, "on 401 clients"),  # at bounds each leaving is worked out anew
    ],
)
def test_what_takes_minutes_on_a_large_network_is_refused(changed, most, message):
    require_quick(Choices(**changed), most)
    require_quick(Choices(), 10_000_000)  # quick on any
    require_quick(Choices(**LEAVING, num_rounds=1), 2_000)
    with pytest.raises(BadInput, match=message):
        require_quick(Choices(**changed), most + 1)


def test_a_solution_of_many_clients_holds_no_table_of_clients_and_rounds():
    graph = random_graph("barabasi_albert", 3_000, rng=np.random.default_rng(0))
    scene = World(graph=graph).scene(Choices(network="file", round_shown=60))
    held = [value for value in vars(scene.solution.plan.budgets).values() if isinstance(value, np.ndarray)]
    assert [value.shape for value in held] == [(3_000,), (3_000,)]
    assert scene.coloured_by("own_risk")[0].shape == (3_000,)
