"""Equilibria of very large networks on a GPU, and beside them the plain SciPy loop of equilibrium.py on the same one.

    PYTHONPATH=src python benchmarks/equilibrium_gpu.py --reference --billion --output FOLDER

A skewed network and clients' costs are drawn on the GPU (1 million clients and 20 million links; 10 and 200 million;
with --billion 50 million and 1 billion). Timed there, to 1e-10 and with the GPU's queue empty before and after: the
walks that return home; then u, v and the reward rate of 100 rounds (eqs. 14, 16), given those. Sums over all clients in
every round check the answer. --reference brings the smallest network to main memory and runs the plain loop on it,
given the same walks home, then `mppfl.solve(game, device=...)` from main memory. Needs torch, numpy and scipy alone.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from equilibrium import DECAY, HOPS, ROUNDS, STRENGTH, TOLERANCE, plain_loop
from mppfl.game import DeviceClients, DeviceLoss, line_on_device, rates_on_device, solution_bytes, totals_on_device
from mppfl.network import (
    GIB,
    WORKING_BYTES,
    DeviceMatrix,
    DevicePropagation,
    find_device,
    free_bytes,
    require_room,
    returns_on_device,
)
from record import circumstances, write_record

SIZES = ["1000000:20000000", "10000000:200000000"]
BILLION = "50000000:1000000000"
RECORDED_PLAIN_SECONDS = 39.9  # the plain loop at 1M clients on 2 cores, records/2026-11-15-equilibrium.json
POPULARITY, LENGTH_SPREAD = 0.75, 1.0  # of mppfl.network.generate.skewed
REPEATS = 3
LINKS_AT_ONCE = 2**25


def say(*words: object) -> None:
    print(*words, flush=True)


def settle(device: torch.device) -> None:
    """Waits until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work, device: torch.device) -> tuple:
    """What the work gives, and the seconds it took on the device."""
    settle(device)
    started = time.perf_counter()
    found = work()
    settle(device)
    return found, time.perf_counter() - started


# ---- a network drawn on the device ------------------------------------------------------------------------------


def draw_network(num_clients: int, num_links: int, device: torch.device, seed: int = 0) -> DeviceMatrix:
    """About `num_links` links in which few expose many, and few are exposed by many; after generate.skewed.

    Links drawn twice count once, so one in a hundred more are drawn; rows sum to 1 and none is empty.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    shares = torch.randn(num_clients, generator=generator, device=device, dtype=torch.float64)
    shares = (LENGTH_SPREAD * shares).exp_()
    shares *= (1.01 * num_links - num_clients) / shares.sum()
    rounding = torch.rand(num_clients, generator=generator, device=device, dtype=torch.float64)
    lengths = 1 + (shares + rounding).floor_().long().clamp_(max=num_clients // 8)
    del shares, rounding
    by_rank = torch.randperm(num_clients, generator=generator, device=device)
    columns, values, counts = [], [], []
    at_once = max(1, LINKS_AT_ONCE * num_clients // num_links)
    for first in range(0, num_clients, at_once):
        drawn = lengths[first : first + at_once]
        rows = torch.repeat_interleave(torch.arange(len(drawn), device=device), drawn)
        ranks = torch.rand(len(rows), generator=generator, device=device, dtype=torch.float64)
        ranks = (ranks.pow_(1 / (1 - POPULARITY)) * num_clients).long().clamp_(max=num_clients - 1)
        sources = by_rank[ranks]
        sources = torch.where(sources == rows + first, (sources + 1) % num_clients, sources)
        keys = torch.unique_consecutive((rows * num_clients + sources).sort().values)
        del rows, ranks, sources
        rows = keys // num_clients
        weights = torch.rand(len(keys), generator=generator, device=device, dtype=torch.float64).mul_(0.9).add_(0.1)
        sums = torch.zeros(len(drawn), device=device, dtype=torch.float64).index_add_(0, rows, weights)
        columns.append((keys % num_clients).int())
        values.append(weights.div_(sums[rows]))
        counts.append(torch.bincount(rows, minlength=len(drawn)))
    starts = torch.zeros(num_clients + 1, dtype=torch.int64, device=device)
    torch.cumsum(torch.cat(counts), 0, out=starts[1:])
    joined = torch.cat(columns)
    columns.clear()
    return DeviceMatrix(starts, joined, torch.cat(values))


def draw_clients(num_clients: int, device: torch.device, seed: int = 1) -> DeviceClients:
    """Costs as equilibrium.py draws them: a from U(0.5, 1), b from U(0.1, 0.5), ε = 1, no bounds."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def uniform(low: float, high: float) -> torch.Tensor:
        drawn = torch.rand(num_clients, generator=generator, device=device, dtype=torch.float64)
        return drawn.mul_(high - low).add_(low)

    def same(value: float) -> torch.Tensor:
        return torch.full((1,), value, device=device, dtype=torch.float64).expand(num_clients)

    return DeviceClients(uniform(0.5, 1), uniform(0.1, 0.5), same(1.0), same(0.0), same(0.0), same(np.inf))


# ---- one size ---------------------------------------------------------------------------------------------------


def solve_once(loss: DeviceLoss, clients: DeviceClients, device: torch.device) -> tuple:
    """Line and rates, with the seconds of each."""
    line, line_seconds = timed(lambda: line_on_device(loss, clients), device)
    rounds = np.arange(1, ROUNDS + 1)
    rates, rate_seconds = timed(lambda: rates_on_device(line, clients, 0.5, "mean_field", rounds), device)
    if rates is None:
        raise RuntimeError("no rate keeps everybody inside the bounds")
    return line, rates, line_seconds, rate_seconds


def warm_up(device: torch.device) -> None:
    """Loads every kernel on a small network, which is not timed."""
    network, clients = draw_network(20_000, 200_000, device), draw_clients(20_000, device)
    home = returns_on_device(network, HOPS, DECAY, "estimate").values
    loss = DeviceLoss(DevicePropagation(network, HOPS, DECAY, home), STRENGTH)
    line, rates, *_ = solve_once(loss, clients, device)
    totals_on_device(line, loss, clients, rates)


def measure(num_clients: int, num_links: int, device: torch.device, keep: bool) -> tuple[dict, dict | None]:
    """Everything about one size; with `keep`, also what --reference needs, in main memory."""
    on_gpu = device.type == "cuda"
    planned = solution_bytes(num_clients, num_links)
    while_drawn = 26 * num_links + 40 * num_clients + 5 * GIB  # pieces and the whole, for a moment
    say(
        f"{num_clients:,} clients, {num_links:,} links: planned {planned / GIB:.1f} GiB solving, "
        f"{while_drawn / GIB:.1f} GiB drawing, {free_bytes(device) / GIB:.1f} GiB free"
    )
    require_room(device, max(planned + WORKING_BYTES, while_drawn), f"{num_clients:,} clients and {num_links:,} links")
    network, drawing = timed(lambda: draw_network(num_clients, num_links, device), device)
    clients = draw_clients(num_clients, device)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    home, diagonal = timed(lambda: returns_on_device(network, HOPS, DECAY), device)
    if num_clients <= 1_000_000:  # once more, now that its kernels are loaded for this size
        home, diagonal = timed(lambda: returns_on_device(network, HOPS, DECAY), device)
    diagonal_peak = torch.cuda.max_memory_allocated(device) if on_gpu else 0
    say(f"  drawn in {drawing:.2f} s; walks home {diagonal:.3f} s, {home.exact_hops} hops exact")
    error = home.standard_error
    error_rms, error_max = float(error.square().mean().sqrt()), float(error.max())
    home = home.values
    del error
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    loss = DeviceLoss(DevicePropagation(network, HOPS, DECAY, home), STRENGTH)
    products = time_products(network, device)
    runs = []
    for _ in range(REPEATS):
        line, rates, line_seconds, rate_seconds = solve_once(loss, clients, device)
        runs.append({"line_seconds": line_seconds, "rate_seconds": rate_seconds})
        say(f"  equilibria {line_seconds:.3f} s + rates {rate_seconds:.3f} s")
    totals, checking = timed(lambda: totals_on_device(line, loss, clients, rates), device)
    right = torch.stack([1 / (2 * clients.quadratic_cost), clients.linear_cost / (2 * clients.quadratic_cost)], dim=1)
    off = (loss @ torch.stack([line.slope, line.offset], dim=1)).sub_(right)
    residual = float(torch.linalg.vector_norm(off, ord=float("inf")) / right.max())
    largest = max(1.0, float((rates[0] * line.slope - line.offset).max()))
    gap = float(totals[:, 5].max()) / largest
    del off, right
    seconds = statistics.median(run["line_seconds"] + run["rate_seconds"] for run in runs)
    row = {
        "clients": num_clients,
        "links": network.num_links,
        "drawing_seconds": drawing,
        "diagonal_seconds": diagonal,
        "diagonal_error_rms": error_rms,
        "diagonal_error_max": error_max,
        "runs": runs,
        "seconds_given_the_diagonal": seconds,
        "seconds": seconds + diagonal,
        "outcome_seconds": checking,
        **products,
        "residual": residual,
        "best_response_gap": gap,
        "within_tolerance": residual <= TOLERANCE and gap <= TOLERANCE,
        "planned_gib": planned / GIB,
        "peak_gib": torch.cuda.max_memory_allocated(device) / GIB if on_gpu else None,
        "diagonal_peak_gib": diagonal_peak / GIB if on_gpu else None,
        "rate_first": float(rates[0]),
        "rate_last": float(rates[-1]),
    }
    if not row["within_tolerance"]:
        say(f"  NOT within {TOLERANCE:g}: residual {residual:.1e}, best-response gap {gap:.1e}")
    kept = None
    if keep:
        vectors = {
            "data": network.values,
            "indices": network.columns,
            "indptr": network.starts.int() if network.num_links < 2**31 else network.starts,
            "a": clients.quadratic_cost,
            "b": clients.linear_cost,
            "home": home,
            "first": rates[0] * line.slope - line.offset,
        }
        kept = {name: vector.cpu().numpy() for name, vector in vectors.items()} | {"rates": rates}
    return row, kept


def time_products(network: DeviceMatrix, device: torch.device) -> dict:
    """Milliseconds of one product with W, for a pair of columns and for one."""
    pair = torch.ones((network.num_clients, 2), dtype=torch.float64, device=device)
    single = torch.ones(network.num_clients, dtype=torch.float64, device=device)
    taken = {}
    for name, x in (("pair_product_ms", pair), ("single_product_ms", single)):
        network.times(x)
        _, seconds = timed(lambda x=x: [network.times(x) for _ in range(5)] and None, device)
        taken[name] = 1000 * seconds / 5
    say(f"  one product with W: {taken['pair_product_ms']:.2f} ms a pair, {taken['single_product_ms']:.2f} ms a column")
    return taken


# ---- the plain loop ---------------------------------------------------------------------------------------------


def compare_with_plain(kept: dict) -> dict:
    """The plain SciPy loop on the same network, given the same walks home."""
    say("plain SciPy loop on the smallest network ...")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "network.npz", data=kept["data"], indices=kept["indices"], indptr=kept["indptr"])
        np.savez(folder / "clients.npz", a=kept["a"], b=kept["b"])
        np.savez(folder / "ours.npz", home=kept["home"])
        found = plain_loop(folder)
        with np.load(folder / "plain.npz") as theirs:
            found["budgets_apart"] = float(np.abs(theirs["first"] - kept["first"]).max())
            found["rates_apart"] = float(np.abs(theirs["rates"] - kept["rates"]).max())
    say(f"  {found['seconds']:.1f} s; budgets apart {found['budgets_apart']:.1e}, rates {found['rates_apart']:.1e}")
    return found


def from_main_memory(kept: dict, device: str) -> dict:
    """`mppfl.solve` as a user calls it: network brought to the device, outcome and verification included."""
    import mppfl
    from mppfl.game import Clients, Game
    from mppfl.network import Propagation, ReturnsHome

    size = len(kept["a"])
    influence = sp.csr_array((kept["data"], kept["indices"], kept["indptr"]), shape=(size, size))
    graph = mppfl.graph_from_matrix(influence)
    spread = Propagation(graph.influence, HOPS, DECAY, ReturnsHome(kept["home"], np.zeros(size), HOPS))
    taken = []
    for _ in range(2):
        game = Game(graph, Clients(kept["a"], kept["b"], 1.0), spread, STRENGTH, 0.5)
        found = mppfl.solve(game, num_rounds=ROUNDS, device=device)
        taken.append(found.seconds)
    say(f"  mppfl.solve from main memory, verified: {taken[-1]:.2f} s, residual {found.verification.residual:.1e}")
    return {
        "seconds": taken,
        "residual": found.verification.residual,
        "client_regret": found.verification.client_regret,
        "leader_regret": found.verification.leader_regret,
        "rates_apart": float(np.abs(found.plan.reward_rates - kept["rates"]).max()),
    }


# ---- all of it --------------------------------------------------------------------------------------------------


def around_here(device: torch.device) -> dict:
    """Machine, versions, commit; without git, without the commit."""
    try:
        around = circumstances("numpy", "scipy", "torch")
    except OSError:
        around = {"versions": {"numpy": np.__version__, "torch": torch.__version__}, "commit": None}
    with contextlib.suppress(PackageNotFoundError):
        around["versions"]["mppfl"] = version("mppfl")
    if device.type == "cuda":
        around["device"] = torch.cuda.get_device_name(device)
        around["device_gib"] = torch.cuda.get_device_properties(device).total_memory / GIB
    return around


def show(rows: list[dict], reference: dict | None) -> None:
    say(
        f"\n{'clients':>11} {'links':>14} {'walks home s':>13} {'given them s':>13} {'together s':>11} "
        f"{'outcome s':>10} {'residual':>9} {'gap':>9} {'planned':>9} {'peak GiB':>9}"
    )
    for row in rows:
        if "failed" in row:
            say(f"{row['clients']:>11,} {row['links']:>14,} {row['failed']}")
            continue
        peak = "-" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
        say(
            f"{row['clients']:>11,} {row['links']:>14,} {row['diagonal_seconds']:>13.3f} "
            f"{row['seconds_given_the_diagonal']:>13.3f} {row['seconds']:>11.3f} {row['outcome_seconds']:>10.3f} "
            f"{row['residual']:>9.1e} {row['best_response_gap']:>9.1e} {row['planned_gib']:>9.1f} {peak:>9}"
        )
    first = rows[0] if rows and "failed" not in rows[0] else None
    if first and reference:
        ratio = reference["seconds"] / first["seconds_given_the_diagonal"]
        say(f"plain loop here {reference['seconds']:.1f} s: {ratio:.0f} times faster, given the walks home")
    if first and first["clients"] == 1_000_000:
        ratio = RECORDED_PLAIN_SECONDS / first["seconds_given_the_diagonal"]
        say(
            f"plain loop recorded on 2 cores {RECORDED_PLAIN_SECONDS} s: {ratio:.0f} times faster, given the walks home"
        )


def attempt(what: str, work) -> dict | None:
    """What the work gives; where it fails, the reason on the screen, and the rest goes on."""
    try:
        return work()
    except Exception as problem:
        traceback.print_exc()
        say(f"  {what} failed: {problem}")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="CLIENTS:LINKS", help="smallest first")
    parser.add_argument("--billion", action="store_true", help="50 million clients and 1 billion links as well")
    parser.add_argument("--reference", action="store_true", help="run the plain SciPy loop on the smallest network")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the script out")
    parser.add_argument("--output", type=Path, help="folder of the record; default: benchmarks/records")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which no further part is begun")
    options = parser.parse_args()
    began = time.perf_counter()
    device = find_device(options.device)
    around = around_here(device)
    say(f"{around.get('device', device)}, torch {torch.__version__}")
    warm_up(device)
    say(f"warmed up after {time.perf_counter() - began:.1f} s")
    rows: list[dict] = []
    kept = reference = whole = None
    for size in [*options.sizes, *([BILLION] if options.billion else [])]:
        num_clients, num_links = map(int, size.split(":"))
        left = options.limit - (time.perf_counter() - began) - (60 if options.reference else 0)
        try:
            if left < 10:
                raise RuntimeError(f"not begun: {left:.0f} s of the limit are left")
            row, found = measure(num_clients, num_links, device, options.reference and not rows)
            kept = found or kept
        except Exception as problem:
            traceback.print_exc()
            row = {"clients": num_clients, "links": num_links, "failed": f"{type(problem).__name__}: {problem}"}
        rows.append(row)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if options.reference and kept:
        whole = attempt("mppfl.solve from main memory", lambda: from_main_memory(kept, options.device))
        reference = attempt("the plain loop", lambda: compare_with_plain(kept))
    show(rows, reference)
    setting = {"hops": HOPS, "decay": DECAY, "strength": STRENGTH, "rounds": ROUNDS, "tolerance": TOLERANCE}
    content = around | {"setting": setting, "rows": rows, "plain": reference, "from_main_memory": whole}
    if reference and rows and "failed" not in rows[0]:
        content["times_faster_given_the_diagonal"] = reference["seconds"] / rows[0]["seconds_given_the_diagonal"]
    content["total_seconds"] = time.perf_counter() - began
    say(write_record("equilibrium-gpu", content, options.output))
    say(f"all of it took {content['total_seconds']:.0f} s")


if __name__ == "__main__":
    main()
