"""Algorithm 1 to the letter runs away from the equilibrium; with the rate solved in every sweep it arrives.

Near an equilibrium a sweep multiplies errors by its Jacobian, so it converges only if no eigenvalue exceeds 1 in size.
"""

import numpy as np
from reproduction.algorithm_1 import fixed_point_trace, lemma_1_right_side, solved_rate

import mppfl
from mppfl.game import wanted_loss


def draw(seed: int, num_clients: int, preset: str, hop_decay: float) -> mppfl.Game:
    rng = np.random.default_rng(seed)
    graph = mppfl.random_graph("erdos_renyi", num_clients, rng=rng)
    return mppfl.make_game(graph, mppfl.draw_clients(preset, num_clients, rng), hop_decay=hop_decay)


def next_risk(game: mppfl.Game, rate: float, risk: np.ndarray) -> np.ndarray:
    budgets = wanted_loss(game, rate) - game.externality_strength * game.num_clients * risk
    return (game.propagation @ budgets) / game.num_clients


def jacobian(step, at: np.ndarray, width: float = 1e-6) -> np.ndarray:
    return np.array([(step(at + e) - step(at - e)) / (2 * width) for e in width * np.eye(len(at))]).T


def measure(game: mppfl.Game) -> tuple[float, float, float]:
    """Slope of the literal step in the rate; largest eigenvalue of the literal and of the solved sweep."""
    terms = mppfl.solve(game).terms(1)
    risk = game.propagation @ terms.budgets / game.num_clients
    literal = jacobian(
        lambda x: np.append(next_risk(game, x[-1], x[:-1]), lemma_1_right_side(game, 1, x[-1], x[:-1])),
        np.append(risk, terms.reward_rate),
    )
    solved = jacobian(lambda x: next_risk(game, solved_rate(game, 1, x), x), risk)
    return literal[-1, -1], *(float(np.abs(np.linalg.eigvals(m)).max()) for m in (literal, solved))


print("preset       N    slope in r   literal: eigenvalue  arrives   solved: eigenvalue  arrives  sweeps")
for preset, hop_decay, size in [("paper-like", 0.9, 20), ("paper-like", 0.9, 50), ("benign", 0.5, 20)]:
    games = [draw(seed, size, preset, hop_decay) for seed in range(10)]
    slope, literal, solved = np.array([measure(game) for game in games]).T
    lost = sum(fixed_point_trace(game, literal=True, threshold=1e-6).converged for game in games)
    found = [fixed_point_trace(game) for game in games]
    print(f"{preset:10} {size:3}  <= {slope.max():8.2f}   >= {literal.min():17.2f}  {lost} of 10", end="   ")
    print(f"<= {solved.max():15.3f} {sum(t.converged for t in found):3} of 10  {max(t.num_sweeps for t in found):6}")

cycle = mppfl.graph_from_matrix([[0, 0, 1], [1, 0, 0], [0, 1, 0]])
clients = mppfl.Clients(quadratic_cost=[0.2, 0.2, 2.0], linear_cost=0.0, noise_harm=[0.001, 0.001, 100.0])
game = mppfl.make_game(cycle, clients, max_hops=1, externality_strength=0.9)
solution, trace = mppfl.solve(game), fixed_point_trace(game)
print(f"\n3-cycle with αS = {game.contraction:g}: eigenvalue of the solved sweep {measure(game)[2]:.2f}", end=", ")
print("arrives" if trace.converged else "never arrives")
terms, saved = solution.terms(1), solution.verification.leader_regret / solution.outcome.server_costs[0]
print(f"3-cycle solved directly: rate {terms.reward_rate:.2f}, budgets", *(f"{b:.3f}" for b in terms.budgets))
print(f"3-cycle: a server that anticipates pays {saved:.1%} less")
