"""Is MPPFL the cheapest for the server? Under each server's own rate hardly ever; under a common rate it depends.

Also how welfare and cost move with α, at MPPFL's rates for α = 0.01 and with the rates set anew.
"""

from dataclasses import replace

import numpy as np

import mppfl
from mppfl.game.compare import summarise

NAMES = ("mppfl", "social_agnostic", "random", "fixed", "sarda_like", "sarda_r")


def draw(seed: int, **settings: float) -> mppfl.Game:
    rng = np.random.default_rng(seed)
    graph = mppfl.random_graph("erdos_renyi", 20, rng=rng)
    return mppfl.make_game(graph, mppfl.draw_clients("paper-like", 20, rng), **settings)


def any_game(rng: np.random.Generator, alike: bool) -> mppfl.Game:
    """Costs, noise harm, weight and exposure over wide ranges; `alike` gives all clients the same costs."""
    a, b, harm = np.exp(rng.uniform(-2, 1, 20)), rng.uniform(0, 2, 20), np.exp(rng.uniform(-4, 1))
    clients = mppfl.Clients(a[0] if alike else a, b[0] if alike else b, np.full(20, harm))
    settings = {"hop_decay": rng.uniform(0.3, 0.9), "externality_strength": rng.uniform(0.01, 0.1)}
    graph = mppfl.random_graph("erdos_renyi", 20, rng=rng)
    return mppfl.make_game(graph, clients, accuracy_weight=rng.uniform(0.2, 0.8), **settings)


print("paper-like, N = 20, 30 rounds, means of 10 games; fixed budget = mean SA budget")
print("mechanism         common: cost  MPPFL cheaper  welfare      own: cost  MPPFL cheaper  welfare")
table = summarise(mppfl.compare([draw(seed) for seed in range(10)], NAMES, num_rounds=30, fixed_budget="mean"))
for name in NAMES:
    print(f"{name:16}", end="")
    for one in (row for row in table if row.mechanism == name):
        print(f"{one.server_cost:14.1f} {one.dearer_than_mppfl:8} of 10 {one.welfare:8.1f}", end="   ")
    print()

print("\nrandom settings, round 1, MPPFL cheaper than SA      common rate   own rates")
for alike in (True, False):
    rng = np.random.default_rng(0)
    rows = mppfl.compare([any_game(rng, alike) for _ in range(200)], ("mppfl", "social_agnostic"))
    common, own = (row.dearer_than_mppfl for row in summarise(rows) if row.mechanism == "social_agnostic")
    print(f"{'clients alike' if alike else 'clients differ':45} {common:9} of 200 {own:4} of 200")

print("\n  α     rates of α = 0.01: cost  welfare     own rates: cost  welfare     (30 rounds, seed 0)")
held = mppfl.solve(draw(0, externality_strength=0.01), num_rounds=30).plan.reward_rates
for strength in (0.01, 0.04, 0.07, 0.1):
    game = replace(draw(0), externality_strength=strength)
    print(f"{strength:5.2f}", end="")
    for rates in (held, None):
        outcome = mppfl.solve(game, num_rounds=30, reward_rates=rates).outcome
        print(f"{outcome.server_costs.sum():24.1f} {outcome.welfare.sum():8.1f}", end="")
    print()
