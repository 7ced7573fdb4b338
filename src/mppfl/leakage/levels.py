"""What others' uploads say about a client: the paper's index, a bound in nats, and a calibrated level in nats.

    r_model    Σρ, the paper's index: ranks nothing in nats and has no unit
    r_bound    nats, a theorem: only where its premises hold (a forest, or weak couplings)
    LeakModel  R_leak in nats, the level a Gaussian field on the graph predicts, fitted on a public sample

The attribute is binary, X = ±1. A client's own upload never counts. Budgets are client-level and spent once; noise on a
vector clipped to a ball then tells at most ρ/4 nats about the client that adds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mppfl.arrays import Array, BoolArray, IntArray, read_only, require, require_number
from mppfl.errors import BadInput
from mppfl.leakage.field import (
    Field,
    FieldFit,
    Heard,
    entropy_of,
    field_of,
    fit_field,
    friendships,
    require_dense,
    walk_of,
)
from mppfl.network import Propagation, SocialGraph, SparseMatrix

Theorem = Literal["tree", "walk sum", "none"]
ROUNDED = 8.0  # q of the rounded-off kinks


def r_model(propagation: Propagation, budgets: Any) -> Array:
    """Σρ: the paper's index of external risk (model, eq. 3). No unit, and no statement about nats."""
    return propagation @ client_budgets(budgets, propagation.num_clients)


def client_budgets(budgets: Any, size: int) -> Array:
    """Everybody's budget for all of its data, from one for all or one per client."""
    given = read_only(budgets, "budgets", length=size)
    require(given, "budgets", np.isfinite(given) & (given >= 0), "finite and not negative")
    return given


def read_attribute(graph: SocialGraph, values: Any) -> Array:
    """The attribute as +1, -1 and NaN where unknown, from ±1 or 0/1 values per client or a mapping from names."""
    if isinstance(values, Mapping):
        known = np.full(graph.num_clients, np.nan)
        for name, value in values.items():
            known[graph.index(str(name))] = value
    else:
        known = np.array(read_only(values, "attribute", length=graph.num_clients))
    seen = np.unique(known[~np.isnan(known)])
    if not np.isin(seen, (-1.0, 1.0)).all() and not np.isin(seen, (0.0, 1.0)).all():
        raise BadInput(f"attribute values must be ±1 or 0/1, got {', '.join(f'{v:g}' for v in seen[:5])}.")
    return np.where(known == 0, -1.0, known)


def frozen(values: Array) -> Array:
    """The same array, which nobody can write to any more."""
    values.setflags(write=False)
    return values


# ---- the bound ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExposureBound:
    """Upper bounds on what all others' uploads tell about each client's attribute.

    nats      one per client, capped at the attribute's entropy; NaN where no theorem applies
    theorem   which one gave them
    premises  what must hold for them to be bounds
    reason    why there is none, else ""
    """

    nats: Array
    theorem: Theorem
    premises: str
    reason: str


def r_bound(graph: SocialGraph, couplings: Any, budgets: Any, *, rate: Any = 0.5) -> ExposureBound:
    """Bounds in nats on I(X_i; all others' uploads), for attributes that follow an Ising model on the graph.

    Forest: Σ_j σ_ij ρ_j/4 with σ_ij = Π tanh² J_e along the path, in O(clients). Else, if C = tanh|J| has spectral
    radius below 1: σ_ij = min(1, [(I-C)⁻¹]_ij), for networks that fit matrices.

    couplings  one J for all edges, or a symmetric N×N matrix that is zero off the edges
    rate       P(X_i = +1), one or one per client: the bound is capped at its entropy
    """
    size = graph.num_clients
    amounts = client_budgets(budgets, size) / 4
    rates = read_only(rate, "rate", length=size)
    require(rates, "rate", (rates > 0) & (rates < 1), "between 0 and 1")
    cap = entropy_of(rates)
    firsts, seconds, strengths = coupled_edges(graph, couplings)
    shared = (
        "attributes follow an Ising model on the edges, known couplings, nothing else ties clients; "
        "ρ/4: noise on a vector clipped to a ball"
    )
    both_ways = (np.append(firsts, seconds), np.append(seconds, firsts))
    contact = sp.csr_array((np.tile(np.tanh(np.abs(strengths)), 2), both_ways), shape=(size, size))
    if is_forest(graph):
        summed = _path_sums(friendships(graph), contact, amounts)
        return ExposureBound(frozen(np.minimum(summed, cap)), "tree", f"forest; {shared}", "")
    require_dense(size, "the walk-sum bound")
    radius = float(np.linalg.eigvalsh(contact.toarray())[-1])
    premises = f"spectral radius of tanh|J| below 1; {shared}"
    if radius >= 1 - 1e-9:
        reason = f"the graph has cycles and tanh|J| has spectral radius {radius:.3g}, not below 1: no theorem applies."
        return ExposureBound(frozen(np.full(size, np.nan)), "none", premises, reason)
    walks = np.minimum(1.0, np.linalg.inv(np.eye(size) - contact.toarray()))
    np.fill_diagonal(walks, 0.0)
    return ExposureBound(frozen(np.minimum(walks @ amounts, cap)), "walk sum", premises, "")


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


def rooted(connected: SparseMatrix) -> tuple[IntArray, IntArray]:
    """A forest's clients, tree by tree and everybody after its parent, and each one's parent: -1 for a root."""
    _, tree = connected_components(connected, directed=False)
    orders, parents = [np.zeros(0, dtype=np.int64)], np.full(len(tree), -1)
    for root in np.unique(tree, return_index=True)[1]:
        if connected.indptr[root] == connected.indptr[root + 1]:
            orders.append(np.array([root]))
            continue
        order, before = breadth_first_order(connected, root, directed=False)
        parents[order[1:]] = before[order[1:]]
        orders.append(order)
    return np.concatenate(orders), parents


def _path_sums(connected: SparseMatrix, contact: SparseMatrix, amounts: Array) -> Array:
    """Σ_{j≠i} (product of squared contacts along the path from i to j) · amounts_j on a forest."""
    order, parents = rooted(connected)
    children = np.flatnonzero(parents >= 0)
    share, up, total = np.zeros(len(amounts)), amounts.copy(), np.zeros(len(amounts))
    share[children] = np.asarray(contact[children, parents[children]]).ravel() ** 2 if len(children) else 0.0
    for client in order[::-1]:
        if parents[client] >= 0:
            up[parents[client]] += share[client] * up[client]
    for client in order:
        total[client] = up[client] - amounts[client]
        if parents[client] >= 0:
            above = parents[client]
            total[client] += share[client] * (amounts[above] + total[above] - share[client] * up[client])
    return np.maximum(total, 0.0)


# ---- the level ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class LeakModel:
    """R_leak of one network and one attribute as a function of everybody's budgets.

    With π_j = 2ρ_j p(1-p) the precision of what client j's upload tells, R_gp,i = -½ ln(what all others leave of client
    i's variance in the field), R_sat,i is what friends alone tell, and R_leak,i = min(H(X), max(R_sat,i, R_gp,i)).
    R_gp is concave in the budgets.

    seed  of the probes, on a network too large for matrices: the same budgets have the same levels
    """

    field: Field
    seed: int = 0

    @property
    def fit(self) -> FieldFit:
        return self.field.fit

    def levels(self, budgets: Any) -> Levels:
        """R_leak of every client at these client-level budgets."""
        fit, connected = self.fit, self.field.walk.connected
        spent = client_budgets(budgets, connected.shape[0])
        heard = self.field.hear(self.noise(spent), np.random.default_rng([self.seed, 1]))
        r_gp = np.maximum(0.0, -0.5 * np.log(heard.left))  # below 0 only by rounding
        r_sat = fit.saturating_level(connected @ _reach(spent))
        uncapped, below = np.maximum(r_sat, r_gp), np.maximum(r_sat, r_gp) < fit.entropy
        by_field: BoolArray = (r_gp >= r_sat) & below
        error = np.where(by_field, 0.5 * heard.error / heard.left, 0.0)
        nats = frozen(np.minimum(uncapped, fit.entropy))
        return Levels(nats, error, r_sat, r_gp, by_field, (r_gp < r_sat) & below, self, spent, heard)

    def total(self, budgets: Any) -> float:
        """Σ_i R_leak,i in nats."""
        return float(self.levels(budgets).nats.sum())

    def smooth_total_and_marginal(self, budgets: Any) -> tuple[float, Array]:
        """Σ_i R_leak,i and Σ_i ∂R_leak,i/∂ρ_j for every j, with R_leak's kinks rounded off.

        For prices: at a kink there is no marginal leak to pay for.

        max(x, y) becomes (x^q + y^q)^(1/q) and min(x, H) becomes (x^-q + H^-q)^(-1/q), q = 8: within a tenth.
        """
        levels, q = self.levels(budgets), ROUNDED
        joined = (levels.r_sat**q + levels.r_gp**q) ** (1 / q)
        level = joined / (1 + (joined / self.fit.entropy) ** q) ** (1 / q)
        safe = np.where(joined > 0, joined, 1.0)
        outer = np.where(joined > 0, (level / safe) ** (q + 1), 1.0)
        of_gp, of_sat = (outer * (part / safe) ** (q - 1) for part in (levels.r_gp, levels.r_sat))
        return float(level.sum()), levels.weighed_slopes(of_gp, of_sat)[0]

    def noise(self, budgets: Array) -> Array:
        """1/π: variance of the noise about a standardised value."""
        precision = 2 * self.fit.information * budgets
        return np.asarray(np.divide(1.0, precision, out=np.full(len(budgets), np.inf), where=budgets > 0))


@dataclass(frozen=True, eq=False, slots=True)
class Levels:
    """R_leak of every client at some budgets, and what moves it.

    nats, error            min(H(X), max(r_sat, r_gp)) and its standard error, which is 0 where the field is exact
    by_field, by_friends   where R_gp, or R_sat, decides: neither where the level is at the entropy
    """

    nats: Array
    error: Array
    r_sat: Array
    r_gp: Array
    by_field: BoolArray
    by_friends: BoolArray
    model: LeakModel
    budgets: Array
    heard: Heard

    def marginal(self) -> tuple[Array, Array]:
        """Σ_i ∂R_leak,i/∂ρ_j: what one more unit of j's budget tells about all others in nats; and standard errors.

        Where R_sat and R_gp are equal R_leak has a kink, and the slopes are R_gp's.
        """
        return self.weighed_slopes(self.by_field, self.by_friends)

    def slopes_of(self, client: int) -> Array:
        """∂R_leak,i/∂ρ_j of one client i over all j, nats per unit of budget."""
        target = np.arange(len(self.nats)) == client
        slopes, _ = self.weighed_slopes(self.by_field & target, self.by_friends & target)
        return np.where(target, 0.0, slopes)

    def weighed_slopes(self, of_gp: Array | BoolArray, of_sat: Array | BoolArray) -> tuple[Array, Array]:
        """Σ_i of_gp,i ∂R_gp,i/∂ρ_j + of_sat,i ∂R_sat,i/∂ρ_j of every client j, and its standard error."""
        fit, connected = self.model.fit, self.model.field.walk.connected
        by_field, error = self.heard.slopes(of_gp, np.random.default_rng([self.model.seed, 2]))
        near = connected @ (of_sat * fit.saturating_slope(connected @ _reach(self.budgets)))
        return 2 * fit.information * by_field + 2 / (2 + self.budgets) ** 2 * near, 2 * fit.information * error


def leak_model(graph: SocialGraph, public_sample: Any, *, seed: int = 0, fit: FieldFit | None = None) -> LeakModel:
    """The leak model of a network, its constants fitted on the public sample alone.

    public_sample  known values, ±1 or 0/1: a mapping from names, or one per client with NaN where unknown. Edges count
                   the same in both directions and whatever their weight.
    seed           of the probes on a network too large for matrices
    fit            constants that are already fitted, as `calibrate` finds them; the sample is then not looked at
    """
    rng = np.random.default_rng(seed)
    if fit is not None:
        return LeakModel(field_of(walk_of(graph), fit, rng), seed)
    known, walk = read_attribute(graph, public_sample), walk_of(graph)
    return LeakModel(field_of(walk, fit_field(walk, known, rng), rng), seed)


def _reach(budgets: Array) -> Array:
    """What a budget adds to T = Σ_friends ρ_j/(2+ρ_j) of its client's friends."""
    return budgets / (2 + budgets)


def protect(model: LeakModel, budgets: Any, client: int, *, target: float) -> Array:
    """What to withdraw of others' budgets, those that tell most per unit first, until R_leak of `client` is `target`.

    Since R_leak is concave in budgets, the least withdrawal is a hard problem; taking whole budgets in order of what
    each tells per unit, once those before it are gone, gives an upper bound on it. The last one is taken in part.
    O(N²) for each client withdrawn; for networks that fit matrices.
    """
    field, fit = model.field, model.fit
    spent = np.array(client_budgets(budgets, field.walk.num_clients))
    before = float(model.levels(spent).nats[client])
    require_number(target, "target", 0.0, np.inf)
    if target >= before:
        raise BadInput(
            f"target={target:.4g} nats for client number {client} is not below its level of {before:.4g}. Lower it."
        )
    require_dense(len(spent), "protection")
    spent[client] = 0.0
    heard = field.hear(model.noise(spent), np.random.default_rng(0))
    covariances, precision = np.asarray(heard.covariances), heard.precision.copy()
    reach = np.asarray(field.walk.connected[[client]].toarray()).ravel() * _reach(spent)
    withdrawn = np.zeros(len(spent))

    def excess(left: Any, near: Any) -> Array:
        """How far R_gp and R_sat of the client are above the target."""
        return np.array([-0.5 * np.log(left), fit.saturating_level(near)]) - target

    def excess_without(taken: float, source: int) -> float:
        """That of R_leak, once so much of a source's budget is gone."""
        kept = spent[source] - taken
        told = 2 * fit.information * kept
        lost = precision[source] - told / (1 + field.apart[source] * told)
        loosened = lost * covariances[client, source] ** 2 / (1 - lost * covariances[source, source])
        fewer = reach[source] * (1 - _reach(kept) / _reach(spent[source]))
        return float(excess(left + loosened, near - fewer).max())

    for _ in range(np.count_nonzero(precision)):
        left, near = field.apart[client] + covariances[client, client], reach.sum()
        loosened = precision * covariances[client] ** 2 / (1 - precision * np.diagonal(covariances))
        gains = np.maximum(excess(left, near), 0.0).sum()
        gains = gains - np.maximum(excess(left + loosened, near - reach), 0.0).sum(axis=0)
        per_unit = np.divide(gains, spent, out=np.full(len(spent), -np.inf), where=precision > 0)
        source = int(np.argmax(per_unit))
        if excess_without(spent[source], source) <= 0:
            withdrawn[source] = brentq(excess_without, 0.0, spent[source], (source,), xtol=1e-300, rtol=1e-14)
            break
        column = covariances[source]
        share = precision[source] / (1 - precision[source] * column[source])
        covariances = covariances + share * np.outer(column, column)
        withdrawn[source] = spent[source]
        precision[source] = reach[source] = 0.0
    return frozen(withdrawn)
