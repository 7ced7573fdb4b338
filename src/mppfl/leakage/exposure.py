"""What others' uploads say about a client: the paper's index, a bound in nats, and a calibrated level in nats.

    r_model  Σρ, the paper's index: ranks nothing in nats and has no unit
    r_bound  nats, a theorem: only where its premises hold (a forest, or weak couplings)
    r_leak   nats, the level a Gaussian field on the graph predicts, fitted on a public sample of the attribute

The attribute is binary, X = ±1. A client's own upload never counts. Budgets are client-level and spent once; noise on a
vector clipped to a ball then tells at most ρ/4 nats about the client who adds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mppfl.arrays import Array, read_only, require
from mppfl.errors import BadInput
from mppfl.leakage.couplings import coupled_links, friendships, is_forest, path_sums
from mppfl.leakage.gaussian_field import FieldFit, field_kernel, fit_field, graph_modes, leave_one_out
from mppfl.network import Propagation, SocialGraph
from mppfl.privacy import Unit

Theorem = Literal["tree", "walk sum", "none"]
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
        summed = path_sums(size, firsts, seconds, np.tanh(strengths) ** 2, told)
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
