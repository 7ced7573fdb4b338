"""Random social networks: the paper's Erdős–Rényi, and Barabási–Albert, Watts–Strogatz, block model and skewed ones.

No family leaves a client isolated, edges a client to itself or gives an edge twice. All but the first need memory in
proportion to clients and edges only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, IntArray, require_count, require_generator, require_number
from mppfl.errors import BadInput
from mppfl.network.graph import Normalisation, SocialGraph, SparseMatrix, graph_from_matrix
from mppfl.text import nearest

Weights = Literal["uniform", "ones"]
Range = tuple[float, float]
_Weigh = Callable[[int], Array]  # number of edges -> their weights

_MOST_CLIENTS_DENSE = 20_000  # 200 million edges on average: some 10 GB while they are put together
_BLOCK_PAIRS = 2**22  # pairs drawn at a time by "erdos_renyi"; part of what a seed means
_REWIRING_TRIES = 20


def random_graph(
    kind: str,
    num_clients: int,
    *,
    rng: np.random.Generator,
    normalisation: Normalisation = "row",
    weights: Weights = "uniform",
    weight_range: Range = (0.1, 1.0),
    **options: Any,
) -> SocialGraph:
    """A random social graph of one of five families.

    erdos_renyi       The paper's network (model, section 1): each ordered pair has a probability of its own,
                      drawn from `probability_range` (0.1, 0.9). A client whom nobody exposes draws one edge. Time and
                      memory grow with num_clients², so more than 20,000 clients are refused.
    barabasi_albert   Newcomers befriend `edges_each` (3) others, chosen in proportion to their friends: a few become
                      hubs. The first edges_each + 1 clients form a star.
    watts_strogatz    A ring where everybody knows the nearest `neighbours` (6), and a share `rewire` (0.1) of edges
                      leads to a random client instead.
    stochastic_block  Communities of the given `sizes` (four of about equal size): two clients are friends with chance
                      `within` (0.1) in one, `between` (0.01) across two. A client without friends draws one.
    skewed            Exactly `num_edges` directed edges (ten per client), in which few expose many, and few are exposed
                      by many. The chance to expose falls with rank as rank^-`popularity` (0.75); numbers of exposers
                      follow log-normal weights of deviation `length_spread` (1).

    Edges of the middle three run both ways with one weight.

    Args:
        kind: The family.
        num_clients: Number of clients, at least 2.
        rng: Source of randomness; the same seed gives the same graph.
        normalisation: "row" (the influence on each client sums to 1), "symmetric", or "none".
        weights: "uniform" draws weights from `weight_range`, "ones" makes all of them 1.
        weight_range: Smallest and largest weight.
        options: Options of the family, named above with their defaults.

    Returns:
        The graph.

    Raises:
        BadInput: A family or an option that is not known, with the nearest one that is; a value out of range.

    Example:
        >>> import numpy as np
        >>> random_graph("watts_strogatz", 50, rng=np.random.default_rng(0), neighbours=4).num_edges
        200
    """
    if kind not in _FAMILIES:
        raise BadInput(f"kind={kind!r} is no family of graphs.{_hint(kind, list(_FAMILIES))}")
    family = _FAMILIES[kind]
    names = [name for name in inspect.signature(family).parameters if name not in ("num_clients", "rng", "weigh")]
    for option in options:
        if option not in names:
            raise BadInput(f"{kind} has no option {option!r}.{_hint(option, [*names, 'weights', 'weight_range'])}")
    require_count(num_clients, "num_clients", 2)
    require_generator(rng)
    if weights not in ("uniform", "ones"):
        raise BadInput(f'weights={weights!r} must be "uniform" or "ones".')
    low, high = _pair(weight_range, "weight_range")
    if not 0.0 < low <= high < np.inf:
        raise BadInput(f"weight_range={weight_range!r} must be two positive numbers, the smaller first.")

    def weigh(count: int) -> Array:
        return np.ones(count) if weights == "ones" else rng.uniform(low, high, count)

    return graph_from_matrix(family(num_clients, rng, weigh, **options), normalisation=normalisation)


def _erdos_renyi(
    num_clients: int, rng: np.random.Generator, weigh: _Weigh, probability_range: Range = (0.1, 0.9)
) -> SparseMatrix:
    least, most = _pair(probability_range, "probability_range")
    if not 0.0 <= least <= most <= 1.0:
        raise BadInput(f"probability_range={probability_range!r} must be two numbers in [0, 1], the smaller first.")
    if num_clients > _MOST_CLIENTS_DENSE:
        raise BadInput(
            f"num_clients={num_clients:,} is too many for erdos_renyi, which edges a share of all pairs; at most "
            f"{_MOST_CLIENTS_DENSE:,}. Use a sparse family: {', '.join(k for k in _FAMILIES if k != 'erdos_renyi')}."
        )
    columns, strengths, lengths = [], [], []
    rows_at_once = max(1, _BLOCK_PAIRS // num_clients)
    for start in range(0, num_clients, rows_at_once):
        targets = np.arange(start, min(start + rows_at_once, num_clients))
        rows, shape = np.arange(len(targets)), (len(targets), num_clients)
        connected = rng.random(shape) < rng.uniform(least, most, shape)
        connected[rows, targets] = False
        empty = np.flatnonzero(~connected.any(axis=1))
        connected[empty, _another(targets[empty], num_clients, rng)] = True
        columns.append(np.nonzero(connected)[1].astype(np.int32))
        strengths.append(weigh(len(columns[-1])))
        lengths.append(connected.sum(axis=1))
    return _from_rows(np.concatenate(columns), np.concatenate(strengths), np.concatenate(lengths))


def _barabasi_albert(num_clients: int, rng: np.random.Generator, weigh: _Weigh, edges_each: int = 3) -> SparseMatrix:
    require_count(edges_each, "edges_each")
    if edges_each >= num_clients:
        raise BadInput(f"edges_each={edges_each} must be below num_clients={num_clients}. Lower it, or add clients.")
    from mppfl.network._kernels import attach_newcomers

    return _from_friendships(*attach_newcomers(num_clients, edges_each, rng), weigh, num_clients)


def _watts_strogatz(
    num_clients: int, rng: np.random.Generator, weigh: _Weigh, neighbours: int = 6, rewire: float = 0.1
) -> SparseMatrix:
    """A rewired edge keeps its near end, so no client is left isolated.

    It never takes the place of an edge of the ring, and stays where it is if twenty draws find no free place.
    """
    require_count(neighbours, "neighbours", 2)
    if neighbours % 2 or neighbours >= num_clients:
        raise BadInput(
            f"neighbours={neighbours} must be even and below num_clients={num_clients}; half sit on each side."
        )
    require_number(rewire, "rewire", 0.0, 1.0, open_ends=False)
    near = np.repeat(np.arange(num_clients), neighbours // 2)
    far = (near + np.tile(np.arange(1, neighbours // 2 + 1), num_clients)) % num_clients
    taken = np.sort(_pair_keys(near, far, num_clients))
    pending = np.flatnonzero(rng.random(len(near)) < rewire)
    for _ in range(_REWIRING_TRIES):
        if len(pending) == 0:
            break
        drawn = rng.integers(0, num_clients, len(pending))
        keys = _pair_keys(near[pending], drawn, num_clients)
        first = np.zeros(len(keys), dtype=bool)
        first[np.unique(keys, return_index=True)[1]] = True
        is_taken = taken[np.minimum(np.searchsorted(taken, keys), len(taken) - 1)] == keys
        free = (drawn != near[pending]) & first & ~is_taken
        far[pending[free]] = drawn[free]
        taken = np.sort(np.concatenate([taken, keys[free]]))
        pending = pending[~free]
    return _from_friendships(near, far, weigh, num_clients)


def _stochastic_block(
    num_clients: int,
    rng: np.random.Generator,
    weigh: _Weigh,
    sizes: Sequence[int] | None = None,
    within: float = 0.1,
    between: float = 0.01,
) -> SparseMatrix:
    """Clients are numbered block by block."""
    if sizes is None:
        sizes = [len(block) for block in np.array_split(np.arange(num_clients), min(4, num_clients))]
    if not isinstance(sizes, Sequence):
        raise BadInput(f"sizes={sizes!r} must list the size of each block, for instance [10, 20].")
    if sum(sizes) != num_clients:
        raise BadInput(f"sizes add up to {sum(sizes)}, not to num_clients={num_clients}. Make the two agree.")
    require_number(within, "within", 0.0, 1.0, open_ends=False)
    require_number(between, "between", 0.0, 1.0, open_ends=False)
    near, far = [], []
    start = 0
    for i, given_size in enumerate(sizes):
        size = require_count(given_size, f"sizes[{i}]")
        end = start + size
        inside = _successes(size * (size - 1) // 2, within, rng)  # pairs (1, 0), (2, 0), (2, 1), (3, 0), ...
        rows = ((1.0 + np.sqrt(1.0 + 8.0 * inside)) / 2.0).astype(np.int64)  # exact up to 47 million clients
        later = num_clients - end
        across = _successes(size * later, between, rng)
        near += [start + rows, start + across // max(later, 1)]
        far += [start + inside - rows * (rows - 1) // 2, end + across % max(later, 1)]
        start = end
    lonely = np.flatnonzero(np.bincount(np.concatenate(near + far), minlength=num_clients) == 0)
    drawn = _another(lonely, num_clients, rng)
    rescued = _sorted_once(_pair_keys(lonely, drawn, num_clients))  # two may draw each other
    near.append(rescued // num_clients)
    far.append(rescued % num_clients)
    return _from_friendships(np.concatenate(near), np.concatenate(far), weigh, num_clients)


def _skewed(
    num_clients: int,
    rng: np.random.Generator,
    weigh: _Weigh,
    num_edges: int | None = None,
    popularity: float = 0.75,
    length_spread: float = 1.0,
) -> SparseMatrix:
    """Popularity 0 makes all alike; 0.75 gives numbers of exposed clients with a tail of exponent 1 + 1/0.75."""
    most = num_clients * (num_clients - 1)
    num_edges = min(10 * num_clients, most) if num_edges is None else require_count(num_edges, "num_edges")
    if not num_clients <= num_edges <= most:
        raise BadInput(f"num_edges={num_edges:,} must lie in [{num_clients:,}, {most:,}] for {num_clients:,} clients.")
    require_number(popularity, "popularity", 0.0, 0.99, open_ends=False)
    require_number(length_spread, "length_spread", 0.0, 10.0, open_ends=False)

    shares = rng.lognormal(0.0, length_spread, num_clients)
    extra = rng.multinomial(num_edges - num_clients, shares / shares.sum())  # exposers of each client beside the first
    room = num_clients - 2
    while (excess := int(np.maximum(extra - room, 0).sum())) > 0:
        extra = np.minimum(extra, room)
        free = np.flatnonzero(extra < room)
        extra[free] += rng.multinomial(excess, np.full(len(free), 1.0 / len(free)))
    lengths = 1 + extra
    by_rank = rng.permutation(num_clients)
    is_long = lengths * 8 > num_clients
    short = _rows_by_rejection(np.where(is_long, 0, lengths), by_rank, popularity, rng)
    long = _rows_by_arrival(np.where(is_long, lengths, 0), by_rank, popularity, rng)
    keys = np.sort(np.concatenate([short, long]))
    return _from_rows((keys % num_clients).astype(np.int32), weigh(len(keys)), lengths)


_FAMILIES: dict[str, Callable[..., SparseMatrix]] = {
    "erdos_renyi": _erdos_renyi,
    "barabasi_albert": _barabasi_albert,
    "watts_strogatz": _watts_strogatz,
    "stochastic_block": _stochastic_block,
    "skewed": _skewed,
}


def _rows_by_rejection(lengths: IntArray, by_rank: IntArray, popularity: float, rng: np.random.Generator) -> IntArray:
    """Edges as target · num_clients + source: drawn all at once, repetitions and self-loops drawn again until none.

    Rows must be short against the number of clients, or the last edges would take many draws.
    """
    size, power = len(lengths), 1.0 - popularity
    settled: list[IntArray] = []
    keys: IntArray = np.empty(0, dtype=np.int64)
    missing = lengths
    while missing.any():
        targets = np.repeat(np.arange(size), missing)
        # A rank from 0 to size - 1 has a chance ∝ the integral of x^-popularity from rank + 1 to rank + 2.
        x = (1.0 + rng.random(len(targets)) * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)
        sources = by_rank[np.minimum(x.astype(np.int64) - 1, size - 1)]  # x may be rounded up to size + 1
        fresh = targets[targets != sources] * size + sources[targets != sources]
        keys = _sorted_once(np.concatenate([keys, fresh]))
        rows = keys // size
        missing = np.where(missing > 0, lengths - np.bincount(rows, minlength=size), 0)
        unsettled = missing[rows] > 0
        settled.append(keys[~unsettled])
        keys = keys[unsettled]
    return np.concatenate([*settled, keys])


def _rows_by_arrival(lengths: IntArray, by_rank: IntArray, popularity: float, rng: np.random.Generator) -> IntArray:
    """The same law for long rows: every client arrives after an exponential time, popular ones sooner; the first count.

    Successive sampling without replacement is the order of exponential arrivals (Efraimidis & Spirakis 2006, Inf.
    Process. Lett. 97(5), algorithm A with keys log u / w).
    """
    size = len(lengths)
    chances = np.empty(size)
    chances[by_rank] = np.diff(np.arange(1, size + 2) ** (1.0 - popularity))
    keys = [np.empty(0, dtype=np.int64)]
    for target in np.flatnonzero(lengths):
        arrival = rng.standard_exponential(size) / chances
        arrival[target] = np.inf
        keys.append(target * size + np.argpartition(arrival, lengths[target] - 1)[: lengths[target]])
    return np.concatenate(keys)


def _successes(trials: int, chance: float, rng: np.random.Generator) -> IntArray:
    """Sorted positions of the successes in independent trials, by geometric leaps: O(successes)."""
    if chance <= 0.0 or trials == 0:
        return np.empty(0, dtype=np.int64)
    if chance >= 1.0:
        return np.arange(trials)
    parts: list[IntArray] = []
    last = -1
    while last < trials:
        expected = (trials - last) * chance
        leaps = rng.geometric(chance, int(expected + 4 * expected**0.5) + 8)
        parts.append(last + np.cumsum(np.minimum(leaps, trials + 1)))
        last = int(parts[-1][-1])
    positions = np.concatenate(parts)
    return positions[positions < trials]


def _pair_keys(near: IntArray, far: IntArray, num_clients: int) -> IntArray:
    """One number per unordered pair."""
    return np.minimum(near, far).astype(np.int64) * num_clients + np.maximum(near, far)


def _sorted_once(keys: IntArray) -> IntArray:
    """np.unique(keys), at a tenth of its time for millions of keys."""
    keys = np.sort(keys)
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys


def _another(clients: IntArray, num_clients: int, rng: np.random.Generator) -> IntArray:
    """For each of the clients another one, all equally likely."""
    other = rng.integers(0, num_clients - 1, len(clients))
    return other + (other >= clients)


def _pair(values: Any, name: str) -> Range:
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError) as cause:
        raise BadInput(f"{name}={values!r} must be two numbers, such as (0.1, 0.9).") from cause
    return low, high


def _from_rows(columns: IntArray, strengths: Array, lengths: IntArray) -> SparseMatrix:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return sp.csr_array((strengths, columns, indptr), shape=(len(lengths), len(lengths)))


def _from_friendships(near: IntArray, far: IntArray, weigh: _Weigh, num_clients: int) -> SparseMatrix:
    """Both edges of every pair, with one weight."""
    near, far, strengths = near.astype(np.int32), far.astype(np.int32), weigh(len(near))
    rows, columns = np.concatenate([near, far]), np.concatenate([far, near])
    return sp.coo_array((np.concatenate([strengths, strengths]), (rows, columns)), shape=(num_clients, num_clients))


def _hint(word: str, names: list[str]) -> str:
    near = nearest(word, names)
    return f" Did you mean {near!r}?" if near else f" Known: {', '.join(names)}."
