"""mppfl data (alone: one file a command): list, check and fetch data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli.inputs import JsonOption, print_json, print_lines, working
from mppfl.errors import BadInput

if TYPE_CHECKING:
    from mppfl.data import Dataset

app = typer.Typer(help="List, check and fetch data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A name from `mppfl data list`, or the path of an .npz of your own.")]
FolderOption = Annotated[Path | None, typer.Option(help="Folder of the files; default: the one in MPPFL_DATA.")]


@app.command("list")
def list_command(folder: FolderOption = None, json: JsonOption = False) -> None:
    """List the data sets known by name, and which of them are here. Looks for files, but does not read them."""
    from mppfl.data import KNOWN, find_files, what_is_missing

    rows, in_part = [], {}
    for dataset in KNOWN.values():
        files = find_files(dataset.name, folder)
        here = "built in" if dataset.name == "digits" else files.form.what if files else None
        if files and files.missing:
            here, in_part[dataset.name] = None, what_is_missing(dataset.name, files)
        rows.append(
            {
                "name": dataset.name,
                "what": dataset.what,
                "num_train": sum(dataset.train_counts),
                "num_test": sum(dataset.test_counts),
                "num_classes": dataset.num_classes,
                "shape": dataset.shape,
                "licence": dataset.licence,
                "source": dataset.source,
                "here": here,
                "folder": str(files.folder) if files else None,
                "missing": list(files.missing) if files else [],
            }
        )
    if json:
        print_json({"data_sets": rows})
        return
    typer.echo(f"{'name':<16}{'train':>8}{'test':>8}{'classes':>9}  {'here':<15}what")
    for row in rows:
        counts = f"{row['num_train']:>8,}{row['num_test']:>8,}{row['num_classes']:>9}"
        shown = "in part" if row["name"] in in_part else row["here"] or "-"
        typer.echo(f"{row['name']:<16}{counts}  {shown:<15}{row['what']}")
    typer.echo()
    for line in in_part.values():
        typer.echo(f"{line}. Fetch what is missing, or remove the rest.\n")
    for row in rows:
        typer.echo(f"{row['name']:<16}{row['licence']}; {row['source']}")


@app.command("check")
def check_command(name: Name, folder: FolderOption = None, json: JsonOption = False) -> None:
    """Read a data set that is here, verify it, and describe it. Nothing is fetched."""
    from mppfl.data import load_dataset

    with working(f"reading {name}"):
        facts = _facts(load_dataset(name, folder, source="files"))
    if json:
        print_json(facts)
        return
    shape = " x ".join(map(str, facts["shape"]))
    lines = {
        "data set": facts["name"],
        "from": facts["provenance"],
        "examples": f"{facts['num_train']:,} to train, {facts['num_test']:,} to test; {shape}, {facts['stored_as']}",
        "standardised": f"mean {_figures(facts['mean'])}, standard deviation {_figures(facts['std'])}",
        "users": f"{facts['num_users']:,}" if facts["num_users"] else "not stated",
        "classes": f"{facts['num_classes']:,}",
    }
    print_lines(lines)
    typer.echo(f"{'':<16}{'train':>8}{'test':>8}")
    for row in facts["classes"]:
        typer.echo(f"  {row['name']:<14}{row['num_train']:>8,}{row['num_test']:>8,}")
    typer.echo("sound")


@app.command("get")
def get_command(name: Name, folder: FolderOption = None, json: JsonOption = False) -> None:
    """Fetch a data set from the Hugging Face hub into FOLDER/NAME as .npz files. Needs the extra "hub" of mppfl."""
    import os

    from mppfl.data import FILES, VARIABLE, known_set, load_dataset, write_known_npz

    if not known_set(name).hub:
        raise BadInput(f"{name} is built in; there is nothing to get.")
    root = folder or os.environ.get(VARIABLE)
    if not root:
        raise BadInput(f"no folder to put {name} into. Give --folder, or set {VARIABLE}.")
    target = Path(root).expanduser() / name
    present = [target / file for file in FILES if (target / file).exists()]
    if present:
        raise BadInput(f"{present[0]} is there already. Remove it first, or check it: mppfl data check {name}.")
    with working(f"fetching {name}"):
        dataset = load_dataset(name, source="hub")
        paths = write_known_npz(dataset, target)
    if json:
        print_json({"paths": list(map(str, paths)), **_facts(dataset)})
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
