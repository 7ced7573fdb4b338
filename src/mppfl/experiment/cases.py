"""From an experiment to its trainings: data, network, game and plan of each case, ready to start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mppfl.arrays import Array
from mppfl.data import ClientData, fixed_features, load_data, split
from mppfl.errors import BadInput
from mppfl.experiment.experiment import Experiment
from mppfl.experiment.experiment_game import (
    clients_of,
    game_on,
    network_of,
    propagation_of,
    require_capped_clients,
    solve_all,
)
from mppfl.game import Game, Plan, Solution
from mppfl.network import SocialGraph
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import (
    FIRST_ROUND_MEDIAN,
    Aggregation,
    Arm,
    Checkpoint,
    TrainingConfig,
    budget_unit_for,
    delta_for_budgets,
    epsilon_method,
    make_model,
    trained_parameters,
)

if TYPE_CHECKING:
    from torch import nn

    from mppfl.data import Dataset


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


def prepare(experiment: Experiment) -> list[Case]:
    """Every training of the experiment, solved and with its data, ready to start."""
    chosen = experiment.data
    dataset = fixed_features(load_data(chosen.name, chosen.folder, source=chosen.source), chosen.features)
    cases: list[Case] = []
    for seed in experiment.seeds:
        graph = network_of(experiment, seed)
        require_capped_clients(experiment, graph)
        data = split_of(experiment, dataset, graph, seed)
        data = on_table_of(cases[0].data, data) if cases else data
        require_batches(experiment.training.config, data)
        game, notes = game_of(experiment, graph, data, seed)
        solutions = solve_all(experiment, game, seed)
        for mechanism, aggregation in product(experiment.mechanisms, aggregations_of(experiment)):
            solution = solutions[mechanism]
            unit, told = unit_of(experiment, solution.plan, data)
            config = replace(
                experiment.training.config,
                aggregation=aggregation,
                seed=experiment.seed_of("training", seed),
                budget_unit=unit,
            )
            cases.append(
                Case(
                    name=name_of(experiment, mechanism, aggregation, seed),
                    experiment=only(experiment, mechanism, config, seed),
                    solution=solution,
                    data=data,
                    config=config,
                    notes=(*notes, *solution.warnings, *told, *notes_on(experiment)),
                )
            )
    return cases


def aggregations_of(experiment: Experiment) -> tuple[Aggregation, ...]:
    """Those to compare, or the one of [training]."""
    return experiment.aggregations or (experiment.training.config.aggregation,)


def name_of(experiment: Experiment, mechanism: str, aggregation: Aggregation, seed: int) -> str:
    """The case's name: its mechanism, and what else tells it from the others."""
    parts = [mechanism]
    parts += [aggregation] if len(aggregations_of(experiment)) > 1 else []
    parts += [f"seed{seed}"] if len(experiment.seeds) > 1 else []
    return "-".join(parts)


def only(experiment: Experiment, mechanism: str, config: TrainingConfig, seed: int) -> Experiment:
    """The experiment cut down to one case, with the unit of budgets that was found for it."""
    training = replace(experiment.training, dp_epsilon=None, config=replace(config, seed=0))
    return replace(experiment.under(mechanism), aggregations=(), seeds=(seed,), training=training)


def unit_of(experiment: Experiment, plan: Plan, data: ClientData) -> tuple[float, tuple[str, ...]]:
    """budget_unit as it is given, or as large as training.dp_epsilon allows under this plan; and a note on that."""
    config, dp_epsilon = experiment.training.config, experiment.training.dp_epsilon
    if dp_epsilon is None:
        return config.budget_unit, ()
    num_parameters = sum(part.numel() for part in trained_parameters(model_of(experiment, data)))
    dp_delta = delta_for_budgets(config, dp_epsilon, num_parameters, len(plan))
    unit = budget_unit_for(plan, dp_epsilon, dp_delta, epsilon_method(config))
    kind = "nominal ε" if config.privacy == "paper" else "ε"
    kept = f"{kind} of who gives most is to end at {dp_epsilon:g} or below, at δ = {config.dp_delta:g}"
    return unit, (f"budget_unit={unit:.6g} was chosen: {kept}",)


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


def on_table_of(first: ClientData, data: ClientData) -> ClientData:
    """The same split over the very arrays that `first` holds: arms on one table are computed in one batch.

    Both must be splits of one data set, so that nothing but the arrays' identity changes.
    """
    shared = replace(data)
    for name in ("features", "labels", "test_features", "test_labels"):
        # A value takes views of what it is given, each with an identity of its own, and arms are told by identity.
        object.__setattr__(shared, name, getattr(first, name))
    return shared


def game_of(experiment: Experiment, graph: SocialGraph, data: ClientData, seed: int) -> tuple[Game, tuple[str, ...]]:
    """The game between the server and these clients, who hold as many examples as the split gave them; and notes."""
    notes: tuple[str, ...] = ()
    sizes: Array = data.num_examples.astype(np.float64)
    clients = clients_of(experiment, graph, seed)
    if (clients.data_size != 1).any() and (clients.data_size != sizes).any():
        notes = ("data_size of the clients file was replaced by the numbers of examples that the split gave",)
    game = game_on(experiment, propagation_of(experiment, graph), graph, replace(clients, data_size=sizes))
    return game, notes


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
    from mppfl.network import find_device

    try:
        find_device(device)
    except BadInput as cause:
        raise BadInput(f"training.{cause}") from cause


def require_batches(config: TrainingConfig, data: ClientData) -> None:
    """Refuses batches that the smallest client cannot fill."""
    smallest = int(np.argmin(data.num_examples))
    most = int(data.num_examples[smallest])
    if not config.privacy.startswith("full_batch") and config.batch_size > most:
        raise BadInput(
            f"training.batch_size={config.batch_size}, but client {data.names[smallest]!r} has {most} examples. "
            f"Use at most {most}, or raise data.min_examples."
        )
