"""What the server makes of released profiles, and what devices make of that: all of it post-processing, free of charge.

From noisy profiles Y with noise of variance σ_i² the server forms the Gram matrix of taste

    G = Yᵀ W (I + β D^-½ A D^-½) W Y − Σ_i w_i² σ_i² I,   w_i = 1/(σ_i² + c)

whose second part, friends' profiles multiplied in pairs, carries independent noise and so needs no correction. Axes of
taste are its eigenvectors, each counted by how far its eigenvalue stands out of what noise alone would give. Friends'
means, shrunk by their own noise, are sent to each user. Devices score with their clean list, which never leaves them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from examples.lastfm.aggregation import Sums, worth_looking_at
from examples.lastfm.budgets import TRIMMED_BELOW, Weighting
from examples.lastfm.profiles import Level, ReleasedProfiles, unit_rows
from scipy.sparse.linalg import eigsh
from scipy.special import expit

from mppfl.arrays import Array
from mppfl.leakage import friendships
from mppfl.network import SocialGraph, SparseMatrix
from mppfl.privacy import Floats

MOST_AXES = 64
EDGE_SEED = 20_110_523  # of the simulated noise whose largest eigenvalue marks the edge; public, nobody's noise
DENSE_ABOVE = 0.03  # share of entries from which a dense product is faster than a sparse one
RIDGE = 0.05  # κ over the largest eigenvalue
NOISELESS_RIDGE = 3.0  # of the reference without noise


@dataclass(frozen=True, slots=True)
class Constants:
    """What was chosen on validation users (`benchmarks/lastfm.py --choose`), and nowhere else.

    friends_in_gram  β, weight of friends' products in the Gram matrix
    edge             share of the noise's largest eigenvalue at which an axis counts half
    width            how gradually, in the same unit
    spread           c at record level: the chance that a user knows a popular artist
    client_spread    c at client level, where a profile has length 1
    near, far        weights of friends' mean and of that of friends of friends, in scores
    popularity       weight of popularity in scores
    """

    friends_in_gram: float = 2.0
    edge: float = 0.8
    width: float = 0.1
    spread: float = 0.05
    client_spread: float = 0.002
    near: float = 1.0
    far: float = 1.0
    popularity: float = 0.03


@dataclass(frozen=True, slots=True)
class SumConstants:
    """The same for secure aggregation.

    count_share    of every budget for finding popular artists; the rest is for pairs
    looked_at      artists whose pairs are summed where Σ√ρ is 1,000
    growth         power of Σ√ρ with which that number grows
    """

    count_share: float = 0.1
    looked_at: float = 380.0
    growth: float = 0.7
    edge: float = 1.0
    width: float = 0.1
    popularity: float = 0.1


CONSTANTS, SUM_CONSTANTS = Constants(), SumConstants()


@dataclass(frozen=True, eq=False)
class Preparation:
    """What the server knows before anything is released: it follows from public budgets and friendships alone.

    weights  w_i up to a factor; 0 for those who are left out
    mixing   W (I + β D^-½ A D^-½) W, sparse
    edge     the largest eigenvalue that noise alone gives to G
    near     who is 1 edge, and who is 2 edges, from whom: matrices of ones, dense where most entries would be kept
    """

    weights: Array
    mixing: SparseMatrix
    edge: float
    near: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class TasteModel:
    """What devices receive.

    axes   [artists, axes], orthonormal; 0 on artists that were not looked at
    gains  [axes], how much each axis counts, 0 to 1
    extra  [users, artists], what the server adds for each user: friends' taste and popularity, weighted
    """

    axes: Array
    gains: Array
    extra: Array


# ---- released profiles --------------------------------------------------------------------------------------------


def prepare(
    variances: Array,
    weighting: Weighting,
    graph: SocialGraph,
    num_artists: int,
    level: Level,
    constants: Constants = CONSTANTS,
) -> Preparation:
    """Weights, mixing and the edge of the noise."""
    weights = weights_of(variances, weighting, constants.spread if level == "record" else constants.client_spread)
    connected = friendships(graph)
    degrees = np.maximum(np.asarray(connected.sum(axis=1)).ravel(), 1.0)
    halves = sp.diags_array(1 / np.sqrt(degrees))
    joined = sp.eye_array(len(weights)) + constants.friends_in_gram * (halves @ connected @ halves)
    scaled = sp.diags_array(weights)
    mixing = (scaled @ joined @ scaled).tocsr()
    noise = np.random.default_rng(EDGE_SEED).standard_normal((len(weights), num_artists), dtype=np.float32)
    noise *= np.sqrt(np.where(weights > 0, variances, 0.0)).astype(np.float32)[:, None]
    edge = float(_largest(_gram(noise, mixing, variances, weights), 1)[0][0]) if noise.any() else 0.0
    return Preparation(weights, mixing, edge, _hops(connected))


def weights_of(variances: Array, weighting: Weighting, spread: float) -> Array:
    """w_i, with a mean of 1 among those who count."""
    heard = np.isfinite(variances)
    if weighting == "noise_aware":
        weights = np.where(heard, 1 / (np.where(heard, variances, 1.0) + spread), 0.0)
    elif weighting == "trimmed":
        with np.errstate(divide="ignore"):
            budgets = np.where(heard, 1 / variances, 0.0)  # up to the factor ½
        weights = np.where(heard & (budgets >= TRIMMED_BELOW * budgets.mean()), 1.0, 0.0)
    else:
        weights = heard.astype(np.float64)
    return np.asarray(weights / weights[weights > 0].mean())


def taste_from_profiles(
    released: ReleasedProfiles, prepared: Preparation, constants: Constants = CONSTANTS
) -> TasteModel:
    """Axes of taste and every user's extra, from released profiles alone."""
    weights = prepared.weights
    light = replace(released, profiles=released.profiles.astype(np.float32))  # noise dwarfs what rounding adds
    values, axes = _largest(_gram(light.profiles, prepared.mixing, released.variances, weights), MOST_AXES)
    popularity = weights @ released.profiles / weights.sum()
    extra = np.tile((constants.popularity * popularity).astype(np.float32), (len(weights), 1))
    for weight, near in zip((constants.near, constants.far), prepared.near, strict=True):
        pull = neighbour_means(light, weights, near, popularity)
        pull *= np.float32(weight)
        extra += pull
    return TasteModel(axes, _gains(values, prepared.edge, constants.edge, constants.width), extra)


def neighbour_means(released: ReleasedProfiles, weights: Array, near: Any, base: Floats) -> Floats:
    """How the weighted mean of everybody's neighbours differs from `base`, shrunk by the noise left in it.

    The mean of user i has noise v_i; with τ² the mean square of the true differences, estimated from the noisy ones, it
    is multiplied by τ²/(τ² + v_i). A user without neighbours gets zeros. Computed in the profiles' own precision.
    """
    kind = released.profiles.dtype
    total = np.asarray(near @ weights).ravel()
    has = total > 0
    means = np.asarray(near.astype(kind) @ (weights[:, None].astype(kind) * released.profiles))
    means /= np.where(has, total, 1.0)[:, None].astype(kind)
    means -= base.astype(kind)
    means[~has] = 0.0
    if not has.any():
        return means
    noise = np.where(np.isfinite(released.variances), released.variances, 0.0)
    left = (np.asarray(near @ (weights**2 * noise)).ravel() / np.where(has, total, 1.0) ** 2)[has]
    squares = np.einsum("ij,ij->i", means, means)[has] / means.shape[1] - left
    sureness = 1 / (left + 1e-3 * float(left.mean()) + 1e-12) ** 2  # squares spread as the square of their noise
    signal = max(float(np.average(squares, weights=sureness)), 0.0)
    shrunk = np.zeros(len(has))
    shrunk[has] = signal / (signal + left) if signal > 0 else 0.0
    means *= shrunk[:, None].astype(kind)
    return means


def _gram(profiles: Floats, mixing: SparseMatrix, variances: Array, weights: Array) -> Floats:
    """Yᵀ M Y less what its noise adds to the diagonal, symmetric."""
    product = profiles.T @ np.asarray(mixing.astype(np.float32) @ profiles)
    gram = (product + product.T) / 2
    heard = weights > 0
    gram[np.diag_indices_from(gram)] -= np.float32((mixing.diagonal()[heard] * variances[heard]).sum())
    return np.asarray(gram)


def _largest(gram: Floats, most: int) -> tuple[Array, Array]:
    """The largest eigenvalues and their vectors, from a fixed start so that one matrix has one answer."""
    size = len(gram)
    most = min(most, size - 1)
    start = np.random.default_rng(EDGE_SEED).standard_normal(size).astype(gram.dtype)
    values, axes = eigsh(gram, k=most, which="LA", v0=start, tol=1e-3)
    return values.astype(np.float64), axes.astype(np.float64)


def _gains(values: Array, noise_edge: float, edge: float, width: float) -> Array:
    """Between 0 and 1: how surely an eigenvalue λ stands out of the noise, times λ/(λ + κ).

    The second factor matters where noise does not: with every axis counted alike a list would only be shown itself.
    """
    positive = np.maximum(values, 0.0)
    kept = positive / (positive + RIDGE * max(float(positive.max(initial=0.0)), 1e-300))
    sure = expit((values / noise_edge - edge) / width) if noise_edge > 0 else np.ones_like(values)
    return np.asarray(sure * kept)


def _hops(connected: SparseMatrix) -> tuple[Any, ...]:
    """Who is exactly 1 edge, and exactly 2 edges, from whom."""
    second = (connected @ connected).tocsr()
    second.data[:] = 1.0
    second = second - second.multiply(connected)
    second.setdiag(0.0)
    second.eliminate_zeros()
    second = second.tocsr()
    crowded = second.nnz > DENSE_ABOVE * second.shape[0] ** 2
    return connected, second.toarray().astype(np.float32) if crowded else second


# ---- secure sums --------------------------------------------------------------------------------------------------


def taste_from_sums(sums: Sums, lists: Array, constants: SumConstants = SUM_CONSTANTS) -> tuple[TasteModel, Array]:
    """Axes of taste from two secure sums, and the profiles that devices score with: unit lists on artists looked at.

    Each contribution is computed on its device from `lists`; only the two noisy sums reach the server.
    """
    counts, _ = sums.sum(unit_rows(lists), constants.count_share, 1)
    reach = float(np.sqrt(sums.budgets).sum()) / 1_000
    wanted = round(constants.looked_at * reach**constants.growth)
    shown = worth_looking_at(counts, min(max(wanted, 2), lists.shape[1]))
    profiles = np.zeros_like(lists)
    profiles[:, shown] = unit_rows(lists[:, shown])
    gram, std = sums.sum_of_pairs(profiles[:, shown], 1 - constants.count_share, 2)
    values, inner = _largest(gram.astype(np.float32), MOST_AXES)
    edge = 2 * std * np.sqrt(len(shown))  # Wigner's semicircle: the largest eigenvalue of symmetric noise
    axes = np.zeros((lists.shape[1], inner.shape[1]))
    axes[shown] = inner
    popularity = np.maximum(counts, 0.0)
    extra = np.tile(constants.popularity * popularity / max(float(popularity.sum()), 1e-300), (len(lists), 1))
    return TasteModel(axes, _gains(values, edge, constants.edge, constants.width), extra), profiles


# ---- on the device ------------------------------------------------------------------------------------------------


def scores_on_devices(profiles: Array, model: TasteModel) -> Array:
    """Every user's scores of all artists: its clean profile seen along the axes of taste, and its own extra."""
    return np.asarray((profiles @ model.axes * model.gains) @ model.axes.T + model.extra)


# ---- references without protection --------------------------------------------------------------------------------


def popularity_scores(known: Array) -> Array:
    """Everybody gets the same list: artists by their true number of listeners."""
    return np.tile(known.sum(axis=0), (len(known), 1))


def noiseless_scores(known: Array) -> Array:
    """EASE on clean unit profiles: the best linear model of items, in closed form (Steck 2019, arXiv:1905.03375v1)."""
    unit = unit_rows(known)
    gram = unit.T @ unit
    gram[np.diag_indices_from(gram)] += NOISELESS_RIDGE
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diagonal(inverse)
    np.fill_diagonal(weights, 0.0)
    return np.asarray(known @ weights)
