"""Two friends: what one reveals also reveals the other, so each shares less than it would alone."""

import numpy as np

import mppfl

friends = mppfl.graph_from_edges(np.array([0, 1]), np.array([1, 0]), names=["Ada", "Ben"])
clients = mppfl.Clients(quadratic_cost=[1.0, 1.0], linear_cost=[0.0, 0.0], noise_harm=[0.1, 0.1])
game = mppfl.make_game(friends, clients, max_hops=1, hop_decay=0.5, externality_strength=0.5)

terms = mppfl.solve(game).terms(1)
alone = mppfl.solve(game, "social_agnostic", reward_rates=np.array([terms.reward_rate])).terms(1)
print(f"reward rate {terms.reward_rate:.3f}")
for name, aware, agnostic in zip(friends.names, terms.budgets, alone.budgets, strict=True):
    print(f"{name} gives a budget of {aware:.3f} (a third of the rate); not knowing of the other, {agnostic:.3f}")
