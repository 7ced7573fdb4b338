"""Values for readers: a few aligned lines, an HTML table for notebooks, a pandas.DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

import numpy as np

from mppfl.errors import MppflError

MOST_ROWS = 20  # of an HTML table; what is between the first and the last is left out


def lines_of(title: str, facts: Mapping[str, str]) -> str:
    """The title, and below it one aligned line per fact."""
    width = max(map(len, facts), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in facts.items())])


def span(values: Any) -> str:
    """Smallest to largest of some numbers, or the one number that they all are."""
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def html_table(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as an HTML table of at most MOST_ROWS rows."""
    rows = list(zip(*columns.values(), strict=True))
    if len(rows) > MOST_ROWS:
        rows = [*rows[: MOST_ROWS // 2], ("…",) * len(columns), *rows[-MOST_ROWS // 2 :]]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Columns as a pandas.DataFrame; raises MppflError where pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError as missing:
        raise MppflError("tables need pandas, which is not installed. Run `pip install pandas`.") from missing
    return pandas.DataFrame(dict(columns))
