"""Tracking: every round's public figures reach MLflow or TensorBoard, one tracked run per training."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from mppfl.errors import BadInput, MppflError
from mppfl.experiment import experiment_from, tracking
from mppfl.training import RoundRecord
from tests.homes import home

module = home(tracking)

EXPERIMENT = experiment_from({"name": "trial", "mechanisms": ["mppfl", "dp_fedavg"], "training": {"clip_norm": 0.5}})


def record(round_index=1, **changes):
    """Three clients, the last of whom opts out."""
    made = RoundRecord(
        round_index=round_index,
        reward_rate=2.0,
        budgets=np.array([0.5, 1.5, 0.0]),
        payments=np.array([1.0, 3.0, 0.0]),
        spent=np.array([0.5, 1.5, 0.0]),
        participating=np.array([True, True, False]),
        noise_std=np.array([0.1, 0.1, 0.0]),
        theta=np.array([0.5, 0.5, 0.0]),
        dispersion=np.nan,
        clip_norm=0.5,
        share_clipped=0.25,
        update_norm=0.75,
        accuracy=0.875,
        loss=0.5,
        dp_epsilon=3.0,
        seconds=0.125,
        weights=np.zeros(4),
        server={},
        engine="by hand",
    )
    return replace(made, **changes)


class FakeMlflow(ModuleType):
    """As much of MLflow as is called."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.metrics, self.params, self.ended = [], [], {}, {}
        self.MlflowClient = lambda: self

    def set_experiment(self, name):
        self.experiment = name
        return SimpleNamespace(experiment_id="7")

    def create_run(self, place, run_name):
        assert place == "7"
        self.runs.append(run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=f"id of {run_name}"))

    def log_param(self, run, key, value):
        self.params[run, key] = value

    def log_metric(self, run, key, value, step):
        self.metrics.append((run, key, value, step))

    def set_terminated(self, run, status):
        self.ended[run] = status


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", FakeMlflow())
    return sys.modules["mlflow"]


def test_mlflow_gets_one_run_per_training_with_parameters_and_figures(mlflow):
    with tracking("mlflow", EXPERIMENT) as log:
        log({"mppfl": record(1), "dp_fedavg": record(1, accuracy=0.5)})
        log({"mppfl": record(2, accuracy=0.9), "dp_fedavg": record(2)})
    assert (mlflow.experiment, mlflow.runs) == ("trial", ["mppfl", "dp_fedavg"])
    assert mlflow.params["id of dp_fedavg", "training.clip_norm"] == "0.5"
    logged = [(run, value, step) for run, key, value, step in mlflow.metrics if key == "accuracy"]
    assert [row for row in logged if row[0] == "id of mppfl"] == [("id of mppfl", 0.875, 1), ("id of mppfl", 0.9, 2)]
    assert [row[1:] for row in logged if row[0] == "id of dp_fedavg"] == [(0.5, 1), (0.875, 2)]
    assert set(mlflow.ended.values()) == {"FINISHED"}


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (ValueError, "FAILED")])
def test_mlflow_learns_how_a_training_ended(mlflow, error, status):
    def training():
        with tracking("mlflow", EXPERIMENT) as log:
            log({"mppfl": record()})
            raise error

    with pytest.raises(error):
        training()
    assert mlflow.ended == {"id of mppfl": status}


def test_tensorboard_gets_one_folder_per_training_and_the_public_figures_of_every_round(tmp_path, monkeypatch):
    written, closed = [], []

    class SummaryWriter:
        def __init__(self, folder):
            self.add_scalar = lambda key, value, step: written.append((folder, key, value, step))
            self.close = lambda: closed.append(folder)

    monkeypatch.setattr(module, "import_module", lambda name: SimpleNamespace(SummaryWriter=SummaryWriter))
    unknown = record(4, accuracy=np.nan, dp_epsilon=np.inf, participating=np.zeros(3, dtype=bool))
    with tracking("tensorboard", EXPERIMENT, tmp_path) as log:
        log({"mppfl": record(3), "dp_fedavg": record(3)})
        log({"mppfl": unknown})
    assert closed == [str(tmp_path / "tensorboard" / name) for name in ("mppfl", "dp_fedavg")]
    figures = {"accuracy": 0.875, "loss": 0.5, "reward_rate": 2.0, "payments": 4.0, "median_budget": 1.0}
    figures |= {"participating": 2.0, "refused": 0.0, "diverged": 0.0, "dp_epsilon": 3.0, "clip_norm": 0.5}
    figures |= {"update_norm": 0.75, "seconds": 0.125}  # nothing computed from raw updates
    assert {key: value for folder, key, value, step in written if (folder, step) == (closed[0], 3)} == figures
    left_out = figures.keys() - {key for _, key, _, step in written if step == 4}
    assert left_out == {"accuracy", "dp_epsilon", "median_budget"}  # not known, or infinite


def test_a_missing_package_is_named_with_its_extra_and_an_unknown_tracker_refused(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(module, "import_module", missing)
    for kind in ("mlflow", "tensorboard"):
        with pytest.raises(MppflError, match=rf"tracking with {kind} needs .*pip install 'mppfl\[track\]'"):
            tracking(kind, EXPERIMENT).__enter__()
    with pytest.raises(BadInput, match=r"track='wandb' is not known\. Known: mlflow, tensorboard"):
        tracking("wandb", EXPERIMENT).__enter__()
