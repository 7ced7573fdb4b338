"""Whether an upload can be what it claims: finite, of the right form, and no longer than an honest one may be.

An upload is a clipped update c with |c| ≤ L plus Gaussian noise of standard deviation σ in each of p coordinates. Then
|c + z|²/σ² is a noncentral χ² with p degrees of freedom and noncentrality |c|²/σ² ≤ (L/σ)², and (Birgé 2001, Lemma 8.1)

    P( X ≥ p + b + 2√((p + 2b)x) + 2x ) ≤ e^(−x),      b = (L/σ)², x = ln(1/false_alarm_rate).

Where noise goes into every gradient, later gradients depend on earlier noise, and only |c + z| ≤ L + |z| holds; |z| is
bounded by the same lemma with b = 0. The bound is never exceeded by an honest client but with the stated chance. It
catches uploads that would move the model further than their price allows, and clients who add more noise than they are
paid for. It does not catch a lie within the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mppfl.arrays import require_number
from mppfl.flower.vector import Vector
from mppfl.privacy import LocalWork, NoiseKind, ReleaseCost, grid_of
from mppfl.training import TrainingConfig, noise_in_update, times_counted

FALSE_ALARM_RATE = 1e-9  # of one honest upload
FLOAT32_ROUNDING = 1 + 2.0**-22


@dataclass(frozen=True, slots=True)
class HonestUpload:
    """What an honest upload consists of, from public values alone.

    length      the most that the update without noise can measure in ℓ2
    noise_std   standard deviation of the noise in each coordinate
    rounding    the most that rounding to the grid of the noise can add to its length
    adapts      whether the update may depend on the noise, as where every gradient has some
    """

    length: float
    noise_std: float
    rounding: float
    adapts: bool

    def longest(self, num_parameters: int, false_alarm_rate: float = FALSE_ALARM_RATE) -> float:
        """The length that an honest upload exceeds with at most the chance `false_alarm_rate`."""
        rate = require_number(false_alarm_rate, "false_alarm_rate", 0.0, 1.0)
        if self.noise_std == 0:
            return self.length * FLOAT32_ROUNDING
        x, p = math.log(1 / rate), float(num_parameters)
        b = 0.0 if self.adapts else (self.length / self.noise_std) ** 2
        noisy = self.noise_std * math.sqrt(p + b + 2 * math.sqrt((p + 2 * b) * x) + 2 * x)
        return ((self.length if self.adapts else 0.0) + noisy + self.rounding) * FLOAT32_ROUNDING


def honest_upload(config: TrainingConfig, work: LocalWork, cost: ReleaseCost, num_parameters: int) -> HonestUpload:
    """What the terms of a round allow an upload to be."""
    clip = float(config.clip_norm)
    kind: NoiseKind = config.noise
    rounding = grid_of(cost.noise_std, kind) * math.sqrt(num_parameters)
    if config.mechanism.noise_on == "update":
        return HonestUpload(clip, cost.noise_std, rounding, adapts=False)
    # Each step moves the weights by the rate times a mean of gradients of length 𝒮 at most.
    reach = config.learning_rate * sum(times_counted(config, work))
    return HonestUpload(clip * reach, noise_in_update(config, work, cost), rounding * reach, adapts=True)


def fault_of(upload: Vector, honest: HonestUpload, false_alarm_rate: float = FALSE_ALARM_RATE) -> str:
    """Why the upload is not taken, in one line; empty if it is."""
    if not np.isfinite(upload).all():
        return f"holds {int((~np.isfinite(upload)).sum()):,} entries that are NaN or infinite"
    values = upload.astype(np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    length = largest * float(np.linalg.norm(values / largest)) if largest else 0.0
    longest = honest.longest(upload.size, false_alarm_rate)
    if length > longest:
        return (
            f"measures {length:.4g}; an honest one exceeds {longest:.4g} with a chance of at most {false_alarm_rate:g}"
        )
    return ""
