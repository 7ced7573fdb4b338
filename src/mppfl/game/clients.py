"""Clients of a game: read from a CSV file, or drawn from a preset."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mppfl.arrays import Array, IntArray, require_generator
from mppfl.errors import BadFile, BadInput, UnknownClient
from mppfl.game.model import Clients, wanted_of
from mppfl.network import SocialGraph
from mppfl.text import joined_names, nearest

PresetName = Literal["paper-like", "benign"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Ranges from which clients are drawn, and the game's constants."""

    quadratic_cost: tuple[float, float]
    linear_cost: tuple[float, float]
    noise_harm: float
    max_hops: int
    hop_decay: float
    externality_strength: float
    accuracy_weight: float


PRESETS: dict[str, Preset] = {
    "paper-like": Preset((0.2, 1.0), (0.2, 2.0), 0.1, 5, 0.9, 0.05, 0.5),  # shows the trends of the paper's figures
    "benign": Preset((0.5, 1.0), (0.1, 0.5), 1.0, 5, 0.5, 0.05, 0.5),  # everybody gains in round 1
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise BadInput(f"preset={name!r} is not known. Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def draw_clients(name: str, num_clients: int, rng: np.random.Generator) -> Clients:
    """Clients with costs drawn from a preset's ranges, without bounds and without compute costs.

    Args:
        name: "paper-like" or "benign".
        num_clients: how many.
        rng: NumPy's random generator; the same state gives the same clients.

    Raises:
        BadInput: the preset is not known, or `rng` is no generator.

    Example:
        >>> import numpy as np, mppfl
        >>> mppfl.draw_clients("benign", 5, np.random.default_rng(0)).num_clients
        5
    """
    chosen = preset(name)
    require_generator(rng)
    return Clients(
        quadratic_cost=rng.uniform(*chosen.quadratic_cost, num_clients),
        linear_cost=rng.uniform(*chosen.linear_cost, num_clients),
        noise_harm=np.full(num_clients, chosen.noise_harm),
    )


# ---- The clients file: a CSV with a header, one line per client of the network --------------------------------------

REQUIRED = ("name", "quadratic_cost", "linear_cost", "noise_harm")
COLUMNS = ("name", *(f.name for f in fields(Clients)))


def read_clients(path: str | Path, graph: SocialGraph) -> Clients:
    """Clients from a CSV file with a header, in the order of the graph.

    Args:
        path: columns name, quadratic_cost, linear_cost, noise_harm, and optionally compute_cost, data_size, budget_min,
            budget_max; exactly one line for each client of the graph.
        graph: the network whose clients these are.

    Raises:
        BadFile: the file cannot be read, or a line is wrong; says which.
        UnknownClient: a line is about nobody in the graph.

    Example:
        >>> import numpy as np, mppfl, pathlib, tempfile
        >>> pair = mppfl.graph_from_edges(np.array([0, 1]), np.array([1, 0]), names=["ann", "bob"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "clients.csv"
        ...     lines = ["name,quadratic_cost,linear_cost,noise_harm", "bob,2,0,1", "ann,1,0,1"]
        ...     _ = path.write_text("\\n".join(lines))
        ...     mppfl.read_clients(path, pair).quadratic_cost.tolist()
        [1.0, 2.0]
    """
    where = Path(path)
    try:
        with where.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            try:
                return _read_rows(reader, where.name, graph)
            except csv.Error as cause:
                problem = f"line {reader.line_num}: not a line of CSV ({cause}). Close quotes, and double those inside."
                raise BadFile(f"{where.name}, {problem}") from cause
    except OSError as cause:
        reason = cause.strerror or cause
        raise BadFile(f"{where}: cannot be read ({reason}). Check the path and its permissions.") from cause
    except UnicodeDecodeError as cause:
        raise BadFile(f"{where.name}: not UTF-8 text (byte {cause.start}). Save the file as UTF-8.") from cause


def _read_rows(reader: Any, name: str, graph: SocialGraph) -> Clients:
    rows = _rows(reader, {client for client in graph.names or () if client.startswith("#")})
    header = [field.strip() for field in next(rows, [])]
    _check_header(header, f"{name}, line {reader.line_num}" if header else name)
    values = {column: np.full(graph.num_clients, np.nan) for column in header if column != "name"}
    line_of = np.zeros(graph.num_clients, dtype=np.int64)  # 0 for none
    for row in rows:
        place = f"{name}, line {reader.line_num}"
        if len(row) != len(header):
            raise BadFile(f"{place}: {len(row)} fields where the header has {len(header)}. Complete the line.")
        cells = dict(zip(header, row, strict=True))
        client = cells.pop("name").strip()
        if client in graph.dropped:  # the network was read with isolated="drop"
            continue
        try:
            position = graph.index(client)
        except UnknownClient as cause:
            raise UnknownClient(f"{place}: {cause}") from None
        if line_of[position]:
            raise BadFile(f"{place}: client {client!r} stands already on line {line_of[position]}. Keep one of them.")
        line_of[position] = reader.line_num
        for column, text in cells.items():
            values[column][position] = _number(text, column, f"{place}: {column} of client {client!r}")
    _require_all_in_order(values, line_of, name, graph)
    return Clients(**values)


def _rows(reader: Any, hash_names: set[str]) -> Iterator[list[str]]:
    """Rows that hold something, without comments; below the header, clients may be called like one."""
    names: set[str] = set()
    for row in reader:
        if any(field.strip() for field in row) and (row[0].strip()[:1] != "#" or row[0].strip() in names):
            yield row
            names = hash_names


def _require_all_in_order(values: dict[str, Array], line_of: IntArray, name: str, graph: SocialGraph) -> None:
    """Raises BadFile where a client has no line, or a highest budget below its lowest."""
    missing = np.flatnonzero(line_of == 0)
    if len(missing):
        names = joined_names(graph.name(int(i)) for i in missing[:6])
        raise BadFile(
            f"{name}: {len(missing):,} of the network's {graph.num_clients:,} clients have no line: {names}. Add them."
        )
    low, high = values.get("budget_min", np.zeros(1)), values.get("budget_max", np.full(1, np.inf))
    for i in np.flatnonzero(high < low)[:1]:
        raise BadFile(
            f"{name}, line {line_of[i]}: budget_max={high[i]:g} of client {graph.name(int(i))!r} is below "
            f"budget_min={low[i]:g}. Exchange or correct them."
        )


def _check_header(header: list[str], where: str) -> None:
    if not header:
        raise BadFile(f"{where}: empty. The first line must be a header: {', '.join(REQUIRED)}.")
    for column in header:
        if column not in COLUMNS:
            near = nearest(column, COLUMNS)
            hint = f"Did you mean {near!r}?" if near else f"Known: {', '.join(COLUMNS)}."
            if any(mark in column for mark in ";\t"):
                hint = "Separate columns by commas."
            raise BadFile(f"{where}: unknown column {column[:40]!r}. {hint}")
        if header.count(column) > 1:
            raise BadFile(f"{where}: column {column!r} stands twice. Keep one of them.")
    for column in REQUIRED:
        if column not in header:
            raise BadFile(f"{where}: column {column!r} is missing. Needed: {', '.join(REQUIRED)}.")


def _number(text: str, column: str, place: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else np.nan  # float takes 1_0 for 10
    except ValueError:
        value = np.nan
    for wanted, holds in wanted_of(column, np.float64(value)):
        if not holds:
            shown = repr(text.strip()[:40]) if text.strip() else "nothing"
            raise BadFile(f"{place} is {shown}; it must be {wanted}.")
    return value
