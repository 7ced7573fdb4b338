"""World: networks, solved games and drawings that the server holds; Scene: one round of a game; Site: all of a page.

A game is made by the functions that `mppfl solve` calls, from the same GameSpec, so the page and the command line show
one and the same. Any number of requests may ask at a time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput, MppflError
from mppfl.experiment import clients_of, constant, game_on, network_of, propagation_of, solve_all, under
from mppfl.explorer.network_view import CommunityTree, Picture, draw
from mppfl.explorer.state import Choices, ViewState, constants_of, num_clients_of
from mppfl.game import MECHANISMS, Game, LossOperator, Solution, privacy_cost, privacy_loss, utility
from mppfl.network import SocialGraph
from mppfl.spec import GameSpec

if TYPE_CHECKING:
    from mppfl.explorer.run_view import RunReader

log = logging.getLogger(__name__)

LARGE = 20_000  # clients; of larger networks fewer solutions are kept
HUGE = 50_000  # clients; on larger networks what takes minutes is refused
MOST_LEAVING = {False: 60 * 1000**2, True: 60 * 400**2}  # rounds × clients², by "are there bounds?": some 15 seconds
RULES: tuple[dict[str, Any], ...] = (
    {"participation": "everyone"},
    {"participation": "voluntary"},
    {"participation": "rational"},
    {"participation": "rational", "against": "nothing"},
)
QUICK_WHEN_HUGE = ("mppfl", "mppfl_exact", "social_agnostic")  # budgets of all rounds on one line
KEPT = {"graph": 8, "names": 8, "tree": 16, "propagation": 16, "loss": 32}  # values of a kind; of the others,
MANY, FEW = 64, 4  # and of each kind on large networks

Value = TypeVar("Value")


class Memory:
    """Values by key, the least recently used forgotten first; each is made once, however many threads ask for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guard = Lock()
        self._slots: OrderedDict[Hashable, Future[Any]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of the key, made now if it is not kept; what `make` raises is raised, and not remembered."""
        with self._guard:
            is_new = key not in self._slots
            slot = self._slots.setdefault(key, Future())
            self._slots.move_to_end(key)
            while len(self._slots) > self._most:
                self._slots.popitem(last=False)
        if is_new:
            try:
                slot.set_result(make())
            except BaseException as error:
                with self._guard:
                    if self._slots.get(key) is slot:
                        del self._slots[key]
                slot.set_exception(error)
        value: Value = slot.result()
        return value


class World:
    """Networks, and everything solved on them.

    files  paths of the files of edges that may be asked for
    given  the game whose network was read already, and
    graph  that network
    """

    def __init__(
        self, files: Iterable[str] = (), given: GameSpec | None = None, graph: SocialGraph | None = None
    ) -> None:
        self._given, self._graph = given or GameSpec(), graph
        self._files = (*files, self._given.graph)
        self._memories: dict[tuple[str, bool], Memory] = {}

    def remembered(self, kind: str, key: Hashable, make: Callable[[], Value], *, large: bool = False) -> Value:
        """A value of a kind, made where it is not kept; of large networks few are."""
        memory = self._memories.setdefault((kind, large), Memory(FEW if large else KEPT.get(kind, MANY)))
        return memory.get(key, make)

    def require_files(self, game: GameSpec) -> None:
        """Raises where a file is not offered here: a link must not read any other, and outlives its server."""
        offers = (("graph", game.graph, self._files), ("clients", game.clients, (self._given.clients,)))
        for name, path, offered in offers:
            if path is not None and path not in offered:
                here = ", ".join(dict.fromkeys(filter(None, offered))) or "nothing"
                raise BadInput(f"{name}={path!r:.80} is not here (any more). Leave it out, or choose: {here}.")

    def graph(self, game: GameSpec) -> SocialGraph:
        """The network of a game; read or drawn on first use."""
        if self._graph is not None and graph_key(game) == graph_key(self._given):
            return self._graph
        self.require_files(game)
        return self.remembered("graph", graph_key(game), lambda: network_of(game))

    def names(self, game: GameSpec) -> tuple[str, ...]:
        """Everybody's name, in the order of the network."""
        graph = self.graph(game)
        size = graph.num_clients
        return graph.names or self.remembered("names", size, lambda: tuple(map(str, range(size))))

    def picture(self, choices: Choices) -> Picture:
        """The drawing of the network, with the communities opened that the choices say."""
        graph, key, opened = self.graph(choices.game), graph_key(choices.game), choices.view.opened
        tree = self.remembered("tree", key, lambda: CommunityTree(graph))
        return self.remembered("picture", (key, opened), lambda: draw(tree, opened))

    def game(self, spec: GameSpec) -> Game:
        """The game, on a network whose walks and factors are kept from one lever to the next."""
        graph = self.graph(spec)
        self.require_files(spec)
        large, strength = graph.num_clients > LARGE, constant(spec, "externality_strength")
        key = (graph_key(spec), constant(spec, "max_hops"), constant(spec, "hop_decay"), spec.diagonal)

        def make() -> Game:
            walks = self.remembered("propagation", key, lambda: propagation_of(spec, graph), large=large)
            game = game_on(spec, walks, graph, clients_of(spec, graph))
            # What was factorised serves every τ, preset and bound.
            vars(game)["loss"] = self.remembered(
                "loss", (key, strength), lambda: LossOperator(walks, strength), large=large
            )
            return game

        return self.remembered("game", game_key(spec), make, large=large)

    def solution(self, choices: Choices) -> Solution:
        """Prices and budgets of every round; refuses what would take minutes on a huge network."""
        spec, mechanism = choices.game, choices.view.mechanism
        size = self.graph(spec).num_clients
        require_quick(choices, size)
        return self.remembered(
            "solution",
            solution_key(choices),
            lambda: solve_all(spec, [mechanism], self.game(spec))[mechanism],
            large=size > LARGE,
        )

    def scene(self, choices: Choices) -> Scene:
        """The solved game in the round shown; the last round where there are fewer."""
        solution, names = self.solution(choices), self.names(choices.game)
        round_index = min(choices.view.round_shown, choices.game.num_rounds)

        def make() -> Scene:
            terms = solution.terms(round_index)
            return Scene(solution, round_index, names, figures_of(solution.game, terms.prices, terms.budgets))

        key = (solution_key(choices), round_index)
        return self.remembered("scene", key, make, large=len(names) > LARGE)


@dataclass(frozen=True, slots=True)
class Site:
    """Everything behind the page. Shared between requests, which come in several threads.

    start     what is chosen when no link says otherwise
    runs      reader of the folder of --run, or None
    networks  what the page calls the networks there are, by the paths of their files
    """

    world: World
    start: Choices = field(default_factory=Choices)
    runs: RunReader | None = None
    networks: dict[str, str] = field(default_factory=lambda: {"random": "drawn at random"})


def warm_up() -> int:
    """Plays a small game of every kind, so that compiled code is loaded before a lever needs it; gives their number."""
    world, small = World(), GameSpec(num_clients=8, num_rounds=2)
    world.picture(Choices(small))
    sparse = replace(small, num_clients=1100, family="watts_strogatz")  # walks are walked, not multiplied out
    games = [replace(small, budget_max=most, **rule) for most, rule in product((None, 1.0), RULES)]
    mechanisms = [name for name, record in MECHANISMS.items() if record.leader is not None and not record.needs_option]
    kinds = [Choices(game, ViewState(mechanism=name)) for game, name in product(games, mechanisms)]
    kinds += [Choices(replace(sparse, max_hops=hops)) for hops in (2, 3)]
    played = 0
    for choices in kinds:
        try:
            world.scene(choices)
            played += 1
        except MppflError as error:
            log.debug("not played: %s", error)
    return played


# ---- what makes two choices one and the same ----------------------------------------------------------------------


def _values(spec: GameSpec, names: Iterable[str]) -> tuple[Hashable, ...]:
    return tuple(getattr(spec, name) for name in names)


def graph_key(spec: GameSpec) -> tuple[Hashable, ...]:
    """Equal for games with the same network."""
    if spec.graph is None:
        options = tuple(spec.family_options().items())
        return (spec.family or "erdos_renyi", num_clients_of(spec), spec.seed_of("graph"), spec.normalisation, options)
    return _values(spec, ("graph", "undirected", "isolated", "self_loops", "normalisation", "num_clients"))


def game_key(spec: GameSpec) -> tuple[Hashable, ...]:
    """Equal for the same game."""
    names = ("preset", "clients", "budget_min", "budget_max", "diagonal", "seed", "trust")
    return (graph_key(spec), spec.seed_of("clients"), *constants_of(spec).values(), *_values(spec, names))


def solution_key(choices: Choices) -> tuple[Hashable, ...]:
    """Equal for choices with the same prices and budgets."""
    spec, mechanism = under(choices.game, (choices.view.mechanism,)), choices.view.mechanism
    names = ("payment_limit", "fixed_budget", "num_rounds", "participation", "against", "reward_rate")
    return (game_key(spec), mechanism, *_values(spec, names))


def require_quick(choices: Choices, num_clients: int) -> None:
    """Raises where the answer for so many clients would take minutes."""
    spec, mechanism = choices.game, choices.view.mechanism
    bounded = spec.budget_min > 0 or spec.budget_max is not None
    if spec.against == "nothing" and spec.num_rounds * num_clients**2 > MOST_LEAVING[bounded]:
        raise BadInput(
            f'against="nothing" on {num_clients:,} clients and {spec.num_rounds} rounds may take minutes. Choose '
            "staying_out, fewer rounds or a smaller network, or use `mppfl solve`."
        )
    if num_clients <= HUGE:
        return
    where = f"on {num_clients:,} clients takes minutes. Use `mppfl solve`, or a network of at most {HUGE:,}"
    for what, is_slow, quick in (
        (f"mechanism={mechanism!r}", mechanism not in QUICK_WHEN_HUGE, ", ".join(QUICK_WHEN_HUGE)),
        (f"participation={spec.participation!r}", spec.participation != "everyone", "everyone"),
        ("bounds on budgets", bounded, "no bounds"),
    ):
        if is_slow:
            raise BadInput(f"{what} {where}; quick on any: {quick}.")


# ---- one round of it ----------------------------------------------------------------------------------------------

COLOURS = {  # what a client's colour says, and its unit
    "budget": "budget, ρ of zCDP in this round",
    "own_risk": "own risk, ρ of zCDP spent up to this round",
    "external_risk": "external risk, ρ of zCDP that others spent up to this round, weighed by walks",
    "utility": "utility, money in this round",
}


@dataclass(frozen=True, eq=False)
class Scene:
    """A solved game in one of its rounds, and the `figures_of` every client in that round."""

    solution: Solution
    round_index: int
    names: tuple[str, ...]
    figures: dict[str, Array]

    @cached_property
    def spent(self) -> Array:
        """Σ_t ρ_i of every client up to this round; no clients × rounds is formed that the plan does not hold."""
        plan = self.solution.plan
        total = np.zeros(plan.num_clients)
        for position, rate in enumerate(plan.reward_rates[: self.round_index].tolist()):
            total += plan.budgets.at(position, rate)
        return total

    @cached_property
    def external(self) -> Array:
        """Σ applied to what everybody has spent."""
        return self.solution.game.propagation @ self.spent

    def coloured_by(self, colour: str) -> tuple[Array, str]:
        """What a client's colour says, one value each, and "what, unit" for the legend."""
        if colour in ("own_risk", "external_risk"):
            return self.spent if colour == "own_risk" else self.external, COLOURS[colour]
        return self.figures[colour], COLOURS[colour]


def figures_of(game: Game, prices: Array | float, budgets: Array) -> dict[str, Array]:
    """How every client fares in one round: budget, external risk (Σρ)_i and privacy loss in ρ, the rest in money."""
    losses = privacy_loss(game, budgets)
    return {
        "budget": budgets,
        "price": np.broadcast_to(prices, budgets.shape),
        "payment": prices * budgets,
        "external_risk": game.propagation @ budgets,
        "privacy_loss": losses,
        "privacy_cost": privacy_cost(game, losses),
        "utility": utility(game, prices, budgets, losses),
    }
