"""The picture of the network: who is drawn, what was left out, and in which colours."""

from itertools import pairwise

import numpy as np
import pytest

from mppfl.explorer import (
    MOST_CLIENTS,
    MOST_COMMUNITIES,
    MOST_COMMUNITY_LINKS,
    MOST_LINKS,
    CommunityTree,
    draw,
    elements,
    node_paint,
    node_values,
)
from mppfl.network import graph_from_edges, random_graph

approx = pytest.approx


def drawn_at_random(family, size):
    graph = random_graph(family, size, rng=np.random.default_rng(0))
    return graph, draw(CommunityTree(graph))


def channel(colours, name):
    start = 1 + 2 * "rgb".index(name)
    return np.array([int(colour[start : start + 2], 16) for colour in colours])


def test_elements_name_places_and_a_line_runs_from_who_exposes_more():
    # ann exposes bob by 3 of 4, bob exposes ann wholly: the line runs from bob to ann. cat exposes bob, and is alone.
    names = ["ann of the very long name", "bob", "cat"]
    links = np.array([0, 2, 1]), np.array([1, 1, 0]), np.array([3.0, 1.0, 1.0])
    graph = graph_from_edges(*links, names=names, isolated="keep")
    drawn = draw(CommunityTree(graph))
    ann, _, cat, *lines = elements(drawn, graph.names)
    assert ann["data"].items() >= {"id": "n0", "label": "ann of the ve…", "name": names[0], "size": 1}.items()
    assert ann["classes"] == "client named"
    assert (cat["data"]["id"], cat["position"]) == ("n2", {"x": drawn.x[2], "y": drawn.y[2]})
    assert lines == [
        {"data": {"id": "e0", "source": "n1", "target": "n0", "weight": 1.75}, "classes": "w4"},
        {"data": {"id": "e1", "source": "n2", "target": "n1", "weight": 0.25}, "classes": "w1"},
    ]


def test_heavier_lines_are_of_a_higher_class():
    graph, drawn = drawn_at_random("skewed", 200)
    levels = [int(line["classes"][1]) for line in elements(drawn, list(map(graph.name, range(200))))[200:]]
    assert levels == sorted(levels, reverse=True)  # lines come strongest first
    assert set(levels) == {1, 2, 3, 4}
    assert levels.count(4) <= 0.06 * len(levels)


def test_of_too_many_links_the_strongest_are_drawn_and_nobody_looks_alone():
    graph, drawn = drawn_at_random("erdos_renyi", 300)
    both = (graph.influence + graph.influence.T).tocoo()
    weights = np.sort(both.data[both.row < both.col])[::-1]
    assert len(drawn.lines.weights) == 1_500 < len(weights)
    assert drawn.note == f"1,500 of {len(weights):,} linked pairs are drawn, the strongest of each client first"
    assert {*drawn.lines.sources.tolist(), *drawn.lines.targets.tolist()} == set(range(300))
    assert (np.diff(drawn.lines.weights) <= 0).all()
    assert drawn.lines.weights[0] == weights[0]
    assert np.isin(weights[:1_000], drawn.lines.weights).all()
    assert len(drawn_at_random("erdos_renyi", 500)[1].lines.weights) == MOST_LINKS  # what a browser draws in a blink
    everybody = np.array([(a, b) for a in range(150) for b in range(150) if a != b])
    drawn = draw(CommunityTree(graph_from_edges(everybody[:, 0], everybody[:, 1])))  # all links weigh the same
    assert {*drawn.lines.sources.tolist(), *drawn.lines.targets.tolist()} == set(range(150))
    assert {line["classes"] for line in elements(drawn, list(map(str, range(150))))[150:]} == {"w1"}


def test_communities_stand_for_every_client_once_and_open():
    # Some eight friends each way within a block, at least, and few between.
    sizes, chances = [2_600, 900, 500, 300], {"within": 8 / 300, "between": 0.3 / 4_300}
    graph = random_graph("stochastic_block", 4_300, sizes=sizes, **chances, rng=np.random.default_rng(0))
    tree = CommunityTree(graph)
    top = draw(tree)
    assert top.sizes.tolist() == [len(members) for members in top.members]
    assert (np.diff(top.sizes) <= 0).all()
    assert top.labels[0].startswith("community 0 · 2,6")
    first, second, *_ = elements(top, ())
    assert (first["data"]["label"], first["data"]["size"]) == (top.labels[0], top.sizes[0])
    assert first["classes"] == "community named"
    assert first["data"]["diameter"] >= second["data"]["diameter"]
    inside, leaf = draw(tree, (0,)), draw(tree, (1,))
    assert inside.trail[0] == "all 4,300 clients"
    assert inside.trail[1].startswith("community 0 (2,6")
    assert inside.labels
    assert np.array_equal(np.sort(np.concatenate(inside.members)), np.sort(top.members[0]))
    assert not leaf.labels
    assert np.concatenate(leaf.members).tolist() == top.members[1].tolist()
    assert "edges from clients elsewhere are not drawn" in leaf.note
    assert len(top.lines.weights) <= MOST_COMMUNITY_LINKS
    # A community has the mean of its members, as far as their values are known and finite.
    values = np.arange(4_300.0)
    assert node_values(top, values) == approx([values[members].mean() for members in top.members])
    values[top.members[1][:2]] = np.inf, np.nan
    assert node_values(top, values)[1] == approx(values[top.members[1][2:]].mean())
    values[top.members[0]] = np.nan
    assert np.isnan(node_values(top, values)[0])


def test_small_communities_are_drawn_as_one_and_nobody_is_lost():
    first, step = np.repeat(np.arange(600) * 4, 4), np.tile(np.arange(4), 600)
    tree = CommunityTree(graph_from_edges(first + step, first + (step + 1) % 4, undirected=True))
    top = draw(tree)
    assert len(top.members) == MOST_COMMUNITIES
    assert top.labels[-1] == "others · 1,804"
    assert top.note == "the 451 smallest communities, at most 4 clients each, are one node"
    assert draw(tree, (MOST_COMMUNITIES - 1,)).sizes.sum() == len(top.members[-1])


def test_who_cannot_be_divided_is_shown_by_the_best_connected():
    star = graph_from_edges(np.zeros(2_500, dtype=np.int64), np.arange(1, 2_501), undirected=True)
    drawn = draw(CommunityTree(star))
    assert len(drawn.members) == MOST_CLIENTS
    assert drawn.members[0] == [0]
    assert drawn.note.startswith("the 2,000 best connected of 2,501 clients are drawn")


@pytest.mark.parametrize("dark", [False, True])
def test_more_is_brighter_and_told_on_the_legend(dark):
    colours, scale = node_paint(np.linspace(2.0, 12.0, 60), dark, diverging=False)
    light = sum(
        share * channel(colours, name) / 255 for name, share in zip("rgb", [0.2126, 0.7152, 0.0722], strict=True)
    )
    assert all(a <= b + 0.004 for a, b in pairwise(light))
    assert light[-1] > light[0] + 0.5
    assert scale.num_unknown == 0
    assert scale.ticks == ((0.0, "2"), (20.0, "4"), (40.0, "6"), (60.0, "8"), (80.0, "10"), (100.0, "12"))
    assert scale.gradient.startswith(f"linear-gradient(to right, {colours[0]} 0%, ")
    assert scale.gradient.endswith(f"{colours[-1]} 100%)")


@pytest.mark.parametrize("dark", [False, True])
def test_utility_is_orange_below_zero_and_blue_above(dark):
    colours, scale = node_paint(np.array([-4.0, -2.0, 0.0, 1.0, 2.0]), dark, diverging=True)
    redder = channel(colours, "r") - channel(colours, "b")
    assert (redder[:2] > 0).all()
    assert (redder[3:] < 0).all()
    assert abs(redder[2]) < 16
    assert (round(100 * 4 / 6, 2), "0") in scale.ticks
    assert (0.0, "−4") in scale.ticks
    _, gains_only = node_paint(np.array([1.0, 3.0]), dark, diverging=True)
    assert gains_only.ticks[0] == (0.0, "0")


def test_the_unknown_and_the_infinite_are_grey_and_where_all_values_are_alike_so_are_the_colours():
    colours, scale = node_paint(np.array([1.0, np.nan, np.inf, 3.0]), False, diverging=False)
    assert (colours[1], len(set(colours)), scale.num_unknown) == (colours[2], 3, 2)
    assert (scale.ticks[0], scale.ticks[-1]) == ((0.0, "1"), (100.0, "3"))
    assert node_paint(np.array([np.nan]), True, diverging=False)[1].ticks == ()
    colours, scale = node_paint(np.full(3, 0.25), False, diverging=False)
    assert (len(set(colours)), scale.ticks) == (1, ((50.0, "0.25"),))
    assert set(node_paint(np.zeros(2), False, diverging=True)[0]) == {"#e4e4e4"}
