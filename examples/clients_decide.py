"""Clients decide by themselves: at a fixed reward rate they announce budgets in turn until nobody moves.

Nobody tells its costs. A client knows only what it loses through others, and that is what the others' budgets say.
"""

from dataclasses import dataclass

import numpy as np

import mppfl


@dataclass
class Client:
    """Keeps its costs to itself; `answer` is all that others may ask."""

    quadratic_cost: float
    linear_cost: float

    def answer(self, reward_rate: float, exposure: float) -> float:
        """The budget that suits this client best, given what the others' budgets cost it (model, eq. 15)."""
        return max(0.0, (reward_rate - self.linear_cost) / (2 * self.quadratic_cost) - exposure)


rng = np.random.default_rng(0)
graph = mppfl.random_graph("erdos_renyi", 12, rng=rng)
game = mppfl.make_game(graph, mppfl.draw_clients("benign", 12, rng), hop_decay=0.5)
clients = [Client(a, b) for a, b in zip(game.clients.quadratic_cost, game.clients.linear_cost, strict=True)]

reward_rate, budgets, moved, announcements = 3.0, np.zeros(12), np.inf, 0
while moved > 1e-12:
    before = budgets.copy()
    for i, client in enumerate(clients):
        exposure = game.externality_strength * (game.propagation @ budgets)[i]
        budgets[i] = client.answer(reward_rate, exposure)
    moved, announcements = np.abs(budgets - before).max(), announcements + 1
solved = mppfl.solve(game, reward_rates=np.array([reward_rate])).terms(1).budgets
print(f"nobody moves after {announcements} announcements; budgets {budgets.min():.3f} to {budgets.max():.3f}")
print(f"largest difference from the equilibrium that the solver finds: {np.abs(budgets - solved).max():.0e}")
