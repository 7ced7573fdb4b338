"""The Gaussian field on networks too large for N×N matrices: Chebyshev for e^{βN}, probes for diagonals, error bars.

e^{βN}x is a Chebyshev series in N, some 2√β terms long, each a sparse product. A diagonal of F Fᵀ is the mean of (Fz)²
over random signs z. What all others leave of a client's variance comes from simulated data: draw a field and its noisy
values, solve for the posterior mean by conjugate gradients, and see how far it moves beyond what the client's own value
alone would have done. That difference is its own variance, so small leaks come with small errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import ive

from mppfl.arrays import Array, BoolArray, require_count
from mppfl.errors import NotConverged
from mppfl.leakage.couplings import friendships
from mppfl.leakage.gaussian_field import FieldFit
from mppfl.leakage.leak_gradient import saturating_level, saturating_slope
from mppfl.network import SocialGraph, SparseMatrix

COLUMNS = 32  # probes at once: 100,000 clients × 32 × 4 bytes is 13 MB
SERIES_TOLERANCE = 1e-6  # of the largest coefficient; single precision has little more
SMALL_SPECTRUM = 500  # clients: a matrix of that size is solved at once
ROUNDING = 1e-5  # of a variance: what single precision leaves
SOLVED = 1e-3  # relative residual of conjugate gradients; probes err by more
MOST_ITERATIONS = 1000
DIAGONAL_PROBES = 256
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Walk:
    """N = D^-½ A D^-½ without its trivial mode, as an operator in single precision.

    trivial    unit vector D^½ 1, float32
    low, high  an interval that holds the spectrum: the tighter, the shorter the series and the more digits it keeps
    """

    links: SparseMatrix
    trivial: Any
    low: float
    high: float

    @property
    def num_clients(self) -> int:
        return int(self.links.shape[0])

    def __matmul__(self, x: Any) -> Any:
        return self.links @ x - self.trivial[:, None] * (self.trivial @ x)

    def exponential(self, beta: float, x: Any) -> Any:
        """e^{β(N - high)} x for columns x: a Chebyshev series on [low, high]."""
        half, middle = np.float32((self.high - self.low) / 2), np.float32((self.high + self.low) / 2)
        weights = _series(beta * float(half))
        before, now = x, (self @ x - middle * x) / half
        total = weights[0] * before + weights[1] * now
        for weight in weights[2:]:
            following = self @ now
            following -= middle * now
            following *= 2 / half
            following -= before
            before, now = now, following
            total += weight * now
        return total


def walk_of(graph: SocialGraph) -> Walk:
    """The network's normalised walk; links count the same in both directions and whatever their weight."""
    linked = friendships(graph)
    roots = np.sqrt(np.asarray(linked.sum(axis=1)).ravel())
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
    scaled = sp.diags_array(inverse) @ linked @ sp.diags_array(inverse)
    trivial = roots / max(float(np.linalg.norm(roots)), 1e-300)
    open_walk = Walk(sp.csr_array(scaled, dtype=np.float32), trivial.astype(np.float32), -1.0, 1.0)
    return replace(open_walk, **_spectrum(open_walk))


def _spectrum(walk: Walk) -> dict[str, float]:
    """Both ends of the spectrum by Lanczos, with a margin for what it has not yet found."""
    size = walk.num_clients
    if size < SMALL_SPECTRUM:
        ends = np.linalg.eigvalsh(walk.links.toarray() - np.outer(walk.trivial, walk.trivial))
    else:
        operator = LinearOperator((size, size), matvec=lambda x: (walk @ x.reshape(-1, 1)).ravel(), dtype=np.float32)
        start = np.random.default_rng(0).standard_normal(size).astype(np.float32)
        ends = eigsh(operator, k=2, which="BE", tol=1e-3, v0=start, return_eigenvectors=False)
    return {"low": max(-1.0, float(ends.min()) - 0.01), "high": min(1.0, max(float(ends.max()), 0.0) + 0.01)}


def _series(beta: float) -> Any:
    """Chebyshev coefficients of e^{β(x - 1)} for x in [-1, 1], up to the last that matters; at least two."""
    orders = np.arange(int(20 + 2 * beta))
    weights = np.where(orders > 0, 2.0, 1.0) * ive(orders, beta)
    last = int(np.flatnonzero(weights > SERIES_TOLERANCE * weights.max())[-1])
    return weights[: max(last + 1, 2)].astype(np.float32)


@dataclass(frozen=True, eq=False)
class FieldAtScale:
    """K = η I + (1-η) e^{βN} with a unit diagonal, never formed.

    smooth        estimated diagonal of e^{βN} over its mean
    smooth_error  its standard error, relative
    mean          that mean, of e^{β(N - high)}
    """

    walk: Walk
    beta: float
    eta: float
    smooth: Array
    smooth_error: Array
    mean: float

    @property
    def num_clients(self) -> int:
        return self.walk.num_clients

    @property
    def scale(self) -> Array:
        """What turns the diagonal of η I + (1-η) e^{βN} into ones."""
        return np.asarray(1 / np.sqrt(self.eta + (1 - self.eta) * self.smooth))


def field_at_scale(
    walk: Walk, beta: float, eta: float, rng: np.random.Generator, probes: int = DIAGONAL_PROBES
) -> FieldAtScale:
    """The field for constants (β, η), its diagonal estimated with `probes` random sign vectors."""
    values, errors, mean = diagonal_of_exponential(walk, beta, rng, probes)
    return FieldAtScale(walk, beta, eta, values, errors, mean)


def diagonal_of_exponential(
    walk: Walk, beta: float, rng: np.random.Generator, probes: int
) -> tuple[Array, Array, float]:
    """Diagonal of e^{βN} over its mean, its relative standard errors, and that mean for e^{β(N - high)}."""

    def squares(own: np.random.Generator, width: int) -> tuple[Array, Array]:
        signs = random_signs(own, (walk.num_clients, width))
        square = np.asarray(walk.exponential(beta / 2, signs), dtype=np.float64) ** 2
        return square.sum(axis=1), (square**2).sum(axis=1)

    parts = over_probes(squares, require_count(probes, "probes", 2), rng)
    first, second = (sum(part[k] for part in parts) / probes for k in (0, 1))
    spread = np.sqrt(np.maximum(second - first**2, 0.0) / (probes - 1))
    mean = float(np.mean(first))
    return np.asarray(first / mean), np.asarray(spread / first), mean


def over_probes(
    work: Callable[[np.random.Generator, int], Result], probes: int, rng: np.random.Generator
) -> list[Result]:
    """`work(generator, columns)` for blocks of probes, on all cores; what is drawn depends on `rng` alone."""
    widths = [min(COLUMNS, probes - start) for start in range(0, probes, COLUMNS)]
    return in_threads([partial(work, own, width) for own, width in zip(rng.spawn(len(widths)), widths, strict=True)])


def in_threads(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of the jobs in order. Sparse products and NumPy let go of the interpreter, so threads do help."""
    with ThreadPoolExecutor(max_workers=min(len(jobs), os.cpu_count() or 1)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def random_signs(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return (2 * rng.integers(0, 2, size=shape, dtype=np.int8) - 1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class LeftAtScale:
    """Each client's variance given everyone else's noisy value, with its standard error.

    kept  what remains of the smooth part's variance once the client's own value is heard too
    """

    left: Array
    error: Array
    kept: Array


def leave_one_out_at_scale(
    field: FieldAtScale, noise: Array, rng: np.random.Generator, probes: int = 128
) -> LeftAtScale:
    """The diagonal that `leave_one_out` gives exactly, estimated with error bars.

    noise  variance of each value, infinite for a silent client

    With D = η s² + τ the noise about the smooth part of covariance L, and d = D^-½, I + d L d is solved for simulated
    data y. If μ is the posterior mean and μ° what the client's own value alone would give, then Var(μ - μ°) is what
    others explain, and c = L/(1+Ld²) - Var(μ - μ°) what is left with the client's own value in; c/(1 - cd²) without it.
    Where more than half is explained, c is measured itself, as the variance of the field about μ.
    """
    weight, inverse_root = _weights(field, noise)
    own = weight**2 * field.smooth  # L_ii
    alone = own * inverse_root / (1 + own * inverse_root**2)  # μ° = alone · (d y)
    count = require_count(probes, "probes", 2)
    loads = (weight * inverse_root).astype(np.float32)[:, None]

    def moments(fresh: np.random.Generator, width: int) -> Array:
        signs = random_signs(fresh, (field.num_clients, width))
        drawn = weight[:, None] * np.asarray(field.walk.exponential(field.beta / 2, signs)) / np.sqrt(field.mean)
        told = (inverse_root[:, None] * drawn).astype(np.float32) + random_signs(fresh, signs.shape)
        solved = solve_columns(field, loads, told)
        mean = weight[:, None] * _smooth(field, loads * solved)
        beyond, about = (mean - alone[:, None] * told) ** 2, (drawn - mean) ** 2
        return np.stack([beyond.sum(axis=1), (beyond**2).sum(axis=1), about.sum(axis=1), (about**2).sum(axis=1)])

    sums = np.sum(over_probes(moments, count, rng), axis=0) / count
    beyond, about = sums[0], sums[2]
    most = own / (1 + own * inverse_root**2)
    direct = beyond > 0.5 * most
    kept = np.where(direct, about, np.maximum(most - beyond, 1e-12))
    squares = np.where(direct, sums[3] - about**2, sums[1] - beyond**2)
    error = np.sqrt(np.maximum(squares, 0.0) / (count - 1))
    open_share = 1 - kept * inverse_root**2
    left = field.eta * field.scale**2 + kept / open_share
    # The unit diagonal is itself estimated, and scales what was measured: what is left, or what is explained.
    of_diagonal = np.where(direct, left, np.abs(1 - left)) * field.smooth_error
    return LeftAtScale(left, np.hypot(error / open_share**2, of_diagonal) + ROUNDING, kept)


def _weights(field: FieldAtScale, noise: Array) -> tuple[Array, Array]:
    """g = √(1-η) s, which makes L = g e^{βN} g, and d = (η s² + τ)^-½."""
    heard = np.isfinite(noise)
    about = np.where(heard, noise, 1.0) + field.eta * field.scale**2
    return np.sqrt(1 - field.eta) * field.scale, np.where(heard, 1 / np.sqrt(about), 0.0)


def _smooth(field: FieldAtScale, x: Any) -> Any:
    return field.walk.exponential(field.beta, x.astype(np.float32)) / np.float32(field.mean)


def solve_columns(field: FieldAtScale, loads: Any, right: Any) -> Any:
    """(I + q e^{βN} q)⁻¹ of every column by conjugate gradients, q = `loads`; no eigenvalue is below 1."""
    x, residual = np.zeros_like(right), right.copy()
    direction = residual.copy()
    size = np.einsum("ij,ij->j", residual, residual, dtype=np.float64)
    wanted = SOLVED**2 * size
    for _ in range(MOST_ITERATIONS):
        image = direction + loads * _smooth(field, loads * direction)
        bend = np.einsum("ij,ij->j", direction, image, dtype=np.float64)
        step = np.divide(size, bend, out=np.zeros_like(size), where=bend > 0).astype(np.float32)
        x += step * direction
        residual -= step * image
        before, size = size, np.einsum("ij,ij->j", residual, residual, dtype=np.float64)
        if (size <= wanted).all():
            break
        turn = np.divide(size, before, out=np.zeros_like(size), where=before > 0).astype(np.float32)
        direction = residual + turn * direction
    else:
        worst = float(np.sqrt((size / np.maximum(wanted, 1e-300)).max())) * SOLVED
        raise NotConverged(
            f"the field's equations were solved only to {worst:.2g} (wanted {SOLVED:g}); lower the largest budgets.",
            x,
            worst,
        )
    return x


def leave_one_out_means(field: FieldAtScale, noise: Array, values: Array, found: LeftAtScale) -> Array:
    """Each client's expected value given everyone else's noisy value: [clients, draws], for `values` [clients, draws].

    μ_i - [G⁻¹y]_i/[G⁻¹]_ii is the mean without the own value; [G⁻¹]_ii = d²(1 - cd²).
    """
    weight, inverse_root = _weights(field, noise)
    loads = (weight * inverse_root).astype(np.float32)[:, None]
    told = (inverse_root[:, None] * np.where(np.isfinite(noise)[:, None], values, 0.0)).astype(np.float32)
    blocks = [told[:, start : start + COLUMNS] for start in range(0, told.shape[1], COLUMNS)]
    solved = np.hstack(in_threads([partial(solve_columns, field, loads, block) for block in blocks]))
    mean = weight[:, None] * np.asarray(_smooth(field, loads * solved), dtype=np.float64)
    kept = found.kept[:, None]
    share = kept * inverse_root[:, None] ** 2
    # Mean of the smooth part with the own value in, and the own value taken out again.
    return np.asarray((mean - kept * inverse_root[:, None] * told) / (1 - share))


def posterior_columns(field: FieldAtScale, noise: Array, x: Array) -> Array:
    """C x for columns x: covariances of the smooth part once everybody is heard, C = L - L d (I + d L d)⁻¹ d L."""
    weight, inverse_root = _weights(field, noise)
    loads = (weight * inverse_root).astype(np.float32)[:, None]
    spread = weight[:, None] * np.asarray(_smooth(field, weight[:, None] * x), dtype=np.float64)
    solved = solve_columns(field, loads, (inverse_root[:, None] * spread).astype(np.float32))
    return np.asarray(spread - weight[:, None] * np.asarray(_smooth(field, loads * solved), dtype=np.float64))


@dataclass(frozen=True, slots=True)
class LeakAtScale:
    """R_leak as `r_leak` has it, for a network of any size, with the standard error that the probes leave.

    nats, error  min(entropy, max(r_sat, r_gp)) and its standard error; 0 where r_sat or the entropy decides
    by_field     where r_gp decides
    by_friends   where r_sat does
    """

    nats: Array
    error: Array
    r_sat: Array
    r_gp: Array
    by_field: BoolArray
    by_friends: BoolArray
    noise: Array
    left: LeftAtScale


def leak_at_scale(
    graph: SocialGraph, field: FieldAtScale, fit: FieldFit, budgets: Array, rng: np.random.Generator, probes: int = 128
) -> LeakAtScale:
    """R_leak of every client for client-level budgets, from constants that are already fitted."""
    heard = budgets > 0
    noise = np.full(len(budgets), np.inf)
    noise[heard] = 1 / (2 * budgets[heard] * fit.rate * (1 - fit.rate))
    found = leave_one_out_at_scale(field, noise, rng, probes)
    r_gp = np.maximum(0.0, -0.5 * np.log(np.maximum(found.left, 1e-12)))
    reach = friendships(graph) @ (budgets / (2 + budgets))
    r_sat = saturating_level(fit, reach)
    entropy = float(-fit.rate * np.log(fit.rate) - (1 - fit.rate) * np.log1p(-fit.rate))
    level = np.maximum(r_sat, r_gp)
    below = level < entropy
    by_field: BoolArray = (r_gp >= r_sat) & below
    error = np.where(by_field, 0.5 * found.error / np.maximum(found.left, 1e-12), 0.0)
    return LeakAtScale(np.minimum(level, entropy), error, r_sat, r_gp, by_field, (r_gp < r_sat) & below, noise, found)


def marginal_at_scale(
    graph: SocialGraph,
    field: FieldAtScale,
    fit: FieldFit,
    budgets: Array,
    leak: LeakAtScale,
    rng: np.random.Generator,
    probes: int = 64,
) -> tuple[Array, Array]:
    """Σ_i ∂R_leak,i/∂ρ_j of every client j, and its standard error; nats per unit of budget.

    p(1-p) (τ_j/D_j)² Σ_{i≠j} C_ij² / ((1 - C_ii d_i²)² left_i) where the field decides about i: the sum is the mean of
    (Σ_{i≠j} C_ji √w_i z_i)² over random signs z. Friends' slopes, where they decide, are exact.
    """
    gain, told = _slope_factors(field, fit, leak)
    roots = np.sqrt(np.where(leak.by_field, told, 0.0))
    count = require_count(probes, "probes", 2)

    def squares(own: np.random.Generator, width: int) -> Array:
        signs = random_signs(own, (field.num_clients, width)) * roots[:, None]
        others = posterior_columns(field, leak.noise, signs) - leak.left.kept[:, None] * signs
        return np.array([(others**2).sum(axis=1), (others**4).sum(axis=1)])

    first, second = np.sum(over_probes(squares, count, rng), axis=0) / count
    error = gain * np.sqrt(np.maximum(second - first**2, 0.0) / (count - 1))
    linked = friendships(graph)
    reach = linked @ (budgets / (2 + budgets))
    near = linked @ np.where(leak.by_friends, saturating_slope(fit, reach), 0.0)
    return np.asarray(gain * first + 2 / (2 + budgets) ** 2 * near), np.asarray(error)


def slopes_at_scale(
    graph: SocialGraph, field: FieldAtScale, fit: FieldFit, budgets: Array, leak: LeakAtScale, client: int
) -> Array:
    """∂R_leak,i/∂ρ_j of one client i over all j, nats per unit of budget; one solve."""
    slopes = np.zeros(field.num_clients)
    if leak.by_field[client]:
        gain, told = _slope_factors(field, fit, leak)
        unit = np.zeros((field.num_clients, 1))
        unit[client] = 1.0
        slopes = gain * told[client] * posterior_columns(field, leak.noise, unit)[:, 0] ** 2
    elif leak.by_friends[client]:
        friends = np.asarray(friendships(graph)[[client]].toarray()).ravel()
        reach = np.array([friends @ (budgets / (2 + budgets))])
        slopes = friends * 2 / (2 + budgets) ** 2 * saturating_slope(fit, reach)[0]
    slopes[client] = 0.0
    return np.asarray(slopes)


def _slope_factors(field: FieldAtScale, fit: FieldFit, leak: LeakAtScale) -> tuple[Array, Array]:
    """What belongs to the source, p(1-p)(τ/D)², and to the client told about, 1/((1 - cd²)² left)."""
    _, inverse_root = _weights(field, leak.noise)
    heard = np.isfinite(leak.noise)
    share = np.where(heard, np.where(heard, leak.noise, 1.0) * inverse_root**2, 1.0)
    told = 1 / ((1 - leak.left.kept * inverse_root**2) ** 2 * np.maximum(leak.left.left, 1e-12))
    return np.asarray(fit.rate * (1 - fit.rate) * share**2), np.asarray(told)
