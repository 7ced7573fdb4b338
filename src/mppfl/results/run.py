"""Run: what came out of one training, and the folder it is kept in.

run.json      configuration, provenance, accounts in short, final figures; checksums of the other files
rounds.csv    one line a round          clients.csv    one line a client
budgets.csv   rounds × clients          payments.csv   rounds × clients
links.csv     the social graph          weights.npz    the final model, flat
arrays.npz    the same figures to the last bit: what `load_run` reads
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadFile, BadInput
from mppfl.learning.checkpoint import write_whole
from mppfl.learning.record import PER_CLIENT, PER_ROUND, History
from mppfl.network.graph import SocialGraph
from mppfl.privacy.ledger import SIMULATION
from mppfl.privacy.mechanism import Adjacency, Unit
from mppfl.results.provenance import Provenance

KIND, FORMAT = "mppfl run", 1
SUMMARY = "run.json"
PER_ACCOUNT = ("spent", "worst_case_spent", "dp_epsilon", "worst_case_epsilon")
GRAPH_ARRAYS = ("data", "indices", "indptr", "strengths", "origin")


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
        strangers = {name for refused in self.history.refused for name in refused} - set(self.names)
        if strangers:
            raise BadInput(f"client {min(strangers)!r} was refused a round, but is not one of the {clients} clients.")
        put = object.__setattr__
        put(self, "config", plain(self.config, "config"))
        put(self, "names", tuple(map(str, self.names)))
        put(self, "notes", tuple(map(str, self.notes)))
        put(self, "weights", _frozen(np.asarray(self.weights).view()))
        put(self, "num_examples", _frozen(np.array(self.num_examples)))
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
        position = {name: at for at, name in enumerate(self.names)}
        counts = np.zeros(self.num_clients, dtype=np.int64)
        for refused in self.history.refused:
            for name in refused:
                counts[position[name]] += 1
        return counts

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """A value of the configuration by its name, at the top or in any table of it."""
        tables = [self.config, *(value for value in self.config.values() if isinstance(value, dict))]
        return next((table[name] for table in tables if name in table), otherwise)

    def save(self, folder: str | Path) -> Path:
        """Writes the run as a folder that people can read, and `load_run` can. Each file is whole or not there."""
        folder = Path(folder)
        require_folder(folder)
        contents = {
            "rounds.csv": _rounds_csv(self),
            "clients.csv": _clients_csv(self),
            "budgets.csv": _matrix_csv(self, "budgets"),
            "payments.csv": _matrix_csv(self, "payments"),
            "links.csv": _links_csv(self),
            "weights.npz": _npz({"weights": self.weights}),
            "arrays.npz": _npz(_arrays(self)),
        }
        for name, content in contents.items():
            write_whole(folder / name, content)
        # Last, with the checksums of all others: a folder left half-written is refused, never taken for a run.
        summary = _summary(self) | {"files": {name: _sha256(content) for name, content in contents.items()}}
        summary["checksum"] = _checksum(summary)
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_whole(folder / SUMMARY, text.encode("utf-8", "surrogatepass"))
        return folder


def load_run(folder: str | Path) -> Run:
    """The run in the folder, as it was saved to the last bit. Refuses what is not one, or was changed since."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFile(f"{folder}: no such folder. Give the folder of a run, as `mppfl train` writes it.")
    if not (folder / SUMMARY).is_file():
        raise BadFile(f"{folder}: not the folder of a run (no {SUMMARY} in it).")
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8", "surrogatepass"))
        if not isinstance(summary, dict) or summary.get("kind") != KIND:
            raise BadFile(f"{folder}: its {SUMMARY} is not that of an mppfl run.")
        if summary["format"] != FORMAT:
            raise BadFile(f"{folder}: run of format {summary['format']}, this version reads {FORMAT}. Train anew.")
        if summary.pop("checksum", None) != _checksum(summary):
            raise BadFile(f"{folder / SUMMARY}: changed since it was written. Restore a copy, or train anew.")
        contents = {}
        for name, wanted in summary["files"].items():
            contents[name] = (folder / name).read_bytes()
            if _sha256(contents[name]) != wanted:
                raise BadFile(
                    f"{folder / name}: damaged, or changed since it was written. Restore a copy, or train anew."
                )
        return _run(summary, _read_npz(contents["arrays.npz"]), _read_npz(contents["weights.npz"])["weights"])
    except BadFile:
        raise
    except OSError as cause:
        missing = Path(cause.filename or "").name or "a file"
        raise BadFile(f"{folder}: {missing} cannot be read ({cause.strerror or cause}). Restore a copy.") from cause
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        reason = " ".join(str(cause).split())
        raise BadFile(f"{folder}: not a whole run ({reason}). Restore a copy, or train anew.") from cause


def require_folder(folder: Path) -> None:
    """Raises where something else stands in the place of a folder that is to be written to."""
    nearest = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if nearest.exists() and not nearest.is_dir():
        raise BadInput(f"{folder} could not be written: {nearest} is no folder. Choose another.")


def find_runs(folder: str | Path) -> tuple[Path, ...]:
    """The folder itself if it is a run, else the runs directly inside it, by name. Raises where there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFile(f"{folder}: no such folder. Give the folder of a run, as `mppfl train` writes it.")
    if (folder / SUMMARY).is_file():
        return (folder,)
    inside = tuple(sorted(path.parent for path in folder.glob(f"*/{SUMMARY}")))
    if not inside:
        raise BadFile(f"{folder}: neither a run nor a folder with runs in it (no {SUMMARY} there).")
    return inside


# ---- what people read ---------------------------------------------------------------------------------------------


def _summary(run: Run) -> dict[str, Any]:
    accounts = {each.name: getattr(run.accounts, each.name) for each in fields(run.accounts)}
    accounts |= {name: _spread(accounts[name]) for name in PER_ACCOUNT}
    accounts |= {"simulation": run.accounts.simulation, "notes": list(run.accounts.notes)}
    return {
        "kind": KIND,
        "format": FORMAT,
        "name": run.name,
        "mechanism": run.mechanism,
        "num_clients": run.num_clients,
        "num_rounds": run.num_rounds,
        "final": {
            "accuracy": _or_null(run.final_accuracy),
            "best_accuracy": _or_null(run.best_accuracy),
            "loss": _or_null(run.final_loss),
            "payments": _or_null(run.paid.sum()),
            "server_cost": _or_null(run.server_cost.sum()),
            "welfare": _or_null(run.welfare.sum()),
            "rounds_refused": int(run.rounds_refused.sum()),
        },
        "accounts": accounts,
        "notes": list(run.notes),
        "config": _tagged(run.config),
        "provenance": asdict(run.provenance),
    }


def _rounds_csv(run: Run) -> bytes:
    rounds, clients = run.history.rounds, run.history.clients
    headings = [*PER_ROUND, "payments", "taking_part", "server_cost", "welfare", "engine", "refused"]
    columns = [rounds[name].tolist() for name in PER_ROUND]
    columns += [clients["payments"].sum(axis=1).tolist(), clients["participating"].sum(axis=1).tolist()]
    columns += [run.server_cost.tolist(), run.welfare.tolist(), list(run.history.engine)]
    columns += [[" ".join(names) for names in run.history.refused]]
    return _csv(headings, zip(*columns, strict=True))


def _clients_csv(run: Run) -> bytes:
    columns: dict[str, Sequence[Any]] = {
        "name": run.names,
        "examples": run.num_examples.tolist(),
        "payment": run.paid.tolist(),
        **{name: getattr(run.accounts, name).tolist() for name in PER_ACCOUNT},
        "exposure": run.exposure.tolist(),
        "rounds_taken_part": run.rounds_taken_part.tolist(),
        "rounds_refused": run.rounds_refused.tolist(),
    }
    return _csv(list(columns), zip(*columns.values(), strict=True))


def _matrix_csv(run: Run, name: str) -> bytes:
    numbers = run.history.rounds["round_index"].tolist()
    rows = run.history.clients[name].tolist()
    return _csv(["round_index", *run.names], ([number, *row] for number, row in zip(numbers, rows, strict=True)))


def _links_csv(run: Run) -> bytes:
    links = run.graph.links().tocoo()
    ends = zip(links.col.tolist(), links.row.tolist(), links.data.tolist(), strict=True)
    rows = ((run.names[source], run.names[target], weight) for source, target, weight in ends)
    return _csv(["source", "target", "weight"], rows)


def _csv(headings: Sequence[str], rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def _spread(values: Array) -> dict[str, float | str | None]:
    return {"least": _or_null(values.min()), "median": _or_null(np.median(values)), "most": _or_null(values.max())}


def _or_null(value: Any) -> float | str | None:
    """A number as strict JSON takes it: not known is null, infinite the word."""
    number = float(value)
    return number if math.isfinite(number) else None if math.isnan(number) else str(number)


# ---- what is read back --------------------------------------------------------------------------------------------


def _arrays(run: Run) -> dict[str, Any]:
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
    return {
        "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        **{f"rounds.{name}": run.history.rounds[name] for name in PER_ROUND},
        **{f"clients.{name}": run.history.clients[name] for name in PER_CLIENT},
        **{f"accounts.{name}": getattr(run.accounts, name) for name in PER_ACCOUNT},
        **{f"graph.{name}": part for name, part in zip(GRAPH_ARRAYS, parts, strict=True)},
        "num_examples": run.num_examples,
        "exposure": run.exposure,
        "server_cost": run.server_cost,
        "welfare": run.welfare,
    }


def _run(summary: dict[str, Any], arrays: dict[str, Any], weights: Array) -> Run:
    facts = json.loads(arrays["facts"].tobytes())
    names = tuple(facts["names"])
    called = names if facts["graph_names"] is True else facts["graph_names"] and tuple(facts["graph_names"])
    data, indices, indptr, strengths, origin = (_frozen(arrays[f"graph.{name}"]) for name in GRAPH_ARRAYS)
    matrix = sp.csr_array((data, indices, indptr), shape=(len(names), len(names)))
    described = {each.name: summary["accounts"][each.name] for each in fields(Accounts)}
    described |= {name: arrays[f"accounts.{name}"] for name in PER_ACCOUNT}
    return Run(
        name=summary["name"],
        mechanism=summary["mechanism"],
        config=_untagged(summary["config"]),
        history=History(
            {name: arrays[f"rounds.{name}"] for name in PER_ROUND},
            {name: arrays[f"clients.{name}"] for name in PER_CLIENT},
            tuple(facts["engine"]),
            tuple(tuple(refused) for refused in facts["refused"]),
        ),
        weights=weights,
        names=names,
        num_examples=arrays["num_examples"],
        graph=SocialGraph(matrix, called, facts["normalisation"], strengths, origin, frozenset(facts["dropped"])),
        accounts=Accounts(**described),
        exposure=arrays["exposure"],
        server_cost=arrays["server_cost"],
        welfare=arrays["welfare"],
        provenance=Provenance(**summary["provenance"]),
        notes=tuple(summary["notes"]),
    )


def _npz(arrays: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _read_npz(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _checksum(summary: dict[str, Any]) -> str:
    return _sha256(json.dumps(summary, sort_keys=True).encode())


# ---- plain values -------------------------------------------------------------------------------------------------


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


def _tagged(value: Any) -> Any:
    """Infinite and unknown numbers as {"number": "inf"}, because strict JSON has no word for them."""
    if isinstance(value, dict):
        return {key: _tagged(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_tagged(each) for each in value]
    return {"number": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _untagged(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == ["number"] and value["number"] in ("inf", "-inf", "nan"):
            return float(value["number"])
        return {key: _untagged(each) for key, each in value.items()}
    return [_untagged(each) for each in value] if isinstance(value, list) else value


def _vector(values: Any, name: str, length: int) -> Array:
    array = np.array(values, dtype=np.float64)
    if array.shape != (length,):
        raise BadInput(f"{name} has shape {array.shape}, not ({length},).")
    array.setflags(write=False)
    return array


def _frozen(array: Any) -> Any:
    array.setflags(write=False)
    return array


def _last_known(values: Array) -> float:
    known = np.flatnonzero(np.isfinite(values))
    return float(values[known[-1]]) if len(known) else math.nan
