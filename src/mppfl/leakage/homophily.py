"""Do friends resemble each other, and how far does it reach? Correlations of an attribute by edge, distance and walk.

All from a public sample alone: a pair counts if both ends are public. Pairs that share a client are not independent,
and every pair is seen from both of its ends. Intervals by edge and distance take that into account by the variance of
Aronow, Samii & Assenova 2015 (Political Analysis 23, 564-577), with r_ij by how much a pair differs from the mean:

    Var = Σ_i (Σ_j r_ij)² - Σ_{i<j} r_ij²

Intervals by walk, where pairs are too many to look at, are 95 % percentiles of a bootstrap over clients: a client drawn
twice brings all its pairs twice. It is wider than need be, by up to √3 where pairs are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.leakage.field import friendships
from mppfl.leakage.field_at_scale import NormalisedWalk, over_probes, random_signs, walk_of
from mppfl.network import SocialGraph, SparseMatrix

WALKS = 4
DISTANCES = 3
REPLICATES = 200
LEAST_PAIRS = 5  # below which there is no interval
SOURCES = 400  # from which distances are counted; on smaller samples, everybody
DENSE_WALKS = 3_000  # clients up to which closed walks are counted exactly
CLOSED_WALK_PROBES = 64
STANDARD_95 = 1.959964  # standard deviations on either side that hold 95 % of a normal distribution
COLUMNS = 50


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation with its 95 % interval; NaN where no pair was seen, or too few for an interval."""

    value: float
    low: float
    high: float
    num_pairs: float

    @property
    def contains_zero(self) -> bool:
        return not (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Homophily:
    """How an attribute is correlated along the edges.

    edge         between the two ends of an edge
    by_distance  between clients exactly 1, 2, 3 edges apart
    by_walks     Σ_{i≠j} (N^k)_ij y_i y_j / Σ_{i≠j} (N^k)_ij for k = 1 ... 4: closed walks are left out
    walk_decay   what remains of the walk correlation with each further step, or None where it cannot be told from 0
    """

    edge: Correlation
    by_distance: tuple[Correlation, ...]
    by_walks: tuple[Correlation, ...]
    walk_decay: float | None


def homophily(graph: SocialGraph, known: Array, rng: np.random.Generator, *, replicates: int = REPLICATES) -> Homophily:
    """Correlations of the known values (±1, NaN where unknown) by edge, distance and walk."""
    public = ~np.isnan(known)
    rate = float((known[public] > 0).mean())
    values = np.where(public, (known - (2 * rate - 1)) / (2 * np.sqrt(rate * (1 - rate))), 0.0)
    connected, walk = friendships(graph), walk_of(graph)
    counts = np.zeros((len(known), replicates + 1), dtype=np.float32)
    counts[public, 0] = 1.0  # the sample itself, then its replicates
    size = int(public.sum())
    counts[public, 1:] = rng.multinomial(size, np.full(size, 1 / size), replicates).T
    closed = _closed_walks(walk, rng)
    walks = _pair_correlations(lambda x: walk.edges @ x, WALKS, closed, values, counts)
    return Homophily(
        _by_edge(connected, public, values), _by_distance(connected, public, values, rng), walks, _decay(walks)
    )


def deviation_of_sum(of_clients: Array, of_pairs: Array) -> float:
    """Standard deviation of Σ_{i<j} r_ij, from Σ_j r_ij of every client and from the r_ij themselves.

    Never less than if pairs were independent, which a small sample could pretend.
    """
    apart = float((of_pairs**2).sum())
    return math.sqrt(max(float((of_clients**2).sum()) - apart, apart))


def _by_edge(connected: SparseMatrix, public: BoolArray, values: Array) -> Correlation:
    among, ends = connected[public][:, public].tocoo(), values[public]
    if not among.nnz:
        return Correlation(np.nan, np.nan, np.nan, 0.0)
    products = ends[among.row] * ends[among.col]
    value = float(products.mean())
    apart = products - value  # every pair twice, once from each end
    of_clients: Array = np.bincount(among.row, apart, minlength=len(ends)).astype(np.float64)
    return _with_interval(value, 2 * deviation_of_sum(of_clients, apart / math.sqrt(2)), among.nnz, among.nnz // 2)


def _with_interval(value: float, deviation: float, times_seen: float, num_pairs: float) -> Correlation:
    """The mean over pairs, each counted as often as it was seen, whose sum has this standard deviation."""
    width = STANDARD_95 * deviation / times_seen if num_pairs >= LEAST_PAIRS else np.nan
    return Correlation(value, value - width, value + width, float(times_seen))


def _pair_correlations(step: Any, longest: int, closed: Array, values: Array, counts: Any) -> tuple[Correlation, ...]:
    """For k = 1 ... longest: Σ w_i w_j M^k_ij y_i y_j / Σ w_i w_j M^k_ij over i ≠ j, with w the bootstrap's counts."""
    sums = np.full((longest, counts.shape[1], 2), np.nan)
    for start in range(0, counts.shape[1], COLUMNS):
        weights = counts[:, start : start + COLUMNS]
        weighed = weights * values[:, None].astype(np.float32)
        moved, present = weighed, weights
        for k in range(longest):
            moved, present = step(moved), step(present)
            home = closed[k][:, None]
            columns = slice(start, start + weights.shape[1])
            sums[k, columns, 0] = np.einsum("ij,ij->j", weighed, moved, dtype=np.float64)
            sums[k, columns, 0] -= (weighed.astype(np.float64) ** 2 * home).sum(axis=0)
            sums[k, columns, 1] = np.einsum("ij,ij->j", weights, present, dtype=np.float64)
            sums[k, columns, 1] -= (weights.astype(np.float64) ** 2 * home).sum(axis=0)
    return tuple(_of_sums(sums[k, :, 0], sums[k, :, 1]) for k in range(longest))


def _of_sums(products: Array, pairs: Array) -> Correlation:
    """The first entry is the sample's own, the rest are replicates."""
    seen = pairs > 1e-9 * max(float(pairs.max()), 1e-300)
    if not seen[0]:
        return Correlation(np.nan, np.nan, np.nan, float(pairs[0]))
    if seen.sum() < 0.9 * len(seen):  # too few pairs: many replicates see none of them
        return Correlation(float(products[0] / pairs[0]), np.nan, np.nan, float(pairs[0]))
    ratios = products[seen] / pairs[seen]
    low, high = np.percentile(ratios[1:], [2.5, 97.5])
    return Correlation(float(ratios[0]), float(low), float(high), float(pairs[0]))


def _closed_walks(walk: NormalisedWalk, rng: np.random.Generator) -> Array:
    """Diagonals of N, N², N³, N⁴ [k, clients]: exactly on small networks, else by probes.

    They enter only as sums over the public clients, in which the probes' errors average out.
    """
    size = walk.num_clients
    if size <= DENSE_WALKS:
        once = walk.edges.toarray().astype(np.float64)
        twice = once @ once
        return np.array([np.zeros(size), np.diagonal(twice), (twice * once).sum(axis=1), (twice**2).sum(axis=1)])

    def products(stream: np.random.Generator, width: int) -> Array:
        signs = random_signs(stream, (size, width))
        once = walk.edges @ signs
        twice = walk.edges @ once
        return np.array([(once * twice).sum(axis=1), (twice * twice).sum(axis=1)], dtype=np.float64)

    third, fourth = np.sum(over_probes(products, CLOSED_WALK_PROBES, rng), axis=0) / CLOSED_WALK_PROBES
    second = np.asarray(walk.edges.multiply(walk.edges).sum(axis=1), dtype=np.float64).ravel()
    return np.array([np.zeros(size), second, third, fourth])


def _by_distance(
    connected: SparseMatrix, public: BoolArray, values: Array, rng: np.random.Generator
) -> tuple[Correlation, ...]:
    everybody = np.flatnonzero(public)
    sources = everybody if len(everybody) <= SOURCES else np.sort(rng.choice(everybody, SOURCES, replace=False))
    # How often a pair is seen: twice if both of its ends are sources.
    times = public.astype(np.float64)
    times[sources] += 1
    products = np.zeros((DISTANCES, len(values)))  # of each client, over the pairs it is in, as often as they are seen
    pairs = np.zeros((DISTANCES, len(values)))
    squares = np.zeros((DISTANCES, 3))  # Σ (r + mean)², Σ (r + mean) and how many, over pairs, each times² it is seen
    edges = connected.astype(np.float32)
    for start in range(0, len(sources), COLUMNS):
        some = sources[start : start + COLUMNS]
        seen = np.zeros((len(values), len(some)), dtype=np.bool_)
        seen[some, np.arange(len(some))] = True
        edge = seen.astype(np.float32)
        for distance in range(DISTANCES):
            fresh = (edges @ edge > 0) & ~seen
            seen |= fresh
            edge = fresh.astype(np.float32)
            products[distance, some] += values[some] * (values @ fresh)
            products[distance] += values * (fresh @ values[some])
            pairs[distance, some] += public.astype(np.float64) @ fresh
            pairs[distance] += public * fresh.sum(axis=1)
            # A pair that is seen twice comes here twice: times² once is times twice.
            squares[distance, 0] += ((times * values**2) @ fresh) @ values[some] ** 2
            squares[distance, 1] += ((times * values) @ fresh) @ values[some]
            squares[distance, 2] += (times @ fresh).sum()
    return tuple(map(_at_one_distance, products, pairs, squares))


def _at_one_distance(products: Array, pairs: Array, squares: Array) -> Correlation:
    times_seen = float(pairs.sum()) / 2  # each pair stands at both of its ends
    if not times_seen:
        return Correlation(np.nan, np.nan, np.nan, 0.0)
    value = float(products.sum()) / 2 / times_seen
    of_pairs = max(float(squares @ [1.0, -2 * value, value**2]), 0.0)
    deviation = deviation_of_sum(products - value * pairs, np.array([math.sqrt(of_pairs)]))
    return _with_interval(value, deviation, times_seen, times_seen / 2)


def _decay(walks: tuple[Correlation, ...]) -> float | None:
    """Slope of ln(correlation) over the first steps whose interval lies above 0; two are needed."""
    telling: list[float] = []
    for walk in walks:
        if not walk.low > 0:
            break
        telling.append(np.log(walk.value))
    if len(telling) < 2:
        return None
    return float(np.exp(np.polyfit(np.arange(len(telling)), telling, 1)[0]))
