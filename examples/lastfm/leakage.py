"""What friends' released profiles say about a user who released nothing: measured on real lists, hop by hop.

One user's own profile is withheld; an attacker reads everybody else's. Two questions are asked of the same releases:
which artists does the user listen to (precision of ten guesses), and on which side of the main axis of taste does it
stand (nats, which `R_leak` predicts). What the attacker must learn, it learns on a public sample; figures are over the
others. As a null the same people, lists and noise are put on the graph in random order: friends are then strangers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from examples.lastfm.profiles import ReleasedProfiles
from examples.lastfm.scoring import best_first
from examples.lastfm.server import CONSTANTS, neighbour_means, weights_of
from scipy.sparse.csgraph import shortest_path

from mppfl.arrays import Array, BoolArray, IntArray, require_count
from mppfl.errors import BadInput
from mppfl.leakage import (
    Attack,
    FieldFit,
    NormalisedWalk,
    Signals,
    attack_by_field,
    fit_field,
    friendships,
    spearman,
    walk_of,
)
from mppfl.network import SocialGraph
from mppfl.privacy import Floats

GUESSES = 10
TRUST = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # how far friends' mean may pull guesses from popularity
SURE = 1.96  # standard errors of a 95 % interval
KNOWN = 1e-3  # standard deviation about ±1 that stands for a side which is known


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over users with its 95 % interval."""

    mean: float
    low: float
    high: float
    num_users: int


@dataclass(frozen=True, eq=False)
class HopAttack:
    """Ten guesses at a user's artists from the profiles released at one distance.

    precision, gain, null    means over targets; `null` is the gain on the permuted graph
    precision_by_popularity  of each target, without looking at any neighbour, [targets]
    gains                    what each target's precision rose over that, [targets]
    """

    hop: int
    precision: Measured
    gain: Measured
    null: Measured
    precision_by_popularity: Array
    gains: Array


@dataclass(frozen=True, eq=False)
class SideLeak:
    """What others' profiles tell about a user's side of the main axis of taste, in nats.

    nats             leak of each target, mean over noise draws
    leak, null       means over targets
    predicted        R_leak of each target
    accuracy         share of sides guessed rightly; `prior` is what guessing the commoner side gives
    effective_share  what one unit of ρ per record tells about the side, in ρ of a release of the side alone
    """

    nats: Array
    leak: Measured
    null: Measured
    predicted: Array
    accuracy: float
    prior: float
    effective_share: float


def measured(values: Array) -> Measured:
    """Mean and 95 % interval over independent users."""
    if len(values) < 2:
        raise BadInput(f"{len(values)} users are too few for an interval. Take more, or fewer groups.")
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    return Measured(mean, mean - SURE * error, mean + SURE * error, len(values))


def over_users_and_draws(values: Array) -> Measured:
    """Mean of `values` [users, draws] and its 95 % interval: a draw of the noise is common to all users, and counts."""
    users = measured(values.mean(axis=1))
    draws = values.shape[1]
    if draws == 1:
        return users
    error = math.hypot((users.high - users.low) / (2 * SURE), float(values.mean(axis=0).std(ddof=1)) / math.sqrt(draws))
    return Measured(users.mean, users.mean - SURE * error, users.mean + SURE * error, users.num_users)


def distances(graph: SocialGraph) -> Array:
    """Edges on the shortest path between every two users; infinite where there is none."""
    return np.asarray(shortest_path(friendships(graph), method="D", directed=False, unweighted=True))


def similarity_by_hop(profiles: Array, apart: Array, hops: int) -> tuple[Measured, ...]:
    """Cosine of lists at 1, 2, ... `hops` edges, less that of pairs further apart: mean over users and its interval."""
    lengths = np.sqrt(np.einsum("ij,ij->i", profiles, profiles))
    unit = np.divide(profiles, lengths[:, None], out=np.zeros_like(profiles), where=lengths[:, None] > 0)
    alike = unit @ unit.T
    far = (apart > hops) & np.isfinite(apart)
    if not far.any():
        raise BadInput(f"nobody is more than {hops} edges from anybody, so there is nothing to compare with.")
    floor = float(alike[far].mean())
    found = []
    for hop in range(1, require_count(hops, "hops") + 1):
        near = apart == hop
        counts = near.sum(axis=1)
        has = (counts > 0) & (lengths > 0)
        sums = np.where(near, alike, 0.0).sum(axis=1)
        found.append(measured(sums[has] / counts[has] - floor))
    return tuple(found)


def attack_by_hop(
    draws: Sequence[ReleasedProfiles],
    lists: Array,
    apart: Array,
    public: BoolArray,
    hops: int,
    rng: np.random.Generator,
) -> tuple[HopAttack, ...]:
    """Precision of ten guesses at 1, 2, ... `hops` edges, each hop on its own, averaged over `draws` of the noise."""
    order = rng.permutation(len(lists))
    mixed = apart[np.ix_(order, order)]
    targets = ~public & (lists.sum(axis=1) >= GUESSES)
    known = public & (lists.sum(axis=1) >= GUESSES)
    if known.sum() < 2 or targets.sum() < 2:
        raise BadInput(f"fewer than 2 users with {GUESSES} artists in the public sample or outside it.")
    found = []
    for hop in range(1, require_count(hops, "hops") + 1):
        real = [_attack(each, lists, apart == hop, known, targets) for each in draws]
        null = [_attack(each, lists, mixed == hop, known, targets) for each in draws]
        base, reached = (np.mean([attack[part] for attack in real], axis=0) for part in (0, 1))
        gains = reached - base
        at_random = np.mean([attack[1] - attack[0] for attack in null], axis=0)
        found.append(HopAttack(hop, measured(reached), measured(gains), measured(at_random), base, gains))
    return tuple(found)


def _attack(
    released: ReleasedProfiles, lists: Array, near: BoolArray, known: BoolArray, targets: BoolArray
) -> tuple[Array, Array]:
    """Precision of each target by popularity alone, and with the mean of those who are `near`."""
    weights = weights_of(released.variances, "noise_aware", CONSTANTS.spread)
    light = replace(released, profiles=released.profiles.astype(np.float32))
    total = weights @ released.profiles
    # A user's own profile is withheld from everything the attacker computes about it, popularity included.
    base = ((total - weights[:, None] * released.profiles) / (weights.sum() - weights)[:, None]).astype(np.float32)
    pull = neighbour_means(light, weights, near.astype(np.float32), base)
    by_popularity = _precision(base[targets], lists[targets])
    best, trust = -1.0, 0.0
    for tried in TRUST:
        hits = float(_precision(base[known] + np.float32(tried) * pull[known], lists[known]).mean())
        if hits > best:
            best, trust = hits, tried
    return by_popularity, _precision(base[targets] + np.float32(trust) * pull[targets], lists[targets])


def _precision(scores: Floats, lists: Array) -> Array:
    return np.asarray(np.take_along_axis(lists, best_first(scores, GUESSES), axis=1).mean(axis=1))


# ---- one axis of taste --------------------------------------------------------------------------------------------


def taste_axis(clean: Array, public: BoolArray) -> tuple[Array, Array]:
    """The direction in which public users' profiles differ most, and every user's side of its public median, ±1."""
    sample = clean[public]
    _, _, axes = np.linalg.svd(sample - sample.mean(axis=0), full_matrices=False)
    axis = axes[0]
    places = clean @ axis
    sides = np.where(places > np.median(places[public]), 1.0, -1.0)
    return axis, sides


@dataclass(frozen=True, eq=False)
class FieldAttacker:
    """The Gaussian field on the graph, fitted once on the public users' sides and ready for any uploads.

    sides, public      ±1 and who is public, one per user
    fit, mixed_fit     with everybody in place, and with user order[i] at place i of the graph: the null
    """

    walk: NormalisedWalk
    sides: Array
    public: BoolArray
    fit: FieldFit
    order: IntArray
    mixed_fit: FieldFit

    def side_leak(self, signals: Signals, learn: Array, test: Array, spent: Array) -> SideLeak:
        """What uploads [draws, users] tell, scaled on public users in `learn`, scored on the others in `test`.

        spent  what the uploads cost each user
        """
        found, null = self._attack(None, signals, learn, test), self._attack(self.order, signals, learn, test)
        gains = found.gains.mean(axis=1)
        # Noise of variance s² on ±h tells as much as a release of the side itself with ρ = 2h²/s².
        _, noise = signals.values(learn)
        effective, heard = 2 / noise, np.isfinite(noise)
        reach = self.walk.connected @ (effective / (2 + effective))
        field = found.predicted if found.predicted is not None else np.zeros_like(gains)
        level = np.minimum(np.maximum(self.fit.saturating_level(reach)[~self.public], field), self.fit.entropy)
        return SideLeak(
            gains,
            over_users_and_draws(found.gains),
            over_users_and_draws(null.gains),
            level,
            found.hits / len(gains),
            max(self.fit.rate, 1 - self.fit.rate),
            float(effective[heard].sum() / spent[heard].sum())
            if np.isfinite(spent).all() and heard.any()
            else math.nan,
        )

    def without_uploads(self) -> Attack:
        """What the graph and the public users' sides tell alone, by the same field: nothing is uploaded by anybody."""
        told = np.where(self.public, 1.0, 0.0)
        known = Signals(np.zeros_like(told), told, np.full_like(told, KNOWN))
        return self._attack(None, known, self.sides[None], self.sides[None])

    def with_public_sides(self, signals: Signals, learn: Array, test: Array) -> Attack:
        """What uploads tell an attacker who also takes the public users' sides as known, as it may."""
        public = self.public
        known = Signals(
            np.where(public, 0.0, signals.middle),
            np.where(public, 1.0, signals.half_gap),
            np.where(public, KNOWN, signals.std),
        )
        learn, test = (np.where(public, self.sides, each) for each in (learn, test))
        return self._attack(None, known, learn, test)

    def _attack(self, order: IntArray | None, signals: Signals, learn: Array, test: Array) -> Attack:
        walk, sides, public = self.walk, self.sides, self.public
        if order is None:
            return attack_by_field(walk, sides, public, self.fit, signals, learn, test)
        seen = Signals(signals.middle[order], signals.half_gap[order], signals.std[order])
        learn, test = learn[:, order], test[:, order]
        return attack_by_field(walk, sides[order], public[order], self.mixed_fit, seen, learn, test)


def field_attacker(graph: SocialGraph, sides: Array, public: BoolArray, rng: np.random.Generator) -> FieldAttacker:
    """The field as the public users' sides fit it, with everybody in place and in random order."""
    walk = walk_of(graph)
    order = rng.permutation(graph.num_clients)
    sample = np.where(public, sides, np.nan)
    fit, mixed = (fit_field(walk, each, rng) for each in (sample, sample[order]))
    return FieldAttacker(walk, sides, public, fit, order, mixed)


def side_leak(attacker: FieldAttacker, draws: Sequence[ReleasedProfiles], clean: Array) -> SideLeak:
    """The Gaussian field's attack on the projections of released profiles, scaled on the public sample.

    Half of `draws` teaches the attacker, the other half is attacked; there must be at least two.
    """
    if len(draws) < 2:
        raise BadInput(f"{len(draws)} draws of the noise; give at least 2, one to learn from and one to attack.")
    axis, sides = taste_axis(clean, attacker.public)
    places, public = clean @ axis, attacker.public
    means = [float(places[public & (sides == side)].mean()) for side in (1.0, -1.0)]
    within = float(np.mean([places[public & (sides == side)].var() for side in (1.0, -1.0)]))
    half_gap = (means[0] - means[1]) / 2
    noise = draws[0].variances
    heard = np.isfinite(noise)
    std = np.sqrt(np.where(heard, noise, 1.0) + within)
    signals = Signals(np.full(len(clean), (means[0] + means[1]) / 2), np.where(heard, half_gap, 0.0), std)
    uploads = np.array([each.profiles @ axis for each in draws])
    half = len(draws) // 2
    return attacker.side_leak(signals, uploads[:half], uploads[half:], draws[0].account.budgets)


# ---- by degree, and rankings --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DegreeGroup:
    """Users whose number of friends lies between `least` and `most`."""

    least: int
    most: int
    value: Measured


def by_degree(values: Array, degrees: Array, firsts: Sequence[int]) -> tuple[DegreeGroup, ...]:
    """Means of `values` over groups of users by degree; `firsts` are the least degrees of the groups."""
    ends = [*(first - 1 for first in firsts[1:]), int(degrees.max())]
    groups = []
    for least, most in zip(firsts, ends, strict=True):
        inside = (degrees >= least) & (degrees <= most)
        if inside.sum() >= 2:
            groups.append(DegreeGroup(least, most, measured(values[inside])))
    return tuple(groups)


def ranking(predicted: Array, leak: Array) -> Measured:
    """Spearman's correlation of a prediction with what leaked, with its 95 % interval; NaN where one is constant."""
    rank = spearman(predicted, leak)
    ends = (math.nan,) * 3 if rank.reason else (rank.value, rank.low, rank.high)
    return Measured(*ends, len(leak))
