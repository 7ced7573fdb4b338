"""Trainings to runs: an experiment in, one Run per mechanism out; and a Run of a training with a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.data import ClientData
from mppfl.errors import BadInput, MppflError
from mppfl.experiment.build import model_of, prepare
from mppfl.experiment.provenance import Provenance, provenance_here
from mppfl.experiment.run import PrivacyAccounts, Run
from mppfl.experiment.store import storage
from mppfl.game import Outcome, Solution, evaluate, plan_from_rounds
from mppfl.privacy.ledger import PrivacyLedger, TooManyHistories
from mppfl.spec import Experiment, table_of
from mppfl.training import History, Log, RoundRecord, TrainingConfig, history_of

BY_ORDERS = (
    "dp_epsilon is by the method rdp, some per cent larger than by pld: clients have too many different "
    "Poisson-sampled histories to compose them all"
)
OnRound = Callable[[Mapping[str, RoundRecord]], None]


def run_experiment(
    experiment: Experiment,
    *,
    folder: str | Path | None = None,
    ledger: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_round: OnRound | None = None,
) -> tuple[Run, ...]:
    """Trains every case of the experiment side by side, and returns what came out of each.

    Args:
        experiment: What to train. For a model or data of your own, see `run_from_records`.
        folder: Where to keep everything, so that the training survives being killed; default: the experiment's, or
            nowhere.
        ledger: File of the account to charge, in place of the experiment's: several trainings of the same clients add
            up in one, and its caps bind them all. Default: each training's own, in its folder.
        resume: Go on from the last checkpoints in the folder; with simulated noise the end is the same bit for bit.
        overwrite: Put this training in place of a simulation that the folder holds.
        on_round: Called after every round with the records of all cases, by name.

    Returns:
        One run per mechanism, aggregation and seed.

    Raises:
        BadInput: The folder may not be used, which is said before any work; the experiment cannot be trained; or the
            ledger is the account of other clients, or of another training of this name.
        MppflError: Another training is at work in the folder, or its ledger misses releases.

    Example:
        >>> from mppfl import Experiment, run_experiment
        >>> settings = {"model": "softmax", "local_epochs": 1}
        >>> experiment = Experiment(game={"num_clients": 3, "num_rounds": 2}, training=settings)
        >>> (run,) = run_experiment(experiment, on_round=lambda records: print(records["mppfl"].round_index))
        1
        2
    """
    folder = folder if folder is not None else experiment.output.folder
    if ledger is not None:
        experiment = replace(experiment, ledger=replace(experiment.ledger, file=str(Path(ledger).absolute())))
    with storage(experiment, folder, resume=resume, overwrite=overwrite) as store:
        _require_device(experiment.training.device)
        from mppfl.training import require_trainable, train_many, training_key  # PyTorch, now that it is needed

        origin = provenance_here(experiment.training.device)
        cases = prepare(experiment)
        model = model_of(experiment, cases[0].data)
        require_trainable(model, [case.arm() for case in cases])
        ledgers = store.begin(experiment, cases, model)
        before = store.checkpoints(cases)
        for case in cases:
            if case.name in before:
                history = before[case.name].history
                _require_whole(case.name, case.data, case.config, history, ledgers[case.name], case.run)
        arms = [case.arm(ledgers[case.name], before.get(case.name)) for case in cases]
        logs = {arm.name: Log(training_key(model, arm), arm.data.num_clients, arm.resume) for arm in arms}
        try:
            for records in train_many(model, arms):
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
        runs = []
        for case in cases:
            end, settings = logs[case.name].checkpoint(), case.experiment.as_dict()
            parts = (case.solution, case.data, case.config, ledgers[case.name], end.history, end.weights, origin)
            runs.append(_run(case.name, settings, *parts, case.notes, case.run))
        if store.folder is not None:
            for run in runs:
                run.save(store.folder / run.name)
    return tuple(runs)


def run_from_records(
    records: Sequence[RoundRecord],
    solution: Solution,
    data: ClientData,
    config: TrainingConfig,
    ledger: PrivacyLedger,
    *,
    name: str = "training",
    model: str = "",
) -> Run:
    """The run of a training with a model, data, a game or a loop of your own, to be saved, reported and explored.

    Args:
        records: All that `train_rounds` gave, in their order.
        solution: Of the game: its plan is what was trained under.
        data: The clients' data that were trained on.
        config: As given to `train_rounds`.
        ledger: As given to `train_rounds`: what every client has spent.
        name: Of the run.
        model: What reports call it.

    Returns:
        The run; `run.save(folder)` keeps it, `write_report([run], path)` makes a page of it.

    Raises:
        BadInput: No records, or records, plan and data that do not belong together.
        MppflError: The ledger misses releases of these rounds.

    Example:
        >>> import numpy as np
        >>> import mppfl
        >>> rng = np.random.default_rng(0)
        >>> features, labels = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 2, 60)
        >>> halves, test = np.split(np.arange(40), 2), (features[40:], labels[40:])
        >>> data = mppfl.client_data(features, labels, halves, *test, num_classes=2)
        >>> graph = mppfl.random_graph("erdos_renyi", 2, rng=rng)
        >>> solution = mppfl.solve(mppfl.make_game(graph, mppfl.draw_clients("benign", 2, rng)), num_rounds=2)
        >>> model, config = mppfl.make_model("softmax", (4,), 2), mppfl.TrainingConfig(batch_size=10)
        >>> with mppfl.PrivacyLedger.in_memory() as ledger:
        ...     records = list(mppfl.train_rounds(model, data, solution.plan, config, ledger=ledger))
        ...     run = mppfl.run_from_records(records, solution, data, config, ledger, name="mine")
        >>> run.name, run.num_clients, run.num_rounds
        ('mine', 2, 2)
    """
    if not records:
        raise BadInput("a run needs the record of at least one round.")
    game, plan = solution.game, solution.plan
    history = history_of(records, data.num_clients)
    if len(records) > len(plan) or game.graph.num_clients != data.num_clients:
        raise BadInput(
            f"{len(records)} records and data of {data.num_clients} clients do not belong to a plan of {len(plan)} "
            f"rounds for {game.graph.num_clients} clients."
        )
    settings = {
        "name": name,
        "mechanism": plan.mechanism,
        "game": {
            "max_hops": game.propagation.max_hops,
            "hop_decay": game.propagation.hop_decay,
            "num_rounds": len(plan),
            "externality_strength": game.externality_strength,
            "accuracy_weight": game.accuracy_weight,
        },
        "data": {"name": data.name},
        "training": {**table_of(config), "model": model},
        "protection": table_of(config.protection),
    }
    started = datetime.now(UTC) - timedelta(seconds=float(history.rounds["seconds"].sum()))
    origin = provenance_here(config.device, started=started.isoformat(timespec="seconds"))
    parts = (solution, data, config, ledger, history, records[-1].weights, origin, solution.warnings)
    return _run(name, settings, *parts, None)


def _run(
    name: str,
    settings: dict[str, Any],
    solution: Solution,
    data: ClientData,
    config: TrainingConfig,
    ledger: PrivacyLedger,
    history: History,
    weights: Array,
    origin: Provenance,
    notes: tuple[str, ...],
    run: str | None,
) -> Run:
    outcome, game = _outcome(solution, history), solution.game
    _require_whole(name, data, config, history, ledger, run)
    accounts, account_notes = _accounts(data, config, history, ledger, run)
    spent = history.clients["spent"].sum(axis=0)
    return Run(
        name=name,
        mechanism=settings["mechanism"],
        config=settings,
        history=history,
        weights=weights,
        names=tuple(data.names),
        num_examples=data.num_examples,
        graph=game.graph,
        accounts=accounts,
        exposure=game.propagation @ spent if np.isfinite(spent).all() else np.full(len(spent), np.inf),
        server_cost=outcome.server_costs[: len(history)],
        welfare=outcome.welfare[: len(history)],
        provenance=replace(origin, seconds=float(history.rounds["seconds"].sum())),
        notes=tuple(dict.fromkeys((*notes, *account_notes))),
    )


def _outcome(solution: Solution, history: History) -> Outcome:
    """What the game brought server and clients, where clients refused by a cap gave nothing."""
    given = np.where(history.clients["participating"].astype(bool), history.clients["budgets"], 0.0)
    if (given == history.clients["budgets"]).all():
        return solution.outcome
    terms = [replace(planned, budgets=budgets) for planned, budgets in zip(solution.plan, given, strict=False)]
    return evaluate(solution.game, plan_from_rounds(solution.plan.mechanism, terms))


def _require_device(device: str) -> None:
    """Refuses a device that is not there; nothing falls back to another in silence."""
    from mppfl.device import find_device

    try:
        find_device(device)
    except BadInput as cause:
        raise BadInput(f"training.{cause}") from cause


def _require_whole(
    name: str, data: ClientData, config: TrainingConfig, history: History, ledger: PrivacyLedger, run: str | None
) -> None:
    """Refuses a ledger that has less than was released, in this run if it is named: caps would not hold, nor ε."""
    released = history.clients["participating"].sum(axis=0)
    in_ledger = set(ledger.clients if run in (None, *ledger.runs) else ())
    positions = {client: position for position, client in enumerate(data.names) if released[position]}
    missing = [client for client in positions if client not in in_ledger]
    if positions and not missing:
        account = ledger.account(list(positions), config.protection.unit, run)
        here = [positions[client] for client in account.clients]
        spent = history.clients["spent"].sum(axis=0)[here]
        is_zcdp = config.protection.is_zcdp
        short = account.budget < spent * (1 - 1e-9) if is_zcdp else account.poisson < released[here]
        missing = [client for client, is_short in zip(account.clients, short, strict=True) if is_short]
    if missing:
        raise MppflError(
            f"the ledger of {name!r} misses releases of client {missing[0]!r} that this training has made. "
            "Restore the ledger that belongs to it."
        )


def _accounts(
    data: ClientData, config: TrainingConfig, history: History, ledger: PrivacyLedger, run: str | None
) -> tuple[PrivacyAccounts, tuple[str, ...]]:
    """What the ledger says of every client over all its runs, and notes on it; who never released has spent nothing."""
    protection, delta = config.protection, config.protection.dp_delta
    in_ledger = set(ledger.clients)
    charged = np.array([name in in_ledger for name in data.names])
    names = [name for name in data.names if name in in_ledger]

    def all_clients(values: Array) -> Array:
        table = np.zeros(data.num_clients)
        table[charged] = values
        return table

    unit, method, notes = protection.unit, protection.accounting, []
    if (needed := ledger.account(names, unit).accounting) != "exact":  # by the noise of all runs
        method = needed
    try:
        epsilons = ledger.get_epsilon(names, delta, method, unit=unit)
    except TooManyHistories:
        method, notes = "rdp", [BY_ORDERS]
        epsilons = ledger.get_epsilon(names, delta, method, unit=unit)
    if run is not None and len(runs := ledger.runs) > 1:
        alone = ledger.get_epsilon(names, delta, method, unit=unit, run=run) if run in runs else np.zeros(1)
        of_all = f"ε and spent ρ are those of all {len(runs)} runs in {Path(ledger.path).name}"
        notes.append(f"{of_all}; this one alone ends at ε = {alone.max():.4g}")
    accounts = PrivacyAccounts(
        unit=unit,
        adjacency=protection.adjacency or "replace_one",
        protection=protection.name,
        guarantee=protection.guarantee,
        noise="none" if np.isinf(history.clients["budgets"]).any() else protection.noise,
        dp_delta=delta,
        spent=all_clients(ledger.spent(names, unit)),
        dp_epsilon=all_clients(epsilons),
    )
    return accounts, tuple(notes)
