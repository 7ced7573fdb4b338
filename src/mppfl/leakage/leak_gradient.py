"""R_leak as a function of everybody's budgets, with its slopes: who leaks about whom, and by how much.

With K the field's correlations, π_j = 2ρ_j p(1-p) and A = (K⁻¹ + Π)⁻¹, what all others leave of client i's variance is
A_ii/(1 - π_i A_ii), and

    ∂R_gp,i/∂ρ_j = p(1-p) A_ij² / (A_ii (1 - π_i A_ii)),

which is finite for a silent client too. Where π_i is large, 1 - π_i A_ii is what is left of two equal numbers; with
M = I + Π^½ K Π^½ it is [M⁻¹]_ii, a sum of squares. Each R_gp,i is concave in the budgets, since 1/[(K⁻¹ + Π)⁻¹]_ii is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from mppfl.arrays import Array, BoolArray
from mppfl.leakage.couplings import friendships
from mppfl.leakage.exposure import client_budgets, read_attribute, require_dense
from mppfl.leakage.gaussian_field import FieldFit, field_kernel, fit_field, graph_modes
from mppfl.network import SocialGraph, SparseMatrix

ROUNDED = 8.0


@dataclass(frozen=True, slots=True)
class Levels:
    """What all others' uploads tell about each client, in nats: `nats` = min(entropy, max(r_sat, r_gp))."""

    nats: Array
    r_sat: Array
    r_gp: Array
    capped: BoolArray


@dataclass(frozen=True, eq=False, slots=True)
class _Heard:
    """What is known once everybody is heard.

    covariances  A, N×N
    apart        1 - π_i A_ii: the share of a client's variance given all, in that given all others
    """

    covariances: Array
    apart: Array


@dataclass(frozen=True, eq=False, slots=True)
class LeakModel:
    """The Gaussian field and the one-hop model of one network and one attribute, ready for any budgets.

    kernel  K, N×N with a unit diagonal
    linked  who is linked to whom, in either direction
    """

    kernel: Array
    linked: SparseMatrix
    fit: FieldFit
    entropy: float

    @property
    def num_clients(self) -> int:
        return len(self.kernel)

    @property
    def information(self) -> float:
        """p(1-p): half of what a unit of budget adds to the precision with which a client's value is known."""
        return self.fit.rate * (1 - self.fit.rate)

    def posterior(self, budgets: Array) -> Array:
        """A = (K⁻¹ + Π)⁻¹: covariances once everybody is heard. O(N³)."""
        return self._heard(budgets).covariances

    def _heard(self, budgets: Array) -> _Heard:
        root = np.sqrt(2 * self.information * budgets)
        told, loud = np.flatnonzero(root > 0), np.flatnonzero(root > 1)
        inner = root[told, None] * self.kernel[np.ix_(told, told)] * root[told]
        inner[np.diag_indices_from(inner)] += 1.0
        lower = cholesky(inner, lower=True, overwrite_a=True, check_finite=False)
        half = solve_triangular(lower, root[told, None] * self.kernel[told], lower=True, check_finite=False)
        covariances = self.kernel - half.T @ half
        apart = 1 - root**2 * np.diagonal(covariances)
        if len(loud):
            # K - KΠ^½M⁻¹Π^½K cancels where it is of the size of 1/π_j. AΠ^½ = KΠ^½M⁻¹ and Π^½AΠ^½ = I - M⁻¹ do not.
            units = np.zeros((len(told), len(loud)))
            units[np.searchsorted(told, loud), np.arange(len(loud))] = 1.0
            half_units = solve_triangular(lower, units, lower=True, check_finite=False)
            inverse = half_units.T @ half_units
            covariances[:, loud] = half.T @ half_units / root[loud]
            covariances[loud] = covariances[:, loud].T
            covariances[np.ix_(loud, loud)] = (np.eye(len(loud)) - inverse) / root[loud] / root[loud, None]
            apart[loud] = np.diagonal(inverse)
        return _Heard(covariances, apart)

    def levels(self, budgets: Any) -> Levels:
        """R_leak of every client at these client-level budgets, as `r_leak` gives it."""
        spent = client_budgets(budgets, self.num_clients)
        return self._levels(spent, self._heard(spent))

    def total(self, budgets: Any) -> float:
        """Σ_i R_leak,i in nats."""
        return float(self.levels(budgets).nats.sum())

    def slopes(self, budgets: Any) -> Array:
        """∂R_leak,i/∂ρ_j as an array [i, j], nats per unit of budget; 0 on the diagonal, and where i is at its entropy.

        Where R_sat and R_gp are equal R_leak has a kink, and the slopes are R_gp's.
        """
        spent = client_budgets(budgets, self.num_clients)
        heard = self._heard(spent)
        return self._slopes(spent, heard, self._levels(spent, heard))

    def total_and_marginal(self, budgets: Any) -> tuple[float, Array]:
        """Σ_i R_leak,i, and Σ_i ∂R_leak,i/∂ρ_j for every j: what one more unit of j's budget costs all others."""
        spent = client_budgets(budgets, self.num_clients)
        heard = self._heard(spent)
        found = self._levels(spent, heard)
        return float(found.nats.sum()), self._slopes(spent, heard, found).sum(axis=0)

    def smooth_total_and_marginal(self, budgets: Any) -> tuple[float, Array]:
        """The same with R_leak's kinks rounded off, for prices: at a kink there is no marginal leak to pay for.

        max(x, y) becomes (x^q + y^q)^(1/q) and min(x, H) becomes (x^-q + H^-q)^(-1/q), q = 8: within a tenth.
        """
        spent = client_budgets(budgets, self.num_clients)
        heard = self._heard(spent)
        found = self._levels(spent, heard)
        q = ROUNDED
        joined = (found.r_sat**q + found.r_gp**q) ** (1 / q)
        level = joined / (1 + (joined / self.entropy) ** q) ** (1 / q)
        safe = np.where(joined > 0, joined, 1.0)
        outer = np.where(joined > 0, (level / safe) ** (q + 1), 1.0)
        of_gp, of_sat = (outer * (part / safe) ** (q - 1) for part in (found.r_gp, found.r_sat))
        marginal = of_gp @ self._slopes_of_field(heard)
        reach = self.linked @ (spent / (2 + spent))
        near = self.linked @ (of_sat * saturating_slope(self.fit, reach))
        return float(level.sum()), np.asarray(marginal + 2 / (2 + spent) ** 2 * near)

    def _levels(self, spent: Array, heard: _Heard) -> Levels:
        left = np.diagonal(heard.covariances) / heard.apart
        r_gp = np.maximum(0.0, -0.5 * np.log(left))  # below 0 only by rounding
        r_sat = saturating_level(self.fit, self.linked @ (spent / (2 + spent)))
        uncapped = np.maximum(r_sat, r_gp)
        return Levels(np.minimum(uncapped, self.entropy), r_sat, r_gp, uncapped >= self.entropy)

    def _slopes_of_field(self, heard: _Heard) -> Array:
        """∂R_gp,i/∂ρ_j as an array [i, j], 0 on the diagonal."""
        scale = np.sqrt(self.information / (np.diagonal(heard.covariances) * heard.apart))
        slopes = (scale[:, None] * heard.covariances) ** 2
        np.fill_diagonal(slopes, 0.0)
        return slopes

    def _slopes(self, spent: Array, heard: _Heard, found: Levels) -> Array:
        slopes = self._slopes_of_field(heard)
        near = found.r_sat > found.r_gp
        if near.any():
            reach = self.linked[near] @ (spent / (2 + spent))
            slopes[near] = (
                self.linked[near].toarray() * (2 / (2 + spent) ** 2) * saturating_slope(self.fit, reach)[:, None]
            )
        slopes[found.capped] = 0.0
        np.fill_diagonal(slopes, 0.0)
        return slopes


def leak_model(graph: SocialGraph, public_sample: Any, *, mask: Any = None) -> LeakModel:
    """The leak model of a network, its constants fitted on the public sample alone; see `r_leak` for the sample."""
    require_dense(graph.num_clients, "the Gaussian field")
    known = read_attribute(graph, public_sample, mask)
    modes = graph_modes(graph)
    return leak_model_of(graph, modes, fit_field(graph, known, modes))


def leak_model_of(graph: SocialGraph, modes: tuple[Array, Array], fit: FieldFit) -> LeakModel:
    """The leak model of constants that are already fitted."""
    rate = fit.rate
    entropy = float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))
    return LeakModel(field_kernel(modes, fit.beta, fit.eta), friendships(graph), fit, entropy)


def saturating_level(fit: FieldFit, reach: Array) -> Array:
    """R_sat = ½ ln(1 + b²T/(1+vT)): what friends alone tell, T = Σ_friends ρ_j/(2+ρ_j)."""
    return np.asarray(0.5 * np.log1p(fit.friend_slope**2 * reach / (1 + fit.friend_covariance * reach)))


def saturating_slope(fit: FieldFit, reach: Array) -> Array:
    """dR_sat/dT."""
    square, common = fit.friend_slope**2, 1 + fit.friend_covariance * reach
    return np.asarray(0.5 * square / (common * (common + square * reach)))
