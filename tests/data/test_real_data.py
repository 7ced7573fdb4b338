"""The official files, read whole and verified. Needs MPPFL_DATA (docs/data-sets.md)."""

import os

import numpy as np
import pytest

from mppfl.data import KNOWN, find_files, load_dataset, model_inputs, split_dataset

pytestmark = pytest.mark.data


def here(name):
    if not os.environ.get("MPPFL_DATA"):
        pytest.skip("set MPPFL_DATA to the folder that holds the data sets (docs/data-sets.md)")
    files = find_files(name)
    if files is None:
        pytest.skip(f"{name} is not under MPPFL_DATA={os.environ['MPPFL_DATA']}")
    return files


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "digits"])
def test_a_real_set_is_what_it_should_be_standardised_by_published_constants_and_divided_whole(name):
    here(name)
    real, known = load_dataset(name, source="files"), KNOWN[name]
    assert np.bincount(real.train.labels).tolist() == list(known.train_counts)
    assert np.bincount(real.test.labels).tolist() == list(known.test_counts)
    assert real.train.features.dtype == np.uint8
    assert ("checksums verified" in real.provenance) == (real.name in ("fashion-mnist", "cifar-10"))
    inputs = model_inputs(real, real.train.features)
    tolerance = 0.05 if real.name == "svhn" else 2e-3  # SVHN may be re-cropped, which is no longer quite the same
    for channel in range(inputs.shape[1]):
        assert inputs[:, channel].mean(dtype=np.float64) == pytest.approx(0.0, abs=tolerance)
        assert inputs[:, channel].std(dtype=np.float64) == pytest.approx(1.0, abs=tolerance)
    data = split_dataset(real, "dirichlet", 100, rng=np.random.default_rng(0))
    assert data.num_examples.sum() == len(real.train)
    assert data.num_examples.min() >= 10
    assert len(np.unique(np.concatenate(data.members))) == len(real.train)
