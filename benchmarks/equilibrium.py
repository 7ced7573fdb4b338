"""Equilibria of large networks against the plain SciPy loop, in the same run, taking turns.

    python benchmarks/equilibrium.py                 one million clients, 20 million edges, 100 rounds
    python benchmarks/equilibrium.py --growth        10,000 to 300,000 clients: how time grows up to that
    ... --before SRC                                 and an earlier state of the package: the src folder of a checkout

All sides get the same network and answer the same question: u, v and the reward rate of every round (eqs. 14, 16), to
1e-10. Ours finds the closed walks as well, as "auto" and as "estimate" count them; the loop is given them. Every
measurement is a process of its own, so that its peak memory can be told; compiled code is warmed up on a small network
first, which is not timed. On a machine that others use too, `--threads 1` makes CPU seconds comparable.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from record import circumstances, home, write_record

HOPS, DECAY, STRENGTH, ROUNDS, TOLERANCE = 5, 0.5, 0.1, 100, 1e-10


def make_network(num_clients: int, edges_each: int, folder: Path) -> None:
    """A skewed network and clients' costs, as files."""
    from mppfl.network import random_graph

    rng = np.random.default_rng(num_clients)
    graph = random_graph("skewed", num_clients, num_edges=num_clients * edges_each, rng=rng)
    matrix = graph.influence
    np.savez(folder / "network.npz", data=matrix.data, indices=matrix.indices, indptr=matrix.indptr)
    np.savez(folder / "clients.npz", a=rng.uniform(0.5, 1, num_clients), b=rng.uniform(0.1, 0.5, num_clients))


def load(folder: Path) -> tuple:
    with np.load(folder / "network.npz") as file:
        size = len(file["indptr"]) - 1
        matrix = sp.csr_array((file["data"], file["indices"], file["indptr"]), shape=(size, size))
    with np.load(folder / "clients.npz") as file:
        return matrix, file["a"], file["b"]


def ours(folder: Path, diagonal: str = "auto") -> dict:
    from mppfl.game import Clients, Game, Plan, choose_rates, evaluate, rounds_up_to, verify
    from mppfl.network import graph_from_matrix, propagate

    def work() -> dict:
        matrix, a, b = load(folder)
        graph = graph_from_matrix(matrix)
        del matrix
        clients = Clients(a, b, np.ones(len(a)))
        started, cpu = time.perf_counter(), time.process_time()
        spread = propagate(graph, HOPS, DECAY, diagonal=diagonal)
        diagonal_seconds, diagonal_cpu = time.perf_counter() - started, time.process_time() - cpu
        game = Game(graph, clients, spread, STRENGTH, 0.5)
        chosen = choose_rates(game, "mean_field", rounds_up_to(ROUNDS))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        plan = Plan("mppfl", rounds_up_to(ROUNDS), chosen.reward_rates, chosen.budgets, len(a))
        began = time.perf_counter()
        quality = verify(game, plan, evaluate(game, plan))
        checking = time.perf_counter() - began
        error = spread.home.standard_error
        np.savez(folder / f"{diagonal}.npz", home=spread.home.values, rates=chosen.reward_rates, first=plan[0].budgets)
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "diagonal_seconds": diagonal_seconds,
            "diagonal_cpu_seconds": diagonal_cpu,
            "checking_seconds": checking,
            "exact_hops": spread.home.exact_hops,
            "diagonal_error_rms": float(np.sqrt((error**2).mean())),
            "diagonal_error_max": float(error.max()),
            "budget_error": 2 * STRENGTH * float((error * plan[0].budgets).max()) / (1 - game.contraction),
            "residual": quality.residual,
            "client_regret": quality.client_regret,
        }

    warm_up()
    return work()


def warm_up() -> None:
    """Compiles (or loads from the cache) everything, by lowering the sizes above which compiled code is used."""
    from mppfl.network import count_closed_walks, times

    product = home(times)
    rng = np.random.default_rng(0)
    small = sp.csr_array(np.where(rng.random((1500, 1500)) < 0.01, 1.0, 0.0) - 0.0)
    small.setdiag(0)
    small.eliminate_zeros()
    small.indices, small.indptr = small.indices.astype(np.int32), small.indptr.astype(np.int32)
    light = sp.csr_array((small.data.astype(np.float32), small.indices, small.indptr), shape=small.shape)
    for array in (small.data, light.data, small.indices, small.indptr):
        array.setflags(write=False)
    pair = rng.random((1500, 2))
    usual, product.PARALLEL_ABOVE = product.PARALLEL_ABOVE, 0
    for matrix, x in ((small, pair), (light, pair.astype(np.float32))):
        for columns in (x, x[:, 0].copy()):
            times(matrix, columns, 1.0, columns)
    product.PARALLEL_ABOVE = usual
    count_closed_walks(small, 4, 0.5, "exact")
    count_closed_walks(small, 5, 0.5, "estimate")


def plain_loop(folder: Path) -> dict:
    """What one would write in ten minutes: Neumann sweeps on two right-hand sides, then Newton in every round."""
    matrix, a, b = load(folder)
    home = np.load(folder / "auto.npz")["home"] if (folder / "auto.npz").exists() else np.zeros(len(a))
    started, cpu = time.perf_counter(), time.process_time()
    right = np.column_stack([1 / (2 * a), b / (2 * a)])
    x = right.copy()
    for _ in range(1000):
        spread = matrix @ x
        for _ in range(HOPS - 1):
            spread = matrix @ (x + DECAY * spread)
        new = right - STRENGTH * (spread - home[:, None] * x)
        change, x = np.abs(new - x).max(), new
        if change < TOLERANCE:
            break
    u, v = x[:, 0].copy(), x[:, 1].copy()
    U, V, alone, pull = u.sum(), v.sum(), (1 / (2 * a)).sum(), 1 / (2 * a)
    lowest = (v / u).max()
    rates, rate = np.empty(ROUNDS), lowest * (1 + 1e-3)
    for t in range(ROUNDS, 0, -1):  # later rounds have lower rates: each starts from the one after it
        for _ in range(100):
            budgets = rate * u - v
            gap = rate * U - V + rate * alone - (pull / budgets**2).sum() / t
            step = gap / (U + alone + 2 / t * (pull * u / budgets**3).sum())
            rate = rate - step if rate - step > lowest else (rate + lowest) / 2
            if abs(step) < TOLERANCE * rate:
                break
        rates[t - 1] = rate
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    np.savez(folder / "plain.npz", rates=rates, first=rates[0] * u - v)
    return {"seconds": seconds, "cpu_seconds": cpu}


def measure(side: str, folder: Path, options: argparse.Namespace) -> dict:
    """One side in a process of its own."""
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
    around = dict(os.environ)
    if side == "before":
        around["PYTHONPATH"] = str(options.before.resolve())
    if options.threads:
        around |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), str(options.threads))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=around)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def take_turns(num_clients: int, options: argparse.Namespace) -> dict:
    sides = ["before"] * bool(options.before) + ["ours", "estimate", "plain"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_network(num_clients, options.edges_each, folder)
        with np.load(folder / "network.npz") as file:
            csr_bytes = sum(file[key].nbytes for key in file.files)
            edges = len(file["data"])
        runs = {side: [] for side in sides}
        for _ in range(options.repeats):
            for side in sides:
                runs[side].append(measure(side, folder, options))
        with np.load(folder / "auto.npz") as mine, np.load(folder / "plain.npz") as theirs:
            apart = float(np.abs(mine["first"] - theirs["first"]).max())
            rates_apart = float(np.abs(mine["rates"] - theirs["rates"]).max())

    def faster(side: str, clock: str, without: str | None = None) -> list[float]:
        pairs = zip(runs[side], runs["plain"], strict=True)
        return [plain[clock] / (run[clock] - (run[without] if without else 0.0)) for run, plain in pairs]

    return {
        "clients": num_clients,
        "edges": edges,
        "csr_mb": csr_bytes / 1e6,
        **runs,
        "times_faster": statistics.median(faster("ours", "seconds")),
        "times_faster_each": faster("ours", "seconds"),
        "times_faster_given_the_diagonal": statistics.median(faster("ours", "seconds", "diagonal_seconds")),
        "times_faster_by_cpu": {side: statistics.median(faster(side, "cpu_seconds")) for side in sides[:-1]},
        "peak_memory_over_csr": max(o["peak_mb"] for o in runs["ours"]) * 1e6 / csr_bytes,
        "budgets_apart": apart,
        "rates_apart": rates_apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--edges-each", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--before", type=Path, help="src folder of an earlier checkout")
    parser.add_argument("--threads", type=int, help="of BLAS and of compiled loops, on every side")
    parser.add_argument("--side", choices=["before", "ours", "estimate", "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        if options.side == "plain":
            found = plain_loop(options.folder)
        else:
            found = ours(options.folder, "estimate" if options.side == "estimate" else "auto")
        status = Path(
            "/proc/self/status"
        ).read_text()  # of this process alone; ru_maxrss remembers the one that made it
        found["peak_mb"] = int(status.split("VmHWM:")[1].split()[0]) / 1e3
        print(json.dumps(found))
        return
    sizes = [10_000, 30_000, 100_000, 300_000] if options.growth else [options.clients]
    around = circumstances("mppfl", "numpy", "scipy", "numba")
    rows = []
    print(
        f"{'clients':>10} {'edges':>12} {'ours s':>8} {'plain s':>8} {'faster':>7} {'given diag.':>12} {'peak/CSR':>9} "
        f"{'diagonal':>28} {'apart':>9}   faster by CPU seconds"
    )
    for size in sizes:
        row = take_turns(size, options)
        rows.append(row)
        mine = sorted(row["ours"], key=lambda o: o["seconds"])[len(row["ours"]) // 2]
        theirs = statistics.median(p["seconds"] for p in row["plain"])
        diagonal = f"{mine['diagonal_seconds']:.2f} s, {mine['exact_hops']} hops, ±{mine['diagonal_error_rms']:.0e}"
        by_cpu = ", ".join(f"{side} {ratio:.2f}×" for side, ratio in row["times_faster_by_cpu"].items())
        print(
            f"{row['clients']:>10,} {row['edges']:>12,} {mine['seconds']:>8.2f} {theirs:>8.2f} "
            f"{row['times_faster']:>6.1f}× {row['times_faster_given_the_diagonal']:>11.1f}× "
            f"{row['peak_memory_over_csr']:>9.2f} {diagonal:>28} {row['budgets_apart']:>9.1e}   {by_cpu}",
            flush=True,
        )
    setting = {"hops": HOPS, "decay": DECAY, "strength": STRENGTH, "rounds": ROUNDS, "tolerance": TOLERANCE}
    setting |= {
        "threads": options.threads,
        "repeats": options.repeats,
        "before": options.before and str(options.before),
    }
    name = "equilibrium-growth" if options.growth else "equilibrium"
    print(write_record(name, around | {"setting": setting, "rows": rows}))


if __name__ == "__main__":
    main()
