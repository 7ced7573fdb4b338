"""Games for tests: the paper's scale drawn at random, and small ones worked by hand."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import mppfl
from mppfl.game import Game


def paper_scale_game(seed, num_clients=None, externality_strength=None, preset=None) -> Game:
    """A random game of the paper's kind; what is not given is drawn too."""
    rng = np.random.default_rng(seed)
    size = num_clients or int(rng.integers(5, 81))
    edges = rng.random((size, size)) < rng.uniform(0.1, 0.9, (size, size))
    weights = np.where(edges, rng.uniform(0.1, 1.0, (size, size)), 0.0)
    np.fill_diagonal(weights, 0.0)
    for i in np.flatnonzero(weights.sum(axis=1) == 0):
        weights[i, (i + 1) % size] = 0.5
    name = preset or ("paper-like", "benign")[int(rng.integers(2))]
    clients = mppfl.draw_clients(name, size, rng)
    strength = rng.uniform(0.01, 0.1) if externality_strength is None else externality_strength
    decay = 0.9 if name == "paper-like" else 0.5
    return mppfl.make_game(
        mppfl.graph_from_matrix(weights), clients, hop_decay=decay, externality_strength=float(strength)
    )


def bounded_game(seed, num_clients=None, **changes) -> Game:
    """A small game with clients at every kind of bound: none, a floor, a ceiling, both, no choice, kept out."""
    rng = np.random.default_rng(seed)
    size = num_clients or int(rng.integers(2, 11))
    weights = np.where(rng.random((size, size)) < rng.uniform(0.2, 1), rng.uniform(0.1, 1, (size, size)), 0.0)
    np.fill_diagonal(weights, 0.0)
    weights[0, 1] = 1.0
    kind = rng.choice(6, size, p=[0.4, 0.15, 0.2, 0.15, 0.05, 0.05])
    low = np.where(np.isin(kind, (1, 3)), rng.uniform(0, 0.2, size), 0.0)
    high = np.where(np.isin(kind, (2, 3)), low + rng.uniform(0.05, 1.5, size), np.inf)
    low = np.where(kind == 4, 0.1, low)
    high = np.where(kind == 4, 0.1, np.where((kind == 5) & (np.arange(size) > 0), 0.0, high))
    clients = mppfl.Clients(
        rng.uniform(0.1, 1.5, size),
        rng.uniform(0, 2, size),
        np.exp(rng.uniform(-4, 0, size)),
        compute_cost=np.where(rng.random(size) < 0.6, rng.uniform(0, 0.1, size), 0.0),
        data_size=rng.integers(10, 100, size),
        budget_min=low,
        budget_max=high,
    )
    hops = int(rng.integers(1, 5))
    facts = {"max_hops": hops, "hop_decay": 0.8, "accuracy_weight": rng.uniform(0.3, 0.7)}
    strength = rng.uniform(0.0, 0.95) / sum(0.8**k for k in range(hops))
    facts |= {"externality_strength": float(strength)} | changes
    return mppfl.make_game(mppfl.graph_from_matrix(weights, isolated="keep"), clients, **facts)


def wide_game(seed) -> Game:
    """The same with costs and budgets over twelve orders of magnitude."""
    game = bounded_game(seed)
    rng, clients = np.random.default_rng(seed), game.clients
    unit, money = 10 ** rng.uniform(-6, 6, (2, game.num_clients))
    money = np.where(seed % 2, 1.0, money)  # only budgets differ, or what wakes clients, too
    changes = {
        "quadratic_cost": clients.quadratic_cost * money / unit**2,
        "linear_cost": clients.linear_cost * money / unit,
    }
    changes |= {"noise_harm": clients.noise_harm * money * unit, "compute_cost": clients.compute_cost * money}
    changes |= {"budget_min": clients.budget_min * unit, "budget_max": clients.budget_max * unit}
    return replace(game, clients=replace(clients, **changes))


def two_friends(externality_strength=0.5) -> Game:
    graph = mppfl.graph_from_edges(np.array([0, 1]), np.array([1, 0]))
    clients = mppfl.Clients([1.0, 1.0], [0.0, 0.0], [0.1, 0.1])
    return mppfl.make_game(graph, clients, max_hops=1, hop_decay=0.5, externality_strength=externality_strength)


def star() -> Game:
    """Ten leaves a=1, b=0 and a hub a=.05, b=1: the more is paid, the less the leaves share."""
    weights = np.zeros((11, 11))
    weights[0, 1:] = weights[1:, 0] = 1.0
    quadratic, linear = np.ones(11), np.zeros(11)
    quadratic[0], linear[0] = 0.05, 1.0
    clients = mppfl.Clients(quadratic, linear, np.full(11, 0.1))
    return mppfl.make_game(
        mppfl.graph_from_matrix(weights), clients, max_hops=1, hop_decay=0.5, externality_strength=0.2
    )


def three_cycle() -> Game:
    """1 is exposed by 3, 2 by 1, 3 by 2: the sweeps of Algorithm 1 diverge, the equilibrium exists."""
    graph = mppfl.graph_from_edges(np.array([2, 0, 1]), np.array([0, 1, 2]))
    clients = mppfl.Clients([0.2, 0.2, 2.0], [0.0, 0.0, 0.0], [0.001, 0.001, 100.0])
    return mppfl.make_game(graph, clients, max_hops=1, hop_decay=0.5, externality_strength=0.9)


@st.composite
def games(draw) -> Game:
    """Any small game with αS < 1 in which participating is free: any edges, costs, bounds, hops and accuracy weight."""
    game = bounded_game(draw(st.integers(0, 2**32 - 1)))
    clients = replace(game.clients, compute_cost=np.zeros(game.num_clients))
    return replace(game, clients=clients, accuracy_weight=draw(st.floats(0.1, 0.9)))
