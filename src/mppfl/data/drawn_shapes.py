"""Drawn shapes: random ellipses and boxes on black, pictures of nothing that need protect nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float32]
MOST_SHAPES = 4  # on one picture
FARTHEST_CENTRE = 2 / 7  # of a shape from the picture's, in sides of the picture
HALF_LENGTHS = (1 / 14, 1 / 2)  # of a shape along its own two axes, in sides
STEEPEST_SHADE = 0.56  # change of brightness from one side of the picture to the other
WAVE_NUMBERS = (2.8, 70.0)  # of stripes, radians a side: from half a stripe to eleven


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
    wanted = _uniform(rng, 0.6, 1.0, number)
    pictures *= np.divide(wanted, brightest, out=np.ones_like(brightest), where=brightest > 0)  # black stays black
    return np.rint(255 * pictures).astype(np.uint8)[..., None]


def _cover(number: int, across: Pixels, down: Pixels, rng: np.random.RandomState) -> Pixels:
    """How much of each pixel a random shape covers, 0 to 1: two of five are ellipses, the others boxes, some skew."""
    right, below = across - _off_centre(rng, number), down - _off_centre(rng, number)
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
    cover: Pixels = np.clip(inside * pixels_a_side + np.float32(0.5), 0, 1)
    return cover


def _texture(number: int, across: Pixels, down: Pixels, rng: np.random.RandomState) -> Pixels:
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
    texture: Pixels = np.clip(shade, 0, 1)
    return texture


def _centred(length: int) -> Pixels:
    """The pixels' places between -1/2 and 1/2 of a side."""
    return (((np.arange(length) + 0.5) / length) - 0.5).astype(np.float32)


def _off_centre(rng: np.random.RandomState, number: int) -> Pixels:
    return _uniform(rng, -FARTHEST_CENTRE, FARTHEST_CENTRE, number)


def _uniform(rng: np.random.RandomState, low: float, high: float, number: int) -> Pixels:
    """One number for each picture, [number, 1, 1]."""
    drawn: NDArray[Any] = rng.uniform(low, high, size=(number, 1, 1))
    return drawn.astype(np.float32)


def _for_half(rng: np.random.RandomState, values: Pixels) -> Pixels:
    """The values of a random half; zero for the others."""
    return np.where(rng.random_sample(values.shape) < 0.5, values, np.float32(0))
