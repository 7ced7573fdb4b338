"""What others' uploads say about a client: the paper's index, a bound in nats, and a calibrated level in nats.

    r_model  Σρ, the paper's index: ranks nothing in nats and has no unit
    r_bound  nats, a theorem: only where its premises hold (a forest, or weak couplings)
    r_leak   nats, the level a Gaussian field on the graph predicts, fitted on a public sample of the attribute

The attribute is binary, X = ±1. A client's own upload never counts. Budgets are client-level and spent once; noise on a
vector clipped to a ball then tells at most ρ/4 nats about the client that adds it.

`LeakModel` has r_leak as a function of everybody's budgets, with its slopes. With K the field's correlations,
π_j = 2ρ_j p(1-p) and A = (K⁻¹ + Π)⁻¹, what all others leave of client i's variance is A_ii/(1 - π_i A_ii), and

    ∂R_gp,i/∂ρ_j = p(1-p) A_ij² / (A_ii (1 - π_i A_ii)),

which is finite for a silent client too. Where π_i is large, 1 - π_i A_ii is what is left of two equal numbers; with
M = I + Π^½ K Π^½ it is [M⁻¹]_ii, a sum of squares. Each R_gp,i is concave in the budgets, since 1/[(K⁻¹ + Π)⁻¹]_ii is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from mppfl.arrays import Array, BoolArray, read_only, require, require_number
from mppfl.errors import BadInput
from mppfl.leakage.field import (
    FieldFit,
    coupled_edges,
    field_kernel,
    fit_field,
    friendships,
    graph_modes,
    is_forest,
    leave_one_out,
    path_sums,
    saturating_level,
    saturating_slope,
)
from mppfl.leakage.field_at_scale import (
    LeakAtScale,
    field_at_scale,
    fit_at_scale,
    leak_at_scale,
    marginal_at_scale,
    slopes_at_scale,
    walk_of,
)
from mppfl.network import Propagation, SocialGraph, SparseMatrix
from mppfl.privacy import Unit

Theorem = Literal["tree", "walk sum", "none"]
ROUNDED = 8.0  # q of the rounded-off kinks
DENSE_LIMIT = 3_000  # an N×N eigendecomposition: some 10 s and 300 MB


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


def r_model(propagation: Propagation, budgets: Any) -> Array:
    """Σρ: the paper's index of external risk (model, eq. 3). No unit, and no statement about nats."""
    return propagation @ _budgets(budgets, propagation.num_clients)


def r_bound(
    graph: SocialGraph,
    couplings: Any,
    budgets: Any,
    *,
    rate: Any = 0.5,
) -> ExposureBound:
    """Bounds in nats on I(X_i; all others' uploads), for attributes that follow an Ising model on the graph.

    Forest: Σ_j σ_ij ρ_j/4 with σ_ij = Π tanh² J_e along the path, in O(clients). Else, if C = tanh|J| has spectral
    radius below 1: σ_ij = min(1, [(I-C)⁻¹]_ij), at most `DENSE_LIMIT` clients.

    couplings  one J for all edges, or a symmetric N×N matrix that is zero off the edges
    rate       P(X_i = +1), one or one per client: the bound is capped at its entropy
    """
    size = graph.num_clients
    amounts = client_budgets(budgets, size) / 4
    rates = read_only(rate, "rate", length=size)
    require(rates, "rate", (rates > 0) & (rates < 1), "between 0 and 1")
    cap = _entropy(rates)
    firsts, seconds, strengths = coupled_edges(graph, couplings)
    shared = (
        "attributes follow an Ising model on the edges, known couplings, nothing else ties clients; "
        "ρ/4: noise on a vector clipped to a ball"
    )
    if is_forest(graph):
        summed = path_sums(size, firsts, seconds, np.tanh(strengths) ** 2, amounts)
        return ExposureBound(frozen(np.minimum(summed, cap)), "tree", f"forest; {shared}", "", cap)
    require_dense(size, "the walk-sum bound")
    contact = np.zeros((size, size))
    contact[firsts, seconds] = contact[seconds, firsts] = np.tanh(np.abs(strengths))
    radius = float(np.linalg.eigvalsh(contact)[-1])
    premises = f"spectral radius of tanh|J| below 1; {shared}"
    if radius >= 1 - 1e-9:
        reason = f"the graph has cycles and tanh|J| has spectral radius {radius:.3g}, not below 1: no theorem applies."
        return ExposureBound(frozen(np.full(size, np.nan)), "none", premises, reason, cap, radius)
    walks = np.minimum(1.0, np.linalg.inv(np.eye(size) - contact))
    np.fill_diagonal(walks, 0.0)
    return ExposureBound(frozen(np.minimum(walks @ amounts, cap)), "walk sum", premises, "", cap, radius)


def r_leak(graph: SocialGraph, budgets: Any, public_sample: Any) -> ExposureLeak:
    """The leak in nats that a Gaussian field on the graph predicts for each client; at most `DENSE_LIMIT` clients.

    With G = K + diag(τ), τ_j = 1/(2ρ_j p(1-p)): r_gp = -½ ln(1/[G⁻¹]_ii - τ_i), what is left of the variance of X_i
    once all others are heard. With T_i = Σ_friends ρ_j/(2+ρ_j): r_sat = ½ ln(1 + b²T_i/(1+vT_i)).

    public_sample  known values, ±1 or 0/1: a mapping from names, or one per client with NaN where unknown. Edges count
                   the same in both directions and whatever their weight.
    """
    size = graph.num_clients
    spent = client_budgets(budgets, size)
    require_dense(size, "the Gaussian field")
    known = read_attribute(graph, public_sample)
    modes = graph_modes(graph)
    fit = fit_field(graph, known, modes)
    heard = spent > 0
    noise = np.full(size, np.inf)
    noise[heard] = 1 / (2 * spent[heard] * fit.rate * (1 - fit.rate))
    left, _ = leave_one_out(field_kernel(modes, fit.beta, fit.eta), noise)
    r_gp = np.maximum(0.0, -0.5 * np.log(left))  # below 0 only by rounding
    reach = friendships(graph) @ (spent / (2 + spent))
    r_sat = saturating_level(fit, reach)
    cap = float(_entropy(np.array([fit.rate]))[0])
    level = np.minimum(np.maximum(r_sat, r_gp), cap)
    return ExposureLeak(frozen(level), frozen(r_sat), frozen(r_gp), cap, fit)


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
    return frozen(given * counts**2)


def read_attribute(graph: SocialGraph, values: Any) -> Array:
    """The attribute as +1, -1 and NaN where unknown, from ±1 or 0/1 values per client or a mapping from names."""
    size = graph.num_clients
    if isinstance(values, Mapping):
        known = np.full(size, np.nan)
        for name, value in values.items():
            known[graph.index(str(name))] = value
    else:
        known = np.array(read_only(values, "attribute", length=size))
    return as_signs(known)


def as_signs(values: Array) -> Array:
    """±1 from ±1 or 0/1; NaN stays."""
    seen = np.unique(values[~np.isnan(values)])
    if not np.isin(seen, (-1.0, 1.0)).all() and not np.isin(seen, (0.0, 1.0)).all():
        raise BadInput(f"attribute values must be ±1 or 0/1, got {', '.join(f'{v:g}' for v in seen[:5])}.")
    return np.where(values == 0, -1.0, values)


def _budgets(budgets: Any, size: int) -> Array:
    given = read_only(budgets, "budgets", length=size)
    require(given, "budgets", np.isfinite(given) & (given >= 0), "finite and not negative")
    return given


def _entropy(rates: Array) -> Array:
    return frozen(-rates * np.log(rates) - (1 - rates) * np.log1p(-rates))


def require_dense(size: int, what: str) -> None:
    """Raises where `what` would need a matrix too large to hold."""
    if size > DENSE_LIMIT:
        raise BadInput(
            f"{what} is computed densely, for at most {DENSE_LIMIT:,} clients, not {size:,}. Take a part of the graph."
        )


def frozen(values: Array) -> Array:
    """The same array, which nobody can write to any more."""
    values.setflags(write=False)
    return values


@dataclass(frozen=True, slots=True)
class Levels:
    """What all others' uploads tell about each client, in nats: `nats` = min(entropy, max(r_sat, r_gp))."""

    nats: Array
    r_sat: Array
    r_gp: Array
    capped: BoolArray


class _Heard(NamedTuple):
    """The field once everybody is heard."""

    covariances: Array  # A, N×N
    apart: Array  # 1 - π_i A_ii: the share of a client's variance given all, in that given all others


@dataclass(frozen=True, eq=False, slots=True)
class LeakModel:
    """The Gaussian field and the one-hop model of one network and one attribute, ready for any budgets.

    kernel  K, N×N with a unit diagonal
    connected  who is connected to whom, in either direction
    """

    kernel: Array
    connected: SparseMatrix
    fit: FieldFit
    entropy: float

    @property
    def num_clients(self) -> int:
        return len(self.kernel)

    @property
    def information(self) -> float:
        """p(1-p): half of what a unit of budget adds to the precision with which a client's value is known."""
        return self.fit.rate * (1 - self.fit.rate)

    def posterior(self, budgets: Array) -> Array:
        """A = (K⁻¹ + Π)⁻¹: covariances once everybody is heard. O(N³)."""
        return self._heard(budgets).covariances

    def _heard(self, budgets: Array) -> _Heard:
        root = np.sqrt(2 * self.information * budgets)
        audible, loud = np.flatnonzero(root > 0), np.flatnonzero(root > 1)
        inner = root[audible, None] * self.kernel[np.ix_(audible, audible)] * root[audible]
        inner[np.diag_indices_from(inner)] += 1.0
        lower = cholesky(inner, lower=True, overwrite_a=True, check_finite=False)
        half = solve_triangular(lower, root[audible, None] * self.kernel[audible], lower=True, check_finite=False)
        covariances = self.kernel - half.T @ half
        apart = 1 - root**2 * np.diagonal(covariances)
        if len(loud):
            # K - KΠ^½M⁻¹Π^½K cancels where it is of the size of 1/π_j. AΠ^½ = KΠ^½M⁻¹ and Π^½AΠ^½ = I - M⁻¹ do not.
            units = np.zeros((len(audible), len(loud)))
            units[np.searchsorted(audible, loud), np.arange(len(loud))] = 1.0
            half_units = solve_triangular(lower, units, lower=True, check_finite=False)
            inverse = half_units.T @ half_units
            covariances[:, loud] = half.T @ half_units / root[loud]
            covariances[loud] = covariances[:, loud].T
            covariances[np.ix_(loud, loud)] = (np.eye(len(loud)) - inverse) / root[loud] / root[loud, None]
            apart[loud] = np.diagonal(inverse)
        return _Heard(covariances, apart)

    def levels(self, budgets: Any) -> Levels:
        """R_leak of every client at these client-level budgets, as `r_leak` gives it."""
        spent = client_budgets(budgets, self.num_clients)
        return self._levels(spent, self._heard(spent))

    def total(self, budgets: Any) -> float:
        """Σ_i R_leak,i in nats."""
        return float(self.levels(budgets).nats.sum())

    def slopes(self, budgets: Any) -> Array:
        """∂R_leak,i/∂ρ_j as an array [i, j], nats per unit of budget; 0 on the diagonal, and where i is at its entropy.

        Where R_sat and R_gp are equal R_leak has a kink, and the slopes are R_gp's.
        """
        spent = client_budgets(budgets, self.num_clients)
        heard = self._heard(spent)
        return self._slopes(spent, heard, self._levels(spent, heard))

    def smooth_total_and_marginal(self, budgets: Any) -> tuple[float, Array]:
        """Σ_i R_leak,i and Σ_i ∂R_leak,i/∂ρ_j for every j, with R_leak's kinks rounded off.

        For prices: at a kink there is no marginal leak to pay for.

        max(x, y) becomes (x^q + y^q)^(1/q) and min(x, H) becomes (x^-q + H^-q)^(-1/q), q = 8: within a tenth.
        """
        spent = client_budgets(budgets, self.num_clients)
        heard = self._heard(spent)
        levels = self._levels(spent, heard)
        q = ROUNDED
        joined = (levels.r_sat**q + levels.r_gp**q) ** (1 / q)
        level = joined / (1 + (joined / self.entropy) ** q) ** (1 / q)
        safe = np.where(joined > 0, joined, 1.0)
        outer = np.where(joined > 0, (level / safe) ** (q + 1), 1.0)
        of_gp, of_sat = (outer * (part / safe) ** (q - 1) for part in (levels.r_gp, levels.r_sat))
        marginal = of_gp @ self._slopes_of_field(heard)
        reach = self.connected @ (spent / (2 + spent))
        near = self.connected @ (of_sat * saturating_slope(self.fit, reach))
        return float(level.sum()), np.asarray(marginal + 2 / (2 + spent) ** 2 * near)

    def _levels(self, spent: Array, heard: _Heard) -> Levels:
        left = np.diagonal(heard.covariances) / heard.apart
        r_gp = np.maximum(0.0, -0.5 * np.log(left))  # below 0 only by rounding
        r_sat = saturating_level(self.fit, self.connected @ (spent / (2 + spent)))
        uncapped = np.maximum(r_sat, r_gp)
        return Levels(np.minimum(uncapped, self.entropy), r_sat, r_gp, uncapped >= self.entropy)

    def _slopes_of_field(self, heard: _Heard) -> Array:
        """∂R_gp,i/∂ρ_j as an array [i, j], 0 on the diagonal."""
        scale = np.sqrt(self.information / (np.diagonal(heard.covariances) * heard.apart))
        slopes = (scale[:, None] * heard.covariances) ** 2
        np.fill_diagonal(slopes, 0.0)
        return slopes

    def _slopes(self, spent: Array, heard: _Heard, levels: Levels) -> Array:
        slopes = self._slopes_of_field(heard)
        near = levels.r_sat > levels.r_gp
        if near.any():
            reach = self.connected[near] @ (spent / (2 + spent))
            slopes[near] = (
                self.connected[near].toarray() * (2 / (2 + spent) ** 2) * saturating_slope(self.fit, reach)[:, None]
            )
        slopes[levels.capped] = 0.0
        np.fill_diagonal(slopes, 0.0)
        return slopes


def leak_model(graph: SocialGraph, public_sample: Any) -> LeakModel:
    """The leak model of a network, its constants fitted on the public sample alone; see `r_leak` for the sample."""
    require_dense(graph.num_clients, "the Gaussian field")
    modes = graph_modes(graph)
    return leak_model_of(graph, modes, fit_field(graph, read_attribute(graph, public_sample), modes))


def leak_model_of(graph: SocialGraph, modes: tuple[Array, Array], fit: FieldFit) -> LeakModel:
    """The leak model of constants that are already fitted."""
    entropy = float(_entropy(np.array([fit.rate]))[0])
    return LeakModel(field_kernel(modes, fit.beta, fit.eta), friendships(graph), fit, entropy)


def leak_estimator(graph: SocialGraph, shown: Array, seed: int) -> Callable[[Array], LeakAtScale]:
    """What the public sample `shown` (±1, NaN where not public) predicts to leak at client-level budgets.

    The constants are fitted here, once. Every question gets the same probes, so that two answers differ by their
    budgets and not by the luck of the draw.
    """
    rng, walk = np.random.default_rng(seed), walk_of(graph)
    fit, _ = fit_at_scale(graph, walk, shown, rng)
    field = field_at_scale(walk, fit.beta, fit.eta, rng)
    return lambda budgets: leak_at_scale(graph, field, fit, budgets, np.random.default_rng([seed, 1]))


@dataclass(frozen=True, eq=False, slots=True)
class WhoLeaks:
    """R_leak of every client and what moves it.

    nats, error               R_leak and its standard error; the error is 0 where the field is exact
    marginal, marginal_error  Σ_i ∂R_leak,i/∂ρ_j: what one more unit of j's budget tells about all others, in nats
    slopes_of                 client i -> ∂R_leak,i/∂ρ_j over all j
    model                     the exact model, which also answers what protection costs; None on large networks
    """

    nats: Array
    error: Array
    marginal: Array
    marginal_error: Array
    fit: FieldFit
    slopes_of: Callable[[int], Array]
    model: LeakModel | None


def who_leaks(
    graph: SocialGraph, public_sample: Any, budgets: Any, *, rng: np.random.Generator, fit: FieldFit | None = None
) -> WhoLeaks:
    """Levels and slopes at client-level budgets, with constants fitted on the public sample alone.

    Exact up to `DENSE_LIMIT` clients, by random probes with standard errors above. `fit` gives constants that are
    already fitted, as `calibrate` finds them; the sample is then not looked at.
    """
    spent = client_budgets(budgets, graph.num_clients)
    if graph.num_clients <= DENSE_LIMIT:
        model = leak_model(graph, public_sample) if fit is None else leak_model_of(graph, graph_modes(graph), fit)
        slopes = model.slopes(spent)
        none = np.zeros(graph.num_clients)
        return WhoLeaks(model.levels(spent).nats, none, slopes.sum(axis=0), none, model.fit, slopes.__getitem__, model)
    walk = walk_of(graph)
    if fit is None:
        fit, _ = fit_at_scale(graph, walk, read_attribute(graph, public_sample), rng)
    field = field_at_scale(walk, fit.beta, fit.eta, rng)
    leak = leak_at_scale(graph, field, fit, spent, rng)
    marginal, error = marginal_at_scale(graph, field, fit, spent, leak, rng)
    slopes_of = partial(slopes_at_scale, graph, field, fit, spent, leak)
    return WhoLeaks(leak.nats, leak.error, marginal, error, fit, slopes_of, None)


@dataclass(frozen=True, slots=True)
class Protection:
    """Budgets to withdraw so that a client's R_leak falls to a target.

    level_before, level_after  R_leak of the client in nats
    withdrawn                  budget taken from each client; 0 for the client itself
    """

    client: int
    level_before: float
    level_after: float
    withdrawn: Array

    @property
    def total(self) -> float:
        """What the server's Σρ loses."""
        return float(self.withdrawn.sum())

    @property
    def num_withdrawn(self) -> int:
        return int((self.withdrawn > 0).sum())


def protect(model: LeakModel, budgets: Any, client: int, *, target: float) -> Protection:
    """Withdraws others' budgets, those that tell most per unit first, until R_leak of `client` is `target` nats.

    Since R_leak is concave in budgets, the least withdrawal is a hard problem; taking whole budgets in order of what
    each tells per unit, once those before it are gone, gives an upper bound on it. The last one is taken in part.
    O(N²) for each client withdrawn.
    """
    spent = np.array(client_budgets(budgets, model.num_clients))
    before = float(model.levels(spent).nats[client])
    require_number(target, "target", 0.0, np.inf)
    if target >= before:
        raise BadInput(
            f"target={target:.4g} nats for client number {client} is not below its level of {before:.4g}. Lower it."
        )
    precision = 2 * model.information * spent
    is_client = np.arange(len(spent)) == client
    heard = np.where(is_client, 0.0, precision)
    covariances = model.posterior(np.where(is_client, 0.0, spent))
    friends = np.asarray(model.connected[[client]].toarray()).ravel()
    reach = friends * spent / (2 + spent)
    withdrawn = np.zeros(len(spent))
    while True:
        left, near = float(covariances[client, client]), float(reach.sum())
        if max(_gp(left), float(saturating_level(model.fit, np.array(near)))) <= target:
            break
        loosened = heard * covariances[client] ** 2 / (1 - heard * np.diagonal(covariances))
        gains = _above(-0.5 * np.log(left), target) - _above(-0.5 * np.log(left + loosened), target)
        gains += _above(saturating_level(model.fit, np.array(near)), target)
        gains -= _above(saturating_level(model.fit, near - reach), target)
        per_unit = np.divide(gains, spent - withdrawn, out=np.full(len(spent), -np.inf), where=heard > 0)
        source = int(np.argmax(per_unit))
        column = covariances[source]
        after = left + loosened[source]
        if max(_gp(after), float(saturating_level(model.fit, np.array(near - reach[source])))) < target:
            withdrawn[source] = _part(model, spent[source], covariances, client, source, near, friends[source], target)
            break
        covariances = covariances + np.outer(column, column) * (heard[source] / (1 - heard[source] * column[source]))
        withdrawn[source] = spent[source]
        heard[source] = reach[source] = 0.0
    remaining = np.maximum(spent - withdrawn, 0.0)
    remaining[client] = precision[client] / (2 * model.information)
    return Protection(client, before, float(model.levels(remaining).nats[client]), frozen(withdrawn))


def _part(
    model: LeakModel,
    budget: float,
    covariances: Array,
    client: int,
    source: int,
    near: float,
    is_friend: float,
    target: float,
) -> float:
    """How much of the last budget must go, by bisection: the level falls as it goes."""
    variance, cross = covariances[source, source], covariances[client, source]
    low, high = 0.0, budget
    for _ in range(60):
        taken = 0.5 * (low + high)
        kept, lost = budget - taken, 2 * model.information * taken
        left = covariances[client, client] + lost * cross**2 / (1 - lost * variance)
        reach = near - is_friend * (budget / (2 + budget) - kept / (2 + kept))
        enough = max(_gp(left), float(saturating_level(model.fit, np.array(reach)))) <= target
        low, high = (low, taken) if enough else (taken, high)
    return high


def _gp(left: float) -> float:
    return max(0.0, -0.5 * math.log(left))


def _above(level: Any, target: float) -> Array:
    return np.asarray(np.maximum(level, target) - target)
