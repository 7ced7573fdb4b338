"""Trainings under the folder that the page was given: which there are, how each stands, and their account by client.

Only what `list_runs` lists can be read: a name is a path inside the folder, never one that leads out of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadFile, BadInput
from mppfl.experiment import EXPERIMENT, POINTER, SUMMARY, LiveAccounts, LiveRun, Marks, is_run, marks_of, read_live
from mppfl.explorer.scene_charts import quantiles
from mppfl.text import UNKNOWN, epsilon, number

DEEPEST = 3  # folders below the one given in which runs are looked for
MOST_FOLDERS = 20_000  # that are looked into: the folder may be somebody's home
MOST_KEPT = 64  # runs whose last state is remembered
MOST_LINES = 500  # of the table over clients


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run that may be asked for by its name: a path with /, relative to the folder, or "." for the folder itself."""

    name: str
    finished: bool
    updated: float


@dataclass(frozen=True, eq=False, slots=True)
class RunState:
    """How a training stands, with everything the page shows of it.

    rounds_done     rounds whose curves are known; they come in steps of `checkpoint_every`
    rounds_charged  rounds in the ledger, which is written every round
    rounds          numbers of the rounds done; accuracy (%) and loss go with it, NaN where it was not evaluated
    payments        money paid to all clients in each of these rounds
    charged_rounds  rounds in which clients are known to have been charged; the three arrays after it say how much:
    budget_low, budget_middle, budget_high   10, 50 and 90 % of clients, ρ in units of the ledger
    accounts        by client, or None where they are not known yet
    updated         when anything of it was last written, seconds since 1970
    """

    name: str
    mechanism: str
    finished: bool
    rounds_done: int
    rounds_charged: int
    num_rounds: int
    checkpoint_every: int
    rounds: Array
    accuracy: Array
    loss: Array
    payments: Array
    charged_rounds: Array
    budget_low: Array
    budget_middle: Array
    budget_high: Array
    accounts: LiveAccounts | None
    unit: str
    noise: str
    is_simulation: bool
    dp_delta: float
    notes: tuple[str, ...]
    updated: float

    @property
    def standing(self) -> str:
        """How far it is, in words."""
        if self.finished:
            return f"finished, {self.num_rounds:,} rounds"
        every = f", curves every {self.checkpoint_every} rounds" if self.checkpoint_every > 1 else ""
        return f"round {max(self.rounds_done, self.rounds_charged):,} of {self.num_rounds:,}{every}"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One line of the table over clients, as it is shown; ε upwards, so that no guarantee looks stronger than it is."""

    client: str
    spent: str
    dp_epsilon: str
    worst_case_epsilon: str
    cap: str
    remaining: str
    rounds: int


def list_runs(folder: Path) -> tuple[RunEntry, ...]:
    """The folder itself if it is a run, and the runs inside it, by name. Links that lead outside are passed over."""
    root = _root(folder)
    found = [_entry(root, name) for name in _names(root)]
    return tuple(sorted((entry for entry in found if entry is not None), key=lambda entry: entry.name))


def read_run(folder: Path, name: str) -> RunState:
    """How the run of this name stands now. Raises BadInput for a name that `list_runs` does not list."""
    root = _root(folder)
    return _state(name, read_live(_listed(root, name)))


class RunReader:
    """Reads runs of one folder, each anew only when something was written since. May be shared between threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = _root(folder)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Marks, RunState]] = {}

    def list(self) -> tuple[RunEntry, ...]:
        """The runs there are."""
        return list_runs(self.folder)

    def read(self, name: str) -> RunState:
        """How the run of this name stands now; the same object as before where nothing changed."""
        place = _listed(self.folder, name)
        marks = marks_of(place)  # before reading: what is written meanwhile makes the next look a new one
        with self._lock:
            known = self._known.get(name)
        if known is not None and known[0] == marks:
            return known[1]
        state = _state(name, read_live(place))
        with self._lock:
            self._known.pop(name, None)
            self._known[name] = (marks, state)
            while len(self._known) > MOST_KEPT:
                del self._known[next(iter(self._known))]
        return state


def ledger_rows(state: RunState, most: int = MOST_LINES) -> tuple[LedgerRow, ...]:
    """The table over clients: those who spent most first, at most so many."""
    accounts = state.accounts
    if accounts is None:
        return ()
    left = accounts.remaining
    order = np.argsort(-accounts.spent, kind="stable")[:most].tolist()
    return tuple(
        LedgerRow(
            client=accounts.names[at],
            spent=number(accounts.spent[at]),
            dp_epsilon=epsilon(accounts.dp_epsilon[at]),
            worst_case_epsilon=epsilon(accounts.worst_case_epsilon[at]),
            cap=_or_none(accounts.cap[at]),
            remaining=_or_none(left[at]),
            rounds=int(accounts.rounds[at]),
        )
        for at in order
    )


def _or_none(budget: float) -> str:
    return number(budget) if np.isfinite(budget) else UNKNOWN


# ---- which runs there are ------------------------------------------------------------------------------------------


def _root(folder: Path) -> Path:
    root = Path(folder).resolve()
    if not root.is_dir():
        raise BadFile(f"{folder}: no such folder. Give the folder of a run, as `mppfl train` writes it.")
    return root


def _names(root: Path) -> Iterator[str]:
    """Folders that may be runs, as relative paths, breadth first."""
    yield "."
    level, looked_into = [""], 0
    for _ in range(DEEPEST):
        below: list[str] = []
        for name in level:
            looked_into += 1
            if looked_into > MOST_FOLDERS:
                return
            try:
                with os.scandir(root / name) as inside:
                    folders = [each.name for each in inside if _is_proper(each.name) and _is_folder(each)]
            except OSError:  # not ours to read
                continue
            below += [f"{name}/{each}" if name else each for each in folders]
        yield from below
        level = [name for name in below if _inside(root, root / name)]


def _entry(root: Path, name: str) -> RunEntry | None:
    """The run of this name, or None where there is none that may be read."""
    place = root / name
    try:
        if not _inside(root, place) or not place.is_dir() or not is_run(place):
            return None
        above = [] if place == root else [place.parent / EXPERIMENT, place.parent / POINTER]
        if not all(_inside(root, each) for each in (*place.iterdir(), *above) if each.is_symlink()):
            return None
    except OSError:
        return None
    written = [mark[1] / 1e9 for mark in marks_of(place) if mark is not None]
    return RunEntry(name, (place / SUMMARY).is_file(), max(written, default=0.0))


def _listed(root: Path, name: str) -> Path:
    """The folder of a run by its name, which must be one that `list_runs` gives."""
    parts = name.split("/")
    proper = name == "." or (len(parts) <= DEEPEST and all(map(_is_proper, parts)))
    if not proper or _entry(root, name) is None:
        raise BadInput(f"run {name[:80]!r} is not one of those in the folder. Choose one from the list.")
    return root / name


def _is_proper(part: str) -> bool:
    """Whether a folder of this name may be a run: hidden ones are not, nor one that is a path to another system."""
    return bool(part) and not part.startswith(".") and "\0" not in part and "\\" not in part


def _inside(root: Path, place: Path) -> bool:
    try:
        return place.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a link in a circle leads nowhere
        return False


def _is_folder(each: os.DirEntry[str]) -> bool:
    try:
        return each.is_dir()
    except OSError:
        return False


# ---- how one stands ------------------------------------------------------------------------------------------------


def _state(name: str, run: LiveRun) -> RunState:
    spent = run.clients["spent"]
    done = run.rounds["round_index"].astype(np.float64)
    width = max(spent.shape[1], run.charged_since.shape[1])
    charged = np.zeros((len(spent) + len(run.charged_since), width))
    charged[: len(spent), : spent.shape[1]] = spent
    charged[len(spent) :, : run.charged_since.shape[1]] = run.charged_since
    rounds = np.arange(1, len(charged) + 1, dtype=np.float64)
    known = np.isfinite(charged).all(axis=1)  # without noise, or without ρ, there is nothing to draw
    low, middle, high = quantiles(charged[known]) if known.any() and width else (np.zeros(0),) * 3
    return RunState(
        name=name,
        mechanism=run.mechanism,
        finished=run.finished,
        rounds_done=run.rounds_done,
        rounds_charged=run.rounds_charged,
        num_rounds=run.num_rounds,
        checkpoint_every=run.checkpoint_every,
        rounds=done,
        accuracy=100 * run.rounds["accuracy"],
        loss=run.rounds["loss"],
        payments=run.clients["payments"].sum(axis=1),
        charged_rounds=rounds[known] if width else np.zeros(0),
        budget_low=low,
        budget_middle=middle,
        budget_high=high,
        accounts=run.accounts,
        unit=run.unit,
        noise=run.noise,
        is_simulation=run.is_simulation,
        dp_delta=run.dp_delta,
        notes=run.notes,
        updated=run.updated,
    )
