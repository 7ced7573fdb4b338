"""Prices that lower leakage: every client is paid the common rate less what its budget tells about all others.

The leak is a function the caller gives, budgets -> (Σ_i R_i, Σ_i ∂R_i/∂ρ_j); this module knows nothing of how it is
found. A client's price is p_j = r - κ Σ_i ∂R_i/∂ρ_j with κ the money one nat is worth, and r such that Σρ, on which
accuracy depends under noise-aware aggregation, stays what it was.

Costs are convex and leaks concave in budgets, so prices are found by the convex-concave procedure: the leak is replaced
by its tangent, clients settle at the prices that follow, and again. Without externality (α = 0) each step lowers
Σ(a_iρ_i² + b_iρ_i) + κ ΣR_i; with it, budgets are an equilibrium at Pigouvian prices. Either way the end is a
stationary point, and how far it is from one is measured there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
MOST_RATES = 200
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
    leak_price: float
    prices: Array
    budgets: Array
    leakage: float
    kkt_residual: float
    steps: int


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
    least, most = float(game.clients.budget_min.sum()), float(game.clients.budget_max.sum())
    if total is not None and not (least <= total <= most and total > 0):
        raise BadInput(f"total={total:.4g} of all budgets must lie above 0 and in [{least:.4g}, {most:.4g}].")
    budgets = np.clip(
        wanted_loss(game, reward_rate if reward_rate is not None else 1.0) if start is None else start,
        game.clients.budget_min,
        game.clients.budget_max,
    )
    share, rate, answer = 1.0, reward_rate, None
    best: PricedBudgets | None = None
    way = np.zeros_like(budgets)
    leakage, marginal = leak(budgets)
    for step in range(1, MOST_STEPS + 1):
        harm = leak_price * marginal
        if reward_rate is None:
            rate, answer = _rate_of_total(game, harm, float(total or 0.0), rate, answer)
        else:
            rate, answer = reward_rate, _settle(game, reward_rate - harm, answer)
        residual = float(np.abs(answer - budgets).max()) / max(float(answer.max()), 1e-300)
        if best is None or residual < best.kkt_residual:
            best = PricedBudgets(rate, leak_price, rate - harm, budgets, leakage, residual, step)
        if residual <= TOLERANCE:
            break
        if game.externality_strength > 0:  # an equilibrium minimises nothing that a step could be measured by
            way, before = answer - budgets, way
            share = _next_share(share, way, before)
            moved = budgets + share * way
            if share > 1 and ((moved < game.clients.budget_min) | (moved > game.clients.budget_max)).any():
                moved = answer  # within the bounds, and with the same total
            budgets = moved
            leakage, marginal = leak(budgets)
            continue
        step_down = _descend(game, leak, leak_price, rate, (budgets, leakage, marginal), answer, min(1.0, 2 * share))
        if step_down is None:
            break
        share, budgets, leakage, marginal = step_down
    if best is None or best.kkt_residual > ACCEPTED:
        reached = np.inf if best is None else best.kkt_residual
        raise NotConverged(
            f"leak prices settled only to {reached:.2g} of the largest budget; lower leak_price={leak_price:.4g}.",
            None if best is None else best.budgets,
            reached,
        )
    return best


def _next_share(share: float, way: Array, before: Array) -> float:
    """What share of the way to everybody's answer to go, given the last way.

    To and fro: less. Slowly on in one direction, which may lead uphill for a while: more.
    """
    if float(way @ before) < 0:
        return max(share / 2, SHORTEST)
    is_slow = float(way @ way) > SLOW**2 * float(before @ before) > 0
    return min(LONGEST if is_slow else 1.0, 1.3 * share)


@dataclass(frozen=True, eq=False)
class LeastLeakage:
    """The least leakage found with Σρ and the bounds alone, whatever it costs clients.

    gap     Frank-Wolfe gap over the leakage: 0 where no shift of budget from client to client helps to first order
    starts  leakage reached from every start; where they differ, the least is a local minimum among several
    """

    budgets: Array
    leakage: float
    gap: float
    starts: tuple[float, ...]


def least_leakage(
    leak: Leak, total: float, low: Array, high: Array, starts: Sequence[Array], most_tried: float = np.inf
) -> LeastLeakage:
    """Budgets between the bounds with Σρ = `total` that leak least, by Frank-Wolfe from every start.

    A concave leak is least at a corner: most clients at a bound. Every step goes to the corner that is best to first
    order, which for a concave leak is never worse. Near a kink ever shorter steps gain ever less; `most_tried` ends
    them after so many budgets from each start.
    """
    if not float(low.sum()) <= total <= float(high.sum()):
        raise BadInput(f"total={total:.4g} lies outside the bounds, {low.sum():.4g} to {high.sum():.4g}. Change it.")
    reached = [_to_a_corner(leak, total, low, high, np.asarray(start), most_tried) for start in starts]
    budgets, leakage, gap = min(reached, key=lambda end: end[1])
    return LeastLeakage(budgets, leakage, gap, tuple(end[1] for end in reached))


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


def _descend(
    game: Game, leak: Leak, leak_price: float, rate: float, now: tuple[Array, float, Array], answer: Array, share: float
) -> tuple[float, Array, float, Array] | None:
    """A step towards the answer that lowers cost and priced leak together, or None where rounding forbids any.

    The answer minimises the cost and the leak's tangent, so the way to it goes down at first; a whole step does while
    the leak is concave, and halving finds one that does elsewhere.
    """
    budgets, leakage, marginal = now
    clients = game.clients

    def merit(budgets: Array, leakage: float) -> float:
        return (
            float(clients.quadratic_cost @ budgets**2 + (clients.linear_cost - rate) @ budgets) + leak_price * leakage
        )

    way = answer - budgets
    slope = float((2 * clients.quadratic_cost * budgets + clients.linear_cost - rate + leak_price * marginal) @ way)
    here = merit(budgets, leakage)
    while share > 1e-6:
        moved = budgets + share * way if share < 1 else answer
        leakage, marginal = leak(moved)
        if merit(moved, leakage) <= here + 1e-4 * share * slope:
            return share, moved, leakage, marginal
        share /= 2
    return None


def _settle(game: Game, prices: Array, start: Array | None) -> Array:
    """Everybody's answer to the prices. Without externality it is there at once, and a start would only delay it."""
    return equilibrium_at(game, prices, start if game.externality_strength > 0 else None).budgets


def _rate_of_total(
    game: Game, harm: Array, total: float, guess: float | None, start: Array | None
) -> tuple[float, Array]:
    """The rate at which budgets, priced at it less the harm, add up to `total`; and those budgets.

    Between rates at which somebody reaches a bound, budgets are straight lines in the rate: Newton's steps end on the
    right line, and a bracket keeps them from leaving it for ever.
    """
    clients = game.clients
    rate = float((clients.linear_cost + harm).mean()) if guess is None else guess
    below, above, width = -np.inf, np.inf, 1.0 + abs(rate)
    for _ in range(MOST_RATES):
        state = equilibrium_at(game, rate - harm, start if game.externality_strength > 0 else None)
        start, excess = state.budgets, float(state.budgets.sum()) - total
        if abs(excess) <= 1e-12 * max(1.0, total) or np.nextafter(below, np.inf) >= above:
            return rate, state.budgets
        below, above = (max(below, rate), above) if excess < 0 else (below, min(above, rate))
        slope = float(game.loss.solve(1 / (2 * clients.quadratic_cost), state.free).sum()) if state.free.any() else 0.0
        if slope > 0 and abs(excess / slope) <= 1e-13 * max(1.0, abs(rate)):  # what is left is rounding
            return rate, state.budgets
        aim = rate - excess / slope if slope > 0 else np.nan
        if not below < aim < above:
            if np.isfinite(below) and np.isfinite(above):
                aim = (below + above) / 2
            else:
                aim, width = rate - np.sign(excess) * width, 2 * width
        rate = float(aim)
        if width > 1e15:
            break
    raise NotConverged(f"no reward rate makes budgets add up to {total:.4g}; lower it.", harm, excess)


def _to_a_corner(
    leak: Leak, total: float, low: Array, high: Array, budgets: Array, most_tried: float
) -> tuple[Array, float, float]:
    leakage, marginal = leak(budgets)
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
    results = [least_leakage(smooth, total, low, high, [start], LEAKS_TRIED) for start in (agnostic, evenly)]
    leaks = [float(leak(result.budgets)) for result in results]
    best = int(np.argmin(leaks))
    return LeastLeak(leaks[best], total, float(high.max()), results[best].gap)
