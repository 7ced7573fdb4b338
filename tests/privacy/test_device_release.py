"""Clip and noise for a stack of updates where they lie: what release.py promises, on tensors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, privacy_mechanism, release_on_device, release_updates, round_cost
from tests.tolerances import assert_float32_close

FALSE_ALARM = 1e-7
WORK = LocalWork(num_examples=50, local_epochs=2, batch_size=10)
CLIENT = privacy_mechanism("client")


def costs_of(budgets, num_parameters, mechanism=CLIENT, noise="seeded", clip_norm=1.0):
    return [
        round_cost(mechanism, budget, clip_norm, WORK, noise, num_parameters, f"c{k}", 1, "test")
        for k, budget in enumerate(budgets)
    ]


def lengths(rows):
    return torch.linalg.vector_norm(rows.double(), dim=1)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([torch.float32, torch.float64]), st.floats(-20, 20), st.floats(1e-3, 1e3))
def test_no_released_row_is_longer_than_the_clip_norm(seed, dtype, exponent, clip_norm):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.standard_normal((6, 40)) * clip_norm * 10.0**exponent).to(dtype)
    costs = costs_of([np.inf] * 6, 40, clip_norm=clip_norm)
    released, clipped = release_on_device(rows, costs, clip_norm, range(6))
    assert (lengths(released) <= clip_norm).all()
    assert clipped.tolist() == (lengths(rows) > clip_norm).tolist()
    assert released.dtype == dtype
    assert torch.equal(released[~clipped], rows[~clipped])  # short rows are left, not stretched
    torch.testing.assert_close(
        released.double() / lengths(released)[:, None], rows.double() / lengths(rows)[:, None], rtol=0, atol=1e-5
    )


def test_rows_near_the_end_of_float32_are_shortened_as_well():
    rng = np.random.default_rng(0)
    rows = torch.from_numpy((rng.uniform(0.5, 1.0, (50, 4000)) * 3e38).astype(np.float32))
    released, _ = release_on_device(rows, costs_of([np.inf] * 50, 4000), 1.0, range(50))
    assert (lengths(released) <= 1.0).all()


@pytest.mark.parametrize("name", ["paper", "client"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_row_gets_the_noise_its_cost_states(name, dtype):
    size = 60_000
    costs = costs_of([0.02, 0.5, 8.0, np.inf], size, privacy_mechanism(name))
    rows = torch.full((4, size), 0.5 / np.sqrt(size), dtype=dtype)
    released, _ = release_on_device(rows, costs, 1.0, [3, 4, 5, 6])
    noise = (released.double() - rows.double()).numpy()
    low, high = chi2.ppf([FALSE_ALARM / 6, 1 - FALSE_ALARM / 6], size)
    for row, cost in zip(noise[:3], costs[:3], strict=True):
        assert low <= (row / cost.noise_std) @ (row / cost.noise_std) <= high
        assert abs(row.mean()) <= norm.ppf(1 - FALSE_ALARM / 6) * cost.noise_std / np.sqrt(size)
    assert torch.equal(released[3], rows[3])  # an infinite budget buys no noise
    correlations = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in ((noise[0], noise[1]), (noise[1], noise[2]))
    ]
    assert np.abs(correlations).max() <= norm.ppf(1 - FALSE_ALARM / 4) / np.sqrt(size)


def test_without_noise_it_releases_what_release_does_at_the_same_cost():
    rows = np.random.default_rng(1).standard_normal((3, 30)).astype(np.float32)
    rows[1] *= 1e-3
    costs = costs_of([np.inf] * 3, 30)
    plain = release_updates(
        rows, [np.inf] * 3, mechanism=CLIENT, clip_norm=1.0, work=WORK, noise="seeded",
        rng=np.random.default_rng(0), clients=["c0", "c1", "c2"], round_index=1, run="test",
    )  # fmt: skip
    released, clipped = release_on_device(torch.from_numpy(rows), costs, 1.0, [0, 1, 2])
    for row, wanted in zip(released.numpy(), plain.updates, strict=True):
        assert_float32_close(row, wanted, steps=4)
    np.testing.assert_array_equal(clipped.numpy(), plain.clipped)
    assert tuple(costs) == plain.costs


@settings(deadline=None)
@given(st.floats(1e-3, 1e3), st.sampled_from(["paper", "client"]))
def test_the_noise_of_the_cost_is_the_noise_of_the_budget(budget, name):
    mechanism = privacy_mechanism(name)
    (cost,) = costs_of([budget], 10, mechanism)
    before = replace(cost)
    released, _ = release_on_device(torch.zeros((1, 10), dtype=torch.float64), [cost], 1.0, [7])
    unit, _ = release_on_device(torch.zeros((1, 10), dtype=torch.float64), [replace(cost, noise_std=1.0)], 1.0, [7])
    torch.testing.assert_close(released, unit * mechanism.noise_std(budget, 1.0, WORK), rtol=1e-9, atol=0)
    assert cost == before


def test_the_same_seed_gives_the_same_noise_and_another_seed_another():
    rows, costs = torch.zeros((3, 20)), costs_of([1.0] * 3, 20)
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first, _ = release_on_device(rows, costs, 1.0, [5, 5, 6])
    assert torch.equal(torch.rand(2), expected)  # the global generator is not touched
    alone, _ = release_on_device(rows[1:2], costs[1:2], 1.0, [5])
    assert torch.equal(first[0], first[1])
    assert torch.equal(first[1], alone[0])  # whoever else is in the stack
    assert not torch.equal(first[0], first[2])
    assert not rows.any()  # what came in stays as it was


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused_with_the_clients_name(wrong):
    rows = torch.zeros((3, 8))
    rows[1, 4] = wrong
    with pytest.raises(BadInput, match="The update of client 'c1' holds NaN or infinity and is not released"):
        release_on_device(rows, costs_of([1.0] * 3, 8), 1.0, [0, 1, 2])


@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
def test_noise_that_is_to_protect_is_not_drawn_on_a_device(kind):
    costs = costs_of([1.0, 1.0], 8)
    costs[1] = costs_of([1.0], 8, noise=kind)[0]
    with pytest.raises(BadInput, match=f"noise '{kind}' is not drawn on a device; use mppfl.privacy.release"):
        release_on_device(torch.zeros((2, 8)), costs, 1.0, [0, 1])


def test_every_row_needs_a_cost_and_a_seed():
    for num_costs, num_seeds in ((1, 2), (2, 1), (3, 2)):
        with pytest.raises(BadInput, match=f"2 updates came with {num_costs} costs and {num_seeds} seeds"):
            release_on_device(torch.zeros((2, 8)), costs_of([1.0] * num_costs, 8), 1.0, range(num_seeds))
