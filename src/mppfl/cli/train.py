"""mppfl train: an experiment file in, trained models, accounts and curves out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli.inputs import JsonOption, QuietOption, SetOption, print_json, print_table, training_progress

if TYPE_CHECKING:
    from mppfl.experiment import Run
    from mppfl.spec import Experiment

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
# Notes without which figures cannot be compared.
SAID_OF_BUDGETS = ("fixed budget", "budget_unit", "clients join", "ε and spent")


def train_command(
    experiment: Annotated[Path, typer.Argument(help="The experiment, a TOML file.")],
    changes: SetOption = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1; default: the file's.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where results go; default: the file's, or runs/NAME.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Account to charge, which trainings of the same clients may share; default: its own."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the training in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the simulation in the folder.")] = False,
    track: Annotated[str | None, typer.Option(help="Log every round to mlflow or tensorboard.")] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Train every mechanism of an experiment on the same network, data and seed, side by side."""
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on, --overwrite starts anew. Choose one of them.")
    from mppfl.experiment import read_experiment, run_experiment

    settings = read_experiment(experiment, [*(changes or []), *([f'training.device="{device}"'] if device else [])])
    folder = output or Path(settings.output.folder or Path("runs") / settings.name)
    with ExitStack() as stack:
        listeners = [stack.enter_context(training_progress(settings.game.num_rounds, quiet=quiet))]
        if track is not None:
            from mppfl.experiment import tracking

            listeners.append(stack.enter_context(tracking(track, settings, folder)))

        def on_round(records: Any) -> None:
            for listener in listeners:
                listener(records)

        try:
            runs = run_experiment(
                settings, folder=folder, ledger=ledger, resume=resume, overwrite=overwrite, on_round=on_round
            )
        except KeyboardInterrupt:
            stack.close()
            words = ["mppfl", "train", str(experiment), "--resume"]
            words += [word for change in changes or () for word in ("--set", change)]
            words += ["--device", device] if device else []
            words += ["--output", str(output)] if output else []
            words += ["--ledger", str(ledger)] if ledger else []
            typer.echo(f"stopped. Go on with: {shlex.join(words)}", err=True)
            raise typer.Exit(130) from None
    if json:
        print_json(as_json(settings, runs, folder))
    else:
        show(runs)
        typer.echo(f"results: {folder}")
        typer.echo(f"a page with figures: mppfl report {shlex.quote(str(folder))}")


def show(runs: Sequence[Run]) -> None:
    """The runs side by side, and the notes that the figures need."""
    rows = _rows(runs)
    print_table("", [name.replace(" ", "\n", 1) for name in rows[0]], [[*row.values()] for row in rows], DISPENSABLE)
    for run in runs:
        for note in filter(lambda note: note.startswith(SAID_OF_BUDGETS), run.notes):
            typer.echo(f"{run.name}: {note}")
        if num_clients := int((run.rounds_refused > 0).sum()):
            uploads = int(run.rounds_refused.sum())
            capped = any(run.setting(name) for name in ("cap", "caps", "epsilon_cap", "epsilon_caps", "file"))
            why = "caps" if capped else "budgets too small for a part in a sum"
            typer.echo(f"{run.name}: {why} refused {uploads:,} uploads of {num_clients:,} of the clients")
    meanings: dict[str, list[str]] = {}
    for run in runs:
        meanings.setdefault(run.accounts.meaning, []).append(run.name)
    for meaning, names in meanings.items():
        typer.echo(f"{', '.join(names) if len(meanings) > 1 else 'what ε means'}: {meaning}")
    for note in dict.fromkeys(note for run in runs for note in run.accounts.notes):
        typer.echo(f"note: {note}")


def _rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Heading and text of every column, with the runs' own names where mechanisms do not say them."""
    from mppfl.experiment import comparison_cells

    rows = [comparison_cells(run) for run in runs]
    if all(run.name == run.mechanism for run in runs):
        return rows
    return [{"run": run.name} | row for run, row in zip(runs, rows, strict=True)]


def as_json(experiment: Experiment, runs: Sequence[Run], folder: Path | None) -> dict[str, Any]:
    """The object that --json prints."""
    from mppfl.experiment import comparison_rows

    rows = comparison_rows(runs)
    for row, run in zip(rows, runs, strict=True):
        row |= {
            "num_rounds": run.num_rounds,
            "num_clients": run.num_clients,
            "final_loss": run.final_loss,
            "protection": run.accounts.protection,
            "meaning": run.accounts.meaning,
            "simulation": run.accounts.simulation,
            "notes": [*run.notes, *run.accounts.notes],
        }
    return {"name": experiment.name, "folder": None if folder is None else str(folder), "runs": rows}
