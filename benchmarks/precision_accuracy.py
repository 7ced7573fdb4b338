"""Whether lower precision costs accuracy: FedAvg on CIFAR-10 in every precision of the engine, beside the plain loop.

    python benchmarks/precision_accuracy.py --device cuda --output FOLDER

20 clients, IID, the paper's CNN, batch 32, one local epoch, learning rate .05 so that ten rounds get somewhere; no
noise, no clipping that bites. Every seed has its own split, batches and initial model, the same in every precision.
The loop is one client after another in float32 by torch.optim.SGD. Writes records/<date>-precision-accuracy.json.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from mppfl.data import load_dataset, split_dataset
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.privacy import Protection
from mppfl.training import TrainingConfig, TrainingJob, make_model, train_many
from record import circumstances, write_record

CLIENTS, ROUNDS = 20, 10
WAYS = {
    "plain loop, float32": {"engine": "loop", "precision": "float32"},
    "float32": {"precision": "float32"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seeds-of-loop", type=int, default=2)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    dataset = load_dataset("cifar-10")
    datas = [
        split_dataset(dataset, "iid", CLIENTS, rng=np.random.default_rng([seed, 2])) for seed in range(chosen.seeds)
    ]
    free = np.full(CLIENTS, np.inf)
    plan = plan_from_rounds("noiseless", [RoundTerms(number, 0.0, 0.0, free) for number in range(1, ROUNDS + 1)])
    base = TrainingConfig(
        learning_rate=0.05, batch_size=32, local_epochs=1, protection=Protection(unit="client", clip_norm=1e9),
        aggregation="num_examples", device=chosen.device, evaluate_every=ROUNDS,
    )  # fmt: skip
    content = circumstances("torch", "numpy") | {"clients": CLIENTS, "rounds": ROUNDS, "rows": []}
    model = make_model("cnn_cifar", datas[0].input_shape, datas[0].num_classes)
    for name, way in WAYS.items():
        count = chosen.seeds_of_loop if way.get("engine") == "loop" else chosen.seeds
        arms = [
            TrainingJob(f"seed {seed}", plan, datas[seed], replace(base, seed=seed, **way)) for seed in range(count)
        ]
        started = time.perf_counter()
        *_, last = train_many(model, arms)
        accuracies = [record.accuracy for record in last.values()]
        content["rows"].append({"way": name, "accuracies": accuracies, "engine": last["seed 0"].engine,
                                "seconds": time.perf_counter() - started})  # fmt: skip
        spread = statistics.stdev(accuracies) if count > 1 else float("nan")
        print(f"{name:<20} {100 * statistics.mean(accuracies):.2f} % ± {100 * spread:.2f}  {accuracies}", flush=True)
        write_record("precision-accuracy", content, chosen.output)


if __name__ == "__main__":
    main()
