"""A recommender by federated matrix factorisation: artists' factors V are shared, a user's taste stays on its device.

In a round every client takes a few steps on its own list from the common V and uploads how its copy moved, clipped and
with noise that hides the whole client.

A copy never leaves the span of its list x and of V: it moves by x aᵀ + V B, a with `width` entries, B `width` squared.
So 1,892 updates of 24,480 numbers each need never be formed; `local_update` is the plain twin that forms one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from examples.lastfm.profiles import ONCE, unit_rows

from mppfl.arrays import Array, BoolArray, require_count
from mppfl.errors import BadInput
from mppfl.network import SparseMatrix
from mppfl.privacy import Protection


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


# ---- updates ----------------------------------------------------------------------------------------------------


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


# ---- rounds -----------------------------------------------------------------------------------------------------


def noise_stds(budgets: Array, clip_norm: float) -> Array:
    """Standard deviation of the noise on every number of each client's update; infinite where a client is silent.

    A whole list for another moves a clipped update by 2·clip_norm.
    """
    protection = Protection(unit="client", clip_norm=clip_norm)
    return np.array([protection.noise_std(rho, ONCE) if rho > 0 else math.inf for rho in budgets.tolist()])


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


def scores_of(factors: Array, known: Array, training: Training) -> Array:
    """What devices score artists by: their taste, solved from their own list, times the shared factors."""
    square = factors.T @ factors + training.ridge * np.eye(factors.shape[1])
    return np.asarray(np.linalg.solve(square, factors.T @ unit_rows(known).T).T @ factors.T)
