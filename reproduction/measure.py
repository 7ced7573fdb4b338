"""measure: trains what is missing of the paper's cells, side by side, and files each arm as soon as it is done.

    python -m reproduction.measure --data DIR --device cuda --only fashion-mnist --minutes 8

Needs PyTorch, NumPy and SciPy alone, so that a borrowed machine can run it. Arms that are not at their end when time is
up, or when the run is killed, go on from their last checkpoint in the next one (in_flight.py).
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, cast

from mppfl.arrays import require_count, require_number
from mppfl.data import Dataset, Examples, find_files, load_dataset
from mppfl.errors import BadInput, MppflError
from mppfl.experiment import Provenance, provenance_here
from mppfl.training import Precision, TrainingConfig
from reproduction.cells import (
    CELLS,
    NOISELESS,
    ArmName,
    Case,
    Cell,
    all_cells,
    arms_of,
    chosen_cells,
    clients_of,
    gflop_per_example,
)
from reproduction.choice import is_open, settings_of, settle_choice, trained_for_choices
from reproduction.in_flight import InFlight, in_flight
from reproduction.settings import SETTINGS, Setting
from reproduction.store import (
    NO_DATA,
    NO_FILES,
    Measured,
    add_arms,
    add_trials,
    every_training,
    is_unavailable,
    note_available,
    note_unavailable,
    read_cell,
    read_trials,
)
from reproduction.units import Job, next_trials, place_of_unit, reusable, units_of

RESERVE = 0.9  # of the time left that an estimate may fill
LEAST_SECONDS = 100.0  # that must be left to begin arms which may not end in time: less would go into compiling

Tell = Callable[[str], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """What one call of `measure` did.

    trained        arms, trials of units included
    cells          cells that are now whole
    unavailable    data sets whose files are not there
    out_of_time    whether something was left for another run
    """

    trained: int
    cells: tuple[Cell, ...]
    unavailable: tuple[str, ...]
    out_of_time: bool
    seconds: float


def measure(
    cells: Sequence[Cell] = CELLS,
    folder: str | Path = "reproduction/results",
    *,
    device: str = "cpu",
    precision: str | None = None,
    minutes: float | None = None,
    at_most_arms: int | None = None,
    arms_together: int | None = None,
    data: str | Path | None = None,
    settings: Mapping[str, Setting] = SETTINGS,
    tell: Tell = log.info,
) -> Done:
    """Trains the arms that the cells' files lack, in order; writes each batch of arms when it is done.

    What the paper leaves open in a data set comes first, then its unit, then its cells.

    precision      default: bf16 on a GPU, float32 on a CPU
    minutes        take only as many arms as should fit by what earlier files took on this device, but at least one;
                   those that do not end in time are stopped, and the next run goes on with them
    at_most_arms   the same by number
    arms_together  take so many side by side, whether they should end in time or not
    data           folder of the official files; default: MPPFL_DATA
    settings       other than the paper's are a rehearsal: their files cannot be mixed with real ones
    """
    from mppfl.device import find_device

    find_device(device)
    chosen = default_precision(device) if precision is None else precision
    TrainingConfig(device=device, precision=cast(Precision, chosen))  # refuses what is not known, before any loading
    deadline = math.inf
    if minutes is not None:
        deadline = time.monotonic() + 60 * require_number(minutes, "minutes", 0.0, math.inf)
    most = math.inf if at_most_arms is None else require_count(at_most_arms, "at_most_arms")
    together = None if arms_together is None else require_count(arms_together, "arms_together")
    origin = provenance_here(device)
    stopped = in_flight(Path(folder), origin, chosen)
    errand = _Errand(Path(folder), device, chosen, origin, stopped, deadline, most, together, tell)
    began = time.monotonic()
    unavailable, out_of_time = [], False
    for name, group in groupby(cells, key=lambda cell: cell.dataset):
        setting = settings_of(errand.folder, settings)[name]
        several = [cell for cell in group if missing_arms(errand.folder, cell, setting)]
        if not several:
            continue
        dataset = loaded(setting, data)
        if dataset is None:
            note_unavailable(errand.folder, name)
            tell(f"{name}: {why_not_measured(errand.folder, name)}")
            unavailable.append(name)
            continue
        note_available(errand.folder, name)
        settled = _settle_choice(errand, setting, dataset) if is_open(setting) else setting
        if (
            settled is None
            or not _settle_units(errand, settled, dataset)
            or not all(_measure_cell(errand, cell, settled, dataset) for cell in several)
        ):
            out_of_time = True
            break
    now = settings_of(errand.folder, settings)
    whole = tuple(cell for cell in cells if not missing_arms(errand.folder, cell, now[cell.dataset]))
    return Done(errand.trained, whole, tuple(unavailable), out_of_time, time.monotonic() - began)


def default_precision(device: str) -> str:
    """The engine's fast one where there is a GPU."""
    return "bf16" if device.startswith("cuda") else "float32"


def missing_arms(folder: Path, cell: Cell, setting: Setting) -> list[ArmName]:
    """Arms of the cell that no file has."""
    found = read_cell(folder, cell, setting)
    return [arm for arm in arms_of(cell) if arm not in found]


def why_not_measured(folder: Path, dataset: str) -> str:
    """Of a data set whose files are not here: whether they could never be had, or were elsewhere."""
    return f"not measured: {NO_DATA if is_unavailable(folder, dataset) else NO_FILES}"


def loaded(setting: Setting, folder: str | Path | None) -> Dataset | None:
    """The data set, as many of its first examples as the setting has; None where no files are there."""
    if find_files(setting.dataset, folder) is None:
        return None
    dataset = load_dataset(setting.dataset, folder, source="files")
    return replace(
        dataset,
        train=_first(dataset.train, setting.num_train, f"{setting.dataset}, training"),
        test=_first(dataset.test, setting.num_test, f"{setting.dataset}, test"),
    )


def _first(examples: Examples, size: int, what: str) -> Examples:
    if len(examples) < size:
        raise BadInput(f"{what}: {len(examples):,} examples are fewer than the setting's {size:,}.")
    return examples if len(examples) == size else Examples(examples.features[:size], examples.labels[:size])


# ---- what is trained next -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Errand:
    """One call of `measure`: where, on what, until when, and how much it has trained."""

    folder: Path
    device: str
    precision: str
    origin: Provenance
    stopped: InFlight
    deadline: float
    arms_left: float
    arms_together: int | None
    tell: Tell
    trained: int = 0

    @property
    def device_name(self) -> str:
        return self.origin.gpu or self.origin.cpu

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()


def _settle_choice(errand: _Errand, setting: Setting, dataset: Dataset) -> Setting | None:
    """The setting with what the paper leaves open, chosen on the cell of the unit; None where time ran out before."""
    cell = place_of_unit(setting.dataset)

    def train(variant: Setting) -> Measured | None:
        found = _train_some(errand, Case(cell, variant, clients_of(cell, variant, dataset)), [(NOISELESS, None)])
        return found[0] if found else None

    def forget(variant: Setting) -> None:
        errand.stopped.drop(cell, variant, [(NOISELESS, None)])

    return settle_choice(errand.folder, setting, train, errand.tell, forget)


def _settle_units(errand: _Errand, setting: Setting, dataset: Dataset) -> bool:
    """Trains trials until the data set's units are fixed; False where time ran out before."""
    at = place_of_unit(setting.dataset)
    folder = errand.folder
    case: Case | None = None
    while jobs := next_trials(setting.dataset, trials := read_trials(folder, at, setting)):
        case = case or Case(at, setting, clients_of(at, setting, dataset))
        found = _train_some(errand, case, jobs)
        if not found:
            return False
        told = {name: asdict(unit) for name, unit in units_of(setting.dataset, [*trials, *found]).items()}
        add_trials(folder, at, setting, found, told)
        errand.stopped.drop(at, setting, [(each.arm, each.unit) for each in found])
        for name, unit in told.items():
            errand.tell(f"{setting.dataset}, {name}: unit {unit['unit']:g} ({unit['why']})")
    return True


def _measure_cell(errand: _Errand, cell: Cell, setting: Setting, dataset: Dataset) -> bool:
    """Trains the arms that the cell lacks; False where time ran out before."""
    folder, at = errand.folder, place_of_unit(cell.dataset)
    trials = read_trials(folder, at, setting)
    units = units_of(cell.dataset, trials)
    if cell == at:  # the trial that fixed a unit is the cell's arm
        wanted = missing_arms(folder, cell, setting)
        again = [each for each in reusable(cell.dataset, trials) if each.arm in wanted]
        if again:
            add_arms(folder, cell, setting, again)
    case: Case | None = None
    while missing := missing_arms(folder, cell, setting):
        case = case or Case(cell, setting, clients_of(cell, setting, dataset))
        jobs: list[Job] = [
            (arm, None if arm.mechanism == "noiseless" else units[arm.aggregation].unit) for arm in missing
        ]
        found = _train_some(errand, case, jobs)
        if not found:
            return False
        add_arms(folder, cell, setting, found)
        errand.stopped.drop(cell, setting, [(each.arm, each.unit) for each in found])
    errand.tell(f"{cell.path}: measured")
    return True


def _train_some(errand: _Errand, case: Case, jobs: Sequence[Job]) -> list[Measured]:
    """Trains as many of the jobs as fit into what is left, side by side; none where nothing fits or ends any more.

    Those that were stopped before go on first.
    """
    if waiting := errand.stopped.waiting(case.cell, case.setting, jobs):
        jobs, count = waiting, int(min(len(waiting), errand.arms_left, errand.arms_together or math.inf))
        errand.tell(f"{case.cell.path}: {count} arms go on from where they were stopped")
    else:
        count = _fitting(errand, case, len(jobs))
    if count == 0:
        return []
    from reproduction.batch import trained

    found = trained(
        case, jobs[:count], errand.device, errand.precision, errand.origin, errand.deadline, errand.tell, errand.stopped
    )
    errand.trained += len(found)
    errand.arms_left -= len(found)
    return found


def _fitting(errand: _Errand, case: Case, wanted: int) -> int:
    """How many arms should fit, by what arms took on this device before."""
    most = int(min(wanted, errand.arms_left, errand.arms_together or math.inf))
    if most == 0 or math.isinf(errand.deadline):
        return most
    left = max(0.0, errand.seconds_left)
    if errand.arms_together is not None:
        return most if left > LEAST_SECONDS or errand.trained == 0 else 0
    each = seconds_per_arm(errand.folder, case.setting, errand.device_name, errand.precision)
    if each is None:
        errand.tell(f"{case.cell.path}: speed not known on {errand.device_name}")
        return most if left > 0 or errand.trained == 0 else 0
    fits = int(RESERVE * left / each)
    count = min(most, max(fits, 0 if errand.trained else 1))
    errand.tell(f"{case.cell.path}: about {each:.0f} s for an arm, {left:.0f} s left: {count} of {wanted} arms")
    return count


def seconds_per_arm(folder: Path, setting: Setting, device_name: str, precision: str) -> float | None:
    """What one more arm should take, from arms of this data set on such a device; else by arithmetic from others.

    None where nothing was measured on such a device.
    """
    examples = setting.num_rounds * setting.local_epochs * setting.num_train
    alike = [
        (dataset, each)
        for dataset, each in every_training(folder)
        if (each.device, each.precision) == (device_name, precision)
    ]
    same = [each.seconds / each.num_examples for dataset, each in alike if dataset == setting.dataset]
    same = same or [
        each.seconds / each.num_examples
        for dataset, each in trained_for_choices(folder)
        if (dataset, each.device, each.precision) == (setting.dataset, device_name, precision)
    ]
    if same:
        return examples * median(same)
    if not alike:
        return None
    per_gflop = median(each.seconds / each.num_examples / each.gflop_per_example for _, each in alike)
    return examples * per_gflop * gflop_per_example(setting)


# ---- the command --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module; `python -m reproduction` is the one for people."""
    parser = argparse.ArgumentParser(prog="measure", description="Train what is missing of the paper's cells.")
    parser.add_argument("--data", type=Path, help="folder of the official files; default: MPPFL_DATA")
    parser.add_argument("--folder", type=Path, default=Path("reproduction/results"), help="where results are kept")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", help="bf16, tf32 or float32; default: bf16 on a GPU, float32 on a CPU")
    parser.add_argument("--only", action="append", default=[], help="as cifar-10/dir0.3; may be repeated")
    parser.add_argument("--seeds", type=int, help="seeds of every cell; default: as planned")
    parser.add_argument("--minutes", type=float, help="take only what should fit")
    parser.add_argument("--at-most-arms", type=int, help="train at most so many arms")
    parser.add_argument("--arms-together", type=int, help="train so many side by side, whether they should end in time")
    parser.add_argument("--rounds", type=int, help="rehearse with fewer rounds")
    parser.add_argument("--examples", type=int, help="rehearse with the first so many training and test examples")
    given = parser.parse_args(arguments)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        done = measure(
            chosen_cells(given.only, all_cells(given.seeds)),
            given.folder,
            device=given.device,
            precision=given.precision,
            minutes=given.minutes,
            at_most_arms=given.at_most_arms,
            arms_together=given.arms_together,
            data=given.data,
            settings=rehearsal(given.rounds, given.examples),
            tell=tell,
        )
    except MppflError as error:
        tell(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        tell("stopped: what was in training goes on from its last whole round. Run it again.")
        return 130
    more = "; more is left for another run" if done.out_of_time else ""
    print(f"{done.trained} arms trained in {done.seconds:.0f} s, {len(done.cells)} cells measured{more}")
    return 0


def rehearsal(num_rounds: int | None, num_examples: int | None) -> dict[str, Setting]:
    """The paper's settings, cut down where asked; what they give is refused among real results."""
    changes: dict[str, Any] = {}
    if num_rounds is not None:
        changes["num_rounds"] = require_count(num_rounds, "rounds")
    if num_examples is not None:
        changes |= dict.fromkeys(("num_train", "num_test"), require_count(num_examples, "examples"))
    return {name: replace(setting, **changes) for name, setting in SETTINGS.items()}


if __name__ == "__main__":
    sys.exit(main())
