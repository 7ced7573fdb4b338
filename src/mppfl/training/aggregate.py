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
MOST_KINDS = 64  # of clients, whose uploads are added up apart
NEXT_TO_NOTHING = 1e-200  # of the largest noise energy: smaller ones count as none
ADAM_DECAY = 0.99
ADAM_FLOOR = 1e-3  # the server's Adam of Reddi et al. 2021 (arXiv:2003.00295), which works with updates, not gradients


class WeightedMean:
    """The weighted mean of noisy uploads [parameters], added up as they come.

    Weights of `num_examples` and `uniform` are known before. Those of `noise_aware` depend on the dispersion, which the
    uploads tell, so uploads of clients that are alike in size and noise are added up apart: exactly up to MOST_KINDS
    kinds of clients, beyond that clients of nearly the same noise count as of one kind.

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
            self.kinds = kinds_of(self.by_size, self.energy)
            self.by_size, self.energy = _means_of(self.by_size, self.kinds), _means_of(self.energy, self.kinds)
        self._totals: list[Tensor | None] = [None] * (int(self.kinds.max()) + 1)
        self._squares = np.zeros(len(sizes))

    def add(self, number: int, upload: Tensor) -> None:
        """Adds the upload of the client of this number."""
        kind, total = int(self.kinds[number]), self._totals[int(self.kinds[number])]
        if self.how == "noise_aware":
            self._squares[number] = float(torch.linalg.vector_norm(upload, dtype=torch.float64)) ** 2
            part = upload.clone() if len(self.kinds) == len(self._totals) else upload.double()
        else:
            part = upload.double() * self.by_size[number]
        self._totals[kind] = part if total is None else total.add_(part)

    def result(self) -> tuple[Tensor, Array, float]:
        """The mean, the weight θ of each client, and the dispersion d that was used (NaN where none was)."""
        totals = [total for total in self._totals if total is not None]
        if self.how != "noise_aware":
            return totals[0], self.by_size, float("nan")
        d = self.dispersion
        if d is None:
            d = estimated_dispersion(totals, self.kinds, self._squares, self.energy)
        theta = noise_aware_weights(self.by_size, self.energy, d)
        _, first = np.unique(self.kinds, return_index=True)
        return sum(float(w) * total for w, total in zip(theta[first], totals, strict=True)), theta, d  # type: ignore[return-value]


def kinds_of(by_size: Array, energy: Array) -> IntArray:
    """The kind of each client: alike in size and noise; where these are many, neighbours in noise and then size."""
    pairs, kinds = np.unique(np.stack([energy, by_size], axis=1), axis=0, return_inverse=True)
    return np.asarray(kinds.reshape(-1) * min(len(pairs), MOST_KINDS) // len(pairs))


def _means_of(values: Array, kinds: IntArray) -> Array:
    """The mean of each client's kind."""
    return np.asarray((np.bincount(kinds, values) / np.bincount(kinds))[kinds])


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
    if np.isinf(dispersion) or not energy.any():
        return by_size
    largest = max(dispersion, float(energy.max()))
    d, spread = dispersion / largest, dispersion / largest + energy / largest  # only ratios matter
    exact = spread < NEXT_TO_NOTHING
    if exact.any():  # d = 0: uploads without noise are all the same, and exact
        alone = np.where(exact, by_size, 0.0)
        return np.asarray(alone / alone.sum())
    inverse = 1 / spread
    missing = (1 - (by_size * d * inverse).sum()) / inverse.sum()
    return np.asarray((by_size * d + missing) * inverse)


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
