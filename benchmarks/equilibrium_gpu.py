"""Equilibria of large networks with the network's equations on a GPU, beside the same game solved by NumPy.

    PYTHONPATH=src python benchmarks/equilibrium_gpu.py [--sizes CLIENTS:EDGES ...] [--device cuda] [--output FOLDER]

Skewed networks with costs as the preset `benign` draws them. Timed as a user calls them: `mppfl.make_game`, which
counts closed walks, and `mppfl.solve` for 100 rounds, outcome and verification included.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import mppfl
from equilibrium import DECAY, HOPS, ROUNDS, STRENGTH
from mppfl.device import find_device
from record import circumstances, write_record

SIZES = ["100000:2000000", "1000000:20000000"]
REPEATS = 3


def measure(num_clients: int, num_edges: int, device: str | None) -> tuple[dict, mppfl.Solution]:
    """Seconds of making and of solving a game, the median of REPEATS, and the last solution."""
    rng = np.random.default_rng(0)
    graph = mppfl.random_graph("skewed", num_clients, num_edges=num_edges, rng=rng)
    clients = mppfl.draw_clients("benign", num_clients, rng)
    made, solved = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        game = mppfl.make_game(
            graph, clients, max_hops=HOPS, hop_decay=DECAY, externality_strength=STRENGTH, device=device
        )
        made.append(time.perf_counter() - began)
        solution = mppfl.solve(game, num_rounds=ROUNDS, device=device)
        solved.append(solution.seconds)
    quality = solution.verification
    row = {
        "clients": num_clients,
        "edges": graph.num_edges,
        "device": device or "numpy",
        "making_seconds": float(np.median(made)),
        "solving_seconds": float(np.median(solved)),
        "residual": quality.residual,
        "client_regret": quality.client_regret,
        "leader_regret": quality.leader_regret,
    }
    print("  ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{value}" for name, value in row.items()))
    return row, solution


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="CLIENTS:EDGES", help="smallest first")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the script out")
    parser.add_argument("--output", type=Path, help="folder of the record; default: benchmarks/records")
    options = parser.parse_args()
    find_device(options.device)
    rows = []
    for size in options.sizes:
        num_clients, num_edges = map(int, size.split(":"))
        plain, one = measure(num_clients, num_edges, None)
        there, other = measure(num_clients, num_edges, options.device)
        there["rates_apart"] = float(np.abs(one.plan.reward_rates / other.plan.reward_rates - 1).max())
        rows += [plain, there]
    setting = {"hops": HOPS, "decay": DECAY, "strength": STRENGTH, "rounds": ROUNDS, "repeats": REPEATS}
    content = circumstances("numpy", "scipy", "torch") | {"setting": setting, "rows": rows}
    print(write_record("equilibrium-gpu", content, options.output))


if __name__ == "__main__":
    main()
