"""Parts of which the page is built: levers with their labels, links with what they download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import dcc, html


@dataclass(frozen=True, slots=True)
class Slider:
    """A lever that is drawn along: its letter, what it is, and between what it moves."""

    field: str
    words: str
    low: float
    high: float
    step: float
    help: str


def lever(field: str) -> str:
    """The id of the component that holds a field of Choices."""
    return f"lever-{field}"


def select_lever(field: str, words: str, options: dict[str, str], value: Any) -> html.Div:
    listed = [{"label": label, "value": name} for name, label in options.items()]
    box = dcc.Dropdown(listed, value, id=lever(field), clearable=False, searchable=False, className="select")
    return html.Div([html.Label(words, htmlFor=lever(field), id=f"words-{field}"), box], className="lever")


def slider_lever(each: Slider, value: float) -> html.Div:
    return html.Div(
        [
            html.Label(
                [f"{each.words} ", html.Output(id=f"value-{each.field}")], htmlFor=lever(each.field), title=each.help
            ),
            dcc.Input(id=lever(each.field), type="range", min=each.low, max=each.high, step=each.step, value=value),
        ],
        className="lever",
    )


def number_lever(field: str, words: str, value: float | None, low: float, high: float | None, step: Any) -> html.Div:
    limits = {"min": low} | ({} if high is None else {"max": high})
    box = dcc.Input(id=lever(field), type="number", value=value, step=step, debounce=True, **limits)
    return html.Div([html.Label(words, htmlFor=lever(field)), box], className="lever")


def text_lever(field: str, words: str, names: str) -> html.Div:
    box = dcc.Input(
        id=lever(field), type="text", value="", list=names, debounce=True, autoComplete="off", spellCheck="false"
    )
    return html.Div([html.Label(words, htmlFor=lever(field)), box], className="lever")


def check_lever(field: str, words: str) -> dcc.Checklist:
    return dcc.Checklist([{"label": words, "value": "yes"}], [], id=lever(field), className="choice")


def radio_lever(field: str, options: dict[str, str], value: str) -> dcc.RadioItems:
    listed = [{"label": words, "value": name} for name, words in options.items()]
    return dcc.RadioItems(listed, value, id=lever(field), inline=True, className="choice")


def link_to(what: str, kind: str) -> dict[str, Any]:
    """Attributes of a download's link; explorer.js puts the query of the moment behind it."""
    path = f"/download/{what}.{kind}"
    return {"href": path, "data-path": path, "download": f"{what}.{kind}"}


def downloads(key: str, words: str, kinds: Sequence[str], what: str) -> html.Span:
    links = [html.A(kind.upper(), title=f"Download {words} as {kind.upper()}", **link_to(what, kind)) for kind in kinds]
    return html.Span([html.Span(f"{words}:", className="soft"), *links], className="downloads", id=f"downloads-{key}")
