"""One single-threaded process per core: for convolutions on a CPU, where batching buys nothing but arithmetic is left.

Workers are started as programs of their own, not forked or spawned, so a caller's script is never run twice.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from mppfl.errors import BadInput, MppflError
from mppfl.training.flat import FlatModel
from mppfl.training.local import Descent, Lane, Table, as_array


def can_travel(module: nn.Module) -> bool:
    """Whether another process can load the module: its classes must lie in importable files."""
    if any(type(layer).__module__ == "__main__" for layer in module.modules()):
        return False
    try:
        pickle.dumps(module)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return False
    return True


class Workers:
    """Processes that compute lanes. Close them when done, or use `with`."""

    def __init__(self, model: FlatModel, table: Table, count: int) -> None:
        if not can_travel(model.module):
            raise BadInput(
                f"{type(model.module).__name__} cannot be loaded by another process. Define it in a module of its own, "
                "or use engine='loop'."
            )
        self._kind = type(table).__name__
        self._folder = Path(tempfile.mkdtemp(prefix="mppfl-"))
        self._workers: list[subprocess.Popen[bytes]] = []
        try:
            for name, tensor in (("features", table.features), ("labels", table.labels)):
                np.save(self._folder / f"{name}.npy", as_array(tensor))
            module = pickle.dumps(model.module, protocol=pickle.HIGHEST_PROTOCOL)
            for _ in range(count):
                self._workers.append(self._start(module))
        except OSError as cause:
            self.close()
            raise MppflError(
                f"worker processes could not be started: {cause}. Use engine='loop', or free some room in "
                f"{tempfile.gettempdir()}."
            ) from cause

    def _start(self, module: bytes) -> subprocess.Popen[bytes]:
        files = [str(self._folder / "features.npy"), str(self._folder / "labels.npy")]
        worker = subprocess.Popen(
            [sys.executable, "-m", "mppfl.training.worker", *files, self._kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        jobs, _ = _pipes(worker)
        jobs.write(module)
        jobs.flush()
        return worker

    def updates(self, lanes: Sequence[Lane], descent: Descent) -> Tensor:
        """Updates of all lanes [lanes, parameters], the longest lanes first so that no core waits at the end."""
        longest_first = sorted(range(len(lanes)), key=lambda at: -sum(len(batch) for batch in lanes[at].batches))
        waiting, lock = deque(longest_first), Lock()
        found: list[Any] = [None] * len(lanes)

        def work(worker: subprocess.Popen[bytes]) -> None:
            while True:
                with lock:
                    if not waiting:
                        return
                    at = waiting.popleft()
                try:
                    found[at] = _ask(worker, (lanes[at], descent))
                except Exception:
                    with lock:
                        waiting.clear()
                    raise

        with ThreadPoolExecutor(len(self._workers)) as threads:
            for done in [threads.submit(work, worker) for worker in self._workers]:
                done.result()
        return torch.from_numpy(np.stack(found))

    def close(self) -> None:
        """Ends the processes and removes their files."""
        for worker in self._workers:
            for pipe in _pipes(worker):
                with suppress(BrokenPipeError):
                    pipe.close()
            try:
                worker.wait(5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self._workers = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _pipes(worker: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if worker.stdin is None or worker.stdout is None:
        raise MppflError("a worker process was started without pipes.")
    return worker.stdin, worker.stdout


def _ask(worker: subprocess.Popen[bytes], job: tuple[Lane, Descent]) -> Any:
    jobs, answers = _pipes(worker)
    try:
        pickle.dump(job, jobs, protocol=pickle.HIGHEST_PROTOCOL)
        jobs.flush()
        kind, content = pickle.load(answers)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as cause:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(1)
        code = worker.poll()
        raise MppflError(
            f"a worker process ended in the middle of a round (exit code {code}), perhaps for want of memory. Use "
            "fewer processes; a training with checkpoints goes on with --resume."
        ) from cause
    if kind == "error":
        error, trace = content
        error.add_note(trace)
        raise error
    return content
