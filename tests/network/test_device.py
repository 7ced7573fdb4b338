"""Networks on a device of PyTorch's: products, closed walks, exact and estimated, as without it."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from pytest import approx

import mppfl
from mppfl.errors import BadInput
from mppfl.network import (
    DeviceMatrix,
    Propagation,
    ReturnsHome,
    home_by_device,
    matrix_on_device,
    propagation_on_device,
    returns_home,
    skewed,
)
from tests.homes import home

device_matrix = home(DeviceMatrix)
device_walks = home(home_by_device)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
on_every_device = pytest.mark.parametrize("where", DEVICES)


def sparse_links(seed, size, links_each, isolated=0):
    """Random links with weights, mutual ones among them; the first few clients are exposed by nobody."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(isolated, size, size * links_each)
    sources = rng.integers(0, size, size * links_each)
    targets = np.concatenate([np.arange(isolated, size), targets, np.maximum(sources[: size // 4], isolated)])
    sources = np.concatenate([(np.arange(isolated, size) + 1) % size, sources, targets[size : size + size // 4]])
    apart = targets != sources
    links = sp.coo_array((np.ones(apart.sum()), (targets[apart], sources[apart])), shape=(size, size)).tocsr()
    links.data = rng.uniform(0.1, 1.0, links.nnz)
    return links


@pytest.mark.parametrize("links_per_block", [1, 50, 100_000])
def test_a_matrix_cut_into_blocks_multiplies_as_a_whole(monkeypatch, links_per_block):
    monkeypatch.setattr(device_matrix, "LINKS_PER_BLOCK", links_per_block)
    links = sparse_links(2, 80, 4, isolated=9)
    ours = matrix_on_device(links, torch.device("cpu"))
    x, plus = np.random.default_rng(0).uniform(0, 1, (2, 80, 2))
    there = torch.from_numpy(x)
    assert ours.times(there).numpy() == approx(links @ x)
    assert ours.times(there, 0.3, torch.from_numpy(plus)).numpy() == approx(plus + 0.3 * (links @ x))
    one = ours.times(there[:, 0].contiguous(), 0.3)
    assert one.numpy() == approx(0.3 * (links @ x[:, 0]))
    assert ours.T.times(there).numpy() == approx(links.T @ x)
    assert ours.T.T is ours


def test_entries_are_found_where_links_are_and_nowhere_else():
    links = sparse_links(3, 40, 3, isolated=5)
    ours = matrix_on_device(links, torch.device("cpu"))
    rows, columns = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
    found = ours.entries(rows.ravel(), columns.ravel()).numpy().reshape(40, 40)
    assert (found == links.toarray()).all()


@on_every_device
@pytest.mark.parametrize("max_hops", [1, 2, 3, 5])
@pytest.mark.parametrize("diagonal", ["auto", "exact"])
def test_exact_walks_home_are_those_of_the_matrix_powers(where, max_hops, diagonal):
    links = sparse_links(5, 120, 4, isolated=6) / 4
    plain = returns_home(links, max_hops, 0.7)  # dense powers at this size
    found = home_by_device(links, max_hops, 0.7, diagonal, 0, where)
    assert found.values == approx(plain.values, abs=1e-13)
    assert (found.exact_hops, found.standard_error.any()) == (max_hops, False)


@on_every_device
def test_estimated_walks_home_are_those_of_the_same_walkers(monkeypatch, where):
    monkeypatch.setattr(device_walks, "WALKERS_AT_ONCE", 1000)
    monkeypatch.setattr(device_walks, "LINKS_AT_ONCE", 3000)
    links = mppfl.graph_from_matrix(sparse_links(7, 2500, 6, isolated=20), isolated="keep").influence
    for seed in (0, 3):
        plain = returns_home(links, 5, 0.8, "estimate", seed)
        found = home_by_device(links, 5, 0.8, "estimate", seed, where)
        assert found.exact_hops == plain.exact_hops == 2
        assert found.values == approx(plain.values, abs=1e-14)
        assert found.standard_error == approx(plain.standard_error, abs=1e-14)


def test_the_estimate_is_as_good_as_it_says():
    graph = skewed(3000, 24_000, rng=np.random.default_rng(0))
    exact = home_by_device(graph.influence, 5, 0.8, "exact", 0, "cpu")
    estimate = home_by_device(graph.influence, 5, 0.8, "estimate", 1, "cpu")
    off = (estimate.values - exact.values) / estimate.standard_error
    # Were errors normal, 4.6 % would lie beyond two standard errors; the floor of the error makes them fewer.
    assert (np.abs(off) > 2).mean() < 0.05
    assert np.sqrt((off**2).mean()) < 1.5


def test_large_networks_are_estimated_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(device_walks, "EXACT_AT_MOST", 1e3)
    links = sparse_links(5, 120, 4) / 4
    assert home_by_device(links, 4, 0.5, "auto", 0, "cpu").exact_hops == 2
    assert home_by_device(links, 4, 0.5, "exact", 0, "cpu").exact_hops == 4
    with pytest.raises(BadInput, match="must be"):
        home_by_device(links, 4, 0.5, "guess", 0, "cpu")


def test_an_operator_without_a_diagonal_is_fine():
    links = sparse_links(2, 80, 4)
    nothing = ReturnsHome(np.zeros(80), np.zeros(80), 1)
    plain = Propagation(links, 1, 0.5, nothing, "none")
    x = np.linspace(0, 1, 80)
    ours = propagation_on_device(plain, torch.device("cpu"))
    assert (ours @ torch.from_numpy(x)).numpy() == approx(links @ x)
