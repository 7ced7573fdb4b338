"""mppfl report: trainings, or the paper measured again, as one page to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mppfl.apps import inputs as ask

PAPER = Path("results/paper")


def report_command(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or a folder with several runs in it.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("report.html"),
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help=f"The paper measured again instead, from one FOLDER of results; default: {PAPER}."
        ),
    ] = False,
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
        written, told = _of_paper(folders or [PAPER], output) if paper else _of_runs(folders or [], output)
    if json:
        ask.print_json({"path": str(written), **told, "bytes": written.stat().st_size})
        return
    typer.echo(f"{written}")


def _of_runs(folders: list[Path], output: Path) -> tuple[Path, dict[str, Any]]:
    from mppfl.errors import BadInput
    from mppfl.results.report import write_report
    from mppfl.results.run_folder import find_runs, load_run

    if not folders:
        raise BadInput("report needs a folder of a run, as written by `mppfl train --output`, or --paper.")
    found = list(dict.fromkeys(path.resolve() for folder in folders for path in find_runs(folder)))
    runs = [load_run(path) for path in found]
    return write_report(runs, output), {"runs": [run.name for run in runs]}


def _of_paper(folders: list[Path], output: Path) -> tuple[Path, dict[str, Any]]:
    from mppfl.errors import BadInput
    from mppfl.results.paper.document import make_page

    if len(folders) > 1:
        raise BadInput(f"--paper makes a page of one folder of results, and {len(folders)} are given. Name one.")
    (folder,) = folders
    if not any(path for pattern in ("fig-*.json", "unit-*.json", "*-seed*.json") for path in folder.glob(pattern)):
        raise BadInput(f"{str(folder)!r} holds no results of the paper. Make some with: mppfl reproduce --folder ...")
    return make_page(folder, output), {"folder": str(folder)}
