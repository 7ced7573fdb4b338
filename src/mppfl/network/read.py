"""Social graphs from files and other libraries, and back: edge lists, GraphML, SciPy, NumPy, NetworkX.

In an edge list each line is `source, target[, weight]`: target is exposed by source. A plain file of numbers is read
by NumPy in blocks; anything else goes line by line, which knows quotes, names and headers and says what is wrong where.
Whatever the fast way cannot vouch for, it leaves to the slow one, so that both read every file alike.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import secrets
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadFile, BadGraph, BadInput
from mppfl.network.graph import (
    Isolated,
    Normalisation,
    SelfLoops,
    SocialGraph,
    graph_from_links,
    graph_from_matrix,
)

_BLOCK_BYTES = 2**20
_LONGEST_PLAIN_LINE = 2**12
_BOM = b"\xef\xbb\xbf"
_BLANK = " \t"
_DIGITS = "0123456789"
_BLANKS = re.compile(r"[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_FIELD = {  # one field, quoted or plain, and what ends it
    ",": re.compile(r'[ \t]*(?:"([^"]*(?:""[^"]*)*)"[ \t]*|((?![ \t]*")[^,]*))(,|$)'),
    ";": re.compile(r'[ \t]*(?:"([^"]*(?:""[^"]*)*)"[ \t]*|((?![ \t]*")[^;]*))(;|$)'),
    "\t": re.compile(r' *(?:"([^"]*(?:""[^"]*)*)" *|((?! *")[^\t]*))(\t|$)'),
    " ": re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|((?!")[^ \t]*))([ \t]+|$)'),
}
_IS_PLAIN = np.isin(np.arange(256), list(b"0123456789.eE+-,; \t\n"))
_INTEGER = re.compile(r"-?[0-9]{1,300}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

_FROM = "source|src|from|sender|start|origin|follower|truster|trustor"
_TO = "target|tgt|to|dst|dest|destination|receiver|recipient|end|friend|followee|followed|trustee"
_EITHER = "node|user|client|vertex|member|person|id|name"
_COLUMN = re.compile(
    rf"(?:(?P<from>{_FROM})|(?P<to>{_TO})|{_EITHER})"
    r"(?:node|user|client|vertex)?(?:id|name)?(?:[0-9]*|(?<=node|user)[ab])"
)
_NOT_A_WEIGHT = re.compile("time|timestamp|datetime|date|year|month|day|type|kind|label|category")
_MISSING = ("nan", "inf", "infinity", "na", "null", "none", "missing", "unknown", "true", "false")


@dataclass(frozen=True, slots=True)
class _Links:
    """Links between positions; `names` says who stands there."""

    sources: IntArray
    targets: IntArray
    weights: Array | None
    names: tuple[str, ...]
    undirected: bool = False


def read_graph(
    source: Any,
    *,
    undirected: bool = False,
    normalisation: Normalisation = "row",
    isolated: Isolated = "error",
    self_loops: SelfLoops = "error",
) -> SocialGraph:
    """A social graph from a path, a NetworkX graph, a SciPy sparse matrix or a NumPy array.

    path      edge list `source, target[, weight]` (target is exposed by source) separated by commas, semicolons, tabs
              or blanks, with `#` and `%` comments and perhaps a header; GraphML; or what scipy.sparse.save_npz wrote.
              Each of them plain or gzipped. Clients of an edge list come in numerical order if all their names are
              integers, else as they first appear.
    NetworkX  edge (u, v): v is exposed by u; undirected edges run both ways, `weight` is 1 where an edge has none.
    matrix    entry (i, j) > 0: j exposes i.

    `undirected=True` lets every link run both ways. Raises BadFile with the line number where a file cannot be read,
    and BadGraph where its links make no network.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            return _graph(_content_of(path), undirected, normalisation, isolated, self_loops)
        except BadGraph as cause:
            raise BadGraph(f"{_shown(path)}: {cause}") from cause
    networkx = sys.modules.get("networkx")  # whoever has a NetworkX graph has imported NetworkX
    if networkx is not None and isinstance(source, networkx.Graph):
        source = _links_of_networkx(source)
    elif not (sp.issparse(source) or isinstance(source, np.ndarray)):
        raise BadInput(
            f"a graph cannot be read from {type(source).__name__}. "
            "Give a path, a NetworkX graph, a SciPy sparse matrix or a NumPy array."
        )
    return _graph(source, undirected, normalisation, isolated, self_loops)


def _graph(
    content: Any, undirected: bool, normalisation: Normalisation, isolated: Isolated, self_loops: SelfLoops
) -> SocialGraph:
    """The graph of `_Links` or of a matrix."""
    if not isinstance(content, _Links):
        if not undirected:
            return graph_from_matrix(content, normalisation=normalisation, isolated=isolated, self_loops=self_loops)
        one_way = graph_from_matrix(content, normalisation="none", isolated="keep", self_loops=self_loops)
        arcs = one_way.influence.tocoo()
        names = tuple(map(str, range(one_way.num_clients)))
        content = _Links(arcs.col, arcs.row, arcs.data, names)
    return graph_from_links(
        content.sources,
        content.targets,
        content.weights,
        names=content.names,
        normalisation=normalisation,
        isolated=isolated,
        self_loops=self_loops,
        undirected=undirected or content.undirected,
    )


def _content_of(path: Path) -> Any:
    """Links or a matrix, by what the file holds; its name decides only where the content does not."""
    with _opened(path) as stream:
        head = stream.read(256).removeprefix(_BOM).lstrip()
        stream.seek(0)
        if head.startswith(b"PK\x03\x04") or path.suffix == ".npz":
            return _matrix_of_npz(stream, path)
        if head.startswith((b"<?xml", b"<graphml", b"<!DOCTYPE")) or path.suffix in (".graphml", ".xml"):
            return _links_of_graphml(stream, path)
        start = len(_BOM) if stream.read(len(_BOM)) == _BOM else 0
        stream.seek(start)
        links = _links_of_numbers(stream)
        if links is None:
            stream.seek(start)
            links = _links_of_lines(stream, path, start)
        return links


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unzipped if it is gzipped; whatever the system objects to becomes a BadFile."""
    shown = _shown(path)
    try:
        if "\0" in str(path):
            raise BadFile(f"{shown} is no path: it holds a NUL character. Check the path.")
        if path.is_dir():
            raise BadFile(f"{shown} is a directory. Give the file in it that holds the links.")
        if path.exists() and not path.is_file():
            raise BadFile(f"{shown} is not a regular file. Save the links to a file first.")
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if zipped else file
    except FileNotFoundError as cause:
        raise BadFile(f"{shown} does not exist. Check the path.") from cause
    except PermissionError as cause:
        raise BadFile(f"{shown} may not be read. Check its permissions.") from cause
    except EOFError as cause:
        raise BadFile(f"{shown} is a gzip file that ends too early. Fetch or make it again.") from cause
    except (gzip.BadGzipFile, zlib.error) as cause:
        raise BadFile(f"{shown} is a damaged gzip file ({_one_line(cause)}). Fetch or make it again.") from cause
    except OSError as cause:
        raise BadFile(f"{shown} cannot be read: {cause.strerror or _one_line(cause)}. Check the path.") from cause


def _matrix_of_npz(stream: IO[bytes], path: Path) -> Any:
    try:
        matrix = sp.load_npz(stream)
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)  # SciPy's compiled code trusts the indices
        return matrix
    except Exception as cause:  # a damaged archive fails in whatever part of zipfile, NumPy or SciPy meets the damage
        raise BadFile(
            f"{_shown(path)} holds no sparse matrix ({_one_line(cause)}). Write it with scipy.sparse.save_npz."
        ) from cause


def _links_of_graphml(stream: IO[bytes], path: Path) -> _Links:
    import networkx as nx

    try:
        graph = nx.read_graphml(stream)
    except (EOFError, OSError, zlib.error):  # the gzip file around it is damaged
        raise
    except Exception as cause:  # NetworkX meets unexpected elements with errors of many kinds
        raise BadFile(
            f"{_shown(path)} is not valid GraphML ({_one_line(cause)}). Write it again, or give an edge list."
        ) from cause
    return _links_of_networkx(graph)


def _links_of_networkx(graph: Any) -> _Links:
    position = {node: i for i, node in enumerate(graph)}
    names = tuple(map(str, graph))
    sources, targets, weights = array("q"), array("q"), array("d")
    for u, v, weight in graph.edges(data="weight", default=1.0):
        sources.append(position[u])
        targets.append(position[v])
        weights.append(_as_number(weight))
        if not 0.0 < weights[-1] < np.inf:
            raise BadGraph(
                f"the edge from {_short(str(u))} to {_short(str(v))} has weight {_short(str(weight))}; "
                "weights must be positive numbers. Correct it, or leave the edge out."
            )
    undirected = not graph.is_directed()
    return _Links(np.array(sources), np.array(targets), np.array(weights), names, undirected)


def _as_number(weight: Any) -> float:
    """The weight as a float, NaN if it is none; text counts, for that is what GraphML without types gives."""
    if isinstance(weight, bool) or (isinstance(weight, str) and not _NUMBER.fullmatch(weight)):
        return float("nan")
    try:
        return float(weight)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _links_of_numbers(stream: IO[bytes]) -> _Links | None:
    """The links of a file of plain numbers with one separator, or None where a line needs a closer look."""
    top = _top_of_numbers(stream)
    if top is None:
        return None
    raw, separator, width = top
    ends, weights = [], []
    for block in _whole_lines(stream, raw):
        parsed = _numbers_of_block(block, separator, width)
        if parsed is None:
            return None
        ends.append(parsed[0])
        weights.append(parsed[1])
    positions, names = _compact(np.concatenate(ends))
    return _Links(positions[0::2], positions[1::2], None if width == 2 else np.concatenate(weights), names)


def _top_of_numbers(stream: IO[bytes]) -> tuple[bytes, str, int] | None:
    """The first line with a link, its separator and number of fields, once comments and a header are passed."""
    header: tuple[str, int] | None = None
    for raw in iter(lambda: stream.readline(_LONGEST_PLAIN_LINE), b""):
        if len(raw) == _LONGEST_PLAIN_LINE:
            return None
        if _is_comment(raw):
            continue
        if not raw.isascii():
            return None
        line = raw.decode("ascii").rstrip("\r\n").strip(_BLANK)
        separator = _separator(line)
        fields = _fields(line, separator)
        if fields is None or len(fields) not in (2, 3) or _CONTROL.search(line):
            return None
        if header is None and (_has_column_words(fields) or _has_titled_weight(fields)) and _is_column_order(fields):
            header = separator, len(fields)
            continue
        return (raw, separator, len(fields)) if header in (None, (separator, len(fields))) else None
    return None


def _whole_lines(stream: IO[bytes], rest: bytes) -> Iterator[bytes]:
    """`rest` and what the stream still holds, in blocks that end with a line; NUL once a line is no plain one."""
    while more := stream.read(_BLOCK_BYTES):
        block = rest + more
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        yield block[:end] if len(rest) < _LONGEST_PLAIN_LINE else b"\0"
    yield rest


def _numbers_of_block(block: bytes, separator: str, width: int) -> tuple[IntArray, Array] | None:
    """The ends of the links, source and target in turn, and the weights; None unless every line is plainly right."""
    block = block.replace(b"\r\n", b"\n").lstrip(b" \t\n").rstrip(b" \t\r\n")
    if not block:
        return np.empty(0, dtype=np.int64), np.empty(0)
    if separator == ",":
        block = block.replace(b", ", b",")
    text = np.frombuffer(block + b"\n", dtype=np.uint8)
    if not _IS_PLAIN[text].all():
        return None
    newline = text == ord("\n")
    gap = newline | (text == ord(separator))
    if separator == " ":
        gap |= text == ord("\t")
    if gap[0]:
        return None
    turns = np.flatnonzero(gap[1:] != gap[:-1]) + 1
    starts, ends, line_ends = np.concatenate([[0], turns[1::2]]), turns[0::2], np.flatnonzero(newline)
    if len(starts) != width * len(line_ends) or (separator != " " and gap.sum() != len(starts)):
        return None  # a line too short or too long; or two separators in a row, that is an empty field
    starts, ends = starts.reshape(-1, width), ends.reshape(-1, width)
    if (starts[1:, 0] < line_ends[:-1]).any() or (ends[:, -1] > line_ends).any():
        return None  # a line too short beside one too long
    names = _whole_numbers(text, starts[:, :2].ravel(), ends[:, :2].ravel())
    weights = _positive_numbers(text, starts[:, 2], ends[:, 2]) if width == 3 else np.empty(0)
    return None if names is None or weights is None else (names, weights)


def _whole_numbers(text: Any, starts: IntArray, ends: IntArray) -> IntArray | None:
    """The integers written there; None unless all are written in digits, fit 64 bits, and do not begin with 0."""
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > 18 or ((text[starts] == ord("0")) & (lengths > 1)).any():
        return None  # "07" and "7" are two names
    values = np.zeros(len(starts), dtype=np.int64)
    for k in range(longest):
        inside = k < lengths
        digits = text[np.minimum(starts + k, len(text) - 1)] - np.uint8(ord("0"))  # wraps round for what is no digit
        if (digits[inside] > 9).any():
            return None
        values = np.where(inside, values * 10 + digits, values)
    return values


def _positive_numbers(text: Any, starts: IntArray, ends: IntArray) -> Array | None:
    """The numbers written there; None unless all are positive, finite and in at most 32 plain characters."""
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > 32:
        return None
    padded = np.concatenate([text, np.zeros(longest, dtype=np.uint8)])
    characters = np.lib.stride_tricks.sliding_window_view(padded, longest)[starts]
    characters[np.arange(longest) >= lengths[:, None]] = 0
    try:
        values = characters.view(f"S{longest}").ravel().astype(np.float64)
    except ValueError:
        return None
    return values if ((values > 0) & (values < np.inf)).all() else None


def _compact(numbers: IntArray) -> tuple[IntArray, tuple[str, ...]]:
    """Each number's place among those that occur, and their names in that order."""
    highest = int(numbers.max())
    positions: IntArray
    if highest > 4 * len(numbers) + 1_000_000:
        known, positions = np.unique(numbers, return_inverse=True)
    else:
        occurs = np.zeros(highest + 1, dtype=bool)
        occurs[numbers] = True
        known = np.flatnonzero(occurs)
        positions = (np.cumsum(occurs, dtype=np.int32) - 1)[numbers]
    return positions, tuple(map(str, known.tolist()))


def _links_of_lines(stream: IO[bytes], path: Path, start: int, *, may_have_header: bool = True) -> _Links:
    """The links of any edge list. Raises BadFile at the first line that cannot be read."""
    lines = _lines(stream, path)
    first = next(lines, None)
    if first is None:
        raise BadFile(f"{_shown(path)} holds no links: it is empty or has only comments. Write `source, target` lines.")
    separator = _separator(first.text)
    fields = first.fields(separator)
    if len(fields) not in (2, 3):
        raise first.error(
            f"{_count(fields)} where 2 or 3 are needed. Write `source, target[, weight]`, separated by commas, "
            "semicolons, tabs or blanks."
        )
    titled, worded = _has_titled_weight(fields), _has_column_words(fields)
    has_header = may_have_header and (titled or worded)
    if not has_header:
        links = _collected(itertools.chain([first], lines), first, separator)
        if _looks_like_a_header(fields, links):
            raise first.error(
                "looks like a header of unknown words, for all other names are integers. "
                "Call its columns source, target[, weight], or begin the line with #."
            )
        return _in_order(links)

    if not _is_column_order(fields):
        raise first.error("columns must be source, target[, weight] in this order. Rearrange or rename them.")
    links = _collected(lines, first, separator)
    if not links.names:
        raise first.error("is a header, and no link follows it. Write `source, target` lines.")
    if titled and not worded and not set(fields[:2]).isdisjoint(links.names):
        raise first.weight_error(fields[2])  # they are clients, so this is a link
    if not titled and _are_numbered_alike(fields, links.names):  # "node1, node2" above "node2, node3" is a link
        stream.seek(start)
        return _links_of_lines(stream, path, start, may_have_header=False)
    if not titled and not set(fields).isdisjoint(links.names):
        raise first.error(
            "may be a header or a link, for a name in it comes again. "
            "Begin it with # if it is a header; if it is a link, add a column of weights."
        )
    return _in_order(links)


def _collected(lines: Iterable[_Line], first: _Line, separator: str) -> _Links:
    """The links of lines that have as many fields as the first; names as they first appear."""
    width = len(first.fields(separator))
    position: dict[str, int] = {}
    sources, targets, weights = array("q"), array("q"), array("d")
    for line in lines:
        fields = line.fields(separator)
        if len(fields) != width:
            raise line.error(
                f"{_count(fields)} where line {first.number} has {width}. Give every line the same fields, "
                "and put names that hold a separator in double quotes."
            )
        if not (fields[0] and fields[1]):
            raise line.error("a name is empty. Fill it in, or remove the line.")
        sources.append(position.setdefault(fields[0], len(position)))
        targets.append(position.setdefault(fields[1], len(position)))
        if width == 3:
            weights.append(line.weight(fields[2]))
    return _Links(np.array(sources), np.array(targets), np.array(weights) if width == 3 else None, tuple(position))


class _Line(NamedTuple):  # a dataclass takes three times as long to make, and there is one for every line
    """One line of a file that is neither blank nor a comment, and what can be wrong with it."""

    path: Path
    number: int
    text: str

    def fields(self, separator: str) -> list[str]:
        found = _fields(self.text, separator)
        if found is None:
            raise self.error(
                "a double quote is left open or stands beside text. Quote whole names, double quotes in them."
            )
        return found

    def weight(self, text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) else 0.0
        if not 0.0 < value < np.inf:
            raise self.weight_error(text)
        return value

    def weight_error(self, text: str) -> BadFile:
        return self.error(
            f"weight {_short(text)} is not a positive number such as 0.5. Correct it, or remove the line."
        )

    def error(self, problem: str) -> BadFile:
        return BadFile(f"{_shown(self.path)}, line {self.number}, {_short(self.text)}: {problem}")


def _lines(stream: IO[bytes], path: Path) -> Iterator[_Line]:
    """The lines that are neither blank nor comments. Raises BadFile where one is no text."""
    for number, raw in enumerate(stream, start=1):
        if _is_comment(raw):
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as cause:
            shown = _Line(path, number, raw.decode("utf-8", errors="replace").strip())
            raise shown.error("not valid UTF-8. Save the file as UTF-8 text.") from cause
        line = _Line(path, number, text.rstrip("\r\n").strip(_BLANK))
        if not line.text.isprintable() and (control := _CONTROL.search(line.text)):
            raise line.error(f"holds the control character {control[0]!r}. Is this a text file? Remove it.")
        yield line


def _is_comment(raw: bytes) -> bool:
    return raw.strip(b" \t\r\n")[:1] in (b"", b"#", b"%")


def _separator(line: str) -> str:
    """What separates fields: the first of tab, semicolon and comma that does, with quotes that match; else blanks."""
    return next((mark for mark in "\t;," if mark in line and len(_fields(line, mark) or ()) > 1), " ")


def _fields(line: str, separator: str) -> list[str] | None:
    """The fields without blanks and quotes around them; None if the quotes do not match."""
    if '"' not in line:
        return _BLANKS.split(line) if separator == " " else [field.strip(_BLANK) for field in line.split(separator)]
    fields, at, end = [], 0, separator
    while end:
        match = _FIELD[separator].match(line, at)
        if match is None:
            return None
        quoted, plain, end = match.groups()
        fields.append(plain.strip(_BLANK) if quoted is None else quoted.replace('""', '"'))
        at = match.end()
    return fields


def _has_column_words(fields: list[str]) -> bool:
    """Whether the fields read like `source, target` or `user_id, friend_id, weight`."""
    return (len(fields) == 2 or _has_titled_weight(fields)) and all(_COLUMN.fullmatch(_word(f)) for f in fields[:2])


def _has_titled_weight(fields: list[str]) -> bool:
    """Whether there is a third field that is a word, above names that are no numbers."""
    return (
        len(fields) == 3
        and (fields[2][:1].isalpha() or fields[2][:1] == "_")
        and _word(fields[2]) not in _MISSING
        and not any(_INTEGER.fullmatch(name) for name in fields[:2])
    )


def _are_numbered_alike(fields: list[str], names: Iterable[str]) -> bool:
    """Whether the fields end in numbers, and one of the names is the same but for its number."""
    stems = {field.rstrip(_DIGITS) for field in fields}
    return all(field[-1] in _DIGITS for field in fields) and any(
        name[-1] in _DIGITS and name.rstrip(_DIGITS) in stems for name in names
    )


def _is_column_order(header: list[str]) -> bool:
    """Whether the header does not contradict `source, target[, weight]`."""
    first, second = (_COLUMN.fullmatch(_word(field)) for field in header[:2])
    reversed_ends = first and second and first["to"] and second["from"]
    third = _word(header[2]) if len(header) == 3 else ""
    return all(header) and not reversed_ends and not _COLUMN.fullmatch(third) and not _NOT_A_WEIGHT.fullmatch(third)


def _looks_like_a_header(fields: list[str], links: _Links) -> bool:
    """Whether only the first line names clients by words, and none of the others mentions them again."""
    words = set(fields[:2])
    if any(_INTEGER.fullmatch(name) for name in words) or len(links.names) == len(words):
        return False
    if not all(_INTEGER.fullmatch(name) for name in links.names[len(words) :]):
        return False
    return bool(min(links.sources[1:].min(), links.targets[1:].min()) >= len(words))


def _in_order(links: _Links) -> _Links:
    """Names in numerical order if all are integers, else as they came."""
    names = links.names
    if not all(_INTEGER.fullmatch(name) for name in names):
        return links
    order = sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return _Links(rank[links.sources], rank[links.targets], links.weights, tuple(names[i] for i in order))


def to_networkx(graph: SocialGraph) -> Any:
    """A NetworkX DiGraph: an edge (u, v) for every v exposed by u, `weight` as given before normalisation."""
    import networkx as nx

    names = _names(graph)
    arcs = graph.links().tocoo()
    found = nx.DiGraph()
    found.add_nodes_from(names)
    ends = zip(arcs.col.tolist(), arcs.row.tolist(), arcs.data.tolist(), strict=True)
    found.add_weighted_edges_from((names[source], names[target], weight) for source, target, weight in ends)
    return found


def write_graphml(graph: SocialGraph, path: str | Path) -> None:
    """Writes the links as given, and all clients, as GraphML; gzipped if the path ends in .gz."""
    import networkx as nx

    for name in _names(graph):
        if _NOT_XML.search(name):
            raise BadInput(f"client {_short(name)} cannot be named in XML: it holds a control character. Rename it.")
    with _replaced(Path(path)) as file:
        nx.write_graphml_xml(to_networkx(graph), file)


def write_links(graph: SocialGraph, path: str | Path) -> None:
    """Writes lines `source,target,weight` with the weights as given; gzipped if the path ends in .gz.

    `read_graph` makes the same graph of them, up to the order of clients. A client without any link cannot be written
    this way and is an error.
    """
    arcs = graph.links().tocoo()
    unlinked = np.flatnonzero(np.bincount(np.concatenate([arcs.row, arcs.col]), minlength=graph.num_clients) == 0)
    if len(unlinked):
        raise BadGraph(
            f"client {_short(graph.name(int(unlinked[0])))} has no links ({len(unlinked):,} such), and a list of links "
            "would lose it. Use write_graphml, or drop isolated clients."
        )
    names = [_quoted(name) for name in _names(graph)]
    with _replaced(Path(path)) as file:
        file.write(b"source,target,weight\n")
        for start in range(0, arcs.nnz, 2**16):
            some = slice(start, start + 2**16)
            ends = zip(arcs.col[some].tolist(), arcs.row[some].tolist(), arcs.data[some].tolist(), strict=True)
            lines = (f"{names[source]},{names[target]},{weight!r}\n" for source, target, weight in ends)
            file.write("".join(lines).encode("utf-8"))


@contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the path's place once it is complete; until then, and on failure, the old one stays."""
    part = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        with open(part, "xb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as zipped:
                    yield cast(IO[bytes], zipped)
            else:
                yield file
        os.replace(part, path)
    except OSError as cause:
        raise BadFile(f"{_shown(path)} cannot be written: {cause.strerror}. Check the folder and the space.") from cause
    finally:
        with suppress(OSError):
            part.unlink()


def _quoted(name: str) -> str:
    if not name or _CONTROL.search(name) or _NOT_XML.search(name):
        raise BadInput(
            f"client {_short(name)} cannot be named in an edge list: the name is empty, or holds a line break or "
            "control character. Rename it."
        )
    return name if re.fullmatch(r"[\w.:@/+-]+", name) else '"' + name.replace('"', '""') + '"'


def _names(graph: SocialGraph) -> tuple[str, ...]:
    return graph.names if graph.names is not None else tuple(map(str, range(graph.num_clients)))


def _word(field: str) -> str:
    return re.sub(r"[\W_]+", "", field.casefold())


def _count(fields: list[str]) -> str:
    return f"{len(fields)} field{'s' * (len(fields) != 1)}"


def _shown(path: Path) -> str:
    return str(path) if str(path).isprintable() else repr(str(path))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _one_line(cause: BaseException) -> str:
    return " ".join(f"{type(cause).__name__}: {cause}".split())[:160]
