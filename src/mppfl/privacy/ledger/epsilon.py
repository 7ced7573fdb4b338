"""Accounts of clients: sums over their releases, and their histories as (ε, δ) or as events for other accountants."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadInput
from mppfl.privacy import (
    AttackRisk,
    Unit,
    attack_risk,
    epsilon,
    epsilon_with_extra,
    history_epsilon,
    require_sampling,
    to_dp_event,
)
from mppfl.privacy.ledger.entries import ANY, GAUSSIAN_KINDS, TERMS, Refusal, ReleaseTerms
from mppfl.text import Tabular, number

MOST_HISTORIES = 300  # different ones that are composed in one call, at some seconds each
SHOWN = 8  # clients in the text of an account
CAP_SLACK = 1e-12  # three times 0.1 may fill a cap of 0.3, although their sum in binary is larger
EXTRA_UNDER_CAP = 1e-12  # δ of the noise itself that a cap in ρ may overlook; noise from the system adds 1e-30 or less


@dataclass(frozen=True, slots=True, repr=False)
class Account(Tabular):
    """What clients have spent in one unit: one entry per client in every array.

    budget                 ρ in all, whatever the data, without Poisson-sampled releases; per record it includes what
                           was released per client
    extra_delta            δ in all that the noise itself adds
    cap                    the most that may be spent; infinite without one
    not_gaussian, poisson  how many releases had other noise, or were Poisson-sampled
    zero_out               whose budget compares with nothing in the place of the data, not with other data
    """

    clients: tuple[str, ...]
    unit: Unit
    budget: Array
    extra_delta: Array
    cap: Array
    not_gaussian: Array
    poisson: Array
    zero_out: BoolArray

    @property
    def accounting(self) -> str:
        """The tightest method of accounting that holds for the releases of all these clients."""
        return "pld" if self.poisson.any() else "rdp" if self.not_gaussian.any() else "exact"

    @property
    def remaining(self) -> Array:
        """What each client may still spend; infinite without a cap."""
        return np.asarray(np.maximum(self.cap - np.where(np.isinf(self.cap), 0.0, self.budget), 0.0))

    def _columns(self) -> dict[str, list[Any]]:
        names = ("budget", "cap", "remaining", "extra_delta", "not_gaussian", "poisson", "zero_out")
        return {"client": list(self.clients), **{name: getattr(self, name).tolist() for name in names}}

    def __repr__(self) -> str:
        columns = (self.budget, self.cap, self.remaining)
        rows = [["client", "spent", "cap", "remaining"]]
        for place, client in enumerate(self.clients[:SHOWN]):
            rows.append([client[:24], *(number(column[place]) for column in columns)])
        first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"account per {self.unit}, {len(self.clients):,} clients"]
        for name, *cells in rows:
            lines.append("  ".join([name.ljust(first), *map(str.rjust, cells, others)]))
        more = len(self.clients) - SHOWN
        return "\n".join([*lines, f"and {more:,} more"] if more > 0 else lines)


class Total(NamedTuple):
    """What one client's releases come to in the account of one unit, as the table holds it.

    adjacency  of the releases per this unit; `ANY` where there are none
    """

    adjacency: str = ANY
    budget: float = 0.0
    extra_delta: float = 0.0
    not_gaussian: int = 0
    poisson: int = 0
    simulated: int = 0

    def plus(self, charge: ReleaseTerms) -> Total:
        """The total with one more release."""
        return Total(
            self.adjacency or charge.adjacency,
            self.budget + (charge.budget or 0.0),
            self.extra_delta + charge.extra_delta,
            self.not_gaussian + (charge.budget is not None and charge.noise_kind not in GAUSSIAN_KINDS),
            self.poisson + (charge.budget is None),
            self.simulated + (charge.noise_kind == "simulated"),
        )

    def agrees(self, other: Total) -> bool:
        """Whether two sums are the same but for the order in which they were added."""
        return self.adjacency == other.adjacency and all(
            a == b or math.isclose(a, b, rel_tol=1e-9) for a, b in zip(self[1:], other[1:], strict=True)
        )


def after(totals: Mapping[str, Total], terms: ReleaseTerms) -> dict[str, Total]:
    """A client's totals by unit once this release is counted in each that it belongs to."""
    charged = {unit: totals.get(unit, Total()).plus(charge) for unit, charge in terms.charges().items()}
    return {**totals, **charged}


def uncounted(totals: Mapping[str, Total], unit: str) -> str:
    """Why a cap in ρ per `unit` says nothing of what these releases cost together, or ""."""
    total = totals.get(unit, Total())
    if total.poisson:
        return "a Poisson-sampled release has no ρ that it could count"
    if unit == "client" and totals.get("record", Total()).adjacency != ANY:
        return "a release per record has no ρ for all data of a client that it could count"
    if total.extra_delta > EXTRA_UNDER_CAP:
        return f"noise that itself costs δ = {total.extra_delta:.3g} is more than a ρ that it could count"
    return ""


def refusal_of(
    client: str, totals: Mapping[str, Total], terms: ReleaseTerms, caps: Mapping[str, float]
) -> Refusal | None:
    """Why this release may not be, or None: a cap of either unit that it would pass, or that cannot count it."""
    charges, later = terms.charges(), after(totals, terms)
    for unit, cap in caps.items():
        if math.isinf(cap):
            continue
        why, spent = uncounted(later, unit), totals.get(unit, Total()).budget
        asked = charges[unit].budget if unit in charges else None
        if why or later[unit].budget > cap * (1 + CAP_SLACK):
            return Refusal(client, spent, math.inf if asked is None else asked, cap, why)
    return None


class TooManyHistories(BadInput):
    """More different histories than can be composed in reasonable time; the method rdp has no such limit."""


def epsilons(read: sqlite3.Connection, account: Account, numbers: dict[str, int], delta: float, method: str) -> Array:
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
    by_orders = method == "rdp"
    unfit = (account.not_gaussian > 0) & (sampled if by_orders else method != "zcdp")
    if unfit.any():
        name = names[int(np.argmax(unfit))]
        remedy = "Keep Poisson-sampled ones in another ledger" if by_orders else "Use the method rdp"
        raise BadInput(f"client {name!r} has releases whose noise was not Gaussian. {remedy}.")
    histories = histories_of(read, account, numbers, by_orders_alone=by_orders)

    def composed(deltas: Array) -> Array:
        answer = np.array(epsilon(account.budget, deltas, "exact" if method == "pld" else method))
        known: dict[tuple[ReleaseHistory, float], float] = {}
        for client, history in histories.items():
            question = (history, float(deltas[client]))
            if question not in known:
                known[question] = history_epsilon(
                    history.sampled, question[1], budget=history.budget, by_orders_alone=by_orders
                )
            answer[client] = known[question]
        return answer

    return epsilon_with_extra(composed, delta, extra)


class ReleaseHistory(NamedTuple):
    """All releases of one client in the account of one unit: ρ in all, and those that are Poisson-sampled.

    sampled  (noise_multiplier, sampling_rate, num_steps) of each kind
    """

    budget: float
    sampled: tuple[tuple[float, float, int], ...]


def histories_of(
    read: sqlite3.Connection, account: Account, numbers: dict[str, int], *, by_orders_alone: bool = False
) -> dict[int, ReleaseHistory]:
    """Histories with Poisson-sampled releases, by their clients' places in the account.

    Raises TooManyHistories for more than `MOST_HISTORIES` different ones, unless they are bounded `by_orders_alone`.
    """
    places = {numbers[account.clients[place]]: place for place in np.flatnonzero(account.poisson).tolist()}
    if not places:
        return {}
    sampled: dict[int, list[tuple[float, float, int]]] = {place: [] for place in places.values()}
    columns = ", ".join(TERMS)
    for client, times, *row in read.execute(
        f"SELECT client, count(*), {columns} FROM events GROUP BY client, {columns}"
    ):
        charge = ReleaseTerms(*row).charges().get(account.unit)
        if client in places and charge is not None and charge.budget is None:
            noise, rate, steps = require_sampling(charge.noise_multiplier, charge.sampling_rate, charge.num_steps)
            sampled[places[client]].append((noise, rate, steps * times))
    histories = {place: ReleaseHistory(float(account.budget[place]), tuple(kinds)) for place, kinds in sampled.items()}
    different = len(set(histories.values()))
    if different > MOST_HISTORIES and not by_orders_alone:
        raise TooManyHistories(
            f"the method pld takes some seconds for every different history; here are {different:,}. Ask for at most "
            f"{MOST_HISTORIES} clients at a time, or use rdp."
        )
    return histories


def risks(read: sqlite3.Connection, account: Account, numbers: dict[str, int]) -> AttackRisk:
    """What an attacker can tell of each client of the account."""
    advantage, rate = (np.array(part) for part in attack_risk(account.budget))
    histories = histories_of(read, account, numbers)
    known = {history: attack_risk(*history) for history in set(histories.values())}
    for place, history in histories.items():
        advantage[place], rate[place] = known[history]
    return AttackRisk(advantage, rate).beside(account.extra_delta)


def dp_event(charge: ReleaseTerms) -> Any:
    """A release, as an account counts it, as an event of dp-accounting."""
    if charge.budget is not None:
        return to_dp_event(budget=charge.budget, is_gaussian=charge.noise_kind in GAUSSIAN_KINDS)
    noise, rate, steps = require_sampling(charge.noise_multiplier, charge.sampling_rate, charge.num_steps)
    return to_dp_event(noise_multiplier=noise, sampling_rate=rate, num_steps=steps)
