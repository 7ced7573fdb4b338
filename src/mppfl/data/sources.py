"""Data sets by name: from official files, .npz or the hub, verified; scikit-learn's digits need nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np

from mppfl.data import cifar, idx, npz, svhn
from mppfl.data.dataset import Dataset, Examples, model_inputs, require_labels_below
from mppfl.data.digits import read_digits
from mppfl.data.files import plain_or_gzipped
from mppfl.data.hub import has_hub, read_hub
from mppfl.data.image_folder import read_cinic
from mppfl.data.known import KNOWN, KnownSet
from mppfl.errors import BadFile, BadInput
from mppfl.text import shown_path

__all__ = ["Dataset", "Examples", "Found", "Source", "find_files", "load_data", "model_inputs", "what_is_missing"]

Source = Literal["auto", "files", "hub"]
Parts = tuple[Examples, Examples, str]  # train, test, provenance
VARIABLE = "MPPFL_DATA"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a data set may lie in a folder: which files, in which of these folders."""

    what: str
    folders: tuple[str, ...]  # "" where the names of the files tell the data set
    files: tuple[str, ...]
    read: Callable[[Path, KnownSet], Parts]


@dataclass(frozen=True, slots=True)
class Found:
    """A form of a data set, and the folder where some of it lies."""

    form: Form
    folder: Path

    @property
    def missing(self) -> tuple[str, ...]:
        """Files of the form that are not in the folder."""
        return tuple(file for file in self.form.files if plain_or_gzipped(self.folder, file) is None)


def _npz(name: str) -> Form:
    return Form(".npz", (name,), npz.FILES, npz.read_known_npz)


_TEN_BATCHES = (*cifar.BATCHES, "test_batch")
_IN_BINARY = tuple(f"{name}.bin" for name in _TEN_BATCHES)

FORMS: dict[str, tuple[Form, ...]] = {
    "fashion-mnist": (
        Form("idx", ("fashion-mnist", "FashionMNIST/raw", ""), sum(idx.FILES.values(), ()), idx.read_idx_set),
        _npz("fashion-mnist"),
    ),
    "cifar-10": (
        Form("binary", ("cifar-10-batches-bin", "cifar-10", ""), _IN_BINARY, cifar.read_cifar_10_binary),
        Form("python", ("cifar-10-batches-py", "cifar-10", ""), _TEN_BATCHES, cifar.read_cifar_10_python),
        _npz("cifar-10"),
    ),
    "cifar-100": (
        Form("binary", ("cifar-100-binary",), ("train.bin", "test.bin"), cifar.read_cifar_100_binary),
        Form("python", ("cifar-100-python",), ("train", "test"), cifar.read_cifar_100_python),
        _npz("cifar-100"),
    ),
    "svhn": (Form(".mat", ("svhn", ""), svhn.FILES, svhn.read_svhn_mat), _npz("svhn")),
    "cinic-10": (
        Form("image folders", ("cinic-10", "CINIC-10"), ("train", "test"), read_cinic),
        _npz("cinic-10"),
    ),
}


def load_data(name: str, folder: str | Path | None = None, *, source: Source = "auto") -> Dataset:
    """A data set by name, or a user's own by the path of its .npz.

    name    digits (comes with scikit-learn), fashion-mnist, cifar-10, cifar-100, svhn, cinic-10, or a path
    folder  where the files lie, or a folder above; without it, the environment variable MPPFL_DATA
    source  "files", "hub", or "auto": files, or the hub where there are none and mppfl[hub] is installed

    Checksums are verified where they are known, counts of every class always. Raises BadFile for what is missing,
    damaged or something else, BadInput for a name that is not known.
    """
    if source not in ("auto", "files", "hub"):
        raise BadInput(f'source={source!r} must be "auto", "files" or "hub".')
    if name.endswith(".npz"):
        if source == "hub":
            raise BadInput(f"{name} is a file; the hub has none of that name.")
        return npz.read_user_npz(Path(name))
    known = known_set(name)
    if name == "digits":
        return _dataset(known, read_digits(known), "scikit-learn's digits")
    if source == "hub":
        return _dataset(known, read_hub(known), "the hub")
    found = find_files(name, folder)
    if found is None:
        if source == "files" or not has_hub():
            raise BadFile(_nowhere(known, folder))
        log.warning("%s is in no folder here; loading it from the Hugging Face hub", name)
        return _dataset(known, read_hub(known), "the hub")
    if found.missing:
        raise BadFile(f"{what_is_missing(name, found)}. {_remedy(known)}")
    return _dataset(known, found.form.read(found.folder, known), shown_path(found.folder))


def known_set(name: str) -> KnownSet:
    """What is known of a data set. Raises with the nearest names where there is none."""
    if name in KNOWN:
        return KNOWN[name]
    near = get_close_matches(name.lower().replace("_", "-"), KNOWN, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(KNOWN)}; or give the path of an .npz."
    raise BadInput(f"data set {name!r} is not known. {hint}")


def find_files(name: str, folder: str | Path | None = None) -> Found | None:
    """Where files of a data set lie, in the first form of which there is any; None where there are none."""
    root = _root(folder)
    if root is None:
        return None
    for form in FORMS.get(name, ()):
        for place in _places(root, form):
            if any(plain_or_gzipped(place, file) for file in form.files):
                return Found(form, place)
    return None


def what_is_missing(name: str, found: Found) -> str:
    """Which files the data set lacks in the folder that has some of them, as the beginning of a line."""
    verb = "is" if len(found.missing) == 1 else "are"
    return f"{', '.join(found.missing)} of {name} {verb} missing in {shown_path(found.folder)}"


def _root(folder: str | Path | None) -> Path | None:
    given = folder if folder is not None else os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else None


def _places(root: Path, form: Form) -> list[Path]:
    """The form's folders under the root, and the root itself where it has such a name."""
    return [*(root / sub for sub in form.folders), *([root] if root.name in form.folders else [])]


def _nowhere(known: KnownSet, folder: str | Path | None) -> str:
    root = _root(folder)
    if root is None:
        return f"{known.name} is not here: no folder was given, and {VARIABLE} is not set. {_remedy(known)}"
    if not root.is_dir():
        return f"{known.name} is not here: {shown_path(root)} is no folder. {_remedy(known)}"
    wanted = ", ".join(f"{form.folders[0]}/{form.files[0]}" for form in FORMS[known.name])
    return f"{known.name} was not found in {shown_path(root)}: looked for {wanted}. {_remedy(known)}"


def _remedy(known: KnownSet) -> str:
    return (
        f"Point {VARIABLE} at the official files ({known.source}), or install mppfl[hub] and run "
        f"`mppfl data get {known.name}`."
    )


def _dataset(known: KnownSet, parts: Parts, where: str) -> Dataset:
    """The parts as a data set, if they hold what is known of it."""
    train, test, provenance = parts
    for part, examples, counts in (("train", train, known.train_counts), ("test", test, known.test_counts)):
        _require_counts(examples, counts, f"{known.name} ({part}, from {where})", known)
    return Dataset(known.name, train, test, known.num_classes, known.class_names, provenance, known.mean, known.std)


def _require_counts(examples: Examples, counts: tuple[int, ...], what: str, known: KnownSet) -> None:
    if examples.features.shape[1:] != known.shape:
        raise BadFile(f"{what} has examples of shape {examples.features.shape[1:]}, expected {known.shape}.")
    try:
        require_labels_below(examples.labels, known.num_classes, f"{what}:")
    except BadInput as cause:
        raise BadFile(str(cause)) from cause
    if len(examples) != sum(counts):
        raise BadFile(f"{what} has {len(examples):,} examples, expected {sum(counts):,}. Fetch it again.")
    found = np.bincount(examples.labels, minlength=known.num_classes)
    wrong = np.flatnonzero(found != counts)
    if len(wrong):
        first = int(wrong[0])
        raise BadFile(
            f"{what} has {found[first]:,} examples of {known.class_names[first]!r}, expected {counts[first]:,} "
            f"({len(wrong)} such classes). Fetch it again."
        )
