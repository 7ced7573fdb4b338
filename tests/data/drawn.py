"""Small data sets of our own drawing, in the form of the official files."""

import gzip
import io
import pickle
from dataclasses import replace
from functools import partial

import numpy as np

from mppfl.data import KNOWN

COUNTS = {"train": (3, 2, 4), "test": (1, 2, 1)}  # of three classes


def small(name, **changes):
    """A known data set cut down to three classes and a few examples, without checksums."""
    known = KNOWN[name]
    cut = {"class_names": known.class_names[:3], "train_counts": COUNTS["train"], "test_counts": COUNTS["test"]}
    return replace(known, **{**cut, "md5": {}, **changes})


def draw(shape, seed=0):
    """{part: (images uint8, labels)} with the counts above, in mixed order."""
    rng = np.random.default_rng(seed)
    parts = {}
    for part, counts in COUNTS.items():
        labels = rng.permutation(np.repeat(np.arange(3), counts))
        parts[part] = rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8), labels
    return parts


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder, parts, zipped=True):
    for part, (images, labels) in parts.items():
        for name, array in (("images-idx3", images[..., 0]), ("labels-idx1", labels)):
            path = folder / f"{'t10k' if part == 'test' else part}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))


def planes(images):
    """Images [n, 32, 32, 3] as rows of red, green, blue."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar_binary(folder, parts, hundred=False):
    for part, (images, labels) in parts.items():
        columns = [labels[:, None] // 2, labels[:, None]] if hundred else [labels[:, None]]
        rows = np.concatenate([*columns, planes(images)], axis=1).astype(np.uint8)
        for path, batch in batches(folder, part, hundred, rows):
            path.with_suffix(".bin").write_bytes(batch.tobytes())


def write_cifar_python(folder, parts, protocol=2, hundred=False):
    key = "fine_labels" if hundred else "labels"
    for part, (images, labels) in parts.items():
        for path, rows in batches(folder, part, hundred, np.arange(len(labels))):
            content = {"data": planes(images)[rows], key: labels[rows].tolist(), "filenames": ["a.png"]}
            path.write_bytes(python_2_pickle(content) if protocol == "python 2" else pickle.dumps(content, protocol))


def batches(folder, part, hundred, rows):
    """The files of one part of a CIFAR set, and the rows in each."""
    several = [f"data_batch_{k}" for k in range(1, 6)] if part == "train" else ["test_batch"]
    names = [part] if hundred else several
    return [(folder / name, piece) for name, piece in zip(names, np.array_split(rows, len(names)), strict=True)]


def python_2_pickle(content):
    """What Python 2 wrote: byte strings for text and for an array's content, and NumPy's modules by their old names."""
    out = io.BytesIO()
    pickler = pickle._Pickler(out, 2)

    def byte_string(pickler, value):
        raw = value.encode("latin1") if isinstance(value, str) else value
        pickler.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)

    pickler.dispatch = {**pickler.dispatch, str: byte_string, bytes: byte_string}
    pickler.dump(content)
    return out.getvalue().replace(b"numpy._core", b"numpy.core")


def write_mat(folder, parts):
    from scipy.io import savemat

    for part, (images, labels) in parts.items():
        digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": digits}, do_compression=True)


def write_pngs(folder, parts, class_names):
    from PIL import Image

    for part, (images, labels) in parts.items():
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = folder / part / class_names[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"cifar10-{part}-{row}.png")


def write_npz(folder, parts, **more):
    for part, (images, labels) in parts.items():
        np.savez(folder / f"{part}.npz", images=images, labels=labels.astype(np.uint8), **more)


WAYS = {  # name of the set and of the way: folder, how it is written there, what the form is called
    "fashion-mnist": ("fashion-mnist", write_idx, "idx"),
    "fashion-mnist as torchvision keeps it": ("FashionMNIST/raw", write_idx, "idx"),
    "cifar-10": ("cifar-10-batches-bin", write_cifar_binary, "binary"),
    "cifar-10 pickled": ("cifar-10-batches-py", write_cifar_python, "python"),
    "cifar-100": ("cifar-100-binary", partial(write_cifar_binary, hundred=True), "binary"),
    "cifar-100 pickled": ("cifar-100-python", partial(write_cifar_python, hundred=True), "python"),
    "cifar-100 as npz": ("cifar-100", write_npz, ".npz"),
    "svhn": ("svhn", write_mat, ".mat"),
    "svhn as npz": ("svhn", write_npz, ".npz"),
    "cinic-10": ("CINIC-10", partial(write_pngs, class_names=KNOWN["cinic-10"].class_names), "image folders"),
}


def written(way, place, parts=None, **options):
    """Writes a small data set in the form's own folder, which is returned."""
    folder, write, _ = WAYS[way]
    (place / folder).mkdir(parents=True, exist_ok=True)
    write(place / folder, draw(KNOWN[way.split()[0]].shape) if parts is None else parts, **options)
    return place / folder


def holds(dataset, parts, by_class=False):
    """The data set holds what was drawn as bytes that cannot be changed, in order or class by class."""
    for examples, (images, labels) in zip((dataset.train, dataset.test), parts.values(), strict=True):
        order = np.argsort(labels, kind="stable") if by_class else slice(None)
        np.testing.assert_array_equal(examples.features, images[order])
        np.testing.assert_array_equal(examples.labels, labels[order])
        assert examples.features.dtype == np.uint8
        assert not examples.features.flags.writeable
    return True
