"""The Gaussian field on the graph: how an attribute is correlated along the edges, fitted on a public sample.

K = η I + (1-η) e^{βN} with a unit diagonal, N = D^-½ A D^-½ without its trivial mode. The variance of a client's value
that everybody else's noisy value leaves is exact. Before it: edges without direction, forests, sums over paths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mppfl.arrays import Array, BoolArray, IntArray, require_number
from mppfl.errors import BadInput
from mppfl.network import SocialGraph, SparseMatrix

LEAST_PUBLIC = 10
ETAS = (1e-3, 1.0)
BETAS = np.geomspace(0.25, 32.0, 8)


def friendships(graph: SocialGraph) -> SparseMatrix:
    """Who is connected to whom in either direction: a symmetric csr_array of ones."""
    edges = graph.influence
    ones = sp.csr_array((np.ones(edges.nnz), edges.indices, edges.indptr), shape=edges.shape)
    return ones.maximum(ones.T).tocsr()


def is_forest(graph: SocialGraph) -> bool:
    """Whether the edges, taken without direction, have no cycle."""
    connected = friendships(graph)
    parts, _ = connected_components(connected, directed=False)
    return bool(connected.nnz // 2 == graph.num_clients - parts)


def coupled_edges(graph: SocialGraph, couplings: Any) -> tuple[IntArray, IntArray, Array]:
    """Each undirected edge once: its two ends and its coupling J."""
    above = sp.triu(friendships(graph), 1).tocoo()
    firsts, seconds = above.row.astype(np.int64), above.col.astype(np.int64)
    if np.ndim(couplings) == 0 and not sp.issparse(couplings):
        one = require_number(couplings, "couplings", -np.inf, np.inf)
        return firsts, seconds, np.full(len(firsts), one)
    matrix = sp.csr_array(couplings, dtype=np.float64)
    size = graph.num_clients
    if matrix.shape != (size, size):
        raise BadInput(f"couplings have shape {matrix.shape} for {size} clients; give one number or an N×N matrix.")
    if not np.isfinite(matrix.data).all() or abs(matrix - matrix.T).max() > 0:
        raise BadInput("couplings must be finite and symmetric: J of an edge is the same seen from both ends.")
    strengths = np.asarray(matrix[firsts, seconds]).ravel() if len(firsts) else np.zeros(0)
    if np.count_nonzero(strengths) * 2 != matrix.count_nonzero():
        raise BadInput("couplings are not zero between clients without an edge. Remove them, or add the edges.")
    return firsts, seconds, strengths


def path_sums(size: int, firsts: IntArray, seconds: IntArray, shares: Array, amounts: Array) -> Array:
    """Σ_{j≠i} (product of `shares` along the path from i to j) · amounts_j on a forest: up to the roots, then down."""
    ends = (np.concatenate([firsts, seconds]), np.concatenate([seconds, firsts]))
    connected = sp.csr_array((np.ones(len(ends[0])), ends), shape=(size, size))
    share_of = {(int(a), int(b)): float(s) for a, b, s in zip(firsts, seconds, shares, strict=True)}
    _, part = connected_components(connected, directed=False)
    order: list[int] = []
    parent = np.full(size, -1)
    for root in np.unique(part, return_index=True)[1]:
        if connected.indptr[root] == connected.indptr[root + 1]:
            continue
        seen, before = breadth_first_order(connected, root, directed=False)
        order += seen.tolist()
        parent[seen[1:]] = before[seen[1:]]
    up = np.zeros(size)  # what a client's subtree sends to its parent, before the edge to it
    share = np.zeros(size)
    for node in reversed(order):
        up[node] += amounts[node]
        above = int(parent[node])
        if above >= 0:
            share[node] = share_of[(min(node, above), max(node, above))]
            up[above] += share[node] * up[node]
    total = np.zeros(size)
    for node in order:
        above = int(parent[node])
        total[node] = up[node] - amounts[node]
        if above >= 0:
            total[node] += share[node] * (amounts[above] + total[above] - share[node] * up[node])
    return np.maximum(total, 0.0)


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
    connected = friendships(graph).toarray()
    roots = np.sqrt(connected.sum(axis=1))
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
    trivial = roots / max(float(np.linalg.norm(roots)), 1e-300)
    values, vectors = np.linalg.eigh(inverse[:, None] * connected * inverse - np.outer(trivial, trivial))
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


def standardised(known: Array) -> tuple[Array, float]:
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


def fit_field(graph: SocialGraph, known: Array, modes: tuple[Array, Array]) -> FieldFit:
    """(β, η) by maximum likelihood of the standardised known values, and the one-hop slope and covariance."""
    public = ~np.isnan(known)
    values, rate = standardised(known)

    def best_eta(log_beta: float) -> tuple[float, float]:
        smooth = _smooth(modes, math.exp(log_beta), public)
        variances = np.diagonal(smooth)
        spectrum, axes = np.linalg.eigh(smooth)

        def misfit(eta: float) -> float:  # eigenvalues of the unscaled kernel serve every η
            diagonal, widths = eta + (1 - eta) * variances, eta + (1 - eta) * np.maximum(spectrum, 0.0)
            spread = axes.T @ (np.sqrt(diagonal) * values)
            return 0.5 * float(np.sum(spread**2 / widths) + np.sum(np.log(widths)) - np.sum(np.log(diagonal)))

        best = minimize_scalar(misfit, bounds=ETAS, method="bounded", options={"xatol": 1e-3})
        return float(best.fun), float(best.x)

    grid = np.log(BETAS)
    coarse = [best_eta(b)[0] for b in grid]
    least = int(np.argmin(coarse))
    ends = grid[max(least - 1, 0)], grid[min(least + 1, len(grid) - 1)]
    best = minimize_scalar(lambda b: best_eta(b)[0], bounds=ends, method="bounded", options={"xatol": 0.05})
    log_beta = float(best.x) if best.fun <= coarse[least] else float(grid[least])
    misfit, eta = best_eta(log_beta)
    gain = (0.5 * float(values @ values) - misfit) / len(values)
    return FieldFit(math.exp(log_beta), eta, rate, gain, *friend_moments(friendships(graph), known), len(values))


def _smooth(modes: tuple[Array, Array], beta: float, among: BoolArray) -> Array:
    values, vectors = modes
    weights = np.exp(beta * (values - values[-1]))
    weights /= weights.mean()
    rows = vectors[among] * np.sqrt(weights)
    return np.asarray(rows @ rows.T)


def friend_moments(connected: SparseMatrix, known: Array) -> tuple[float, float]:
    """b and v from public clients' public friends; 0 where there are too few to tell."""
    public = ~np.isnan(known)
    among = connected[public][:, public]
    signs, degrees = known[public], np.asarray(among.sum(axis=1)).ravel()
    sums = among @ signs
    connected_to = degrees > 0
    means = np.divide(sums, degrees, out=np.zeros_like(sums), where=connected_to)
    sides = [connected_to & (signs == side) for side in (1.0, -1.0)]
    if not all(side.any() for side in sides):
        return 0.0, 0.0
    above, below = (float(means[side].mean()) for side in sides)
    expected = np.where(signs > 0, above, below)
    pairs = degrees > 1
    squares = degrees - 2 * expected * sums + degrees * expected**2  # Σ (x_j - expected)², as x_j² = 1
    crossed = ((sums - degrees * expected) ** 2 - squares)[pairs] / (degrees * (degrees - 1))[pairs]
    return (above - below) / 2, max(0.0, float(crossed.mean())) if pairs.any() else 0.0


def saturating_level(fit: FieldFit, reach: Array) -> Array:
    """R_sat = ½ ln(1 + b²T/(1+vT)): what friends alone tell, T = Σ_friends ρ_j/(2+ρ_j)."""
    return np.asarray(0.5 * np.log1p(fit.friend_slope**2 * reach / (1 + fit.friend_covariance * reach)))


def saturating_slope(fit: FieldFit, reach: Array) -> Array:
    """dR_sat/dT."""
    square, common = fit.friend_slope**2, 1 + fit.friend_covariance * reach
    return np.asarray(0.5 * square / (common * (common + square * reach)))
