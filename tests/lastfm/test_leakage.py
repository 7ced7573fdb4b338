"""The neighbour attack finds what friends share, nothing where they are strangers, and never reads the target."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from examples.lastfm.data import set_apart
from examples.lastfm.leakage import (
    attack_by_hop,
    by_degree,
    distances,
    field_attacker,
    side_leak,
    similarity_by_hop,
    taste_axis,
)
from examples.lastfm.page_leaks import _degree_series
from examples.lastfm.profiles import release_profiles
from pytest import approx

from mppfl.errors import BadInput
from mppfl.network import graph_from_edges


def chain(length):
    """0 - 1 - 2 - ..."""
    ends = np.arange(length - 1)
    return graph_from_edges(ends, ends + 1, undirected=True)


def released(listening, lists, rho, seed=0):
    budgets = np.full(len(lists), rho)
    return release_profiles(lists, budgets, "record", users=listening.users, rng=np.random.default_rng(seed))


@pytest.fixture(scope="module")
def lists(listening):
    return listening.listens.toarray()


@pytest.fixture(scope="module")
def public(listening):
    return set_apart(listening.num_users, 0.3, np.random.default_rng(5))


def test_friends_who_share_lists_are_alike_and_others_are_not():
    lists = np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    apart = distances(chain(6))
    (first, second) = similarity_by_hop(lists, apart, 2)
    # Hop 1: users 0 to 5 meet their like in 1, ½, ½, ½, ½ and 1 of their neighbours; hop 2 and beyond: none.
    assert first.mean == approx((1 + 0.5 + 0.5 + 0.5 + 0.5 + 1) / 6)
    assert second.mean == 0


def test_likeness_vanishes_where_the_same_people_stand_in_random_order(listening, lists):
    apart = distances(listening.graph)
    real = similarity_by_hop(lists, apart, 2)[0]
    null = similarity_by_hop(lists[np.random.default_rng(3).permutation(len(lists))], apart, 2)[0]
    assert real.low > 0.1
    assert abs(null.mean) < 0.05


def test_friends_give_a_user_away_and_strangers_do_not(listening, lists, public):
    draws = [released(listening, lists, 4.0, seed) for seed in range(2)]
    (near, _) = attack_by_hop(draws, lists, distances(listening.graph), public, 2, np.random.default_rng(1))
    assert near.gain.low > 0.05
    assert near.precision.mean == approx(near.precision_by_popularity.mean() + near.gain.mean)
    assert abs(near.null.mean) < 0.05
    assert near.null.mean < near.gain.low


def test_the_attacker_never_reads_the_targets_own_profile(listening, lists, public):
    apart = distances(listening.graph)
    target = int(np.flatnonzero(~public & (lists.sum(axis=1) >= 10))[0])
    place = int(np.flatnonzero(np.flatnonzero(~public & (lists.sum(axis=1) >= 10)) == target)[0])
    honest = released(listening, lists, 100.0)
    loud = honest.profiles.copy()
    loud[target] = 50 * lists[target]  # shouted: whoever read it would guess all ten
    other = type(honest)(loud, honest.variances, honest.account)
    found = [
        attack_by_hop([each], lists, apart, public, 1, np.random.default_rng(1))[0].gains[place]
        for each in (honest, other)
    ]
    base = [
        attack_by_hop([each], lists, apart, public, 1, np.random.default_rng(1))[0].precision_by_popularity[place]
        for each in (honest, other)
    ]
    assert base[0] == base[1]
    assert found[0] == found[1]


def test_a_side_leaks_through_friends_and_not_through_strangers(listening, lists, public):
    draws = [released(listening, lists, 4.0, seed) for seed in range(4)]
    attacker = field_attacker(listening.graph, taste_axis(lists, public)[1], public, np.random.default_rng(2))
    found = side_leak(attacker, draws, lists)
    assert len(found.nats) == len(found.predicted) == (~public).sum()
    assert found.leak.low > 0.02
    assert found.null.mean < found.leak.low
    assert found.predicted.mean() > 0
    assert found.accuracy > 0.6
    with pytest.raises(BadInput, match="at least 2"):
        side_leak(attacker, draws[:1], lists)


def test_hops_beyond_the_network_are_refused():
    connected = sp.csr_array(np.ones((3, 3)) - np.eye(3))
    rows, columns = connected.nonzero()
    with pytest.raises(BadInput, match="nothing to compare with"):
        similarity_by_hop(np.eye(3), distances(graph_from_edges(rows, columns)), 1)


def test_a_curve_by_degree_stands_over_its_own_groups_also_where_some_have_too_few_users():
    firsts = (1, 2, 5, 10)
    all_four = by_degree(np.arange(8.0), np.array([1, 1, 2, 3, 5, 6, 10, 30]), firsts)
    middle_dropped = by_degree(np.arange(6.0), np.array([1, 1, 3, 5, 6, 9]), firsts)
    first_dropped = by_degree(np.arange(7.0), np.array([1, 2, 3, 5, 6, 10, 40]), firsts)
    leak = SimpleNamespace(
        degree_of_leak=middle_dropped,
        degree_of_gain=first_dropped,
        degree_of_r_leak=all_four,
        degree_of_r_model=(),
    )
    series, places = _degree_series(leak)
    assert [name for _, name in places] == ["1", "2–4", "5–9", "10–40"]
    assert [each.x.tolist() for each in series] == [[0, 2], [1, 2, 3], [0, 1, 2, 3]]
    assert all(len(each.x) == len(each.y) for each in series)
