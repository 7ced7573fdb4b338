"""The picture of the network: who is drawn, what was left out, and in which colours."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.explorer import (
    MOST_CLIENTS,
    MOST_COMMUNITIES,
    MOST_COMMUNITY_LINKS,
    MOST_LINKS,
    NetworkDrawing,
    community_values,
    elements,
    node_paint,
)
from mppfl.network import graph_from_edges, random_graph

approx = pytest.approx


def seeded(seed=0):
    return np.random.default_rng(seed)


def picture(graph):
    return NetworkDrawing(graph).picture()


def names_of(graph):
    return [graph.name(client) for client in range(graph.num_clients)]


def blocks(sizes, seed=0):
    """Blocks of some eight friends each way within, and few between."""
    within = min(1.0, 8 / min(sizes))
    return random_graph(
        "stochastic_block", sum(sizes), sizes=sizes, within=within, between=0.3 / sum(sizes), rng=seeded(seed)
    )


def brightness(colour):
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return float(parts @ [0.2126, 0.7152, 0.0722])


def in_the_box(drawn):
    return (
        np.isfinite([drawn.x, drawn.y]).all()
        and (drawn.x >= 0).all()
        and (drawn.x <= 1000).all()
        and (drawn.y >= 0).all()
        and (drawn.y <= 700).all()
    )


# ---- clients ------------------------------------------------------------------------------------------------------


def test_a_small_network_is_drawn_whole_and_always_alike():
    graph = random_graph("barabasi_albert", 40, rng=seeded())
    drawn, again = picture(graph), picture(graph)
    assert not drawn.is_community
    assert drawn.shown.tolist() == list(range(40))
    assert [members.tolist() for members in drawn.members] == [[client] for client in range(40)]
    assert drawn.note == ""
    assert drawn.trail == ("all 40 clients",)
    assert len(drawn.sources) == graph.num_edges / 2
    assert drawn.mutual.all()
    assert in_the_box(drawn)
    assert np.array_equal((drawn.x, drawn.y), (again.x, again.y))


def test_a_line_runs_from_who_exposes_more():
    # ann exposes bob by 3 of 4, bob exposes ann wholly: the line runs from bob to ann. cat exposes bob, and is alone.
    graph = graph_from_edges(
        np.array([0, 2, 1]),
        np.array([1, 1, 0]),
        np.array([3.0, 1.0, 1.0]),
        names=["ann", "bob", "cat"],
        isolated="keep",
    )
    drawn = picture(graph)
    lines = zip(
        drawn.sources.tolist(), drawn.targets.tolist(), drawn.weights.tolist(), drawn.mutual.tolist(), strict=True
    )
    assert list(lines) == [(1, 0, 1.75, True), (2, 1, 0.25, False)]


def test_of_too_many_links_the_strongest_are_drawn_and_nobody_looks_alone():
    graph = random_graph("erdos_renyi", 300, rng=seeded())
    drawn = picture(graph)
    both = (graph.influence + graph.influence.T).tocoo()
    pairs = int((both.row < both.col).sum())
    assert len(drawn.weights) == 1_500 < pairs
    assert drawn.note == f"1,500 of {pairs:,} linked pairs are drawn, the strongest of each client first"
    assert set(drawn.sources.tolist()) | set(drawn.targets.tolist()) == set(range(300))
    assert (np.diff(drawn.weights) <= 0).all()
    assert drawn.weights[0] == both.data.max()
    strongest = np.sort(both.data[both.row < both.col])[::-1][:1_000]
    assert np.isin(strongest, drawn.weights).all()


def test_as_many_lines_are_drawn_as_a_browser_draws_in_a_blink_even_where_all_weigh_the_same():
    assert len(picture(random_graph("erdos_renyi", 500, rng=seeded())).weights) == MOST_LINKS
    everybody = np.array([(a, b) for a in range(150) for b in range(150) if a != b])
    drawn = picture(graph_from_edges(everybody[:, 0], everybody[:, 1]))
    assert len(drawn.weights) == 750
    assert set(drawn.sources.tolist()) | set(drawn.targets.tolist()) == set(range(150))


def test_isolated_clients_and_separate_parts_are_drawn():
    graph = graph_from_edges(np.array([0, 1, 3, 4]), np.array([1, 0, 4, 3]), num_clients=7, isolated="keep")
    drawn = picture(graph)
    assert in_the_box(drawn)
    assert drawn.y[[2, 5, 6]].min() > drawn.y[[0, 1, 3, 4]].max()


# ---- communities --------------------------------------------------------------------------------------------------


def reached(drawn, opened=()):
    here = drawn.picture(opened)
    if not here.is_community:
        return [here.shown]
    return [part for number in range(len(here.shown)) for part in reached(drawn, (*opened, number))]


def test_drilling_down_reaches_every_client_exactly_once():
    graph = blocks([2_600, 900, 500, 300])
    drawn = NetworkDrawing(graph)
    top = drawn.picture()
    assert top.is_community
    assert top.sizes.sum() == graph.num_clients
    assert top.sizes.tolist() == [len(members) for members in top.members]
    assert (np.diff(top.sizes) <= 0).all()
    assert top.labels[0].startswith("community 0 · 2,6")
    assert drawn.picture((0,)).trail[0] == "all 4,300 clients"
    assert drawn.picture((0,)).trail[1].startswith("community 0 (2,6")
    first, second, *_ = elements(top, ())
    assert (first["data"]["label"], first["data"]["size"]) == (top.labels[0], top.sizes[0])
    assert first["classes"] == "community named"
    assert first["data"]["diameter"] >= second["data"]["diameter"]
    assert np.array_equal(np.sort(np.concatenate(reached(drawn))), np.arange(4_300))


def test_what_was_drawn_is_remembered_and_a_wrong_way_refused():
    drawn = NetworkDrawing(blocks([1_200, 1_200]))
    assert drawn.picture((1,)) is drawn.picture((1,))
    assert not drawn.picture((1,)).is_community
    assert "edges from clients elsewhere are not drawn" in drawn.picture((1,)).note
    with pytest.raises(BadInput, match="has only clients, no community 0"):
        drawn.picture((1, 0))


def test_small_communities_are_drawn_as_one_and_nobody_is_lost():
    start = np.repeat(np.arange(600) * 4, 4)
    at = np.tile(np.arange(4), 600)
    drawn = NetworkDrawing(graph_from_edges(start + at, start + (at + 1) % 4, undirected=True))
    top = drawn.picture()
    assert len(top.shown) == MOST_COMMUNITIES
    assert top.labels[-1] == "others · 1,804"
    assert top.note == "the 451 smallest communities, at most 4 clients each, are one node"
    assert in_the_box(top)
    assert np.array_equal(np.sort(np.concatenate(top.members)), np.arange(2_400))
    assert drawn.picture((MOST_COMMUNITIES - 1,)).shown.tolist() == top.members[-1].tolist()


def test_links_between_communities_are_added_up():
    graph = blocks([1_000, 900, 800])
    drawn = picture(graph)
    place = np.empty(graph.num_clients, dtype=np.int64)
    for number, members in enumerate(drawn.members):
        place[members] = number
    links = graph.influence.tocoo()
    source, target = int(drawn.sources[0]), int(drawn.targets[0])
    ends = np.array([place[links.col], place[links.row]])
    there = links.data[(ends[0] == source) & (ends[1] == target)].sum()
    back = links.data[(ends[0] == target) & (ends[1] == source)].sum()
    assert drawn.weights[0] == approx(there + back)
    assert there >= back
    assert len(drawn.weights) <= MOST_COMMUNITY_LINKS


def test_who_cannot_be_divided_is_shown_by_the_best_connected():
    star = graph_from_edges(np.zeros(2_500, dtype=np.int64), np.arange(1, 2_501), undirected=True)
    drawn = picture(star)
    assert len(drawn.shown) == MOST_CLIENTS
    assert drawn.shown[0] == 0
    assert drawn.note.startswith("the 2,000 best connected of 2,501 clients are drawn")


# ---- elements -----------------------------------------------------------------------------------------------------


def test_elements_name_places_and_lines():
    graph = graph_from_edges(
        np.array([0, 1]), np.array([1, 2]), names=["a very long name indeed", "bob", "cat"], isolated="keep"
    )
    drawn = picture(graph)
    found = elements(drawn, graph.names)
    nodes, lines = found[:3], found[3:]
    assert [node["data"]["id"] for node in nodes] == ["n0", "n1", "n2"]
    assert nodes[0]["data"]["label"] == "a very long n…"
    assert nodes[0]["data"]["name"] == "a very long name indeed"
    assert nodes[0]["data"]["size"] == 1
    assert nodes[0]["classes"] == "client named"
    assert nodes[2]["position"] == {"x": drawn.x[2], "y": drawn.y[2]}
    assert [(line["data"]["id"], line["data"]["source"], line["data"]["target"]) for line in lines] == [
        ("e0", "n0", "n1"),
        ("e1", "n1", "n2"),
    ]
    assert {line["classes"] for line in lines} == {"w1"}  # all weigh the same
    json.dumps(found)


def test_heavier_lines_are_of_a_higher_class():
    graph = random_graph("skewed", 200, rng=seeded())
    drawn = picture(graph)
    levels = [int(each["classes"][1]) for each in elements(drawn, names_of(graph))[200:]]
    assert levels == sorted(levels, reverse=True)  # lines come strongest first
    assert set(levels) == {1, 2, 3, 4}
    assert levels.count(4) <= 0.06 * len(levels)


# ---- values and colours -------------------------------------------------------------------------------------------


def test_a_community_has_the_mean_of_its_members():
    graph = blocks([1_200, 1_000])
    drawn = picture(graph)
    values = np.arange(graph.num_clients, dtype=np.float64)
    assert community_values(drawn, values) == approx([values[members].mean() for members in drawn.members])
    values[drawn.members[1][0]] = np.inf
    values[drawn.members[1][1]] = np.nan
    assert community_values(drawn, values)[1] == approx(values[drawn.members[1][2:]].mean())
    values[drawn.members[0]] = np.nan
    assert np.isnan(community_values(drawn, values)[0])
    alone = picture(random_graph("barabasi_albert", 20, rng=seeded()))
    assert community_values(alone, np.arange(20.0)).tolist() == list(range(20))


@pytest.mark.parametrize("dark", [False, True])
def test_more_is_brighter_and_told_on_the_legend(dark):
    values = np.linspace(2.0, 12.0, 60)
    colours, scale = node_paint(values, dark, diverging=False)
    light = [brightness(colour) for colour in colours]
    assert all(a <= b + 0.004 for a, b in pairwise(light))
    assert light[-1] > light[0] + 0.5
    assert (scale.low, scale.high, scale.num_unknown) == (2.0, 12.0, 0)
    assert scale.ticks == ((0.0, "2"), (20.0, "4"), (40.0, "6"), (60.0, "8"), (80.0, "10"), (100.0, "12"))
    assert scale.colours[0] == colours[0]
    assert scale.colours[-1] == colours[-1]
    assert scale.gradient.startswith(f"linear-gradient(to right, {colours[0]} 0%, ")
    assert scale.gradient.endswith(f"{colours[-1]} 100%)")


@pytest.mark.parametrize("dark", [False, True])
def test_utility_is_orange_below_zero_and_blue_above(dark):
    values = np.array([-4.0, -2.0, 0.0, 1.0, 2.0])
    colours, scale = node_paint(values, dark, diverging=True)
    red, blue = ([int(colour[at : at + 2], 16) for colour in colours] for at in (1, 5))
    assert red[0] > blue[0]
    assert red[1] > blue[1]
    assert blue[3] > red[3]
    assert blue[4] > red[4]
    assert abs(red[2] - blue[2]) < 16
    assert (round(100 * 4 / 6, 2), "0") in scale.ticks
    assert (0.0, "−4") in scale.ticks
    _, gains_only = node_paint(np.array([1.0, 3.0]), dark, diverging=True)
    assert gains_only.low == 0.0


def test_the_unknown_and_the_infinite_are_grey():
    colours, scale = node_paint(np.array([1.0, np.nan, np.inf, 3.0]), False, diverging=False)
    assert colours[1] == colours[2] == scale.unknown
    assert scale.unknown not in (colours[0], colours[3])
    assert (scale.low, scale.high, scale.num_unknown) == (1.0, 3.0, 2)
    colours, scale = node_paint(np.array([np.nan]), True, diverging=False)
    assert colours == [scale.unknown]
    assert scale.ticks == ()


def test_where_all_values_are_alike_so_are_the_colours():
    colours, scale = node_paint(np.full(3, 0.25), False, diverging=False)
    assert len(set(colours)) == 1
    assert scale.ticks == ((50.0, "0.25"),)
    colours, scale = node_paint(np.zeros(2), False, diverging=True)
    assert set(colours) == {"#e4e4e4"}
