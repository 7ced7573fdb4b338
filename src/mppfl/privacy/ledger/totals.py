"""Sums over a client's releases: how one more is added, when it may not be, and the account they make."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadInput
from mppfl.privacy import Unit
from mppfl.privacy.ledger.entries import GAUSSIAN_KINDS, Refusal, Terms

CAP_SLACK = 1e-12  # three times 0.1 may fill a cap of 0.3, although their sum in binary is larger


@dataclass(frozen=True, slots=True)
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

    def add(self, terms: Terms) -> None:
        """Counts one more release."""
        self.events += 1
        self.extra_delta += terms.extra_delta
        self.seeded += terms.noise_kind == "seeded"
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


def require_addable(client: str, total: Total, terms: Terms) -> None:
    """Raises where the release is for another adjacency than those before it: what they add up to is for neither."""
    if total.events and total.adjacency != terms.adjacency:
        raise BadInput(
            f"client {client!r} has releases for adjacency {total.adjacency!r}; one for {terms.adjacency!r} does not "
            "add to them. Keep them in another ledger."
        )


def refusal_of(client: str, total: Total, terms: Terms, cap: float) -> Refusal | None:
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
