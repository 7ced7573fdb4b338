"""The reward rate of a leader with clients at their bounds: the cheapest on the path of equilibria, or of its samples.

The noise of those who remain is weighed as aggregation over them alone really weighs it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.errors import NoEquilibrium, NotConverged
from mppfl.game.equilibrium import Response, equilibrium_at
from mppfl.game.interior_leaders import (
    UniformLeader,
    noise_aware_sums,
)
from mppfl.game.model import Game, amplification
from mppfl.game.path import (
    EXACT_BELOW,
    NUM_SAMPLES,
    Path,
    Samples,
    join_samples,
    response_path,
    sample_response,
    waking_rates,
)
from mppfl.game.plan import PerRound, Stored

VANISHING = 1e-9  # of the largest budget: rounding, not taking part


@dataclass(frozen=True, eq=False)
class Rates:
    """The leader's choice: a reward rate per round, the budgets it leads to, and whether any bound is reached."""

    reward_rates: Array
    budgets: PerRound
    reaches_bounds: bool


def rates_at_bounds(
    game: Game,
    weights: Array,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    *,
    keep_everybody: bool = False,
    between: tuple[float, float] = (0.0, np.inf),
) -> Rates:
    """The best rate of every round with clients at their bounds where need be, and the budgets it leads to.

    keep_everybody  only rates at which all take part who may
    between         where the best rate is known to be, if anywhere; others may be looked at too
    """
    if game.num_clients <= EXACT_BELOW:
        path = response_path(game, weights, between[1])
        if keep_everybody:
            path = path.only(np.all(path.taking_part[:, game.clients.budget_max > 0], axis=1))
        if len(path) == 0:
            raise NoEquilibrium("no reward rate keeps everybody who may take part.")
        rates, at = best_on_path(game, weights, path, leader, rounds, payment_limit, to_the_letter=keep_everybody)
        rows = np.array([path[k].budgets(float(rate)) for rate, k in zip(rates, at, strict=True)])
        rows = np.minimum(rows, game.clients.budget_max)  # a line may pass the bound it ends at by rounding
        return Rates(rates, Stored(rows, np.arange(len(rates))), True)
    rates = _best_of_samples(game, weights, leader, rounds, payment_limit, keep_everybody, between)
    distinct, row_of_round = np.unique(rates, return_inverse=True)
    found: list[Array] = []
    for rate in distinct:
        found.append(equilibrium_at(game, rate * weights, found[-1] if found else None).budgets)
    return Rates(rates, Stored(np.array(found), row_of_round), True)


def rates_where_no_root_is_inside(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None
) -> Rates:
    """The best rates of rounds in which the leader's condition has no root strictly inside the bounds.

    Where some rates keep everybody inside, the leader still loses nobody if it need not: it looks at rates at which all
    take part, some at a bound. Not so noise_aware, whose cost knows no jump where somebody leaves. Each round is looked
    at alone: what it gets does not depend on the others.
    """
    if leader == "noise_aware" or not (line.has_interior and line.free.any()):
        return rates_at_bounds(game, line.weights, leader, rounds, payment_limit)
    try:
        return rates_at_bounds(game, line.weights, leader, rounds, payment_limit, keep_everybody=True)
    except (NoEquilibrium, NotConverged):  # no such rate was found, at least in one round
        if len(rounds) == 1:
            return rates_at_bounds(game, line.weights, leader, rounds, payment_limit)
    alone = [
        rates_where_no_root_is_inside(game, line, leader, rounds[k : k + 1], payment_limit) for k in range(len(rounds))
    ]
    rates = np.array([each.reward_rates[0] for each in alone])
    rows = np.array([each.budgets.at(0, float(each.reward_rates[0])) for each in alone])
    return Rates(rates, Stored(rows, np.arange(len(rounds))), True)


def best_on_path(
    game: Game,
    weights: Array,
    path: Path,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None = None,
    *,
    to_the_letter: bool = False,
) -> tuple[Array, IntArray]:
    """The rate of every round at which the server's cost, noise weighed over those who take part, is lowest, and its
    segment; compiled twins of `best_of_round` and `noise_aware_of_rounds`.

    to_the_letter  mean_field takes a rate at which its own condition (16) holds wherever there is one, and not its cost
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
        grown = (float(sizes.sum()) / (path.taking_part @ sizes)) ** 2
    codes = {
        "mean_field": kernels.MEAN_FIELD,
        "anticipating": kernels.ANTICIPATING,
        "budget_limited": kernels.BUDGET_LIMITED,
    }

    def best(code: int) -> tuple[Array, IntArray]:
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
            code,
            float(payment_limit or 0.0),
        )
        return rates, at

    rates, at = best(codes[leader])
    if leader == "mean_field" and to_the_letter:
        letter, where = best(kernels.CONDITION_ALONE)
        rates, at = np.where(where < 0, rates, letter), np.where(where < 0, at, where)
    if (at < 0).any():
        raise _nobody_moves(int(rounds[np.argmax(at < 0)]), payment_limit)
    return rates, at


def _nobody_moves(round_index: int, payment_limit: float | None) -> NoEquilibrium:
    return NoEquilibrium(
        f"no reward rate of round {round_index} moves any client to take part"
        + (f" within payment_limit={payment_limit:g}. Raise it." if payment_limit is not None else ".")
    )


def _best_of_samples(
    game: Game,
    weights: Array,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    keep_everybody: bool,
    between: tuple[float, float],
) -> Array:
    """Large games: exact equilibria at sampled rates, refined twice around the rates that some round would choose."""
    low, high = waking_rates(game, weights)
    floor = max(low, 1e-3 * high, 1e-6, between[0])
    first = np.geomspace(floor, min(8 * max(high, floor), max(between[1], 2 * floor)), NUM_SAMPLES)
    if between[0] == 0 and game.clients.budget_min.any():  # some give their lowest budget for nothing
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
            noise = weight * samples.amplification * samples.noise
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
