"""File formats of data sets: idx, CIFAR, SVHN's .mat, image folders, .npz; with checksums and one-line errors.

A reader takes the files of one part, training or test, and gives its examples, and what the files themselves say of
where they come from ("" where they say nothing).
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.data.dataset import Dataset, Examples, KnownSet, own_dataset
from mppfl.errors import BadFile, BadInput
from mppfl.files import failures_in_one_line, replaced
from mppfl.text import one_line, shown_path

Paths = Sequence[Path]
Part = tuple[Examples, str]
FETCH = "Fetch it again."
UNPACK = "Unpack the archive again."


def bytes_of(path: Path, md5: Mapping[str, str]) -> bytes:
    """Content of the file, unzipped if it is gzipped; its checksum must be the one in `md5`, where there is one."""
    with failures_in_one_line(path):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    md5_of_content = hashlib.md5(content, usedforsecurity=False).hexdigest()
    expected = md5.get(path.name.removesuffix(".gz"), md5_of_content)
    if md5_of_content != expected:
        holds = "what it holds has" if path.suffix == ".gz" else "it has"
        raise BadFile(
            f"{shown_path(path)} is not the official file: {holds} md5 {md5_of_content}, expected {expected}. {FETCH}"
        )
    return content


def plain_or_gzipped(path: Path) -> Path | None:
    """The file, or its gzipped form, if either is there."""
    return next((file for file in (path, path.with_name(f"{path.name}.gz")) if os.path.lexists(file)), None)


@contextmanager
def content_of(path: Path, damage: str, remedy: str) -> Iterator[None]:
    """Names the file in every error of its content. Libraries meet damage with errors of many kinds."""
    try:
        yield
    except BadFile:
        raise
    except BadInput as cause:
        raise BadFile(f"{shown_path(path)}: {cause}") from cause
    except Exception as cause:
        raise BadFile(f"{shown_path(path)} {damage} ({one_line(cause)}). {remedy}".rstrip()) from cause


# ---- idx --------------------------------------------------------------------------------------------------------

UNSIGNED_BYTES = 0x08


def read_idx(paths: Paths, record: KnownSet) -> Part:
    """A file of images and a file of their labels."""
    pixels, labels = (_idx_array(path, record.md5) for path in paths)
    if pixels.ndim != 3 or labels.ndim != 1:
        raise BadFile(
            f"{shown_path(paths[0])} and {paths[1].name} have {pixels.ndim} and {labels.ndim} axes, not 3 and 1."
        )
    return Examples(pixels, labels.astype(np.int64)), ""


def _idx_array(path: Path, md5: Mapping[str, str]) -> NDArray[np.uint8]:
    content = bytes_of(path, md5)
    num_axes = content[3] if len(content) >= 4 else 0
    start = 4 + 4 * num_axes
    if content[:3] != bytes([0, 0, UNSIGNED_BYTES]) or not 1 <= num_axes <= 4 or len(content) < start:
        raise BadFile(f"{shown_path(path)} is no idx file of bytes: it begins with {content[:4].hex() or 'nothing'}.")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", num_axes, 4))
    if len(content) - start != prod(shape):
        raise BadFile(
            f"{shown_path(path)} holds {len(content) - start:,} bytes where its header of shape {shape} needs "
            f"{prod(shape):,}. {FETCH}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# ---- SVHN, and image folders ------------------------------------------------------------------------------------


def read_mat(paths: Paths, record: KnownSet) -> Part:
    """SVHN's arrays X [H, W, C, n] and y, where 10 stands for the digit 0."""
    from scipy.io import loadmat

    (path,) = paths
    file = io.BytesIO(bytes_of(path, record.md5))
    with content_of(path, "holds no arrays X and y that SciPy can read", ""):
        arrays = loadmat(file, variable_names=("X", "y"))
        pixels, labels = arrays["X"], arrays["y"].astype(np.int64).ravel()
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != len(labels):
        raise BadFile(f"{shown_path(path)} has X of {pixels.dtype} {pixels.shape} for {len(labels):,} labels.")
    wrong = (labels < 1) | (labels > 10)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadFile(f"{shown_path(path)}: label {int(labels[row])} of example {row} is out of range 1 to 10.")
    return Examples(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), labels % 10), ""


def read_images(paths: Paths, record: KnownSet) -> Part:
    """The images under <folder>/<class>/*.png, class by class, in order of their names."""
    images_of = [_images_in(paths[0] / name) for name in record.class_names]
    labels = np.repeat(np.arange(len(images_of)), [len(images) for images in images_of])
    pixels = np.empty((len(labels), *record.shape), dtype=np.uint8)
    for row, path in enumerate(path for images in images_of for path in images):
        pixels[row] = _pixels(path, record.shape)
    return Examples(pixels, labels), ""


def _images_in(folder: Path) -> list[Path]:
    with failures_in_one_line(folder):
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png")
    if not paths:
        raise BadFile(f"{shown_path(folder)} holds no .png image; every class needs some. {UNPACK}")
    return paths


def _pixels(path: Path, shape: tuple[int, int, int]) -> Any:
    from PIL import Image

    with content_of(path, "is no readable PNG", UNPACK), Image.open(path, formats=["PNG"]) as image:
        if (image.height, image.width) != shape[:2]:  # before anything is unpacked
            raise BadFile(f"{shown_path(path)} is {image.height} x {image.width}, not {shape[0]} x {shape[1]}.")
        return np.asarray(image.convert("RGB" if shape[2] == 3 else "L")).reshape(shape)


# ---- CIFAR ------------------------------------------------------------------------------------------------------

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE


def read_binary(paths: Paths, record: KnownSet) -> Part:
    """Rows of labels and 3,072 bytes of red, green, blue. CIFAR-100 has a coarse and a fine label; the fine counts."""
    num_labels = 1 if record.name == "cifar-10" else 2
    width, batches = num_labels + PIXELS, []
    for path in paths:
        content = np.frombuffer(bytes_of(path, record.md5), np.uint8)
        if len(content) == 0 or len(content) % width:
            raise BadFile(
                f"{shown_path(path)} holds {len(content):,} bytes, which is no whole number of rows of {width:,}. "
                f"{FETCH}"
            )
        rows = content.reshape(-1, width)
        batches.append((rows[:, num_labels:], rows[:, num_labels - 1]))
    return _joined(batches), ""


def read_pickled(paths: Paths, record: KnownSet) -> Part:
    """The dictionaries of CIFAR's Python form: `data` [n, 3072] and a list of labels."""
    label_key = "labels" if record.name == "cifar-10" else "fine_labels"
    batches = []
    for path in paths:
        content = _dictionary_of_pickle(bytes_of(path, record.md5), path)
        pixels, labels = content.get("data"), content.get(label_key)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
            raise BadFile(f"{shown_path(path)} has no array 'data' of {PIXELS:,} bytes a row. {FETCH}")
        if not isinstance(labels, list) or len(labels) != len(pixels) or {*map(type, labels)} - {int}:
            raise BadFile(f"{shown_path(path)} has no list {label_key!r} of {len(pixels):,} whole numbers. {FETCH}")
        batches.append((pixels, labels))
    return _joined(batches), ""


def _joined(batches: list[tuple[NDArray[np.uint8], Any]]) -> Examples:
    """Batches one after another as images: channels come first in the files, last in Examples."""
    images = [pixels.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1) for pixels, _ in batches]
    labels = [np.asarray(labels, dtype=np.int64) for _, labels in batches]
    return Examples(np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels))


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ADMITTED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("_codecs", "encode"): codecs.encode,  # by which Python 3 writes bytes in the old protocols
}


class _OnlyArrays(pickle.Unpickler):
    """Calls nothing but what makes plain values and arrays. CIFAR's own files are known by their checksums besides."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ADMITTED:
            return _ADMITTED[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")


def _dictionary_of_pickle(content: bytes, path: Path) -> dict[str, Any]:
    with content_of(path, "is no pickle that can be read safely", FETCH):
        values = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
        return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in values.items()}


# ---- npz --------------------------------------------------------------------------------------------------------

FILES = ("train.npz", "test.npz")
USER_KEYS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)


@contextmanager
def _opened_npz(path: Path) -> Iterator[Any]:
    """The arrays of an .npz by name; pickled objects in it are refused."""
    damage = content_of(path, "is no .npz of plain arrays, or not whole", "Make it again.")
    with failures_in_one_line(path), open(path, "rb") as file, damage, np.load(file, allow_pickle=False) as archive:
        yield archive


def read_npz(paths: Paths, record: KnownSet) -> Part:
    """`images` and `labels` of one part of a known set, and its `provenance` where it states one."""
    (path,) = paths
    with _opened_npz(path) as archive:
        for key in ("images", "labels"):
            if key not in archive.files:
                raise BadFile(f"{shown_path(path)} lacks the array {key!r}; it needs images, labels.")
        stated = str(archive["provenance"]) if "provenance" in archive.files else ""
        return Examples(_as_bytes(archive["images"]), archive["labels"]), stated


def _as_bytes(images: np.ndarray) -> np.ndarray:
    """Pictures of a known set as the bytes they are: its mean and deviation are those of brightness 0 to 255."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind not in "biuf" or not np.isfinite(images).all():
        return images  # refused by Examples, which says where
    darkest, brightest = images.min(initial=0), images.max(initial=0)
    if (images != np.rint(images)).any() or darkest < 0 or not 1 < brightest <= 255:
        raise BadInput(
            f"images of {images.dtype} from {darkest:g} to {brightest:g} are not whole numbers from 0 to 255. "
            "Save them as uint8."
        )
    return images.astype(np.uint8)


def write_known_npz(dataset: Dataset, folder: Path) -> tuple[Path, ...]:
    """Writes train.npz and test.npz so that read_npz finds them, each whole or not at all."""
    with failures_in_one_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(FILES, (dataset.train, dataset.test), strict=True):
        with replaced(folder / name) as file:
            np.savez(file, images=part.features, labels=part.labels, provenance=dataset.provenance)
    return tuple(folder / name for name in FILES)


def read_user_npz(path: Path) -> Dataset:
    """A user's own data set in one file.

    x_train, y_train, x_test, y_test (or train_images, train_labels, ...): images uint8 or float [n, H, W, C] or
    [n, H, W], or flat [n, d]; labels whole numbers from 0. Optional: `users`, one per training example, and
    `class_names`; see own_dataset.
    """
    with _opened_npz(path) as archive:
        keys = next((keys for keys in USER_KEYS if set(keys) <= set(archive.files)), None)
        if keys is None:
            raise BadFile(
                f"{shown_path(path)} needs the arrays {', '.join(USER_KEYS[0])} or {', '.join(USER_KEYS[1])}; "
                f"it has {', '.join(sorted(archive.files)) or 'none'}."
            )
        class_names = _texts(archive, "class_names", "US", "class_names must be text, one a class; got")
        users = _texts(archive, "users", "iuUS", "users must be one name a training example, got")
        x_train, y_train, x_test, y_test = (archive[key] for key in keys)
        return own_dataset(path.stem, (x_train, y_train), (x_test, y_test), "the user's own .npz", class_names, users)


def _texts(archive: Any, key: str, kinds: str, refusal: str) -> tuple[str, ...] | None:
    """An optional array of one text an entry; None where the archive has none."""
    if key not in archive.files:
        return None
    values = archive[key]
    if values.ndim != 1 or values.dtype.kind not in kinds:
        raise BadInput(f"{refusal} {values.dtype} of shape {values.shape}.")
    return tuple(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in values)
