"""Trainings under the folder that the page was given: which there are, how far each is, their curves and accounts.

Only what `list_runs` lists can be read: a name is a path inside the folder, never one that leads out of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from markupsafe import Markup

from mppfl.arrays import Array
from mppfl.charts import ROUNDS, Axis, Chart, Line, slots_of
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.experiment import EXPERIMENT, POINTER, SUMMARY, LiveAccounts, LiveRun, Marks, is_run, marks_of, read_live
from mppfl.explorer.markup import table, tag
from mppfl.explorer.round_view import quantiles, sorted_chart
from mppfl.text import UNKNOWN, delta, epsilon, number

DEEPEST = 3  # folders below the one given in which runs are looked for
MOST_FOLDERS = 20_000  # that are looked into: the folder may be somebody's home
MOST_KEPT = 64  # runs whose last state is remembered
MOST_LINES = 500  # of the table over clients
FAR = 30  # times as large: then powers of ten
RUN_CHARTS = ("accuracy", "loss", "run-budgets", "run-payments", "dp-epsilon", "remaining")


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run that may be asked for by its name: a path with /, relative to the folder, or "." for the folder itself."""

    name: str
    finished: bool
    updated: float


@dataclass(frozen=True, eq=False, slots=True)
class RunState:
    """A training as it was read, and the curves the page shows of it.

    rounds          numbers of the rounds done; accuracy (%) and loss go with it, NaN where it was not evaluated
    payments        money paid to all clients in each of these rounds
    charged_rounds  rounds in which clients are known to have been charged; the three arrays after it say how much:
    budget_low, budget_middle, budget_high   10, 50 and 90 % of clients, ρ in units of the ledger
    """

    name: str
    run: LiveRun
    rounds: Array
    accuracy: Array
    loss: Array
    payments: Array
    charged_rounds: Array
    budget_low: Array
    budget_middle: Array
    budget_high: Array

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        run = self.run
        if run.finished:
            return f"finished, {run.num_rounds:,} rounds"
        every = f", curves every {run.checkpoint_every} rounds" if run.checkpoint_every > 1 else ""
        return f"round {max(run.rounds_done, run.rounds_charged):,} of {run.num_rounds:,}{every}"


# ---- which runs there are ------------------------------------------------------------------------------------------


def list_runs(folder: Path) -> tuple[RunEntry, ...]:
    """The folder itself if it is a run, and the runs inside it, by name. Links that lead outside are passed over."""
    root = _root(folder)
    entries = [_entry(root, name) for name in _names(root)]
    return tuple(sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.name))


def read_run(folder: Path, name: str) -> RunState:
    """How the run of this name stands now. Raises BadInput for a name that `list_runs` does not list."""
    root = _root(folder)
    return _state(name, read_live(_listed(root, name)))


class RunReader:
    """Reads runs of one folder, each anew only when something was written since. May be shared between threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = _root(folder)
        self._lock = threading.Lock()
        self._states: dict[str, tuple[Marks, RunState]] = {}

    def list(self) -> tuple[RunEntry, ...]:
        """The runs there are."""
        return list_runs(self.folder)

    def read(self, name: str) -> RunState:
        """How the run of this name stands now; the same object as before where nothing changed."""
        folder = _listed(self.folder, name)
        marks = marks_of(folder)  # before reading: what is written meanwhile makes the next look a new one
        with self._lock:
            last = self._states.get(name)
        if last is not None and last[0] == marks:
            return last[1]
        state = _state(name, read_live(folder))
        with self._lock:
            self._states.pop(name, None)
            self._states[name] = (marks, state)
            while len(self._states) > MOST_KEPT:
                del self._states[next(iter(self._states))]
        return state


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
                    folders = [entry.name for entry in inside if _is_proper(entry.name) and _is_folder(entry)]
            except OSError:  # not ours to read
                continue
            below += [f"{name}/{folder}" if name else folder for folder in folders]
        yield from below
        level = [name for name in below if _inside(root, root / name)]


def _entry(root: Path, name: str) -> RunEntry | None:
    """The run of this name, or None where there is none that may be read."""
    folder = root / name
    try:
        if not _inside(root, folder) or not folder.is_dir() or not is_run(folder):
            return None
        above = [] if folder == root else [folder.parent / EXPERIMENT, folder.parent / POINTER]
        if not all(_inside(root, path) for path in (*folder.iterdir(), *above) if path.is_symlink()):
            return None
    except OSError:
        return None
    written = [mark[1] / 1e9 for mark in marks_of(folder) if mark is not None]
    return RunEntry(name, (folder / SUMMARY).is_file(), max(written, default=0.0))


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


def _inside(root: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a link in a circle leads nowhere
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _state(name: str, run: LiveRun) -> RunState:
    spent = run.clients["spent"]
    width = max(spent.shape[1], run.charged_since.shape[1])
    charged = np.zeros((len(spent) + len(run.charged_since), width))
    charged[: len(spent), : spent.shape[1]] = spent
    charged[len(spent) :, : run.charged_since.shape[1]] = run.charged_since
    is_drawn = np.isfinite(charged).all(axis=1) & (width > 0)  # without noise, or without ρ, there is nothing to draw
    low, middle, high = quantiles(charged[is_drawn]) if is_drawn.any() else (np.zeros(0),) * 3
    return RunState(
        name=name,
        run=run,
        rounds=run.rounds["round_index"].astype(np.float64),
        accuracy=100 * run.rounds["accuracy"],
        loss=run.rounds["loss"],
        payments=run.clients["payments"].sum(axis=1),
        charged_rounds=np.arange(1, len(charged) + 1, dtype=np.float64)[is_drawn],
        budget_low=low,
        budget_middle=middle,
        budget_high=high,
    )


# ---- charts, several runs over each other --------------------------------------------------------------------------


def run_charts(states: Sequence[RunState]) -> tuple[Chart, ...]:
    """All charts of these runs, each run in the colour of its mechanism."""
    slots = slots_of([state.run.mechanism for state in states])
    steps, paid = _steps(states), Axis("paid to all clients", "money per round")

    def by_round(key: str, title: str, axis: Axis, values: Callable[[RunState], Array]) -> Chart:
        lines = []
        for state, slot in zip(states, slots, strict=True):
            evaluated = ~np.isnan(values(state))  # rounds without evaluation are no gap
            lines.append(Line(state.name, slot, state.rounds[evaluated], values(state)[evaluated]))
        return Chart(key, title, ROUNDS, axis, tuple(lines), note=steps)

    return (
        by_round("accuracy", "Test accuracy", Axis("accuracy", "% of test data"), lambda state: state.accuracy),
        by_round("loss", "Test loss", Axis("cross-entropy", "nats per example"), lambda state: state.loss),
        _budgets(states, slots),
        by_round("run-payments", "Payments by round", paid, lambda state: state.payments),
        _epsilons(states, slots),
        _remaining_caps(states, slots),
    )


def _budgets(states: Sequence[RunState], slots: Sequence[int]) -> Chart:
    """What clients were charged by round: the middle client, and the middle 80 % of them."""
    lines = tuple(
        Line(
            f"{state.name}, median",
            slot,
            state.charged_rounds,
            state.budget_middle,
            state.budget_low,
            state.budget_high,
        )
        for state, slot in zip(states, slots, strict=True)
    )
    units = " or ".join(dict.fromkeys(state.run.unit for state in states)) or "record"
    axis = Axis("budget charged", f"ρ of zCDP, per {units}")
    missing = [
        state.name
        for state in states
        if state.run.noise == "none" or (state.run.rounds_charged and not len(state.charged_rounds))
    ]
    without = f"no budgets: {', '.join(missing)}, whose releases have none that could be drawn" if missing else ""
    note = _together("bands hold 10–90 % of clients", without, _simulated(states))
    return Chart("run-budgets", "Budgets charged by round", ROUNDS, axis, lines, note=note)


def _epsilons(states: Sequence[RunState], slots: Sequence[int]) -> Chart:
    """ε of every client so far, nominal and worst case for one run, nominal for several."""
    groups = _accounts(states, slots, lambda accounts: accounts.dp_epsilon)
    runs = [state.run for state in states if state.run.accounts is not None]
    deltas = ", ".join(dict.fromkeys(delta(run.dp_delta) for run in runs)) or "1e-5"
    if len(runs) == 1 and (accounts := runs[0].accounts) is not None:
        groups = {"nominal": (0, accounts.names, accounts.dp_epsilon)}
        if (accounts.worst_case_epsilon > accounts.dp_epsilon).any():
            groups["worst case"] = (1, accounts.names, accounts.worst_case_epsilon)
    # Powers of ten where the smaller group would not be seen beside the larger one on a plain axis.
    largest = [float(values[np.isfinite(values)].max(initial=0.0)) for _, _, values in groups.values()]
    far = bool(largest) and min(largest) > 0 and max(largest) > FAR * min(largest)
    return _by_client("dp-epsilon", "ε of each client", Axis("ε", f"at δ = {deltas}", log=far), groups, states)


def _remaining_caps(states: Sequence[RunState], slots: Sequence[int]) -> Chart:
    """ρ that every client may still spend before its cap."""
    groups = _accounts(states, slots, lambda accounts: np.where(np.isinf(accounts.cap), np.nan, accounts.remaining))
    capped = any(np.isfinite(values).any() for _, _, values in groups.values())
    axis = Axis("remaining", "ρ of zCDP")
    title, note = "What each client may still spend", "" if capped or not groups else "no client has a cap"
    return _by_client("remaining", title, axis, groups if capped else {}, states, note)


Groups = dict[str, tuple[int, tuple[str, ...], Array]]  # by name of the group: slot, names of clients, values


def _accounts(states: Sequence[RunState], slots: Sequence[int], values: Callable[[LiveAccounts], Array]) -> Groups:
    return {
        state.name: (slot, accounts.names, values(accounts))
        for state, slot in zip(states, slots, strict=True)
        if (accounts := state.run.accounts) is not None
    }


def _by_client(key: str, title: str, axis: Axis, groups: Groups, states: Sequence[RunState], note: str = "") -> Chart:
    """All clients of all runs, sorted by the first run; a client that a run does not know has no bar there."""
    names = tuple(dict.fromkeys(name for _, listed, _ in groups.values() for name in listed))
    if not names:
        empty = _together(note or "no account is known yet", _simulated(states))
        return Chart(key, title, axis, Axis("client", "name"), note=empty)
    position = {name: k for k, name in enumerate(names)}
    columns = {}
    for group, (slot, listed, values) in groups.items():
        column = np.full(len(names), np.nan)
        column[[position[name] for name in listed]] = values
        columns[group] = (slot, column)
    chart = sorted_chart(key, title, axis, columns, names)
    return replace(chart, note=_together(chart.note, note, _simulated(states)))


def _simulated(states: Sequence[RunState]) -> str:
    """What must be said where noise came from a seed."""
    seeded = [state.name for state in states if state.run.is_simulation]
    if not seeded:
        return ""
    which = "" if len(seeded) == len(states) else f"{', '.join(seeded)}: "
    return f"{which}simulation, seeded noise protects no one"


def _steps(states: Sequence[RunState]) -> str:
    """Why the curves of a training that is not finished come in steps."""
    running = [state.run.checkpoint_every for state in states if not state.run.finished]
    every = " or ".join(str(step) for step in sorted(set(running)) if step > 1)
    return f"while a training runs, this curve grows every {every} rounds, with its checkpoints" if every else ""


def _together(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


# ---- as parts of the page ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunView:
    """The tab of runs; `seen` changes whenever anything else does."""

    texts: dict[str, str]
    options: list[str]
    charts: tuple[Chart, ...]
    seen: str


def run_view(reader: RunReader, names: Sequence[str], dark: bool, seen: str | None) -> RunView | None:
    """State of the selected runs, or None if nothing changed since `seen`."""
    states: list[RunState] = []
    errors: list[str] = []
    try:
        listed = [entry.name for entry in reader.list()]
    except MppflError as error:  # the whole folder is gone: one line for all of its runs
        listed, names, errors = [], (), [str(error)]
    for name in names:
        try:
            states.append(reader.read(name))
        except BadInput as error:  # BadFile is one
            errors.append(str(error))
    runs = [(state.name, state.run) for state in states]
    marks = [(name, run.updated, run.rounds_done, run.rounds_charged, run.finished) for name, run in runs]
    now = repr((listed, marks, errors, dark))
    if now == seen:
        return None
    texts = {
        "run-status": str(_status(states, errors)),
        "ledger": "".join(_ledger_table(state) for state in states),
    }
    return RunView(texts, listed, run_charts(states) if states else (), now)


def _status(states: Sequence[RunState], errors: Sequence[str]) -> Markup:
    lines = [tag("li", tag("b", state.name), f": {state.run.mechanism}, {state.progress}") for state in states]
    parts = [tag("ul", *lines, class_="status")]
    simulated = ", ".join(state.name for state in states if state.run.is_simulation)
    if simulated:
        words = f"Simulation: the noise of {simulated} comes from a seed and protects no one."
        parts.append(tag("p", words, class_="soft"))
    return Markup().join([*parts, *(tag("p", error, class_="wrong") for error in errors)])


def ledger_rows(state: RunState, most: int = MOST_LINES) -> list[list[str]]:
    """The table over clients: those who spent most first, at most so many. ε is rounded up."""
    accounts = state.run.accounts
    if accounts is None:
        return []
    remaining = accounts.remaining
    return [
        [
            accounts.names[client],
            number(accounts.spent[client]),
            epsilon(accounts.dp_epsilon[client]),
            epsilon(accounts.worst_case_epsilon[client]),
            *(number(rho) if np.isfinite(rho) else UNKNOWN for rho in (accounts.cap[client], remaining[client])),
            f"{int(accounts.rounds[client]):,}",
        ]
        for client in np.argsort(-accounts.spent, kind="stable")[:most].tolist()
    ]


def _ledger_table(state: RunState) -> Markup:
    rows, nominal = ledger_rows(state), f"ε at δ = {state.run.dp_delta:g}"
    if not rows:
        return tag("p", f"{state.name}: no account is known yet.", class_="soft")
    heads = ["client", "spent (ρ)", nominal, "ε, worst case", "cap (ρ)", "remaining (ρ)", "rounds"]
    return table(heads, rows, f"{state.name}, a {state.run.unit}'s privacy")
