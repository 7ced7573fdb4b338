"""One small file per cell, and one per data set for the trials that fixed its unit; whole or not there.

    <dataset>-<partition>-n<clients>-seed<k>.json   arms of a cell, by "mechanism/aggregation"
    unit-<dataset>.json                             trials of the unit, in the order they were trained
    unavailable-<dataset>.json                      its files were not there when it was to be measured

A file carries its full configuration; one that was measured with another is refused, never mixed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mppfl.errors import BadFile
from mppfl.files import write_whole
from reproduction.cells import ArmName, Cell, arm_name, arms_of, configuration, fingerprint
from reproduction.settings import Setting

FORMAT = 1
NOT_TRAINED, NO_DATA, NO_FILES = "not yet trained", "data not available", "no files here"  # why a cell is not measured
MEANING = "share of the test examples that the model after the last round gets right; best: over evaluated rounds"


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one training.

    unit              ρ of the training = unit · ρ of the game; None without noise
    accuracy          test accuracy after the last round; `curve` has the evaluated rounds
    clip_norm         𝒮, median length of the first round's updates before clipping
    fixed_budget      ρ_0 of the game, where one budget holds for all
    share_clipped     share of updates that were shortened, mean over rounds
    budgets           of the game among those participating, in the first, the middle and the last round
    dp_epsilon        nominal, of the client who spent most; None without noise
    num_examples      seen in training: rounds · epochs · examples
    seconds           this arm's share of the wall time of its batch, compilation included; of all runs that it took
    arms_together     how many arms the batch had
    started           when its first round began, UTC, also where later runs went on with it
    diverged          updates, over clients and rounds, that held NaN or infinity and were left out; those of trainings
                      that count them as 0 are named in their log alone
    """

    arm: ArmName
    unit: float | None
    accuracy: float
    best_accuracy: float
    curve: dict[str, list[float]]
    clip_norm: float
    fixed_budget: float | None
    share_clipped: float | None
    budgets: dict[str, list[float | None]]
    dp_epsilon: float | None
    dp_delta: float
    num_rounds: int
    num_examples: int
    seconds: float
    arms_together: int
    samples_per_second: float
    tflop_per_second: float
    gflop_per_example: float
    engine: str
    precision: str
    device: str
    versions: dict[str, str]
    commit: str
    source: str
    started: str
    diverged: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"arm": str(self.arm)}


def cell_path(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.name}.json"


def unit_path(folder: Path, dataset: str) -> Path:
    return folder / f"unit-{dataset}.json"


def read_cell(folder: Path, cell: Cell, setting: Setting) -> dict[ArmName, Measured]:
    """Measured arms of a cell; none where there is no file. Refuses a file of another configuration."""
    return {found.arm: found for found in _read(cell_path(folder, cell), configuration(cell, setting), "arms")}


def seeds_on_file(folder: Path, cell: Cell, setting: Setting) -> dict[int, dict[ArmName, Measured]]:
    """What is measured of the cell under every seed on file."""
    pattern = re.compile(re.escape(cell.name.removesuffix(f"seed{cell.seed}")) + r"seed(\d+)\.json")
    matches = [pattern.fullmatch(path.name) for path in folder.glob("*.json")]
    seeds = sorted(int(match[1]) for match in matches if match)
    return {
        seed: read_cell(folder, Cell(cell.dataset, cell.partition, cell.num_clients, seed), setting) for seed in seeds
    }


def read_trials(folder: Path, at: Cell, setting: Setting) -> list[Measured]:
    """Trials of the data set's unit, all trained on the cell `at`; none where there is no file."""
    return _read(unit_path(folder, at.dataset), configuration(at, setting), "trials")


def add_arms(folder: Path, cell: Cell, setting: Setting, found: Iterable[Measured]) -> None:
    """Adds arms to the cell's file. What is there by now stays, also from another run."""
    arms = {each.arm: each for each in found} | read_cell(folder, cell, setting)
    in_order = [arms.pop(arm) for arm in arms_of(cell) if arm in arms]
    _write(cell_path(folder, cell), configuration(cell, setting), "arms", [*in_order, *arms.values()], {})


def add_trials(
    folder: Path, at: Cell, setting: Setting, found: Sequence[Measured], units: Mapping[str, Any] | None = None
) -> None:
    """Adds trials, and what they say of the unit so far, to the data set's file."""
    trials = [*read_trials(folder, at, setting), *found]
    _write(unit_path(folder, at.dataset), configuration(at, setting), "trials", trials, {"units": dict(units or {})})


def note_unavailable(folder: Path, dataset: str) -> None:
    """Files that the data were not there, unless some of the data set was measured already."""
    if not any(name == dataset for name, _ in every_training(folder)):
        text = json.dumps({"format": FORMAT, "dataset": dataset, "reason": NO_DATA}, indent=1)
        write_whole(_unavailable_path(folder, dataset), f"{text}\n".encode())


def note_available(folder: Path, dataset: str) -> None:
    """Takes that back."""
    _unavailable_path(folder, dataset).unlink(missing_ok=True)


def is_unavailable(folder: Path, dataset: str) -> bool:
    """Whether the data could not be had. Files that are merely not on this machine are not noted."""
    return _unavailable_path(folder, dataset).exists()


def _unavailable_path(folder: Path, dataset: str) -> Path:
    return folder / f"unavailable-{dataset}.json"


def every_training(folder: Path) -> list[tuple[str, Measured]]:
    """Every training on file, once, with its data set, whatever its configuration: what there is to learn of speed."""
    found: dict[tuple[str, str, str, str], tuple[str, Measured]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text("utf-8"))
            facts, rows = content["configuration"], [*content.get("arms", ()), *content.get("trials", ())]
            for each in map(measured_from, rows):
                # The trial that fixed a unit stands in two files.
                found[content["fingerprint"], str(each.arm), str(each.unit), each.started] = (facts["dataset"], each)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the file of a figure; who reads a cell is told of one that is damaged
    return list(found.values())


def _write(path: Path, facts: dict[str, Any], kind: str, found: Sequence[Measured], more: Mapping[str, Any]) -> None:
    """One line for each training, so that a difference between two versions of a file can be read."""
    head = {"format": FORMAT, "fingerprint": fingerprint(facts), "configuration": facts, "accuracy": MEANING, **more}
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    rows = ",\n  ".join(json.dumps(each.as_dict(), ensure_ascii=False, allow_nan=False) for each in found)
    text = "{\n " + ",\n ".join([*lines, f'"{kind}": [\n  {rows}\n ]']) + "\n}\n"
    write_whole(path, text.encode())


def _read(path: Path, facts: dict[str, Any], kind: str) -> list[Measured]:
    try:
        content = json.loads(path.read_text("utf-8"))
        version, stored, rows = content["format"], content["configuration"], content[kind]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadFile(f"{path}: cannot be read as measured cells ({cause!r}). Restore it, or remove it.") from cause
    if version != FORMAT:
        raise BadFile(f"{path}: of format {version}, this version reads {FORMAT}. Measure it anew.")
    here = json.loads(json.dumps(facts))  # as a file gives it back: tuples are lists
    if stored != here:
        raise BadFile(f"{path}: measured with {_first_difference(stored, here)}. Move it away, or use another folder.")
    try:
        return [measured_from(row) for row in rows]
    except (KeyError, TypeError, ValueError) as cause:
        raise BadFile(f"{path}: an arm is not whole ({cause!r}). Restore the file, or remove it.") from cause


def _first_difference(stored: Any, here: Mapping[str, Any]) -> str:
    if not isinstance(stored, dict):
        return "no configuration at all"
    for key in dict.fromkeys([*here, *stored]):
        if stored.get(key) != here.get(key):
            return f"{key}={stored.get(key)!r}, here it is {here.get(key)!r}"
    return "another configuration"


def measured_from(row: Mapping[str, Any]) -> Measured:
    """What `Measured.as_dict` gave, from a file; KeyError, TypeError or ValueError where it cannot be."""
    known = {each.name: row[each.name] for each in fields(Measured) if each.name not in ("arm", "diverged")}
    if not isinstance(row["arm"], str):
        raise TypeError(f"arm={row['arm']!r}")
    found = Measured(**known, arm=arm_name(row["arm"]), diverged=row.get("diverged", 0))
    if not 0 <= found.accuracy <= 1 or not math.isfinite(found.seconds):
        raise ValueError(f"accuracy={found.accuracy}, seconds={found.seconds}")
    if found.unit is not None and not found.unit > 0:
        raise ValueError(f"unit={found.unit}")
    if len(found.curve["round"]) != len(found.curve["accuracy"]):
        raise ValueError("its curve has rounds without an accuracy")
    return found
