"""The federated round: plan, local training, release, ledger, mean, evaluation. A generator: the loop is the caller's.

`train_rounds` trains one plan; `train_many` several side by side, which fills a GPU better than one after the
other. What a round costs stands in the ledger before anything noisy leaves a client.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.data import ClientData
from mppfl.device import find_device, to_device
from mppfl.errors import BadInput, BudgetExceeded
from mppfl.game import Plan, RoundTerms
from mppfl.privacy import (
    LocalWork,
    ReleaseCost,
    epsilon,
    epsilon_with_extra,
    release_on_device,
    release_updates,
    round_cost,
)
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.spec import TrainingConfig
from mppfl.training.aggregate import weights_of_updates
from mppfl.training.budget_unit import poisson_multiplier
from mppfl.training.client import (
    ClientSlot,
    GradientNoise,
    Table,
    as_array,
    batches_with_augmentation,
    evaluate,
    stream,
)
from mppfl.training.engines import Engine, choose_engine
from mppfl.training.job import TrainingJob, TrainingState, require_fitting
from mppfl.training.models import flat_model
from mppfl.training.records import Checkpoint, RoundRecord

log = logging.getLogger(__name__)

DrawnBatches = dict[tuple[object, ...], list[IntArray]]  # of this round, by all that decides them


def train_rounds(
    model: nn.Module,
    data: ClientData,
    plan: Plan,
    config: TrainingConfig,
    *,
    ledger: PrivacyLedger | None = None,
    run: str = "training",
    resume: Checkpoint | None = None,
) -> Iterator[RoundRecord]:
    """Trains the model on the clients' data under the plan, one record per round (paper, Algorithm 2).

    Args:
        model: a torch module, named by `make_model` or your own. It stays as it is; `load_weights` puts a record's
            weights into it.
        data: the clients' examples and the test data.
        plan: who is offered what in each round; its budgets decide the noise.
        config: how clients train, what protects them and how updates are aggregated.
        ledger: where every release is reserved before it is made; None for one in memory.
        run: name of the training in the ledger.
        resume: checkpoint of the same training to continue from.

    Returns:
        A generator of RoundRecord. Stop reading it to stop the training.

    Raises:
        BadInput: if plan, data, model and configuration do not fit together, or the training diverges.

    Example:
        >>> import numpy as np
        >>> from mppfl.data import client_data
        >>> from mppfl.game import RoundTerms, plan_from_rounds
        >>> from mppfl.training import TrainingConfig, make_model
        >>> x, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
        >>> data = client_data(x, y, [range(10), range(10, 20)], x, y)
        >>> plan = plan_from_rounds("by hand", [RoundTerms(1, 2.0, 2.0, np.array([0.5, 1.0]))])
        >>> model, config = make_model("softmax", (3,), 2), TrainingConfig(batch_size=5)
        >>> [record.round_index for record in train_rounds(model, data, plan, config)]
        [1]
    """
    for records in train_many(model, [TrainingJob(run, plan, data, config, ledger, resume)]):
        yield records[run]


def train_many(model: nn.Module, arms: Sequence[TrainingJob]) -> Iterator[dict[str, RoundRecord]]:
    """Trains several jobs side by side. Each comes out as `train_rounds` alone would give it, bit for bit.

    Jobs with the same local training on the same table of examples are computed in one batch.

    Args:
        model: the module that every job starts from.
        arms: the jobs, under names of their own; those that resume must stand after the same round.

    Returns:
        A generator of one RoundRecord per job and round, by the job's name; a job that is done is left out.

    Raises:
        BadInput: as `train_rounds`, and if two jobs have the same name.

    Example:
        >>> import numpy as np
        >>> from mppfl.data import client_data
        >>> from mppfl.game import RoundTerms, plan_from_rounds
        >>> from mppfl.training import TrainingConfig, make_model
        >>> x, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
        >>> data = client_data(x, y, [range(10), range(10, 20)], x, y)
        >>> plan = plan_from_rounds("by hand", [RoundTerms(1, 2.0, 2.0, np.array([0.5, 1.0]))])
        >>> jobs = [TrainingJob(f"seed {k}", plan, data, TrainingConfig(batch_size=5, seed=k)) for k in (1, 2)]
        >>> [sorted(records) for records in train_many(make_model("softmax", (3,), 2), jobs)]
        [['seed 1', 'seed 2']]
    """
    if not arms or len({arm.name for arm in arms}) < len(arms):
        raise BadInput("arms need names of their own, and there must be at least one.")
    flat = flat_model(model)
    states = [TrainingState(flat, arm) for arm in arms]
    if len({state.position for state in states}) > 1:
        raise BadInput("arms must resume after the same round; take checkpoints of one moment.")
    groups: dict[tuple[object, ...], list[TrainingState]] = {}
    for state in states:
        groups.setdefault(state.arm.computed_with, []).append(state)
    engines, tests = {}, {}
    for key, members in groups.items():
        data, num_slots = members[0].arm.data, sum(state.arm.data.num_clients for state in members)
        engines[key] = Engine(flat, data.features, data.labels, members[0].arm.config, num_slots)
        tests[key] = _test_table(engines[key], data)
    while going := [state for state in states if not state.is_done]:
        records: dict[str, RoundRecord] = {}
        for key, members in groups.items():
            records |= _one_round(engines[key], tests[key], [state for state in members if not state.is_done])
        yield {state.arm.name: records[state.arm.name] for state in going}


def require_trainable(model: nn.Module, arms: Sequence[TrainingJob]) -> None:
    """Raises where `train_many` would refuse these jobs before their first round. Pays and writes nothing."""
    flat = flat_model(model)
    for arm in arms:
        require_fitting(flat, arm)
        choose_engine(flat, arm.config, find_device(arm.config.device), arm.data.num_clients)


def _test_table(engine: Engine, data: ClientData) -> Table:
    features = to_device(data.test_features, engine.device).to(engine.dtype)
    if features.is_cuda and features.ndim == 4:
        features = features.to(memory_format=torch.channels_last)  # as a GPU's convolutions like it
    return Table(features, to_device(data.test_labels, engine.device))


@dataclass(frozen=True, eq=False, slots=True)
class _Assignment:
    """What one job does in one round: the terms, and what each participant computes.

    asked    ρ of the training, per client
    clients  positions of those who train
    costs    reserved in the ledger already, where noise goes into every gradient; else None
    """

    terms: RoundTerms
    asked: Array
    clients: IntArray
    slots: list[ClientSlot]
    costs: list[ReleaseCost] | None


def _one_round(engine: Engine, test: Table, states: Sequence[TrainingState]) -> dict[str, RoundRecord]:
    """One round of all jobs of an engine, their clients computed together."""
    started = time.perf_counter()
    drawn: DrawnBatches = {}
    assignments = [_assigned(state, drawn) for state in states]
    slots = [slot for assignment in assignments for slot in assignment.slots]
    none = torch.zeros((0, engine.model.num_parameters), device=engine.device, dtype=engine.dtype)
    updates = engine.updates(slots) if slots else none
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    seconds = (time.perf_counter() - started) / max(1, len(states))
    of_jobs = torch.split(updates, [len(assignment.slots) for assignment in assignments])
    return {
        state.arm.name: _concluded(state, assignment, rows, engine, test, seconds)
        for state, assignment, rows in zip(states, assignments, of_jobs, strict=True)
    }


def _assigned(state: TrainingState, drawn: DrawnBatches) -> _Assignment:
    """Terms of the round, who participates, and the batches of each; jobs of one seed draw the same, and draw once."""
    config, data = state.arm.config, state.arm.data
    terms = state.arm.plan[state.position]
    wrong = np.flatnonzero(~(terms.budgets >= 0))
    if len(wrong):
        raise BadInput(
            f"the plan's budget of client {data.names[wrong[0]]!r} in round {terms.round_index} is "
            f"{terms.budgets[wrong[0]]:g}. Budgets are 0 for those who opt out, else above 0."
        )
    asked = config.budget_unit * terms.budgets
    clients: IntArray = np.flatnonzero(asked > 0)
    costs: list[ReleaseCost] | None = None
    if config.mechanism.noise_on != "update":  # training itself releases, so the ledger comes first
        clients, costs = admitted(state, terms.round_index, asked, clients)
    slots = []
    for number, k in enumerate(clients.tolist()):
        key = (config.stream_seed, config.privacy, config.augmentation, state.works[k], terms.round_index, k, id(data))
        if key not in drawn:
            drawn[key] = batches_with_augmentation(config, state.works[k], data.members[k], terms.round_index, k)
        noise = None if costs is None else gradient_noise(state, costs[number], k, float(asked[k]))
        layers_seed = int(stream(config.stream_seed, "layers", terms.round_index, k).integers(2**62))
        slots.append(ClientSlot(state.weights, drawn[key], noise, layers_seed, config.local_epochs))
    return _Assignment(terms, asked, clients, slots, costs)


def _concluded(
    state: TrainingState, assignment: _Assignment, updates: Tensor, engine: Engine, test: Table, seconds: float
) -> RoundRecord:
    """Reservation, release, mean, next model, evaluation. `seconds`: this job's part of the time to compute clients."""
    started = time.perf_counter()
    config, data, terms = state.arm.config, state.arm.data, assignment.terms
    with engine.server_arithmetic():
        uploads, diverged = _released(state, assignment, updates)
        clients = uploads.clients
        theta, dispersion, mean = np.zeros(0), math.nan, None
        if len(clients):
            theta, dispersion = weights_of_updates(
                config.aggregation, data.num_examples[clients], uploads.noise_std, uploads.rows
            )
            mean = torch.from_numpy(theta).to(uploads.rows) @ uploads.rows
        state.move(mean)
    accuracy, loss = math.nan, math.nan
    if state.is_done or state.position % config.evaluate_every == 0:
        accuracy, loss = evaluate(state.model, state.handed_out, test)
    participating = np.isin(np.arange(data.num_clients), clients)
    left_out = (assignment.asked > 0) & ~participating
    nominal = largest_epsilon(state)
    # Without noise there is no budget to pay for: an infinite one is a reference, not an offer.
    paid = np.where(participating & np.isfinite(terms.budgets), terms.budgets, 0.0)
    return RoundRecord(
        round_index=terms.round_index,
        reward_rate=terms.reward_rate,
        budgets=np.asarray(terms.budgets),
        payments=np.asarray(terms.prices) * paid,
        spent=np.where(participating, assignment.asked, 0.0),
        participating=participating,
        noise_std=_over_all(uploads.noise_std, clients, data.num_clients),
        theta=_over_all(theta, clients, data.num_clients),
        dispersion=dispersion,
        clip_norm=state.clip_norm,
        share_clipped=uploads.share_clipped,
        update_norm=0.0 if mean is None else float(torch.linalg.vector_norm(mean)),
        accuracy=accuracy,
        loss=loss,
        dp_epsilon=nominal,
        worst_case_epsilon=largest_epsilon(state, worst_case=True) if config.privacy == "paper" else nominal,
        seconds=seconds + time.perf_counter() - started,
        weights=as_array(state.handed_out.detach().to("cpu", copy=True)),
        server=state.server_memory(),
        engine=engine.name,
        refused=tuple(data.names[k] for k in np.flatnonzero(left_out) if data.names[k] not in diverged),
        diverged=diverged,
    )


def _over_all(values: Array, clients: IntArray, num_clients: int) -> Array:
    """One entry per client, 0 for those who did not upload."""
    entries = np.zeros(num_clients)
    entries[clients] = values
    return entries


def largest_epsilon(state: TrainingState, *, worst_case: bool = False) -> float:
    """ε of the client who has spent most in this training so far, at the configured δ: nominal, or of the worst case.

    Under Poisson sampling it takes longer and is computed after the last round, from the ledger, by RDP.
    """
    config, data = state.arm.config, state.arm.data
    if not config.mechanism.is_zcdp:
        in_ledger = set(state.ledger.clients)
        names = [name for name in data.names if name in in_ledger]
        if not state.is_done or not names:
            return math.nan
        unit = config.mechanism.unit
        return float(np.max(state.ledger.get_epsilon(names, config.dp_delta, "rdp", unit=unit)))
    all_spent = state.account["spent"]
    if worst_case:  # the same multiple of the nominal budget in every round
        all_spent = all_spent * [config.mechanism.worst_case_budget(1.0, work) for work in state.works]
    worst = int(np.argmax(all_spent))
    spent, extra_delta = float(all_spent[worst]), float(state.account["extra_delta"][worst])
    if spent == 0 or math.isinf(spent):
        return math.inf if spent else 0.0
    method = "rdp" if config.noise == "discrete" else "exact"
    values = epsilon_with_extra(
        lambda deltas: epsilon(np.array([spent]), deltas, method), config.dp_delta, np.array([extra_delta])
    )
    return float(values[0])


# ---- from raw updates to what the server sees: cost, reservation in the ledger, then the noisy release --------------


@dataclass(frozen=True, eq=False, slots=True)
class NoisyUploads:
    """What the server got in one round.

    clients        positions of the clients who uploaded
    rows           their noisy updates [uploads, parameters]
    noise_std      standard deviation of the noise in each row, per parameter
    share_clipped  share of them that was shortened; NaN where gradients are clipped instead, and under noise that
                   protects: it is computed from raw updates, and no budget pays for it
    """

    clients: IntArray
    rows: Tensor
    noise_std: Array
    share_clipped: float


def _released(state: TrainingState, assignment: _Assignment, updates: Tensor) -> tuple[NoisyUploads, tuple[str, ...]]:
    """What leaves the clients, its cost reserved, and the names of those whose update diverged and was left out."""
    config, data, round_index = state.arm.config, state.arm.data, assignment.terms.round_index
    clients, costs = assignment.clients, assignment.costs
    where = f"{state.arm.name}, round {round_index}"
    hidden = hides_divergence(config)
    if hidden and not torch.isfinite(state.weights).all():  # the server's own model: everybody may know
        raise BadInput(
            f"{where}: the model holds NaN or infinity. Nothing was released. Lower learning_rate, or raise the "
            "budgets: noise may have driven it away."
        )
    # Before anybody is charged for them.
    finite = finite_updates(updates, [data.names[k] for k in clients], where, hidden=hidden)
    diverged = () if hidden else tuple(data.names[k] for k in clients[~finite])
    if hidden:
        updates[torch.from_numpy(~finite).to(updates.device)] = 0.0
    elif diverged:
        clients, updates = clients[finite], updates[torch.from_numpy(finite).to(updates.device)]
        costs = None if costs is None else [cost for cost, is_whole in zip(costs, finite, strict=True) if is_whole]
    if costs is None:
        state.settle_clip_norm(updates)
        able = clients
        clients, costs = admitted(state, round_index, assignment.asked, able)
        updates = updates[torch.from_numpy(np.isin(able, clients)).to(updates.device)]
    return noisy_uploads(state, clients, updates, costs), diverged


def admitted(
    state: TrainingState, round_index: int, asked: Array, clients: IntArray
) -> tuple[IntArray, list[ReleaseCost]]:
    """Which clients may release this round, and what each pays. It stands in the ledger when this returns.

    A round that was interrupted after its reservation is computed again. Seeded noise then gives the same upload, which
    is paid for; fresh noise gives another one, which is paid for again. A client with an upload of this round stored in
    the ledger, to be sent again as it is, cannot release another one and is refused.
    """
    costs = [cost_of_client(state, round_index, int(k), float(asked[k])) for k in clients]
    run, ledger = state.arm.name, state.ledger
    reservation = ledger.reserve_each(run, round_index, costs, training=state.key)
    outcomes = reservation.outcomes
    refused = {name for name, outcome in outcomes.items() if outcome == "refused"}
    for k, cost in zip(clients.tolist(), costs, strict=True):
        if outcomes[cost.client] == "already reserved" and cost.noise_kind not in ("seeded", "none"):
            for _ in range(reservation.attempts[cost.client]):
                state.pay(k, cost)  # for each time before, whether its upload ever left or not
            try:
                paid = ledger.reserve_again(run, round_index, [cost]).outcomes[cost.client] == "reserved"
            except BudgetExceeded:
                paid = False
            if not paid:
                refused.add(cost.client)
        if cost.client not in refused:
            state.pay(k, cost)
    kept = [number for number, cost in enumerate(costs) if cost.client not in refused]
    return clients[kept], [costs[number] for number in kept]


def cost_of_client(state: TrainingState, round_index: int, client: int, budget: float) -> ReleaseCost:
    """What the round costs one client, before anything is drawn."""
    config, work = state.arm.config, state.works[client]
    multiplier = None if config.mechanism.is_zcdp else poisson_multiplier(budget, config.dp_delta, work)
    return round_cost(
        config.mechanism, budget if multiplier is None else None, state.clip_norm, work, config.noise,
        state.model.num_parameters, state.arm.data.names[client], round_index, state.arm.name, multiplier,
    )  # fmt: skip


def gradient_noise(state: TrainingState, cost: ReleaseCost, client: int, budget: float) -> GradientNoise:
    """How a client makes each of its gradients private, at the cost that was reserved."""
    config, work = state.arm.config, state.works[client]
    is_zcdp = config.mechanism.is_zcdp
    return GradientNoise(
        config.mechanism,
        state.clip_norm,
        work,
        config.noise,
        budget if is_zcdp else None,
        None if is_zcdp else poisson_multiplier(budget, config.dp_delta, work),
        stream(config.stream_seed, "noise", cost.round_index, client),
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
    finite: BoolArray = torch.isfinite(updates).all(1).cpu().numpy()
    wrong = [name for name, is_finite in zip(names, finite.tolist(), strict=True) if not is_finite]
    if wrong and len(wrong) == len(names) and not hidden:
        raise BadInput(
            f"{where}: every update holds NaN or infinity, client {wrong[0]!r}'s first. Nothing was released. Lower "
            "learning_rate, or raise the budgets: noise may have driven the model away."
        )
    if wrong:
        others = f" and {len(wrong) - 1} others" if len(wrong) > 1 else ""
        fate = "released as 0 with its noise, and paid" if hidden else "left out"
        log.warning("%s: the update of client %r%s holds NaN or infinity; %s", where, wrong[0], others, fate)
    return finite


def noisy_uploads(
    state: TrainingState, clients: IntArray, updates: Tensor, costs: Sequence[ReleaseCost]
) -> NoisyUploads:
    """What leaves the clients whose costs are reserved: updates with noise, or updates made of noisy gradients."""
    config = state.arm.config
    works = [state.works[int(k)] for k in clients]
    if config.mechanism.noise_on != "update":
        added = np.array([noise_in_update(config, work, cost) for work, cost in zip(works, costs, strict=True)])
        return NoisyUploads(clients, updates, added, math.nan)
    stds = np.array([cost.noise_std for cost in costs])
    if not len(clients):
        return NoisyUploads(clients, updates, stds, math.nan)
    streams = [
        stream(config.stream_seed, "noise", cost.round_index, int(k)) for cost, k in zip(costs, clients, strict=True)
    ]
    if updates.is_cuda and config.noise == "seeded":
        seeds = [int(rng.integers(2**62)) for rng in streams]
        rows, clipped = release_on_device(updates, costs, state.clip_norm, seeds)
        return NoisyUploads(clients, rows, stds, float(clipped.double().mean()))
    released, shortened = [], []
    for work, row, cost, rng in zip(works, as_array(updates), costs, streams, strict=True):
        upload = release_updates(
            row,
            [cost.budget],
            mechanism=config.mechanism,
            clip_norm=state.clip_norm,
            work=work,
            noise=config.noise,
            rng=rng,
            clients=[cost.client],
            round_index=cost.round_index,
            run=cost.run,
        )
        if upload.costs[0] != cost:
            raise BadInput(f"the release of client {cost.client!r} cost {upload.costs[0]}, but {cost} was reserved.")
        released.append(upload.updates)
        shortened.append(bool(upload.clipped[0]))
    rows = torch.from_numpy(np.stack(released)).to(updates.device)
    return NoisyUploads(clients, rows, stds, math.nan if config.noise != "seeded" else float(np.mean(shortened)))


def noise_in_update(config: TrainingConfig, work: LocalWork, cost: ReleaseCost) -> float:
    """Standard deviation of the noise in the whole update, per parameter, as far as steps just add up."""
    if config.mechanism.noise_on == "update":
        return cost.noise_std
    divisor = 1 if config.mechanism.noise_on == "mean gradient" else work.batch_size
    squares = sum(times * times for times in times_counted(config, work))
    return config.learning_rate * cost.noise_std / divisor * math.sqrt(squares)


def times_counted(config: TrainingConfig, work: LocalWork) -> list[float]:
    """How often each step's gradient is in the update by the end: (1 − μ^(steps−k))/(1 − μ) with momentum μ."""
    steps = {"full_batch": 1, "full_batch_steps": work.num_steps}.get(config.privacy, work.num_batches)
    mu = config.momentum
    return [(1 - mu ** (steps - k)) / (1 - mu) if mu < 1 else float(steps - k) for k in range(steps)]
