"""The operator on a torch device gives the numbers of the plain one; a GPU that is not there is refused."""

import numpy as np
import pytest
import torch
from pytest import approx

from mppfl.device import find_device, propagation_on_device
from mppfl.errors import BadInput
from mppfl.network import graph_from_matrix, propagate, random_graph
from tests.homes import home

device = home(find_device)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("max_hops", [1, 2, 5])
@pytest.mark.parametrize("edges_per_block", [1, 50, 2**30])
def test_the_operator_on_a_device_is_the_plain_one(monkeypatch, name, max_hops, edges_per_block):
    monkeypatch.setattr(device, "EDGES_PER_BLOCK", edges_per_block)  # a large matrix is cut into blocks of rows
    graph = random_graph("skewed", 80, rng=np.random.default_rng(2), normalisation="none")
    weights = graph.edges().toarray()
    weights[:9] = 0.0  # isolated clients
    plain = propagate(graph_from_matrix(weights, isolated="keep"), max_hops, 0.7)
    where = find_device(name)
    ours = propagation_on_device(plain, where)
    x = np.random.default_rng(0).uniform(0, 1, (80, 6))
    for columns in (x[:, 0].copy(), x[:, :2].copy(), x):
        tensor = torch.from_numpy(columns).to(where)
        for found, expected in (
            (ours @ tensor, plain @ columns),
            (ours.T @ tensor, plain.T @ columns),
            (ours.influence.times(tensor, 0.3, tensor), columns + 0.3 * (plain.influence @ columns)),
        ):  # some hundred roundings at the scale of the values, which may be added in any order
            assert found.cpu().numpy() == approx(expected, abs=2e-14 * np.abs(expected).max())
    wide = plain.influence.copy()
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    object.__setattr__(plain, "influence", wide)
    for block in propagation_on_device(plain, where).influence.blocks:  # cuSPARSE mixes up indices of two widths
        assert block.crow_indices().dtype == block.col_indices().dtype == torch.int32
    assert ours.T.T is ours
    assert (ours.num_clients, ours.geometric_sum) == (80, plain.geometric_sum)


def test_a_gpu_that_is_not_there_is_refused_also_where_nothing_is_computed_on_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadInput, match="there are 1 GPUs"):
        propagate(graph_from_matrix(np.array([[0, 1], [1, 0]])), device="cuda:1")
