"""Is (r*, ρ*) a Stackelberg equilibrium? The server can do better once it sees that exposure moves with its rate.

Also: the definition of the equilibrium as printed, the limit r -> 0, ε_i, and a client whom no rate can win.
"""

import numpy as np

import mppfl
from mppfl.game import equilibrium_at, equilibrium_response, noise_harm, server_cost


def draw(seed: int, preset: str = "paper-like", **settings: float) -> mppfl.Game:
    rng = np.random.default_rng(seed)
    graph = mppfl.random_graph("erdos_renyi", 20, rng=rng)
    return mppfl.make_game(graph, mppfl.draw_clients(preset, 20, rng), **settings)


print("20 games, round 1: the paper's rate against the rate that anticipates")
print("preset        α    paper's rate higher   by, median   largest   costs more by, median   largest")
for preset, hop_decay in (("paper-like", 0.9), ("benign", 0.5)):
    for strength in (0.05, 0.1):
        rates, costs = [], []
        for seed in range(20):
            game = draw(seed, preset, hop_decay=hop_decay, externality_strength=strength)
            paper, exact = mppfl.solve(game, "mppfl"), mppfl.solve(game, "mppfl_exact")
            rates.append(paper.terms(1).reward_rate / exact.terms(1).reward_rate - 1)
            costs.append(paper.outcome.server_costs[0] / exact.outcome.server_costs[0] - 1)
        print(f"{preset:10} {strength:5.2f} {sum(x > 0 for x in rates):15} of 20", end=" ")
        print(f"{np.median(rates):13.3%} {max(rates):9.3%} {np.median(costs):23.4%} {max(costs):9.4%}")

game = draw(0)
solution = mppfl.solve(game)
terms = solution.terms(1)
print("\nseed 0: cost at other rates, with budgets frozen at ρ* and with clients responding")
print("r / r*   frozen   responding   participating")
for share in (0.0, 0.5, 0.9, 0.995, 1.0, 1.1):
    rate = share * terms.reward_rate
    moved = equilibrium_at(game, rate)
    responding = f"{server_cost(game, 1, rate, moved):.4f}" if (moved > 0).all() else "-"
    frozen = server_cost(game, 1, rate, terms.budgets)
    print(f"{share:6.3f} {frozen:8.3f} {responding:>12} {(moved > 0).sum():7} of 20")

sizes = np.array([100, 1000, 10_000])
harm = noise_harm(num_parameters=1000, clip_norm=1.0, data_size=sizes, smoothness_ratio=1.0)
print("\nε_i of clients with 100, 1,000 and 10,000 examples:", *(f"{value:.4e}" for value in harm))

star = mppfl.graph_from_edges(np.zeros(10, dtype=int), np.arange(1, 11), undirected=True)
clients = mppfl.Clients(np.r_[0.05, np.ones(10)], np.r_[1.0, np.zeros(10)], np.ones(11))
game = mppfl.make_game(star, clients, max_hops=1, externality_strength=0.2)
line = equilibrium_response(game)
print(
    f"star: u of the hub {line.slope[0]:.3f}, of a leaf {line.slope[1]:.3f}; everybody shares only for rates", end=" "
)
print(f"between {line.lowest_rate:.3f} and {line.highest_rate:.3f}")
for rate in (1.1, 1.3, 2.0):
    hub, leaf = equilibrium_at(game, rate)[:2]
    print(f"  rate {rate}: hub {hub:.3f}, leaf {leaf:.3f}")
