"""Plain values as TOML, which the standard library reads and does not write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def write_toml(values: Mapping[str, Any], table: str = "") -> str:
    """A mapping of texts, numbers, lists and tables of these as TOML."""
    lines = [f"{_key(key)} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, Mapping)]
    text = "".join(f"{line}\n" for line in lines)
    for key, inner in values.items():
        if isinstance(inner, Mapping):
            place = f"{table}.{_key(key)}" if table else _key(key)
            text += f"\n[{place}]\n" + write_toml(inner, place)
    return text


def toml_value(value: Any) -> str:
    """A text, a number, true, false or a list of these as TOML; others as Python shows them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)
