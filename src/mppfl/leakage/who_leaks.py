"""Who leaks about whom at given budgets: levels, marginal leaks and single slopes, exact or estimated by the size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.leakage.calibration import fit_at_scale
from mppfl.leakage.exposure import DENSE_LIMIT, client_budgets, read_attribute
from mppfl.leakage.field_at_scale import field_at_scale, leak_at_scale, marginal_at_scale, slopes_at_scale, walk_of
from mppfl.leakage.gaussian_field import FieldFit, graph_modes
from mppfl.leakage.leak_gradient import LeakModel, leak_model, leak_model_of
from mppfl.network import SocialGraph


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
