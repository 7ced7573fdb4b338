"""Communities: blocks are found, results repeat, nobody is lost on the way down."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.explorer import OTHERS, CommunityTree
from mppfl.network import communities_of, graph_from_edges, random_graph, read_graph


def seeded(seed=0):
    return np.random.default_rng(seed)


# ---- Louvain ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(8, 80))
def test_communities_are_numbered_by_their_first_members_and_repeat(seed, size):
    graph = random_graph("watts_strogatz", size, neighbours=4, rng=seeded(seed))
    labels = communities_of(graph, seeded(seed))
    assert np.array_equal(labels, communities_of(graph, seeded(seed)))
    first = [int(np.argmax(labels == number)) for number in range(int(labels.max()) + 1)]
    assert first == sorted(first)
    assert len(labels) == size
    assert first[0] == 0


def test_the_karate_club_parts_as_well_as_by_networkx():
    club = nx.karate_club_graph()
    nx.set_edge_attributes(club, 1.0, "weight")
    ours, theirs = [], []
    for seed in range(20):
        labels = communities_of(read_graph(club), seeded(seed))
        communities = [set(np.flatnonzero(labels == number).tolist()) for number in range(labels.max() + 1)]
        ours.append(nx.community.modularity(club, communities))
        theirs.append(nx.community.modularity(club, nx.community.louvain_communities(club, seed=seed)))
    assert np.mean(ours) > 0.98 * np.mean(theirs)
    assert max(ours) == pytest.approx(max(theirs), rel=0.01)
    assert min(ours) > 0.37


def test_planted_blocks_are_found_whole():
    sizes = [150, 100, 80, 120]
    graph = random_graph("stochastic_block", 450, sizes=sizes, within=0.2, between=0.005, rng=seeded(1))
    assert np.array_equal(communities_of(graph, seeded()), np.repeat(np.arange(4), sizes))


def test_both_directions_are_added_up_and_a_client_without_edges_is_a_community_of_its_own():
    # One pair is connected both ways with weight 1, the others one way with 1: only together do the two weigh more.
    pairs = [(0, 1, 1.0), (1, 0, 1.0), (1, 2, 1.0), (2, 3, 1.0), (3, 2, 1.0), (3, 0, 0.5)]
    graph = graph_from_edges(*map(np.array, zip(*pairs, strict=True)), normalisation="none")
    assert communities_of(graph, seeded()).tolist() == [0, 0, 1, 1]
    graph = graph_from_edges(np.array([1, 2]), np.array([2, 1]), num_clients=5, isolated="keep")
    assert communities_of(graph, seeded()).tolist() == [0, 1, 1, 2, 3]


# ---- the tree -----------------------------------------------------------------------------------------------------


def leaves(tree, opened=()):
    inside = range(len(tree.inside(opened)))
    return [leaf for at in inside for leaf in leaves(tree, (*opened, at))] or [tree.way(opened)[-1].members]


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(["barabasi_albert", "watts_strogatz", "skewed"]),
    size=st.integers(50, 900),
    most=st.integers(3, 40),
    seed=st.integers(0, 2**32),
)
def test_opening_everything_reaches_every_client_once(kind, size, most, seed):
    tree = CommunityTree(random_graph(kind, size, rng=seeded(seed)), most_together=30, most_branches=most)
    together = np.concatenate(leaves(tree))
    assert np.array_equal(np.sort(together), np.arange(size))


def test_many_small_communities_come_in_bundles_of_about_one_size():
    circles = nx.disjoint_union_all([nx.cycle_graph(4)] * 300)
    bundles = CommunityTree(read_graph(circles), most_together=50, most_branches=20).inside((19,))
    assert (len(bundles), bundles[0].name) == (20, "bundle 0 of 15 communities")
    assert max(len(bundle.members) for bundle in bundles) <= 60


def test_branches_come_by_size_and_are_as_coarse_as_asked_for():
    graph = random_graph("stochastic_block", 150, sizes=[20, 90, 40], within=0.4, between=0.005, rng=seeded(1))
    tree = CommunityTree(graph, most_together=100, most_branches=10)
    assert [len(branch.members) for branch in tree.inside(())] == [90, 40, 20]
    assert [branch.name for branch in tree.way((1,))] == ["all 150 clients", "community 1"]
    graph = random_graph("watts_strogatz", 6_000, neighbours=6, rewire=0.02, rng=seeded())
    assert communities_of(graph, seeded()).max() + 1 > 24
    coarse = CommunityTree(graph, most_together=50, most_branches=12).inside(())
    assert 2 <= len(coarse) <= 12
    assert coarse[-1].name != OTHERS


def test_a_way_that_leads_nowhere_is_refused():
    tree = CommunityTree(read_graph(nx.caveman_graph(3, 20)), most_together=30, most_branches=10)
    nowhere = "all 60 clients has communities 0 to 2, no community 3", "community 0 has only clients", "no community -1"
    for opened, words in zip(((3,), (0, 0), (-1,)), nowhere, strict=True):
        with pytest.raises(BadInput, match=words):
            tree.inside(opened)
