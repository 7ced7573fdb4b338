"""The experiment file: read from TOML, single values replaced, and two experiments told apart."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mppfl.errors import BadFile, BadInput
from mppfl.fields import require_known, shown
from mppfl.files import read_toml
from mppfl.game import MECHANISMS
from mppfl.spec import ONE_OR_MANY, TABLES, Experiment, OutputSpec

TOP = ("name", "seeds", "mechanisms", "aggregations")  # what stands above all tables
EITHER_OR = (
    *(((one,), (many,)) for one, many in ONE_OR_MANY.items()),
    (("protection", "budget_unit"), ("protection", "total_epsilon")),
)
PATHS = (("game", "graph"), ("game", "clients"), ("data", "folder"), ("output", "folder"), ("ledger", "file"))
OLD_KEYS = {"network.source": "game.graph", "network.generate": "game.family", "network.seed": "game.graph_seed"}


def read_experiment(path: str | Path | None, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file.

    Args:
        path: The file, to which relative paths in it are relative; None for the default of every value.
        overrides: Single values in place of the file's, as "protection.clip_norm=0.5".

    Returns:
        The experiment, every value checked. Its name is the file's unless the file gives one.

    Raises:
        BadFile: The file cannot be read, or says what cannot be: one line with the place, the value and what would be
            right; for an unknown name the nearest known one.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from mppfl import read_experiment
        >>> file = Path(mkdtemp()) / "trial.toml"
        >>> _ = file.write_text("seed = 1\\n[protection]\\nclip_norm = 2.0")
        >>> read_experiment(file, ["protection.clip_norm=0.5"])
        Experiment 'trial': mppfl, seed 1
          protection clip_norm = 0.5
    """
    path = None if path is None else Path(path)
    raw = {} if path is None else read_toml(path)
    try:
        raw.setdefault("name", "experiment" if path is None else path.stem)
        values = raw if path is None else _absolute_paths(raw, path.absolute().parent)
        # Mechanisms come first: they take options of the file away, and none that was typed beside them.
        for override in sorted(overrides, key=lambda text: not re.match(r"\s*mechanisms?\s*=", text)):
            _set(values, override)
        return experiment_from(values)
    except BadFile:
        raise
    except BadInput as cause:
        raise cause if path is None else BadFile(f"{path}: {cause}") from cause


def experiment_from(raw: Mapping[str, Any]) -> Experiment:
    """The experiment that a mapping with the names of the file describes, checked as the file is."""
    given = dict(raw)
    for one, many in ONE_OR_MANY.items():
        if one in given and many in given:
            raise BadInput(f"{one} and {many} are both given. Keep one of them.")
        if one in given:
            given[many] = [_single(one, given.pop(one))]
    if isinstance(network := given.get("network"), Mapping):  # a table of earlier versions
        places = [f"network.{key}" for key in network] or ["network"]
        now = ", ".join(f"{place} is {OLD_KEYS.get(place, place.replace('network', 'game'))}" for place in places)
        raise BadInput(f"[network] is part of [game] now: {now}. Write them there.")
    require_known(given, (*TOP, *TABLES), also=ONE_OR_MANY)
    if given.get("seeds", True) == []:
        raise BadInput("seeds must name at least one.")
    return Experiment(**given)


def _single(name: str, value: Any) -> Any:
    """The one seed, or the one mechanism."""
    kind: type = int if name == "seed" else str
    if type(value) is not kind:
        words = "a whole number" if kind is int else "text"
        raise BadInput(f"{name}={shown(value)} must be {words}. For several, use {ONE_OR_MANY[name]}.")
    if isinstance(value, int) and value < 0:
        raise BadInput(f"{name}={value} must be a whole number of at least 0.")
    return value


def differences(now: Experiment, before: Experiment) -> str:
    """Where two experiments differ, as "protection.clip_norm: 1.0, was 0.5 (and 2 more)"; "" where they do not."""
    new, old = (flat_values(replace(one, output=OutputSpec()).as_dict()) for one in (now, before))
    changed = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    values = [shown(values.get(changed[0], "not given")) for values in (new, old)] if changed else []
    return f"{changed[0]}: {', was '.join(values)}{more}" if changed else ""


def flat_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names: {"protection.clip_norm": 1.0, ...}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flat_values(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _absolute_paths(raw: dict[str, Any], base: Path) -> dict[str, Any]:
    """The same values with paths taken relative to the file."""
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    data = values.get("data")
    names_a_file = isinstance(data, dict) and str(data.get("name", "")).endswith(".npz")
    for name, key in (*PATHS, *([("data", "name")] if names_a_file else [])):
        table = values.get(name)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(base / Path(table[key]).expanduser())
    return values


def _set(raw: dict[str, Any], override: str) -> None:
    """Puts a value such as "protection.clip_norm=0.5" in its place."""
    place, sign, text = override.partition("=")
    steps = [step.strip() for step in place.split(".")]
    if not sign or not all(steps):
        raise BadInput(f"--set {override!r} must look like protection.clip_norm=0.5.")
    table, before = raw, _options(raw)
    for step in steps[:-1]:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise BadInput(f"--set {override!r}: {step!r} is a value, not a table.")
    replaced = next((either for either in EITHER_OR if tuple(steps) in either), ())
    for *_, key in replaced:  # a value on the command line replaces either form in the file
        table.pop(key, None)
    table[steps[-1]] = _value_of(override, text)
    if isinstance(raw.get("game"), dict):
        for option in before - _options(raw):  # what the file says of a mechanism goes with it
            raw["game"].pop(option, None)


def _value_of(override: str, text: str) -> Any:
    """The TOML value that was typed; a bare word is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
        return parsed["value"] if set(parsed) == {"value"} else text.strip()
    except (tomllib.TOMLDecodeError, RecursionError):
        if re.search(r"[\[\]{}\"'\n]", text) or not text.strip():
            raise BadInput(f"--set {override!r}: {text!r} is no TOML value. Quote text, and close brackets.") from None
        return text.strip()


def _options(raw: Mapping[str, Any]) -> set[str]:
    """Keys of [game] that are options of the mechanisms."""
    listed = raw.get("mechanisms", raw.get("mechanism", ()))
    names = [name for name in (listed if isinstance(listed, (list, tuple)) else [listed]) if isinstance(name, str)]
    options = {MECHANISMS[name].option for name in names if name in MECHANISMS}
    return {option for option in options if option is not None}
