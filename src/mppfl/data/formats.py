"""File formats of data sets: idx, CIFAR, SVHN's .mat, image folders, .npz; with checksums and one-line errors."""

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


def bytes_of(path: Path, md5: Mapping[str, str]) -> bytes:
    """Content of the file, unzipped if it is gzipped; its checksum must be the one in `md5`, where there is one."""
    with failures_in_one_line(path):
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    require_md5(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), md5)
    return content


def verify_md5(path: Path, md5: Mapping[str, str]) -> None:
    """Compares the checksum of a file too large for memory with the one in `md5`, where there is one."""
    if path.name not in md5:
        return
    with failures_in_one_line(path), open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    require_md5(path, digest, md5)


def require_md5(path: Path, md5_of_content: str, md5: Mapping[str, str]) -> None:
    expected = md5.get(path.name.removesuffix(".gz"), md5_of_content)
    if md5_of_content != expected:
        held = "what it holds has" if path.suffix == ".gz" else "it has"
        raise BadFile(
            f"{shown_path(path)} is not the official file: {held} md5 {md5_of_content}, expected {expected}. "
            "Fetch it again."
        )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's name before an error in its content."""
    try:
        yield
    except BadInput as cause:
        raise BadFile(f"{shown_path(path)}: {cause}") from cause


def plain_or_gzipped(folder: Path, name: str) -> Path | None:
    """The file of that name, or its gzipped form, if either is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if os.path.lexists(path)), None)


UNSIGNED_BYTES = 0x08
IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def read_idx_set(folder: Path, record: KnownSet) -> tuple[Examples, Examples, str]:
    """The training and the test part of four idx files."""
    train, test = (_idx_examples(folder, names, record) for names in IDX_FILES.values())
    return train, test, "official idx files, checksums verified" if record.md5 else "idx files, no checksums known"


def _idx_examples(folder: Path, names: tuple[str, str], record: KnownSet) -> Examples:
    pixels, labels = (read_idx(plain_or_gzipped(folder, name) or folder / name, record.md5) for name in names)
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


SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")


def read_svhn_mat(folder: Path, record: KnownSet) -> tuple[Examples, Examples, str]:
    """The training and the test part; the "extra" part is not used."""
    train, test = (_svhn_examples(folder / name, record) for name in SVHN_FILES)
    verified = all(name in record.md5 for name in SVHN_FILES)
    return train, test, "official .mat files, checksums verified" if verified else ".mat files, no checksums known"


def _svhn_examples(path: Path, record: KnownSet) -> Examples:
    from scipy.io import loadmat

    verify_md5(path, record.md5)
    with failures_in_one_line(path), open(path, "rb"):
        pass  # SciPy would look for other names
    try:
        arrays = loadmat(path, variable_names=("X", "y"))
        pixels, labels = arrays["X"], arrays["y"].astype(np.int64).ravel()
    except Exception as cause:  # a damaged file fails in whatever part of SciPy meets the damage
        raise BadFile(f"{shown_path(path)} holds no arrays X and y that SciPy can read ({one_line(cause)}).") from cause
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != len(labels):
        raise BadFile(f"{shown_path(path)} has X of {pixels.dtype} {pixels.shape} for {len(labels):,} labels.")
    wrong = (labels < 1) | (labels > 10)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadFile(f"{shown_path(path)}: label {int(labels[row])} of example {row} is out of range 1 to 10.")
    return Examples(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), labels % 10)


def read_cinic(folder: Path, record: KnownSet) -> tuple[Examples, Examples, str]:
    """Train and test as published, 90,000 images each, of CINIC-10's folders train|valid|test/<class>/*.png."""
    train, test = (_image_folder(folder / part, record) for part in ("train", "test"))
    return train, test, "image folders train, test; counts verified, pixels not: no checksums"


def _image_folder(folder: Path, record: KnownSet) -> Examples:
    """The images under <folder>/<class>/*.png, class by class, in order of their names."""
    paths = [_images_in(folder / name) for name in record.class_names]
    labels = np.repeat(np.arange(len(paths)), [len(listed) for listed in paths])
    images = np.empty((len(labels), *record.shape), dtype=np.uint8)
    for row, path in enumerate(path for listed in paths for path in listed):
        images[row] = _pixels(path, record.shape)
    return Examples(images, labels)


def _images_in(folder: Path) -> list[Path]:
    with failures_in_one_line(folder):
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png")
    if not paths:
        raise BadFile(f"{shown_path(folder)} holds no .png image; every class needs some. Unpack the archive again.")
    return paths


def _pixels(path: Path, shape: tuple[int, int, int]) -> Any:
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as image:
            if (image.height, image.width) != shape[:2]:  # before anything is unpacked
                raise BadFile(f"{shown_path(path)} is {image.height} x {image.width}, not {shape[0]} x {shape[1]}.")
            return np.asarray(image.convert("RGB" if shape[2] == 3 else "L")).reshape(shape)
    except BadFile:
        raise
    except Exception as cause:  # Pillow meets damage with errors of many kinds
        raise BadFile(
            f"{shown_path(path)} is no readable PNG ({one_line(cause)}). Unpack the archive again."
        ) from cause


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


def dictionary_of_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of plain values and arrays. `path` is for messages."""
    try:
        values = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
        return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in values.items()}
    except Exception as cause:  # a damaged pickle fails in whatever opcode meets the damage
        raise BadFile(
            f"{shown_path(path)} is no pickle that can be read safely ({one_line(cause)}). Fetch it again."
        ) from cause


SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE
CIFAR_FILES = {
    "cifar-10": (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    "cifar-100": ("train", "test"),
}
Batch = tuple[NDArray[np.uint8], Any]  # pixels [n, 3072], labels [n]


def read_cifar_binary(folder: Path, record: KnownSet) -> tuple[Examples, Examples, str]:
    """Rows of labels and 3,072 bytes of red, green, blue; of CIFAR-100's coarse and fine label the fine one counts."""
    names = [f"{name}.bin" for name in CIFAR_FILES[record.name]]
    num_labels = 1 if record.name == "cifar-10" else 2
    return _cifar([_binary(folder / name, record, num_labels) for name in names], "binary", names, record)


def read_cifar_python(folder: Path, record: KnownSet) -> tuple[Examples, Examples, str]:
    names = CIFAR_FILES[record.name]
    label_key = "labels" if record.name == "cifar-10" else "fine_labels"
    return _cifar([_pickled(folder / name, record, label_key) for name in names], "python", names, record)


def _cifar(batches: list[Batch], form: str, names: Sequence[str], record: KnownSet) -> tuple[Examples, Examples, str]:
    verified = f"official {form} files, checksums verified"
    counted = f"{form} files; counts of every class verified, pixels not: no checksums are known for these files"
    provenance = verified if all(name in record.md5 for name in names) else counted
    return _joined(batches[:-1]), _joined(batches[-1:]), provenance


def _binary(path: Path, record: KnownSet, num_labels: int) -> Batch:
    content = np.frombuffer(bytes_of(path, record.md5), np.uint8)
    width = num_labels + PIXELS
    if len(content) == 0 or len(content) % width:
        raise BadFile(
            f"{shown_path(path)} holds {len(content):,} bytes, which is no whole number of rows of {width:,}. "
            "Fetch it again."
        )
    rows = content.reshape(-1, width)
    return rows[:, num_labels:], rows[:, num_labels - 1]


def _pickled(path: Path, record: KnownSet, label_key: str) -> Batch:
    content = dictionary_of_pickle(bytes_of(path, record.md5), path)
    pixels, labels = content.get("data"), content.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise BadFile(f"{shown_path(path)} has no array 'data' of {PIXELS:,} bytes a row. Fetch it again.")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(label) is int for label in labels):
        raise BadFile(f"{shown_path(path)} has no list {label_key!r} of {len(pixels):,} whole numbers. Fetch it again.")
    return pixels, labels


def _joined(batches: list[Batch]) -> Examples:
    """Batches one after another as images: channels come first in the files, last in Examples."""
    images = [pixels.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1) for pixels, _ in batches]
    labels = [np.asarray(labels, dtype=np.int64) for _, labels in batches]
    return Examples(np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels))


FILES = ("train.npz", "test.npz")
RE_CROPPED = (
    "re-cropped from the full-number images; counts of every class official, pixels not those of the .mat files"
)
UNVERIFIED = ".npz files; counts of every class verified, pixels not held against the official files"
USER_KEYS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)


def read_known_npz(folder: Path, record: KnownSet) -> tuple[Examples, Examples, str]:
    """`images` and `labels` of train.npz and test.npz; their `provenance` is passed on where they state one."""
    parts, stated = [], ""
    for name in FILES:
        arrays = arrays_of(folder / name, ("images", "labels"), ("provenance",))
        with naming(folder / name):
            parts.append(Examples(_bytes_of(arrays["images"]), arrays["labels"]))
        stated = str(arrays["provenance"]) if "provenance" in arrays else ""
    unstated = RE_CROPPED if record.name == "svhn" else UNVERIFIED
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
        present = set(archive.files)
    keys = next((keys for keys in USER_KEYS if set(keys) <= present), None)
    if keys is None:
        raise BadFile(
            f"{shown_path(path)} needs the arrays {', '.join(USER_KEYS[0])} or {', '.join(USER_KEYS[1])}; "
            f"it has {', '.join(sorted(present)) or 'none'}."
        )
    arrays = arrays_of(path, keys, ("users", "class_names"))
    with naming(path):
        train, test = ((arrays[x], arrays[y]) for x, y in (keys[:2], keys[2:]))
        users, names = arrays.get("users"), arrays.get("class_names")
        if names is not None and (names.ndim != 1 or names.dtype.kind not in "US"):
            raise BadInput(f"class_names must be text, one a class; got {names.dtype} of shape {names.shape}.")
        if users is not None and (users.ndim != 1 or users.dtype.kind not in "iuUS"):
            raise BadInput(f"users must be one name a training example, got {users.dtype} of shape {users.shape}.")
        texts = [None if values is None else tuple(map(_text, values)) for values in (names, users)]
        return own_dataset(path.stem, train, test, "the user's own .npz", *texts)


def arrays_of(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz by name; pickled objects in it are refused."""
    with _opened_npz(path) as archive:
        missing = sorted(set(needed) - set(archive.files))
        if missing:
            raise BadFile(f"{shown_path(path)} lacks the array {missing[0]!r}; it needs {', '.join(needed)}.")
        return {key: archive[key] for key in (*needed, *optional) if key in archive.files}


@contextmanager
def _opened_npz(path: Path) -> Iterator[Any]:
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


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
