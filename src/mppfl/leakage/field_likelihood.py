"""How likely a public sample is under the Gaussian field, over (β, η): exactly, or by Lanczos on large networks.

The log-likelihood is taken over that of independence, in nats. Its surface gives intervals for both constants: those
values whose best likelihood is less than 1.92 below the largest (95 % for one constant), and two standard errors more
where the surface is itself estimated. The attribute is binary and the field Gaussian, so this is a quasi-likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from mppfl.arrays import Array, BoolArray
from mppfl.leakage.field_at_scale import Walk, diagonal_of_exponential, in_threads, random_signs

LARGEST_BETA = 32.0
BETAS = np.geomspace(0.25, LARGEST_BETA, 11)
BETAS_AT_SCALE = np.geomspace(0.5, LARGEST_BETA, 7)  # each costs some ten seconds of one core for 100,000 clients
ETAS = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
FINE_ETAS = np.concatenate([np.geomspace(0.002, 0.05, 12), np.linspace(0.06, 0.99, 63)])
CLOSELY = np.geomspace(0.75, 4 / 3, 7)
HALF_OF_CHI_SQUARED = 1.92  # 95 % of χ² with one degree of freedom, halved
LANCZOS_STEPS = 20
DETERMINANT_PROBES = 16
DIAGONAL_PROBES = 64


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


def _top_of_parabola(at: Array, values: Array, top: int) -> tuple[float, float]:
    """Where the parabola through a largest value and its neighbours is highest, and by how much it is higher."""
    if top in (0, len(at) - 1):
        return float(at[top]), 0.0
    left, right = at[top] - at[top - 1], at[top + 1] - at[top]
    slope_left, slope_right = (values[top] - values[top - 1]) / left, (values[top + 1] - values[top]) / right
    bend = (slope_right - slope_left) / (left + right)
    slope = (slope_left * right + slope_right * left) / (left + right)
    if bend >= 0:
        return float(at[top]), 0.0
    return float(at[top] - slope / (2 * bend)), float(-(slope**2) / (4 * bend))


def _where_likely(at: Array, profile: Array, least: float) -> tuple[float, float]:
    """First and last place where the profile is above `least`; it is interpolated without overshooting.

    A peak may be narrower than the steps taken: the parabola through the best three has then the better width.
    """
    fine = np.linspace(at[0], at[-1], 400)
    best = int(np.argmax(profile))
    inside = [*fine[PchipInterpolator(at, profile)(fine) >= least].tolist(), float(at[best])]
    if 0 < best < len(at) - 1:
        top, up = _top_of_parabola(at, profile, best)
        bend = np.polyfit(at[best - 1 : best + 2], profile[best - 1 : best + 2], 2)[0]
        if bend < 0:
            reach = math.sqrt(max(float(profile[best]) + up - least, 0.0) / -bend)
            inside += [max(top - reach, float(at[0])), min(top + reach, float(at[-1]))]
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
        own = np.diagonal(smooth)
        widths, axes = np.linalg.eigh(smooth)
        for column, eta in enumerate(FINE_ETAS):
            diagonal, scales = eta + (1 - eta) * own, eta + (1 - eta) * np.maximum(widths, 0.0)
            spread = axes.T @ (np.sqrt(diagonal) * values)
            misfit = np.sum(spread**2 / scales) + np.sum(np.log(scales)) - np.sum(np.log(diagonal))
            gains[row, column] = 0.5 * float(values @ values - misfit)
    return LikelihoodSurface(betas, FINE_ETAS, gains, np.zeros_like(gains))


def surface_at_scale(
    walk: Walk, public: BoolArray, values: Array, rng: np.random.Generator, betas: Array = BETAS_AT_SCALE
) -> LikelihoodSurface:
    """The surface by stochastic Lanczos quadrature; the same signs for every β, so that differences are sharp."""
    signs = random_signs(rng, (int(public.sum()), DETERMINANT_PROBES))
    streams = rng.spawn(len(betas))

    def one(beta: float, own: np.random.Generator) -> tuple[Array, Array]:
        return _row_at_scale(walk, public, values, beta, signs, own)

    rows = in_threads([_bound(one, beta, stream) for beta, stream in zip(betas, streams, strict=True)])
    fits = np.array([row[0] for row in rows])  # [β, η]
    per_probe = np.array([row[1] for row in rows])  # [β, η, probe]: ½ ln det
    gains = fits - per_probe.mean(axis=2)
    top = np.unravel_index(int(np.argmax(gains)), gains.shape)
    differences = per_probe - per_probe[top]
    errors = differences.std(axis=2, ddof=1) / math.sqrt(DETERMINANT_PROBES)
    return LikelihoodSurface(np.asarray(betas), ETAS, gains, errors)


def _bound(function: Any, *arguments: Any) -> Any:
    return lambda: function(*arguments)


def _row_at_scale(
    walk: Walk, public: BoolArray, values: Array, beta: float, signs: Any, rng: np.random.Generator
) -> tuple[Array, Array]:
    """For one β and every η: the fit without its determinant, and ½ ln det by each probe."""
    smooth, _, mean = diagonal_of_exponential(walk, beta, rng, DIAGONAL_PROBES)
    own = smooth[public]
    diagonals = ETAS[:, None] + (1 - ETAS[:, None]) * own  # [η, public]
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
    at = np.arange(steps)
    bands[:, at, at] = main
    bands[:, at[1:], at[:-1]] = bands[:, at[:-1], at[1:]] = beside[:, :-1]
    nodes, vectors = np.linalg.eigh(bands)
    return lengths, nodes, vectors[:, 0, :] ** 2
