"""The least that could leak while the server keeps its accuracy: what leak prices are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array
from mppfl.game import Game, Horizon, rounds_up_to, social_agnostic
from mppfl.leakage.leakage_priced import Leak, least_leakage

LARGEST_OVER_MEAN = 4.0  # bound on a budget that has none, over the mean budget
LEAKS_TRIED = 40  # from each start; of 400 clients, 25 found what 400 did to 1e-5, and each costs N³


@dataclass(frozen=True, slots=True)
class LeastLeak:
    """The least leak found at social_agnostic's Σρ of the first round, whatever it costs clients: no mechanism.

    leak            nats
    total_budget    Σρ
    largest_budget  the most that anybody may give
    gap             how far it is from where no shift of budget helps to first order, over the leak; 0 there
    """

    leak: float
    total_budget: float
    largest_budget: float
    gap: float


def least_leak(game: Game, leak: Callable[[Array], float], smooth: Leak) -> LeastLeak:
    """How little could leak while the server has the Σρ that social_agnostic's own reward gives it.

    Found along `smooth`, which also tells marginal leaks, and stated as `leak` sees it. Budgets keep the clients'
    bounds; a client without an upper one may give 4 times the mean budget, or the largest social-agnostic one.
    """
    agnostic = social_agnostic(game, Horizon(rounds_up_to(1)))[0].budgets
    low, total = game.clients.budget_min, float(agnostic.sum())
    unbounded = max(LARGEST_OVER_MEAN * float(agnostic.mean()), float(agnostic.max()))
    high = np.where(np.isfinite(game.clients.budget_max), game.clients.budget_max, unbounded)
    room = float((high - low).sum())
    evenly = low + (high - low) * ((total - float(low.sum())) / room if room > 0 else 0.0)
    found = [least_leakage(smooth, total, low, high, [start], LEAKS_TRIED) for start in (agnostic, evenly)]
    leaks = [float(leak(each.budgets)) for each in found]
    best = int(np.argmin(leaks))
    return LeastLeak(leaks[best], total, float(high.max()), found[best].gap)
