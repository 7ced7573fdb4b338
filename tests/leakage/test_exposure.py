"""Exposure in three columns: index, bound, level. Golden cases by hand, then what must hold for every network."""

import math

import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadInput
from mppfl.leakage import leak_model, r_bound
from mppfl.network import SocialGraph, graph_from_edges
from tests.leakage.networks import circles, friends

PATH = friends((0, 1), (1, 2))


def test_the_forest_sums_agree_with_every_path_multiplied_out_and_never_exceed_the_entropy() -> None:
    rng = np.random.default_rng(5)
    parents, children = np.array([int(rng.integers(child)) for child in range(1, 30)]), np.arange(1, 30)
    tree = graph_from_edges(parents, children, undirected=True)
    couplings = np.zeros((30, 30))
    couplings[parents, children] = couplings[children, parents] = rng.uniform(-1.5, 1.5, 29)
    paths = np.eye(30)
    for child, parent in zip(children, parents, strict=True):  # the path to an older client runs through the parent
        share = np.tanh(couplings[child, parent]) ** 2
        paths[child, :child] = paths[:child, child] = share * paths[parent, :child]
    budgets = rng.uniform(0, 0.05, 30)
    by_paths = (paths - np.eye(30)) @ budgets / 4
    bound = r_bound(tree, couplings, budgets)
    assert bound.nats == approx(by_paths, rel=1e-12)
    assert (bound.theorem, "forest" in bound.premises) == ("tree", True)
    assert r_bound(PATH, 2.0, 1e6).nats == approx(np.full(3, math.log(2)))  # the entropy of the attribute
    rare = -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    assert r_bound(PATH, 2.0, 1e6, rate=0.1).nats == approx(np.full(3, rare))


def test_with_cycles_walks_are_summed_while_couplings_are_weak_and_nothing_is_said_when_strong() -> None:
    triangle = friends((0, 1), (1, 2), (0, 2))
    c = math.tanh(0.2)
    # (I - C)⁻¹ of a triangle off the diagonal: c / ((1 + c)(1 - 2c)).
    weak = r_bound(triangle, -0.2, 0.1)
    assert weak.theorem == "walk sum"
    assert weak.nats == approx(np.full(3, 2 * c / ((1 + c) * (1 - 2 * c)) * 0.1 / 4))
    strong = r_bound(triangle, 1.0, 0.1)
    assert np.isnan(strong.nats).all()
    assert strong.theorem == "none"
    assert "spectral radius 1.52" in strong.reason


def test_the_level_grows_with_budgets_stays_below_the_entropy_and_spares_the_isolated() -> None:
    rng = np.random.default_rng(2)
    group = np.arange(120) % 2
    graph = circles(rng, group, 0.15, 0.01, num_clients=121)
    known = np.append(np.where(rng.random(120) < 0.4, 2.0 * group - 1, np.nan), np.nan)
    before, model = np.zeros(121), leak_model(graph, known)
    for budget in (1e-4, 1e-2, 1.0, 100.0):
        level = model.levels(budget)
        assert level.nats[-1] == approx(0.0, abs=1e-12)
        assert (level.r_gp >= before - 1e-12).all()
        assert (level.nats <= model.fit.entropy).all()
        before = level.r_gp
    assert level.nats[:-1].mean() > 0.5 * model.fit.entropy
    assert model.fit.friend_slope == approx(0.88, abs=0.1)  # .15 against .01: (.15 - .01) / .16
    assert model.levels(0.0).nats == approx(np.zeros(121))


def test_one_hop_saturation_by_hand_and_a_public_sample_may_be_given_by_name_or_ignore_the_graph() -> None:
    group = np.arange(120) % 2
    graph, attribute = circles(np.random.default_rng(3), group, 0.15, 0.01), 2.0 * group - 1
    model = leak_model(graph, attribute)
    level = model.levels(0.5)
    reach = (graph.influence != 0).sum(axis=1) * 0.5 / 2.5
    b, v = model.fit.friend_slope, model.fit.friend_covariance
    assert level.r_sat == approx(0.5 * np.log(1 + b**2 * reach / (1 + v * reach)))
    named = {str(i): int(attribute[i] > 0) for i in range(50)}
    listed = leak_model(graph, np.where(np.arange(120) < 50, attribute, np.nan)).levels(0.1)
    assert leak_model(graph, named).levels(0.1).nats == approx(listed.nats)
    rng = np.random.default_rng(4)
    attribute = np.where(rng.random(120) < 0.7, rng.choice([0, 1], size=120), np.nan)
    assert leak_model(graph, attribute).levels(0.03).nats.mean() < 0.02  # next to nothing


def too_large() -> SocialGraph:
    ring = np.arange(3_001)
    return graph_from_edges(ring, np.roll(ring, 1), undirected=True)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: r_bound(PATH, 0.5, [1.0, -1.0, 1.0]), "not negative"),
        (lambda: r_bound(PATH, 0.5, [1.0, math.inf, 1.0]), "finite"),
        (lambda: r_bound(PATH, 0.5, [1.0, 1.0]), "2 entries for 3 clients"),
        (lambda: r_bound(PATH, math.nan, 1.0), "couplings"),
        (lambda: r_bound(PATH, np.eye(2), 1.0), "shape"),
        (lambda: r_bound(PATH, np.triu(np.ones((3, 3)), 1), 1.0), "symmetric"),
        (lambda: r_bound(PATH, np.ones((3, 3)) - np.eye(3), 1.0), "without an edge"),
        (lambda: r_bound(PATH, 0.5, 1.0, rate=1.0), "between 0 and 1"),
        (lambda: leak_model(PATH, [1, 0, 1]), "at least 10"),
        (lambda: leak_model(PATH, [1, 2, 3]), "±1 or 0/1"),
        (lambda: leak_model(PATH, {"9": 1}), "not in the network"),
        (lambda: r_bound(too_large(), 0.1, 1.0), "at most 3,000 clients"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, says) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        call()
    assert "\n" not in str(refused.value)
