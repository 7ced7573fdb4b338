"""The folder of a training, which survives being killed at any moment, and the folder of a finished run in it.

    experiment.toml             what is trained, written before anything else
    checkpoint.json             after how many rounds the checkpoints below were taken
    <case>/checkpoint-<n>.npz   where that training stood after n rounds
    <case>/ledger.sqlite        what every client has spent, unless the experiment names another file for it
    <case>/run.json             configuration, provenance, accounts in short, final figures; checksums of the others
    <case>/rounds.csv, clients.csv, budgets.csv, payments.csv, edges.csv    for people and spreadsheets
    <case>/weights.npz, arrays.npz    the final model, and all figures to the last bit: what `load_run` reads

All checkpoints of a round are written, then checkpoint.json, then the older ones are removed: whenever the process
dies, checkpoint.json names a set that is whole.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array
from mppfl.data import unchangeable
from mppfl.errors import BadFile, BadInput
from mppfl.experiment.build import Case, run_in_ledger
from mppfl.experiment.file import differences, read_experiment
from mppfl.experiment.provenance import Provenance
from mppfl.experiment.run import PER_ACCOUNT, PrivacyAccounts, Run
from mppfl.files import LOCK, locked, write_whole
from mppfl.network import SocialGraph
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.spec import Experiment
from mppfl.text import one_line
from mppfl.training import (
    PER_CLIENT,
    PER_ROUND,
    Checkpoint,
    History,
    Log,
    load_checkpoint,
    save_checkpoint,
    training_key,
)

if TYPE_CHECKING:
    from torch import nn

KIND, FORMAT = "mppfl run", 1
EXPERIMENT, POINTER, LEDGER, SUMMARY = "experiment.toml", "checkpoint.json", "ledger.sqlite", "run.json"
VECTORS = ("num_examples", "exposure", "server_cost", "welfare")
GRAPH_ARRAYS = ("data", "indices", "indptr", "strengths", "origin")


def save_run(run: Run, folder: str | Path) -> Path:
    """Writes the run as a folder that people can read, and `load_run` can. Each file is whole or not there."""
    folder = Path(folder)
    require_folder(folder)
    checksums = {}
    for name, content_of in FILES.items():
        content = content_of(run)
        write_whole(folder / name, content)
        checksums[name] = _sha256(content)
    # Last, with the checksums of all others: a folder left half-written is refused, never taken for a run.
    summary = _summary(run) | {"files": checksums}
    summary["checksum"] = _checksum(summary)
    text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(folder / SUMMARY, text.encode("utf-8", "surrogatepass"))
    return folder


def load_run(folder: str | Path) -> Run:
    """The run in the folder, as it was saved to the last bit.

    Args:
        folder: Of a run, or of a training that holds one run, as `mppfl train` prints it.

    Returns:
        The run; its `weights` are the final model, flat.

    Raises:
        BadFile: No run, or several (the message names them), or files that were damaged or changed since.

    Example:
        >>> from tempfile import mkdtemp
        >>> from mppfl import Experiment, load_run, run_experiment
        >>> settings = {"model": "softmax", "local_epochs": 1}
        >>> experiment = Experiment(game={"num_clients": 3, "num_rounds": 2}, training=settings)
        >>> folder = mkdtemp()
        >>> (run,) = run_experiment(experiment, folder=folder)
        >>> load_run(folder).final_accuracy == run.final_accuracy
        True
    """
    runs = find_runs(folder)
    if len(runs) > 1:
        names = ", ".join(path.name for path in runs)
        raise BadFile(f"{folder}: holds {len(runs)} runs: {names}. Give the folder of one of them.")
    (folder,) = runs
    try:
        return _read_run(folder)
    except BadFile:
        raise
    except OSError as cause:
        missing = Path(cause.filename or "").name or "a file"
        raise BadFile(f"{folder}: {missing} cannot be read ({cause.strerror or cause}). Restore a copy.") from cause
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        reason = " ".join(str(cause).split())
        raise BadFile(f"{folder}: not a whole run ({reason}). Restore a copy, or train anew.") from cause


def _read_run(folder: Path) -> Run:
    summary = json.loads((folder / SUMMARY).read_text("utf-8", "surrogatepass"))
    if not isinstance(summary, dict) or summary.get("kind") != KIND:
        raise BadFile(f"{folder}: its {SUMMARY} is not that of an mppfl run.")
    if summary["format"] != FORMAT:
        raise BadFile(f"{folder}: run of format {summary['format']}, this version reads {FORMAT}. Train anew.")
    if summary.pop("checksum", None) != _checksum(summary):
        raise BadFile(f"{folder / SUMMARY}: changed since it was written. Restore a copy, or train anew.")
    contents = {}
    for name, checksum in summary["files"].items():
        contents[name] = (folder / name).read_bytes()
        if _sha256(contents[name]) != checksum:
            raise BadFile(f"{folder / name}: damaged, or changed since it was written. Restore a copy, or train anew.")
    return _run(summary, _read_npz(contents["arrays.npz"]), _read_npz(contents["weights.npz"])["weights"])


def require_folder(folder: Path) -> None:
    """Raises where a folder cannot be written to, before anything is computed for it."""
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), Path())
    if not nearest.is_dir():
        raise BadInput(f"{folder} could not be written: {nearest} is no folder. Choose another.")
    if not os.access(nearest, os.W_OK):
        raise BadFile(f"{folder} could not be written: {nearest} may not be written. Choose another.")


def find_runs(folder: str | Path) -> tuple[Path, ...]:
    """The folder itself if it is a run, else the runs directly inside it, in the order in which they were saved."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFile(f"{folder}: no such folder. Give the folder of a run, as `mppfl train` writes it.")
    if (folder / SUMMARY).is_file():
        return (folder,)
    saved = sorted(folder.glob(f"*/{SUMMARY}"), key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
    if not saved:
        raise BadFile(f"{folder}: neither a run nor a folder with runs in it (no {SUMMARY} there).")
    return tuple(path.parent for path in saved)


# ---- the files of a run -------------------------------------------------------------------------------------------


def _summary(run: Run) -> dict[str, Any]:
    accounts = {item.name: getattr(run.accounts, item.name) for item in fields(run.accounts)}
    spreads = (("least", np.min), ("median", np.median), ("most", np.max))
    accounts |= {name: {word: _or_null(end(accounts[name])) for word, end in spreads} for name in PER_ACCOUNT}
    final = {
        "accuracy": run.final_accuracy,
        "best_accuracy": run.best_accuracy,
        "loss": run.final_loss,
        "payments": run.paid.sum(),
        "server_cost": run.server_cost.sum(),
        "welfare": run.welfare.sum(),
    }
    return {
        "kind": KIND,
        "format": FORMAT,
        "name": run.name,
        "mechanism": run.mechanism,
        "num_clients": run.num_clients,
        "num_rounds": run.num_rounds,
        "final": {name: _or_null(value) for name, value in final.items()}
        | {"rounds_refused": int(run.rounds_refused.sum())},
        "accounts": accounts | {"simulation": run.accounts.simulation, "notes": list(run.accounts.notes)},
        "notes": list(run.notes),
        "config": run.config,
        "provenance": asdict(run.provenance),
    }


def _or_null(value: Any) -> float | str | None:
    """A number as strict JSON takes it: not known is null, infinite the word."""
    number = float(value)
    return number if math.isfinite(number) else None if math.isnan(number) else str(number)


def _csv(*columns: tuple[str, Sequence[Any]]) -> bytes:
    """A table from the heading and the values of each column."""
    headings, values = zip(*columns, strict=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *zip(*values, strict=True)])
    return text.getvalue().encode("utf-8", "surrogatepass")


def _clients_csv(run: Run) -> bytes:
    return _csv(
        ("name", run.names),
        ("examples", run.num_examples.tolist()),
        ("payment", run.paid.tolist()),
        *((name, getattr(run.accounts, name).tolist()) for name in PER_ACCOUNT),
        ("exposure", run.exposure.tolist()),
        ("rounds_taken_part", run.rounds_taken_part.tolist()),
        ("rounds_refused", run.rounds_refused.tolist()),
    )


def _matrix_csv(run: Run, name: str) -> bytes:
    by_client = zip(run.names, run.history.clients[name].T.tolist(), strict=True)
    return _csv(("round_index", run.history.rounds["round_index"].tolist()), *by_client)


def _edges_csv(run: Run) -> bytes:
    edges, names = run.graph.edges().tocoo(), run.names
    sources, targets = ([names[end] for end in ends.tolist()] for ends in (edges.col, edges.row))
    return _csv(("source", sources), ("target", targets), ("weight", edges.data.tolist()))


def _arrays(run: Run) -> dict[str, Any]:
    """All figures of a run but its model's; those of a group, as "rounds", are named "rounds.accuracy"."""
    graph, matrix = run.graph, run.graph.influence
    facts = {
        "names": run.names,
        "engine": run.history.engine,
        "refused": run.history.refused,
        "graph_names": graph.names if graph.names != run.names else True,
        "normalisation": graph.normalisation,
        "dropped": sorted(graph.dropped),
    }
    parts = (matrix.data, matrix.indices, matrix.indptr, graph.strengths, graph.origin)
    groups = {
        "rounds": {name: run.history.rounds[name] for name in PER_ROUND},
        "clients": {name: run.history.clients[name] for name in PER_CLIENT},
        "accounts": {name: getattr(run.accounts, name) for name in PER_ACCOUNT},
        "graph": dict(zip(GRAPH_ARRAYS, parts, strict=True)),
    }
    return {
        "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        **{f"{group}.{name}": values for group, table in groups.items() for name, values in table.items()},
        **{name: getattr(run, name) for name in VECTORS},
    }


def _npz(arrays: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


FILES: dict[str, Callable[[Run], bytes]] = {  # of a run, beside its summary
    "rounds.csv": lambda run: _csv(*run._columns().items()),
    "clients.csv": _clients_csv,
    "budgets.csv": lambda run: _matrix_csv(run, "budgets"),
    "payments.csv": lambda run: _matrix_csv(run, "payments"),
    "edges.csv": _edges_csv,
    "weights.npz": lambda run: _npz({"weights": run.weights}),
    "arrays.npz": lambda run: _npz(_arrays(run)),
}


def _run(summary: dict[str, Any], arrays: dict[str, Any], weights: Array) -> Run:
    """The run that a summary and the arrays beside it describe."""
    facts = json.loads(arrays["facts"].tobytes())
    names = tuple(facts["names"])

    def group(name: str) -> dict[str, Array]:
        return {key.removeprefix(f"{name}."): arrays[key] for key in arrays if key.startswith(f"{name}.")}

    graph_names = names if facts["graph_names"] is True else facts["graph_names"] and tuple(facts["graph_names"])
    graph = group("graph")
    data, indices, indptr, strengths, origin = (unchangeable(graph[name]) for name in GRAPH_ARRAYS)
    matrix = sp.csr_array((data, indices, indptr), shape=(len(names), len(names)))
    accounts = {item.name: summary["accounts"][item.name] for item in fields(PrivacyAccounts)}
    refused = tuple(map(tuple, facts["refused"]))
    return Run(
        name=summary["name"],
        mechanism=summary["mechanism"],
        config=summary["config"],
        history=History(group("rounds"), group("clients"), tuple(facts["engine"]), refused),
        weights=weights,
        names=names,
        graph=SocialGraph(matrix, graph_names, facts["normalisation"], strengths, origin, frozenset(facts["dropped"])),
        accounts=PrivacyAccounts(**accounts | group("accounts")),
        **{name: arrays[name] for name in VECTORS},
        provenance=Provenance(**summary["provenance"]),
        notes=tuple(summary["notes"]),
    )


def _read_npz(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checksum(summary: dict[str, Any]) -> str:
    return _sha256(json.dumps(summary, sort_keys=True).encode())


# ---- a training ----------------------------------------------------------------------------------------------------


@contextmanager
def storage(experiment: Experiment, folder: str | Path | None, *, resume: bool, overwrite: bool) -> Iterator[Store]:
    """A place for the training's files, locked against a second training; nowhere if `folder` is None.

    A folder that may not be used is refused here, before any work.
    """
    with ExitStack() as resources:
        if folder is not None:
            resources.enter_context(locked(Path(folder)))
            _require_free(Path(folder), experiment, resume=resume, overwrite=overwrite)
        elif resume:
            raise BadInput("there is nothing to resume without a folder. Give the one the training was kept in.")
        yield Store(None if folder is None else Path(folder), resources, resume)


@dataclass(slots=True)
class Store:
    """The files of a training, or their absence."""

    folder: Path | None
    resources: ExitStack
    resume: bool = False
    rounds_kept: int = 0

    def begin(self, experiment: Experiment, cases: Sequence[Case], model: nn.Module) -> dict[str, PrivacyLedger]:
        """Makes the folder this experiment's, which is known to be one that can be trained, and opens all accounts.

        One that others charge, too, comes first: it may refuse.
        """
        is_shared = experiment.ledger.file is not None
        ledgers = {case.name: self.ledger(case, model) for case in cases} if is_shared else {}
        if self.folder is not None and not self.resume:
            _empty(self.folder)
            write_whole(self.folder / EXPERIMENT, experiment.to_toml().encode())
        return ledgers or {case.name: self.ledger(case, model) for case in cases}

    def ledger(self, case: Case, model: nn.Module) -> PrivacyLedger:
        """The account of one case, with every client's cap. Raises where it is that of others."""
        spec, protection, names = case.experiment.ledger, case.config.protection, case.data.names
        if spec.file is None and (self.folder is None or not spec.keep):
            ledger = self.resources.enter_context(PrivacyLedger.in_memory())
        else:
            path = ledger_path(self.folder or Path(), case.experiment, case.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            begun = self.resume and self.rounds_are_kept  # an empty ledger would forget what was spent
            ledger = self.resources.enter_context(PrivacyLedger.open(path, must_exist=begun))
        ledger.require_clients(names)
        if spec.file is not None:
            is_paid_again = self.resume or not protection.is_simulated
            ledger.require_run(case.run, training_key(model, case.arm()), taken_up=is_paid_again)
        _set_caps(ledger, case, spec.cap, spec.caps, None)
        _set_caps(ledger, case, spec.epsilon_cap, spec.epsilon_caps, protection.dp_delta)
        return ledger

    @property
    def rounds_are_kept(self) -> bool:
        """Whether the folder has checkpoints."""
        return self.folder is not None and (self.folder / POINTER).exists()

    def checkpoints(self, cases: list[Case]) -> dict[str, Checkpoint]:
        """The last whole set of checkpoints, by case; empty if there is none yet."""
        self.rounds_kept = 0 if self.folder is None else rounds_checkpointed(self.folder)
        if self.folder is None or self.rounds_kept == 0:
            return {}
        file = f"checkpoint-{self.rounds_kept}.npz"
        return {case.name: load_checkpoint(self.folder / case.name / file) for case in cases}

    def keep(self, logs: Mapping[str, Log]) -> None:
        """Checkpoints of all cases after the same round; the set before stays whole until this one is."""
        done = {log.rounds_done for log in logs.values()}
        if self.folder is None or len(done) > 1 or done <= {0, self.rounds_kept}:
            return
        (rounds_done,) = done
        paths = {name: self.folder / name / f"checkpoint-{rounds_done}.npz" for name in logs}
        for name, path in paths.items():
            save_checkpoint(path, logs[name].checkpoint())
        write_whole(self.folder / POINTER, json.dumps({"rounds_done": rounds_done}).encode())
        self.rounds_kept = rounds_done
        for path in paths.values():
            for old in path.parent.glob("*checkpoint-*.npz*"):
                if old != path:
                    old.unlink(missing_ok=True)


def _empty(folder: Path) -> None:
    """Removes what a training left there."""
    (folder / POINTER).unlink(missing_ok=True)
    files = [file for name in (LEDGER, SUMMARY, "checkpoint-*.npz") for file in folder.glob(f"*/{name}")]
    for case in {file.parent for file in files}:
        shutil.rmtree(case)


def _set_caps(
    ledger: PrivacyLedger, case: Case, everybody: float | None, single: dict[str, float], delta: float | None
) -> None:
    """Gives clients their caps in ρ, or in ε at δ. A run does not raise a cap that binds others, too."""
    caps = dict.fromkeys(case.data.names, everybody) | single
    for cap in {cap for cap in caps.values() if cap is not None}:
        clients = [name for name in case.data.names if caps[name] == cap]
        ledger.set_cap(clients, cap, case.config.protection.unit, dp_delta=delta, only_lower=True)


def rounds_checkpointed(folder: Path) -> int:
    """After how many rounds the last whole set of checkpoints was taken; 0 where there is none yet."""
    pointer = folder / POINTER
    try:
        return int(json.loads(pointer.read_text())["rounds_done"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError) as cause:
        reason = one_line(cause)
        raise BadFile(
            f"{pointer}: cannot be read ({reason}). Restore a copy, or train anew, with overwrite."
        ) from cause


def _require_free(folder: Path, experiment: Experiment, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder that is not this experiment's, or holds what must not be lost."""
    if not (folder / EXPERIMENT).exists():
        if resume:
            raise BadInput(f"{folder} holds no training to resume. Check the folder, or start without resume.")
        if any(path.name != LOCK for path in folder.iterdir()):
            raise BadInput(f"{folder} is not empty, and holds no training. Choose another folder.")
        return
    stored = read_experiment(folder / EXPERIMENT)
    if resume:
        if changed := differences(experiment, stored):
            raise BadInput(f"{folder} holds another experiment: {changed}. Undo that, or train elsewhere.")
        if not experiment.ledger.keep:
            raise BadInput("ledger.keep=false left no account of what was spent, so the training cannot be resumed.")
    elif not overwrite:
        raise BadInput(f"{folder} holds a training already. Resume it, overwrite it, or choose another folder.")
    elif not stored.training.protection.is_simulated and not _released_nothing(folder, stored):
        raise BadInput(
            f"{folder} holds the account of real releases (noise={stored.training.protection.noise!r}), which must not "
            "be forgotten. Choose another folder."
        )
    else:
        for account in folder.glob(f"*/{LEDGER}"):
            if others := [run for run in _runs_in(account) if run != account.parent.name]:
                raise BadInput(
                    f"{account} is the account of other trainings, too ({', '.join(others)}), which must not be "
                    "forgotten. Choose another folder."
                )


def _released_nothing(folder: Path, stored: Experiment) -> bool:
    """Whether a training with real noise ended before its first release: its accounts are there, and empty."""
    if not stored.ledger.keep or (folder / POINTER).exists():
        return False
    if stored.ledger.file is None:
        accounts = list(folder.glob(f"*/{LEDGER}"))
        return bool(accounts) and not any(map(_runs_in, accounts))
    runs = _runs_in(Path(stored.ledger.file))
    return not any(run_in_ledger(stored, case) in runs for case in stored.mechanisms)  # one case where noise is real


def _runs_in(account: Path) -> tuple[str, ...]:
    with PrivacyLedger.open(account, must_exist=True) as ledger:  # who only reads leaves SQLite's log behind
        return ledger.runs


def ledger_path(folder: Path, experiment: Experiment, case: str) -> Path:
    """The file of one case's account."""
    return folder / case / LEDGER if experiment.ledger.file is None else Path(experiment.ledger.file)
