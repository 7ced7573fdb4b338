"""Which noise a budget of the game buys under Poisson sampling: the least with the same ε at δ as that many ρ-zCDP.

The search goes by RDP, some per cent more noise than the least possible, and budgets are rounded down to a public grid
of four steps an octave, so that a training needs few searches: both add noise, neither takes any.
"""

from __future__ import annotations

import math
from functools import lru_cache

from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, gaussian_epsilon, poisson_noise_multiplier, require_budget

STEPS_PER_OCTAVE = 4


def poisson_multiplier(budget: float, dp_delta: float, work: LocalWork) -> float:
    """Noise multiplier σ/C of every step of a round that is to cost no more than ρ = `budget` does at `dp_delta`."""
    rho = require_budget(budget)
    if math.isinf(rho):
        raise BadInput("dpsgd_poisson is calibrated to (ε, δ) and has no noiseless form. Use privacy='paper' for that.")
    rounded = 2.0 ** (math.floor(math.log2(rho) * STEPS_PER_OCTAVE + 1e-9) / STEPS_PER_OCTAVE)
    return _multiplier(rounded, dp_delta, work.sampling_rate, work.num_batches)


@lru_cache(maxsize=4096)
def _multiplier(rho: float, dp_delta: float, sampling_rate: float, num_steps: int) -> float:
    dp_epsilon = gaussian_epsilon(rho, dp_delta)
    if not 1e-6 < dp_epsilon < 1e3:
        raise BadInput(
            f"a budget of {rho:.3g} is ε = {dp_epsilon:.3g} at δ = {dp_delta:g}, outside what Poisson sampling is "
            "calibrated for (1e-6 to 1e3). Change budget_unit."
        )
    return poisson_noise_multiplier(dp_epsilon, dp_delta, sampling_rate, num_steps, by_orders_alone=True)
