"""PaperNoise: the protection that the paper trains with, and what its budgets really cost.

The whole update of a client is shortened and gets the noise that would hide a record in one mean gradient (2𝒮/n). One
record can turn such an update round (2𝒮), so a budget of ρ costs n²ρ in the worst case. Nobody should use it for more
than this reproduction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.fields import About
from mppfl.privacy import LocalWork, Protection, epsilon, require_budget

ABOVE_ROUNDING = 1 + 1e-12  # another sum of squares must not shorten the update whose length is the median
MOST_DIVERGED = 0.5  # share of the first round's updates beyond which a training is no measurement of its mechanism


@dataclass(frozen=True, repr=False)
class PaperNoise(Protection):
    """Noise of a mean gradient on a whole update, shortened to the median length of the first round's updates.

    A budget of ρ buys noise of standard deviation 2𝒮/(n√(2ρ)), as in the paper, and is charged as n²ρ, which is what
    holds for every record whatever the data.
    """

    is_settled: Annotated[bool, About("Whether clip_norm is known, by the first round or by whoever gave it.")] = False

    def _check(self) -> None:
        if self.release is None:
            object.__setattr__(self, "release", "update")
        super()._check()

    def _require_unit_and_release(self) -> None:
        values = (self.unit, self.release, self.trust, self.noise, self.clip_quantile)
        if values != ("record", "update", "local", "simulated", None):
            raise BadInput(
                f"the paper's noise is for records in whole updates that leave clients, and a simulation; not for "
                f"unit={self.unit!r}, release={self.release!r}, trust={self.trust!r}, noise={self.noise!r}, or a "
                "clip_quantile. Leave them out."
            )

    def sensitivity(self, work: LocalWork) -> float:
        """2𝒮/n, as the paper declares it; it holds for one full-batch mean gradient alone."""
        return self.reach() / work.num_examples

    def charged(self, budget: float, work: LocalWork) -> float:
        """n²ρ: noise for 2𝒮/n on an update that one record moves by up to 2𝒮."""
        return work.num_examples**2 * require_budget(budget)

    @property
    def guarantee(self) -> str:
        return "ρ-zCDP for each record of n by the paper's count, n²ρ-zCDP whatever the data"

    @property
    def has_clip_norm(self) -> bool:
        return self.is_settled

    def with_clip_norm(self, clip_norm: float) -> Self:
        return replace(self, clip_norm=clip_norm, is_settled=True)

    def with_clip_norm_of(self, lengths: Array) -> Self:
        """The same with the median length for 𝒮. Raises where most of the updates are no numbers."""
        finite = lengths[np.isfinite(lengths)]
        if len(lengths) - len(finite) > MOST_DIVERGED * len(lengths):
            raise BadInput(
                f"{len(lengths) - len(finite)} of the first round's {len(lengths)} updates hold NaN or infinity. "
                "Nothing was measured. Lower the learning rate, or look for a fault of the engine."
            )
        median = float(np.median(finite))
        if not median > 0:
            raise BadInput(
                f"the median length of the first round's updates is {median:g}, which is no length to shorten to. "
                "Check learning_rate and the data."
            )
        return self.with_clip_norm(ABOVE_ROUNDING * median)


def nominal_epsilon(budgets: Array, participating: Array, dp_delta: float) -> float:
    """ε of the client who spends most as the paper counts, where a budget of ρ costs ρ; infinite without noise.

    budgets        ρ of the training, [rounds, clients]
    participating  who uploaded, [rounds, clients]
    """
    totals = np.where(participating, budgets, 0.0).sum(axis=0)
    most = float(totals.max(initial=0.0))
    return float(epsilon(most, dp_delta))
