"""Random social networks: the paper's Erdős–Rényi, and Barabási–Albert, Watts–Strogatz, block model and skewed ones.

Every generator draws from the `rng` it is given, so the same seed gives the same graph, and none leaves a client
isolated, links a client to itself or gives a link twice. Weights are drawn from `weight_range`, or are all 1 with
`weights="ones"`. All but `erdos_renyi` need memory in proportion to clients and links only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from mppfl.arrays import Array, IntArray, require_count, require_generator, require_number
from mppfl.errors import BadInput
from mppfl.network.graph import Normalisation, SocialGraph, graph_from_matrix

Weights = Literal["uniform", "ones"]
Range = tuple[float, float]

_MOST_CLIENTS_DENSE = 20_000  # 200 million links on average: some 10 GB while they are put together
_BLOCK_PAIRS = 2**22  # pairs drawn at a time by `erdos_renyi`; part of what a seed means
_REWIRING_TRIES = 20


def random_graph(
    kind: str, num_clients: int, *, rng: np.random.Generator, normalisation: Normalisation = "row", **options: Any
) -> SocialGraph:
    """A graph of the family `kind`, named as its function here; `options` are that function's.

    "stochastic_block" without `sizes` makes four blocks as equal as can be; "skewed" without `num_links` ten links
    for every client. Raises where the family or an option is unknown, with the nearest known one.
    """
    if kind not in _FAMILIES:
        raise BadInput(f"kind={kind!r} is no family of graphs.{_nearest(kind, list(_FAMILIES))}")
    family = _FAMILIES[kind]
    known = [
        name for name in inspect.signature(family).parameters if name not in ("num_clients", "rng", "normalisation")
    ]
    for option in options:
        if option not in known:
            raise BadInput(f"{kind} has no option {option!r}.{_nearest(option, known)}")
    if kind == "stochastic_block":
        require_count(num_clients, "num_clients", 2)
        sizes = options.pop("sizes", None)
        if sizes is not None and not isinstance(sizes, Sequence):
            raise BadInput(f"sizes={sizes!r} must list the size of each block, for instance [10, 20].")
        sizes = _equal_sizes(num_clients, 4) if sizes is None else list(sizes)
        if sum(sizes) != num_clients:
            raise BadInput(f"sizes add up to {sum(sizes)}, not to num_clients={num_clients}. Make the two agree.")
        return stochastic_block(sizes, rng=rng, normalisation=normalisation, **options)
    return family(num_clients, rng=rng, normalisation=normalisation, **options)


def erdos_renyi(
    num_clients: int,
    *,
    rng: np.random.Generator,
    probability_range: Range = (0.1, 0.9),
    weights: Weights = "uniform",
    weight_range: Range = (0.1, 1.0),
    normalisation: Normalisation = "row",
) -> SocialGraph:
    """The paper's network (model, section 1): each ordered pair is linked with a probability of its own.

    p_ij ~ U(0.1, 0.9) and weight ~ U(0.1, 1.0) unless other ranges are given. A client whom nobody exposes draws one
    link. Takes time and memory in proportion to num_clients², so more than 20,000 clients are refused.
    """
    _check(num_clients, rng, weights, weight_range)
    low, high = _probabilities(probability_range)
    if num_clients > _MOST_CLIENTS_DENSE:
        raise BadInput(
            f"num_clients={num_clients:,} is too many for erdos_renyi, which links a share of all pairs; at most "
            f"{_MOST_CLIENTS_DENSE:,}. Use a sparse family: {', '.join(k for k in _FAMILIES if k != 'erdos_renyi')}."
        )
    columns, strengths, lengths = [], [], []
    rows_at_once = max(1, _BLOCK_PAIRS // num_clients)
    for start in range(0, num_clients, rows_at_once):
        targets = np.arange(start, min(start + rows_at_once, num_clients))
        rows, shape = np.arange(len(targets)), (len(targets), num_clients)
        linked = rng.random(shape) < rng.uniform(low, high, shape)
        linked[rows, targets] = False
        empty = np.flatnonzero(~linked.any(axis=1))
        linked[empty, _another(targets[empty], num_clients, rng)] = True
        sources = np.nonzero(linked)[1].astype(np.int32)
        columns.append(sources)
        strengths.append(_weights(len(sources), rng, weights, weight_range))
        lengths.append(linked.sum(axis=1))
    return _from_rows(np.concatenate(columns), np.concatenate(strengths), np.concatenate(lengths), normalisation)


def barabasi_albert(
    num_clients: int,
    links_each: int = 3,
    *,
    rng: np.random.Generator,
    weights: Weights = "uniform",
    weight_range: Range = (0.1, 1.0),
    normalisation: Normalisation = "row",
) -> SocialGraph:
    """Newcomers befriend `links_each` others, chosen in proportion to the friends those have: a few become hubs.

    Friendships run both ways with one weight. The first links_each + 1 clients form a star.
    """
    _check(num_clients, rng, weights, weight_range)
    require_count(links_each, "links_each")
    if links_each >= num_clients:
        raise BadInput(f"links_each={links_each} must be below num_clients={num_clients}. Lower it, or add clients.")
    from mppfl.network.generate_kernels import attach_newcomers

    newcomers, befriended = attach_newcomers(num_clients, links_each, rng)
    strengths = _weights(len(newcomers), rng, weights, weight_range)
    return _from_friendships(newcomers, befriended, strengths, num_clients, normalisation)


def watts_strogatz(
    num_clients: int,
    neighbours: int = 6,
    rewire: float = 0.1,
    *,
    rng: np.random.Generator,
    weights: Weights = "uniform",
    weight_range: Range = (0.1, 1.0),
    normalisation: Normalisation = "row",
) -> SocialGraph:
    """A ring where everybody knows the nearest `neighbours`, and a share `rewire` of links leads to anybody instead.

    Friendships run both ways with one weight. A rewired link keeps its near end, so nobody is left isolated; it never
    takes a place that a link of the ring had, and stays there itself if twenty draws find no free one.
    """
    _check(num_clients, rng, weights, weight_range)
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
        anybody = rng.integers(0, num_clients, len(pending))
        keys = _pair_keys(near[pending], anybody, num_clients)
        free = (anybody != near[pending]) & _first_of_its_kind(keys) & ~_in_sorted(keys, taken)
        far[pending[free]] = anybody[free]
        taken = np.sort(np.concatenate([taken, keys[free]]))
        pending = pending[~free]
    strengths = _weights(len(near), rng, weights, weight_range)
    return _from_friendships(near, far, strengths, num_clients, normalisation)


def stochastic_block(
    sizes: Sequence[int],
    within: float = 0.1,
    between: float = 0.01,
    *,
    rng: np.random.Generator,
    weights: Weights = "uniform",
    weight_range: Range = (0.1, 1.0),
    normalisation: Normalisation = "row",
) -> SocialGraph:
    """Communities of the given sizes: two clients are friends with chance `within` in one, `between` across two.

    Clients are numbered block by block; friendships run both ways with one weight. Whoever ends up without friends
    draws one from all clients.
    """
    blocks = [require_count(size, f"sizes[{i}]") for i, size in enumerate(sizes)]
    num_clients = sum(blocks)
    _check(num_clients, rng, weights, weight_range)
    require_number(within, "within", 0.0, 1.0, open_ends=False)
    require_number(between, "between", 0.0, 1.0, open_ends=False)
    near, far = [], []
    start = 0
    for size in blocks:
        end = start + size
        rows, columns = _pairs_below_diagonal(_successes(size * (size - 1) // 2, within, rng))
        later = num_clients - end
        across = _successes(size * later, between, rng)
        near += [start + rows, start + across // max(later, 1)]
        far += [start + columns, end + across % max(later, 1)]
        start = end
    lonely = np.flatnonzero(np.bincount(np.concatenate(near + far), minlength=num_clients) == 0)
    drawn = _another(lonely, num_clients, rng)
    rescued = _sorted_once(_pair_keys(lonely, drawn, num_clients))  # two may draw each other
    near.append(rescued // num_clients)
    far.append(rescued % num_clients)
    ends = np.concatenate(near), np.concatenate(far)
    strengths = _weights(len(ends[0]), rng, weights, weight_range)
    return _from_friendships(*ends, strengths, num_clients, normalisation)


def skewed(
    num_clients: int,
    num_links: int | None = None,
    *,
    rng: np.random.Generator,
    popularity: float = 0.75,
    length_spread: float = 1.0,
    weights: Weights = "uniform",
    weight_range: Range = (0.1, 1.0),
    normalisation: Normalisation = "row",
) -> SocialGraph:
    """A directed network of exactly `num_links` links in which few expose many, and few are exposed by many.

    The chance to expose somebody falls with a client's rank as rank^-popularity (0: all alike; 0.75: numbers of
    exposed clients with a tail of exponent 1 + 1/0.75). Everybody is exposed by one, and the other links fall on
    clients in proportion to log-normal weights of deviation `length_spread`. Default: ten links for every client.
    """
    _check(num_clients, rng, weights, weight_range)
    most = num_clients * (num_clients - 1)
    num_links = min(10 * num_clients, most) if num_links is None else require_count(num_links, "num_links")
    if not num_clients <= num_links <= most:
        raise BadInput(f"num_links={num_links:,} must lie in [{num_clients:,}, {most:,}] for {num_clients:,} clients.")
    require_number(popularity, "popularity", 0.0, 0.99, open_ends=False)
    require_number(length_spread, "length_spread", 0.0, 10.0, open_ends=False)

    lengths = _skewed_lengths(num_clients, num_links, length_spread, rng)
    by_rank = rng.permutation(num_clients)
    is_long = lengths * 8 > num_clients
    short = _rows_by_rejection(np.where(is_long, 0, lengths), by_rank, popularity, rng)
    long = _rows_by_arrival(np.where(is_long, lengths, 0), by_rank, popularity, rng)
    keys = np.sort(np.concatenate([short, long]))
    return _from_rows(
        (keys % num_clients).astype(np.int32), _weights(len(keys), rng, weights, weight_range), lengths, normalisation
    )


_FAMILIES: dict[str, Callable[..., SocialGraph]] = {
    "erdos_renyi": erdos_renyi,
    "barabasi_albert": barabasi_albert,
    "watts_strogatz": watts_strogatz,
    "stochastic_block": stochastic_block,
    "skewed": skewed,
}


def _skewed_lengths(num_clients: int, num_links: int, spread: float, rng: np.random.Generator) -> IntArray:
    """How many expose each client: at least 1, at most all others, `num_links` together."""
    shares = rng.lognormal(0.0, spread, num_clients)
    extra = rng.multinomial(num_links - num_clients, shares / shares.sum())
    room = num_clients - 2
    while (excess := int(np.maximum(extra - room, 0).sum())) > 0:
        extra = np.minimum(extra, room)
        free = np.flatnonzero(extra < room)
        extra[free] += rng.multinomial(excess, np.full(len(free), 1.0 / len(free)))
    return 1 + extra


def _rows_by_rejection(lengths: IntArray, by_rank: IntArray, popularity: float, rng: np.random.Generator) -> IntArray:
    """Links as target · num_clients + source: drawn all at once, repetitions and self-loops drawn again until none.

    Rows must be short against the number of clients, or the last links would take many draws.
    """
    size = len(lengths)
    settled: list[IntArray] = []
    keys: IntArray = np.empty(0, dtype=np.int64)
    missing = lengths
    while missing.any():
        targets = np.repeat(np.arange(size), missing)
        sources = by_rank[_popular_ranks(len(targets), size, popularity, rng)]
        fresh = targets[targets != sources] * size + sources[targets != sources]
        keys = _sorted_once(np.concatenate([keys, fresh]))
        rows = keys // size
        missing = np.where(missing > 0, lengths - np.bincount(rows, minlength=size), 0)
        unsettled = missing[rows] > 0
        settled.append(keys[~unsettled])
        keys = keys[unsettled]
    return np.concatenate([*settled, keys])


def _rows_by_arrival(lengths: IntArray, by_rank: IntArray, popularity: float, rng: np.random.Generator) -> IntArray:
    """The same law for long rows: everybody arrives after an exponential time, the popular sooner; the first count.

    Successive sampling without replacement is the order of exponential arrivals (Efraimidis & Spirakis 2006, Inf.
    Process. Lett. 97(5), algorithm A with keys log u / w).
    """
    size = len(lengths)
    edges = np.arange(1, size + 2) ** (1.0 - popularity)
    chances = np.empty(size)
    chances[by_rank] = np.diff(edges)
    found = [np.empty(0, dtype=np.int64)]
    for target in np.flatnonzero(lengths):
        arrival = rng.standard_exponential(size) / chances
        arrival[target] = np.inf
        found.append(target * size + np.argpartition(arrival, lengths[target] - 1)[: lengths[target]])
    return np.concatenate(found)


def _popular_ranks(count: int, size: int, popularity: float, rng: np.random.Generator) -> IntArray:
    """Ranks 0 to size - 1, each with chance ∝ the integral of x^-popularity from rank + 1 to rank + 2."""
    power = 1.0 - popularity
    x = (1.0 + rng.random(count) * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)
    ranks: IntArray = np.minimum(x.astype(np.int64) - 1, size - 1)  # x may be rounded up to size + 1
    return ranks


def _successes(trials: int, chance: float, rng: np.random.Generator) -> IntArray:
    """Sorted positions of the successes in independent trials, found by geometric leaps: O(successes)."""
    if chance <= 0.0 or trials == 0:
        return np.empty(0, dtype=np.int64)
    if chance >= 1.0:
        return np.arange(trials)
    found: list[IntArray] = []
    last = -1
    while last < trials:
        expected = (trials - last) * chance
        leaps = rng.geometric(chance, int(expected + 4 * expected**0.5) + 8)
        positions = last + np.cumsum(np.minimum(leaps, trials + 1))
        found.append(positions)
        last = int(positions[-1])
    positions = np.concatenate(found)
    return positions[positions < trials]


def _pairs_below_diagonal(positions: IntArray) -> tuple[IntArray, IntArray]:
    """Row and column, column < row, of positions counted row by row: (1, 0), (2, 0), (2, 1), (3, 0), ..."""
    # Exact while 8 · position < 2^53, that is for blocks of up to 47 million clients.
    rows = ((1.0 + np.sqrt(1.0 + 8.0 * positions)) / 2.0).astype(np.int64)
    return rows, positions - rows * (rows - 1) // 2


def _pair_keys(near: IntArray, far: IntArray, num_clients: int) -> IntArray:
    """One number per unordered pair."""
    return np.minimum(near, far).astype(np.int64) * num_clients + np.maximum(near, far)


def _sorted_once(keys: IntArray) -> IntArray:
    """np.unique(keys), at a tenth of its time for millions of keys."""
    keys = np.sort(keys)
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys


def _first_of_its_kind(keys: IntArray) -> Any:
    first = np.zeros(len(keys), dtype=bool)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def _in_sorted(keys: IntArray, table: IntArray) -> Any:
    return table[np.minimum(np.searchsorted(table, keys), len(table) - 1)] == keys


def _another(clients: IntArray, num_clients: int, rng: np.random.Generator) -> IntArray:
    """For each of the clients another one, all equally likely."""
    other = rng.integers(0, num_clients - 1, len(clients))
    return other + (other >= clients)


def _weights(count: int, rng: np.random.Generator, weights: Weights, weight_range: Range) -> Array:
    return np.ones(count) if weights == "ones" else rng.uniform(*weight_range, count)


def _probabilities(probability_range: Range) -> Range:
    low, high = _pair(probability_range, "probability_range")
    if not 0.0 <= low <= high <= 1.0:
        raise BadInput(f"probability_range={probability_range!r} must be two numbers in [0, 1], the smaller first.")
    return low, high


def _pair(values: Any, name: str) -> Range:
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError) as cause:
        raise BadInput(f"{name}={values!r} must be two numbers, such as (0.1, 0.9).") from cause
    return low, high


def _from_rows(columns: IntArray, strengths: Array, lengths: IntArray, normalisation: Normalisation) -> SocialGraph:
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    size = len(lengths)
    matrix = sp.csr_array((strengths, columns, indptr.astype(np.int32)), shape=(size, size))
    return graph_from_matrix(matrix, normalisation=normalisation)


def _from_friendships(
    near: IntArray, far: IntArray, strengths: Array, num_clients: int, normalisation: Normalisation
) -> SocialGraph:
    """Both arcs of every pair, with one weight."""
    near, far = near.astype(np.int32), far.astype(np.int32)
    rows, columns = np.concatenate([near, far]), np.concatenate([far, near])
    matrix = sp.coo_array((np.concatenate([strengths, strengths]), (rows, columns)), shape=(num_clients, num_clients))
    return graph_from_matrix(matrix, normalisation=normalisation)


def _equal_sizes(num_clients: int, num_blocks: int) -> list[int]:
    return [len(part) for part in np.array_split(np.arange(num_clients), min(num_blocks, num_clients))]


def _check(num_clients: int, rng: np.random.Generator, weights: Weights, weight_range: Range) -> None:
    require_count(num_clients, "num_clients", 2)
    require_generator(rng)
    if weights not in ("uniform", "ones"):
        raise BadInput(f'weights={weights!r} must be "uniform" or "ones".')
    low, high = _pair(weight_range, "weight_range")
    if not 0.0 < low <= high < np.inf:
        raise BadInput(f"weight_range={weight_range!r} must be two positive numbers, the smaller first.")


def _nearest(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."
