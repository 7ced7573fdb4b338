"""Whitening: features turned and stretched so that, over a public sample, no direction outweighs the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.arrays import require_number
from mppfl.data.dataset import unchangeable
from mppfl.errors import BadInput

Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class Whitening:
    """The map x -> (x - mean) @ matrix: `mean` float32 [d], `matrix` symmetric float32 [d, d]."""

    mean: Rows
    matrix: Rows

    def __call__(self, rows: Rows) -> Rows:
        whitened: Rows = np.matmul(rows - self.mean, self.matrix)
        return whitened


def whitening_of(sample: NDArray[Any], ridge: float) -> Whitening:
    """The whitening by mean μ and covariance Σ of `sample` [n, d]: matrix = (Σ + c I)^(-1/2), c = ridge · tr Σ / d.

    The sample itself then has covariance Σ (Σ + c I)^(-1): close to 1 in directions of variance far above c. No
    direction is stretched by more than 1 / √c, so what hardly varies cannot drown the rest. The sample has to be
    public: mean and matrix follow from it, and no noise protects it. Raises BadInput where it has fewer than two rows,
    or does not vary at all.
    """
    ridge = require_number(ridge, "ridge", 0.0, float("inf"))
    if sample.ndim != 2 or len(sample) < 2:
        raise BadInput(f"a sample of shape {sample.shape} has no covariance; give at least two rows [n, d].")
    mean = sample.mean(axis=0, dtype=np.float64)
    covariance = np.atleast_2d(np.cov(sample, rowvar=False, dtype=np.float64))
    variances, directions = np.linalg.eigh(covariance)
    variances = np.maximum(variances, 0.0)  # rounding leaves tiny negative ones where Σ is singular
    if variances.max() == 0:
        raise BadInput(f"all {len(sample):,} rows of the sample are equal, which gives no directions to whiten.")
    stretch = 1 / np.sqrt(variances + ridge * variances.mean())
    matrix = (directions * stretch) @ directions.T  # symmetric, so the signs eigh happens to choose do not matter
    return Whitening(unchangeable(mean.astype(np.float32)), unchangeable(matrix.astype(np.float32)))
