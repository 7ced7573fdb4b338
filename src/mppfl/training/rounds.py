"""The federated round: plan, local training, release, ledger, mean, evaluation. A generator: the loop is the caller's.

    for record in training_rounds(model, data, plan, config):
        print(record.round_index, record.accuracy)

`rounds_together` trains several plans side by side, which fills a GPU better than one after the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mppfl.arrays import Array, IntArray
from mppfl.data import ClientData
from mppfl.errors import BadInput
from mppfl.game import Plan, Terms
from mppfl.network import find_device, to_device
from mppfl.privacy import ReleaseCost, epsilon, epsilon_with_extra
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training.aggregate import weights_of_updates
from mppfl.training.arms import Arm, Standing, require_fitting, training_key
from mppfl.training.batches import stream
from mppfl.training.checkpoint import Checkpoint
from mppfl.training.cohort import Cohort, choose_engine
from mppfl.training.config import TrainingConfig
from mppfl.training.flat import FlatModel, flat_model
from mppfl.training.local import Lane, Table, as_array, evaluate
from mppfl.training.record import RoundRecord
from mppfl.training.uploads import admitted, finite_updates, gradient_noise, hides_divergence, noisy_uploads
from mppfl.training.views import looks_of_round

__all__ = ["Arm", "require_trainable", "rounds_together", "training_key", "training_rounds"]


def training_rounds(
    model: nn.Module,
    data: ClientData,
    plan: Plan,
    config: TrainingConfig,
    *,
    ledger: PrivacyLedger | None = None,
    run: str = "training",
    resume: Checkpoint | None = None,
) -> Iterator[RoundRecord]:
    """Trains the model on the clients' data under the plan, one record per round (paper, Algorithm 2)."""
    for records in rounds_together(model, [Arm(run, plan, data, config, ledger, resume)]):
        yield records[run]


def rounds_together(model: nn.Module, arms: Sequence[Arm]) -> Iterator[dict[str, RoundRecord]]:
    """Trains all arms side by side: one record per arm and round, by the arm's name.

    Arms with the same local training on the same table of examples are computed in one batch.
    """
    if not arms or len({arm.name for arm in arms}) < len(arms):
        raise BadInput("arms need names of their own, and there must be at least one.")
    flat = flat_model(model)
    standings = [Standing(flat, arm) for arm in arms]
    if len({standing.position for standing in standings}) > 1:
        raise BadInput("arms must resume after the same round; take checkpoints of one moment.")
    groups: dict[tuple[object, ...], list[Standing]] = {}
    for standing in standings:
        groups.setdefault(standing.arm.computed_with, []).append(standing)
    with ExitStack() as resources:
        cohorts = {key: resources.enter_context(_cohort(flat, members)) for key, members in groups.items()}
        tests = {key: _test_table(cohorts[key], members[0].arm.data) for key, members in groups.items()}
        while going := [standing for standing in standings if not standing.is_done]:
            records: dict[str, RoundRecord] = {}
            for key, members in groups.items():
                records |= _one_round(cohorts[key], tests[key], [each for each in members if not each.is_done])
            yield {standing.arm.name: records[standing.arm.name] for standing in going}


def require_trainable(model: nn.Module, arms: Sequence[Arm]) -> None:
    """Raises where `rounds_together` would refuse these arms before their first round. Pays and writes nothing."""
    flat = flat_model(model)
    for arm in arms:
        require_fitting(flat, arm)
        choose_engine(flat, arm.config, find_device(arm.config.device), arm.data.num_clients)


def _cohort(model: FlatModel, members: Sequence[Standing]) -> Cohort:
    arm = members[0].arm
    num_lanes = sum(standing.arm.data.num_clients for standing in members)
    return Cohort(model, arm.data.features, arm.data.labels, arm.config, num_lanes)


def _test_table(cohort: Cohort, data: ClientData) -> Table:
    features = to_device(data.test_features, cohort.device).to(cohort.dtype)
    if features.is_cuda and features.ndim == 4:
        features = features.to(memory_format=torch.channels_last)  # as a GPU's convolutions like it
    return Table(features, to_device(data.test_labels, cohort.device))


Drawn = dict[tuple[object, ...], list[IntArray]]  # batches of this round, by all that decides them


@dataclass(frozen=True, eq=False, slots=True)
class _Work:
    """What one arm does in one round: who was asked for how much, and what each participant computes.

    asked  ρ of the training, per client
    costs  reserved in the ledger already, where noise goes into every gradient; else None
    """

    terms: Terms
    asked: Array
    who: IntArray
    lanes: list[Lane]
    costs: list[ReleaseCost] | None


def _one_round(cohort: Cohort, test: Table, standings: Sequence[Standing]) -> dict[str, RoundRecord]:
    """One round of all arms of a cohort, their clients computed together."""
    started = time.perf_counter()
    drawn: Drawn = {}
    works = [_assigned(standing, drawn) for standing in standings]
    lanes = [lane for work in works for lane in work.lanes]
    none = torch.zeros((0, cohort.model.num_parameters), device=cohort.device, dtype=cohort.dtype)
    updates = cohort.updates(lanes) if lanes else none
    if cohort.device.type == "cuda":
        torch.cuda.synchronize(cohort.device)
    shared = (time.perf_counter() - started) / max(1, len(standings))
    of_arms = torch.split(updates, [len(work.lanes) for work in works])
    return {
        standing.arm.name: _concluded(standing, work, own, cohort, test, shared)
        for standing, work, own in zip(standings, works, of_arms, strict=True)
    }


def _assigned(standing: Standing, drawn: Drawn) -> _Work:
    """Terms of the round, who takes part, and the batches of each; arms of one seed draw the same, and draw once."""
    config, data = standing.arm.config, standing.arm.data
    terms = standing.arm.plan[standing.position]
    wrong = np.flatnonzero(~(terms.budgets >= 0))
    if len(wrong):
        raise BadInput(
            f"the plan's budget of client {data.names[wrong[0]]!r} in round {terms.round_index} is "
            f"{terms.budgets[wrong[0]]:g}. Budgets are 0 for those who stay out, else above 0."
        )
    asked = config.budget_unit * terms.budgets
    who: IntArray = np.flatnonzero(asked > 0)
    costs: list[ReleaseCost] | None = None
    if config.mechanism.noise_on != "update":  # training itself releases, so the ledger comes first
        who, costs = admitted(standing, terms.round_index, asked, who)
    lanes = []
    for number, k in enumerate(who.tolist()):
        key = (config.seed, config.privacy, config.augmentation, standing.works[k], terms.round_index, k, id(data))
        if key not in drawn:
            drawn[key] = looks_of_round(config, standing.works[k], data.members[k], terms.round_index, k)
        noise = None if costs is None else gradient_noise(standing, costs[number], k, float(asked[k]))
        layers_seed = int(stream(config.seed, "layers", terms.round_index, k).integers(2**62))
        lanes.append(Lane(standing.weights, drawn[key], noise, layers_seed, config.local_epochs))
    return _Work(terms, asked, who, lanes, costs)


def _concluded(
    standing: Standing, work: _Work, updates: Tensor, cohort: Cohort, test: Table, shared: float
) -> RoundRecord:
    """Reservation, release, mean, next model, evaluation. `shared`: this arm's part of the time to compute clients."""
    started = time.perf_counter()
    config, data, terms = standing.arm.config, standing.arm.data, work.terms
    who, costs = work.who, work.costs
    with cohort.server_arithmetic():
        where = f"{standing.arm.name}, round {terms.round_index}"
        hidden = hides_divergence(config)
        if hidden and not torch.isfinite(standing.weights).all():  # the server's own model: everybody may know
            raise BadInput(
                f"{where}: the model holds NaN or infinity. Nothing was released. Lower learning_rate, or raise the "
                "budgets: noise may have driven it away."
            )
        # Before anybody is charged for them.
        finite = finite_updates(updates, [data.names[k] for k in who], where, hidden=hidden)
        diverged = () if hidden else tuple(data.names[k] for k in who[~finite])
        if hidden:
            updates[torch.from_numpy(~finite).to(updates.device)] = 0.0
        elif diverged:
            who, updates = who[finite], updates[torch.from_numpy(finite).to(updates.device)]
            costs = None if costs is None else [cost for cost, is_whole in zip(costs, finite, strict=True) if is_whole]
        could_release = who
        if costs is None:
            standing.settle_clip_norm(updates)
            who, costs = admitted(standing, terms.round_index, work.asked, who)
            updates = updates[torch.from_numpy(np.isin(could_release, who)).to(updates.device)]
        uploads = noisy_uploads(standing, who, updates, costs)
        theta, dispersion, mean = np.zeros(0), math.nan, None
        if len(who):
            theta, dispersion = weights_of_updates(
                config.aggregation, data.num_examples[who], uploads.noise_std, uploads.rows
            )
            mean = torch.from_numpy(theta).to(uploads.rows) @ uploads.rows
        standing.move(mean)
    accuracy, loss = math.nan, math.nan
    if standing.is_done or standing.position % config.evaluate_every == 0:
        accuracy, loss = evaluate(standing.model, standing.handed_out, test)
    taking_part = np.isin(np.arange(data.num_clients), who)
    left_out = (work.asked > 0) & ~taking_part
    nominal = largest_epsilon(standing)
    # Without noise there is no budget to pay for: an infinite one is a reference, not an offer.
    paid = np.where(taking_part & np.isfinite(terms.budgets), terms.budgets, 0.0)
    return RoundRecord(
        round_index=terms.round_index,
        reward_rate=terms.reward_rate,
        budgets=np.asarray(terms.budgets),
        payments=np.asarray(terms.prices) * paid,
        spent=np.where(taking_part, work.asked, 0.0),
        participating=taking_part,
        noise_std=_spread(uploads.noise_std, who, data.num_clients),
        theta=_spread(theta, who, data.num_clients),
        dispersion=dispersion,
        clip_norm=standing.clip_norm,
        share_clipped=uploads.share_clipped,
        update_norm=0.0 if mean is None else float(torch.linalg.vector_norm(mean)),
        accuracy=accuracy,
        loss=loss,
        dp_epsilon=nominal,
        worst_case_epsilon=largest_epsilon(standing, worst_case=True) if config.privacy == "paper" else nominal,
        seconds=shared + time.perf_counter() - started,
        weights=as_array(standing.handed_out.detach().to("cpu", copy=True)),
        server=standing.server_memory(),
        engine=cohort.name,
        refused=tuple(data.names[k] for k in np.flatnonzero(left_out) if data.names[k] not in diverged),
        diverged=diverged,
    )


def _spread(values: Array, who: IntArray, num_clients: int) -> Array:
    everybody = np.zeros(num_clients)
    everybody[who] = values
    return everybody


def largest_epsilon(standing: Standing, *, worst_case: bool = False) -> float:
    """ε of the client who has spent most in this training so far, at the configured δ: nominal, or of the worst case.

    Under Poisson sampling it takes longer and is found after the last round, from the ledger, by RDP.
    """
    config, data = standing.arm.config, standing.arm.data
    if not config.mechanism.is_zcdp:
        known = set(standing.ledger.clients)
        names = [name for name in data.names if name in known]
        if not standing.is_done or not names:
            return math.nan
        unit = config.mechanism.unit
        return float(np.max(standing.ledger.get_epsilon(names, config.dp_delta, "rdp", unit=unit)))
    all_spent = standing.account["spent"]
    if worst_case:  # the same multiple of the nominal budget in every round
        all_spent = all_spent * [config.mechanism.worst_case_budget(1.0, work) for work in standing.works]
    worst = int(np.argmax(all_spent))
    spent, extra_delta = float(all_spent[worst]), float(standing.account["extra_delta"][worst])
    if spent == 0 or math.isinf(spent):
        return math.inf if spent else 0.0
    method = "rdp" if config.noise == "discrete" else "exact"
    found = epsilon_with_extra(
        lambda deltas: epsilon(np.array([spent]), deltas, method), config.dp_delta, np.array([extra_delta])
    )
    return float(found[0])
