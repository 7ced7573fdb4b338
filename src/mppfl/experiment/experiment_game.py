"""The game of an experiment: its network, its clients, its constants and its mechanisms; nothing here needs PyTorch.

`game_without_data` is what `mppfl solve --experiment`, `mppfl compare --experiment` and the explorer play, to the last
bit. A training plays the same game but for one thing: its clients hold as many examples as the split gave them
(`cases.game_of`), which changes budgets only where somebody stays out, or the leader is noise-aware.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mppfl.errors import BadInput, NoEquilibrium, UnknownClient
from mppfl.experiment.experiment import Experiment
from mppfl.game import (
    Clients,
    Game,
    Mechanism,
    Solution,
    as_mechanism,
    budget_limited,
    draw_clients,
    fixed,
    preset,
    read_clients,
    solve,
)
from mppfl.network import Propagation, SocialGraph, propagate, random_graph, read_graph


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
        raise NoEquilibrium("budget_max is 0 for all clients, so nobody can take part. Raise it for at least one.")
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
    if name == "fixed":
        return partial(fixed, budget=experiment.game.fixed_budget)
    if name == "budget_limited":
        if experiment.game.payment_limit is None:
            raise BadInput("the mechanism budget_limited needs game.payment_limit, the money it may spend in a round.")
        return partial(budget_limited, payment_limit=experiment.game.payment_limit)
    return as_mechanism(name)


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
