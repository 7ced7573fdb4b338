"""The privacy ledger at size: one million releases, ε of all of 10,000 clients, and one round of 10,000 clients.

    python benchmarks/ledger.py

On the disk of the temporary folder, with every commit forced to it. Bars: all ε in less than 3 s, a round in less than
0.5 s. Rounds are timed one by one while the ledger grows; ε is asked for by a newly opened ledger.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from mppfl.privacy import ReleaseCost
from mppfl.privacy.ledger import PrivacyLedger
from record import circumstances, write_record


def timed(work) -> tuple:
    started = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - started


def measure(num_clients: int, num_rounds: int, folder: Path) -> dict:
    rng = np.random.default_rng(1)
    path = folder / "ledger.db"
    names = [f"client-{number:05d}" for number in range(num_clients)]
    seconds = []
    with PrivacyLedger.open(path) as ledger:
        ledger.set_cap(names, 1e3, "record")
        for round_index in range(1, num_rounds + 1):
            budgets = rng.uniform(1e-3, 1e-1, num_clients).tolist()
            entries = [
                ReleaseCost(name, "local record gradient", "record", "replace_one", budget)
                for name, budget in zip(names, budgets, strict=True)
            ]
            seconds.append(timed(lambda at=round_index, what=entries: ledger.reserve("run", at, what))[1])

    def all_epsilons(method: str):
        with PrivacyLedger.open(path) as ledger:
            return ledger.get_epsilon(None, 1e-5, method)

    epsilons = {method: timed(lambda method=method: all_epsilons(method)) for method in ("exact", "rdp", "zcdp")}
    with PrivacyLedger.open(path) as ledger:
        verified, verify_seconds = timed(ledger.verify)
    assert verified == num_clients * num_rounds
    assert all(len(found) == num_clients and (found > 0).all() for found, _ in epsilons.values())
    return {
        "releases": verified,
        "clients": num_clients,
        "round_seconds": {
            "median": round(statistics.median(seconds), 4),
            "largest": round(max(seconds), 4),
            "last_ten_median": round(statistics.median(seconds[-10:]), 4),
        },
        "epsilon_seconds": {method: round(spent, 4) for method, (_, spent) in epsilons.items()},
        "verify_seconds": round(verify_seconds, 2),
        "file_mb": round(os.path.getsize(path) / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--no-record", action="store_true")
    chosen = parser.parse_args()
    about = circumstances("numpy", "scipy")
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(chosen.clients, chosen.rounds, Path(folder))
    print(figures)
    if not chosen.no_record:
        bars = {
            "epsilon_below_3_s": max(figures["epsilon_seconds"].values()) < 3,
            "round_below_0.5_s": figures["round_seconds"]["median"] < 0.5,
        }
        print(write_record("ledger", {**about, **figures, "bars": bars}))


if __name__ == "__main__":
    main()
