"""Accounts of clients: sums over their releases, and their histories as (ε, δ) or as events for other accountants."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadInput, MppflError
from mppfl.privacy import Unit, epsilon, epsilon_with_extra, history_epsilon, to_dp_event
from mppfl.privacy.ledger.entries import GAUSSIAN_KINDS, Refusal, ReleaseTerms
from mppfl.text import number

MOST_HISTORIES = 300  # different ones that are composed in one call, at some seconds each
KIND = "budget, worst_case_budget, noise_multiplier, sampling_rate, num_steps, noise_kind"
SHOWN = 8  # clients in the text of an account
CAP_SLACK = 1e-12  # three times 0.1 may fill a cap of 0.3, although their sum in binary is larger


@dataclass(frozen=True, slots=True, repr=False)
class Account:
    """What clients have spent in one unit: one entry per client in every array.

    budget, worst_case_budget  ρ in all, without Poisson-sampled releases
    extra_delta                δ in all that the noise itself adds
    cap                        the most that may be spent; infinite without one
    not_gaussian, poisson      how many releases had other noise, or were Poisson-sampled
    add_remove                 whose budget is for adding or removing, not for replacing
    """

    clients: tuple[str, ...]
    unit: Unit
    budget: Array
    worst_case_budget: Array
    extra_delta: Array
    cap: Array
    not_gaussian: Array
    poisson: Array
    add_remove: BoolArray

    @property
    def remaining(self) -> Array:
        """What each client may still spend; infinite without a cap."""
        return np.asarray(np.maximum(self.cap - np.where(np.isinf(self.cap), 0.0, self.budget), 0.0))

    def to_pandas(self) -> Any:
        """The account as a pandas.DataFrame with a row per client."""
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ImportError as cause:
            raise MppflError("a table of the account needs pandas. Run: pip install pandas") from cause
        names = ("budget", "worst_case_budget", "cap", "remaining", "extra_delta", "not_gaussian", "poisson")
        columns = {name: getattr(self, name) for name in (*names, "add_remove")}
        return pandas.DataFrame(columns, index=pandas.Index(self.clients, name="client"))

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligns = [str.ljust, *[str.rjust] * (len(widths) - 1)]
        lines = ["  ".join(map(lambda align, cell, width: align(cell, width), aligns, row, widths)) for row in rows]
        return "\n".join([self._title(), *lines, *self._rest()])

    def _repr_html_(self) -> str:
        head, *rows = [[escape(cell) for cell in row] for row in self._rows()]
        body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
        table = f"<table><tr><th>{'</th><th>'.join(head)}</th></tr>{body}</table>"
        return f"<p>{self._title()}</p>{table}" + "".join(f"<p>{line}</p>" for line in self._rest())

    def _title(self) -> str:
        return f"account per {self.unit}, {len(self.clients):,} clients"

    def _rows(self) -> list[list[str]]:
        """The head of the table and the clients that are shown."""
        columns = (self.budget, self.worst_case_budget, self.cap, self.remaining)
        figures = [[number(column[row]) for column in columns] for row in range(min(SHOWN, len(self.clients)))]
        named = [[name[:24], *row] for name, row in zip(self.clients, figures, strict=False)]
        return [["client", "spent", "worst case", "cap", "remaining"], *named]

    def _rest(self) -> list[str]:
        more = len(self.clients) - SHOWN
        return [f"and {more:,} more"] if more > 0 else []


@dataclass(slots=True)
class Total:
    """Sums over one client's events of one unit, as the table holds them."""

    adjacency: str
    events: int = 0
    budget: float = 0.0
    worst_case_budget: float = 0.0
    extra_delta: float = 0.0
    not_gaussian: int = 0
    poisson: int = 0
    seeded: int = 0

    def add(self, terms: ReleaseTerms) -> None:
        """Counts one more release."""
        self.events += 1
        self.extra_delta += terms.extra_delta
        self.seeded += terms.noise_kind == "simulated"
        if terms.budget is None or terms.worst_case_budget is None:
            self.poisson += 1
            return
        self.budget += terms.budget
        self.worst_case_budget += terms.worst_case_budget
        self.not_gaussian += terms.noise_kind not in GAUSSIAN_KINDS

    @property
    def row(self) -> tuple[Any, ...]:
        """The sums in the order of the table."""
        return (self.adjacency, self.events, self.budget, self.worst_case_budget, self.extra_delta,
                self.not_gaussian, self.poisson, self.seeded)  # fmt: skip


def require_addable(client: str, total: Total, terms: ReleaseTerms) -> None:
    """Raises where the release is for another adjacency than those before it: what they add up to is for neither."""
    if total.events and total.adjacency != terms.adjacency:
        raise BadInput(
            f"client {client!r} has releases for adjacency {total.adjacency!r}; one for {terms.adjacency!r} does not "
            "add to them. Keep them in another ledger."
        )


def refusal_of(client: str, total: Total, terms: ReleaseTerms, cap: float) -> Refusal | None:
    """Why this release may not be, or None. A cap in ρ cannot be kept where a release has no ρ."""
    if math.isinf(cap):
        return None
    asked = math.inf if terms.budget is None else terms.budget
    return Refusal(client, total.budget, asked, cap) if total.budget + asked > cap * (1 + CAP_SLACK) else None


def agree(one: Total, other: Total) -> bool:
    """Whether two sums are the same but for the order in which they were added."""
    return one.adjacency == other.adjacency and all(
        a == b or math.isclose(a, b, rel_tol=1e-9) for a, b in zip(one.row[1:], other.row[1:], strict=True)
    )


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
        of_sums = np.asarray(epsilon(budgets, deltas, method))  # 0 where every release was Poisson-sampled
        if not sampled.any():
            return of_sums
        of_histories = pld_epsilons(read, account, numbers, deltas, worst_case, by_orders_alone=True)
        return np.where(sampled, of_histories, of_sums)

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
    included = (account.poisson > 0) | (not by_orders_alone)
    ids = {numbers[name] for name, is_included in zip(account.clients, included, strict=True) if is_included}
    histories: dict[int, list[Kind]] = {}
    for client, *row in read.execute(ask, (account.unit,)):
        if client in ids:
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
