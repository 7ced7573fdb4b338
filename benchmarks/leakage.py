"""What really leaks on real networks: measured, against R_leak, R_model and degree; and what prices can do about it.

    MPPFL_DATA=folder python benchmarks/leakage.py [--only NAME ...] [--again] [--seeds 4] [--scale 100000]

Needs the networks under $MPPFL_DATA/graphs (docs/data-sets.md). One record for all; what a record of the same day
already holds is not measured again unless --again says so, so a broken run goes on where it stopped.

The leak is what `mppfl audit neighbour` measures with the Gaussian-field attacker, about clients outside a public share
of 30 %. Constants are fitted on that share alone; the evaluated clients are never used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy.stats import t as student

import mppfl
from mppfl.game import Horizon
from mppfl.game import mppfl as mppfl_mechanism
from mppfl.leakage import (
    audit_neighbour,
    calibrate,
    friendships,
    homophily,
    leak_model,
    least_leakage,
    price_leakage,
    spearman,
    walk_of,
)
from mppfl.network import graph_from_edges, graph_from_matrix, propagate, random_graph
from record import RECORDS, circumstances, write_record

PUBLIC_SHARE = 0.3
WORTH_MEASURING = 0.02  # nats: below, levels are not compared
SETTINGS = {"equal 0.03": (0.03, 0.0), "equal 0.3": (0.3, 0.0), "unequal 0.3": (0.3, 1.0)}  # mean ρ, spread of ln ρ
INDICES = {"K=1": (1, 0.5), "K=3 0.5": (3, 0.5), "K=5 0.9": (5, 0.9)}
PRICED_MEAN = 0.1  # mean ρ at which mechanisms are compared
COST_SPREAD = 0.5  # of ln m, where a = 1/(2m): social-agnostic budgets are r·m
PRICE_STEPS = (0.25, 0.5, 2.0)  # κ times the mean marginal leak, over the social-agnostic rate
FRONTIER_OF = "email department"
FRONTIER_MEANS = (0.03, 0.1, 0.3)
LARGEST_OVER_MEAN = 4.0  # bound on a budget, over the mean


# ---- graph/attribute pairs --------------------------------------------------------------------------------------


def undirected(ends: np.ndarray, values: dict[int, float]) -> tuple[mppfl.SocialGraph, np.ndarray]:
    """Those whose value is known and who have a friend among them, with their edges."""
    ends = ends[ends[:, 0] != ends[:, 1]]
    known = np.isin(ends, list(values)).all(axis=1)
    people, places = np.unique(ends[known], return_inverse=True)
    places = places.reshape(-1, 2)
    graph = graph_from_edges(
        places[:, 0], places[:, 1], names=[str(p) for p in people], undirected=True, isolated="keep"
    )
    return graph, np.array([values[int(p)] for p in people])


def email_department(folder: Path) -> tuple[mppfl.SocialGraph, np.ndarray]:
    """email-Eu-core; the departments, in random order, are divided into two halves of equal size."""
    ends = np.loadtxt(folder / "snap-plain/email-Eu-core.txt", dtype=np.int64)
    labels = np.loadtxt(folder / "snap-plain/email-Eu-core-department-labels.txt", dtype=np.int64)
    order = np.random.default_rng(0).permutation(np.unique(labels[:, 1]))
    sizes = np.array([(labels[:, 1] == each).sum() for each in order])
    first = order[np.cumsum(sizes) <= len(labels) / 2]
    return undirected(ends, {int(i): 1.0 if d in first else -1.0 for i, d in labels})


def deezer_gender(folder: Path) -> tuple[mppfl.SocialGraph, np.ndarray]:
    """Deezer Europe: the 1,500 people nearest to one drawn at random."""
    ends = np.loadtxt(folder / "deezer-europe/deezer_europe_edges.csv", dtype=np.int64, delimiter=",", skiprows=1)
    target = np.loadtxt(folder / "deezer-europe/deezer_europe_target.csv", dtype=np.int64, delimiter=",", skiprows=1)
    near = nearest(ends, int(np.random.default_rng(0).integers(len(target))), 1500)
    ends = ends[np.isin(ends, near).all(axis=1)]
    return undirected(ends, {int(i): 2.0 * g - 1 for i, g in target})


def nearest(ends: np.ndarray, start: int, count: int) -> np.ndarray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    size = int(ends.max()) + 1
    edges = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(size, size)).tocsr()
    return breadth_first_order(edges, start, directed=False, return_predecessors=False)[:count]


def facebook(ego: int, kind: str) -> Callable[[Path], tuple[mppfl.SocialGraph, np.ndarray]]:
    """The friends of one ego without it; of the attributes of one kind, the one that divides them most evenly."""

    def load(folder: Path) -> tuple[mppfl.SocialGraph, np.ndarray]:
        at = folder / "ego-facebook"
        names = [line.split(" ", 1)[1] for line in (at / f"{ego}.featnames").read_text().splitlines()]
        table = np.loadtxt(at / f"{ego}.feat", dtype=np.int64)
        columns = [k for k, name in enumerate(names) if name.startswith(f"{kind};anonymized")]
        shares = table[:, 1:][:, columns].mean(axis=0)
        column = 1 + columns[int(np.argmin(np.abs(shares - 0.5)))]
        ends = np.loadtxt(at / f"{ego}.edges", dtype=np.int64)
        return undirected(ends, {int(row[0]): 2.0 * row[column] - 1 for row in table})

    return load


def lastfm_artist(folder: Path) -> tuple[mppfl.SocialGraph, np.ndarray]:
    """Last.fm friends; who listens to the artist with most listeners."""
    at = folder / "hetrec2011-lastfm-2k"
    ends = np.loadtxt(at / "user_friends.dat", dtype=np.int64, skiprows=1)
    heard = np.loadtxt(at / "user_artists.dat", dtype=np.int64, skiprows=1)
    fans = set(heard[heard[:, 1] == np.bincount(heard[:, 1]).argmax(), 0].tolist())
    return undirected(ends, {int(user): 1.0 if user in fans else -1.0 for user in np.unique(heard[:, 0])})


def filmtrust_generous(folder: Path) -> tuple[mppfl.SocialGraph, np.ndarray]:
    """FilmTrust; whose mean rating is above the median of those in the trust network."""
    ends = np.loadtxt(folder / "filmtrust/trust.txt", dtype=np.int64)[:, :2]
    rated = np.loadtxt(folder / "filmtrust/ratings.txt")
    users = rated[:, 0].astype(np.int64)
    sums, counts = np.bincount(users, rated[:, 2]), np.bincount(users)
    members = [int(u) for u in np.unique(ends) if u < len(counts) and counts[u] > 0]
    means = {u: sums[u] / counts[u] for u in members}
    middle = float(np.median(list(means.values())))
    return undirected(ends, {u: 1.0 if mean > middle else -1.0 for u, mean in means.items()})


PAIRS = {
    "email department": email_department,
    "Deezer gender": deezer_gender,
    "Facebook 107 school": facebook(107, "education;school;id"),
    "Facebook 107 gender": facebook(107, "gender"),
    "Facebook 1684 school": facebook(1684, "education;school;id"),
    "Facebook 1912 hometown": facebook(1912, "hometown;id"),
    "Facebook 0 school": facebook(0, "education;school;id"),
    "Last.fm artist": lastfm_artist,
    "FilmTrust generous": filmtrust_generous,
}


# ---- measured against predicted ---------------------------------------------------------------------------------


def audit(graph: mppfl.SocialGraph, signs: np.ndarray, budgets: np.ndarray, seed: int) -> dict:
    """The audit's details; one seed gives one public share and one stream of noise, whatever the budgets."""
    found = audit_neighbour(
        graph,
        signs,
        budgets,
        rng=np.random.default_rng(seed),
        attackers=("gaussian_field",),
        public_share=PUBLIC_SHARE,
    )
    return found.details


def study(graph: mppfl.SocialGraph, signs: np.ndarray, seeds: int) -> dict:
    degrees = np.asarray(friendships(graph).sum(axis=1)).ravel()
    spreads = {name: propagate(graph, *setting) for name, setting in INDICES.items()}
    rows = {}
    for name, (mean, spread) in SETTINGS.items():
        tries = []
        for seed in range(seeds):
            drawn = np.random.default_rng(1000 + seed).lognormal(0, spread, graph.num_clients)
            budgets = mean * drawn / drawn.mean()
            details = audit(graph, signs, budgets, seed)
            targets, leak = details["targets"], details["client_leak"]
            level = leak_model(graph, None, fit=details["fit"]).levels(budgets).nats[targets]
            indices = {key: spearman((spread_ @ budgets)[targets], leak) for key, spread_ in spreads.items()}
            tries.append(
                {
                    "leak": details["leak"],
                    "standard_error": details["standard_error"],
                    "accuracy": details["accuracy"],
                    "prior_accuracy": details["prior_accuracy"],
                    "null_leak": details["null_leak"],
                    "null_standard_error": details["null_standard_error"],
                    "r_leak": float(level.mean()),
                    "spearman_r_leak": asdict(spearman(level, leak)),
                    "spearman_degree": asdict(spearman(degrees[targets], leak)),
                    "spearman_r_model": {key: asdict(each) for key, each in indices.items()},
                    "beta": details["fit"].beta,
                    "eta": details["fit"].eta,
                }
            )
        rows[name] = {"tries": tries, **summary(tries)}
    return rows


def summary(tries: list[dict]) -> dict:
    """Means over the public shares. Shares overlap in their targets, so more of them shorten no interval of targets."""

    def mean(of: Callable[[dict], float]) -> float:
        return float(np.mean([of(each) for each in tries]))

    def error_of(name: str, of_targets: str) -> float:
        """Of targets, as one share has it, and of shares and noise, as they differ."""
        between = np.std([each[name] for each in tries], ddof=1) / np.sqrt(len(tries)) if len(tries) > 1 else 0.0
        return float(np.hypot(mean(lambda t: t[of_targets]), between))

    leak, error = mean(lambda t: t["leak"]), error_of("leak", "standard_error")
    null, null_error = mean(lambda t: t["null_leak"]), error_of("null_leak", "null_standard_error")
    level = mean(lambda t: t["r_leak"])
    ranks = {"R_leak": mean(lambda t: t["spearman_r_leak"]["value"])}
    ranks["degree"] = mean(lambda t: t["spearman_degree"]["value"])
    for key in INDICES:
        ranks[f"R_model {key}"] = mean(lambda t, key=key: t["spearman_r_model"][key]["value"])
    others = [value for name, value in ranks.items() if name != "R_leak"]
    return {
        "leak": leak,
        "interval": [leak - 1.96 * error, leak + 1.96 * error],
        "null": null,
        "null_interval": [null - 1.96 * null_error, null + 1.96 * null_error],
        "r_leak": level,
        "measured_over_r_leak": leak / level if level > 0 else None,
        "spearman": ranks,
        "spearman_r_leak_interval": [mean(lambda t, e=e: t["spearman_r_leak"][e]) for e in ("low", "high")],
        "level_holds": None if leak < WORTH_MEASURING else bool(0.5 <= leak / level <= 2.0),
        "ranking_holds": bool(ranks["R_leak"] > max(others)),
    }


def rank_as_calibrated(graph: mppfl.SocialGraph, signs: np.ndarray, seeds: int) -> dict:
    """Ranks by the part of R_leak that `calibrate` chooses on the public share, against degree, outside the share."""
    degrees = np.asarray(friendships(graph).sum(axis=1)).ravel()
    rows = []
    for seed in range(seeds):
        chosen = None
        for name in ("equal 0.3", "unequal 0.3"):
            mean, spread = SETTINGS[name]
            drawn = np.random.default_rng(1000 + seed).lognormal(0, spread, graph.num_clients)
            budgets = mean * drawn / drawn.mean()
            details = audit(graph, signs, budgets, seed)
            targets, leak = details["targets"], details["client_leak"]
            if chosen is None:
                shown = np.array(signs)
                shown[targets] = np.nan
                chosen = calibrate(graph, shown, rng=np.random.default_rng(seed), public_share=1.0, budget=mean)
            levels = leak_model(graph, None, fit=details["fit"]).levels(budgets)
            by_field = chosen.by_field.value >= chosen.by_friends.value
            part = levels.r_gp if by_field else levels.r_sat
            rows.append(
                {
                    "seed": seed,
                    "budgets": name,
                    "chosen": "R_gp" if by_field else "R_sat",
                    "verdict": chosen.verdict,
                    "spearman_chosen": spearman(part[targets], leak).value,
                    "spearman_degree": spearman(degrees[targets], leak).value,
                }
            )
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("spearman_chosen", "spearman_degree")}
    return {"tries": rows, **means}


# ---- prices -----------------------------------------------------------------------------------------------------


def price(graph: mppfl.SocialGraph, signs: np.ndarray, seeds: int) -> dict:
    """Every arm over `seeds` public shares, cost draws and noise streams; changes with a t interval over them."""
    tries = [price_once(graph, signs, seed) for seed in range(seeds)]
    leaks = {name: np.array([each["arms"][name]["leak"] for each in tries]) for name in tries[0]["arms"]}
    base = leaks["social_agnostic"]
    arms = {}
    for name, leak in leaks.items():
        of = [each["arms"][name] for each in tries]
        arms[name] = {key: float(np.mean([each[key] for each in of])) for key in of[0]}
        change = (leak - base) / base.mean()
        width = float(student.ppf(0.975, seeds - 1) * change.std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else np.nan
        arms[name] |= {"change": float(change.mean()), "change_low": float(change.mean()) - width}
        arms[name] |= {"change_high": float(change.mean()) + width, "residual": max(each["residual"] for each in of)}
    return {"tries": tries, "arms": arms}


def price_once(graph: mppfl.SocialGraph, signs: np.ndarray, seed: int) -> dict:
    size = graph.num_clients
    wanted = np.random.default_rng(2000 + seed).lognormal(0, COST_SPREAD, size)
    total = PRICED_MEAN * size
    agnostic = total * wanted / wanted.sum()
    most = np.full(size, max(LARGEST_OVER_MEAN * PRICED_MEAN, float(agnostic.max())))
    clients = mppfl.Clients(1 / (2 * wanted), np.zeros(size), np.ones(size))
    blind = mppfl.make_game(graph, clients, max_hops=1, hop_decay=0.5, externality_strength=0.0)
    blind = blind.with_bounds(np.zeros(size), most)
    rate = total / float(wanted.sum())
    began = time.perf_counter()
    base = audit(graph, signs, agnostic, seed)
    model = leak_model(graph, None, fit=base["fit"])
    starts = agnostic, np.full(size, total / size)
    least = [least_leakage(model.smooth_total_and_marginal, total, np.zeros(size), most, start) for start in starts]
    arms: dict[str, tuple[np.ndarray, float]] = {"social_agnostic": (agnostic, 0.0)}
    arms["dp_fedavg"] = np.full(size, total / size), 0.0
    wide = mppfl.make_game(graph, clients, max_hops=3, hop_decay=0.5, externality_strength=0.5 / 1.75)
    budgets = mppfl_mechanism(wide, Horizon(np.array([1])))[0].budgets
    arms["mppfl"] = budgets * total / float(budgets.sum()), 0.0  # b = 0: budgets are proportional to the rate
    typical = float(model.smooth_total_and_marginal(agnostic)[1].mean())
    start = agnostic
    for step in PRICE_STEPS:
        try:
            found = price_leakage(
                blind, model.smooth_total_and_marginal, step * rate / typical, total=total, start=start
            )
            start, residual = found.budgets, found.kkt_residual
        except mppfl.NotConverged as stopped:  # its residual is in the record, and the table shows it
            start, residual = stopped.last_iterate, stopped.residual
        arms[f"leakage_priced {step:g}"] = start, residual
    # The same budgets in other hands: what of the reduction is due to few holding much, and not to who they are.
    shuffled = np.random.default_rng(3000 + seed).permutation(start)
    arms[f"shuffled {PRICE_STEPS[-1]:g}"] = shuffled, 0.0
    budgets, _, gap = min(least, key=lambda end: end[1])
    arms["least leakage"] = budgets, gap
    rows = {name: arm_row(graph, signs, model, clients, *arm, seed) for name, arm in arms.items()}
    return {"arms": rows, "least_from_starts": [end[1] for end in least], "seconds": time.perf_counter() - began}


def frontier(graph: mppfl.SocialGraph, signs: np.ndarray, seeds: int) -> list[dict]:
    """Measured leak against Σρ, the accuracy term, for social-agnostic budgets and for the steepest leak price."""
    rows = []
    for mean in FRONTIER_MEANS:
        sums = []
        for seed in range(seeds):
            wanted = np.random.default_rng(2000 + seed).lognormal(0, COST_SPREAD, graph.num_clients)
            total = mean * graph.num_clients
            agnostic = total * wanted / wanted.sum()
            base = audit(graph, signs, agnostic, seed)
            leak = leak_model(graph, None, fit=base["fit"]).smooth_total_and_marginal
            clients = mppfl.Clients(1 / (2 * wanted), np.zeros(len(wanted)), np.ones(len(wanted)))
            game = mppfl.make_game(graph, clients, max_hops=1, hop_decay=0.5, externality_strength=0.0)
            rate, typical = total / float(wanted.sum()), float(leak(agnostic)[1].mean())
            found = price_leakage(game, leak, PRICE_STEPS[-1] * rate / typical, total=total, start=agnostic)
            sums.append((base["leak"], audit(graph, signs, found.budgets, seed)["leak"], found.kkt_residual))
        agnostic_leak, priced_leak, residual = np.mean(sums, axis=0)
        rows.append({"mean_budget": mean, "total_budget": mean * graph.num_clients, "seeds": seeds})
        rows[-1] |= {"social_agnostic": agnostic_leak, "leakage_priced": priced_leak, "mean_residual": residual}
    return rows


def arm_row(graph, signs, model, clients, budgets, residual, seed) -> dict:
    """Measured and predicted leak of one arm, and what it asks of clients."""
    details = audit(graph, signs, budgets, seed)
    return {
        "leak": details["leak"],
        "standard_error": details["standard_error"],
        "total_budget": float(budgets.sum()),
        "r_leak": model.total(budgets) / len(budgets),
        "participating": float((budgets > 1e-9).mean()),
        "privacy_cost": float(clients.quadratic_cost @ budgets**2),
        "residual": residual,
    }


# ---- size -------------------------------------------------------------------------------------------------------


def at_scale(size: int) -> dict:
    """A scale-free network with an attribute that follows it: calibrated, and every client scored."""
    rng = np.random.default_rng(0)
    graph = random_graph("barabasi_albert", size, rng=rng, edges_each=5)
    graph = graph_from_matrix(friendships(graph), isolated="keep")
    connected = friendships(graph)
    degrees = np.maximum(np.asarray(connected.sum(axis=1)).ravel(), 1)
    smooth = rng.standard_normal(size)
    for _ in range(3):
        smooth = smooth + 1.5 * (connected @ smooth) / degrees
    signs = np.where(smooth + 0.5 * smooth.std() * rng.standard_normal(size) > np.median(smooth), 1.0, -1.0)
    began, before = time.perf_counter(), time.process_time()
    found = calibrate(graph, signs, rng=np.random.default_rng(1), public_share=PUBLIC_SHARE)
    calibrated = time.perf_counter() - began
    budgets = 0.3 * np.random.default_rng(3).lognormal(0, 0.5, size)
    again = time.perf_counter()
    scored = leak_model(graph, None, seed=4, fit=found.fit).levels(budgets)
    scored.marginal()
    seconds = time.perf_counter() - again
    of_both = time.process_time() - before
    part = scored.error > 0
    return {
        "clients": size,
        "edges": int(connected.nnz // 2),
        "calibrate_seconds": calibrated,
        "score_seconds": seconds,  # levels and marginal leaks of everybody
        "cpu_seconds": of_both,
        "load_after": os.getloadavg()[0],
        "total_seconds": calibrated + seconds,
        "beta": [found.fit.beta, *found.beta],
        "eta": [found.fit.eta, *found.eta],
        "verdict": found.verdict,
        "mean_r_leak": float(scored.nats.mean()),
        "median_relative_error": float(np.median(scored.error[part] / scored.nats[part])) if part.any() else None,
    }


# ---- record and table -------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--scale", type=int, default=100_000)
    parser.add_argument("--without-scale", action="store_true")
    parser.add_argument("--without-frontier", dest="frontier", action="store_false")
    given = parser.parse_args()
    root = os.environ.get("MPPFL_DATA")
    if not root or not (Path(root) / "graphs").is_dir():
        sys.exit("set MPPFL_DATA to the folder that holds graphs/ (docs/data-sets.md)")
    path = RECORDS / f"{datetime.now(UTC):%Y-%m-%d}-leakage.json"
    record = {"pairs": {}, "frontier": None, "scale": None}
    if path.exists() and not given.again:
        record |= json.loads(path.read_text())
    record["circumstances"] = circumstances("numpy", "scipy")
    for name, load in PAIRS.items():
        if given.only is not None and name not in given.only:
            continue
        if record["pairs"].get(name, {}).get("seeds", 0) >= given.seeds:
            continue
        began = time.perf_counter()
        record["pairs"][name] = pair(load(Path(root) / "graphs"), given.seeds)
        record["pairs"][name]["seconds"] = time.perf_counter() - began
        save(record, path, given.again)
        print(f"{name}: {record['pairs'][name]['seconds']:.0f} s", file=sys.stderr, flush=True)
    for name, found in record["pairs"].items():
        if found["homophilous"] and "as_calibrated" not in found and (given.only is None or name in given.only):
            graph, signs = PAIRS[name](Path(root) / "graphs")
            found["as_calibrated"] = rank_as_calibrated(graph, signs, seeds=2)
            save(record, path, given.again)
    if given.frontier and record.get("frontier") is None:
        graph, signs = PAIRS[FRONTIER_OF](Path(root) / "graphs")
        record["frontier"] = {"pair": FRONTIER_OF, "points": frontier(graph, signs, seeds=1)}
        save(record, path, given.again)
    if not given.without_scale and record["scale"] is None:
        record["scale"] = at_scale(given.scale)
        save(record, path, given.again)
    show(record)


def save(record: dict, path: Path, again: bool) -> None:
    """Writes the record, with what another run has measured meanwhile."""
    if path.exists() and not again:
        before = json.loads(path.read_text())
        record["pairs"] = before["pairs"] | record["pairs"]
        for name in ("frontier", "scale"):
            record[name] = record[name] or before.get(name)
    write_record("leakage", record)


def pair(loaded: tuple[mppfl.SocialGraph, np.ndarray], seeds: int) -> dict:
    graph, signs = loaded
    shown = np.where(np.random.default_rng(0).random(len(signs)) < PUBLIC_SHARE, signs, np.nan)
    alike = homophily(walk_of(graph), shown, np.random.default_rng(0))
    found = {
        "seeds": seeds,
        "clients": graph.num_clients,
        "edges": int(friendships(graph).nnz // 2),
        "positive": float((signs > 0).mean()),
        "edge_correlation": [alike.edge.value, alike.edge.low, alike.edge.high],
        "homophilous": bool(alike.edge.low > 0),
        "walk_decay": alike.walk_decay,
        "measured": study(graph, signs, seeds),
    }
    if found["measured"]["equal 0.3"]["leak"] >= WORTH_MEASURING:
        found["priced"] = price(graph, signs, seeds)
    return found


def show(record: dict) -> None:
    print(f"{'pair':<24}{'budgets':<13}{'leak (95 %)':<24}{'null':>8}{'R_leak':>9}{'ratio':>7}   Spearman: ", end="")
    print(f"{'R_leak':>7}{'degree':>8}{'best R_model':>14}")
    for name, found in record["pairs"].items():
        print(f"{name}, {found['clients']:,} clients, edge correlation {found['edge_correlation'][0]:.3f}")
        for setting, row in found["measured"].items():
            low, high = row["interval"]
            ranks = row["spearman"]
            best = max(value for key, value in ranks.items() if key.startswith("R_model"))
            ratio = row["measured_over_r_leak"]
            leak = f"{row['leak']:.4f} ({low:.4f} to {high:.4f})"
            print(f"{'':<24}{setting:<13}{leak:<24}{row['null']:>9.4f}{row['r_leak']:>8.4f}", end="")
            shown = "-" if ratio is None else f"{ratio:.2f}"
            print(f"{shown:>7}{'':>13}{ranks['R_leak']:>7.2f}{ranks['degree']:>8.2f}{best:>14.2f}")
        if "as_calibrated" in found:
            ranks, choices = found["as_calibrated"], [row["chosen"] for row in found["as_calibrated"]["tries"]]
            print(f"{'':<24}as calibrated: Spearman {ranks['spearman_chosen']:.2f} of {', '.join(choices)}, ", end="")
            print(f"degree {ranks['spearman_degree']:.2f}")
        for arm, row in found.get("priced", {}).get("arms", {}).items():
            change = f"{100 * row['change']:+.1f} % ({100 * row['change_low']:+.1f} to {100 * row['change_high']:+.1f})"
            print(f"{'':<24}{arm:<21}leak {row['leak']:.4f}, {change:<28} R_leak {row['r_leak']:.4f}, ", end="")
            print(f"{100 * row['participating']:.0f} % participate, cost {row['privacy_cost']:.3g}, ", end="")
            print(f"residual {row['residual']:.1g}")
    for point in (record.get("frontier") or {"points": []})["points"]:
        print(f"frontier, {record['frontier']['pair']}: Σρ {point['total_budget']:.4g}, ", end="")
        print(f"leak {point['social_agnostic']:.4f} social_agnostic, {point['leakage_priced']:.4f} leakage_priced")
    if record["scale"]:
        big = record["scale"]
        print(
            f"{big['clients']:,} clients, {big['edges']:,} edges: calibrated in {big['calibrate_seconds']:.0f} s, "
            f"scored in {big['score_seconds']:.0f} s ({big['cpu_seconds']:.0f} s of one core); {big['verdict']}"
        )


def measured_table(record: dict) -> str:
    """The table of docs/leakage.md: measured against predicted."""
    lines = [
        "| pair | clients | edge correlation | budgets | leak, nats (95 %) | permuted | `R_leak` | leak / `R_leak` "
        "| Spearman `R_leak` | degree | best `R_model` |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in record["pairs"].items():
        edge, low, high = found["edge_correlation"]
        alike = f"{edge:.2f} ({low:.2f} to {high:.2f})"
        for setting, row in found["measured"].items():
            ranks = row["spearman"]
            best = max(value for key, value in ranks.items() if key.startswith("R_model"))
            least, most = row["interval"]
            cells = [
                name,
                f"{found['clients']:,}",
                alike,
                setting,
                f"{row['leak']:.3f} ({least:.3f} to {most:.3f})",
                f"{row['null']:.4f}",
                f"{row['r_leak']:.3f}",
                f"{row['measured_over_r_leak']:.2f}" if row["leak"] >= WORTH_MEASURING else "–",
                *(f"{each:.2f}" for each in (ranks["R_leak"], ranks["degree"], best)),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def priced_table(record: dict) -> str:
    """The table of docs/leakage.md: what prices change against social-agnostic budgets at equal Σρ."""
    arms: list[str] = []
    for found in record["pairs"].values():
        arms = list(found["priced"]["arms"]) if "priced" in found else arms
    arms = [arm for arm in arms if arm != "social_agnostic"]
    lines = [f"| pair | leak | {' | '.join(arms)} |", "|---" * (len(arms) + 2) + "|"]
    for name, found in record["pairs"].items():
        if "priced" not in found:
            continue
        rows = found["priced"]["arms"]
        cells = [
            f"{100 * rows[arm]['change']:+.0f} % ({100 * rows[arm]['change_low']:+.0f} to "
            f"{100 * rows[arm]['change_high']:+.0f})"
            for arm in arms
        ]
        lines.append(f"| {name} | {rows['social_agnostic']['leak']:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
