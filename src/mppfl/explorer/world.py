"""World: networks, solved games and drawings that the server holds; Scene: one round of a game; Site: all of a page.

A game is made by the functions that `mppfl solve --experiment` calls, from the experiment file of the same choices, so
the page and the command line show one and the same. Any number of requests may ask at a time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput, MppflError
from mppfl.experiment import Experiment, clients_of, game_on, network_of, propagation_of, solve_all
from mppfl.explorer.network_view import NetworkDrawing, Picture
from mppfl.explorer.state import COLOURS, LEADERS, Choices, experiment_of
from mppfl.game import AlongLine, Game, LossOperator, Participation, Plan, Solution, Stored, privacy_loss, utility
from mppfl.network import Propagation, SocialGraph, read_graph

if TYPE_CHECKING:
    from mppfl.explorer.run_view import RunReader

log = logging.getLogger(__name__)

LARGE = 20_000  # clients; of larger networks fewer solutions are kept
HUGE = 50_000  # clients; on larger networks what takes minutes is refused
MOST_LEAVING = {False: 60 * 1000**2, True: 60 * 400**2}  # rounds × clients², by "are there bounds?": some 15 seconds
QUICK_WHEN_HUGE = ("mppfl", "mppfl_exact", "social_agnostic")  # budgets of all rounds on one line
REMEMBERED = {  # values of each kind that are kept: of small networks, and of large ones
    "graph": (8, 8),
    "names": (8, 8),
    "drawing": (16, 16),
    "propagation": (16, 4),
    "loss": (32, 4),
    "game": (64, 8),
    "solution": (64, 8),
    "scene": (64, 4),
    "comparison": (64, 64),
}

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """Values by key, the least recently used forgotten first; each is made once, however many threads ask for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guard = Lock()
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of the key, made now if it is not kept; what `make` raises is raised, and not remembered."""
        with self._guard:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self._most:
                self._slots.popitem(last=False)
        with slot.lock:
            if not slot.is_made:
                try:
                    slot.value, slot.is_made = make(), True
                except BaseException:
                    with self._guard:
                        if self._slots.get(key) is slot:
                            del self._slots[key]
                    raise
            value: Value = slot.value
            return value


@dataclass
class _Slot:
    lock: Any = field(default_factory=Lock)
    is_made: bool = False
    value: Any = None


class World:
    """Networks by the names that Choices give them, and everything solved on them.

    graph, source  the network of --graph and its file, read with the defaults of Choices but for `undirected`; the file
                   is read anew where a reader chooses to read it otherwise
    run_source     the file of edges of the run of --run
    """

    def __init__(
        self,
        graph: SocialGraph | None = None,
        source: Path | None = None,
        run_source: Path | None = None,
        *,
        undirected: bool = False,
    ) -> None:
        self._graph = graph
        self._files = {name: Path(path) for name, path in (("file", source), ("run", run_source)) if path is not None}
        self._read_as = Choices(network="file", undirected=undirected)
        self._memories: dict[tuple[str, bool], Memory[Any]] = {
            (kind, large): Memory(most[large]) for kind, most in REMEMBERED.items() for large in (False, True)
        }

    def remembered(self, kind: str, key: Hashable, make: Callable[[], Any], *, large: bool = False) -> Any:
        """A value of one of the kinds in `REMEMBERED`, made where it is not kept."""
        return self._memories[kind, large].get(key, make)

    @property
    def networks(self) -> tuple[str, ...]:
        """Names that `Choices.network` may have here."""
        return tuple(dict.fromkeys(["random", *(["file"] if self._graph is not None else []), *self._files]))

    def require_network(self, name: str) -> None:
        """Raises where no network of this name is here: links outlive the servers that they were made on."""
        if name not in self.networks:
            raise BadInput(f"network={name!r} is not here (any more). Choose one of {', '.join(self.networks)}.")

    def source(self, choices: Choices) -> Path | None:
        """The file of edges of the chosen network, which its experiment file names; None if it has none."""
        return self._files.get(choices.network)

    def graph(self, choices: Choices) -> SocialGraph:
        """The chosen network; read or drawn on first use."""
        self.require_network(choices.network)
        path = self.source(choices)
        as_given = path is None or graph_key(choices) == graph_key(self._read_as)
        if choices.network == "file" and self._graph is not None and as_given:
            return self._graph

        def make() -> SocialGraph:
            if path is None:
                return network_of(experiment_of(choices), choices.seed)
            how = {"isolated": choices.isolated, "self_loops": choices.self_loops}
            return read_graph(path, undirected=choices.undirected, **how)  # type: ignore[arg-type]

        graph: SocialGraph = self.remembered("graph", graph_key(choices), make)
        return graph

    def names(self, choices: Choices) -> tuple[str, ...]:
        """Everybody's name, in the order of the network."""
        graph = self.graph(choices)
        size = graph.num_clients
        return graph.names or tuple(self.remembered("names", size, lambda: tuple(map(str, range(size)))))

    def picture(self, choices: Choices) -> Picture:
        """The drawing of the network, with the communities opened that the choices say."""
        graph = self.graph(choices)
        drawing: NetworkDrawing = self.remembered("drawing", graph_key(choices), lambda: NetworkDrawing(graph))
        return drawing.picture(choices.opened)

    def experiment(self, choices: Choices) -> Experiment:
        """The experiment of the choices; a network that was given without a file gets a name in place of one."""
        return experiment_of(choices, self._files.get(choices.network, Path("edges.csv")))

    def game(self, choices: Choices) -> Game:
        """The game of the choices, on a network whose walks and factors are kept from one lever to the next."""
        graph, experiment = self.graph(choices), self.experiment(choices)
        large = graph.num_clients > LARGE
        key = (graph_key(choices), choices.max_hops, choices.hop_decay)
        strength = choices.externality_strength

        def make() -> Game:
            walks: Propagation = self.remembered(
                "propagation", key, lambda: propagation_of(experiment, graph), large=large
            )
            game = game_on(experiment, walks, graph, clients_of(experiment, graph, choices.seed))
            # What was factorised serves every τ, preset and bound.
            vars(game)["loss"] = self.remembered(
                "loss", (key, strength), lambda: LossOperator(walks, strength), large=large
            )
            return game

        game: Game = self.remembered("game", game_key(choices), make, large=large)
        return game

    def solution(self, choices: Choices) -> Solution:
        """Prices and budgets of every round; refuses what would take minutes on a huge network."""
        size = self.graph(choices).num_clients
        require_quick(choices, size)

        def make() -> Solution:
            return solve_all(self.experiment(choices), self.game(choices), choices.seed)[choices.mechanism]

        solution: Solution = self.remembered("solution", solution_key(choices), make, large=size > LARGE)
        return solution

    def scene(self, choices: Choices) -> Scene:
        """The solved game in the round shown; the last round where there are fewer."""
        solution, names = self.solution(choices), self.names(choices)
        round_index = min(choices.round_shown, choices.num_rounds)

        def make() -> Scene:
            return _scene(choices, solution, round_index, names)

        key = (solution_key(choices), round_index)
        scene: Scene = self.remembered("scene", key, make, large=len(names) > LARGE)
        return scene if scene.choices == choices else replace(scene, choices=choices)


@dataclass(frozen=True, slots=True)
class Site:
    """Everything behind the page. Shared between requests, which come in several threads.

    start     what is chosen when no link says otherwise
    runs      reader of the folder of --run, or None
    networks  what the page calls the networks there are, by their names in Choices
    """

    world: World
    start: Choices = field(default_factory=Choices)
    runs: RunReader | None = None
    networks: dict[str, str] = field(default_factory=lambda: {"random": "drawn at random"})


def warm_up() -> int:
    """Plays a small game of every kind, so that compiled code is loaded before a lever needs it; how many were played.

    A game without an answer loads the code all the same.
    """
    world, small = World(), Choices(num_clients=8, num_rounds=2)
    world.picture(small)
    sparse = replace(small, num_clients=1100, family="watts_strogatz")  # walks are walked, not multiplied out
    kinds = [
        replace(small, leader=leader, budget_max=most, participation=rule)
        for leader, most, rule in product(LEADERS, (None, 1.0), get_args(Participation))
    ]
    played = 0
    for choices in (*kinds, replace(sparse, max_hops=2), replace(sparse, max_hops=3)):
        try:
            world.scene(choices)
            played += 1
        except MppflError as error:
            log.debug("not played: %s", error)
    return played


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
    option = {"budget_limited": choices.payment_limit, "dp_fedavg": choices.fixed_budget}.get(mechanism)
    return (game_key(choices), mechanism, option, choices.num_rounds, choices.participation)


def require_quick(choices: Choices, num_clients: int) -> None:
    """Raises where the answer for so many clients would take minutes."""
    most = MOST_LEAVING[choices.budget_min > 0 or choices.budget_max is not None]
    if choices.participation == "if_non_negative" and choices.num_rounds * num_clients**2 > most:
        raise BadInput(
            f"participation='if_non_negative' on {num_clients:,} clients and {choices.num_rounds} rounds may take"
            " minutes. Choose if_better_than_opting_out, fewer rounds or a smaller network, or use `mppfl solve`."
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
    cumulative: Cumulative

    def coloured_by(self, colour: str) -> tuple[Array, str]:
        """What a client's colour says, one value each, and "what, unit" for the legend."""
        if colour == "budget":
            return self.budgets, "budget, ρ of zCDP in this round"
        if colour == "own_risk":
            return self.cumulative.spent, "own risk, ρ of zCDP spent up to this round"
        if colour == "external_risk":
            words = "external risk, ρ of zCDP that others spent up to this round, weighed by walks"
            return self.cumulative.external, words
        if colour == "utility":
            return self.utilities, "utility, money in this round"
        raise BadInput(f"colour={colour!r:.60} must be one of {', '.join(COLOURS)}.")


@dataclass(frozen=True, eq=False)
class Cumulative:
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
        cumulative=Cumulative(game, solution.plan, round_index),
    )
