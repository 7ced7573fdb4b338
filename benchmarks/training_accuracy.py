"""Accuracy on real data: what federated training reaches without noise, and what noise-aware weights are worth.

    python benchmarks/training_accuracy.py fashion-mnist --device cuda
    python benchmarks/training_accuracy.py cifar-10 --device cuda

Needs the official files under MPPFL_DATA. Each case writes benchmarks/records/<date>-accuracy-<case>.json; with
--output elsewhere.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

import mppfl
from mppfl.data import load_dataset, split_dataset
from mppfl.training import TrainingConfig, TrainingJob, make_model, train_many
from record import circumstances, write_record

sys.path.insert(0, str(Path(__file__).parent.parent))  # the paper's noise lives with its reproduction
from reproduction.paper_noise import PaperNoise

CASES = {
    "fashion-mnist": {"model": "cnn_fmnist", "rounds": 30, "arms": [("noiseless", "num_examples")]},
    "cifar-10": {
        "model": "cnn_cifar",
        "rounds": 80,
        "arms": [
            ("mppfl", "noise_aware"),
            ("mppfl", "num_examples"),
            ("social_agnostic", "noise_aware"),
            ("noiseless", "num_examples"),
        ],
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--unit", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    case = CASES[chosen.case]
    num_rounds = chosen.rounds or case["rounds"]

    rng = {name: np.random.default_rng([chosen.seed, k]) for k, name in enumerate(("graph", "clients", "split"))}
    graph = mppfl.random_graph("erdos_renyi", 20, rng=rng["graph"])
    game = mppfl.make_game(graph, mppfl.draw_clients("paper-like", 20, rng["clients"]), externality_strength=0.05)
    data = split_dataset(load_dataset(chosen.case), "iid", 20, rng=rng["split"])
    # Everybody faces the rates of mppfl, as in the comparison under common reward.
    common = mppfl.solve(game, "mppfl", num_rounds=num_rounds).plan.reward_rates
    arms = []
    for mechanism, aggregation in case["arms"]:
        plan = mppfl.solve(game, mechanism, num_rounds=num_rounds, reward_rates=common).plan
        config = TrainingConfig(
            learning_rate=0.01, batch_size=32, local_epochs=5, protection=PaperNoise(budget_unit=chosen.unit),
            aggregation=aggregation, device=chosen.device, precision=chosen.precision, seed=chosen.seed,
        )  # fmt: skip
        arms.append(TrainingJob(f"{mechanism}, {aggregation} weights", plan, data, config))

    model = make_model(case["model"], data.input_shape, data.num_classes)
    curves = {arm.name: [] for arm in arms}
    started = time.perf_counter()
    last = {}
    for last in train_many(model, arms):
        for name, record in last.items():
            curves[name].append(round(record.accuracy, 4))
        first = next(iter(last.values()))
        told = "  ".join(f"{record.accuracy:.4f}" for record in last.values())
        print(f"round {first.round_index:>3}  {told}  {first.seconds:.1f} s", flush=True)
    seconds = time.perf_counter() - started
    result = circumstances("torch", "numpy", "scipy") | {
        "case": chosen.case,
        "model": case["model"],
        "num_clients": 20,
        "split": data.split_dataset,
        "provenance": data.provenance,
        "privacy": "paper",
        "budget_unit": chosen.unit,
        "clip_norm": {name: record.clip_norm for name, record in last.items()},
        "seed": chosen.seed,
        "final_accuracy": {name: record.accuracy for name, record in last.items()},
        "best_accuracy": {name: max(found) for name, found in curves.items()},
        "curves": curves,
        "engine": next(iter(last.values())).engine,
        "seconds": seconds,
        "samples_per_second": len(arms) * num_rounds * 5 * len(data.labels) / seconds,
    }
    print(json.dumps({k: v for k, v in result.items() if k != "curves"}, indent=1))
    write_record(f"accuracy-{chosen.case}", result, chosen.output)


if __name__ == "__main__":
    main()
