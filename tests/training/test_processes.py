"""Worker processes: what happens when one dies, what is left behind, and how they are started."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mppfl
from mppfl.errors import BadInput, MppflError
from mppfl.training import (
    Descent,
    Lane,
    Table,
    TrainingConfig,
    Workers,
    can_travel,
    flat_model,
    make_model,
    training_rounds,
)
from tests.training.trainings import TwoPaths, pictures, plan_with

MODEL = flat_model(make_model("softmax", (1, 4, 4), 3))
DESCENT = Descent(0.1)


def small_table():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 1, 4, 4)).astype(np.float32)
    return Table(torch.from_numpy(features), torch.from_numpy(rng.integers(0, 3, 12)))


def lanes(count):
    return [Lane(torch.zeros(MODEL.num_parameters), [np.arange(k, k + 4)]) for k in range(count)]


@pytest.fixture
def own_temp(tmp_path, monkeypatch):
    """A temporary folder of the test's own, so that it sees what is left there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def left_in(folder):
    """What mppfl keeps there; PyTorch's caches are its own affair."""
    return [name for name in os.listdir(folder) if name.startswith("mppfl-")]


def test_a_killed_worker_is_reported_and_nothing_is_left_behind(own_temp):
    with Workers(MODEL, small_table(), 1) as workers:
        assert workers.updates(lanes(2), DESCENT).shape == (2, MODEL.num_parameters)
        assert len(left_in(own_temp)) == 1
        (worker,) = workers._workers
        worker.kill()
        worker.wait()
        with pytest.raises(MppflError, match=r"a worker process ended in the middle of a round \(exit code -9\)"):
            workers.updates(lanes(3), DESCENT)
    assert left_in(own_temp) == []
    workers.close()  # closing twice is no harm


def test_workers_that_cannot_be_started_are_reported_and_leave_nothing_behind(own_temp, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(own_temp / "no-python"))
    with pytest.raises(MppflError, match=r"worker processes could not be started.*Use engine='loop'"):
        Workers(MODEL, small_table(), 2)
    assert left_in(own_temp) == []


def test_a_module_that_cannot_travel_is_refused_by_name():
    class Local(nn.Linear):
        pass

    assert can_travel(TwoPaths())
    assert not can_travel(Local(3, 2))
    with pytest.raises(BadInput, match="Local cannot be loaded by another process"):
        Workers(flat_model(Local(3, 2)), small_table(), 1)
    with pytest.raises(BadInput, match=r"engine='processes' cannot run this training.*Use engine='auto'"):
        list(
            training_rounds(
                nn.Sequential(nn.Flatten(), Local(64, 4)), pictures(), plan_with([np.inf] * 3),
                TrainingConfig(engine="processes", batch_size=4),
            )
        )  # fmt: skip


SCRIPT = """
import tempfile
from pathlib import Path
import numpy as np
from mppfl.data.split import client_data
from mppfl.game.plan import Terms, plan_of_rounds
from mppfl.training.config import TrainingConfig
from mppfl.training.models import make_model
from mppfl.training.rounds import training_rounds

print("started")
rng = np.random.default_rng(0)
x, y = rng.standard_normal((20, 6)).astype(np.float32), rng.integers(0, 2, 20)
data = client_data(x, y, [np.arange(10), np.arange(10, 20)], x, y, num_classes=2)
plan = plan_of_rounds("by hand", [Terms(t, 1.0, 1.0, np.ones(2)) for t in (1, 2, 3)])
config = TrainingConfig(engine="processes", processes=1, batch_size=5, local_epochs=1)
for record in training_rounds(make_model("softmax", (6,), 2), data, plan, config):
    print(record.engine, record.round_index, len(list(Path(tempfile.gettempdir()).glob("mppfl-*"))))
    break
print(list(Path(tempfile.gettempdir()).glob("mppfl-*")))
"""


def test_a_script_without_a_main_guard_runs_once_and_leaves_nothing_behind_where_it_stops_early(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    temp = tmp_path / "temp"
    temp.mkdir()
    home = Path(mppfl.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(home), "TMPDIR": str(temp)},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["started", "processes, CPU, float32, 1 processes 1 1", "[]"]
