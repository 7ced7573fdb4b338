"""Data sets by name: what is known of each, and where its files are found and verified."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mppfl.data.dataset import Dataset, Examples, Form, KnownSet, require_labels_below
from mppfl.data.formats import (
    FILES,
    plain_or_gzipped,
    read_binary,
    read_idx,
    read_images,
    read_mat,
    read_npz,
    read_pickled,
    read_user_npz,
)
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.exports import require
from mppfl.text import nearest, one_line, shown_path

Source = Literal["auto", "files", "hub"]
Parts = tuple[Examples, Examples, str]  # train, test, provenance
VARIABLE = "MPPFL_DATA"
DIGITS_BRIGHTEST = 16.0
log = logging.getLogger(__name__)

_TEN_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_HUNDRED_THINGS = (  # alphabetical, as in the official `meta`
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle "
    "caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man "
    "maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train "
    "trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)


def _idx(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _batches(suffix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """CIFAR-10's files to train and to test."""
    return tuple(f"data_batch_{number}{suffix}" for number in range(1, 6)), (f"test_batch{suffix}",)


# Provenance of files whose checksums are not known.
_COUNTED = "{} files; counts of every class verified, pixels not: no checksums are known for these files"
_OF_NPZ = ".npz files; counts of every class verified, pixels not held against the official files"
_OF_FOLDERS = "image folders train, test; counts verified, pixels not: no checksums"
_RE_CROPPED = (
    "re-cropped from the full-number images; counts of every class official, pixels not those of the .mat files"
)


def _npz(name: str, unverified: str = _OF_NPZ) -> Form:
    return Form(".npz", (name,), FILES[:1], FILES[1:], read_npz, unverified)


SETS = (
    KnownSet(
        name="digits",
        what="handwritten digits, 8 x 8 grey; comes with scikit-learn",
        licence="CC BY 4.0",
        source="https://archive.ics.uci.edu/dataset/80",
        shape=(8, 8, 1),
        class_names=tuple("0123456789"),
        train_counts=(142, 145, 141, 146, 144, 145, 144, 143, 139, 144),
        test_counts=(36, 37, 36, 37, 37, 37, 37, 36, 35, 36),
        mean=(0.3053,),  # of all 1,797 images, pixels 0 to 16 divided by 16
        std=(0.3760,),
    ),
    KnownSet(
        name="fashion-mnist",
        what="articles of clothing, 28 x 28 grey",
        licence="MIT",
        source="https://github.com/zalandoresearch/fashion-mnist",
        shape=(28, 28, 1),
        class_names=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        train_counts=(6000,) * 10,
        test_counts=(1000,) * 10,
        mean=(0.2860,),
        std=(0.3530,),
        forms=(
            Form("idx", ("fashion-mnist", "FashionMNIST/raw", ""), _idx("train"), _idx("t10k"), read_idx),
            _npz("fashion-mnist"),
        ),
        hub=("fashion_mnist",),
        md5={  # of the idx files inside; the .gz of the authors have 8d4fb7e6..., 25c81989..., bef4ecab..., bb300cfd...
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
    ),
    KnownSet(
        name="cifar-10",
        what="photographs of ten kinds of things, 32 x 32 colour",
        licence="none stated; cite Krizhevsky 2009",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        shape=(32, 32, 3),
        class_names=_TEN_THINGS,
        train_counts=(5000,) * 10,
        test_counts=(1000,) * 10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        forms=(
            Form("binary", ("cifar-10-batches-bin", "cifar-10", ""), *_batches(".bin"), read_binary),
            Form("python", ("cifar-10-batches-py", "cifar-10", ""), *_batches(""), read_pickled),
            _npz("cifar-10"),
        ),
        hub=("cifar10",),
        hub_columns=("img", "label"),
        md5={
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            # Batches 2 to 5: computed from files whose batch 1 and test batch have the official sums.
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            # The python form: the sums that torchvision.datasets.CIFAR10 verifies.
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    KnownSet(
        name="cifar-100",
        what="photographs of a hundred kinds of things, 32 x 32 colour",
        licence="none stated; cite Krizhevsky 2009",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        shape=(32, 32, 3),
        class_names=tuple(_HUNDRED_THINGS.split()),
        train_counts=(500,) * 100,
        test_counts=(100,) * 100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        forms=(
            Form("binary", ("cifar-100-binary",), ("train.bin",), ("test.bin",), read_binary),
            Form("python", ("cifar-100-python",), ("train",), ("test",), read_pickled),
            _npz("cifar-100"),
        ),
        hub=("cifar100",),
        hub_columns=("img", "fine_label"),
        md5={  # the sums that torchvision.datasets.CIFAR100 verifies; none are published for the unpacked binaries
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    ),
    KnownSet(
        name="svhn",
        what="house numbers cropped to single digits, 32 x 32 colour",
        licence="non-commercial use only; cite Netzer et al. 2011",
        source="http://ufldl.stanford.edu/housenumbers",
        shape=(32, 32, 3),
        class_names=tuple("0123456789"),
        train_counts=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        test_counts=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        forms=(
            Form(".mat", ("svhn", ""), ("train_32x32.mat",), ("test_32x32.mat",), read_mat),
            _npz("svhn", _RE_CROPPED),
        ),
        hub=("svhn", "cropped_digits"),
        md5={  # the sums that torchvision.datasets.SVHN verifies
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    KnownSet(
        name="cinic-10",
        what="CIFAR-10's classes from CIFAR-10 and ImageNet, 32 x 32 colour",
        licence="CC BY 4.0 (ImageNet part: ImageNet's terms)",
        source="https://datashare.ed.ac.uk/handle/10283/3192",
        shape=(32, 32, 3),
        class_names=_TEN_THINGS,
        train_counts=(9000,) * 10,
        test_counts=(9000,) * 10,
        mean=(0.4789, 0.4723, 0.4305),
        std=(0.2421, 0.2383, 0.2587),
        forms=(
            Form("image folders", ("cinic-10", "CINIC-10"), ("train",), ("test",), read_images, _OF_FOLDERS),
            _npz("cinic-10"),
        ),
        hub=("flwrlabs/cinic10",),
    ),
)

KNOWN: Mapping[str, KnownSet] = {known.name: known for known in SETS}


@dataclass(frozen=True, slots=True)
class Found:
    """A form of a data set, and the folder that holds some of its files."""

    form: Form
    folder: Path

    @property
    def missing(self) -> tuple[str, ...]:
        """Files of the form that are not in the folder."""
        return tuple(file for file in self.form.files if plain_or_gzipped(self.folder / file) is None)


def load_dataset(name: str, folder: str | Path | None = None, *, source: Source = "auto") -> Dataset:
    """A data set by name, or a user's own by the path of its .npz.

    Args:
        name: "digits" (part of scikit-learn), "fashion-mnist", "cifar-10", "cifar-100", "svhn", "cinic-10", or the path
            of an .npz with arrays x_train, y_train, x_test, y_test (and perhaps users, class_names).
        folder: Folder with the official files, or one above it; by default the environment variable MPPFL_DATA.
        source: "files", "hub" (Hugging Face), or "auto": files, or the hub where there are none and mppfl[hub] is
            installed.

    Returns:
        The data set. Checksums are verified where they are known, counts of every class always.

    Raises:
        BadFile: Files that are missing, damaged or not the official ones.
        BadInput: A name that is not known, with the nearest one that is.
        MissingExtra: scikit-learn is not installed, and "digits" needs it.

    Example:
        >>> load_dataset("digits")
        Dataset: digits, 1,433 training and 364 test examples, 10 classes
          examples     (8, 8, 1) float32
          provenance   scikit-learn
    """
    if source not in ("auto", "files", "hub"):
        raise BadInput(f'source={source!r} must be "auto", "files" or "hub".')
    if name.endswith(".npz"):
        if source == "hub":
            raise BadInput(f"{name} is a file; the hub has none of that name.")
        return read_user_npz(Path(name))
    facts = known_set(name)
    if name == "digits":
        return _dataset(facts, _read_digits(facts), "scikit-learn's digits")
    files = None if source == "hub" else find_files(name, folder)
    if files is None:
        if source == "files" or (source == "auto" and not has_hub()):
            raise BadFile(_nowhere(facts, folder))
        if source == "auto":
            log.warning("%s is in no folder here; loading it from the Hugging Face hub", name)
        return _dataset(facts, read_hub(facts), "the hub")
    if files.missing:
        raise BadFile(f"{what_is_missing(name, files)}. {_remedy(facts)}")
    return _dataset(facts, _read_files(files, facts), shown_path(files.folder))


def known_set(name: str) -> KnownSet:
    """What is known of a data set. Raises with the nearest name where there is none."""
    if name in KNOWN:
        return KNOWN[name]
    near = nearest(name.lower().replace("_", "-"), KNOWN)
    hint = f"Did you mean {near!r}?" if near else f"Known: {', '.join(KNOWN)}; or give the path of an .npz."
    raise BadInput(f"data set {name!r} is not known. {hint}")


def find_files(name: str, folder: str | Path | None = None) -> Found | None:
    """The first form of a data set of which there are any files; None where there are none."""
    root = _root(folder)
    if root is None:
        return None
    places = (
        Found(form, folder)
        for form in known_set(name).forms
        for folder in (*(root / sub for sub in form.folders), *([root] if root.name in form.folders else []))
    )
    return next((place for place in places if len(place.missing) < len(place.form.files)), None)


def what_is_missing(name: str, files: Found) -> str:
    """The files that the data set lacks in the folder that has some of them, as the beginning of a line."""
    verb = "is" if len(files.missing) == 1 else "are"
    return f"{', '.join(files.missing)} of {name} {verb} missing in {shown_path(files.folder)}"


def _root(folder: str | Path | None) -> Path | None:
    path = folder if folder is not None else os.environ.get(VARIABLE)
    return Path(path).expanduser() if path else None


def _nowhere(facts: KnownSet, folder: str | Path | None) -> str:
    root = _root(folder)
    if root is None:
        return f"{facts.name} is not here: no folder was given, and {VARIABLE} is not set. {_remedy(facts)}"
    if not root.is_dir():
        return f"{facts.name} is not here: {shown_path(root)} is no folder. {_remedy(facts)}"
    looked_for = ", ".join(f"{form.folders[0]}/{form.train[0]}" for form in facts.forms)
    return f"{facts.name} was not found in {shown_path(root)}: looked for {looked_for}. {_remedy(facts)}"


def _remedy(facts: KnownSet) -> str:
    return (
        f"Point {VARIABLE} at the official files ({facts.source}), or install mppfl[hub] and run "
        f"`mppfl data get {facts.name}`."
    )


def _read_files(files: Found, facts: KnownSet) -> Parts:
    """Both parts, and what of the files was verified: checksums where all are known, else counts alone."""
    form, parts, stated = files.form, [], ""
    for names in (form.train, form.test):
        paths = [plain_or_gzipped(files.folder / name) or files.folder / name for name in names]
        examples, stated = form.read(paths, facts)
        parts.append(examples)
    if all(name in facts.md5 for name in form.files):
        provenance = f"official {form.what} files, checksums verified"
    else:
        provenance = f"{stated}, kept as .npz" if stated else form.unverified or _COUNTED.format(form.what)
    if form.read is read_npz and (np.diff(parts[0].labels) >= 0).all():
        provenance += "; rows sorted by class"
    return parts[0], parts[1], provenance


def _dataset(facts: KnownSet, parts: Parts, where: str) -> Dataset:
    """The parts as a data set, if shapes and counts are those of the published one."""
    train, test, provenance = parts
    for part, examples, counts in (("train", train, facts.train_counts), ("test", test, facts.test_counts)):
        what = f"{facts.name} ({part}, from {where})"
        if examples.features.shape[1:] != facts.shape:
            raise BadFile(f"{what} has examples of shape {examples.features.shape[1:]}, expected {facts.shape}.")
        try:
            require_labels_below(examples.labels, facts.num_classes, f"{what}:")
        except BadInput as cause:
            raise BadFile(str(cause)) from cause
        if len(examples) != sum(counts):
            raise BadFile(f"{what} has {len(examples):,} examples, expected {sum(counts):,}. Fetch it again.")
        counted = np.bincount(examples.labels, minlength=facts.num_classes)
        wrong = np.flatnonzero(counted != counts)
        if len(wrong):
            first = int(wrong[0])
            raise BadFile(
                f"{what} has {counted[first]:,} examples of {facts.class_names[first]!r}, expected {counts[first]:,} "
                f"({len(wrong)} such classes). Fetch it again."
            )
    return Dataset(facts.name, train, test, facts.class_names, provenance, facts.mean, facts.std)


def _read_digits(facts: KnownSet) -> Parts:
    """1,797 images: of each digit the first and then every fifth for testing (364), the rest for training (1,433)."""
    require("sklearn")
    digits = import_module("sklearn.datasets").load_digits()
    images = (digits.images / DIGITS_BRIGHTEST).astype(np.float32).reshape(-1, *facts.shape)
    is_test = np.zeros(len(images), dtype=bool)
    for digit in range(facts.num_classes):
        is_test[np.flatnonzero(digits.target == digit)[::5]] = True
    train, test = (Examples(images[rows], digits.target[rows]) for rows in (~is_test, is_test))
    return train, test, "scikit-learn"


def has_hub() -> bool:
    """Whether the `datasets` library is installed; a mere folder of that name is none."""
    spec = find_spec("datasets")
    return spec is not None and spec.origin is not None


def read_hub(facts: KnownSet) -> Parts:
    """The training and the test part from the hub, or from its cache on this machine."""
    if not facts.hub:
        raise BadInput(f'{facts.name} is not taken from the hub; load it with source="auto".')
    if not has_hub():
        raise MppflError(
            f"{facts.name} from the hub needs the `datasets` library, which is not installed. "
            "Run pip install 'mppfl[hub]', or point MPPFL_DATA at the official files."
        )
    try:
        load = import_module("datasets").load_dataset
        tables = [load(*facts.hub, split=part) for part in ("train", "test")]
    except Exception as cause:  # no network, no such data set, a full disk: the library has an error for each
        raise MppflError(
            f"the hub did not give {facts.hub[0]!r} ({one_line(cause)}). Check the network, or point MPPFL_DATA at the "
            f"official files ({facts.source})."
        ) from cause
    train, test = (_hub_examples(table, facts) for table in tables)
    return train, test, f"Hugging Face hub, {facts.hub[0]}; counts of every class verified"


def _hub_examples(table: Any, facts: KnownSet) -> Examples:
    """Images one by one into one array: a list of them would take several times the memory."""
    mode = "RGB" if facts.shape[2] == 3 else "L"
    images = np.empty((len(table), *facts.shape), dtype=np.uint8)
    labels = np.empty(len(table), dtype=np.int64)
    for row, example in enumerate(table):
        if not set(facts.hub_columns) <= set(example):
            raise BadFile(f"the hub's {facts.name} has columns {', '.join(sorted(example))}; others were expected.")
        image, label = (example[column] for column in facts.hub_columns)
        pixels = np.asarray(image.convert(mode))
        if pixels.size != images[row].size:
            raise BadFile(f"image {row} of the hub's {facts.name} has shape {pixels.shape}, not {facts.shape}.")
        images[row], labels[row] = pixels.reshape(facts.shape), label
    return Examples(images, labels)
