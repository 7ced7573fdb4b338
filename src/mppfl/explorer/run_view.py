"""Trainings under the folder that the page was given: which there are, how far each is, their curves and accounts.

Only what `RunReader.list` lists can be read: a name is a path inside the folder, never one that leads out of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mppfl.arrays import Array
from mppfl.charts import ROUNDS, Axis, Chart, Line, slots_of
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.experiment import EXPERIMENT, POINTER, SUMMARY, LiveAccounts, LiveRun, is_run, marks_of, read_live
from mppfl.explorer.markup import panel
from mppfl.explorer.round_view import SHARES, sorted_chart
from mppfl.explorer.world import Memory
from mppfl.text import UNKNOWN, delta, epsilon, number

DEEPEST = 3  # folders below the one given in which runs are looked for
MOST_FOLDERS = 20_000  # that are looked into: the folder may be somebody's home
MOST_KEPT = 64  # runs whose last state is remembered
MOST_LINES = 500  # of the table over clients
FAR = 30  # times as large: then powers of ten
RUN_CHARTS = ("accuracy", "loss", "run-budgets", "run-payments", "dp-epsilon", "remaining")
Runs = Mapping[str, LiveRun]  # by name: a path with /, relative to the folder, or "." for the folder itself


# ---- which runs there are ------------------------------------------------------------------------------------------


class RunReader:
    """Reads runs of one folder, each anew only when something was written since. May be shared between threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = _root(folder)
        self._runs = Memory(MOST_KEPT)

    def list(self) -> dict[str, bool]:
        """Whether each run is finished, by name: the folder itself if it is one, and those inside it."""
        root = _root(self.folder)
        return {name: (root / name / SUMMARY).is_file() for name in sorted(_names(root)) if _may_be_read(root, name)}

    def read(self, name: str) -> LiveRun:
        """How the run of this name stands now; the same object as before where nothing changed."""
        if not _may_be_read(self.folder, name):
            raise BadInput(f"run {name[:80]!r} is not one of those in the folder. Choose one from the list.")
        folder = self.folder / name
        return self._runs.get((name, marks_of(folder)), lambda: read_live(folder))


def _root(folder: Path) -> Path:
    root = Path(folder).resolve()
    if not root.is_dir():
        raise BadFile(f"{folder}: no such folder. Give the folder of a run, as `mppfl train` writes it.")
    return root


def _names(root: Path) -> Iterator[str]:
    """Folders that may be runs, as relative paths; hidden ones are not, nor what a link leads to."""
    for count, (path, folders, _) in enumerate(os.walk(root)):
        folder = Path(path).relative_to(root)
        yield folder.as_posix()
        if count >= MOST_FOLDERS:
            return
        folders[:] = [name for name in folders if _is_proper(name)] if len(folder.parts) < DEEPEST else []


def _may_be_read(root: Path, name: str) -> bool:
    """Whether there is a run of this name, and no link in it or on the way to it."""
    parts = () if name == "." else tuple(name.split("/"))
    folder = root.joinpath(*parts)
    try:
        if len(parts) > DEEPEST or not all(map(_is_proper, parts)) or folder.resolve() != folder or not is_run(folder):
            return False
        above = [] if folder == root else [folder.parent / EXPERIMENT, folder.parent / POINTER]
        return not any(path.is_symlink() for path in (*folder.iterdir(), *above))
    except (OSError, RuntimeError):  # not ours to read, or links in a circle
        return False


def _is_proper(part: str) -> bool:
    """Whether a folder of this name may be a run: hidden ones are not, nor one that is a path to another system."""
    return bool(part) and not part.startswith(".") and "\0" not in part and "\\" not in part


# ---- charts, several runs over each other --------------------------------------------------------------------------


def run_charts(runs: Runs) -> tuple[Chart, ...]:
    """All charts of these runs, each run in the colour of its mechanism."""
    slots = dict(zip(runs, slots_of([run.mechanism for run in runs.values()]), strict=True))
    steps = _steps(runs)

    def by_round(key: str, title: str, axis: Axis, values: Callable[[LiveRun], Array]) -> Chart:
        lines = []
        for name, run in runs.items():
            evaluated = ~np.isnan(values(run))  # rounds without evaluation are no gap
            lines.append(Line(name, slots[name], run.rounds["round_index"][evaluated], values(run)[evaluated]))
        return Chart(key, title, ROUNDS, axis, tuple(lines), note=steps)

    accuracy, loss = Axis("accuracy", "% of test data"), Axis("cross-entropy", "nats per example")
    paid = Axis("paid to all clients", "money per round")
    return (
        by_round("accuracy", "Test accuracy", accuracy, lambda run: 100 * run.rounds["accuracy"]),
        by_round("loss", "Test loss", loss, lambda run: run.rounds["loss"]),
        _budgets(runs, slots),
        by_round("run-payments", "Payments by round", paid, lambda run: run.clients["payments"].sum(axis=1)),
        _epsilons(runs, slots),
        _remaining_caps(runs, slots),
    )


def _budgets(runs: Runs, slots: Mapping[str, int]) -> Chart:
    """What clients were charged by round: the middle client, and the middle 80 % of them."""
    lines, missing = [], []
    for name, run in runs.items():
        rounds, low, middle, high = _charged(run)
        lines.append(Line(f"{name}, median", slots[name], rounds, middle, low, high))
        if run.noise == "none" or (run.rounds_charged and not len(rounds)):
            missing.append(name)
    units = " or ".join(dict.fromkeys(run.unit for run in runs.values())) or "record"
    axis = Axis("budget charged", f"ρ of zCDP, per {units}")
    without = f"no budgets: {', '.join(missing)}, whose releases have none that could be drawn" if missing else ""
    note = _together("bands hold 10–90 % of clients", without, _simulated(runs))
    return Chart("run-budgets", "Budgets charged by round", ROUNDS, axis, tuple(lines), note=note)


def _charged(run: LiveRun) -> tuple[Array, ...]:
    """Rounds in which clients are known to have been charged, and 10, 50 and 90 % of what they were."""
    parts = run.clients["spent"], run.charged_since
    width = max(part.shape[1] for part in parts)
    charged = np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])
    is_drawn = np.isfinite(charged).all(axis=1) & (width > 0)  # without noise, or without ρ, there is nothing to draw
    rounds = np.arange(1, len(charged) + 1, dtype=np.float64)[is_drawn]
    return rounds, *(np.quantile(charged[is_drawn], SHARES, axis=1) if is_drawn.any() else np.zeros((3, 0)))


def _epsilons(runs: Runs, slots: Mapping[str, int]) -> Chart:
    """ε of every client so far."""
    groups = _accounts(runs, slots, lambda accounts: accounts.dp_epsilon)
    known = [run for run in runs.values() if run.accounts is not None]
    deltas = ", ".join(dict.fromkeys(delta(run.dp_delta) for run in known)) or "1e-5"
    # Powers of ten where the smaller group would not be seen beside the larger one on a plain axis.
    largest = [float(values[np.isfinite(values)].max(initial=0.0)) for _, _, values in groups.values()]
    far = bool(largest) and min(largest) > 0 and max(largest) > FAR * min(largest)
    return _by_client("dp-epsilon", "ε of each client", Axis("ε", f"at δ = {deltas}", log=far), groups, runs)


def _remaining_caps(runs: Runs, slots: Mapping[str, int]) -> Chart:
    """ρ that every client may still spend before its cap."""
    groups = _accounts(runs, slots, lambda spent: np.where(np.isinf(spent.remaining), np.nan, spent.remaining))
    capped = any(np.isfinite(values).any() for _, _, values in groups.values())
    axis = Axis("remaining", "ρ of zCDP")
    title, note = "What each client may still spend", "" if capped or not groups else "no client has a cap"
    return _by_client("remaining", title, axis, groups if capped else {}, runs, note)


Groups = dict[str, tuple[int, tuple[str, ...], Array]]  # by name of the group: slot, names of clients, values


def _accounts(runs: Runs, slots: Mapping[str, int], values: Callable[[LiveAccounts], Array]) -> Groups:
    accounts = {name: run.accounts for name, run in runs.items() if run.accounts is not None}
    return {name: (slots[name], account.names, values(account)) for name, account in accounts.items()}


def _by_client(key: str, title: str, axis: Axis, groups: Groups, runs: Runs, note: str = "") -> Chart:
    """All clients of all runs, sorted by the first run; a client that a run does not know has no bar there."""
    names = tuple(dict.fromkeys(name for _, listed, _ in groups.values() for name in listed))
    if not names:
        empty = _together(note or "no account is known yet", _simulated(runs))
        return Chart(key, title, axis, Axis("client", "name"), note=empty)
    position = {name: k for k, name in enumerate(names)}
    columns = {}
    for group, (slot, listed, values) in groups.items():
        column = np.full(len(names), np.nan)
        column[[position[name] for name in listed]] = values
        columns[group] = (slot, column)
    chart = sorted_chart(key, title, axis, columns, names)
    return replace(chart, note=_together(chart.note, note, _simulated(runs)))


def _simulated(runs: Runs) -> str:
    """What must be said where noise came from a seed."""
    seeded = [name for name, run in runs.items() if run.is_simulation]
    which = "" if len(seeded) == len(runs) else f"{', '.join(seeded)}: "
    return f"{which}simulation, seeded noise protects no one" if seeded else ""


def _steps(runs: Runs) -> str:
    """Why the curves of a training that is not finished come in steps."""
    running = {run.checkpoint_every for run in runs.values() if not run.finished}
    every = " or ".join(str(step) for step in sorted(running) if step > 1)
    return f"while a training runs, this curve grows every {every} rounds, with its checkpoints" if every else ""


def _together(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


# ---- as parts of the page ------------------------------------------------------------------------------------------


class RunView(NamedTuple):
    """The tab of runs; `seen` changes whenever anything else does."""

    texts: dict[str, str]
    options: list[str]
    charts: tuple[Chart, ...]
    seen: str


def run_view(reader: RunReader, names: Sequence[str], seen: str | None) -> RunView | None:
    """State of the selected runs, or None if nothing changed since `seen`."""
    runs: dict[str, LiveRun] = {}
    errors: list[str] = []
    try:
        listed = list(reader.list())
    except MppflError as error:  # the whole folder is gone: one line for all of its runs
        listed, names, errors = [], (), [str(error)]
    for name in names:
        try:
            runs[name] = reader.read(name)
        except BadInput as error:  # BadFile is one
            errors.append(str(error))
    now = repr((listed, [(name, run.marks) for name, run in runs.items()], errors))
    if now == seen:
        return None
    ledger = "".join(panel("ledger", name=name, run=run, rows=ledger_rows(run)) for name, run in runs.items())
    texts = {"run-status": _status(runs, errors), "ledger": ledger}
    return RunView(texts, listed, run_charts(runs) if runs else (), now)


def _status(runs: Runs, errors: Sequence[str]) -> str:
    lines: dict[str, str] = {}
    notes: dict[str, list[str]] = {}
    for name, run in runs.items():
        lines[name] = "; ".join(filter(None, (f"{run.mechanism}, {progress(run)}", run.guarantee)))
        for note in run.notes:
            notes.setdefault(note, []).append(name)
    return panel("status", lines=lines, notes=notes, errors=errors)


def progress(run: LiveRun) -> str:
    """How far a training is, in words."""
    if run.finished:
        return f"finished, {run.num_rounds:,} rounds"
    every = f", curves every {run.checkpoint_every} rounds" if run.checkpoint_every > 1 else ""
    return f"round {max(run.rounds_done, run.rounds_charged):,} of {run.num_rounds:,}{every}"


def ledger_rows(run: LiveRun) -> list[list[str]]:
    """The table over clients: those who spent most first, at most so many. ε is rounded up."""
    accounts = run.accounts
    if accounts is None:
        return []
    remaining = accounts.remaining
    return [
        [
            accounts.names[client],
            number(accounts.spent[client]),
            epsilon(accounts.dp_epsilon[client]),
            *(number(rho) if np.isfinite(rho) else UNKNOWN for rho in (accounts.cap[client], remaining[client])),
            f"{int(accounts.rounds[client]):,}",
        ]
        for client in np.argsort(-accounts.spent, kind="stable")[:MOST_LINES].tolist()
    ]
