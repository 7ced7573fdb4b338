"""The Gaussian field on the graph: how an attribute is correlated along the edges, and what noisy values tell about it.

K = η I + (1-η) e^{βN} with a unit diagonal, N = D^-½ A D^-½ without its trivial mode. One rule of size says how it is
computed. Up to `DENSE_LIMIT` clients with matrices, exactly. Above, e^{βN}x is a Chebyshev series in N, some 2√β terms
long, each a sparse product; a diagonal of F Fᵀ is the mean of (Fz)² over random signs z; equations are solved by
conjugate gradients. What is estimated comes with standard errors.

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
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.interpolate import PchipInterpolator
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import LinearOperator, cg, eigsh
from scipy.special import ive, log_expit

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadInput, NotConverged
from mppfl.network import SocialGraph, SparseMatrix

DENSE_LIMIT = 3_000  # clients; an N×N eigendecomposition of that size takes some 10 s and 300 MB
LEAST_PUBLIC = 10
STANDARD_95 = 1.959964  # standard deviations on either side that hold 95 % of a normal distribution
COLUMNS = 32  # probes at once: 100,000 clients × 32 × 4 bytes is 13 MB
SERIES_TOLERANCE = 1e-6  # of the largest coefficient; single precision has little more
ROUNDING = 1e-5  # of a variance: what single precision leaves
SOLVED = 1e-3  # relative residual of conjugate gradients; probes err by more
MOST_ITERATIONS = 1000
DIAGONAL_PROBES = 256
LARGEST_BETA = 32.0
ETA_BOUNDS = (1e-3, 1.0)
BETAS_TRIED = np.geomspace(0.25, LARGEST_BETA, 8)  # before the exact fit searches between two of them
BETAS = np.geomspace(0.25, LARGEST_BETA, 11)
BETAS_AT_SCALE = np.geomspace(0.5, LARGEST_BETA, 7)  # each costs some ten seconds of one core for 100,000 clients
ETAS = np.concatenate([np.geomspace(0.002, 0.05, 12), np.linspace(0.06, 0.99, 63)])
ETAS_AT_SCALE = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
CLOSELY = np.geomspace(0.75, 4 / 3, 7)
HALF_OF_CHI_SQUARED = 1.92  # 95 % of χ² with one degree of freedom, halved
LANCZOS_STEPS = 20
DETERMINANT_PROBES = 16
SURFACE_PROBES = 64
Interval = tuple[float, float]
Modes = tuple[Array, Array]  # eigenvalues and eigenvectors
Result = TypeVar("Result")


def fits_matrices(num_clients: int) -> bool:
    """The rule of size: whether a network is small enough to be computed with matrices."""
    return num_clients <= DENSE_LIMIT


def require_dense(num_clients: int, what: str) -> None:
    """Raises where `what` would need a matrix too large to hold."""
    if not fits_matrices(num_clients):
        raise BadInput(f"{what} is {densely(num_clients)}. Take a part of the graph.")


def densely(num_clients: int) -> str:
    """What is said of a network that does not fit."""
    return f"computed densely, for at most {DENSE_LIMIT:,} clients, not {num_clients:,}"


def friendships(graph: SocialGraph) -> SparseMatrix:
    """Who is connected to whom in either direction: a symmetric csr_array of ones."""
    edges = graph.influence
    ones = sp.csr_array((np.ones(edges.nnz), edges.indices, edges.indptr), shape=edges.shape)
    return ones.maximum(ones.T).tocsr()


# ---- the network's walk ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class NormalisedWalk:
    """N = D^-½ A D^-½ without its trivial mode D^½ 1; edges count the same both ways and whatever their weight.

    connected  A: who is connected to whom
    edges      D^-½ A D^-½, in single precision
    trivial    the unit vector of the trivial mode, in single precision
    modes      eigenvalues and eigenvectors of N; None where the network is too large for them
    low, high  an interval that holds the spectrum: the tighter, the shorter the series and the more digits it keeps
    """

    connected: SparseMatrix
    edges: SparseMatrix
    trivial: Any
    modes: Modes | None = None
    low: float = -1.0
    high: float = 1.0

    @property
    def num_clients(self) -> int:
        return int(self.edges.shape[0])

    def __matmul__(self, x: Any) -> Any:
        return self.edges @ x - self.trivial[:, None] * (self.trivial @ x)

    def exponential(self, beta: float, x: Any) -> Any:
        """e^{β(N - high)} x for columns x: a Chebyshev series on [low, high]."""
        half, middle = np.float32((self.high - self.low) / 2), np.float32((self.high + self.low) / 2)
        orders = np.arange(int(20 + 2 * beta * float(half)))
        weights = np.where(orders > 0, 2.0, 1.0) * ive(orders, beta * float(half))
        last = int(np.flatnonzero(weights > SERIES_TOLERANCE * weights.max())[-1])
        weights = weights[: max(last + 1, 2)].astype(np.float32)
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

    def diagonal(self, beta: float, rng: np.random.Generator, probes: int) -> tuple[Array, Array, float]:
        """Diagonal of e^{βN} over its mean, its relative standard errors, and that mean for e^{β(N - high)}."""

        def squares(stream: np.random.Generator, width: int) -> Array:
            signs = random_signs(stream, (self.num_clients, width))
            square = np.asarray(self.exponential(beta / 2, signs), dtype=np.float64) ** 2
            return np.array([square.sum(axis=1), (square**2).sum(axis=1)])

        first, second = over_probes(squares, probes, rng)
        mean = float(np.mean(first))
        return first / mean, _error_of_mean(first, second, probes) / first, mean


def walk_of(graph: SocialGraph) -> NormalisedWalk:
    """The network's normalised walk, with its modes where it fits matrices."""
    connected = friendships(graph)
    roots = np.sqrt(np.asarray(connected.sum(axis=1)).ravel())
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
    scaled = sp.diags_array(inverse) @ connected @ sp.diags_array(inverse)
    trivial = roots / max(float(np.linalg.norm(roots)), 1e-300)
    parts = connected, sp.csr_array(scaled, dtype=np.float32), trivial.astype(np.float32)
    size = graph.num_clients
    if fits_matrices(size):
        values, vectors = np.linalg.eigh(scaled.toarray() - np.outer(trivial, trivial))
        return NormalisedWalk(*parts, (values, vectors))
    walk = NormalisedWalk(*parts)
    operator = LinearOperator((size, size), matvec=lambda x: (walk @ x.reshape(-1, 1)).ravel(), dtype=np.float32)
    start = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    ends = eigsh(operator, k=2, which="BE", tol=1e-3, v0=start, return_eigenvectors=False)
    # A margin for what Lanczos has not yet found.
    return NormalisedWalk(
        *parts, None, max(-1.0, float(ends.min()) - 0.01), min(1.0, max(float(ends.max()), 0.0) + 0.01)
    )


def exponential_matrix(modes: Modes, beta: float, among: BoolArray) -> Array:
    """e^{βN} over the mean of its diagonal, among some clients."""
    values, vectors = modes
    weights = np.exp(beta * (values - values[-1]))
    rows = vectors[among] * np.sqrt(weights / weights.mean())
    return np.asarray(rows @ rows.T)


def over_probes(work: Callable[[np.random.Generator, int], Array], probes: int, rng: np.random.Generator) -> Array:
    """Mean over probes of `work(generator, columns)`, a sum over so many; what is drawn depends on `rng` alone."""
    widths = [min(COLUMNS, probes - start) for start in range(0, probes, COLUMNS)]
    streams = rng.spawn(len(widths))
    parts = in_threads([partial(work, stream, width) for stream, width in zip(streams, widths, strict=True)])
    return np.asarray(np.sum(parts, axis=0) / probes)


def in_threads(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of the jobs in order. Sparse products and NumPy let go of the interpreter, so threads do help."""
    with ThreadPoolExecutor(max_workers=min(len(jobs), os.cpu_count() or 1)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def random_signs(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return (2 * rng.integers(0, 2, size=shape, dtype=np.int8) - 1).astype(np.float32)


def _error_of_mean(mean: Array, mean_of_squares: Array, probes: int) -> Array:
    return np.asarray(np.sqrt(np.maximum(mean_of_squares - mean**2, 0.0) / max(probes - 1, 1)))


# ---- constants, from a public sample --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldFit:
    """The Gaussian field and the one-hop model, as fitted on a public sample.

    beta, eta          K = η I + (1-η) e^{βN}, unit diagonal
    rate               share of +1
    gain_per_client    log-likelihood over independence, nats per public client
    friend_slope       b = (E[mean of friends | +] - E[mean of friends | -]) / 2
    friend_covariance  v, between two friends of one client given the client; 0 where the estimate is negative
    """

    beta: float
    eta: float
    rate: float
    gain_per_client: float
    friend_slope: float
    friend_covariance: float
    num_public: int

    @property
    def information(self) -> float:
        """p(1-p): half of what a unit of budget adds to the precision with which a client's value is known."""
        return self.rate * (1 - self.rate)

    @property
    def entropy(self) -> float:
        """H(X) in nats."""
        return float(entropy_of(np.array(self.rate)))

    @property
    def mean_and_spread(self) -> tuple[float, float]:
        """Mean and standard deviation of X = ±1."""
        return 2 * self.rate - 1, 2 * math.sqrt(self.information)

    def log_odds(self, means: Array, left: Array) -> Array:
        """What a mean and a variance of the standardised value add to the log-odds of +1."""
        middle, spread = self.mean_and_spread
        return np.asarray(2 / spread * means / left + 2 * middle / spread**2 * (1 / left - 1))

    def saturating_level(self, reach: Any) -> Array:
        """R_sat = ½ ln(1 + b²T/(1+vT)): what friends alone tell, T = Σ_friends ρ_j/(2+ρ_j)."""
        return np.asarray(0.5 * np.log1p(self.friend_slope**2 * reach / (1 + self.friend_covariance * reach)))

    def saturating_slope(self, reach: Array) -> Array:
        """dR_sat/dT."""
        square, common = self.friend_slope**2, 1 + self.friend_covariance * reach
        return np.asarray(0.5 * square / (common * (common + square * reach)))


def log_loss_gain(signs: Array, odds: Array, prior: Any) -> Array:
    """What log-odds of +1 gain over prior ones in log-loss about ±1, nats."""
    return np.asarray(log_expit(signs * odds) - log_expit(signs * prior))


def entropy_of(rates: Array) -> Array:
    """Entropy in nats of a value that is +1 with these chances."""
    return np.asarray(-rates * np.log(rates) - (1 - rates) * np.log1p(-rates))


def fit_field(walk: NormalisedWalk, known: Array, rng: np.random.Generator) -> FieldFit:
    """(β, η) by maximum likelihood of the standardised known values, and the one-hop slope and covariance.

    known  ±1, NaN where not public. Only a network too large for matrices draws from `rng`.
    """
    if walk.modes is None:
        return fit_with_intervals(walk, known, rng)[0]
    values, rate = _standardised(known)
    best_eta = partial(_best_eta, walk.modes, ~np.isnan(known), values)
    grid = np.log(BETAS_TRIED)
    coarse = [best_eta(b)[0] for b in grid]
    least = int(np.argmin(coarse))
    ends = grid[max(least - 1, 0)], grid[min(least + 1, len(grid) - 1)]
    best = minimize_scalar(lambda b: best_eta(b)[0], bounds=ends, method="bounded", options={"xatol": 0.05})
    log_beta = float(best.x) if best.fun <= coarse[least] else float(grid[least])
    misfit, eta = best_eta(log_beta)
    gain = 0.5 * float(values @ values) - misfit
    return _fitted(walk, known, (math.exp(log_beta), eta, gain), rate)


def fit_with_intervals(
    walk: NormalisedWalk, known: Array, rng: np.random.Generator
) -> tuple[FieldFit, Interval, Interval]:
    """`fit_field`, with 95 % intervals of β and η by profile likelihood; a limit of what is tried bounds nothing."""
    values, rate = _standardised(known)
    if walk.modes is not None:
        fit = fit_field(walk, known, rng)
        surface = _exact_surface(walk.modes, ~np.isnan(known), values, fit.beta)
    else:
        surface = _surface_at_scale(walk, ~np.isnan(known), values, rng)
        fit = _fitted(walk, known, surface.best(), rate)
    beta, eta = surface.intervals()
    return fit, (min(beta[0], fit.beta), max(beta[1], fit.beta)), (min(eta[0], fit.eta), max(eta[1], fit.eta))


def _fitted(walk: NormalisedWalk, known: Array, best: tuple[float, float, float], rate: float) -> FieldFit:
    (beta, eta, gain), count = best, int((~np.isnan(known)).sum())
    return FieldFit(beta, eta, rate, gain / count, *friend_moments(walk.connected, known)[:2], count)


def _standardised(known: Array) -> tuple[Array, float]:
    """The known values with mean 0 and variance 1, and the share of +1. Raises where they are too few or all alike."""
    signs = known[~np.isnan(known)]
    count, positive = len(signs), int((signs > 0).sum())
    if count < LEAST_PUBLIC or positive in (0, count):
        raise BadInput(
            f"public sample has {count} known values, {positive} of them positive; "
            f"give at least {LEAST_PUBLIC} with both values among them."
        )
    rate = positive / count
    return np.asarray((signs - (2 * rate - 1)) / (2 * math.sqrt(rate * (1 - rate)))), rate


def _misfit(smooth: Array, values: Array) -> Callable[[float], float]:
    """η -> minus the log-likelihood of the values, up to a constant; eigenvalues of `smooth` serve every η."""
    variances = np.diagonal(smooth)
    spectrum, axes = np.linalg.eigh(smooth)

    def misfit(eta: float) -> float:
        diagonal, widths = eta + (1 - eta) * variances, eta + (1 - eta) * np.maximum(spectrum, 0.0)
        spread = axes.T @ (np.sqrt(diagonal) * values)
        return 0.5 * float(np.sum(spread**2 / widths) + np.sum(np.log(widths)) - np.sum(np.log(diagonal)))

    return misfit


def _best_eta(modes: Modes, public: BoolArray, values: Array, log_beta: float) -> tuple[float, float]:
    misfit = _misfit(exponential_matrix(modes, math.exp(log_beta), public), values)
    best = minimize_scalar(misfit, bounds=ETA_BOUNDS, method="bounded", options={"xatol": 1e-3})
    return float(best.fun), float(best.x)


def friend_moments(connected: SparseMatrix, known: Array) -> tuple[float, float, Interval]:
    """b and v from public clients' public friends, 0 where there are too few to tell, and a 95 % interval of b.

    Every friendship enters from both of its ends; see `deviation_of_sum` for the variance of b.
    """
    public = ~np.isnan(known)
    among, signs = connected[public][:, public].tocoo(), known[public]
    degrees = np.bincount(among.row, minlength=len(signs)).astype(np.float64)
    sums = np.bincount(among.row, signs[among.col], minlength=len(signs))
    means, at_least_one = sums / np.maximum(degrees, 1), np.maximum(degrees, 1)
    sides = [(degrees > 0) & (signs == side) for side in (1.0, -1.0)]
    counts = [int(side.sum()) for side in sides]
    if not all(counts):
        return 0.0, 0.0, (math.nan, math.nan)
    above, below = (float(means[side].mean()) for side in sides)
    slope, expected = (above - below) / 2, np.where(signs > 0, above, below)
    pairs = degrees > 1
    squares = degrees - 2 * expected * sums + degrees * expected**2  # Σ (x_j - expected)², as x_j² = 1
    crossed = ((sums - degrees * expected) ** 2 - squares)[pairs] / (degrees * (degrees - 1))[pairs]
    covariance = max(0.0, float(crossed.mean())) if pairs.any() else 0.0
    if min(counts) < 2:
        return slope, covariance, (math.nan, math.nan)
    # What one end adds to b by the other, less what its side expects.
    weights = signs / (2 * np.where(signs > 0, *counts)) / at_least_one
    adds = weights[among.row] * (signs[among.col] - expected[among.row])
    one_way = sp.coo_array((adds, (among.row, among.col)), shape=among.shape).tocsr()
    both_ways = (one_way + one_way.T).tocsr()
    of_clients = np.asarray(both_ways.sum(axis=1)).ravel()
    width = STANDARD_95 * deviation_of_sum(of_clients, both_ways.data / math.sqrt(2))  # data hold every pair twice
    return slope, covariance, (slope - width, slope + width)


def deviation_of_sum(of_clients: Array, of_pairs: Array) -> float:
    """Standard deviation of Σ_{i<j} r_ij, from Σ_j r_ij of every client and from the r_ij themselves.

    Pairs that share a client are not independent: Var = Σ_i (Σ_j r_ij)² - Σ_{i<j} r_ij² (Aronow, Samii & Assenova 2015,
    Political Analysis 23, 564-577). Never less than if they were, which a small sample could pretend.
    """
    apart = float((of_pairs**2).sum())
    return math.sqrt(max(float((of_clients**2).sum()) - apart, apart))


# ---- likelihood and intervals ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class _Surface:
    """Log-likelihood over independence, [β, η], with standard errors of its differences from the largest."""

    betas: Array
    etas: Array
    gains: Array
    errors: Array

    def best(self) -> tuple[float, float, float]:
        """β, η and the gain at the top: of parabolas through the best cell and its neighbours."""
        row, column = np.unravel_index(int(np.argmax(self.gains)), self.gains.shape)
        log_beta, up, _ = _parabola(np.log(self.betas), self.gains[:, column], int(row))
        eta, further, _ = _parabola(self.etas, self.gains[row], int(column))
        return math.exp(log_beta), eta, float(self.gains[row, column]) + up + further

    def intervals(self) -> tuple[Interval, Interval]:
        """95 % of β and of η by profile likelihood; an end of the range tried means that nothing limits it."""
        near_top = self.gains >= self.gains.max() - 10 * HALF_OF_CHI_SQUARED
        # Where the top lies is known no better than the surface itself.
        least = self.best()[2] - HALF_OF_CHI_SQUARED - 2 * float(self.errors[near_top].max(initial=0.0))
        logs = _where_likely(np.log(self.betas), self.gains.max(axis=1), least)
        return (math.exp(logs[0]), math.exp(logs[1])), _where_likely(self.etas, self.gains.max(axis=0), least)


def _parabola(points: Array, values: Array, top: int) -> tuple[float, float, float]:
    """Of the parabola through a largest value and its neighbours: where it is highest, by how much, and its bend."""
    place = float(points[top])
    if 0 < top < len(points) - 1:
        near = slice(top - 1, top + 2)
        bend, slope, _ = map(float, np.polyfit(points[near] - place, values[near] - values[top], 2))
        if bend < 0:
            return place - slope / (2 * bend), -(slope**2) / (4 * bend), bend
    return place, 0.0, 0.0


def _where_likely(points: Array, profile: Array, least: float) -> Interval:
    """First and last place where the profile is above `least`; it is interpolated without overshooting.

    A peak may be narrower than the steps taken: the parabola through the best three has then the better width.
    """
    fine = np.linspace(points[0], points[-1], 400)
    best = int(np.argmax(profile))
    inside = [*fine[PchipInterpolator(points, profile)(fine) >= least].tolist(), float(points[best])]
    top, up, bend = _parabola(points, profile, best)
    if bend < 0:
        reach = math.sqrt(max(float(profile[best]) + up - least, 0.0) / -bend)
        inside += [max(top - reach, float(points[0])), min(top + reach, float(points[-1]))]
    return float(min(inside)), float(max(inside))


def _exact_surface(modes: Modes, public: BoolArray, values: Array, around: float) -> _Surface:
    """The surface by eigenvalues of e^{βN} among public clients, taken more closely near a likely β."""
    betas = np.union1d(BETAS, np.clip(around * CLOSELY, BETAS[0], BETAS[-1]))
    misfits = [_misfit(exponential_matrix(modes, beta, public), values) for beta in betas]
    gains = np.array([[0.5 * float(values @ values) - misfit(eta) for eta in ETAS] for misfit in misfits])
    return _Surface(betas, ETAS, gains, np.zeros_like(gains))


def _surface_at_scale(walk: NormalisedWalk, public: BoolArray, values: Array, rng: np.random.Generator) -> _Surface:
    """The surface by stochastic Lanczos quadrature; the same signs for every β, so that differences are sharp."""
    signs = random_signs(rng, (int(public.sum()), DETERMINANT_PROBES))
    streams = rng.spawn(len(BETAS_AT_SCALE))
    row_of = partial(_row_at_scale, walk, public, values, signs)
    jobs = [partial(row_of, beta, stream) for beta, stream in zip(BETAS_AT_SCALE, streams, strict=True)]
    fits, per_probe = map(np.array, zip(*in_threads(jobs), strict=True))  # [β, η], and [β, η, probe]: ½ ln det
    gains = fits - per_probe.mean(axis=2)
    differences = per_probe - per_probe[np.unravel_index(int(np.argmax(gains)), gains.shape)]
    errors = differences.std(axis=2, ddof=1) / math.sqrt(DETERMINANT_PROBES)
    return _Surface(BETAS_AT_SCALE, ETAS_AT_SCALE, gains, errors)


def _row_at_scale(
    walk: NormalisedWalk, public: BoolArray, values: Array, signs: Any, beta: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """For one β and every η: the fit without its determinant, and ½ ln det by each probe."""
    smooth, _, mean = walk.diagonal(beta, rng, SURFACE_PROBES)
    etas, count = ETAS_AT_SCALE, len(ETAS_AT_SCALE)
    diagonals = etas[:, None] + (1 - etas[:, None]) * smooth[public]  # [η, public]
    starts = np.hstack([(np.sqrt(diagonals) * values).T.astype(np.float32), signs])

    def image(x: Any) -> Any:
        spread = np.zeros((walk.num_clients, x.shape[1]), dtype=np.float32)
        spread[public] = x
        return walk.exponential(beta, spread)[public] / np.float32(mean)

    lengths, nodes, shares = _lanczos_quadrature(image, starts)
    scales = etas[:, None, None] + (1 - etas[:, None, None]) * np.maximum(nodes, 0.0)  # [η, column, node]
    squares = lengths[:count] * np.einsum("cn,cn->c", shares[:count], 1 / scales[range(count), range(count)])
    determinants = lengths[count:] * np.einsum("cn,ecn->ec", shares[count:], np.log(scales[:, count:]))
    fit = 0.5 * (float(values @ values) - squares + np.log(diagonals).sum(axis=1))
    return fit, 0.5 * determinants


def _lanczos_quadrature(image: Callable[[Any], Any], starts: Any) -> tuple[Array, Array, Array]:
    """Squared lengths of the starts, and for each a quadrature: vᵀf(M)v ≈ length · Σ shares f(nodes)."""
    lengths = np.einsum("ij,ij->j", starts, starts, dtype=np.float64)
    now = (starts / np.sqrt(lengths)).astype(np.float32)
    before, coupling = np.zeros_like(now), np.zeros(now.shape[1])
    steps = min(LANCZOS_STEPS, len(starts))
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


# ---- the field, and what it tells -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Field:
    """K = diag(apart) + L with a unit diagonal: `apart` = η s² is independent of friends, L = g e^{βN} g is smooth.

    s scales the diagonal of η I + (1-η) e^{βN} to ones, where e^{βN} is taken over the mean of its diagonal.

    prior           L_ii
    diagonal_error  relative standard error of the diagonal of e^{βN}; 0 where it is exact
    smooth          L; None where the network is too large for it
    mean            of the diagonal of e^{β(N - high)}, where it is estimated
    """

    walk: NormalisedWalk
    fit: FieldFit
    apart: Array
    prior: Array
    diagonal_error: Array
    smooth: Array | None
    mean: float

    @property
    def weight(self) -> Array:
        """g."""
        return np.sqrt(self.apart * (1 / self.fit.eta - 1))

    def spread(self, x: Any) -> Any:
        """e^{βN} x for columns x, on a network too large for matrices."""
        return self.walk.exponential(self.fit.beta, x.astype(np.float32)) / np.float32(self.mean)

    def hear(self, noise: Array, rng: np.random.Generator, probes: int = 128) -> Heard:
        """The field once every client's value is heard with noise of these variances; infinite for a silent client."""
        heard = np.isfinite(noise)
        precision = np.where(heard, 1 / (np.where(heard, noise, 1.0) + self.apart), 0.0)
        root = np.sqrt(precision)
        if self.smooth is None:
            return self._heard_by_probes(noise, precision, rng, probes)
        inner = root[:, None] * self.smooth * root
        inner[np.diag_indices_from(inner)] += 1.0
        lower = cholesky(inner, lower=True, overwrite_a=True, check_finite=False)
        half = solve_triangular(lower, root[:, None] * self.smooth, lower=True, overwrite_b=True, check_finite=False)
        covariances = self.smooth - half.T @ half
        kept = np.diagonal(covariances)
        left = self.apart + kept / (1 - kept * precision)
        return Heard(self, noise, precision, kept, left, np.zeros_like(left), covariances)

    def _heard_by_probes(self, noise: Array, precision: Array, rng: np.random.Generator, probes: int) -> Heard:
        """C_ii from simulated data: draw a field and its noisy values y, solve for the posterior mean μ by conjugate
        gradients, and see how far it moves beyond μ°, what the client's own value alone would have done.

        Var(μ - μ°) is what others explain: small leaks come with small errors. Where more than half is explained, C_ii
        is measured itself, as the variance of the field about μ.
        """
        root, weight = np.sqrt(precision), self.weight
        most = self.prior / (1 + self.prior * precision)
        alone = (most * root)[:, None]  # μ° = alone · (d y)

        def moments(stream: np.random.Generator, width: int) -> Array:
            signs = random_signs(stream, (self.walk.num_clients, width))
            drawn = weight[:, None] * np.asarray(self.walk.exponential(self.fit.beta / 2, signs)) / np.sqrt(self.mean)
            heard = (root[:, None] * drawn).astype(np.float32) + random_signs(stream, signs.shape)
            mean = explained(self, root, heard)
            beyond, about = (mean - alone * heard) ** 2, (drawn - mean) ** 2
            return np.stack([beyond.sum(axis=1), (beyond**2).sum(axis=1), about.sum(axis=1), (about**2).sum(axis=1)])

        beyond, beyond_squared, about, about_squared = over_probes(moments, probes, rng)
        direct = beyond > 0.5 * most
        kept = np.where(direct, about, np.maximum(most - beyond, 1e-12))
        first, second = np.where(direct, about, beyond), np.where(direct, about_squared, beyond_squared)
        open_share = 1 - kept * precision
        left = np.maximum(self.apart + kept / open_share, 1e-12)
        # The unit diagonal is itself estimated, and scales what was measured: what is left, or what is explained.
        of_diagonal = np.where(direct, left, np.abs(1 - left)) * self.diagonal_error
        error = np.hypot(_error_of_mean(first, second, probes) / open_share**2, of_diagonal) + ROUNDING
        return Heard(self, noise, precision, kept, left, error, None)


def field_of(walk: NormalisedWalk, fit: FieldFit, rng: np.random.Generator) -> Field:
    """The field with these constants. Only a network too large for matrices draws from `rng`."""
    if walk.modes is not None:
        smooth = exponential_matrix(walk.modes, fit.beta, np.ones(walk.num_clients, dtype=np.bool_))
        diagonal, error, mean = np.diagonal(smooth), np.zeros(walk.num_clients), 1.0
    else:
        smooth, (diagonal, error, mean) = None, walk.diagonal(fit.beta, rng, DIAGONAL_PROBES)
    scale = 1 / (fit.eta + (1 - fit.eta) * diagonal)
    if smooth is not None:
        weight = np.sqrt((1 - fit.eta) * scale)
        smooth *= weight[:, None] * weight
    return Field(walk, fit, fit.eta * scale, 1 - fit.eta * scale, error, smooth, mean)


@dataclass(frozen=True, eq=False, slots=True)
class Heard:
    """The field once noisy values are heard. With C the covariances of its smooth part that are left and d² = 1/(η s² +
    noise), all others leave η s² + C_ii/(1 - C_ii d_i²) of client i's variance.

    noise        variance of each value, infinite for a silent client
    precision    d²
    kept         C_ii
    left, error  variance of each client given everybody else's value, and its standard error
    covariances  C; None where the network is too large for it
    """

    field: Field
    noise: Array
    precision: Array
    kept: Array
    left: Array
    error: Array
    covariances: Array | None

    def means(self, values: Array) -> Array:
        """Each client's expected value given everybody else's: [clients, draws], for `values` [clients, draws]."""
        given = np.where(self.precision[:, None] > 0, values, 0.0)
        if self.covariances is not None:
            with_own = self.covariances @ (self.precision[:, None] * given)
        else:
            root = np.sqrt(self.precision)
            scaled = (root[:, None] * given).astype(np.float32)
            blocks = [scaled[:, start : start + COLUMNS] for start in range(0, scaled.shape[1], COLUMNS)]
            with_own = np.hstack(in_threads([partial(explained, self.field, root, block) for block in blocks]))
        own_share = (self.kept * self.precision)[:, None]
        return np.asarray((with_own - own_share * given) / (1 - own_share))

    def slopes(self, weights: Array | BoolArray, rng: np.random.Generator, probes: int = 64) -> tuple[Array, Array]:
        """Σ_{i≠j} w_i ∂(-½ ln left_i)/∂(1/noise_j) of every client j, and its standard error.

        It is ½ (noise_j d_j²)² Σ_{i≠j} C_ij² w_i/((1 - C_ii d_i²)² left_i). Of one target i the sum is exact; of many,
        on a large network, it is the mean of (Σ_{i≠j} C_ji √… z_i)² over random signs z.
        """
        is_heard = np.isfinite(self.noise)
        factor = 0.5 * np.where(is_heard, np.where(is_heard, self.noise, 0.0) * self.precision, 1.0) ** 2
        roots = np.sqrt(weights / self.left) / (1 - self.kept * self.precision)
        if self.covariances is not None:
            squares = self.covariances**2
            np.fill_diagonal(squares, 0.0)
            return factor * (squares @ roots**2), np.zeros_like(factor)
        if np.count_nonzero(roots) < 2:
            probes = 1

        def sums(stream: np.random.Generator, width: int) -> Array:
            signs = random_signs(stream, (len(roots), width)) * roots[:, None]
            others = self._covariances_times(signs) - self.kept[:, None] * signs
            return np.array([(others**2).sum(axis=1), (others**4).sum(axis=1)])

        first, second = over_probes(sums, probes, rng)
        return factor * first, factor * _error_of_mean(first, second, probes)

    def _covariances_times(self, x: Array) -> Array:
        """C x = L x - L d (I + d L d)⁻¹ d L x for columns x."""
        weight, root = self.field.weight[:, None], np.sqrt(self.precision)
        spread = weight * np.asarray(self.field.spread(weight * x), dtype=np.float64)
        return np.asarray(spread - explained(self.field, root, (root[:, None] * spread).astype(np.float32)))


def explained(field: Field, root: Array, values: Any) -> Array:
    """L d (I + d L d)⁻¹ of columns, d = `root`: the smooth part's posterior mean, from values in units of the noise."""
    weight = field.weight[:, None]
    loads = (weight * root[:, None]).astype(np.float32)

    def image(x: Array) -> Array:  # I + d L d, no eigenvalue of which is below 1
        columns = x.reshape(values.shape)
        return np.asarray(columns + loads * field.spread(loads * columns)).ravel()

    operator = LinearOperator((values.size, values.size), matvec=image, dtype=np.float64)
    right = values.astype(np.float64).ravel()
    solved, failed = cg(operator, right, rtol=SOLVED, atol=0.0, maxiter=MOST_ITERATIONS)
    if failed:
        error = float(np.linalg.norm(image(solved) - right) / np.linalg.norm(right))
        raise NotConverged(
            f"the field's equations were solved only to {error:.2g} (wanted {SOLVED:g}); lower the largest budgets.",
            solved,
            error,
        )
    return np.asarray(weight * field.spread(loads * solved.reshape(values.shape)))
