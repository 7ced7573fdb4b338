"""Random networks: what every family promises, and what each looks like."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from mppfl.errors import BadInput
from mppfl.network import random_graph

FAMILIES = ["erdos_renyi", "barabasi_albert", "watts_strogatz", "stochastic_block", "skewed"]
FRIENDSHIPS = ["barabasi_albert", "watts_strogatz", "stochastic_block"]


def seeded(seed=0):
    return np.random.default_rng(seed)


def draw(kind, num_clients, seed=0, **options):
    return random_graph(kind, num_clients, rng=seeded(seed), **options)


def connected(graph):
    """Which clients (columns) expose which (rows), as a matrix of 0 and 1."""
    return (graph.influence.toarray() > 0).astype(int)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FAMILIES), st.integers(2, 60), st.floats(0, 1), st.integers(0, 2**32))
def test_nobody_is_isolated_or_connected_to_oneself_no_edge_comes_twice_and_the_seed_decides(kind, size, density, seed):
    size = size if kind == "skewed" else max(size, 8)
    num_edges = size + round(density * size * (size - 2))  # at most all ordered pairs
    options = {"num_edges": num_edges} if kind == "skewed" else {}
    graph, again, other = (draw(kind, size, number, **options) for number in (seed, seed, seed + 1))
    assert graph.num_clients == size
    assert kind != "skewed" or graph.num_edges == num_edges
    assert (np.diff(graph.influence.indptr) >= 1).all()
    assert not graph.influence.diagonal().any()
    rows = np.repeat(np.arange(size), np.diff(graph.influence.indptr))
    assert len(set(zip(rows.tolist(), graph.influence.indices.tolist(), strict=True))) == graph.num_edges
    assert graph.influence.sum(axis=1) == approx(np.ones(size))
    assert (graph.influence.toarray() == again.influence.toarray()).all()
    few = size < 8 or num_edges < 2 * size  # of which two seeds may draw the same
    assert few or (graph.influence.toarray() != other.influence.toarray()).any()


@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_lie_in_their_range_or_are_all_one_and_are_those_of_both_friends(kind):
    for low, high in ((0.1, 1.0), (2.0, 3.0)):
        drawn = draw(kind, 60, normalisation="none", weight_range=(low, high)).influence.data
        assert low <= drawn.min() < low + 0.1
        assert high - 0.1 < drawn.max() <= high
    assert (draw(kind, 60, normalisation="none", weights="ones").influence.data == 1.0).all()
    strengths = draw(kind, 50, 3, normalisation="none").influence.toarray()
    assert (strengths == strengths.T).all() == (kind in FRIENDSHIPS)  # which run both ways with one weight


def test_the_papers_network_edges_half_of_all_ordered_pairs_or_the_share_asked_for():
    # 159,600 pairs, each connected with chance 0.5 overall: deviation 0.00125. Six of them: one failure in 5e8 seeds.
    graph = draw("erdos_renyi", 400)
    assert graph.num_edges / (400 * 399) == approx(0.5, abs=0.0075)
    assert graph.describe().reciprocity == approx(0.5, abs=0.02)  # the two directions are drawn apart
    assert draw("erdos_renyi", 2_500, probability_range=(1.0, 1.0)).num_edges == 2_500 * 2_499  # in two blocks of rows
    share = draw("erdos_renyi", 400, probability_range=(0.0, 0.2)).num_edges / (400 * 399)
    assert share == approx(0.1, abs=0.006)


def test_who_would_be_left_alone_draws_one_friend():
    graph = draw("erdos_renyi", 50, probability_range=(0.0, 0.0))
    assert (np.diff(graph.influence.indptr) == 1).all()
    assert len(set(graph.influence.indices.tolist())) > 20  # from all clients, not always the same
    graph = draw("stochastic_block", 40, sizes=[20, 20], within=0.0, between=0.0)
    assert (np.diff(graph.influence.indptr) >= 1).all()
    assert graph.num_edges <= 2 * 40


def test_newcomers_prefer_those_with_many_friends_of_whom_a_few_become_hubs():
    # edges_each = 1: three clients make a path; the fourth draws from 4 edge ends, 2 of them the middle one's, so a
    # star comes up with chance 1/2. 600 seeds: deviation 0.0204; five of them: one failure in two million.
    stars = sum(connected(draw("barabasi_albert", 4, s, edges_each=1)).sum(axis=0).max() == 3 for s in range(600))
    assert stars / 600 == approx(0.5, abs=0.102)
    graph = draw("barabasi_albert", 3_000, edges_each=4, weights="ones")
    friends = np.diff(graph.influence.indptr)
    assert graph.num_edges == 2 * 4 * (3_000 - 4)
    assert (friends[5:] >= 4).all()
    assert friends.max() > 15 * friends.mean()
    assert np.median(friends) <= 6


def test_stars_rings_and_blocks_worked_by_hand():
    assert np.diff(draw("barabasi_albert", 6, edges_each=5).influence.indptr).tolist() == [1, 1, 1, 1, 1, 5]
    ring = draw("watts_strogatz", 7, neighbours=4, rewire=0.0)
    assert connected(ring)[0].tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert ring.num_edges == 7 * 4
    full = draw("watts_strogatz", 7, neighbours=6, rewire=1.0)  # no room to rewire
    assert connected(full).tolist() == (1 - np.eye(7, dtype=int)).tolist()
    block = np.array([0, 0, 1, 1, 1])
    together = (block[:, None] == block).astype(int)
    cliques, parts = (draw("stochastic_block", 5, sizes=[2, 3], within=w, between=1.0 - w) for w in (1.0, 0.0))
    assert connected(cliques).tolist() == (together - np.eye(5, dtype=int)).tolist()
    assert connected(parts).tolist() == (1 - together).tolist()


def test_rewired_shares_and_densities_within_and_between_blocks_are_those_asked_for():
    ring, rewired = (connected(draw("watts_strogatz", 1_000, neighbours=10, rewire=share)) for share in (0.0, 0.3))
    assert rewired.sum() == ring.sum() == 10_000
    # 5,000 edges moved with chance 0.3: deviation 0.0065.
    assert 1.0 - (rewired & ring).sum() / 10_000 == approx(0.3, abs=0.04)
    assert (np.diff(draw("watts_strogatz", 300, rewire=1.0).influence.indptr) >= 3).all()  # near ends stay
    sizes = [300, 200, 100]
    block = np.repeat([0, 1, 2], sizes)
    edges = connected(draw("stochastic_block", 600, sizes=sizes, within=0.2, between=0.05))
    together = block[:, None] == block[None, :]
    # 69,700 pairs within (deviation 0.0015) and 110,000 between (0.00066).
    assert (edges * together).sum() / (together.sum() - 600) == approx(0.2, abs=0.009)
    assert (edges * ~together).sum() / (~together).sum() == approx(0.05, abs=0.004)


def test_few_expose_many_and_few_are_exposed_by_many_unless_popularity_and_spread_are_nought():
    graph = draw("skewed", 20_000, num_edges=200_000)
    exposes = np.bincount(graph.influence.indices, minlength=20_000)
    exposed_by = np.sort(np.diff(graph.influence.indptr))[::-1]
    popular = np.argsort(exposes)[::-1][:200]
    assert exposes[popular].sum() > 0.2 * 200_000  # one in a hundred exposes more than a fifth
    assert exposed_by[:2_000].sum() > 0.25 * 200_000  # one in ten is exposed by more than a quarter
    assert popular.mean() == approx(10_000, abs=2_400)  # they stand anywhere: deviation 408
    even = np.diff(draw("skewed", 2_000, num_edges=40_000, popularity=0.0, length_spread=0.0).influence.indptr)
    assert (even.mean(), even.std()) == (20, approx(20**0.5, rel=0.15))  # as in independent draws


@pytest.mark.parametrize(
    ("kind", "num_clients", "options", "why"),
    [
        ("barabasi_alberd", 9, {}, "Did you mean 'barabasi_albert'"),
        ("watts_strogatz", 9, {"neighbors": 4}, "watts_strogatz has no option 'neighbors'. Did you mean 'neighbours'"),
        ("erdos_renyi", 20_001, {}, "too many for erdos_renyi"),
        ("skewed", 9, {"rng": 0}, r"rng=0 is no random generator. Pass numpy.random.default_rng\(seed\)"),
        ("erdos_renyi", 1, {}, "num_clients=1 must be a whole number of at least 2"),
        ("erdos_renyi", 9, {"probability_range": (0.5, 0.1)}, "the smaller first"),
        ("erdos_renyi", 9, {"probability_range": 0.5}, "must be two numbers"),
        ("erdos_renyi", 9, {"weight_range": (0.0, 1.0)}, "two positive numbers"),
        ("skewed", 9, {"weights": "one"}, "weights='one' must be"),
        ("skewed", 9, {"num_edges": 8}, r"num_edges=8 must lie in \[9, 72\]"),
        ("skewed", 9, {"popularity": 1.0}, "popularity=1 must lie in"),
        ("barabasi_albert", 9, {"edges_each": 9}, "edges_each=9 must be below num_clients=9"),
        ("watts_strogatz", 9, {"neighbours": 3}, "must be even"),
        ("watts_strogatz", 6, {"neighbours": 6}, "below num_clients=6"),
        ("stochastic_block", 9, {"sizes": [4, 4]}, "sizes add up to 8, not to num_clients=9"),
        ("stochastic_block", 9, {"sizes": [9, 0]}, r"sizes\[1\]=0"),
        ("stochastic_block", 9, {"within": -0.1}, "within=-0.1 must lie in"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_value(kind, num_clients, options, why):
    with pytest.raises(BadInput, match=why) as refusal:
        random_graph(kind, num_clients, **{"rng": seeded(), **options})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["barabasi_albert", "watts_strogatz", "skewed"])
def test_memory_grows_with_edges_and_not_with_pairs(kind):
    tracemalloc.start()
    graph = draw(kind, 50_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * (graph.num_edges + graph.num_clients)  # bytes; one byte for each pair would be 2.5e9
