"""Tracking: every round's public figures reach MLflow or TensorBoard, one tracked run per training."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from types import SimpleNamespace

import numpy as np
import pytest

from mppfl.errors import BadInput, MppflError
from mppfl.experiment import experiment_from, tracking
from mppfl.training import RoundRecord
from tests.homes import home

module = home(tracking)

EXPERIMENT = experiment_from({"name": "trial", "mechanisms": ["mppfl", "dp_fedavg"], "protection": {"clip_norm": 0.5}})


FIGURES = {"accuracy": 0.875, "loss": 0.5, "reward_rate": 2.0, "dp_epsilon": 3.0, "clip_norm": 0.5, "update_norm": 0.75}
FIGURES |= {"seconds": 0.125}  # as the record has them
SUMS = {"payments": 4.0, "median_budget": 1.0, "participating": 2.0, "refused": 0.0}  # over clients


def record(round_index=1, **changes):
    """Three clients, the last of whom opts out."""
    clients = {"budgets": [0.5, 1.5, 0.0], "payments": [1.0, 3.0, 0.0], "participating": [True, True, False]}
    values = {name: np.array(column) for name, column in clients.items()} | FIGURES | {"round_index": round_index}
    required = [field.name for field in fields(RoundRecord) if field.default is field.default_factory is MISSING]
    return RoundRecord(**dict.fromkeys(required) | values | changes)


def fake_mlflow():
    """As much of MLflow as is called."""
    fake = SimpleNamespace(runs=[], metrics=[], params={}, ended={})
    fake.MlflowClient = lambda: fake
    fake.set_experiment = lambda name: SimpleNamespace(experiment_id=f"experiment {name}")

    def create_run(place, run_name):
        fake.runs.append((place, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=f"id of {run_name}"))

    fake.create_run = create_run
    fake.log_param = lambda run, key, value: fake.params.update({(run, key): value})
    fake.log_metric = lambda run, key, value, *, step: fake.metrics.append((run, key, value, step))
    fake.set_terminated = lambda run, status: fake.ended.update({run: status})
    return fake


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", fake_mlflow())
    return sys.modules["mlflow"]


def test_mlflow_gets_one_run_per_training_with_parameters_and_figures(mlflow):
    with tracking("mlflow", EXPERIMENT) as log:
        log({"mppfl": record(1), "dp_fedavg": record(1, accuracy=0.5)})
        log({"mppfl": record(2, accuracy=0.9), "dp_fedavg": record(2)})
    assert mlflow.runs == [("experiment trial", "mppfl"), ("experiment trial", "dp_fedavg")]
    assert mlflow.params["id of dp_fedavg", "protection.clip_norm"] == "0.5"
    logged = sorted((run, step, value) for run, key, value, step in mlflow.metrics if key == "accuracy")
    names = ("id of dp_fedavg", "id of mppfl")
    assert logged == [(names[0], 1, 0.5), (names[0], 2, 0.875), (names[1], 1, 0.875), (names[1], 2, 0.9)]
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
    logged = {key: value for folder, key, value, step in written if (folder, step) == (closed[0], 3)}
    assert logged == FIGURES | SUMS  # nothing computed from raw updates
    left_out = logged.keys() - {key for _, key, _, step in written if step == 4}
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
