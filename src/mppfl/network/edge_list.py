"""Edge lists of any kind, line by line: knows quotes, names and headers, and says what is wrong where."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from mppfl.errors import BadFile
from mppfl.network.links import INTEGER, NUMBER, Links
from mppfl.text import count_of, shortened, shown_path

BLANK = " \t"
_DIGITS = "0123456789"
_BLANKS = re.compile(r"[ \t]+")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FIELD = {  # one field, quoted or plain, and what ends it
    ",": re.compile(r'[ \t]*(?:"([^"]*(?:""[^"]*)*)"[ \t]*|((?![ \t]*")[^,]*))(,|$)'),
    ";": re.compile(r'[ \t]*(?:"([^"]*(?:""[^"]*)*)"[ \t]*|((?![ \t]*")[^;]*))(;|$)'),
    "\t": re.compile(r' *(?:"([^"]*(?:""[^"]*)*)" *|((?! *")[^\t]*))(\t|$)'),
    " ": re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|((?!")[^ \t]*))([ \t]+|$)'),
}
_FROM = "source|src|from|sender|start|origin|follower|truster|trustor"
_TO = "target|tgt|to|dst|dest|destination|receiver|recipient|end|friend|followee|followed|trustee"
_EITHER = "node|user|client|vertex|member|person|id|name"
_COLUMN = re.compile(
    rf"(?:(?P<from>{_FROM})|(?P<to>{_TO})|{_EITHER})"
    r"(?:node|user|client|vertex)?(?:id|name)?(?:[0-9]*|(?<=node|user)[ab])"
)
_NOT_A_WEIGHT = re.compile("time|timestamp|datetime|date|year|month|day|type|kind|label|category")
_MISSING = ("nan", "inf", "infinity", "na", "null", "none", "missing", "unknown", "true", "false")


def links_of_lines(stream: IO[bytes], path: Path, start: int, *, may_have_header: bool = True) -> Links:
    """The links of any edge list. Raises BadFile at the first line that cannot be read."""
    lines = _lines(stream, path)
    first = next(lines, None)
    if first is None:
        raise BadFile(
            f"{shown_path(path)} holds no links: it is empty or has only comments. Write `source, target` lines."
        )
    separator = separator_of(first.text)
    fields = first.fields(separator)
    if len(fields) not in (2, 3):
        raise first.error(
            f"{count_of(fields)} where 2 or 3 are needed. Write `source, target[, weight]`, separated by commas, "
            "semicolons, tabs or blanks."
        )
    titled, worded = has_titled_weight(fields), has_column_words(fields)
    has_header = may_have_header and (titled or worded)
    if not has_header:
        links = _collected(itertools.chain([first], lines), first, separator)
        if _looks_like_a_header(fields, links):
            raise first.error(
                "looks like a header of unknown words, for all other names are integers. "
                "Call its columns source, target[, weight], or begin the line with #."
            )
        return _in_order(links)

    if not is_column_order(fields):
        raise first.error("columns must be source, target[, weight] in this order. Rearrange or rename them.")
    links = _collected(lines, first, separator)
    if not links.names:
        raise first.error("is a header, and no link follows it. Write `source, target` lines.")
    if titled and not worded and not set(fields[:2]).isdisjoint(links.names):
        raise first.weight_error(fields[2])  # they are clients, so this is a link
    if not titled and _are_numbered_alike(fields, links.names):  # "node1, node2" above "node2, node3" is a link
        stream.seek(start)
        return links_of_lines(stream, path, start, may_have_header=False)
    if not titled and not set(fields).isdisjoint(links.names):
        raise first.error(
            "may be a header or a link, for a name in it comes again. "
            "Begin it with # if it is a header; if it is a link, add a column of weights."
        )
    return _in_order(links)


def _collected(lines: Iterable[_Line], first: _Line, separator: str) -> Links:
    """The links of lines that have as many fields as the first; names as they first appear."""
    width = len(first.fields(separator))
    position: dict[str, int] = {}
    sources, targets, weights = array("q"), array("q"), array("d")
    for line in lines:
        fields = line.fields(separator)
        if len(fields) != width:
            raise line.error(
                f"{count_of(fields)} where line {first.number} has {width}. Give every line the same fields, "
                "and put names that hold a separator in double quotes."
            )
        if not (fields[0] and fields[1]):
            raise line.error("a name is empty. Fill it in, or remove the line.")
        sources.append(position.setdefault(fields[0], len(position)))
        targets.append(position.setdefault(fields[1], len(position)))
        if width == 3:
            weights.append(line.weight(fields[2]))
    return Links(np.array(sources), np.array(targets), np.array(weights) if width == 3 else None, tuple(position))


class _Line(NamedTuple):  # a dataclass takes three times as long to make, and there is one for every line
    """One line of a file that is neither blank nor a comment, and what can be wrong with it."""

    path: Path
    number: int
    text: str

    def fields(self, separator: str) -> list[str]:
        found = fields_of(self.text, separator)
        if found is None:
            raise self.error(
                "a double quote is left open or stands beside text. Quote whole names, double quotes in them."
            )
        return found

    def weight(self, text: str) -> float:
        value = float(text) if NUMBER.fullmatch(text) else 0.0
        if not 0.0 < value < np.inf:
            raise self.weight_error(text)
        return value

    def weight_error(self, text: str) -> BadFile:
        return self.error(
            f"weight {shortened(text)} is not a positive number such as 0.5. Correct it, or remove the line."
        )

    def error(self, problem: str) -> BadFile:
        return BadFile(f"{shown_path(self.path)}, line {self.number}, {shortened(self.text)}: {problem}")


def _lines(stream: IO[bytes], path: Path) -> Iterator[_Line]:
    """The lines that are neither blank nor comments. Raises BadFile where one is no text."""
    for number, raw in enumerate(stream, start=1):
        if is_comment(raw):
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as cause:
            shown = _Line(path, number, raw.decode("utf-8", errors="replace").strip())
            raise shown.error("not valid UTF-8. Save the file as UTF-8 text.") from cause
        line = _Line(path, number, text.rstrip("\r\n").strip(BLANK))
        if not line.text.isprintable() and (control := CONTROL.search(line.text)):
            raise line.error(f"holds the control character {control[0]!r}. Is this a text file? Remove it.")
        yield line


def is_comment(raw: bytes) -> bool:
    return raw.strip(b" \t\r\n")[:1] in (b"", b"#", b"%")


def separator_of(line: str) -> str:
    """What separates fields: the first of tab, semicolon and comma that does, with quotes that match; else blanks."""
    return next((mark for mark in "\t;," if mark in line and len(fields_of(line, mark) or ()) > 1), " ")


def fields_of(line: str, separator: str) -> list[str] | None:
    """The fields without blanks and quotes around them; None if the quotes do not match."""
    if '"' not in line:
        return _BLANKS.split(line) if separator == " " else [field.strip(BLANK) for field in line.split(separator)]
    fields, at, end = [], 0, separator
    while end:
        match = _FIELD[separator].match(line, at)
        if match is None:
            return None
        quoted, plain, end = match.groups()
        fields.append(plain.strip(BLANK) if quoted is None else quoted.replace('""', '"'))
        at = match.end()
    return fields


def has_column_words(fields: list[str]) -> bool:
    """Whether the fields read like `source, target` or `user_id, friend_id, weight`."""
    return (len(fields) == 2 or has_titled_weight(fields)) and all(_COLUMN.fullmatch(_word(f)) for f in fields[:2])


def has_titled_weight(fields: list[str]) -> bool:
    """Whether there is a third field that is a word, above names that are no numbers."""
    return (
        len(fields) == 3
        and (fields[2][:1].isalpha() or fields[2][:1] == "_")
        and _word(fields[2]) not in _MISSING
        and not any(INTEGER.fullmatch(name) for name in fields[:2])
    )


def _are_numbered_alike(fields: list[str], names: Iterable[str]) -> bool:
    """Whether the fields end in numbers, and one of the names is the same but for its number."""
    stems = {field.rstrip(_DIGITS) for field in fields}
    return all(field[-1] in _DIGITS for field in fields) and any(
        name[-1] in _DIGITS and name.rstrip(_DIGITS) in stems for name in names
    )


def is_column_order(header: list[str]) -> bool:
    """Whether the header does not contradict `source, target[, weight]`."""
    first, second = (_COLUMN.fullmatch(_word(field)) for field in header[:2])
    reversed_ends = first and second and first["to"] and second["from"]
    third = _word(header[2]) if len(header) == 3 else ""
    return all(header) and not reversed_ends and not _COLUMN.fullmatch(third) and not _NOT_A_WEIGHT.fullmatch(third)


def _looks_like_a_header(fields: list[str], links: Links) -> bool:
    """Whether only the first line names clients by words, and none of the others mentions them again."""
    words = set(fields[:2])
    if any(INTEGER.fullmatch(name) for name in words) or len(links.names) == len(words):
        return False
    if not all(INTEGER.fullmatch(name) for name in links.names[len(words) :]):
        return False
    return bool(min(links.sources[1:].min(), links.targets[1:].min()) >= len(words))


def _in_order(links: Links) -> Links:
    """Names in numerical order if all are integers, else as they came."""
    names = links.names
    if not all(INTEGER.fullmatch(name) for name in names):
        return links
    order = sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return Links(rank[links.sources], rank[links.targets], links.weights, tuple(names[i] for i in order))


def _word(field: str) -> str:
    return re.sub(r"[\W_]+", "", field.casefold())
