"""The server's reward rate, by named leaders (docs/model.md, section 4); personal_prices.py has the one without a rate.

Where every client can be kept strictly inside its bounds, the rate is the root of one equation a round
(interior_leaders.py), or one that leaves clients at bounds but loses nobody, if that is cheaper (resting_at_bounds.py).
Where not, it is the one at which the server's cost is lowest (bounded_leaders.py).
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from mppfl.arrays import Array, IntArray, require_number
from mppfl.errors import BadInput, NoEquilibrium
from mppfl.game.bounded_leaders import Rates, rates_where_no_root_is_inside
from mppfl.game.equilibrium import equilibrium_response
from mppfl.game.interior_leaders import UniformLeader, interior_rates_each, interior_rates_of
from mppfl.game.model import Game
from mppfl.game.natural_units import in_units, natural_units
from mppfl.game.plan import AlongLine, Stored
from mppfl.game.resting_at_bounds import cheaper_at_bounds


def choose_rates(
    game: Game,
    leader: UniformLeader,
    rounds: IntArray,
    *,
    payment_limit: float | None = None,
    weights: Array | None = None,
    may_leave: bool = False,
) -> Rates:
    """The leader's reward rate for every round in `rounds`, and the budgets it leads to.

    weights    personal prices per unit of rate, one each unless given (Pigouvian prices)
    may_leave  whether clients may stay out: bounds then hold only for those who stay, and where everybody can be kept
               strictly inside, no other rate is looked at. Nor does mean_field, which follows its condition wherever
               it can and not its cost
    """
    if leader not in get_args(UniformLeader):
        raise BadInput(f"leader={leader!r} must be one of {', '.join(get_args(UniformLeader))}.")
    if leader == "budget_limited":
        payment_limit = require_number(
            payment_limit if payment_limit is not None else np.nan, "payment_limit", 0, np.inf
        )
    require_somebody(game)
    units = natural_units(game)
    limit = None if payment_limit is None else payment_limit / units.money
    found = _rates_in_natural_units(in_units(game, units), leader, rounds, limit, weights, may_leave=may_leave)
    return Rates(found.reward_rates * units.rate, units.budgets_back(found.budgets), found.reaches_bounds)


def _rates_in_natural_units(
    game: Game,
    leader: UniformLeader,
    rounds: IntArray,
    payment_limit: float | None,
    weights: Array | None,
    *,
    may_leave: bool,
) -> Rates:
    line = equilibrium_response(game, weights)
    inside = None
    if line.has_interior and line.free.any():
        inside = interior_rates_of(game, line, leader, rounds, payment_limit)
    if inside is None:
        inside = interior_rates_each(game, line, leader, rounds, payment_limit)
    none = np.isnan(inside)
    if none.all():
        return rates_where_no_root_is_inside(game, line, leader, rounds, payment_limit)
    within = Rates(inside[~none], AlongLine(line.slope, line.offset), False)
    if not may_leave and leader != "mean_field":
        within = cheaper_at_bounds(game, line, leader, rounds[~none], payment_limit, within.reward_rates)
    if not none.any():
        return within
    others = rates_where_no_root_is_inside(game, line, leader, rounds[none], payment_limit)
    rates, rows = np.empty(len(rounds)), np.empty((len(rounds), game.num_clients))
    for part, found in ((~none, within), (none, others)):
        rates[part] = found.reward_rates
        rows[part] = [found.budgets.at(k, float(rate)) for k, rate in enumerate(found.reward_rates)]
    return Rates(rates, Stored(rows, np.arange(len(rounds))), True)


def require_somebody(game: Game) -> None:
    """Raises NoEquilibrium where the bounds let nobody take part."""
    if (game.clients.budget_max <= 0).all():
        raise NoEquilibrium("budget_max is 0 for everybody, so nobody can take part. Raise it for those who may share.")


def pigouvian_weights(game: Game) -> Array:
    """c = B⁻ᵀ1 (model, eq. 20): paid r·c_i, everybody does what all together would want done."""
    return game.loss.T.solve(np.ones(game.num_clients))
