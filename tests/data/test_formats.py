"""Every form of file gives back what was written into it; a damaged one is refused by its name."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct

import numpy as np
import pytest

from mppfl.data import dictionary_of_pickle, read_cifar_100_binary, read_cinic, read_idx, read_svhn_mat, write_known_npz
from mppfl.errors import BadFile
from tests.data.drawn import (
    draw,
    idx_bytes,
    small,
    write_cifar_binary,
    write_cifar_python,
    write_idx,
    write_mat,
    write_npz,
    write_pngs,
)
from tests.homes import home

cifar = home(read_cifar_100_binary)
idx = home(read_idx)
npz = home(write_known_npz)
safe_pickle = home(dictionary_of_pickle)
svhn = home(read_svhn_mat)


def same(read, parts):
    """What was read is what was drawn, in order."""
    for examples, (images, labels) in zip(read[:2], parts.values(), strict=True):
        np.testing.assert_array_equal(examples.features, images)
        np.testing.assert_array_equal(examples.labels, labels)
        assert examples.features.dtype == np.uint8
        assert not examples.features.flags.writeable
    return True


def refuses(read, folder, known, *fragments):
    with pytest.raises(BadFile) as caught:
        read(folder, known)
    line = str(caught.value)
    assert "\n" not in line
    for fragment in fragments:
        assert fragment in line
    return True


# ---- idx --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_read_gzipped_or_not(tmp_path, zipped):
    parts = draw((28, 28, 1))
    write_idx(tmp_path, parts, zipped)
    assert same(idx.read_idx_set(tmp_path, small("fashion-mnist")), parts)


@pytest.mark.parametrize("zipped", [True, False])
def test_the_checksum_is_that_of_the_content_however_it_is_compressed(tmp_path, zipped):
    parts = draw((28, 28, 1))
    write_idx(tmp_path, parts, zipped)
    sums = {}
    for name in sum(idx.FILES.values(), ()):
        path = tmp_path / (name + ".gz" * zipped)
        content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
        sums[name] = hashlib.md5(content).hexdigest()
        if zipped:
            path.write_bytes(gzip.compress(content, compresslevel=1))
    read = idx.read_idx_set(tmp_path, small("fashion-mnist", md5=sums))
    assert same(read, parts)
    assert "checksums verified" in read[2]
    sums["t10k-labels-idx1-ubyte"] = "0" * 32
    wrong = small("fashion-mnist", md5=sums)
    assert refuses(idx.read_idx_set, tmp_path, wrong, "t10k-labels", "not the official file", "expected 000")


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (gzip.compress(idx_bytes(np.zeros(9, np.uint8)), mtime=0)[:-9], "gzip file that ends too early"),
        (b"\x1f\x8b\x08\x00damaged gzip here, nothing else", "gzip"),
        (idx_bytes(np.zeros(9, np.uint8))[:-1], "holds 8 bytes where its header of shape (9,) needs 9"),
        (idx_bytes(np.zeros(9, np.uint8)) + b"x", "holds 10 bytes"),
        (b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "no idx file of bytes: it begins with 00000d01"),
        (b"\0\0", "no idx file"),
        (b"", "begins with nothing"),
        (b"\0\0\x08\x02\0\0", "no idx file"),
        (idx_bytes(np.zeros((9, 1), np.uint8)), "2 axes"),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path, content, fragment):
    write_idx(tmp_path, draw((28, 28, 1)), zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(content)
    assert refuses(idx.read_idx_set, tmp_path, small("fashion-mnist"), "train-labels", fragment)


def test_labels_that_do_not_match_the_images_are_refused(tmp_path):
    write_idx(tmp_path, draw((28, 28, 1)), zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(4, np.uint8)))
    with pytest.raises(ValueError, match="9 examples have 4 labels"):
        idx.read_idx_set(tmp_path, small("fashion-mnist"))


# ---- CIFAR ------------------------------------------------------------------------------------------------------


def test_cifar_binaries_are_read(tmp_path):
    parts = draw((32, 32, 3))
    write_cifar_binary(tmp_path / "ten", parts)
    write_cifar_binary(tmp_path / "hundred", parts, hundred=True)
    assert same(cifar.read_cifar_10_binary(tmp_path / "ten", small("cifar-10")), parts)
    assert same(cifar.read_cifar_100_binary(tmp_path / "hundred", small("cifar-100")), parts)


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
def test_cifar_pickles_are_read_in_every_protocol(tmp_path, protocol):
    parts = draw((32, 32, 3))
    write_cifar_python(tmp_path / "ten", parts, protocol)
    write_cifar_python(tmp_path / "hundred", parts, protocol, hundred=True)
    assert same(cifar.read_cifar_10_python(tmp_path / "ten", small("cifar-10")), parts)
    assert same(cifar.read_cifar_100_python(tmp_path / "hundred", small("cifar-100")), parts)


def test_cifar_pickles_are_read_as_python_2_wrote_them(tmp_path):
    parts = draw((32, 32, 3))
    write_cifar_python(tmp_path, parts, as_python_2=True)
    old = pickle.loads((tmp_path / "test_batch").read_bytes(), encoding="latin1")  # Python agrees that it is one
    np.testing.assert_array_equal(old["labels"], parts["test"][1])
    assert same(cifar.read_cifar_10_python(tmp_path, small("cifar-10")), parts)


def test_a_cifar_file_with_the_wrong_checksum_is_refused(tmp_path):
    write_cifar_binary(tmp_path, draw((32, 32, 3)))
    wrong = small("cifar-10", md5={"data_batch_3.bin": "0" * 32})
    assert refuses(cifar.read_cifar_10_binary, tmp_path, wrong, "data_batch_3.bin", "md5", "Fetch it again")


@pytest.mark.parametrize("name", ["data_batch_2.bin", "test_batch.bin"])
@pytest.mark.parametrize("kept", [0, 100])
def test_a_truncated_binary_is_refused(tmp_path, name, kept):
    write_cifar_binary(tmp_path, draw((32, 32, 3)))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:kept])
    assert refuses(cifar.read_cifar_10_binary, tmp_path, small("cifar-10"), name, f"{kept} bytes", "rows of 3,073")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_pickle_is_refused(tmp_path, share):
    write_cifar_python(tmp_path, draw((32, 32, 3)))
    content = (tmp_path / "test_batch").read_bytes()
    (tmp_path / "test_batch").write_bytes(content[: int(share * len(content))])
    assert refuses(cifar.read_cifar_10_python, tmp_path, small("cifar-10"), "test_batch", "safely")


class Trap:
    """Unpickled carelessly, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused_before_it_does(tmp_path, protocol):
    write_cifar_python(tmp_path, draw((32, 32, 3)))
    sprung = tmp_path / "sprung"
    (tmp_path / "test_batch").write_bytes(pickle.dumps({"data": Trap(sprung)}, protocol))
    assert refuses(cifar.read_cifar_10_python, tmp_path, small("cifar-10"), "test_batch", "asks for", "exec")
    assert not sprung.exists()
    pickle.loads((tmp_path / "test_batch").read_bytes())
    assert sprung.exists()  # the trap was a real one


@pytest.mark.parametrize(
    "content",
    [
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
    ],
)
def test_a_pickle_of_anything_else_is_refused(tmp_path, content):
    before = {each: dict(vars(each)) for each in safe_pickle._ADMITTED.values()}
    with pytest.raises(BadFile, match="safely"):
        safe_pickle.dictionary_of_pickle(content, tmp_path / "batch")
    assert {each: dict(vars(each)) for each in safe_pickle._ADMITTED.values()} == before


def test_a_pickled_array_must_be_of_bytes_and_whole(tmp_path):
    for array in (np.zeros(3), np.zeros((2, 2), np.uint8).T.copy(order="F")[:, ::1], np.array([None])):
        with pytest.raises(BadFile, match="safely"):
            safe_pickle.dictionary_of_pickle(pickle.dumps({"data": array}, 2), tmp_path / "batch")


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        ({}, "no array 'data'"),
        ({"data": np.zeros((2, 7), np.uint8), "labels": [0, 1]}, "no array 'data' of 3,072"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "no list 'labels' of 2"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, "a"]}, "no list 'labels'"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "no list 'labels'"),
    ],
)
def test_a_pickle_without_images_and_labels_is_refused(tmp_path, content, fragment):
    write_cifar_python(tmp_path, draw((32, 32, 3)))
    (tmp_path / "data_batch_4").write_bytes(pickle.dumps(content, 2))
    assert refuses(cifar.read_cifar_10_python, tmp_path, small("cifar-10"), "data_batch_4", fragment)


# ---- SVHN -------------------------------------------------------------------------------------------------------


def test_svhn_calls_zero_ten(tmp_path):
    parts = draw((32, 32, 3))
    write_mat(tmp_path, parts)
    assert same(svhn.read_svhn_mat(tmp_path, small("svhn")), parts)


@pytest.mark.parametrize("kept", [0, 60, 300, 5000])
def test_a_truncated_mat_file_is_refused(tmp_path, kept):
    write_mat(tmp_path, draw((32, 32, 3)))
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:kept])
    assert refuses(svhn.read_svhn_mat, tmp_path, small("svhn"), "test_32x32.mat", "SciPy")


@pytest.mark.parametrize("label", [0, 11])
def test_a_label_that_svhn_does_not_have_is_refused(tmp_path, label):
    from scipy.io import savemat

    write_mat(tmp_path, draw((32, 32, 3)))
    content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[3], [label]], np.uint8)}
    savemat(tmp_path / "train_32x32.mat", content)
    assert refuses(svhn.read_svhn_mat, tmp_path, small("svhn"), f"label {label} of example 1", "1 to 10")


def test_a_mat_file_of_something_else_is_refused(tmp_path):
    from scipy.io import savemat

    write_mat(tmp_path, draw((32, 32, 3)))
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((2, 2)), "y": np.zeros((2, 1))})
    assert refuses(svhn.read_svhn_mat, tmp_path, small("svhn"), "X of float64 (2, 2)")
    savemat(tmp_path / "train_32x32.mat", {"Z": np.zeros((2, 2))})
    assert refuses(svhn.read_svhn_mat, tmp_path, small("svhn"), "no arrays X and y")
    wrong = small("svhn", md5={"train_32x32.mat": "0" * 32})
    assert refuses(svhn.read_svhn_mat, tmp_path, wrong, "train_32x32.mat", "md5")


# ---- CINIC ------------------------------------------------------------------------------------------------------


def test_image_folders_are_read_class_by_class(tmp_path):
    known, parts = small("cinic-10"), draw((32, 32, 3))
    write_pngs(tmp_path, parts, known.class_names)
    train, test, provenance = read_cinic(tmp_path, known)
    for examples, (images, labels) in zip((train, test), parts.values(), strict=True):
        order = np.argsort(labels, kind="stable")
        np.testing.assert_array_equal(examples.labels, labels[order])
        np.testing.assert_array_equal(examples.features, images[order])
    assert "image folders" in provenance


def test_cinic_learns_from_its_validation_part_only_on_request(tmp_path):
    known, parts = small("cinic-10"), draw((32, 32, 3))
    write_pngs(tmp_path, {**parts, "valid": parts["test"]}, known.class_names)
    assert len(read_cinic(tmp_path, known)[0]) == 9
    assert len(read_cinic(tmp_path, known, ("train", "valid"))[0]) == 13


def test_a_class_without_images_is_refused(tmp_path):
    known = small("cinic-10")
    write_pngs(tmp_path, draw((32, 32, 3)), known.class_names)
    for path in (tmp_path / "test" / "bird").iterdir():
        path.unlink()
    assert refuses(read_cinic, tmp_path, known, "bird holds no .png image")
    (tmp_path / "test" / "bird").rmdir()
    assert refuses(read_cinic, tmp_path, known, "bird does not exist")


def test_a_damaged_image_is_refused_by_its_name(tmp_path):
    from PIL import Image

    known = small("cinic-10")
    write_pngs(tmp_path, draw((32, 32, 3)), known.class_names)
    path = next((tmp_path / "train" / "bird").iterdir())
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[:200], b"GIF89a" + whole):
        path.write_bytes(content)
        assert refuses(read_cinic, tmp_path, known, path.name, "no readable PNG")
    Image.new("RGB", (64, 32)).save(path)
    assert refuses(read_cinic, tmp_path, known, path.name, "32 x 64, not 32 x 32")
    Image.new("L", (32, 32), 7).save(path)  # some of CINIC's images are grey
    assert (read_cinic(tmp_path, known)[0].features == 7).all(axis=(1, 2, 3)).any()


# ---- npz --------------------------------------------------------------------------------------------------------


def test_known_sets_are_read_from_npz_and_say_what_was_not_verified(tmp_path):
    parts = draw((32, 32, 3))
    write_npz(tmp_path, parts)
    read = npz.read_known_npz(tmp_path, small("cifar-100"))
    assert same(read, parts)
    assert "not held against the official files" in read[2]
    assert "sorted" not in read[2]


def test_svhn_from_npz_is_called_re_cropped(tmp_path):
    write_npz(tmp_path, draw((32, 32, 3)))
    assert npz.read_known_npz(tmp_path, small("svhn"))[2].startswith("re-cropped")


def test_an_npz_may_state_where_it_comes_from(tmp_path):
    write_npz(tmp_path, draw((32, 32, 3)), provenance="hub, svhn")
    assert npz.read_known_npz(tmp_path, small("svhn"))[2] == "hub, svhn, kept as .npz"


def test_rows_sorted_by_class_are_announced(tmp_path):
    parts = {part: (images, np.sort(labels)) for part, (images, labels) in draw((32, 32, 3)).items()}
    write_npz(tmp_path, parts)
    assert npz.read_known_npz(tmp_path, small("cifar-100"))[2].endswith("rows sorted by class")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_npz_is_refused(tmp_path, share):
    write_npz(tmp_path, draw((32, 32, 3)))
    content = (tmp_path / "test.npz").read_bytes()
    (tmp_path / "test.npz").write_bytes(content[: int(share * len(content))])
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "test.npz", "not whole")


def test_an_npz_with_a_changed_byte_is_refused(tmp_path):
    write_npz(tmp_path, draw((32, 32, 3)))
    content = bytearray((tmp_path / "test.npz").read_bytes())
    content[2000] ^= 1
    (tmp_path / "test.npz").write_bytes(content)
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "test.npz", "CRC")


def test_an_npz_of_pickled_objects_is_refused(tmp_path):
    write_npz(tmp_path, draw((32, 32, 3)))
    np.savez(tmp_path / "train.npz", images=np.array([Trap(tmp_path / "sprung")]), labels=np.zeros(1))
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "train.npz", "allow_pickle")
    assert not (tmp_path / "sprung").exists()


def test_an_npz_that_claims_more_than_memory_holds_is_refused(tmp_path):
    import zipfile

    write_npz(tmp_path, draw((32, 32, 3)))
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000,), }"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    with zipfile.ZipFile(tmp_path / "train.npz", "w") as archive:
        archive.writestr("images.npy", header)
        archive.writestr("labels.npy", header)
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "train.npz", "not whole")


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_pictures_of_a_known_set_are_bytes_however_they_were_saved(tmp_path, kind):
    parts = draw((32, 32, 3))
    write_npz(tmp_path, {name: (images.astype(kind), labels) for name, (images, labels) in parts.items()})
    train, test, _ = npz.read_known_npz(tmp_path, small("cifar-100"))
    for found, name in ((train, "train"), (test, "test")):
        assert found.features.dtype == np.uint8
        np.testing.assert_array_equal(found.features, parts[name][0])
    scaled = {name: (images.astype(np.float32) / 255, labels) for name, (images, labels) in parts.items()}
    write_npz(tmp_path, scaled)
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "train.npz", "Save them as uint8.")


def test_what_is_wrong_inside_an_npz_is_told_with_its_name(tmp_path):
    parts = draw((32, 32, 3))
    images, labels = parts["train"]
    broken = images.astype(np.float32)
    broken[4, 3, 2, 1] = np.nan
    write_npz(tmp_path, {**parts, "train": (broken, labels)})
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "train.npz", "example 4 hold NaN")
    np.savez(tmp_path / "train.npz", images=images)
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "train.npz", "lacks the array 'labels'")
    np.savez(tmp_path / "train.npz", images=images, labels=labels.astype(float))
    assert refuses(npz.read_known_npz, tmp_path, small("cifar-100"), "train.npz", "labels must be whole numbers")
