"""Run: what came out of one training. run_folder.py keeps it in a folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.data import unchangeable
from mppfl.errors import BadInput
from mppfl.experiment.provenance import Provenance
from mppfl.network import SocialGraph
from mppfl.privacy import Adjacency, Unit
from mppfl.privacy.ledger import SIMULATION
from mppfl.training import History

PER_ACCOUNT = ("spent", "worst_case_spent", "dp_epsilon", "worst_case_epsilon")


@dataclass(frozen=True, eq=False, slots=True)
class Accounts:
    """What a training cost every client's privacy. Arrays have one entry per client.

    unit, adjacency     what is protected, and against which neighbouring data set
    privacy             name of the privacy mechanism
    guarantee           what a budget of ρ per round really promises, in words
    noise               gaussian, discrete, seeded or none
    dp_delta            δ of both ε
    spent               ρ over all rounds, nominal
    worst_case_spent    ρ over all rounds that really holds
    dp_epsilon          ε of `spent`
    worst_case_epsilon  ε of `worst_case_spent`
    """

    unit: Unit
    adjacency: Adjacency
    privacy: str
    guarantee: str
    noise: str
    dp_delta: float
    spent: Array
    worst_case_spent: Array
    dp_epsilon: Array
    worst_case_epsilon: Array

    def __post_init__(self) -> None:
        for name in PER_ACCOUNT:
            object.__setattr__(self, name, _vector(getattr(self, name), name, len(self.spent)))

    @property
    def simulation(self) -> bool:
        """Whether the noise came from a seed, which protects no one."""
        return self.noise == "seeded"

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be said beside every figure of these accounts."""
        lines = [SIMULATION] if self.simulation else []
        if (self.worst_case_spent > self.spent).any():
            lines.append(f"{self.privacy}: the worst case costs more than the nominal budget")
        return tuple(lines)


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """What came out of one training.

    name          of the run, as in the ledger
    mechanism     of the game, which planned the budgets
    config        the whole experiment as plain values: what its TOML file would say
    history       every round; budgets in units of the game
    weights       the final model, one flat vector
    names         of clients: the order of every array over clients
    num_examples  of every client
    graph         who exposes whom
    accounts      what it cost everybody's privacy
    exposure      R_model = Σ · spent: what others' budgets say about each client; an index without unit
    server_cost   per round, money; NaN where it is not known
    welfare       of all clients, per round, money; NaN where it is not known
    provenance    which code, on what machine
    notes         what a reader should know beside the figures
    """

    name: str
    mechanism: str
    config: dict[str, Any]
    history: History
    weights: Array
    names: tuple[str, ...]
    num_examples: IntArray
    graph: SocialGraph
    accounts: Accounts
    exposure: Array
    server_cost: Array
    welfare: Array
    provenance: Provenance
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        clients, rounds = len(self.names), len(self.history)
        if clients == 0 or rounds == 0:
            raise BadInput(f"a run needs at least one client and one round, got {clients} and {rounds}.")
        if (
            self.graph.num_clients != clients
            or len(self.num_examples) != clients
            or len(self.accounts.spent) != clients
        ):
            raise BadInput(
                f"{clients} names for a network of {self.graph.num_clients} clients, {len(self.num_examples)} numbers "
                f"of examples and {len(self.accounts.spent)} accounts; give one of each per client."
            )
        for name, values in self.history.clients.items():
            if values.shape != (rounds, clients):
                raise BadInput(f"{name} has shape {values.shape}, not {rounds} rounds × {clients} clients.")
        for what in ("refused", "diverged"):
            listed = getattr(self.history, what)
            if len(listed) != rounds:
                raise BadInput(f"{what} lists {len(listed)} rounds, the history has {rounds}.")
            strangers = {name for names in listed for name in names} - set(self.names)
            if strangers:
                raise BadInput(f"client {min(strangers)!r} {what} in a round is not one of the {clients} clients.")
        put = object.__setattr__
        put(self, "config", plain(self.config, "config"))
        put(self, "names", tuple(map(str, self.names)))
        put(self, "notes", tuple(map(str, self.notes)))
        put(self, "weights", unchangeable(np.asarray(self.weights)))
        put(self, "num_examples", unchangeable(np.array(self.num_examples)))
        put(self, "exposure", _vector(self.exposure, "exposure", clients))
        put(self, "server_cost", _vector(self.server_cost, "server_cost", rounds))
        put(self, "welfare", _vector(self.welfare, "welfare", rounds))

    @property
    def num_clients(self) -> int:
        return len(self.names)

    @property
    def num_rounds(self) -> int:
        return len(self.history)

    @property
    def final_accuracy(self) -> float:
        """On the test data, in the last round that was evaluated; NaN if none was."""
        return _last_known(self.history.rounds["accuracy"])

    @property
    def best_accuracy(self) -> float:
        known = self.history.rounds["accuracy"][np.isfinite(self.history.rounds["accuracy"])]
        return float(known.max()) if len(known) else math.nan

    @property
    def final_loss(self) -> float:
        return _last_known(self.history.rounds["loss"])

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
        return self._rounds_listed(self.history.refused)

    @property
    def rounds_diverged(self) -> IntArray:
        """In how many rounds each client's update held NaN or infinity and was left out."""
        return self._rounds_listed(self.history.diverged)

    def _rounds_listed(self, listed: Sequence[Sequence[str]]) -> IntArray:
        position = {name: at for at, name in enumerate(self.names)}
        counts = np.zeros(self.num_clients, dtype=np.int64)
        for names in listed:
            for name in names:
                counts[position[name]] += 1
        return counts

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """A value of the configuration by its name, at the top or in any table of it."""
        tables = [self.config, *(value for value in self.config.values() if isinstance(value, dict))]
        return next((table[name] for table in tables if name in table), otherwise)

    def save(self, folder: str | Path) -> Path:
        """Writes the run as a folder that people can read, and `load_run` can."""
        from mppfl.experiment.run_folder import save_run

        return save_run(self, folder)


def plain(value: Any, where: str) -> Any:
    """The value as dicts, lists, text, numbers, true, false and None: what TOML and JSON can say."""
    if isinstance(value, dict):
        return {str(key): plain(each, f"{where}.{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, where) for each in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), where)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BadInput(f"{where}={value!r:.60} is no plain value. Give text, numbers, lists or tables.")


def _vector(values: Any, name: str, length: int) -> Array:
    array = np.array(values, dtype=np.float64)
    if array.shape != (length,):
        raise BadInput(f"{name} has shape {array.shape}, not ({length},).")
    array.setflags(write=False)
    return array


def _last_known(values: Array) -> float:
    known = np.flatnonzero(np.isfinite(values))
    return float(values[known[-1]]) if len(known) else math.nan
