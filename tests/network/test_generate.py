"""Random networks: what every family promises, and what each looks like."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.network import (
    _pairs_below_diagonal,
    _rows_by_arrival,
    _rows_by_rejection,
    _successes,
    barabasi_albert,
    describe,
    erdos_renyi,
    random_graph,
    skewed,
    stochastic_block,
    watts_strogatz,
)

approx = pytest.approx
FAMILIES = ["erdos_renyi", "barabasi_albert", "watts_strogatz", "stochastic_block", "skewed"]
FRIENDSHIPS = ["barabasi_albert", "watts_strogatz", "stochastic_block"]


def seeded(seed=0):
    return np.random.default_rng(seed)


def linked(graph):
    """Which clients (columns) expose which (rows), as a matrix of 0 and 1."""
    return (graph.influence.toarray() > 0).astype(int)


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(FAMILIES), num_clients=st.integers(8, 60), seed=st.integers(0, 2**32))
def test_nobody_is_isolated_or_linked_to_oneself_and_no_link_comes_twice(kind, num_clients, seed):
    graph = random_graph(kind, num_clients, rng=seeded(seed))
    assert graph.num_clients == num_clients
    assert (np.diff(graph.influence.indptr) >= 1).all()
    assert not graph.influence.diagonal().any()
    rows = np.repeat(np.arange(num_clients), np.diff(graph.influence.indptr))
    assert len(set(zip(rows.tolist(), graph.influence.indices.tolist(), strict=True))) == graph.num_links
    assert graph.influence.sum(axis=1) == approx(np.ones(num_clients))


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(FAMILIES), seed=st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_graph_and_another_seed_another(kind, seed):
    first, again, other = (random_graph(kind, 40, rng=seeded(s)) for s in (seed, seed, seed + 1))
    assert (first.influence.toarray() == again.influence.toarray()).all()
    assert (first.influence.toarray() != other.influence.toarray()).any()


@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_lie_in_their_range_or_are_all_one(kind):
    drawn = random_graph(kind, 60, rng=seeded(), normalisation="none").influence.data
    assert 0.1 <= drawn.min() < 0.2
    assert 0.9 < drawn.max() <= 1.0
    narrow = random_graph(kind, 60, rng=seeded(), normalisation="none", weight_range=(2.0, 3.0)).influence.data
    assert 2.0 <= narrow.min() < narrow.max() <= 3.0
    assert (random_graph(kind, 60, rng=seeded(), normalisation="none", weights="ones").influence.data == 1.0).all()


@pytest.mark.parametrize("kind", FRIENDSHIPS)
def test_friendships_run_both_ways_with_one_weight(kind):
    strengths = random_graph(kind, 50, rng=seeded(3), normalisation="none").influence.toarray()
    assert (strengths == strengths.T).all()


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_called_by_its_name_is_the_function_of_that_name(kind):
    functions = {
        "erdos_renyi": lambda rng: erdos_renyi(40, rng=rng),
        "barabasi_albert": lambda rng: barabasi_albert(40, 3, rng=rng),
        "watts_strogatz": lambda rng: watts_strogatz(40, 6, 0.1, rng=rng),
        "stochastic_block": lambda rng: stochastic_block([10, 10, 10, 10], 0.1, 0.01, rng=rng),
        "skewed": lambda rng: skewed(40, 400, rng=rng),
    }
    by_name = random_graph(kind, 40, rng=seeded(7)).influence.toarray()
    assert (by_name == functions[kind](seeded(7)).influence.toarray()).all()


def test_the_papers_network_links_half_of_all_ordered_pairs():
    # 159,600 pairs, each linked with chance 0.5 overall: deviation 0.00125. Six of them: one failure in 5e8 seeds.
    graph = erdos_renyi(400, rng=seeded())
    assert graph.num_links / (400 * 399) == approx(0.5, abs=0.0075)
    assert describe(graph).reciprocity == approx(0.5, abs=0.02)  # the two directions are drawn apart


def test_the_papers_network_follows_other_ranges():
    assert erdos_renyi(30, rng=seeded(), probability_range=(1.0, 1.0)).num_links == 30 * 29
    share = erdos_renyi(400, rng=seeded(), probability_range=(0.0, 0.2)).num_links / (400 * 399)
    assert share == approx(0.1, abs=0.006)


def test_clients_of_the_papers_network_left_alone_draw_one_link():
    graph = erdos_renyi(50, rng=seeded(), probability_range=(0.0, 0.0))
    assert (np.diff(graph.influence.indptr) == 1).all()
    assert len(set(graph.influence.indices.tolist())) > 20  # from all clients, not always the same


def test_the_papers_network_is_drawn_row_block_by_row_block_without_gaps():
    graph = erdos_renyi(2_500, rng=seeded(), probability_range=(1.0, 1.0), weights="ones")  # more than one block
    assert graph.num_links == 2_500 * 2_499


def test_the_third_client_joins_either_and_the_fourth_prefers_the_one_with_two_friends():
    # links_each = 1: three clients make a path; the fourth draws from 4 link ends, 2 of them the middle one's, so a
    # star comes up with chance 1/2. 600 seeds: deviation 0.0204; five of them: one failure in two million.
    stars = sum(linked(barabasi_albert(4, 1, rng=seeded(s))).sum(axis=0).max() == 3 for s in range(600))
    assert stars / 600 == approx(0.5, abs=0.102)


def test_newcomers_make_the_stated_number_of_friends_and_a_few_become_hubs():
    graph = barabasi_albert(3_000, 4, rng=seeded(), weights="ones")
    friends = np.diff(graph.influence.indptr)
    assert graph.num_links == 2 * 4 * (3_000 - 4)
    assert (friends[5:] >= 4).all()
    assert friends.max() > 15 * friends.mean()
    assert np.median(friends) <= 6


def test_as_many_links_each_as_there_are_others_make_a_star():
    graph = barabasi_albert(6, 5, rng=seeded())
    assert np.diff(graph.influence.indptr).tolist() == [1, 1, 1, 1, 1, 5]


def test_a_ring_that_is_not_rewired_links_the_nearest_on_each_side():
    graph = watts_strogatz(7, 4, 0.0, rng=seeded())
    assert linked(graph)[0].tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert graph.num_links == 7 * 4


def test_rewiring_keeps_the_number_of_links_and_moves_the_stated_share():
    ring, rewired = (linked(watts_strogatz(1_000, 10, share, rng=seeded())) for share in (0.0, 0.3))
    assert rewired.sum() == ring.sum() == 10_000
    # 5,000 links moved with chance 0.3: deviation 0.0065.
    assert 1.0 - (rewired & ring).sum() / 10_000 == approx(0.3, abs=0.04)


def test_everything_rewired_leaves_everybody_half_of_the_links():
    graph = watts_strogatz(300, 6, 1.0, rng=seeded())
    assert (np.diff(graph.influence.indptr) >= 3).all()


def test_a_full_ring_has_no_room_to_rewire():
    assert linked(watts_strogatz(7, 6, 1.0, rng=seeded())).tolist() == (1 - np.eye(7, dtype=int)).tolist()


def test_blocks_linked_only_within_are_cliques_and_only_between_are_parts():
    expected = np.zeros((5, 5), dtype=int)
    expected[:2, :2], expected[2:, 2:] = 1, 1
    np.fill_diagonal(expected, 0)
    assert linked(stochastic_block([2, 3], 1.0, 0.0, rng=seeded())).tolist() == expected.tolist()
    parts = 1 - expected - np.eye(5, dtype=int)
    assert linked(stochastic_block([2, 3], 0.0, 1.0, rng=seeded())).tolist() == parts.tolist()


def test_blocks_have_the_stated_density_within_and_between():
    sizes = [300, 200, 100]
    block = np.repeat([0, 1, 2], sizes)
    found = linked(stochastic_block(sizes, 0.2, 0.05, rng=seeded()))
    together = block[:, None] == block[None, :]
    pairs = together.sum() - 600
    # 69,700 pairs within (deviation 0.0015) and 110,000 between (0.00066).
    assert (found * together).sum() / pairs == approx(0.2, abs=0.009)
    assert (found * ~together).sum() / (~together).sum() == approx(0.05, abs=0.004)


def test_clients_of_blocks_left_alone_draw_one_friend():
    graph = stochastic_block([20, 20], 0.0, 0.0, rng=seeded())
    assert (np.diff(graph.influence.indptr) >= 1).all()
    assert graph.num_links <= 2 * 40


@pytest.mark.parametrize(("trials", "chance"), [(0, 0.5), (7, 0.0), (7, 1.0), (100_000, 0.3), (10**12, 1e-9)])
def test_leaps_find_sorted_trials_at_the_stated_rate(trials, chance):
    found = _successes(trials, chance, seeded())
    assert (np.diff(found) > 0).all()
    assert len(found) == 0 or (found[0] >= 0 and found[-1] < trials)
    deviation = (trials * chance * (1 - chance)) ** 0.5
    assert abs(len(found) - trials * chance) <= 6 * deviation


def test_every_trial_is_as_likely_as_any_other():
    counts = np.zeros(5)
    for seed in range(4_000):
        counts[_successes(5, 0.4, seeded(seed))] += 1
    assert counts / 4_000 == approx(np.full(5, 0.4), abs=0.04)  # deviation 0.0077: five of them


def test_positions_below_the_diagonal_are_counted_row_by_row():
    rows, columns = _pairs_below_diagonal(np.arange(6))
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    for side in (10**6, 3 * 10**7):
        corner = side * (side - 1) // 2 + np.array([-1, 0])
        rows, columns = _pairs_below_diagonal(corner)
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [(side - 1, side - 2), (side, 0)]


@settings(max_examples=60, deadline=None)
@given(num_clients=st.integers(2, 40), density=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_a_skewed_network_has_exactly_the_links_asked_for(num_clients, density, seed):
    most = num_clients * (num_clients - 1)
    num_links = num_clients + round(density * (most - num_clients))
    graph = skewed(num_clients, num_links, rng=seeded(seed))
    assert graph.num_links == num_links
    assert (np.diff(graph.influence.indptr) >= 1).all()
    assert not graph.influence.diagonal().any()


def test_few_expose_many_and_few_are_exposed_by_many_in_a_skewed_network():
    graph = skewed(20_000, 200_000, rng=seeded())
    exposes = np.bincount(graph.influence.indices, minlength=20_000)
    exposed_by = np.sort(np.diff(graph.influence.indptr))[::-1]
    popular = np.argsort(exposes)[::-1][:200]
    assert exposes[popular].sum() > 0.2 * 200_000  # one in a hundred exposes more than a fifth
    assert exposed_by[:2_000].sum() > 0.25 * 200_000  # one in ten is exposed by more than a quarter
    assert popular.mean() == approx(10_000, abs=2_400)  # they stand anywhere: deviation 408


def test_without_popularity_or_spread_a_skewed_network_is_even():
    graph = skewed(2_000, 40_000, rng=seeded(), popularity=0.0, length_spread=0.0)
    for degrees in (np.bincount(graph.influence.indices, minlength=2_000), np.diff(graph.influence.indptr)):
        assert degrees.mean() == 20
        assert degrees.std() == approx(20**0.5, rel=0.15)  # as in independent draws


def test_both_ways_to_draw_a_row_follow_one_law():
    size, lengths = 30, np.full(30, 4)
    shares = []
    for way in (_rows_by_rejection, _rows_by_arrival):
        counts = np.zeros(size)
        for seed in range(300):
            keys = way(lengths, np.arange(size), 0.75, seeded(seed))
            counts += np.bincount(keys % size, minlength=size)
        shares.append(counts / (300 * size))
    assert shares[0] == approx(shares[1], abs=0.04)  # deviation of a difference at most 0.0075
    assert shares[0][0] > 2.5 * shares[0][-1]


@pytest.mark.parametrize(
    ("kind", "num_clients", "options", "why"),
    [
        ("barabasi_alberd", 9, {}, "Did you mean 'barabasi_albert'"),
        ("lattice", 9, {}, "Known: erdos_renyi, barabasi_albert"),
        ("watts_strogatz", 9, {"neighbors": 4}, "watts_strogatz has no option 'neighbors'. Did you mean 'neighbours'"),
        ("erdos_renyi", 20_001, {}, "too many for erdos_renyi"),
        ("erdos_renyi", 1, {}, "num_clients=1 must be a whole number of at least 2"),
        ("erdos_renyi", 9, {"probability_range": (0.5, 0.1)}, "the smaller first"),
        ("erdos_renyi", 9, {"probability_range": 0.5}, "must be two numbers"),
        ("erdos_renyi", 9, {"weight_range": (0.0, 1.0)}, "two positive numbers"),
        ("skewed", 9, {"weights": "one"}, "weights='one' must be"),
        ("skewed", 9, {"num_links": 8}, r"num_links=8 must lie in \[9, 72\]"),
        ("skewed", 9, {"popularity": 1.0}, "popularity=1 must lie in"),
        ("barabasi_albert", 9, {"links_each": 9}, "links_each=9 must be below num_clients=9"),
        ("barabasi_albert", 9, {"links_each": 0}, "at least 1"),
        ("watts_strogatz", 9, {"neighbours": 3}, "must be even"),
        ("watts_strogatz", 6, {"neighbours": 6}, "below num_clients=6"),
        ("watts_strogatz", 9, {"rewire": 1.1}, "rewire=1.1 must lie in"),
        ("stochastic_block", 9, {"sizes": [4, 4]}, "sizes add up to 8, not to num_clients=9"),
        ("stochastic_block", 9, {"sizes": [9, 0]}, r"sizes\[1\]=0"),
        ("stochastic_block", 9, {"within": -0.1}, "within=-0.1 must lie in"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_value(kind, num_clients, options, why):
    with pytest.raises(BadInput, match=why) as refusal:
        random_graph(kind, num_clients, rng=seeded(), **options)
    assert "\n" not in str(refusal.value)


def test_a_seed_is_no_generator():
    with pytest.raises(BadInput, match=r"rng=0 is no random generator. Pass numpy.random.default_rng\(seed\)"):
        random_graph("skewed", 10, rng=0)


@pytest.mark.parametrize("kind", ["barabasi_albert", "watts_strogatz", "skewed"])
def test_memory_grows_with_links_and_not_with_pairs(kind):
    tracemalloc.start()
    graph = random_graph(kind, 50_000, rng=seeded())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * (graph.num_links + graph.num_clients)  # bytes; one byte for each pair would be 2.5e9


@pytest.mark.slow
def test_a_million_clients_take_seconds():
    for make, limit in (
        (lambda: barabasi_albert(1_000_000, 10, rng=seeded()), 15.0),
        (lambda: skewed(1_000_000, 20_000_000, rng=seeded()), 40.0),
    ):
        start = time.process_time()
        graph = make()
        assert time.process_time() - start < limit
        assert len(graph.isolated) == 0
        assert not graph.influence.diagonal().any()
