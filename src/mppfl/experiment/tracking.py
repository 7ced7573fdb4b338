"""Tracking: records of a training as scalars in MLflow or TensorBoard (pip install 'mppfl[track]').

    with tracking("mlflow", experiment) as log:
        train(experiment, on_round=log)

Only what the server knows anyway is logged: nothing computed from raw updates leaves through here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.errors import BadInput, MppflError
from mppfl.experiment.file import flat_values
from mppfl.spec import Experiment
from mppfl.training import RoundRecord

Tracker = Callable[[Mapping[str, RoundRecord]], None]


def _scalars(record: RoundRecord) -> dict[str, float]:
    """The figures of one round, those that are known and finite."""
    budgets = record.budgets[record.participating]
    figures = {
        "accuracy": record.accuracy,
        "loss": record.loss,
        "reward_rate": record.reward_rate,
        "payments": float(record.payments.sum()),
        "median_budget": float(np.median(budgets)) if len(budgets) else math.nan,
        "participating": float(record.participating.sum()),
        "refused": float(len(record.refused)),
        "diverged": float(len(record.diverged)),
        "dp_epsilon": record.dp_epsilon,
        "clip_norm": record.clip_norm,
        "update_norm": record.update_norm,
        "seconds": record.seconds,
    }
    return {name: float(value) for name, value in figures.items() if math.isfinite(value)}


@contextmanager
def tracking(kind: str, experiment: Experiment, folder: str | Path = "runs") -> Iterator[Tracker]:
    """A function that logs every round's records, one tracked run per case; to be passed as `on_round`.

    MLflow keeps them where its own settings say; TensorBoard under folder/tensorboard.
    """
    trackers = {"mlflow": _mlflow, "tensorboard": _tensorboard}
    if kind not in trackers:
        raise BadInput(f"track={kind!r} is not known. Known: {', '.join(trackers)}.")
    with trackers[kind](experiment, Path(folder) / "tensorboard") as log:
        yield log


@contextmanager
def _mlflow(experiment: Experiment, folder: Path) -> Iterator[Tracker]:
    mlflow = _required("mlflow", "mlflow")
    client = mlflow.MlflowClient()
    experiment_id = mlflow.set_experiment(experiment.name).experiment_id
    runs: dict[str, str] = {}

    def log(records: Mapping[str, RoundRecord]) -> None:
        for name, record in records.items():
            if name not in runs:
                runs[name] = client.create_run(experiment_id, run_name=name).info.run_id
                for key, value in flat_values(experiment.as_dict()).items():
                    client.log_param(runs[name], key, str(value)[:500])
            for key, value in _scalars(record).items():
                client.log_metric(runs[name], key, value, step=record.round_index)

    status = "FAILED"
    try:
        yield log
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        for run in runs.values():
            client.set_terminated(run, status)


@contextmanager
def _tensorboard(experiment: Experiment, folder: Path) -> Iterator[Tracker]:
    board = _required("torch.utils.tensorboard", "tensorboard")
    writers: dict[str, Any] = {}

    def log(records: Mapping[str, RoundRecord]) -> None:
        for name, record in records.items():
            if name not in writers:
                writers[name] = board.SummaryWriter(str(folder / name))
            for key, value in _scalars(record).items():
                writers[name].add_scalar(key, value, record.round_index)

    try:
        yield log
    finally:
        for writer in writers.values():
            writer.close()


def _required(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as cause:
        raise MppflError(
            f"tracking with {package} needs a package that is not installed ({cause}). "
            "Install it with: pip install 'mppfl[track]'"
        ) from cause
