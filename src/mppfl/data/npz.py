"""Data sets as .npz: a known one as {train,test}.npz, and a user's own in one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.data.dataset import Dataset, Examples, Labels, as_features
from mppfl.data.files import failures_in_one_line, naming
from mppfl.data.known import KnownSet
from mppfl.errors import BadFile, BadInput
from mppfl.text import one_line, shown_path

FILES = ("train.npz", "test.npz")
RE_CROPPED = (
    "re-cropped from the full-number images; counts of every class official, pixels not those of the .mat files"
)
UNVERIFIED = ".npz files; counts of every class verified, pixels not held against the official files"
USER_KEYS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)
MOST_CLASSES = 1_000_000


def read_known_npz(folder: Path, known: KnownSet) -> tuple[Examples, Examples, str]:
    """`images` and `labels` of train.npz and test.npz; their `provenance` is passed on where they state one."""
    parts, stated = [], ""
    for name in FILES:
        arrays = arrays_of(folder / name, ("images", "labels"), ("provenance",))
        with naming(folder / name):
            parts.append(Examples(_bytes_of(arrays["images"]), arrays["labels"]))
        stated = str(arrays["provenance"]) if "provenance" in arrays else ""
    unstated = RE_CROPPED if known.name == "svhn" else UNVERIFIED
    provenance = f"{stated}, kept as .npz" if stated else unstated
    if (np.diff(parts[0].labels) >= 0).all():
        provenance += "; rows sorted by class"
    return parts[0], parts[1], provenance


def _bytes_of(images: np.ndarray) -> np.ndarray:
    """Pictures of a known set as the bytes they are: its mean and deviation are those of brightness 0 to 255."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind not in "biuf" or not np.isfinite(images).all():
        return images  # refused by Examples, which says where
    brightest = images.max(initial=0)
    if (images != np.rint(images)).any() or images.min(initial=0) < 0 or not 1 < brightest <= 255:
        raise BadInput(
            f"images of {images.dtype} from {images.min(initial=0):g} to {brightest:g} are not whole numbers from 0 to "
            "255. Save them as uint8."
        )
    return images.astype(np.uint8)


def write_known_npz(dataset: Dataset, folder: Path) -> tuple[Path, ...]:
    """Writes train.npz and test.npz so that read_known_npz finds them, each whole or not at all."""
    with failures_in_one_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in zip(FILES, (dataset.train, dataset.test), strict=True):
            with NamedTemporaryFile(dir=folder, prefix=".", suffix=".npz", delete=False) as file:
                try:
                    np.savez(file, images=part.features, labels=part.labels, provenance=dataset.provenance)
                    file.flush()
                    os.replace(file.name, folder / name)
                except BaseException:
                    os.unlink(file.name)
                    raise
    return tuple(folder / name for name in FILES)


def read_user_npz(path: Path) -> Dataset:
    """A user's own data set in one file.

    x_train, y_train, x_test, y_test (or train_images, train_labels, ...): images uint8 or float [n, H, W, C] or
    [n, H, W], or flat [n, d]; labels whole numbers from 0. Optional: `users`, one per training example, and
    `class_names`. Bytes are standardised by 0.5 and 0.5, other numbers left as they are.
    """
    with _opened(path) as archive:
        present = set(archive.files)
    keys = next((keys for keys in USER_KEYS if set(keys) <= present), None)
    if keys is None:
        raise BadFile(
            f"{shown_path(path)} needs the arrays {', '.join(USER_KEYS[0])} or {', '.join(USER_KEYS[1])}; "
            f"it has {', '.join(sorted(present)) or 'none'}."
        )
    arrays = arrays_of(path, keys, ("users", "class_names"))
    with naming(path):
        train, test = (Examples(_channels_last(arrays[x]), arrays[y]) for x, y in (keys[:2], keys[2:]))
        names = _class_names(arrays, train.labels, test.labels)
        users = arrays.get("users")
        if users is not None and (users.ndim != 1 or users.dtype.kind not in "iuUS"):
            raise BadInput(f"users must be one name a training example, got {users.dtype} of shape {users.shape}.")
        num_channels = train.features.shape[-1] if train.features.ndim == 4 else 1
        centre, spread = (0.5, 0.5) if train.features.dtype == np.uint8 else (0.0, 1.0)
        return Dataset(
            name=path.stem,
            train=train,
            test=test,
            num_classes=len(names),
            class_names=names,
            provenance="the user's own .npz",
            mean=(centre,) * num_channels,
            std=(spread,) * num_channels,
            users=None if users is None else tuple(map(_text, users)),
        )


def arrays_of(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz by name; pickled objects in it are refused."""
    with _opened(path) as archive:
        missing = sorted(set(needed) - set(archive.files))
        if missing:
            raise BadFile(f"{shown_path(path)} lacks the array {missing[0]!r}; it needs {', '.join(needed)}.")
        return {key: archive[key] for key in (*needed, *optional) if key in archive.files}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with failures_in_one_line(path), open(path, "rb") as file:  # NumPy would not close a damaged one
        try:
            with np.load(file, allow_pickle=False) as archive:
                yield archive
        except BadFile:
            raise
        except Exception as cause:  # a damaged archive fails in whatever part of zipfile or NumPy meets the damage
            raise BadFile(
                f"{shown_path(path)} is no .npz of plain arrays, or not whole ({one_line(cause)}). Make it again."
            ) from cause


def _channels_last(values: NDArray[Any]) -> NDArray[Any]:
    features = as_features(values)
    if features.ndim == 4 and features.shape[3] > 4 and features.shape[1] <= 4:
        raise BadInput(f"images of shape {features.shape[1:]} have their channels first; store them as [n, H, W, C].")
    return features


def _class_names(arrays: Mapping[str, NDArray[Any]], *labels: Labels) -> tuple[str, ...]:
    if "class_names" in arrays:
        names = arrays["class_names"]
        if names.ndim != 1 or names.dtype.kind not in "US":
            raise BadInput(f"class_names must be text, one a class; got {names.dtype} of shape {names.shape}.")
        return tuple(map(_text, names))
    num_classes = 1 + max(int(each.max(initial=0)) for each in labels)
    if num_classes > MOST_CLASSES:
        raise BadInput(f"label {num_classes - 1:,} would make as many classes. Number the classes from 0.")
    return tuple(map(str, range(num_classes)))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
