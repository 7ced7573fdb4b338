"""SVHN's official .mat files of cropped digits, in which the digit 0 is called 10."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mppfl.data.dataset import Examples
from mppfl.data.files import failures_in_one_line, verify_md5
from mppfl.data.known import KnownSet
from mppfl.errors import BadFile
from mppfl.text import one_line, shown_path

FILES = ("train_32x32.mat", "test_32x32.mat")


def read_svhn_mat(folder: Path, known: KnownSet) -> tuple[Examples, Examples, str]:
    """The training and the test part; the "extra" part is not used."""
    train, test = (_examples(folder / name, known) for name in FILES)
    verified = all(name in known.md5 for name in FILES)
    return train, test, "official .mat files, checksums verified" if verified else ".mat files, no checksums known"


def _examples(path: Path, known: KnownSet) -> Examples:
    from scipy.io import loadmat

    verify_md5(path, known.md5)
    with failures_in_one_line(path), open(path, "rb"):
        pass  # SciPy would look for other names
    try:
        found = loadmat(path, variable_names=("X", "y"))
        pixels, labels = found["X"], found["y"].astype(np.int64).ravel()
    except Exception as cause:  # a damaged file fails in whatever part of SciPy meets the damage
        raise BadFile(f"{shown_path(path)} holds no arrays X and y that SciPy can read ({one_line(cause)}).") from cause
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != len(labels):
        raise BadFile(f"{shown_path(path)} has X of {pixels.dtype} {pixels.shape} for {len(labels):,} labels.")
    wrong = (labels < 1) | (labels > 10)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise BadFile(f"{shown_path(path)}: label {int(labels[at])} of example {at} is out of range 1 to 10.")
    return Examples(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), labels % 10)
