"""Fixed features: pictures as numbers computed by rules fixed in advance, on which even a linear model learns well."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from mppfl.data.dataset import Dataset, Examples, Features, unchangeable
from mppfl.data.drawn_shapes import drawn_shapes
from mppfl.data.whitening import Whitening, whitening_of
from mppfl.errors import BadInput

FEATURES = ("none", "oriented_gradients")
Floats = NDArray[np.float32]

SMALLEST_SIDE = 16  # pixels: below, a cell of the finer grid would have hardly two
ORIENTATIONS = 8  # all round: a dark-to-light edge is not a light-to-dark one
GREY_LEVELS = 4
FINE_GRID = 7  # cells a side
COARSE_GRID = 5
NUM_FEATURES = ORIENTATIONS * (FINE_GRID**2 + COARSE_GRID**2) + GREY_LEVELS * FINE_GRID**2  # 788
BLUR = 1.5 / 28  # before the coarse gradients, in sides of the picture
RIDGE = 0.3  # of the whitening; 0.1 to 1 did as well
NUM_DRAWN = 10_000
DRAWN_SEED = 0
PIXELS_AT_ONCE = 2**18  # 334 pictures of 28 x 28; the largest array of a block is ORIENTATIONS times that
SHORTEST = 1e-6  # a vector below this length is rounding and is not stretched to 1


def fixed_features(dataset: Dataset, name: str) -> Dataset:
    """The data set with flat float32 features [n, d] in place of its pictures; "none" leaves it as it is.

    oriented_gradients  d = 788 for every size of picture, from 16 x 16 pixels; colours count by their mean. Each
                        example has length 1, and depends on no other example: where and which way the picture gets
                        brighter (`picture_blocks`), whitened by mean and covariance of 10,000 drawn shapes.

    The rules hold no record of any data set, so that using them costs no budget. They were chosen among others by
    accuracy on held-out training images of Fashion-MNIST, however, and for that data set this choice is in no account.
    Length 1 keeps an example's gradient of a linear softmax without bias below √2. mean and std become 0 and 1, so
    that `model_inputs` changes nothing. About 20 s for 70,000 pictures of 28 x 28 on one core, 5 s of it for the drawn
    shapes, which one process draws once for each size; in proportion to the pixels. Raises BadInput for flat examples,
    pictures too small, and float pixels outside 0 to 1.
    """
    if name not in FEATURES:
        near = get_close_matches(str(name), FEATURES, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(FEATURES)}."
        raise BadInput(f"features={name!r} are not known. {hint}")
    if name == "none":
        return dataset
    _require_pictures(dataset)
    whiten = drawn_whitening(*dataset.train.features.shape[1:3])
    train, test = (Examples(_whitened(part.features, whiten), part.labels) for part in (dataset.train, dataset.test))
    told = f"as {NUM_FEATURES} oriented gradients and grey levels of each picture, by rules fixed in advance"
    provenance = f"{dataset.provenance}; {told}"
    return replace(dataset, train=train, test=test, provenance=provenance, mean=(0.0,), std=(1.0,))


@lru_cache(maxsize=8)
def drawn_whitening(height: int, width: int) -> Whitening:
    """The whitening of `picture_blocks` by drawn shapes of this size; always the same, 2.5 MB, kept for next time."""
    return whitening_of(drawn_blocks(height, width), RIDGE)


def drawn_blocks(height: int, width: int, number: int = NUM_DRAWN) -> Floats:
    """`picture_blocks` of drawn shapes from the fixed seed, float32 [number, 788]."""
    rng = np.random.RandomState(DRAWN_SEED)
    at_once = _rows_at_once(height, width)
    sizes = [min(at_once, number - first) for first in range(0, number, at_once)]
    return np.concatenate([picture_blocks(_grey(drawn_shapes(size, height, width, rng))) for size in sizes])


def picture_blocks(grey: Floats) -> Floats:
    """What is known of grey pictures [n, H, W] before whitening: float32 [n, 788], three blocks of length 1 each.

    gradients         8 orientations on 7 x 7 cells
    coarse gradients  the same after a blur, on 5 x 5 cells
    grey levels       4 levels on 7 x 7 cells

    A block is a square root of histograms, so that its distances are Hellinger's; a picture without any gradient has
    zeros there.
    """
    height, width = grey.shape[1:]
    blurred = gaussian_filter(grey, (0, BLUR * height, BLUR * width), mode="constant", truncate=3.0)
    return np.concatenate(
        [
            unit_length(np.sqrt(gradient_histograms(grey, FINE_GRID)).reshape(len(grey), -1)),
            unit_length(np.sqrt(gradient_histograms(blurred, COARSE_GRID)).reshape(len(grey), -1)),
            unit_length(np.sqrt(grey_histograms(grey, FINE_GRID)).reshape(len(grey), -1)),
        ],
        axis=1,
    )


def gradient_histograms(grey: Floats, grid: int) -> Floats:
    """Mean length of the gradient by orientation and cell, [n, 8, grid, grid]; black lies around the picture.

    Orientation k is k eighths of a turn from right to down. Each gradient counts for the two nearest orientations in
    proportion (Dalal & Triggs, CVPR 2005, section 6.3).
    """
    framed = np.pad(grey, ((0, 0), (1, 1), (1, 1)))
    right = (framed[:, 1:-1, 2:] - framed[:, 1:-1, :-2]) / 2
    down = (framed[:, 2:, 1:-1] - framed[:, :-2, 1:-1]) / 2
    direction = np.arctan2(down, right) * np.float32(ORIENTATIONS / (2 * np.pi))  # in orientations, -4 to 4
    apart = np.abs(direction[:, None] - np.arange(ORIENTATIONS, dtype=np.float32)[:, None, None])
    apart = np.minimum(apart, np.abs(ORIENTATIONS - apart))  # the shorter way round
    share = np.maximum(1 - apart, 0)
    return _cell_means(share * np.hypot(right, down)[:, None], grid)


def grey_histograms(grey: Floats, grid: int) -> Floats:
    """Share of each grey level 0, 1/3, 2/3, 1 by cell, [n, 4, grid, grid]; a pixel counts for its two nearest."""
    level = np.arange(GREY_LEVELS, dtype=np.float32)[:, None, None]
    return _cell_means(np.maximum(1 - np.abs(grey[:, None] * (GREY_LEVELS - 1) - level), 0), grid)


def unit_length(rows: Floats) -> Floats:
    """Each row divided by its length; rows of no length stay."""
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    scaled: Floats = rows / np.maximum(lengths, np.float32(SHORTEST))[:, None]
    return scaled


def _cell_means(maps: Floats, grid: int) -> Floats:
    """Weighted means of maps [n, k, H, W] over overlapping cells, [n, k, grid, grid]."""
    num, kinds, height, width = maps.shape
    weights = _cell_weights(height, width, grid)
    return (maps.reshape(num * kinds, height * width) @ weights).reshape(num, kinds, grid, grid)


@lru_cache(maxsize=16)
def _cell_weights(height: int, width: int, grid: int) -> Floats:
    """[H · W, grid · grid], each column adding up to 1: falls from a cell's centre to nothing at the next ones'."""
    sides = []
    for length in (height, width):
        cell = length / grid
        centres = (np.arange(grid) + 0.5) * cell - 0.5
        weights = np.maximum(1 - np.abs(np.arange(length)[:, None] - centres) / cell, 0)
        sides.append(weights / weights.sum(axis=0))
    return unchangeable(np.kron(*sides).astype(np.float32))


def _whitened(features: Features, whiten: Whitening) -> Floats:
    """Blocks of all pictures, whitened and of length 1; computed so that nothing large is held beside them."""
    numbers = np.empty((len(features), NUM_FEATURES), dtype=np.float32)
    at_once = _rows_at_once(*features.shape[1:3])
    for first in range(0, len(features), at_once):
        rows = slice(first, first + at_once)
        numbers[rows] = unit_length(whiten(picture_blocks(_grey(features[rows]))))
    return numbers


def _rows_at_once(height: int, width: int) -> int:
    return max(1, PIXELS_AT_ONCE // (height * width))


def _grey(pictures: NDArray[Any]) -> Floats:
    """Brightness 0 to 1, the mean over colours: float32 [n, H, W]."""
    grey: Floats = pictures.mean(axis=3, dtype=np.float32)
    return grey / np.float32(255) if pictures.dtype == np.uint8 else grey


def _require_pictures(dataset: Dataset) -> None:
    shape = dataset.train.features.shape[1:]
    if len(shape) != 3:
        raise BadInput(
            f"{dataset.name} has flat examples of {shape[0]} numbers, and oriented gradients are of pictures "
            '[n, H, W, C]. Store them as such, or use features="none".'
        )
    if min(shape[:2]) < SMALLEST_SIDE:
        raise BadInput(
            f"{dataset.name} has pictures of {shape[0]} x {shape[1]} pixels; oriented gradients need "
            f'{SMALLEST_SIDE} x {SMALLEST_SIDE} at least. Use features="none".'
        )
    for part, examples in (("training", dataset.train), ("test", dataset.test)):
        if examples.features.dtype == np.uint8:
            continue
        low, high = float(examples.features.min()), float(examples.features.max())
        if low < 0 or high > 1:
            raise BadInput(
                f"{dataset.name}: {part} pixels go from {low:.4g} to {high:.4g}; oriented gradients need them between "
                "0 and 1. Rescale them by fixed numbers."
            )
