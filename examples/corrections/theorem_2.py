"""Theorem 2's proof: the map of budgets is no contraction in the 2-norm, and its box does not map into itself.

The map is ρ -> m(r) − αΣρ. It stretches differences by at most α times the norm of Σ: the spectral norm for the 2-norm,
the largest row sum for the sup norm. The proof needs the norm to be at most S.
"""

import numpy as np

import mppfl
from mppfl.game import wanted_loss

SIZES = (20, 50, 80)


def star(num_leaves: int) -> mppfl.SocialGraph:
    hub, leaves = np.zeros(num_leaves, dtype=int), np.arange(1, num_leaves + 1)
    return mppfl.graph_from_edges(hub, leaves, undirected=True)


def drawn(kind: str, count: int) -> list[mppfl.SocialGraph]:
    return [mppfl.random_graph(kind, SIZES[s % 3], rng=np.random.default_rng(s)) for s in range(count)]


print("norm of Σ over S (K = 5, λ = 0.9); the proof needs at most 1")
print("graph               above 1    largest spectral norm   largest row sum")
graphs = {"erdos_renyi": drawn("erdos_renyi", 30), "barabasi_albert": drawn("barabasi_albert", 30), "star": [star(50)]}
for kind, family in graphs.items():
    spreads = [mppfl.network.propagate(graph, max_hops=5, hop_decay=0.9) for graph in family]
    two = np.array([np.linalg.norm(spread.to_dense(), 2) / spread.geometric_sum for spread in spreads])
    sup = max(float(spread.row_sums.max()) / spread.geometric_sum for spread in spreads)
    print(f"{kind:16} {(two > 1).sum():4} of {len(two):2} {two.max():24.3f} {sup:17.3f}")

spread = mppfl.network.propagate(star(50), max_hops=5, hop_decay=0.9)
strength = 0.9 / spread.geometric_sum
print(
    f"\nstar of 51 with αS = 0.9: differences grow by up to {strength * np.linalg.norm(spread.to_dense(), 2):.2f} "
    f"in the 2-norm, by at most {strength * spread.row_sums.max():.3f} in the sup norm"
)

print("\nbox [ρ_l, ρ_h] at MPPFL's rate of round 1")
print("preset       ρ_l > 0   of these mapped outside   ρ_l <= 0   of these mapped outside")
for preset, hop_decay in (("paper-like", 0.9), ("benign", 0.5)):
    counts = np.zeros(4, dtype=int)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        graph = mppfl.random_graph("erdos_renyi", SIZES[seed % 3], rng=rng)
        game = mppfl.make_game(graph, mppfl.draw_clients(preset, SIZES[seed % 3], rng), hop_decay=hop_decay)
        wanted, reach = wanted_loss(game, mppfl.solve(game).terms(1).reward_rate), game.contraction
        low = (wanted.min() - reach * wanted.max()) / (1 - reach**2)
        high = (wanted.max() - reach * wanted.min()) / (1 - reach**2)
        felt = game.externality_strength * game.propagation.row_sums
        leaves = (wanted - felt * low).max() > high + 1e-12 or (wanted - felt * high).min() < low - 1e-12
        counts += (low > 0, low > 0 and leaves, low <= 0, low <= 0 and leaves)
    print(f"{preset:10} {counts[0]:9} {counts[1]:25} {counts[2]:10} {counts[3]:25}")
