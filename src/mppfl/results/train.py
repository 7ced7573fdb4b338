"""train: an experiment in, one Run per mechanism out; in a folder it survives being killed at any moment.

    folder/experiment.toml          what is trained, written before anything else
    folder/checkpoint.json          after how many rounds the checkpoints below were taken
    folder/<arm>/checkpoint-<n>.npz where that training stood after n rounds
    folder/<arm>/ledger.sqlite      what every client has spent
    folder/<arm>/run.json, ...      the finished run

All arms' checkpoints are written, then checkpoint.json, then the older ones are removed: whenever the process dies,
checkpoint.json names a set that is whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mppfl.arrays import Array
from mppfl.data.sources import load_data
from mppfl.data.split import ClientData, split
from mppfl.errors import BadFile, BadInput, MppflError, NoEquilibrium
from mppfl.game.clients_file import read_clients
from mppfl.game.mechanisms import Mechanism, budget_limited, find_mechanism, fixed
from mppfl.game.model import Clients, Game, make_game
from mppfl.game.presets import draw_clients, preset
from mppfl.game.solve import Solution, solve
from mppfl.learning.checkpoint import Checkpoint, checkpoint_after, load_checkpoint, save_checkpoint, write_whole
from mppfl.learning.config import FIRST_ROUND_MEDIAN, TrainingConfig
from mppfl.learning.models import make_model
from mppfl.learning.record import History, RoundRecord, history_of, joined
from mppfl.learning.rounds import Arm, rounds_together, training_key
from mppfl.network.generate import random_graph
from mppfl.network.graph import SocialGraph
from mppfl.network.read import read_graph
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.results.experiment import Experiment, differences, read_experiment
from mppfl.results.provenance import Provenance, provenance_here
from mppfl.results.run import SUMMARY, Accounts, Run

if TYPE_CHECKING:
    from torch import nn

    from mppfl.data.dataset import Dataset

OnRound = Callable[[Mapping[str, RoundRecord]], None]
EXPERIMENT, POINTER, LEDGER, LOCK = "experiment.toml", "checkpoint.json", "ledger.sqlite", ".lock"
NO_WEIGHTS = np.empty(0)


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """One training of an experiment: a mechanism's plan on the clients' data, under one seed and one aggregation."""

    name: str
    experiment: Experiment  # cut down to this case
    solution: Solution
    data: ClientData
    config: TrainingConfig
    notes: tuple[str, ...]

    def arm(self, ledger: PrivacyLedger | None = None, resume: Checkpoint | None = None) -> Arm:
        return Arm(self.name, self.solution.plan, self.data, self.config, ledger, resume)


def train(
    experiment: Experiment,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_round: OnRound | None = None,
) -> tuple[Run, ...]:
    """Trains every case of the experiment side by side, and returns what came out of each.

    folder     where to keep everything; default: the experiment's, or nowhere
    resume     go on from the last checkpoints in the folder; with seeded noise the end is the same bit for bit
    overwrite  put this run in place of a simulation that the folder holds
    on_round   called after every round with the records of all cases, by name
    """
    kept = folder if folder is not None else experiment.output.folder
    require_device(experiment.training.config.device)
    origin = provenance_here(experiment.training.config.device)
    with storage(experiment, kept, resume=resume, overwrite=overwrite) as store:
        cases = prepare(experiment)
        model = model_of(experiment, cases[0].data)
        store.begin(experiment)
        ledgers = {case.name: store.ledger(case) for case in cases}
        before = store.checkpoints(cases)
        arms = [case.arm(ledgers[case.name], before.get(case.name)) for case in cases]
        logs = {arm.name: Log(training_key(model, arm), arm.data.num_clients, arm.resume) for arm in arms}
        try:
            for records in rounds_together(model, arms):
                for name, record in records.items():
                    logs[name].add(record)
                if logs[cases[0].name].rounds_done % experiment.output.checkpoint_every == 0:
                    store.keep(logs)
                if on_round is not None:
                    on_round(records)
        except KeyboardInterrupt:
            store.keep(logs)  # no finished round is lost
            raise
        store.keep(logs)
        runs = tuple(run_of(case, logs[case.name].checkpoint(), ledgers[case.name], origin) for case in cases)
        for run in runs:
            store.save(run)
    return runs


@dataclass(slots=True)
class Log:
    """What one training has done so far: its history, without the models of rounds gone by."""

    key: str
    num_clients: int
    resumed: Checkpoint | None
    records: list[RoundRecord] = field(default_factory=list)
    last: RoundRecord | None = None

    def add(self, record: RoundRecord) -> None:
        self.records.append(replace(record, weights=NO_WEIGHTS, server={}))
        self.last = record

    @property
    def rounds_done(self) -> int:
        return len(self.records) + (0 if self.resumed is None else self.resumed.rounds_done)

    def checkpoint(self) -> Checkpoint:
        """Where the training stands; there must have been a round."""
        if self.last is None:
            if self.resumed is None:
                raise BadInput("the training has no rounds. Set game.num_rounds to at least 1.")
            return self.resumed
        history: History = history_of(self.records, self.num_clients)
        if self.resumed is not None:
            history = joined(self.resumed.history, history)
        return checkpoint_after(self.last, history, self.key)


# ---- what is trained ----------------------------------------------------------------------------------------------


def prepare(experiment: Experiment) -> list[Case]:
    """Every training of the experiment, solved and with its data, ready to start."""
    dataset = load_data(experiment.data.name, experiment.data.folder, source=experiment.data.source)
    several = len(experiment.seeds) > 1
    cases = []
    for seed in experiment.seeds:
        graph = network_of(experiment, seed)
        data = split_of(experiment, dataset, graph, seed)
        require_batches(experiment.training.config, data)
        game, notes = game_of(experiment, graph, data, seed)
        solutions = solve_all(experiment, game, seed)
        aggregations = experiment.aggregations or (experiment.training.config.aggregation,)
        for mechanism, aggregation in product(experiment.mechanisms, aggregations):
            config = replace(
                experiment.training.config, aggregation=aggregation, seed=experiment.seed_of("training", seed)
            )
            parts = [
                mechanism,
                *([aggregation] if len(aggregations) > 1 else []),
                *([f"seed{seed}"] if several else []),
            ]
            cases.append(
                Case(
                    name="-".join(parts),
                    experiment=only(experiment, mechanism, config, seed),
                    solution=solutions[mechanism],
                    data=data,
                    config=config,
                    notes=(*notes, *solutions[mechanism].warnings, *notes_on(experiment)),
                )
            )
    return cases


def only(experiment: Experiment, mechanism: str, config: TrainingConfig, seed: int) -> Experiment:
    """The experiment cut down to one case."""
    training = replace(experiment.training, config=replace(config, seed=0))
    return replace(experiment, mechanisms=(mechanism,), aggregations=(), seeds=(seed,), training=training)


def network_of(experiment: Experiment, seed: int) -> SocialGraph:
    """The network of the file, or a random one."""
    chosen = experiment.network
    if chosen.source is None:
        size = 20 if chosen.num_clients is None else chosen.num_clients
        rng = experiment.stream("graph", seed)
        return random_graph(chosen.family, size, rng=rng, normalisation=chosen.normalisation, **chosen.options)
    graph = read_graph(
        chosen.source,
        undirected=chosen.undirected,
        normalisation=chosen.normalisation,
        isolated=chosen.isolated,
        self_loops=chosen.self_loops,
    )
    if chosen.num_clients not in (None, graph.num_clients):
        raise BadInput(
            f"network.num_clients={chosen.num_clients}, but {chosen.source} has {graph.num_clients:,} clients. "
            "Make the two agree, or leave num_clients out."
        )
    return graph


def split_of(experiment: Experiment, dataset: Dataset, graph: SocialGraph, seed: int) -> ClientData:
    """The data set, shared out among the clients of the network."""
    chosen = experiment.data
    return split(
        dataset,
        chosen.split,
        graph.num_clients,
        rng=experiment.stream("split", seed),
        concentration=chosen.concentration,
        min_examples=chosen.min_examples,
        graph=graph,
        names=tuple(graph.name(i) for i in range(graph.num_clients)),
        uneven=chosen.uneven,
    )


def game_of(experiment: Experiment, graph: SocialGraph, data: ClientData, seed: int) -> tuple[Game, tuple[str, ...]]:
    """The game between the server and these clients, who hold as many examples as the split gave them; and notes."""
    chosen, constants = experiment.game, preset(experiment.game.preset)
    notes: tuple[str, ...] = ()
    sizes: Array = data.num_examples.astype(np.float64)
    if chosen.clients is None:
        clients: Clients = draw_clients(chosen.preset, graph.num_clients, experiment.stream("clients", seed))
    else:
        clients = read_clients(chosen.clients, graph)
        if (clients.data_size != 1).any() and (clients.data_size != sizes).any():
            notes = ("data_size of the clients file was replaced by the numbers of examples that the split gave",)
    if not clients.budget_max.any():
        raise NoEquilibrium("budget_max is 0 for all clients, so nobody can take part. Raise it for at least one.")
    network = experiment.network
    game = make_game(
        graph,
        replace(clients, data_size=sizes),
        max_hops=_given(network.max_hops, constants.max_hops),
        hop_decay=_given(network.hop_decay, constants.hop_decay),
        externality_strength=_given(chosen.externality_strength, constants.externality_strength),
        accuracy_weight=_given(chosen.accuracy_weight, constants.accuracy_weight),
        diagonal=network.diagonal,
    )
    return game, notes


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def solve_all(experiment: Experiment, game: Game, seed: int) -> dict[str, Solution]:
    """Every mechanism's plan; under the common convention they all face the rates that MPPFL's server sets."""
    chosen = experiment.game
    solved = partial(solve, game, num_rounds=chosen.num_rounds, participation=chosen.participation, seed=seed)
    if chosen.convention == "own":
        return {name: solved(mechanism_of(experiment, name)) for name in experiment.mechanisms}
    leading = solved("mppfl")
    rates = leading.plan.reward_rates
    return {
        name: leading if name == "mppfl" else solved(mechanism_of(experiment, name), reward_rates=rates)
        for name in experiment.mechanisms
    }


def mechanism_of(experiment: Experiment, name: str) -> Mechanism:
    """The mechanism with its options bound."""
    if name == "fixed":
        return partial(fixed, budget=experiment.game.fixed_budget)
    if name == "budget_limited" and experiment.game.payment_limit is not None:
        return partial(budget_limited, payment_limit=experiment.game.payment_limit)
    return find_mechanism(name)


def model_of(experiment: Experiment, data: ClientData) -> nn.Module:
    """The model for these examples; its first weights are drawn anew for every training from its seed."""
    chosen = experiment.training
    return make_model(chosen.model, data.input_shape, data.num_classes, norm=chosen.norm, hidden=chosen.hidden)


def notes_on(experiment: Experiment) -> tuple[str, ...]:
    """What a reader should know of how it was trained."""
    training = experiment.training
    found = []
    if training.config.clip_norm == FIRST_ROUND_MEDIAN:
        found.append("clip_norm is the median length of the first round's raw updates, which is not a private choice")
    if training.model.startswith("vgg"):
        found.append(f"{training.model} with norm={training.norm!r}")
    return tuple(found)


# ---- what cannot be trained ---------------------------------------------------------------------------------------


def require_device(device: str) -> None:
    """Refuses a device that is not there; nothing falls back to another in silence."""
    import torch

    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise BadInput(f"training.device={device!r} is not known. Use 'cpu', 'cuda' or 'cuda:1'.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"training.device={device!r}, but PyTorch finds no GPU here. Use training.device='cpu'.")
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise BadInput(f"training.device={device!r}, but there are {torch.cuda.device_count()} GPUs, from cuda:0 on.")


def require_batches(config: TrainingConfig, data: ClientData) -> None:
    """Refuses batches that the smallest client cannot fill."""
    smallest = int(np.argmin(data.num_examples))
    most = int(data.num_examples[smallest])
    if not config.privacy.startswith("full_batch") and config.batch_size > most:
        raise BadInput(
            f"training.batch_size={config.batch_size}, but client {data.names[smallest]!r} has {most} examples. "
            f"Use at most {most}, or raise data.min_examples."
        )


# ---- what came out ------------------------------------------------------------------------------------------------


def run_of(case: Case, end: Checkpoint, ledger: PrivacyLedger, origin: Provenance) -> Run:
    """The run of a finished training."""
    outcome, game = case.solution.outcome, case.solution.game
    spent = end.history.clients["spent"].sum(axis=0)
    exposure = game.propagation @ spent if np.isfinite(spent).all() else np.full(len(spent), np.inf)
    seconds = float(end.history.rounds["seconds"].sum())
    return Run(
        name=case.name,
        mechanism=case.experiment.mechanisms[0],
        config=case.experiment.as_dict(),
        history=end.history,
        weights=end.weights,
        names=tuple(case.data.names),
        num_examples=case.data.num_examples,
        graph=game.graph,
        accounts=accounts_of(case, end.history, ledger),
        exposure=exposure,
        server_cost=outcome.server_costs[: len(end.history)],
        welfare=outcome.welfare[: len(end.history)],
        provenance=replace(origin, seconds=seconds),
        notes=tuple(dict.fromkeys(case.notes)),
    )


def accounts_of(case: Case, history: History, ledger: PrivacyLedger) -> Accounts:
    """What the ledger says of every client; who never released anything has spent nothing."""
    config, mechanism = case.config, case.config.mechanism
    method = "exact" if config.noise != "discrete" else "rdp"
    method = method if mechanism.is_zcdp else "pld"
    known = set(ledger.clients)
    names = [name for name in case.data.names if name in known]
    at = [i for i, name in enumerate(case.data.names) if name in known]

    def everybody(values: Array) -> Array:
        found = np.zeros(case.data.num_clients)
        found[at] = values
        return found

    unit, delta = mechanism.unit, config.dp_delta
    spent = everybody(ledger.spent(names, unit))
    if mechanism.is_zcdp and (spent < history.clients["spent"].sum(axis=0) * (1 - 1e-9)).any():
        raise MppflError(f"the ledger of {case.name!r} misses releases of this training. This is a fault; report it.")
    return Accounts(
        unit=unit,
        adjacency=mechanism.adjacency,
        privacy=mechanism.name,
        guarantee=mechanism.guarantee,
        noise="none" if np.isinf(history.clients["budgets"]).any() else config.noise,
        dp_delta=delta,
        spent=spent,
        worst_case_spent=everybody(ledger.spent(names, unit, worst_case=True)),
        dp_epsilon=everybody(ledger.get_epsilon(names, delta, method, unit=unit)),
        worst_case_epsilon=everybody(ledger.get_epsilon(names, delta, method, unit=unit, worst_case=True)),
    )


# ---- where it is kept ---------------------------------------------------------------------------------------------


@contextmanager
def storage(experiment: Experiment, folder: str | Path | None, *, resume: bool, overwrite: bool) -> Iterator[Store]:
    """A place for the training's files, locked against a second training; nowhere if `folder` is None."""
    with ExitStack() as open_things:
        if folder is None:
            if resume:
                raise BadInput("there is nothing to resume without a folder. Give the one the training was kept in.")
            yield Store(None, open_things)
            return
        place = Path(folder)
        open_things.enter_context(_locked(place))
        require_free(place, experiment, resume=resume, overwrite=overwrite)
        yield Store(place, open_things, resume)


@dataclass(slots=True)
class Store:
    """The files of a training, or their absence."""

    folder: Path | None
    open_things: ExitStack
    resume: bool = False
    rounds_kept: int = 0

    def begin(self, experiment: Experiment) -> None:
        """Makes the folder this experiment's, now that it is known to be one that can be trained."""
        if self.folder is None or self.resume:
            return
        (self.folder / POINTER).unlink(missing_ok=True)
        files = [file for name in (LEDGER, SUMMARY, "checkpoint-*.npz") for file in self.folder.glob(f"*/{name}")]
        for kept in {file.parent for file in files}:
            shutil.rmtree(kept)
        write_whole(self.folder / EXPERIMENT, experiment.to_toml().encode())

    def ledger(self, case: Case) -> PrivacyLedger:
        """The account of one case, with every client's cap."""
        if self.folder is None or not case.experiment.ledger.keep:
            ledger = self.open_things.enter_context(PrivacyLedger.in_memory())
        else:
            path = self.folder / case.name / LEDGER
            path.parent.mkdir(parents=True, exist_ok=True)
            ledger = self.open_things.enter_context(PrivacyLedger.open(path))
        unit = case.config.mechanism.unit
        caps, graph = case.experiment.ledger, case.solution.game.graph
        if caps.cap is not None:
            ledger.set_cap(case.data.names, caps.cap, unit)
        for client, cap in caps.caps.items():
            ledger.set_cap(case.data.names[graph.index(client)], cap, unit)
        return ledger

    def checkpoints(self, cases: list[Case]) -> dict[str, Checkpoint]:
        """The last whole set of checkpoints, by case; empty if there is none yet."""
        if self.folder is None or not (self.folder / POINTER).exists():
            return {}
        try:
            self.rounds_kept = int(json.loads((self.folder / POINTER).read_text())["rounds_done"])
        except (OSError, ValueError, KeyError, TypeError) as cause:
            raise BadFile(f"{self.folder / POINTER}: cannot be read ({cause}). Train anew, with overwrite.") from cause
        file = f"checkpoint-{self.rounds_kept}.npz"
        return {case.name: load_checkpoint(self.folder / case.name / file) for case in cases}

    def keep(self, logs: Mapping[str, Log]) -> None:
        """Checkpoints of all cases after the same round; the set before stays whole until this one is."""
        done = {log.rounds_done for log in logs.values()}
        if self.folder is None or len(done) > 1 or done <= {0, self.rounds_kept}:
            return
        (rounds_done,) = done
        places = {name: self.folder / name / f"checkpoint-{rounds_done}.npz" for name in logs}
        for name, place in places.items():
            save_checkpoint(place, logs[name].checkpoint())
        write_whole(self.folder / POINTER, json.dumps({"rounds_done": rounds_done}).encode())
        self.rounds_kept = rounds_done
        for place in places.values():
            for old in place.parent.glob("*checkpoint-*.npz*"):
                if old != place:
                    old.unlink(missing_ok=True)

    def save(self, run: Run) -> None:
        if self.folder is not None:
            run.save(self.folder / run.name)


def require_free(folder: Path, experiment: Experiment, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder that is not this experiment's, or holds what must not be lost."""
    stored = read_experiment(folder / EXPERIMENT) if (folder / EXPERIMENT).exists() else None
    if stored is None:
        if resume:
            raise BadInput(f"{folder} holds no training to resume. Check the folder, or start without resume.")
        if any(path.name != LOCK for path in folder.iterdir()):
            raise BadInput(f"{folder} is not empty, and holds no training. Choose another folder.")
    elif resume:
        changed = differences(experiment, stored)
        if changed:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise BadInput(f"{folder} holds another experiment: {changed[0]}{more}. Undo that, or train elsewhere.")
        if not experiment.ledger.keep:
            raise BadInput("ledger.keep=false left no account of what was spent, so the training cannot be resumed.")
    elif not overwrite:
        raise BadInput(f"{folder} holds a training already. Resume it, overwrite it, or choose another folder.")
    elif stored.training.config.noise != "seeded":
        raise BadInput(
            f"{folder} holds the account of real releases (noise={stored.training.config.noise!r}), which must not be "
            "forgotten. Choose another folder."
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else trains in the folder meanwhile; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as cause:
        raise BadFile(f"{folder}: cannot be written ({cause.strerror or cause}). Choose another folder.") from cause
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            raise MppflError(f"{folder}: another training is at work there. Wait, or choose another folder.") from cause
        yield
    finally:
        os.close(lock)
