"""How much memory and CPU time one round of a large cohort takes: 1,000, 10,000 and 100,000 clients of 60 examples.

    python benchmarks/cohort_memory.py

All clients draw their examples from one table of 60,000 x 784 float32, so they overlap. The model is an MLP of 50,890
parameters, the engine the one that "auto" takes on a CPU, with one thread. Each measurement is a process of its own:
peak resident memory from its first import on, the table included, and CPU seconds of the round, after a round of some
clients that warms up. Writes records/<date>-cohort-memory.json.
"""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time

import numpy as np

from record import circumstances, write_record

CLIENTS = (1_000, 10_000, 100_000)
EXAMPLES, SHAPE, CLASSES = 60_000, (784,), 10
EACH, BATCH, WARM_UP = 60, 20, 200
PROTECTIONS = {
    "secure_sum": {"trust": "secure_sum", "unit": "client"},
    "local": {"unit": "client"},
}
BAR_BYTES, SLOWER = 2 * 10**9, 1.1  # a round may be this much slower by the client, which is what the clock's noise is


def measured(num_clients: int, protection: str) -> dict:
    """One round in this process."""
    import torch

    from mppfl.data import client_data
    from mppfl.game import RoundTerms, plan_from_rounds
    from mppfl.training import TrainingConfig, make_model, train_rounds

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((EXAMPLES, *SHAPE), dtype=np.float32)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    config = TrainingConfig(
        hidden=(64,), learning_rate=0.05, local_epochs=1, batch_size=BATCH, protection=PROTECTIONS[protection]
    )
    model = make_model("mlp", SHAPE, CLASSES, hidden=(64,))

    def one_round(count: int) -> tuple[float, float, str]:
        members = [rng.choice(EXAMPLES, EACH, replace=False, shuffle=False) for _ in range(count)]
        data = client_data(
            features, labels, members, features[:1000], labels[:1000], num_classes=CLASSES, overlapping=True
        )
        plan = plan_from_rounds("by hand", [RoundTerms(1, 1.0, 1.0, rng.uniform(0.5, 1.5, count))])
        gc.collect()
        before, started = time.process_time(), time.perf_counter()
        (record,) = train_rounds(model, data, plan, config)
        return time.process_time() - before, time.perf_counter() - started, record.engine

    one_round(WARM_UP)
    warm = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cpu, wall, engine = one_round(num_clients)
    return {
        "clients": num_clients,
        "protection": protection,
        "parameters": sum(part.numel() for part in model.parameters()),
        "engine": engine,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes_after_warm_up": warm,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "cpu_ms_by_client": 1000 * cpu / num_clients,
    }


def measured_apart(num_clients: int, protection: str) -> dict:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", str(num_clients), protection]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("CLIENTS", "PROTECTION"), help="measure here and print one row")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measured(int(chosen.one[0]), chosen.one[1])))
        return
    content = circumstances("torch", "numpy") | {"examples_each": EACH, "batch_size": BATCH, "rows": []}
    print(f"{'protection':<14}{'clients':>9}{'peak MB':>9}{'CPU ms a client':>17}{'CPU s':>8}{'wall s':>8}")
    for protection in PROTECTIONS:
        for num_clients in chosen.clients:
            row = measured_apart(num_clients, protection)
            first = next((r for r in content["rows"] if r["protection"] == protection), row)
            row["times_the_smallest"] = row["cpu_ms_by_client"] / first["cpu_ms_by_client"]
            row["reached"] = row["peak_bytes"] < BAR_BYTES and row["times_the_smallest"] <= SLOWER
            content["rows"].append(row)
            print(
                f"{protection:<14}{num_clients:>9,}{row['peak_bytes'] / 1e6:>9,.0f}{row['cpu_ms_by_client']:>17.3f}"
                f"{row['cpu_seconds']:>8.1f}{row['wall_seconds']:>8.1f}",
                flush=True,
            )
    print(write_record("cohort-memory", content))


if __name__ == "__main__":
    main()
