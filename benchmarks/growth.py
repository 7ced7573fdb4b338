"""How time and memory grow: with clients and parameters in training, with edges in an equilibrium.

    python benchmarks/growth.py                                        on this machine's CPU
    PYTHONPATH=src python benchmarks/growth.py --device cuda --output FOLDER

Training: one epoch of every client, as engine_gpu.py measures it. On a CPU small dense clients, every measurement in a
process of its own, whose memory is counted from before the data are loaded, and the least CPU seconds of a few runs,
which others at work on the machine disturb little; on a GPU the CNN of CIFAR-10 in bf16, and wall seconds.
Equilibria: u, v and the rates of 100 rounds to 1e-10, closed walks included. The exponent is the slope of
log time (or memory) over log size, with its standard error; over the larger half as well, because small sizes mostly
pay for overhead. Writes benchmarks/records/<date>-growth-<device>.json.
"""

import argparse
import math
import multiprocessing
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

import engine_gpu
import equilibrium
from engine_gpu import Case
from record import circumstances, write_record

CLIENTS = (20, 40, 80, 160, 320)
WIDTHS = {"cpu": (16, 32, 64, 128, 256, 512, 1024), "cuda": (64, 128, 256, 512, 1024, 2048, 4096)}
EDGES = (10**5, 10**6, 10**7, 2 * 10**7)
EDGES_EACH = 20  # of every client
REPEATS = 5
SMALL = Case("mlp", 10, 20, clients=100, precision="float32", examples=60, shape=(1, 28, 28))
LARGE = {"cpu": SMALL, "cuda": Case("cnn_cifar", 10, 32, examples=500)}


def fitted(sizes: list[float], values: list[float]) -> dict:
    """Slope of log value over log size, with its standard error, and the slope over the larger half."""
    x, y = np.log(sizes), np.log(values)
    slope = float(np.polyfit(x, y, 1)[0])
    off = y - y.mean() - slope * (x - x.mean())
    spread = math.sqrt(float(off @ off) / max(1, len(x) - 2) / float((x - x.mean()) @ (x - x.mean())))
    half = len(x) // 2
    return {"exponent": slope, "standard_error": spread, "larger_half": float(np.polyfit(x[half:], y[half:], 1)[0])}


def trained(case: Case) -> dict:
    """One training step by step; on a CPU in a process of its own, so that its peak memory can be told."""
    if case.device == "cuda":
        return engine_gpu.measure(case, REPEATS)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        return alone.submit(engine_gpu.measure, case, REPEATS).result()


def training_row(size: int, case: Case) -> dict:
    found = trained(case)
    return {
        "size": size,
        "seconds": min(found["cpu_seconds"]) if case.device == "cpu" else statistics.median(found["seconds"]),
        "peak_gib": found["peak_gib"],
        "engine": found["engine"],
    }


def by_clients(device: str) -> list[dict]:
    case = LARGE[device]
    return [training_row(count, replace(case, clients=count, device=device)) for count in CLIENTS]


def by_parameters(device: str) -> list[dict]:
    rows = []
    for width in WIDTHS[device]:
        case = replace(SMALL, device=device, hidden=(width,))
        rows.append(training_row(785 * width + 10 * (width + 1), case))
    return rows


def by_edges(device: str) -> list[dict]:
    """Equilibria, on the CPU; equilibrium_gpu.py measures those on a GPU."""
    rows = []
    for edges in EDGES:
        clients = edges // EDGES_EACH
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            equilibrium.make_network(clients, EDGES_EACH, folder)
            runs = [equilibrium.measure("ours", folder) for _ in range(REPEATS)]
            matrix, _, _ = equilibrium.load(folder)
        rows.append(
            {
                "size": matrix.nnz,
                "seconds": min(run["cpu_seconds"] for run in runs),
                "peak_gib": max(run["peak_mb"] for run in runs) / 1024,
            }
        )
    return rows


AXES = {"clients": by_clients, "parameters": by_parameters, "edges": by_edges}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", metavar="|".join(AXES), help="default: all")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    if unknown := set(chosen.axes) - set(AXES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    content = circumstances("torch", "numpy", "scipy") | {"device": chosen.device, "axes": {}}
    for axis in chosen.axes or [axis for axis in AXES if chosen.device == "cpu" or axis != "edges"]:
        rows = AXES[axis](chosen.device)
        sizes = [row["size"] for row in rows]
        fits = {what: fitted(sizes, [row[what] for row in rows]) for what in ("seconds", "peak_gib")}
        content["axes"][axis] = {"rows": rows} | fits
        print(f"{axis:>12} {'seconds':>10} {'peak GiB':>9}")
        for row in rows:
            print(f"{row['size']:>12,} {row['seconds']:>10.4f} {row['peak_gib']:>9.3f}")
        for what, fit in fits.items():
            print(
                f"  {what} ∝ {axis}^{fit['exponent']:.2f} ± {fit['standard_error']:.2f}, "
                f"over the larger half ^{fit['larger_half']:.2f}",
                flush=True,
            )
        write_record(f"growth-{chosen.device}", content, chosen.output)


if __name__ == "__main__":
    main()
