"""A view is the picture shifted and mirrored as its number says, and every engine sees the same ones."""

import dataclasses

import numpy as np
import pytest
import torch

from mppfl.errors import BadInput
from mppfl.training import (
    MARGIN,
    SHIFTS,
    VIEWS,
    TrainingConfig,
    ViewTable,
    make_model,
    table_for,
    training_rounds,
    with_views,
)
from tests.training.trainings import pictures, plan_with, small_cnn

PICTURES = torch.arange(2 * 3 * 6 * 5, dtype=torch.float64).reshape(2, 3, 6, 5) + 1
TABLE = ViewTable(PICTURES, torch.tensor([7, 8]))
CONFIG = TrainingConfig(
    precision="float64", learning_rate=0.2, batch_size=4, local_epochs=2, clip_norm=5.0, augmentation="crop_and_flip"
)
FREE = (np.inf, np.inf, np.inf)


def shown(picture, down, right, mirrored):
    """The view by padding and cutting."""
    padded = torch.nn.functional.pad(picture, (MARGIN,) * 4)
    cut = padded[:, down : down + picture.shape[1], right : right + picture.shape[2]]
    return cut.flip(2) if mirrored else cut


def test_a_view_is_a_cut_out_of_the_padded_picture_perhaps_mirrored():
    codes = torch.arange(VIEWS)
    inputs, labels = TABLE.at(torch.stack([codes, VIEWS + codes]))
    assert inputs.shape == (2, VIEWS, 3, 6, 5)
    assert labels.tolist() == [[7] * VIEWS, [8] * VIEWS]
    for example in range(2):
        for view in range(VIEWS):
            expected = shown(PICTURES[example], view // (2 * SHIFTS), view // 2 % SHIFTS, view % 2 == 1)
            torch.testing.assert_close(inputs[example, view], expected)


def test_every_view_is_drawn_about_as_often():
    (batch,) = with_views([np.full(VIEWS * 200, 3)], np.random.default_rng(0))
    assert (batch // VIEWS == 3).all()
    counts = np.bincount(batch % VIEWS, minlength=VIEWS)
    # χ² with 161 degrees of freedom is above 240 once in 20,000 draws.
    assert ((counts - 200) ** 2 / 200).sum() < 240


@pytest.mark.parametrize("engine", ["processes", "vmap", "batched"])
def test_every_engine_sees_the_views_that_the_plain_loop_sees(engine):
    data, plan = pictures(), plan_with(FREE, 2)
    *_, plain = training_rounds(small_cnn(), data, plan, dataclasses.replace(CONFIG, engine="loop"))
    *_, fast = training_rounds(small_cnn(), data, plan, dataclasses.replace(CONFIG, engine=engine))
    *_, still = training_rounds(
        small_cnn(), data, plan, dataclasses.replace(CONFIG, engine="loop", augmentation="none")
    )
    np.testing.assert_allclose(fast.weights, plain.weights, atol=1e-9, rtol=0)
    assert np.abs(still.weights - plain.weights).max() > 1e-4


def test_views_are_new_in_every_round_and_the_same_in_every_run():
    data, config = pictures(), dataclasses.replace(CONFIG, engine="loop")
    runs = [
        [record.weights for record in training_rounds(small_cnn(), data, plan_with(FREE, 2), config)] for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    drawn = [with_views([np.arange(50)], np.random.default_rng([1, number]))[0] for number in range(2)]
    assert (drawn[0] != drawn[1]).any()


def test_examples_that_are_no_pictures_have_no_views():
    with pytest.raises(BadInput, match=r"the examples have shape \(8,\). Use augmentation='none'"):
        table_for(CONFIG, torch.zeros(3, 8), torch.zeros(3, dtype=torch.long))
    with pytest.raises(BadInput, match="augmentation='rotate' is not known"):
        TrainingConfig(augmentation="rotate")


def test_views_are_refused_where_samples_are_secret():
    # A view goes by place in the sample: one record more changes the views of all after it.
    sampled = {"privacy": "dpsgd_poisson", "clip_norm": 1.0, "augmentation": "crop_and_flip"}
    with pytest.raises(BadInput, match="augmentation='crop_and_flip' breaks privacy='dpsgd_poisson'"):
        TrainingConfig(**sampled, noise="gaussian")
    assert TrainingConfig(**sampled).noise == "seeded"  # a simulation, which protects no one


def test_dense_networks_train_on_views_too():
    data = pictures()
    model = make_model("mlp", data.input_shape, data.num_classes)
    *_, plain = training_rounds(model, data, plan_with(FREE, 2), dataclasses.replace(CONFIG, engine="loop"))
    *_, fast = training_rounds(model, data, plan_with(FREE, 2), dataclasses.replace(CONFIG, engine="dense"))
    np.testing.assert_allclose(fast.weights, plain.weights, atol=1e-9, rtol=0)
