"""The paper's noise: what it adds, what that costs, and the length that its first round tells."""

import numpy as np
import pytest
from pytest import approx
from reproduction.paper_noise import PaperNoise, nominal_epsilon

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, epsilon


def test_a_budget_buys_the_noise_of_a_mean_gradient_and_costs_what_holds_for_a_whole_update():
    paper, work = PaperNoise(clip_norm=3.0), LocalWork(num_examples=10)
    assert paper.noise_std(0.5, work) == approx(2 * 3.0 / 10)
    assert paper.charged(0.5, work) == 50.0
    assert paper.charged(0.5, work) == approx((2 * 3.0) ** 2 / (2 * paper.noise_std(0.5, work) ** 2))


@pytest.mark.parametrize(
    "changed",
    [{"unit": "client"}, {"release": "gradient"}, {"noise": "gaussian"}, {"trust": "server"}, {"clip_quantile": 0.5}],
)
def test_it_is_a_simulation_of_one_way_to_train(changed):
    with pytest.raises(BadInput, match=next(iter(changed))):
        PaperNoise(**changed)


def test_the_length_is_the_median_of_those_that_are_numbers_and_most_must_be():
    assert not PaperNoise().has_clip_norm
    settled = PaperNoise().with_clip_norm_of(np.array([3.0, 1.0, 2.0, np.nan]))
    assert settled.has_clip_norm
    assert settled.clip_norm == approx(2.0, rel=1e-11)
    assert settled.clip_norm > 2.0  # whose length is the median is not shortened
    with pytest.raises(BadInput, match="2 of the first round's 3 updates hold NaN"):
        PaperNoise().with_clip_norm_of(np.array([1.0, np.nan, np.inf]))
    with pytest.raises(BadInput, match="no length to shorten to"):
        PaperNoise().with_clip_norm_of(np.zeros(3))


def test_the_nominal_epsilon_is_that_of_whoever_spends_most_and_infinite_without_noise():
    budgets, participating = np.array([[0.1, 0.5], [0.2, 0.5]]), np.array([[True, True], [True, False]])
    assert nominal_epsilon(budgets, participating, 1e-5) == approx(epsilon(0.5, 1e-5))
    assert nominal_epsilon(budgets, ~participating & False, 1e-5) == 0
    assert nominal_epsilon(np.full((2, 2), np.inf), participating, 1e-5) == np.inf
