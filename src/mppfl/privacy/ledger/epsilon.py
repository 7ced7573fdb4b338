"""Histories of releases turned into (ε, δ): by their loss distributions, or as events for other accountants."""

from __future__ import annotations

import math
import sqlite3
from typing import Any, NamedTuple

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.privacy import epsilon, epsilon_with_extra, history_epsilon, to_dp_event
from mppfl.privacy.ledger.entries import GAUSSIAN_KINDS
from mppfl.privacy.ledger.totals import Account

MOST_HISTORIES = 300  # different ones that are composed in one call, at some seconds each
KIND = "budget, worst_case_budget, noise_multiplier, sampling_rate, num_steps, noise_kind"


class TooManyHistories(BadInput):
    """More different histories than can be composed in reasonable time; the method rdp has no such limit."""


class Kind(NamedTuple):
    """Releases on the same terms, and how many of them there were."""

    budget: float | None
    worst_case_budget: float | None
    noise_multiplier: float | None
    sampling_rate: float | None
    num_steps: int | None
    noise_kind: str
    times: int = 1

    def spent(self, worst_case: bool) -> float:
        """ρ of all of them; 0 where they were Poisson-sampled."""
        return self.times * ((self.worst_case_budget if worst_case else self.budget) or 0.0)


def epsilons(
    read: sqlite3.Connection, account: Account, numbers: dict[str, int], delta: float, method: str, worst_case: bool
) -> Array:
    """dp_epsilon of each client of the account at `delta` in all. Raises where the method does not fit the releases."""
    names = account.clients
    extra = account.extra_delta
    if (2 * extra >= delta).any():
        worst = int(np.argmax(extra))
        raise BadInput(
            f"dp_delta={delta:g} is used up by client {names[worst]!r}, whose noise alone costs "
            f"{2 * extra[worst]:.3g}. Ask for a larger dp_delta."
        )
    sampled = account.poisson > 0
    if sampled.any() and method not in ("pld", "rdp"):
        name = names[int(np.argmax(sampled))]
        raise BadInput(
            f"client {name!r} has Poisson-sampled releases, which are no part of a zCDP sum. Use pld or rdp."
        )
    if method == "exact" and account.not_gaussian.any():
        name = names[int(np.argmax(account.not_gaussian > 0))]
        raise BadInput(f"client {name!r} has releases whose noise was not Gaussian. Use the method rdp.")
    budgets = account.worst_case_budget if worst_case else account.budget

    def composed(deltas: Array) -> Array:
        if method == "pld":
            return pld_epsilons(read, account, numbers, deltas, worst_case)
        found = np.asarray(epsilon(budgets, deltas, method))  # 0 where every release was Poisson-sampled
        if sampled.any():
            whole = pld_epsilons(read, account, numbers, deltas, worst_case, by_orders_alone=True)
            found = np.where(sampled, whole, found)
        return found

    return epsilon_with_extra(composed, delta, extra)


def pld_epsilons(
    read: sqlite3.Connection,
    account: Account,
    numbers: dict[str, int],
    deltas: Array,
    worst_case: bool,
    *,
    by_orders_alone: bool = False,
) -> Array:
    """dp_epsilon of each client of the account by composing loss distributions; the same history is composed once.

    by_orders_alone  only clients with Poisson-sampled releases, by RDP; 0 for the others

    Raises TooManyHistories where more than `MOST_HISTORIES` different ones would have to be composed.
    """
    ask = f"SELECT client, {KIND}, count(*) FROM events WHERE unit = ? GROUP BY client, {KIND}"
    asked = (account.poisson > 0) | (not by_orders_alone)
    wanted = {numbers[name] for name, is_asked in zip(account.clients, asked, strict=True) if is_asked}
    histories: dict[int, list[Kind]] = {}
    for client, *row in read.execute(ask, (account.unit,)):
        if client in wanted:
            histories.setdefault(client, []).append(Kind(*row))
    questions = [
        (tuple(histories.get(numbers[name], ())), float(delta))
        for name, delta in zip(account.clients, deltas, strict=True)
    ]
    different = set(questions)
    composed = sum(any(kind.budget is None for kind in history) for history, _ in different)
    if composed > MOST_HISTORIES and not by_orders_alone:
        raise TooManyHistories(
            f"the method pld takes some seconds for every different history; here are {composed:,}. Ask for at most "
            f"{MOST_HISTORIES} clients at a time, or use rdp."
        )
    answers = {
        (history, delta): pld_epsilon(history, delta, worst_case, by_orders_alone=by_orders_alone)
        for history, delta in different
    }
    return np.array([answers[question] for question in questions], dtype=np.float64)


def pld_epsilon(history: tuple[Kind, ...], delta: float, worst_case: bool, *, by_orders_alone: bool = False) -> float:
    """Gaussian releases add up to one; each kind of Poisson-sampled release is composed as often as it happened."""
    if any(kind.budget is not None and kind.noise_kind not in GAUSSIAN_KINDS for kind in history):
        remedy = "Keep them apart from Poisson-sampled ones, in a ledger of their own" if by_orders_alone else "Use rdp"
        raise BadInput(f"releases whose noise was not Gaussian have no loss distribution here. {remedy}.")
    total = math.fsum(kind.spent(worst_case) for kind in history)
    sampled = [
        (kind.noise_multiplier, kind.sampling_rate, kind.num_steps * kind.times)
        for kind in history
        if kind.noise_multiplier is not None and kind.sampling_rate is not None and kind.num_steps is not None
    ]
    if not sampled:
        return epsilon(total, delta)
    return history_epsilon(sampled, delta, budget=total, by_orders_alone=by_orders_alone)


def dp_event(kind: Kind, worst_case: bool) -> Any:
    """One of these releases as an event of dp-accounting."""
    if kind.budget is None:
        return to_dp_event(
            noise_multiplier=kind.noise_multiplier,
            sampling_rate=kind.sampling_rate or 1.0,
            num_steps=kind.num_steps or 1,
        )
    budget = kind.worst_case_budget if worst_case else kind.budget
    return to_dp_event(budget=budget, is_gaussian=kind.noise_kind in GAUSSIAN_KINDS)
