"""The clients file: a CSV with a header, one line per client of the network."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path

import numpy as np

from mppfl.errors import BadFile, UnknownClient
from mppfl.game.model import Clients
from mppfl.network.graph import SocialGraph, joined_names

REQUIRED = ("name", "quadratic_cost", "linear_cost", "noise_harm")
COLUMNS = ("name", *(f.name for f in fields(Clients)))
WANTED = {
    "quadratic_cost": "a number above 0",
    "noise_harm": "a number above 0",
    "data_size": "a number above 0",
    "linear_cost": "a number of at least 0",
    "compute_cost": "a number of at least 0",
    "budget_min": "a number of at least 0",
    "budget_max": "a number of at least 0, or inf",
}


def read_clients(path: str | Path, graph: SocialGraph) -> Clients:
    """Clients in the order of the graph. Every client of the graph must have exactly one line, and nobody else.

    Columns: name, quadratic_cost, linear_cost, noise_harm, and optionally compute_cost, data_size, budget_min,
    budget_max. Raises BadFile with the line number, or UnknownClient, in one line.
    """
    where = Path(path)
    try:
        with where.open(newline="", encoding="utf-8-sig") as file:
            return _parse(file, where.name, graph)
    except OSError as cause:
        raise BadFile(
            f"{where}: cannot be read ({cause.strerror or cause}). Check the path and its permissions."
        ) from cause
    except UnicodeDecodeError as cause:
        raise BadFile(f"{where.name}: not UTF-8 text (byte {cause.start}). Save the file as UTF-8.") from cause
    except csv.Error as cause:
        raise BadFile(f"{where.name}: not a CSV file ({cause}). Save it as comma-separated UTF-8 text.") from cause


def _parse(file: object, name: str, graph: SocialGraph) -> Clients:
    reader = csv.reader(file, skipinitialspace=True)  # type: ignore[arg-type]
    header = [field.strip() for field in next(reader, [])]
    _check_header(header, name)
    columns = [column for column in header if column != "name"]
    name_at = header.index("name")
    values = {column: np.full(graph.num_clients, np.nan) for column in columns}
    seen = np.zeros(graph.num_clients, dtype=np.int64)  # line number + 1 of each client, 0 for none
    for row in reader:
        if not any(field.strip() for field in row) or row[0].lstrip().startswith("#"):
            continue
        line = reader.line_num
        if len(row) != len(header):
            raise BadFile(
                f"{name}, line {line}: {len(row)} fields where the header has {len(header)}. Complete the line."
            )
        client = row[name_at].strip()
        try:
            position = graph.index(client)
        except UnknownClient as cause:
            raise UnknownClient(f"{name}, line {line}: {cause}") from None
        if seen[position]:
            raise BadFile(
                f"{name}, line {line}: client {client!r} stands already on line {seen[position]}. Keep one of them."
            )
        seen[position] = line
        for column, text in zip(header, row, strict=True):
            if column != "name":
                values[column][position] = _number(text, column, client, name, line)
    missing = np.flatnonzero(seen == 0)
    if len(missing):
        who = joined_names(graph.name(int(i)) for i in missing[:6])
        raise BadFile(f"{name}: {len(missing):,} clients of the network have no line: {who}. Add them.")
    if "budget_max" in values and "budget_min" in values:
        wrong = np.flatnonzero(values["budget_max"] < values["budget_min"])
        if len(wrong):
            i = int(wrong[0])
            low, high = values["budget_min"][i], values["budget_max"][i]
            raise BadFile(
                f"{name}, line {seen[i]}: budget_max={high:g} of client {graph.name(i)!r} is below budget_min={low:g}. "
                "Exchange or correct them."
            )
    return Clients(**values)


def _check_header(header: list[str], name: str) -> None:
    if not any(header):
        raise BadFile(f"{name}: empty. The first line must be a header: {', '.join(REQUIRED)}.")
    for column in header:
        if column not in COLUMNS:
            from difflib import get_close_matches

            near = get_close_matches(column, COLUMNS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(COLUMNS)}."
            raise BadFile(f"{name}, line 1: unknown column {column[:40]!r}.{hint}")
        if header.count(column) > 1:
            raise BadFile(f"{name}, line 1: column {column!r} stands twice. Keep one of them.")
    for column in REQUIRED:
        if column not in header:
            raise BadFile(f"{name}, line 1: column {column!r} is missing. Needed: {', '.join(REQUIRED)}.")


def _number(text: str, column: str, client: str, name: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    least_allowed = value > 0 if "above 0" in WANTED[column] else value >= 0
    if not least_allowed or (np.isinf(value) and column != "budget_max"):
        shown = text.strip()[:40] or "nothing"
        raise BadFile(f"{name}, line {line}: {column} of client {client!r} is {shown}; it must be {WANTED[column]}.")
    return value


def write_clients(clients: Clients, graph: SocialGraph, path: str | Path) -> None:
    """The clients file that `read_clients` reads back, without loss."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        columns = [getattr(clients, column) for column in COLUMNS[1:]]
        for i in range(graph.num_clients):
            writer.writerow([graph.name(i), *(repr(float(column[i])) for column in columns)])
