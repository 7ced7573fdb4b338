"""One batch of arms: trained side by side, stopped at a deadline and taken up again, and what came of each."""

from __future__ import annotations

import gc
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import numpy as np
import torch

from mppfl.experiment import Provenance
from mppfl.training import (
    History,
    Log,
    Precision,
    RoundRecord,
    TrainingConfig,
    TrainingJob,
    train_many,
    training_key,
)
from reproduction.cells import AGGREGATIONS, Case, gflop_per_example, training_choices
from reproduction.in_flight import InFlight
from reproduction.paper_noise import PaperNoise, nominal_epsilon
from reproduction.settings import CURVES_OF
from reproduction.store import Measured
from reproduction.units import Job

COMMIT = "MPPFL_COMMIT"  # environment variable that says the commit where the source lies outside a work tree
EVALUATE_EVERY = 5  # elsewhere: a test set after every round would cost as much as a tenth of the training
KEPT_EVERY = 60.0  # seconds of work that a batch which is killed may lose

Tell = Callable[[str], None]
log = logging.getLogger(__name__)


def trained(
    case: Case,
    jobs: Sequence[Job],
    device: str,
    precision: str,
    origin: Provenance,
    deadline: float = math.inf,
    tell: Tell = log.info,
    stopped: InFlight | None = None,
) -> list[Measured]:
    """Trains the jobs side by side and returns what came of each.

    With `stopped`, jobs go on from where they were stopped, and where the deadline comes before the end, they are
    stopped there and nothing is returned.
    """
    _clear(device)
    model, arms = case.model(), _arms(case, jobs, device, precision, stopped)
    logs = {arm.name: Log(training_key(model, arm), arm.data.num_clients, arm.resume) for arm in arms}
    began = {job: _began(case, job, stopped) for job in jobs}

    def keep() -> None:
        for job in jobs:
            if stopped is not None and logs[_name(job)].last is not None:
                stopped.keep(case.cell, case.setting, job, logs[_name(job)].checkpoint(), began[job])

    kept_at = before = time.monotonic()
    shortest = math.inf
    try:
        for records in train_many(model, arms):
            for name, record in records.items():
                logs[name].add(record)
            done = logs[arms[0].name].rounds_done
            _tell_round(case, records, tell)
            now = time.monotonic()
            shortest, before = min(shortest, now - before), now
            if done == case.setting.num_rounds or stopped is None:
                continue
            if now + shortest > deadline:
                keep()
                tell(f"{case.cell.path}: stopped after round {done}; the next run goes on from there")
                return []
            if now - kept_at > KEPT_EVERY:
                keep()
                kept_at = time.monotonic()
    except KeyboardInterrupt:
        keep()  # no finished round is lost
        raise
    return [
        _measured(case, job, logs[_name(job)].history(), precision, len(jobs), replace(origin, started=began[job]))
        for job in jobs
    ]


def _began(case: Case, job: Job, stopped: InFlight | None) -> str:
    """When the job first began, in whichever run; now where it was never stopped."""
    before = None if stopped is None else stopped.started(case.cell, case.setting, job)
    return before or datetime.now(UTC).isoformat(timespec="seconds")


def _clear(device: str) -> None:
    """Gives back what a batch left on a GPU: recordings keep their memory, compiled shapes count against a limit."""
    if device.startswith("cuda"):
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def _arms(case: Case, jobs: Sequence[Job], device: str, precision: str, stopped: InFlight | None) -> list[TrainingJob]:
    """The jobs as trainings, each from where it was stopped."""
    every = 1 if case.cell.dataset == CURVES_OF else EVALUATE_EVERY
    arms = []
    for job in jobs:
        arm, unit = job
        config = TrainingConfig(
            **training_choices(case.setting),
            protection=PaperNoise(budget_unit=1.0 if unit is None else unit),
            aggregation=AGGREGATIONS[arm.aggregation],
            seed=case.cell.seed_of("training"),
            device=device,
            precision=cast(Precision, precision),
            evaluate_every=every,
        )
        since = None if stopped is None else stopped.checkpoint(case.cell, case.setting, job)
        arms.append(TrainingJob(_name(job), case.plan(arm.mechanism), case.data, config, resume=since))
    return arms


def _name(job: Job) -> str:
    arm, unit = job
    return str(arm) if unit is None else f"{arm} at {unit:g}"


def _tell_round(case: Case, records: Mapping[str, RoundRecord], tell: Tell) -> None:
    first = next(iter(records.values()))
    if math.isfinite(first.accuracy):
        told = "  ".join(f"{name} {100 * record.accuracy:.2f}" for name, record in records.items())
        tell(f"{case.cell.path}: round {first.round_index}/{case.setting.num_rounds}  {told}")


def _measured(
    case: Case, job: Job, history: History, precision: str, arms_together: int, origin: Provenance
) -> Measured:
    arm, unit = job
    setting, rounds = case.setting, history.rounds
    evaluated = np.isfinite(rounds["accuracy"])
    accuracy, seconds = rounds["accuracy"][evaluated], float(rounds["seconds"].sum())
    examples = len(history) * setting.local_epochs * int(case.data.num_examples.sum())
    gflop = gflop_per_example(setting)
    clipped = rounds["share_clipped"][np.isfinite(rounds["share_clipped"])]
    dp_delta = PaperNoise().dp_delta
    budgets = (1.0 if unit is None else unit) * history.clients["budgets"]
    dp_epsilon = nominal_epsilon(budgets, history.clients["participating"].astype(bool), dp_delta)
    return Measured(
        arm=arm,
        unit=unit,
        accuracy=round(float(accuracy[-1]), 6),
        best_accuracy=round(float(accuracy.max()), 6),
        curve={
            "round": [int(at) for at in rounds["round_index"][evaluated]],
            "accuracy": [round(float(each), 4) for each in accuracy],
        },
        clip_norm=_significant(float(rounds["clip_norm"][-1])),
        fixed_budget=_significant(history.clients["budgets"][0].max()) if arm.mechanism.startswith("fixed") else None,
        share_clipped=round(float(clipped.mean()), 4) if len(clipped) else None,
        budgets=_budgets(history),
        dp_epsilon=_significant(dp_epsilon) if math.isfinite(dp_epsilon) else None,
        dp_delta=dp_delta,
        num_rounds=len(history),
        num_examples=examples,
        seconds=_significant(seconds),
        arms_together=arms_together,
        samples_per_second=round(examples / seconds, 1),
        tflop_per_second=_significant(examples * gflop / seconds / 1e3),
        gflop_per_example=_significant(gflop),
        engine=history.engine[-1],
        precision=precision,
        device=origin.gpu or origin.cpu,
        versions={name: getattr(origin, name) for name in ("mppfl", "python", "torch", "numpy", "scipy")},
        commit=os.environ.get(COMMIT, "") or origin.commit or "unknown",
        source=origin.source,
        started=origin.started,
    )


def _budgets(history: History) -> dict[str, list[float | None]]:
    """Number, mean and harmonic mean of budgets in three rounds; size weights make the harmonic one count."""
    chosen = list(dict.fromkeys((0, (len(history) - 1) // 2, len(history) - 1)))
    given = [history.clients["budgets"][k][history.clients["participating"][k].astype(bool)] for k in chosen]
    noisy = [len(budgets) > 0 and bool(np.isfinite(budgets).all()) for budgets in given]
    return {
        "round": [int(history.rounds["round_index"][k]) for k in chosen],
        "participating": [len(budgets) for budgets in given],
        "mean": [_significant(float(b.mean())) if ok else None for b, ok in zip(given, noisy, strict=True)],
        "harmonic_mean": [
            _significant(float(1 / (1 / b).mean())) if ok else None for b, ok in zip(given, noisy, strict=True)
        ],
    }


def _significant(value: float) -> float:
    return float(f"{value:.6g}")
