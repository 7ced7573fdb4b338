"""The command line (alone: the entry point): all commands, and errors in one line.

Exit codes: 0 done, 1 failed (one line on stderr: what, value, remedy), 2 wrong usage. Heavy imports wait inside the
commands, so that --help is quick.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Annotated

import typer

from mppfl.cli import audit, calibrate, compare, data, deploy, explore, graph, ledger, report, risk, solve, train
from mppfl.cli.inputs import Command, DebugOption, Group, in_option_spelling
from mppfl.errors import MppflError

app = typer.Typer(
    name="mppfl",
    help="Prices privacy on a social network, trains under those prices, accounts for it, audits it.",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("solve", cls=Command)(solve.solve_command)
app.command("compare", cls=Command)(compare.compare_command)
app.command("train", cls=Command)(train.train_command)
app.command("report", cls=Command)(report.report_command)
app.command("risk", cls=Command)(risk.risk_command)
app.command("calibrate", cls=Command)(calibrate.calibrate_command)
app.command("explore", cls=Command)(explore.explore_command)
for name, module in {"graph": graph, "audit": audit, "ledger": ledger, "data": data, "deploy": deploy}.items():
    for command in module.app.registered_commands:
        command.cls = Command
    app.add_typer(module.app, name=name, cls=Group)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        typer.echo(f"mppfl {version('mppfl')}")
        raise typer.Exit


@app.callback()
def common(
    debug: DebugOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prices privacy on a social network, trains under those prices, accounts for it, audits it."""


@app.command("reproduce", hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def reproduce_command() -> None:
    """Says where the reproduction of the paper is."""
    raise MppflError("the reproduction of the paper is not part of the package. In a checkout: python -m reproduction")


def main() -> None:
    """Runs `mppfl`."""
    run(app)


def run(app: typer.Typer) -> None:
    """Runs a command line and turns errors into one line and exit code 1."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without Greek letters still gets its answer
        sys.stdout.reconfigure(errors="backslashreplace")
    debug = "--debug" in sys.argv
    if debug:  # accepted anywhere on the line
        sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing more to say
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
    except Exception as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"error: {' '.join(what_went_wrong(error).split())}", err=True)
        sys.exit(1)


def what_went_wrong(error: Exception) -> str:
    """An error as a sentence: what, value, remedy."""
    text = str(error) or type(error).__name__
    if isinstance(error, MppflError):
        return in_option_spelling(text)
    if isinstance(error, OSError):
        return f"{error.filename or 'file'}: {error.strerror or error}. Check the path, permissions and free space."
    if isinstance(error, MemoryError):
        return f"not enough memory ({text}). Use --no-budgets, fewer rounds, or a smaller network."
    return f"{type(error).__name__}: {text}. This is a fault in mppfl; --debug shows where, please report it."
