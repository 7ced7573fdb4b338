"""From clients' noisy updates to the next model: whose update counts how much, and what the server makes of the mean.

    size         θ_i = |D_i| / Σ|D|                                     the paper's text
    uniform      θ_i = 1 / number of participants
    noise_aware  θ_i = (θ⁰_i d + m) / (d + p δ_i²), m such that Σθ = 1   θ⁰ the size weights

noise_aware minimises E|Σθ_i Δ̃_i − Σθ⁰_i Δ_i|² over Σθ = 1, where Δ̃_i has noise of variance δ_i² in each of p
parameters and clients' updates lie d apart, E|Δ_i − mean|² = d. It uses only public values and the noisy uploads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.spec import Aggregation, TrainingConfig

COLUMNS_AT_ONCE = 2**18  # of all updates that are held in float64
NEXT_TO_NOTHING = 1e-200  # of the largest noise energy: smaller ones count as none
ADAM_DECAY = 0.99
ADAM_FLOOR = 1e-3  # the server's Adam of Reddi et al. 2021 (arXiv:2003.00295), which works with updates, not gradients


def weights_of_updates(
    how: Aggregation, num_examples: Any, noise_std: Any, updates: Tensor, dispersion: float | None = None
) -> tuple[Array, float]:
    """θ of each participant, and the dispersion d that was used (NaN where none was).

    `updates` [participants, parameters] are the noisy uploads; `dispersion` is estimated from them unless given.
    """
    sizes, std = np.asarray(num_examples, dtype=np.float64), np.asarray(noise_std, dtype=np.float64)
    if len(sizes) == 0:
        raise BadInput("nobody participates in this round, so there is nothing to aggregate.")
    by_size = sizes / sizes.sum()
    if how == "uniform":
        return np.full(len(sizes), 1 / len(sizes)), float("nan")
    if how == "num_examples":
        return by_size, float("nan")
    energy = updates.shape[1] * std**2  # p δ_i²
    d = estimated_dispersion(updates, energy) if dispersion is None else dispersion
    return noise_aware_weights(by_size, energy, d), d


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


def estimated_dispersion(updates: Tensor, energy: Array) -> float:
    """d from the noisy uploads: what of their squared distances the known noise does not explain, never below 0.

    E|Δ̃_i − Δ̃_j|² = 2d + e_i + e_j. Pairs are weighed by v_i v_j with v = 1/(e + median e): the noisiest say least.
    """
    if len(updates) < 2:
        return float("inf")  # one participant has nobody to differ from: its weight is 1 whatever d
    scale, largest = float(np.median(energy)), float(energy.max(initial=0.0)) or 1.0
    relative = (energy + scale) / largest
    v = 1 / np.maximum(relative, NEXT_TO_NOTHING) if scale > 0 else np.where(energy > 0, 0.0, 1.0)
    v = v / v.sum()
    along, squares, centre = torch.as_tensor(v, device=updates.device), 0.0, 0.0
    for start in range(0, updates.shape[1], COLUMNS_AT_ONCE):
        rows = updates[:, start : start + COLUMNS_AT_ONCE].double()
        squares += float((along * rows.square().sum(1)).sum())
        centre += float((along @ rows).square().sum())
    pairs = 1 - float((v**2).sum())  # Σ_{i≠j} v_i v_j
    if pairs <= 0:
        return float("inf")
    noise = float((v * energy).sum() - (v**2 * energy).sum())
    return max(0.0, (squares - centre - noise) / pairs)


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
