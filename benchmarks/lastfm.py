"""The Last.fm example on the real data: recommendations under three trust models, mechanisms, and what leaks.

    MPPFL_DATA=folder python benchmarks/lastfm.py            measure, and write a record
    MPPFL_DATA=folder python benchmarks/lastfm.py --choose   choose the server's constants on validation users

Needs $MPPFL_DATA/graphs/hetrec2011-lastfm-2k (docs/data-sets.md says where it comes from).
"""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from examples.lastfm.choose import choose
from examples.lastfm.data import read_lastfm
from examples.lastfm.experiment import Outcome, Settings, run_experiment
from examples.lastfm.page import as_json, finite
from examples.lastfm.server import CONSTANTS, SUM_CONSTANTS

from record import circumstances, write_record

LONGEST = 180.0  # seconds on two cores
BARS = (  # trust model, arm, least NDCG@10
    ("record", "fixed at MPPFL's mean", 0.16),
    ("secure", "fixed at MPPFL's mean", 0.19),
    ("secure", "MPPFL, noise-aware", 0.19),
)


def bars_of(outcome: Outcome) -> list[dict]:
    """Which bars were reached: by the mean over splits, and the time by this run's clock."""
    rows = []
    for trust, name, least in BARS:
        score = next(each for each in outcome.arms[trust] if each.name == name)
        rows.append(
            {
                "what": f"NDCG@10, {trust}, {name}, mean ρ {score.mean_budget:.3g}",
                "wanted": least,
                "measured": score.ndcg,
                "reached": score.ndcg >= least,
            }
        )
    rows.append(
        {
            "what": "seconds on two cores",
            "wanted": LONGEST,
            "measured": outcome.seconds,
            "reached": outcome.seconds <= LONGEST,
        }
    )
    return rows


def main() -> None:
    root = os.environ.get("MPPFL_DATA")
    if not root:
        sys.exit("set MPPFL_DATA to the folder that holds graphs/")
    listening = read_lastfm(Path(root) / "graphs" / "hetrec2011-lastfm-2k")
    if sys.argv[1:] == ["--choose"]:
        first, second = choose(listening, Settings(), print)
        print(first, second, sep="\n")
        print("as in the code" if (first, second) == (CONSTANTS, SUM_CONSTANTS) else "DIFFERENT from the code")
        return
    if sys.argv[1:]:
        sys.exit(f"unknown argument {sys.argv[1]!r}; there is only --choose")
    around = circumstances("mppfl", "numpy", "scipy")
    before = time.process_time()
    outcome = run_experiment(listening, tell=print)
    rows = bars_of(outcome)
    for row in rows:
        verdict = "reached" if row["reached"] else "MISSED"
        print(f"{verdict:<9}{row['measured']:.4g} (wanted {row['wanted']:g})  {row['what']}")
    found = finite(as_json(outcome))
    constants = {"profiles": asdict(CONSTANTS), "sums": asdict(SUM_CONSTANTS)}
    spent = {
        "cpu_seconds": time.process_time() - before,
        "load_after": os.getloadavg()[0],
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
    }
    print(write_record("lastfm", around | spent | {"bars": rows, "constants": constants, "outcome": found}))


if __name__ == "__main__":
    main()
