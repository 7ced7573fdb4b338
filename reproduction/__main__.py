"""python -m reproduction: the paper's tables and figures, measured again; and where that stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mppfl import cli as ask

if TYPE_CHECKING:
    from reproduction.cells import Cell
    from reproduction.measure import Done
    from reproduction.status import Status

TABLES, CURVES = ("table1", "table2"), "fig-curves"
FIGURES = ("fig-phi", "fig-cost", "fig-welfare", "fig-alpha", "fig-k", "fig-n")  # of the game: no training needed
KNOWN = (*TABLES, *FIGURES, CURVES, "all")
FIGURE_SEEDS = 30


def reproduce_command(
    what: Annotated[str, typer.Argument(metavar=f"[{'|'.join(KNOWN)}]", help="What to make again.")] = "all",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Cells, as cifar-10 or cifar-10/dir0.3/n20; may be repeated.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help=f"Seeds of every cell or figure; default: as planned, {FIGURE_SEEDS} for figures."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    precision: Annotated[
        str | None, typer.Option(help="bf16, tf32 or float32; default: bf16 on cuda, float32 on cpu.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes; the next run continues.")] = None,
    folder: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("reproduction/results"),
    data: Annotated[Path | None, typer.Option(help="Folder of the official files; default: MPPFL_DATA.")] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Train nothing; say what is measured and what is left.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Train nothing; write the results there as an HTML page.")
    ] = None,
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Reproduce the paper: train what its tables lack, compute what figures lack; each result is one small file.

    A figure of the same games with as many seeds or more is kept.
    """
    from mppfl.errors import BadInput

    if what not in KNOWN:
        raise BadInput(f"{what!r} is nothing to reproduce. Known: {', '.join(KNOWN)}.")
    if only and what in FIGURES:
        raise BadInput(f"--only chooses cells of tables, and {what} has none. Leave it out.")
    if seeds is not None and seeds < 1:
        raise BadInput(f"--seeds={seeds} must be at least 1.")
    _check_folder(folder)
    if page is not None:
        _write_page(folder, page, as_json=json)
        return
    cells = _cells(what, only or [], seeds)
    if status:
        _show_status(folder, data, cells, as_json=json)
        return
    # --only names what is to be trained, so that the figures of the game are not what was asked for.
    figures = [name for name in FIGURES if what in (name, "all") and not only]
    written, kept = _figures(figures, folder, seeds or FIGURE_SEEDS)
    done = _measured(cells, folder, device, precision, minutes, data) if cells else None
    if json:
        ask.print_json(_as_json(what, folder, written, kept, done))
        return
    for path in written:
        typer.echo(f"{path}")
        typer.echo(f"{_picture(path)}")
    for path, there in kept:
        typer.echo(f"{path}: kept, has {there} seeds of the same games. Remove it to have it made anew.")
    if written:
        typer.echo("next: `make docs` puts figures and verdicts into docs/reproduction.md, --page FILE into a page")
    if done is not None:
        _show(what, folder, done)
        if not done.trained and not done.cells:
            raise BadInput(f"nothing of {what} was measured: no data. Give --data DIR or set MPPFL_DATA.")


def _cells(what: str, only: list[str], seeds: int | None) -> list[Cell]:
    from reproduction.cells import all_cells, chosen_cells
    from reproduction.settings import CURVES_OF, printed_accuracy

    if what in FIGURES:
        return []
    cells = list(all_cells(seeds))
    if what == CURVES:
        cells = [cell for cell in cells if cell.dataset == CURVES_OF]
    if what in TABLES:
        table: Literal[1, 2] = 1 if what == "table1" else 2
        cells = [cell for cell in cells if printed_accuracy(table, cell.dataset, cell.partition, cell.num_clients)]
    return chosen_cells(only, cells)


def _check_folder(folder: Path) -> None:
    from mppfl.errors import BadInput

    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise BadInput(f"--folder={str(folder)!r}: {there} is no folder. Name one, there or to be made.")


def _figures(names: list[str], folder: Path, seeds: int) -> tuple[list[Path], list[tuple[Path, int]]]:
    """Figures that were made, and those that were there, with their seeds."""
    if not names:
        return [], []
    from reproduction.game_figures import kept_figure, run_figure

    written, kept = [], []
    for name in names:
        there = kept_figure(name, folder, seeds)
        if there is not None:
            kept.append(there)
            continue
        with ask.working(f"{name}, {seeds} seeds"):
            written.append(Path(run_figure(name, folder, seeds)))
    return written, kept


def _picture(path: Path) -> Path:
    """The figure's chart, written beside its numbers."""
    from mppfl.files import write_whole
    from reproduction.charts import as_file, chart
    from reproduction.figure_files import read_figure

    picture = path.with_suffix(".svg")
    write_whole(picture, as_file(chart(read_figure(path.parent, path.stem))).encode())
    return picture


def _measured(
    cells: list[Cell], folder: Path, device: str, precision: str | None, minutes: float | None, data: Path | None
) -> Done:
    from reproduction.measure import measure

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    return measure(cells, folder, device=device, precision=precision, minutes=minutes, data=data, tell=tell)


def _as_json(
    what: str, folder: Path, written: list[Path], kept: list[tuple[Path, int]], done: Done | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"what": what, "folder": str(folder), "figures": [str(path) for path in written]}
    found["figures_kept"] = [str(path) for path, _ in kept]
    if done is None:
        return found
    return found | {
        "arms_trained": done.trained,
        "cells": [cell.path for cell in done.cells],
        "not_available": list(done.unavailable),
        "out_of_time": done.out_of_time,
        "seconds": done.seconds,
    }


def _show(what: str, folder: Path, done: Done) -> None:
    from mppfl.text import duration
    from reproduction.measure import why_not_measured
    from reproduction.status import remedy
    from reproduction.tables import NOTHING, readme_table

    table = readme_table(folder)
    if not table.startswith(NOTHING):
        typer.echo(table)
    for name in done.unavailable:
        typer.echo(f"{name}: {why_not_measured(folder, name)}. {remedy(name)}")
    more = "; more is left, run it again" if done.out_of_time else ""
    typer.echo(
        f"{done.trained} arms trained in {duration(done.seconds)}, {len(done.cells)} cells of {what} measured{more}"
    )


def _show_status(folder: Path, data: Path | None, cells: list[Cell], *, as_json: bool) -> None:
    from mppfl.errors import BadInput
    from reproduction.status import status

    if not cells:
        raise BadInput("--status is about the cells of tables; a figure of the game takes minutes. Leave it out.")
    found = status(folder, data=data, cells=cells)
    if as_json:
        ask.print_json(found.as_dict())
        return
    width = max(len(each.cell.path) for each in found.cells)
    for each in found.cells:
        state = f"partly ({each.measured} of {each.arms} arms)" if each.state == "partly" else each.state
        reason = f" ({each.reason})" if each.reason else ""
        left = "" if each.state == "measured" else f"  {_hours(each.hours)} left"
        typer.echo(f"{each.cell.path:<{width}}  {state}{reason}{left}")
    for line in found.not_here.values():
        typer.echo(line)
    typer.echo(_summary(found))


def _summary(found: Status) -> str:
    states = f"{found.count('measured')} measured, {found.count('partly')} partly, {found.count('missing')} missing, "
    states += f"{found.count('not measurable')} not measurable"
    trials = sum(found.unit_trials.values())
    variants = sum(found.variants.values())
    choices = f", {variants} variants of what the paper leaves open among it" if variants else ""
    units = f", at least {trials} trials of units among it" if trials else ""
    where = f" on {found.device}, {found.precision}" if found.device else ""
    return f"{states}; {_hours(found.hours_left)} of training left{where}{units}{choices}"


def _hours(hours: float | None) -> str:
    return "unknown hours" if hours is None else f"{hours:.2f} h"


def _write_page(folder: Path, output: Path, *, as_json: bool) -> None:
    from mppfl.errors import BadInput
    from reproduction.document import make_page

    if output.is_dir():
        raise BadInput(f"--page={str(output)!r} is a directory. Name a file in it, such as paper.html.")
    if output.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"--page={str(output)!r} must end in .html.")
    if not any(path for pattern in ("fig-*.json", "unit-*.json", "*-seed*.json") for path in folder.glob(pattern)):
        raise BadInput(f"{str(folder)!r} holds no results of the paper. Make some with: python -m reproduction")
    with ask.working("writing the page"):
        written = make_page(folder, output)
    if as_json:
        ask.print_json({"path": str(written), "folder": str(folder), "bytes": written.stat().st_size})
        return
    typer.echo(f"{written}")


def main() -> None:
    """Runs `python -m reproduction`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=ask.Command)(reproduce_command)
    ask.run(app)


if __name__ == "__main__":
    main()
