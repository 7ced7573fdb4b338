"""The comparison: every mechanism in the game of the page, under a common reward and under each server's own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from mppfl.errors import BadInput
from mppfl.experiment import mechanism_of
from mppfl.explorer.choices import Choices, fixed_budget_of
from mppfl.explorer.world import World, game_key
from mppfl.game import COMPARED, Convention, Row, compare, fixed

MOST_COMPARED = 10_000  # clients; about 20 seconds
LEFT_OUT = "every client takes part in this comparison, whatever participation is chosen"


@dataclass(frozen=True, eq=False, slots=True)
class Comparison:
    """Mechanisms side by side, summed over the rounds of the game.

    rows        one per mechanism and convention; what differs from mppfl in the rate alone is not under "common"
    num_rounds  over which they are summed
    seconds     it took
    notes       what a reader should know
    """

    rows: tuple[Row, ...]
    num_rounds: int
    seconds: float
    notes: tuple[str, ...]

    def under(self, convention: Convention) -> tuple[Row, ...]:
        """The rows of one reward convention."""
        return tuple(row for row in self.rows if row.convention == convention)


def comparison(world: World, choices: Choices) -> Comparison:
    """The rows of `mppfl compare --experiment FILE --mechanisms all`; kept in the world, whichever of them is shown."""
    size = world.graph(choices).num_clients
    if size > MOST_COMPARED:
        raise BadInput(
            f"a comparison of {len(COMPARED)} mechanisms on {size:,} clients takes minutes. Use `mppfl compare`, or a "
            f"network of at most {MOST_COMPARED:,}."
        )
    key = ("comparison", game_key(choices), choices.num_rounds, choices.fixed_budget, choices.participation)
    found: Comparison = world.remembered(key, lambda: _compared(world, choices))
    return found


def _compared(world: World, choices: Choices) -> Comparison:
    began = time.perf_counter()
    experiment = world.experiment(choices)
    functions = {name: mechanism_of(experiment, name) for name in COMPARED}
    functions["fixed"] = partial(fixed, budget=fixed_budget_of(choices.fixed_budget))  # whichever mechanism is shown
    rows = compare(world.game(choices), functions, num_rounds=choices.num_rounds, seed=choices.seed)
    notes = (LEFT_OUT,) if choices.participation != "always" else ()
    return Comparison(tuple(rows), choices.num_rounds, time.perf_counter() - began, notes)
