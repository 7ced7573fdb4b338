"""The Gaussian field on networks too large for N×N matrices: Chebyshev for e^{βN}, probes for diagonals, error bars.

e^{βN}x is a Chebyshev series in N, some 2√β terms long, each a sparse product. A diagonal of F Fᵀ is the mean of (Fz)²
over random signs z. What all others leave of a client's variance comes from simulated data: draw a field and its noisy
values, solve for the posterior mean by conjugate gradients, and see how far it moves beyond what the client's own value
alone would have done. That difference is its own variance, so small leaks come with small errors.

The log-likelihood of a public sample is taken over that of independence, in nats, exactly or by Lanczos quadrature. Its
surface over (β, η) gives intervals for both: those values whose best likelihood is less than 1.92 below the largest
(95 % for one constant), and two standard errors more where the surface is itself estimated. The attribute is binary and
the field Gaussian, so this is a quasi-likelihood.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.interpolate import PchipInterpolator
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import ive

from mppfl.arrays import Array, BoolArray, require_count
from mppfl.errors import NotConverged
from mppfl.leakage.field import (
    FieldFit,
    friend_moments,
    friendships,
    saturating_level,
    saturating_slope,
    standardised,
)
from mppfl.network import SocialGraph, SparseMatrix

COLUMNS = 32  # probes at once: 100,000 clients × 32 × 4 bytes is 13 MB
SERIES_TOLERANCE = 1e-6  # of the largest coefficient; single precision has little more
SMALL_SPECTRUM = 500  # clients: a matrix of that size is solved at once
ROUNDING = 1e-5  # of a variance: what single precision leaves
SOLVED = 1e-3  # relative residual of conjugate gradients; probes err by more
MOST_ITERATIONS = 1000
DIAGONAL_PROBES = 256
LARGEST_BETA = 32.0
BETAS = np.geomspace(0.25, LARGEST_BETA, 11)
BETAS_AT_SCALE = np.geomspace(0.5, LARGEST_BETA, 7)  # each costs some ten seconds of one core for 100,000 clients
ETAS = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
FINE_ETAS = np.concatenate([np.geomspace(0.002, 0.05, 12), np.linspace(0.06, 0.99, 63)])
CLOSELY = np.geomspace(0.75, 4 / 3, 7)
HALF_OF_CHI_SQUARED = 1.92  # 95 % of χ² with one degree of freedom, halved
LANCZOS_STEPS = 20
DETERMINANT_PROBES = 16
SURFACE_PROBES = 64
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class NormalisedWalk:
    """N = D^-½ A D^-½ without its trivial mode, as an operator in single precision.

    trivial    unit vector D^½ 1, float32
    low, high  an interval that holds the spectrum: the tighter, the shorter the series and the more digits it keeps
    """

    edges: SparseMatrix
    trivial: Any
    low: float
    high: float

    @property
    def num_clients(self) -> int:
        return int(self.edges.shape[0])

    def __matmul__(self, x: Any) -> Any:
        return self.edges @ x - self.trivial[:, None] * (self.trivial @ x)

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


def walk_of(graph: SocialGraph) -> NormalisedWalk:
    """The network's normalised walk; edges count the same in both directions and whatever their weight."""
    connected = friendships(graph)
    roots = np.sqrt(np.asarray(connected.sum(axis=1)).ravel())
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
    scaled = sp.diags_array(inverse) @ connected @ sp.diags_array(inverse)
    trivial = roots / max(float(np.linalg.norm(roots)), 1e-300)
    open_walk = NormalisedWalk(sp.csr_array(scaled, dtype=np.float32), trivial.astype(np.float32), -1.0, 1.0)
    return replace(open_walk, **_spectrum(open_walk))


def _spectrum(walk: NormalisedWalk) -> dict[str, float]:
    """Both ends of the spectrum by Lanczos, with a margin for what it has not yet found."""
    size = walk.num_clients
    if size < SMALL_SPECTRUM:
        ends = np.linalg.eigvalsh(walk.edges.toarray() - np.outer(walk.trivial, walk.trivial))
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

    walk: NormalisedWalk
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
    walk: NormalisedWalk, beta: float, eta: float, rng: np.random.Generator, probes: int = DIAGONAL_PROBES
) -> FieldAtScale:
    """The field for constants (β, η), its diagonal estimated with `probes` random sign vectors."""
    values, errors, mean = diagonal_of_exponential(walk, beta, rng, probes)
    return FieldAtScale(walk, beta, eta, values, errors, mean)


def diagonal_of_exponential(
    walk: NormalisedWalk, beta: float, rng: np.random.Generator, probes: int
) -> tuple[Array, Array, float]:
    """Diagonal of e^{βN} over its mean, its relative standard errors, and that mean for e^{β(N - high)}."""

    def squares(stream: np.random.Generator, width: int) -> tuple[Array, Array]:
        signs = random_signs(stream, (walk.num_clients, width))
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
    return in_threads(
        [partial(work, stream, width) for stream, width in zip(rng.spawn(len(widths)), widths, strict=True)]
    )


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
    prior = weight**2 * field.smooth  # L_ii
    alone = prior * inverse_root / (1 + prior * inverse_root**2)  # μ° = alone · (d y)
    count = require_count(probes, "probes", 2)
    loads = (weight * inverse_root).astype(np.float32)[:, None]

    def moments(fresh: np.random.Generator, width: int) -> Array:
        signs = random_signs(fresh, (field.num_clients, width))
        drawn = weight[:, None] * np.asarray(field.walk.exponential(field.beta / 2, signs)) / np.sqrt(field.mean)
        heard = (inverse_root[:, None] * drawn).astype(np.float32) + random_signs(fresh, signs.shape)
        solved = solve_columns(field, loads, heard)
        mean = weight[:, None] * _smooth(field, loads * solved)
        beyond, about = (mean - alone[:, None] * heard) ** 2, (drawn - mean) ** 2
        return np.stack([beyond.sum(axis=1), (beyond**2).sum(axis=1), about.sum(axis=1), (about**2).sum(axis=1)])

    sums = np.sum(over_probes(moments, count, rng), axis=0) / count
    beyond, about = sums[0], sums[2]
    most = prior / (1 + prior * inverse_root**2)
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
    goal = SOLVED**2 * size
    for _ in range(MOST_ITERATIONS):
        image = direction + loads * _smooth(field, loads * direction)
        bend = np.einsum("ij,ij->j", direction, image, dtype=np.float64)
        step = np.divide(size, bend, out=np.zeros_like(size), where=bend > 0).astype(np.float32)
        x += step * direction
        residual -= step * image
        before, size = size, np.einsum("ij,ij->j", residual, residual, dtype=np.float64)
        if (size <= goal).all():
            break
        turn = np.divide(size, before, out=np.zeros_like(size), where=before > 0).astype(np.float32)
        direction = residual + turn * direction
    else:
        worst = float(np.sqrt((size / np.maximum(goal, 1e-300)).max())) * SOLVED
        raise NotConverged(
            f"the field's equations were solved only to {worst:.2g} (wanted {SOLVED:g}); lower the largest budgets.",
            x,
            worst,
        )
    return x


def leave_one_out_means(field: FieldAtScale, noise: Array, values: Array, left: LeftAtScale) -> Array:
    """Each client's expected value given everyone else's noisy value: [clients, draws], for `values` [clients, draws].

    μ_i - [G⁻¹y]_i/[G⁻¹]_ii is the mean without the own value; [G⁻¹]_ii = d²(1 - cd²).
    """
    weight, inverse_root = _weights(field, noise)
    loads = (weight * inverse_root).astype(np.float32)[:, None]
    heard = (inverse_root[:, None] * np.where(np.isfinite(noise)[:, None], values, 0.0)).astype(np.float32)
    blocks = [heard[:, start : start + COLUMNS] for start in range(0, heard.shape[1], COLUMNS)]
    solved = np.hstack(in_threads([partial(solve_columns, field, loads, block) for block in blocks]))
    mean = weight[:, None] * np.asarray(_smooth(field, loads * solved), dtype=np.float64)
    kept = left.kept[:, None]
    share = kept * inverse_root[:, None] ** 2
    # Mean of the smooth part with the own value in, and the own value taken out again.
    return np.asarray((mean - kept * inverse_root[:, None] * heard) / (1 - share))


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
    left = leave_one_out_at_scale(field, noise, rng, probes)
    r_gp = np.maximum(0.0, -0.5 * np.log(np.maximum(left.left, 1e-12)))
    reach = friendships(graph) @ (budgets / (2 + budgets))
    r_sat = saturating_level(fit, reach)
    entropy = float(-fit.rate * np.log(fit.rate) - (1 - fit.rate) * np.log1p(-fit.rate))
    level = np.maximum(r_sat, r_gp)
    below = level < entropy
    by_field: BoolArray = (r_gp >= r_sat) & below
    error = np.where(by_field, 0.5 * left.error / np.maximum(left.left, 1e-12), 0.0)
    return LeakAtScale(np.minimum(level, entropy), error, r_sat, r_gp, by_field, (r_gp < r_sat) & below, noise, left)


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
    gain, per_target = _slope_factors(field, fit, leak)
    roots = np.sqrt(np.where(leak.by_field, per_target, 0.0))
    count = require_count(probes, "probes", 2)

    def squares(stream: np.random.Generator, width: int) -> Array:
        signs = random_signs(stream, (field.num_clients, width)) * roots[:, None]
        others = posterior_columns(field, leak.noise, signs) - leak.left.kept[:, None] * signs
        return np.array([(others**2).sum(axis=1), (others**4).sum(axis=1)])

    first, second = np.sum(over_probes(squares, count, rng), axis=0) / count
    error = gain * np.sqrt(np.maximum(second - first**2, 0.0) / (count - 1))
    connected = friendships(graph)
    reach = connected @ (budgets / (2 + budgets))
    near = connected @ np.where(leak.by_friends, saturating_slope(fit, reach), 0.0)
    return np.asarray(gain * first + 2 / (2 + budgets) ** 2 * near), np.asarray(error)


def slopes_at_scale(
    graph: SocialGraph, field: FieldAtScale, fit: FieldFit, budgets: Array, leak: LeakAtScale, client: int
) -> Array:
    """∂R_leak,i/∂ρ_j of one client i over all j, nats per unit of budget; one solve."""
    slopes = np.zeros(field.num_clients)
    if leak.by_field[client]:
        gain, per_target = _slope_factors(field, fit, leak)
        unit = np.zeros((field.num_clients, 1))
        unit[client] = 1.0
        slopes = gain * per_target[client] * posterior_columns(field, leak.noise, unit)[:, 0] ** 2
    elif leak.by_friends[client]:
        friends = np.asarray(friendships(graph)[[client]].toarray()).ravel()
        reach = np.array([friends @ (budgets / (2 + budgets))])
        slopes = friends * 2 / (2 + budgets) ** 2 * saturating_slope(fit, reach)[0]
    slopes[client] = 0.0
    return np.asarray(slopes)


def _slope_factors(field: FieldAtScale, fit: FieldFit, leak: LeakAtScale) -> tuple[Array, Array]:
    """The factor of the source, p(1-p)(τ/D)², and that of the target, 1/((1 - cd²)² left)."""
    _, inverse_root = _weights(field, leak.noise)
    heard = np.isfinite(leak.noise)
    share = np.where(heard, np.where(heard, leak.noise, 1.0) * inverse_root**2, 1.0)
    per_target = 1 / ((1 - leak.left.kept * inverse_root**2) ** 2 * np.maximum(leak.left.left, 1e-12))
    return np.asarray(fit.rate * (1 - fit.rate) * share**2), np.asarray(per_target)


@dataclass(frozen=True, eq=False)
class LikelihoodSurface:
    """Log-likelihood over independence, [β, η], with standard errors of its differences from the largest."""

    betas: Array
    etas: Array
    gains: Array
    errors: Array

    def best(self) -> tuple[float, float, float]:
        """β, η and the gain at the top: of parabolas through the best cell and its neighbours."""
        row, column = np.unravel_index(int(np.argmax(self.gains)), self.gains.shape)
        log_beta, up = _top_of_parabola(np.log(self.betas), self.gains[:, column], int(row))
        eta, further = _top_of_parabola(self.etas, self.gains[row], int(column))
        return math.exp(log_beta), eta, float(self.gains[row, column]) + up + further

    def intervals(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """95 % of β and of η by profile likelihood; an end of the range tried means that nothing limits it."""
        near_top = self.gains >= self.gains.max() - 10 * HALF_OF_CHI_SQUARED
        # Where the top lies is known no better than the surface itself.
        allowed = HALF_OF_CHI_SQUARED + 2 * float(self.errors[near_top].max(initial=0.0))
        top = self.best()[2]
        logs = _where_likely(np.log(self.betas), self.gains.max(axis=1), top - allowed)
        return (math.exp(logs[0]), math.exp(logs[1])), _where_likely(self.etas, self.gains.max(axis=0), top - allowed)


def _top_of_parabola(points: Array, values: Array, top: int) -> tuple[float, float]:
    """Where the parabola through a largest value and its neighbours is highest, and by how much it is higher."""
    if top in (0, len(points) - 1):
        return float(points[top]), 0.0
    left, right = points[top] - points[top - 1], points[top + 1] - points[top]
    slope_left, slope_right = (values[top] - values[top - 1]) / left, (values[top + 1] - values[top]) / right
    bend = (slope_right - slope_left) / (left + right)
    slope = (slope_left * right + slope_right * left) / (left + right)
    if bend >= 0:
        return float(points[top]), 0.0
    return float(points[top] - slope / (2 * bend)), float(-(slope**2) / (4 * bend))


def _where_likely(points: Array, profile: Array, least: float) -> tuple[float, float]:
    """First and last place where the profile is above `least`; it is interpolated without overshooting.

    A peak may be narrower than the steps taken: the parabola through the best three has then the better width.
    """
    fine = np.linspace(points[0], points[-1], 400)
    best = int(np.argmax(profile))
    inside = [*fine[PchipInterpolator(points, profile)(fine) >= least].tolist(), float(points[best])]
    if 0 < best < len(points) - 1:
        top, up = _top_of_parabola(points, profile, best)
        bend = np.polyfit(points[best - 1 : best + 2], profile[best - 1 : best + 2], 2)[0]
        if bend < 0:
            reach = math.sqrt(max(float(profile[best]) + up - least, 0.0) / -bend)
            inside += [max(top - reach, float(points[0])), min(top + reach, float(points[-1]))]
    return float(min(inside)), float(max(inside))


def exact_surface(
    modes: tuple[Array, Array], public: BoolArray, values: Array, around: float | None = None
) -> LikelihoodSurface:
    """The surface by eigenvalues of e^{βN} among public clients; `values` are standardised, one for each of them.

    Near `around`, a β that is known to be likely, the surface is taken more closely.
    """
    spectrum, vectors = modes
    betas = BETAS if around is None else np.union1d(BETAS, np.clip(around * CLOSELY, BETAS[0], BETAS[-1]))
    gains = np.empty((len(betas), len(FINE_ETAS)))
    for row, beta in enumerate(betas):
        weights = np.exp(beta * (spectrum - spectrum[-1]))
        rows = vectors[public] * np.sqrt(weights / weights.mean())
        smooth = rows @ rows.T
        variances = np.diagonal(smooth)
        widths, axes = np.linalg.eigh(smooth)
        for column, eta in enumerate(FINE_ETAS):
            diagonal, scales = eta + (1 - eta) * variances, eta + (1 - eta) * np.maximum(widths, 0.0)
            spread = axes.T @ (np.sqrt(diagonal) * values)
            misfit = np.sum(spread**2 / scales) + np.sum(np.log(scales)) - np.sum(np.log(diagonal))
            gains[row, column] = 0.5 * float(values @ values - misfit)
    return LikelihoodSurface(betas, FINE_ETAS, gains, np.zeros_like(gains))


def surface_at_scale(
    walk: NormalisedWalk, public: BoolArray, values: Array, rng: np.random.Generator, betas: Array = BETAS_AT_SCALE
) -> LikelihoodSurface:
    """The surface by stochastic Lanczos quadrature; the same signs for every β, so that differences are sharp."""
    signs = random_signs(rng, (int(public.sum()), DETERMINANT_PROBES))
    streams = rng.spawn(len(betas))

    row_of = partial(_row_at_scale, walk, public, values, signs)
    rows = in_threads([partial(row_of, beta, stream) for beta, stream in zip(betas, streams, strict=True)])
    fits = np.array([row[0] for row in rows])  # [β, η]
    per_probe = np.array([row[1] for row in rows])  # [β, η, probe]: ½ ln det
    gains = fits - per_probe.mean(axis=2)
    top = np.unravel_index(int(np.argmax(gains)), gains.shape)
    differences = per_probe - per_probe[top]
    errors = differences.std(axis=2, ddof=1) / math.sqrt(DETERMINANT_PROBES)
    return LikelihoodSurface(np.asarray(betas), ETAS, gains, errors)


def _row_at_scale(
    walk: NormalisedWalk, public: BoolArray, values: Array, signs: Any, beta: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """For one β and every η: the fit without its determinant, and ½ ln det by each probe."""
    smooth, _, mean = diagonal_of_exponential(walk, beta, rng, SURFACE_PROBES)
    diagonals = ETAS[:, None] + (1 - ETAS[:, None]) * smooth[public]  # [η, public]
    starts = np.hstack([(np.sqrt(diagonals) * values).T.astype(np.float32), signs])

    def image(x: Any) -> Any:
        spread = np.zeros((walk.num_clients, x.shape[1]), dtype=np.float32)
        spread[public] = x
        return walk.exponential(beta, spread)[public] / np.float32(mean)

    lengths, nodes, shares = lanczos_quadrature(image, starts, LANCZOS_STEPS)
    count = len(ETAS)
    scales = ETAS[:, None, None] + (1 - ETAS[:, None, None]) * np.maximum(nodes, 0.0)  # [η, column, node]
    squares = lengths[:count] * np.einsum("cn,cn->c", shares[:count], 1 / scales[range(count), range(count)])
    determinants = lengths[count:] * np.einsum("cn,ecn->ec", shares[count:], np.log(scales[:, count:]))
    fit = 0.5 * (float(values @ values) - squares + np.log(diagonals).sum(axis=1))
    return fit, 0.5 * determinants


def lanczos_quadrature(image: Any, starts: Any, steps: int) -> tuple[Array, Array, Array]:
    """Squared lengths of the starts, and for each a quadrature: vᵀf(M)v ≈ length · Σ shares f(nodes)."""
    lengths = np.einsum("ij,ij->j", starts, starts, dtype=np.float64)
    now = (starts / np.sqrt(lengths)).astype(np.float32)
    before, coupling = np.zeros_like(now), np.zeros(now.shape[1])
    steps = min(steps, len(starts))
    main, beside = np.zeros((now.shape[1], steps)), np.zeros((now.shape[1], steps))
    for step in range(steps):
        following = image(now) - coupling.astype(np.float32) * before
        main[:, step] = np.einsum("ij,ij->j", following, now, dtype=np.float64)
        following -= main[:, step].astype(np.float32) * now
        coupling = np.sqrt(np.einsum("ij,ij->j", following, following, dtype=np.float64))
        beside[:, step] = coupling
        before = now
        now = (following / np.maximum(coupling, 1e-30)).astype(np.float32)
    bands = np.zeros((len(main), steps, steps))
    index = np.arange(steps)
    bands[:, index, index] = main
    bands[:, index[1:], index[:-1]] = bands[:, index[:-1], index[1:]] = beside[:, :-1]
    nodes, vectors = np.linalg.eigh(bands)
    return lengths, nodes, vectors[:, 0, :] ** 2


def fit_at_scale(
    graph: SocialGraph, walk: NormalisedWalk, shown: Array, rng: np.random.Generator
) -> tuple[FieldFit, LikelihoodSurface]:
    """`fit_field` for a network of any size: the top of the estimated likelihood surface."""
    values, rate = standardised(shown)
    surface = surface_at_scale(walk, ~np.isnan(shown), values, rng)
    beta, eta, gain = surface.best()
    moments = friend_moments(friendships(graph), shown)
    return FieldFit(beta, eta, rate, gain / len(values), *moments, len(values)), surface
