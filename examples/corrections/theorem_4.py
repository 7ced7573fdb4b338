"""Theorem 4's price of anarchy tends to 1 by construction; the true one does not.

The paper's expression compares the equilibrium with itself: it says how far Algorithm 1 has come. The true price of
anarchy compares it with the welfare optimum at the same rate, and is above 1 as soon as anybody exposes anybody.
"""

import numpy as np
from reproduction.algorithm_1 import fixed_point_trace
from reproduction.paper_equations import poa_as_in_paper, welfare_gap

import mppfl
from mppfl.game import pigouvian_weights, price_of_anarchy, social_optimum, unbounded_optimal_welfare, welfare


def draw(seed: int, **settings: float) -> mppfl.Game:
    rng = np.random.default_rng(seed)
    graph = mppfl.random_graph("erdos_renyi", 20, rng=rng)
    return mppfl.make_game(graph, mppfl.draw_clients("paper-like", 20, rng), **settings)


def true_poa(game: mppfl.Game, rate: float, budgets: np.ndarray) -> float | None:
    """Against the optimum with budgets of at least 0; the unbounded optimum would make it larger."""
    return price_of_anarchy(welfare(game, rate, social_optimum(game, rate)), welfare(game, rate, budgets))


print("one game (paper-like, seed 0), Algorithm 1 stopped at different thresholds")
print("threshold   sweeps   the paper's expression - 1   true PoA")
game = draw(0)
for threshold in (1e-1, 1e-2, 1e-3, 1e-6):
    trace = fixed_point_trace(game, threshold=threshold)
    rate, answered = float(trace.reward_rates[-1]), trace.external_risk[-2]  # the φ that the last budgets answer to
    claimed = poa_as_in_paper(game, rate, trace.budgets, answered)
    print(f"{threshold:9.0e} {trace.num_sweeps:8} {claimed - 1:28.1e} {true_poa(game, rate, trace.budgets):10.4f}")

print("\n20 games at their exact equilibrium (N = 20, round 1)")
print("  λ      α    true PoA: median  smallest   undefined   error of the gap formula")
for hop_decay in (0.5, 0.9):
    for strength in (0.01, 0.05, 0.1):
        ratios, errors = [], []
        for seed in range(20):
            game = draw(seed, hop_decay=hop_decay, externality_strength=strength)
            terms, weights = mppfl.solve(game).terms(1), pigouvian_weights(game)
            rate = terms.reward_rate
            gap = unbounded_optimal_welfare(game, rate, weights) - welfare(game, rate, terms.budgets)
            errors.append(abs(gap - welfare_gap(game, rate, weights)))
            ratios.append(true_poa(game, rate, terms.budgets))
        known = [ratio for ratio in ratios if ratio is not None]
        print(
            f"{hop_decay:4.1f} {strength:6.2f} {np.median(known):19.4f} {min(known):9.4f} {20 - len(known):5} of 20",
            end="",
        )
        print(f"{'below 1e-12' if max(errors) < 1e-12 else max(errors):>27}")
