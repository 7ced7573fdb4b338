"""What it would cost to protect one person: whose budgets must be withdrawn until others tell little enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.arrays import Array, require_number
from mppfl.errors import BadInput
from mppfl.leakage.exposure import client_budgets
from mppfl.leakage.leak_gradient import LeakModel, saturating_level


@dataclass(frozen=True, slots=True)
class Protection:
    """Budgets to withdraw so that a client's R_leak falls to a target.

    level_before, level_after  R_leak of the client in nats
    withdrawn                  budget taken from each client; 0 for the client itself
    """

    client: int
    level_before: float
    level_after: float
    withdrawn: Array

    @property
    def total(self) -> float:
        """What the server's Σρ loses."""
        return float(self.withdrawn.sum())

    @property
    def num_withdrawn(self) -> int:
        return int((self.withdrawn > 0).sum())


def protect(model: LeakModel, budgets: Any, client: int, *, target: float) -> Protection:
    """Withdraws others' budgets, those that tell most per unit first, until R_leak of `client` is `target` nats.

    Since R_leak is concave in budgets, the least withdrawal is a hard problem; taking whole budgets in order of what
    each tells per unit, once those before it are gone, gives an upper bound on it. The last one is taken in part.
    O(N²) for each client withdrawn.
    """
    spent = np.array(client_budgets(budgets, model.num_clients))
    before = float(model.levels(spent).nats[client])
    require_number(target, "target", 0.0, np.inf)
    if target >= before:
        raise BadInput(
            f"target={target:.4g} nats for client number {client} is not below its level of {before:.4g}. Lower it."
        )
    precision = 2 * model.information * spent
    own = precision[client]
    heard = np.where(np.arange(len(spent)) == client, 0.0, precision)
    covariances = model.posterior(np.where(np.arange(len(spent)) == client, 0.0, spent))
    friends = np.asarray(model.linked[[client]].toarray()).ravel()
    reach = friends * spent / (2 + spent)
    withdrawn = np.zeros(len(spent))
    while True:
        left, near = float(covariances[client, client]), float(reach.sum())
        if max(_gp(left), float(saturating_level(model.fit, np.array(near)))) <= target:
            break
        loosened = heard * covariances[client] ** 2 / (1 - heard * np.diagonal(covariances))
        gains = _above(-0.5 * np.log(left), target) - _above(-0.5 * np.log(left + loosened), target)
        gains += _above(saturating_level(model.fit, np.array(near)), target)
        gains -= _above(saturating_level(model.fit, near - reach), target)
        told = heard > 0
        per_unit = np.divide(gains, spent - withdrawn, out=np.full(len(spent), -np.inf), where=told)
        source = int(np.argmax(per_unit))
        column = covariances[source]
        after = left + loosened[source]
        if max(_gp(after), float(saturating_level(model.fit, np.array(near - reach[source])))) < target:
            withdrawn[source] = _part(model, spent[source], covariances, client, source, near, friends[source], target)
            break
        covariances = covariances + np.outer(column, column) * (heard[source] / (1 - heard[source] * column[source]))
        withdrawn[source] = spent[source]
        heard[source] = reach[source] = 0.0
    withdrawn.setflags(write=False)
    remaining = np.maximum(spent - withdrawn, 0.0)
    remaining[client] = own / (2 * model.information)
    return Protection(client, before, float(model.levels(remaining).nats[client]), withdrawn)


def _part(
    model: LeakModel,
    budget: float,
    covariances: Array,
    client: int,
    source: int,
    near: float,
    is_friend: float,
    target: float,
) -> float:
    """How much of the last budget must go, by bisection: the level falls as it goes."""
    own, cross = covariances[source, source], covariances[client, source]
    low, high = 0.0, budget
    for _ in range(60):
        taken = 0.5 * (low + high)
        kept, lost = budget - taken, 2 * model.information * taken
        left = covariances[client, client] + lost * cross**2 / (1 - lost * own)
        reach = near - is_friend * (budget / (2 + budget) - kept / (2 + kept))
        enough = max(_gp(left), float(saturating_level(model.fit, np.array(reach)))) <= target
        low, high = (low, taken) if enough else (taken, high)
    return high


def _gp(left: float) -> float:
    return max(0.0, -0.5 * math.log(left))


def _above(level: Any, target: float) -> Array:
    return np.asarray(np.maximum(level, target) - target)
