"""CIFAR-10 and CIFAR-100: the official binary files and the official python pickles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.data.dataset import Examples
from mppfl.data.files import bytes_of
from mppfl.data.known import KnownSet
from mppfl.data.safe_pickle import dictionary_of_pickle
from mppfl.errors import BadFile
from mppfl.text import shown_path

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")
Batch = tuple[NDArray[np.uint8], Any]  # pixels [n, 3072], labels [n]


def read_cifar_10_binary(folder: Path, known: KnownSet) -> tuple[Examples, Examples, str]:
    """Rows of a label and 3,072 bytes of red, green, blue."""
    train, test = [f"{name}.bin" for name in BATCHES], ["test_batch.bin"]
    parts = (_joined(_binary(folder / name, known, 1) for name in names) for names in (train, test))
    return *_pair(parts), _provenance("binary", known, [*train, *test])


def read_cifar_100_binary(folder: Path, known: KnownSet) -> tuple[Examples, Examples, str]:
    """Rows of a coarse label, a fine label and 3,072 bytes; the fine label counts."""
    names = ("train.bin", "test.bin")
    parts = (_joined([_binary(folder / name, known, 2)]) for name in names)
    return *_pair(parts), _provenance("binary", known, names)


def read_cifar_10_python(folder: Path, known: KnownSet) -> tuple[Examples, Examples, str]:
    parts = (_joined(_pickled(folder / name, known, "labels") for name in names) for names in (BATCHES, ["test_batch"]))
    return *_pair(parts), _provenance("python", known, [*BATCHES, "test_batch"])


def read_cifar_100_python(folder: Path, known: KnownSet) -> tuple[Examples, Examples, str]:
    parts = (_joined([_pickled(folder / name, known, "fine_labels")]) for name in ("train", "test"))
    return *_pair(parts), _provenance("python", known, ["train", "test"])


def _pair(parts: Iterator[Examples]) -> tuple[Examples, Examples]:
    train, test = parts
    return train, test


def _provenance(form: str, known: KnownSet, names: Sequence[str]) -> str:
    if all(name in known.md5 for name in names):
        return f"official {form} files, checksums verified"
    return f"{form} files; counts of every class verified, pixels not: no checksums are known for these files"


def _binary(path: Path, known: KnownSet, num_labels: int) -> Batch:
    content = np.frombuffer(bytes_of(path, known.md5), np.uint8)
    width = num_labels + PIXELS
    if len(content) == 0 or len(content) % width:
        raise BadFile(
            f"{shown_path(path)} holds {len(content):,} bytes, which is no whole number of rows of {width:,}. "
            "Fetch it again."
        )
    rows = content.reshape(-1, width)
    return rows[:, num_labels:], rows[:, num_labels - 1]


def _pickled(path: Path, known: KnownSet, label_key: str) -> Batch:
    found = dictionary_of_pickle(bytes_of(path, known.md5), path)
    pixels, labels = found.get("data"), found.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise BadFile(f"{shown_path(path)} has no array 'data' of {PIXELS:,} bytes a row. Fetch it again.")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(each) is int for each in labels):
        raise BadFile(f"{shown_path(path)} has no list {label_key!r} of {len(pixels):,} whole numbers. Fetch it again.")
    return pixels, labels


def _joined(batches: Iterator[Batch] | list[Batch]) -> Examples:
    """Batches one after another as images: channels come first in the files, last in Examples."""
    images, labels = [], []
    for pixels, each in batches:
        planes = pixels.reshape(-1, CHANNELS, SIDE, SIDE)
        images.append(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)))
        labels.append(np.asarray(each, dtype=np.int64))
    return Examples(np.concatenate(images), np.concatenate(labels))
