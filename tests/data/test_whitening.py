"""Whitening gives the covariance the formula says; drawn shapes are the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.data import NUM_FEATURES, RIDGE, drawn_blocks, drawn_shapes, drawn_whitening, whitening_of
from mppfl.errors import BadInput

approx = pytest.approx


def covariance_in_theory(sample, ridge):
    """Σ (Σ + c I)^(-1), by solving instead of taking roots."""
    covariance = np.cov(sample, rowvar=False, dtype=np.float64)
    shrunk = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return np.linalg.solve(shrunk, covariance)


@given(st.integers(0, 1000), st.integers(2, 8), st.sampled_from([0.01, 0.3, 10.0]))
@settings(deadline=None)
def test_a_whitened_sample_has_mean_zero_and_the_covariance_of_the_formula(seed, size, ridge):
    rng = np.random.default_rng(seed)
    sample = (3 + rng.normal(size=(50, size)) @ rng.normal(size=(size, size))).astype(np.float32)
    whitened = whitening_of(sample, ridge)(sample)
    assert whitened.dtype == np.float32
    assert whitened.mean(axis=0) == approx(np.zeros(size), abs=1e-4)
    assert np.cov(whitened, rowvar=False) == approx(covariance_in_theory(sample, ridge), abs=1e-3)


def test_two_directions_worked_by_hand():
    # Variances 4 and 0 (of (±2, 1), over n - 1 = 3: 16/3 and 0): c = ridge · (16/3) / 2 = 16/3 for ridge 2.
    sample = np.array([[2, 1], [-2, 1], [2, 1], [-2, 1]], dtype=np.float32)
    whiten = whitening_of(sample, 2.0)
    assert whiten.mean == approx([0, 1])
    assert whiten.matrix == approx(np.diag([(32 / 3) ** -0.5, (16 / 3) ** -0.5]))


def test_features_of_drawn_shapes_are_whitened_as_the_formula_says():
    sample = drawn_blocks(16, 16, 2000)
    whitened = whitening_of(sample, RIDGE)(sample)
    assert whitened.mean(axis=0, dtype=np.float64) == approx(np.zeros(NUM_FEATURES), abs=1e-4)
    found, theory = np.cov(whitened, rowvar=False, dtype=np.float64), covariance_in_theory(sample, RIDGE)
    assert np.abs(found - theory).max() < 1e-3
    assert 0.9 < np.linalg.eigvalsh(found).max() < 1.001  # what varies most ends up near 1, nothing above


def test_a_whitening_is_kept_and_cannot_be_changed():
    first = drawn_whitening(16, 16)
    assert drawn_whitening(16, 16) is first
    with pytest.raises(ValueError, match="read-only"):
        first.matrix[0, 0] = 1.0


@pytest.mark.parametrize(
    ("sample", "ridge", "said"),
    [
        (np.ones((1, 3)), 0.3, "no covariance"),
        (np.ones(3), 0.3, "no covariance"),
        (np.ones((5, 3)), 0.3, "all 5 rows of the sample are equal"),
        (np.eye(3), 0.0, "ridge=0 must lie in"),
    ],
)
def test_a_sample_without_directions_is_refused(sample, ridge, said):
    with pytest.raises(BadInput, match=said):
        whitening_of(sample, ridge)


def test_one_seed_draws_one_set_of_pictures():
    pictures = drawn_shapes(300, 20, 28, np.random.RandomState(5))
    assert pictures.shape == (300, 20, 28, 1)
    assert pictures.dtype == np.uint8
    assert np.array_equal(pictures, drawn_shapes(300, 20, 28, np.random.RandomState(5)))
    assert not np.array_equal(pictures, drawn_shapes(300, 20, 28, np.random.RandomState(6)))


def test_half_of_the_drawn_shapes_are_symmetric_and_none_is_dim():
    pictures = drawn_shapes(2000, 28, 28, np.random.RandomState(0))
    symmetric = (pictures == pictures[:, :, ::-1]).all(axis=(1, 2, 3))
    assert symmetric.mean() == approx(0.5, abs=0.06)  # five standard deviations of the mean
    brightest = pictures.max(axis=(1, 2, 3))
    assert brightest[brightest > 0].min() >= 0.6 * 255 - 1
    assert (brightest > 0).mean() > 0.99
