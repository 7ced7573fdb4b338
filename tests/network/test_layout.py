"""The layout: within the box, off each other, always the same, and friends stand together."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.experiment import lay_out
from mppfl.explorer import influence_between
from mppfl.network import random_graph


def ends_of(network):
    return np.array(network.edges(), dtype=np.int64).reshape(-1, 2).T


def distances(x, y):
    return np.hypot(x[:, None] - x, y[:, None] - y)


def nearest(x, y, radii=0.0):
    """The least distance between two nodes, or between the circles around them."""
    apart = distances(x, y) - np.add.outer(radii, radii)
    np.fill_diagonal(apart, np.inf)
    return apart.min()


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 120), edges=st.integers(0, 300), seed=st.integers(0, 2**20))
def test_every_node_stands_in_the_box_and_on_nobody_else(size, edges, seed):
    firsts, seconds = ends_of(nx.gnm_random_graph(size, edges, seed=seed))
    x, y = lay_out(size, firsts, seconds, radii=4.0)
    assert np.isfinite([x, y]).all()
    assert ((x >= 0) & (x <= 1000) & (y >= 0) & (y <= 700)).all()
    if size > 1:
        assert nearest(x, y) > 7.5
    assert np.array_equal(lay_out(size, firsts, seconds, radii=4.0), (x, y))


def test_two_thousand_clients_fill_the_box_evenly():
    graph = random_graph("barabasi_albert", 2_000, edges_each=5, rng=np.random.default_rng(0))
    edges = graph.influence.tocoo()
    once = edges.row < edges.col
    x, y = lay_out(2_000, edges.row[once], edges.col[once], radii=3.0)
    assert nearest(x, y) > 5.9
    counts, _, _ = np.histogram2d(x, y, bins=(10, 7), range=((0, 1000), (0, 700)))
    assert counts.max() < 4 * 2_000 / 70  # no blob
    assert (counts > 0).mean() > 0.8


def test_friends_stand_nearer_than_strangers_and_separate_parts_do_not_mix():
    rng = np.random.default_rng(0)
    graph = random_graph("stochastic_block", 200, sizes=[50] * 4, within=0.2, between=0.005, rng=rng)
    edges = graph.influence.tocoo()
    apart = distances(*lay_out(200, edges.row, edges.col))
    same = np.arange(200)[:, None] // 50 == np.arange(200) // 50
    assert apart[same].mean() < 0.5 * apart[~same].mean()
    x, _ = lay_out(20, *ends_of(nx.disjoint_union(nx.complete_graph(12), nx.cycle_graph(8))))
    assert x[:12].max() < x[12:].min()


def test_nodes_without_edges_stand_in_rows_below_and_use_the_box_where_there_are_no_others():
    x, y = lay_out(60, *ends_of(nx.cycle_graph(10)))
    assert y[:10].max() < y[10:].min()
    assert 1 <= len(np.unique(y[10:].round(6))) <= 3
    assert len(set(zip(x[10:].tolist(), y[10:].tolist(), strict=True))) == 50
    none = np.empty(0, dtype=np.int64)
    assert np.ptp(lay_out(400, none, none, radii=3.0)[1]) > 300


def test_larger_nodes_keep_their_distance_and_a_heavier_edge_brings_its_ends_nearer():
    radii = np.linspace(10, 55, 12)
    x, y = lay_out(12, *ends_of(nx.complete_graph(12)), radii=radii)
    assert nearest(x, y, radii) > -0.5
    assert (x - radii).min() >= 0
    assert (y + radii).max() <= 700
    firsts, seconds = ends_of(nx.complete_graph(5))
    x, y = lay_out(5, firsts, seconds, np.where((firsts == 0) & (seconds == 1), 60.0, 1.0))
    lengths = distances(x, y)[firsts, seconds]
    assert lengths[0] == lengths.min()


def test_a_edge_to_oneself_changes_nothing_and_one_to_nobody_is_refused():
    firsts, seconds = ends_of(nx.cycle_graph(6))
    looped = lay_out(6, np.append(firsts, 2), np.append(seconds, 2))
    assert np.array_equal(lay_out(6, firsts, seconds), looped)
    for edges, words in (
        (([0], [6]), "edge end 6 is not one of 6 nodes"),
        (([0, 1], [1]), "2 firsts, 1 seconds and 2 weights do not match"),
        (([0], [1], [0.0]), "weights=0 .* must be a positive number"),
    ):
        with pytest.raises(BadInput, match=words):
            lay_out(6, *map(np.array, edges))


def test_influence_between_groups_is_what_a_product_of_whole_matrices_adds_up_to():
    graph = random_graph("skewed", 60, num_edges=300, rng=np.random.default_rng(0))
    place = np.random.default_rng(1).integers(-1, 4, 60)
    belongs = (place[:, None] == np.arange(4)).astype(float)
    expected = belongs.T @ graph.influence.toarray() @ belongs
    np.fill_diagonal(expected, 0.0)
    assert influence_between(graph, place, 4).toarray() == pytest.approx(expected)
