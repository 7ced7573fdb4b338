"""Small networks for the tests of leakage: friends pair by pair, and circles of friends drawn at random."""

import numpy as np

from mppfl.network import graph_from_edges


def friends(*pairs, **options):
    """Everybody in a pair exposes the other."""
    first, second = np.array(pairs).T
    return graph_from_edges(first, second, undirected=True, isolated="keep", **options)


def drawn_friends(rng, chances, **options):
    """Two clients are friends with their chance in a symmetric matrix."""
    pairs = np.argwhere(np.triu(rng.random(chances.shape) < chances, 1))
    return friends(*pairs, num_clients=options.pop("num_clients", len(chances)), **options)


def circles(rng, group, within, between, **options):
    """Friends within a group are more likely than between two groups."""
    return drawn_friends(rng, np.where(group[:, None] == group, within, between), **options)
