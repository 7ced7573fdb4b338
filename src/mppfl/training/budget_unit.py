"""From an ε for the whole training to the unit of its budgets: ρ of the training = unit · ρ of the game."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mppfl.arrays import require_number
from mppfl.errors import BadInput
from mppfl.game import Plan
from mppfl.privacy import (
    LocalWork,
    added_delta,
    epsilon,
    gaussian_epsilon,
    poisson_noise_multiplier,
    price_of_noise,
    require_budget,
)
from mppfl.spec import TrainingConfig

if TYPE_CHECKING:
    from torch import nn

LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e3
ROUNDING = 1e-9  # of ρ, taken off: more than a sum of any number of rounds gains in floating point
FINE = 1e-12  # of ρ, to which the largest is sought


def budget_unit_for(plan: Plan, dp_epsilon: float, dp_delta: float, method: str = "exact") -> float:
    """The largest unit with which nobody's ε at `dp_delta` exceeds `dp_epsilon` by the end of the plan.

    unit = ρ(ε, δ) / max_i Σ_t ρ_i(t), with ρ(ε, δ) of `largest_budget`. The client with the largest total
    ends at ε, up to a billionth; the others end below. Raises where budgets are infinite, or nobody participates.
    """
    totals = np.zeros(plan.num_clients)
    for terms in plan:
        totals += np.where(terms.budgets > 0, terms.budgets, 0.0)
    most = float(totals.max(initial=0.0))
    if math.isinf(most):
        raise BadInput(
            f"dp_epsilon={dp_epsilon:g} cannot be kept by {plan.mechanism!r}, whose budgets are infinite: it adds no "
            "noise. Leave that mechanism out, or give budget_unit instead."
        )
    if most == 0:
        raise BadInput(f"dp_epsilon={dp_epsilon:g} gives no unit: under {plan.mechanism!r} nobody participates.")
    return largest_budget(dp_epsilon, dp_delta, method) * (1 - ROUNDING) / most


def largest_budget(dp_epsilon: float, dp_delta: float, method: str = "exact") -> float:
    """The largest total ρ whose ε at `dp_delta`, by this method of mppfl.privacy.accounting, is at most `dp_epsilon`.

    No method finds more than the textbook's ε = ρ + 2√(ρ ln 1/δ), so the search starts from where that one stands.
    """
    target = require_number(dp_epsilon, "dp_epsilon", LEAST_EPSILON, MOST_EPSILON, open_ends=False)
    log_inverse = -math.log(require_number(dp_delta, "dp_delta", 0.0, 1.0))
    low = (target / (math.sqrt(log_inverse + target) + math.sqrt(log_inverse))) ** 2 * (1 - ROUNDING)
    high = 8 * low
    while epsilon(high, dp_delta, method) <= target:
        low, high = high, 8 * high
    while high - low > FINE * low:
        between = np.linspace(low, high, 65)
        kept = int((epsilon(between[1:-1], dp_delta, method) <= target).sum())  # ε grows with ρ
        low, high = float(between[kept]), float(between[kept + 1])
    return low


def delta_for_budgets(config: TrainingConfig, dp_epsilon: float, num_parameters: int, num_rounds: int) -> float:
    """What remains of dp_delta for budgets, after what drawing the noise may itself add to it over all rounds."""
    work = LocalWork(1, config.local_epochs, config.num_steps)
    # Just below a power of two the noise is the most steps of its grid wide, and its table the longest there is.
    most = price_of_noise(math.nextafter(1.0, 0.0), config.noise, num_parameters).extra_delta
    extra = num_rounds * config.mechanism.queries(work) * most
    left = config.dp_delta - float(added_delta(dp_epsilon, extra))
    if left <= 0:
        raise BadInput(
            f"dp_delta={config.dp_delta:g} is used up by {config.noise} noise on {num_parameters:,} parameters in "
            f"{num_rounds:,} rounds. Use a larger dp_delta, or noise='gaussian'."
        )
    return left


def epsilon_method(config: TrainingConfig) -> str:
    """The tightest method of accounting that holds for the training's noise."""
    if not config.mechanism.is_zcdp:
        return "pld"
    return "rdp" if config.noise == "discrete" else "exact"


def with_budget_unit(
    config: TrainingConfig, plan: Plan, make_model: Callable[[], nn.Module]
) -> tuple[TrainingConfig, tuple[str, ...]]:
    """The configuration with the unit that keeps its dp_epsilon under this plan, where it has one; and a note on it."""
    if config.dp_epsilon is None:
        return config, ()
    from mppfl.training.models import trained_parameters

    num_parameters = sum(part.numel() for part in trained_parameters(make_model()))
    dp_delta = delta_for_budgets(config, config.dp_epsilon, num_parameters, len(plan))
    unit = budget_unit_for(plan, config.dp_epsilon, dp_delta, epsilon_method(config))
    kind = "nominal ε" if config.privacy == "paper" else "ε"
    limit = f"no client's final {kind} exceeds {config.dp_epsilon:g} at δ = {config.dp_delta:g}"
    note = f"budget_unit={unit:.6g} was chosen so that {limit}"
    return replace(config, dp_epsilon=None, budget_unit=unit), (note,)


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
