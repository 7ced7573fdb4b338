"""What the commands share: options, the game they describe, checks, and how results and progress are shown."""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from mppfl.errors import BadInput
from mppfl.fields import about, choices, defaults_of, from_text, hints
from mppfl.spec import PRICING, GameSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mppfl.game import Mechanism
    from mppfl.leakage import LeakModel
    from mppfl.network import SocialGraph
    from mppfl.training import RoundRecord

LEAKAGE = "Leakage"  # a panel of --help
PRICED = "leakage_priced"
LEAK_ASSUMES = (
    "nats; the attribute follows a Gaussian field on the edges, its constants fitted on the public sample; "
    "client-level budgets spent once; an estimate, not a bound"
)

# ---- options of several commands ------------------------------------------------------------------------------------


def option(help: str, panel: str | None = None, name: str | None = None, metavar: str | None = None) -> Any:
    """An option of Typer, in one of the panels of --help; called as its parameter unless it has a name."""
    return typer.Option(*([name] if name else []), help=help, rich_help_panel=panel, metavar=metavar)


def flag(name: str, help: str) -> Any:
    """An option that is there or not."""
    return typer.Option(name, help=help)


def game_option(name: str) -> Any:
    """The option that says a field of GameSpec, with the help, the panel and the choices of its annotation."""
    said, hint = about(GameSpec, name), hints(GameSpec)[name]
    words = "|".join(choices(hint))
    metavar = None if _kind(hint) is not str else "PATH" if hint == str | None else f"[{words}]" if words else "A,B"
    if words and float in get_args(hint):
        metavar = f"[{words}|NUMBER]"
    return option(said.help, said.panel or None, said.option or f"--{name.replace('_', '-')}", metavar)


def _kind(hint: Any) -> type:
    """What Typer reads a field as: numbers and yes or no by itself, all else as text, which `from_text` reads."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float, bool) else str


UndirectedOption = Annotated[bool, game_option("undirected")]
NormalisationOption = Annotated[str, game_option("normalisation")]
IsolatedOption = Annotated[str, game_option("isolated")]
SelfLoopsOption = Annotated[str, game_option("self_loops")]
GraphOption = Annotated[Path | None, game_option("graph")]
NumClientsOption = Annotated[int, option("Size of the random network.")]
SeedOption = Annotated[int, option("Random seed.")]
MechanismOption = Annotated[
    str,
    option(
        "Pricing mechanism: mppfl, mppfl_exact, mppfl_noise_aware, mppfl_secure_sum, budget_limited, pigouvian, "
        "personalised, personalised_secure_sum, social_agnostic, random, dp_fedavg, sarda_like, sarda_r or noiseless "
        "(see `mppfl compare`).",
        PRICING,
    ),
]
AttributeOption = Annotated[Path | None, option("CSV: name, value (±1 or 0/1) of a public sample: R_leak.", LEAKAGE)]
CouplingOption = Annotated[float | None, option("Ising coupling J of every edge, for R_bound.", LEAKAGE)]
LeakPriceOption = Annotated[float | None, option("For leakage_priced: price of one nat of leakage.", LEAKAGE)]
ExperimentOption = Annotated[Path | None, option("TOML file of a game and mechanisms; options replace its values.")]
SetOption = Annotated[list[str] | None, option("Replace a value of it: game.max_hops=3; repeatable.", name="--set")]
QuietOption = Annotated[bool, flag("--quiet", "No progress on stderr.")]
JsonOption = Annotated[bool, flag("--json", "Print one JSON object.")]
DebugOption = Annotated[bool, flag("--debug", "Show the traceback of an error.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """What options and an experiment file ask for: a game, and the file's mechanisms and seeds, None without a file."""

    game: GameSpec
    mechanisms: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None

    def one_mechanism(self, typed: str) -> str:
        """The one mechanism to play: the file's, or the option's."""
        for names, several in ((self.mechanisms, "mechanisms"), (self.seeds, "seeds")):
            if names is not None and len(names) > 1:
                listed, option_name = ", ".join(map(str, names)), f"--{several[:-1]}"
                raise BadInput(f"{several} are {listed}, and one is played. Choose it by {option_name}.")
        return typed if self.mechanisms is None else self.mechanisms[0]


def with_game(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for a command whose first parameter is `Asked`: it gets an option for every field of GameSpec but
    those left out, --experiment and --set.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    types, defaults = hints(GameSpec), defaults_of(GameSpec)
    names = [name for name in types if name not in left_out]
    shared = []
    for name in names:
        kind = _kind(types[name])
        hint: Any = kind if defaults[name] is not None else kind | None
        annotation = Annotated[hint, game_option(name)]
        shared.append(inspect.Parameter(name, keyword, default=defaults[name], annotation=annotation))
    files = {"experiment": ExperimentOption, "changes": SetOption}
    shared += [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in files.items()]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        others = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        signature = inspect.Signature([*shared, *(other.replace(kind=keyword) for other in others)])

        @wraps(command)
        def run(**values: Any) -> None:
            typed = {name: values.pop(name) for name in names}
            given = {name: value for name, value in typed.items() if is_typed(name)}
            file, changes = values.pop("experiment"), values.pop("changes")
            command(asked(file, changes or (), given, values), **values)

        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        return run

    return decorated


def asked(file: Path | None, changes: Sequence[str], typed: Mapping[str, Any], others: Mapping[str, Any]) -> Asked:
    """What was asked for: the values typed, in place of the file's where there is one."""
    types = hints(GameSpec)
    values = {name: from_text(types[name], text) if isinstance(text, str) else text for name, text in typed.items()}
    if file is None:
        if changes:
            raise BadInput(f"--set {changes[0]} replaces a value of an experiment file. Give --experiment, too.")
        return Asked(GameSpec(**values))
    from mppfl.experiment import read_experiment
    from mppfl.files import toml_value

    overrides = [f"{'' if name == 'seed' else 'game.'}{name}={toml_value(value)}" for name, value in values.items()]
    if is_typed("mechanism") and others["mechanism"] != PRICED:
        overrides.append(f"mechanism={toml_value(others['mechanism'])}")
    if is_typed("mechanisms"):  # compared at common and at own rates, whatever the file's
        overrides += [f"mechanisms={toml_value(named_mechanisms(others['mechanisms']))}", 'game.reward_rate="own"']
    experiment = read_experiment(file, [*changes, *overrides])
    return Asked(experiment.game_of(experiment.seeds[0]), experiment.mechanisms, experiment.seeds)


def named_mechanisms(text: str | None) -> list[str]:
    """The mechanisms that are named, or all that are compared."""
    from mppfl.game import COMPARED

    names = list(dict.fromkeys(name.strip() for name in (text or "all").split(",") if name.strip()))
    if not names:
        raise BadInput(f"--mechanisms={text!r} names none. Name at least one: {', '.join(COMPARED)}.")
    return list(COMPARED) if names == ["all"] else names


# ---- commands of Typer ----------------------------------------------------------------------------------------------

_CONTEXT: ContextVar[Any] = ContextVar("context of the command that runs")
SYMBOLS = {  # letters of the model, which some type for the option
    "--alpha": "--externality-strength",
    "--tau": "--accuracy-weight",
    "--lambda": "--hop-decay",
    "--hops": "--max-hops",
}


class Command(TyperCommand):
    """A command that keeps its context and suggests only near options.

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


class Group(TyperGroup):
    """A group of commands that hints once at the command that was meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if "Did you mean" in getattr(error, "message", "") and hasattr(error, "possibilities"):
                error.possibilities = None  # of click, which Typer has put into the message already
            raise


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
        is_column = parameter.name in ("budget_min", "budget_max") and not is_typed(parameter.name)
        if not option_name.startswith("--") or is_column:  # of the clients file, which the message may be about
            continue
        for name in {parameter.name, option_name.removeprefix("--").replace("-", "_")}:
            message = re.sub(rf"(?<![\w.\-]){name}={_VALUE}", rf"{option_name} \g<value>", message)
            message = re.sub(rf"(?<![\w.\-]){name}(?![\w=])", option_name, message) if "_" in name else message
    return message


# ---- checks of options ----------------------------------------------------------------------------------------------


def refuse_options_beside(option: str, allowed: Sequence[str]) -> None:
    """Refuses options that change nothing beside a file that has their values."""
    names = [name for name in _CONTEXT.get().params if name not in allowed]
    refuse_idle_options(names, f"with {option}", "Set it in the file instead.")


def refuse_idle_options(names: Sequence[str], where: str, remedy: str) -> None:
    """Refuses options that were typed and would change nothing."""
    for parameter in _CONTEXT.get().command.params:
        if parameter.name in names and is_typed(parameter.name):
            raise BadInput(f"{max(parameter.opts, key=len)} means nothing {where}. {remedy}")


def generator(seed: int) -> Any:
    """NumPy's generator from a seed."""
    import numpy as np

    from mppfl.arrays import require_count

    return np.random.default_rng(require_count(seed, "seed", 0))


def check_target(path: Path, *endings: str, option: str = "") -> None:
    """Refuses a path at which no file with one of these endings can be written, before anything is computed."""
    place = f"{option}={str(path)!r}" if option else repr(str(path))
    if path.is_dir():
        raise BadInput(f"{place} is a directory. Name a file in it.")
    if not path.name.lower().endswith(endings):
        raise BadInput(f"{place} must end in {', '.join(endings[:-1])} or {endings[-1]}.")


def check_leak_price(attribute: Path | None, leak_price: float | None) -> None:
    """Refuses leakage_priced without its two options, or with a price that is none, before anything is computed."""
    from mppfl.arrays import require_number

    if leak_price is None:
        raise BadInput(f"{PRICED} needs --leak-price, the price of a nat, and --attribute, a public sample. Give both.")
    if attribute is None:
        raise BadInput(f"--leak-price={leak_price:g} has no leak to price. Give --attribute, a public sample, too.")
    require_number(leak_price, "--leak-price", 0.0, 1e300, open_ends=False)


def leak_of_sample(graph: SocialGraph, attribute: Path, seed: int, leak_price: float | None) -> LeakModel:
    """The leak that the public sample in the file predicts; to be priced, the network must fit matrices."""
    from mppfl.leakage import leak_model, read_values, require_dense

    if leak_price is not None:
        require_dense(graph.num_clients, PRICED)
    return leak_model(graph, read_values(attribute), seed=seed)


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
    finite = json.loads(json.dumps(value, default=_as_plain), parse_constant=lambda constant: None)
    typer.echo(json.dumps(finite, ensure_ascii=encoding != "utf8", allow_nan=False))


def _as_plain(value: Any) -> Any:
    """A dataclass as an object, an array or one of NumPy's numbers as Python's."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value.tolist()


def print_lines(lines: Mapping[str, str], width: int = 16) -> None:
    """Labels and texts, aligned."""
    for label, text in lines.items():
        typer.echo(f"{label:<{width}}{text}")


def print_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], dispensable: Sequence[str] = ()
) -> None:
    """A table whose first column names its rows; words stand at the left, figures at the right.

    With `dispensable` columns no cell is ever wrapped: those for which a terminal has no room are left out, and named.
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    # Names are shown as they are: in "x[a]" nothing is markup, in "a:b:c" nothing an emoji.
    terminal, unlimited = Console(markup=False, emoji=False), Console(width=10_000, markup=False, emoji=False)
    table, rows = Table(title=title, title_justify="left", box=SIMPLE), list(rows)
    for number, heading in enumerate(headings):
        words = not number or all(row[number][:1].isalpha() for row in rows)
        table.add_column(heading, justify="left" if words else "right", no_wrap=not number or bool(dispensable))
    for row in rows:
        table.add_row(*row)
    if not terminal.is_terminal:  # in a file or a pipe a table is as wide as its figures need
        width = max(100, unlimited.measure(table).maximum)
        Console(width=width, markup=False, emoji=False).print(table)
        return
    columns = {str(column.header).replace("\n", " "): column for column in table.columns}
    left_out = []
    for heading in filter(columns.__contains__, dispensable):
        if unlimited.measure(table).maximum > terminal.width:
            table.columns.remove(columns[heading])
            left_out.append(heading)
    terminal.print(table)
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

    from mppfl.text import duration

    console, ends = Console(stderr=True), []  # when each round ended

    def place(records: Mapping[str, RoundRecord]) -> tuple[int, str]:
        """The round, and the time left by those that this process has seen, but for the first, which prepares."""
        ends.append(time.monotonic())
        round_index = next(iter(records.values())).round_index
        seconds = (num_rounds - round_index) * (ends[-1] - ends[0]) / max(1, len(ends) - 1)
        return round_index, f"{duration(seconds)} left" if len(ends) > 1 else ""

    if not console.is_terminal:
        yield lambda records: _print_plain(records, num_rounds, *place(records))
        return
    with Live("preparing data, network and plans", console=console, transient=True, refresh_per_second=4) as live:
        yield lambda records: live.update(_live_table(records, num_rounds, *place(records)))


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


def _print_plain(records: Mapping[str, RoundRecord], num_rounds: int, round_index: int, left: str) -> None:
    """One line per training, for some twenty of the rounds."""
    every = max(1, math.ceil(num_rounds / MOST_LINES))
    if round_index % every and round_index != num_rounds:
        return
    width = max(map(len, records))
    for name, record in records.items():
        figures = "  ".join(f"{label} {text}" for label, text in zip(COLUMNS, _cells(record), strict=True))
        line = f"round {round_index}/{num_rounds}  {name:<{width}}  {figures}  {left}"
        print(line.rstrip(), file=sys.stderr, flush=True)


def _live_table(records: Mapping[str, RoundRecord], num_rounds: int, round_index: int, left: str) -> RenderableType:
    """All trainings after a round, with a bar for the whole."""
    from rich.box import SIMPLE
    from rich.console import Group as Stack
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE)
    table.add_column("training", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, record in records.items():
        table.add_row(*(Text(text) for text in (name, *_cells(record))))
    bar: Any = ProgressBar(total=num_rounds, completed=round_index, width=40)
    line = Table.grid(padding=(0, 1))
    line.add_row(f"round {round_index}/{num_rounds}", bar, left)
    return Stack(table, line)
