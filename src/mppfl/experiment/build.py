"""From an experiment to its trainings: network, clients, game, data and plan of each.

A training plays the game of `GameSpec.build`, but its clients hold as many examples as the split gave them, which
changes budgets only where a client opts out, or the leader is noise-aware. PyTorch is loaded by what builds a model,
and not before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mppfl.arrays import Array
from mppfl.data import ClientData, fixed_features, load_dataset, split_dataset
from mppfl.errors import BadInput, UnknownClient
from mppfl.experiment.play import clients_of, game_on, network_of, propagation_of, solve_all, under
from mppfl.game import Game, Solution
from mppfl.network import SocialGraph
from mppfl.spec import Aggregation, Experiment, GameSpec, TrainingConfig

if TYPE_CHECKING:
    from torch import nn

    from mppfl.data import Dataset
    from mppfl.privacy.ledger import PrivacyLedger
    from mppfl.training import Checkpoint, TrainingJob


def require_capped_clients(experiment: Experiment, graph: SocialGraph) -> None:
    """Refuses a cap for somebody who is not in the network, before anything is written that would outlive the typo."""
    for table in ("caps", "epsilon_caps"):
        for client in getattr(experiment.ledger, table):
            try:
                graph.index(client)
            except UnknownClient as cause:
                raise UnknownClient(f"ledger.{table}: {cause}") from cause


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """One training of an experiment: a mechanism's plan on the clients' data, under one seed and one aggregation."""

    name: str
    experiment: Experiment  # cut down to this case
    solution: Solution
    data: ClientData
    config: TrainingConfig
    notes: tuple[str, ...]
    total_epsilon: float | None = None  # which `config` keeps by its budget_unit

    def arm(self, ledger: PrivacyLedger | None = None, resume: Checkpoint | None = None) -> TrainingJob:
        from mppfl.training import TrainingJob

        return TrainingJob(
            self.name, self.solution.plan, self.data, self.config, ledger, resume, self.run, self.total_epsilon
        )  # fmt: skip

    @property
    def run(self) -> str:
        """Its name in the ledger, where others' runs may be, too."""
        return run_in_ledger(self.experiment, self.name)


def run_in_ledger(experiment: Experiment, case: str) -> str:
    """What a ledger calls one case of the experiment: by both their names where several trainings may charge it."""
    return case if experiment.ledger.file is None else f"{experiment.name}/{case}"


def prepare(experiment: Experiment) -> list[Case]:
    """Every training of the experiment, solved and with its data, ready to start."""
    from mppfl.training import trained_parameters, with_budget_unit  # PyTorch, for which `risk` need not wait

    chosen, training = experiment.data, experiment.training
    dataset = load_dataset(chosen.name, chosen.folder, source=chosen.source)
    if chosen.features != "none":
        dataset = fixed_features(dataset, chosen.features)
    cases: list[Case] = []
    several = len(aggregations_of(experiment)) > 1
    for seed in experiment.seeds:
        game_spec = experiment.game_of(seed)
        graph = network_of(game_spec)
        require_capped_clients(experiment, graph)
        data = split_of(experiment, dataset, graph, seed)
        data = _on_table_of(cases[0].data, data) if cases else data
        _require_batches(training, data)
        game, notes = _game_with_data(game_spec, graph, data)
        solutions = solve_all(game_spec, experiment.mechanisms, game)
        for mechanism, aggregation in product(experiment.mechanisms, aggregations_of(experiment)):
            solution = solutions[mechanism]
            chosen_config = replace(training, aggregation=aggregation, seed=experiment.seed_of("training", seed))
            num_parameters = sum(part.numel() for part in trained_parameters(model_of(experiment, data)))
            config = with_budget_unit(chosen_config, solution.plan, num_parameters)
            alone = replace(
                experiment,
                mechanisms=(mechanism,),
                game=under(game_spec, (mechanism,)),
                aggregations=(),
                seeds=(seed,),
                training=replace(config, seed=training.seed),
                protection=config.protection,
            )
            parts = [
                mechanism,
                *([aggregation] if several else []),
                *([f"seed{seed}"] if len(experiment.seeds) > 1 else []),
            ]
            all_notes = (*notes, *solution.warnings, *_training_notes(chosen_config, config))
            total = training.protection.total_epsilon
            cases.append(Case("-".join(parts), alone, solution, data, config, all_notes, total))
    return cases


def aggregations_of(experiment: Experiment) -> tuple[Aggregation, ...]:
    """Those to compare, or the one of [training]."""
    return experiment.aggregations or (experiment.training.aggregation,)


def split_of(experiment: Experiment, dataset: Dataset, graph: SocialGraph, seed: int) -> ClientData:
    """The data set, shared out among the clients of the network."""
    chosen = experiment.data
    return split_dataset(
        dataset,
        chosen.split,
        graph.num_clients,
        rng=np.random.default_rng(experiment.seed_of("split", seed)),
        concentration=chosen.concentration,
        min_examples=chosen.min_examples,
        graph=graph,
        names=tuple(graph.name(i) for i in range(graph.num_clients)),
        uneven=chosen.uneven,
    )


def model_of(experiment: Experiment, data: ClientData) -> nn.Module:
    """The model for these examples; its first weights are drawn anew for every training from its seed."""
    from mppfl.training import make_model

    chosen = experiment.training
    return make_model(chosen.model, data.input_shape, data.num_classes, norm=chosen.norm, hidden=chosen.hidden)


def _on_table_of(first: ClientData, data: ClientData) -> ClientData:
    """The same split over the very arrays that `first` holds: arms on one table are computed in one batch.

    Both must be splits of one data set, so that nothing but the arrays' identity changes.
    """
    shared = replace(data)
    for name in ("features", "labels", "test_features", "test_labels"):
        # A value takes views of what it is given, each with an identity of its own, and arms are told by identity.
        object.__setattr__(shared, name, getattr(first, name))
    return shared


def _game_with_data(spec: GameSpec, graph: SocialGraph, data: ClientData) -> tuple[Game, tuple[str, ...]]:
    """The game in which clients hold as many examples as the split gave them; and notes."""
    notes: tuple[str, ...] = ()
    sizes: Array = data.num_examples.astype(np.float64)
    clients = clients_of(spec, graph)
    if (clients.data_size != 1).any() and (clients.data_size != sizes).any():
        notes = ("data_size of the clients file was replaced by the numbers of examples that the split gave",)
    return game_on(spec, propagation_of(spec, graph), graph, replace(clients, data_size=sizes)), notes


def _training_notes(asked: TrainingConfig, training: TrainingConfig) -> tuple[str, ...]:
    """What a reader should know of how the model was trained."""
    notes, protection = [], asked.protection
    if protection.total_epsilon is not None:
        limit = f"no client's final ε exceeds {protection.total_epsilon:g} at δ = {protection.dp_delta:g}"
        notes.append(f"budget_unit={training.protection.budget_unit:.6g} was chosen so that {limit}")
    if protection.cohorts > 1:
        notes.append(f"clients join in turns, each of {protection.cohorts} cohorts every {protection.cohorts} rounds")
    if training.model.startswith("vgg"):
        notes.append(f"{training.model} with norm={training.norm!r}")
    return tuple(notes)


def _require_batches(config: TrainingConfig, data: ClientData) -> None:
    """Refuses batches that the smallest client cannot fill."""
    smallest = int(np.argmin(data.num_examples))
    most = int(data.num_examples[smallest])
    if not config.protection.sees_all and config.batch_size > most:
        raise BadInput(
            f"training.batch_size={config.batch_size}, but client {data.names[smallest]!r} has {most} examples. "
            f"Use at most {most}, or raise data.min_examples."
        )
