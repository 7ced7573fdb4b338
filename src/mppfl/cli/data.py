"""mppfl data: which data sets there are, whether those here are sound, and how to get the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask

if TYPE_CHECKING:
    from mppfl.data import Dataset

app = typer.Typer(help="List, check and get data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A name from `mppfl data list`, or the path of an .npz of your own.")]
FolderOption = Annotated[
    Path | None, typer.Option("--folder", help="Where the files lie; without it, the folder in MPPFL_DATA.")
]


@app.command("list")
def list_command(folder: FolderOption = None, json: ask.JsonOption = False) -> None:
    """The data sets known by name, and which of them are here. Looks for files, but does not read them."""
    from mppfl.data import KNOWN, find_files, what_is_missing

    rows, in_part = [], {}
    for known in KNOWN.values():
        found = find_files(known.name, folder)
        here = "built in" if known.name == "digits" else found.form.what if found else None
        if found and found.missing:
            here, in_part[known.name] = None, what_is_missing(known.name, found)
        rows.append(
            {
                "name": known.name,
                "what": known.what,
                "num_train": sum(known.train_counts),
                "num_test": sum(known.test_counts),
                "num_classes": known.num_classes,
                "shape": known.shape,
                "licence": known.licence,
                "source": known.source,
                "here": here,
                "folder": str(found.folder) if found else None,
                "missing": list(found.missing) if found else [],
            }
        )
    if json:
        ask.print_json({"data_sets": rows})
        return
    typer.echo(f"{'name':<16}{'train':>8}{'test':>8}{'classes':>9}  {'here':<15}what")
    for row in rows:
        counts = f"{row['num_train']:>8,}{row['num_test']:>8,}{row['num_classes']:>9}"
        shown = "in part" if row["name"] in in_part else row["here"] or "-"
        typer.echo(f"{row['name']:<16}{counts}  {shown:<15}{row['what']}")
    typer.echo()
    for line in in_part.values():
        typer.echo(f"{line}. Fetch what is missing, or remove the rest.")
    if in_part:
        typer.echo()
    for row in rows:
        typer.echo(f"{row['name']:<16}{row['licence']}; {row['source']}")


@app.command("check")
def check_command(name: Name, folder: FolderOption = None, json: ask.JsonOption = False) -> None:
    """Read a data set here, verify it, and tell what it holds. Nothing is fetched."""
    from mppfl.data import load_data

    with ask.working(f"reading {name}"):
        found = _facts(load_data(name, folder, source="files"))
    if json:
        ask.print_json(found)
        return
    shape = " x ".join(map(str, found["shape"]))
    lines = {
        "data set": found["name"],
        "from": found["provenance"],
        "examples": f"{found['num_train']:,} to train, {found['num_test']:,} to test; {shape}, {found['stored_as']}",
        "standardised": f"mean {_figures(found['mean'])}, standard deviation {_figures(found['std'])}",
        "users": f"{found['num_users']:,}" if found["num_users"] else "not stated",
        "classes": f"{found['num_classes']:,}",
    }
    for label, text in lines.items():
        typer.echo(f"{label:<16}{text}")
    typer.echo(f"{'':<16}{'train':>8}{'test':>8}")
    for row in found["classes"]:
        typer.echo(f"  {row['name']:<14}{row['num_train']:>8,}{row['num_test']:>8,}")
    typer.echo("sound")


@app.command("get")
def get_command(name: Name, folder: FolderOption = None, json: ask.JsonOption = False) -> None:
    """Fetch a data set from the Hugging Face hub into FOLDER/NAME as .npz files. Needs the extra "hub" of mppfl."""
    import os

    from mppfl.data import FILES, VARIABLE, known_set, load_data, write_known_npz
    from mppfl.errors import BadInput

    if known_set(name).hub is None:
        raise BadInput(f"{name} is built in; there is nothing to get.")
    root = folder or os.environ.get(VARIABLE)
    if not root:
        raise BadInput(f"no folder to put {name} into. Give --folder, or set {VARIABLE}.")
    target = Path(root).expanduser() / name
    present = [target / file for file in FILES if (target / file).exists()]
    if present:
        raise BadInput(f"{present[0]} is there already. Remove it first, or check it: mppfl data check {name}.")
    with ask.working(f"fetching {name}"):
        dataset = load_data(name, source="hub")
        paths = write_known_npz(dataset, target)
    if json:
        ask.print_json({"paths": list(map(str, paths)), **_facts(dataset)})
        return
    typer.echo(f"{target}: {len(dataset.train):,} examples to train, {len(dataset.test):,} to test")


def _facts(dataset: Dataset) -> dict[str, Any]:
    import numpy as np

    counts = [np.bincount(part.labels, minlength=dataset.num_classes) for part in (dataset.train, dataset.test)]
    return {
        "name": dataset.name,
        "provenance": dataset.provenance,
        "num_train": len(dataset.train),
        "num_test": len(dataset.test),
        "shape": dataset.train.features.shape[1:],
        "stored_as": str(dataset.train.features.dtype),
        "mean": dataset.mean,
        "std": dataset.std,
        "num_users": len(set(dataset.users)) if dataset.users else None,
        "num_classes": dataset.num_classes,
        "classes": [
            {"name": name, "num_train": int(train), "num_test": int(test)}
            for name, train, test in zip(dataset.class_names, *counts, strict=True)
        ],
    }


def _figures(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
