"""Choices: the state of the page as one value, which is also a link, an experiment file and command lines."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput
from mppfl.experiment import Experiment, Family, GameTerms, Network, plain_table
from mppfl.files import toml_text as write_toml
from mppfl.game import Participation, PresetName, preset
from mppfl.network import Isolated, SelfLoops

Colour = Literal["budget", "own_risk", "external_risk", "utility"]
Event = Literal["leaves", "doubles"]

CLIENTS_ARE = ("mppfl", "social_agnostic", "random", "dp_fedavg", "sarda_like", "sarda_r")
MECHANISM_OF_LEADER: dict[str, str] = {
    "mean_field": "mppfl",
    "anticipating": "mppfl_exact",
    "noise_aware": "mppfl_noise_aware",
    "budget_limited": "budget_limited",
    "pigouvian": "pigouvian",
    "personalised": "personalised",
}
LEADERS = tuple(MECHANISM_OF_LEADER)
COLOURS: tuple[Colour, ...] = get_args(Colour)
EVENTS: tuple[Event, ...] = get_args(Event)
TABS = ("network", "rounds", "comparison", "run")
NETWORKS = ("random", "file", "run")
MOST_DRAWN: dict[str, int] = {  # clients; what a network of the family with ten million edges has
    "erdos_renyi": 3_000,
    "stochastic_block": 15_000,
    "barabasi_albert": 1_000_000,
    "watts_strogatz": 1_000_000,
    "skewed": 1_000_000,
}
MOST_ROUNDS, MOST_HOPS = 1_000, 50
DOWNLOADED = "mppfl-experiment.toml"  # the name of the experiment file as a download
LONGEST_LINK = 20_000  # characters


@dataclass(frozen=True, slots=True)
class Choices:
    """The whole state of the page.

    network               "random", "file" (that of --graph) or "run" (that of --run)
    family, num_clients   of the random network; `seed` draws it, and the clients' costs on any network
    undirected, isolated, self_loops     how a file of edges is read
    clients_are           who the clients are: "mppfl" (they know the network), or a mechanism of another kind
    leader                how the server sets prices for clients who know the network; means nothing to others
    payment_limit         money per round of the leader budget_limited
    fixed_budget          ρ_0 where clients_are is "dp_fedavg": "min", "mean" or a number
    budget_min, budget_max    bounds on a budget of a round, for everybody
    round_shown           the last round is shown where there are fewer
    colour                what a client's colour says
    client, other, event  names of the chosen client, and of the one who leaves or doubles its budget
    opened                communities opened, from the outside in
    runs                  runs laid over each other
    """

    network: str = "random"
    family: Family = "erdos_renyi"
    num_clients: int = 20
    seed: int = 0
    undirected: bool = False
    isolated: Isolated = "keep"
    self_loops: SelfLoops = "drop"
    preset: PresetName = "paper-like"
    max_hops: int = 5
    hop_decay: float = 0.9
    externality_strength: float = 0.05
    accuracy_weight: float = 0.5
    num_rounds: int = 60
    clients_are: str = "mppfl"
    leader: str = "mean_field"
    payment_limit: float = 1.0
    fixed_budget: str = "min"
    budget_min: float = 0.0
    budget_max: float | None = None
    participation: Participation = "always"
    round_shown: int = 1
    colour: str = "budget"
    client: str = ""
    other: str = ""
    event: str = "leaves"
    tab: str = "network"
    opened: tuple[int, ...] = ()
    runs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in ONE_OF.items():
            value = getattr(self, name)
            if value not in allowed:
                raise BadInput(f"{name}={value!r:.60} must be one of {', '.join(allowed)}.")
        most = MOST_DRAWN[self.family]
        if require_count(self.num_clients, "num_clients", 2) > most and self.network == "random":
            raise BadInput(
                f"num_clients={self.num_clients:,} is too many for a random {self.family} on this page. "
                f"Ask for at most {most:,}, or give a file."
            )
        require_count(self.seed, "seed", 0)
        _count_up_to(self.max_hops, "max_hops", MOST_HOPS)
        _count_up_to(self.num_rounds, "num_rounds", MOST_ROUNDS)
        require_count(self.round_shown, "round_shown")
        require_number(self.hop_decay, "hop_decay", 0.0, 1.0)
        require_number(self.externality_strength, "externality_strength", 0.0, 1e6, open_ends=False)
        require_number(self.accuracy_weight, "accuracy_weight", 0.0, 1.0)
        require_number(self.payment_limit, "payment_limit", 0.0, math.inf)
        fixed_budget_of(self.fixed_budget)
        require_number(self.budget_min, "budget_min", 0.0, 1e300, open_ends=False)
        if self.budget_max is not None:
            require_number(self.budget_max, "budget_max", 0.0, math.inf)
            if self.budget_max < self.budget_min:
                raise BadInput(f"budget_max={self.budget_max:g} is below budget_min={self.budget_min:g}. Raise it.")
        for community in self.opened:
            require_count(community, "opened", 0)
        if not all(self.runs) or len(set(self.runs)) < len(self.runs):
            raise BadInput(f"runs={', '.join(self.runs)!r:.60} must be names of runs, each once.")

    @property
    def mechanism(self) -> str:
        """The name in mppfl.game.mechanisms of what `clients_are` and `leader` together mean."""
        return MECHANISM_OF_LEADER[self.leader] if self.clients_are == "mppfl" else self.clients_are


ONE_OF: dict[str, tuple[str, ...]] = {
    "network": NETWORKS,
    "family": get_args(Family),
    "isolated": get_args(Isolated),
    "self_loops": get_args(SelfLoops),
    "preset": get_args(PresetName),
    "clients_are": CLIENTS_ARE,
    "leader": LEADERS,
    "participation": get_args(Participation),
    "colour": COLOURS,
    "event": EVENTS,
    "tab": TABS,
}


def _count_up_to(value: int, name: str, most: int) -> None:
    if require_count(value, name) > most:
        raise BadInput(f"{name}={value:,} is too many for this page. Ask for at most {most:,}.")


def fixed_budget_of(text: str) -> float | Literal["min", "mean"]:
    """ "min", "mean", or the number above 0 that the text spells."""
    if text == "min":
        return "min"
    if text == "mean":
        return "mean"
    try:
        return require_number(float(text), "fixed_budget", 0.0, math.inf)
    except ValueError:
        raise BadInput(f"fixed_budget={text!r:.60} must be min, mean or a number above 0.") from None


def with_preset(choices: Choices, name: PresetName) -> Choices:
    """The choices with a preset's clients and all of its constants."""
    constants = preset(name)
    return replace(
        choices,
        preset=name,
        max_hops=constants.max_hops,
        hop_decay=constants.hop_decay,
        externality_strength=constants.externality_strength,
        accuracy_weight=constants.accuracy_weight,
    )


# ---- as a link ----------------------------------------------------------------------------------------------------

SHORTER = {
    "num_clients": "clients",
    "self_loops": "loops",
    "max_hops": "hops",
    "hop_decay": "decay",
    "externality_strength": "alpha",
    "accuracy_weight": "tau",
    "num_rounds": "rounds",
    "clients_are": "who",
    "payment_limit": "limit",
    "fixed_budget": "fixed",
    "budget_min": "least",
    "budget_max": "most",
    "participation": "part",
    "round_shown": "round",
    "runs": "run",
}
KEYS: dict[str, str] = {  # field of Choices: its name in a link
    field.name: SHORTER.get(field.name, field.name) for field in fields(Choices)
}


def to_query(choices: Choices) -> str:
    """The choices as the query of a link, "?alpha=0.1&hops=3": only what differs from the defaults, or ""."""
    defaults = Choices()
    pairs: list[tuple[str, str]] = []
    for name, key in KEYS.items():
        value = getattr(choices, name)
        if value == getattr(defaults, name):
            continue
        if name == "runs":
            pairs += [(key, run) for run in value]
        elif name == "opened":
            pairs.append((key, ".".join(map(str, value))))
        else:
            pairs.append((key, _text(value)))
    return f"?{urlencode(pairs)}" if pairs else ""


def from_query(text: str) -> Choices:
    """The choices that a link holds; keys that nobody knows are ignored, a value that cannot be raises BadInput."""
    if len(text) > LONGEST_LINK:
        raise BadInput(f"the link has {len(text):,} characters; at most {LONGEST_LINK:,} can be read. Shorten it.")
    fields_by_key = {key: name for name, key in KEYS.items()}
    given: dict[str, Any] = {}
    for key, value in parse_qsl(text.removeprefix("?"), keep_blank_values=True):
        if key not in fields_by_key:
            continue
        name = fields_by_key[key]
        if name == "runs":
            given[name] = (*given.get(name, ()), value)
            continue
        try:
            given[name] = _READERS[_TYPES[name]](value)
        except ValueError:
            kind = _IN_WORDS[_TYPES[name]]
            raise BadInput(f"{key}={value!r:.60} in the link must be {kind}. Correct it, or leave it out.") from None
    return Choices(**given)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(text)
    return text == "yes"


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):  # int() would also take " 1_0 "
        raise ValueError(text)
    return int(text)


def _wholes(text: str) -> tuple[int, ...]:
    return tuple(map(_whole, text.split("."))) if text else ()


_TYPES: dict[str, str] = {field.name: str(field.type) for field in fields(Choices)}
_READERS: dict[str, Callable[[str], Any]] = dict.fromkeys(_TYPES.values(), str) | {
    "int": _whole,
    "float": float,
    "float | None": lambda text: None if text == "none" else float(text),
    "bool": _yes_or_no,
    "tuple[int, ...]": _wholes,
}
_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "float | None": "a number or none",
    "bool": "yes or no",
    "tuple[int, ...]": "whole numbers with points between them",
}


# ---- as an experiment ---------------------------------------------------------------------------------------------


def experiment_of(choices: Choices, source: Path | None = None) -> Experiment:
    """The experiment that plays the game of these choices; `source` is the file of edges of a network that has one.

    Each mechanism's own server sets its rates.
    """
    from_file = choices.network != "random"
    if from_file and source is None:
        raise BadInput(f"network={choices.network!r} has no file of edges here. Give its file, or a random network.")
    network = Network(
        source=str(source) if from_file else None,
        undirected=choices.undirected if from_file else False,
        isolated=choices.isolated if from_file else "error",
        self_loops=choices.self_loops if from_file else "error",
        generate=None if from_file else choices.family,
        num_clients=None if from_file else choices.num_clients,
        max_hops=choices.max_hops,
        hop_decay=choices.hop_decay,
    )
    mechanism = choices.mechanism
    game = GameTerms(
        preset=choices.preset,
        externality_strength=choices.externality_strength,
        accuracy_weight=choices.accuracy_weight,
        num_rounds=choices.num_rounds,
        participation=choices.participation,
        fixed_budget=fixed_budget_of(choices.fixed_budget) if mechanism == "dp_fedavg" else "min",
        convention="own",
        payment_limit=choices.payment_limit if mechanism == "budget_limited" else None,
        budget_min=choices.budget_min,
        budget_max=choices.budget_max,
    )
    return Experiment(name="explorer", seeds=(choices.seed,), mechanisms=(mechanism,), network=network, game=game)


def to_toml(choices: Choices, source: Path | None = None) -> str:
    """The experiment as a file: network, game and mechanism; data and training are left at their defaults."""
    experiment = experiment_of(choices, source)
    head = "".join(f"# {line}\n" for line in commands(choices))
    values = {"name": experiment.name, "seed": choices.seed, "mechanism": choices.mechanism}
    return head + write_toml(
        values | {"network": plain_table(experiment.network), "game": plain_table(experiment.game)}
    )


def commands(choices: Choices, file: str = DOWNLOADED) -> tuple[str, ...]:
    """Command lines that re-make what is shown from the experiment file; what the reader looks at comes first."""
    name = shlex.quote(file)
    solved = f"mppfl solve --experiment {name}"
    compared = f"mppfl compare --experiment {name} --mechanisms all"
    if choices.fixed_budget != "min" and choices.mechanism != "dp_fedavg":  # the file is silent on it
        compared += f" --fixed-budget {choices.fixed_budget}"
    first = (compared, solved) if choices.tab == "comparison" else (solved, compared)
    return (*first, f"mppfl train {name}")
