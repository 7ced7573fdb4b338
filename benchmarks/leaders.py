"""What it takes to choose rates: few clients, a thousand, a hundred thousand, with and without bounds; a comparison.

    python benchmarks/leaders.py                       the drawn networks
    python benchmarks/leaders.py --filmtrust FOLDER    and a comparison on the network of FOLDER/trust.txt

CPU seconds of `mppfl.solve` for 60 rounds, outcome and verification included, least of --repeats runs (one of the
largest); costs are of the preset `benign`. With bounds, 70 % of the clients have a largest budget and 20 % a least
one. The comparison has 10 draws of the clients' costs and 10 rounds. Writes records/<date>-leaders.json.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: CPU seconds then do not depend on idle threads

import numpy as np

import mppfl
from mppfl.game import MECHANISMS
from record import circumstances, write_record

ROUNDS, EDGES_EACH = 60, 10
FEW, SOME, MANY = 20, 1000, 100_000
CASES = [  # clients, whether bounded, mechanism, participation
    *((FEW, True, name, "voluntary") for name in ("mppfl", "mppfl_exact", "mppfl_noise_aware")),
    *((SOME, bounded, "mppfl_noise_aware", "voluntary") for bounded in (False, True)),
    *((SOME, bounded, "mppfl_exact", "rational") for bounded in (False, True)),
    *((MANY, True, name, "voluntary") for name in ("mppfl", "mppfl_exact")),
]


def game_of(num_clients: int, bounded: bool, seed: int = 0) -> mppfl.Game:
    """A sparse random network whose clients have costs of the preset and, if asked, bounds."""
    rng = np.random.default_rng(seed)
    targets = np.repeat(np.arange(num_clients), EDGES_EACH)
    sources = rng.integers(0, num_clients, len(targets))
    graph = mppfl.graph_from_edges(sources[sources != targets], targets[sources != targets])
    game = mppfl.make_game(graph, mppfl.draw_clients("benign", num_clients, rng))
    if not bounded:
        return game
    high = np.where(rng.random(num_clients) < 0.7, rng.uniform(0.05, 1.5, num_clients), np.inf)
    low = np.where(rng.random(num_clients) < 0.2, rng.uniform(0, 0.1, num_clients), 0.0)
    return game.with_bounds(np.minimum(low, high), high)


def measure(clients: int, bounded: bool, mechanism: str, participation: str, repeats: int) -> dict:
    """The least CPU seconds of some runs, each on a game that has solved nothing yet."""
    seconds = []
    for _ in range(repeats if clients < MANY else 1):
        game = game_of(clients, bounded)
        began = time.process_time()
        solution = mppfl.solve(game, mechanism, num_rounds=ROUNDS, participation=participation)
        seconds.append(time.process_time() - began)
    row = {"clients": clients, "bounded": bounded, "mechanism": mechanism, "participation": participation}
    return row | {
        "cpu_seconds": min(seconds),
        "leader_regret": solution.verification.leader_regret,
        "server_cost": float(np.sum(solution.outcome.server_costs)),
    }


def comparison(folder: Path) -> dict:
    """All mechanisms on a real trust network, whose rows are source and target."""
    sources, targets = np.loadtxt(folder / "trust.txt", dtype=np.int64)[:, :2].T
    graph = mppfl.graph_from_edges(sources, targets, isolated="keep", self_loops="drop")
    games = [
        mppfl.make_game(graph, mppfl.draw_clients("benign", graph.num_clients, np.random.default_rng(seed)))
        for seed in range(10)
    ]
    names = [name for name in MECHANISMS if name != "budget_limited"]  # which needs a limit of its own
    began = time.process_time()
    table = mppfl.compare(games, names, num_rounds=10)
    seconds = time.process_time() - began
    return {"clients": graph.num_clients, "mechanisms": names, "rows": len(table), "cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filmtrust", type=Path, metavar="FOLDER")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most", type=int, default=MANY, metavar="CLIENTS", help="leaves larger cases out")
    parser.add_argument("--output", type=Path, help="folder of the record; default: benchmarks/records")
    options = parser.parse_args()
    content = circumstances("numpy", "scipy") | {"rounds": ROUNDS, "rows": []}
    for clients, bounded, mechanism, participation in CASES:
        if clients > options.most:
            continue
        row = measure(clients, bounded, mechanism, participation, options.repeats)
        content["rows"].append(row)
        words = f"{clients:>9,}  {'bounds' if bounded else '':<7}{mechanism:<18}{participation:<11}"
        print(f"{words}{row['cpu_seconds']:>9.3f} s  regret {row['leader_regret']:.2g}", flush=True)
    if options.filmtrust is not None:
        content["comparison"] = comparison(options.filmtrust)
        print(f"comparison of {len(content['comparison']['mechanisms'])} mechanisms: {content['comparison']}")
    print(write_record("leaders", content, options.output))


if __name__ == "__main__":
    main()
