"""mppfl ledger: what every client has spent, what that means, and whether the account is sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask

if TYPE_CHECKING:
    from mppfl.leakage import ExternalColumns
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
    """The units asked about. What was released per record says nothing of 0 about whole clients, nor the other way."""
    from mppfl.errors import BadInput

    units = ledger.units
    if unit in ("record", "client") and units and unit not in units:
        raise BadInput(f"nothing in this ledger was released per {unit}, but per {units[0]}. Leave --unit out.")
    return (unit,) if unit else units


@app.command("show")
def show_command(
    source: Source,
    unit: UnitOption = None,
    client: ClientOption = None,
    graph: ask.GraphOption = None,
    undirected: ask.UndirectedOption = False,
    attribute: Annotated[
        Path | None, typer.Option("--attribute", help="CSV: name, value (±1 or 0/1), a public sample; for R_leak.")
    ] = None,
    coupling: Annotated[
        float | None, typer.Option("--coupling", help="Ising coupling J of every link, taken as known; for R_bound.")
    ] = None,
    num_examples: Annotated[
        str | None,
        typer.Option("--num-examples", help="Records of every client, or CSV: name, count; for budgets per record."),
    ] = None,
    max_hops: ask.MaxHopsOption = None,
    hop_decay: ask.HopDecayOption = None,
    json: ask.JsonOption = False,
) -> None:
    """What each client has spent, and what its cap leaves; with --graph also what the others' releases say about it.

    With --json what is infinite is "Infinity": spent without noise, or not capped. What is not known is null.
    """
    from mppfl.errors import BadInput

    options: dict[str, Any] = {"attribute": attribute, "coupling": coupling, "num_examples": num_examples}
    options |= {"undirected": undirected or None, "max_hops": max_hops, "hop_decay": hop_decay}
    given = {name: value for name, value in options.items() if value is not None}
    if graph is None and given:
        raise BadInput(f"--{next(iter(given)).replace('_', '-')} is about a network. Give it with --graph.")
    with _open(source) as ledger:
        names = list(dict.fromkeys(client or ledger.clients))
        columns = {
            each: {
                "spent": ledger.spent(names, each),
                "worst_case": ledger.spent(names, each, worst_case=True),
                "remaining": ledger.remaining(names, each),
            }
            for each in _units(ledger, unit)
        }
        external: dict[str, ExternalColumns] = {}
        if graph is not None:
            with ask.working("reading the network"):
                ways = _ways(graph, given)
            with ask.working("adding up what others released"):
                external = _external(ledger, names, tuple(columns), ways)
        for each, found in external.items():
            columns[each] |= {"R_model": found.r_model, "R_model_worst_case": found.r_model_worst_case}
            columns[each] |= {"R_bound": found.r_bound, "R_leak": found.r_leak}
        num_events, notes, head = len(ledger), ledger.notes(), ledger.head
    rows = [
        {"client": name, "unit": each, **{key: float(values[place]) for key, values in found.items()}}
        for each, found in columns.items()
        for place, name in enumerate(names)
    ]
    if json:
        content = {"num_events": num_events, "head": head, "notes": notes, "clients": _telling_infinity(rows)}
        if external:
            content["external"] = {each: _about(found) for each, found in external.items()}
        ask.print_json(content)
        return
    shown = {"spent": "spent ρ", "worst_case": "worst case", "remaining": "remaining"}
    if external:
        shown |= {"R_model": "R_model", "R_bound": "R_bound", "R_leak": "R_leak"}
    typer.echo(f"{'client':<24}{'unit':<8}" + "".join(f"{title:>12}" for title in shown.values()))
    for row in rows[:SHOWN]:
        figures = "".join(f"{_figure(row[key]):>12}" for key in shown)
        typer.echo(f"{row['client']:<24}{row['unit']:<8}{figures}")
    _cut_short(len(rows))
    _say_what_they_are(external)
    of_all = "" if client is None else " in the ledger, of all its clients"
    typer.echo(f"{num_events:,} releases{of_all}" + (f" by {len(names):,} clients" if client is None else ""))
    ask.warn((*notes, *dict.fromkeys(note for found in external.values() for note in found.notes)))


def _ways(graph: Path, given: dict[str, Any]) -> dict[str, Any]:
    """What `external_columns` is asked with, but for the ledger."""
    from mppfl.leakage import read_values
    from mppfl.network import propagate, read_graph

    network = read_graph(graph, undirected="undirected" in given, isolated="keep", self_loops="drop")
    counts = given.get("num_examples")
    if counts is not None:
        counts = int(counts) if counts.isdecimal() else read_values(Path(counts))
    return {
        "graph": network,
        "attribute": read_values(given["attribute"]) if "attribute" in given else None,
        "propagation": propagate(network, **{name: given[name] for name in ("max_hops", "hop_decay") if name in given}),
        "couplings": given.get("coupling"),
        "num_examples": counts,
    }


def _external(
    ledger: PrivacyLedger, names: list[str], units: tuple[Any, ...], ways: dict[str, Any]
) -> dict[str, ExternalColumns]:
    from mppfl.leakage import external_columns

    return {each: external_columns(ledger, clients=names, unit=each, **ways) for each in units}


def _say_what_they_are(external: dict[str, ExternalColumns]) -> None:
    """A line for each column of each unit: its unit of measure and premises, or why it is empty."""
    for each, found in external.items():
        bound = (
            f"none: {found.bound_reason}" if found.bound_reason else f"nats, by {found.theorem}, if {found.premises}"
        )
        leak = f"none: {found.leak_reason}" if found.leak_reason else "nats, an estimate fitted on the public sample"
        typer.echo(f"{'R_model':<10}per {each}: the paper's index, no unit")
        typer.echo(f"{'R_bound':<10}per {each}: {bound}")
        typer.echo(f"{'R_leak':<10}per {each}: {leak}")


def _figure(value: float) -> str:
    """Four digits, or a dash where there is no number."""
    import math

    return "-" if math.isnan(value) else f"{value:.4g}"


def _telling_infinity(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with "Infinity" where a figure is infinite, as exports have it: null would read as "not known"."""
    return [{key: "Infinity" if value == float("inf") else value for key, value in row.items()} for row in rows]


def _about(found: ExternalColumns) -> dict[str, Any]:
    """What the columns are, and why one is empty."""
    bound = {"theorem": found.theorem, "premises": found.premises, "reason": found.bound_reason}
    return {"R_bound": bound, "R_leak": {"reason": found.leak_reason}, "notes": found.notes}


@app.command("epsilon")
def epsilon_command(
    source: Source,
    delta: Annotated[float, typer.Option("--delta", help="dp_delta in all, such as 1e-5.")],
    method: Annotated[str, typer.Option("--method", help="exact (Gaussian noise only), rdp, zcdp or pld.")] = "exact",
    client: ClientOption = None,
    unit: UnitOption = None,
    json: ask.JsonOption = False,
) -> None:
    """What the spent budgets mean as dp_epsilon, nominally and in the worst case.

    With --json an infinite dp_epsilon, which protects from nothing, is "Infinity".
    """
    _require_method(method)
    with _open(source) as ledger, ask.working("accounting"):
        names = list(dict.fromkeys(client or ledger.clients))
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
        ask.print_json({"dp_delta": delta, "method": method, "notes": notes, "clients": _telling_infinity(rows)})
        return
    typer.echo(f"{'client':<24}{'unit':<8}{'dp_epsilon':>12}{'worst case':>12}")
    for row in rows[:SHOWN]:
        typer.echo(f"{row['client']:<24}{row['unit']:<8}{row['dp_epsilon']:>12.4f}{row['worst_case']:>12.4g}")
    _cut_short(len(rows))
    typer.echo(f"at dp_delta {delta:g} by the method {method}")
    ask.warn(notes)


def _require_method(method: str) -> None:
    """Refuses a way to ε that no ledger knows; beside those of a budget there is pld, which needs the releases."""
    from mppfl.errors import BadInput
    from mppfl.privacy import METHODS

    known = (*METHODS, "pld")
    if method not in known:
        raise BadInput(f"--method={method!r} is not known. Known: {', '.join(known)}.")


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
    """Read everything again: pages, chain, sums, caps, uploads. Fails where a release, cap or status was changed."""
    with _open(source) as ledger, ask.working("verifying"):
        count, head = ledger.verify(), ledger.head
    if json:
        ask.print_json({"sound": True, "num_events": count, "head": head, "not_covered": []})
        return
    typer.echo(f"sound: {count:,} releases; head {head}")


def _cut_short(num_rows: int) -> None:
    if num_rows > SHOWN:
        typer.echo(f"... and {num_rows - SHOWN:,} more; --json gives all")
