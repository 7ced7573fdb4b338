"""What a release is to the ledger: its terms, checked at the border, and what became of a request to record it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy import Adjacency, Unit, require_budget, require_sampling

Outcome = Literal["reserved", "already reserved", "refused"]

GAUSSIAN_KINDS = ("gaussian", "seeded", "none")
NOISE_KINDS = (*GAUSSIAN_KINDS, "discrete")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one release costs one client. Any object with these attributes will do; the last two may be missing.

    budget             ρ-zCDP as declared; None for a Poisson-sampled release
    worst_case_budget  ρ that really holds, where the mechanism declares too little
    noise_multiplier   σ/C, needed with sampling_rate and num_steps for a Poisson-sampled release
    noise_kind         gaussian, discrete, seeded or none
    extra_delta        δ beyond what the budget says, such as truncated noise
    """

    client: str
    mechanism: str
    unit: Unit
    adjacency: Adjacency
    budget: float | None
    worst_case_budget: float | None = None
    noise_multiplier: float | None = None
    noise_kind: str = "gaussian"
    extra_delta: float = 0.0
    sampling_rate: float | None = None
    num_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client who may not release, and why."""

    client: str
    spent: float
    asked: float
    cap: float

    def __str__(self) -> str:
        spent, asked, cap = (f"{value:.6g}" for value in (self.spent, self.asked, self.cap))
        return f"client {self.client!r} has spent {spent} and asks for {asked} of a cap of {cap}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What became of each client's request.

    Only who is "reserved" may draw noise and release. Who is "already reserved" sends the stored upload again, or,
    where none is stored, pays once more with `reserve_again`.

    attempts  how often each has now paid for this round, where it has
    """

    outcomes: dict[str, Outcome]
    refused: tuple[Refusal, ...] = ()
    attempts: dict[str, int] = field(default_factory=dict)

    @property
    def reserved(self) -> tuple[str, ...]:
        """Who may release now."""
        return tuple(client for client, outcome in self.outcomes.items() if outcome == "reserved")


class Terms(NamedTuple):
    """What one release costs, as the table of events holds it: an entry that was checked."""

    mechanism: str
    unit: str
    adjacency: str
    budget: float | None
    worst_case_budget: float | None
    noise_multiplier: float | None
    sampling_rate: float | None
    num_steps: int | None
    noise_kind: str
    extra_delta: float


TERMS = Terms._fields


def terms_of(entry: Any, run: str, round_index: int) -> tuple[str, Terms]:
    """The client and the terms of a release, or one line on what is wrong with them."""
    try:
        client, unit, adjacency = name_of(entry.client), entry.unit, entry.adjacency
        mechanism, kind, extra = entry.mechanism, entry.noise_kind, entry.extra_delta
        budget, worst, noise = entry.budget, entry.worst_case_budget, entry.noise_multiplier
    except AttributeError as cause:
        raise BadInput(f"{type(entry).__name__} is no release: {cause}.") from cause
    for name, wanted in (("run", run), ("round_index", round_index)):
        own = getattr(entry, name, None)
        if own is not None and own != wanted:
            raise BadInput(f"the release of client {client!r} belongs to {name}={own!r}, not to {wanted!r}.")
    mechanism = name_of(getattr(mechanism, "name", mechanism), "mechanism")
    unit = require_one_of("unit", unit, ("record", "client"))
    adjacency = require_one_of("adjacency", adjacency, ("replace-one", "add-remove"))
    kind = require_one_of("noise_kind", kind, NOISE_KINDS)
    # Whole zeros: the file gives -0.0 back as 0.0, and the chain would take that for an edit.
    extra = 0.0 + require_number(0.0 if extra is None else extra, "extra_delta", 0.0, 1.0, open_ends=False)
    rate, steps = getattr(entry, "sampling_rate", None), getattr(entry, "num_steps", None)
    if mechanism == "dpsgd_poisson" or rate is not None:
        if noise is None or rate is None or steps is None:
            raise BadInput(
                f"the Poisson-sampled release of client {client!r} needs noise_multiplier, sampling_rate and num_steps."
            )
        if budget is not None:
            raise BadInput(
                f"a Poisson-sampled release has no zCDP budget, but client {client!r} has budget={budget!r}."
            )
        noise, rate, steps = require_sampling(noise, rate, steps)
        return client, Terms(mechanism, unit, adjacency, None, None, noise, rate, steps, kind, extra)
    rho = require_budget(budget)
    worst = rho if worst is None else require_budget(worst)
    if worst < rho:
        raise BadInput(f"worst_case_budget={worst:g} of client {client!r} is below its budget={rho:g}.")
    if kind == "none" and not math.isinf(rho):
        raise BadInput(f"client {client!r} adds no noise, so its budget is infinite, not {rho:g}.")
    noise = None if noise is None else 0.0 + require_number(noise, "noise_multiplier", 0.0, math.inf, open_ends=False)
    return client, Terms(mechanism, unit, adjacency, rho, worst, noise, None, None, kind, extra)


def name_of(value: Any, what: str = "client") -> str:
    """The value as a name: printable text; whole numbers are names too."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        value = str(int(value))
    if not isinstance(value, str) or not value or "\0" in value or not value.isprintable() or len(value) > 1000:
        raise BadInput(f"{what}={value!r:.60} must be a name: printable text of 1 to 1,000 characters.")
    return str(value)


def round_of(value: Any) -> int:
    """The value as a round's number, from 1."""
    if require_count(value, "round_index") > 2**62:
        raise BadInput(f"round_index={value} is too large.")
    return int(value)


def require_one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """The value, if it is known."""
    if value not in known:
        raise BadInput(f"{name}={value!r:.60} is not known. Known: {', '.join(known)}.")
    return str(value)


# What is computed from a clip norm that was measured, and may come out otherwise in the last digits elsewhere.
DERIVED = ("noise_multiplier", "extra_delta")


def same_terms(before: Terms, terms: Terms) -> bool:
    """Whether two reservations are of the same release."""
    return not _differing(before, terms)


def _differing(before: Terms, terms: Terms) -> list[int]:
    pairs = enumerate(zip(TERMS, before, terms, strict=True))
    return [
        place for place, (name, one, other) in pairs if one != other and not (name in DERIVED and _near(one, other))
    ]


def _near(one: Any, other: Any) -> bool:
    return isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=1e-4)


def other_terms(client: str, run: str, round_index: int, before: Terms, terms: Terms) -> str:
    """Why a second reservation with other terms is refused."""
    which = _differing(before, terms)[0]
    return (
        f"round {round_index} of {run!r} was reserved for client {client!r} with {TERMS[which]}={before[which]!r}, not "
        f"{terms[which]!r}. A changed release is a new one: use another round or run."
    )
