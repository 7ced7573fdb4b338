"""R_leak on networks too large for matrices: constants and levels found by random probes, with standard errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mppfl.arrays import Array
from mppfl.leakage.calibration import fit_at_scale
from mppfl.leakage.field_at_scale import LeakAtScale, field_at_scale, leak_at_scale, walk_of
from mppfl.network import SocialGraph


def leak_estimator(graph: SocialGraph, shown: Array, seed: int) -> Callable[[Array], LeakAtScale]:
    """What the public sample `shown` (±1, NaN where not public) predicts to leak at client-level budgets.

    The constants are fitted here, once. Every question gets the same probes, so that two answers differ by their
    budgets and not by the luck of the draw.
    """
    rng, walk = np.random.default_rng(seed), walk_of(graph)
    fit, _ = fit_at_scale(graph, walk, shown, rng)
    field = field_at_scale(walk, fit.beta, fit.eta, rng)
    return lambda budgets: leak_at_scale(graph, field, fit, budgets, np.random.default_rng([seed, 1]))
