"""load_dataset finds a data set by name, verifies it, and says in one line what is missing or wrong."""

import logging
import sys
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from pytest import approx

from mppfl.data import KNOWN, Dataset, Examples, find_files, load_dataset, model_inputs
from mppfl.errors import BadFile, BadInput, MissingExtra, MppflError
from tests.data.drawn import WAYS, draw, holds, small, written
from tests.homes import home


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch):
    """No folder from the environment, and no hub."""
    monkeypatch.delenv("MPPFL_DATA", raising=False)
    monkeypatch.setattr(home(find_files), "has_hub", lambda: False)


@pytest.fixture
def small_sets(monkeypatch):
    """The known data sets, cut down to what the tests draw."""
    cut = {name: small(name) for name in KNOWN if name != "digits"}
    monkeypatch.setattr(home(find_files), "KNOWN", cut)
    return cut


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", ["folder", "folder itself", "MPPFL_DATA"])
def test_every_set_is_found_in_every_form(tmp_path, monkeypatch, small_sets, way, by):
    name = way.split()[0]
    form, parts = WAYS[way][2], draw(KNOWN[name].shape)
    place = {"folder": tmp_path, "folder itself": written(way, tmp_path, parts)}.get(by)
    if by == "MPPFL_DATA":
        monkeypatch.setenv("MPPFL_DATA", str(tmp_path))
    assert find_files(name, place).form.what == form
    dataset = load_dataset(name, place)
    assert holds(dataset, parts, by_class=form == "image folders")
    assert (dataset.num_classes, dataset.mean, dataset.std) == (3, KNOWN[name].mean, KNOWN[name].std)
    assert dataset.users is None
    assert form.strip(".") in dataset.provenance or "re-cropped" in dataset.provenance


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "digits"])
def test_what_is_not_here_is_told_with_where_it_was_looked_for_and_how_to_get_it(tmp_path, name):
    for folder, words in ((None, "MPPFL_DATA is not set"), (tmp_path / "no", "is no folder"), (tmp_path, "looked for")):
        with pytest.raises(BadFile, match=words) as caught:
            load_dataset(name, folder)
        assert KNOWN[name].source in str(caught.value)
        assert f"mppfl data get {name}" in str(caught.value)


def test_files_of_something_else_are_refused_by_their_checksum_and_a_missing_one_by_its_name(tmp_path):
    written("fashion-mnist", tmp_path)
    with pytest.raises(BadFile, match=r"train-images-idx3-ubyte\.gz is not the official file: what it holds has md5"):
        load_dataset("fashion-mnist", tmp_path)
    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    missing = r"t10k-labels-idx1-ubyte of fashion-mnist is missing in .*/fashion-mnist\. Point"
    with pytest.raises(BadFile, match=missing):
        load_dataset("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_counts": (3, 2, 5)}, r"train, from .*cifar-100\) has 9 examples, expected 10"),
        ({"test_counts": (2, 1, 1)}, r"test, .* has 1 examples of 'apple', expected 2 \(2 such classes\)"),
        ({"class_names": ("a", "b")}, r"label 2 of example \d is out of range 0 to 1"),
        ({"shape": (28, 28, 3)}, r"examples of shape \(32, 32, 3\), expected \(28, 28, 3\)"),
    ],
)
def test_another_number_of_examples_is_refused(tmp_path, monkeypatch, changes, words):
    written("cifar-100 as npz", tmp_path)
    monkeypatch.setattr(home(find_files), "KNOWN", {"cifar-100": small("cifar-100", **changes)})
    with pytest.raises(BadFile, match=words):
        load_dataset("cifar-100", tmp_path)


def test_the_catalogue_is_consistent():
    for name, known in KNOWN.items():
        num_classes = len(set(known.class_names))
        assert num_classes == len(known.class_names) == len(known.train_counts) == len(known.test_counts), name
        assert len(known.mean) == len(known.std) == known.shape[2], name
        assert all(len(md5) == 32 for md5 in known.md5.values())


def test_digits_need_nothing_but_scikit_learn_and_a_missing_extra_is_named(monkeypatch):
    digits = load_dataset("digits")
    assert digits.provenance == "scikit-learn"
    assert digits.train.features.shape == (1433, 8, 8, 1)
    inputs = np.concatenate([model_inputs(digits, part.features) for part in (digits.train, digits.test)])
    assert inputs.dtype == np.float32
    assert inputs.shape == (1797, 1, 8, 8)
    assert (inputs.mean(), inputs.std()) == approx((0.0, 1.0), abs=1e-3)  # the constants are those of the whole set
    with pytest.raises(MppflError, match=r"pip install 'mppfl\[hub\]'"):
        load_dataset("svhn", source="hub")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"sklearn is not installed. Run: pip install 'mppfl\[train\]'"):
        load_dataset("digits")


def tiny(features, mean, std):
    examples = Examples(np.asarray(features), np.zeros(len(features), dtype=np.int64))
    return Dataset("tiny", examples, examples, ("only",), "drawn", mean, std)


def test_images_are_standardised_by_channel_and_channels_come_first_while_flat_examples_stay_flat():
    pixels = np.zeros((5000, 2, 3, 2), dtype=np.uint8)  # more than are converted at once
    pixels[..., 0], pixels[-1, 1, 2, 1] = 255, 51
    inputs = model_inputs(tiny(pixels, (0.5, 0.2), (0.25, 0.1)), pixels)
    assert inputs.shape == (5000, 2, 2, 3)
    assert inputs[:, 0] == approx(2.0)  # (1 - 0.5) / 0.25
    assert inputs[0, 1] == approx(-2.0)  # (0 - 0.2) / 0.1
    assert inputs[-1, 1, 1, 2] == approx(0.0, abs=1e-6)  # (51 / 255 - 0.2) / 0.1
    rows = np.array([[1.0, 3.0], [5.0, 7.0]], dtype=np.float32)
    assert model_inputs(tiny(rows, (1.0,), (2.0,)), rows) == approx(np.array([[0.0, 1.0], [2.0, 3.0]]))
    with pytest.raises(BadInput, match=r"shape \(3,\) are none of tiny's"):
        model_inputs(tiny(rows, (1.0,), (2.0,)), np.zeros((1, 3)))


def test_a_data_set_cannot_exist_in_a_wrong_state():
    rows = np.zeros((2, 2), dtype=np.float32)
    with pytest.raises(BadInput, match="mean and std need 1 entries"):
        tiny(rows, (0.0, 0.0), (1.0, 1.0))
    for features, labels, words in (
        (rows, [0, 0, 0], "2 examples have 3 labels"),
        (rows, [0, -1], "label -1 of example 1"),
        (np.zeros(2), [0, 0], r"shape \(2,\) must be"),
        (np.array([["a"]]), [0], "must be numbers"),
        (np.array([[0.0], [1e300]]), [0, 0], "example 1 hold NaN or an infinity"),
    ):
        with pytest.raises(BadInput, match=words):
            Examples(features, np.array(labels))


def user_arrays(rng, shape, dtype):
    keys = {"x_train": (6, *shape), "x_test": (3, *shape)}
    arrays = {key: (rng.random(size) * 255).astype(dtype) for key, size in keys.items()}
    return {**arrays, "y_train": np.array([0, 1, 2, 0, 1, 2]), "y_test": np.array([[2], [1], [0]])}


@pytest.mark.parametrize(
    ("shape", "dtype", "stored", "inputs", "mean", "std"),
    [
        ((4, 5, 3), "uint8", "uint8", (3, 4, 5), (0.5,) * 3, (0.5,) * 3),
        ((4, 5), "uint8", "uint8", (1, 4, 5), (0.5,), (0.5,)),
        ((7,), "float64", "float32", (7,), (0.0,), (1.0,)),
        ((7,), "int64", "float32", (7,), (0.0,), (1.0,)),
        ((4, 5, 1), "float32", "float32", (1, 4, 5), (0.0,), (1.0,)),
    ],
)
def test_a_users_own_arrays_are_read_by_either_names(tmp_path, shape, dtype, stored, inputs, mean, std):
    path, arrays = tmp_path / "own.npz", user_arrays(np.random.default_rng(0), shape, dtype)
    np.savez(path, **arrays, users=np.array(list("aabbcc")))
    dataset = load_dataset(str(path))
    assert (dataset.name, dataset.num_classes, dataset.class_names) == ("own", 3, ("0", "1", "2"))
    assert (str(dataset.train.features.dtype), dataset.mean, dataset.std) == (stored, mean, std)
    assert dataset.test.labels.tolist() == [2, 1, 0]
    assert dataset.users == tuple("aabbcc")
    assert model_inputs(dataset, dataset.test.features).shape == (3, *inputs)
    renamed = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
    classes = ("cat", "dog", "owl", "never seen")
    np.savez(path, **{new: arrays[old] for new, old in renamed.items()}, class_names=np.array(classes))
    dataset = load_dataset(str(path))
    assert (dataset.class_names, dataset.users) == (classes, None)
    assert np.array_equal(dataset.train.features.ravel(), arrays["x_train"].astype(stored).ravel())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": None}, "needs the arrays x_train, y_train, x_test, y_test or train_images"),
        ({"x_train": np.zeros((6, 3, 32, 32), np.uint8)}, "channels first"),
        ({"x_test": np.zeros((3, 5))}, r"test examples have shape \(5,\), training ones \(4,\)"),
        ({"x_test": np.zeros((3, 4), np.uint8)}, "test examples are uint8, training ones float32"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 10**9])}, "Number the classes from 0"),
        ({"y_train": np.array(list("abcabc"))}, "labels must be whole numbers"),
        ({"class_names": np.array(["a", "b"])}, "label 2 of example 2 is out of range 0 to 1"),
        ({"class_names": np.array([1, 2, 3])}, "class_names must be text"),
        ({"users": np.array(["a"])}, "1 users for 6 training examples"),
        ({"users": np.zeros((6, 2))}, "users must be one name"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, "0 training and 3 test examples"),
    ],
)
def test_a_fault_in_a_users_own_file_is_told_with_its_name(tmp_path, changes, words):
    arrays = {**user_arrays(np.random.default_rng(0), (4,), "float64"), **changes}
    np.savez(tmp_path / "own.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(BadFile, match=words) as caught:
        load_dataset(str(tmp_path / "own.npz"))
    assert str(caught.value).startswith(str(tmp_path / "own.npz"))


def test_an_unknown_name_and_a_file_that_is_not_there_or_no_archive_are_refused(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    np.save(tmp_path / "alone.npy", np.zeros(3))
    (tmp_path / "alone.npy").rename(tmp_path / "alone.npz")
    for name, source, error, words in (
        ("Fashion_MNIST", "auto", BadInput, r"'Fashion_MNIST' is not known\. Did you mean 'fashion-mnist'\?"),
        ("weather", "auto", BadInput, "Known: digits, fashion-mnist"),
        ("digits", "web", BadInput, "source='web' must be \"auto\""),
        (str(tmp_path / "own.npz"), "auto", BadFile, "does not exist"),
        (str(tmp_path / "folder.npz"), "auto", BadFile, "is a directory"),
        (str(tmp_path / "alone.npz"), "auto", BadFile, r"is no \.npz"),
        (str(tmp_path / "own.npz"), "hub", BadInput, "is a file"),
    ):
        with pytest.raises(error, match=words):
            load_dataset(name, source=source)


@pytest.fixture
def hub(monkeypatch, small_sets):
    """A stand-in for the `datasets` library that hands out what the tests draw, and notes what it was asked for."""
    asked = []

    def load_dataset(*arguments, split):
        asked.append((*arguments, split))
        name = next(name for name, known in small_sets.items() if known.hub[:1] == arguments[:1])
        (image_column, label_column), (images, labels) = small_sets[name].hub_columns, draw(KNOWN[name].shape)[split]
        return [
            {image_column: Image.fromarray(image.squeeze()), label_column: int(label)}
            for image, label in zip(images, labels, strict=True)
        ]

    library = ModuleType("datasets")
    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setattr(home(find_files), "has_hub", lambda: True)
    return asked


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "digits"])
def test_the_hub_has_every_set_that_must_be_fetched(hub, name):
    dataset = load_dataset(name, source="hub")
    assert hub == [(*KNOWN[name].hub, part) for part in ("train", "test")]
    assert holds(dataset, draw(KNOWN[name].shape))
    assert "Hugging Face hub" in dataset.provenance


def test_files_come_before_the_hub_even_damaged_ones_and_going_there_is_announced(tmp_path, hub, caplog):
    folder = written("cifar-100 as npz", tmp_path)
    assert "npz" in load_dataset("cifar-100", tmp_path).provenance
    (folder / "train.npz").write_bytes(b"damaged")
    with pytest.raises(BadFile, match=r"train\.npz"):
        load_dataset("cifar-100", tmp_path)
    assert hub == []
    with caplog.at_level(logging.WARNING):
        assert "hub" in load_dataset("svhn", tmp_path).provenance
    assert "svhn is in no folder here; loading it from the Hugging Face hub" in caplog.text
    with pytest.raises(BadFile, match="was not found"):
        load_dataset("svhn", tmp_path, source="files")


def test_what_the_hub_objects_to_and_other_columns_there_are_told_in_one_line(monkeypatch, hub):
    def unreachable(*_, **__):
        raise ConnectionError("no route\nto host")

    small_image = {"img": Image.new("RGB", (8, 8)), "label": 1}
    for answer, error, words in (
        (unreachable, MppflError, r"the hub did not give 'cifar10' \(ConnectionError: no route to host\)"),
        (lambda *_, **__: [{"photo": 1, "tag": 2}], BadFile, "has columns photo, tag"),
        (lambda *_, **__: [small_image], BadFile, r"image 0 of the hub's cifar-10 has shape \(8, 8, 3\)"),
    ):
        monkeypatch.setattr(sys.modules["datasets"], "load_dataset", answer)
        with pytest.raises(error, match=words):
            load_dataset("cifar-10", source="hub")
