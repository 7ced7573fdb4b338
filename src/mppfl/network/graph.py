"""SocialGraph: direct influence between clients as a normalised sparse matrix with names; its description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from mppfl.arrays import Array, IntArray, require_count
from mppfl.errors import BadGraph, BadInput, UnknownClient
from mppfl.text import joined_names, nearest

Normalisation = Literal["row", "none", "symmetric"]
Isolated = Literal["error", "keep", "drop"]
SelfLoops = Literal["error", "drop"]
SparseMatrix = Any  # scipy.sparse.csr_array, which has no types of its own


@dataclass(frozen=True, eq=False, repr=False)
class SocialGraph:
    """Direct influence W between clients (model, eq. 1): entry (i, j) says how strongly j's choices expose i.

    Made by read_graph, random_graph, graph_from_edges or graph_from_matrix. An empty row is an isolated client: nobody
    exposes it.

    Args:
        influence: W as a csr_array: float64 values, sorted int32 columns, zero diagonal.
        names: One per client, or None: clients are then called "0", "1", ...
        normalisation: "row": rows sum to 1; "none": weights as given; "symmetric": D^-1/2 w D^-1/2.
        strengths: Row sums of the edges as given, by which `edges` recovers them. Under "symmetric", for a client whom
            nobody exposes, the sum of the edges by which it exposes others.
        origin: Index of each client in the input, before isolated clients were dropped.
        dropped: Names of the clients that were dropped.

    Example:
        >>> graph = graph_from_edges([0, 1, 2], [1, 0, 1], names=["Ann", "Bob", "Cy"], isolated="keep")
        >>> graph
        SocialGraph: 3 clients, 3 edges, normalisation 'row'
          clients      'Ann', 'Bob', 'Cy'
          exposed by   0 to 2 clients each, 1 isolated
        >>> graph.index("Cy"), graph.describe().num_isolated
        (2, 1)
    """

    influence: SparseMatrix
    names: tuple[str, ...] | None
    normalisation: Normalisation
    strengths: Array
    origin: IntArray
    dropped: frozenset[str] = frozenset()
    _positions: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts, isolated = np.diff(self.influence.indptr), len(self.isolated)
        dropped = f", {len(self.dropped):,} dropped" if self.dropped else ""
        return (
            f"SocialGraph: {self.num_clients:,} clients, {self.num_edges:,} edges, "
            f"normalisation {self.normalisation!r}\n"
            f"  clients      {joined_names(self.name(i) for i in range(min(6, self.num_clients)))}\n"
            f"  exposed by   {counts.min():,} to {counts.max():,} clients each, {isolated:,} isolated{dropped}"
        )

    @property
    def num_clients(self) -> int:
        return int(self.influence.shape[0])

    @property
    def num_edges(self) -> int:
        return int(self.influence.nnz)

    @property
    def isolated(self) -> IntArray:
        """Indices of clients whom nobody exposes."""
        return np.flatnonzero(np.diff(self.influence.indptr) == 0)

    def name(self, index: int) -> str:
        return str(int(index)) if self.names is None else self.names[index]

    def index(self, name: str) -> int:
        """The position of a client by name. Raises UnknownClient with the nearest names."""
        if not isinstance(name, str):
            raise UnknownClient(f"client {name!r} is no name. Give a string, for instance {str(name)!r}.")
        if self.names is None:
            if name.isdecimal() and int(name) < self.num_clients and name == str(int(name)):
                return int(name)
        else:
            if not self._positions:
                self._positions.update((client, i) for i, client in enumerate(self.names))
            if name in self._positions:
                return self._positions[name]
        if name in self.dropped:
            raise UnknownClient(
                f"client {name!r} was dropped, because nobody exposes it. Leave it out, or keep isolated ones."
            )
        near = nearest(name, (self.names or ())[:20_000])
        hint = f"Did you mean {near!r}?" if near else "Check the spelling."
        raise UnknownClient(f"client {name!r} is not in the network of {self.num_clients:,} clients. {hint}")

    def edges(self) -> SparseMatrix:
        """The edges as they were given (w, before normalisation), as a csr_array."""
        if self.normalisation == "none":
            return self.influence
        weights = self.influence.data * _divisors(self.influence, self.strengths, self.normalisation)
        # Division and multiplication may each round: a weight of 1 would come back as 0.9999999999999999.
        given = self.influence.copy()
        given.data = _nearby_short_decimals(weights)
        return given

    def describe(self) -> GraphDescription:
        """Degrees, reciprocity, smallest influence, isolated clients and connectedness of the graph."""
        influence = self.influence
        exposed_by = np.diff(influence.indptr)
        degrees = exposed_by, np.bincount(influence.indices, minlength=self.num_clients)
        spreads = [(int(counts.min()), float(counts.mean()), int(counts.max())) for counts in degrees]
        ones = np.ones(influence.nnz, dtype=np.int8)
        pattern = sp.csr_array((ones, influence.indices, influence.indptr), influence.shape)
        parts, _ = connected_components(pattern, directed=True, connection="weak")
        _, strong = connected_components(pattern, directed=True, connection="strong")
        lone = np.flatnonzero(exposed_by == 1)
        only = np.full(self.num_clients, -1)  # the one exposer of a client who has but one
        only[lone] = influence.indices[influence.indptr[lone]]
        return GraphDescription(
            num_clients=self.num_clients,
            num_edges=self.num_edges,
            exposed_by=spreads[0],
            exposes=spreads[1],
            reciprocity=int(pattern.multiply(pattern.T).sum()) / influence.nnz,
            smallest_influence=float(influence.data.min()),
            num_isolated=len(self.isolated),
            num_isolated_pairs=int((only[only[lone]] == lone).sum()) // 2,
            strongly_connected_share=float(np.bincount(strong).max() / self.num_clients),
            num_components=int(parts),
        )


def graph_from_edges(
    sources: IntArray,
    targets: IntArray,
    weights: Array | None = None,
    *,
    names: Sequence[str] | None = None,
    num_clients: int | None = None,
    normalisation: Normalisation = "row",
    isolated: Isolated = "error",
    self_loops: SelfLoops = "error",
    undirected: bool = False,
) -> SocialGraph:
    """A social graph from edges "target is exposed by source", given as positions.

    Args:
        sources: Position of the source of each edge, counted from 0.
        targets: Position of the target of each edge.
        weights: A positive number for each edge; 1 each if None. An edge given twice with one weight counts once.
        names: One name per client; None calls them "0", "1", ...
        num_clients: Number of clients; by default the number of names, or the highest position plus 1.
        normalisation: "row" (the influence on each client sums to 1), "symmetric", or "none".
        isolated: What to do with clients whom nobody exposes: "error", "keep" or "drop".
        self_loops: What to do with edges from a client to itself: "error" or "drop".
        undirected: Whether every edge runs both ways.

    Returns:
        The graph.

    Raises:
        BadGraph: An edge with two weights, a self-loop, an isolated client, a weight that is not positive, a position
            that no client has.
        BadInput: An option that is not known.

    Example:
        >>> graph = graph_from_edges([0, 1], [1, 0], names=["Ann", "Bob"])
        >>> graph.num_clients, graph.num_edges
        (2, 2)
    """
    sources, targets = _positions(sources, "sources"), _positions(targets, "targets")
    if num_clients is not None:
        size = require_count(num_clients, "num_clients")
    else:
        size = len(names) if names is not None else int(max(sources.max(initial=-1), targets.max(initial=-1))) + 1
    values = np.ones(len(sources)) if weights is None else _weights(weights)
    label = _label(names)
    _check_edges(sources, targets, values, size, label)
    if undirected:
        sources, targets = np.concatenate([sources, targets]), np.concatenate([targets, sources])
        values = np.concatenate([values, values])
    matrix = _unique_edges(sources, targets, values, size, label)
    options: Any = {"normalisation": normalisation, "isolated": isolated, "self_loops": self_loops}
    return graph_from_matrix(matrix, names=names, **options)


def graph_from_matrix(
    matrix: Any,
    *,
    names: Sequence[str] | None = None,
    normalisation: Normalisation = "row",
    isolated: Isolated = "error",
    self_loops: SelfLoops = "error",
) -> SocialGraph:
    """A social graph from a square matrix w (dense or sparse) whose entry (i, j) > 0 says that j exposes i.

    Example:
        >>> graph_from_matrix([[0, 1], [1, 0]]).num_edges
        2
    """
    for option, value, kind in (
        ("normalisation", normalisation, Normalisation),
        ("isolated", isolated, Isolated),
        ("self_loops", self_loops, SelfLoops),
    ):
        if value not in get_args(kind):
            raise BadInput(f"{option}={value!r} must be one of {', '.join(map(repr, get_args(kind)))}.")
    given = _as_csr(matrix)
    size = given.shape[0]
    _check_names(names, size)
    label = _label(names)
    given = _without_loops(given, self_loops, label)
    if given.nnz == 0:
        raise BadGraph(f"the graph of {size} clients has no edges, so nothing propagates. Give at least one edge.")
    given, origin = _without_isolated(given, isolated, label)
    if len(origin) == size:
        return _normalised(given, None if names is None else tuple(names), normalisation, origin)
    names = tuple(map(str, range(size))) if names is None else names
    kept = tuple(names[i] for i in origin)
    return replace(_normalised(given, kept, normalisation, origin), dropped=frozenset(names) - frozenset(kept))


def _without_loops(given: SparseMatrix, self_loops: SelfLoops, label: Callable[[Any], str]) -> SparseMatrix:
    loops = np.flatnonzero(given.diagonal())
    if len(loops) == 0:
        return given
    if self_loops == "error":
        raise BadGraph(
            f"client {label(loops[0])!r} is connected to itself ({len(loops):,} self-loops); "
            'a client\'s own risk is counted apart. Remove them, or pass self_loops="drop".'
        )
    given = given - sp.diags_array(given.diagonal(), format="csr")
    given.eliminate_zeros()
    return given


def _without_isolated(
    given: SparseMatrix, isolated: Isolated, label: Callable[[Any], str]
) -> tuple[SparseMatrix, IntArray]:
    """The matrix of the clients that are kept, and their positions in the given one."""
    size = given.shape[0]
    origin = np.arange(size)
    empty = np.diff(given.indptr) == 0
    if empty.any() and isolated == "error":
        raise BadGraph(
            f"{int(empty.sum()):,} of {size:,} clients are isolated (nobody exposes them): "
            f"{joined_names(label(i) for i in np.flatnonzero(empty)[:6])}. "
            'Give them edges, or choose isolated="keep" (no external risk) or isolated="drop".'
        )
    while isolated == "drop" and empty.any():  # dropping a client can isolate those whom only it exposed
        given, origin = given[~empty][:, ~empty].tocsr(), origin[~empty]
        empty = np.diff(given.indptr) == 0
    if given.shape[0] == 0:
        raise BadGraph('every client became isolated once isolated ones were dropped. Use isolated="keep".')
    return given, origin


def _normalised(
    given: SparseMatrix, names: tuple[str, ...] | None, normalisation: Normalisation, origin: IntArray
) -> SocialGraph:
    with np.errstate(over="ignore"):  # refused below
        strengths = np.asarray(given.sum(axis=1)).ravel()
    if normalisation == "symmetric" and (strengths == 0).any():
        # Who is exposed by nobody may expose others. Its edges need a divisor in the unit of weights, lest it matter.
        exposing = np.bincount(given.indices, weights=given.data, minlength=len(strengths))
        strengths = np.where(strengths > 0, strengths, exposing)
    lightest, heaviest = float(given.data.min()), float(given.data.max())
    # `given` is a copy of our own, so its arrays are taken over: a large network need not stand in memory twice.
    influence = sp.csr_array((given.data, given.indices.astype(np.int32, copy=False), given.indptr), shape=given.shape)
    influence.sort_indices()
    if normalisation != "none":
        influence.data /= _divisors(influence, strengths, normalisation)
    if not (np.isfinite(strengths).all() and influence.data.min() > 0):
        raise BadGraph(
            f"weights from {lightest:g} to {heaviest:g} are too far apart to be added up and compared. "
            "Rescale them, for instance to at most 1."
        )
    for array in (influence.data, influence.indices, influence.indptr, strengths, origin):
        array.setflags(write=False)
    return SocialGraph(influence, names, normalisation, strengths, origin)


def _divisors(edges: SparseMatrix, strengths: Array, normalisation: Normalisation) -> Array:
    """What each stored edge is divided by: its row's sum, or the geometric mean of its row's and its column's."""
    safe = np.where(strengths > 0, strengths, 1.0)  # who has no edges at all has none to divide
    lengths = np.diff(edges.indptr)
    if normalisation == "row":
        return np.repeat(safe, lengths)
    root = np.sqrt(safe)
    return np.asarray(np.repeat(root, lengths) * root[edges.indices])


def csr_arrays(matrix: SparseMatrix) -> tuple[IntArray, IntArray, Array]:
    """What compiled loops take of a csr_array."""
    return matrix.indptr, matrix.indices, matrix.data


def _nearby_short_decimals(values: Array) -> Array:
    """The values, each replaced by a decimal of 15 digits if one lies within three units in the last place."""
    with np.errstate(divide="ignore"):  # values outside 1e-7 to 1e15 stay as they are: 10^digits would not be exact
        digits = 14 - np.floor(np.log10(values))
        power = 10.0 ** np.clip(digits, 0, 22)
        short = np.rint(values * power) / power
    near = (digits >= 0) & (digits <= 22) & (np.abs(short - values) <= 3 * np.spacing(values))
    return np.where(near, short, values)


def _as_csr(matrix: Any) -> SparseMatrix:
    """The matrix as csr_array with positive finite entries, or an error that names the first wrong one."""
    if not sp.issparse(matrix):
        try:
            matrix = np.asarray(matrix)
        except ValueError as cause:
            raise BadGraph(
                "a graph needs a square matrix, got rows of several lengths. Fill them up with 0."
            ) from cause
    if matrix.dtype.kind not in "biuf" or matrix.ndim != 2:
        raise BadGraph(f"a graph needs a square matrix of real numbers, got {matrix.dtype} of shape {matrix.shape}.")
    if matrix.shape[0] != matrix.shape[1]:
        raise BadGraph(f"a graph needs a square matrix, got shape {matrix.shape}.")
    if matrix.shape[0] == 0:
        raise BadGraph("the graph is empty: no clients. Give at least one edge.")
    if matrix.shape[0] >= 2**31:
        raise BadGraph(
            f"a graph has at most 2,147,483,647 clients, the matrix {matrix.shape[0]:,}. Is it the right one?"
        )
    given = sp.csr_array(matrix, dtype=np.float64, copy=True)  # what follows works in place, not on the caller's matrix
    given.sum_duplicates()
    wrong = ~(np.isfinite(given.data) & (given.data >= 0))
    if wrong.any():
        where = int(np.argmax(wrong))
        row = int(np.searchsorted(given.indptr, where, side="right") - 1)
        raise BadGraph(
            f"entry ({row}, {int(given.indices[where])}) of the matrix is {given.data[where]}; "
            "weights must be positive numbers, 0 for no edge."
        )
    given.eliminate_zeros()
    return given


def _vector(given: Any, what: str, kind: str) -> Any:
    """What is given for each edge, as an array of one dimension."""
    try:
        values = np.asarray(given)
    except ValueError as cause:
        raise BadGraph(f"{what} must be {kind}, one for each edge, got rows of several lengths.") from cause
    if values.ndim != 1:
        raise BadGraph(f"{what} of shape {values.shape} must be {kind}, one for each edge.")
    return values


def _positions(given: Any, what: str) -> IntArray:
    """Edge ends as whole numbers; refuses what lies between two clients."""
    ends = _vector(given, what, "positions")
    if ends.dtype.kind not in "iuf" and len(ends):
        raise BadGraph(f"{what} must be positions of clients, whole numbers from 0, not {ends[0]!r}.")
    if ends.dtype.kind == "f":
        wrong = np.flatnonzero((ends != np.trunc(ends)) | (np.abs(ends) >= 2**31))
        if len(wrong):
            place = f"{ends[wrong[0]]:g} at position {wrong[0]}"
            raise BadGraph(f"{what} hold {place}; each must be a whole number from 0.")
    return np.asarray(ends) if ends.dtype.kind == "i" else ends.astype(np.int64)


def _weights(given: Any) -> Array:
    values = _vector(given, "weights", "positive numbers")
    if values.dtype.kind not in "biuf":
        raise BadGraph(f"weights must be positive numbers, one for each edge, got {given!r:.60}.")
    return np.asarray(values, dtype=np.float64)


def _check_names(names: Any, size: int) -> None:
    if names is None:
        return
    if isinstance(names, str) or not all(issubclass(kind, str) for kind in set(map(type, names))):
        raise BadGraph(f"names={names!r:.60} must be a list of strings, one for each client, as ['1', '2'].")
    if len(names) != size:
        raise BadGraph(f"{len(names)} names for {size} clients; give one name per row of the matrix.")
    if len(set(names)) < size:
        twice = Counter(names).most_common(1)[0][0]
        raise BadGraph(f"two clients are called {twice!r}. Give every client a name of its own.")


def _label(names: Sequence[str] | None) -> Callable[[Any], str]:
    """How messages call the client at a position."""
    return lambda i: str(int(i)) if names is None else names[int(i)]


def _check_edges(sources: IntArray, targets: IntArray, values: Array, size: int, label: Any) -> None:
    if not len(sources) == len(targets) == len(values):
        raise BadGraph(f"{len(sources)} sources, {len(targets)} targets and {len(values)} weights do not match.")
    if len(sources) == 0:
        raise BadGraph("the graph is empty: no edges. Give at least one line `source, target`.")
    for ends in (sources, targets):
        if ends.min() < 0 or ends.max() >= size:
            raise BadGraph(f"edge end {int(ends[(ends < 0) | (ends >= size)][0])} is not one of {size} clients.")
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadGraph(
            f"the edge from {label(sources[row])!r} to {label(targets[row])!r} has weight {values[row]}; "
            "weights must be positive numbers. Correct it, or leave the edge out."
        )


def _unique_edges(sources: IntArray, targets: IntArray, values: Array, size: int, label: Any) -> SparseMatrix:
    """Rows are targets, columns sources; a repeated edge counts once if its weights agree."""
    order = np.argsort(targets.astype(np.int64) * size + sources, kind="stable")  # a third of lexsort's time
    sources, targets, values = sources[order], targets[order], values[order]
    again = np.append(False, (sources[1:] == sources[:-1]) & (targets[1:] == targets[:-1]))
    clash = again & np.append(False, values[1:] != values[:-1])
    if clash.any():
        row = int(np.argmax(clash))
        raise BadGraph(
            f"the edge from {label(sources[row])!r} to {label(targets[row])!r} is given twice, with weights "
            f"{values[row - 1]:g} and {values[row]:g}. Keep one of them."
        )
    sources, targets, values = sources[~again], targets[~again], values[~again]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=size))])
    kind = np.int32 if len(values) < 2**31 else np.int64
    return sp.csr_array((values, sources.astype(np.int32), indptr.astype(kind)), shape=(size, size))


@dataclass(frozen=True, slots=True)
class GraphDescription:
    """What a social graph looks like. Shares lie between 0 and 1."""

    num_clients: int
    num_edges: int
    exposed_by: tuple[int, float, int]  # how many expose a client: fewest, mean, most
    exposes: tuple[int, float, int]  # how many a client exposes: fewest, mean, most
    reciprocity: float  # share of edges that also run the other way
    smallest_influence: float  # ω_min of the paper: measured, not enforced
    num_isolated: int
    num_isolated_pairs: int  # two clients exposed by nobody but each other
    strongly_connected_share: float  # share of clients in the largest strongly connected part
    num_components: int  # weakly connected parts
