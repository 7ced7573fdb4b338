"""The game on real social networks: 100 rounds, exact diagonal, αS up to .98, and what is special on each.

    MPPFL_DATA=folder python benchmarks/real_graphs.py [name ...]

Needs the networks under $MPPFL_DATA/graphs (docs/data-sets.md says where they come from). One record for all.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import mppfl
from mppfl.game import Game, equilibrium_response, pigouvian_weights
from mppfl.network import graph_from_matrix
from record import circumstances, write_record

REACHES = (0.205, 0.5, 0.8, 0.98)  # αS; the first is the preset's
ROUNDS = 100


def load(name: str, folder: Path) -> mppfl.SocialGraph:
    keep = {"isolated": "keep", "self_loops": "drop"}
    if name == "wiki-Vote":
        return mppfl.read_graph(folder / "snap-plain/wiki-Vote.txt", **keep)
    if name == "Slashdot0902":
        return mppfl.read_graph(folder / "snap-plain/soc-Slashdot0902.txt.gz", **keep)
    if name == "Last.fm friends":
        return mppfl.read_graph(folder / "hetrec2011-lastfm-2k/user_friends.dat", **keep)
    if name == "ego-Facebook":
        return ego_facebook(folder / "ego-facebook")
    if name == "Ciao trust":
        from scipy.io import loadmat

        pairs = loadmat(folder / "ciao-epinions/Ciao/trustnetwork.mat")["trustnetwork"].astype(np.int64)
        people, ends = np.unique(pairs[:, :2], return_inverse=True)
        ends = ends.reshape(-1, 2)
        return mppfl.graph_from_edges(
            ends[:, 1], ends[:, 0], names=[str(p) for p in people], **keep
        )  # whom I trust exposes me
    sys.exit(f"unknown network {name!r}")


def ego_facebook(folder: Path) -> mppfl.SocialGraph:
    """All ego networks put together: friends of an ego are its friends too."""
    edges = []
    for file in sorted(folder.glob("*.edges")):
        ego = int(file.stem)
        pairs = np.loadtxt(file, dtype=np.int64).reshape(-1, 2)
        members = np.loadtxt(file.with_suffix(".feat"), dtype=np.int64, usecols=0, ndmin=1)
        edges += [pairs, np.column_stack([np.full(len(members), ego), members])]
    ends = np.concatenate(edges)
    ends = ends[ends[:, 0] != ends[:, 1]]
    people, positions = np.unique(ends, return_inverse=True)
    positions = positions.reshape(-1, 2)
    size = len(people)
    one_way = sp.coo_array((np.ones(len(ends)), (positions[:, 0], positions[:, 1])), shape=(size, size)).tocsr()
    both = ((one_way + one_way.T) > 0).astype(float)
    return graph_from_matrix(both, names=[str(p) for p in people], isolated="keep")


NETWORKS = ("wiki-Vote", "Slashdot0902", "ego-Facebook", "Last.fm friends", "Ciao trust")


def study(name: str, folder: Path) -> dict:
    graph = load(name, folder)
    looks = graph.describe()
    clients = mppfl.draw_clients("paper-like", graph.num_clients, np.random.default_rng(0))
    began = time.perf_counter()
    spread = mppfl.network.propagate(graph, 5, 0.9, diagonal="exact")
    diagonal = time.perf_counter() - began
    row = {
        "name": name,
        "clients": graph.num_clients,
        "edges": graph.num_edges,
        "empty_rows": looks.num_isolated,
        "isolated_pairs": looks.num_isolated_pairs,
        "diagonal_seconds": diagonal,
        "diagonal_max": float(spread.home.values.max()),
        "column_sum_max": float(spread.column_sums.max()),
        "row_sum_max": float(spread.row_sums.max()),
        "solved": [],
    }
    print(
        f"{name}: {graph.num_clients:,} clients, {graph.num_edges:,} edges, {looks.num_isolated:,} empty rows, "
        f"{looks.num_isolated_pairs} isolated pairs; diagonal {diagonal:.2f} s, up to {row['diagonal_max']:.2f}; "
        f"column sums up to {row['column_sum_max']:.0f}"
    )
    for reach in REACHES:
        game = Game(graph, clients, spread, reach / spread.geometric_sum, 0.5)
        began = time.perf_counter()
        found = mppfl.solve(game, "mppfl", num_rounds=ROUNDS)
        seconds = time.perf_counter() - began
        slopes = equilibrium_response(game).slope
        weights = pigouvian_weights(game)
        solved = {
            "reach": reach,
            "seconds": seconds,
            "residual": found.verification.residual,
            "client_regret": found.verification.client_regret,
            "leader_regret": found.verification.leader_regret,
            "server_cost_first": float(found.outcome.server_costs[0]),
            "slopes_not_positive": int((slopes <= 0).sum()),
            "negative_pigouvian": int((weights < 0).sum()),
            "pigouvian_min": float(weights.min()),
            "taking_part_first": int(found.outcome.participating[0]),
            "taking_part_last": int(found.outcome.participating[-1]),
            "below_zero_first": int(found.outcome.negative_utility[0]),
            "is_unique": found.is_unique,
            "notes": list(found.warnings),
        }
        row["solved"].append(solved)
        print(
            f"  αS={reach:<6} {seconds:7.2f} s  residual {solved['residual']:.0e}  client regret "
            f"{solved['client_regret']:.0e}  u≤0: {solved['slopes_not_positive']:,}  "
            f"c<0: {solved['negative_pigouvian']:,} (min {solved['pigouvian_min']:.1f})  "
            f"participating {solved['taking_part_first']:,}/{graph.num_clients:,}"
        )
    return row


def main() -> None:
    root = os.environ.get("MPPFL_DATA")
    if not root:
        sys.exit("set MPPFL_DATA to the folder that holds graphs/")
    names = sys.argv[1:] or NETWORKS
    around = circumstances("mppfl", "numpy", "scipy", "numba")
    rows = [study(name, Path(root) / "graphs") for name in names]
    if len(rows) == len(NETWORKS):
        print(write_record("real-graphs", around | {"rounds": ROUNDS, "preset": "paper-like", "rows": rows}))


if __name__ == "__main__":
    main()
