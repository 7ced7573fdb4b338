"""From an ε for the whole training to the unit of its budgets: ρ of the training = unit · ρ of the game. And whose turn
it is, which decides what budgets add up to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mppfl.arrays import require_number
from mppfl.errors import BadInput
from mppfl.game import Plan, plan_from_rounds
from mppfl.privacy import LocalWork, added_delta, epsilon, price_of_noise, sum_cost
from mppfl.spec import TrainingConfig
from mppfl.training.client import stream

LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e3
ROUNDING = 1e-9  # of ρ, taken off: more than a sum of any number of rounds gains in floating point
FINE = 1e-12  # of ρ, to which the largest is sought


def plan_in_turns(plan: Plan, config: TrainingConfig) -> Plan:
    """The plan with budgets of those alone whose cohort's turn it is: the k-th round from 0 is that of cohort k mod b.

    Cohorts are drawn from the seed, which is public, and differ by one client at most.
    """
    cohorts = config.protection.cohorts
    if cohorts == 1:
        return plan
    if cohorts > plan.num_clients:
        raise BadInput(f"cohorts={cohorts} of {plan.num_clients} clients leave some empty. Use fewer cohorts.")
    places = stream(config.stream_seed, "cohorts", 0, 0).permutation(plan.num_clients) % cohorts
    turns = [
        replace(terms, budgets=np.where(places == position % cohorts, terms.budgets, 0.0))
        for position, terms in enumerate(plan)
    ]
    return plan_from_rounds(plan.mechanism, turns, plan.notes, plan.participation, plan.against)


def budget_unit_for(plan: Plan, total_epsilon: float, dp_delta: float, method: str = "exact") -> float:
    """The largest unit with which nobody's ε at `dp_delta` exceeds `total_epsilon` by the end of the plan.

    unit = ρ(ε, δ) / max_i Σ_t ρ_i(t), with ρ(ε, δ) of `largest_budget`. The client with the largest total
    ends at ε, up to a billionth; the others end below. Raises where budgets are infinite, or nobody participates.
    """
    totals = np.zeros(plan.num_clients)
    for terms in plan:
        totals += np.where(terms.budgets > 0, terms.budgets, 0.0)
    most = float(totals.max(initial=0.0))
    if math.isinf(most):
        raise BadInput(
            f"total_epsilon={total_epsilon:g} cannot be kept by {plan.mechanism!r}, whose budgets are infinite: it "
            "adds no noise. Leave that mechanism out, or give budget_unit instead."
        )
    if most == 0:
        raise BadInput(f"total_epsilon={total_epsilon:g} gives no unit: under {plan.mechanism!r} nobody participates.")
    return largest_budget(total_epsilon, dp_delta, method) * (1 - ROUNDING) / most


def largest_budget(total_epsilon: float, dp_delta: float, method: str = "exact") -> float:
    """The largest total ρ whose ε at `dp_delta`, by this method of accounting, is at most `total_epsilon`.

    No method finds more than the textbook's ε = ρ + 2√(ρ ln 1/δ), so the search starts from where that one stands.
    """
    target = require_number(total_epsilon, "total_epsilon", LEAST_EPSILON, MOST_EPSILON, open_ends=False)
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


def delta_for_budgets(config: TrainingConfig, total_epsilon: float, num_parameters: int, plan: Plan) -> float:
    """What remains of dp_delta for budgets, after what drawing the noise may itself add to it over all rounds."""
    protection, rounds = config.protection, len(plan)
    work = LocalWork(1, config.local_epochs, config.num_steps)
    if protection.opens_sums:
        drawn = sum_cost(protection, "", 1.0, plan.num_clients, num_parameters).extra_delta
    else:
        # Just below a power of two the noise is the most steps of its grid wide, and its table the longest there is.
        drawn = price_of_noise(math.nextafter(1.0, 0.0), protection.noise, num_parameters).extra_delta
    extra = rounds * (protection.queries(work) if protection.is_zcdp else work.num_batches) * drawn
    left = protection.dp_delta - float(added_delta(total_epsilon, extra))
    if left <= 0:
        raise BadInput(
            f"dp_delta={protection.dp_delta:g} is used up by {protection.noise} noise on {num_parameters:,} parameters "
            f"in {rounds:,} rounds. Use a larger dp_delta, or noise='gaussian'."
        )
    return left


def with_budget_unit(config: TrainingConfig, plan: Plan, num_parameters: int) -> TrainingConfig:
    """The configuration with the unit of budgets that keeps its total_epsilon under this plan, where it has one."""
    total, plan = config.protection.total_epsilon, plan_in_turns(plan, config)
    if total is None:
        return config
    dp_delta = delta_for_budgets(config, total, num_parameters, plan)
    method = config.protection.accounting if config.protection.is_zcdp else "exact"
    unit = budget_unit_for(plan, total, dp_delta, method)
    return replace(config, protection=replace(config.protection, total_epsilon=None, budget_unit=unit))
