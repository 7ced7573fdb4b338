"""The field by probes agrees with the field by matrices, within the errors that it states itself."""

from __future__ import annotations

import numpy as np
import pytest
from pytest import approx
from scipy.linalg import expm

from mppfl.leakage import (
    BETAS,
    FieldFit,
    exact_surface,
    field_at_scale,
    field_kernel,
    friendships,
    graph_modes,
    leak_at_scale,
    leak_model_of,
    leave_one_out,
    leave_one_out_at_scale,
    leave_one_out_means,
    marginal_at_scale,
    slopes_at_scale,
    surface_at_scale,
    walk_of,
)
from mppfl.network import graph_from_links

FIT = FieldFit(
    beta=6.0, eta=0.3, rate=0.4, gain_per_client=0.1, friend_slope=0.3, friend_covariance=0.05, num_public=99
)


@pytest.fixture(scope="module")
def circles():
    """Four circles of friends, some links between, and two clients without any."""
    rng = np.random.default_rng(3)
    size = 240
    group = np.arange(size) % 4
    chance = np.where(group[:, None] == group, 0.12, 0.006)
    ends = np.argwhere(np.triu(rng.random((size, size)) < chance, 1))
    return graph_from_links(ends[:, 0], ends[:, 1], num_clients=size + 2, undirected=True, isolated="keep")


@pytest.fixture(scope="module")
def budgets(circles):
    drawn = 0.3 * np.random.default_rng(5).lognormal(0, 1, circles.num_clients)
    drawn[::9] = 0.0
    return drawn


@pytest.fixture(scope="module")
def field(circles):
    return field_at_scale(walk_of(circles), FIT.beta, FIT.eta, np.random.default_rng(0), probes=512)


def noise_of(budgets):
    with np.errstate(divide="ignore"):
        return 1 / (2 * budgets * FIT.rate * (1 - FIT.rate))


@pytest.mark.parametrize("beta", [0.25, 3.0, 20.0])
def test_the_chebyshev_series_is_the_exponential(circles, beta):
    linked = friendships(circles).toarray()
    roots = np.sqrt(linked.sum(axis=1))
    inverse = np.divide(1, roots, out=np.zeros_like(roots), where=roots > 0)
    trivial = roots / np.linalg.norm(roots)
    matrix = inverse[:, None] * linked * inverse - np.outer(trivial, trivial)
    columns = np.eye(len(linked), 3, dtype=np.float32)
    walk = walk_of(circles)
    expected = expm(beta * (matrix - walk.high * np.eye(len(linked)))) @ columns
    assert walk.exponential(beta, columns) == approx(expected, abs=1e-5 * np.abs(expected).max())


def test_variances_by_probes_lie_within_their_stated_errors(circles, budgets, field):
    exact, _ = leave_one_out(field_kernel(graph_modes(circles), FIT.beta, FIT.eta), noise_of(budgets))
    found = leave_one_out_at_scale(field, noise_of(budgets), np.random.default_rng(1), probes=256)
    away = (found.left - exact) / found.error
    assert np.abs(away).max() < 4.5  # 242 clients: 1 in 600 by chance, and the seed is fixed
    assert 0.4 < np.sqrt(np.mean(away**2)) < 1.3  # neither boastful nor timid
    assert np.median(found.error[:-2] / (1 - exact[:-2])) < 0.15  # the last two know nobody


@pytest.mark.parametrize(("beta", "eta", "rho"), [(2.0, 0.5, 0.03), (12.0, 0.2, 3.0), (20.0, 0.1, 10.0)])
def test_errors_are_honest_whether_little_or_nearly_everything_is_told(circles, beta, eta, rho):
    noise = 2 / rho * np.random.default_rng(1).lognormal(0, 1, circles.num_clients)
    exact, _ = leave_one_out(field_kernel(graph_modes(circles), beta, eta), noise)
    field = field_at_scale(walk_of(circles), beta, eta, np.random.default_rng(2))
    found = leave_one_out_at_scale(field, noise, np.random.default_rng(3), probes=128)
    away = (found.left - exact) / found.error
    assert np.abs(away).max() < 5
    assert 0.4 < np.sqrt(np.mean(away**2)) < 1.3


def test_more_probes_make_smaller_errors(budgets, field):
    few, many = (leave_one_out_at_scale(field, noise_of(budgets), np.random.default_rng(1), n).error for n in (32, 512))
    assert np.median(many) < 0.5 * np.median(few)


def test_means_without_the_own_value_agree_with_the_exact_weights(circles, budgets, field):
    noise = noise_of(budgets)
    _, weights = leave_one_out(field_kernel(graph_modes(circles), FIT.beta, FIT.eta), noise)
    values = np.random.default_rng(2).standard_normal((circles.num_clients, 3))
    found = leave_one_out_at_scale(field, noise, np.random.default_rng(1), probes=512)
    means = leave_one_out_means(field, noise, values, found)
    expected = weights @ values
    assert means == approx(expected, abs=0.15 * np.abs(expected).max())
    assert np.corrcoef(means.ravel(), expected.ravel())[0, 1] > 0.99


def test_levels_and_marginal_leaks_agree_with_the_exact_ones(circles, budgets, field):
    model = leak_model_of(circles, graph_modes(circles), FIT)
    levels = model.levels(budgets).nats
    marginal = model.slopes(budgets).sum(axis=0)
    rng = np.random.default_rng(4)
    leak = leak_at_scale(circles, field, FIT, budgets, rng, probes=512)
    assert np.abs(leak.nats - levels).max() < 5 * leak.error.max()
    found, error = marginal_at_scale(circles, field, FIT, budgets, leak, rng, probes=256)
    assert np.median(np.abs(found[:-2] / marginal[:-2] - 1)) < 0.1
    assert found[-2:] == approx([0.0, 0.0], abs=1e-4)  # they know nobody
    assert np.corrcoef(found, marginal)[0, 1] > 0.93
    assert (error >= 0).all()


def test_slopes_of_one_client_agree_with_the_exact_ones(circles, budgets, field):
    slopes = leak_model_of(circles, graph_modes(circles), FIT).slopes(budgets)
    leak = leak_at_scale(circles, field, FIT, budgets, np.random.default_rng(4), probes=512)
    for client in (0, 17):
        found = slopes_at_scale(circles, field, FIT, budgets, leak, client)
        assert found[client] == 0
        assert found == approx(slopes[client], abs=0.15 * slopes[client].max())


def test_the_likelihood_by_lanczos_lies_within_its_stated_errors(circles):
    rng = np.random.default_rng(7)
    public = rng.random(circles.num_clients) < 0.6
    group = np.arange(circles.num_clients) % 4
    values = np.where((group < 2) ^ (rng.random(len(group)) < 0.2), 1.0, -1.0)[public]
    values = (values - values.mean()) / values.std()
    exact = exact_surface(graph_modes(circles), public, values)
    found = surface_at_scale(walk_of(circles), public, values, rng, BETAS[::2])
    same = np.array([np.interp(found.etas, exact.etas, row) for row in exact.gains[::2]])
    top = np.unravel_index(np.argmax(found.gains), found.gains.shape)
    likely = found.gains > found.gains[top] - 30
    differences = (found.gains - found.gains[top]) - (same - same[top])
    assert np.abs(differences[likely]).max() < 4 * found.errors[likely].max() + 1.0
    low, high = found.intervals()[0]
    assert low <= exact.best()[0] <= high
