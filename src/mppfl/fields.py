"""Fields of specs: what an annotation says of a value, how values are checked, and how text becomes one.

Whatever is wrong is told in one line: what, the value, what would be right, and for an unknown name the nearest one.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, urlencode

from mppfl.errors import BadInput
from mppfl.files import toml_value

LONGEST_LINK = 20_000  # characters
NOT_OF_THE_TYPE = object()


class About(NamedTuple):
    """What an annotation says of a field beside its type: its help, its panel in --help, its range and its option."""

    help: str
    panel: str = ""
    low: float = -math.inf
    high: float = math.inf
    closed: bool = False  # whether the ends of the range of a number are in it; those of a count are
    option: str = ""  # of the command line, where it is not the field's name


class Spec:
    """What specs share: unknown names are refused, values checked, and shown where they are not the default."""

    __slots__ = ()
    TABLE: ClassVar[str] = ""  # of the experiment file

    def __new__(cls, *_: Any, **values: Any) -> Self:
        require_known(values, hints(cls))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            object.__setattr__(self, name, checked(name, getattr(self, name), hint, about(type(self), name)))
        self._check()

    def _check(self) -> None:
        """Raises where two values do not go together."""

    def values(self) -> dict[str, Any]:
        """Every value by name."""
        return {name: getattr(self, name) for name in hints(type(self))}

    def changed(self) -> dict[str, Any]:
        """The values that are not the default, by name."""
        defaults = defaults_of(type(self))
        return {name: value for name, value in self.values().items() if value != defaults[name]}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"


Class = TypeVar("Class", bound=type)


def documented(cls: Class) -> Class:
    """The class with its fields, as their annotations explain them, in place of {fields} in its docstring."""
    lines = [f"        {name}: {about(cls, name).help}" for name in hints(cls)]
    cls.__doc__ = str(cls.__doc__).replace("        {fields}", "\n".join(lines))
    return cls


def hints(cls: Any) -> dict[str, Any]:
    """Types of a spec's fields, without what is said of them."""
    return _described(cls)[0]


def about(cls: Any, name: str) -> About:
    """What the annotation says of a field."""
    return _described(cls)[1][name]


def defaults_of(cls: Any) -> dict[str, Any]:
    """Every default by name."""
    return {
        item.name: item.default if item.default_factory is MISSING else item.default_factory() for item in fields(cls)
    }


@cache
def _described(cls: Any) -> tuple[dict[str, Any], dict[str, About]]:
    """Types of a spec's fields, and what is said of them."""
    types, said = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    names = [item.name for item in fields(cls)]
    return {name: types[name] for name in names}, {name: said[name].__metadata__[0] for name in names}


# ---- checks --------------------------------------------------------------------------------------------------------


def require_known(names: Iterable[str], known: Iterable[str], table: str = "", also: Iterable[str] = ()) -> None:
    """Raises for the first name that is not known, with what was probably meant; `also` names other things known."""
    known = list(known)
    for name in names:
        if name not in known:
            place = f"{table}.{name}" if table else str(name)
            hint = did_you_mean(str(name), [*known, *also]) or f" Known: {', '.join([*known, *also])}."
            raise BadInput(f"{place[:80]!r} is not known.{hint}")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A hint at the name that was meant, or at what an old one is called now; "" where there is no such."""
    from mppfl.text import nearest

    near = nearest(word, names)
    return f" Did you mean {near!r}?" if near else ""


def checked(name: str, value: Any, hint: Any, said: About) -> Any:
    """The value as its type has it: lists as tuples, NumPy's numbers as Python's. Raises where it cannot be."""
    value = _plain(value)
    kept = _matched(value, hint)
    if kept is NOT_OF_THE_TYPE or not _is_finite(kept):
        near = did_you_mean(value, choices(hint)) if isinstance(value, str) else ""
        raise BadInput(f"{name}={shown(value)} must be {in_words(hint)}.{near}")
    if (problem := _out_of_range(name, kept, said)) is not None:
        raise BadInput(problem)
    return kept


def _matched(value: Any, hint: Any) -> Any:
    """The value as the type has it, or NOT_OF_THE_TYPE."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        matches = (_matched(value, part) for part in parts)
        return next((match for match in matches if match is not NOT_OF_THE_TYPE), NOT_OF_THE_TYPE)
    if origin is Literal:
        return value if isinstance(value, str) and value in parts else NOT_OF_THE_TYPE
    if origin is tuple:
        return _matched_list(value, parts)
    if origin is dict:
        entries = _matched_list(list(value.values()), (parts[1], ...)) if isinstance(value, Mapping) else None
        return dict(zip(map(str, value), entries, strict=True)) if isinstance(entries, tuple) else NOT_OF_THE_TYPE
    return _matched_plainly(value, hint)


def _matched_plainly(value: Any, kind: Any) -> Any:
    """The same for a number, a text, yes or no, nothing, or a spec that is given as such or as its values."""
    if isinstance(kind, type) and issubclass(kind, Spec):
        return kind(**value) if isinstance(value, Mapping) else value if isinstance(value, kind) else NOT_OF_THE_TYPE
    if kind is float and type(value) is int and abs(value) < 2**1023:
        return float(value)
    if kind is str and isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    return value if type(value) is kind else NOT_OF_THE_TYPE


def _matched_list(values: Any, parts: tuple[Any, ...]) -> Any:
    """The same for a list, each of whose entries must match."""
    if not isinstance(values, (list, tuple)) or (parts[-1] is not Ellipsis and len(values) != len(parts)):
        return NOT_OF_THE_TYPE
    entries = tuple(_matched(_plain(entry), parts[0]) for entry in values)
    return NOT_OF_THE_TYPE if any(entry is NOT_OF_THE_TYPE for entry in entries) else entries


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_finite(value: Any) -> bool:
    if isinstance(value, (tuple, dict)):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _out_of_range(name: str, value: Any, said: About) -> str | None:
    """What is wrong with a number, or one of several; None where nothing is, or it is none."""
    if isinstance(value, (tuple, dict)):
        entries = value.items() if isinstance(value, dict) else (("", entry) for entry in value)
        told = (_out_of_range(f"{name}.{key}" if key else name, entry, said) for key, entry in entries)
        return next(filter(None, told), None)
    if type(value) is int and not said.low <= value <= said.high:
        end = f"at least {said.low:g}" if value < said.low else f"at most {said.high:,}"
        return f"{name}={value} must be a whole number of {end}."
    if type(value) is float and not (said.low <= value <= said.high if said.closed else said.low < value < said.high):
        ends = "[]" if said.closed else "()"
        return f"{name}={value:.6g} must lie in {ends[0]}{said.low:g}, {said.high:g}{ends[1]}."
    return None


def choices(hint: Any) -> tuple[str, ...]:
    """The words that a value of this type may be."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for part in get_args(hint) for choice in choices(part))


def in_words(hint: Any) -> str:
    """A type as a user would say it."""
    simple = {float: "a finite number", int: "a whole number", bool: "true or false", str: "text"}
    if hint in simple:
        return simple[hint]
    if isinstance(hint, type) and issubclass(hint, Spec):
        return f"a {hint.__name__} or a table of its values"
    parts, origin = get_args(hint), get_origin(hint)
    if origin is Literal:
        return ("" if len(parts) == 1 else "one of ") + ", ".join(json.dumps(part) for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(in_words(part) for part in parts if part is not NoneType)
    if origin is dict:
        return f"a table whose values are each {in_words(parts[1])}"
    length = "whose entries are" if parts[-1] is Ellipsis else f"of {len(parts)} entries,"
    return f"a list {length} each {in_words(parts[0])}"


def shown(value: Any) -> str:
    """A value as the file would say it, cut where it is long."""
    text = toml_value(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---- text ----------------------------------------------------------------------------------------------------------


SPELT = {  # int() would also take " 1_0 ", and float() "infinity"
    int: re.compile(r"-?[0-9]{1,18}"),
    float: re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|nan|[-+]?inf"),
}


def from_text(hint: Any, text: str) -> Any:
    """The value of this type that a text spells, as options and links hold it; the text itself where it spells none."""
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if kind is bool and text in ("yes", "no", "true", "false"):
            return text in ("yes", "true")
        if kind in SPELT and SPELT[kind].fullmatch(text):
            return kind(text)
        if get_origin(kind) is tuple:
            parts = filter(None, (part.strip() for part in text.strip("[]").split(",")))
            return tuple(from_text(get_args(kind)[0], part) for part in parts)
    return text


def to_text(value: Any) -> str:
    """The text that `from_text` reads as this value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(to_text, value)) if isinstance(value, tuple) else str(value)


def to_query(values: Mapping[str, Any]) -> str:
    """Values as the query of a link, "?max_hops=3&seed=1"; "" for none. Of several words each gets its own pair."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        words = isinstance(value, tuple) and any(isinstance(part, str) for part in value)
        pairs += [(name, part) for part in value] if words else [(name, to_text(value))]
    return f"?{urlencode(pairs)}" if pairs else ""


def from_query(link: str, *classes: type[Spec]) -> list[dict[str, Any]]:
    """What the query of a link says of each class, whose names are its keys; an unknown key is refused."""
    if len(link) > LONGEST_LINK:
        raise BadInput(f"the link has {len(link):,} characters; at most {LONGEST_LINK:,} can be read. Shorten it.")
    known = {name: (place, hint) for place, cls in enumerate(classes) for name, hint in hints(cls).items()}
    values: list[dict[str, Any]] = [{} for _ in classes]
    for name, text in parse_qsl(link.removeprefix("?"), keep_blank_values=True):
        require_known([name], known)
        place, hint = known[name]
        if hint == tuple[str, ...]:
            values[place][name] = (*values[place].get(name, ()), text)
        elif name in values[place]:
            raise BadInput(f"{name}={shown(text)} stands twice in the link. Keep one of them.")
        else:
            values[place][name] = from_text(hint, text)
    return values
