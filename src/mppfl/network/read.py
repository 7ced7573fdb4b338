"""Social graphs from files and other libraries: edge lists, GraphML, SciPy, NumPy, NetworkX.

In an edge list each line is `source, target[, weight]`: target is exposed by source. A plain file of numbers is read
by NumPy in blocks (number_list.py); anything else goes line by line (edge_list.py).
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import scipy.sparse as sp

from mppfl.errors import BadFile, BadGraph, BadInput
from mppfl.network.edge_list import links_of_lines
from mppfl.network.graph import Isolated, Normalisation, SelfLoops, SocialGraph, graph_from_links, graph_from_matrix
from mppfl.network.links import NUMBER, Links
from mppfl.network.number_list import links_of_numbers
from mppfl.text import one_line, shortened, shown_path

_BOM = b"\xef\xbb\xbf"


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
            raise BadGraph(f"{shown_path(path)}: {cause}") from cause
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
    """The graph of `Links` or of a matrix."""
    if not isinstance(content, Links):
        if not undirected:
            return graph_from_matrix(content, normalisation=normalisation, isolated=isolated, self_loops=self_loops)
        one_way = graph_from_matrix(content, normalisation="none", isolated="keep", self_loops=self_loops)
        arcs = one_way.influence.tocoo()
        names = tuple(map(str, range(one_way.num_clients)))
        content = Links(arcs.col, arcs.row, arcs.data, names)
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
        links = links_of_numbers(stream)
        if links is None:
            stream.seek(start)
            links = links_of_lines(stream, path, start)
        return links


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unzipped if it is gzipped; whatever the system objects to becomes a BadFile."""
    shown = shown_path(path)
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
        raise BadFile(f"{shown} is a damaged gzip file ({one_line(cause)}). Fetch or make it again.") from cause
    except OSError as cause:
        raise BadFile(f"{shown} cannot be read: {cause.strerror or one_line(cause)}. Check the path.") from cause


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


def _links_of_graphml(stream: IO[bytes], path: Path) -> Links:
    import networkx as nx

    try:
        graph = nx.read_graphml(stream)
    except (EOFError, OSError, zlib.error):  # the gzip file around it is damaged
        raise
    except Exception as cause:  # NetworkX meets unexpected elements with errors of many kinds
        raise BadFile(
            f"{shown_path(path)} is not valid GraphML ({one_line(cause)}). Write it again, or give an edge list."
        ) from cause
    return _links_of_networkx(graph)


def _links_of_networkx(graph: Any) -> Links:
    position = {node: i for i, node in enumerate(graph)}
    names = tuple(map(str, graph))
    sources, targets, weights = array("q"), array("q"), array("d")
    for u, v, weight in graph.edges(data="weight", default=1.0):
        sources.append(position[u])
        targets.append(position[v])
        weights.append(_as_number(weight))
        if not 0.0 < weights[-1] < np.inf:
            raise BadGraph(
                f"the edge from {shortened(str(u))} to {shortened(str(v))} has weight {shortened(str(weight))}; "
                "weights must be positive numbers. Correct it, or leave the edge out."
            )
    undirected = not graph.is_directed()
    return Links(np.array(sources), np.array(targets), np.array(weights), names, undirected)


def _as_number(weight: Any) -> float:
    """The weight as a float, NaN if it is none; text counts, for that is what GraphML without types gives."""
    if isinstance(weight, bool) or (isinstance(weight, str) and not NUMBER.fullmatch(weight)):
        return float("nan")
    try:
        return float(weight)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
