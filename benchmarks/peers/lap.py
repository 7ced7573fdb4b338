"""What the programs of all peers share: the round to compute, the clock, and how the answer goes back. NumPy alone."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

WEIGHTS = "weights/"
OF_PROCESS = 2  # the kernel's name for "all threads of that process", user and system time
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, eq=False)
class Workload:
    """One federated round: every client passes once over its examples in their order, by plain SGD.

    features  [clients, examples, ...]
    labels    [clients, examples]
    weights   where training starts, under the names of an nn.Sequential
    """

    model: str
    batch_size: int
    learning_rate: float
    features: np.ndarray
    labels: np.ndarray
    weights: Mapping[str, np.ndarray]

    @property
    def num_clients(self) -> int:
        return len(self.labels)

    @property
    def num_examples(self) -> int:
        """Of each client."""
        return self.labels.shape[1]

    def batches(self) -> list[slice]:
        """Where each step's examples lie among a client's; the last batch may be short."""
        size, per_batch = self.num_examples, self.batch_size
        return [slice(at, min(at + per_batch, size)) for at in range(0, size, per_batch)]

    def save(self, path: Path) -> None:
        named = {WEIGHTS + name: value for name, value in self.weights.items()}
        np.savez(
            path, model=self.model, batch_size=self.batch_size, learning_rate=self.learning_rate,
            features=self.features, labels=self.labels, **named,
        )  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> Workload:
        with np.load(path) as held:
            weights = {name.removeprefix(WEIGHTS): held[name] for name in held.files if name.startswith(WEIGHTS)}
            return cls(
                str(held["model"]), int(held["batch_size"]), float(held["learning_rate"]), held["features"],
                held["labels"], weights,
            )  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What a program is asked to do: so many rounds, the first of them to warm up, on so many cores."""

    workload: Path
    answer: Path
    rounds: int
    cores: int


def task_from_command_line() -> Task:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", type=Path)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--cores", type=int, required=True)
    return Task(**vars(parser.parse_args()))


def family_of(parents: Mapping[int, int], pid: int) -> list[int]:
    """The process and all that descend from it, given each process's parent."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def stat_fields(line: str) -> list[str]:
    """Fields of /proc/PID/stat from the third on. The second is the program's name, which may hold anything."""
    return line.rpartition(")")[2].split()


def running() -> dict[int, list[str]]:
    """Every process of this machine with its fields."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = stat_fields(Path(entry.path, "stat").read_text())
    return found


def descendants_cpu_seconds() -> float:
    """User and system time of all processes that descend from this one, alive or ended."""
    processes = running()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for pid in family_of({pid: int(fields[1]) for pid, fields in processes.items()}, os.getpid())[1:]:
        with suppress(OSError):  # it ended just now
            total += time.clock_gettime((~pid << 3) | OF_PROCESS)  # nanoseconds, where /proc has hundredths
            total += sum(int(ticks) for ticks in processes[pid][13:15]) / TICKS  # of its own ended children
    return total


class Stopwatch:
    """Wall seconds of every round, and CPU seconds of the rounds after the first."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self._cpu_before = self._cpu_after = 0.0
        self._started = time.perf_counter()

    def start(self) -> None:
        self._started = time.perf_counter()

    def lap(self, last: bool) -> None:
        """A round is done."""
        self.wall.append(time.perf_counter() - self._started)
        if last:  # this process's own time first, then last: looking for the others must not count as work
            self._cpu_after = time.process_time() + descendants_cpu_seconds()
        if len(self.wall) == 1:
            self._cpu_before = descendants_cpu_seconds() + time.process_time()
        self._started = time.perf_counter()

    @property
    def cpu_per_round(self) -> float:
        return (self._cpu_after - self._cpu_before) / (len(self.wall) - 1)


def hand_in(task: Task, clock: Stopwatch, weights: Mapping[str, Any], *packages: str, note: str = "") -> None:
    """Writes times, versions and the weights after the last round, for peers.py to read."""
    if len(clock.wall) != task.rounds:
        raise RuntimeError(f"{len(clock.wall)} rounds were run, not {task.rounds}")
    np.savez(task.answer.with_suffix(".npz"), **{name: np.asarray(value) for name, value in weights.items()})
    content = {
        "warm_up_seconds": clock.wall[0],
        "wall_seconds": clock.wall[1:],
        "cpu_seconds": clock.cpu_per_round,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "note": note,
    }
    task.answer.with_suffix(".json").write_text(json.dumps(content))
