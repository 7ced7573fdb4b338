"""The server's reward rate, by named leaders (docs/model.md, section 4); personal_prices.py has the one without a rate.

Where every client can be kept strictly inside its bounds, the rate is the root of one equation a round (or one that
leaves clients at floors above 0, if that is cheaper). Where not, the rate is the one at which the server's cost is
lowest, with the noise of those who remain weighed as aggregation over them alone really weighs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from mppfl.arrays import Array, IntArray, require_number
from mppfl.errors import BadInput, NoEquilibrium, NotConverged
from mppfl.game.equilibrium import Response, equilibrium_at, equilibrium_response
from mppfl.game.model import Game, amplification, cost_without_absent, server_cost
from mppfl.game.path import (
    EXACT_BELOW,
    NUM_SAMPLES,
    Path,
    Samples,
    Segment,
    join_samples,
    response_path,
    sample_response,
    waking_rates,
)
from mppfl.game.plan import AlongLine, PerRound, Stored
from mppfl.game.rates import RateCondition, crossing_rate, rates_by_condition, rising_rates_each

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
    at_floors: bool = True,
) -> Rates:
    """The leader's reward rate for every round in `rounds`, and the budgets it leads to.

    weights    personal prices per unit of rate, one each unless given (Pigouvian prices)
    at_floors  whether rates that leave clients at budgets above 0 are compared with those inside the bounds; never by
               mean_field, which follows its condition wherever it can and not its cost
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
        if rates is not None and at_floors and leader != "mean_field" and has_floors(game):
            return cheaper_at_floors(game, line, leader, rounds, payment_limit, rates)
        if rates is not None:
            return Rates(rates, AlongLine(line.slope, line.offset), False)
    return rates_at_bounds(game, line.weights, leader, rounds, payment_limit)


def has_floors(game: Game) -> bool:
    """Whether somebody who responds to the rate takes part at its lowest budget too, and so can rest there unlost."""
    clients = game.clients
    return bool(
        clients.budget_min.any() and ((clients.budget_min > 0) & (clients.budget_max > clients.budget_min)).any()
    )


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
        best = np.full(len(rounds), np.nan) if best is None else best
        rates = _limited_rates(game, line, rounds, float(payment_limit or 0.0), best)
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


def interior_rates_each(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None = None
) -> Array:
    """`interior_rates_of` each round alone, NaN where that is None; compiled where everybody gains interest."""
    none = np.full(len(rounds), np.nan)
    if not (line.has_interior and line.free.any()):
        return none
    if leader == "budget_limited":
        if float(line.weights @ line.slope) <= 0:
            return none
        best = interior_rates_each(game, line, "anticipating", rounds)
        rates = _limited_rates(game, line, rounds, float(payment_limit or 0.0), best)
    elif leader == "noise_aware":
        rates = _noise_aware_rates(game, line, rounds)
        edge = 1e-9 * max(1.0, line.lowest_rate)
        rates[(rates < line.lowest_rate + edge) | (rates > line.highest_rate - edge)] = np.nan
    elif line.everybody_gains_interest:
        rates = rising_rates_each(rate_condition(game, line, leader), rounds)
    else:
        alone = [interior_rates_of(game, line, leader, rounds[k : k + 1]) for k in range(len(rounds))]
        rates = np.array([np.nan if found is None else found[0] for found in alone])
    return np.where((rates > line.lowest_rate) & (rates < line.highest_rate), rates, np.nan)


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


def _limited_rates(game: Game, line: Response, rounds: IntArray, payment_limit: float, best: Array) -> Array:
    """The best rate or the one that spends the limit, whichever is lower; NaN where the best is not known to be higher.

    Without a best rate inside (NaN) the limit is spent only where that still pays: where everybody gains interest, cost
    is convex, and falling at that rate it falls up to there. Otherwise the best rate may lie below the interior.
    """
    spending = spending_rate(line, payment_limit)
    lower = np.minimum(spending, best)
    if not (np.isnan(best).any() and line.everybody_gains_interest and spending > line.lowest_rate):
        return np.asarray(lower)
    condition = rate_condition(game, line, "anticipating")
    falls = np.array([condition.value(spending, int(t))[0] < 0 for t in rounds])
    return np.where(np.isnan(best) & falls, spending, lower)


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
    felt = np.array([_sums_of_line(sizes, line.slope, line.offset)])
    paid = np.array([_sums_of_line(line.weights, line.slope, line.offset)])
    ends = np.minimum([[line.lowest_rate, line.highest_rate]], 1e12)
    from mppfl.game import leader_kernels as kernels

    rates, _, _ = kernels.noise_aware_on_path(strength / rounds, felt, paid, ends)
    return np.asarray(rates)


def _sums_of_line(weights: Array, slope: Array, offset: Array) -> tuple[float, float]:
    return float(weights @ slope), float(weights @ offset)


def bisect_noise_aware(strength: Array, felt: Any, paid: Any, low: Any, high: Any) -> Array:
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


def cheaper_at_floors(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None, inside: Array
) -> Rates:
    """The rates `inside` the bounds, or where that is cheaper others at which nobody is lost but some are at a bound.

    Where budgets cannot fall below a floor above 0, a rate that leaves clients there loses nobody, and may cost far
    less than any that keeps everybody strictly inside.
    """
    within = Rates(inside, AlongLine(line.slope, line.offset), False)
    try:
        other = rates_at_bounds(game, line.weights, leader, rounds, payment_limit, keep_everybody=True)
    except (NoEquilibrium, NotConverged):  # no such rate was found
        return within
    cost = noise_aware_cost if leader == "noise_aware" else server_cost
    able, better = game.clients.budget_max > 0, np.zeros(len(rounds), dtype=bool)
    rows = []
    for k, (t, rate, elsewhere) in enumerate(zip(rounds, inside, other.reward_rates, strict=True)):
        mine, theirs = line.budgets(float(rate)), other.budgets.at(k, float(elsewhere))
        keeps = bool((theirs[able] > VANISHING * theirs.max()).all())
        least = cost(game, int(t), rate * line.weights, mine) * (1 - 1e-9)
        better[k] = keeps and cost(game, int(t), elsewhere * line.weights, theirs) < least
        rows.append(theirs if better[k] else mine)
    if not better.any():
        return within
    return Rates(np.where(better, other.reward_rates, inside), Stored(np.array(rows), np.arange(len(rounds))), True)


def rates_at_bounds(
    game: Game,
    weights: Array,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    *,
    keep_everybody: bool = False,
) -> Rates:
    """The best rate of every round with clients at their bounds where need be, and the budgets it leads to.

    keep_everybody  only rates at which all take part who may; with their noise as it stands, since nobody is missed
    """
    if game.num_clients <= EXACT_BELOW:
        path = response_path(game, weights)
        if keep_everybody:
            path = path.only(np.all(path.taking_part[:, game.clients.budget_max > 0], axis=1))
        if len(path) == 0:
            raise NoEquilibrium("no reward rate keeps everybody who may take part.")
        rates, at = best_on_path(game, weights, path, leader, rounds, payment_limit, amplified=not keep_everybody)
        rows = np.array([path[k].budgets(float(rate)) for rate, k in zip(rates, at, strict=True)])
        return Rates(rates, Stored(rows, np.arange(len(rates))), True)
    rates = _best_of_samples(game, weights, leader, rounds, payment_limit, keep_everybody)
    distinct, row_of_round = np.unique(rates, return_inverse=True)
    found: list[Array] = []
    for rate in distinct:
        found.append(equilibrium_at(game, rate * weights, found[-1] if found else None).budgets)
    return Rates(rates, Stored(np.array(found), row_of_round), True)


def best_on_path(
    game: Game,
    weights: Array,
    path: Path,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None = None,
    *,
    amplified: bool = True,
) -> tuple[Array, IntArray]:
    """The rate of every round at which the server's cost, noise weighed over those who take part, is lowest, and its
    segment; compiled twins of `best_of_round` and `noise_aware_of_rounds`. Not `amplified`, noise counts as it stands.
    """
    from mppfl.game import leader_kernels as kernels

    clients = game.clients
    if leader == "noise_aware":
        sizes, strength = noise_aware_sums(game)
        felt = np.column_stack([path.slope @ sizes, path.offset @ sizes])
        paid = np.column_stack([path.slope @ weights, path.offset @ weights])
        rates, at, _ = kernels.noise_aware_on_path(strength / rounds, felt, paid, np.minimum(path.ends, 1e12))
        return rates, at
    sizes = clients.data_size
    with np.errstate(divide="ignore"):
        grown = (float(sizes.sum()) / (path.taking_part @ sizes)) ** 2 if amplified else np.ones(len(path))
    codes = {
        "mean_field": kernels.MEAN_FIELD,
        "anticipating": kernels.ANTICIPATING,
        "budget_limited": kernels.BUDGET_LIMITED,
    }
    rates, at = kernels.best_on_path(
        path.ends,
        path.slope,
        path.offset,
        path.taking_part,
        grown,
        weights,
        weights / (2 * clients.quadratic_cost),
        clients.noise_harm,
        game.accuracy_weight,
        np.asarray(rounds, dtype=np.int64),
        codes[leader],
        float(payment_limit or 0.0),
    )
    if (at < 0).any():
        raise _nobody_moves(int(rounds[np.argmax(at < 0)]), payment_limit)
    return rates, at


def _nobody_moves(round_index: int, payment_limit: float | None) -> NoEquilibrium:
    return NoEquilibrium(
        f"no reward rate of round {round_index} moves any client to take part"
        + (f" within payment_limit={payment_limit:g}. Raise it." if payment_limit is not None else ".")
    )


def noise_aware_of_rounds(game: Game, weights: Array, path: Path, rounds: IntArray) -> list[tuple[float, int]]:
    """The cheapest rate of every round and its segment for the noise-aware leader, by bisection; the plain way."""
    sizes, strength = noise_aware_sums(game)
    felt = np.array([_sums_of_line(sizes, s.slope, s.offset) for s in path])[:, :, None]
    paid = np.array([_sums_of_line(weights, s.slope, s.offset) for s in path])[:, :, None]
    low, high = np.array([[s.low, min(s.high, 1e12)] for s in path]).T[:, :, None]
    value = (strength / rounds)[None, :]
    rates = bisect_noise_aware(value, (felt[:, 0], felt[:, 1]), (paid[:, 0], paid[:, 1]), low, high)
    x = felt[:, 0] * rates - felt[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        costs = np.where(x > 0, value / x, np.inf) + rates * (paid[:, 0] * rates - paid[:, 1])  # [segments, rounds]
    best = np.argmin(costs, axis=0)
    return [(float(rates[k, t]), int(k)) for t, k in enumerate(best)]


def best_of_round(
    game: Game,
    weights: Array,
    path: Path,
    leader: UniformLeader,
    round_index: int,
    payment_limit: float | None = None,
) -> tuple[float, int]:
    """The cheapest candidate of all segments and its segment, for the other leaders; the plain way."""
    found = []
    for k, segment in enumerate(path):
        if not segment.taking_part.any():
            continue
        for rate in candidates_of_segment(game, weights, segment, leader, round_index, payment_limit):
            budgets = segment.budgets(rate)
            if (budgets > VANISHING * budgets.max()).sum() == segment.taking_part.sum():  # else somebody drops out here
                found.append((cost_without_absent(game, round_index, rate * weights, budgets), rate, k))
    if not found:
        raise _nobody_moves(round_index, payment_limit)
    _, rate, k = min(found)
    return rate, k


def candidates_of_segment(
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
    game: Game,
    weights: Array,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    keep_everybody: bool = False,
) -> Array:
    """Large games: exact equilibria at sampled rates, refined twice around the rates that some round would choose."""
    low, high = waking_rates(game, weights)
    floor = max(low, 1e-3 * high, 1e-6)
    first = np.geomspace(floor, 8 * max(high, floor), NUM_SAMPLES)
    if game.clients.budget_min.any():  # some give their lowest budget for nothing
        first = np.concatenate([[0.0], first])
    samples = sample_response(game, weights, first)
    choice = _choose_samples(game, samples, leader, rounds, payment_limit, keep_everybody)
    for _ in range(2):
        wanted = np.unique(choice)
        near = np.unique(np.clip(np.concatenate([wanted - 1, wanted]), 0, len(samples.rates) - 2))
        middles = np.sqrt(samples.rates[near] * samples.rates[near + 1])
        samples = join_samples(samples, sample_response(game, weights, middles))
        choice = _choose_samples(game, samples, leader, rounds, payment_limit, keep_everybody)
    return np.asarray(samples.rates[choice])


def _choose_samples(
    game: Game,
    samples: Samples,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    keep_everybody: bool,
) -> IntArray:
    weight, fullest = game.accuracy_weight, amplification(game, game.clients.budget_max > 0)
    paid = (1 - weight) * samples.rates * samples.paid  # [samples]
    with np.errstate(divide="ignore", invalid="ignore"):
        if leader == "noise_aware":
            noise = (1 - weight) * noise_aware_sums(game)[1] / samples.strength
        else:
            noise = weight * (1.0 if keep_everybody else samples.amplification) * samples.noise
        cost = noise[None, :] / rounds[:, None] + paid[None, :]
    possible = samples.strength > 0
    if keep_everybody:
        possible &= samples.amplification <= fullest * (1 + 1e-12)
    if leader == "budget_limited":
        possible &= samples.rates * samples.paid <= float(payment_limit or 0.0)
    if not possible.any():
        raise NoEquilibrium("no sampled reward rate moves any client to take part. Raise payment_limit or lower costs.")
    cost[:, ~possible] = np.inf
    return np.asarray(np.argmin(cost, axis=1))


# ---- prices of their own ----------------------------------------------------------------------------------------


def pigouvian_weights(game: Game) -> Array:
    """c = B⁻ᵀ1 (model, eq. 20): paid r·c_i, everybody does what all together would want done."""
    return game.loss.T.solve(np.ones(game.num_clients))
