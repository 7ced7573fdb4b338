"""Your own mechanism is one function: a game and a horizon in, a plan out. Here: pay the same in every round."""

import numpy as np

import mppfl
from mppfl.game import MECHANISMS, budgets_along


def steady(game: mppfl.Game, horizon: mppfl.Horizon) -> mppfl.Plan:
    """The reward rate of round 1 for ever; clients answer it in equilibrium."""
    first = mppfl.solve(game, "mppfl").terms(1).reward_rate
    rates = np.full(len(horizon.rounds), first) if horizon.reward_rates is None else horizon.reward_rates
    return mppfl.Plan("steady", horizon.rounds, rates, budgets_along(game, rates), game.num_clients)


rng = np.random.default_rng(1)
graph = mppfl.random_graph("erdos_renyi", 20, rng=rng)
game = mppfl.make_game(graph, mppfl.draw_clients("paper-like", 20, rng))
for row in mppfl.compare(game, {"mppfl": MECHANISMS["mppfl"], "steady": steady}, num_rounds=30, conventions=("own",)):
    print(f"{row.mechanism:<8} server cost {row.server_cost:8.1f}   client welfare {row.welfare:8.1f}")
