"""The reward rate of a leader that keeps every client strictly inside its bounds: the root of one equation a round."""

from __future__ import annotations

from typing import Literal

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.game.equilibrium import Response
from mppfl.game.model import Game, amplification
from mppfl.game.rates import RateCondition, rates_by_condition, rising_rates_each

UniformLeader = Literal["mean_field", "anticipating", "noise_aware", "budget_limited"]


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


def rate_condition(game: Game, line: Response, leader: Literal["mean_field", "anticipating"]) -> RateCondition:
    """The first-order condition of the leader on a straight response; with somebody at 0, every ε_i is amplified.

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
        strength=amplification(game, part) * game.accuracy_weight / (1 - game.accuracy_weight),
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
    felt = np.array([sums_of_line(sizes, line.slope, line.offset)])
    paid = np.array([sums_of_line(line.weights, line.slope, line.offset)])
    ends = np.minimum([[line.lowest_rate, line.highest_rate]], 1e12)
    from mppfl.game import leader_kernels as kernels

    rates, _, _ = kernels.noise_aware_on_path(strength / rounds, felt, paid, ends)
    return np.asarray(rates)


def sums_of_line(weights: Array, slope: Array, offset: Array) -> tuple[float, float]:
    return float(weights @ slope), float(weights @ offset)
