"""Is MPPFL the cheapest for the server? With each server's own rate hardly ever; with a common rate it depends.

Also how cost and welfare move with α: at rates held fixed, and with the rates set anew.
"""

import numpy as np

import mppfl
from mppfl.game import find_mechanism, server_cost, summarise, wanted_loss, welfare

NAMES = ("mppfl", "social_agnostic", "random", "dp_fedavg", "sarda_like", "sarda_r")
STRENGTHS = (0.01, 0.04, 0.07, 0.1)


def draw(seed: int, strength: float = 0.05) -> mppfl.Game:
    rng = np.random.default_rng(seed)
    graph = mppfl.random_graph("erdos_renyi", 20, rng=rng)
    return mppfl.make_game(graph, mppfl.draw_clients("paper-like", 20, rng), externality_strength=strength)


def against_agnostic(rng: np.random.Generator, same_b: bool) -> tuple[bool, bool, bool]:
    """One random setting: is MPPFL cheaper at its own rate, is it so with positive welfare, is it with own rates."""
    a, b, harm = rng.uniform(0.2, 1, 20), rng.uniform(0, 2, 20), np.exp(rng.uniform(-4, 1))
    settings = {"hop_decay": rng.uniform(0.3, 0.9), "externality_strength": rng.uniform(0.01, 0.1)}
    clients = mppfl.Clients(a, b[:1].repeat(20) if same_b else b, harm)
    game = mppfl.make_game(mppfl.random_graph("erdos_renyi", 20, rng=rng), clients, **settings)
    ours, theirs = (find_mechanism(name)(game, mppfl.Horizon(np.array([1])))[0] for name in NAMES[:2])
    rate, cost = ours.reward_rate, server_cost(game, 1, ours.reward_rate, ours.budgets)
    cheaper = cost < server_cost(game, 1, rate, wanted_loss(game, rate))
    gains = welfare(game, rate, ours.budgets) > 0
    return cheaper, cheaper and gains, cost < server_cost(game, 1, theirs.reward_rate, theirs.budgets)


print("paper-like, N = 20, 10 rounds, means of 5 games; fixed: the mean SA budget")
print("mechanism         common: cost  MPPFL cheaper  welfare      own: cost  MPPFL cheaper  welfare")
table = summarise(mppfl.compare([draw(seed) for seed in range(5)], NAMES, num_rounds=10, fixed_budget="mean"))
for name in NAMES:
    both = [one for one in table if one.mechanism == name]
    cells = (f"{one.server_cost:13.1f} {one.dearer_than_mppfl:9} of 5 {one.welfare:8.1f}" for one in both)
    print(f"{name:16} " + "  ".join(cells))

print("\n100 random settings, round 1: MPPFL cheaper than SA   common rate   and welfare > 0   own rates")
for same_b in (True, False):
    counts = sum(np.array(against_agnostic(np.random.default_rng(seed), same_b)) for seed in range(100))
    print(f"{'all b_i the same' if same_b else 'b_i differ':51} {counts[0]:13} {counts[1]:17} {counts[2]:11}")

print("\nround 1, means of 10 games         rates held: cost  welfare     rates set anew: cost  welfare")
held = [mppfl.solve(draw(seed, STRENGTHS[-1])).plan.reward_rates for seed in range(10)]
for strength in STRENGTHS:
    cells = []
    for rates in (held, [None] * 10):
        found = [mppfl.solve(draw(seed, strength), reward_rates=rates[seed]).outcome for seed in range(10)]
        cost, gain = np.mean([(o.server_costs[0], o.welfare[0]) for o in found], axis=0)
        cells.append(f"{cost:.1f} {gain:8.2f}")
    print(f"α = {strength:.2f} {cells[0]:>49} {cells[1]:>34}")
