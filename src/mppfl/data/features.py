"""Fixed features: pictures as numbers by rules fixed in advance, from which a linear model learns well."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from mppfl.data.dataset import Dataset, Examples, Features, unchangeable
from mppfl.errors import BadInput
from mppfl.fields import require_known

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
MOST_SHAPES = 4  # on one picture
FARTHEST_CENTRE = 2 / 7  # of a shape from the picture's, in sides of the picture
HALF_LENGTHS = (1 / 14, 1 / 2)  # of a shape along its own two axes, in sides
STEEPEST_SHADE = 0.56  # change of brightness from one side of the picture to the other
WAVE_NUMBERS = (2.8, 70.0)  # of stripes, radians a side: from half a stripe to eleven


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
    require_known([name], FEATURES, "features")
    if name == "none":
        return dataset
    _require_pictures(dataset)
    train, test = (Examples(_whitened(part.features), part.labels) for part in (dataset.train, dataset.test))
    rules = f"as {NUM_FEATURES} oriented gradients and grey levels of each picture, by rules fixed in advance"
    provenance = f"{dataset.provenance}; {rules}"
    return replace(dataset, train=train, test=test, provenance=provenance, mean=(0.0,), std=(1.0,))


@lru_cache(maxsize=8)
def drawn_whitening(height: int, width: int) -> tuple[Floats, Floats]:
    """The whitening of `picture_blocks` by drawn shapes of this size; always the same, 2.5 MB, kept for next time."""
    return whitening_of(drawn_blocks(height, width))


def drawn_blocks(height: int, width: int, number: int = NUM_DRAWN) -> Floats:
    """`picture_blocks` of drawn shapes from the fixed seed, float32 [number, 788]."""
    rng = np.random.RandomState(DRAWN_SEED)
    at_once = _rows_at_once(height, width)
    sizes = [min(at_once, number - first) for first in range(0, number, at_once)]
    return np.concatenate([picture_blocks(_grey(drawn_shapes(size, height, width, rng))) for size in sizes])


def picture_blocks(grey: Floats) -> Floats:
    """Features of grey pictures [n, H, W] before whitening: float32 [n, 788], three blocks of length 1 each.

    gradients         8 orientations on 7 x 7 cells
    coarse gradients  the same after a blur, on 5 x 5 cells
    grey levels       4 levels on 7 x 7 cells

    A block is a square root of histograms, so that its distances are Hellinger's; a picture without any gradient has
    zeros there.
    """
    height, width = grey.shape[1:]
    blurred = gaussian_filter(grey, (0, BLUR * height, BLUR * width), mode="constant", truncate=3.0)
    histograms = (
        gradient_histograms(grey, FINE_GRID),
        gradient_histograms(blurred, COARSE_GRID),
        grey_histograms(grey, FINE_GRID),
    )
    return np.concatenate([_unit_length(np.sqrt(block).reshape(len(grey), -1)) for block in histograms], axis=1)


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


def _unit_length(rows: Floats) -> Floats:
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


def _whitened(features: Features) -> Floats:
    """Blocks of all pictures, whitened and of length 1; computed so that nothing large is held beside them."""
    numbers = np.empty((len(features), NUM_FEATURES), dtype=np.float32)
    mean, matrix = drawn_whitening(*features.shape[1:3])
    at_once = _rows_at_once(*features.shape[1:3])
    for first in range(0, len(features), at_once):
        rows = slice(first, first + at_once)
        numbers[rows] = _unit_length(np.matmul(picture_blocks(_grey(features[rows])) - mean, matrix))
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


# ---- drawn shapes, and the whitening by them ----------------------------------------------------------------------


def drawn_shapes(number: int, height: int, width: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    """Pictures [number, height, width, 1], each of one to four shaded ellipses or boxes, half of them symmetric.

    Later shapes cover earlier ones. Lengths are in sides of the picture, so one rule serves every size; edges are one
    pixel soft. A RandomState and no Generator: its stream is frozen (NEP 19), so that one seed gives the same pictures
    under every version of NumPy, and a model trained on what follows from them can still be used.
    """
    across = _centred(width)[None, None, :]
    down = _centred(height)[None, :, None]
    pictures = np.zeros((number, height, width), dtype=np.float32)
    num_shapes = rng.randint(1, MOST_SHAPES + 1, size=number)
    for layer in range(MOST_SHAPES):
        rows = np.flatnonzero(num_shapes > layer)
        cover = _cover(len(rows), across, down, rng)
        pictures[rows] += cover * (_texture(len(rows), across, down, rng) - pictures[rows])
    symmetric = rng.random_sample(number) < 0.5
    pictures[symmetric] = np.maximum(pictures[symmetric], pictures[symmetric][:, :, ::-1])
    brightest = pictures.max(axis=(1, 2), keepdims=True)
    goal = _uniform(rng, 0.6, 1.0, number)
    pictures *= np.divide(goal, brightest, out=np.ones_like(brightest), where=brightest > 0)  # black stays black
    return np.rint(255 * pictures).astype(np.uint8)[..., None]


def _cover(number: int, across: Floats, down: Floats, rng: np.random.RandomState) -> Floats:
    """How much of each pixel a random shape covers, 0 to 1: two of five are ellipses, the others boxes, some skew."""
    right, below = (axis - _uniform(rng, -FARTHEST_CENTRE, FARTHEST_CENTRE, number) for axis in (across, down))
    half_length, half_width = (_uniform(rng, *HALF_LENGTHS, number) for _ in range(2))
    turn = _for_half(rng, _uniform(rng, 0.0, np.pi, number))
    along = right * np.cos(turn) + below * np.sin(turn)
    aside = below * np.cos(turn) - right * np.sin(turn)
    is_ellipse = rng.random_sample(number) < 0.4
    skew = _for_half(rng, _uniform(rng, -0.5, 0.5, number))
    inside_box = np.minimum(half_length - np.abs(along - skew * aside), half_width - np.abs(aside))
    radius = np.hypot(along / half_length, aside / half_width)
    inside_ellipse = (1 - radius) * np.minimum(half_length, half_width)
    inside = np.where(is_ellipse[:, None, None], inside_ellipse, inside_box)  # distance from the edge, about, in sides
    pixels_a_side = np.float32(min(across.size, down.size))
    cover: Floats = np.clip(inside * pixels_a_side + np.float32(0.5), 0, 1)
    return cover


def _texture(number: int, across: Floats, down: Floats, rng: np.random.RandomState) -> Floats:
    """Brightness 0 to 1: a level and a slope, stripes on half of the shapes, and a little noise."""
    level = _uniform(rng, 0.0, 1.0, number)
    slopes = [_uniform(rng, -STEEPEST_SHADE, STEEPEST_SHADE, number) for _ in range(2)]
    wave_number = _uniform(rng, *WAVE_NUMBERS, number)
    turn = _uniform(rng, 0.0, np.pi, number)
    phase = _uniform(rng, 0.0, 2 * np.pi, number)
    stripes = _for_half(rng, _uniform(rng, 0.0, 0.3, number))
    grain = _uniform(rng, 0.0, 0.08, number)
    shade = level + slopes[0] * across + slopes[1] * down
    shade += stripes * np.sin(wave_number * (across * np.cos(turn) + down * np.sin(turn)) + phase)
    shade += grain * rng.standard_normal(shade.shape).astype(np.float32)
    texture: Floats = np.clip(shade, 0, 1)
    return texture


def _centred(length: int) -> Floats:
    """Positions of the pixels, between -1/2 and 1/2 of a side."""
    return (((np.arange(length) + 0.5) / length) - 0.5).astype(np.float32)


def _uniform(rng: np.random.RandomState, low: float, high: float, number: int) -> Floats:
    """One number for each picture, [number, 1, 1]."""
    drawn: NDArray[Any] = rng.uniform(low, high, size=(number, 1, 1))
    return drawn.astype(np.float32)


def _for_half(rng: np.random.RandomState, values: Floats) -> Floats:
    """The values of a random half; zero for the others."""
    return np.where(rng.random_sample(values.shape) < 0.5, values, np.float32(0))


def whitening_of(sample: Floats) -> tuple[Floats, Floats]:
    """Mean μ [d] and matrix (Σ + c I)^(-1/2) [d, d] of `sample` [n, d] with covariance Σ; c = RIDGE · tr Σ / d.

    Rows x become (x - mean) @ matrix. The sample itself then has covariance Σ (Σ + c I)^(-1): close to 1 in directions
    of variance far above c. No direction is stretched by more than 1 / √c, so what hardly varies cannot drown the rest.
    The sample has to be public: mean and matrix follow from it, and no noise protects it.
    """
    mean = sample.mean(axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(np.cov(sample, rowvar=False, dtype=np.float64))
    variances = np.maximum(variances, 0.0)  # rounding leaves tiny negative ones where Σ is singular
    stretch = 1 / np.sqrt(variances + RIDGE * variances.mean())
    matrix = (directions * stretch) @ directions.T  # symmetric, so the signs eigh happens to choose do not matter
    return unchangeable(mean.astype(np.float32)), unchangeable(matrix.astype(np.float32))
