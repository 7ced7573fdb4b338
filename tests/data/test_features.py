"""Fixed features depend on one picture alone, have length 1, and are what slow loops over its pixels say; whitening."""

import numpy as np
import pytest
from pytest import approx

from mppfl.data import (
    FEATURES,
    NUM_FEATURES,
    Dataset,
    Examples,
    drawn_blocks,
    drawn_shapes,
    drawn_whitening,
    fixed_features,
    gradient_histograms,
    grey_histograms,
    model_inputs,
    picture_blocks,
    whitening_of,
)
from mppfl.errors import BadInput


def dataset(train, test=None, mean=None):
    """Pictures with alternating labels."""
    test = train if test is None else test
    channels = train.shape[-1] if train.ndim == 4 else 1
    parts = (Examples(pictures, np.arange(len(pictures)) % 2) for pictures in (train, test))
    mean = (0.3,) * channels if mean is None else mean
    return Dataset("pictures", *parts, ("even", "odd"), "drawn here", mean, (0.2,) * channels)


def noise(number, height=16, width=16, channels=1, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (number, height, width, channels), dtype=np.uint8)


def features_of(pictures):
    return fixed_features(dataset(pictures), "oriented_gradients").train.features


@pytest.mark.parametrize(
    "pictures",
    [
        *[noise(5, *shape) for shape in ((16, 16, 1), (16, 16, 3), (19, 16, 3))],
        *[np.full((3, 16, 16, 3), level, dtype=np.uint8) for level in (0, 1, 128, 255)],
    ],
)
def test_every_example_has_length_one_whatever_its_size_colour_and_content(pictures):
    features = features_of(pictures)
    assert features.shape == (len(pictures), NUM_FEATURES)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert np.linalg.norm(features, axis=1) == approx(np.ones(len(pictures)), abs=1e-5)


def test_the_features_of_a_picture_depend_on_its_mean_over_colours_and_nothing_else():
    pictures = noise(1100)  # more than are computed at once, which is 1024 of this size
    together = features_of(pictures)
    assert np.array_equal(features_of(pictures), together)
    for row in (0, 1023, 1024, 1099):
        assert features_of(pictures[row : row + 1])[0] == approx(together[row], abs=1e-5)
    assert features_of(pictures[:4].astype(np.float32) / 255) == approx(features_of(pictures[:4]), abs=1e-5)
    coloured = noise(4, channels=3)
    grey = coloured.mean(axis=3, dtype=np.float32)[..., None] / 255
    assert features_of(coloured) == approx(features_of(grey), abs=1e-4)
    published = [fixed_features(dataset(pictures[:3], mean=(m,)), "oriented_gradients") for m in (0.1, 0.9)]
    assert np.array_equal(*(features.train.features for features in published))


def test_a_grey_pixel_counts_for_its_two_nearest_levels_and_a_black_picture_has_no_gradients():
    half, black = (np.full((1, 16, 16), level, dtype=np.float32) for level in (0.5, 0.0))
    assert grey_histograms(half, 7)[0].mean(axis=(1, 2)) == approx([0, 0.5, 0.5, 0], abs=1e-6)
    blocks = picture_blocks(black)[0]
    assert not blocks[: 8 * (49 + 25)].any()
    assert np.linalg.norm(blocks) == approx(1.0)  # the grey levels


def slow_gradient_histograms(grey, grid):
    """One picture, pixel by pixel."""
    height, width = grey.shape

    def pixel(y, x):
        return float(grey[y, x]) if 0 <= y < height and 0 <= x < width else 0.0

    sums, weights = np.zeros((8, grid, grid)), np.zeros((grid, grid))
    for y in range(height):
        for x in range(width):
            gradient = complex(pixel(y, x + 1) - pixel(y, x - 1), pixel(y + 1, x) - pixel(y - 1, x)) / 2
            place = np.angle(gradient) / (np.pi / 4) % 8
            lower, share = int(place) % 8, place % 1
            for i in range(grid):
                for j in range(grid):
                    up = abs(y + 0.5 - (i + 0.5) * height / grid) * grid / height
                    aside = abs(x + 0.5 - (j + 0.5) * width / grid) * grid / width
                    weight = max(0, 1 - up) * max(0, 1 - aside)
                    weights[i, j] += weight
                    sums[lower, i, j] += weight * abs(gradient) * (1 - share)
                    sums[(lower + 1) % 8, i, j] += weight * abs(gradient) * share
    return sums / weights


@pytest.mark.parametrize("grid", [5, 7])
def test_gradient_histograms_are_what_a_loop_over_the_pixels_gives(grid):
    grey = np.random.default_rng(3).random((2, 16, 19), dtype=np.float32)
    expected = [slow_gradient_histograms(picture, grid) for picture in grey]
    assert gradient_histograms(grey, grid) == approx(np.array(expected), abs=1e-5)


def test_everything_but_the_features_stays_and_model_inputs_leave_them_alone():
    given_ = dataset(noise(6), noise(4, seed=1))
    data = fixed_features(given_, "oriented_gradients")
    assert np.array_equal(data.train.labels, given_.train.labels)
    assert np.array_equal(data.test.labels, given_.test.labels)
    assert (data.name, data.num_classes, data.class_names) == ("pictures", 2, ("even", "odd"))
    assert (data.mean, data.std) == ((0.0,), (1.0,))
    assert data.provenance.startswith("drawn here; as 788 oriented gradients")
    assert np.array_equal(model_inputs(data, data.test.features), data.test.features)
    flat = dataset(np.ones((4, 9), dtype=np.float32))
    assert fixed_features(flat, FEATURES[0]) is flat


AS_NUMBERS = noise(4).astype(np.float32)
AS_NUMBERS[0, 0, 0], AS_NUMBERS[0, 0, 1] = 0, 255


@pytest.mark.parametrize(
    ("parts", "name", "says"),
    [
        ([np.ones((4, 9), dtype=np.float32)], "oriented_gradients", "flat examples of 9 numbers"),
        ([noise(4, 15, 16)], "oriented_gradients", "pictures of 15 x 16 pixels; oriented gradients need 16 x 16"),
        ([AS_NUMBERS / 255, AS_NUMBERS], "oriented_gradients", "test pixels go from 0 to 255"),
        ([noise(4)], "orientated_gradients", "Did you mean 'oriented_gradients'"),
        ([noise(4)], "sift", "Known: none, oriented_gradients"),
    ],
)
def test_what_has_no_oriented_gradients_and_unknown_features_are_refused(parts, name, says):
    with pytest.raises(BadInput, match=says):
        fixed_features(dataset(*parts), name)


def test_features_of_drawn_shapes_are_whitened_as_the_formula_says():
    sample = drawn_blocks(16, 16, 2000)
    mean, matrix = whitening_of(sample)
    whitened = (sample - mean) @ matrix
    assert whitened.mean(axis=0, dtype=np.float64) == approx(np.zeros(NUM_FEATURES), abs=1e-4)
    # Σ (Σ + c I)^(-1), by solving instead of taking roots.
    covariance = np.cov(sample, rowvar=False, dtype=np.float64)
    shrunk = covariance + 0.3 * np.trace(covariance) / NUM_FEATURES * np.eye(NUM_FEATURES)
    achieved = np.cov(whitened, rowvar=False, dtype=np.float64)
    assert np.abs(achieved - np.linalg.solve(shrunk, covariance)).max() < 1e-3
    assert 0.9 < np.linalg.eigvalsh(achieved).max() < 1.001  # what varies most ends up near 1, nothing above


def test_one_seed_draws_one_set_of_pictures_and_their_whitening_is_kept():
    pictures, again, other = (drawn_shapes(300, 20, 28, np.random.RandomState(seed)) for seed in (5, 5, 6))
    assert (pictures.shape, pictures.dtype) == ((300, 20, 28, 1), np.uint8)
    assert np.array_equal(pictures, again)
    assert not np.array_equal(pictures, other)
    whitening = drawn_whitening(16, 16)
    assert drawn_whitening(16, 16) is whitening
    assert not any(array.flags.writeable for array in whitening)
