"""Client level with secure aggregation, simulated: the server sees noisy sums over all users and nothing else.

User i contributes √ρ_i · v_i with ‖v_i‖ ≤ 1, and noise of variance ½ is added to the sum. Sensitivity: a user who joins
or leaves moves the sum by √ρ_i at most, which costs (√ρ_i)²/(2·½) = ρ_i: one common noise serves unequal budgets.

Two sums are taken: of unit profiles, which finds the artists worth looking at, and of their products in pairs,
x̂ x̂ᵀ on those artists. Simulated means: no cryptography, dropout or collusion is run here. It stands for a protocol in
which nobody sees a single contribution and the noise is added inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from examples.lastfm.profiles import ONCE

from mppfl.arrays import Array, IntArray, require_number
from mppfl.errors import BadInput
from mppfl.privacy import NoiseKind, Protection, add_noise, round_cost
from mppfl.privacy.ledger import PrivacyLedger

LONGEST = 1 + 1e-9  # ‖v_i‖ of a unit vector, with room for rounding


@dataclass(frozen=True, repr=False)
class SumProtection(Protection):
    """Of a contribution to a sum with noise inside, which nobody sees by itself."""

    @property
    def name(self) -> str:
        return "sum with noise inside"

    @property
    def guarantee(self) -> str:
        return "ρ-zCDP for all of a client's data, towards whoever sees the sum"


def protection_of_sum(noise: NoiseKind, clip_norm: float = 1.0) -> SumProtection:
    """Of a contribution of at most this length, which a client that leaves takes away."""
    return SumProtection(unit="client", adjacency="zero_out", clip_norm=clip_norm, noise=noise)


@dataclass(frozen=True, eq=False)
class Sums:
    """The users of one aggregation, who pay for every sum taken of them.

    budgets  ρ_i of all sums together; `share` of a sum says which part of it that sum costs
    """

    budgets: Array
    users: Sequence[str]
    ledger: PrivacyLedger
    noise: NoiseKind
    rng: np.random.Generator | None
    run: str

    def sum(self, vectors: Array, share: float, round_index: int) -> tuple[Array, float]:
        """Σ √(share·ρ_i) v_i with noise, for the rows v_i of `vectors`; and the standard deviation of the noise."""
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        scales = self._scales(lengths, share)
        std = self._pay(share, vectors.shape[1], round_index)
        return np.asarray(add_noise(scales @ vectors, std, self.noise, self.rng).values), std

    def sum_of_pairs(self, vectors: Array, share: float, round_index: int) -> tuple[Array, float]:
        """Σ √(share·ρ_i) v_i v_iᵀ with symmetric noise; and the standard deviation of the noise off the diagonal.

        What is summed is the upper triangle with √2 off the diagonal: of length ‖v_i‖² ≤ 1, as ‖v vᵀ‖_F is.
        """
        lengths = np.einsum("ij,ij->i", vectors, vectors)
        scales = self._scales(lengths, share)
        size = vectors.shape[1]
        upper = np.triu_indices(size)
        std = self._pay(share, len(upper[0]), round_index)
        stretch = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
        total = (vectors * scales[:, None]).T @ vectors
        noisy = add_noise(total[upper] * stretch, std, self.noise, self.rng).values / stretch
        out = np.zeros((size, size))
        out[upper] = noisy
        out.T[upper] = noisy
        return out, std / math.sqrt(2)

    def _scales(self, lengths: Array, share: float) -> Array:
        require_number(share, "share", 0.0, 1.0)
        if lengths.max(initial=0.0) > LONGEST:
            raise BadInput(f"a contribution of length {lengths.max():.6g} is longer than 1. Shorten it first.")
        return np.sqrt(share * self.budgets)

    def _pay(self, share: float, num_parameters: int, round_index: int) -> float:
        """Puts the price of a sum into the ledger, before it is taken; the standard deviation of its noise.

        A sum taken again, with the same number in the same run, is refused: its noise would be new and its price not.
        With clip_norm = √(share·ρ_i) the protection's own formula gives everybody the same noise; on a grid, where it
        is raised by different amounts of rounding, the largest is taken and nobody pays more than it asked for.
        """
        paying = np.flatnonzero(self.budgets > 0).tolist()
        if not paying:
            raise BadInput("every budget is 0: nobody contributes, so there is no sum.")
        costs = [
            round_cost(
                protection_of_sum(self.noise, math.sqrt(rho)),
                rho,
                ONCE,
                num_parameters,
                self.users[at],
                round_index,
                self.run,
            )
            for at, rho in ((at, share * float(self.budgets[at])) for at in paying)
        ]
        self.ledger.reserve_new(self.run, round_index, costs)
        return max(cost.noise_std for cost in costs)


def worth_looking_at(popularity: Array, count: int) -> IntArray:
    """The `count` most popular artists by a noisy sum, in their order of the catalogue."""
    return np.sort(np.argsort(-popularity, kind="stable")[:count])
