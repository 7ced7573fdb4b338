"""The named privacy mechanisms: what runs, which noise a budget buys, and what is really guaranteed.

    paper             whole update clipped, noise as if it were one mean gradient: nominal, worst case n²·budget
    full_batch        one full-batch step, every example clipped
    full_batch_steps  several full-batch steps, noise in each
    dpsgd_shuffle     epochs of disjoint shuffled batches, noise in each step
    dpsgd_poisson     Poisson-sampled batches, calibrated to (ε, δ); never part of a zCDP sum
    client            whole update clipped, noise that hides the whole client

Budgets are ρ-zCDP (Bun & Steinke 2016): Gaussian noise of standard deviation σ on a query that one neighbouring data
set moves by at most Δ in ℓ2 costs Δ²/(2σ²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput

Unit = Literal["record", "client"]
Adjacency = Literal["replace-one", "add-remove"]
NoiseOn = Literal["update", "mean gradient", "batch sum"]


@dataclass(frozen=True, slots=True)
class LocalWork:
    """What one client does in one round, as far as privacy depends on it. All of it must be public.

    num_examples  n = |D_i|
    local_epochs  passes over the data
    num_steps     noisy full-batch steps (full_batch_steps)
    batch_size    examples per step (dpsgd_shuffle, dpsgd_poisson)
    """

    num_examples: int
    local_epochs: int = 1
    num_steps: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name in ("num_examples", "local_epochs", "num_steps", "batch_size"):
            require_count(getattr(self, name), name)

    @property
    def num_batches(self) -> int:
        """Noisy steps of a round that goes through the data in batches: local_epochs · ⌈n / batch_size⌉."""
        return self.local_epochs * -(-self.num_examples // self.batch_size)

    @property
    def sampling_rate(self) -> float:
        """Chance of a record to be in a Poisson-sampled batch: batch_size / n. Raises where that is above 1."""
        if self.batch_size > self.num_examples:
            raise BadInput(
                f"batch_size={self.batch_size} is more than num_examples={self.num_examples}, so it is no Poisson "
                "sample. Use smaller batches."
            )
        return self.batch_size / self.num_examples


@dataclass(frozen=True, slots=True)
class PrivacyMechanism:
    """A mechanism by name: whom it protects against what, and how.

    unit       one record of a client, or all of a client's data
    adjacency  what a neighbouring data set is: one unit replaced, or added or removed
    noise_on   what the noise is added to
    guarantee  what a budget of ρ per round really promises
    breaks     what would void the promise
    """

    name: str
    unit: Unit
    adjacency: Adjacency
    noise_on: NoiseOn
    guarantee: str
    breaks: str

    @property
    def is_zcdp(self) -> bool:
        """Whether its cost is a zCDP budget, which adds over rounds."""
        return self.name != "dpsgd_poisson"

    def queries(self, work: LocalWork) -> int:
        """How many noisy answers one record or client influences in a round."""
        return {"full_batch_steps": work.num_steps, "dpsgd_shuffle": work.local_epochs}.get(self.name, 1)

    def sensitivity(self, clip_norm: float, work: LocalWork) -> float:
        """Δ: how far one neighbouring data set moves one noisy answer at most, in ℓ2, as the mechanism declares it.

        For `paper` it is the declared 2𝒮/n, which holds only for one full-batch mean gradient.
        """
        clip = require_number(clip_norm, "clip_norm", 0.0, math.inf)
        reach = clip if self.adjacency == "add-remove" else 2 * clip
        if self.name in ("paper", "full_batch", "full_batch_steps"):
            return reach / work.num_examples
        return reach

    def noise_std(self, budget: float, clip_norm: float, work: LocalWork) -> float:
        """Standard deviation of the noise on each answer for a budget of ρ in this round: Δ√(queries/(2ρ))."""
        rho = require_budget(budget)
        if not self.is_zcdp:
            raise BadInput(
                "dpsgd_poisson has no noise from a zCDP budget; calibrate it to (ε, δ) with poisson_noise_multiplier."
            )
        if math.isinf(rho):
            return 0.0
        return self.sensitivity(clip_norm, work) * math.sqrt(self.queries(work) / (2 * rho))

    def worst_case_budget(self, budget: float, work: LocalWork) -> float:
        """What a nominal budget really costs in the worst case.

        `paper` clips the whole update, which one record can then turn round (sensitivity 2𝒮), yet adds the noise of a
        mean gradient (2𝒮/n): n² times the nominal budget. With one full-batch step it would be `full_batch`.
        """
        rho = require_budget(budget)
        return rho * work.num_examples**2 if self.name == "paper" else rho


def require_budget(budget: float) -> float:
    """The budget as a float above 0 (infinity means no noise), small or large enough to compute with."""
    try:
        rho = float(budget)
    except (TypeError, ValueError) as cause:
        raise BadInput(f"budget={budget!r} is not a number.") from cause
    if not rho > 0:
        raise BadInput(f"budget={rho:g} must be above 0; a client with budget 0 takes no part and releases nothing.")
    if not (1e-150 < rho < 1e150 or math.isinf(rho)):
        raise BadInput(f"budget={rho:g} is beyond what can be computed with. Use a budget between 1e-150 and 1e150.")
    return rho


# fmt: off
MECHANISMS: dict[str, PrivacyMechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        PrivacyMechanism("paper", "record", "replace-one", "update",
            "nominal ρ per record as in the paper; worst case n²ρ, because the clipped update has sensitivity 2𝒮",
            "any record whose gradients are not bounded: one outlier turns the whole update round"),
        PrivacyMechanism("full_batch", "record", "replace-one", "mean gradient",
            "ρ-zCDP per record and round",
            "clipping per batch instead of per example, BatchNorm, a data-dependent number of examples"),
        PrivacyMechanism("full_batch_steps", "record", "replace-one", "mean gradient",
            "ρ-zCDP per record and round, over all steps",
            "any step without noise, BatchNorm, stopping early because of the data"),
        PrivacyMechanism("dpsgd_shuffle", "record", "replace-one", "batch sum",
            "ρ-zCDP per record and round; nothing is gained by shuffling",
            "BatchNorm, batches stratified by label, any step without noise, a data-dependent number of examples"),
        PrivacyMechanism("dpsgd_poisson", "record", "add-remove", "batch sum",
            "(ε, δ) by RDP or PLD accounting; never part of a zCDP sum",
            "batches of fixed size, shuffling instead of sampling, BatchNorm"),
        PrivacyMechanism("client", "client", "replace-one", "update",
            "ρ-zCDP for all of a client's data together",
            "anything that leaves the client beside the noisy update"),
    )
}
# fmt: on


def privacy_mechanism(name: str, adjacency: Adjacency | None = None) -> PrivacyMechanism:
    """The privacy mechanism of that name.

    Args:
        name: "paper", "full_batch", "full_batch_steps", "dpsgd_shuffle", "dpsgd_poisson" or "client".
        adjacency: What a neighbouring data set is. Only `client` has a choice: "add-remove" at half the noise.

    Returns:
        What the mechanism protects against what, and which noise a budget buys.

    Raises:
        BadInput: There is no such mechanism, or not for this adjacency.

    Example:
        >>> import mppfl
        >>> from mppfl.privacy import LocalWork
        >>> mechanism = mppfl.privacy_mechanism("client")
        >>> mechanism.guarantee
        "ρ-zCDP for all of a client's data together"
        >>> mechanism.noise_std(0.5, clip_norm=1.0, work=LocalWork(num_examples=100))
        2.0
    """
    if name not in MECHANISMS:
        raise BadInput(f"privacy mechanism {name!r} is not known. Known: {', '.join(MECHANISMS)}.")
    mechanism = MECHANISMS[name]
    if adjacency is None or adjacency == mechanism.adjacency:
        return mechanism
    if name == "client" and adjacency == "add-remove":
        return replace(mechanism, adjacency="add-remove")
    raise BadInput(f"{name} is defined for adjacency {mechanism.adjacency!r}, not {adjacency!r}.")
