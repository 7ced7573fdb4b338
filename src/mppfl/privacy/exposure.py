"""What others' uploads say about a client: the paper's index, a bound in nats, and a calibrated level in nats.

    r_model  Σρ, the paper's index: ranks nothing in nats and has no unit
    r_bound  nats, a theorem: only where its premises hold (a forest, or weak couplings)
    r_leak   nats, the level a Gaussian field on the graph predicts, fitted on a public sample of the attribute

The attribute is binary, X = ±1. A client's own upload never counts. Budgets are client-level and spent once; noise on a
vector clipped to a ball then tells at most ρ/4 nats about the client who adds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mppfl.arrays import Array, BoolArray, IntArray, read_only, require, require_number
from mppfl.errors import BadInput
from mppfl.network.graph import SocialGraph, SparseMatrix
from mppfl.network.propagation import Propagation
from mppfl.privacy.mechanism import Unit

Theorem = Literal["tree", "walk sum", "none"]
DENSE_LIMIT = 3_000  # an N×N eigendecomposition: some 10 s and 300 MB
LEAST_PUBLIC = 10
ETAS = (1e-3, 1.0)
BETAS = np.geomspace(0.25, 32.0, 8)


@dataclass(frozen=True, slots=True)
class ExposureBound:
    """Upper bounds on what all others' uploads tell about each client's attribute.

    nats             one per client, capped at `entropy`; NaN where no theorem applies
    theorem          which one gave them
    premises         what must hold for them to be bounds
    reason           why there is none, else ""
    spectral_radius  of tanh|J| (walk sum only)
    """

    nats: Array
    theorem: Theorem
    premises: str
    reason: str
    entropy: Array
    spectral_radius: float | None = None


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


@dataclass(frozen=True, slots=True)
class ExposureLeak:
    """Predicted leak per client in nats: min(entropy, max(r_sat, r_gp)). A calibrated level, not a bound.

    r_sat  from friends alone, saturating
    r_gp   from everybody, by the Gaussian field's exact leave-one-out variance
    """

    nats: Array
    r_sat: Array
    r_gp: Array
    entropy: float
    fit: FieldFit


@dataclass(frozen=True, slots=True)
class Exposure:
    """The three columns side by side; a column that could not be had is None or NaN, never another one's value."""

    r_model: Array  # index, no unit
    r_bound: ExposureBound | None  # nats
    r_leak: ExposureLeak | None  # nats


def exposure(
    graph: SocialGraph,
    propagation: Propagation,
    budgets: Any,
    *,
    couplings: Any = None,
    public_sample: Any = None,
    unit: Unit = "client",
    num_examples: Any = None,
) -> Exposure:
    """All three columns; the bound only with `couplings`, the level only with `public_sample`."""
    told = {"unit": unit, "num_examples": num_examples}
    return Exposure(
        r_model(propagation, budgets),
        None if couplings is None else r_bound(graph, couplings, budgets, **told),
        None if public_sample is None else r_leak(graph, budgets, public_sample, **told),
    )


def r_model(propagation: Propagation, budgets: Any) -> Array:
    """Σρ: the paper's index of external risk (model, eq. 3). No unit, and no statement about nats."""
    return propagation @ _budgets(budgets, propagation.num_clients)


def r_bound(
    graph: SocialGraph,
    couplings: Any,
    budgets: Any,
    *,
    rate: Any = 0.5,
    unit: Unit = "client",
    num_examples: Any = None,
    ball_clipped: bool = True,
) -> ExposureBound:
    """Bounds in nats on I(X_i; all others' uploads), for attributes that follow an Ising model on the graph.

    Forest: Σ_j σ_ij ρ_j/4 with σ_ij = Π tanh² J_e along the path, in O(clients). Else, if C = tanh|J| has spectral
    radius below 1: σ_ij = min(1, [(I-C)⁻¹]_ij), at most `DENSE_LIMIT` clients. Without `ball_clipped`, ρ replaces ρ/4.

    couplings  one J for all links, or a symmetric N×N matrix that is zero off the links
    rate       P(X_i = +1), one or one per client: the bound is capped at its entropy
    unit       "record" budgets need `num_examples` n: an attribute that all n records share costs n²ρ
    """
    size = graph.num_clients
    told = client_budgets(budgets, size, unit, num_examples) * (0.25 if ball_clipped else 1.0)
    cap = _entropy(_rates(rate, size))
    firsts, seconds, strengths = coupled_links(graph, couplings)
    noise = "ρ/4: noise on a vector clipped to a ball" if ball_clipped else "any ρ-zCDP release"
    shared = f"attributes follow an Ising model on the links, known couplings, nothing else ties clients; {noise}"
    if is_forest(graph):
        summed = _path_sums(size, firsts, seconds, np.tanh(strengths) ** 2, told)
        return ExposureBound(_frozen(np.minimum(summed, cap)), "tree", f"forest; {shared}", "", cap)
    require_dense(size, "the walk-sum bound")
    contact = np.zeros((size, size))
    contact[firsts, seconds] = contact[seconds, firsts] = np.tanh(np.abs(strengths))
    radius = float(np.linalg.eigvalsh(contact)[-1])
    premises = f"spectral radius of tanh|J| below 1; {shared}"
    if radius >= 1 - 1e-9:
        reason = f"the graph has cycles and tanh|J| has spectral radius {radius:.3g}, not below 1: no theorem applies."
        return ExposureBound(_frozen(np.full(size, np.nan)), "none", premises, reason, cap, radius)
    walks = np.minimum(1.0, np.linalg.inv(np.eye(size) - contact))
    np.fill_diagonal(walks, 0.0)
    return ExposureBound(_frozen(np.minimum(walks @ told, cap)), "walk sum", premises, "", cap, radius)


def r_leak(
    graph: SocialGraph,
    budgets: Any,
    public_sample: Any,
    *,
    mask: Any = None,
    unit: Unit = "client",
    num_examples: Any = None,
) -> ExposureLeak:
    """The leak in nats that a Gaussian field on the graph predicts for each client; at most `DENSE_LIMIT` clients.

    With G = K + diag(τ), τ_j = 1/(2ρ_j p(1-p)): r_gp = -½ ln(1/[G⁻¹]_ii - τ_i), what is left of the variance of X_i
    once all others are heard. With T_i = Σ_friends ρ_j/(2+ρ_j): r_sat = ½ ln(1 + b²T_i/(1+vT_i)).

    public_sample  known values, ±1 or 0/1: a mapping from names, or one per client with NaN (or `mask` False) where
                   unknown. Links count the same in both directions and whatever their weight.
    """
    size = graph.num_clients
    spent = client_budgets(budgets, size, unit, num_examples)
    require_dense(size, "the Gaussian field")
    known = read_attribute(graph, public_sample, mask)
    modes = graph_modes(graph)
    fit = fit_field(graph, known, modes)
    heard = spent > 0
    noise = np.full(size, np.inf)
    noise[heard] = 1 / (2 * spent[heard] * fit.rate * (1 - fit.rate))
    left, _ = leave_one_out(field_kernel(modes, fit.beta, fit.eta), noise)
    r_gp = np.maximum(0.0, -0.5 * np.log(left))  # below 0 only by rounding
    reach = friendships(graph) @ (spent / (2 + spent))
    r_sat = 0.5 * np.log1p(fit.friend_slope**2 * reach / (1 + fit.friend_covariance * reach))
    cap = float(_entropy(np.array([fit.rate]))[0])
    level = np.minimum(np.maximum(r_sat, r_gp), cap)
    return ExposureLeak(_frozen(level), _frozen(r_sat), _frozen(r_gp), cap, fit)


def friendships(graph: SocialGraph) -> SparseMatrix:
    """Who is linked to whom in either direction: a symmetric csr_array of ones."""
    links = graph.influence
    ones = sp.csr_array((np.ones(links.nnz), links.indices, links.indptr), shape=links.shape)
    return ones.maximum(ones.T).tocsr()


def is_forest(graph: SocialGraph) -> bool:
    """Whether the links, taken without direction, have no cycle."""
    linked = friendships(graph)
    parts, _ = connected_components(linked, directed=False)
    return bool(linked.nnz // 2 == graph.num_clients - parts)


def coupled_links(graph: SocialGraph, couplings: Any) -> tuple[IntArray, IntArray, Array]:
    """Each undirected link once: its two ends and its coupling J."""
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
        raise BadInput("couplings must be finite and symmetric: J of a link is the same seen from both ends.")
    strengths = np.asarray(matrix[firsts, seconds]).ravel() if len(firsts) else np.zeros(0)
    if np.count_nonzero(strengths) * 2 != matrix.count_nonzero():
        raise BadInput("couplings are not zero between clients without a link. Remove them, or add the links.")
    return firsts, seconds, strengths


def client_budgets(budgets: Any, size: int, unit: Unit = "client", num_examples: Any = None) -> Array:
    """Budgets for all of a client's data: as given, or n²ρ from budgets per record."""
    given = _budgets(budgets, size)
    if unit == "client":
        return given
    if unit != "record":
        raise BadInput(f"unit={unit!r} must be 'client' or 'record'.")
    if num_examples is None:
        raise BadInput(
            "budgets per record say nothing about an attribute that all records share. "
            "Give num_examples, which makes them n²·budget per client."
        )
    counts = read_only(num_examples, "num_examples", length=size)
    require(counts, "num_examples", counts >= 1, "at least 1")
    return _frozen(given * counts**2)


def read_attribute(graph: SocialGraph, values: Any, mask: Any = None) -> Array:
    """The attribute as +1, -1 and NaN where unknown, from ±1 or 0/1 values per client or a mapping from names."""
    size = graph.num_clients
    if isinstance(values, Mapping):
        known = np.full(size, np.nan)
        for name, value in values.items():
            known[graph.index(str(name))] = value
    else:
        known = np.array(read_only(values, "attribute", length=size))
    if mask is not None:
        shown = np.asarray(mask)
        if shown.shape != (size,) or shown.dtype != np.bool_:
            raise BadInput(f"mask must be {size} booleans, one per client.")
        known[~shown] = np.nan
    return as_signs(known)


def as_signs(values: Array) -> Array:
    """±1 from ±1 or 0/1; NaN stays."""
    seen = np.unique(values[~np.isnan(values)])
    if not np.isin(seen, (-1.0, 1.0)).all() and not np.isin(seen, (0.0, 1.0)).all():
        raise BadInput(f"attribute values must be ±1 or 0/1, got {', '.join(f'{v:g}' for v in seen[:5])}.")
    return np.where(values == 0, -1.0, values)


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
    slope, covariance = _friend_moments(friendships(graph), known)
    return FieldFit(math.exp(log_beta), eta, rate, gain, slope, covariance, count)


def _smooth(modes: tuple[Array, Array], beta: float, among: BoolArray) -> Array:
    values, vectors = modes
    weights = np.exp(beta * (values - values[-1]))
    weights /= weights.mean()
    rows = vectors[among] * np.sqrt(weights)
    return np.asarray(rows @ rows.T)


def _friend_moments(linked: SparseMatrix, known: Array) -> tuple[float, float]:
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


def _path_sums(size: int, firsts: IntArray, seconds: IntArray, shares: Array, amounts: Array) -> Array:
    """Σ_{j≠i} (product of `shares` along the path from i to j) · amounts_j on a forest: up to the roots, then down."""
    ends = (np.concatenate([firsts, seconds]), np.concatenate([seconds, firsts]))
    linked = sp.csr_array((np.ones(len(ends[0])), ends), shape=(size, size))
    share_of = {(int(a), int(b)): float(s) for a, b, s in zip(firsts, seconds, shares, strict=True)}
    _, part = connected_components(linked, directed=False)
    order: list[int] = []
    parent = np.full(size, -1)
    for root in np.unique(part, return_index=True)[1]:
        if linked.indptr[root] == linked.indptr[root + 1]:
            continue
        seen, before = breadth_first_order(linked, root, directed=False)
        order += seen.tolist()
        parent[seen[1:]] = before[seen[1:]]
    up = np.zeros(size)  # what a client's subtree sends to its parent, before the link to it
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


def _budgets(budgets: Any, size: int) -> Array:
    given = read_only(budgets, "budgets", length=size)
    require(given, "budgets", np.isfinite(given) & (given >= 0), "finite and not negative")
    return given


def _rates(rate: Any, size: int) -> Array:
    rates = read_only(rate, "rate", length=size)
    require(rates, "rate", (rates > 0) & (rates < 1), "between 0 and 1")
    return rates


def _entropy(rates: Array) -> Array:
    return _frozen(-rates * np.log(rates) - (1 - rates) * np.log1p(-rates))


def require_dense(size: int, what: str) -> None:
    """Raises where `what` would need a matrix too large to hold."""
    if size > DENSE_LIMIT:
        raise BadInput(
            f"{what} is computed densely, for at most {DENSE_LIMIT:,} clients, not {size:,}. Take a part of the graph."
        )


def _frozen(values: Array) -> Array:
    values.setflags(write=False)
    return values
