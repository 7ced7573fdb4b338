"""mppfl ledger: what every client has spent, what that means, and whether the account is sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.apps import inputs as ask

if TYPE_CHECKING:
    from mppfl.privacy.ledger import PrivacyLedger

app = typer.Typer(help="Show, convert and verify an account of spent privacy.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(help="The ledger, as written by a run.")]
UnitOption = Annotated[
    str | None, typer.Option("--unit", help="record or client; needed where the ledger holds both, which do not add.")
]
ClientOption = Annotated[list[str] | None, typer.Option("--client", help="Only this client; may be repeated.")]
SHOWN = 20  # lines of a table before it is cut short


def _open(source: Path) -> PrivacyLedger:
    from mppfl.privacy.ledger import PrivacyLedger

    return PrivacyLedger.open(source, must_exist=True, read_only=True)


def _units(ledger: PrivacyLedger, unit: str | None) -> tuple[Any, ...]:
    return (unit,) if unit else ledger.units


@app.command("show")
def show_command(
    source: Source, unit: UnitOption = None, client: ClientOption = None, json: ask.JsonOption = False
) -> None:
    """What each client has spent, and what its cap leaves."""
    with _open(source) as ledger:
        names = client or list(ledger.clients)
        columns = {
            each: {
                "spent": ledger.spent(names, each),
                "worst_case": ledger.spent(names, each, worst_case=True),
                "remaining": ledger.remaining(names, each),
            }
            for each in _units(ledger, unit)
        }
        num_events, notes, head = len(ledger), ledger.notes(), ledger.head
    rows = [
        {"client": name, "unit": each, **{key: float(values[place]) for key, values in found.items()}}
        for each, found in columns.items()
        for place, name in enumerate(names)
    ]
    if json:
        ask.print_json({"num_events": num_events, "head": head, "notes": notes, "clients": rows})
        return
    typer.echo(f"{'client':<24}{'unit':<8}{'spent ρ':>12}{'worst case':>12}{'remaining':>12}")
    for row in rows[:SHOWN]:
        figures = "".join(f"{row[key]:>12.4g}" for key in ("spent", "worst_case", "remaining"))
        typer.echo(f"{row['client']:<24}{row['unit']:<8}{figures}")
    _cut_short(len(rows))
    typer.echo(f"{num_events:,} releases by {len(names):,} clients")
    ask.warn(notes)


@app.command("epsilon")
def epsilon_command(
    source: Source,
    delta: Annotated[float, typer.Option("--delta", help="dp_delta in all, such as 1e-5.")],
    method: Annotated[str, typer.Option("--method", help="exact (Gaussian noise only), rdp, zcdp or pld.")] = "exact",
    client: ClientOption = None,
    unit: UnitOption = None,
    json: ask.JsonOption = False,
) -> None:
    """What the spent budgets mean as dp_epsilon, nominally and in the worst case."""
    with _open(source) as ledger, ask.working("accounting"):
        names = client or list(ledger.clients)
        units = _units(ledger, unit)
        found = {
            each: [ledger.get_epsilon(names, delta, method, unit=each, worst_case=worst) for worst in (False, True)]
            for each in units
        }
        notes = ledger.notes()
    rows = [
        {"client": name, "unit": each, "dp_epsilon": float(nominal[place]), "worst_case": float(worst[place])}
        for each, (nominal, worst) in found.items()
        for place, name in enumerate(names)
    ]
    if json:
        ask.print_json({"dp_delta": delta, "method": method, "notes": notes, "clients": rows})
        return
    typer.echo(f"{'client':<24}{'unit':<8}{'dp_epsilon':>12}{'worst case':>12}")
    for row in rows[:SHOWN]:
        typer.echo(f"{row['client']:<24}{row['unit']:<8}{row['dp_epsilon']:>12.4f}{row['worst_case']:>12.4g}")
    _cut_short(len(rows))
    typer.echo(f"at dp_delta {delta:g} by the method {method}")
    ask.warn(notes)


@app.command("export")
def export_command(
    source: Source,
    out: Annotated[Path, typer.Option("--out", help="Where to write: .csv or .json.")],
    json: ask.JsonOption = False,
) -> None:
    """Write every release down as a table."""
    from mppfl.errors import BadInput

    if out.suffix not in (".csv", ".json"):
        raise BadInput(f"{str(out)!r} must end in .csv or .json.")
    if out.exists() and source.exists() and out.samefile(source):
        raise BadInput(f"{str(out)!r} is the ledger itself. Choose another file.")
    with _open(source) as ledger:
        count = ledger.export_csv(out) if out.suffix == ".csv" else ledger.export_json(out)
        notes = ledger.notes()
    if json:
        ask.print_json({"path": str(out), "num_events": count, "notes": notes})
        return
    typer.echo(f"{out}: {count:,} releases")
    ask.warn(notes)


@app.command("verify")
def verify_command(source: Source, json: ask.JsonOption = False) -> None:
    """Read everything again: pages, chain of events, sums, caps, uploads. Fails where anything was changed."""
    with _open(source) as ledger, ask.working("verifying"):
        count, head = ledger.verify(), ledger.head
    if json:
        ask.print_json({"sound": True, "num_events": count, "head": head})
        return
    typer.echo(f"sound: {count:,} releases; head {head}")


def _cut_short(num_rows: int) -> None:
    if num_rows > SHOWN:
        typer.echo(f"... and {num_rows - SHOWN:,} more; --json gives all")
