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
Put = Callable[[str, float, int], object]  # one figure of one round of one case
OF_A_RECORD = ("accuracy", "loss", "reward_rate", "dp_epsilon", "clip_norm", "update_norm", "seconds")
Service = tuple[Callable[[str], Put], Callable[[str], object]]  # begins a case by its name, ends all with a status


def _scalars(record: RoundRecord) -> dict[str, float]:
    """The figures of one round, those that are known and finite."""
    budgets = record.budgets[record.participating]
    figures = {name: getattr(record, name) for name in OF_A_RECORD} | {
        "payments": float(record.payments.sum()),
        "median_budget": float(np.median(budgets)) if len(budgets) else math.nan,
        "participating": float(record.participating.sum()),
        "refused": float(len(record.refused)),
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
    begin, end = trackers[kind](experiment, Path(folder) / "tensorboard")
    puts: dict[str, Put] = {}

    def log(records: Mapping[str, RoundRecord]) -> None:
        for name, record in records.items():
            if name not in puts:
                puts[name] = begin(name)
            for key, value in _scalars(record).items():
                puts[name](key, value, record.round_index)

    status = "FAILED"
    try:
        yield log
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        end(status)


def _mlflow(experiment: Experiment, folder: Path) -> Service:
    mlflow = _required("mlflow", "mlflow")
    client = mlflow.MlflowClient()
    experiment_id = mlflow.set_experiment(experiment.name).experiment_id
    runs: list[str] = []

    def begin(name: str) -> Put:
        run = client.create_run(experiment_id, run_name=name).info.run_id
        runs.append(run)
        for key, value in flat_values(experiment.as_dict()).items():
            client.log_param(run, key, str(value)[:500])
        return lambda key, value, step: client.log_metric(run, key, value, step=step)

    return begin, lambda status: [client.set_terminated(run, status) for run in runs]


def _tensorboard(experiment: Experiment, folder: Path) -> Service:
    board = _required("torch.utils.tensorboard", "tensorboard")
    writers: list[Any] = []

    def begin(name: str) -> Put:
        writers.append(board.SummaryWriter(str(folder / name)))
        return writers[-1].add_scalar  # type: ignore[no-any-return]

    return begin, lambda status: [writer.close() for writer in writers]


def _required(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as cause:
        raise MppflError(
            f"tracking with {package} needs a package that is not installed ({cause}). "
            "Install it with: pip install 'mppfl[track]'"
        ) from cause
