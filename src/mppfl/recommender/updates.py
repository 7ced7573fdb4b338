"""What a trained model's updates tell about a user whose own is withheld: the neighbour audit on real training.

A recommender by federated matrix factorisation: artists' factors V are shared, a user's taste p stays on its device. In
a round every client takes a few steps on its own list from the common V and uploads how its copy moved, clipped and
with the noise of the `client` mechanism. An attacker reads everybody's update but the target's and asks on which side
of the main axis of taste the target stands. What it must learn, it learns on public users, whose lists it knows.

A copy never leaves the span of its list x and of V: it moves by x aᵀ + V B, a with `width` entries, B `width` squared.
So 1,892 updates of 24,480 numbers each need never be formed; `local_update` is the plain twin that forms one.

Noise is drawn where it is read, along the attacker's direction and in the server's sum, with exactly the joint
distribution that noise on all coordinates would have. It is a simulation, and nothing is released by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve

from mppfl.arrays import Array, BoolArray, IntArray, read_only, require, require_count
from mppfl.errors import BadInput
from mppfl.network.graph import SparseMatrix
from mppfl.privacy.audit.signals import Signals, client_release, declared_signals
from mppfl.privacy.mechanism import privacy_mechanism
from mppfl.privacy.zcdp import epsilon
from mppfl.recommender.data import HeldOut
from mppfl.recommender.leakage import FieldAttacker, Measured, SideLeak, over_users_and_draws, ranking
from mppfl.recommender.profiles import ONCE, unit_rows
from mppfl.recommender.scoring import quality

CLIENT = privacy_mechanism("client")  # replace-one: a whole list for another moves a clipped update by 2·clip_norm
FOLDS = 5  # a public user is read along a direction that was learned without it
DRAWS = 32  # of the noise to learn from, and as many to attack: one draw moves all users of a community together
SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # of the spread of updates, over their mean square


@dataclass(frozen=True, slots=True)
class Training:
    """Constants of the federated model, chosen without noise among a few on validation users.

    width         factors of an artist
    start         standard deviation of the factors that training begins with; public, like all factors
    local_steps   of gradient descent on a device, the user's taste solved anew before each
    ridge         keeps tastes finite
    server_rate   by what the mean update is multiplied
    """

    width: int = 16
    start: float = 0.01
    local_steps: int = 3
    local_rate: float = 1.0
    ridge: float = 0.01
    server_rate: float = 10.0


TRAINING = Training()


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


# ---- the model ----------------------------------------------------------------------------------------------------


def local_update(factors: Array, row: Array, training: Training) -> Array:
    """How one client's copy of `factors` moves as it learns its list: plain, for the reader and for a test."""
    copy = factors.copy()
    for _ in range(training.local_steps):
        taste = np.linalg.solve(copy.T @ copy + training.ridge * np.eye(copy.shape[1]), copy.T @ row)
        copy += training.local_rate * np.outer(row - copy @ taste, taste)
    return np.asarray(copy - factors)


@dataclass(frozen=True, eq=False)
class Updates:
    """Updates of many clients, each x aᵀ + V B.

    rows     x, one sparse row per client, [clients, artists]
    factors  V, [artists, width]
    pulls    a, [clients, width]
    turns    B, [clients, width, width]
    """

    rows: SparseMatrix
    factors: Array
    pulls: Array
    turns: Array

    def along(self, direction: Array) -> Array:
        """Inner product of every update with a matrix [artists, width]."""
        drawn = np.einsum("ij,ij->i", self.rows @ direction, self.pulls)
        return np.asarray(drawn + np.einsum("ijk,jk->i", self.turns, self.factors.T @ direction))

    def total(self, weights: Array) -> Array:
        """Σ weight · update, [artists, width]."""
        turned = np.tensordot(weights, self.turns, 1)
        return np.asarray(self.rows.T @ (weights[:, None] * self.pulls) + self.factors @ turned)

    def products(self) -> Array:
        """Inner products of all pairs of updates."""
        size = len(self.pulls)
        flat, bent, mixed = (each.reshape(size, -1) for each in (self.turns, self._bent(), self._mixed()))
        crossed = mixed @ flat.T
        alike = (self.rows @ self.rows.T).toarray() * (self.pulls @ self.pulls.T)
        return np.asarray(alike + crossed + crossed.T + flat @ bent.T)

    def lengths(self) -> Array:
        """The norm of every update."""
        own = np.asarray(self.rows.multiply(self.rows).sum(axis=1)).ravel() * np.einsum("ij,ij->i", *2 * [self.pulls])
        square = own + np.einsum("ijk,ijk->i", 2 * self._mixed() + self._bent(), self.turns)
        return np.asarray(np.sqrt(np.maximum(square, 0.0)))

    def _bent(self) -> Array:
        return np.asarray(np.matmul(self.factors.T @ self.factors, self.turns))  # VᵀV B: ⟨V B, V C⟩ = ⟨VᵀV B, C⟩

    def _mixed(self) -> Array:
        return np.asarray((self.rows @ self.factors)[:, :, None] * self.pulls[:, None, :])  # ⟨x aᵀ, V C⟩ = ⟨Vᵀx aᵀ, C⟩

    def scaled(self, by: Array) -> Updates:
        """Each update times a number of its own."""
        return Updates(self.rows, self.factors, by[:, None] * self.pulls, by[:, None, None] * self.turns)

    def of(self, clients: BoolArray) -> Updates:
        """Those of some clients."""
        return Updates(self.rows[clients], self.factors, self.pulls[clients], self.turns[clients])


def local_updates(factors: Array, rows: SparseMatrix, training: Training) -> Updates:
    """Every client's update at once: `local_update` in the span of a client's list and of V.

    The copy is x aᵀ + V M with M = I + B, and what it gets wrong is x - copy·p = (1 - a·p) x - V M p.
    """
    size, width = rows.shape[0], factors.shape[1]
    common, seen = factors.T @ factors, rows @ factors
    own = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()  # ‖x‖²: 1, or 0 for an empty list
    pulls, bases = np.zeros((size, width)), np.tile(np.eye(width), (size, 1, 1))
    for _ in range(training.local_steps):
        through = np.einsum("ijk,ij->ik", bases, seen)  # Mᵀ Vᵀ x
        square = np.matmul(np.swapaxes(bases, 1, 2), np.matmul(common, bases))
        square += own[:, None, None] * pulls[:, :, None] * pulls[:, None, :]
        square += pulls[:, :, None] * through[:, None, :] + through[:, :, None] * pulls[:, None, :]
        square += training.ridge * np.eye(width)
        tastes = np.linalg.solve(square, (own[:, None] * pulls + through)[:, :, None])[:, :, 0]
        left = 1 - np.einsum("ij,ij->i", pulls, tastes)
        drawn = np.einsum("ijk,ik->ij", bases, tastes)
        pulls = pulls + training.local_rate * left[:, None] * tastes
        bases = bases - training.local_rate * drawn[:, :, None] * tastes[:, None, :]
    return Updates(rows, factors, pulls, bases - np.eye(width))


def clipped(updates: Updates, clip_norm: float) -> Updates:
    """Updates shortened to `clip_norm` where they are longer."""
    return updates.scaled(np.minimum(1.0, clip_norm / np.maximum(updates.lengths(), 1e-300)))


def start_factors(num_artists: int, training: Training, rng: np.random.Generator) -> Array:
    """Random factors that training begins with; public."""
    return training.start * rng.standard_normal((num_artists, training.width))


# ---- one round ----------------------------------------------------------------------------------------------------


def noise_stds(budgets: Array, clip_norm: float) -> Array:
    """Standard deviation of the noise on every number of each client's update; infinite where a client is silent."""
    return np.array([CLIENT.noise_std(rho, clip_norm, ONCE) if rho > 0 else math.inf for rho in budgets.tolist()])


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


def server_weights(stds: Array, clip_norm: float, num_parameters: int) -> tuple[Array, float]:
    """Weights of a mean in which noisy updates count less, and by what to shrink it for the noise that is left.

    Both from public values alone: the signal counts as clip_norm², which it cannot pass.
    """
    trust = clip_norm**2 / (clip_norm**2 + num_parameters * stds**2)  # 0 for the silent
    if not trust.any():
        raise BadInput("every budget is 0: nobody uploads an update. Give some clients a budget.")
    weights = trust / trust.sum()
    left = num_parameters * float(np.sum((weights[trust > 0] * stds[trust > 0]) ** 2))
    return weights, clip_norm**2 / (clip_norm**2 + left)


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


@dataclass(frozen=True, eq=False)
class Round:
    """One round before its noise: clipped updates, the noise they get, and how the server takes them.

    stds    of the noise on every number of each client's update; infinite for the silent
    share   of the noisy mean that is signal, at most
    """

    updates: Updates
    clip_norm: float
    stds: Array
    weights: Array
    share: float

    def next_factors(self, noise: Array, training: Training) -> Array:
        """Factors after the server's step, with this noise in the weighted mean."""
        return self.updates.factors + training.server_rate * self.share * (self.updates.total(self.weights) + noise)


def begin_round(
    factors: Array, rows: SparseMatrix, public: BoolArray, budgets: Array, training: Training
) -> Round:  # budgets are those of this round
    """Everybody's update, clipped to the median length of public users' updates, which anybody can compute."""
    raw = local_updates(factors, rows, training)
    clip_norm = float(np.median(raw.lengths()[public]))
    if not clip_norm > 0:
        raise BadInput("most public users have an empty list, so there is no update to learn from.")
    stds = noise_stds(budgets, clip_norm)
    return Round(clipped(raw, clip_norm), clip_norm, stds, *server_weights(stds, clip_norm, factors.size))


def train(
    lists: Array, public: BoolArray, budgets: Array, num_rounds: int, training: Training, rng: np.random.Generator
) -> Array:
    """The factors after `num_rounds` with ρ/num_rounds in each; nobody reads along."""
    rows, factors = sp.csr_array(unit_rows(lists)), start_factors(lists.shape[1], training, rng)
    for _ in range(require_count(num_rounds, "num_rounds")):
        this = begin_round(factors, rows, public, budgets / num_rounds, training)
        spread = np.where(np.isfinite(this.stds), this.stds, 0.0)
        noise = float(np.linalg.norm(this.weights * spread)) * rng.standard_normal(factors.shape)
        factors = this.next_factors(noise, training)
    return factors


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


def scores_of(factors: Array, known: Array, training: Training) -> Array:
    """What devices score artists by: their taste, solved from their own list, times the shared factors."""
    square = factors.T @ factors + training.ridge * np.eye(factors.shape[1])
    return np.asarray(np.linalg.solve(square, factors.T @ unit_rows(known).T).T @ factors.T)


def _folds(sides: Array, rng: np.random.Generator) -> IntArray:
    """A fold for every public user, each with its share of both sides."""
    folds = np.empty(len(sides), dtype=np.int64)
    for side in (1.0, -1.0):
        those = np.flatnonzero(sides == side)
        if len(those) < FOLDS:
            raise BadInput(f"{len(those)} public users stand on one side; give at least {FOLDS} on each.")
        folds[rng.permutation(those)] = np.arange(len(those)) % FOLDS
    return folds
