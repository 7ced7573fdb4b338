"""Social graphs to files: edge lists without loss, GraphML."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mppfl.errors import BadGraph, BadInput
from mppfl.files import replaced
from mppfl.network.graph import SocialGraph
from mppfl.network.read import CONTROL
from mppfl.text import shortened

_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def write_graphml(graph: SocialGraph, path: str | Path) -> None:
    """Writes the edges as given, and all clients, as GraphML; gzipped if the path ends in .gz."""
    import networkx as nx

    names = graph.names or tuple(map(str, range(graph.num_clients)))
    for name in names:
        if _NOT_XML.search(name):
            raise BadInput(f"client {shortened(name)} cannot be named in XML: it holds a control character. Rename it.")
    edges = graph.edges().tocoo()
    network = nx.DiGraph()
    network.add_nodes_from(names)
    ends = zip(edges.col.tolist(), edges.row.tolist(), edges.data.tolist(), strict=True)
    network.add_weighted_edges_from((names[source], names[target], weight) for source, target, weight in ends)
    with replaced(Path(path)) as file:
        nx.write_graphml_xml(network, file)


def write_edges(graph: SocialGraph, path: str | Path) -> bool:
    """Writes lines `source,target,weight` with the weights as given; gzipped if the path ends in .gz.

    `read_graph` makes the same graph of them, and numbers clients as they first appear. Returns whether that is their
    order in `graph`: not every order can be kept by edges alone. A client without any edge cannot be written this way
    and is an error.
    """
    arcs = graph.edges().tocoo()
    unconnected = np.flatnonzero(np.bincount(np.concatenate([arcs.row, arcs.col]), minlength=graph.num_clients) == 0)
    if len(unconnected):
        raise BadGraph(
            f"client {shortened(graph.name(int(unconnected[0])))} has no edges ({len(unconnected):,} such); a list of "
            "edges would lose it. Use write_graphml, or drop isolated clients."
        )
    order = np.lexsort((arcs.col, np.maximum(arcs.col, arcs.row)))  # clients with an edge to an earlier one in turn
    sources, targets, weights = arcs.col[order], arcs.row[order], arcs.data[order]
    names = [_quoted(name) for name in graph.names or map(str, range(graph.num_clients))]
    with replaced(Path(path)) as file:
        file.write(b"source,target,weight\n")
        for start in range(0, arcs.nnz, 2**16):
            rows = slice(start, start + 2**16)
            ends = zip(sources[rows].tolist(), targets[rows].tolist(), weights[rows].tolist(), strict=True)
            lines = (f"{names[source]},{names[target]},{weight!r}\n" for source, target, weight in ends)
            file.write("".join(lines).encode("utf-8"))
    _, first = np.unique(np.stack([sources, targets], axis=1), return_index=True)
    return bool((np.diff(first) > 0).all())


def _quoted(name: str) -> str:
    if not name or CONTROL.search(name) or _NOT_XML.search(name):
        raise BadInput(
            f"client {shortened(name)} cannot be named in an edge list: the name is empty, or holds a line break or "
            "control character. Rename it."
        )
    return name if re.fullmatch(r"[\w.:@/+-]+", name) else '"' + name.replace('"', '""') + '"'
