"""Fashion-MNIST's idx files, gzipped or not: a magic number, the lengths of all axes, then bytes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mppfl.data.dataset import Examples
from mppfl.data.files import bytes_of, plain_or_gzipped
from mppfl.data.known import KnownSet
from mppfl.errors import BadFile
from mppfl.text import shown_path

UNSIGNED_BYTES = 0x08
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def read_idx_set(folder: Path, known: KnownSet) -> tuple[Examples, Examples, str]:
    """The training and the test part of four idx files."""
    train, test = (_examples(folder, names, known) for names in FILES.values())
    return train, test, "official idx files, checksums verified" if known.md5 else "idx files, no checksums known"


def _examples(folder: Path, names: tuple[str, str], known: KnownSet) -> Examples:
    pixels, labels = (read_idx(plain_or_gzipped(folder, name) or folder / name, known.md5) for name in names)
    if pixels.ndim != 3 or labels.ndim != 1:
        raise BadFile(
            f"{shown_path(folder / names[0])} and {names[1]} have {pixels.ndim} and {labels.ndim} axes, not 3 and 1."
        )
    return Examples(pixels, labels.astype(np.int64))


def read_idx(path: Path, md5: Mapping[str, str]) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes; it cannot be written to."""
    content = bytes_of(path, md5)
    num_axes = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * num_axes
    if content[:3] != bytes([0, 0, UNSIGNED_BYTES]) or not 1 <= num_axes <= 4 or len(content) < start:
        raise BadFile(f"{shown_path(path)} is no idx file of bytes: it begins with {content[:4].hex() or 'nothing'}.")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", num_axes, 4))
    if len(content) - start != prod(shape):
        raise BadFile(
            f"{shown_path(path)} holds {len(content) - start:,} bytes where its header of shape {shape} needs "
            f"{prod(shape):,}. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
