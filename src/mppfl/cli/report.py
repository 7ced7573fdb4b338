"""mppfl report: trainings as one page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mppfl.cli import inputs as ask


def report_command(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or a folder with several runs in it.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("report.html"),
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Write one self-contained HTML page: curves, prices, the social graph, exposure, accounts, payments."""
    from mppfl.errors import BadInput

    if output.is_dir():
        raise BadInput(f"--output={str(output)!r} is a directory. Name a file in it, such as report.html.")
    if output.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"--output={str(output)!r} must end in .html.")
    with ask.working("writing the report"):
        written, names = _of_runs(folders or [], output)
    if json:
        ask.print_json({"path": str(written), "runs": names, "bytes": written.stat().st_size})
        return
    typer.echo(f"{written}")


def _of_runs(folders: list[Path], output: Path) -> tuple[Path, list[str]]:
    from mppfl.errors import BadInput
    from mppfl.experiment import find_runs, load_run
    from mppfl.experiment.report import write_report

    if not folders:
        raise BadInput("report needs a folder of a run, as written by `mppfl train --output`.")
    found = list(dict.fromkeys(path.resolve() for folder in folders for path in find_runs(folder)))
    runs = [load_run(path) for path in found]
    return write_report(runs, output), [run.name for run in runs]
