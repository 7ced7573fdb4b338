"""The embedded default: scikit-learn's handwritten digits, which need no download."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from mppfl.data.dataset import Examples
from mppfl.data.known import KnownSet

BRIGHTEST = 16.0
EVERY_FIFTH = 5


def read_digits(known: KnownSet) -> tuple[Examples, Examples, str]:
    """1,797 images: of each digit the first and then every fifth for testing (364), the rest for training (1,433)."""
    found = import_module("sklearn.datasets").load_digits()
    images = (found.images / BRIGHTEST).astype(np.float32).reshape(-1, *known.shape)
    is_test = np.zeros(len(images), dtype=bool)
    for digit in range(known.num_classes):
        is_test[np.flatnonzero(found.target == digit)[::EVERY_FIFTH]] = True
    train, test = (Examples(images[rows], found.target[rows]) for rows in (~is_test, is_test))
    return train, test, "scikit-learn"
