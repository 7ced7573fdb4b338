"""What a trained model's updates tell about a user whose own is withheld: the neighbour audit on real training.

The model is that of factorisation.py. An attacker reads everybody's update but the target's and asks on which side of
the main axis of taste the target stands. What it must learn, it learns on public users, whose lists it knows.

Noise is drawn where it is read, along the attacker's direction and in the server's sum, with exactly the joint
distribution that noise on all coordinates would have. It is a simulation, and nothing is released by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from examples.lastfm.data import HeldOut
from examples.lastfm.factorisation import (
    TRAINING,
    Training,
    Updates,
    begin_round,
    noise_stds,
    scores_of,
    start_factors,
    train,
)
from examples.lastfm.leakage import FieldAttacker, Measured, SideLeak, over_users_and_draws, ranking
from examples.lastfm.profiles import unit_rows
from examples.lastfm.scoring import quality
from scipy.linalg import cho_factor, cho_solve

from mppfl.arrays import Array, BoolArray, IntArray, read_only, require, require_count
from mppfl.errors import BadInput
from mppfl.leakage import Signals, client_release, declared_signals
from mppfl.privacy import epsilon

FOLDS = 5  # a public user is read along a direction that was learned without it
DRAWS = 32  # of the noise to learn from, and as many to attack: one draw moves all users of a community together
SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # of the spread of updates, over their mean square


@dataclass(frozen=True, eq=False)
class UpdateLeak:
    """What updates, or bits, of one mean budget tell about the side of a user who uploaded nothing.

    mean_budget  ρ over all rounds, mean over users; infinite without noise
    dp_epsilon   of the user who spends most
    ndcg         of the model that such updates train, NDCG@10; NaN for bits, which train nothing
    side         what uploads tell against the prior: the neighbour audit's leak
    added        what they add to what the graph and the public users' sides tell without any upload, nats
    rankings     Spearman's correlation of R_leak, R_model and degree with the leak
    """

    mean_budget: float
    dp_epsilon: float
    num_rounds: int
    ndcg: float
    side: SideLeak
    added: Measured
    rankings: dict[str, Measured]


@dataclass(frozen=True, eq=False)
class UpdateAudit:
    """The same budgets spent on the update of one round, on those of several, and on one noisy bit, the side itself.

    without_uploads, accuracy_without   what an attacker gets from the graph and the public users' sides alone
    """

    training: Training
    num_parameters: int
    without_uploads: Measured
    accuracy_without: float
    one_round: tuple[UpdateLeak, ...]
    several_rounds: tuple[UpdateLeak, ...]
    bits: tuple[UpdateLeak, ...]


# ---- one round ----------------------------------------------------------------------------------------------------


def drawn_noise(
    stds: Array, weights: Array, directions: Sequence[Array], reader: IntArray, draws: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Noise of each client's update along the direction it is read [draws, clients], and of Σ weight · update.

    Client i is read along directions[reader[i]], of length 1. Across it, noise of many clients is one Gaussian. All
    draws are from the distribution of readings given that one sum, so that they belong to the same path of the model.
    """
    heard = np.isfinite(stds)
    spread = np.where(heard, stds, 0.0)
    read = spread * rng.standard_normal((draws, len(stds)))
    total = np.zeros_like(directions[0])
    for at, direction in enumerate(directions):
        those = heard & (reader == at)
        loads = weights[those] * spread[those]
        sums = read[:, those] @ weights[those]
        power = float(loads @ loads)
        if power > 0:
            read[:, those] += np.outer(sums[0] - sums, loads * spread[those] / power)
        across = math.sqrt(power) * rng.standard_normal(direction.shape)
        total += across + direction * (float(sums[0]) - float(np.vdot(direction, across)))
    return read, total


def learn_directions(
    updates: Updates, sides: Array, folds: IntArray, noise_variance: float
) -> tuple[Array, ...]:  # FOLDS + 1 matrices [artists, width] of length 1
    """Directions that part the two sides best under noise: one without each fold of public users, then one from all.

    Linear discriminants with (spread of updates + noise + shrinkage) as their covariance; the shrinkage is the one
    that parts the users best who were left out.
    """
    products = updates.products()
    size = float(np.mean(np.diagonal(products)))
    ridges = [noise_variance + each * size for each in SHRINKAGES]
    places = np.empty((len(ridges), len(sides)))  # of users left out
    without = []  # [folds][ridges, users]
    for fold in range(FOLDS):
        out = folds == fold
        weights = _discriminants(products, sides, ~out, ridges)
        lengths = np.sqrt(np.maximum(np.einsum("ij,ij->i", weights @ products, weights), 1e-300))
        places[:, out] = weights @ products[:, out] / lengths[:, None]
        without.append(weights)
    parted = [_parted(each, sides) for each in places]
    worth = [gap * abs(gap) / (within + noise_variance) for _, gap, within in parted]  # a gap turned round is worthless
    at = int(np.argmax(worth))
    everybody = np.ones(len(sides), dtype=np.bool_)
    chosen = [*(weights[at] for weights in without), _discriminants(products, sides, everybody, ridges[at : at + 1])[0]]
    found = [updates.total(weights) for weights in chosen]
    return tuple(each / max(float(np.linalg.norm(each)), 1e-300) for each in found)


def _discriminants(products: Array, sides: Array, some: BoolArray, ridges: Sequence[float]) -> Array:
    """Weights of the updates of `some` users in their discriminant, one row for every ridge; 0 for the others."""
    among = products[np.ix_(some, some)]
    centred = among - among.mean(axis=0) - among.mean(axis=1)[:, None] + among.mean()
    target = sides[some] - sides[some].mean()
    weights = np.zeros((len(ridges), len(sides)))
    for row, ridge in zip(weights, ridges, strict=True):
        square = centred.copy()
        square[np.diag_indices_from(square)] += len(target) * ridge
        found = cho_solve(cho_factor(square, lower=True, overwrite_a=True), target)
        row[some] = found - found.mean()
    return weights


def _parted(places: Array, sides: Array) -> tuple[float, float, float]:
    """Middle between the means of the two sides, half their gap, and the variance about them."""
    above, below = places[sides > 0], places[sides < 0]
    middle, gap = (above.mean() + below.mean()) / 2, (above.mean() - below.mean()) / 2
    return float(middle), float(gap), float((above.var() + below.var()) / 2)


# ---- rounds, and what they tell -----------------------------------------------------------------------------------


def read_rounds(
    lists: Array,
    sides: Array,
    public: BoolArray,
    budgets: Array,
    num_rounds: int,
    training: Training,
    draws: int,
    rng: np.random.Generator,
) -> tuple[Array, Signals]:
    """What an attacker makes of the updates of `num_rounds`, ρ/num_rounds each: [draws, clients], and what it means.

    It reads every update along the direction of its round, all draws of the noise along one path of the model. Rounds
    count alike, each in units of its clip norm; noise, spread and gap of the sides are those of the mean over rounds.
    """
    rounds = require_count(num_rounds, "num_rounds")
    rows, factors = sp.csr_array(unit_rows(lists)), start_factors(lists.shape[1], training, rng)
    folds = _folds(sides[public], rng)
    reader = np.full(len(lists), FOLDS)
    reader[public] = folds
    clean, noise = np.zeros(len(lists)), np.zeros((draws, len(lists)))
    heard = budgets > 0
    for _ in range(rounds):
        this = begin_round(factors, rows, public, budgets / rounds, training)
        typical = 0.0 if (this.stds == 0).any() else 1 / float(np.mean(1 / this.stds[heard] ** 2))
        # Rounds are averaged: a direction should suit the noise that is left in their mean.
        directions = learn_directions(this.updates.of(public), sides[public], folds, typical / rounds)
        read, total = drawn_noise(this.stds, this.weights, directions, reader, draws, rng)
        along = np.choose(reader, [this.updates.along(direction) for direction in directions])
        clean += along / (this.clip_norm * rounds)
        noise += read / (this.clip_norm * rounds)
        factors = this.next_factors(total, training)
    middle, gap, within = _parted(clean[public], sides[public])
    stds = np.where(heard, noise_stds(budgets, 1.0), 1.0)  # of a mean over rounds that share the budget
    signals = Signals(np.full(len(lists), middle), np.where(heard, gap, 0.0), np.sqrt(stds**2 + within))
    return np.where(heard, clean + noise, 0.0), signals


def audit_updates(
    attacker: FieldAttacker,
    lists: Array,
    split: HeldOut,
    scored: BoolArray,
    *,
    shape: Array,
    index: Array,
    degrees: Array,
    mean_budgets: Sequence[float],
    num_rounds: int,
    dp_delta: float,
    seed: Sequence[int],
    training: Training = TRAINING,
) -> UpdateAudit:
    """The neighbour audit on updates of one round, of `num_rounds`, and on bits, at every mean budget.

    shape    budgets up to a factor, one per client; scaled to each mean. An infinite mean gives nobody noise.
    index    R_model of `shape`, which no factor changes the order of
    split    what the model of the audit is also trained and scored on, to tell what it is worth
    seed     of all noise; every mean budget and number of rounds has a stream of its own
    """
    relative = read_only(shape, "budgets", length=len(lists))
    require(relative, "budgets", np.isfinite(relative) & (relative >= 0), "finite and not negative")
    for mean in mean_budgets:
        if not mean > 0:
            raise BadInput(f"update_budgets={mean:g} must be above 0; give inf for updates without noise.")
    if not relative.any():
        raise BadInput("every budget is 0: nobody uploads an update. Give some clients a budget.")
    several = require_count(num_rounds, "update_rounds", 2)
    sides, public = attacker.sides, attacker.public
    public_alone = attacker.without_uploads()

    def leak(mean: float, budgets: Array, rounds: int, ndcg: float, seen: Array, signals: Signals) -> UpdateLeak:
        learn, test = (seen, seen) if math.isinf(mean) else (seen[:DRAWS], seen[DRAWS:])
        side = attacker.side_leak(signals, learn, test, budgets)
        added = attacker.with_public_sides(signals, learn, test).gains - public_alone.gains
        pairs = {"R_leak": side.predicted, "R_model": index[~public], "degree": degrees[~public]}
        rankings = {name: ranking(each, side.nats) for name, each in pairs.items()}
        dp_epsilon = math.inf if math.isinf(mean) else epsilon(float(budgets.max()), dp_delta)
        return UpdateLeak(mean, dp_epsilon, rounds, ndcg, side, over_users_and_draws(added), rankings)

    def trained(mean: float, budgets: Array, at: int, rounds: int) -> UpdateLeak:
        streams = [np.random.default_rng([*seed, at, rounds, part]) for part in range(2)]
        seen, signals = read_rounds(lists, sides, public, budgets, rounds, training, _draws(mean), streams[0])
        # The model is scored on a split of its own, for one trained on whole lists has seen what it should guess.
        factors = train(split.known, public, budgets, rounds, training, streams[1])
        ndcg = quality(scores_of(factors, split.known, training), split, scored).ndcg
        return leak(mean, budgets, rounds, ndcg, seen, signals)

    found: dict[str, list[UpdateLeak]] = {"one": [], "several": [], "bits": []}
    for at, mean in enumerate(mean_budgets):
        budgets = np.where(relative > 0, mean, 0.0) if math.isinf(mean) else relative * (mean / relative.mean())
        found["one"].append(trained(mean, budgets, at, 1))
        found["several"].append(trained(mean, budgets, at, several))
        rng = np.random.default_rng([*seed, at, 0])
        bits = client_release(np.tile(sides, (_draws(mean), 1)), budgets, 1.0, rng)
        found["bits"].append(leak(mean, budgets, 1, math.nan, bits, declared_signals(budgets, 1.0)))
    return UpdateAudit(
        training,
        lists.shape[1] * training.width,
        over_users_and_draws(public_alone.gains),
        public_alone.hits / len(public_alone.gains),
        tuple(found["one"]),
        tuple(found["several"]),
        tuple(found["bits"]),
    )


def _draws(mean_budget: float) -> int:
    return 1 if math.isinf(mean_budget) else 2 * DRAWS  # without noise all draws are the same


def _folds(sides: Array, rng: np.random.Generator) -> IntArray:
    """A fold for every public user, each with its share of both sides."""
    folds = np.empty(len(sides), dtype=np.int64)
    for side in (1.0, -1.0):
        those = np.flatnonzero(sides == side)
        if len(those) < FOLDS:
            raise BadInput(f"{len(those)} public users stand on one side; give at least {FOLDS} on each.")
        folds[rng.permutation(those)] = np.arange(len(those)) % FOLDS
    return folds
