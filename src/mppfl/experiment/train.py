"""train: an experiment in, one Run per mechanism out; in a folder it survives being killed at any moment (store.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import MppflError
from mppfl.experiment.cases import Case, model_of, prepare, require_device
from mppfl.experiment.experiment import Experiment
from mppfl.experiment.provenance import Provenance, provenance_here
from mppfl.experiment.run import Accounts, Run
from mppfl.experiment.store import storage
from mppfl.game import Outcome, evaluate, plan_of_rounds
from mppfl.privacy.ledger import PrivacyLedger, TooManyHistories
from mppfl.training import (
    Checkpoint,
    History,
    Log,
    RoundRecord,
    epsilon_method,
    require_trainable,
    rounds_together,
    training_key,
)

BY_ORDERS = (
    "dp_epsilon is by the method rdp, some per cent larger than by pld: clients have too many different "
    "Poisson-sampled histories to compose them all"
)
OnRound = Callable[[Mapping[str, RoundRecord]], None]


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
        require_trainable(model, [case.arm() for case in cases])
        store.begin(experiment)
        ledgers = {case.name: store.ledger(case) for case in cases}
        before = store.checkpoints(cases)
        for case in cases:
            if case.name in before:
                _require_whole(case, before[case.name].history, ledgers[case.name])
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


def run_of(case: Case, end: Checkpoint, ledger: PrivacyLedger, origin: Provenance) -> Run:
    """The run of a finished training."""
    outcome, game = outcome_of_training(case, end.history), case.solution.game
    spent = end.history.clients["spent"].sum(axis=0)
    exposure = game.propagation @ spent if np.isfinite(spent).all() else np.full(len(spent), np.inf)
    seconds = float(end.history.rounds["seconds"].sum())
    accounts, notes = accounts_of(case, end.history, ledger)
    return Run(
        name=case.name,
        mechanism=case.experiment.mechanisms[0],
        config=case.experiment.as_dict(),
        history=end.history,
        weights=end.weights,
        names=tuple(case.data.names),
        num_examples=case.data.num_examples,
        graph=game.graph,
        accounts=accounts,
        exposure=exposure,
        server_cost=outcome.server_costs[: len(end.history)],
        welfare=outcome.welfare[: len(end.history)],
        provenance=replace(origin, seconds=seconds),
        notes=tuple(dict.fromkeys((*case.notes, *notes))),
    )


def outcome_of_training(case: Case, history: History) -> Outcome:
    """What the game brought server and clients, where those whom a cap refused, or who diverged, gave nothing."""
    solution = case.solution
    given = np.where(history.clients["participating"].astype(bool), history.clients["budgets"], 0.0)
    if (given == history.clients["budgets"]).all():
        return solution.outcome
    planned = [solution.plan[position] for position in range(len(given))]
    terms = [replace(each, budgets=budgets) for each, budgets in zip(planned, given, strict=True)]
    return evaluate(solution.game, plan_of_rounds(solution.plan.mechanism, terms))


def _require_whole(case: Case, history: History, ledger: PrivacyLedger) -> None:
    """Refuses a ledger that knows less than was released: caps would not hold, and ε would be told too small."""
    released, known = history.clients["participating"].sum(axis=0), set(ledger.clients)
    names = [name for name, count in zip(case.data.names, released, strict=True) if count and name in known]
    unit, at = case.config.mechanism.unit, {name: k for k, name in enumerate(case.data.names)}
    missing = [name for name, count in zip(case.data.names, released, strict=True) if count and name not in known]
    if names and not missing:
        account = ledger.account(names, unit)
        here = [at[name] for name in account.clients]
        spent = history.clients["spent"].sum(axis=0)[here]
        is_zcdp = case.config.mechanism.is_zcdp
        short = account.budget < spent * (1 - 1e-9) if is_zcdp else account.poisson < released[here]
        missing = [name for name, is_short in zip(account.clients, short, strict=True) if is_short]
    if missing:
        raise MppflError(
            f"the ledger of {case.name!r} misses releases of client {missing[0]!r} that this training has made. "
            "Restore the ledger that belongs to it."
        )


def accounts_of(case: Case, history: History, ledger: PrivacyLedger) -> tuple[Accounts, tuple[str, ...]]:
    """What the ledger says of every client, and what is to be noted about it; who never released has spent nothing."""
    config, mechanism = case.config, case.config.mechanism
    known = set(ledger.clients)
    names = [name for name in case.data.names if name in known]
    at = [i for i, name in enumerate(case.data.names) if name in known]

    def everybody(values: Array) -> Array:
        found = np.zeros(case.data.num_clients)
        found[at] = values
        return found

    unit, delta = mechanism.unit, config.dp_delta
    spent, worst_spent = ledger.spent(names, unit), ledger.spent(names, unit, worst_case=True)
    _require_whole(case, history, ledger)
    method = epsilon_method(config)
    notes: tuple[str, ...] = ()
    try:
        epsilons = ledger.get_epsilon(names, delta, method, unit=unit)
    except TooManyHistories:
        method, notes = "rdp", (BY_ORDERS,)
        epsilons = ledger.get_epsilon(names, delta, method, unit=unit)
    worst_epsilons = epsilons  # composing takes long, so ask once where the answer is the same
    if not np.array_equal(spent, worst_spent):
        worst_epsilons = ledger.get_epsilon(names, delta, method, unit=unit, worst_case=True)
    accounts = Accounts(
        unit=unit,
        adjacency=mechanism.adjacency,
        privacy=mechanism.name,
        guarantee=mechanism.guarantee,
        noise="none" if np.isinf(history.clients["budgets"]).any() else config.noise,
        dp_delta=delta,
        spent=everybody(spent),
        worst_case_spent=everybody(worst_spent),
        dp_epsilon=everybody(epsilons),
        worst_case_epsilon=everybody(worst_epsilons),
    )
    return accounts, notes
