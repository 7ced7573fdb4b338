"""mppfl report (alone: one file a command): trainings as one page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mppfl.cli.inputs import JsonOption, check_target, print_json, working
from mppfl.errors import BadInput


def report_command(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, or a folder of several runs.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("report.html"),
    json: JsonOption = False,
) -> None:
    """Write one self-contained HTML page: curves, prices, the social graph, exposure, accounts, payments."""
    from mppfl.experiment import find_runs, load_run
    from mppfl.experiment.report import write_report

    check_target(output, ".html", ".htm", option="--output")
    if not folders:
        raise BadInput("report needs a folder of a run, as written by `mppfl train --output`.")
    with working("writing the report"):
        paths = dict.fromkeys(path.resolve() for folder in folders for path in find_runs(folder))
        runs = [load_run(path) for path in paths]
        page = write_report(runs, output)
    if json:
        print_json({"path": str(page), "runs": [run.name for run in runs], "bytes": page.stat().st_size})
    else:
        typer.echo(str(page))
