"""A release in the ledger: its terms, checked at the border, and the answer to a request to record it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy import require_budget, require_sampling

Outcome = Literal["reserved", "already reserved", "refused"]

GAUSSIAN_KINDS = ("gaussian", "simulated", "none")
NOISE_KINDS = (*GAUSSIAN_KINDS, "discrete")
ANY = ""  # adjacency of what holds for both


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client who may not release, and why: what a cap leaves is too little, or the cap cannot count the release."""

    client: str
    spent: float
    asked: float
    cap: float
    why: str = ""

    def __str__(self) -> str:
        spent, asked, cap = (f"{value:.6g}" for value in (self.spent, self.asked, self.cap))
        if self.why:
            return f"client {self.client!r} has a cap of {cap}, and {self.why}"
        return f"client {self.client!r} has spent {spent} and asks for {asked} of a cap of {cap}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """The answer to each client's request.

    Only a client that is "reserved" may draw noise and release. One that is "already reserved" sends the stored upload
    again, or, where none is stored, pays once more with `reserve_again`.

    attempts  how often each client has now paid for this round, where it has
    """

    outcomes: dict[str, Outcome]
    refused: tuple[Refusal, ...] = ()
    attempts: dict[str, int] = field(default_factory=dict)

    @property
    def reserved(self) -> tuple[str, ...]:
        """The clients that may release now."""
        return tuple(client for client, outcome in self.outcomes.items() if outcome == "reserved")


class ReleaseTerms(NamedTuple):
    """What one release costs, as the table of events holds it: an entry that was checked. `in_sum` is 0 or 1."""

    protection: str
    unit: str
    adjacency: str
    budget: float | None
    noise_multiplier: float | None
    sampling_rate: float | None
    num_steps: int | None
    noise_kind: str
    extra_delta: float
    in_sum: int = 0

    def charges(self) -> dict[str, ReleaseTerms]:
        """The release as it counts in the account of each unit.

        A release per client counts per record, too. Replacing all of a client's data includes replacing one record of
        it, so ρ stays ρ. Under zero_out the guarantee compares data with nothing: one changed record is two such steps,
        from the data to nothing and on to the changed data, which is 4ρ (zCDP of groups of k is k²ρ: Bun & Steinke
        2016, Prop. 1.9), whatever the record is compared with; an update clipped to 𝒮 reaches it, moved from one end of
        its ball to the other. Sampling secret clients gains a record nothing here: it pays for every step in full.

        A release per record has no entry per client: with n records it is n²ρ there, and n is not known.
        """
        if self.unit == "record":
            return {"record": self}
        rho = self.budget
        if rho is None:
            rho = (self.num_steps or 1) / 2 / (self.noise_multiplier or 0.0) ** 2
        per_record = self._replace(
            unit="record",
            adjacency=ANY,
            budget=4 * rho if self.adjacency == "zero_out" else rho,
            noise_multiplier=None,
            sampling_rate=None,
            num_steps=None,
        )
        return {"record": per_record, "client": self}


TERMS = ReleaseTerms._fields


def terms_of(entry: Any, run: str, round_index: int) -> tuple[str, ReleaseTerms]:
    """The client and the terms of a release, or one line on what is wrong with them."""
    try:
        client, unit, adjacency = name_of(entry.client), entry.unit, entry.adjacency
        protection, kind, extra = entry.protection, entry.noise_kind, entry.extra_delta
        budget, noise = entry.budget, entry.noise_multiplier
    except AttributeError as cause:
        raise BadInput(f"{type(entry).__name__} is no release: {cause}.") from cause
    for name, expected in (("run", run), ("round_index", round_index)):
        given = getattr(entry, name, None)
        if given and given != expected:
            raise BadInput(f"the release of client {client!r} belongs to {name}={given!r}, not to {expected!r}.")
    protection = name_of(getattr(protection, "name", protection), "protection")
    unit = require_one_of("unit", unit, ("record", "client"))
    adjacency = require_one_of("adjacency", adjacency, ("replace_one", "zero_out"))
    kind = require_one_of("noise_kind", kind, NOISE_KINDS)
    # Whole zeros: the file gives -0.0 back as 0.0, and the chain would take that for an edit.
    extra = 0.0 + require_number(0.0 if extra is None else extra, "extra_delta", 0.0, 1.0, open_ends=False)
    rate, steps = getattr(entry, "sampling_rate", None), getattr(entry, "num_steps", None)
    in_sum = int(bool(getattr(entry, "in_sum", False)))
    if budget is None or rate is not None:
        if noise is None or rate is None or steps is None:
            raise BadInput(
                f"a release of client {client!r} without a budget is Poisson-sampled, and needs noise_multiplier, "
                "sampling_rate and num_steps."
            )
        if budget is not None:
            raise BadInput(
                f"a Poisson-sampled release has no zCDP budget, but client {client!r} has budget={budget!r}."
            )
        if adjacency != "zero_out":
            raise BadInput(
                f"the Poisson-sampled release of client {client!r} is accounted for under adjacency='zero_out', not "
                f"{adjacency!r}."
            )
        noise, rate, steps = require_sampling(noise, rate, steps)
        return client, ReleaseTerms(protection, unit, adjacency, None, noise, rate, steps, kind, extra, in_sum)
    rho = require_budget(budget)
    if kind == "none" and not math.isinf(rho):
        raise BadInput(f"client {client!r} adds no noise, so its budget is infinite, not {rho:g}.")
    noise = None if noise is None else 0.0 + require_number(noise, "noise_multiplier", 0.0, math.inf, open_ends=False)
    return client, ReleaseTerms(protection, unit, adjacency, rho, noise, None, None, kind, extra, in_sum)


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


def require_one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """The value, if it is one of the choices."""
    if value not in choices:
        raise BadInput(f"{name}={value!r:.60} is not known. Known: {', '.join(choices)}.")
    return str(value)


# What is computed from a clip norm that was measured, and may come out otherwise in the last digits elsewhere.
DERIVED = ("noise_multiplier", "extra_delta")


def changed_term(before: ReleaseTerms, terms: ReleaseTerms) -> str | None:
    """The first term in which two reservations are not of the same release, in words; None where they are."""
    pairs: Iterator[tuple[str, Any, Any]] = zip(TERMS, before, terms, strict=True)
    for name, old, new in pairs:
        if old == new or (name in DERIVED and old and new and math.isclose(old, new, rel_tol=1e-4)):
            continue
        return f"{name}={old!r}, not {new!r}"
    return None
