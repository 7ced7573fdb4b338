"""From an experiment to its trainings: network, clients, game, data and plan of each.

`game_without_data` is the game of `mppfl solve --experiment`, `mppfl compare --experiment` and the explorer. A training
plays the same game, but its clients hold as many examples as the split gave them (`prepare`), which changes budgets
only where a client opts out, or the leader is noise-aware. PyTorch is loaded by what builds a model, and not before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mppfl.arrays import Array
from mppfl.data import ClientData, fixed_features, load_dataset, split_dataset
from mppfl.errors import BadInput, NoEquilibrium, UnknownClient
from mppfl.experiment.experiment import Experiment
from mppfl.game import (
    Clients,
    Game,
    Mechanism,
    Plan,
    Solution,
    as_mechanism,
    budget_limited,
    dp_fedavg,
    draw_clients,
    preset,
    read_clients,
    solve,
)
from mppfl.network import Propagation, SocialGraph, propagate, random_graph, read_graph
from mppfl.training import (
    FIRST_ROUND_MEDIAN,
    Aggregation,
    TrainingConfig,
    budget_unit_for,
    delta_for_budgets,
    epsilon_method,
)

if TYPE_CHECKING:
    from torch import nn

    from mppfl.data import Dataset
    from mppfl.privacy.ledger import PrivacyLedger
    from mppfl.training import Checkpoint, TrainingJob


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def game_without_data(experiment: Experiment, seed: int, device: str | None = None) -> Game:
    """The game of one seed, in which every client's data_size is the clients file's, or 1."""
    graph = network_of(experiment, seed)
    return game_on(experiment, propagation_of(experiment, graph, device), graph, clients_of(experiment, graph, seed))


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


def require_capped_clients(experiment: Experiment, graph: SocialGraph) -> None:
    """Refuses a cap for somebody who is not in the network, before anything is written that would outlive the typo."""
    for client in experiment.ledger.caps:
        try:
            graph.index(client)
        except UnknownClient as cause:
            raise UnknownClient(f"ledger.caps: {cause}") from cause


def propagation_of(experiment: Experiment, graph: SocialGraph, device: str | None = None) -> Propagation:
    """How privacy loss spreads over the network, with the preset's constants where the file gives none."""
    chosen, constants = experiment.network, preset(experiment.game.preset)
    hops, decay = _given(chosen.max_hops, constants.max_hops), _given(chosen.hop_decay, constants.hop_decay)
    return propagate(graph, hops, decay, diagonal=chosen.diagonal, device=device)


def clients_of(experiment: Experiment, graph: SocialGraph, seed: int) -> Clients:
    """The clients of the file, or drawn from the preset, within the bounds that [game] sets for everybody."""
    chosen = experiment.game
    if chosen.clients is None:
        clients = draw_clients(chosen.preset, graph.num_clients, experiment.stream("clients", seed))
    else:
        clients = read_clients(chosen.clients, graph)
    clients = within_bounds(experiment, graph, clients)
    if not clients.budget_max.any():
        raise NoEquilibrium("budget_max is 0 for all clients, so nobody can participate. Raise it for at least one.")
    return clients


def within_bounds(experiment: Experiment, graph: SocialGraph, clients: Clients) -> Clients:
    """The clients with bounds at least as narrow as those of [game]."""
    chosen = experiment.game
    if chosen.budget_min == 0 and chosen.budget_max is None:
        return clients
    low = np.maximum(clients.budget_min, chosen.budget_min)
    high = np.minimum(clients.budget_max, _given(chosen.budget_max, np.inf))
    crossed = np.flatnonzero(low > high)
    if len(crossed):
        first = int(crossed[0])
        raise BadInput(
            f"bounds of [game] leave client {graph.name(first)!r} no budget: at least {low[first]:g}, at most "
            f"{high[first]:g} ({len(crossed):,} such). Widen game.budget_min or game.budget_max, or the clients file's."
        )
    return replace(clients, budget_min=low, budget_max=high)


def game_on(experiment: Experiment, propagation: Propagation, graph: SocialGraph, clients: Clients) -> Game:
    """The game between the server and these clients, with the preset's constants where the file gives none."""
    chosen, constants = experiment.game, preset(experiment.game.preset)
    return Game(
        graph,
        clients,
        propagation,
        _given(chosen.externality_strength, constants.externality_strength),
        _given(chosen.accuracy_weight, constants.accuracy_weight),
    )


def solve_all(experiment: Experiment, game: Game, seed: int, device: str | None = None) -> dict[str, Solution]:
    """Every mechanism's plan; under the common convention they all face the rates that MPPFL's server sets."""
    chosen = experiment.game
    solved = partial(
        solve, game, num_rounds=chosen.num_rounds, participation=chosen.participation, seed=seed, device=device
    )
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
    if name == "dp_fedavg":
        return dp_fedavg.with_options(fixed_budget=experiment.game.fixed_budget)
    if name == "budget_limited":
        if experiment.game.payment_limit is None:
            raise BadInput("the mechanism budget_limited needs game.payment_limit, the money it may spend in a round.")
        return budget_limited.with_options(payment_limit=experiment.game.payment_limit)
    return as_mechanism(name)


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """One training of an experiment: a mechanism's plan on the clients' data, under one seed and one aggregation."""

    name: str
    experiment: Experiment  # cut down to this case
    solution: Solution
    data: ClientData
    config: TrainingConfig
    notes: tuple[str, ...]

    def arm(self, ledger: PrivacyLedger | None = None, resume: Checkpoint | None = None) -> TrainingJob:
        from mppfl.training import TrainingJob

        return TrainingJob(self.name, self.solution.plan, self.data, self.config, ledger, resume)


def prepare(experiment: Experiment) -> list[Case]:
    """Every training of the experiment, solved and with its data, ready to start."""
    chosen, training = experiment.data, experiment.training
    dataset = fixed_features(load_dataset(chosen.name, chosen.folder, source=chosen.source), chosen.features)
    cases: list[Case] = []
    for seed in experiment.seeds:
        graph = network_of(experiment, seed)
        require_capped_clients(experiment, graph)
        data = split_of(experiment, dataset, graph, seed)
        data = _on_table_of(cases[0].data, data) if cases else data
        _require_batches(training.config, data)
        game, notes = _game_with_data(experiment, graph, data, seed)
        solutions = solve_all(experiment, game, seed)
        for mechanism, aggregation in product(experiment.mechanisms, aggregations_of(experiment)):
            solution = solutions[mechanism]
            unit, unit_notes = _budget_unit(experiment, solution.plan, data)
            config = replace(
                training.config,
                aggregation=aggregation,
                seed=experiment.seed_of("training", seed),
                budget_unit=unit,
            )
            alone = replace(
                experiment.under(mechanism),
                aggregations=(),
                seeds=(seed,),
                training=replace(training, dp_epsilon=None, config=replace(config, seed=0)),
            )
            name = _name(experiment, mechanism, aggregation, seed)
            all_notes = (*notes, *solution.warnings, *unit_notes, *_training_notes(experiment))
            cases.append(Case(name, alone, solution, data, config, all_notes))
    return cases


def aggregations_of(experiment: Experiment) -> tuple[Aggregation, ...]:
    """Those to compare, or the one of [training]."""
    return experiment.aggregations or (experiment.training.config.aggregation,)


def split_of(experiment: Experiment, dataset: Dataset, graph: SocialGraph, seed: int) -> ClientData:
    """The data set, shared out among the clients of the network."""
    chosen = experiment.data
    return split_dataset(
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


def model_of(experiment: Experiment, data: ClientData) -> nn.Module:
    """The model for these examples; its first weights are drawn anew for every training from its seed."""
    from mppfl.training import make_model

    chosen = experiment.training
    return make_model(chosen.model, data.input_shape, data.num_classes, norm=chosen.norm, hidden=chosen.hidden)


def _name(experiment: Experiment, mechanism: str, aggregation: Aggregation, seed: int) -> str:
    """The mechanism, and what else tells the case from the others."""
    parts = [mechanism]
    parts += [aggregation] if len(aggregations_of(experiment)) > 1 else []
    parts += [f"seed{seed}"] if len(experiment.seeds) > 1 else []
    return "-".join(parts)


def _on_table_of(first: ClientData, data: ClientData) -> ClientData:
    """The same split over the very arrays that `first` holds: arms on one table are computed in one batch.

    Both must be splits of one data set, so that nothing but the arrays' identity changes.
    """
    shared = replace(data)
    for name in ("features", "labels", "test_features", "test_labels"):
        # A value takes views of what it is given, each with an identity of its own, and arms are told by identity.
        object.__setattr__(shared, name, getattr(first, name))
    return shared


def _game_with_data(
    experiment: Experiment, graph: SocialGraph, data: ClientData, seed: int
) -> tuple[Game, tuple[str, ...]]:
    """The game in which clients hold as many examples as the split gave them; and notes."""
    notes: tuple[str, ...] = ()
    sizes: Array = data.num_examples.astype(np.float64)
    clients = clients_of(experiment, graph, seed)
    if (clients.data_size != 1).any() and (clients.data_size != sizes).any():
        notes = ("data_size of the clients file was replaced by the numbers of examples that the split gave",)
    return game_on(experiment, propagation_of(experiment, graph), graph, replace(clients, data_size=sizes)), notes


def _budget_unit(experiment: Experiment, plan: Plan, data: ClientData) -> tuple[float, tuple[str, ...]]:
    """budget_unit as it is given, or as large as training.dp_epsilon allows under this plan; and a note on that."""
    from mppfl.training import trained_parameters

    config, dp_epsilon = experiment.training.config, experiment.training.dp_epsilon
    if dp_epsilon is None:
        return config.budget_unit, ()
    num_parameters = sum(part.numel() for part in trained_parameters(model_of(experiment, data)))
    dp_delta = delta_for_budgets(config, dp_epsilon, num_parameters, len(plan))
    unit = budget_unit_for(plan, dp_epsilon, dp_delta, epsilon_method(config))
    kind = "nominal ε" if config.privacy == "paper" else "ε"
    limit = f"no client's final {kind} exceeds {dp_epsilon:g} at δ = {config.dp_delta:g}"
    return unit, (f"budget_unit={unit:.6g} was chosen so that {limit}",)


def _training_notes(experiment: Experiment) -> tuple[str, ...]:
    """What a reader should know of how the model was trained."""
    training, notes = experiment.training, []
    if training.config.clip_norm == FIRST_ROUND_MEDIAN:
        notes.append("clip_norm is the median length of the first round's raw updates, which is not a private choice")
    if training.model.startswith("vgg"):
        notes.append(f"{training.model} with norm={training.norm!r}")
    return tuple(notes)


def _require_batches(config: TrainingConfig, data: ClientData) -> None:
    """Refuses batches that the smallest client cannot fill."""
    smallest = int(np.argmin(data.num_examples))
    most = int(data.num_examples[smallest])
    if not config.privacy.startswith("full_batch") and config.batch_size > most:
        raise BadInput(
            f"training.batch_size={config.batch_size}, but client {data.names[smallest]!r} has {most} examples. "
            f"Use at most {most}, or raise data.min_examples."
        )
