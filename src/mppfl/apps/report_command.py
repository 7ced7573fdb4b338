"""mppfl report: trainings as one page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mppfl.apps import inputs as ask


def report_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or a folder with several runs in it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("report.html"),
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Write one self-contained HTML page: curves, prices, the social graph, exposure, accounts, payments."""
    from mppfl.errors import BadInput
    from mppfl.results.report import write_report
    from mppfl.results.run_folder import find_runs, load_run

    if output.is_dir():
        raise BadInput(f"--output={str(output)!r} is a directory. Name a file in it, such as report.html.")
    if output.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"--output={str(output)!r} must end in .html.")
    found = list(dict.fromkeys(path.resolve() for folder in folders for path in find_runs(folder)))
    with ask.working("writing the report"):
        runs = [load_run(path) for path in found]
        written = write_report(runs, output)
    if json:
        ask.print_json({"path": str(written), "runs": [run.name for run in runs], "bytes": written.stat().st_size})
        return
    typer.echo(f"{written}")
