"""Propagation and closed walks against dense powers; strongest walks against every walk of a small network."""

import re
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import approx

from mppfl.errors import BadInput
from mppfl.network import (
    count_closed_walks,
    exposure_sources,
    graph_from_edges,
    graph_from_matrix,
    propagate,
    strongest_walks,
)
from tests.homes import home

walks = home(count_closed_walks)


def random_network(seed, size=60, density=0.08, normalisation="row"):
    rng = np.random.default_rng(seed)
    weights = np.where(rng.random((size, size)) < density, rng.uniform(0.1, 1, (size, size)), 0.0)
    np.fill_diagonal(weights, 0.0)
    weights[0, 1] = 1.0
    return graph_from_matrix(weights, isolated="keep", normalisation=normalisation)


def dense_sum(graph, hops, decay):
    """The definition, with matrix powers."""
    dense = graph.influence.toarray()
    total = sum(decay ** (k - 1) * np.linalg.matrix_power(dense, k) for k in range(1, hops + 1))
    np.fill_diagonal(total, 0.0)
    return total


KINDS = st.sampled_from(["row", "none", "symmetric"])


@pytest.mark.parametrize("parallel_above", [0, 1_000_000])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(0.05, 0.95), KINDS, st.floats(0.02, 0.6))
def test_the_operator_is_the_sum_of_powers_with_a_zero_diagonal(
    monkeypatch, parallel_above, seed, hops, decay, normalisation, density
):
    monkeypatch.setattr(walks, "PARALLEL_ABOVE", parallel_above)
    graph = random_network(seed, size=25, density=density, normalisation=normalisation)
    spread, truth = propagate(graph, hops, decay), dense_sum(graph, hops, decay)
    scale = max(1.0, np.abs(truth).max())
    rng = np.random.default_rng(seed)
    for x in (rng.normal(size=25), rng.normal(size=(25, 2)), rng.normal(size=(25, 3))):
        assert spread @ x == approx(truth @ x, abs=1e-11 * scale * 25)
        assert spread.T @ x == approx(truth.T @ x, abs=1e-11 * scale * 25)
    assert spread.to_dense() == approx(truth, abs=1e-12 * scale)
    assert spread.row_sums == approx(truth.sum(axis=1), abs=1e-11 * scale * 25)
    assert spread.column_sums == approx(truth.sum(axis=0), abs=1e-11 * scale * 25)
    assert spread.geometric_sum == approx((1 - decay**hops) / (1 - decay))
    assert normalisation != "row" or spread.row_sums.max() <= spread.geometric_sum + 1e-12


@pytest.mark.parametrize("hops", range(1, 9))
@pytest.mark.parametrize("density", [0.03, 0.3])
def test_walks_that_meet_in_the_middle_give_the_diagonal_of_dense_powers(monkeypatch, hops, density):
    graph = random_network(5, density=density)
    by_powers = count_closed_walks(graph.influence, hops, 0.9)
    monkeypatch.setattr(walks, "DENSE_BELOW", 0)
    met = count_closed_walks(graph.influence, hops, 0.9, "exact")
    assert met.values == approx(by_powers.values, abs=1e-13)
    assert (met.exact_hops, met.standard_error.any()) == (hops, False)


def test_a_pair_returns_home_on_every_second_step_and_a_directed_cycle_after_three_edges(monkeypatch):
    # W² = I, so the diagonal of W + λW² + λ²W³ + λ³W⁴ + λ⁴W⁵ is λ + λ³: 0.625 at λ = 1/2.
    pair, cycle = (graph_from_edges(np.arange(size), np.roll(np.arange(size), -1)) for size in (2, 3))
    for _ in range(2):
        assert propagate(pair, 5, 0.5).home.values == approx([0.625, 0.625])
        assert propagate(cycle, 5, 0.5).home.values == approx([0.25] * 3)
        assert propagate(cycle, 2, 0.5).home.values == approx([0.0] * 3)
        monkeypatch.setattr(walks, "DENSE_BELOW", 0)


@pytest.mark.parametrize(("normalisation", "diagonal"), [("row", "estimate"), ("none", "estimate"), ("row", "auto")])
def test_random_walkers_are_unbiased_and_know_their_error(monkeypatch, normalisation, diagonal):
    graph = random_network(9, size=80, density=0.06, normalisation=normalisation)
    truth = count_closed_walks(graph.influence, 5, 0.7).values
    for name in ("EXACT_BELOW", "DENSE_BELOW", "MANY", "STEPS_AN_EDGE"):  # "auto" then estimates as on large networks
        monkeypatch.setattr(walks, name, 0)
    runs = [count_closed_walks(graph.influence, 5, 0.7, diagonal, seed) for seed in range(800)]
    assert {run.exact_hops for run in runs} == {2}
    mean = np.mean([run.values for run in runs], axis=0)
    spread = np.std([run.values for run in runs], axis=0, ddof=1)
    # The sum over clients is all but normal: 5 standard errors fail by chance in fewer than 1 of a million draws.
    assert abs((mean - truth).sum()) <= 5 * np.sqrt((spread**2).sum() / 800)
    assert np.corrcoef(mean, truth)[0, 1] > 0.95
    claimed = np.sqrt(np.mean([run.standard_error**2 for run in runs], axis=0))
    assert (spread <= 1.1 * claimed).mean() > 0.95


def test_estimates_repeat_with_their_seed_and_auto_walks_as_far_as_it_can_afford(monkeypatch):
    monkeypatch.setattr(walks, "EXACT_BELOW", 0)
    graph = random_network(1, size=50)
    one, two = (propagate(graph, 5, 0.9, diagonal="estimate", seed=3).home for _ in range(2))
    assert np.array_equal(one.values, two.values)
    assert (one.exact_hops, one.standard_error.min() > 0) == (2, True)
    exact = propagate(graph, 5, 0.9, diagonal="exact").home
    assert (exact.exact_hops, exact.standard_error.any()) == (5, False)
    monkeypatch.setattr(walks, "DENSE_BELOW", 0)
    assert propagate(graph, 5, 0.9).home.exact_hops == 5
    monkeypatch.setattr(walks, "WALKS_AT_MOST", 10)
    assert propagate(graph, 5, 0.9).home.exact_hops == 2


def test_a_network_small_enough_for_a_matrix_is_never_estimated(monkeypatch):
    monkeypatch.setattr(walks, "DENSE_BELOW", 20)
    for diagonal, walks_at_most in product(("auto", "estimate", "exact"), (10, 1e8)):
        monkeypatch.setattr(walks, "WALKS_AT_MOST", walks_at_most)  # more are counted by powers of the matrix
        spread = propagate(random_network(5, size=60), 5, 0.9, diagonal=diagonal)
        assert (spread.home.exact_hops, spread.home.standard_error.any()) == (5, False)
        assert spread @ np.ones(60) == approx(spread.to_dense() @ np.ones(60), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "client", "budgets", "said"),
    [
        (exposure_sources, 0, [1.0, 1.0, 1.0], "budgets has 3 entries for 2 clients"),
        (exposure_sources, 0, [1.0, np.nan], "budgets=nan of client number 1 must be at least 0"),
        (exposure_sources, 0, [-1.0, 1.0], "budgets=-1 of client number 0 must be at least 0"),
        (exposure_sources, "Ann", [1.0, 1.0], "client='Ann' must be a position from 0 to 1"),
        (exposure_sources, 2, [1.0, 1.0], "client=2 must be a position from 0 to 1"),
        (partial(strongest_walks, sources=[2]), 0, [1.0, 1.0], "client=2 must be a position from 0 to 1"),
    ],
)
def test_impossible_hops_decays_budgets_and_clients_are_refused(call, client, budgets, said):
    graph = graph_from_matrix(np.array([[0.0, 1.0], [1.0, 0.0]]))
    for hops, decay in [(0, 0.5), (2, 0.0), (2, 1.0), (2, float("nan")), (1.5, 0.5)]:
        with pytest.raises(BadInput, match="must"):
            propagate(graph, hops, decay)
    with pytest.raises(BadInput, match=re.escape(said)):
        call(propagate(graph), client, np.array(budgets))


def walks_one_by_one(propagation, client, source):
    """{walk: amount of a unit budget} of every walk from source to client of at most max_hops edges."""
    influence, amounts = propagation.influence.toarray(), {}
    for hops in range(1, propagation.max_hops + 1):
        for between in product(range(propagation.num_clients), repeat=hops - 1):
            walk = (source, *between, client)
            strength = np.prod([influence[to, by] for by, to in pairwise(walk)])
            if strength > 0:
                amounts[walk] = propagation.hop_decay ** (hops - 1) * strength
    return amounts


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
def test_no_walk_is_stronger_than_the_one_found_and_it_is_a_part_of_what_its_source_exposes(network):
    propagation, budgets = network
    size = propagation.num_clients
    for client in range(size):
        terms = exposure_sources(propagation, client, budgets)
        totals = np.bincount(terms.sources, weights=terms.amounts, minlength=size)
        assert totals.sum() == approx((propagation @ budgets)[client], abs=1e-12)
        assert totals[client] == 0
        assert (np.diff(terms.amounts) <= 0).all()
        walks = strongest_walks(propagation, client, budgets, range(size)[::-1])
        assert [walk.clients[0] for walk in walks] == np.flatnonzero(totals)[::-1].tolist()
        strongest = {walk.clients[0]: walk for walk in walks}
        for source in set(range(size)) - {client}:
            amounts = walks_one_by_one(propagation, client, source)
            assert (source in strongest) == bool(amounts)
            if amounts:
                walk = strongest[source]
                assert walk.amount == approx(max(amounts.values()) * budgets[source])
                assert amounts[walk.clients] * budgets[source] == approx(walk.amount)
                assert walk.amount <= totals[source] * (1 + 1e-12)
                assert 1 <= walk.hops <= propagation.max_hops
