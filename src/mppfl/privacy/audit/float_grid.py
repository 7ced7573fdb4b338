"""The float audit: does a noisy value show, by its last bits, which value the noise was added to?

A float near 0 can be any multiple of a tiny number; a float near 1 cannot. So the event "y is no multiple of 2⁻⁵³"
(2⁻²⁴ in float32) never happens for y = 1 + z, and often for y = 0 + z (Mironov 2012; Jin et al., arXiv:2112.05307v3).

Rounding has a trap of its own: a small negative value rounds to -0.0, and -0.0 + -0.0 is -0.0 while 0.0 + -0.0 is 0.0.
So the event "y is -0.0" may tell the sign of a value that rounds to 0. Noise on a grid is tried on a coarse one, where
it is often 0.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from scipy.stats import beta

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy import (
    NOISE_KINDS,
    Floats,
    NoiseKind,
    add_noise,
    discrete_gaussian_table,
    gaussian_epsilon,
    noisy_on_grid,
)
from mppfl.privacy.audit.result import AuditResult

AuditedNoise = NoiseKind | Literal["plain-float32", "plain-float64"]
BITS = {"float32": 24, "float64": 53}
COARSE_GRID = 0.25  # of noise with standard deviation 1: a tenth of all noise is 0
TINY = 1e-9  # far below half a step of the coarse grid


def audit_float(
    noise: AuditedNoise,
    trials: int = 200_000,
    *,
    dp_delta: float = 1e-5,
    confidence: float = 0.999,
    rng: np.random.Generator | None = None,
) -> AuditResult:
    """Whether noise of standard deviation 1 keeps (ε, δ) for two events of the last bits.

    The events are "off the float grid" between 0 and 1, and "is -0.0" between 0 and a tiny negative value.

    ε is what exact Gaussian noise has at `dp_delta`. `measured` is a lower bound on the δ that an event needs at that
    ε, P[event | one] - e^ε P[event | other], from Clopper-Pearson bounds on both, the worse way round and the worst of
    both events in float32 and float64. "fail" where it exceeds `dp_delta`, which happens to exact noise with chance
    1 - `confidence`. `rng` is for seeded and plain noise; without one they use a fixed stream.
    """
    count = require_count(trials, "trials", 100)
    level = require_number(confidence, "confidence", 0.5, 1.0)
    if noise not in (*NOISE_KINDS, "plain-float32", "plain-float64"):
        raise BadInput(f"noise {noise!r} is not known. Known: {', '.join(NOISE_KINDS)}, plain-float32, plain-float64.")
    stream = np.random.default_rng(20_25) if rng is None else rng
    dtypes = [noise.removeprefix("plain-")] if noise.startswith("plain-") else list(BITS)
    allowed = math.exp(gaussian_epsilon(0.5, dp_delta))
    miss = (1 - level) / (8 * len(dtypes))  # two bounds, both ways round, for each event and dtype
    needed, events = 0.0, {}
    for dtype in dtypes:
        off = [_times_off_grid(noise, at, count, dtype, stream) for at in (0.0, 1.0)]
        minus = [_times_minus_zero(noise, at, count, dtype, stream) for at in (0.0, -TINY)]
        events[dtype] = {
            "off_grid_at_0": off[0] / count,
            "off_grid_at_1": off[1] / count,
            "minus_zero_at_0": minus[0] / count,
            "minus_zero_below_0": minus[1] / count,
        }
        for likely, unlikely in (off, off[::-1], minus, minus[::-1]):
            low = float(beta.ppf(miss, likely, count - likely + 1)) if likely else 0.0
            high = float(beta.ppf(1 - miss, unlikely + 1, count - unlikely)) if unlikely < count else 1.0
            needed = max(needed, low - allowed * high)
    return AuditResult(
        "float",
        "fail" if needed > dp_delta else "pass",
        dp_delta,
        needed,
        level,
        {"noise": noise, "trials": count, "dp_epsilon": math.log(allowed), "events": events},
    )


def _times_off_grid(noise: AuditedNoise, value: float, trials: int, dtype: str, rng: np.random.Generator) -> int:
    """How many of `trials` noisy values are no multiple of the spacing of floats just below 1."""
    steps = np.ldexp(_noisy(noise, value, trials, dtype, rng).astype(np.float64), BITS[dtype])
    return int((np.rint(steps) != steps).sum())


def _times_minus_zero(noise: AuditedNoise, value: float, trials: int, dtype: str, rng: np.random.Generator) -> int:
    """How many of `trials` noisy values are -0.0."""
    if noise in ("gaussian", "discrete"):
        table = discrete_gaussian_table(1 / COARSE_GRID) if noise == "discrete" else None
        values: Floats = np.full(trials, value, dtype=dtype)
        noisy: Floats = noisy_on_grid(values, 1.0, COARSE_GRID, table).astype(dtype)
    else:
        noisy = _noisy(noise, value, trials, dtype, rng)
    return int((np.signbit(noisy) & (noisy == 0)).sum())


def _noisy(noise: AuditedNoise, value: float, trials: int, dtype: str, rng: np.random.Generator) -> Floats:
    """So many times the value, each with noise of its own."""
    values: Floats = np.full(trials, value, dtype=dtype)
    if noise == "plain-float32":
        return np.asarray(values + rng.standard_normal(trials, dtype=np.float32))
    if noise == "plain-float64":
        return np.asarray(values + rng.standard_normal(trials))
    return add_noise(values, 1.0, noise, rng).values
