"""From clients' noisy updates to the next model: whose update counts how much, and what the server makes of the mean.

    num_examples θ_i = |D_i| / Σ|D|                                     the paper's text
    uniform      θ_i = 1 / number of participants
    noise_aware  θ_i = (θ⁰_i d + m) / (d + p δ_i²), m such that Σθ = 1   θ⁰ the size weights

noise_aware minimises E|Σθ_i Δ̃_i − Σθ⁰_i Δ_i|² over Σθ = 1, where Δ̃_i has noise of variance δ_i² in each of p
parameters and clients' updates lie d apart, E|Δ_i − mean|² = d. It uses only public values and the noisy uploads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array, IntArray
from mppfl.errors import BadInput
from mppfl.spec import Aggregation, TrainingConfig

COLUMNS_AT_ONCE = 2**18  # of all sums that are held in float64
MOST_KINDS = 64  # of noise, whose uploads are added up apart
NEXT_TO_NOTHING = 1e-200  # of the largest noise energy: smaller ones count as none
ADAM_DECAY = 0.99
ADAM_FLOOR = 1e-3  # the server's Adam of Reddi et al. 2021 (arXiv:2003.00295), which works with updates, not gradients


class WeightedMean:
    """The weighted mean of noisy uploads [parameters], added up as they come.

    Weights of `num_examples` and `uniform` are known before. Those of `noise_aware` depend on the dispersion, which the
    uploads tell. Among clients of one noise they are θ_i = slope · θ⁰_i + share, so two sums for every kind of noise
    are enough: exactly up to MOST_KINDS kinds, beyond that clients of nearly the same noise count as of one.

    noise_std   of each client's upload, per parameter
    dispersion  estimated from the uploads unless given
    """

    def __init__(
        self, how: Aggregation, num_examples: Any, noise_std: Any, num_parameters: int, dispersion: float | None = None
    ) -> None:
        sizes, std = np.asarray(num_examples, dtype=np.float64), np.asarray(noise_std, dtype=np.float64)
        if len(sizes) == 0:
            raise BadInput("nobody participates in this round, so there is nothing to aggregate.")
        self.how, self.dispersion = how, dispersion
        self.by_size = np.full(len(sizes), 1 / len(sizes)) if how == "uniform" else sizes / sizes.sum()
        self.energy = num_parameters * std**2  # p δ_i²
        self.kinds: IntArray = np.zeros(len(sizes), dtype=np.int64)
        if how == "noise_aware":
            self.kinds = kinds_of(self.energy)
            self.energy = (np.bincount(self.kinds, self.energy) / np.bincount(self.kinds))[self.kinds]
        of_kind = [self.by_size[self.kinds == kind] for kind in range(int(self.kinds.max()) + 1)]
        self._size = [float(weights[0]) if np.ptp(weights) == 0 else None for weights in of_kind]  # that all have
        self._totals: list[Tensor | None] = [None] * len(of_kind)  # Σ of the uploads of each kind,
        self._by_size: list[Tensor | None] = [None] * len(of_kind)  # and with θ⁰ where that differs
        self._squares = np.zeros(len(sizes))

    def add(self, number: int, upload: Tensor) -> None:
        """Adds the upload of the client of this number, which may be overwritten afterwards."""
        kind = int(self.kinds[number])
        if self.how != "noise_aware" or self._size[kind] is None:
            self._by_size[kind] = _added(self._by_size[kind], upload, torch.float64, float(self.by_size[number]))
        if self.how == "noise_aware":
            self._squares[number] = float(torch.linalg.vector_norm(upload, dtype=torch.float64)) ** 2
            dtype = upload.dtype if len(self.kinds) == len(self._totals) else torch.float64
            self._totals[kind] = _added(self._totals[kind], upload, dtype)

    def result(self) -> tuple[Tensor, Array, float]:
        """The mean, the weight θ of each client, and the dispersion d that was used (NaN where none was)."""
        if self.how != "noise_aware":
            return _of_all(self._by_size)[0], self.by_size, float("nan")
        totals, d = _of_all(self._totals), self.dispersion
        if d is None:
            d = estimated_dispersion(totals, self.kinds, self._squares, self.energy)
        slopes, shares = _weights_in_parts(self.by_size, self.energy, d)
        parts = []
        for kind, number in enumerate(np.unique(self.kinds, return_index=True)[1]):
            slope, share, size = float(slopes[number]), float(shares[number]), self._size[kind]
            parts.append((share + slope * (size or 0.0)) * totals[kind])
            if size is None:
                parts.append(slope * _of_all(self._by_size[kind : kind + 1])[0])
        return sum(parts[1:], parts[0]), slopes * self.by_size + shares, d


def _added(total: Tensor | None, upload: Tensor, dtype: torch.dtype, weight: float = 1.0) -> Tensor:
    """The total, which is in this precision, and weight times the upload, without a copy of it."""
    return upload.to(dtype, copy=True).mul_(weight) if total is None else total.add_(upload, alpha=weight)


def _of_all(totals: Sequence[Tensor | None]) -> list[Tensor]:
    return [total for total in totals if total is not None]


def kinds_of(energy: Array) -> IntArray:
    """The kind of each client: alike in noise energy; where these are many, in equal steps of its logarithm.

    Clients without noise are a kind of their own.
    """
    values, kinds = np.unique(energy, return_inverse=True)
    if len(values) > MOST_KINDS:
        logs = np.log(values[values > 0])
        steps = (logs - logs[0]) / (logs[-1] - logs[0]) * (MOST_KINDS - 1)
        joined = 1 + np.minimum(steps.astype(np.int64), MOST_KINDS - 2)
        if values[0] == 0:
            joined = np.concatenate([[0], joined])
        kinds = np.unique(joined[kinds], return_inverse=True)[1]
    return np.asarray(kinds)


def weights_of_updates(
    how: Aggregation, num_examples: Any, noise_std: Any, updates: Tensor, dispersion: float | None = None
) -> tuple[Array, float]:
    """θ of each participant, and the dispersion d that was used, for noisy uploads [participants, parameters]."""
    mean = WeightedMean(how, num_examples, noise_std, updates.shape[1], dispersion)
    for number, upload in enumerate(updates):
        mean.add(number, upload)
    return mean.result()[1:]


def noise_aware_weights(by_size: Array, energy: Array, dispersion: float) -> Array:
    """θ_i = (θ⁰_i d + m)/(d + e_i) with Σθ = 1; d = 0 gives inverse-variance weights, d = ∞ the size weights.

    Where some clients add no noise and d = 0, they alone count, by size.
    """
    slopes, shares = _weights_in_parts(by_size, energy, dispersion)
    return np.asarray(slopes * by_size + shares)


def _weights_in_parts(by_size: Array, energy: Array, dispersion: float) -> tuple[Array, Array]:
    """d/(d + e_i) and m/(d + e_i) of each client, which are the same for clients of the same noise."""
    nothing = np.zeros(len(by_size))
    if np.isinf(dispersion) or not energy.any():
        return nothing + 1, nothing
    largest = max(dispersion, float(energy.max()))
    d, spread = dispersion / largest, dispersion / largest + energy / largest  # only ratios matter
    exact = spread < NEXT_TO_NOTHING
    if exact.any():  # d = 0: uploads without noise are all the same, and exact
        return np.where(exact, 1 / by_size[exact].sum(), 0.0), nothing
    inverse = 1 / spread
    missing = (1 - (by_size * d * inverse).sum()) / inverse.sum()
    return d * inverse, missing * inverse


def estimated_dispersion(totals: Sequence[Tensor], kinds: IntArray, squares: Array, energy: Array) -> float:
    """d from the noisy uploads: what of their squared distances the known noise does not explain, never below 0.

    E|Δ̃_i − Δ̃_j|² = 2d + e_i + e_j. Pairs are weighed by v_i v_j with v = 1/(e + median e): the noisiest say least.

    totals   sums of the uploads of each kind of clients
    squares  squared length of each upload
    """
    if len(kinds) < 2:
        return float("inf")  # one participant has nobody to differ from: its weight is 1 whatever d
    scale, largest = float(np.median(energy)), float(energy.max(initial=0.0)) or 1.0
    relative = (energy + scale) / largest
    v = 1 / np.maximum(relative, NEXT_TO_NOTHING) if scale > 0 else np.where(energy > 0, 0.0, 1.0)
    v = v / v.sum()
    pairs = 1 - float((v**2).sum())  # Σ_{i≠j} v_i v_j
    if pairs <= 0:
        return float("inf")
    _, first = np.unique(kinds, return_index=True)
    centre = 0.0
    for start in range(0, len(totals[0]), COLUMNS_AT_ONCE):
        part = slice(start, start + COLUMNS_AT_ONCE)
        column = sum(float(w) * total[part].double() for w, total in zip(v[first], totals, strict=True))
        centre += float(torch.as_tensor(column).square().sum())
    noise = float((v * energy).sum() - (v**2 * energy).sum())
    return max(0.0, (float(v @ squares) - centre - noise) / pairs)


def server_step(
    weights: Tensor, mean_update: Tensor, memory: dict[str, Tensor], config: TrainingConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The next model and the optimiser's memory, from the weighted mean of the updates."""
    rate = config.server_learning_rate
    if config.server_optimizer == "sgd":
        return weights + rate * mean_update, {}
    before = memory.get("momentum", torch.zeros_like(weights))
    if config.server_optimizer == "momentum":
        velocity = config.server_momentum * before + mean_update
        return weights + rate * velocity, {"momentum": velocity}
    beta = config.server_momentum
    first = beta * before + (1 - beta) * mean_update
    second = memory.get("variance", torch.full_like(weights, ADAM_FLOOR**2))
    second = ADAM_DECAY * second + (1 - ADAM_DECAY) * mean_update.square()
    return weights + rate * first / (second.sqrt() + ADAM_FLOOR), {"momentum": first, "variance": second}
