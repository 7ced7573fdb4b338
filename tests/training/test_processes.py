"""Worker processes: what happens when one dies, what they refuse, and how they are started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import mppfl
from mppfl.errors import BadInput, MppflError
from mppfl.training import TrainingConfig, train_rounds
from mppfl.training.engines import can_travel
from tests.training.trainings import TwoPaths, pictures, plan_with

TWO = TrainingConfig(engine="processes", processes=2, batch_size=4)


class OnExamples(nn.Linear):
    """Does something where it sees a real example, and not where it sees zeros."""

    def forward(self, x):
        if x.abs().sum() > 0:
            self.happens()
        return super().forward(x.flatten(1))


class Dies(OnExamples):
    def happens(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Fails(OnExamples):
    def happens(self):
        raise ZeroDivisionError("of the model itself")


def train(module, config=TWO):
    return list(train_rounds(module, pictures(), plan_with([np.inf] * 3), config))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_killed_worker_is_reported_and_the_next_training_finds_new_ones():
    with pytest.raises(MppflError, match="a worker process ended in the middle of a round"):
        train(Dies(64, 4))
    assert len(train(TwoPaths())) == 2


def test_an_error_in_a_worker_reaches_the_caller_as_it_is():
    with pytest.raises(ZeroDivisionError, match="of the model itself"):
        train(Fails(64, 4))


def test_a_module_that_cannot_travel_is_refused():
    class Local(nn.Linear):
        pass

    assert can_travel(TwoPaths())
    assert not can_travel(Local(3, 2))
    with pytest.raises(BadInput, match=r"engine='processes' cannot run this training.*Use engine='auto'"):
        train(nn.Sequential(nn.Flatten(), Local(64, 4)))


SCRIPT = """
import numpy as np
from mppfl.data import client_data
from mppfl.game import RoundTerms, plan_from_rounds
from mppfl.training import TrainingConfig, make_model, train_rounds

print("started")
rng = np.random.default_rng(0)
x, y = rng.standard_normal((20, 6)).astype(np.float32), rng.integers(0, 2, 20)
data = client_data(x, y, [np.arange(10), np.arange(10, 20)], x, y, num_classes=2)
plan = plan_from_rounds("by hand", [RoundTerms(t, 1.0, 1.0, np.ones(2)) for t in (1, 2, 3)])
config = TrainingConfig(engine="processes", processes=2, batch_size=5, local_epochs=1)
for record in train_rounds(make_model("softmax", (6,), 2), data, plan, config):
    print(record.engine, record.round_index)
    break
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    source = Path(mppfl.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["started", "processes, CPU, float32, 2 processes 1"]
