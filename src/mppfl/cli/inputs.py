"""What the commands ask for in common, and the game they make of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from mppfl.experiment import Experiment
    from mppfl.game import Game, Mechanism
    from mppfl.network import SocialGraph

MOST_ROUNDS = 10_000_000  # more would not fit into memory

GraphOption = Annotated[
    Path | None,
    typer.Option("--graph", help="Links: source, target[, weight], meaning target is exposed by source; or GraphML."),
]
ClientsOption = Annotated[
    Path | None, typer.Option("--clients", help="CSV: name, quadratic_cost, linear_cost, noise_harm, ...")
]
PresetOption = Annotated[
    str, typer.Option("--preset", help="Draw clients, and take constants, from: paper-like, benign.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")]
NumClientsOption = Annotated[int, typer.Option("--num-clients", help="Without --graph: size of the random network.")]
MaxHopsOption = Annotated[int | None, typer.Option("--max-hops", help="Longest walk along which privacy leaks, links.")]
HopDecayOption = Annotated[
    float | None, typer.Option("--hop-decay", help="What remains after each further link, 0 to 1.")
]
StrengthOption = Annotated[
    float | None, typer.Option("--externality-strength", help="How much others' budgets add to one's own privacy loss.")
]
AccuracyOption = Annotated[
    float | None,
    typer.Option("--accuracy-weight", help="Server's weight on accuracy, 0 to 1; the rest is on payments."),
]
RoundsOption = Annotated[int, typer.Option("--rounds", help="Rounds, numbered from 1.")]
UndirectedOption = Annotated[bool, typer.Option("--undirected", help="Every link runs both ways.")]
NormalisationOption = Annotated[str, typer.Option("--normalisation", help="row, none or symmetric.")]
IsolatedOption = Annotated[str, typer.Option("--isolated", help="Clients whom nobody exposes: error, keep or drop.")]
SelfLoopsOption = Annotated[str, typer.Option("--self-loops", help="Links from a client to itself: error or drop.")]
DiagonalOption = Annotated[str, typer.Option("--diagonal", help="Walks that return home: auto, exact or estimate.")]
PaymentOption = Annotated[float | None, typer.Option("--payment-limit", help="For budget_limited: money per round.")]
FixedBudgetOption = Annotated[str, typer.Option("--fixed-budget", help="For fixed: min, mean or a number.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Solve by PyTorch on cuda, cuda:1 or cpu; default: NumPy, without it.")
]
ExperimentOption = Annotated[
    Path | None,
    typer.Option("--experiment", help="Network, game, mechanisms and rounds of this TOML file instead of options."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that makes a game, as given on the command line."""

    graph: Path | None
    clients: Path | None
    preset: str
    seed: int
    num_clients: int
    max_hops: int | None
    hop_decay: float | None
    externality_strength: float | None
    accuracy_weight: float | None
    undirected: bool = False
    normalisation: str = "row"
    isolated: str = "error"
    self_loops: str = "error"
    diagonal: str = "auto"

    @classmethod
    def among(cls, options: dict[str, Any]) -> Inputs:
        """Those of a command's options that make the game."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})


def read_or_draw_graph(inputs: Inputs, rng: Any) -> SocialGraph:
    """The graph of the file, or the paper's random network."""
    if inputs.graph is None:
        from mppfl.network import random_graph

        normalisation: Any = inputs.normalisation
        return random_graph("erdos_renyi", inputs.num_clients, rng=rng, normalisation=normalisation)
    from mppfl.network import read_graph

    return read_graph(
        inputs.graph,
        undirected=inputs.undirected,
        normalisation=inputs.normalisation,  # type: ignore[arg-type]
        isolated=inputs.isolated,  # type: ignore[arg-type]
        self_loops=inputs.self_loops,  # type: ignore[arg-type]
    )


def make_the_game(inputs: Inputs, seed: int | None = None, device: str | None = None) -> Game:
    """The game that the options describe; `seed` replaces the one given."""
    from mppfl.errors import NoEquilibrium
    from mppfl.game import draw_clients, make_game, preset, read_clients

    constants = preset(inputs.preset)
    rng = generator(inputs.seed if seed is None else seed)
    graph = read_or_draw_graph(inputs, rng)
    if inputs.clients is None:
        clients = draw_clients(inputs.preset, graph.num_clients, rng)
    else:
        clients = read_clients(inputs.clients, graph)
    if not clients.budget_max.any():
        raise NoEquilibrium(
            f"budget_max is 0 for all {clients.num_clients:,} clients, so nobody can take part. "
            "Raise budget_max of at least one client."
        )

    def given(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    return make_game(
        graph,
        clients,
        max_hops=given(inputs.max_hops, constants.max_hops),
        hop_decay=given(inputs.hop_decay, constants.hop_decay),
        externality_strength=given(inputs.externality_strength, constants.externality_strength),
        accuracy_weight=given(inputs.accuracy_weight, constants.accuracy_weight),
        diagonal=inputs.diagonal,  # type: ignore[arg-type]
        device=device,
    )


def read_the_experiment(path: Path, overrides: Sequence[str], *, beside: Sequence[str]) -> Experiment:
    """The experiment of --experiment, beside which only the options in `beside` may be typed."""
    from mppfl.experiment import read_experiment

    refuse_options_beside("--experiment", ("experiment", *beside))
    chosen = read_experiment(path, overrides)
    check_rounds(chosen.game.num_rounds)
    return chosen


_CONTEXT: ContextVar[Any] = ContextVar("context of the command that runs")


class Command(TyperCommand):
    """A command that keeps its context, from which `is_typed` tells a typed option from a default.

    Not click.get_current_context(): newer releases of Typer do not use the package click.
    """

    def invoke(self, ctx: Any) -> Any:
        _CONTEXT.set(ctx)
        return super().invoke(ctx)


def is_typed(name: str) -> bool:
    """Whether the user typed this option, so that its value is no default."""
    source = _CONTEXT.get().get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_options_beside(option: str, allowed: Sequence[str]) -> None:
    """With a file that says everything else, an option that changed nothing would mislead."""
    from mppfl.errors import BadInput

    for name in _CONTEXT.get().params:
        if name not in allowed and is_typed(name):
            raise BadInput(f"--{name.replace('_', '-')} means nothing with {option}. Set it in the file instead.")


def refuse_idle_options(names: Sequence[str], where: str, remedy: str) -> None:
    """Refuses what was typed and would change nothing: whoever typed it believes that it does."""
    from mppfl.errors import BadInput

    for name in names:
        if is_typed(name):
            raise BadInput(f"--{name.replace('_', '-')} means nothing {where}. {remedy}")


def check_network_options(inputs: Inputs) -> None:
    """Refuses options about a file where the network is drawn, and about a drawn one where there is a file."""
    if inputs.graph is not None:
        where = f"with --graph={str(inputs.graph)!r}, which says how many there are"
        refuse_idle_options(["num_clients"], where, "Leave it out.")
    else:
        about_files = ["undirected", "isolated", "self_loops"]
        refuse_idle_options(about_files, "for a random network", "Give --graph, too, or leave it out.")


def check_device(device: str | None) -> None:
    """Refuses a device that is not there, before anything is read; PyTorch is loaded only if one is asked for."""
    if device is not None:
        from mppfl.network import find_device

        find_device(device)


def generator(seed: int) -> Any:
    """NumPy's generator from a seed."""
    import numpy as np

    from mppfl.arrays import require_count

    return np.random.default_rng(require_count(seed, "seed", 0))


def check_rounds(rounds: int) -> None:
    """Refuses a number of rounds that cannot be, or that no memory holds."""
    from mppfl.arrays import require_count
    from mppfl.errors import BadInput

    if require_count(rounds, "rounds") > MOST_ROUNDS:
        raise BadInput(f"rounds={rounds:,} is too many. Ask for at most {MOST_ROUNDS:,}.")


def chosen_mechanism(name: str, payment_limit: float | None, fixed_budget: str) -> Mechanism:
    """The mechanism with its options bound."""
    from functools import partial

    from mppfl.errors import BadInput
    from mppfl.game import as_mechanism, budget_limited, fixed

    if name == "budget_limited":
        if payment_limit is None:
            raise BadInput("budget_limited needs --payment-limit, the money it may spend in a round.")
        return partial(budget_limited, payment_limit=payment_limit)
    if name == "fixed":
        return partial(fixed, budget=number_or_rule(fixed_budget))
    return as_mechanism(name)


def check_mechanism_options(payment_limit: float | None, fixed_budget: str, mechanisms: Sequence[str]) -> None:
    """Refuses a limit that nobody would keep, and a fixed budget that nobody would have."""
    from mppfl.errors import BadInput

    for typed, option, wanted in (
        (payment_limit is not None, f"--payment-limit={payment_limit}", "budget_limited"),
        (is_typed("fixed_budget"), f"--fixed-budget={fixed_budget}", "fixed"),
    ):
        if typed and wanted not in mechanisms:
            raise BadInput(
                f"{option} means nothing to {', '.join(mechanisms)}. Choose the mechanism {wanted}, or leave it out."
            )


def number_or_rule(text: str) -> Any:
    """ "min", "mean", or the number it spells."""
    from mppfl.errors import BadInput
    from mppfl.game import LARGEST

    if text in ("min", "mean"):
        return text
    try:
        number = float(text)
    except ValueError:
        raise BadInput(f'--fixed-budget={text!r} must be "min", "mean" or a number above 0.') from None
    if LARGEST < number < float("inf"):  # "no limit" is refused by the mechanism, which says so
        raise BadInput(f"--fixed-budget={text} must be at most {LARGEST:g}: what it costs has no number. Lower it.")
    return number


def print_json(value: Any) -> None:
    """One JSON object on stdout; what is not a finite number becomes null."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    typer.echo(json.dumps(_plain(value), ensure_ascii=encoding != "utf8", allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not (-float("inf") < value < float("inf")):
        return None
    return value


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something takes its time."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def warn(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(f"note: {line}", err=True)
