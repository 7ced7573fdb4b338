"""Natural units: a game whose typical budget and reward rate are about 1, whatever units its costs came in.

The equations are the same in every unit of money and of budget. Tolerances and searches are not, so leaders look for
their rates in these units. They are powers of two: nothing is rounded on the way there and back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mppfl.arrays import Array
from mppfl.game.model import Game
from mppfl.game.plan import AlongLine, PerRound, Stored


@dataclass(frozen=True, slots=True)
class Units:
    """What one natural unit of budget and of reward rate is in the game's own."""

    budget: float
    rate: float

    @property
    def money(self) -> float:
        return self.budget * self.rate

    def budgets_back(self, budgets: PerRound) -> PerRound:
        """Budgets of every round in the game's own unit, given for rates in its own unit."""
        if isinstance(budgets, AlongLine):
            return AlongLine(budgets.slope * (self.budget / self.rate), budgets.offset * self.budget)
        if isinstance(budgets, Stored):
            return Stored(budgets.rows * self.budget, budgets.row_of_round)
        raise TypeError(f"budgets of a leader are on a line or stored, not {type(budgets).__name__}")


def natural_units(game: Game) -> Units:
    """From what a typical client would give, were it alone: ρ = (r − b)/2a where τε/ρ + (1−τ)rρ is least."""
    clients = game.clients
    harm = game.accuracy_weight / (1 - game.accuracy_weight) * clients.noise_harm
    with np.errstate(divide="ignore"):
        alone = np.minimum(np.cbrt(harm / (4 * clients.quadratic_cost)), np.sqrt(harm / clients.linear_cost))
    able = clients.budget_max > 0
    if not able.any():
        return Units(1.0, 1.0)
    budgets = np.clip(alone, clients.budget_min, clients.budget_max)[able]
    rates = clients.linear_cost[able] + 2 * clients.quadratic_cost[able] * budgets
    return Units(_power_of_two(budgets), _power_of_two(rates))


def slight_margin(game: Game) -> float:
    """Money that is nothing but rounding: nobody comes or goes for less."""
    return 1e-12 * natural_units(game).money


def in_units(game: Game, units: Units) -> Game:
    """The same game in these units; what was factorised of its network is shared."""
    clients = game.clients
    scaled = replace(
        clients,
        quadratic_cost=clients.quadratic_cost * (units.budget / units.rate),
        linear_cost=clients.linear_cost / units.rate,
        noise_harm=clients.noise_harm / (units.budget * units.money),
        compute_cost=clients.compute_cost / units.money,
        budget_min=clients.budget_min / units.budget,
        budget_max=clients.budget_max / units.budget,
    )
    found = replace(game, clients=scaled)
    vars(found)["loss"] = game.loss
    return found


def _power_of_two(values: Array) -> float:
    """The power of two nearest to their median, as ratios go."""
    return float(np.exp2(np.round(np.median(np.log2(values)))))
