"""From raw updates to what the server sees: cost, reservation in the ledger, then the noisy release."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.errors import BadInput, BudgetExceeded
from mppfl.privacy import LocalWork, ReleaseCost, release, release_on_device, round_cost
from mppfl.training.arms import Standing
from mppfl.training.batches import stream
from mppfl.training.config import TrainingConfig
from mppfl.training.local import GradientNoise, as_array
from mppfl.training.poisson import poisson_multiplier

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class Uploads:
    """What the server got in one round.

    who            positions of the clients who uploaded
    rows           their noisy updates [uploads, parameters]
    noise_std      standard deviation of the noise in each row, per parameter
    share_clipped  share of them that was shortened; NaN where gradients are clipped instead, and under noise that
                   protects: it is computed from raw updates, and no budget pays for it
    """

    who: IntArray
    rows: Tensor
    noise_std: Array
    share_clipped: float


def admitted(standing: Standing, round_index: int, asked: Array, who: IntArray) -> tuple[IntArray, list[ReleaseCost]]:
    """Who may release this round, and what each pays. It stands in the ledger when this returns.

    A round that was interrupted after its reservation is computed again. Seeded noise then gives the same upload, which
    is paid for; fresh noise gives another one, which is paid for again. Who has an upload of this round stored in the
    ledger, to be sent again as it is, cannot release another one and is refused.
    """
    costs = [cost_of_client(standing, round_index, int(k), float(asked[k])) for k in who]
    run, ledger = standing.arm.name, standing.ledger
    reservation = ledger.reserve_each(run, round_index, costs, training=standing.key)
    outcomes = reservation.outcomes
    refused = {name for name, outcome in outcomes.items() if outcome == "refused"}
    for k, cost in zip(who.tolist(), costs, strict=True):
        if outcomes[cost.client] == "already reserved" and cost.noise_kind not in ("seeded", "none"):
            for _ in range(reservation.attempts[cost.client]):
                standing.pay(k, cost)  # for each time before, whether its upload ever left or not
            try:
                paid = ledger.reserve_again(run, round_index, [cost]).outcomes[cost.client] == "reserved"
            except BudgetExceeded:
                paid = False
            if not paid:
                refused.add(cost.client)
        if cost.client not in refused:
            standing.pay(k, cost)
    kept = [number for number, cost in enumerate(costs) if cost.client not in refused]
    return who[kept], [costs[number] for number in kept]


def cost_of_client(standing: Standing, round_index: int, client: int, budget: float) -> ReleaseCost:
    """What the round costs one client, before anything is drawn."""
    config, work = standing.arm.config, standing.works[client]
    multiplier = None if config.mechanism.is_zcdp else poisson_multiplier(budget, config.dp_delta, work)
    return round_cost(
        config.mechanism,
        budget if multiplier is None else None,
        standing.clip_norm,
        work,
        config.noise,
        standing.model.num_parameters,
        standing.arm.data.names[client],
        round_index,
        standing.arm.name,
        multiplier,
    )


def gradient_noise(standing: Standing, cost: ReleaseCost, client: int, budget: float) -> GradientNoise:
    """How a client makes each of its gradients private, at the cost that was reserved."""
    config = standing.arm.config
    is_zcdp = config.mechanism.is_zcdp
    return GradientNoise(
        config.mechanism,
        standing.clip_norm,
        standing.works[client],
        config.noise,
        budget if is_zcdp else None,
        None if is_zcdp else poisson_multiplier(budget, config.dp_delta, standing.works[client]),
        stream(config.seed, "noise", cost.round_index, client),
        cost.client,
    )


def hides_divergence(config: TrainingConfig) -> bool:
    """Whether a client whose update is no number releases 0 with noise, and pays, as if nothing were: its absence would
    tell about its data what no budget pays for. In a simulation it is left out, because it spoils the mean."""
    return config.mechanism.noise_on == "update" and config.noise != "seeded"


def finite_updates(updates: Tensor, names: Sequence[str], where: str, *, hidden: bool = False) -> BoolArray:
    """Whose update can be released. One that holds NaN or infinity cannot, and its client is left out and named.

    Where nobody's can, the training as a whole has diverged, and that is an error.

    hidden  such an update counts as 0 instead, and nothing but the log of this machine tells (`hides_divergence`)
    """
    found: BoolArray = torch.isfinite(updates).all(1).cpu().numpy()
    wrong = [name for name, is_finite in zip(names, found.tolist(), strict=True) if not is_finite]
    if wrong and len(wrong) == len(names) and not hidden:
        raise BadInput(
            f"{where}: every update holds NaN or infinity, client {wrong[0]!r}'s first. Nothing was released. Lower "
            "learning_rate, or raise the budgets: noise may have driven the model away."
        )
    if wrong:
        others = f" and {len(wrong) - 1} others" if len(wrong) > 1 else ""
        fate = "released as 0 with its noise, and paid" if hidden else "left out"
        log.warning("%s: the update of client %r%s holds NaN or infinity; %s", where, wrong[0], others, fate)
    return found


def noisy_uploads(standing: Standing, who: IntArray, updates: Tensor, costs: Sequence[ReleaseCost]) -> Uploads:
    """What leaves the clients whose costs are reserved: updates with noise, or updates made of noisy gradients."""
    config = standing.arm.config
    if config.mechanism.noise_on != "update":
        works = [standing.works[int(k)] for k in who]
        added = np.array([noise_in_update(config, work, cost) for work, cost in zip(works, costs, strict=True)])
        return Uploads(who, updates, added, math.nan)
    stds = np.array([cost.noise_std for cost in costs])
    if not len(who):
        return Uploads(who, updates, stds, math.nan)
    streams = [stream(config.seed, "noise", cost.round_index, int(k)) for cost, k in zip(costs, who, strict=True)]
    if updates.is_cuda and config.noise == "seeded":
        seeds = [int(rng.integers(2**62)) for rng in streams]
        rows, clipped = release_on_device(updates, costs, standing.clip_norm, seeds)
        return Uploads(who, rows, stds, float(clipped.double().mean()))
    released, shortened = [], []
    for k, row, cost, rng in zip(who, as_array(updates), costs, streams, strict=True):
        found = release(
            row,
            [cost.budget],
            mechanism=config.mechanism,
            clip_norm=standing.clip_norm,
            work=standing.works[int(k)],
            noise=config.noise,
            rng=rng,
            clients=[cost.client],
            round_index=cost.round_index,
            run=cost.run,
        )
        if found.costs[0] != cost:
            raise BadInput(f"the release of client {cost.client!r} cost {found.costs[0]}, but {cost} was reserved.")
        released.append(found.updates)
        shortened.append(bool(found.clipped[0]))
    rows = torch.from_numpy(np.stack(released)).to(updates.device)
    return Uploads(who, rows, stds, math.nan if config.noise != "seeded" else float(np.mean(shortened)))


def noise_in_update(config: TrainingConfig, work: LocalWork, cost: ReleaseCost) -> float:
    """Standard deviation of the noise in the whole update, per parameter, as far as steps just add up."""
    if config.mechanism.noise_on == "update":
        return cost.noise_std
    divisor = 1 if config.mechanism.noise_on == "mean gradient" else work.batch_size
    counted = times_counted(config, work)
    return config.learning_rate * cost.noise_std / divisor * math.sqrt(sum(each * each for each in counted))


def times_counted(config: TrainingConfig, work: LocalWork) -> list[float]:
    """How often each step's gradient is in the update by the end: (1 − μ^(steps−k))/(1 − μ) with momentum μ."""
    steps = {"full_batch": 1, "full_batch_steps": work.num_steps}.get(config.privacy, work.num_batches)
    mu = config.momentum
    return [(1 - mu ** (steps - k)) / (1 - mu) if mu < 1 else float(steps - k) for k in range(steps)]
