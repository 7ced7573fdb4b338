"""Parts of the page that others are made of: tables and lists of facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dash import html


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> html.Table:
    """A table whose first column names its rows."""
    return html.Table(
        [
            html.Caption(caption),
            html.Thead(html.Tr([html.Th(head, scope="col") for head in heads])),
            html.Tbody([html.Tr([html.Td(cell) for cell in row]) for row in rows]),
        ]
    )


def facts(pairs: Iterable[tuple[str, str]]) -> html.Dl:
    """What is what: a name and its value, line by line."""
    lines: list[Any] = []
    for name, value in pairs:
        lines += [html.Dt(name), html.Dd(value)]
    return html.Dl(lines, className="facts")


def what_went_wrong(error: Exception) -> str:
    """A fault as a sentence."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}. This is a fault in mppfl; please report it."
