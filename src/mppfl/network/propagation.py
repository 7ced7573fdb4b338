"""Influence over walks: the propagation Σ as an operator, closed walks, who exposes a client, the strongest walks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from mppfl.arrays import Array, IntArray, read_only, require, require_count, require_number
from mppfl.errors import BadInput
from mppfl.network.graph import Normalisation, SocialGraph, SparseMatrix, csr_arrays

Diagonal = Literal["auto", "exact", "estimate"]

DENSE_BELOW = 600  # clients; dense powers are then faster than sparse walks
EXACT_BELOW = 1000  # clients; the game forms Σ as a matrix there, with nothing estimated on its diagonal
WALKS_AT_MOST = 5e8  # steps of "auto", one or two nanoseconds each; a 25th of them is few: not worth an estimate
MANY = 10_000  # clients; from here on "auto" may take no longer than a solution does
STEPS_AN_EDGE = 5  # of "auto" there: solving takes what 20 to 30 such steps take
COARSE = 5e-4  # root mean square of the standard errors of an estimate, over the mean row sum of W
NUM_WALKERS = 4  # of a client


@dataclass(frozen=True, slots=True)
class ClosedWalks:
    """Closed walks: the diagonal of Σ before it is removed, and its error.

    values          one per client
    standard_error  one per client; zero where exact
    exact_hops      hops up to which the values are exact; beyond, they are estimated
    """

    values: Array
    standard_error: Array
    exact_hops: int


def count_closed_walks(
    influence: SparseMatrix, max_hops: int, hop_decay: float, diagonal: Diagonal = "auto", seed: int = 0
) -> ClosedWalks:
    """Σ_k λ^{k-1}(W^k)_ii for every client i (the part of eq. 2 that is set to zero).

    "exact" counts all of them, "estimate" those of two edges; random walkers, drawn with `seed`, estimate the rest.
    "auto" is exact where that takes few steps; else it counts walks of four edges that turn back on an edge, too, of
    which mutual edges make many, and as many hops as leave an estimate that is not coarse, or as it may take steps.
    """
    if diagonal not in ("auto", "exact", "estimate"):
        raise BadInput(f'diagonal={diagonal!r} must be "auto", "exact" or "estimate".')
    size = influence.shape[0]
    steps = _steps_of_walking(influence, max_hops)
    most = WALKS_AT_MOST if size < MANY else min(WALKS_AT_MOST, STEPS_AN_EDGE * influence.nnz)
    few = steps[-1] <= (most / 25 if size < MANY else most)
    if diagonal != "estimate" and size <= (DENSE_BELOW if few else EXACT_BELOW):
        return ClosedWalks(np.diag(_sum_of_powers(influence, max_hops, hop_decay)).copy(), np.zeros(size), max_hops)
    hops = max_hops if diagonal == "exact" or (diagonal == "auto" and few) else min(2, max_hops)
    closed = _by_walking(influence, hops, hop_decay)
    coarse = COARSE * influence.data.sum() / size
    turning = diagonal == "auto" and hops == 2 and max_hops >= 4 and np.mean(closed**2) > coarse**2
    if turning:
        mutual = closed / hop_decay  # turning back are i→j→i→k→i, and i→j→k→j→i
        closed += hop_decay**3 * (mutual**2 + _by_mutual_edges(influence, mutual, 1.0))
    rest, error = _by_walkers(influence, hops, max_hops, hop_decay, seed, not turning)
    exact = hops
    while diagonal == "auto" and np.mean(error**2) > coarse**2 and steps[exact - 1] <= most:
        exact += 1
        rest, error = _by_walkers(influence, exact, max_hops, hop_decay, seed)
    return ClosedWalks((closed if exact == hops else _by_walking(influence, exact, hop_decay)) + rest, error, exact)


def _steps_of_walking(influence: SparseMatrix, max_hops: int) -> list[float]:
    """Entry h - 2: steps that counting closed walks of up to h edges takes; infinite far above WALKS_AT_MOST."""
    lengths = np.diff(influence.indptr).astype(np.float64)
    back = np.bincount(influence.indices, minlength=len(lengths)).astype(np.float64)
    steps, grow = [0.0], float(back @ lengths)  # walks of two edges: what it costs to grow all vectors by one hop
    for hops in range(3, max_hops + 1):
        steps.append(steps[-1] + min(grow, float(len(lengths)) * influence.nnz))  # a hop of one passes an edge once
        if steps[-1] > WALKS_AT_MOST:
            return steps + [np.inf] * (max_hops - hops)
        if hops >= 4 and hops % 2 == 0:  # from here on vectors are longer by one more edge
            pattern = type(influence)((np.ones(influence.nnz), influence.indices, influence.indptr), influence.shape)
            lengths = pattern @ lengths
            grow = float(back @ lengths)
    return steps


def _sum_of_powers(influence: SparseMatrix, max_hops: int, hop_decay: float) -> Array:
    """W + λ W² + ... + λ^(K-1) W^K as an N×N array."""
    dense = influence.toarray()
    power, total = dense, dense.copy()
    for hop in range(2, max_hops + 1):
        power = power @ dense
        total += hop_decay ** (hop - 1) * power
    return np.asarray(total)


def _by_walking(influence: SparseMatrix, max_hops: int, hop_decay: float) -> Array:
    closed = np.zeros(influence.shape[0])
    if max_hops < 2:
        return closed
    if max_hops == 2:
        return hop_decay * _by_mutual_edges(influence, np.ones(len(closed)), 0.0)
    from mppfl.network import _kernels as kernels

    back = influence.tocsc()
    with kernels.threads_for(influence.nnz) as threads:
        kernels.closed_walks(csr_arrays(influence), csr_arrays(back), max_hops, hop_decay, threads, closed)
    return closed


def _by_mutual_edges(influence: SparseMatrix, values: Array, share: float) -> Array:
    """Σ_j m_ij (value_j − share·m_ij) of every client i, where m_ij = W_ij W_ji."""
    from mppfl.network import _kernels as kernels

    with kernels.threads_for(influence.nnz) as threads:
        return np.asarray(kernels.mutual_edges(csr_arrays(influence), values, share, threads))


def _by_walkers(
    influence: SparseMatrix, exact_hops: int, max_hops: int, hop_decay: float, seed: int, backtracking: bool = True
) -> tuple[Array, Array]:
    """Mean and standard error of the hops beyond `exact_hops`, from random walkers.

    Without `backtracking`, walks of four edges that turn back on an edge are left out.

    Most walkers of a client may miss it by chance and suggest an error of 0, so no client's error is taken to be below
    the root mean square over all clients.
    """
    size = influence.shape[0]
    if exact_hops == max_hops:
        return np.zeros(size), np.zeros(size)
    from mppfl.network import _kernels as kernels

    mean, squares = np.empty(size), np.empty(size)
    walk = exact_hops, max_hops, hop_decay, NUM_WALKERS, seed, backtracking
    with kernels.threads_for(influence.nnz):
        kernels.walkers(csr_arrays(influence), *walk, mean, squares)
    variance = np.maximum(squares - mean**2, 0.0) / (NUM_WALKERS - 1)
    return mean, np.sqrt(np.maximum(variance, variance.mean()))


# ---- Propagation: influence over every walk of at most K edges, as an operator; sources of exposure ------------------

PARALLEL_ABOVE = 1_000_000  # edges; two columns are then multiplied at the same time


def times(matrix: SparseMatrix, x: Any, scale: float = 1.0, plus: Any = None) -> Any:
    """plus + scale · matrix @ x for a csr_array and a vector, or an array of columns.

    Two columns are multiplied one by one: SciPy takes 36 ms for both so and 50 ms together (20 million edges).
    """
    if x.ndim == 2 and x.shape[1] == 2:
        with ThreadPoolExecutor(2) as threads:  # SciPy's products let other threads run
            map_columns = threads.map if matrix.nnz >= PARALLEL_ABOVE else map
            product = np.stack(list(map_columns(matrix.__matmul__, np.ascontiguousarray(x.T))), axis=1)
    else:
        product = matrix @ x
    if scale != 1.0:
        product *= scale
    if plus is not None:
        product += plus
    return product


@dataclass(frozen=True, eq=False, repr=False)
class Propagation:
    """Influence over every walk of at most `max_hops` edges (model, eq. 2).

    Σ = W + λ W² + ... + λ^(K-1) W^K with a zero diagonal, as an operator: `propagation @ budgets` is the external risk
    of every client (eq. 3), costs O(max_hops · edges) and never forms the matrix. `propagation.T` is its transpose.
    """

    influence: SparseMatrix
    max_hops: int
    hop_decay: float
    home: ClosedWalks  # the diagonal of Σ before it is removed
    normalisation: Normalisation = "row"

    def __repr__(self) -> str:
        exact = self.home.exact_hops == self.max_hops
        closed = "exact" if exact else f"exact up to {self.home.exact_hops} hops, then estimated"
        return (
            f"Propagation: {self.num_clients:,} clients, {self.influence.nnz:,} edges, up to {self.max_hops} hops, "
            f"decay {self.hop_decay:g}; closed walks {closed}"
        )

    @property
    def num_clients(self) -> int:
        return int(self.influence.shape[0])

    def __matmul__(self, x: Array) -> Array:
        spread = x
        for _ in range(self.max_hops - 1):
            spread = times(self.influence, spread, self.hop_decay, x)  # Horner's rule: farthest hop first
        spread = np.asarray(times(self.influence, spread))
        # A client's own budget is counted once by the caller, not again when it comes back round a cycle.
        spread -= self.home.values * x if x.ndim == 1 else self.home.values[:, None] * x
        return spread

    @cached_property
    def T(self) -> Propagation:  # noqa: N802  (the name numpy and scipy use)
        transposed = Propagation(self.influence.T.tocsr(), self.max_hops, self.hop_decay, self.home, self.normalisation)
        transposed.__dict__["T"] = self
        return transposed

    def to_dense(self) -> Array:
        """Σ as an N×N array; for small networks."""
        total = _sum_of_powers(self.influence, self.max_hops, self.hop_decay)
        np.fill_diagonal(total, 0.0)
        return total

    @cached_property
    def light_influence(self) -> SparseMatrix:
        """W in single precision, sharing its columns: for steps whose errors are corrected afterwards."""
        given = self.influence
        light = given.data.astype(np.float32)
        light.setflags(write=False)
        return type(given)((light, given.indices, given.indptr), shape=given.shape)

    @property
    def geometric_sum(self) -> float:
        """S = 1 + λ + ... + λ^(K-1), which bounds every row sum of Σ when rows of W sum to 1 (model, eq. 4)."""
        return float(sum(self.hop_decay**k for k in range(self.max_hops)))

    @cached_property
    def row_sums(self) -> Array:
        """External risk of each client if all budgets were 1."""
        return self @ np.ones(self.num_clients)

    @cached_property
    def column_sums(self) -> Array:
        """External risk of all others together from a budget of 1 of each client."""
        return self.T @ np.ones(self.num_clients)

    def largest_row_sum(self) -> float:
        """Bound of the contraction check: S where rows of W sum to 1, else the largest true row sum of Σ."""
        return self.geometric_sum if self.normalisation == "row" else float(self.row_sums.max())


def propagate(
    graph: SocialGraph,
    max_hops: int = 5,
    hop_decay: float = 0.9,
    *,
    diagonal: Diagonal = "auto",
    seed: int = 0,
    device: str | None = None,
) -> Propagation:
    """How privacy loss spreads over `graph` (model, eq. 2), without closed walks, which lead back to their client.

    `diagonal` says how closed walks are counted: "exact", "estimate" (with its standard error in `home`), or "auto"; up
    to 1,000 clients they are always exact. `device` only has to exist: closed walks are counted on the processor.
    """
    hops = require_count(max_hops, "max_hops")
    decay = require_number(hop_decay, "hop_decay", 0.0, 1.0)
    if device is not None:
        from mppfl.device import find_device

        find_device(device)
    if graph.num_clients <= EXACT_BELOW and diagonal == "estimate":
        diagonal = "exact"  # lest it differ from the matrix of the game
    home = count_closed_walks(graph.influence, hops, decay, diagonal, seed)
    return Propagation(graph.influence, hops, decay, home, graph.normalisation)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Sources that expose one client, by hop: parallel arrays, largest amount first."""

    sources: IntArray
    hops: IntArray
    amounts: Array


def exposure_sources(propagation: Propagation, client: int, budgets: Array) -> Attribution:
    """Every term λ^{k-1}(W^k)_ij ρ_j of client i's external risk, over sources j and hops k (model, eq. 3).

    Args:
        propagation: How privacy loss spreads, from `propagate`; a game has it as `game.propagation`.
        client: Position of the exposed client.
        budgets: Budget of every client, at least 0.

    Returns:
        Parallel arrays `sources`, `hops` and `amounts`, the largest amount first. The amounts sum to
        `(propagation @ budgets)[client]`.

    Raises:
        BadInput: No client has this position, or the budgets do not fit.

    Example:
        >>> from mppfl.network import graph_from_edges
        >>> graph = graph_from_edges([1, 2], [0, 1], isolated="keep")  # 2 exposes 1, and 1 exposes 0
        >>> terms = exposure_sources(propagate(graph, max_hops=2, hop_decay=0.5), 0, [1.0, 3.0, 7.0])
        >>> [(int(j), int(k), float(amount)) for j, k, amount in zip(terms.sources, terms.hops, terms.amounts)]
        [(2, 2, 3.5), (1, 1, 3.0)]
    """
    if not isinstance(client, (int, np.integer)) or not 0 <= client < propagation.num_clients:
        raise BadInput(f"client={client!r} must be a position from 0 to {propagation.num_clients - 1}.")
    budgets = read_only(budgets, "budgets", length=propagation.num_clients)
    require(budgets, "budgets", budgets >= 0, "at least 0")
    reached = propagation.influence[[client]]
    sources, hops, amounts = [], [], []
    for hop in range(1, propagation.max_hops + 1):
        others = reached.indices != client
        sources.append(reached.indices[others].astype(np.int64))
        hops.append(np.full(int(others.sum()), hop))
        amounts.append(propagation.hop_decay ** (hop - 1) * reached.data[others] * budgets[sources[-1]])
        if hop < propagation.max_hops:
            reached = (reached @ propagation.influence).tocsr()
    order = np.argsort(-np.concatenate(amounts), kind="stable")
    return Attribution(*(np.concatenate(parts)[order] for parts in (sources, hops, amounts)))


@dataclass(frozen=True, slots=True)
class Walk:
    """One walk by which a source exposes a client, and λ^(k-1)·ΠW·ρ_source, its share of the client's external risk.

    clients  positions from the source to the exposed client, one more than there are edges
    """

    clients: tuple[int, ...]
    amount: float

    @property
    def hops(self) -> int:
        return len(self.clients) - 1


def strongest_walks(propagation: Propagation, client: int, budgets: Array, sources: Sequence[int]) -> tuple[Walk, ...]:
    """The single strongest walk of at most `max_hops` edges from each source to `client`, in the order of `sources`.

    Sources without a walk to the client, and the client itself, are left out. Of equally strong walks a shortest one is
    taken, and of these the one with the lowest positions, read from the source. Costs O(max_hops · edges).
    """
    size = propagation.num_clients
    for position in (client, *sources):
        if not 0 <= position < size:
            raise BadInput(f"client={position} must be a position from 0 to {size - 1}.")
    near = np.zeros(size)
    near[client] = 1.0
    layers: list[tuple[Array, IntArray]] = []  # by length of walks: 1, 2, ...
    for _ in range(propagation.max_hops):
        layers.append(_one_edge_longer(propagation.influence, layers[-1][0] if layers else near))
    walks = []
    for source in sources:
        shares = [propagation.hop_decay**k * float(strengths[source]) for k, (strengths, _) in enumerate(layers)]
        longest = int(np.argmax(shares))
        if source != client and shares[longest] > 0.0:
            clients = [source]
            for _, towards in layers[longest::-1]:
                clients.append(int(towards[clients[-1]]))
            walks.append(Walk(tuple(clients), shares[longest] * float(budgets[source])))
    return tuple(walks)


def _one_edge_longer(influence: SparseMatrix, near: Array) -> tuple[Array, IntArray]:
    """Max-product step: strength of the strongest walk with one more edge from each source, and its second client."""
    size = len(near)
    targets = np.flatnonzero(near)
    edges = influence[targets].tocoo()
    sources, targets = edges.col, targets[edges.row]
    strengths = near[targets] * edges.data
    best = np.zeros(size)
    np.maximum.at(best, sources, strengths)
    # Among equally strong walks the lowest position wins, whatever the order in which edges are stored.
    towards = np.full(size, size)
    strongest = strengths == best[sources]
    np.minimum.at(towards, sources[strongest], targets[strongest])
    return best, towards
