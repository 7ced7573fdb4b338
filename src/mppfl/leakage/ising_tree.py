"""An Ising model on a tree: drawing from it, and what uploads tell about it, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.special import expit, log_expit
from scipy.stats import norm

from mppfl.arrays import Array, read_only, require_count
from mppfl.errors import BadInput
from mppfl.leakage.belief_propagation import Messages
from mppfl.leakage.couplings import friendships
from mppfl.leakage.exposure import client_budgets
from mppfl.leakage.signals import STRONGEST_EVIDENCE, client_release, declared_signals
from mppfl.network import SocialGraph, SparseMatrix, graph_from_links


@dataclass(frozen=True, slots=True)
class IsingTree:
    """P(x) ∝ exp(Σ_links J x_u x_v + Σ_v h_v x_v), x = ±1, on a tree: `couplings` J as a matrix, `fields` h."""

    graph: SocialGraph
    couplings: SparseMatrix
    fields: Array


def random_ising_tree(
    num_clients: int, rng: np.random.Generator, *, strongest: float = 1.5, strongest_field: float = 1.0
) -> IsingTree:
    """A random recursive tree with couplings and fields uniform in ± their strongest."""
    size = require_count(num_clients, "num_clients", 2)
    children = np.arange(1, size)
    parents = np.array([int(rng.integers(child)) for child in children])
    graph = graph_from_links(parents, children, num_clients=size, undirected=True)
    strengths = rng.uniform(-strongest, strongest, size - 1)
    matrix = sp.coo_array((strengths, (parents, children)), shape=(size, size)).tocsr()
    return IsingTree(graph, (matrix + matrix.T).tocsr(), rng.uniform(-strongest_field, strongest_field, size))


def sample_ising_tree(
    graph: SocialGraph, couplings: Any, fields: Any, draws: int, rng: np.random.Generator
) -> Array:  # [draws, clients]
    """Exact draws of ±1 from an Ising model on a forest: roots from their marginals, children given their parents."""
    links = Messages.of(graph, couplings)
    local = _fields(fields, graph)
    towards, total = links.settle(local[:, None])
    message = {(int(a), int(b)): float(m) for a, b, m in zip(links.source, links.target, towards[:, 0], strict=True)}
    strength = {(int(a), int(b)): float(j) for a, b, j in zip(links.source, links.target, links.coupling, strict=True)}
    drawn = np.empty((draws, graph.num_clients))
    linked = friendships(graph)
    _, part = connected_components(linked, directed=False)
    for root in np.unique(part, return_index=True)[1]:
        lean = local[root] + total[root, 0]
        drawn[:, root] = np.where(rng.random(draws) < expit(2 * lean), 1.0, -1.0)
        order, parent = breadth_first_order(linked, root, directed=False)
        for node in order[1:]:
            above = int(parent[node])
            below = local[node] + total[node, 0] - message[(above, int(node))]
            lean = below + strength[(above, int(node))] * drawn[:, above]
            drawn[:, node] = np.where(rng.random(draws) < expit(2 * lean), 1.0, -1.0)
    return drawn


def tree_information(
    graph: SocialGraph, couplings: Any, fields: Any, budgets: Any, draws: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """I(X_i; all others' uploads) in nats with its standard error, by exact belief propagation over drawn uploads.

    The mean of KL(posterior ‖ prior): the same mean as the log-loss gain of true labels, with less variance.
    """
    spent = client_budgets(budgets, graph.num_clients)
    drawn = sample_ising_tree(graph, couplings, fields, draws, rng)
    uploads = client_release(drawn, spent, 1.0, rng)
    prior, posterior = tree_logits(graph, couplings, fields, declared_signals(spent, 1.0).evidence(uploads))
    chance = expit(posterior)
    told = chance * (log_expit(posterior) - log_expit(prior)) + (1 - chance) * (
        log_expit(-posterior) - log_expit(-prior)
    )
    return told.mean(axis=0), told.std(axis=0) / math.sqrt(draws)


def tree_logits(
    graph: SocialGraph, couplings: Any, fields: Any, evidence: Array
) -> tuple[Array, Array]:  # [clients], [draws, clients]
    """Exact log-odds of X_i = +1 on a forest: before, and given the evidence [draws, clients] of everyone but i."""
    links = Messages.of(graph, couplings)
    local = _fields(fields, graph)
    _, before = links.settle(local[:, None])
    _, after = links.settle(local[:, None] + evidence.T)
    return 2 * (local + before[:, 0]), 2 * (local + after.T)


def pair_information(graph: SocialGraph, couplings: Any, fields: Any, target: int, source: int, budget: float) -> float:
    """I(X_target; the upload of `source` alone) in nats on a forest, by quadrature."""
    links = Messages.of(graph, couplings)
    local = _fields(fields, graph)
    clamp = np.zeros((graph.num_clients, 3))
    clamp[source, 1:] = STRONGEST_EVIDENCE, -STRONGEST_EVIDENCE
    _, total = links.settle(local[:, None] + clamp)
    at_source = expit(2 * (local[source] + total[source, 0]))
    weights = np.array([at_source, 1 - at_source])  # of the source's two values
    given = expit(2 * (local[target] + total[target, 1:]))  # P(target = + | source)
    gap = math.sqrt(budget / 2)
    grid = np.linspace(-gap - 10, gap + 10, 4001)  # trapezia on a smooth integrand: exact to rounding
    densities = norm.pdf(grid - gap * np.array([[1.0], [-1.0]]))  # [source value, grid]
    mixture = weights @ densities
    information = 0.0
    for chances in (given, 1 - given):
        share = float(weights @ chances)
        joint = (weights * chances) @ densities
        information += float(np.trapezoid(joint * np.log(joint / (share * mixture)), grid))
    return information


def _fields(fields: Any, graph: SocialGraph) -> Array:
    local = read_only(fields, "fields", length=graph.num_clients)
    if not np.isfinite(local).all():
        raise BadInput("fields must be finite numbers.")
    return local
