"""What a budget means as an attack: who looks at releases and accuses people of having been in the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.privacy.accounting import history_deltas, history_epsilon

FALSE_POSITIVES = 0.01  # one in a hundred of those who were not in the data is accused
LARGEST_EXPONENT = 700.0  # of e in doubles, or nearly
THRESHOLDS = 400  # tried between 0 and the largest loss that matters
LEAST_DELTA = 1e-6  # of the loss beyond which an attacker at `FALSE_POSITIVES` gains nothing


class AttackRisk(NamedTuple):
    """What the best attacker can do who knows all but whether the record, or client, was in: numbers, or arrays.

    advantage           largest difference between the shares of members and of others that it accuses
    true_positive_rate  share of members that it accuses while it accuses 1 % of the others
    """

    advantage: Any
    true_positive_rate: Any

    def beside(self, distance: Any) -> AttackRisk:
        """The risk where the noise drawn was this far in total variation from the noise meant: both data sets' answers
        move by that much, and the rate rises at most in proportion to the false positives."""
        advantage = np.minimum(self.advantage + 2 * distance, 1.0)
        rate = self.true_positive_rate * (1 + distance / FALSE_POSITIVES) + distance
        return AttackRisk(advantage, np.minimum(rate, 1.0))

    @property
    def sentence(self) -> str:
        """The rate in plain English; for arrays the largest one.

        Example:
            >>> from mppfl.privacy import attack_risk
            >>> attack_risk(1 / 3).sentence
            'An attacker who accuses 1 in 100 by mistake recognises 7 in 100 members.'
        """
        rate = float(np.max(self.true_positive_rate))
        if rate < FALSE_POSITIVES * 1.5:
            return "An attacker who accuses 1 in 100 by mistake recognises hardly more members: 1 in 100."
        recognised = "nearly every member" if rate >= 0.995 else f"{rate * 100:.0f} in 100 members"
        return f"An attacker who accuses 1 in 100 by mistake recognises {recognised}."


def risk_of_epsilon(dp_epsilon: float, dp_delta: float) -> AttackRisk:
    """The most that any (ε, δ)-DP release allows, where more than its ε is not known (Kairouz, Oh & Viswanath 2015)."""
    grows = math.exp(min(dp_epsilon, LARGEST_EXPONENT))
    rate = min(grows * FALSE_POSITIVES + dp_delta, 1 - (1 - FALSE_POSITIVES - dp_delta) / grows)
    return AttackRisk(min(1.0, (grows - 1 + 2 * dp_delta) / (grows + 1)), rate)


def attack_risk(spent: Any, sampled: Sequence[tuple[float, float, int]] = ()) -> AttackRisk:
    """The risk of a total budget ρ or of each client of an account.

    Gaussian releases that cost ρ together are one with mean μ = √(2ρ): advantage 2Φ(μ/2) - 1, rate Φ(Φ⁻¹(0.01) + μ)
    (Dong, Roth & Su 2022). Discrete noise on a fine grid is as good. Poisson-sampled steps are read off their loss
    distribution: every loss ε with its δ(ε) bounds the rate at false positives α by δ + αe^ε and by 1 - (1-α-δ)e^-ε.

    Args:
        spent: ρ, an array of them, or an `Account`.
        sampled: (noise_multiplier, sampling_rate, num_steps) of each kind of Poisson-sampled steps, with one ρ.

    Raises:
        BadInput: A budget is no number of at least 0.
    """
    try:
        rho: Array = np.asarray(getattr(spent, "budget", spent), dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise BadInput(f"spent={spent!r:.60} is neither a budget nor an account.") from cause
    if not (rho >= 0).all():
        raise BadInput(f"spent={rho[~(rho >= 0)].flat[0]:g} must be a budget of at least 0.")
    if len(sampled):
        return _risk_of_history(float(rho), sampled)
    from scipy.special import erf, ndtr, ndtri

    risk = AttackRisk(erf(np.sqrt(rho) / 2), ndtr(ndtri(FALSE_POSITIVES) + np.sqrt(2) * np.sqrt(rho)))
    of_history = cache(_risk_of_history)
    for place, steps in enumerate(getattr(spent, "sampled", ())):
        if steps:
            risk.advantage[place], risk.true_positive_rate[place] = of_history(float(rho[place]), steps)
    return risk if rho.shape else AttackRisk(*map(float, risk))


def _risk_of_history(rho: float, sampled: Sequence[tuple[float, float, int]]) -> AttackRisk:
    """Through the loss distribution, or without the gain of sampling where that does not fit: never too low."""
    largest = history_epsilon(sampled, LEAST_DELTA, budget=rho, by_orders_alone=True)
    if np.isinf(largest):
        return AttackRisk(1.0, 1.0)
    losses = np.linspace(0.0, min(largest, LARGEST_EXPONENT), THRESHOLDS)
    deltas = history_deltas(sampled, losses, budget=rho)
    bounds = [deltas + FALSE_POSITIVES * np.exp(losses), 1 - (1 - FALSE_POSITIVES - deltas) * np.exp(-losses)]
    return AttackRisk(float(deltas[0]), float(np.clip(np.min(bounds), FALSE_POSITIVES, 1.0)))
