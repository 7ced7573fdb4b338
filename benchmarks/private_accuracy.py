"""Accuracy under a sound guarantee for every record: examples/fashion_mnist_private.toml at ε = 1, 3 and 8.

    MPPFL_DATA=<folder of the data sets> python benchmarks/private_accuracy.py

Needs the official files of Fashion-MNIST. Prints a table and writes benchmarks/records/<date>-private-accuracy.json;
with --output elsewhere. Seeds differ in the split, the network and the noise, which makes it a simulation.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import mppfl
from record import circumstances, write_record

RECIPE = Path(__file__).parents[1] / "examples" / "fashion_mnist_private.toml"
# ε: clip_norm and learning_rate, chosen on 10,000 held-out training pictures, which is not part of the account
CHOSEN = {1.0: (0.4, 8.0), 3.0: (0.3, 32.0), 8.0: (0.4, 32.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    around = circumstances("torch", "numpy", "scipy")
    rows = []
    print("      ε   reached   accuracy   least    most   clip_norm   learning_rate   seconds")
    for dp_epsilon, (clip_norm, learning_rate) in CHOSEN.items():
        experiment = mppfl.read_experiment(
            RECIPE,
            [
                f"seeds={chosen.seeds}",
                f"protection.total_epsilon={dp_epsilon}",
                f"protection.clip_norm={clip_norm}",
                f"training.learning_rate={learning_rate}",
                f"training.device={chosen.device}",
            ],
        )
        started = time.perf_counter()
        runs = mppfl.run_experiment(experiment)
        row = {
            "dp_epsilon": dp_epsilon,
            "dp_epsilon_reached": max(float(run.accounts.dp_epsilon.max()) for run in runs),
            "dp_delta": runs[0].accounts.dp_delta,
            "spent": float(runs[0].accounts.spent.max()),
            "clip_norm": clip_norm,
            "learning_rate": learning_rate,
            "accuracy": {run.name: run.final_accuracy for run in runs},
            "mean_accuracy": float(np.mean([run.final_accuracy for run in runs])),
            "notes": sorted({note for run in runs for note in run.notes}),
            "engine": runs[0].history.engine[0],
            "seconds": time.perf_counter() - started,
        }
        rows.append(row)
        least, most = (100 * pick(row["accuracy"].values()) for pick in (min, max))
        print(
            f"{dp_epsilon:7g}{row['dp_epsilon_reached']:10.5f}{100 * row['mean_accuracy']:9.2f} %{least:8.2f}"
            f"{most:8.2f}{clip_norm:12g}{learning_rate:16g}{row['seconds']:10.1f}",
            flush=True,
        )
    about = {
        "recipe": RECIPE.name,
        "protection": runs[0].accounts.protection,
        "guarantee": runs[0].accounts.guarantee,
        "adjacency": runs[0].accounts.adjacency,
        "noise": runs[0].accounts.noise,
        "num_clients": runs[0].num_clients,
        "num_rounds": runs[0].num_rounds,
        "seeds": chosen.seeds,
        "tuning": "on 10,000 held-out training pictures, whose privacy cost is not part of the account",
    }
    print(write_record("private-accuracy", around | about | {"results": rows}, chosen.output))


if __name__ == "__main__":
    main()
