"""The federated round: terms, reservation, local training, noise, mean, next model, evaluation.

`train_rounds` trains one plan; `train_many` several side by side, which fills a GPU better than one after the other.
Both are generators: the loop is the caller's. What a round costs stands in the ledger before anything noisy leaves a
client, and updates are added up as they are made, so a round holds as many as are computed at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.data import ClientData
from mppfl.device import find_device, to_device
from mppfl.errors import BadInput, BudgetExceeded
from mppfl.game import Plan
from mppfl.privacy import (
    LocalWork,
    ReleaseCost,
    SecureSum,
    added_delta,
    clip_and_count,
    epsilon,
    epsilon_with_extra,
    noise_growth,
    noise_of_sampled_sum,
    noise_of_sum,
    release_on_device,
    release_updates,
    round_cost,
    sum_cost,
)
from mppfl.privacy.ledger import PrivacyLedger, TooManyHistories
from mppfl.spec import TrainingConfig
from mppfl.training.aggregate import WeightedMean
from mppfl.training.client import (
    ClientSlot,
    GradientNoise,
    Table,
    as_array,
    batches_with_augmentation,
    evaluate,
    stream,
    system_uniform,
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


def train_many(model: nn.Module, jobs: Sequence[TrainingJob]) -> Iterator[dict[str, RoundRecord]]:
    """Trains several jobs side by side. Each comes out as `train_rounds` alone would give it, bit for bit.

    Jobs with the same local training on the same table of examples are computed in one batch.

    Args:
        model: the module that every job starts from.
        jobs: the jobs, under names of their own; those that resume must stand after the same round.

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
    if not jobs or len({job.name for job in jobs}) < len(jobs):
        raise BadInput("jobs need names of their own, and there must be at least one.")
    flat = flat_model(model)
    states = [TrainingState(flat, job) for job in jobs]
    if len({state.position for state in states}) > 1:
        raise BadInput("jobs must resume after the same round; take checkpoints of one moment.")
    groups: dict[tuple[object, ...], list[TrainingState]] = {}
    for state in states:
        groups.setdefault(state.job.computed_with, []).append(state)
    engines, tests = {}, {}
    for key, members in groups.items():
        data, num_slots = members[0].job.data, sum(state.job.data.num_clients for state in members)
        engines[key] = Engine(flat, data.features, data.labels, members[0].job.config, num_slots)
        tests[key] = _test_table(engines[key], data)
    while going := [state for state in states if not state.is_done]:
        records: dict[str, RoundRecord] = {}
        for key, members in groups.items():
            records |= next_round(engines[key], tests[key], [state for state in members if not state.is_done])
        yield {state.job.name: records[state.job.name] for state in going}


def require_trainable(model: nn.Module, jobs: Sequence[TrainingJob]) -> None:
    """Raises where `train_many` would refuse these jobs before their first round. Pays and writes nothing."""
    flat = flat_model(model)
    for job in jobs:
        require_fitting(flat, job)
        choose_engine(flat, job.config, find_device(job.config.device), job.data.num_clients)


def _test_table(engine: Engine, data: ClientData) -> Table:
    features = to_device(data.test_features, engine.device).to(engine.dtype)
    if features.is_cuda and features.ndim == 4:
        features = features.to(memory_format=torch.channels_last)  # as a GPU's convolutions like it
    return Table(features, to_device(data.test_labels, engine.device))


def next_round(engine: Engine, test: Table, states: Sequence[TrainingState]) -> dict[str, RoundRecord]:
    """One round of all jobs of an engine, their clients computed together; every state moves to the next model."""
    started = time.perf_counter()
    drawn: DrawnBatches | None = {} if len(states) > 1 else None  # which jobs of one seed share
    for state in states:
        if not state.protection.has_clip_norm:
            find_clip_norm(state, engine, drawn)
    rounds = [JobRound(state, engine.model.num_parameters) for state in states]
    slots = chain.from_iterable(job_round.slots(drawn) for job_round in rounds)
    uploads = ((job_round, number) for job_round in rounds for number in range(len(job_round.sampled)))
    for rows in engine.updates(slots):
        with engine.server_arithmetic():
            for row, (job_round, number) in zip(rows, uploads, strict=False):
                job_round.take(number, row)
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    seconds = (time.perf_counter() - started) / max(1, len(states))
    return {job_round.state.job.name: job_round.concluded(engine, test, seconds) for job_round in rounds}


def find_clip_norm(state: TrainingState, engine: Engine, drawn: DrawnBatches | None) -> None:
    """Computes the round once for the lengths of its updates, where the protection asks for them."""
    asked = state.protection.budget_unit * state.job.plan[state.position].budgets
    slots = slots_of(state, np.flatnonzero(asked > 0), [None] * int((asked > 0).sum()), drawn)
    lengths = [torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) for rows in engine.updates(slots)]
    if lengths:
        state.protection = state.protection.with_clip_norm_of(as_array(torch.cat(lengths)))


class Admission(NamedTuple):
    """Who releases in a round, and what each pays; it stands in the ledger.

    weights   θ of each, and
    variance  of the noise that stays hidden, where a sum opens as a whole; else None
    """

    clients: IntArray
    costs: list[ReleaseCost]
    weights: Array | None = None
    variance: float = 0.0


class JobRound:
    """One round of one job: its terms, who participates at which cost, and their uploads, added up as they come."""

    def __init__(self, state: TrainingState, num_parameters: int) -> None:
        self.state, self.terms = state, state.job.plan[state.position]
        protection, names = state.protection, state.job.data.names
        wrong = np.flatnonzero(~(self.terms.budgets >= 0))
        if len(wrong):
            raise BadInput(
                f"the plan's budget of client {names[wrong[0]]!r} in round {self.terms.round_index} is "
                f"{self.terms.budgets[wrong[0]]:g}. Budgets are 0 for those who opt out, else above 0."
            )
        self.where = f"{state.job.name}, round {self.terms.round_index}"
        if not protection.is_simulated and not torch.isfinite(state.weights).all():  # everybody may know: it is public
            raise BadInput(
                f"{self.where}: the model holds NaN or infinity. Nothing was released. Lower learning_rate, or raise "
                "the budgets: noise may have driven it away."
            )
        self.asked = protection.budget_unit * self.terms.budgets
        asking: IntArray = np.flatnonzero(self.asked > 0)
        free = np.isinf(self.asked[asking])
        if protection.opens_sums and free.any() and not free.all():
            raise BadInput(
                f"{self.where}: some budgets are infinite and some are not, and all clients of a sum share its noise. "
                "Give budgets that are all finite, or all infinite for no noise."
            )
        admit = admitted_to_sum if protection.opens_sums and not free.any() else admitted
        self.admission = admit(state, self.terms.round_index, self.asked, asking)
        self.clients, self.costs = self.admission.clients, self.admission.costs
        self.sampled = self._sampled()
        self.wrong: list[int] = []  # those whose updates are no numbers
        self.num_clipped = 0
        self.noise_std = self._noise_std()  # on each client's update, per parameter
        self.mean = self._mean(num_parameters) if len(self.clients) else None

    def slots(self, drawn: DrawnBatches | None) -> Iterator[ClientSlot]:
        """What the clients compute, made as it is asked for."""
        costs = [self.costs[number] for number in self.sampled]
        return slots_of(self.state, self.clients[self.sampled], costs, drawn)

    def _sampled(self) -> IntArray:
        """Who of those admitted computes: all, or a sample of the clients that nobody else knows."""
        protection, everybody = self.state.protection, np.arange(len(self.clients))
        if protection.client_rate == 1 or self.admission.weights is None:
            return everybody
        seed = self.state.config.stream_seed
        rng = stream(seed, "sum", self.terms.round_index, 1) if protection.is_simulated else None
        uniform = system_uniform(len(everybody)) if rng is None else rng.random(len(everybody))
        return everybody[uniform < protection.client_rate]

    def _mean(self, num_parameters: int) -> WeightedMean | SecureSum:
        state, sizes = self.state, self.state.job.data.num_examples[self.clients]
        if self.admission.weights is not None:
            rng = stream(state.config.stream_seed, "sum", self.terms.round_index, 0)
            rng_of_noise = rng if state.protection.is_simulated else None
            variance = self.admission.variance
            past, weights = state.past_noise, self.admission.weights
            return SecureSum(state.protection, weights, variance, num_parameters, rng_of_noise, past=past)
        num_entries = state.protection.num_entries(num_parameters)
        return WeightedMean(state.config.aggregation, sizes, self.noise_std, num_entries)

    def _noise_std(self) -> Array:
        if self.admission.weights is not None:
            std = math.sqrt(self.admission.variance) * self._pace
            growth = noise_growth(self.state.protection.cohorts, self.state.position + 1)
            return np.asarray(std * growth / self.admission.weights)
        pairs = zip(self.clients, self.costs, strict=True)
        return np.array([noise_in_update(self.state.config, self.state.works[int(k)], cost) for k, cost in pairs])

    @property
    def _pace(self) -> float:
        """What a vector in a sum is multiplied by to be an update."""
        return self.state.config.learning_rate if self.state.protection.clips_examples else 1.0

    def take(self, number: int, update: Tensor) -> None:
        """Adds what the client with this slot computed, with noise where it is not in it yet.

        An update that is no number counts as 0, with its noise and its price: its absence would tell about its data
        what no budget pays for.
        """
        protection, number = self.state.protection, int(self.sampled[number])
        if not torch.isfinite(update).all():
            self.wrong.append(number)
            update = torch.zeros_like(update)
        if isinstance(self.mean, SecureSum):
            self.mean.add(number, as_array(update) / self._pace)
            return
        if not protection.clips_examples and protection.opens_sums:  # a sum without noise
            update = torch.from_numpy(clip_and_count(as_array(update), protection)).to(update)
        elif not protection.clips_examples:
            update = self._with_noise(number, update)
        if self.mean is not None:
            self.mean.add(number, update)

    def _with_noise(self, number: int, update: Tensor) -> Tensor:
        cost, protection, client = self.costs[number], self.state.protection, int(self.clients[number])
        rng = stream(self.state.config.stream_seed, "noise", self.terms.round_index, client)
        if protection.opens_sums or (update.is_cuda and protection.is_simulated):  # a sum here has no noise to hide in
            seed = int(rng.integers(2**62))
            rows, clipped = release_on_device(update[None], [cost], protection, [seed])
            self.num_clipped += int(clipped[0])
            return rows[0]
        work, budget = self.state.works[client], self.asked[client]
        upload = release_updates(
            as_array(update), [budget], protection, work=work, rng=rng, clients=[cost.client],
            round_index=cost.round_index, run=cost.run,
        )  # fmt: skip
        if upload.costs[0] != cost:
            raise BadInput(f"the release of client {cost.client!r} cost {upload.costs[0]}, but {cost} was reserved.")
        self.num_clipped += int(upload.clipped[0])
        return torch.from_numpy(upload.updates).to(update.device)

    def _result(self) -> tuple[Tensor | None, Array, float]:
        """The mean update, the weights and the dispersion; None where nobody participated."""
        if not isinstance(self.mean, SecureSum):  # nothing noisy opens, and the next sums take nothing of it back
            self.state.past_noise = (np.zeros(()), *self.state.past_noise)[: self.state.protection.cohorts - 1]
        if self.mean is None:
            return None, np.zeros(0), math.nan
        if isinstance(self.mean, WeightedMean):
            mean, theta, dispersion = self.mean.result()
            return mean.to(self.state.weights), theta, dispersion
        for number in np.setdiff1d(np.arange(len(self.clients)), self.sampled).tolist():
            self.mean.add_nothing(number)
        weights = self.mean.weights  # which sum to 1 unless somebody could not pay a second time
        pace = self._pace / (weights.sum() * self.state.protection.client_rate)
        opened = torch.from_numpy(self.mean.open().total * pace)
        self.state.past_noise = self.mean.past
        return opened.to(self.state.weights), weights / weights.sum(), self.state.config.dispersion

    def concluded(self, engine: Engine, test: Table, seconds: float) -> RoundRecord:
        """Mean, next model and evaluation. `seconds`: this job's part of the time to compute clients."""
        started = time.perf_counter()
        state, terms, clients = self.state, self.terms, self.clients
        config, data, protection = state.config, state.job.data, state.protection
        self._tell_wrong()
        clip_norm = state.clip_norm
        with engine.server_arithmetic():
            mean, theta, dispersion = self._result()
            if mean is not None and protection.num_entries(0):
                mean, (count,) = mean[:-1], mean[-1:].tolist()
                state.protection = protection.with_clip_norm_after(count / self._pace)
            state.move(mean)
        accuracy, loss = math.nan, math.nan
        if state.is_done or state.position % config.evaluate_every == 0:
            accuracy, loss = evaluate(state.model, state.handed_out, test)
        participating = np.isin(np.arange(data.num_clients), clients)
        asked = np.where(participating, self.asked, 0.0)
        spent = asked  # under Poisson batches; else what stands in the ledger
        if protection.is_zcdp:
            spent = _over_all(np.array([cost.budget for cost in self.costs]), clients, data.num_clients)
        # Without noise there is no budget to pay for: an infinite one is a reference, not an offer.
        paid = np.where(participating & np.isfinite(terms.budgets), terms.budgets, 0.0)
        if self.admission.weights is not None:  # what of it a sum really used
            paid = np.where(paid > 0, paid * spent / np.where(asked > 0, asked, 1.0), 0.0)
        shown = protection.is_simulated and not protection.clips_examples and not protection.opens_sums
        return RoundRecord(
            round_index=terms.round_index,
            reward_rate=terms.reward_rate,
            budgets=np.asarray(terms.budgets),
            payments=np.asarray(terms.prices) * paid,
            spent=spent,
            participating=participating,
            noise_std=_over_all(self.noise_std, clients, data.num_clients),
            theta=_over_all(theta, clients, data.num_clients),
            dispersion=dispersion,
            clip_norm=clip_norm,
            share_clipped=self.num_clipped / len(clients) if shown and len(clients) else math.nan,
            update_norm=0.0 if mean is None else float(torch.linalg.vector_norm(mean)),
            accuracy=accuracy,
            loss=loss,
            dp_epsilon=largest_epsilon(state),
            seconds=seconds + time.perf_counter() - started,
            weights=as_array(state.handed_out.detach().to("cpu", copy=True)),
            server=state.server_memory(),
            engine=engine.name,
            refused=tuple(data.names[k] for k in np.flatnonzero((self.asked > 0) & ~participating)),
        )

    def _tell_wrong(self) -> None:
        """The log names clients whose updates were no numbers; where nobody's is, a simulation ends."""
        if not self.wrong:
            return
        first = self.state.job.data.names[self.clients[self.wrong[0]]]
        if len(self.wrong) == len(self.clients) and self.state.protection.is_simulated:
            raise BadInput(
                f"{self.where}: every update holds NaN or infinity, client {first!r}'s first. Lower learning_rate, or "
                "raise the budgets: noise may have driven the model away."
            )
        others = f" and {len(self.wrong) - 1} others" if len(self.wrong) > 1 else ""
        log.warning("%s: the update of client %r%s holds NaN or infinity and counts as 0", self.where, first, others)


def _over_all(values: Array, clients: IntArray, num_clients: int) -> Array:
    """One entry per client, 0 for those who did not upload."""
    entries = np.zeros(num_clients)
    entries[clients] = values
    return entries


def slots_of(
    state: TrainingState, clients: IntArray, costs: Sequence[ReleaseCost | None], drawn: DrawnBatches | None
) -> Iterator[ClientSlot]:
    """What each of these clients computes in the round; jobs of one seed draw the same batches, and draw once."""
    config, data, round_index = state.config, state.job.data, state.job.plan[state.position].round_index
    kind = (config.stream_seed, config.protection.release, config.protection.batches, config.augmentation)
    for k, cost in zip(clients.tolist(), costs, strict=True):
        key = (*kind, state.works[k], round_index, k, id(data))
        batches = None if drawn is None else drawn.get(key)
        if batches is None:
            batches = batches_with_augmentation(config, state.works[k], data.members[k], round_index, k)
            if drawn is not None:
                drawn[key] = batches
        noise = gradient_noise(state, cost, k) if cost is not None and state.protection.clips_examples else None
        layers_seed = int(stream(config.stream_seed, "layers", round_index, k).integers(2**62))
        yield ClientSlot(state.weights, batches, noise, layers_seed, config.local_epochs)


def largest_epsilon(state: TrainingState) -> float:
    """ε of the client who has spent most in this training so far, at the configured δ.

    Under Poisson batches it takes longer and is computed after the last round, from the ledger.
    """
    protection, data = state.protection, state.job.data
    if not protection.is_zcdp:
        in_ledger = set(state.ledger.clients)
        names = [name for name in data.names if name in in_ledger]
        if not state.is_done or not names:
            return math.nan
        ask = partial(
            state.ledger.get_epsilon, names, protection.dp_delta, unit=protection.unit, run=state.job.run_in_ledger
        )
        try:
            return float(np.max(ask("pld")))
        except TooManyHistories:  # with as many clients of different sizes, a training must not end here
            return float(np.max(ask("rdp")))
    worst = int(np.argmax(state.account["spent"]))
    spent, extra_delta = (float(state.account[name][worst]) for name in ("spent", "extra_delta"))
    if spent == 0 or math.isinf(spent):
        return math.inf if spent else 0.0
    values = epsilon_with_extra(
        lambda deltas: epsilon(np.array([spent]), deltas, protection.accounting),
        protection.dp_delta,
        np.array([extra_delta]),
    )
    return float(values[0])


# ---- reservation: what a round costs stands in the ledger before anything is drawn ----------------------------------


def admitted(state: TrainingState, round_index: int, asked: Array, clients: IntArray) -> Admission:
    """Which clients may release this round under noise of their own, and what each pays.

    A round that was interrupted after its reservation is computed again. Simulated noise then gives the same upload,
    which is paid for; fresh noise gives another one, which is paid for again. A client with an upload of this round
    stored in the ledger, to be sent again as it is, cannot release another one and is refused.
    """
    costs = [cost_of_client(state, round_index, int(k), float(asked[k])) for k in clients]
    kept = np.flatnonzero(within_total(state, round_index, clients, costs))
    clients, costs = clients[kept], [costs[number] for number in kept]
    run, ledger = state.job.run_in_ledger, state.ledger
    reservation = ledger.reserve_each(run, round_index, costs, training=state.key)
    outcomes = reservation.outcomes
    refused = {name for name, outcome in outcomes.items() if outcome == "refused"}
    for k, cost in zip(clients.tolist(), costs, strict=True):
        if outcomes[cost.client] == "already reserved" and cost.noise_kind not in ("simulated", "none"):
            try:
                paid = ledger.reserve_again(run, round_index, [cost]).outcomes[cost.client] == "reserved"
            except BudgetExceeded:
                paid = False
            if not paid:
                refused.add(cost.client)
        if cost.client not in refused:
            state.pay(k, cost)
    kept = np.array([number for number, cost in enumerate(costs) if cost.client not in refused], dtype=np.int64)
    return Admission(clients[kept], [costs[number] for number in kept])


def within_total(state: TrainingState, round_index: int, clients: IntArray, costs: Sequence[ReleaseCost]) -> BoolArray:
    """Whom of these clients the round keeps within total_epsilon. The others opt out, which the log says.

    The plan keeps it by itself, unless fresh noise was drawn for more rounds than it has. Noise of samples is
    calibrated to the whole plan and has no ρ: no round of it is drawn twice.
    """
    total, protection = state.total_epsilon, state.protection
    if total is None or protection.is_simulated or not state.standing:
        return np.ones(len(clients), dtype=np.bool_)
    if protection.is_zcdp:
        spent, extra = (
            state.account[name][clients] + np.array([getattr(cost, term) for cost in costs], dtype=np.float64)
            for name, term in (("spent", "budget"), ("extra_delta", "extra_delta"))
        )
        left = protection.dp_delta - added_delta(total, extra)
        deltas = np.where(left > 0, left, protection.dp_delta)
        fits: BoolArray = (left > 0) & (epsilon(spent, deltas, protection.accounting) <= total)
    else:
        fits = np.array([cost.client not in state.reserved_before.get(round_index, ()) for cost in costs], np.bool_)
    if not fits.all():
        log.warning(
            "%s, round %d: %d clients opt out, %r first: noise drawn again would take them past total_epsilon=%g",
            state.job.name, round_index, int((~fits).sum()), costs[int(fits.argmin())].client, total,
        )  # fmt: skip
    return fits


def admitted_to_sum(state: TrainingState, round_index: int, asked: Array, clients: IntArray) -> Admission:
    """Which clients have a part in the sum of this round, with which weights, and what each really spends.

    All share the noise, so what each spends depends on who else participates: where a cap forbids some, the others'
    weights are found anew. A round that is computed again has those who were in it before.
    """
    protection, config, run, data = state.protection, state.config, state.job.run_in_ledger, state.job.data
    size = state.model.num_parameters
    sizes = np.ones(data.num_clients) if config.aggregation == "uniform" else data.num_examples
    dispersion = config.dispersion * protection.clip_norm**2 if config.aggregation == "noise_aware" else math.inf
    before = state.reserved_before.get(round_index)
    if before is not None:
        clients = np.array([k for k in clients.tolist() if data.names[k] in before], dtype=np.int64)
    while len(clients):
        works = [state.works[int(k)] for k in clients]
        if protection.is_zcdp:
            noise = noise_of_sum(protection, asked[clients], works, size, sizes[clients], dispersion)
        else:
            multipliers = [state.noise_multipliers[int(k)][state.position] for k in clients]
            noise = noise_of_sampled_sum(protection, multipliers, works, size)
        if (noise.used == 0).any():  # whose budget rounding alone would spend
            clients = clients[noise.used > 0]
            continue
        costs = [
            sum_cost(protection, data.names[k], used if protection.is_zcdp else None, data.num_clients, size, used)
            for k, used in zip(clients.tolist(), noise.used.tolist(), strict=True)
        ]
        if before is None and not (fits := within_total(state, round_index, clients, costs)).all():
            clients = clients[fits]
            continue
        admission = Admission(clients, costs, noise.weights, noise.noise_variance)
        try:
            state.ledger.reserve(run, round_index, costs, training=state.key)
        except BudgetExceeded as cause:
            refused = {refusal.client for refusal in cause.refusals}
            clients = np.array([k for k in clients.tolist() if data.names[k] not in refused], dtype=np.int64)
            continue
        if before is not None and not protection.is_simulated:
            return paid_again(state, round_index, admission)
        for k, cost in zip(clients.tolist(), costs, strict=True):
            state.pay(k, cost)
        return admission
    return Admission(clients, [])


def paid_again(state: TrainingState, round_index: int, admission: Admission) -> Admission:
    """The sum of a round that was reserved before, and gets fresh noise: all pay once more.

    Where a cap or total_epsilon forbids that, a client stays out. The others keep their weights and the noise, so what
    they pay is what it was, and the mean is over fewer. Noise of the rounds before is forgotten: to take it back once
    more than in the sum that was reserved would tell about their clients what nobody pays for.
    """
    state.past_noise = ()
    names = [cost.client for cost in admission.costs]
    kept = np.flatnonzero(within_total(state, round_index, admission.clients, admission.costs)).tolist()
    while kept:
        costs = [admission.costs[number] for number in kept]
        try:
            state.ledger.reserve_again(state.job.run_in_ledger, round_index, costs)
        except BudgetExceeded as cause:
            refused = {refusal.client for refusal in cause.refusals}
            kept = [number for number in kept if names[number] not in refused]
            continue
        for number, cost in zip(kept, costs, strict=True):
            state.pay(int(admission.clients[number]), cost)
        return Admission(admission.clients[kept], costs, np.asarray(admission.weights)[kept], admission.variance)
    return Admission(admission.clients[:0], [])


def cost_of_client(state: TrainingState, round_index: int, client: int, budget: float) -> ReleaseCost:
    """What the round costs one client with noise of its own, before anything is drawn."""
    protection = state.protection
    if protection.opens_sums:  # without noise, or it would be a part of the sum's
        unit, adjacency = protection.unit, protection.adjacency or "replace_one"
        return ReleaseCost(
            state.job.data.names[client],
            protection.name,
            unit,
            adjacency,
            budget,
            0.0,
            "none",
            in_sum=True,
            noise_std=0.0,
        )
    multiplier = None if protection.is_zcdp else float(state.noise_multipliers[client][state.position])
    return round_cost(
        protection, budget if multiplier is None else None, state.works[client], state.model.num_parameters,
        state.job.data.names[client], round_index, state.job.run_in_ledger, multiplier,
    )  # fmt: skip


def gradient_noise(state: TrainingState, cost: ReleaseCost, client: int) -> GradientNoise:
    """How a client makes each of its gradients private; gradients for a sum get their noise there."""
    protection, unit = state.protection, state.protection.budget_unit
    budget: float | None = unit * float(state.job.plan[state.position].budgets[client])
    return GradientNoise(
        protection,
        state.works[client],
        math.inf if protection.opens_sums else budget if protection.is_zcdp else None,
        None if protection.is_zcdp or protection.opens_sums else float(state.noise_multipliers[client][state.position]),
        stream(state.config.stream_seed, "noise", state.job.plan[state.position].round_index, client),
        cost.client,
    )


def noise_in_update(config: TrainingConfig, work: LocalWork, cost: ReleaseCost) -> float:
    """Standard deviation of the noise in the whole update, per parameter, as far as steps just add up."""
    if not config.protection.clips_examples:
        return cost.noise_std
    squares = sum(times * times for times in times_counted(config, work))
    return config.learning_rate * cost.noise_std / config.protection.step_divisor(work) * math.sqrt(squares)


def times_counted(config: TrainingConfig, work: LocalWork) -> list[float]:
    """How often each step's gradient is in the update by the end: (1 − μ^(steps−k))/(1 − μ) with momentum μ."""
    steps, mu = config.protection.num_answers(work), config.momentum
    return [(1 - mu ** (steps - k)) / (1 - mu) if mu < 1 else float(steps - k) for k in range(steps)]
