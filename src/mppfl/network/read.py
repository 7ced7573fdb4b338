"""Social graphs from files and other libraries: edge lists, GraphML, SciPy, NumPy, NetworkX.

In an edge list each line is `source, target[, weight]`: target is exposed by source. `np.loadtxt` reads a plain file of
numbers; any other file is read line by line, and so is one with an error, for a message that names the line.
"""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadFile, BadGraph, BadInput
from mppfl.files import failures_in_one_line
from mppfl.network.graph import Isolated, Normalisation, SelfLoops, SocialGraph, graph_from_edges, graph_from_matrix
from mppfl.text import count_of, one_line, shortened, shown_path

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 2**24
_BLANK = " \t"
_DIGITS = "0123456789"
_INTEGER = re.compile(r"-?[0-9]{1,300}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# The outline of a text: separators as line ends, digits but 0 as 1, and "!" for what is in no plain file of numbers.
_OUTLINE = bytes.maketrans(b",; \t23456789+", b"\n\n\n\n11111111-")
_OUTLINE = bytes(byte if byte in b"0123456789.eE+-,; \t\n" else ord("!") for byte in range(256)).translate(_OUTLINE)
_NOT_PLAIN = (b"!", b"\n00", b"\n01", b"\n-")  # with a leading 0 or a sign it is another name: "07", not "7"
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


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges between positions, and the name of the client at each position."""

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
    """A social graph from a file, a NetworkX graph, a SciPy sparse matrix or a NumPy array.

    Args:
        source: One of
            a path: an edge list `source, target[, weight]` (target is exposed by source) separated by commas,
            semicolons, tabs or blanks, with `#` and `%` comments and perhaps a header; GraphML; or a matrix saved by
            scipy.sparse.save_npz. Each of them plain or gzipped. Clients of an edge list are in numerical order if all
            names are integers, else in order of appearance;
            a NetworkX graph: edge (u, v) says that v is exposed by u, undirected edges run both ways, and an edge
            without `weight` weighs 1;
            a square matrix: entry (i, j) > 0 says that i is exposed by j.
        undirected: Whether every edge runs both ways.
        normalisation: "row" (the influence on each client sums to 1), "symmetric", or "none".
        isolated: What to do with clients whom nobody exposes: "error", "keep" or "drop".
        self_loops: What to do with edges from a client to itself: "error" or "drop".

    Returns:
        The graph, with the names of its clients.

    Raises:
        BadFile: The file cannot be read; the message names the file and the line.
        BadGraph: The edges make no network.
        BadInput: `source` is none of the above, or an option is not known.

    Example:
        >>> import numpy as np
        >>> graph = read_graph(np.array([[0, 1, 1], [2, 0, 0], [1, 0, 0]]))
        >>> graph.num_clients, graph.num_edges
        (3, 4)
    """
    options: Any = {"normalisation": normalisation, "isolated": isolated, "self_loops": self_loops}
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            return _graph(_content_of(path), undirected, **options)
        except BadGraph as cause:
            raise BadGraph(f"{shown_path(path)}: {cause}") from cause
    networkx = sys.modules.get("networkx")  # a caller with a NetworkX graph has imported NetworkX
    if networkx is not None and isinstance(source, networkx.Graph):
        source = _edges_of_networkx(source)
    elif not (sp.issparse(source) or isinstance(source, np.ndarray)):
        raise BadInput(
            f"a graph cannot be read from {type(source).__name__}. "
            "Give a path, a NetworkX graph, a SciPy sparse matrix or a NumPy array."
        )
    return _graph(source, undirected, **options)


def _graph(content: Any, undirected: bool, **options: Any) -> SocialGraph:
    """The graph of `_Edges` or of a matrix."""
    if not isinstance(content, _Edges):
        if not undirected:
            return graph_from_matrix(content, **options)
        one_way = graph_from_matrix(content, **options | {"normalisation": "none", "isolated": "keep"})
        arcs = one_way.influence.tocoo()
        content = _Edges(arcs.col, arcs.row, arcs.data, tuple(map(str, range(one_way.num_clients))))
    options |= {"names": content.names, "undirected": undirected or content.undirected}
    return graph_from_edges(content.sources, content.targets, content.weights, **options)


def _content_of(path: Path) -> Any:
    """Edges or a matrix in a file, plain or gzipped."""
    with failures_in_one_line(path):
        if "\0" in str(path):
            raise BadFile(f"{shown_path(path)} is no path: it holds a NUL character. Check the path.")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadFile(f"{shown_path(path)} is not a regular file. Save the edges to a file first.")
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return _content(cast(IO[bytes], gzip.GzipFile(fileobj=file)) if zipped else file, path)


def _content(stream: IO[bytes], path: Path) -> Any:
    """What the bytes say they hold; the file's name decides only where they do not."""
    head = stream.read(256)
    start = len(_BOM) if head.startswith(_BOM) else 0
    head = head[start:].lstrip()
    stream.seek(0)
    if head.startswith(b"PK\x03\x04") or path.suffix == ".npz":
        return _matrix_of_npz(stream, path)
    if head.startswith((b"<?xml", b"<graphml", b"<!DOCTYPE")) or path.suffix in (".graphml", ".xml"):
        return _edges_of_graphml(stream, path)
    stream.seek(start)
    return _edges_of_list(stream, path, start)


def _matrix_of_npz(stream: IO[bytes], path: Path) -> Any:
    try:
        matrix = sp.load_npz(stream)
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)  # SciPy's compiled code trusts the indices
        return matrix
    except Exception as cause:  # a damaged archive fails in whatever part of zipfile, NumPy or SciPy meets the damage
        raise BadFile(
            f"{shown_path(path)} holds no sparse matrix ({one_line(cause)}). Write it with scipy.sparse.save_npz."
        ) from cause


def _edges_of_graphml(stream: IO[bytes], path: Path) -> _Edges:
    import networkx as nx

    try:
        graph = nx.read_graphml(stream)
    except (EOFError, OSError, zlib.error):  # the gzip file around it is damaged
        raise
    except Exception as cause:  # NetworkX meets unexpected elements with errors of many kinds
        raise BadFile(
            f"{shown_path(path)} is not valid GraphML ({one_line(cause)}). Write it again, or give an edge list."
        ) from cause
    return _edges_of_networkx(graph)


def _edges_of_networkx(graph: Any) -> _Edges:
    position = {node: i for i, node in enumerate(graph)}
    sources, targets, weights = array("q"), array("q"), array("d")
    for u, v, weight in graph.edges(data="weight", default=1.0):
        sources.append(position[u])
        targets.append(position[v])
        weights.append(_weight(weight))
        if not weights[-1]:
            raise BadGraph(
                f"the edge from {shortened(str(u))} to {shortened(str(v))} has weight {shortened(str(weight))}; "
                "weights must be positive numbers. Correct it, or leave the edge out."
            )
    names = tuple(map(str, graph))
    return _Edges(np.array(sources), np.array(targets), np.array(weights), names, not graph.is_directed())


def _weight(given: Any) -> float:
    """A positive number, 0 if it is none; text counts, for that is what GraphML without types gives."""
    if isinstance(given, bool) or (isinstance(given, str) and not _NUMBER.fullmatch(given)):
        return 0.0
    try:
        value = float(given)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return value if 0.0 < value < np.inf else 0.0


# ---- edge lists ---------------------------------------------------------------------------------------------------


def _edges_of_list(stream: IO[bytes], path: Path, start: int, *, may_have_header: bool = True) -> _Edges:
    """The edges of any edge list. Raises BadFile at the first line that cannot be read."""
    lines = _lines(stream, path)
    first = next(lines, None)
    if first is None:
        raise BadFile(
            f"{shown_path(path)} holds no edges: it is empty or has only comments. Write `source, target` lines."
        )
    text = first.text  # tab, semicolon or comma separate fields if they do so with quotes that match; else blanks
    separator = next((mark for mark in "\t;," if mark in text and len(_fields_of(text, mark) or ()) > 1), " ")
    fields = first.fields(separator)
    if len(fields) not in (2, 3):
        raise first.error(
            f"{count_of(fields)} where 2 or 3 are needed. Write `source, target[, weight]`, separated by commas, "
            "semicolons, tabs or blanks."
        )
    titled = _has_titled_weight(fields)
    worded = (len(fields) == 2 or titled) and all(_COLUMN.fullmatch(_word(field)) for field in fields[:2])
    has_header = may_have_header and (titled or worded)
    if has_header and not _is_column_order(fields):
        raise first.error("columns must be source, target[, weight] in this order. Rearrange or rename them.")
    below = stream.tell()
    edges = _plain_numbers(stream, b"" if has_header else first.text.encode() + b"\n", separator, len(fields))
    if edges is None:
        stream.seek(below)
        edges = _edges_of_lines(lines if has_header else itertools.chain([first], lines), first, separator)
    if has_header and not titled and _are_numbered_alike(fields, edges.names):
        stream.seek(start)  # "node1, node2" above "node2, node3" is an edge
        return _edges_of_list(stream, path, start, may_have_header=False)
    _check_header(first, fields, edges, has_header, titled, worded)
    return edges


def _check_header(first: _Line, fields: list[str], edges: _Edges, has_header: bool, titled: bool, worded: bool) -> None:
    """Raises BadFile where the other lines contradict the reading of the first as a header, or as an edge."""
    if not has_header:
        if _looks_like_a_header(fields, edges):
            raise first.error(
                "looks like a header of unknown words, for all other names are integers. "
                "Call its columns source, target[, weight], or begin the line with #."
            )
    elif not edges.names:
        raise first.error("is a header, and no edge follows it. Write `source, target` lines.")
    elif titled and not worded and not set(fields[:2]).isdisjoint(edges.names):
        raise first.weight_error(fields[2])  # they are clients, so this is an edge
    elif not titled and not set(fields).isdisjoint(edges.names):
        raise first.error(
            "may be a header or an edge, for a name in it comes again. "
            "Begin it with # if it is a header; if it is an edge, add a column of weights."
        )


def _plain_numbers(stream: IO[bytes], rest: bytes, separator: str, width: int) -> _Edges | None:
    """The edges in `rest` and in what follows, by np.loadtxt; None unless all of it is plain numbers."""
    columns = [("ends", np.int64, 2), ("weight", np.float64)][: width - 1]
    delimiter = None if separator == " " else separator
    tables = []
    more = b"more"
    while more:
        more = stream.read(_BLOCK_BYTES)
        text = (rest + more).replace(b"\r\n", b"\n")
        end = text.rfind(b"\n") + 1 if more else len(text)
        text, rest = text[:end], text[end:]
        outline = b"\n" + text.translate(_OUTLINE)
        if any(mark in outline for mark in _NOT_PLAIN):
            return None
        if text.strip():
            try:
                table = np.loadtxt(io.StringIO(text.decode()), columns, comments=None, delimiter=delimiter, ndmin=1)
            except ValueError:
                return None
            tables.append(table)
    if not tables:
        return None
    table = np.concatenate(tables)
    weights = table["weight"] if width == 3 else None
    if weights is not None and not ((weights > 0) & (weights < np.inf)).all():
        return None
    ends = table["ends"]
    if int(ends.max()) > 4 * ends.size + 1_000_000:
        numbers, positions = np.unique(ends, return_inverse=True)
    else:  # a table of all numbers up to the highest: a quarter of the time that sorting takes
        occurs = np.zeros(int(ends.max()) + 1, dtype=bool)
        occurs[ends] = True
        numbers, positions = np.flatnonzero(occurs), (np.cumsum(occurs, dtype=np.int32) - 1)[ends]
    return _Edges(positions[:, 0], positions[:, 1], weights, tuple(map(str, numbers.tolist())))


def _edges_of_lines(lines: Iterable[_Line], first: _Line, separator: str) -> _Edges:
    """The edges of lines that have as many fields as the first; names as they first appear."""
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
            weights.append(_weight(fields[2]))
            if not weights[-1]:
                raise line.weight_error(fields[2])
    edges = _Edges(np.array(sources), np.array(targets), np.array(weights) if width == 3 else None, tuple(position))
    return _in_numerical_order(edges)


class _Line(NamedTuple):  # a dataclass takes three times as long to make, and there is one for every line
    """One line of a file that is neither blank nor a comment, and the errors it can have."""

    path: Path
    number: int
    text: str

    def fields(self, separator: str) -> list[str]:
        fields = _fields_of(self.text, separator)
        if fields is None:
            raise self.error(
                "a double quote is left open or stands beside text. Quote whole names, double quotes in them."
            )
        return fields

    def weight_error(self, text: str) -> BadFile:
        return self.error(
            f"weight {shortened(text)} is not a positive number such as 0.5. Correct it, or remove the line."
        )

    def error(self, problem: str) -> BadFile:
        return BadFile(f"{shown_path(self.path)}, line {self.number}, {shortened(self.text)}: {problem}")


def _lines(stream: IO[bytes], path: Path) -> Iterator[_Line]:
    """The lines that are neither blank nor comments. Raises BadFile where one is no text."""
    for number, raw in enumerate(stream, start=1):
        if raw.strip(b" \t\r\n")[:1] in (b"", b"#", b"%"):
            continue
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as cause:
            shown = _Line(path, number, raw.decode("utf-8", errors="replace").strip())
            raise shown.error("not valid UTF-8. Save the file as UTF-8 text.") from cause
        line = _Line(path, number, text.rstrip("\r\n").strip(_BLANK))
        if not line.text.isprintable() and (control := CONTROL.search(line.text)):
            raise line.error(f"holds the control character {control[0]!r}. Is this a text file? Remove it.")
        yield line


def _fields_of(line: str, separator: str) -> list[str] | None:
    """The fields without blanks and quotes around them; None if the quotes do not match."""
    if '"' not in line:
        return re.split(r"[ \t]+", line) if separator == " " else [part.strip(_BLANK) for part in line.split(separator)]
    fields, start, end = [], 0, separator
    while end:
        match = _FIELD[separator].match(line, start)
        if match is None:
            return None
        quoted, plain, end = match.groups()
        fields.append(plain.strip(_BLANK) if quoted is None else quoted.replace('""', '"'))
        start = match.end()
    return fields


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


def _looks_like_a_header(fields: list[str], edges: _Edges) -> bool:
    """Whether only the first line names clients by words, and none of the others mentions them again."""
    words = set(fields[:2])
    if any(_INTEGER.fullmatch(name) for name in words) or len(edges.names) == len(words):
        return False
    if not all(_INTEGER.fullmatch(name) for name in edges.names[len(words) :]):
        return False
    return bool(min(edges.sources[1:].min(), edges.targets[1:].min()) >= len(words))


def _in_numerical_order(edges: _Edges) -> _Edges:
    """Names in numerical order if all are integers, else as they came."""
    names = edges.names
    if not all(_INTEGER.fullmatch(name) for name in names):
        return edges
    order = sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]))
    rank = np.argsort(order)
    return _Edges(rank[edges.sources], rank[edges.targets], edges.weights, tuple(names[i] for i in order))


def _word(field: str) -> str:
    return re.sub(r"[\W_]+", "", field.casefold())
