"""Algorithm 1 of the paper: the mean-field estimate of external risk, sweep by sweep.

The equilibrium itself needs no sweeps (`mppfl.solve` finds it); this is the algorithm the paper shows, in two
versions: with the rate solved in every sweep, which converges on networks of the paper's kind, and to the letter, with
the rate replaced once per sweep by the right-hand side of Lemma 1, which does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from mppfl.arrays import Array, require_count, require_number
from mppfl.game import Game, wanted_loss


@dataclass(frozen=True, eq=False)
class FixedPointTrace:
    """What each sweep of Algorithm 1 left behind.

    external_risk  φ after each sweep [sweeps, clients]
    reward_rates   r after each sweep
    budgets        ρ after the last sweep
    converged      whether the last sweep moved neither φ nor the rate by more than the threshold, all budgets positive
    """

    external_risk: Array
    reward_rates: Array
    budgets: Array
    converged: bool

    @property
    def num_sweeps(self) -> int:
        return len(self.reward_rates)


def fixed_point_trace(
    game: Game, round_index: int = 1, *, threshold: float = 1e-3, literal: bool = False, max_sweeps: int = 200
) -> FixedPointTrace:
    """The sweeps of Algorithm 1 in one round (model, eq. 22), from φ = 0.

    `literal=True` is the paper's version to the letter. It is returned whether it converges or not: `converged` says.
    """
    require_count(round_index, "round_index")
    require_count(max_sweeps, "max_sweeps")
    require_number(threshold, "threshold", 0.0, np.inf)
    risk = np.zeros(game.num_clients)
    rate = 1.0 + float(game.clients.linear_cost.max())
    risks: list[Array] = []
    rates: list[float] = []
    budgets = np.zeros(game.num_clients)
    settled = False
    for _ in range(max_sweeps):
        if literal:
            budgets = _answer(game, rate, risk)
            rate = lemma_1_right_side(game, round_index, rate, risk)
        else:
            rate = solved_rate(game, round_index, risk)
            budgets = _answer(game, rate, risk)
        before, risk = risk, (game.propagation @ budgets) / game.num_clients
        rate_moved = abs(rate - (rates[-1] if rates else np.inf))
        risks.append(risk)
        rates.append(rate)
        if not np.isfinite(rate) or not np.isfinite(risk).all() or np.abs(risk).max() > 1e100:
            break
        # A wandering rate may leave φ standing still for one sweep by chance: both must have settled.
        if np.abs(risk - before).max() <= threshold and rate_moved <= threshold * max(1.0, rate):
            settled = True
            break
    return FixedPointTrace(np.array(risks), np.array(rates), budgets, settled and bool((budgets > 0).all()))


def _answer(game: Game, reward_rate: float, risk: Array) -> Array:
    """ρ_i = (r − b_i)/(2a_i) − αNφ_i, Theorem 1's best response to an estimate of external risk (model, eq. 22)."""
    return wanted_loss(game, reward_rate) - game.externality_strength * game.num_clients * risk


def solved_rate(game: Game, round_index: int, risk: Array) -> float:
    """The rate that solves Lemma 1 at a given φ (model, eq. 16 with external risk fixed)."""
    clients = game.clients
    alone = 1 / (2 * clients.quadratic_cost)
    offset = clients.linear_cost * alone + game.externality_strength * game.num_clients * risk
    pull = game.accuracy_weight / (1 - game.accuracy_weight) / round_index * clients.noise_harm * alone

    # It rises from −∞, just above the rate at which the most reluctant client shares, to +∞. Counted from there, a rise
    # that is lost beside a large rate still tells the two sides of the root apart.
    low = float((offset / alone).max())
    slack = (low - offset / alone) * alone

    def condition(rise: float) -> float:
        return float(2 * alone.sum() * (low + rise) - offset.sum() - (pull / (rise * alone + slack) ** 2).sum())

    high = low + 1.0
    while condition(high) < 0:
        high *= 2
    while condition(high / 2) >= 0:
        high /= 2
    return low + float(brentq(condition, high / 2, high, xtol=1e-300, rtol=8.9e-16))


def lemma_1_right_side(game: Game, round_index: int, reward_rate: float, risk: Array) -> float:
    """The right-hand side of Lemma 1 at the current rate: what Algorithm 1 puts in the rate's place (model, eq. 22)."""
    clients = game.clients
    inverse = float((1 / clients.quadratic_cost).sum())
    others = game.externality_strength * game.num_clients * risk
    gap = reward_rate - clients.linear_cost - 2 * clients.quadratic_cost * others
    ratio = game.accuracy_weight / (1 - game.accuracy_weight)
    with np.errstate(divide="ignore", over="ignore"):
        pull = float((2 * clients.quadratic_cost * clients.noise_harm / (round_index * gap**2)).sum())
    rest = float((clients.linear_cost / (2 * clients.quadratic_cost) + others).sum())
    return ratio * pull / inverse + rest / inverse
