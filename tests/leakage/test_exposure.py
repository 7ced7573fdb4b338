"""Exposure in three columns: index, bound, level. Golden cases by hand, then what must hold for every network."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from pytest import approx

from mppfl.errors import BadInput
from mppfl.leakage import (
    DENSE_LIMIT,
    field_kernel,
    graph_modes,
    leave_one_out,
    r_bound,
    r_leak,
    r_model,
)
from mppfl.network import SocialGraph, graph_from_edges, propagate


def undirected(*edges: tuple[int, int], num_clients: int | None = None) -> SocialGraph:
    ends = np.array(edges)
    return graph_from_edges(ends[:, 0], ends[:, 1], num_clients=num_clients, undirected=True, isolated="keep")


def path_of_three() -> SocialGraph:
    return undirected((0, 1), (1, 2))


def two_circles(rng: np.random.Generator, size: int = 120) -> tuple[SocialGraph, np.ndarray]:
    """Two groups of friends with few edges between: an attribute that follows the groups is homophilous."""
    group = np.arange(size) % 2
    chance = np.where(group[:, None] == group, 0.15, 0.01)
    ends = np.argwhere(np.triu(rng.random((size, size)) < chance, 1))
    return undirected(*map(tuple, ends), num_clients=size), 2.0 * group - 1


def test_the_index_is_the_papers_propagation_times_budgets() -> None:
    propagation = propagate(path_of_three(), max_hops=1)
    assert r_model(propagation, [1.0, 2.0, 4.0]) == approx([2.0, 2.5, 2.0])


def test_on_a_path_of_three_each_edge_passes_tanh_squared() -> None:
    near, far = math.tanh(0.5) ** 2, math.tanh(1.0) ** 2
    couplings = np.array([[0, 0.5, 0], [0.5, 0, -1.0], [0, -1.0, 0]])
    found = r_bound(path_of_three(), couplings, [0.1, 0.2, 0.4])
    by_hand = [near * 0.2 + near * far * 0.4, near * 0.1 + far * 0.4, far * 0.2 + near * far * 0.1]
    assert found.nats == approx(np.array(by_hand) / 4)
    assert found.theorem == "tree"
    assert "forest" in found.premises


def test_on_a_star_leaves_are_two_edges_apart() -> None:
    star = undirected((0, 1), (0, 2), (0, 3))
    share = math.tanh(0.8) ** 2
    found = r_bound(star, 0.8, 0.1)
    assert found.nats == approx(np.array([3 * share, *[share + 2 * share**2] * 3]) * 0.1 / 4)


def test_the_forest_sums_agree_with_every_path_multiplied_out() -> None:
    rng = np.random.default_rng(5)
    parents = np.array([int(rng.integers(child)) for child in range(1, 30)])
    tree = graph_from_edges(parents, np.arange(1, 30), undirected=True)
    strengths = rng.uniform(-1.5, 1.5, 29)
    half = sp.coo_array((strengths, (parents, np.arange(1, 30))), shape=(30, 30))
    shares = np.zeros((30, 30))
    shares[parents, np.arange(1, 30)] = shares[np.arange(1, 30), parents] = np.tanh(strengths) ** 2
    paths = np.eye(30)
    for child in range(1, 30):  # the path to an older client runs through the parent
        paths[child, :child] = paths[:child, child] = (
            shares[child, parents[child - 1]] * paths[parents[child - 1], :child]
        )
    budgets = rng.uniform(0, 0.05, 30)
    by_paths = (paths - np.eye(30)) @ budgets / 4
    assert r_bound(tree, (half + half.T).toarray(), budgets).nats == approx(by_paths, rel=1e-12)


def test_with_cycles_walks_are_summed_while_couplings_are_weak_and_nothing_is_said_when_strong() -> None:
    triangle = undirected((0, 1), (1, 2), (0, 2))
    c = math.tanh(0.2)
    # (I - C)⁻¹ of a triangle off the diagonal: c / ((1 + c)(1 - 2c)).
    weak = r_bound(triangle, -0.2, 0.1)
    assert weak.theorem == "walk sum"
    assert weak.nats == approx(np.full(3, 2 * c / ((1 + c) * (1 - 2 * c)) * 0.1 / 4))
    assert weak.spectral_radius == approx(2 * c)
    strong = r_bound(triangle, 1.0, 0.1)
    assert np.isnan(strong.nats).all()
    assert strong.theorem == "none"
    assert "spectral radius 1.52" in strong.reason


def test_no_bound_exceeds_the_entropy_of_the_attribute() -> None:
    assert r_bound(path_of_three(), 2.0, 1e6).nats == approx(np.full(3, math.log(2)))
    rare = -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    assert r_bound(path_of_three(), 2.0, 1e6, rate=0.1).nats == approx(np.full(3, rare))


def test_leaving_one_out_equals_deleting_it() -> None:
    rng = np.random.default_rng(1)
    graph, _ = two_circles(rng, 40)
    kernel = field_kernel(graph_modes(graph), 4.0, 0.2)
    assert np.diagonal(kernel) == approx(np.ones(40))
    noise = rng.uniform(0.5, 5.0, 40)
    noise[[3, 7]] = np.inf  # silent
    left, weights = leave_one_out(kernel, noise)
    assert (np.diagonal(weights) == 0).all()
    for client in (0, 3, 11):
        others = [j for j in range(40) if j != client and np.isfinite(noise[j])]
        cross = kernel[client, others]
        solved = np.linalg.solve(kernel[np.ix_(others, others)] + np.diag(noise[others]), cross)
        assert left[client] == approx(1 - cross @ solved, rel=1e-10)
        assert weights[client, others] == approx(solved, rel=1e-9, abs=1e-12)
    huge = leave_one_out(kernel, np.full(40, 1e14))[0]
    by_first_order = ((kernel**2).sum(axis=1) - 1) / 1e14  # G⁻¹ ≈ 1/τ
    assert 1 - huge == approx(by_first_order, rel=0.2)


def test_the_level_grows_with_budgets_stays_below_the_entropy_and_spares_the_isolated() -> None:
    rng = np.random.default_rng(2)
    circles, attribute = two_circles(rng)
    edges = circles.influence.tocoo()
    graph = graph_from_edges(edges.row, edges.col, num_clients=121, isolated="keep")
    known = np.append(np.where(rng.random(120) < 0.4, attribute, np.nan), np.nan)
    before = np.zeros(121)
    for budget in (1e-4, 1e-2, 1.0, 100.0):
        found = r_leak(graph, budget, known)
        assert found.nats[-1] == approx(0.0, abs=1e-12)
        assert (found.r_gp >= before - 1e-12).all()
        assert (found.nats <= found.entropy).all()
        before = found.r_gp
    assert found.nats[:-1].mean() > 0.5 * found.entropy
    assert found.fit.friend_slope == approx(0.88, abs=0.1)  # .15 against .01: (.15 - .01) / .16
    assert r_leak(graph, 0.0, known).nats == approx(np.zeros(121))


def test_one_hop_saturation_by_hand() -> None:
    graph, attribute = two_circles(np.random.default_rng(3))
    found = r_leak(graph, 0.5, attribute)
    friends = (graph.influence != 0).sum(axis=1)
    reach = friends * 0.5 / 2.5
    b, v = found.fit.friend_slope, found.fit.friend_covariance
    assert found.r_sat == approx(0.5 * np.log(1 + b**2 * reach / (1 + v * reach)))


def test_an_attribute_that_ignores_the_graph_leaks_next_to_nothing() -> None:
    rng = np.random.default_rng(4)
    graph, _ = two_circles(rng)
    found = r_leak(graph, 0.03, np.where(rng.random(120) < 0.7, rng.choice([0, 1], size=120), np.nan))
    assert found.nats.mean() < 0.02


def test_a_public_sample_may_be_given_by_name() -> None:
    graph, attribute = two_circles(np.random.default_rng(3))
    named = {str(i): int(attribute[i] > 0) for i in range(50)}
    listed = r_leak(graph, 0.1, np.where(np.arange(120) < 50, attribute, np.nan))
    assert r_leak(graph, 0.1, named).nats == approx(listed.nats)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: r_bound(path_of_three(), 0.5, [1.0, -1.0, 1.0]), "not negative"),
        (lambda: r_bound(path_of_three(), 0.5, [1.0, math.inf, 1.0]), "finite"),
        (lambda: r_bound(path_of_three(), 0.5, [1.0, 1.0]), "2 entries for 3 clients"),
        (lambda: r_bound(path_of_three(), math.nan, 1.0), "couplings"),
        (lambda: r_bound(path_of_three(), np.eye(2), 1.0), "shape"),
        (lambda: r_bound(path_of_three(), np.triu(np.ones((3, 3)), 1), 1.0), "symmetric"),
        (lambda: r_bound(path_of_three(), np.ones((3, 3)) - np.eye(3), 1.0), "without an edge"),
        (lambda: r_bound(path_of_three(), 0.5, 1.0, rate=1.0), "between 0 and 1"),
        (lambda: r_leak(path_of_three(), 1.0, [1, 0, 1]), "at least 10"),
        (lambda: r_leak(path_of_three(), 1.0, [1, 2, 3]), "±1 or 0/1"),
        (lambda: r_leak(path_of_three(), 1.0, {"9": 1}), "not in the network"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, says) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_a_network_too_large_for_the_dense_field_is_refused() -> None:
    ring = np.arange(DENSE_LIMIT + 1)
    graph = graph_from_edges(ring, np.roll(ring, 1), undirected=True)
    with pytest.raises(BadInput, match="at most 3,000 clients"):
        r_leak(graph, 1.0, np.ones(len(ring)))
    with pytest.raises(BadInput, match="at most 3,000 clients"):
        r_bound(graph, 0.1, 1.0)
