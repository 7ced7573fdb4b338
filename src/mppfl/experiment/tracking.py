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
from typing import Any, Literal

import numpy as np

from mppfl.errors import BadInput, MppflError
from mppfl.experiment.experiment import Experiment, flat_values
from mppfl.training import RoundRecord

TrackerName = Literal["mlflow", "tensorboard"]
Tracker = Callable[[Mapping[str, RoundRecord]], None]
TRACKERS: tuple[TrackerName, ...] = ("mlflow", "tensorboard")


def scalars(record: RoundRecord) -> dict[str, float]:
    """The figures of one round, those that are known and finite."""
    budgets = record.budgets[record.participating]
    found = {
        "accuracy": record.accuracy,
        "loss": record.loss,
        "reward_rate": record.reward_rate,
        "payments": float(record.payments.sum()),
        "median_budget": float(np.median(budgets)) if len(budgets) else math.nan,
        "taking_part": float(record.participating.sum()),
        "refused": float(len(record.refused)),
        "diverged": float(len(record.diverged)),
        "dp_epsilon": record.dp_epsilon,
        "clip_norm": record.clip_norm,
        "update_norm": record.update_norm,
        "seconds": record.seconds,
    }
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


@contextmanager
def tracking(kind: str, experiment: Experiment, folder: str | Path = "runs") -> Iterator[Tracker]:
    """A function that logs every round's records, one tracked run per case; to be passed as `on_round`.

    MLflow keeps them where its own settings say; TensorBoard under folder/tensorboard.
    """
    if kind == "mlflow":
        with _mlflow(experiment) as log:
            yield log
    elif kind == "tensorboard":
        with _tensorboard(Path(folder) / "tensorboard") as log:
            yield log
    else:
        raise BadInput(f"track={kind!r} is not known. Known: {', '.join(TRACKERS)}.")


@contextmanager
def _mlflow(experiment: Experiment) -> Iterator[Tracker]:
    mlflow = _required("mlflow", "mlflow")
    client = mlflow.MlflowClient()
    place = mlflow.set_experiment(experiment.name).experiment_id
    runs: dict[str, str] = {}

    def run_of(name: str) -> str:
        if name not in runs:
            runs[name] = client.create_run(place, run_name=name).info.run_id
            for key, value in flat_values(experiment.as_dict()).items():
                client.log_param(runs[name], key, str(value)[:500])
        return runs[name]

    def log(records: Mapping[str, RoundRecord]) -> None:
        for name, record in records.items():
            for key, value in scalars(record).items():
                client.log_metric(run_of(name), key, value, step=record.round_index)

    ended = "FAILED"
    try:
        yield log
        ended = "FINISHED"
    except KeyboardInterrupt:
        ended = "KILLED"
        raise
    finally:
        for run in runs.values():
            client.set_terminated(run, ended)


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Tracker]:
    board = _required("torch.utils.tensorboard", "tensorboard")
    writers: dict[str, Any] = {}

    def log(records: Mapping[str, RoundRecord]) -> None:
        for name, record in records.items():
            if name not in writers:
                writers[name] = board.SummaryWriter(str(folder / name))
            for key, value in scalars(record).items():
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
