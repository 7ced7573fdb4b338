"""The experiment file: TOML in, an Experiment out, or one line that says what is wrong, where, and what would be right.

    experiment = read_experiment("demo.toml", ["training.clip_norm=0.5"])

[training] holds the fields of TrainingConfig beside those of Training; nothing else differs from the dataclasses.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mppfl.errors import BadFile, BadInput
from mppfl.experiment.experiment import ONE_OR_MANY, OPTION_OF, Experiment, shown
from mppfl.experiment.experiment_tables import OF_CONFIG, OF_TRAINING, TABLES, Training, keys_of
from mppfl.training import CHOICES, TrainingConfig

Value = TypeVar("Value")
EITHER_OR = (
    *(((one,), (many,)) for one, many in ONE_OR_MANY.items()),
    (("training", "budget_unit"), ("training", "dp_epsilon")),
)
PATHS = (("network", "source"), ("game", "clients"), ("data", "folder"), ("output", "folder"))


def read_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file. `overrides` are single values such as "training.clip_norm=0.5".

    Relative paths in the file are relative to it. An unknown name raises with the nearest known one, a wrong value
    with its place and what would be right; all in one line.
    """
    path = Path(path)
    try:
        raw = tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as cause:
        raise BadFile(f"{path}: cannot be read ({cause.strerror or cause}). Check the path.") from cause
    except UnicodeDecodeError as cause:
        raise BadFile(f"{path}: not UTF-8 text (byte {cause.start}). Save the file as UTF-8.") from cause
    except (tomllib.TOMLDecodeError, RecursionError) as cause:
        raise BadFile(f"{path}: not TOML ({cause or 'nested too deeply'}). Correct that place.") from cause
    try:
        raw.setdefault("name", path.stem)
        with_paths = _absolute_paths(raw, path.absolute().parent)
        for override in sorted(overrides, key=_is_of_all_else):
            _set(with_paths, override)
        return experiment_from(with_paths)
    except BadFile:
        raise
    except BadInput as cause:
        raise BadFile(f"{path}: {cause}") from cause


def experiment_from(raw: Mapping[str, Any]) -> Experiment:
    """The experiment that a mapping with the names of the file describes, checked as the file is."""
    given = dict(raw)
    for one, many in ONE_OR_MANY.items():
        if one in given and many in given:
            raise BadInput(f"{one} and {many} are both given. Keep one of them.")
        if one in given:
            wanted: type = int if one == "seed" else str
            if type(given[one]) is not wanted:
                raise BadInput(f"{one}={shown(given[one])} must be {_in_words(wanted)}. For several, use {many}.")
            given[many] = [given.pop(one)]
    for name in given.keys() & TABLES.keys():
        if not isinstance(given[name], dict):
            raise BadInput(f"{name}={shown(given[name])} must be a table. Write [{name}] and its values below it.")
    tables = {name: _table(name, given.pop(name, {})) for name in TABLES}
    own = tuple(f.name for f in fields(Experiment) if f.name not in TABLES)
    _require_known(given, own, "", (*own, *ONE_OR_MANY, *TABLES))
    return Experiment(**_checked(Experiment, own, given, ""), **tables)


def _table(name: str, raw: dict[str, Any]) -> Any:
    known = keys_of(name)
    _require_known(raw, known, name)
    if name != "training":
        return _made(TABLES[name], known, raw, name)
    if "dp_epsilon" in raw and "budget_unit" in raw:
        raise BadInput("training.dp_epsilon and training.budget_unit are both given. Keep one of them.")
    config = _made(TrainingConfig, OF_CONFIG, {key: raw[key] for key in raw if key in OF_CONFIG}, name)
    mine = {key: raw[key] for key in raw if key in OF_TRAINING}
    return _made(Training, OF_TRAINING, mine, name, config=config)


def _made(cls: type[Value], known: tuple[str, ...], raw: dict[str, Any], table: str, **more: Any) -> Value:
    """The dataclass with these values; what it refuses is told with the place in the file."""
    values = _checked(cls, known, raw, table)
    try:
        return cls(**values, **more)
    except BadInput as cause:
        text = str(cause)
        names_its_key = re.split(r"\W", text, maxsplit=1)[0] in known
        raise BadInput(f"{table}.{text}" if names_its_key else f"[{table}] {text}") from cause


def _checked(cls: type, known: tuple[str, ...], raw: dict[str, Any], table: str) -> dict[str, Any]:
    """The values, each of the type that the dataclass declares: nothing is converted but lists and whole numbers."""
    try:
        found = _border(cls, known).model_validate({key: _frozen(value) for key, value in raw.items()})
    except ValidationError as cause:
        key = str(cause.errors()[0]["loc"][0])
        place = f"{table}.{key}" if table else key
        wanted, value = _hints(cls)[key], raw[key]
        near = _nearest(value, _choices(wanted)) if isinstance(value, str) else ""
        raise BadInput(f"{place}={shown(value)} must be {_in_words(wanted)}.{near}") from cause
    return {key: getattr(found, key) for key in raw}


@cache
def _border(cls: type, known: tuple[str, ...]) -> type[BaseModel]:
    """What pydantic checks: the dataclass's names and types, without its logic."""
    hints: dict[str, Any] = {name: (hint, None) for name, hint in _hints(cls).items() if name in known}
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    return create_model(cls.__name__, __config__=strict, **hints)


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return hints | {name: Literal[known] for name, known in CHOICES.items() if hints.get(name) is str}


def _require_known(raw: Mapping[str, Any], known: Sequence[str], table: str, near: Sequence[str] = ()) -> None:
    for key in raw:
        if key not in known:
            place = f"{table}.{key}" if table else key
            homes = [home for home in TABLES if key in keys_of(home)]
            hint = _nearest(key, near or known)
            if not hint and homes:
                hint = f" It belongs to [{homes[0]}]."
            raise BadInput(f"{place[:80]!r} is not known.{hint or ' Known: ' + ', '.join(near or known) + '.'}")


def _nearest(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _choices(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for part in get_args(hint) for choice in _choices(part))


def _in_words(hint: Any) -> str:
    """A type as a user would say it."""
    simple = {float: "a finite number", int: "a whole number", bool: "true or false", str: "text"}
    if hint in simple:
        return simple[hint]
    parts = get_args(hint)
    if get_origin(hint) is Literal:
        return ("" if len(parts) == 1 else "one of ") + ", ".join(json.dumps(part) for part in parts)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_in_words(part) for part in parts if part is not NoneType)
    if get_origin(hint) is dict:
        return f"a table whose values are each {_in_words(parts[1])}"
    if parts[-1] is Ellipsis:
        return f"a list whose entries are each {_in_words(parts[0])}"
    return f"a list of {len(parts)} entries, each {_in_words(parts[0])}"


def _absolute_paths(raw: dict[str, Any], base: Path) -> dict[str, Any]:
    """The same values with paths taken relative to the file."""
    found = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    data = found.get("data")
    names_a_file = isinstance(data, dict) and str(data.get("name", "")).endswith(".npz")
    for table, key in (*PATHS, *([("data", "name")] if names_a_file else [])):
        values = found.get(table)
        if isinstance(values, dict) and isinstance(values.get(key), str):
            values[key] = str(base / Path(values[key]).expanduser())
    return found


def _is_of_all_else(override: str) -> bool:
    """Mechanisms come first: they take options of the file away, and none that was typed beside them."""
    return override.partition("=")[0].strip() not in ("mechanism", "mechanisms")


def _mechanisms(raw: Mapping[str, Any]) -> list[Any]:
    listed = raw.get("mechanisms", raw.get("mechanism", ()))
    return list(listed) if isinstance(listed, (list, tuple)) else [listed]


def _set(raw: dict[str, Any], override: str) -> None:
    """Puts a value such as "training.clip_norm=0.5" in its place; a bare word is text."""
    place, sign, text = override.partition("=")
    steps = [step.strip() for step in place.split(".")]
    if not sign or not all(steps):
        raise BadInput(f"--set {override!r} must look like training.clip_norm=0.5.")
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if set(parsed) == {"value"} else text.strip()
    except (tomllib.TOMLDecodeError, RecursionError):
        if re.search(r"[\[\]{}\"'\n]", text) or not text.strip():
            raise BadInput(f"--set {override!r}: {text!r} is no TOML value. Quote text, and close brackets.") from None
        value = text.strip()
    within, before = raw, _mechanisms(raw)
    for step in steps[:-1]:
        within = within.setdefault(step, {})
        if not isinstance(within, dict):
            raise BadInput(f"--set {override!r}: {step!r} is a value, not a table.")
    for either in EITHER_OR:  # a value on the command line replaces either form in the file
        if tuple(steps) in either:
            for *_, key in either:
                within.pop(key, None)
    within[steps[-1]] = value
    for option, owner in OPTION_OF.items():  # what the file says of a mechanism goes with it
        if owner in before and owner not in _mechanisms(raw) and isinstance(raw.get("game"), dict):
            raw["game"].pop(option, None)
