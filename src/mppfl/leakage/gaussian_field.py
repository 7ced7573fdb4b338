"""The Gaussian field on the graph: how an attribute is correlated along it, fitted on a public sample.

K = η I + (1-η) e^{βN} with a unit diagonal, N = D^-½ A D^-½ without its trivial mode. What everybody else's noisy value
leaves of a client's variance is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadInput
from mppfl.leakage.couplings import friendships
from mppfl.network import SocialGraph, SparseMatrix

LEAST_PUBLIC = 10
ETAS = (1e-3, 1.0)
BETAS = np.geomspace(0.25, 32.0, 8)


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


def graph_modes(graph: SocialGraph) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of N = D^-½ A D^-½ without its trivial mode D^½ 1, whose eigenvalue becomes 0."""
    linked = friendships(graph).toarray()
    roots = np.sqrt(linked.sum(axis=1))
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
    trivial = roots / max(float(np.linalg.norm(roots)), 1e-300)
    values, vectors = np.linalg.eigh(inverse[:, None] * linked * inverse - np.outer(trivial, trivial))
    return values, vectors


def field_kernel(modes: tuple[Array, Array], beta: float, eta: float) -> Array:
    """K: correlations of the field. η I + (1-η) e^{βN} / (its mean diagonal), then scaled to a diagonal of 1."""
    smooth = _smooth(modes, beta, np.ones(len(modes[0]), dtype=np.bool_))
    kernel = (1 - eta) * smooth
    kernel[np.diag_indices_from(kernel)] += eta
    scale = 1 / np.sqrt(np.diagonal(kernel))
    kernel *= scale[:, None] * scale
    return kernel


def leave_one_out(kernel: Array, noise: Array) -> tuple[Array, Array]:
    """Each client's variance given everyone else's noisy value, and the weights [client, other] of its mean.

    noise  variance of each value, infinite for a silent client. The weights' diagonal is exactly 0.
    """
    size = len(noise)
    left, weights = np.diagonal(kernel).copy(), np.zeros((size, size))
    heard, silent = np.flatnonzero(np.isfinite(noise)), np.flatnonzero(~np.isfinite(noise))
    if not len(heard):
        return left, weights
    tau = noise[heard]
    # In units of the noise, B = I + T^-½ K T^-½, so that 1/[G⁻¹]_ii - τ_i loses no digits when the noise is large.
    inner = kernel[np.ix_(heard, heard)] / np.sqrt(tau[:, None] * tau)
    inverse = cho_solve(cho_factor(inner + np.eye(len(heard)), lower=True), np.eye(len(heard)))
    kept = np.diagonal(inverse)
    left[heard] = tau * np.einsum("ij,ji->i", inverse, inner) / kept
    among = -inverse * np.sqrt(tau[:, None] / tau) / kept[:, None]
    np.fill_diagonal(among, 0.0)
    weights[np.ix_(heard, heard)] = among
    if len(silent):
        to_heard = kernel[np.ix_(silent, heard)] / np.sqrt(tau)
        gain = to_heard @ inverse
        left[silent] -= np.einsum("ij,ij->i", gain, to_heard)
        weights[np.ix_(silent, heard)] = gain / np.sqrt(tau)
    return left, weights


def fit_field(graph: SocialGraph, known: Array, modes: tuple[Array, Array]) -> FieldFit:
    """(β, η) by maximum likelihood of the standardised known values, and the one-hop slope and covariance."""
    public = ~np.isnan(known)
    count, positive = int(public.sum()), int((known[public] > 0).sum())
    if count < LEAST_PUBLIC or positive in (0, count):
        raise BadInput(
            f"public sample has {count} known values, {positive} of them positive; "
            f"give at least {LEAST_PUBLIC} with both values among them."
        )
    rate = positive / count
    values = (known[public] - (2 * rate - 1)) / (2 * math.sqrt(rate * (1 - rate)))

    def best_eta(log_beta: float) -> tuple[float, float]:
        smooth = _smooth(modes, math.exp(log_beta), public)
        own = np.diagonal(smooth)
        spectrum, axes = np.linalg.eigh(smooth)

        def misfit(eta: float) -> float:  # eigenvalues of the unscaled kernel serve every η
            diagonal, widths = eta + (1 - eta) * own, eta + (1 - eta) * np.maximum(spectrum, 0.0)
            spread = axes.T @ (np.sqrt(diagonal) * values)
            return 0.5 * float(np.sum(spread**2 / widths) + np.sum(np.log(widths)) - np.sum(np.log(diagonal)))

        found = minimize_scalar(misfit, bounds=ETAS, method="bounded", options={"xatol": 1e-3})
        return float(found.fun), float(found.x)

    grid = np.log(BETAS)
    coarse = [best_eta(b)[0] for b in grid]
    at = int(np.argmin(coarse))
    ends = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    found = minimize_scalar(lambda b: best_eta(b)[0], bounds=ends, method="bounded", options={"xatol": 0.05})
    log_beta = float(found.x) if found.fun <= coarse[at] else float(grid[at])
    misfit, eta = best_eta(log_beta)
    gain = (0.5 * float(values @ values) - misfit) / count
    slope, covariance = friend_moments(friendships(graph), known)
    return FieldFit(math.exp(log_beta), eta, rate, gain, slope, covariance, count)


def _smooth(modes: tuple[Array, Array], beta: float, among: BoolArray) -> Array:
    values, vectors = modes
    weights = np.exp(beta * (values - values[-1]))
    weights /= weights.mean()
    rows = vectors[among] * np.sqrt(weights)
    return np.asarray(rows @ rows.T)


def friend_moments(linked: SparseMatrix, known: Array) -> tuple[float, float]:
    """b and v from public clients' public friends; 0 where there are too few to tell."""
    public = ~np.isnan(known)
    among = linked[public][:, public]
    own, degrees = known[public], np.asarray(among.sum(axis=1)).ravel()
    sums = among @ own
    linked_to = degrees > 0
    means = np.divide(sums, degrees, out=np.zeros_like(sums), where=linked_to)
    sides = [linked_to & (own == side) for side in (1.0, -1.0)]
    if not all(side.any() for side in sides):
        return 0.0, 0.0
    above, below = (float(means[side].mean()) for side in sides)
    expected = np.where(own > 0, above, below)
    pairs = degrees > 1
    squares = degrees - 2 * expected * sums + degrees * expected**2  # Σ (x_j - expected)², as x_j² = 1
    crossed = ((sums - degrees * expected) ** 2 - squares)[pairs] / (degrees * (degrees - 1))[pairs]
    return (above - below) / 2, max(0.0, float(crossed.mean())) if pairs.any() else 0.0
