"""One batch of arms: trained side by side, watched against a deadline, and what came of each."""

from __future__ import annotations

import gc
import logging
import math
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import numpy as np
import torch

from mppfl.errors import BadInput
from mppfl.learning.config import Aggregation, Precision, TrainingConfig
from mppfl.learning.record import RoundRecord
from mppfl.learning.rounds import Arm, rounds_together
from mppfl.results.paper.cells import Case, gflop_per_example, training_choices
from mppfl.results.paper.settings import CURVES_OF
from mppfl.results.paper.store import Measured
from mppfl.results.paper.units import Job
from mppfl.results.provenance import Provenance

COMMIT = "MPPFL_COMMIT"  # environment variable that says the commit where the source lies outside a work tree
EVALUATE_EVERY = 5  # elsewhere: a test set after every round would cost as much as a tenth of the training
SETTLED_AFTER = 3  # rounds after which the speed is known: the first compiles
RESERVE = 0.9  # of the time left that an estimate may fill
MOST_DIVERGED = 0.5  # share of updates left out beyond which an arm is no measurement of its mechanism

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
) -> list[Measured]:
    """Trains the jobs side by side and returns what came of each.

    Where the first rounds show that they would not end before the deadline, it starts again with as many of the first
    jobs as should, at least one. Where they show that most updates are not numbers, nothing is measured.
    """
    while True:
        _clear(device)
        began, origin = time.monotonic(), replace(origin, started=datetime.now(UTC).isoformat(timespec="seconds"))
        logs: dict[str, list[RoundRecord]] = {}
        fewer = len(jobs)
        with closing(_rounds(case, jobs, device, precision)) as rounds:
            for records in rounds:
                for name, record in records.items():
                    logs.setdefault(name, []).append(replace(record, weights=np.empty(0), server={}))
                now = time.monotonic()
                at = next(iter(records.values())).round_index
                if at == SETTLED_AFTER:
                    _refuse_diverged(case, logs)
                if at == 1:
                    first_done = now
                if at == SETTLED_AFTER and at < case.setting.num_rounds:
                    a_round = (now - first_done) / (at - 1)
                    to_come = a_round * (case.setting.num_rounds - at)
                    fewer = _able_to_end(len(jobs), to_come, deadline - now)
                    if fewer < len(jobs):
                        break
                    if to_come > deadline - now:
                        tell(f"{case.cell.path}: this one arm takes {to_come:.0f} s more, longer than there is time")
                _tell_round(case, records, tell)
        if fewer == len(jobs):
            seconds = time.monotonic() - began
            return [
                _measured(case, job, logs[_name(job)], precision, seconds / len(jobs), len(jobs), origin)
                for job in jobs
            ]
        tell(f"{case.cell.path}: {a_round:.1f} s a round is too slow for {len(jobs)} arms; again with {fewer}")
        jobs = jobs[:fewer]


def _clear(device: str) -> None:
    """Gives back what a batch left on a GPU: recordings keep their memory, compiled shapes count against a limit."""
    if device.startswith("cuda"):
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def _refuse_diverged(case: Case, logs: Mapping[str, Sequence[RoundRecord]]) -> None:
    for name, records in logs.items():
        left_out, all_updates = sum(len(record.diverged) for record in records), len(records) * case.cell.num_clients
        if left_out > MOST_DIVERGED * all_updates:
            raise BadInput(
                f"{case.cell.path}: {left_out} of the first {all_updates} updates of {name} hold NaN or infinity. "
                "Nothing of this batch is filed. Lower the learning rate, or look for a fault of the engine."
            )


def _able_to_end(arms: int, seconds: float, left: float) -> int:
    """How many arms can end in the time left, if all of them take so many seconds together."""
    return arms if seconds <= left else max(1, min(arms - 1, int(arms * RESERVE * left / seconds)))


def _rounds(
    case: Case, jobs: Sequence[Job], device: str, precision: str
) -> Generator[dict[str, RoundRecord], None, None]:
    every = 1 if case.cell.dataset == CURVES_OF else EVALUATE_EVERY
    arms = []
    for job in jobs:
        arm, unit = job
        config = TrainingConfig(
            **training_choices(case.setting),
            privacy="paper",
            aggregation=cast(Aggregation, arm.aggregation),
            budget_unit=1.0 if unit is None else unit,
            seed=case.cell.seed_of("training"),
            device=device,
            precision=cast(Precision, precision),
            evaluate_every=every,
        )
        arms.append(Arm(_name(job), case.plan(arm.mechanism), case.data, config))
    yield from rounds_together(case.model(), arms)


def _name(job: Job) -> str:
    arm, unit = job
    return str(arm) if unit is None else f"{arm} at {unit:g}"


def _tell_round(case: Case, records: Mapping[str, RoundRecord], tell: Tell) -> None:
    first = next(iter(records.values()))
    if math.isfinite(first.accuracy):
        told = "  ".join(
            f"{name} {100 * record.accuracy:.2f}" + (f" ({len(record.diverged)} diverged)" if record.diverged else "")
            for name, record in records.items()
        )
        tell(f"{case.cell.path}: round {first.round_index}/{case.setting.num_rounds}  {told}")


def _measured(
    case: Case,
    job: Job,
    records: Sequence[RoundRecord],
    precision: str,
    seconds: float,
    arms_together: int,
    origin: Provenance,
) -> Measured:
    arm, unit = job
    last, setting = records[-1], case.setting
    evaluated = [record for record in records if math.isfinite(record.accuracy)]
    examples = len(records) * setting.local_epochs * int(case.data.num_examples.sum())
    gflop = gflop_per_example(setting)
    clipped = [record.share_clipped for record in records if math.isfinite(record.share_clipped)]
    return Measured(
        arm=arm,
        unit=unit,
        accuracy=round(last.accuracy, 6),
        best_accuracy=round(max(record.accuracy for record in evaluated), 6),
        curve={
            "round": [record.round_index for record in evaluated],
            "accuracy": [round(record.accuracy, 4) for record in evaluated],
        },
        clip_norm=_significant(last.clip_norm),
        fixed_budget=_significant(float(records[0].budgets.max())) if arm.mechanism.startswith("fixed") else None,
        share_clipped=round(float(np.mean(clipped)), 4) if clipped else None,
        budgets=_budgets(records),
        dp_epsilon=_significant(last.dp_epsilon) if math.isfinite(last.dp_epsilon) else None,
        dp_delta=TrainingConfig().dp_delta,
        num_rounds=len(records),
        num_examples=examples,
        seconds=_significant(seconds),
        arms_together=arms_together,
        samples_per_second=round(examples / seconds, 1),
        tflop_per_second=_significant(examples * gflop / seconds / 1e3),
        gflop_per_example=_significant(gflop),
        engine=last.engine,
        precision=precision,
        device=origin.gpu or origin.cpu,
        versions={name: getattr(origin, name) for name in ("mppfl", "python", "torch", "numpy", "scipy")},
        commit=os.environ.get(COMMIT, "") or origin.commit or "unknown",
        source=origin.source,
        started=origin.started,
        diverged=sum(len(record.diverged) for record in records),
    )


def _budgets(records: Sequence[RoundRecord]) -> dict[str, list[float | None]]:
    """Number, mean and harmonic mean of budgets in three rounds; size weights make the harmonic one count."""
    chosen = [records[k] for k in dict.fromkeys((0, (len(records) - 1) // 2, len(records) - 1))]
    given = [record.budgets[record.participating] for record in chosen]
    noisy = [len(budgets) > 0 and bool(np.isfinite(budgets).all()) for budgets in given]
    return {
        "round": [record.round_index for record in chosen],
        "taking_part": [len(budgets) for budgets in given],
        "mean": [_significant(float(b.mean())) if ok else None for b, ok in zip(given, noisy, strict=True)],
        "harmonic_mean": [
            _significant(float(1 / (1 / b).mean())) if ok else None for b, ok in zip(given, noisy, strict=True)
        ],
    }


def _significant(value: float) -> float:
    return float(f"{value:.6g}")
