"""Theorem 3's lower bound for the social-agnostic price of anarchy: empty at paper scale, false on small graphs.

The optimum is the unbounded one, which favours the theorem: with budgets kept at 0 or above the ratio is smaller.
"""

import numpy as np
from reproduction.paper_equations import poa_bound_of_theorem_3

import mppfl
from mppfl.game import pigouvian_weights, price_of_anarchy, unbounded_optimal_welfare, wanted_loss, welfare


def agnostic_poa(game: mppfl.Game, rate: float) -> float | None:
    reached = welfare(game, rate, wanted_loss(game, rate))  # SA clients want m(r), and suffer exposure all the same
    return price_of_anarchy(unbounded_optimal_welfare(game, rate, pigouvian_weights(game)), reached)


def small_game(rng: np.random.Generator) -> tuple[mppfl.Game, float]:
    """Two to four clients, no linear cost, any strength with αS < 0.9."""
    size, max_hops, hop_decay = int(rng.integers(2, 5)), int(rng.integers(1, 4)), rng.uniform(0.1, 0.95)
    edges = rng.uniform(0.1, 1.0, (size, size)) * (rng.random((size, size)) < 0.3)
    edges[np.arange(size), (np.arange(size) + rng.integers(1, size, size)) % size] += 0.1  # nobody is isolated
    np.fill_diagonal(edges, 0.0)
    clients = mppfl.Clients(np.exp(rng.uniform(-2, 2, size)), np.zeros(size), np.ones(size))
    strength = rng.uniform(0.1, 0.9) * (1 - hop_decay) / (1 - hop_decay**max_hops)
    settings = {"max_hops": max_hops, "hop_decay": hop_decay, "externality_strength": strength}
    return mppfl.make_game(mppfl.graph_from_matrix(edges), clients, **settings), 1.0


print("paper scale: N = 20, λ = 0.9, 20 draws")
print("  α     PoA(SA) - 1, median   bound - 1, largest   undefined (welfare <= 0)")
for strength in (0.01, 0.05, 0.1):
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        graph = mppfl.random_graph("erdos_renyi", 20, rng=rng)
        game = mppfl.make_game(graph, mppfl.draw_clients("paper-like", 20, rng), externality_strength=strength)
        rate = mppfl.solve(game).terms(1).reward_rate
        found.append((agnostic_poa(game, rate), poa_bound_of_theorem_3(game, rate)))
    measured = [poa - 1 for poa, _ in found if poa is not None]
    middle = f"{np.median(measured):.4f}" if measured else "-"
    print(f"{strength:5.2f} {middle:>18} {max(b - 1 for _, b in found):21.1e} {20 - len(measured):15} of 20")

rng = np.random.default_rng(0)
drawn = [small_game(rng) for _ in range(3000)]
pairs = [(agnostic_poa(game, rate), poa_bound_of_theorem_3(game, rate)) for game, rate in drawn]
told = [(poa, bound) for poa, bound in pairs if poa is not None and bound is not None]
broken = sorted((pair for pair in told if pair[0] < pair[1]), key=lambda pair: pair[0] / pair[1])
print(f"\n2 to 4 clients: {len(told)} of {len(drawn)} have both numbers, {len(broken)} break the bound; the worst:")
for poa, bound in broken[:3]:
    print(f"  PoA {poa:.3f} < bound {bound:.3f}")

graph = mppfl.graph_from_edges(np.array([1, 0, 0]), np.array([0, 1, 2]))  # 0 and 1 expose each other, 0 exposes 2
game = mppfl.make_game(graph, mppfl.Clients([1.0, 1.0, 0.01], 0.0, 1.0), max_hops=1, externality_strength=0.7)
print(f"by hand: PoA {agnostic_poa(game, 1.0):.4f} < bound {poa_bound_of_theorem_3(game, 1.0):.3f}")
