"""Audits of the noise: canaries sent through the real clip-and-noise code, and the last bits of noisy numbers.

`audit_mechanism` assumes that the noise is Gaussian. Canaries are drawn and scored a few rows at a time, so memory
grows with the dimension alone.

`audit_float` looks at last bits. A float near 0 can be any multiple of a tiny number; a float near 1 cannot. So the
event "y is no multiple of 2⁻⁵³" (2⁻²⁴ in float32) never happens for y = 1 + z, and often for y = 0 + z (Mironov 2012;
Jin et al., arXiv:2112.05307v3). Rounding has a trap of its own: a small negative value rounds to -0.0, and -0.0 + -0.0
is -0.0 while 0.0 + -0.0 is 0.0. So the event "y is -0.0" may tell the sign of a value that rounds to 0. Noise on a grid
is tried on a coarse one, where it is often 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy.stats import beta, chi2, norm

from mppfl.arrays import Array, require_count, require_number
from mppfl.errors import BadInput
from mppfl.fields import defaults_of
from mppfl.privacy import (
    NOISE_KINDS,
    Floats,
    LocalWork,
    NoiseKind,
    Protection,
    add_noise,
    banded_square_root,
    clip_rows,
    discrete_gaussian_table,
    gaussian_epsilon,
    noise_of_sum,
    noisy_answer,
    noisy_on_grid,
    opened_sum,
    release_updates,
    std_with_grid,
)

Verdict = Literal["pass", "fail", "no claim to test"]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """One audit's finding.

    audit       which audit: sensitivity, mechanism, float or neighbour
    verdict     "fail" only where the measurement contradicts the claim, "no claim to test" where there is none
    claimed     what the mechanism promises, in the audit's own unit
    measured    what was found (a lower bound where `confidence` says so)
    confidence  probability with which a sound mechanism passes, or None where nothing was drawn at random
    details     everything else a reader needs, by name
    """

    audit: str
    verdict: Verdict
    claimed: float | None
    measured: float | None
    confidence: float | None
    details: dict[str, Any] = field(default_factory=dict)


# From raw rows, longer than the clip norm, to what is released: a row for each (noise on updates), or one vector for
# all of them (noise on a mean or a sum).
Answer = Callable[[Array], Floats]

NUMBERS_AT_A_TIME = 2**20
VARIANCE_FALSE_ALARM = 1e-3

AuditedNoise = NoiseKind | Literal["plain-float32", "plain-float64"]
BITS = {"float32": 24, "float64": 53}
COARSE_GRID = 0.25  # of noise with standard deviation 1: a tenth of all noise is 0
TINY = 1e-9  # far below half a step of the coarse grid


def clip_and_noise(
    protection: Protection, noise_multiplier: float, work: LocalWork, rng: np.random.Generator
) -> Answer:
    """The code that a client, or a sum, really runs, as a function from rows to what is released."""
    budget = protection.queries(work) / (2 * noise_multiplier**2)
    if protection.opens_sums:
        return lambda rows: _opened(rows, protection, budget, work, rng)
    if not protection.clips_examples:
        return lambda rows: (
            release_updates(
                rows, np.full(len(rows), budget), protection, work=work, rng=rng, round_index=1, run="audit"
            ).updates
        )
    spend, fixed = (budget, None) if protection.is_zcdp else (None, noise_multiplier)
    parts = protection.answer_divisor(work)

    def answer(rows: Array) -> Floats:
        total = clip_rows(rows, protection.clip_norm)[0].sum(axis=0) / parts
        return noisy_answer(total, spend, protection, work, rng, noise_multiplier=fixed)[0]

    return answer


def _opened(rows: Array, protection: Protection, budget: float, work: LocalWork, rng: np.random.Generator) -> Floats:
    """The sum of the rows, each what one record or client adds to a vector of a client of its own, over its weight.

    With cohorts it shows in the next sums, too: Σ_s c_s (C x + z)_s is all they tell of it.
    """
    count, size = rows.shape
    noise = noise_of_sum(protection, np.full(count, budget), [work] * count, size, np.ones(count))
    band, seed = banded_square_root(protection.cohorts), rng if protection.is_simulated else None
    vectors = clip_rows(rows, protection.clip_norm)[0] / protection.answer_divisor(work)
    sums: list[Array] = []
    past: tuple[Array, ...] = ()
    told = np.zeros(size)
    for c in band:
        total, past = opened_sum(protection, noise, [None] * count if sums else [*vectors], size, seed, past)
        sums.insert(0, total)
        told += c * sum(weight * opened for weight, opened in zip(band, sums, strict=False))
    return np.asarray(told / noise.weights[0])


def audit_mechanism(
    protection: Protection,
    *,
    noise_multiplier: float,
    claimed_epsilon: float | None = None,
    dp_delta: float = 1e-5,
    dimension: int = 10_000,
    num_canaries: int = 8_000,
    work: LocalWork | None = None,
    rng: np.random.Generator,
    confidence: float = 0.999,
    answer: Answer | None = None,
) -> AuditResult:
    """A lower bound on ε from how strongly random unit canaries show in the answers, and a test of the noise's size.

    With canaries c of length b after clipping and Gaussian noise of standard deviation σ, moving one canary to its
    opposite (replace_one) or to nothing (zero_out) is μ-GDP, μ = 2b/σ or b/σ. b is fitted by least squares, σ by the
    residuals, and μ's lower bound lies norm.ppf(confidence) standard errors below (mean-only estimate after Andrew et
    al., arXiv:2302.03098v5). It supposes that all noise is Gaussian; a χ² test compares σ with the declared
    noise_multiplier · (Δ + g√p) and rejects sound noise once in a thousand.

    "fail" where the bound exceeds `claimed_epsilon` (by default what `noise_multiplier` gives exactly), or σ is not the
    declared one. `rng` draws canaries and simulated noise; `answer` replaces the code under audit. Time grows as
    num_canaries · dimension; with zero_out a quarter of the canaries is enough.
    """
    multiplier = require_number(noise_multiplier, "noise_multiplier", 0.0, 1e6)
    level = require_number(confidence, "confidence", 0.5, 1.0)
    size, count = require_count(dimension, "dimension", 10), require_count(num_canaries, "num_canaries", 10)
    done = work or LocalWork(num_examples=100)
    if protection.clip_quantile is not None:  # its count is one entry more: the audited vector is as long as both
        usual = defaults_of(Protection)["clip_share"]
        protection = replace(protection, clip_norm=protection.longest, clip_quantile=None, clip_share=usual)
    claimed = epsilon_of_gaussian(multiplier, dp_delta) if claimed_epsilon is None else float(claimed_epsilon)
    canary_rng, noise_rng = rng.spawn(2)
    ask = answer or clip_and_noise(protection, multiplier, done, noise_rng)

    cross = power = square = 0.0
    num_values = 0
    for canaries in _unit_rows(count, size, canary_rng):
        got = ask(canaries * (3 * protection.clip_norm)).astype(np.float64)
        sent = canaries if got.ndim == 2 else canaries.sum(axis=0)
        if got.shape != sent.shape:
            raise BadInput(f"the answer has shape {got.shape}; expected {canaries.shape} or ({size},).")
        cross += float(np.vdot(got, sent))
        power += float(np.vdot(sent, sent))
        square += float(np.vdot(got, got))
        num_values += got.size

    length = cross / power
    noise_std = math.sqrt(max(square - cross * length, 0.0) / (num_values - 1))
    directions = 2 if protection.adjacency == "replace_one" else 1
    mu = directions * length / noise_std if noise_std else math.inf
    # Two errors: of the fitted length, and of the fitted noise, which enters as a relative error 1/√(2N).
    standard_error = math.hypot(directions / math.sqrt(power), mu / math.sqrt(2 * num_values))
    mu_low = mu - float(norm.ppf(level)) * standard_error if noise_std else mu
    measured = _epsilon_of_mu(mu_low, dp_delta)

    budget = protection.queries(done) / (2 * multiplier**2) if protection.is_zcdp else None
    kind = "gaussian" if protection.opens_sums and not protection.is_simulated else protection.noise
    declared_std = std_with_grid(protection.sensitivity(done), multiplier, size, kind)
    ratio = noise_std / declared_std
    tail = chi2(num_values - 1)
    p_value = 2 * float(min(tail.cdf((num_values - 1) * ratio**2), tail.sf((num_values - 1) * ratio**2)))
    wrong_noise = p_value < VARIANCE_FALSE_ALARM
    return AuditResult(
        "mechanism",
        "fail" if measured > claimed or wrong_noise else "pass",
        claimed,
        measured,
        level - VARIANCE_FALSE_ALARM,
        {
            "method": "canaries",
            "protection": protection.name,
            "noise": protection.noise if answer is None else "as given",
            "budget": budget,
            "estimate": _epsilon_of_mu(mu, dp_delta),
            "dp_delta": dp_delta,
            "noise_std": noise_std,
            "declared_noise_std": declared_std,
            "variance_p_value": p_value,
            "variance_false_alarm": VARIANCE_FALSE_ALARM,
            "num_canaries": count,
            "dimension": size,
        },
    )


def epsilon_of_gaussian(noise_multiplier: float, dp_delta: float) -> float:
    """The exact dp_epsilon of one Gaussian answer with noise `noise_multiplier` times its sensitivity."""
    return _epsilon_of_mu(1 / noise_multiplier, dp_delta)


def _epsilon_of_mu(mu: float, dp_delta: float) -> float:
    """dp_epsilon of μ-GDP; 0 for μ at or below 0."""
    return float(gaussian_epsilon(mu**2 / 2, dp_delta)) if mu > 0 else 0.0


def _unit_rows(count: int, dimension: int, rng: np.random.Generator) -> Iterator[Array]:
    """`count` random directions, a few rows at a time."""
    at_once = max(1, NUMBERS_AT_A_TIME // dimension)
    for start in range(0, count, at_once):
        rows = rng.standard_normal((min(at_once, count - start), dimension))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        yield rows


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
    1 - `confidence`. `rng` is for simulated and plain noise; without one they use a fixed stream.
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
        off = [_times_off_grid(noise, value, count, dtype, stream) for value in (0.0, 1.0)]
        minus = [_times_minus_zero(noise, value, count, dtype, stream) for value in (0.0, -TINY)]
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
