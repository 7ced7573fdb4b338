"""Noise, added so that the sum hides what it should: simulated, or Gaussian or discrete for deployment.

    simulated  float64 normals of a numpy Generator: noise from a seed protects nobody.
    gaussian   float64 normals by inverse CDF from the operating system's generator, the sum rounded to a public grid
    discrete   discrete Gaussian on a public grid, by a table of its distribution and 64 random bits per coordinate,
               more where those do not decide

`x + randn` in floating point gives x away: the sum lies on the floating-point grid of x (Mironov 2012). Here values and
noise are rounded to multiples of one public power of two g, and whole numbers are added, which is exact. Rounding the
values moves two neighbouring vectors apart by at most g√p further, so the cost of a release is (Δ + g√p)²/(2σ²).

Rounded Gaussian noise on whole numbers costs no more than Gaussian noise, because round(k + z) = k + round(z). What is
left is the quality of z: `gaussian` has 53 bits in every probability, which is approximate and not proof-grade;
`discrete` states how far its distribution is from the exact one.
"""

from __future__ import annotations

import math
import os
import secrets
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from mppfl.arrays import Array, require_number
from mppfl.errors import BadInput
from mppfl.privacy.protection import NoiseKind, grid_of

NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)
Words = NDArray[np.uint64]
Floats = NDArray[np.floating[Any]]

NOT_EXACT = 2.0**-128  # at most, of a draw of discrete noise in total variation; see exact_draw
BITS = 320  # of a weight behind the point: a million products lose fewer than 25 of them
DIGITS = 120
LARGEST_TABLE_STD = 2.0**12  # grid steps; beyond, noise is the sum of a coarse and a fine draw
FINE_STEPS = 4.0  # of the stride of the coarse draw, in the standard deviation of the fine one
MORE_BITS = 192  # drawn to decide: a wrong decision has a probability below 2⁻¹⁹⁰
CHUNK = 2**16  # coordinates at a time: temporaries of 0.5 MB each stay in the cache
LARGEST_WHOLE_NUMBER = 2.0**51  # value / grid beyond which adding noise would round


@dataclass(frozen=True, slots=True)
class NoisePrice:
    """What noise costs beside its standard deviation. Public: no value enters it.

    grid               g, of which every value is a multiple; 0 where values are not on a grid
    sensitivity_added  g√p, by which rounding may move two neighbouring vectors further apart
    extra_delta        total-variation distance of the noise drawn from the noise meant, over all coordinates: to be
                       added to the δ of every statement, (1 + e^ε) times. For `gaussian` it is not known and counts
                       as 0.
    """

    kind: NoiseKind | Literal["none"]
    grid: float = 0.0
    sensitivity_added: float = 0.0
    extra_delta: float = 0.0


class NoisyValues(NamedTuple):
    """Values with noise in them, and what the noise was."""

    values: Floats
    price: NoisePrice


def add_noise(
    values: Floats,
    noise_std: float,
    kind: NoiseKind,
    rng: np.random.Generator | None = None,
    out: Floats | None = None,
) -> NoisyValues:
    """The values (float32 or float64, any shape) with independent noise of this standard deviation in each.

    Works through chunks, so only the result takes memory; `out` may be `values` itself. `simulated` needs `rng`, a
    stream used for nothing else; the other kinds never look at it. noise_std 0 leaves the values as they are: no noise.
    """
    if kind not in NOISE_KINDS:
        raise BadInput(f"noise kind {kind!r} is not known. Known: {', '.join(NOISE_KINDS)}.")
    std = require_number(noise_std, "noise_std", 0.0, 1e300, open_ends=False)
    if not isinstance(values, np.ndarray) or values.dtype not in (np.float32, np.float64):
        raise BadInput("values must be a numpy array of float32 or float64.")
    result = np.empty_like(values, order="C") if out is None else out
    if result.shape != values.shape or result.dtype != values.dtype or not result.flags.c_contiguous:
        raise BadInput("out must have the shape and dtype of values, and be contiguous.")
    if std > 1e30 and values.dtype == np.float32:
        raise BadInput(f"noise_std={std:g} does not fit into float32. Use float64, or a smaller clip_norm.")
    if std == 0:
        np.copyto(result, values)
        return NoisyValues(result, NoisePrice("none"))

    source, target = np.ascontiguousarray(values).reshape(-1), result.reshape(-1)
    if kind == "simulated":
        if rng is None:
            raise BadInput("simulated noise needs rng, a numpy Generator of its own; or ask for noise='gaussian'.")
        for part in chunks(source.size):
            target[part] = source[part] + std * rng.standard_normal(part.stop - part.start)
        return NoisyValues(result, NoisePrice(kind))

    price = price_of_noise(std, kind, source.size)
    grid = price.grid
    table = discrete_gaussian_table(std / grid) if kind == "discrete" else None
    for part in chunks(source.size):
        # In float32 this rounds once more, after the noise: post-processing.
        target[part] = noisy_on_grid(source[part], std, grid, table)
    return NoisyValues(result, price)


def noisy_on_grid(values: Floats, noise_std: float, grid: float, table: Words | None) -> Array:
    """The values rounded to multiples of the grid, with noise in whole steps: discrete from the table, else Gaussian.

    Two values that round to the same multiple have the same distribution of answers, down to the last bit.
    """
    steps = whole_numbers(values, grid)
    std_in_steps = noise_std / grid
    steps += gaussian_steps(steps.size, std_in_steps) if table is None else table_steps(steps.size, table, std_in_steps)
    steps *= grid
    return steps


def price_of_noise(noise_std: float, kind: NoiseKind, num_values: int) -> NoisePrice:
    """What `add_noise` will say of noise of this standard deviation on so many values, before any is drawn."""
    grid = grid_of(noise_std, kind)
    if noise_std == 0:
        return NoisePrice("none")
    far = NOT_EXACT if kind == "discrete" else 0.0
    return NoisePrice(kind, grid, grid * math.sqrt(num_values), min(1.0, num_values * far))


def chunks(size: int) -> list[slice]:
    """0..size in slices of at most CHUNK."""
    return [slice(start, min(size, start + CHUNK)) for start in range(0, size, CHUNK)]


def whole_numbers(values: Floats, grid: float) -> Array:
    """values / grid, rounded. Raises where the quotient is not a number that adds without rounding.

    A small negative value rounds to -0.0, which would tell its sign: -0.0 + -0.0 is -0.0, but 0.0 + -0.0 is 0.0. Adding
    0.0 leaves one zero; whatever noise follows, a sum with it is never -0.0.
    """
    with np.errstate(over="ignore"):  # infinity is refused below
        steps: Array = np.rint(values.astype(np.float64) / grid)  # exact division: grid is a power of two
    if not (np.abs(steps) < LARGEST_WHOLE_NUMBER).all():
        raise BadInput(
            f"values hold NaN, infinity or entries beyond {LARGEST_WHOLE_NUMBER * grid:.3g}, too large for noise on a "
            f"grid of {grid:.3g}. Clip them first."
        )
    steps += 0.0
    return steps


def system_words(count: int) -> Words:
    """64-bit words from the operating system's cryptographic generator."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def system_normals(count: int) -> Array:
    """Standard normals by inverse CDF: one bit for the sign, 63 for a probability in (0, ½].

    Where the first 20 bits are zero (|z| > 4.9) a second word follows the first, so that the far tail is as finely
    divided as the middle: |z| reaches 13, and every probability has 53 significant bits.
    """
    words = system_words(count)
    half = words >> np.uint64(1)
    probability = half.astype(np.float64)
    probability += 0.5
    deep = np.flatnonzero(half < 2**43)
    if len(deep):
        probability[deep] = half[deep] + (system_words(len(deep)).astype(np.float64) + 0.5) * 2.0**-64
    probability *= 2.0**-64
    normals: Array = ndtri(probability, out=probability)
    normals.view(np.uint64)[:] ^= words << np.uint64(63)  # the low bit becomes the sign
    return normals


def gaussian_steps(count: int, std_in_steps: float) -> Array:
    """Gaussian noise in whole grid steps."""
    noise = system_normals(count)
    noise *= std_in_steps
    return np.rint(noise, out=noise)


@lru_cache(maxsize=8)
def discrete_gaussian_table(std_in_steps: float) -> Words:
    """Cumulative distribution of |k| in units of 2⁻⁶³, for k of probability ∝ exp(-k²/(2s²)), s = `std_in_steps`.

    Each probability is rounded by at most half a unit, and k = 0 takes what is missing to 1. With what doubles lose
    before that, 2⁻⁵⁰ in all, an entry is off by at most `doubt(table)` units.
    """
    reach = math.ceil(std_in_steps * math.sqrt(2 * 65 * math.log(2))) + 1
    weights = np.exp(-0.5 * (np.arange(reach + 1) / std_in_steps) ** 2)
    weights[1:] *= 2  # both signs
    units = np.rint(weights / math.fsum(weights) * 2.0**63).astype(np.uint64)
    units = units[: int(np.flatnonzero(units)[-1]) + 1]
    units[0] = 2**63 - int(units[1:].sum())
    table = np.cumsum(units, dtype=np.uint64)
    table.setflags(write=False)
    return table


def doubt(table: Words) -> int:
    """How far from an entry of the table the exact one may lie."""
    return len(table) + 2**14


def table_steps(count: int, table: Words, std_in_steps: float, rng: np.random.Generator | None = None) -> Array:
    """Discrete Gaussian noise in whole grid steps: the same work for every draw but the few that need more bits.

    With `rng`, a simulation, the table decides alone, so that a seed gives the same noise again.
    """
    words = system_words(count) if rng is None else rng.integers(0, 2**64, count, dtype=np.uint64)
    positions = words >> np.uint64(1)
    sizes = np.searchsorted(table, positions, side="right")
    steps = sizes.astype(np.float64)
    if rng is None:
        margin = np.uint64(doubt(table))
        below = np.where(sizes > 0, positions - table[sizes - 1], margin) < margin  # nothing lies below k = 0
        for draw in np.flatnonzero(below | (table[sizes] - positions <= margin)):
            steps[draw] = exact_draw(int(positions[draw]), 63, std_in_steps)
    steps.view(np.uint64)[:] ^= words << np.uint64(63)  # the low bit becomes the sign
    return steps


def discrete_steps(count: int, std_in_steps: float, rng: np.random.Generator | None = None) -> Array:
    """Discrete Gaussian noise in whole grid steps, also of a standard deviation too large for one table.

    A large one is 2^b·A + B of two discrete Gaussians, with 4·2^b the standard deviation of B. The probability of a sum
    is that of a discrete Gaussian times Σ_a exp(-(a - c)²/(2t²)) / (t√(2π)), where t ≥ 3.9: by Poisson's formula a
    factor within 4 exp(-2π²t²) < 10⁻¹²⁹ of 1, whatever c. So both draws together are off by less than 3 · NOT_EXACT.
    """
    if std_in_steps <= LARGEST_TABLE_STD:
        return table_steps(count, discrete_gaussian_table(std_in_steps), std_in_steps, rng)
    stride = 2.0 ** round(math.log2(std_in_steps) / 2 - 1)
    fine = FINE_STEPS * stride
    coarse = math.sqrt(std_in_steps**2 - fine**2) / stride
    steps = table_steps(count, discrete_gaussian_table(coarse), coarse, rng)
    steps *= stride
    steps += table_steps(count, discrete_gaussian_table(fine), fine, rng)
    return steps


def exact_draw(word: int, word_bits: int, std_in_steps: float) -> int:
    """Samples |k| of probability ∝ exp(-k²/(2s²)) exactly by inverse CDF, extending the random word with fresh bits.

    For the few draws that a table of 63 bits cannot decide: one in a hundred million, some tenths of a second each.
    """
    cumulated = cumulated_weights(std_in_steps)
    position = (word << MORE_BITS | secrets.randbits(MORE_BITS)) * cumulated[-1] >> word_bits + MORE_BITS
    return bisect_right(cumulated, position)


def cumulated_weights(std_in_steps: float) -> list[int]:
    """Σ exp(-j²/(2s²)) over |j| ≤ k, for k = 0, 1, 2, ..., in units of 2⁻³²⁰.

    Each weight is the one before it times a ratio, and each ratio the one before it times exp(-1/s²).
    """
    with localcontext() as context:
        context.prec = DIGITS
        ratio = int((-1 / (2 * Decimal(std_in_steps) ** 2)).exp() * 2**BITS)
    falls_by = ratio * ratio >> BITS
    weight = total = 1 << BITS
    cumulated = [total]
    while weight := weight * ratio >> BITS:
        ratio = ratio * falls_by >> BITS
        total += 2 * weight  # both signs
        cumulated.append(total)
    return cumulated
