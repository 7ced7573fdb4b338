"""Examples and Dataset: labelled examples as they are stored, and as a model takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mppfl.errors import BadInput

Features = NDArray[Any]
Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]
ROWS_AT_ONCE = 4096  # checks and conversions go through large arrays in blocks, so that no second copy is held


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with a fixed test part.

    provenance  where the examples come from, and what of that was verified
    mean, std   per channel (one entry for flat examples), of pixels between 0 and 1. Fixed in advance and public:
                were they computed from the clients' examples, they would be a release to account for.
    users       who made each training example, where the data set says so
    """

    name: str
    train: Examples
    test: Examples
    num_classes: int
    class_names: tuple[str, ...]
    provenance: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        shape = self.train.features.shape[1:]
        if self.test.features.shape[1:] != shape:
            raise BadInput(
                f"{self.name}: test examples have shape {self.test.features.shape[1:]}, training ones {shape}."
            )
        if self.train.features.dtype != self.test.features.dtype:
            kinds = f"{self.test.features.dtype}, training ones {self.train.features.dtype}"
            raise BadInput(f"{self.name}: test examples are {kinds}; store both alike.")
        if len(self.train) == 0 or len(self.test) == 0:
            raise BadInput(
                f"{self.name} has {len(self.train)} training and {len(self.test)} test examples; it needs both."
            )
        if len(self.class_names) != self.num_classes:
            raise BadInput(f"{self.name} has {self.num_classes} classes and {len(self.class_names)} names for them.")
        for part, examples in (("training", self.train), ("test", self.test)):
            require_labels_below(examples.labels, self.num_classes, f"{self.name}: {part}")
        channels = shape[-1] if len(shape) == 3 else 1
        if not len(self.mean) == len(self.std) == channels or min(self.std) <= 0:
            raise BadInput(
                f"{self.name}: mean and std need {channels} entries, std above 0; got {self.mean}, {self.std}."
            )
        if self.users is not None and len(self.users) != len(self.train):
            raise BadInput(f"{self.name}: {len(self.users):,} users for {len(self.train):,} training examples.")


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
        at = int(np.argmax(labels < 0))
        raise BadInput(f"label {int(labels[at])} of example {at} is out of range: classes are counted from 0.")
    return labels.astype(np.int64)


def require_labels_below(labels: Labels, num_classes: int, whose: str) -> None:
    """Raises with the first label that names no class."""
    if len(labels) and labels.max() >= num_classes:
        at = int(np.argmax(labels >= num_classes))
        raise BadInput(f"{whose} label {int(labels[at])} of example {at} is out of range 0 to {num_classes - 1}.")


def require_finite(features: Features, what: str) -> None:
    """Raises with the first example that holds NaN or an infinity."""
    if features.dtype.kind != "f":
        return
    for first in range(0, len(features), ROWS_AT_ONCE):
        block = features[first : first + ROWS_AT_ONCE]
        sound = np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if not sound.all():
            at = first + int(np.argmin(sound))
            raise BadInput(f"{what} of example {at} hold NaN or an infinity. Correct the example, or leave it out.")


def unchangeable(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: no copy, and the caller's own array stays as it is."""
    view = array.view()
    view.setflags(write=False)
    return view
