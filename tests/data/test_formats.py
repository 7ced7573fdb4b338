"""Every form of file gives back what was written into it; a damaged one is refused by its name."""

import gzip
import hashlib
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from mppfl.data import load_dataset
from mppfl.errors import BadFile
from tests.data.drawn import draw, holds, idx_bytes, small, write_npz, written
from tests.homes import home


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads a small data set from the files in tmp_path."""

    def reading(name, **changes):
        monkeypatch.setattr(home(load_dataset), "KNOWN", {name: small(name, **changes)})
        return load_dataset(name, tmp_path, source="files")

    return reading


@pytest.fixture
def refuses(read):
    def refusing(name, *fragments, **changes):
        with pytest.raises(BadFile) as caught:
            read(name, **changes)
        return "\n" not in str(caught.value) and all(fragment in str(caught.value) for fragment in fragments)

    return refusing


@pytest.mark.parametrize("zipped", [True, False])
def test_the_checksum_of_idx_files_is_that_of_the_content_however_it_is_compressed(tmp_path, read, refuses, zipped):
    parts = draw((28, 28, 1))
    folder = written("fashion-mnist", tmp_path, parts, zipped=zipped)
    assert holds(read("fashion-mnist"), parts)
    sums = {}
    for path in folder.iterdir():
        content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
        sums[path.name.removesuffix(".gz")] = hashlib.md5(content).hexdigest()
        if zipped:
            path.write_bytes(gzip.compress(content, compresslevel=1))
    dataset = read("fashion-mnist", md5=sums)
    assert holds(dataset, parts)
    assert "checksums verified" in dataset.provenance
    sums["t10k-labels-idx1-ubyte"] = "0" * 32
    assert refuses("fashion-mnist", "t10k-labels", "not the official file", "expected 000", md5=sums)


@pytest.mark.parametrize("protocol", ["python 2", 0, 2, 3, 4])
def test_cifar_is_read_as_pickled_in_every_protocol(tmp_path, read, protocol):
    parts = draw((32, 32, 3))
    folder = written("cifar-10 pickled", tmp_path, parts, protocol=protocol)
    written("cifar-100 pickled", tmp_path, parts, protocol=protocol)
    batch = pickle.loads((folder / "test_batch").read_bytes(), encoding="latin1")  # Python agrees that it is one
    np.testing.assert_array_equal(batch["labels"], parts["test"][1])
    assert holds(read("cifar-10"), parts)
    assert holds(read("cifar-100"), parts)


class Trap:
    """Unpickled carelessly, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused_before_it_does(tmp_path, refuses, protocol):
    folder = written("cifar-10 pickled", tmp_path)
    sprung = tmp_path / "sprung"
    (folder / "test_batch").write_bytes(pickle.dumps({"data": Trap(sprung)}, protocol))
    assert refuses("cifar-10", "test_batch", "asks for", "exec")
    assert not sprung.exists()
    pickle.loads((folder / "test_batch").read_bytes())
    assert sprung.exists()  # the trap was a real one


NOT_IDX = [
    (gzip.compress(idx_bytes(np.zeros(9, np.uint8)), mtime=0)[:-9], "gzip file that ends too early"),
    (b"\x1f\x8b\x08\x00damaged gzip here, nothing else", "gzip"),
    (idx_bytes(np.zeros(9, np.uint8))[:-1], "holds 8 bytes where its header of shape (9,) needs 9"),
    (idx_bytes(np.zeros(9, np.uint8)) + b"x", "holds 10 bytes"),
    (b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "no idx file of bytes: it begins with 00000d01"),
    (b"\0\0", "no idx file"),
    (b"", "begins with nothing"),
    (b"\0\0\x08\x02\0\0", "no idx file"),
    (idx_bytes(np.zeros((9, 1), np.uint8)), "2 axes"),
]
NOT_ONLY_ARRAYS = [
    b"cnumpy\nload\n(S'x'\ntR.",  # a function of NumPy, but none that an array needs
    b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
    b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile_\x93.",
    b"cnumpy\nndarray\n}S'x'\nK\x01sb.",  # sets an attribute on the class
    b"cnumpy\ndtype\nN}S'__init__'\nNs\x86b.",
    b"c_codecs\nencode\n(Vabc\nVbz2\ntR.",
    b"Psomewhere\n.",
    b"(lp0\n.",
    b"N.",
    b"}S'data'\ncnumpy.core.multiarray\n_reconstruct\n(tRs.",  # an array without content
]
PIXELS = np.zeros((2, 3072), np.uint8)
NO_IMAGES_AND_LABELS = [
    ({}, "no array 'data'"),
    *(({"data": array}, "no array 'data'") for array in (np.zeros(3), np.zeros((2, 3)).T, np.array([None]))),
    ({"data": np.zeros((2, 7), np.uint8), "labels": [0, 1]}, "no array 'data' of 3,072"),
    ({"data": PIXELS, "labels": [0]}, "no list 'labels' of 2"),
    ({"data": PIXELS, "labels": [0, "a"]}, "no list 'labels'"),
    ({"data": PIXELS}, "no list 'labels'"),
]
IMAGES = np.zeros((32, 32, 3, 2), np.uint8)
NOT_SVHN = [
    ({"X": IMAGES, "y": np.array([[3], [0]])}, "label 0 of example 1 is out of range 1 to 10"),
    ({"X": IMAGES, "y": np.array([[3], [11]])}, "label 11 of example 1"),
    ({"X": np.zeros((2, 2)), "y": np.zeros((2, 1))}, "X of float64 (2, 2)"),
    ({"Z": np.zeros((2, 2))}, "no arrays X and y"),
]
ROWS = np.zeros((9, 32, 32, 3), np.uint8)
NOT_NPZ = [
    ({"images": np.where(np.indices(ROWS.shape)[0] == 4, np.nan, ROWS), "labels": [0] * 9}, "example 4 hold NaN"),
    ({"images": ROWS}, "lacks the array 'labels'"),
    ({"images": ROWS, "labels": np.zeros(9)}, "labels must be whole numbers"),
]


def in_bytes(save, *arguments, **named):
    out = io.BytesIO()
    save(out, *arguments, **named)
    return out.getvalue()


@pytest.mark.parametrize(
    ("way", "file", "content", "fragment"),
    [
        *[("fashion-mnist", "train-labels-idx1-ubyte", *case) for case in NOT_IDX],
        *[("cifar-10 pickled", "data_batch_1", content, "safely") for content in NOT_ONLY_ARRAYS],
        *[("cifar-10 pickled", "data_batch_4", pickle.dumps(values, 2), says) for values, says in NO_IMAGES_AND_LABELS],
        *[("svhn", "train_32x32.mat", in_bytes(savemat, content), says) for content, says in NOT_SVHN],
        *[("cifar-100 as npz", "train.npz", in_bytes(np.savez, **content), says) for content, says in NOT_NPZ],
    ],
)
def test_a_damaged_file_is_refused_and_changes_nothing_for_the_next(
    tmp_path, read, refuses, way, file, content, fragment
):
    name = way.split()[0]
    parts = draw((28, 28, 1) if name == "fashion-mnist" else (32, 32, 3))
    folder = written(way, tmp_path, parts, **({"zipped": False} if name == "fashion-mnist" else {}))
    sound = (folder / file).read_bytes()
    (folder / file).write_bytes(content)
    assert refuses(name, file, fragment)
    (folder / file).write_bytes(sound)
    assert holds(read(name), parts)


@pytest.mark.parametrize(
    ("way", "file", "fragment"),
    [
        ("cifar-10", "data_batch_2.bin", "no whole number of rows of 3,073"),
        ("cifar-10 pickled", "test_batch", "safely"),
        ("svhn", "test_32x32.mat", "SciPy"),
        ("cifar-100 as npz", "test.npz", "not whole"),
    ],
)
def test_a_truncated_file_or_one_with_another_checksum_is_refused(tmp_path, refuses, way, file, fragment):
    folder, name = written(way, tmp_path), way.split()[0]
    if not way.endswith("npz"):
        assert refuses(name, file, "md5", "Fetch it again", md5={file: "0" * 32})
    content = (folder / file).read_bytes()
    for share in (0.0, 0.1, 0.45, 0.99):
        (folder / file).write_bytes(content[: int(share * len(content))])
        assert refuses(name, file, fragment)


def test_image_folders_are_read_without_their_validation_part_and_a_class_without_images_is_refused(
    tmp_path, read, refuses
):
    parts = draw((32, 32, 3))
    folder = written("cinic-10", tmp_path, {**parts, "valid": parts["test"]}) / "test" / "bird"
    dataset = read("cinic-10")
    assert (len(dataset.train), len(dataset.test)) == (9, 4)
    assert "image folders" in dataset.provenance
    for path in folder.iterdir():
        path.unlink()
    assert refuses("cinic-10", "bird holds no .png image")
    folder.rmdir()
    assert refuses("cinic-10", "bird does not exist")


def test_a_damaged_image_is_refused_by_its_name(tmp_path, read, refuses):
    folder = written("cinic-10", tmp_path)
    path = next((folder / "train" / "bird").iterdir())
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[:200], b"GIF89a" + whole):
        path.write_bytes(content)
        assert refuses("cinic-10", path.name, "no readable PNG")
    Image.new("RGB", (64, 32)).save(path)
    assert refuses("cinic-10", path.name, "32 x 64, not 32 x 32")
    Image.new("L", (32, 32), 7).save(path)  # some of CINIC's images are grey
    assert (read("cinic-10").train.features == 7).all(axis=(1, 2, 3)).any()


def test_a_set_from_npz_holds_bytes_however_they_were_saved_and_says_what_was_not_verified(tmp_path, read, refuses):
    parts = draw((32, 32, 3))
    for kind in (np.uint8, np.int64, np.float32):
        folder = written("cifar-100 as npz", tmp_path, {name: (x.astype(kind), y) for name, (x, y) in parts.items()})
        dataset = read("cifar-100")
        assert holds(dataset, parts)
        assert dataset.provenance.endswith("not held against the official files")
    write_npz(folder, {name: (x, np.sort(y)) for name, (x, y) in parts.items()})
    assert read("cifar-100").provenance.endswith("rows sorted by class")
    write_npz(folder, {name: (x.astype(np.float32) / 255, y) for name, (x, y) in parts.items()})
    assert refuses("cifar-100", "train.npz", "Save them as uint8.")
    folder = written("svhn as npz", tmp_path, parts)
    assert read("svhn").provenance.startswith("re-cropped")
    write_npz(folder, parts, provenance="hub, svhn")
    assert read("svhn").provenance == "hub, svhn, kept as .npz"


def test_an_npz_changed_pickled_or_larger_than_memory_is_refused(tmp_path, refuses):
    path = written("cifar-100 as npz", tmp_path) / "train.npz"
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    assert refuses("cifar-100", "train.npz", "CRC")
    np.savez(path, images=np.array([Trap(tmp_path / "sprung")]), labels=np.zeros(1))
    assert refuses("cifar-100", "train.npz", "allow_pickle")
    assert not (tmp_path / "sprung").exists()
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000,), }"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("images.npy", "labels.npy"):
            archive.writestr(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    assert refuses("cifar-100", "train.npz", "not whole")
