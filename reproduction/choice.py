"""What the paper leaves open for its VGGs, norm and augmentation: tried on the noiseless IID cell, and chosen once.

Every variant is trained without noise on the cell on which the unit is fixed; the one with the highest test accuracy
after the last round is taken for all cells of the data set. Each variant is filed in choice-<dataset>.json as soon as
it is done; those on file are not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mppfl.errors import BadFile, BadInput
from mppfl.files import write_whole
from reproduction.settings import SETTINGS, Setting
from reproduction.store import Measured, measured_from
from reproduction.units import place_of_unit

VARIANTS = tuple((norm, augmentation) for norm in ("group", "batch") for augmentation in ("none", "crop_and_flip"))
CHOICE_ROUNDS = 40  # enough to tell variants apart, and less than half of what a cell takes

Train = Callable[[Setting], Measured | None]


def is_open(setting: Setting) -> bool:
    """Whether the paper leaves norm and augmentation of this setting open."""
    return setting.model.startswith("vgg")


def choice_path(folder: Path, dataset: str) -> Path:
    return folder / f"choice-{dataset}.json"


def read_choice(folder: Path, dataset: str) -> dict[str, Any]:
    """What is on file: {"num_rounds", "variants": [...], "chosen": {"norm", "augmentation"} or None}."""
    path = choice_path(folder, dataset)
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _ = content["num_rounds"], content["variants"], content["chosen"]
        done = {(row["norm"], row["augmentation"]): measured_from(row).accuracy for row in content["variants"]}
    except FileNotFoundError:
        return {"num_rounds": None, "variants": [], "chosen": None}
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise BadFile(f"{path}: cannot be read as a choice ({cause!r}). Restore it, or remove it.") from cause
    if unknown := [each for each in done if each not in VARIANTS]:
        raise BadFile(f"{path}: {unknown[0]} is no variant that is tried. Restore it, or remove it.")
    if content["chosen"] != _best(done):
        raise BadFile(
            f"{path}: its choice {content['chosen']} is not what its variants say, {_best(done)}. Restore it, or "
            "remove it."
        )
    return content


def settings_of(folder: str | Path, settings: Mapping[str, Setting] = SETTINGS) -> dict[str, Setting]:
    """The settings with norm and augmentation as the folder's files chose them; as they stand where none is chosen."""
    found = dict(settings)
    for name, setting in settings.items():
        chosen = read_choice(Path(folder), name)["chosen"] if is_open(setting) else None
        if chosen is not None:
            found[name] = replace(setting, **chosen)
    return found


def missing_variants(folder: Path, setting: Setting) -> list[tuple[str, str]]:
    """Norms and augmentations that are still to be tried for it."""
    done = {(row["norm"], row["augmentation"]) for row in read_choice(folder, setting.dataset)["variants"]}
    return [each for each in VARIANTS if each not in done] if is_open(setting) else []


def trained_for_choices(folder: Path) -> list[tuple[str, Measured]]:
    """Every variant on file, with its data set."""
    found: list[tuple[str, Measured]] = []
    for name in SETTINGS:
        found += [(name, measured_from(row)) for row in read_choice(folder, name)["variants"]]
    return found


def settle_choice(
    folder: Path,
    setting: Setting,
    train: Train,
    tell: Callable[[str], None],
    filed: Callable[[Setting], None] = lambda variant: None,
) -> Setting | None:
    """The setting as chosen, after `train` was called for each variant that is not on file; None where it gave none.

    `filed` hears of every variant that is on the disk.
    """
    num_rounds = min(CHOICE_ROUNDS, setting.num_rounds)
    content = read_choice(folder, setting.dataset)
    _require_alike(choice_path(folder, setting.dataset), content, setting, num_rounds)
    done = {(row["norm"], row["augmentation"]): row for row in content["variants"]}
    for norm, augmentation in VARIANTS:
        if (norm, augmentation) in done:
            continue
        variant = replace(setting, norm=norm, augmentation=augmentation, num_rounds=num_rounds)
        found = train(variant)
        if found is None:
            return None
        done[norm, augmentation] = {"norm": norm, "augmentation": augmentation} | found.as_dict()
        accuracy = {variant: measured_from(row).accuracy for variant, row in done.items()}
        content = {"dataset": setting.dataset, "cell": place_of_unit(setting.dataset).path, "num_rounds": num_rounds,
                   "variants": list(done.values()), "chosen": _best(accuracy)}  # fmt: skip
        write_whole(choice_path(folder, setting.dataset), f"{json.dumps(content, indent=1)}\n".encode())
        filed(variant)
        tell(f"{setting.dataset}: {norm} norm, augmentation {augmentation}: {100 * found.accuracy:.2f} %")
    return replace(setting, **content["chosen"])


def _require_alike(path: Path, content: Mapping[str, Any], setting: Setting, num_rounds: int) -> None:
    """Variants of another length or of fewer examples, as a rehearsal trains them, decide nothing here."""
    if content["num_rounds"] not in (None, num_rounds):
        raise BadInput(
            f"{path} has variants of {content['num_rounds']} rounds, not {num_rounds}. Use another folder, or move the "
            "file away."
        )
    examples = num_rounds * setting.local_epochs * setting.num_train
    other = [row["num_examples"] for row in content["variants"] if row.get("num_examples") != examples]
    if other:
        raise BadInput(
            f"{path} has a variant trained on {other[0]} examples, not {examples}. Use another folder, or move the "
            "file away."
        )


def _best(accuracy: Mapping[tuple[str, str], float]) -> dict[str, str] | None:
    """None while variants are missing: a choice among some is no choice."""
    if set(accuracy) != set(VARIANTS):
        return None
    norm, augmentation = max(accuracy, key=lambda variant: accuracy[variant])
    return {"norm": norm, "augmentation": augmentation}
