"""mppfl ledger (alone: one file a command): what every client has spent, and whether the account is sound."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs
from mppfl.errors import BadInput

if TYPE_CHECKING:
    from mppfl.leakage import ExternalColumns
    from mppfl.privacy.ledger import PrivacyLedger

app = typer.Typer(help="Show, convert, export and verify an account of spent privacy.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(help="The ledger, as written by a run.")]
UnitOption = Annotated[str | None, inputs.option("Unit of privacy, record or client; needed where there are both.")]
RunOption = Annotated[str | None, inputs.option("Count this run alone; its people may have released more in others.")]
ClientOption = Annotated[list[str] | None, inputs.option("Only this client; may be repeated.")]
SHOWN = 20  # lines of a table before it is cut short


def _open(source: Path) -> PrivacyLedger:
    from mppfl.privacy.ledger import PrivacyLedger

    return PrivacyLedger.open(source, must_exist=True, read_only=True)


def _units(ledger: PrivacyLedger, unit: str | None) -> tuple[Any, ...]:
    """The units to show. A unit in which nothing was released has no account, not an account of 0."""
    units = ledger.units
    if unit in ("record", "client") and units and unit not in units:
        raise BadInput(f"nothing in this ledger was released per {unit}, but per {units[0]}. Leave --unit out.")
    return (unit,) if unit else units


@app.command("show")
def show_command(
    source: Source,
    unit: UnitOption = None,
    client: ClientOption = None,
    run: RunOption = None,
    graph: inputs.GraphOption = None,
    undirected: inputs.UndirectedOption = False,
    attribute: inputs.AttributeOption = None,
    coupling: inputs.CouplingOption = None,
    num_examples: Annotated[str | None, inputs.option("Records of every client, or CSV: name, count.")] = None,
    max_hops: Annotated[int | None, inputs.game_option("max_hops")] = None,
    hop_decay: Annotated[float | None, inputs.game_option("hop_decay")] = None,
    json: inputs.JsonOption = False,
) -> None:
    """Show what each client has spent and what its caps leave; with --graph also what others' releases reveal of it.

    In JSON an infinite value is "Infinity": spent without noise, or not capped. An unknown value is null.
    """
    options: dict[str, Any] = {"attribute": attribute, "coupling": coupling, "num_examples": num_examples}
    options |= {"undirected": undirected or None, "max_hops": max_hops, "hop_decay": hop_decay}
    given = {name: value for name, value in options.items() if value is not None}
    if graph is None and given:
        raise BadInput(f"--{next(iter(given)).replace('_', '-')} is about a network. Give it with --graph.")
    with _open(source) as ledger:
        names, units = list(dict.fromkeys(client or ledger.clients)), _units(ledger, unit)
        columns = {
            unit: {"spent": ledger.spent(names, unit, run), "remaining": ledger.remaining(names, unit)}
            for unit in units
        }
        external = {} if graph is None else _external(ledger, names, units, graph, given)
        for released, exposure in external.items():
            columns[released] |= {"R_model": exposure.r_model, "R_bound": exposure.r_bound, "R_leak": exposure.r_leak}
        num_events, notes, head, runs = len(ledger), ledger.notes(), ledger.head, ledger.runs
    rows = _rows(names, columns)
    if json:
        content = {"num_events": num_events, "head": head, "runs": runs, "notes": notes}
        content |= {"clients": _with_infinity(rows)}
        if external:
            content["external"] = {unit: _about(exposure) for unit, exposure in external.items()}
        inputs.print_json(content)
        return
    _print_rows(rows)
    _explain_columns(external)
    of_all = "" if client is None else " in the ledger, of all its clients"
    typer.echo(f"{num_events:,} releases{of_all}" + (f" by {len(names):,} clients" if client is None else ""))
    if len(runs) > 1:
        typer.echo(f"{f'spent in {run}, one of' if run else 'spent in'} {len(runs)} runs: {', '.join(runs)}")
    inputs.warn((*notes, *dict.fromkeys(note for exposure in external.values() for note in exposure.notes)))


def _external(
    ledger: PrivacyLedger, names: list[str], units: tuple[Any, ...], path: Path, given: dict[str, Any]
) -> dict[str, ExternalColumns]:
    """What the releases of others reveal about each client, by unit."""
    from mppfl.leakage import external_columns, read_values
    from mppfl.network import propagate, read_graph

    with inputs.working("reading the network"):
        graph = read_graph(path, undirected="undirected" in given, isolated="keep", self_loops="drop")
        counts = given.get("num_examples")
        if counts is not None:
            counts = int(counts) if counts.isdecimal() else read_values(Path(counts))
        choices: dict[str, Any] = {
            "graph": graph,
            "attribute": read_values(given["attribute"]) if "attribute" in given else None,
            "propagation": propagate(
                graph, **{name: given[name] for name in ("max_hops", "hop_decay") if name in given}
            ),
            "couplings": given.get("coupling"),
            "num_examples": counts,
        }
    with inputs.working("adding up what others released"):
        return {unit: external_columns(ledger, clients=names, unit=unit, **choices) for unit in units}


def _explain_columns(external: dict[str, ExternalColumns]) -> None:
    """A line for each column of each unit: its unit of measure and premises, or why it is empty."""
    for unit, exposure in external.items():
        bound = f"nats, by {exposure.theorem}, if {exposure.premises}"
        leak = "nats, an estimate fitted on the public sample"
        bound = f"none: {exposure.bound_reason}" if exposure.bound_reason else bound
        leak = f"none: {exposure.leak_reason}" if exposure.leak_reason else leak
        for column, text in (("R_model", "the paper's index, no unit"), ("R_bound", bound), ("R_leak", leak)):
            typer.echo(f"{column:<10}per {unit}: {text}")


def _about(exposure: ExternalColumns) -> dict[str, Any]:
    """What the columns are, and why one is empty."""
    bound = {"theorem": exposure.theorem, "premises": exposure.premises, "reason": exposure.bound_reason}
    return {"R_bound": bound, "R_leak": {"reason": exposure.leak_reason}, "notes": exposure.notes}


def _rows(names: list[str], columns: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for every unit and client."""
    return [
        {"client": name, "unit": unit, **{key: float(column[i]) for key, column in values.items()}}
        for unit, values in columns.items()
        for i, name in enumerate(names)
    ]


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """A table of at most SHOWN rows; a dash for an unknown value."""
    columns = list(rows[0])[2:] if rows else []
    headings = ["spent ρ" if column == "spent" else column for column in columns]
    typer.echo(f"{'client':<24}{'unit':<8}" + "".join(f"{heading:>12}" for heading in headings))
    for row in rows[:SHOWN]:
        forms = {column: ".4f" if column == "dp_epsilon" else ".4g" for column in columns}
        figures = ["-" if math.isnan(row[column]) else format(row[column], form) for column, form in forms.items()]
        typer.echo(f"{row['client']:<24}{row['unit']:<8}" + "".join(f"{figure:>12}" for figure in figures))
    if len(rows) > SHOWN:
        typer.echo(f"... and {len(rows) - SHOWN:,} more; --json gives all")


def _with_infinity(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with "Infinity" for infinite figures, as in exports: null means "not known"."""
    return [{key: "Infinity" if value == float("inf") else value for key, value in row.items()} for row in rows]


@app.command("epsilon")
def epsilon_command(
    source: Source,
    delta: Annotated[float, inputs.option("dp_delta of all releases together, such as 1e-5.")],
    method: Annotated[
        str | None,
        inputs.option(
            "Accounting: exact (Gaussian noise only), rdp, zcdp or pld; the tightest that holds unless given."
        ),
    ] = None,
    client: ClientOption = None,
    unit: UnitOption = None,
    run: RunOption = None,
    json: inputs.JsonOption = False,
) -> None:
    """Convert spent budgets to dp_epsilon.

    In JSON an infinite dp_epsilon, which protects from nothing, is "Infinity".
    """
    from mppfl.privacy import METHODS

    methods = (*METHODS, "pld")  # pld needs the releases, not only their budgets
    if method is not None and method not in methods:
        raise BadInput(f"--method={method!r} is not known. Known: {', '.join(methods)}.")
    with _open(source) as ledger, inputs.working("accounting"):
        names = list(dict.fromkeys(client or ledger.clients))
        units = _units(ledger, unit)
        used = {unit: method or ledger.account(names, unit, run).accounting for unit in units}
        columns = {
            unit: {"dp_epsilon": ledger.get_epsilon(names, delta, used[unit], unit=unit, run=run)} for unit in units
        }
        meanings = {unit: ledger.get_attack_risk(names, unit=unit, run=run).sentence for unit in columns if names}
        notes = ledger.notes()
        if run is not None and len(runs := ledger.runs) > 1:
            notes = (*notes, f"{run} is one of {len(runs)} runs: what people gave in all is more. Leave --run out")
    rows = _rows(names, columns)
    if json:
        answer = {"dp_delta": delta, "method": method or used, "meaning": meanings, "notes": notes}
        inputs.print_json(answer | {"clients": _with_infinity(rows)})
        return
    _print_rows(rows)
    typer.echo(f"at dp_delta {delta:g} by the method {', '.join(dict.fromkeys(used.values()))}")
    for released, meaning in meanings.items():
        typer.echo(f"per {released}, at most: {meaning}")
    inputs.warn(notes)


@app.command("label")
def label_command(
    source: Source,
    client: Annotated[str, typer.Argument(help="Name of the client.")],
    delta: Annotated[float, inputs.option("dp_delta of all releases together.")] = 1e-5,
    json: inputs.JsonOption = False,
) -> None:
    """Print one client's privacy label: what was released about it, under which protection, and what that means.

    The fields follow the label for differential privacy of arXiv 2507.15997.
    """
    with _open(source) as ledger, inputs.working("accounting"):
        events = [event for event in ledger.events() if event["client"] == client]
        released = {"record", *(event["unit"] for event in events)}
        labels = {unit: _label(ledger, client, unit, delta) for unit in ledger.units if unit in released}
        for unit, row in labels.items() if len(ledger.runs) > 1 else ():
            of_run = partial(ledger.get_epsilon, client, delta, row["accounting"], unit=unit)
            row["dp_epsilon by run"] = {run: of_run(run=run) for run in ledger.runs}
        notes = ledger.notes()
    label = {
        "client": client,
        "releases": len(events),
        "rounds": len({(event["run"], event["round_index"]) for event in events}),
        "runs": sorted({event["run"] for event in events}),
        "protections": sorted({event["protection"] for event in events}),
        "noise": sorted({event["noise_kind"] for event in events}),
        "dp_delta": delta,
    }
    if json:
        inputs.print_json(
            label | {"units": {unit: _with_infinity([row])[0] for unit, row in labels.items()}, "notes": notes}
        )
        return
    inputs.print_lines({name: _listed(value) for name, value in label.items()}, 24)
    for unit, row in labels.items():
        typer.echo(f"\nof one {unit}" if unit == "record" else "\nof all its data")
        inputs.print_lines({name: _listed(value) for name, value in row.items()}, 24)
    inputs.warn(notes)


def _label(ledger: PrivacyLedger, client: str, unit: Any, delta: float) -> dict[str, Any]:
    """One client's figures in one unit."""
    account = ledger.account(client, unit)
    risk = ledger.get_attack_risk(client, unit=unit)
    return {
        "hides": "one record, replaced by nothing" if account.zero_out.any() else "one record, replaced by another",
        "dp_epsilon": ledger.get_epsilon(client, delta, account.accounting, unit=unit),
        "accounting": account.accounting,
        "spent": float(account.budget[0]),
        "cap": float(account.cap[0]),
        **{f"cap of ε at δ = {at:g}": cap for at, cap in account.epsilon_caps[0].items()},
        "remaining": float(account.remaining[0]),
        "attacker's advantage": float(risk.advantage),
        "meaning": risk.sentence,
    } | ({"hides": "all its data"} if unit == "client" else {})


def _listed(value: Any) -> str:
    """A value of the label as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_listed(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@app.command("export")
def export_command(
    source: Source,
    out: Annotated[Path, inputs.option("Where to write: .csv or .json.")],
    json: inputs.JsonOption = False,
) -> None:
    """Write every release to a table."""
    inputs.check_target(out, ".csv", ".json")
    if out.exists() and source.exists() and out.samefile(source):
        raise BadInput(f"{str(out)!r} is the ledger itself. Choose another file.")
    with _open(source) as ledger:
        count = ledger.export_csv(out) if out.suffix == ".csv" else ledger.export_json(out)
        notes = ledger.notes()
    if json:
        inputs.print_json({"path": str(out), "num_events": count, "notes": notes})
        return
    typer.echo(f"{out}: {count:,} releases")
    inputs.warn(notes)


@app.command("verify")
def verify_command(
    source: Source,
    head: Annotated[
        str | None, inputs.option("Head noted earlier: fails where the ledger does not go on from there.")
    ] = None,
    json: inputs.JsonOption = False,
) -> None:
    """Check pages, chain, sums, caps and uploads. Fails where a release, cap or status was changed."""
    with _open(source) as ledger, inputs.working("verifying"):
        count, head, runs = ledger.verify(head), ledger.head, ledger.runs
    if json:
        inputs.print_json({"sound": True, "num_events": count, "runs": runs, "head": head})
        return
    of_runs = f" of {len(runs)} runs" if len(runs) > 1 else ""
    typer.echo(f"sound: {count:,} releases{of_runs}; head {head}")
