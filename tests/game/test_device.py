"""The solver on a device of PyTorch's gives the numbers of the plain one, and says in one line what it does not do."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from pytest import approx

import mppfl
from mppfl.device import find_device, propagation_on_device
from mppfl.errors import BadInput, NotConverged
from mppfl.game import DeviceLoss, LossOperator, solution_bytes
from tests.game.games import paper_scale_game, star, three_cycle, two_friends
from tests.homes import home

device = home(find_device)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
on_every_device = pytest.mark.parametrize("where", DEVICES)


def sparse_edges(seed, size, edges_each, isolated=0):
    """Random edges with weights, mutual ones among them; the first few clients are exposed by nobody."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(isolated, size, size * edges_each)
    sources = rng.integers(0, size, size * edges_each)
    targets = np.concatenate([np.arange(isolated, size), targets, np.maximum(sources[: size // 4], isolated)])
    sources = np.concatenate([(np.arange(isolated, size) + 1) % size, sources, targets[size : size + size // 4]])
    apart = targets != sources
    edges = sp.coo_array((np.ones(apart.sum()), (targets[apart], sources[apart])), shape=(size, size)).tocsr()
    edges.data = rng.uniform(0.1, 1.0, edges.nnz)
    return edges


def sparse_game(seed, size, edges_each, *, normalisation="row", isolated=0, strength=0.05, **options):
    """A game on such edges with αS the same under every normalisation."""
    edges = sparse_edges(seed, size, edges_each, isolated)
    graph = mppfl.graph_from_matrix(edges, normalisation=normalisation, isolated="keep")
    clients = mppfl.draw_clients("benign", size, np.random.default_rng(seed))
    if normalisation == "none":
        strength /= float(graph.strengths.max()) ** options.get("max_hops", 5)
    return mppfl.make_game(graph, clients, hop_decay=0.5, externality_strength=strength, **options)


def assert_same_solution(game, where, mechanism="mppfl", **options):
    plain = mppfl.solve(game, mechanism, **options)
    found = mppfl.solve(game, mechanism, device=where, **options)
    assert found.plan.reward_rates == approx(plain.plan.reward_rates, rel=1e-10)
    for mine, other in ((found.plan[position], plain.plan[position]) for position in (0, -1)):
        assert mine.budgets == approx(other.budgets, abs=1e-10 * np.abs(other.budgets).max())
    for name in ("accuracy_terms", "payments", "server_costs", "total_welfare"):
        assert getattr(found.outcome, name) == approx(getattr(plain.outcome, name), rel=1e-10), name
    assert found.outcome.welfare == approx(plain.outcome.welfare, abs=1e-10 * plain.outcome.payments.max())
    for name in ("rounds", "negative_utility", "participating"):
        assert (getattr(found.outcome, name) == getattr(plain.outcome, name)).all(), name
    mine, other = found.verification, plain.verification
    assert max(mine.residual, mine.client_regret) <= 1e-10
    assert mine.leader_regret == approx(other.leader_regret, abs=1e-10 * max(1.0, plain.outcome.server_costs.max()))
    assert mine.leader_rounds == other.leader_rounds
    assert (found.is_unique, found.warnings) == (plain.is_unique, plain.warnings)
    assert found.diagonal_error == approx(plain.diagonal_error)
    return found


# ---- the same results -------------------------------------------------------------------------------------------


def costly():
    """Compute costs, floors, and another accuracy weight."""
    game = sparse_game(6, 1100, 5)
    clients = replace(game.clients, compute_cost=np.linspace(0, 2, 1100), budget_min=np.full(1100, 0.01))
    return replace(game, clients=clients, accuracy_weight=0.3)


def bounded():
    """A quarter has a floor, a third a ceiling."""
    game = paper_scale_game(4, num_clients=24, preset="paper-like")
    low, high = np.where(np.arange(24) % 4 == 0, 0.05, 0.0), np.where(np.arange(24) % 3 == 0, 0.3, np.inf)
    return game.with_bounds(low, high)


SPARSE = [
    *product((90, 1500), (5,), ("row", "symmetric", "none"), (0, 7)),
    *product((1200,), (1, 2, 3, 6), ("row",), (0,)),
]


@on_every_device
@pytest.mark.parametrize("seed", range(8))
def test_a_game_of_the_papers_scale_is_solved_as_without_a_device(where, seed):
    assert_same_solution(paper_scale_game(seed), where, num_rounds=(1, 2, 10, 60, 100)[seed % 5])


@on_every_device
@pytest.mark.parametrize(("size", "hops", "kind", "isolated"), SPARSE)
def test_a_sparse_game_is_solved_as_without_a_device(where, size, hops, kind, isolated):
    game = sparse_game(size + isolated, size, 6, normalisation=kind, isolated=isolated, max_hops=hops)
    assert_same_solution(game, where, num_rounds=3)


@on_every_device
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (three_cycle, {}),
        (star, {"num_rounds": 8}),  # where leaves share less the more is paid
        (two_friends, {"num_rounds": 3, "reward_rates": np.array([1.0, 1.5, 2.0])}),
        (costly, {"num_rounds": 3}),
        (bounded, {"num_rounds": 3}),
        (bounded, {"num_rounds": 3, "mechanism": "mppfl_exact"}),
    ],
)
def test_an_awkward_game_is_solved_as_without_a_device(where, make, options):
    assert_same_solution(make(), where, **options)


@on_every_device
def test_twenty_thousand_clients_and_a_hundred_rounds_are_solved_as_without_a_device(where):
    game = sparse_game(1, 20_000, 12, isolated=40, strength=0.02, diagonal="estimate")
    found = assert_same_solution(game, where, num_rounds=100)
    assert found.verification.residual <= 1e-13


@on_every_device
def test_clients_who_have_no_choice_stay_where_they_are_and_the_others_answer_them(where):
    game = sparse_game(4, 1100, 5)
    low, high = np.zeros(1100), np.full(1100, np.inf)
    low[:200] = high[:200] = 0.3
    high[200:300] = 0.0
    found = assert_same_solution(game.with_bounds(low, high), where, num_rounds=5)
    assert found.terms(1).budgets[:200] == approx(0.3)
    assert found.outcome.participating[0] == 1000


# ---- the operator -----------------------------------------------------------------------------------------------


def both_operators(game, where):
    spread = propagation_on_device(game.propagation, torch.device(where))
    strength = game.externality_strength
    return LossOperator(game.propagation, strength), DeviceLoss(game.propagation, strength, spread)


@on_every_device
@pytest.mark.parametrize("size", [60, 1500])
def test_the_operator_its_transpose_and_their_inverses_agree(where, size):
    plain, ours = both_operators(sparse_game(9, size, 5, isolated=3, strength=0.3), where)
    rng = np.random.default_rng(0)
    for shape in ((size,), (size, 2)):
        x = rng.uniform(-1, 1, shape)
        for one, other in ((plain, ours), (plain.T, ours.T), (plain.T.T, ours.T.T)):
            assert other @ x == approx(one @ x, abs=1e-13)
            assert other.solve(x) == approx(one.solve(x), abs=1e-10)
            assert other @ other.solve(x) == approx(x, abs=1e-12)
        free = rng.random(size) < 0.6
        assert ours.solve(x, free) == approx(plain.solve(x, free), abs=1e-10)
        assert (ours.solve(x, free)[~free] == 0).all()


@on_every_device
def test_isolated_pairs_whose_diagonal_the_polynomial_misses_are_solved(where):
    # 600 pairs who expose only each other: what comes home is as large as what goes out, and αS is close to 1.
    size = 1200
    partner = np.arange(size) ^ 1
    graph = mppfl.graph_from_edges(np.arange(size), partner)
    clients = mppfl.draw_clients("benign", size, np.random.default_rng(0))
    game = mppfl.make_game(graph, clients, hop_decay=0.9, externality_strength=0.23, diagonal="exact")
    plain, ours = both_operators(game, where)
    right = np.random.default_rng(1).uniform(0, 1, (size, 2))
    assert ours.solve(right) == approx(plain.solve(right), abs=1e-9)
    assert ours @ ours.solve(right) == approx(right, abs=1e-12)


def test_a_system_that_has_no_answer_raises_with_the_last_iterate():
    game = two_friends(externality_strength=1.0)  # B = [[1, 1], [1, 1]]
    _, ours = both_operators(game, "cpu")
    with pytest.raises(NotConverged, match="solved only to") as raised:
        ours.solve(np.array([1.0, 0.0]))
    assert raised.value.last_iterate.shape == (2,)


def test_gmres_alone_gives_the_same_answer(monkeypatch):
    _, ours = both_operators(sparse_game(9, 1500, 5), "cpu")
    right = np.random.default_rng(0).uniform(0, 1, (1500, 2))
    usual = ours.solve(right)
    monkeypatch.setattr(DeviceLoss, "_step_in_walks", lambda self, residual, _: 0 * residual)
    assert ours.solve(right) == approx(usual, abs=1e-11)


@on_every_device
def test_a_game_can_be_made_on_the_device_too(where):
    edges = sparse_edges(5, 400, 4)
    clients = mppfl.draw_clients("benign", 400, np.random.default_rng(0))
    plain, ours = (mppfl.make_game(mppfl.graph_from_matrix(edges), clients, device=d) for d in (None, where))
    assert ours.propagation.home.values == approx(plain.propagation.home.values, abs=1e-13)
    assert mppfl.solve(ours, device=where).terms(1).budgets == approx(mppfl.solve(plain).terms(1).budgets, abs=1e-10)


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "CPU", "", 3])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(BadInput, match="is not known"):
        mppfl.solve(two_friends(), device=name)


def test_a_gpu_that_is_not_there_is_refused_and_not_replaced(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="PyTorch finds no GPU here"):
        mppfl.solve(two_friends(), device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadInput, match="there are 1 GPUs"):
        mppfl.solve(two_friends(), device="cuda:1")


def test_a_game_that_does_not_fit_is_refused_with_figures(monkeypatch):
    monkeypatch.setattr(device, "free_bytes", lambda _: 1000.0)
    with pytest.raises(BadInput, match=r"equilibria of 2 clients and 2 edges need .* GiB on cpu, where .* are free"):
        mppfl.solve(two_friends(), device="cpu")


def test_memory_grows_with_edges_and_clients_as_stated():
    assert solution_bytes(50_000_000, 1_000_000_000) / 2**30 == approx(35.4, abs=2)  # fits an 80 GB device
    assert solution_bytes(10**6, 10**9) - solution_bytes(10**6, 10**8) == 12 * 9 * 10**8
