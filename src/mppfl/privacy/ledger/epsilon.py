"""Accounts of clients: sums over their releases, what caps leave of them, and what they come to as (ε, δ)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadFile, BadInput
from mppfl.privacy import (
    Unit,
    epsilon,
    epsilon_with_extra,
    filter_room,
    history_epsilon,
    renyi_losses,
    require_sampling,
    to_dp_event,
)
from mppfl.privacy.ledger.entries import ANY, GAUSSIAN_KINDS, Refusal, ReleaseTerms
from mppfl.text import Tabular, number

MOST_HISTORIES = 300  # different ones that are composed in one call, at some seconds each
SHOWN = 8  # clients in the text of an account
CAP_SLACK = 1e-12  # three times 0.1 may fill a cap of 0.3, although their sum in binary is larger
EXTRA_UNDER_CAP = 1e-12  # δ of the noise itself that a cap in ρ may overlook; noise from the system adds 1e-30 or less

Steps = tuple[float, float, int]  # noise_multiplier, sampling_rate, num_steps
History = tuple[float, tuple[Steps, ...]]  # ρ of what was not sampled, and the steps that were
Limit = tuple[str, float]  # of a cap: its unit and the δ at which it bounds ε, or 0 where it bounds ρ


@dataclass(frozen=True, slots=True, repr=False)
class Account(Tabular):
    """What clients have spent in one unit: one entry per client in every array.

    budget                 ρ in all, whatever the data, without Poisson-sampled releases; per record it includes what
                           was released per client
    extra_delta            δ in all that the noise itself adds
    cap                    the ρ that may be spent at most; infinite without one, and in the account of a single run
    epsilon_caps           the ε that may be reached at most, by δ
    not_gaussian, poisson  how many releases had other noise, or were Poisson-sampled
    zero_out               whose budget compares with nothing in the place of the data, not with other data
    sampled                (noise_multiplier, sampling_rate, num_steps) of each kind of Poisson-sampled steps
    """

    clients: tuple[str, ...]
    unit: Unit
    budget: Array
    extra_delta: Array
    cap: Array
    epsilon_caps: tuple[Mapping[float, float], ...]
    not_gaussian: Array
    poisson: Array
    zero_out: BoolArray
    sampled: tuple[tuple[Steps, ...], ...]

    @property
    def accounting(self) -> str:
        """The tightest method of accounting that holds for the releases of all these clients."""
        return "rdp" if self.not_gaussian.any() else "pld" if self.poisson.any() else "exact"

    @property
    def remaining(self) -> Array:
        """The ρ that each client may still spend; infinite without a cap."""
        left = np.maximum(self.cap - np.where(np.isinf(self.cap), 0.0, self.budget), 0.0)
        for place, caps in enumerate(self.epsilon_caps):
            for delta, cap in caps.items():
                losses = renyi_losses(self.sampled[place], self.budget[place])
                room = filter_room(losses, cap, delta, self.extra_delta[place])
                left[place] = max(0.0, min(left[place], room))
        return np.asarray(left)

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
    sampled    Poisson-sampled steps of each kind, sorted
    """

    adjacency: str = ANY
    budget: float = 0.0
    extra_delta: float = 0.0
    not_gaussian: int = 0
    poisson: int = 0
    simulated: int = 0
    sampled: tuple[Steps, ...] = ()

    def plus(self, charge: ReleaseTerms) -> Total:
        """The total with one more release."""
        steps = {(noise, rate): count for noise, rate, count in self.sampled}
        if charge.budget is None:
            noise, rate, count = require_sampling(charge.noise_multiplier, charge.sampling_rate, charge.num_steps)
            steps[noise, rate] = steps.get((noise, rate), 0) + count
        return Total(
            self.adjacency or charge.adjacency,
            self.budget + (charge.budget or 0.0),
            self.extra_delta + charge.extra_delta,
            self.not_gaussian + (charge.budget is not None and charge.noise_kind not in GAUSSIAN_KINDS),
            self.poisson + (charge.budget is None),
            self.simulated + (charge.noise_kind == "simulated"),
            tuple(sorted((*kind, count) for kind, count in steps.items())),
        )

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Total:
        """The total in a row of the table."""
        try:
            *sums, sampled = row
            steps = tuple((noise, rate, count) for noise, rate, count in json.loads(sampled))
            return cls(*sums)._replace(sampled=steps)
        except (TypeError, ValueError) as cause:
            raise BadFile("the ledger's sums are damaged. Restore a copy.") from cause

    def to_row(self) -> tuple[Any, ...]:
        """The same as the table holds it."""
        return (*self[:-1], json.dumps(self.sampled))

    def agrees(self, row: Sequence[Any]) -> bool:
        """Whether the row is this total but for the order in which it was added up."""
        pairs = zip(self.to_row(), row, strict=True)
        return all(a == b or (isinstance(b, float) and math.isclose(a, b, rel_tol=1e-9)) for a, b in pairs)

    def room(self, cap: float, delta: float) -> float:
        """The largest ρ that a cap in ε at δ still admits; below 0 where it is passed."""
        return filter_room(renyi_losses(self.sampled, self.budget), cap, delta, self.extra_delta)


def account_from(
    names: Sequence[str], unit: Unit, totals: Sequence[Total], caps: Sequence[Mapping[Limit, float]]
) -> Account:
    """The account of these clients in one unit, from the total in it and all caps of each."""
    summed = ("budget", "extra_delta", "not_gaussian", "poisson")
    sums: Any = {name: np.array([getattr(total, name) for total in totals], dtype=np.float64) for name in summed}
    return Account(
        clients=tuple(names),
        unit=unit,
        **sums,
        cap=np.array([cap.get((unit, 0.0), math.inf) for cap in caps], dtype=np.float64),
        epsilon_caps=tuple({delta: most for (of, delta), most in cap.items() if of == unit and delta} for cap in caps),
        zero_out=np.array([total.adjacency == "zero_out" for total in totals], dtype=np.bool_),
        sampled=tuple(total.sampled for total in totals),
    )


def after(totals: Mapping[str, Total], terms: ReleaseTerms) -> dict[str, Total]:
    """A client's totals by unit once this release is counted in each that it belongs to."""
    charged = {unit: totals.get(unit, Total()).plus(charge) for unit, charge in terms.charges().items()}
    return {**totals, **charged}


def uncounted(totals: Mapping[str, Total], unit: str, delta: float) -> str:
    """Why a cap per `unit`, in ρ or at this δ, says nothing of what these releases cost together, or ""."""
    total = totals.get(unit, Total())
    if unit == "client" and totals.get("record", Total()).adjacency != ANY:
        return "a release per record has no ρ for all data of a client that it could count"
    if delta == 0 and total.poisson:
        return "a Poisson-sampled release has no ρ that it could count"
    if delta == 0 and total.extra_delta > EXTRA_UNDER_CAP:
        return f"noise that itself costs δ = {total.extra_delta:.3g} is more than a ρ that it could count"
    return ""


def refusal_of(
    client: str, totals: Mapping[str, Total], terms: ReleaseTerms, caps: Mapping[Limit, float]
) -> Refusal | None:
    """Why this release may not be, or None: a cap of either unit that it would pass, or that cannot count it."""
    charges, later = terms.charges(), after(totals, terms)
    for (unit, delta), cap in caps.items():
        before, total, why = totals.get(unit, Total()), later.get(unit, Total()), uncounted(later, unit, delta)
        room = total.room(cap, delta) if delta else cap - total.budget
        if cap < math.inf and (why or room < -CAP_SLACK * cap):
            if delta:
                left = max(0.0, before.room(cap, delta))
                why = why or f"what is left of ε at δ = {delta:g} is enough for ρ = {left:.6g}, not for this release"
            asked = charges.get(unit, terms).budget
            return Refusal(client, before.budget, math.inf if asked is None else asked, cap, why)
    return None


class TooManyHistories(BadInput):
    """More different histories than can be composed in reasonable time; the method rdp has no such limit."""


def epsilons(account: Account, delta: float, method: str) -> Array:
    """dp_epsilon of each client of the account at `delta` in all. Raises where the method does not fit the releases."""
    names = account.clients
    extra = account.extra_delta
    if (2 * extra >= delta).any():
        worst = int(np.argmax(extra))
        raise BadInput(
            f"dp_delta={delta:g} is used up by client {names[worst]!r}, whose noise alone costs "
            f"{2 * extra[worst]:.3g}. Ask for a larger dp_delta."
        )
    by_orders, other_noise = method == "rdp", account.not_gaussian > 0
    for unfit, methods, why in (
        (
            account.poisson > 0,
            ("pld", "rdp"),
            "Poisson-sampled releases, which are no part of a zCDP sum. Use pld or rdp",
        ),
        (other_noise, ("rdp", "zcdp"), "releases whose noise was not Gaussian. Use the method rdp"),
    ):
        if unfit.any() and method not in methods:
            raise BadInput(f"client {names[int(np.argmax(unfit))]!r} has {why}.")
    histories = histories_of(account, by_orders_alone=by_orders)

    def composed(deltas: Array) -> Array:
        answer = np.array(epsilon(account.budget, deltas, "exact" if method == "pld" else method))
        of_history = cache(partial(history_epsilon, by_orders_alone=by_orders))
        for client, (budget, sampled) in histories.items():
            answer[client] = of_history(
                sampled, float(deltas[client]), budget=budget, is_gaussian=not other_noise[client]
            )
        return answer

    return epsilon_with_extra(composed, delta, extra)


def histories_of(account: Account, *, by_orders_alone: bool = False) -> dict[int, History]:
    """ρ and sampled steps of clients with Poisson-sampled releases, by their places in the account.

    Raises TooManyHistories for more than `MOST_HISTORIES` different ones, unless they are bounded `by_orders_alone`.
    """
    places = np.flatnonzero(account.poisson).tolist()
    histories = {place: (float(account.budget[place]), account.sampled[place]) for place in places}
    different = len(set(histories.values()))
    if different > MOST_HISTORIES and not by_orders_alone:
        raise TooManyHistories(
            f"the method pld takes some seconds for every different history; here are {different:,}. Ask for at most "
            f"{MOST_HISTORIES} clients at a time, or use rdp."
        )
    return histories


def dp_event(charge: ReleaseTerms) -> Any:
    """A release, as an account counts it, as an event of dp-accounting."""
    if charge.budget is not None:
        return to_dp_event(budget=charge.budget, is_gaussian=charge.noise_kind in GAUSSIAN_KINDS)
    noise, rate, steps = require_sampling(charge.noise_multiplier, charge.sampling_rate, charge.num_steps)
    return to_dp_event(noise_multiplier=noise, sampling_rate=rate, num_steps=steps)
