"""mppfl deploy: a training on Flower. init writes an app, local runs it here, resume goes on, status tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask

if TYPE_CHECKING:
    from mppfl.flower import Ended, OnRound, Tell

app = typer.Typer(no_args_is_help=True, help="Run a training on Flower: nodes that die, budgets never overspent.")

Folder = Annotated[Path, typer.Argument(help="The app's folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]


@app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(help="Where to write the app; made if it is not there.")],
    nodes: Annotated[int, typer.Option(min=2, help="Clients of the experiment.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the experiment.")] = 5,
    json: ask.JsonOption = False,
) -> None:
    """Write a ready Flower app: pyproject, server, client, experiment.toml."""
    _require_flower()
    from mppfl.flower import write_app

    files = write_app(folder, nodes, rounds)
    if json:
        ask.print_json({"files": [str(each) for each in files]})
        return
    for each in files:
        typer.echo(each)
    typer.echo(f"run it: mppfl deploy local {quote(str(folder))}")


@app.command("local")
def local_command(
    folder: Folder,
    nodes: Annotated[int | None, typer.Option(min=2, help="Nodes; as many as the experiment has clients.")] = None,
    quiet: Quiet = False,
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Run the app on this machine: SuperLink and SuperNodes on loopback, with TLS and node keys made on the spot."""
    _deploy(folder, nodes, resume=False, quiet=quiet, json=json)


@app.command("resume")
def resume_command(folder: Folder, quiet: Quiet = False, json: ask.JsonOption = False) -> None:
    """Go on after the last finished round, without spending or paying anything twice."""
    _deploy(folder, None, resume=True, quiet=quiet, json=json)


@app.command("simulate")
def simulate_command(folder: Folder, quiet: Quiet = False, json: ask.JsonOption = False) -> None:
    """Run the same app with all clients computed by Flower's simulation engine (pip install 'flwr[simulation]')."""
    _require_flower()
    from mppfl.flower import deploy_simulated

    _told(folder, json, lambda: deploy_simulated(folder, tell=_telling(quiet), on_round=_shown(quiet)))


@app.command("status")
def status_command(
    folder: Folder,
    payments: Annotated[Path | None, typer.Option(help="Write all accounts and payments to this CSV file.")] = None,
    json: ask.JsonOption = False,
) -> None:
    """Where a deployment stands: rounds, accounts, payments, and whether clients' ledgers agree with the server's.

    Ends with 1 where a ledger holds less than was paid for, or more than the server knows of, or where the book's own
    terms do not give an amount.
    """
    _require_flower()
    from mppfl.flower import status_of

    status = status_of(folder, payments)
    if json:
        ask.print_json(status.as_dict())
    else:
        for line in status.lines():
            typer.echo(line)
    if not status.is_sound:
        raise typer.Exit(1)


def _deploy(folder: Path, nodes: int | None, *, resume: bool, quiet: bool, json: bool) -> None:
    _require_flower()
    from mppfl.flower import deploy_local

    _told(
        folder,
        json,
        lambda: deploy_local(folder, nodes, resume=resume, tell=_telling(quiet), on_round=_shown(quiet)),
    )


def _told(folder: Path, json: bool, run: Callable[[], Ended]) -> None:
    """Runs to the end, and says where things stand then."""
    from mppfl.flower import status_of

    try:
        ended = run()
    except KeyboardInterrupt:
        typer.echo(f"stopped. Go on with: mppfl deploy resume {quote(str(folder))}", err=True)
        raise typer.Exit(130) from None
    status = status_of(folder)
    if json:
        ask.print_json(status.as_dict())
        return
    for line in status.lines():
        typer.echo(line)
    typer.echo(f"{ended.rounds_done} of {ended.num_rounds} rounds done")


def _telling(quiet: bool) -> Tell:
    return (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))


def _shown(quiet: bool) -> OnRound:
    """A line for every round, on stderr."""

    def show(facts: dict[str, Any]) -> None:
        if quiet:
            return
        told = [f"round {facts['round_index']:>3}  accuracy {facts['accuracy']:.3f}  loss {facts['loss']:.3f}"]
        told += [
            f"reward rate {facts['reward_rate']:.4g}  paid {facts['payments']:.4g}  {facts['taking_part']} uploads"
        ]
        told += [
            f"{name}: {', '.join(facts[name])}" for name in ("refused", "rejected", "lost", "absent") if facts.get(name)
        ]
        typer.echo("  ".join([*told, f"{facts['seconds']:.1f} s"]), err=True)

    return show


def _require_flower() -> None:
    from mppfl.exports import require

    require("flwr")
