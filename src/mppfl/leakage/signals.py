"""What clients upload about an attribute, and what an attacker takes their uploads for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, privacy_mechanism

# (attribute ±1 [draws, clients], budgets, clip_norm, generator) -> what each client uploads [draws, clients]. A vector
# upload enters by its projection on the direction in which the attribute moves it: all that isotropic noise leaves.
Release = Callable[[Array, Array, float, np.random.Generator], Array]
SHADOWS = 400  # releases of a known value on either side, from which the attacker learns what the noise really is
SHADOW_SURE = 6.0  # standard errors: 1e-9 per client
STRONGEST_EVIDENCE = 20.0  # half log-likelihood ratio at which tanh is 1 to 17 digits


@dataclass(frozen=True, slots=True)
class Signals:
    """What an attacker takes uploads for: N(middle ± half_gap, std²); half_gap 0 where a client is silent."""

    middle: Array
    half_gap: Array
    std: Array

    def evidence(self, uploads: Array) -> Array:
        """Half the log-likelihood ratio of +1 against -1."""
        lean = self.half_gap * (uploads - self.middle) / self.std**2
        return np.clip(lean, -STRONGEST_EVIDENCE, STRONGEST_EVIDENCE)

    def values(self, uploads: Array) -> tuple[Array, Array]:
        """Unbiased noisy values of x and their variances, infinite for the silent."""
        heard = self.half_gap != 0  # below 0: an upload turned round tells as much
        gap = np.where(heard, self.half_gap, 1.0)
        noise = np.maximum((self.std / gap) ** 2, 1e-9)
        return np.where(heard, (uploads - self.middle) / gap, 0.0), np.where(heard, noise, np.inf)


def client_release(
    attribute: Array, budgets: Array, clip_norm: float, rng: np.random.Generator
) -> Array:  # [draws, clients]
    """x·clip_norm plus the noise of the `client` mechanism; clients with budget 0 upload 0."""
    heard = budgets > 0
    std = _noise_std(budgets, clip_norm)
    noisy = attribute * clip_norm + np.where(heard, std, 0.0) * rng.standard_normal(attribute.shape)
    return np.where(heard, noisy, 0.0)


def learn_signals(
    release: Release, spent: Array, clip: float, rng: np.random.Generator
) -> tuple[Signals, dict[str, Any]]:
    """What uploads look like: as declared where shadow releases agree with it, else as the shadows show."""
    size = len(spent)
    plus, minus = (release(np.full((SHADOWS, size), side), spent, clip, rng) for side in (1.0, -1.0))
    if plus.shape != (SHADOWS, size) or not (np.isfinite(plus).all() and np.isfinite(minus).all()):
        raise BadInput(f"release gave shape {plus.shape} or values not finite; it must give a number per client.")
    declared = declared_signals(spent, clip)
    heard = spent > 0
    std = np.sqrt((plus.var(axis=0, ddof=1) + minus.var(axis=0, ddof=1)) / 2)
    gap = (plus.mean(axis=0) - minus.mean(axis=0)) / 2
    center = (plus.mean(axis=0) + minus.mean(axis=0)) / 2
    means_error = declared.std / math.sqrt(2 * SHADOWS)
    differs = np.abs(std / declared.std - 1) > SHADOW_SURE / math.sqrt(4 * SHADOWS)
    differs |= np.abs(gap - declared.half_gap) > SHADOW_SURE * means_error
    differs |= np.abs(center - declared.middle) > SHADOW_SURE * means_error
    differs &= heard | (std > 0) | (gap != 0)
    floor = np.maximum(std, 1e-6 * np.maximum(np.abs(gap), 1e-300))
    ratio = np.abs(gap) / floor  # of half the gap to the noise; √(ρ/2) is what the budget pays for
    allowed = np.sqrt(spent / 2)
    loud = ratio - allowed > SHADOW_SURE * np.sqrt((1 + ratio**2 / 2) / (2 * SHADOWS))
    seen = Signals(
        np.where(differs, center, declared.middle),
        np.where(differs, gap, declared.half_gap),
        np.where(differs, floor, declared.std),
    )
    told = {
        "clients_unlike_declared": int(differs.sum()),
        "clients_louder_than_budget": int(loud.sum()),
        "shadow_releases": 2 * SHADOWS,
    }
    return seen, told


def declared_signals(spent: Array, clip: float) -> Signals:
    """What uploads of the `client` mechanism look like for these budgets."""
    heard = spent > 0
    return Signals(np.zeros(len(spent)), np.where(heard, clip, 0.0), _noise_std(spent, clip))


def _noise_std(spent: Array, clip: float) -> Array:
    client, work = privacy_mechanism("client"), LocalWork(num_examples=1)
    return np.array([client.noise_std(rho, clip, work) if rho > 0 else 1.0 for rho in spent])
