"""Profiles that leave devices once: what each user uploads, its noise, its price in the ledger, and who was heard.

    record level   y_i = x_i + N(0, 1/(2ρ_i))         x_i has a one for every artist heard
    client level   y_i = x_i/‖x_i‖ + N(0, 1/(2ρ_i))   all of a user's list hidden at once

Sensitivity, under adding or removing one unit. Record: one more artist adds one unit vector to x_i, so the profile
moves by exactly 1 in ℓ2. Client: a user who leaves takes away a vector of length 1. Either way noise of variance 1/(2ρ)
costs 1²/(2·1/(2ρ)) = ρ. Replacing one unit would cost 2ρ for these non-negative profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mppfl.arrays import Array, read_only, require
from mppfl.errors import BadInput
from mppfl.privacy import (
    LocalWork,
    NoiseKind,
    Protection,
    Unit,
    noisy_answer,
    release_updates,
    round_cost,
)
from mppfl.privacy.ledger import PrivacyLedger

Level = Literal["record", "client"]
SENSITIVITY = 1.0  # of either profile, see above
ONCE = LocalWork(num_examples=1)  # how many records a user has is private: no noise may depend on it


@dataclass(frozen=True, repr=False)
class ProfileProtection(Protection):
    """Of a profile: whether one artist is in the list, or the whole list."""

    @property
    def name(self) -> str:
        return f"{self.unit} profile"

    @property
    def guarantee(self) -> str:
        hidden = "each user-artist pair: whether one artist is in the list"
        return f"ρ-zCDP for {hidden if self.unit == 'record' else 'the whole list of a user'}"


def protection_of(level: Level, noise: NoiseKind = "simulated") -> ProfileProtection:
    """Of profiles at this level, where one artist, or one user, comes or goes."""
    return ProfileProtection(unit=level, adjacency="zero_out", clip_norm=SENSITIVITY, noise=noise)


@dataclass(frozen=True, eq=False)
class Account:
    """What one release cost its users, as their ledger says.

    budgets     ρ spent, one per user; 0 for those who opted out
    dp_epsilon  the largest of any user, at `dp_delta`, and the middle user's
    """

    unit: Unit
    protection: str
    budgets: Array
    dp_delta: float
    dp_epsilon: float
    median_epsilon: float
    simulation: bool


@dataclass(frozen=True, eq=False)
class ReleasedProfiles:
    """What the server holds after the release: noisy profiles, their variances, and the account.

    profiles   [users, artists]; zeros for those who opted out
    variances  of the noise on every coordinate of a user's profile; infinite for those who opted out
    """

    profiles: Array
    variances: Array
    account: Account


def clean_profiles(known: Array, level: Level) -> Array:
    """What would be uploaded without noise: zeros and ones, or rows of length 1. A user without artists has zeros."""
    if level == "record":
        return known
    if level != "client":
        raise BadInput(f"level={level!r} must be 'record' or 'client'.")
    return unit_rows(known)


def unit_rows(lists: Array) -> Array:
    """Rows of zeros and ones scaled to length 1; empty rows stay."""
    lengths = np.sqrt(lists.sum(axis=1, keepdims=True))
    return np.asarray(np.divide(lists, lengths, out=np.zeros_like(lists), where=lengths > 0))


def release_profiles(
    known: Array,
    budgets: Array,
    level: Level,
    *,
    users: Sequence[str],
    noise: NoiseKind = "simulated",
    rng: np.random.Generator | None = None,
    ledger: PrivacyLedger | None = None,
    run: str = "profiles",
    dp_delta: float = 1e-5,
) -> ReleasedProfiles:
    """Every user's profile with the noise its budget buys, once its price stands in the ledger.

    Without `ledger` one is kept in memory for this release alone. Users with budget 0 opt out. Raises BudgetExceeded,
    with nothing released, where a cap of the ledger forbids it, and BadInput where one of these users has released in
    this `run` on the ledger before: a second release costs again, under another name.
    """
    if not np.isin(known, (0.0, 1.0)).all():
        raise BadInput("listening data must be zeros and ones: an artist counts once, or one record would move more.")
    given = _budgets(budgets, len(known))
    protection = protection_of(level, noise)
    account = PrivacyLedger.in_memory() if ledger is None else ledger
    heard = np.flatnonzero(given > 0)
    costs = [round_cost(protection, float(given[at]), ONCE, known.shape[1], users[at], 1, run) for at in heard.tolist()]
    account.reserve_new(run, 1, costs)  # the price stands before anything is drawn
    clean = np.ascontiguousarray(clean_profiles(known, level))
    if level == "client":
        out = release_updates(
            clean, given, protection, work=ONCE, rng=rng, clients=list(users), round_index=1, run=run
        ).updates  # fmt: skip
    else:
        out = np.zeros_like(clean)
        for at in heard.tolist():
            out[at], _ = noisy_answer(clean[at], given[at], protection, ONCE, rng)
    variances = np.full(len(given), np.inf)
    variances[heard] = [cost.noise_std**2 for cost in costs]
    return ReleasedProfiles(np.asarray(out), variances, account_of(account, users, given, protection, dp_delta))


def account_of(
    ledger: PrivacyLedger, users: Sequence[str], budgets: Array, protection: Protection, dp_delta: float
) -> Account:
    """What the ledger says these users have spent."""
    paying = [users[at] for at in np.flatnonzero(budgets > 0).tolist()]
    spent, epsilons = np.zeros(len(budgets)), np.zeros(len(budgets))
    if paying:
        found = ledger.account(paying, protection.unit)
        spent[budgets > 0] = found.budget
        method = "rdp" if found.not_gaussian.any() else "exact"  # the tightest that holds for all their noise
        epsilons[budgets > 0] = ledger.get_epsilon(paying, dp_delta, method, unit=protection.unit)
    return Account(
        protection.unit,
        protection.name,
        spent,
        dp_delta,
        float(epsilons.max()),
        float(np.median(epsilons)),
        ledger.is_simulation,
    )


def _budgets(budgets: Array, num_users: int) -> Array:
    given = read_only(budgets, "budgets", length=num_users)
    require(given, "budgets", (given >= 0) & ~np.isnan(given), "at least 0")
    return given
