"""Run: what came out of one training; runs side by side as rows and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.data import unchangeable
from mppfl.errors import BadInput
from mppfl.experiment.provenance import Provenance
from mppfl.network import SocialGraph
from mppfl.privacy import Adjacency, Unit
from mppfl.privacy.ledger import SIMULATION
from mppfl.text import UNKNOWN, Tabular, between, epsilon, finite, number, percent
from mppfl.training import PER_ROUND, History

SHOWN = ("mechanism", "final accuracy", "total payments", "server cost", "client welfare", "largest ε")
PER_ACCOUNT = ("spent", "dp_epsilon")


@dataclass(frozen=True, eq=False, slots=True)
class PrivacyAccounts:
    """What every client's privacy has cost when a training ends. Arrays have one entry per client.

    unit, adjacency     what is protected, and against which neighbouring data set
    protection          trust, unit and release, in words
    guarantee           what a budget of ρ per round promises, in words
    noise               gaussian, discrete, simulated or none
    dp_delta            δ of every ε
    spent               ρ over all rounds of all runs in its ledger, whatever the data
    dp_epsilon          ε of the same
    """

    unit: Unit
    adjacency: Adjacency
    protection: str
    guarantee: str
    noise: str
    dp_delta: float
    spent: Array
    dp_epsilon: Array

    def __post_init__(self) -> None:
        for name in PER_ACCOUNT:
            object.__setattr__(self, name, _vector(getattr(self, name), name, len(self.spent)))

    @property
    def simulation(self) -> bool:
        """Whether the noise came from a seed, which protects no one."""
        return self.noise == "simulated"

    @property
    def meaning(self) -> str:
        """What the largest ε means, in a sentence for people."""
        from mppfl.privacy import attack_risk, risk_of_epsilon

        worst = int(np.argmax(self.dp_epsilon))
        if math.isinf(self.dp_epsilon[worst]):
            return "No noise was added: nobody's data is protected."
        if self.spent[worst] > 0:
            return attack_risk(float(self.spent[worst])).sentence
        return risk_of_epsilon(float(self.dp_epsilon[worst]), self.dp_delta).sentence

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be said beside every figure of these accounts."""
        return (SIMULATION,) if self.simulation else ()


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Run(Tabular):
    """What came out of one training: `run_experiment` and `run_from_records` return it, `load_run` reads it.

    Args:
        name: Of the run, as in the ledger.
        mechanism: Of the game, which planned the budgets.
        config: The whole experiment as plain values: what its TOML file would say.
        history: Every round; budgets in units of the game.
        weights: The final model, one flat vector.
        names: Of clients: the order of every array over clients.
        num_examples: Of every client.
        graph: The social network.
        accounts: What it cost every client's privacy.
        exposure: R_model = Σ · spent: what others' budgets say about each client; an index without unit.
        server_cost: Per round, money; NaN where it is not known.
        welfare: Of all clients, per round, money; NaN where it is not known.
        provenance: Which code, on what machine.
        notes: What a reader should know beside the figures.

    Raises:
        BadInput: The parts do not belong together: another number of clients or rounds, or an unknown client.

    Example:
        >>> from mppfl import Experiment, run_experiment
        >>> settings = {"model": "softmax", "local_epochs": 1}
        >>> experiment = Experiment(game={"num_clients": 3, "num_rounds": 2}, training=settings)
        >>> (run,) = run_experiment(experiment)
        >>> run.num_rounds, run.accounts.spent.shape
        (2, (3,))
    """

    name: str
    mechanism: str
    config: dict[str, Any]
    history: History
    weights: Array
    names: tuple[str, ...]
    num_examples: IntArray
    graph: SocialGraph
    accounts: PrivacyAccounts
    exposure: Array
    server_cost: Array
    welfare: Array
    provenance: Provenance
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        clients, rounds = len(self.names), len(self.history)
        if clients == 0 or rounds == 0:
            raise BadInput(f"a run needs at least one client and one round, got {clients} and {rounds}.")
        if {self.graph.num_clients, len(self.num_examples), len(self.accounts.spent)} != {clients}:
            raise BadInput(
                f"{clients} names for a network of {self.graph.num_clients} clients, {len(self.num_examples)} numbers "
                f"of examples and {len(self.accounts.spent)} accounts; give one of each per client."
            )
        self._check_history()
        put = object.__setattr__
        put(self, "config", plain(self.config, "config"))
        put(self, "names", tuple(map(str, self.names)))
        put(self, "notes", tuple(map(str, self.notes)))
        put(self, "weights", unchangeable(np.asarray(self.weights)))
        put(self, "num_examples", unchangeable(np.array(self.num_examples)))
        put(self, "exposure", _vector(self.exposure, "exposure", clients))
        put(self, "server_cost", _vector(self.server_cost, "server_cost", rounds))
        put(self, "welfare", _vector(self.welfare, "welfare", rounds))

    def _check_history(self) -> None:
        clients, rounds = len(self.names), len(self.history)
        for name, values in self.history.clients.items():
            if values.shape != (rounds, clients):
                raise BadInput(f"{name} has shape {values.shape}, not {rounds} rounds × {clients} clients.")
        if len(self.history.refused) != rounds:
            raise BadInput(f"refused lists {len(self.history.refused)} rounds, the history has {rounds}.")
        strangers = {name for names in self.history.refused for name in names} - set(self.names)
        if strangers:
            raise BadInput(f"client {min(strangers)!r} refused in a round is not one of the {clients} clients.")

    def __repr__(self) -> str:
        cells = comparison_cells(self)
        lines = [f"Run {self.name!r}: {self.num_clients:,} clients, {self.num_rounds:,} rounds"]
        lines += [f"  {heading:<15} {cells[heading]}" for heading in SHOWN]
        return "\n".join([*lines, *(f"  {note[:110]}" for note in self.accounts.notes)])

    def _repr_html_(self) -> str:
        """The run as a notebook shows it."""
        cells = comparison_cells(self)
        rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(text)}</td></tr>" for key, text in cells.items())
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.accounts.notes)
        return f"<table><caption>{escape(repr(self).splitlines()[0])}</caption>{rows}</table>{notes}"

    def to_pandas(self) -> Any:
        """One row per round, as rounds.csv of the folder has them; needs pandas."""
        return Tabular.to_pandas(self).set_index("round_index")

    def _columns(self) -> dict[str, list[Any]]:
        """One entry per round in every column: figures of the round, sums over clients, names of who was left out."""
        rounds, clients = self.history.rounds, self.history.clients
        return {
            **{name: rounds[name].tolist() for name in PER_ROUND},
            "payments": clients["payments"].sum(axis=1).tolist(),
            "participating": clients["participating"].sum(axis=1).tolist(),
            "server_cost": self.server_cost.tolist(),
            "welfare": self.welfare.tolist(),
            "engine": list(self.history.engine),
            "refused": [" ".join(names) for names in self.history.refused],
        }

    @property
    def num_clients(self) -> int:
        return len(self.names)

    @property
    def num_rounds(self) -> int:
        return len(self.history)

    @property
    def final_accuracy(self) -> float:
        """On the test data, in the last round that was evaluated; NaN if none was."""
        return _last_finite(self.history.rounds["accuracy"])

    @property
    def best_accuracy(self) -> float:
        evaluated = finite(self.history.rounds["accuracy"])
        return float(evaluated.max()) if len(evaluated) else math.nan

    @property
    def final_loss(self) -> float:
        return _last_finite(self.history.rounds["loss"])

    @property
    def paid(self) -> Array:
        """Money each client got over all rounds."""
        return np.asarray(self.history.clients["payments"].sum(axis=0))

    @property
    def rounds_taken_part(self) -> IntArray:
        """In how many rounds each client uploaded."""
        return np.asarray(self.history.clients["participating"].sum(axis=0))

    @property
    def rounds_refused(self) -> IntArray:
        """In how many rounds each client's cap forbade its release."""
        counts = Counter(name for names in self.history.refused for name in names)
        return np.array([counts[name] for name in self.names], dtype=np.int64)

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """A value of the configuration by its name, at the top or in any table of it."""
        tables = [self.config, *(value for value in self.config.values() if isinstance(value, dict))]
        return next((table[name] for table in tables if name in table), otherwise)

    def save(self, folder: str | Path) -> Path:
        """Writes the run as a folder that people can read, and `load_run` can."""
        from mppfl.experiment.store import save_run

        return save_run(self, folder)


def plain(value: Any, where: str) -> Any:
    """The value as dicts, lists, text, numbers, true, false and None: what TOML and JSON can say."""
    if isinstance(value, dict):
        return {str(key): plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner, where) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist(), where)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (NoneType, bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise BadInput(f"{where}={value!r:.60} is no plain value. Give text, finite numbers, lists or tables.")


def _vector(values: Any, name: str, length: int) -> Array:
    array = np.array(values, dtype=np.float64)
    if array.shape != (length,):
        raise BadInput(f"{name} has shape {array.shape}, not ({length},).")
    array.setflags(write=False)
    return array


def _last_finite(values: Array) -> float:
    evaluated = finite(values)
    return float(evaluated[-1]) if len(evaluated) else math.nan


# ---- runs side by side --------------------------------------------------------------------------------------------

# What is compared, by its name in JSON. Money is summed over rounds; NaN where a figure is not known.
MEASURES: dict[str, Callable[[Run], Any]] = {
    "name": lambda run: run.name,
    "mechanism": lambda run: run.mechanism,
    "aggregation": lambda run: str(run.setting("aggregation", "")),
    "final_accuracy": lambda run: run.final_accuracy,
    "best_accuracy": lambda run: run.best_accuracy,
    "payments": lambda run: float(run.paid.sum()),
    "server_cost": lambda run: float(run.server_cost.sum()),
    "welfare": lambda run: float(run.welfare.sum()),
    "dp_epsilon": lambda run: float(run.accounts.dp_epsilon.max()),
    "median_spent": lambda run: float(np.median(run.accounts.spent)),
    "least_exposed": lambda run: float(run.exposure.min()),
    "most_exposed": lambda run: float(run.exposure.max()),
    "seconds": lambda run: run.provenance.seconds,
}


class Column(NamedTuple):
    """A column for people: its heading, the text of the measures it shows, and which run is the best by it."""

    heading: str
    measures: tuple[str, ...]
    text: Callable[..., str]
    best: Callable[..., Any] | None = None  # max or min


COLUMNS = (
    Column("mechanism", ("mechanism",), str),
    Column("aggregation", ("aggregation",), lambda name: name or UNKNOWN),
    Column("final accuracy", ("final_accuracy",), percent, max),
    Column("best accuracy", ("best_accuracy",), percent, max),
    Column("total payments", ("payments",), number),
    Column("server cost", ("server_cost",), number, min),
    Column("client welfare", ("welfare",), number, max),
    Column("largest ε", ("dp_epsilon",), epsilon, min),
    Column("median spent ρ", ("median_spent",), number, min),
    Column("exposure, least to most", ("least_exposed", "most_exposed"), between),
    Column("seconds", ("seconds",), lambda seconds: number(seconds, 2)),
)


def comparison_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """MEASURES of every run, in the order given."""
    return [{name: measure(run) for name, measure in MEASURES.items()} for run in runs]


def comparison_cells(run: Run) -> dict[str, str]:
    """A run as it is shown: heading and text of every column."""
    (row,) = comparison_rows([run])
    return {column.heading: column.text(*(row[name] for name in column.measures)) for column in COLUMNS}
