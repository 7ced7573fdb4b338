"""Dataset: labelled examples as they are stored, and as a model takes them; what is known of published data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.errors import BadInput

Features = NDArray[Any]
Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]
MOST_CLASSES = 1_000_000
ROWS_AT_ONCE = 4096  # checks and conversions go through large arrays in blocks, so that no second copy is held


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Labelled examples as stored.

    features  uint8 [n, H, W, C], float32 [n, H, W, C], or [n, d] of either; finite
    labels    int64 [n], classes counted from 0
    """

    features: Features
    labels: Labels

    def __post_init__(self) -> None:
        features, labels = as_features(self.features), as_labels(self.labels)
        if len(features) != len(labels):
            raise BadInput(f"{len(features):,} examples have {len(labels):,} labels; give one label each.")
        require_finite(features, "features")
        object.__setattr__(self, "features", unchangeable(features))
        object.__setattr__(self, "labels", unchangeable(labels))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Examples: {len(self):,} of shape {self.features.shape[1:]}, {self.features.dtype}"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set with a fixed test part.

    provenance  where the examples come from, and what of that was verified
    mean, std   per channel (one entry for flat examples), of pixels between 0 and 1. Fixed in advance and public:
                were they computed from the clients' examples, they would be a release to account for.
    users       the user who made each training example, where the data set says so
    """

    name: str
    train: Examples
    test: Examples
    class_names: tuple[str, ...]
    provenance: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        train, test = self.train.features, self.test.features
        shape = train.shape[1:]
        channels = shape[-1] if len(shape) == 3 else 1
        if test.shape[1:] != shape:
            wrong = f": test examples have shape {test.shape[1:]}, training ones {shape}."
        elif test.dtype != train.dtype:
            wrong = f": test examples are {test.dtype}, training ones {train.dtype}; store both alike."
        elif len(train) == 0 or len(test) == 0:
            wrong = f" has {len(train)} training and {len(test)} test examples; it needs both."
        elif not len(self.mean) == len(self.std) == channels or min(self.std) <= 0:
            wrong = f": mean and std need {channels} entries, std above 0; got {self.mean}, {self.std}."
        elif self.users is not None and len(self.users) != len(train):
            wrong = f": {len(self.users):,} users for {len(train):,} training examples."
        else:
            wrong = ""
        if wrong:
            raise BadInput(self.name + wrong)
        for part, examples in (("training", self.train), ("test", self.test)):
            require_labels_below(examples.labels, self.num_classes, f"{self.name}: {part}")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __repr__(self) -> str:
        users = f", {len(set(self.users)):,} users" if self.users is not None else ""
        return (
            f"Dataset: {self.name}, {len(self.train):,} training and {len(self.test):,} test examples, "
            f"{self.num_classes} classes{users}\n"
            f"  examples     {self.train.features.shape[1:]} {self.train.features.dtype}\n"
            f"  provenance   {self.provenance}"
        )


def own_dataset(
    name: str, train: Any, test: Any, provenance: str, class_names: tuple[str, ...] | None = None, users: Any = None
) -> Dataset:
    """A user's own arrays as a data set: `train` and `test` are each (features, labels).

    Bytes are standardised by 0.5 and 0.5, other numbers left as they are. Without `class_names` the largest label
    decides how many classes there are.
    """
    learned, tested = (Examples(_channels_last(features), labels) for features, labels in (train, test))
    if class_names is None:
        num_classes = 1 + max(int(part.labels.max(initial=0)) for part in (learned, tested))
        if num_classes > MOST_CLASSES:
            raise BadInput(f"label {num_classes - 1:,} would make as many classes. Number the classes from 0.")
        class_names = tuple(map(str, range(num_classes)))
    stored = learned.features
    channels = stored.shape[-1] if stored.ndim == 4 else 1
    centre, spread = (0.5, 0.5) if stored.dtype == np.uint8 else (0.0, 1.0)
    mean, std = (centre,) * channels, (spread,) * channels
    return Dataset(name, learned, tested, class_names, provenance, mean, std, users)


def _channels_last(values: Any) -> Features:
    features = as_features(values)
    if features.ndim == 4 and features.shape[3] > 4 and features.shape[1] <= 4:
        raise BadInput(f"images of shape {features.shape[1:]} have their channels first; store them as [n, H, W, C].")
    return features


def model_inputs(dataset: Dataset, features: Features) -> Inputs:
    """Features standardised by the data set's constants: float32 [n, C, H, W], or [n, d] for flat ones.

    (x / 255 - mean) / std where they are stored as uint8, else (x - mean) / std. Holds one new array and no other copy.
    """
    features = as_features(features)
    if features.shape[1:] != dataset.train.features.shape[1:]:
        raise BadInput(
            f"features of shape {features.shape[1:]} are none of {dataset.name}'s, which have shape "
            f"{dataset.train.features.shape[1:]}."
        )
    is_image = features.ndim == 4
    by_channel = (-1, 1, 1) if is_image else (-1,)
    brightest = 255.0 if features.dtype == np.uint8 else 1.0
    scale = (1.0 / (brightest * np.array(dataset.std))).astype(np.float32).reshape(by_channel)
    shift = (np.array(dataset.mean) / np.array(dataset.std)).astype(np.float32).reshape(by_channel)
    stored = features.transpose(0, 3, 1, 2) if is_image else features
    inputs = np.empty(stored.shape, dtype=np.float32)
    for first in range(0, len(stored), ROWS_AT_ONCE):
        block = slice(first, first + ROWS_AT_ONCE)
        np.multiply(stored[block], scale, out=inputs[block], dtype=np.float32)
        inputs[block] -= shift
    return inputs


def as_features(values: Any) -> Features:
    """uint8 or float32 [n, H, W, C] or [n, d]; images without a channel get one, other numbers become float32."""
    features = np.asarray(values)
    if features.dtype.kind not in "biuf":
        raise BadInput(f"features must be numbers, got {features.dtype}.")
    if features.dtype not in (np.uint8, np.float32):
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
            features = features.astype(np.float32)
    if features.ndim == 3:
        features = features[..., None]
    if features.ndim not in (2, 4) or 0 in features.shape[1:]:
        raise BadInput(f"features of shape {features.shape} must be [n, H, W, C], [n, H, W] or [n, d].")
    return features


def as_labels(values: Any) -> Labels:
    """int64 [n]; a column [n, 1] counts as one."""
    labels = np.asarray(values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"labels must be whole numbers, one an example; got {labels.dtype} of shape {labels.shape}.")
    if len(labels) and labels.min() < 0:
        row = int(np.argmax(labels < 0))
        raise BadInput(f"label {int(labels[row])} of example {row} is out of range: classes are counted from 0.")
    return labels.astype(np.int64)


def require_labels_below(labels: Labels, num_classes: int, whose: str) -> None:
    """Raises with the first label that names no class."""
    if len(labels) and labels.max() >= num_classes:
        row = int(np.argmax(labels >= num_classes))
        raise BadInput(f"{whose} label {int(labels[row])} of example {row} is out of range 0 to {num_classes - 1}.")


def require_finite(features: Features, what: str) -> None:
    """Raises with the first example that holds NaN or an infinity."""
    if features.dtype.kind != "f":
        return
    for first in range(0, len(features), ROWS_AT_ONCE):
        block = features[first : first + ROWS_AT_ONCE]
        sound = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if not sound.all():
            row = first + int(np.argmin(sound))
            raise BadInput(f"{what} of example {row} hold NaN or an infinity. Correct the example, or leave it out.")


def unchangeable(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: no copy, and the caller's own array stays as it is."""
    view = array.view()
    view.setflags(write=False)
    return view


@dataclass(frozen=True, slots=True)
class Form:
    """One form in which a data set may be in a folder.

    folders        that may hold it; "" where the names of the files tell the data set
    train, test    names of the files of each part
    read           the files of one part to its examples, and what they say of where they come from
    unverified     the provenance of files whose checksums are not known
    """

    what: str
    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[Sequence[Path], KnownSet], tuple[Examples, str]]
    unverified: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        return self.train + self.test


@dataclass(frozen=True, slots=True)
class KnownSet:
    """What is known of a data set before it is read.

    train_counts  examples of each class; a file with other counts is not the data set
    mean, std     per channel, of pixels between 0 and 1
    forms         in which it may be in a folder; the first that is there is read
    hub           its address on the Hugging Face hub, and perhaps a configuration there; empty where it has none
    hub_columns   of the image and the label
    md5           of official files by name; of what a .gz holds, because anyone may compress again
    """

    name: str
    what: str
    licence: str
    source: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train_counts: tuple[int, ...]
    test_counts: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    forms: tuple[Form, ...] = ()
    hub: tuple[str, ...] = ()
    hub_columns: tuple[str, str] = ("image", "label")
    md5: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)
