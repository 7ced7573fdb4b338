"""mppfl train: an experiment file in, trained models, accounts and curves out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask
from mppfl.cli.progress import training_progress

if TYPE_CHECKING:
    from rich.table import Table

    from mppfl.experiment import Experiment, Run

DISPENSABLE = (
    "seconds",
    "exposure, least to most",
    "best accuracy",
    "aggregation",
    "median spent ρ",
    "total payments",
    "server cost",
    "client welfare",
)
SAID_OF_BUDGETS = ("fixed budget", "budget_unit")  # notes without which the figures cannot be compared


def train_command(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value, as training.clip_norm=0.5; may be repeated.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; default: the file's.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the results; default: the file's, or runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the training in the folder stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the simulation in the folder.")] = False,
    track: Annotated[str | None, typer.Option(help="Log every round to mlflow or tensorboard.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Train: every mechanism of an experiment on the same network, data and seed, side by side."""
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on, --overwrite starts anew. Choose one of them.")
    from mppfl.experiment import read_experiment, train

    chosen = read_experiment(experiment, [*(changes or []), *([f'training.device="{device}"'] if device else [])])
    folder = output or Path(chosen.output.folder or Path("runs") / chosen.name)
    with ExitStack() as open_things:
        listeners = [open_things.enter_context(training_progress(chosen.game.num_rounds, quiet=quiet))]
        if track is not None:
            from mppfl.experiment import tracking

            listeners.append(open_things.enter_context(tracking(track, chosen, folder)))

        def tell(records: Any) -> None:
            for listener in listeners:
                listener(records)

        try:
            runs = train(chosen, folder=folder, resume=resume, overwrite=overwrite, on_round=tell)
        except KeyboardInterrupt:
            open_things.close()
            typer.echo(f"stopped. Go on with: {_same_again(experiment, changes, device, output)}", err=True)
            raise typer.Exit(130) from None
    if json:
        ask.print_json(as_json(chosen, runs, folder))
    else:
        show(runs)
        typer.echo(f"results: {folder}")
        typer.echo(f"a page with figures: mppfl report {shlex.quote(str(folder))}")


def _same_again(path: Path, changes: Sequence[str] | None, device: str | None, output: Path | None) -> str:
    words = ["mppfl", "train", str(path), "--resume"]
    words += [word for change in changes or () for word in ("--set", change)]
    words += ["--device", device] if device else []
    words += ["--output", str(output)] if output else []
    return shlex.join(words)


def show(runs: Sequence[Run]) -> None:
    """The runs side by side, and what must be said beside the figures."""
    from rich.console import Console

    from mppfl.experiment import comparison_table

    console = Console() if Console().is_terminal else Console(width=200)  # a file has room for every column
    table = comparison_table(runs)
    left_out = fit(table, console.width)
    console.print(table)
    if left_out:
        typer.echo(f"left out for want of room: {', '.join(left_out)}")
    for run in runs:
        for note in run.notes:
            if note.startswith(SAID_OF_BUDGETS):
                typer.echo(f"{run.name}: {note}")
    for run in runs:
        if kept_out := int((run.rounds_refused > 0).sum()):
            rounds = int(run.rounds_refused.sum())
            typer.echo(f"{run.name}: caps refused {rounds:,} uploads of {kept_out:,} of the clients")
    for note in dict.fromkeys(note for run in runs for note in run.accounts.notes):
        typer.echo(f"note: {note}")


def fit(table: Table, width: int) -> list[str]:
    """Takes out the least important columns until the table fits, so that no figure is cut short; returns which."""
    from rich.console import Console

    room, left_out = Console(width=10_000), []
    for heading in DISPENSABLE:
        if room.measure(table).maximum <= width:
            break
        for column in table.columns:
            if str(column.header).replace("\n", " ") == heading:
                table.columns.remove(column)
                left_out.append(heading)
                break
    return left_out


def as_json(experiment: Experiment, runs: Sequence[Run], folder: Path | None) -> dict[str, Any]:
    """The object that --json prints."""
    from mppfl.experiment import comparison_rows

    rows = [asdict(row) for row in comparison_rows(runs)]
    for row, run in zip(rows, runs, strict=True):
        row |= {
            "num_rounds": run.num_rounds,
            "num_clients": run.num_clients,
            "final_loss": run.final_loss,
            "simulation": run.accounts.simulation,
            "notes": [*run.notes, *run.accounts.notes],
        }
    return {"name": experiment.name, "folder": None if folder is None else str(folder), "runs": rows}
