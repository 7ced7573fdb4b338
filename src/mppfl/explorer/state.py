"""Choices: the state of the page as one value, a game and a view of it, which is also a link and an experiment file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from mppfl.errors import BadInput
from mppfl.experiment import CONSTANTS, DRAWN_CLIENTS, constant, under
from mppfl.fields import About, Spec, from_query, to_query
from mppfl.files import toml_text
from mppfl.game import MECHANISMS, find_mechanism
from mppfl.spec import GameSpec, table_of

Colour = Literal["budget", "own_risk", "external_risk", "utility"]
Event = Literal["leaves", "doubles"]
Tab = Literal["network", "rounds", "comparison", "run"]

EVENTS: dict[str, float] = {"leaves": 0.0, "doubles": 2.0}  # what the budget is multiplied by
SHOWN = tuple(name for name in MECHANISMS if name != "noiseless")  # without noise there is no budget to show
READ_AS: dict[str, Any] = {"isolated": "keep", "self_loops": "drop"}  # how the page begins with a file of edges
MOST_DRAWN: dict[str, int] = {  # clients; what a network of the family with ten million edges has
    "erdos_renyi": 3_000,
    "stochastic_block": 15_000,
    "barabasi_albert": 1_000_000,
    "watts_strogatz": 1_000_000,
    "skewed": 1_000_000,
}
MOST_ROUNDS, MOST_HOPS = 1_000, 50
DOWNLOADED = "mppfl-experiment.toml"  # the name of the experiment file as a download


@dataclass(frozen=True, slots=True, repr=False)
class ViewState(Spec):
    """What is looked at: the mechanism that plays the game, and where the reader stands in its answer."""

    mechanism: Annotated[str, About("Pricing mechanism.")] = "mppfl"
    tab: Annotated[Tab, About("What is open.")] = "network"
    round_shown: Annotated[int, About("The round shown; the last one where there are fewer.", "", 1)] = 1
    colour: Annotated[Colour, About("What a client's colour says.")] = "budget"
    client: Annotated[str, About("Name of the chosen client.")] = ""
    other: Annotated[str, About("Name of the client who leaves or doubles its budget.")] = ""
    event: Annotated[Event, About("What the other client does.")] = "leaves"
    opened: Annotated[tuple[int, ...], About("Communities opened, from the outside in.", "", 0)] = ()
    runs: Annotated[tuple[str, ...], About("Runs laid over each other.")] = ()

    def _check(self) -> None:
        find_mechanism(self.mechanism)
        if self.mechanism == "noiseless":
            raise BadInput("mechanism='noiseless' has no budgets to show. Choose a mechanism with noise.")
        if not all(self.runs) or len(set(self.runs)) < len(self.runs):
            raise BadInput(f"runs={', '.join(self.runs)!r:.60} must be names of runs, each once.")


@dataclass(frozen=True, slots=True)
class Choices:
    """The whole state of the page: a game that it can show, and the view of it."""

    game: GameSpec = field(default_factory=GameSpec)
    view: ViewState = field(default_factory=ViewState)

    def __post_init__(self) -> None:
        game, family = self.game, self.game.family or "erdos_renyi"
        if game.graph is None:
            remedy = "or give a file"
            _up_to(f"a random {family} on this page", "num_clients", num_clients_of(game), MOST_DRAWN[family], remedy)
        _up_to("this page", "max_hops", constant(game, "max_hops"), MOST_HOPS)
        _up_to("this page", "num_rounds", game.num_rounds, MOST_ROUNDS)


def _up_to(place: str, name: str, value: int, most: int, remedy: str = "") -> None:
    if value > most:
        more = f", {remedy}" if remedy else ""
        raise BadInput(f"{name}={value:,} is too many for {place}. Ask for at most {most:,}{more}.")


def num_clients_of(game: GameSpec) -> int:
    """The size of a random network."""
    return DRAWN_CLIENTS if game.num_clients is None else game.num_clients


def constants_of(game: GameSpec) -> dict[str, Any]:
    """The game's constants, those of its preset among them."""
    return {name: constant(game, name) for name in CONSTANTS}


# ---- as a link, as a file, as command lines ------------------------------------------------------------------------


def to_link(choices: Choices) -> str:
    """The choices as the query of a link, "?max_hops=3&client=ann": only what differs from the defaults, or ""."""
    return to_query(choices.game.changed() | choices.view.changed())


def from_link(link: str) -> Choices:
    """The choices that a link holds; a key that nobody knows, or a value that cannot be, raises BadInput."""
    game, view = from_query(link, GameSpec, ViewState)
    return Choices(GameSpec(**game), ViewState(**view))


def to_toml(choices: Choices) -> str:
    """The game and the mechanism as an experiment file; data and training are left at their defaults."""
    head = "".join(f"# {line}\n" for line in commands(choices))
    mechanism = choices.view.mechanism
    values = {"name": "explorer", "seed": choices.game.seed, "mechanism": mechanism}
    return head + toml_text(values | {"game": table_of(under(choices.game, (mechanism,)))})


def commands(choices: Choices, file: str = DOWNLOADED) -> tuple[str, ...]:
    """Command lines that re-make what is shown from the experiment file; what the reader looks at comes first."""
    name, fixed = shlex.quote(file), choices.game.fixed_budget
    solved = f"mppfl solve --experiment {name}"
    compared = f"mppfl compare --experiment {name} --mechanisms all"
    if fixed != under(choices.game, (choices.view.mechanism,)).fixed_budget:  # the file is silent on it
        compared += f" --fixed-budget {fixed}"
    first = (compared, solved) if choices.view.tab == "comparison" else (solved, compared)
    return (*first, f"mppfl train {name}")
