"""The official files, read whole and verified. Needs MPPFL_DATA (docs/data-sets.md)."""

import os

import numpy as np
import pytest

from mppfl.data import KNOWN, NUM_FEATURES, find_files, fixed_features, load_dataset, model_inputs, split_dataset

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


def test_a_linear_softmax_on_oriented_gradients_gets_nine_tenths_of_fashion_mnist_right():
    import torch

    here("fashion-mnist")
    data = fixed_features(load_dataset("fashion-mnist", source="files"), "oriented_gradients")
    inputs, labels = torch.tensor(data.train.features), torch.tensor(data.train.labels)
    truth = torch.nn.functional.one_hot(labels, 10).float()
    weights, momentum = torch.zeros(NUM_FEATURES, 10), torch.zeros(NUM_FEATURES, 10)
    for _ in range(100):  # full batches, no noise
        gradient = inputs.T @ (torch.softmax(inputs @ weights, 1) - truth) / len(inputs)
        momentum = 0.9 * momentum - 32 * gradient
        weights += momentum
    guesses = (torch.tensor(data.test.features) @ weights).argmax(1)
    assert float((guesses == torch.tensor(data.test.labels)).float().mean()) > 0.89  # 0.910, and 0.912 after 200 steps
