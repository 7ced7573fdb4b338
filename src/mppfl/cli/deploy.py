"""mppfl deploy: a training on Flower: init, local, resume, status (alone: one file a command)."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask

if TYPE_CHECKING:
    from mppfl.flower import Status

app = typer.Typer(no_args_is_help=True, help="Run a training on Flower: nodes that die, budgets never overspent.")

Folder = Annotated[Path, typer.Argument(help="The app's folder.")]


@app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(help="Where to write the app; created if missing.")],
    nodes: Annotated[int, typer.Option(min=2, help="Clients of the experiment.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the experiment.")] = 5,
    json: ask.JsonOption = False,
) -> None:
    """Write a ready Flower app: pyproject, server, client, experiment.toml."""
    files = _flower().write_app(folder, nodes, rounds)
    if json:
        ask.print_json({"files": [str(path) for path in files]})
        return
    for path in files:
        typer.echo(path)
    typer.echo(f"run it: mppfl deploy local {quote(str(folder))}")


@app.command("local")
def local_command(
    folder: Folder,
    nodes: Annotated[int | None, typer.Option(min=2, help="Nodes; as many as the experiment has clients.")] = None,
    quiet: ask.QuietOption = False,
    json: ask.JsonOption = False,
) -> None:
    """Run the app on this machine: SuperLink and SuperNodes on loopback, with TLS and node keys made on the spot."""
    _deploy(folder, quiet, json, num_nodes=nodes)


@app.command("resume")
def resume_command(folder: Folder, quiet: ask.QuietOption = False, json: ask.JsonOption = False) -> None:
    """Go on after the last finished round, without spending or paying anything twice."""
    _deploy(folder, quiet, json, resume=True)


@app.command("simulate")
def simulate_command(folder: Folder, quiet: ask.QuietOption = False, json: ask.JsonOption = False) -> None:
    """Run the same app with all clients computed by Flower's simulation engine (pip install 'flwr\\[simulation]')."""
    _deploy(folder, quiet, json, simulated=True)


@app.command("status")
def status_command(
    folder: Folder,
    payments: Annotated[Path | None, typer.Option(help="Write all accounts and payments to this CSV file.")] = None,
    json: ask.JsonOption = False,
) -> None:
    """Show rounds, accounts, payments, and whether clients' ledgers agree with the server's book.

    Exits with 1 where a ledger holds less than was paid for, or more than the server has booked, or where an amount
    does not follow from the book's own terms.
    """
    status: Status = _flower().status_of(folder, payments)
    _print_status(status, json)
    if not status.is_sound:
        raise typer.Exit(1)


def _deploy(folder: Path, quiet: bool, json: bool, **options: Any) -> None:
    """Runs to the end, and prints the status then."""
    flower = _flower()

    def tell(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    try:
        flower.deploy_local(folder, tell=tell, on_round=lambda facts: tell(_round_line(facts)), **options)
    except KeyboardInterrupt:
        typer.echo(f"stopped. Go on with: mppfl deploy resume {quote(str(folder))}", err=True)
        raise typer.Exit(130) from None
    status: Status = flower.status_of(folder)
    _print_status(status, json)
    if not json:
        typer.echo(f"{status.rounds_done} of {status.num_rounds} rounds done")


def _print_status(status: Status, json: bool) -> None:
    if json:
        ask.print_json(status.as_dict())
    else:
        typer.echo("\n".join(status.lines()))


def _round_line(facts: dict[str, Any]) -> str:
    """One round in one line."""
    parts = [
        f"round {facts['round_index']:>3}  accuracy {facts['accuracy']:.3f}  loss {facts['loss']:.3f}",
        f"reward rate {facts['reward_rate']:.4g}  paid {facts['payments']:.4g}  {facts['participating']} uploads",
    ]
    for name in ("refused", "rejected", "lost", "absent"):
        if facts.get(name):
            parts.append(f"{name}: {', '.join(facts[name])}")
    return "  ".join([*parts, f"{facts['seconds']:.1f} s"])


def _flower() -> Any:
    """Our side of Flower, where it is installed."""
    from mppfl.exports import require

    require("flwr")
    import mppfl.flower

    return mppfl.flower
