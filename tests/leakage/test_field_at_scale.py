"""The field by probes agrees with the field by matrices, within the errors that it states itself."""

from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

from mppfl.leakage import FieldFit, who_leaks
from tests.homes import home
from tests.leakage.networks import circles

FIT = FieldFit(
    beta=6.0, eta=0.3, rate=0.4, gain_per_client=0.1, friend_slope=0.3, friend_covariance=0.05, num_public=99
)


@pytest.fixture(scope="module")
def graph():
    """Four circles of friends, some edges between, and two clients without any."""
    return circles(np.random.default_rng(3), np.arange(240) % 4, 0.12, 0.006, num_clients=242)


@pytest.fixture(scope="module")
def budgets(graph):
    drawn = 0.3 * np.random.default_rng(5).lognormal(0, 1, graph.num_clients)
    drawn[::9] = 0.0
    return drawn


@pytest.fixture
def both(graph, monkeypatch):
    """The same question answered by matrices and by probes."""

    def ask(budgets, fit):
        exact = who_leaks(graph, None, budgets, rng=np.random.default_rng(0), fit=fit)
        with monkeypatch.context() as changed:
            changed.setattr(home(who_leaks), "DENSE_LIMIT", 10)
            return exact, who_leaks(graph, None, budgets, rng=np.random.default_rng(1), fit=fit)

    return ask


@pytest.mark.parametrize(
    ("beta", "eta", "rho"), [(0.25, 0.3, 0.3), (2.0, 0.5, 0.03), (6.0, 0.3, 0.3), (12.0, 0.2, 3.0), (20.0, 0.1, 10.0)]
)
def test_levels_lie_within_their_stated_errors_whether_little_or_nearly_everything_is_told(graph, both, beta, eta, rho):
    budgets = rho * np.random.default_rng(1).lognormal(0, 1, graph.num_clients)
    exact, probed = both(budgets, replace(FIT, beta=beta, eta=eta, friend_slope=0.0))  # the field alone decides
    estimated = probed.error > 0
    away = (probed.nats - exact.nats)[estimated] / probed.error[estimated]
    assert estimated.sum() > 10  # the others are at their entropy
    assert np.abs(away).max() < 5  # 242 clients, and the seed is fixed
    assert 0.2 < np.sqrt(np.mean(away**2)) < 1.3  # neither boastful nor timid


def test_marginal_leaks_and_slopes_agree_with_the_exact_ones(budgets, both):
    exact, probed = both(budgets, FIT)
    assert np.median(np.abs(probed.marginal[:-2] / exact.marginal[:-2] - 1)) < 0.15
    assert probed.marginal[-2:] == approx([0.0, 0.0], abs=1e-4)  # they know nobody
    assert np.corrcoef(probed.marginal, exact.marginal)[0, 1] > 0.85
    assert (probed.marginal_error >= 0).all()
    for client in (0, 17):
        slopes = exact.slopes_of(client)
        assert probed.slopes_of(client)[client] == 0
        assert probed.slopes_of(client) == approx(slopes, abs=0.2 * slopes.max())
