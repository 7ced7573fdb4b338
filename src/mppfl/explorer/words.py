"""Parts of the page that others are made of: tables and lists of facts; and parts as text, which browsers draw fast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component
from markupsafe import escape


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


def as_text(part: Any) -> str:
    """A part that only shows something, as HTML, every word escaped: as components of Dash cells take far longer."""
    if part is None:
        return ""
    if isinstance(part, (list, tuple)):
        return "".join(map(as_text, part))
    if not isinstance(part, Component):
        return str(escape(part))
    described = part.to_plotly_json()
    given, tag = dict(described["props"]), str(described["type"]).lower()
    inside = as_text(given.pop("children", None))
    if "style" in given:
        given["style"] = ";".join(f"{name}:{value}" for name, value in given["style"].items())
    named = {("class" if name == "className" else name): value for name, value in given.items()}
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in named.items())
    return f"<{tag}{attributes}>{inside}</{tag}>"
