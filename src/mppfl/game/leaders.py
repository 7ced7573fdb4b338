"""The server's reward rate, by six named leaders (docs/model.md, section 4).

Where every client can be kept strictly inside its bounds, the rate is the root of one equation a round. Where not, the
rate is the one at which the server's cost is lowest, with the noise of those who remain weighed as aggregation over
them alone really weighs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from scipy.optimize import minimize

from mppfl.arrays import Array, IntArray, require_number
from mppfl.errors import BadInput, NoEquilibrium
from mppfl.game.equilibrium import Response, equilibrium_at, equilibrium_response
from mppfl.game.model import Game, amplification, cost_without_absent
from mppfl.game.path import (
    EXACT_BELOW,
    NUM_SAMPLES,
    Samples,
    Segment,
    join_samples,
    response_path,
    sample_response,
    waking_rates,
)
from mppfl.game.plan import AlongLine, PerRound, Stored
from mppfl.game.rates import RateCondition, crossing_rate, rates_by_condition

UniformLeader = Literal["mean_field", "anticipating", "noise_aware", "budget_limited"]
VANISHING = 1e-9  # of the largest budget: rounding, not taking part


@dataclass(frozen=True, eq=False)
class Rates:
    """The leader's choice: a reward rate per round, the budgets it leads to, and whether any bound is reached."""

    reward_rates: Array
    budgets: PerRound
    reaches_bounds: bool


def choose_rates(
    game: Game,
    leader: UniformLeader,
    rounds: IntArray,
    *,
    payment_limit: float | None = None,
    weights: Array | None = None,
) -> Rates:
    """The leader's reward rate for every round in `rounds`, and the budgets it leads to.

    `weights` are personal prices per unit of rate, one each unless given (Pigouvian prices).
    """
    if leader not in get_args(UniformLeader):
        raise BadInput(f"leader={leader!r} must be one of {', '.join(get_args(UniformLeader))}.")
    if leader == "budget_limited":
        payment_limit = require_number(
            payment_limit if payment_limit is not None else np.nan, "payment_limit", 0, np.inf
        )
    require_somebody(game)
    line = equilibrium_response(game, weights)
    if line.has_interior and line.free.any():
        rates = interior_rates_of(game, line, leader, rounds, payment_limit)
        if rates is not None:
            return Rates(rates, AlongLine(line.slope, line.offset), False)
    return _rates_at_bounds(game, line.weights, leader, rounds, payment_limit)


def require_somebody(game: Game) -> None:
    """Raises NoEquilibrium where the bounds let nobody take part."""
    if (game.clients.budget_max <= 0).all():
        raise NoEquilibrium("budget_max is 0 for everybody, so nobody can take part. Raise it for those who may share.")


# ---- inside the bounds ------------------------------------------------------------------------------------------


def interior_rates_of(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None = None
) -> Array | None:
    """Rates of all rounds if each keeps every free client strictly inside its bounds, else None."""
    if leader == "budget_limited":
        if float(line.weights @ line.slope) <= 0:
            return None
        best = interior_rates_of(game, line, "anticipating", rounds)
        rates = np.full(len(rounds), spending_rate(line, float(payment_limit or 0.0)))
        rates = rates if best is None else np.minimum(rates, best)
    elif leader == "noise_aware":
        rates = _noise_aware_rates(game, line, rounds)
        edge = 1e-9 * max(1.0, line.lowest_rate)
        if (rates < line.lowest_rate + edge).any() or (rates > line.highest_rate - edge).any():
            return None  # the search ran into an end: the best rate lies where somebody is at a bound
    else:
        found = rates_by_condition(rate_condition(game, line, leader), line.everybody_gains_interest, rounds)
        if found is None:
            return None
        rates = found
    inside = (rates > line.lowest_rate) & (rates < line.highest_rate)
    return rates if inside.all() else None


def rate_condition(
    game: Game, line: Response, leader: Literal["mean_field", "anticipating"], amplified: float = 1.0
) -> RateCondition:
    """The first-order condition of the leader on a straight response; `amplified` multiplies every ε_i.

    mean_field (eq. 16):    Σ τε_i/(2t a_i ρ_i²) = (1−τ) Σ(ρ_i + r/2a_i): external risk is taken as it stands
    anticipating (eq. 17):  Σ τε_i u_i/(t ρ_i²) = (1−τ)(2r Σw_iu_i − Σw_iv_i): the server knows that it moves
    """
    clients = game.clients
    part = line.free | (line.offset < 0)  # a client pinned at 0 is left out of the sum
    alone = np.where(line.free, line.weights / (2 * clients.quadratic_cost), 0.0)  # own answer, others unmoved
    paid_slope, paid_offset = float(line.weights @ line.slope), float(line.weights @ line.offset)
    if leader == "mean_field":
        pull, steepness = clients.noise_harm * alone, paid_slope + float(line.weights @ alone)
    else:
        pull, steepness = clients.noise_harm * line.slope, 2 * paid_slope
    return RateCondition(
        steepness=steepness,
        constant=paid_offset,
        strength=amplified * game.accuracy_weight / (1 - game.accuracy_weight),
        pull=np.ascontiguousarray(pull[part]),
        slope=np.ascontiguousarray(line.slope[part]),
        offset=np.ascontiguousarray(line.offset[part]),
        lowest=line.lowest_rate,
        highest=line.highest_rate,
    )


def spending_rate(line: Response, payment_limit: float) -> float:
    """r = (V + √(V² + 4U·limit))/(2U): the rate whose payments are the limit exactly (model, eq. 19); needs U > 0."""
    slope, offset = float(line.weights @ line.slope), float(line.weights @ line.offset)
    return (offset + float(np.sqrt(offset**2 + 4 * slope * payment_limit))) / (2 * slope)


def noise_aware_sums(game: Game) -> tuple[Array, float]:
    """(n_i/n̄)² of every client, and τ N² ε̄/(1−τ): what the noise-aware leader weighs (model, eq. 18)."""
    clients = game.clients
    sizes = (clients.data_size / clients.data_size.mean()) ** 2
    weight = game.accuracy_weight / (1 - game.accuracy_weight)
    return sizes, weight * game.num_clients**2 * float(clients.noise_harm.mean())


def noise_aware_cost(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """τN²ε̄/(t·X) + (1−τ)Σp_iρ_i with X = Σ(n_i/n̄)²ρ_i (model, eq. 18): the cost under noise-aware aggregation."""
    sizes, strength = noise_aware_sums(game)
    felt = float(sizes @ budgets)
    if felt <= 0:
        return np.inf
    return (1 - game.accuracy_weight) * (strength / (round_index * felt) + float(np.sum(prices * budgets)))


def _noise_aware_rates(game: Game, line: Response, rounds: IntArray) -> Array:
    """Minimum of κ/(t·X(r)) + r·Y(r) with X and Y straight in r: its derivative has one root where both rise."""
    sizes, strength = noise_aware_sums(game)
    felt = _sums_of_line(sizes, line.slope, line.offset)
    paid = _sums_of_line(line.weights, line.slope, line.offset)
    return _bisect_noise_aware(strength / rounds, felt, paid, line.lowest_rate, min(line.highest_rate, 1e12))


def _sums_of_line(weights: Array, slope: Array, offset: Array) -> tuple[float, float]:
    return float(weights @ slope), float(weights @ offset)


def _bisect_noise_aware(strength: Array, felt: Any, paid: Any, low: Any, high: Any) -> Array:
    """Where the derivative of strength/X + r·Y turns positive, X = felt₀r − felt₁, Y = paid₀r − paid₁; broadcasts."""
    low, high = np.broadcast_arrays(low, high, strength)[:2]
    for _ in range(100):
        middle = 0.5 * (low + high)
        x = felt[0] * middle - felt[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            rises = (2 * paid[0] * middle - paid[1] - strength * felt[0] / x**2 > 0) & (x > 0)
        high, low = np.where(rises, middle, high), np.where(rises, low, middle)
    return np.asarray(0.5 * (low + high))


# ---- at the bounds ----------------------------------------------------------------------------------------------


def _rates_at_bounds(
    game: Game, weights: Array, leader: UniformLeader, rounds: IntArray, payment_limit: float | None
) -> Rates:
    if game.num_clients <= EXACT_BELOW:
        segments = response_path(game, weights)
        if leader == "noise_aware":
            chosen = _noise_aware_on_path(game, weights, segments, rounds)
        else:
            chosen = [_best_on_path(game, weights, segments, leader, int(t), payment_limit) for t in rounds]
        rates = np.array([rate for rate, _ in chosen])
        rows = np.array([segments[k].budgets(rate) for rate, k in chosen])
        return Rates(rates, Stored(rows, np.arange(len(rates))), True)
    rates = _best_of_samples(game, weights, leader, rounds, payment_limit)
    distinct, row_of_round = np.unique(rates, return_inverse=True)
    found: list[Array] = []
    for rate in distinct:
        found.append(equilibrium_at(game, rate * weights, found[-1] if found else None).budgets)
    return Rates(rates, Stored(np.array(found), row_of_round), True)


def _noise_aware_on_path(
    game: Game, weights: Array, segments: list[Segment], rounds: IntArray
) -> list[tuple[float, int]]:
    """The cheapest rate of every round and its segment; all segments and rounds at once."""
    sizes, strength = noise_aware_sums(game)
    felt = np.array([_sums_of_line(sizes, s.slope, s.offset) for s in segments])[:, :, None]
    paid = np.array([_sums_of_line(weights, s.slope, s.offset) for s in segments])[:, :, None]
    low, high = np.array([[s.low, min(s.high, 1e12)] for s in segments]).T[:, :, None]
    value = (strength / rounds)[None, :]
    rates = _bisect_noise_aware(value, (felt[:, 0], felt[:, 1]), (paid[:, 0], paid[:, 1]), low, high)
    x = felt[:, 0] * rates - felt[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        costs = np.where(x > 0, value / x, np.inf) + rates * (paid[:, 0] * rates - paid[:, 1])  # [segments, rounds]
    best = np.argmin(costs, axis=0)
    return [(float(rates[k, t]), int(k)) for t, k in enumerate(best)]


def _best_on_path(
    game: Game,
    weights: Array,
    segments: list[Segment],
    leader: UniformLeader,
    round_index: int,
    payment_limit: float | None,
) -> tuple[float, int]:
    """The rate at which the server's cost, noise weighed over those who take part, is lowest; and its segment."""
    candidates = []
    for k, segment in enumerate(segments):
        if not segment.taking_part.any():
            continue
        for rate in _candidates(game, weights, segment, leader, round_index, payment_limit):
            budgets = segment.budgets(rate)
            if (budgets > VANISHING * budgets.max()).sum() == segment.taking_part.sum():  # else somebody drops out here
                candidates.append((cost_without_absent(game, round_index, rate * weights, budgets), rate, k))
    if not candidates:
        raise NoEquilibrium(
            f"no reward rate of round {round_index} moves any client to take part"
            + (f" within payment_limit={payment_limit:g}. Raise it." if payment_limit is not None else ".")
        )
    _, rate, k = min(candidates)
    return rate, k


def _candidates(
    game: Game, weights: Array, segment: Segment, leader: UniformLeader, round_index: int, payment_limit: float | None
) -> list[float]:
    """Rates of one segment that may be best: where the leader's condition holds, and else the two ends."""
    line = Response(segment.slope, segment.offset, segment.low, segment.high, weights, segment.slope != 0)
    grown = amplification(game, segment.taking_part)
    ends = [segment.low, segment.high if np.isfinite(segment.high) else max(4 * segment.low, 1e3)]
    if leader == "budget_limited":
        limit = float(payment_limit or 0.0)
        best = crossing_rate(rate_condition(game, line, "anticipating", grown), round_index, points=60)
        rates = [*ends, *([best] if best is not None else [])]
        if float(weights @ line.slope) > 0:
            rates.append(spending_rate(line, limit))
        inside = [r for r in rates if segment.low <= r <= segment.high]
        return [r for r in inside if float(r * weights @ segment.budgets(r)) <= limit * (1 + 1e-12)]
    if leader == "mean_field":
        root = crossing_rate(rate_condition(game, line, "mean_field", grown), round_index, points=60)
        if root is not None:
            return [root]
    root = crossing_rate(rate_condition(game, line, "anticipating", grown), round_index, points=60)
    # No root: the leader would move on, but past this end a client enters or leaves with a vanishing budget.
    return ends if root is None else [root]


def _best_of_samples(
    game: Game, weights: Array, leader: UniformLeader, rounds: IntArray, payment_limit: float | None
) -> Array:
    """Large games: exact equilibria at sampled rates, refined twice around the rates that some round would choose."""
    low, high = waking_rates(game, weights)
    floor = max(low, 1e-3 * high, 1e-6)
    samples = sample_response(game, weights, np.geomspace(floor, 8 * max(high, floor), NUM_SAMPLES))
    choice = _choose_samples(game, samples, leader, rounds, payment_limit)
    for _ in range(2):
        wanted = np.unique(choice)
        near = np.unique(np.clip(np.concatenate([wanted - 1, wanted]), 0, len(samples.rates) - 2))
        middles = np.sqrt(samples.rates[near] * samples.rates[near + 1])
        samples = join_samples(samples, sample_response(game, weights, middles))
        choice = _choose_samples(game, samples, leader, rounds, payment_limit)
    return np.asarray(samples.rates[choice])


def _choose_samples(
    game: Game, samples: Samples, leader: UniformLeader, rounds: IntArray, payment_limit: float | None
) -> IntArray:
    weight = game.accuracy_weight
    paid = (1 - weight) * samples.rates * samples.paid  # [samples]
    with np.errstate(divide="ignore", invalid="ignore"):
        if leader == "noise_aware":
            noise = (1 - weight) * noise_aware_sums(game)[1] / samples.strength
        else:
            noise = weight * samples.amplification * samples.noise
        cost = noise[None, :] / rounds[:, None] + paid[None, :]
    possible = samples.strength > 0
    if leader == "budget_limited":
        possible &= samples.rates * samples.paid <= float(payment_limit or 0.0)
    if not possible.any():
        raise NoEquilibrium("no sampled reward rate moves any client to take part. Raise payment_limit or lower costs.")
    cost[:, ~possible] = np.inf
    return np.asarray(np.argmin(cost, axis=1))


# ---- personal prices --------------------------------------------------------------------------------------------


def pigouvian_weights(game: Game) -> Array:
    """c = B⁻ᵀ1 (model, eq. 20): paid r·c_i, everybody does what all together would want done."""
    return game.loss.T.solve(np.ones(game.num_clients))


def personalised_budgets(game: Game, round_index: int, start: Array | None = None) -> Array:
    """Budgets that minimise τ/t Σε/ρ + (1−τ) ρᵀ(2ABρ + b): the cheapest a server can do with one price each (eq. 21).

    A client gets the price 2a_i(Bρ)_i + b_i at which its budget is its best response. Newton's steps on small
    networks; where bounds are reached, or on large ones, a quasi-Newton search over log budgets.
    """
    require_somebody(game)
    clients = game.clients
    value = game.accuracy_weight / (1 - game.accuracy_weight) * clients.noise_harm / round_index
    alone = np.sqrt(value / (clients.linear_cost + clients.quadratic_cost))
    able = clients.budget_max > 0
    first = alone if start is None else np.where(start > 0, start, alone)
    if game.loss.is_dense:
        budgets = _personalised_by_newton(game, round_index, np.where(able, first, 0.0))
        if budgets is not None and ((budgets >= clients.budget_min) & (budgets <= clients.budget_max)).all():
            return budgets
    return _personalised_by_search(game, round_index, first)


def _personalised_slope(game: Game, round_index: int, budgets: Array) -> tuple[float, Array]:
    """The server's cost with personal prices, and its gradient."""
    clients, pay = game.clients, 1 - game.accuracy_weight
    harm = game.accuracy_weight * clients.noise_harm / round_index
    prices = 2 * clients.quadratic_cost * (game.loss @ budgets) + clients.linear_cost
    spill = game.loss.T @ (2 * clients.quadratic_cost * budgets)
    part = budgets > 0
    noise = np.divide(harm, budgets, out=np.zeros_like(budgets), where=part)
    steep = np.divide(harm, budgets**2, out=np.zeros_like(budgets), where=part)
    return float(noise.sum() + pay * (prices @ budgets)), pay * (prices + spill) - steep


def _personalised_by_newton(game: Game, round_index: int, start: Array) -> Array | None:
    """The minimum over those with a positive start, the others staying at 0; None if Newton's steps fail."""
    able = start > 0
    harm = game.accuracy_weight * game.clients.noise_harm[able] / round_index
    scaled = game.clients.quadratic_cost[:, None] * game.loss.dense
    curve = (2 * (1 - game.accuracy_weight) * (scaled + scaled.T))[np.ix_(able, able)]
    budgets = start.copy()
    for _ in range(60):
        cost, slope = _personalised_slope(game, round_index, budgets)
        if np.abs(slope * budgets).max() <= 1e-13 * cost:
            return budgets
        step = np.zeros_like(budgets)
        try:
            step[able] = -np.linalg.solve(curve + np.diag(2 * harm / budgets[able] ** 3), slope[able])
        except np.linalg.LinAlgError:
            return None
        length = min(1.0, 0.9 / max(1e-300, float((-step[able] / budgets[able]).max())))  # stay positive
        while length > 1e-6 and _personalised_slope(game, round_index, budgets + length * step)[0] > cost * (1 + 1e-15):
            length *= 0.5
        budgets = budgets + length * step
    return budgets if np.abs(slope * budgets).max() <= 1e-9 * cost else None


def _personalised_by_search(game: Game, round_index: int, start: Array) -> Array:
    clients = game.clients
    able = clients.budget_max > 0

    def cost_and_slope(logs: Array) -> tuple[float, Array]:
        budgets = np.zeros(game.num_clients)
        budgets[able] = np.exp(logs)
        cost, slope = _personalised_slope(game, round_index, budgets)
        return cost, (slope * budgets)[able]

    with np.errstate(divide="ignore"):
        low, high = np.log(clients.budget_min[able]), np.log(clients.budget_max[able])
        first = np.clip(np.log(start[able]), -60.0, 60.0)
    bounds = np.column_stack([np.maximum(low, -60.0), np.minimum(high, 60.0)])
    options = {"maxiter": 3000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-11, "maxcor": 20}
    found = minimize(cost_and_slope, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    budgets = np.zeros(game.num_clients)
    budgets[able] = np.exp(found.x)
    return budgets


def personalised_prices(game: Game, budgets: Array) -> Array:
    """p = 2ABρ + b: the price at which each client's budget is its best response; 0 for those who stay out (eq. 21)."""
    prices = 2 * game.clients.quadratic_cost * (game.loss @ budgets) + game.clients.linear_cost
    return np.where(budgets > 0, prices, 0.0)
