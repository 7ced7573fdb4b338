"""Prices that lower leakage: every client is paid the common rate less what its budget tells about all others.

The leak is a function the caller gives, budgets -> (Σ_i R_i, Σ_i ∂R_i/∂ρ_j); this module knows nothing of how it is
found. A client's price is p_j = r - κ Σ_i ∂R_i/∂ρ_j with κ the money one nat is worth, and r such that Σρ, on which
accuracy depends under noise-aware aggregation, stays what it was.

Costs are convex and leaks concave in budgets, so prices are found by the convex-concave procedure: the leak is replaced
by its tangent, clients settle at the prices that follow, and again. Without externality (α = 0) the end is a stationary
point of Σ(a_iρ_i² + b_iρ_i) + κ ΣR_i; with it, budgets are an equilibrium at Pigouvian prices. How far the end is from
one is measured there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from mppfl.arrays import Array, require_number
from mppfl.errors import BadInput, NotConverged
from mppfl.game import (
    Game,
    Horizon,
    Plan,
    RoundTerms,
    equilibrium_at,
    plan_from_rounds,
    rounds_up_to,
    social_agnostic,
    wanted_loss,
)

Leak = Callable[[Array], tuple[float, Array]]

MOST_STEPS = 300
TOLERANCE = 1e-6
SLOW = 0.5  # of the last way's length: a longer one is slow progress
SHORTEST, LONGEST = 1 / 16, 2.0  # share of the way to everybody's answer that a step goes
LARGEST_OVER_MEAN = 4.0  # bound on a budget that has none, over the mean budget
LEAKS_TRIED = 40  # from each start; of 400 clients, 25 found what 400 did to 1e-5, and each costs N³
ACCEPTED = 1e-3  # of the largest budget: a residual above this is no stationary point


@dataclass(frozen=True, eq=False)
class PricedBudgets:
    """Budgets at which nobody wants to move, each paid r less the harm that its next unit does.

    reward_rate   r, before the harm is taken off
    prices        r - κ Σ_i ∂R_i/∂ρ_j
    leakage       Σ_i R_i there
    kkt_residual  largest distance of a client from its best answer at prices computed at these very budgets, over the
                  largest budget; 0 at an exact stationary point
    """

    reward_rate: float
    prices: Array
    budgets: Array
    leakage: float
    kkt_residual: float


def price_leakage(
    game: Game,
    leak: Leak,
    leak_price: float,
    *,
    total: float | None = None,
    reward_rate: float | None = None,
    start: Array | None = None,
) -> PricedBudgets:
    """Budgets and prices at leak price κ, either with Σρ = `total` or at a given `reward_rate`.

    Raises NotConverged where no stationary point is reached, BadInput where `total` lies outside the clients' bounds.
    """
    require_number(leak_price, "leak_price", 0.0, np.inf, open_ends=False)
    if (total is None) == (reward_rate is None):
        raise BadInput("price_leakage needs either total (of all budgets) or reward_rate. Give one of them.")
    low, high = game.clients.budget_min, game.clients.budget_max
    if total is not None and not (low.sum() <= total <= high.sum() and total > 0):
        raise BadInput(f"total={total:.4g} of all budgets must lie above 0 and in [{low.sum():.4g}, {high.sum():.4g}].")
    if start is None:
        start = wanted_loss(game, 1.0 if reward_rate is None else reward_rate)
    budgets = np.clip(start, low, high)
    share, way = 1.0, np.zeros_like(budgets)
    rate, answer = reward_rate, None
    tried: list[PricedBudgets] = []
    for _ in range(MOST_STEPS):
        leakage, marginal = leak(budgets)
        harm = leak_price * marginal
        if total is not None:
            rate = _rate_of_total(game, harm, total, rate, answer)
        paid = float(rate or 0.0)
        answer = _settle(game, paid - harm, answer)
        residual = float(np.abs(answer - budgets).max()) / max(float(answer.max()), 1e-300)
        tried.append(PricedBudgets(paid, paid - harm, budgets, leakage, residual))
        if residual <= TOLERANCE:
            break
        before, way = way, answer - budgets
        share = _next_share(share, before, way)
        budgets = budgets + share * way
        if share > 1 and ((budgets < low) | (budgets > high)).any():
            budgets = answer  # within the bounds, and with the same total
    best = min(tried, key=lambda priced: priced.kkt_residual)
    if not best.kkt_residual <= ACCEPTED:
        raise NotConverged(
            f"leak prices settled only to {best.kkt_residual:.2g} of the largest budget; lower "
            f"leak_price={leak_price:.4g}.",
            best.budgets,
            best.kkt_residual,
        )
    return best


def _next_share(share: float, before: Array, way: Array) -> float:
    """Which share of the way to everybody's answer to go, given the last share and the way before.

    To and fro: less. Slowly on in one direction, which may lead uphill for a while: more.
    """
    if float(way @ before) < 0:
        return max(share / 2, SHORTEST)
    is_slow = float(way @ way) > SLOW**2 * float(before @ before) > 0
    return min(LONGEST if is_slow else 1.0, 1.3 * share)


def _settle(game: Game, prices: Array, start: Array | None) -> Array:
    """Everybody's answer to the prices. Without externality it is there at once, and a start would only delay it."""
    return equilibrium_at(game, prices, start if game.externality_strength > 0 else None)


def _rate_of_total(game: Game, harm: Array, total: float, guess: float | None, start: Array | None) -> float:
    """The rate at which budgets, priced at it less the harm, add up to `total`; they rise with it."""

    def excess(rate: float) -> float:
        nonlocal start
        start = _settle(game, rate - harm, start)
        more = float(start.sum()) - total
        return more if abs(more) > 1e-12 * max(1.0, total) else 0.0

    low = high = float((game.clients.linear_cost + harm).mean()) if guess is None else guess
    width = 1.0 + abs(low)
    while excess(low) > 0 or excess(high) < 0:
        low, high = (low - width, high) if excess(low) > 0 else (low, high + width)
        width *= 2
        if width > 1e15:
            raise NotConverged(f"no reward rate makes budgets add up to {total:.4g}; lower it.", harm, excess(high))
    return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-15)) if low < high else low


def leakage_priced(game: Game, horizon: Horizon, *, leak: Leak, leak_price: float) -> Plan:
    """A mechanism: Pigouvian prices from the marginal leakage.

    With `horizon.reward_rates` those are the rates before harm is taken off; without, each round's rate is the one at
    which Σρ is that of `social_agnostic`, so that both give the server the same accuracy term.
    """
    yardstick = social_agnostic(game, horizon)
    terms: list[RoundTerms] = []
    worst, start, charged = 0.0, None, 0
    for position, round_index in enumerate(horizon.rounds):
        agnostic = yardstick[position].budgets
        given = None if horizon.reward_rates is None else float(horizon.reward_rates[position])
        total = float(agnostic.sum()) if given is None else None
        priced = price_leakage(
            game, leak, leak_price, total=total, reward_rate=given, start=agnostic if start is None else start
        )
        start, worst = priced.budgets, max(worst, priced.kkt_residual)
        charged = max(charged, int((priced.prices < 0).sum()))
        prices = np.maximum(priced.prices, 0.0)
        paid = float(prices @ priced.budgets) / max(float(priced.budgets.sum()), 1e-300)
        terms.append(RoundTerms(int(round_index), paid, prices, priced.budgets))
    notes = [f"leak price {leak_price:.6g} per nat, largest KKT residual {worst:.2g} of the largest budget"]
    if charged:
        notes.append(f"{charged} clients would be charged for sharing; they are offered nothing")
    return plan_from_rounds("leakage_priced", terms, tuple(notes))


def least_leakage(
    leak: Leak, total: float, low: Array, high: Array, start: Array, most_tried: float = np.inf
) -> tuple[Array, float, float]:
    """Budgets between the bounds with Σρ = `total` that leak least, whatever it costs clients; what they leak, and the
    Frank-Wolfe gap over it: 0 where no shift of budget from client to client helps to first order.

    A concave leak is least at a corner, most clients at a bound, and another start may end at another one. Every step
    goes to the corner that is best to first order, which for a concave leak is never worse. Near a kink ever shorter
    steps gain ever less; `most_tried` ends them after so many budgets.
    """
    if not float(low.sum()) <= total <= float(high.sum()):
        raise BadInput(f"total={total:.4g} lies outside the bounds, {low.sum():.4g} to {high.sum():.4g}. Change it.")
    budgets, (leakage, marginal) = start, leak(start)
    gap, tried = np.inf, 1
    for _ in range(MOST_STEPS):
        corner = _cheapest(marginal, total, low, high)
        gap = max(0.0, float(marginal @ (budgets - corner))) / max(leakage, 1e-300)
        if gap <= 1e-9 or tried >= most_tried:
            break
        share, trial, tried = 1.0, leak(corner), tried + 1
        while trial[0] >= leakage and share > 1e-4 and tried < most_tried:  # only where the leak is not concave
            share, tried = share / 2, tried + 1
            trial = leak(budgets + share * (corner - budgets))
        if trial[0] >= leakage:
            break
        budgets = budgets + share * (corner - budgets) if share < 1 else corner
        leakage, marginal = trial
    return budgets, leakage, gap


def _cheapest(marginal: Array, total: float, low: Array, high: Array) -> Array:
    """Everybody at the lower bound, and what is left given to those who tell least, up to their upper bound."""
    order = np.argsort(marginal, kind="stable")
    room = (high - low)[order]
    before = np.cumsum(room) - room
    given = np.clip(total - float(low.sum()) - before, 0.0, room)
    corner = low.copy()
    corner[order] += given
    return corner


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
    ends = [least_leakage(smooth, total, low, high, start, LEAKS_TRIED) for start in (agnostic, evenly)]
    least, gap = min((float(leak(budgets)), gap) for budgets, _, gap in ends)
    return LeastLeak(least, total, float(high.max()), gap)
