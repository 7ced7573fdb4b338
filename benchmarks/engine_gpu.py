"""The training engine on one GPU against a plain PyTorch loop over clients, in the same run.

    python benchmarks/engine_gpu.py                       all cases
    python benchmarks/engine_gpu.py cnn vgg16 --repeats 3

One federated round of local training: 20 clients × 2,500 examples, one epoch, the model's shape of data at random. The
loop is training/client.py: one client after another, torch.optim.SGD, float32. Arithmetic counts the products of
convolutions and dense layers, forward once and backward twice. Writes benchmarks/records/<date>-engine-gpu.json.
"""

import argparse
import statistics
import time
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mppfl.privacy import LocalWork, Protection
from mppfl.training import ClientSlot, GradientNoise, TrainingConfig, flat_model, gflop_per_example, make_model
from mppfl.training.engines import Engine
from record import circumstances, write_record

UPDATES = Protection(unit="client")  # plain local training, whose update is protected afterwards


@dataclass(frozen=True)
class Case:
    model: str
    num_classes: int
    batch_size: int
    _: KW_ONLY
    clients: int = 20
    arms: int = 1  # side by side; they share their clients' batches, as arms of one seed do
    precision: str = "bf16"
    engine: str = "auto"
    protection: Protection = UPDATES
    uneven: bool = False
    examples: int = 2500
    shape: tuple[int, ...] = (3, 32, 32)
    device: str = "cuda"
    hidden: tuple[int, ...] = (64,)
    norm: str = "group"  # of a VGG


CNN = Case("cnn_cifar", 10, 32)
VGG16, VGG11 = Case("vgg16", 100, 64), Case("vgg11", 10, 256)
CASES = {
    "cnn": {
        "plain loop": replace(CNN, precision="float32", engine="loop"),
        "float32": replace(CNN, precision="float32"),
        "tf32": replace(CNN, precision="tf32"),
        "bf16": CNN,
        "bf16, five mechanisms": replace(CNN, arms=5),
        "bf16, uneven clients": replace(CNN, uneven=True),
        "bf16, every example clipped": replace(CNN, protection=Protection(release="steps", batches="shuffled")),
    },
    "vgg16": {
        "plain loop": replace(VGG16, precision="float32", engine="loop", clients=2),
        "bf16": VGG16,
        "bf16, batch norm": replace(VGG16, norm="batch"),
    },
    "vgg11": {"plain loop": replace(VGG11, precision="float32", engine="loop", clients=2), "bf16": VGG11},
}


def slots_of(case: Case, config: TrainingConfig, start: torch.Tensor, seed: int) -> list[ClientSlot]:
    rng, slots = np.random.default_rng(seed), []
    for k in range(case.clients):
        size = case.examples if not case.uneven else max(case.batch_size, case.examples * (k + 1) // case.clients)
        order = rng.permutation(case.examples)[:size]
        noise = None
        if case.protection.clips_examples:
            work = LocalWork(size, 1, 1, case.batch_size)
            noise = GradientNoise(case.protection, work, 1.0, None, np.random.default_rng(k))
        slots.append(ClientSlot(start, np.split(order, range(case.batch_size, size, case.batch_size)), noise))
    return case.arms * slots


def measure(case: Case, repeats: int) -> dict:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((case.examples, *case.shape)).astype(np.float32)
    labels = rng.integers(0, case.num_classes, case.examples)
    config = TrainingConfig(
        batch_size=case.batch_size, precision=case.precision, device=case.device, engine=case.engine,
        protection=case.protection, processes=1,
    )  # fmt: skip
    module = make_model(case.model, case.shape, case.num_classes, norm=case.norm, hidden=case.hidden)
    gflop = gflop_per_example(module, case.shape)
    model = flat_model(module)
    start = model.initial_weights(0).to(case.device)
    settle, at_rest = nothing, 0.0
    if case.device == "cuda":
        settle = torch.cuda.synchronize
        torch.cuda.reset_peak_memory_stats()
    else:
        at_rest = memory_gib("VmRSS")
    engine = Engine(model, features, labels, config, case.arms * case.clients)
    seconds, cpu = [], []
    for repeat in range(repeats + 1):
        slots = slots_of(case, config, start, repeat)
        settle()
        started, worked = time.perf_counter(), time.process_time()
        for rows in engine.updates(slots):
            last = rows
        settle()
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - worked)
    if not torch.isfinite(last).all():
        raise RuntimeError("updates are not finite")
    examples = sum(len(batch) for slot in slots for batch in slot.batches)
    best = statistics.median(seconds[1:])
    found = {
        "clients": case.arms * case.clients,
        "engine": engine.name,
        "first_seconds": seconds[0],
        "seconds": seconds[1:],
        "cpu_seconds": cpu[1:],
        "examples_per_second": examples / best,
        "tflop_per_second": examples * gflop / best / 1e3,
        "parameters": model.num_parameters,
    }
    if case.device == "cuda":
        torch.cuda.empty_cache()
        return found | {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
    return found | {"peak_gib": memory_gib("VmHWM") - at_rest}


def nothing() -> None:
    """A CPU has no queue to wait for."""


def memory_gib(line: str) -> float:
    """What the kernel says of this process's memory, now (VmRSS) or at its most (VmHWM)."""
    return int(Path("/proc/self/status").read_text().split(f"{line}:")[1].split()[0]) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="|".join(CASES), help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="cases whose name contains this, and the plain loop")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    if unknown := set(chosen.groups) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    content = circumstances("torch", "numpy")
    content["rows"] = []
    for group in chosen.groups or CASES:
        plain = None
        for name, case in CASES[group].items():
            if chosen.only and name != "plain loop" and chosen.only not in name:
                continue
            try:
                found = measure(case, 1 if name == "plain loop" else chosen.repeats)
            except Exception as error:
                print(f"{group:<6} {name:<28} failed: {error!r:.300}", flush=True)
                continue
            plain = found if name == "plain loop" else plain
            ratio = found["examples_per_second"] / plain["examples_per_second"] if plain else None
            content["rows"].append({"model": case.model, "case": name, "times_plain_loop": ratio} | found)
            print(
                f"{group:<6} {name:<28} {statistics.median(found['seconds']):8.4f} s  "
                f"{found['examples_per_second']:>9,.0f} examples/s  {found['tflop_per_second']:6.1f} TFLOP/s  "
                f"{ratio or float('nan'):6.1f}x  first {found['first_seconds']:5.1f} s  {found['peak_gib']:5.1f} GiB",
                flush=True,
            )
            write_record("engine-gpu", content, chosen.output)


if __name__ == "__main__":
    main()
