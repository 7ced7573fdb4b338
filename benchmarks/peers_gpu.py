"""One federated round on one GPU: mppfl's engine against pfl and a plain PyTorch loop, in turn in one process.

    PYTHONPATH=src:FOLDER_WITH_PFL python benchmarks/peers_gpu.py --output FOLDER

CIFAR-10's CNN and shape of data, 20 clients × 2,500 examples, batch 32, one epoch; the programs are those of the race
on CPUs (benchmarks/peers/). Everybody starts from the same weights and sees the same batches. A turn is mppfl, pfl,
mppfl, loop, ...: a ratio is a peer's seconds over those of mppfl just before it. Without pfl its row says so.
What everybody gained in loss must agree with a loop in float32 within 1 % of the gain. Training makes roundings grow:
weights that differ in their last digit end some tenths of a percent apart, and so do two runs of one loop, because
PyTorch's default rounds convolutions to TF32 and may add them up in any order. The raced programs keep that default;
the loop that is compared with, and every loss, are computed without it.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mppfl.training import make_model
from record import circumstances, write_record

sys.path.append(str(Path(__file__).parent / "peers"))
import with_loop
import with_mppfl
from lap import Stopwatch, Workload
from torch_models import layers_of, put, taken

ROUNDS = 3  # the first warms up
PRECISIONS = ("bf16", "tf32", "float32")
TOLERANCE = 0.01  # of the gain in loss


def workload(clients: int, examples: int) -> Workload:
    """Pictures with something to learn: a class shifts the mean of its own direction."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, (clients, examples))
    directions = rng.standard_normal((10, 3, 32, 32)).astype(np.float32)
    features = rng.standard_normal((clients, examples, 3, 32, 32)).astype(np.float32) + 0.3 * directions[labels]
    module = make_model("cnn_cifar", (3, 32, 32), 10)
    return Workload("cnn_cifar", 32, 0.01, features, labels, taken(module))


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """In float32, and the same in every run."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def loss_of(weights: dict[str, np.ndarray], work: Workload) -> float:
    """On the first client's examples, in float32."""
    module = nn.Sequential(*layers_of(work.model))
    put({name: np.asarray(value) for name, value in weights.items()}, module)
    with torch.no_grad(), exact_convolutions():
        module = module.to("cuda")
        inputs, labels = (torch.from_numpy(array[0]).to("cuda") for array in (work.features, work.labels))
        return float(cross_entropy(module(inputs), labels))


def mppfl_run(work: Workload, precision: str) -> dict:
    clock = Stopwatch()
    weights, engine = with_mppfl.train(work, ROUNDS, clock, device="cuda", precision=precision)
    return {"seconds": statistics.median(clock.wall[1:]), "loss": loss_of(weights, work), "engine": engine}


def loop_run(work: Workload) -> dict:
    clock = Stopwatch()
    module = with_loop.train(work, ROUNDS, clock, "cuda")
    return {"seconds": statistics.median(clock.wall[1:]), "loss": loss_of(taken(module), work)}


def pfl_run(work: Workload) -> dict:
    import with_pfl

    clock = Stopwatch()
    module = with_pfl.train(work, ROUNDS, clock)
    return {"seconds": statistics.median(clock.wall[1:]), "loss": loss_of(taken(module), work)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--examples", type=int, default=2500)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    work = workload(chosen.clients, chosen.examples)
    content = circumstances("torch", "numpy") | {
        "clients": chosen.clients, "examples": chosen.examples, "batch_size": work.batch_size, "rows": [],
    }  # fmt: skip
    start = loss_of(dict(work.weights), work)
    for turn in range(chosen.turns):
        for name, run in (("pfl 0.6.0", pfl_run), ("plain loop", loop_run)):
            ours = mppfl_run(work, "bf16")
            try:
                theirs = run(work)
            except ImportError as missing:
                print(f"turn {turn + 1}  {name}: not run ({missing})", flush=True)
                continue
            row = {"turn": turn + 1, "peer": name, "mppfl": ours, "theirs": theirs,
                   "times_faster": theirs["seconds"] / ours["seconds"]}  # fmt: skip
            content["rows"].append(row)
            print(
                f"turn {turn + 1}  {name:<12} {theirs['seconds']:.3f} s against {ours['seconds']:.4f} s: "
                f"{row['times_faster']:.1f} times; loss {start:.4f} -> {theirs['loss']:.4f} and {ours['loss']:.4f}",
                flush=True,
            )
            write_record("peers-gpu", content, chosen.output)
    with exact_convolutions():
        reference = loop_run(work)["loss"]
    for row in content["rows"]:
        row["theirs"]["loss_apart"] = abs(row["theirs"]["loss"] - reference) / (start - reference)
        print(f"turn {row['turn']}  {row['peer']:<12} loss apart {row['theirs']['loss_apart']:.1e}")
    content["precisions"] = {precision: mppfl_run(work, precision) for precision in PRECISIONS}
    for precision, found in content["precisions"].items():
        found["loss_apart"] = abs(found["loss"] - reference) / (start - reference)
        found["same"] = found["loss_apart"] <= TOLERANCE
        print(f"{precision:<8} {found['seconds']:.4f} s  loss apart {found['loss_apart']:.1e}  same: {found['same']}")
    content["loss"] = {"before": start, "loop in float32": reference}
    print(write_record("peers-gpu", content, chosen.output))


if __name__ == "__main__":
    main()
