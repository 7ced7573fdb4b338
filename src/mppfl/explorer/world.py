"""World: networks and solved games that the server holds, the least recently used forgotten first; Scene: one of them.

A game is made by the functions that `mppfl solve --experiment` calls, from the experiment file of the same choices, so
the page and the command line show one and the same. Any number of requests may ask at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.experiment import Experiment, clients_of, game_on, network_of, propagation_of, solve_all, within_bounds
from mppfl.explorer.choices import COLOURS, Choices, experiment_of
from mppfl.explorer.memory import Memory
from mppfl.game import AlongLine, Clients, Game, LossOperator, Plan, Solution, Stored, privacy_loss, utility
from mppfl.network import Propagation, SocialGraph, read_graph

LARGE = 20_000  # clients; of larger networks fewer solutions are kept
HUGE = 50_000  # clients; on larger networks what takes minutes is refused
MOST_LEAVING = {False: 60 * 1000**2, True: 60 * 400**2}  # rounds × clients², by "are there bounds?": some 15 seconds
QUICK_WHEN_HUGE = ("mppfl", "mppfl_exact", "social_agnostic")  # budgets of all rounds on one line


class World:
    """Networks by the names that Choices give them, and everything solved on them.

    graph      of --graph, read as Choices read a file by default but for `undirected`; `source` is that file, which is
               read anew where a reader chooses to read it otherwise
    run_graph  of --run
    clients    costs of the clients of --graph, drawn from the preset without them
    """

    def __init__(
        self,
        graph: SocialGraph | None = None,
        source: Path | None = None,
        run_graph: SocialGraph | None = None,
        clients: Clients | None = None,
        *,
        undirected: bool = False,
    ) -> None:
        self._given = {name: each for name, each in (("file", graph), ("run", run_graph)) if each is not None}
        self._files: dict[str, Path] = {} if source is None else {"file": Path(source)}
        self._clients = clients
        self._read_as = Choices(network="file", undirected=undirected)
        self._graphs: Memory[SocialGraph] = Memory(8)
        self._names: Memory[tuple[str, ...]] = Memory(8)
        self._spreads: dict[bool, Memory[Propagation]] = {False: Memory(16), True: Memory(4)}  # by "is it large?"
        self._losses: dict[bool, Memory[LossOperator]] = {False: Memory(32), True: Memory(4)}
        self._games: dict[bool, Memory[Game]] = {False: Memory(64), True: Memory(8)}
        self._solutions: dict[bool, Memory[Solution]] = {False: Memory(64), True: Memory(8)}
        self._scenes: dict[bool, Memory[Scene]] = {False: Memory(64), True: Memory(4)}
        self._others: Memory[Any] = Memory(64)

    def add_file(self, key: str, path: Path) -> None:
        """From now on `network=key` is the network of this file of links: an upload's, or that of the run."""
        Choices(network=key)  # refuses a name that no network has
        # Weights written down and read again may differ in the last bit, and an experiment file names this file.
        self._given.pop(key, None)
        self._files[key] = Path(path)

    @property
    def networks(self) -> tuple[str, ...]:
        """Names that `Choices.network` may have here."""
        return tuple(dict.fromkeys(["random", *self._given, *self._files]))

    def require_network(self, name: str) -> None:
        """Raises where no network of this name is here: links outlive the servers that they were made on."""
        if name not in self.networks:
            known = [each for each in self.networks if not each.startswith("upload-")]  # uploads are their senders'
            raise BadInput(f"network={name!r} is not here (any more). Choose one of {', '.join(known)}.")

    def source(self, choices: Choices) -> Path | None:
        """The file of links of the chosen network, which its experiment file names; None if it has none."""
        return None if choices.network == "random" else self._files.get(choices.network)

    def graph(self, choices: Choices) -> SocialGraph:
        """The chosen network; read or drawn on first use."""
        self.require_network(choices.network)
        name, path = choices.network, self._files.get(choices.network)
        given = self._given.get(name)
        if given is not None and (path is None or graph_key(choices) == graph_key(self._read_as)):
            return given
        return self._graphs.get(graph_key(choices), lambda: _read_or_draw(choices, path))

    def names(self, choices: Choices) -> tuple[str, ...]:
        """Everybody's name, in the order of the network."""
        graph = self.graph(choices)
        return graph.names or self._names.get(graph.num_clients, lambda: tuple(map(str, range(graph.num_clients))))

    def game(self, choices: Choices) -> Game:
        """The game of the choices, on a network whose walks and factors are kept from one lever to the next."""
        graph = self.graph(choices)
        large = graph.num_clients > LARGE
        experiment = self.experiment(choices)

        def make() -> Game:
            walks_key = (graph_key(choices), choices.max_hops, choices.hop_decay)
            walks = self._spreads[large].get(walks_key, lambda: propagation_of(experiment, graph))
            strength = choices.externality_strength
            loss = self._losses[large].get((walks_key, strength), lambda: LossOperator(walks, strength))
            game = game_on(experiment, walks, graph, self._clients_on(choices, experiment, graph))
            vars(game)["loss"] = loss  # what was factorised serves every τ, preset and bound
            return game

        return self._games[large].get(game_key(choices), make)

    def solution(self, choices: Choices) -> Solution:
        """Prices and budgets of every round; refuses what would take minutes on a huge network."""
        size = self.graph(choices).num_clients
        require_quick(choices, size)

        def make() -> Solution:
            return solve_all(self.experiment(choices), self.game(choices), choices.seed)[choices.mechanism]

        return self._solutions[size > LARGE].get(solution_key(choices), make)

    def scene(self, choices: Choices) -> Scene:
        """The solved game in the round shown; the last round where there are fewer."""
        solution = self.solution(choices)
        round_index = min(choices.round_shown, choices.num_rounds)
        names = self.names(choices)
        scenes = self._scenes[len(names) > LARGE]
        found = scenes.get((solution_key(choices), round_index), lambda: _scene(choices, solution, round_index, names))
        return found if found.choices == choices else replace(found, choices=choices)

    def remembered(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Anything else worth keeping, such as a picture of the network; at most 64 such."""
        return self._others.get(key, make)

    def experiment(self, choices: Choices) -> Experiment:
        """The experiment of the choices; a network that was given without a file gets a name in place of one."""
        return experiment_of(choices, self._files.get(choices.network, Path("links.csv")))

    def _clients_on(self, choices: Choices, experiment: Experiment, graph: SocialGraph) -> Clients:
        if self._clients is not None and choices.network == "file":
            return within_bounds(experiment, graph, self._clients)
        return clients_of(experiment, graph, choices.seed)


def _read_or_draw(choices: Choices, path: Path | None) -> SocialGraph:
    if path is None:
        return network_of(experiment_of(choices), choices.seed)
    return read_graph(path, undirected=choices.undirected, isolated=choices.isolated, self_loops=choices.self_loops)


# ---- what makes two choices one and the same ----------------------------------------------------------------------


def graph_key(choices: Choices) -> tuple[Hashable, ...]:
    """Equal for choices with the same network."""
    if choices.network == "random":
        return ("random", choices.family, choices.num_clients, choices.seed)
    return (choices.network, choices.undirected, choices.isolated, choices.self_loops)


def game_key(choices: Choices) -> tuple[Hashable, ...]:
    """Equal for choices with the same game."""
    constants = (choices.max_hops, choices.hop_decay, choices.externality_strength, choices.accuracy_weight)
    return (graph_key(choices), choices.preset, choices.seed, constants, choices.budget_min, choices.budget_max)


def solution_key(choices: Choices) -> tuple[Hashable, ...]:
    """Equal for choices with the same prices and budgets."""
    mechanism = choices.mechanism
    option = {"budget_limited": choices.payment_limit, "fixed": choices.fixed_budget}.get(mechanism)
    return (game_key(choices), mechanism, option, choices.num_rounds, choices.participation)


def require_quick(choices: Choices, num_clients: int) -> None:
    """Raises where the answer for so many clients would take minutes."""
    most = MOST_LEAVING[choices.budget_min > 0 or choices.budget_max is not None]
    if choices.participation == "if_non_negative" and choices.num_rounds * num_clients**2 > most:
        raise BadInput(
            f"participation='if_non_negative' on {num_clients:,} clients and {choices.num_rounds} rounds may take"
            " minutes. Choose if_better_than_staying_out, fewer rounds or a smaller network, or use `mppfl solve`."
        )
    if num_clients <= HUGE:
        return
    where = f"on {num_clients:,} clients takes minutes. Use `mppfl solve`, or a network of at most {HUGE:,}"
    if choices.mechanism not in QUICK_WHEN_HUGE:
        quick = ", ".join(QUICK_WHEN_HUGE)
        raise BadInput(f"mechanism={choices.mechanism!r} {where}; quick on any: {quick}.")
    if choices.participation != "always":
        raise BadInput(f"participation={choices.participation!r} {where}; quick on any: always.")
    if choices.budget_min > 0 or choices.budget_max is not None:
        raise BadInput(f"bounds on budgets {where}; quick on any: no bounds.")


# ---- one round of it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scene:
    """A solved game in one of its rounds. Arrays have one entry per client and are of that round.

    prices     money per unit of budget           external   (Σρ)_i, what others' budgets add up to, unit of a budget
    losses     ρ + αΣρ, unit of a budget          utilities  paid − compute cost − privacy cost, money
    """

    choices: Choices
    solution: Solution
    round_index: int
    budgets: Array
    prices: Array
    losses: Array
    external: Array
    utilities: Array
    names: tuple[str, ...]
    so_far: SoFar

    def coloured_by(self, colour: str) -> tuple[Array, str]:
        """What a client's colour says, one value each, and "what, unit" for the legend."""
        if colour == "budget":
            return self.budgets, "budget, ρ of zCDP in this round"
        if colour == "own_risk":
            return self.so_far.spent, "own risk, ρ of zCDP spent up to this round"
        if colour == "external_risk":
            return self.so_far.external, "external risk, ρ of zCDP that others spent up to this round, weighed by walks"
        if colour == "utility":
            return self.utilities, "utility, money in this round"
        raise BadInput(f"colour={colour!r:.60} must be one of {', '.join(COLOURS)}.")


@dataclass(frozen=True, eq=False)
class SoFar:
    """What has been spent in the first `num_rounds` rounds of a plan, computed when it is asked for."""

    game: Game
    plan: Plan
    num_rounds: int

    @cached_property
    def spent(self) -> Array:
        """Σ_t ρ_i of every client."""
        return spent_in(self.plan, self.num_rounds)

    @cached_property
    def external(self) -> Array:
        """Σ applied to what everybody has spent."""
        return self.game.propagation @ self.spent


def spent_in(plan: Plan, num_rounds: int) -> Array:
    """Everybody's budgets of the first rounds together; no clients × rounds is formed that the plan does not hold."""
    budgets, rates = plan.budgets, plan.reward_rates[:num_rounds]
    if isinstance(budgets, AlongLine):
        return float(rates.sum()) * budgets.slope - num_rounds * budgets.offset
    if isinstance(budgets, Stored):
        times = np.bincount(budgets.row_of_round[:num_rounds], minlength=len(budgets.rows))
        return np.asarray(times @ budgets.rows)
    total = np.zeros(plan.num_clients)
    for position, rate in enumerate(rates.tolist()):
        total += budgets.at(position, rate)
    return total


def _scene(choices: Choices, solution: Solution, round_index: int, names: tuple[str, ...]) -> Scene:
    game, terms = solution.game, solution.terms(round_index)
    losses = privacy_loss(game, terms.budgets)
    return Scene(
        choices=choices,
        solution=solution,
        round_index=round_index,
        budgets=terms.budgets,
        prices=np.broadcast_to(terms.prices, terms.budgets.shape),
        losses=losses,
        external=game.propagation @ terms.budgets,
        utilities=utility(game, terms.prices, terms.budgets, losses),
        names=names,
        so_far=SoFar(game, solution.plan, round_index),
    )
