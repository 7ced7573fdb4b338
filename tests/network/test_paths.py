"""Strongest walks: held to every walk of a small network, listed one by one."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.network import attribute, graph_from_links, graph_from_matrix, propagate, random_graph, strongest_walks

approx = pytest.approx


def walks_one_by_one(influence, max_hops, hop_decay, client, source):
    """(amount of a unit budget, walk) of every walk from source to client of at most max_hops links."""
    size = len(influence)
    for hops in range(1, max_hops + 1):
        for between in product(range(size), repeat=hops - 1):
            walk = (source, *between, client)
            strength = np.prod([influence[to, by] for by, to in pairwise(walk)])
            if strength > 0:
                yield hop_decay ** (hops - 1) * strength, walk


@st.composite
def networks(draw):
    """Small networks of any shape, their weights normalised or as drawn, so that longer walks may be the stronger."""
    size = draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = np.where(rng.random((size, size)) < draw(st.floats(0.2, 1.0)), rng.uniform(0.1, 3.0, (size, size)), 0.0)
    np.fill_diagonal(weights, 0.0)
    weights[0, 1] = 1.0
    kind = draw(st.sampled_from(["row", "none"]))
    graph = graph_from_matrix(weights, normalisation=kind, isolated="keep")
    return propagate(graph, draw(st.integers(1, 4)), draw(st.floats(0.1, 0.95))), rng.uniform(0.1, 2.0, size)


@settings(max_examples=60, deadline=None)
@given(networks())
def test_no_walk_is_stronger_than_the_one_found(network):
    propagation, budgets = network
    size, influence = propagation.num_clients, propagation.influence.toarray()
    for client in range(size):
        found = {walk.clients[0]: walk for walk in strongest_walks(propagation, client, budgets, range(size))}
        for source in range(size):
            every = list(
                walks_one_by_one(influence, propagation.max_hops, propagation.hop_decay, client, source)
                if source != client
                else ()
            )
            assert (source in found) == bool(every)
            if every:
                best = max(amount for amount, _ in every) * budgets[source]
                assert found[source].amount == approx(best)
                own = next(amount for amount, walk in every if walk == found[source].clients)
                assert own * budgets[source] == approx(best)
                assert 1 <= found[source].hops <= propagation.max_hops


def test_a_walk_is_a_part_of_what_its_source_exposes():
    graph = random_graph("skewed", 300, rng=np.random.default_rng(4))
    propagation, budgets = propagate(graph), np.random.default_rng(5).uniform(0.1, 1.0, 300)
    terms = attribute(propagation, 7, budgets)
    totals = np.bincount(terms.sources, weights=terms.amounts, minlength=300)
    walks = strongest_walks(propagation, 7, budgets, np.flatnonzero(totals).tolist())
    assert [walk.clients[0] for walk in walks] == np.flatnonzero(totals).tolist()
    assert all(walk.amount <= totals[walk.clients[0]] * (1 + 1e-12) for walk in walks)
    assert all(walk.clients[-1] == 7 for walk in walks)


def test_of_equally_strong_walks_the_first_by_position_is_taken():
    # 3 exposes 1 and 2, both of whom expose 0: two walks of one strength.
    graph = graph_from_links(np.array([1, 2, 3, 3]), np.array([0, 0, 1, 2]), isolated="keep")
    (walk,) = strongest_walks(propagate(graph, 2, 0.5), 0, np.ones(4), [3])
    assert walk.clients == (3, 1, 0)
    assert walk.amount == 0.25  # λ · 1/2 · 1


def test_who_does_not_reach_the_client_in_time_has_no_walk():
    graph = graph_from_links(np.array([1, 2]), np.array([0, 1]), isolated="keep")
    assert strongest_walks(propagate(graph, 1, 0.5), 0, np.ones(3), [2]) == ()
    assert strongest_walks(propagate(graph, 2, 0.5), 0, np.ones(3), [2, 0])[0].clients == (2, 1, 0)
    assert strongest_walks(propagate(graph, 2, 0.5), 2, np.ones(3), [0, 1]) == ()


def test_a_position_that_nobody_has_is_refused():
    graph = graph_from_links(np.array([1, 0]), np.array([0, 1]))
    with pytest.raises(BadInput, match="client=2 must be a position from 0 to 1"):
        strongest_walks(propagate(graph), 0, np.ones(2), [2])
