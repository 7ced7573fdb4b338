"""The mechanism audit: known vectors sent through the real clip-and-noise code, and what its answers give away.

`audit_mechanism` is strong and assumes that the noise is Gaussian; `one_run_audit` assumes nothing and finds about half
of the true ε. Canaries are drawn and scored a few rows at a time, so memory grows with the dimension alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import binom, chi2, norm

from mppfl.arrays import Array, BoolArray, require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy import (
    Floats,
    LocalWork,
    NoiseKind,
    PrivacyMechanism,
    clip_rows,
    gaussian_epsilon,
    noisy_answer,
    privacy_mechanism,
    release,
    std_with_grid,
)
from mppfl.privacy.audit.result import AuditResult

# From raw rows, longer than the clip norm, to what is released: a row for each (noise on updates), or one vector for
# all of them (noise on a mean or a sum).
Answer = Callable[[Array], Floats]

NUMBERS_AT_A_TIME = 2**20
VARIANCE_FALSE_ALARM = 1e-3
SHARES_GUESSED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def clip_and_noise(
    mechanism: PrivacyMechanism,
    noise_multiplier: float,
    clip_norm: float,
    work: LocalWork,
    noise: NoiseKind,
    rng: np.random.Generator | None,
) -> Answer:
    """The code a client really runs, as a function from rows to what it releases."""
    budget = mechanism.queries(work) / (2 * noise_multiplier**2)
    if mechanism.noise_on == "update":
        return lambda rows: (
            release(
                rows,
                np.full(len(rows), budget),
                mechanism=mechanism,
                clip_norm=clip_norm,
                work=work,
                noise=noise,
                rng=rng,
                round_index=1,
                run="audit",
            ).updates
        )
    spend, fixed = (budget, None) if mechanism.is_zcdp else (None, noise_multiplier)
    parts = work.num_examples if mechanism.noise_on == "mean gradient" else 1

    def answer(rows: Array) -> Floats:
        total = clip_rows(rows, clip_norm)[0].sum(axis=0) / parts
        return noisy_answer(total, spend, mechanism, clip_norm, work, noise, rng, noise_multiplier=fixed)[0]

    return answer


def audit_mechanism(
    mechanism: str | PrivacyMechanism,
    *,
    noise_multiplier: float,
    claimed_epsilon: float | None = None,
    dp_delta: float = 1e-5,
    dimension: int = 10_000,
    num_canaries: int = 8_000,
    clip_norm: float = 1.0,
    work: LocalWork | None = None,
    noise: NoiseKind = "gaussian",
    rng: np.random.Generator,
    confidence: float = 0.999,
    answer: Answer | None = None,
) -> AuditResult:
    """A lower bound on ε from how strongly random unit canaries show in the answers, and a test of the noise's size.

    With canaries c of length b after clipping and Gaussian noise of standard deviation σ, moving one canary to its
    opposite (replace-one) or to nothing (add-remove) is μ-GDP, μ = 2b/σ or b/σ. b is fitted by least squares, σ by the
    residuals, and μ's lower bound lies norm.ppf(confidence) standard errors below (mean-only estimate after Andrew et
    al., arXiv:2302.03098v5). It supposes that all noise is Gaussian; a χ² test compares σ with the declared
    noise_multiplier · (Δ + g√p) and rejects sound noise once in a thousand.

    "fail" where the bound exceeds `claimed_epsilon` (by default what `noise_multiplier` gives exactly), or σ is not the
    declared one. `rng` draws canaries and seeded noise; `answer` replaces the code under audit, at clip norm
    `clip_norm`. Time grows as num_canaries · dimension; with replace-one four times as many canaries are needed.
    """
    audited = privacy_mechanism(mechanism) if isinstance(mechanism, str) else mechanism
    multiplier = require_number(noise_multiplier, "noise_multiplier", 0.0, 1e6)
    level = require_number(confidence, "confidence", 0.5, 1.0)
    size, count = require_count(dimension, "dimension", 10), require_count(num_canaries, "num_canaries", 10)
    done = work or LocalWork(num_examples=100)
    claimed = epsilon_of_gaussian(multiplier, dp_delta) if claimed_epsilon is None else float(claimed_epsilon)
    canary_rng, noise_rng = rng.spawn(2)
    ask = answer or clip_and_noise(audited, multiplier, clip_norm, done, noise, noise_rng)

    cross = own = square = 0.0
    num_values = 0
    for canaries in _unit_rows(count, size, canary_rng):
        got = ask(canaries * (3 * clip_norm)).astype(np.float64)
        sent = canaries if got.ndim == 2 else canaries.sum(axis=0)
        if got.shape != sent.shape:
            raise BadInput(f"the answer has shape {got.shape}; expected {canaries.shape} or ({size},).")
        cross += float(np.vdot(got, sent))
        own += float(np.vdot(sent, sent))
        square += float(np.vdot(got, got))
        num_values += got.size

    length = cross / own
    noise_std = math.sqrt(max(square - cross * length, 0.0) / (num_values - 1))
    directions = 2 if audited.adjacency == "replace-one" else 1
    mu = directions * length / noise_std if noise_std else math.inf
    # Two errors: of the fitted length, and of the fitted noise, which enters as a relative error 1/√(2N).
    standard_error = math.hypot(directions / math.sqrt(own), mu / math.sqrt(2 * num_values))
    mu_low = mu - float(norm.ppf(level)) * standard_error if noise_std else mu
    measured = _epsilon_of_mu(mu_low, dp_delta)

    budget = audited.queries(done) / (2 * multiplier**2) if audited.is_zcdp else None
    worst = None if budget is None else audited.worst_case_budget(budget, done)
    declared_std = std_with_grid(audited.sensitivity(clip_norm, done), multiplier, size, noise)
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
            "mechanism": audited.name,
            "noise": noise if answer is None else "as given",
            "budget": budget,
            "worst_case_budget": worst,
            "worst_case_epsilon": None if worst is None else gaussian_epsilon(worst / audited.queries(done), dp_delta),
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


def one_run_audit(
    mechanism: str | PrivacyMechanism,
    *,
    noise_multiplier: float,
    claimed_epsilon: float | None = None,
    dp_delta: float = 1e-5,
    dimension: int = 64,
    num_canaries: int = 10_000,
    clip_norm: float = 1.0,
    work: LocalWork | None = None,
    noise: NoiseKind = "gaussian",
    rng: np.random.Generator,
    confidence: float = 0.95,
    answer: Answer | None = None,
) -> AuditResult:
    """A lower bound on ε that supposes nothing about the noise (Steinke, Nasr & Jagielski 2023, arXiv:2305.08846v1).

    A coin per canary decides whether it is in or out (replace-one: itself or its opposite). Afterwards the highest
    scores are guessed in, the lowest out, and the others left open; ε is the largest that so many right guesses refute.
    Canaries are coordinate directions, orthogonal within an answer. Seven shares of guesses share the error
    probability. "fail" where the bound exceeds `claimed_epsilon`.
    """
    audited = privacy_mechanism(mechanism) if isinstance(mechanism, str) else mechanism
    multiplier = require_number(noise_multiplier, "noise_multiplier", 0.0, 1e6)
    level = require_number(confidence, "confidence", 0.5, 1.0)
    size, count = require_count(dimension, "dimension"), require_count(num_canaries, "num_canaries", 10)
    done = work or LocalWork(num_examples=100)
    claimed = epsilon_of_gaussian(multiplier, dp_delta) if claimed_epsilon is None else float(claimed_epsilon)
    coin_rng, noise_rng = rng.spawn(2)
    ask = answer or clip_and_noise(audited, multiplier, clip_norm, done, noise, noise_rng)

    included: BoolArray = coin_rng.random(count) < 0.5
    out = -1.0 if audited.adjacency == "replace-one" else 0.0
    scores = np.empty(count)
    for start in range(0, count, size):
        coins = included[start : start + size]
        rows = np.zeros((len(coins), size))
        at = np.arange(len(coins))
        rows[at, at] = np.where(coins, 3 * clip_norm, out * 3 * clip_norm)
        got = ask(rows)
        scores[start : start + size] = got[at, at] if got.ndim == 2 else got[at]

    order = np.argsort(scores)
    bounds = {}
    for share in SHARES_GUESSED:
        each_way = max(1, int(share * count) // 2)
        right = int(included[order[-each_way:]].sum() + (~included[order[:each_way]]).sum())
        chance = (1 - level) / len(SHARES_GUESSED)
        bounds[share] = guessing_epsilon(count, 2 * each_way, right, dp_delta, chance)
    measured = max(bounds.values())
    return AuditResult(
        "mechanism",
        "fail" if measured > claimed else "pass",
        claimed,
        measured,
        level,
        {
            "method": "one run",
            "mechanism": audited.name,
            "noise": noise if answer is None else "as given",
            "bound_by_share_guessed": bounds,
            "dp_delta": dp_delta,
            "num_canaries": count,
            "dimension": size,
        },
    )


def guessing_p_value(num_canaries: int, guesses: int, right: int, dp_epsilon: float, dp_delta: float) -> float:
    """How likely an (ε, δ) mechanism allows at least `right` right guesses (Steinke et al. 2023, Thm. 5.2).

    P[B ≥ v] + 2mδ · max_i P[v > B ≥ v-i]/i with B ~ Binomial(guesses, 1/(1+e^-ε)), at most 1.
    """
    right_by_chance = binom(guesses, 1 / (1 + math.exp(-dp_epsilon)))
    p_value = float(right_by_chance.sf(right - 1))
    if right:
        below = np.cumsum(right_by_chance.pmf(np.arange(right - 1, -1, -1))) / np.arange(1, right + 1)
        p_value += 2 * num_canaries * dp_delta * float(below.max())
    return min(p_value, 1.0)


def guessing_epsilon(num_canaries: int, guesses: int, right: int, dp_delta: float, chance: float) -> float:
    """The largest ε that is refuted at error probability `chance`; 0 where none is."""
    low, high = 0.0, 1.0
    while high < 64 and guessing_p_value(num_canaries, guesses, right, high, dp_delta) < chance:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        if guessing_p_value(num_canaries, guesses, right, middle, dp_delta) < chance:
            low = middle
        else:
            high = middle
    return low


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
