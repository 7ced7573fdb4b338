"""From a GameSpec to its game and to what every mechanism does in it, for commands, files, pages and Python alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mppfl.errors import BadInput, NoEquilibrium
from mppfl.fields import about, defaults_of, hints, shown
from mppfl.game import (
    MECHANISMS,
    Clients,
    Game,
    Mechanism,
    Solution,
    draw_clients,
    find_mechanism,
    follows,
    preset,
    read_clients,
    solve,
)
from mppfl.network import Propagation, SocialGraph, propagate, random_graph, read_graph
from mppfl.spec import GameSpec

DRAWN_CLIENTS = 20  # of a random network whose size is not given
CONSTANTS = ("max_hops", "hop_decay", "externality_strength", "accuracy_weight")  # the preset's unless given
FIELDS = hints(GameSpec)


def build_game(spec: GameSpec, device: str | None = None) -> Game:
    """The game that the values describe; see GameSpec.build."""
    graph = network_of(spec)
    return game_on(spec, propagation_of(spec, graph, device), graph, clients_of(spec, graph))


def constant(spec: GameSpec, name: str) -> Any:
    """One of CONSTANTS: as given, or the preset's."""
    value = getattr(spec, name)
    return getattr(preset(spec.preset), name) if value is None else value


def network_of(spec: GameSpec) -> SocialGraph:
    """The network of the file, or a random one."""
    if spec.graph is None:
        size = DRAWN_CLIENTS if spec.num_clients is None else spec.num_clients
        rng = np.random.default_rng(spec.seed_of("graph"))
        options = spec.family_options()
        return random_graph(spec.family or "erdos_renyi", size, rng=rng, normalisation=spec.normalisation, **options)
    graph = read_graph(
        spec.graph,
        undirected=spec.undirected,
        normalisation=spec.normalisation,
        isolated=spec.isolated,
        self_loops=spec.self_loops,
    )
    if spec.num_clients not in (None, graph.num_clients):
        raise BadInput(
            f"num_clients={spec.num_clients}, but {spec.graph} has {graph.num_clients:,} clients. Make the two agree, "
            "or leave num_clients out."
        )
    return graph


def propagation_of(spec: GameSpec, graph: SocialGraph, device: str | None = None) -> Propagation:
    """How privacy loss spreads over the network."""
    hops, decay = constant(spec, "max_hops"), constant(spec, "hop_decay")
    return propagate(graph, hops, decay, diagonal=spec.diagonal, device=device)


def clients_of(spec: GameSpec, graph: SocialGraph) -> Clients:
    """The clients of the file, or drawn from the preset, within the bounds that are set for everybody."""
    if spec.clients is None:
        clients = draw_clients(spec.preset, graph.num_clients, np.random.default_rng(spec.seed_of("clients")))
    else:
        clients = read_clients(spec.clients, graph)
    if spec.budget_min > 0 or spec.budget_max is not None:
        low = np.maximum(clients.budget_min, spec.budget_min)
        high = np.minimum(clients.budget_max, np.inf if spec.budget_max is None else spec.budget_max)
        if len(crossed := np.flatnonzero(low > high)):
            first = int(crossed[0])
            raise BadInput(
                f"budget_min and budget_max leave client {graph.name(first)!r} no budget: at least {low[first]:g}, at "
                f"most {high[first]:g} ({len(crossed):,} such). Widen them, or the bounds in the clients file."
            )
        clients = replace(clients, budget_min=low, budget_max=high)
    if not clients.budget_max.any():
        raise NoEquilibrium(
            f"budget_max is 0 for all {clients.num_clients:,} clients, so nobody can participate. "
            "Raise budget_max of at least one client."
        )
    return clients


def game_on(spec: GameSpec, propagation: Propagation, graph: SocialGraph, clients: Clients) -> Game:
    """The game between the server and these clients."""
    strength, weight = constant(spec, "externality_strength"), constant(spec, "accuracy_weight")
    return Game(graph, clients, propagation, strength, weight, spec.trust or "local")


# ---- mechanisms ----------------------------------------------------------------------------------------------------


def mechanism_of(spec: GameSpec, name: str) -> Mechanism:
    """The mechanism of that name, with its option bound."""
    record = find_mechanism(name)
    option = record.option
    if option not in FIELDS:
        return record
    value = getattr(spec, option)
    if value is None and record.needs_option:
        raise BadInput(f"{name} needs {option}, {about(GameSpec, option).help.partition(': ')[2]}")
    return record if value is None else record.with_options(**{option: value})


def under(spec: GameSpec, mechanisms: Sequence[str]) -> GameSpec:
    """The same game without options of other mechanisms than these."""
    kept = {find_mechanism(name).option for name in mechanisms}
    idle = [record.option for record in MECHANISMS.values() if record.option in FIELDS and record.option not in kept]
    return replace(spec, **{option: defaults_of(GameSpec)[option] for option in idle if option is not None})


def require_playable(spec: GameSpec, mechanisms: Sequence[str]) -> None:
    """Raises where a mechanism lacks its option, an option its mechanism, or rates leave a mechanism no choice."""
    for name in mechanisms:
        record = mechanism_of(spec, name)
        if spec.reward_rate == "common" and record.only_rate_differs:
            raise BadInput(
                f'reward_rate="common" gives every mechanism mppfl\'s rates, and {name} differs from mppfl in the rate '
                'alone. Use reward_rate="own", or leave the mechanism out.'
            )
        if not isinstance(spec.reward_rate, str) and record.option == "payment_limit":
            raise BadInput(
                f"reward_rate={spec.reward_rate:g} leaves {name} no choice, and may cost more than "
                f"payment_limit={spec.payment_limit:g}. Leave one of them out."
            )
    default = under(spec, mechanisms)
    for record in MECHANISMS.values():
        if record.option in FIELDS and (value := getattr(spec, record.option)) != getattr(default, record.option):
            raise BadInput(
                f"{record.option}={shown(value)} means nothing to {', '.join(mechanisms)}. Choose the mechanism "
                f"{record.name}, or leave it out."
            )


def solve_all(spec: GameSpec, mechanisms: Sequence[str], game: Game, device: str | None = None) -> dict[str, Solution]:
    """Every mechanism's solution of the game, under the spec's participation and at its reward rates."""
    play = partial(
        solve,
        game,
        num_rounds=spec.num_rounds,
        participation=spec.participation,
        against=spec.against,
        seed=spec.seed,
        device=device,
    )
    if spec.reward_rate == "own":
        return {name: play(mechanism_of(spec, name)) for name in mechanisms}
    if spec.reward_rate == "common":
        leading = play("mppfl")
        others = [name for name in mechanisms if name != "mppfl"]
        at_common = {name: play(mechanism_of(spec, name), reward_rates=leading.plan.reward_rates) for name in others}
        return {name: at_common.get(name, leading) for name in mechanisms}
    rates = np.full(spec.num_rounds, spec.reward_rate)
    solutions = {name: play(mechanism_of(spec, name), reward_rates=rates) for name in mechanisms}
    for name, solution in solutions.items():
        if not follows(solution.plan, rates):
            raise BadInput(
                f"reward_rate={spec.reward_rate:g} means nothing to {name}, which has prices of its own. Leave it out."
            )
    return solutions
