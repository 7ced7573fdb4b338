"""What the paper leaves open for its VGGs, chosen once: normalisation and augmentation, on the noiseless IID cell.

    python -m mppfl.results.paper.choose cifar-100 --data DIR --device cuda --rounds 40

Every variant is trained without noise on the cell on which the unit is fixed; the one with the highest test accuracy
after the last round is taken, and stands in settings.py for all cells of the data set. Each variant is filed in
choice-<dataset>.json as soon as it is done; those on file are not trained again.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mppfl.arrays import require_count
from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.learning.checkpoint import write_whole
from mppfl.network.device import find_device
from mppfl.results.paper.batch import Tell, trained
from mppfl.results.paper.cells import NOISELESS, Case, clients_of
from mppfl.results.paper.measure import default_precision, loaded
from mppfl.results.paper.settings import SETTINGS, Setting
from mppfl.results.paper.units import place_of_unit
from mppfl.results.provenance import provenance_here

VARIANTS = tuple((norm, augmentation) for norm in ("group", "batch") for augmentation in ("none", "crop_and_flip"))


def choice_path(folder: Path, dataset: str) -> Path:
    return folder / f"choice-{dataset}.json"


def read_choice(folder: Path, dataset: str) -> dict[str, Any]:
    """What is on file: {"num_rounds", "variants": [...], "chosen": {"norm", "augmentation"} or None}."""
    path = choice_path(folder, dataset)
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _ = content["num_rounds"], content["variants"], content["chosen"]
    except FileNotFoundError:
        return {"num_rounds": None, "variants": [], "chosen": None}
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadFile(f"{path}: cannot be read as a choice ({cause!r}). Restore it, or remove it.") from cause
    return content


def choose(
    dataset: str,
    folder: str | Path,
    num_rounds: int,
    *,
    device: str = "cpu",
    precision: str | None = None,
    data: str | Path | None = None,
    settings: dict[str, Setting] = SETTINGS,
    tell: Tell = print,
) -> dict[str, str]:
    """Trains the variants that are not on file, one after another, and returns the best of all."""
    require_count(num_rounds, "rounds")
    if dataset not in settings or not settings[dataset].model.startswith("vgg"):
        raise BadInput(f"{dataset!r} leaves nothing to choose: it is no data set that the paper trains a VGG on.")
    folder, cell = Path(folder), place_of_unit(dataset)
    content = read_choice(folder, dataset)
    if content["num_rounds"] not in (None, num_rounds):
        raise BadInput(
            f"{choice_path(folder, dataset)} has variants of {content['num_rounds']} rounds, not {num_rounds}. Keep to "
            "one number, or move the file away."
        )
    examples = loaded(settings[dataset], data)
    if examples is None:
        raise BadInput(f"{dataset}: data not available. Point --data at its files.")
    find_device(device)
    done = {(row["norm"], row["augmentation"]): row for row in content["variants"]}
    for norm, augmentation in VARIANTS:
        if (norm, augmentation) in done:
            continue
        setting = replace(settings[dataset], norm=norm, augmentation=augmentation, num_rounds=num_rounds)
        case = Case(cell, setting, clients_of(cell, setting, examples))
        how = precision or default_precision(device)
        (found,) = trained(case, [(NOISELESS, None)], device, how, provenance_here(device), tell=tell)
        done[norm, augmentation] = {"norm": norm, "augmentation": augmentation} | found.as_dict()
        content = {"dataset": dataset, "cell": cell.path, "num_rounds": num_rounds,
                   "variants": list(done.values()), "chosen": _best(done)}  # fmt: skip
        write_whole(choice_path(folder, dataset), f"{json.dumps(content, indent=1)}\n".encode())
        tell(f"{dataset}: {norm} norm, augmentation {augmentation}: {100 * found.accuracy:.2f} %")
    best = _best(done)
    if best is None:
        raise BadInput(f"{dataset}: no variant was trained.")
    return best


def _best(done: dict[tuple[str, str], dict[str, Any]]) -> dict[str, str] | None:
    """None while variants are missing: a choice among some is no choice."""
    if set(done) != set(VARIANTS):
        return None
    row = max(done.values(), key=lambda each: float(each["accuracy"]))
    return {"norm": row["norm"], "augmentation": row["augmentation"]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="choose", description="Choose what the paper leaves open for a VGG.")
    parser.add_argument("dataset")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--data", type=Path, help="folder of the official files; default: MPPFL_DATA")
    parser.add_argument("--folder", type=Path, default=Path("results/paper"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision")
    given = parser.parse_args(arguments)
    try:
        best = choose(
            given.dataset, given.folder, given.rounds, device=given.device, precision=given.precision, data=given.data,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
    except MppflError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{given.dataset}: norm {best['norm']}, augmentation {best['augmentation']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
