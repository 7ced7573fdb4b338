"""The folder of a run: what people read, and what is read back to the last bit.

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
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array
from mppfl.data import unchangeable
from mppfl.errors import BadFile, BadInput
from mppfl.experiment.provenance import Provenance
from mppfl.experiment.run import PER_ACCOUNT, Accounts, Run
from mppfl.files import write_whole
from mppfl.network import SocialGraph
from mppfl.training import PER_CLIENT, PER_ROUND, History

KIND, FORMAT = "mppfl run", 1
SUMMARY = "run.json"
GRAPH_ARRAYS = ("data", "indices", "indptr", "strengths", "origin")


def save_run(run: Run, folder: str | Path) -> Path:
    """Writes the run as a folder that people can read, and `load_run` can. Each file is whole or not there."""
    folder = Path(folder)
    require_folder(folder)
    contents = {
        "rounds.csv": _rounds_csv(run),
        "clients.csv": _clients_csv(run),
        "budgets.csv": _matrix_csv(run, "budgets"),
        "payments.csv": _matrix_csv(run, "payments"),
        "links.csv": _links_csv(run),
        "weights.npz": _npz({"weights": run.weights}),
        "arrays.npz": _npz(_arrays(run)),
    }
    for name, content in contents.items():
        write_whole(folder / name, content)
    # Last, with the checksums of all others: a folder left half-written is refused, never taken for a run.
    summary = _summary(run) | {"files": {name: _sha256(content) for name, content in contents.items()}}
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
    """The folder itself if it is a run, else the runs directly inside it, in the order in which they were saved."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BadFile(f"{folder}: no such folder. Give the folder of a run, as `mppfl train` writes it.")
    if (folder / SUMMARY).is_file():
        return (folder,)
    saved = sorted(folder.glob(f"*/{SUMMARY}"), key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
    inside = tuple(path.parent for path in saved)
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
    headings = [*PER_ROUND, "payments", "taking_part", "server_cost", "welfare", "engine", "refused", "diverged"]
    columns = [rounds[name].tolist() for name in PER_ROUND]
    columns += [clients["payments"].sum(axis=1).tolist(), clients["participating"].sum(axis=1).tolist()]
    columns += [run.server_cost.tolist(), run.welfare.tolist(), list(run.history.engine)]
    columns += [[" ".join(names) for names in listed] for listed in (run.history.refused, run.history.diverged)]
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
        "diverged": run.history.diverged,
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
    data, indices, indptr, strengths, origin = (unchangeable(arrays[f"graph.{name}"]) for name in GRAPH_ARRAYS)
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
            tuple(tuple(diverged) for diverged in facts.get("diverged", [()] * len(facts["engine"]))),
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
