"""One worker process: computes lanes one after another on one thread, for processes.py at the other end of the pipe.

Run as `python -m mppfl.training.worker FEATURES.npy LABELS.npy Table`. It reads pickled jobs from standard input, which
only its parent writes to, and ends when the parent does.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import Any

import numpy as np
import torch

from mppfl.training.flat import flat_model
from mppfl.training.local import Table, as_array, local_update
from mppfl.training.views import ViewTable

TABLES = {each.__name__: each for each in (Table, ViewTable)}


def serve(features: str, labels: str, kind: str) -> None:
    """Answers every job (lane, descent) with the lane's update, until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not land among the answers
    torch.set_num_threads(1)
    # Copy-on-write maps: all workers share the pages of one file, and PyTorch may have its writable tensor.
    table = TABLES[kind](*(torch.from_numpy(np.load(path, mmap_mode="c")) for path in (features, labels)))
    jobs = sys.stdin.buffer
    model = flat_model(pickle.load(jobs))
    while True:
        try:
            lane, descent = pickle.load(jobs)
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            answer = "update", as_array(local_update(model, lane, table, descent))
        except Exception as error:
            answer = "error", (error, traceback.format_exc())
        try:
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            return


if __name__ == "__main__":
    serve(*sys.argv[1:])
