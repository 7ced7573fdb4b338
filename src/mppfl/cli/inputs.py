"""What the commands share: options, the game they describe, checks, and how results and progress are shown."""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from mppfl.errors import BadInput, NoEquilibrium

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mppfl.experiment import Experiment
    from mppfl.game import Game, Mechanism
    from mppfl.leakage import LeakModel
    from mppfl.network import SocialGraph
    from mppfl.training import RoundRecord

MOST_ROUNDS = 10_000_000  # more would not fit into memory
NETWORK, GAME, PRICING, LEAKAGE = "Network", "Clients and game", "Mechanism", "Leakage"  # panels of --help
PRICED = "leakage_priced"
LEAK_ASSUMES = (
    "nats; the attribute follows a Gaussian field on the edges, its constants fitted on the public sample; "
    "client-level budgets spent once; an estimate, not a bound"
)

# ---- options of several commands ------------------------------------------------------------------------------------


def option(name: str, help: str, panel: str | None = None) -> Any:
    """An option of Typer, in one of the panels of --help."""
    return typer.Option(name, help=help, rich_help_panel=panel)


GraphOption = Annotated[
    Path | None,
    option("--graph", "Edge list: source, target[, weight], meaning target is exposed by source; or GraphML.", NETWORK),
]
UndirectedOption = Annotated[bool, option("--undirected", "Every edge runs both ways.", NETWORK)]
NormalisationOption = Annotated[str, option("--normalisation", "Of edge weights: row, none or symmetric.", NETWORK)]
IsolatedOption = Annotated[str, option("--isolated", "Clients without an incoming edge: error, keep or drop.", NETWORK)]
SelfLoopsOption = Annotated[str, option("--self-loops", "Edges from a client to itself: error or drop.", NETWORK)]
NumClientsOption = Annotated[int, option("--num-clients", "Without --graph: size of the random network.", NETWORK)]
MaxHopsOption = Annotated[int | None, option("--max-hops", "Longest walk along which privacy leaks, in edges.", GAME)]
HopDecayOption = Annotated[float | None, option("--hop-decay", "Decay factor per hop, between 0 and 1.", GAME)]
SeedOption = Annotated[int, option("--seed", "Random seed.")]
RoundsOption = Annotated[int, option("--rounds", "Number of rounds.", GAME)]
MechanismOption = Annotated[
    str,
    option(
        "--mechanism",
        "Pricing mechanism: mppfl, mppfl_exact, mppfl_noise_aware, budget_limited, pigouvian, personalised, "
        "social_agnostic, random, dp_fedavg, sarda_like, sarda_r or noiseless (see `mppfl compare`).",
        PRICING,
    ),
]
PaymentOption = Annotated[float | None, option("--payment-limit", "For budget_limited: payments per round.", PRICING)]
FixedBudgetOption = Annotated[str, option("--fixed-budget", "For dp_fedavg: min, mean or a number.", PRICING)]
AttributeOption = Annotated[
    Path | None, option("--attribute", "CSV: name, value (±1 or 0/1) of a public sample, for R_leak.", LEAKAGE)
]
CouplingOption = Annotated[float | None, option("--coupling", "Ising coupling J of every edge, for R_bound.", LEAKAGE)]
LeakPriceOption = Annotated[
    float | None, option("--leak-price", "For leakage_priced: price of one nat of leakage.", LEAKAGE)
]
ExperimentOption = Annotated[
    Path | None, option("--experiment", "Take network, game, mechanisms and rounds from this TOML file.")
]
QuietOption = Annotated[bool, option("--quiet", "No progress on stderr.")]
JsonOption = Annotated[bool, option("--json", "Print one JSON object.")]
DebugOption = Annotated[bool, option("--debug", "Show the traceback of an error.")]


@dataclass(frozen=True, slots=True)
class GameOptions:
    """The options that describe a game."""

    graph: GraphOption = None
    clients: Annotated[
        Path | None, option("--clients", "CSV: name, quadratic_cost, linear_cost, noise_harm, ...", GAME)
    ] = None
    preset: Annotated[
        str, option("--preset", "Preset for client costs and game constants: paper-like or benign.", GAME)
    ] = "paper-like"
    seed: SeedOption = 0
    num_clients: NumClientsOption = 20
    max_hops: MaxHopsOption = None
    hop_decay: HopDecayOption = None
    externality_strength: Annotated[
        float | None, option("--externality-strength", "How much others' budgets add to a client's loss.", GAME)
    ] = None
    accuracy_weight: Annotated[
        float | None, option("--accuracy-weight", "Server's weight on accuracy, 0 to 1; the rest is on payments.", GAME)
    ] = None
    undirected: UndirectedOption = False
    normalisation: NormalisationOption = "row"
    isolated: IsolatedOption = "error"
    self_loops: SelfLoopsOption = "error"
    diagonal: Annotated[
        str, option("--diagonal", "How closed walks are counted: exact, estimate, or auto (by size).", NETWORK)
    ] = "auto"


def with_game_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for Typer that has every option of GameOptions where `command` has its first parameter."""
    names = [field.name for field in fields(GameOptions)]
    hints = get_type_hints(GameOptions, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
        for field in fields(GameOptions)
    ]
    others = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    signature = inspect.Signature([*shared, *(other.replace(kind=keyword) for other in others)])

    @wraps(command)
    def run(**values: Any) -> None:
        command(GameOptions(**{name: values.pop(name) for name in names}), **values)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


# ---- commands of Typer ----------------------------------------------------------------------------------------------

_CONTEXT: ContextVar[Any] = ContextVar("context of the command that runs")
SYMBOLS = {  # letters of the model, which some type for the option
    "--alpha": "--externality-strength",
    "--tau": "--accuracy-weight",
    "--lambda": "--hop-decay",
    "--hops": "--max-hops",
}


class Command(TyperCommand):
    """A command that keeps its context, suggests only near options, and shows square brackets in its help.

    Not click.get_current_context(): newer releases of Typer do not use the package click.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "option_name") and hasattr(error, "possibilities"):  # no such option
                error.possibilities = self._suggestions(str(error.option_name))
            raise

    def _suggestions(self, option: str) -> list[str]:
        from difflib import get_close_matches

        names = [name for parameter in self.params for name in parameter.opts]
        if SYMBOLS.get(option) in names:
            return [SYMBOLS[option]]
        return get_close_matches(option, names, n=1, cutoff=0.75)  # at .6 --alpha is close to --graph

    def invoke(self, ctx: Any) -> Any:
        _CONTEXT.set(ctx)
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _brackets_as_text([self]):
            super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A group of commands that hints once at the command that was meant, and shows square brackets in its help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if "Did you mean" in getattr(error, "message", "") and hasattr(error, "possibilities"):
                error.possibilities = None  # of click, which Typer has put into the message already
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _brackets_as_text([self, *self.commands.values()]):
            super().format_help(ctx, formatter)


@contextmanager
def _brackets_as_text(commands: Sequence[Any]) -> Iterator[None]:
    """While help is written: square brackets that are text, which Rich would take for its markup."""
    from rich.markup import escape

    parts = [part for command in commands for part in (command, *command.params) if getattr(part, "help", None)]
    texts = [part.help for part in parts]
    for part in parts:
        part.help = escape(part.help)
    try:
        yield
    finally:
        for part, text in zip(parts, texts, strict=True):
            part.help = text


def is_typed(name: str) -> bool:
    """Whether the user typed this option, so that its value is no default."""
    source = _CONTEXT.get().get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


_VALUE = r"""(?P<quote>["']?)(?P<value>(?<=["'])[^"']*|[^\s,;:)]*[^\s,;:.)])(?P=quote)"""


def in_option_spelling(message: str) -> str:
    """A message of the library with the options of the running command as they are typed: `isolated="keep"` becomes
    `--isolated keep`. With --experiment or --train the keys are those of a file, and stay.
    """
    context = _CONTEXT.get(None)
    if context is None or any(context.params.get(name) for name in ("experiment", "train")):
        return message
    for parameter in context.command.params:
        option_name = max(parameter.opts, key=len)
        name = option_name.removeprefix("--").replace("-", "_")
        if option_name.startswith("--"):
            message = re.sub(rf"(?<![\w.\-]){name}={_VALUE}", rf"{option_name} \g<value>", message)
            message = re.sub(rf"(?<![\w.\-]){name}(?![\w=])", option_name, message) if "_" in name else message
    return message


# ---- the game that options describe, and checks of options ----------------------------------------------------------


def read_network(path: Path, *, undirected: bool, isolated: str, self_loops: str, normalisation: str) -> SocialGraph:
    """The network of a file, with choices as typed, which the reader checks."""
    from mppfl.network import read_graph

    choices: Any = {"isolated": isolated, "self_loops": self_loops, "normalisation": normalisation}
    return read_graph(path, undirected=undirected, **choices)


def make_the_game(options: GameOptions, seed: int | None = None, device: str | None = None) -> Game:
    """The game that the options describe; `seed` replaces theirs."""
    from mppfl.game import draw_clients, make_game, preset, read_clients
    from mppfl.network import random_graph

    constants = preset(options.preset)
    rng = generator(options.seed if seed is None else seed)
    if options.graph is None:
        normalisation: Any = options.normalisation
        graph = random_graph("erdos_renyi", options.num_clients, rng=rng, normalisation=normalisation)
    else:
        graph = read_network(
            options.graph,
            undirected=options.undirected,
            isolated=options.isolated,
            self_loops=options.self_loops,
            normalisation=options.normalisation,
        )
    if options.clients is None:
        clients = draw_clients(options.preset, graph.num_clients, rng)
    else:
        clients = read_clients(options.clients, graph)
    if not clients.budget_max.any():
        raise NoEquilibrium(
            f"budget_max is 0 for all {clients.num_clients:,} clients, so nobody can participate. "
            "Raise budget_max of at least one client."
        )
    values: dict[str, Any] = {}
    for name in ("max_hops", "hop_decay", "externality_strength", "accuracy_weight"):
        typed = getattr(options, name)
        values[name] = getattr(constants, name) if typed is None else typed
    return make_game(graph, clients, diagonal=options.diagonal, device=device, **values)  # type: ignore[arg-type]


def read_the_experiment(path: Path, overrides: Sequence[str], *, beside: Sequence[str]) -> Experiment:
    """The experiment of --experiment, beside which only the options in `beside` may be typed."""
    from mppfl.experiment import read_experiment

    refuse_options_beside("--experiment", ("experiment", *beside))
    experiment = read_experiment(path, overrides)
    check_rounds(experiment.game.num_rounds)
    return experiment


def refuse_options_beside(option: str, allowed: Sequence[str]) -> None:
    """Refuses options that change nothing beside a file that has their values."""
    names = [name for name in _CONTEXT.get().params if name not in allowed]
    refuse_idle_options(names, f"with {option}", "Set it in the file instead.")


def refuse_idle_options(names: Sequence[str], where: str, remedy: str) -> None:
    """Refuses options that were typed and would change nothing."""
    for name in names:
        if is_typed(name):
            raise BadInput(f"--{name.replace('_', '-')} means nothing {where}. {remedy}")


def check_network_options(options: GameOptions) -> None:
    """Refuses options for edge lists without one, and those for random networks beside one."""
    if options.graph is not None:
        where = f"with --graph={str(options.graph)!r}, which says how many there are"
        refuse_idle_options(["num_clients"], where, "Leave it out.")
    else:
        for_files = ["undirected", "isolated", "self_loops"]
        refuse_idle_options(for_files, "for a random network", "Give --graph, too, or leave it out.")


def generator(seed: int) -> Any:
    """NumPy's generator from a seed."""
    import numpy as np

    from mppfl.arrays import require_count

    return np.random.default_rng(require_count(seed, "seed", 0))


def check_rounds(rounds: int) -> None:
    """Refuses a number of rounds below 1, or one that no memory holds."""
    from mppfl.arrays import require_count

    if require_count(rounds, "rounds") > MOST_ROUNDS:
        raise BadInput(f"rounds={rounds:,} is too many. Ask for at most {MOST_ROUNDS:,}.")


def chosen_mechanism(name: str, payment_limit: float | None, fixed_budget: str) -> Mechanism:
    """The mechanism with its options bound."""
    from mppfl.game import as_mechanism, budget_limited, dp_fedavg

    if name == "budget_limited":
        if payment_limit is None:
            raise BadInput("budget_limited needs --payment-limit, the money it may spend in a round.")
        return budget_limited.with_options(payment_limit=payment_limit)
    if name == "dp_fedavg":
        return dp_fedavg.with_options(fixed_budget=number_or_rule(fixed_budget))
    return as_mechanism(name)


def check_mechanism_options(payment_limit: float | None, fixed_budget: str, mechanisms: Sequence[str]) -> None:
    """Refuses --payment-limit without budget_limited, and --fixed-budget without dp_fedavg."""
    for typed, option, mechanism in (
        (payment_limit is not None, f"--payment-limit={payment_limit}", "budget_limited"),
        (is_typed("fixed_budget"), f"--fixed-budget={fixed_budget}", "dp_fedavg"),
    ):
        if typed and mechanism not in mechanisms:
            raise BadInput(
                f"{option} means nothing to {', '.join(mechanisms)}. Choose the mechanism {mechanism}, or leave it out."
            )


def number_or_rule(text: str) -> Any:
    """ "min", "mean", or the number it spells."""
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


def check_page(option: str, path: Path) -> None:
    """Refuses a path at which no page can be written."""
    if path.is_dir():
        raise BadInput(f"{option}={str(path)!r} is a directory. Name a file in it, such as report.html.")
    if path.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"{option}={str(path)!r} must end in .html.")


def check_leak_price(attribute: Path | None, leak_price: float | None) -> None:
    """Refuses leakage_priced without its two options, or with a price that is none, before anything is computed."""
    from mppfl.arrays import require_number

    if leak_price is None:
        raise BadInput(f"{PRICED} needs --leak-price, the price of a nat, and --attribute, a public sample. Give both.")
    if attribute is None:
        raise BadInput(f"--leak-price={leak_price:g} has no leak to price. Give --attribute, a public sample, too.")
    require_number(leak_price, "--leak-price", 0.0, 1e300, open_ends=False)


def exact_leak(graph: SocialGraph, attribute: Path) -> LeakModel:
    """The leak model of the sample in the file. Raises where the network is too large for matrices."""
    from mppfl.leakage import leak_model, read_values, require_dense

    require_dense(graph.num_clients, PRICED)
    return leak_model(graph, read_values(attribute))


def priced_mechanism(model: LeakModel, leak_price: float) -> Mechanism:
    """leakage_priced with the leak that the public sample predicts."""
    from mppfl.game import as_mechanism
    from mppfl.leakage import leakage_priced

    options = {"leak": model.smooth_total_and_marginal, "leak_price": leak_price}
    return as_mechanism(leakage_priced).with_options(**options)


# ---- results --------------------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """One JSON object on stdout; what is not a finite number becomes null."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    typer.echo(json.dumps(_plain(value), ensure_ascii=encoding != "utf8", allow_nan=False))


def _plain(value: Any) -> Any:
    """Dataclasses as objects, arrays as lists, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_lines(lines: Mapping[str, str], width: int = 16) -> None:
    """Labels and texts, aligned."""
    for label, text in lines.items():
        typer.echo(f"{label:<{width}}{text}")


def print_fitting(table: Table, dispensable: Sequence[str] = ()) -> None:
    """Prints a table without the columns for which there is no room, so that no number is cut short; says which."""
    from rich.console import Console

    terminal, unlimited, left_out = Console(), Console(width=10_000), []
    for heading in dispensable if terminal.is_terminal else ():
        if unlimited.measure(table).maximum <= terminal.width:
            break
        for column in table.columns:
            if str(column.header).replace("\n", " ") == heading:
                table.columns.remove(column)
                left_out.append(heading)
                break
    # In a file or a pipe a table is as wide as its numbers need; names are no markup.
    width = None if terminal.is_terminal else max(100, unlimited.measure(table).maximum)
    Console(width=width, markup=False, emoji=False).print(table)
    if left_out:
        typer.echo(f"left out, the terminal is too narrow: {', '.join(left_out)}")


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something takes its time."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def warn(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(f"note: {line}", err=True)


# ---- progress of a training, on stderr ------------------------------------------------------------------------------

OnRound = Callable[[Mapping[str, "RoundRecord"]], None]
COLUMNS = ("accuracy", "loss", "reward rate", "median budget", "largest ε")
MOST_LINES = 20  # plain lines for each training, however many rounds


@contextmanager
def training_progress(num_rounds: int, *, quiet: bool = False) -> Iterator[OnRound]:
    """A function to be called after every round: a live table on a terminal, plain lines elsewhere."""
    if quiet:
        yield lambda records: None
        return
    from rich.console import Console
    from rich.live import Live

    console, clock = Console(stderr=True), Clock(num_rounds)
    if not console.is_terminal:
        yield partial(_print_plain, clock=clock)
        return
    with Live("preparing data, network and plans", console=console, transient=True, refresh_per_second=4) as live:
        yield lambda records: live.update(_live_table(records, clock))


class Clock:
    """Time left, from the rounds that this process has seen."""

    def __init__(self, num_rounds: int) -> None:
        self.num_rounds = num_rounds
        self.began = time.monotonic()
        self.seen = 0

    def tick(self, round_index: int) -> str:
        """Time left after this round, in words. The first round includes preparation, and is not counted."""
        self.seen += 1
        now = time.monotonic()
        if self.seen == 1:
            self.began = now
            return "" if round_index < self.num_rounds else "done"
        left = (self.num_rounds - round_index) * (now - self.began) / (self.seen - 1)
        return f"{left:.0f} s left" if left < 120 else f"{left / 60:.0f} min left"


def _cells(record: RoundRecord) -> tuple[str, ...]:
    """Accuracy, loss, reward rate, median budget and largest ε, as text."""
    import numpy as np

    from mppfl.text import epsilon, percent

    budgets = record.budgets[record.participating]
    median = float(np.median(budgets)) if len(budgets) else math.nan

    def figure(value: float, form: str) -> str:
        return format(value, form) if math.isfinite(value) else "∞" if math.isinf(value) else "–"

    return (
        percent(record.accuracy),
        figure(record.loss, ".3f"),
        figure(record.reward_rate, ".4g"),
        figure(median, ".3g"),
        epsilon(record.dp_epsilon),
    )


def _print_plain(records: Mapping[str, RoundRecord], clock: Clock) -> None:
    """One line per training, for some twenty of the rounds."""
    every = max(1, math.ceil(clock.num_rounds / MOST_LINES))
    round_index = next(iter(records.values())).round_index
    left = clock.tick(round_index)
    if round_index % every and round_index != clock.num_rounds:
        return
    width = max(map(len, records))
    for name, record in records.items():
        figures = "  ".join(f"{label} {text}" for label, text in zip(COLUMNS, _cells(record), strict=True))
        line = f"round {round_index}/{clock.num_rounds}  {name:<{width}}  {figures}  {left}"
        print(line.rstrip(), file=sys.stderr, flush=True)


def _live_table(records: Mapping[str, RoundRecord], clock: Clock) -> RenderableType:
    """All trainings after a round, with a bar for the whole."""
    from rich.box import SIMPLE
    from rich.console import Group as Stack
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    round_index = next(iter(records.values())).round_index
    table = Table(box=SIMPLE)
    table.add_column("training", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, record in records.items():
        table.add_row(*(Text(text) for text in (name, *_cells(record))))
    bar: Any = ProgressBar(total=clock.num_rounds, completed=round_index, width=40)
    line = Table.grid(padding=(0, 1))
    line.add_row(f"round {round_index}/{clock.num_rounds}", bar, clock.tick(round_index))
    return Stack(table, line)
