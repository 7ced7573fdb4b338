"""Communities of a social graph: who is closely linked to whom."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mppfl.network.graph import SocialGraph


def communities_of(graph: SocialGraph, rng: np.random.Generator) -> NDArray[np.int64]:
    """The community of each client, numbered from 0 in the order of their first members.

    Louvain's method (Blondel et al. 2008, arXiv:0803.0476v2) as in NetworkX, on the links as given, those of both
    directions added up. A client without any link is a community of its own.
    """
    import networkx as nx

    links = graph.links()
    both_ways = (links + links.T).tocoo()
    network = nx.Graph()
    network.add_nodes_from(range(graph.num_clients))
    upper = both_ways.row < both_ways.col
    arcs = zip(
        both_ways.row[upper].tolist(), both_ways.col[upper].tolist(), both_ways.data[upper].tolist(), strict=True
    )
    network.add_weighted_edges_from(arcs)
    found = nx.community.louvain_communities(network, seed=int(rng.integers(2**32)))
    communities = np.empty(graph.num_clients, dtype=np.int64)
    for number, members in enumerate(sorted(found, key=min)):
        communities[list(members)] = number
    return communities
