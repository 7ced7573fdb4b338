"""Rates that leave clients at a bound of theirs but lose nobody, where everybody could also be kept strictly inside.

A client who rests at a floor above 0, or at a ceiling, still takes part. Such a rate may cost far less than any inside:
floors are given for nothing, and where some can share no more, others who were crowded out share again. How high a rate
can be worth trying follows from the least that any budgets at all would cost at it.
"""

from __future__ import annotations

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.errors import NoEquilibrium, NotConverged
from mppfl.game.bounded_leaders import VANISHING, Rates, rates_at_bounds
from mppfl.game.equilibrium import Response
from mppfl.game.interior_leaders import UniformLeader, noise_aware_cost, noise_aware_sums
from mppfl.game.model import Game, amplification, cost_without_absent
from mppfl.game.path import EXACT_BELOW
from mppfl.game.plan import AlongLine, Stored

NEGLIGIBLE = 1e-9  # of a cost: less is no saving
DOUBLINGS = 40


def has_floors(game: Game) -> bool:
    """Whether somebody who responds to the rate takes part at its lowest budget too."""
    clients = game.clients
    return bool(((clients.budget_min > 0) & (clients.budget_max > clients.budget_min)).any())


def has_ceilings(game: Game) -> bool:
    """Whether somebody who responds to the rate has a highest budget."""
    clients = game.clients
    return bool((np.isfinite(clients.budget_max) & (clients.budget_max > clients.budget_min)).any())


def cheaper_at_bounds(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, payment_limit: float | None, inside: Array
) -> Rates:
    """The rates `inside` the bounds, or others that are cheaper, with some at a bound but nobody lost.

    noise_aware, whose cost knows no jump where somebody leaves, may also lose clients; in games too large for their
    path to be followed only where somebody can rest at a bound.
    """
    within = Rates(inside, AlongLine(line.slope, line.offset), False)
    loses = leader == "noise_aware"
    if not (has_floors(game) or has_ceilings(game) or (loses and game.num_clients <= EXACT_BELOW)):
        return within
    cost = noise_aware_cost if leader == "noise_aware" else cost_without_absent
    costs = np.array(
        [cost(game, int(t), r * line.weights, line.budgets(float(r))) for t, r in zip(rounds, inside, strict=True)]
    )
    between = rates_worth_trying(game, line, leader, rounds, costs)
    if between is None:
        return within
    try:
        other = rates_at_bounds(
            game, line.weights, leader, rounds, payment_limit, keep_everybody=not loses, between=between
        )
    except (NoEquilibrium, NotConverged):  # no such rate was found
        return within
    able, better = game.clients.budget_max > 0, np.zeros(len(rounds), dtype=bool)
    rows = []
    for k, (t, rate, elsewhere) in enumerate(zip(rounds, inside, other.reward_rates, strict=True)):
        theirs = other.budgets.at(k, float(elsewhere))
        fair = loses or bool((theirs[able] > VANISHING * theirs.max()).all())
        least = costs[k] * (1 - NEGLIGIBLE)
        better[k] = fair and cost(game, int(t), elsewhere * line.weights, theirs) < least
        rows.append(theirs if better[k] else line.budgets(float(rate)))
    if not better.any():
        return within
    return Rates(np.where(better, other.reward_rates, inside), Stored(np.array(rows), np.arange(len(rounds))), True)


def rates_worth_trying(
    game: Game, line: Response, leader: UniformLeader, rounds: IntArray, costs: Array
) -> tuple[float, float] | None:
    """Between which rates clients may rest at bounds, all taking part, for less than `costs`; None if nowhere.

    Below the interior somebody is lost unless floors are above 0, which only noise_aware may do.
    """
    low = 0.0 if has_floors(game) or leader == "noise_aware" else line.highest_rate
    if not np.isfinite(low):
        return None
    if (line.weights < 0).any():  # who is charged may make any rate pay
        return low, np.inf
    enough = costs * (1 - NEGLIGIBLE)
    tried = max(line.highest_rate, 0.0) if np.isfinite(line.highest_rate) else max(line.lowest_rate, 1.0)
    least = least_costs(game, line.weights, leader, rounds, tried)
    if low > 0 and not (least < enough).any():
        return None
    for _ in range(DOUBLINGS):
        if not (least < enough).any():
            return low, tried
        tried = 2 * max(tried, 1e-3)
        least = least_costs(game, line.weights, leader, rounds, tried)
    return low, np.inf


def least_costs(game: Game, weights: Array, leader: UniformLeader, rounds: IntArray, rate: float) -> Array:
    """What the server pays at least at this rate or a higher one, whatever budgets within the bounds clients choose.

    Of each client, noise against pay: k/ρ + pρ is least at √(k/p). Under noise-aware aggregation the same of all
    together, paid as whoever brings most for its pay.
    """
    clients, tau = game.clients, game.accuracy_weight
    able = clients.budget_max > 0
    prices = (1 - tau) * rate * weights[able]
    with np.errstate(divide="ignore", invalid="ignore"):
        if leader == "noise_aware":
            sizes, strength = noise_aware_sums(game)
            harm, price = (1 - tau) * strength / rounds, float((prices / sizes[able]).min())
            felt = np.fmin(np.sqrt(harm / price), float(sizes[able] @ clients.budget_max[able]))
            return np.nan_to_num(harm / felt) + np.nan_to_num(price * felt)
        found, grown = np.empty(len(rounds)), amplification(game, able)
        for k, t in enumerate(rounds):
            harm = tau * grown * clients.noise_harm[able] / t
            budgets = np.clip(np.sqrt(harm / prices), clients.budget_min[able], clients.budget_max[able])
            noise, pay = np.nan_to_num(harm / budgets), np.nan_to_num(prices * budgets)  # 0/0 and 0·∞ count as 0
            found[k] = float((noise + pay).sum())
    return found
