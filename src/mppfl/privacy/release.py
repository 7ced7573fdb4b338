"""What leaves a client: its update clipped and made noisy, together with what that cost.

`release` serves the mechanisms that put noise on a whole update (`paper`, `client`); `clip_rows` and `noisy_answer`
serve those that put it on every gradient inside local training. The cost is returned with the noisy values, so that an
account cannot drift from the noise that was drawn; `round_cost` says the same before anything is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.arrays import Array, BoolArray, require_number
from mppfl.errors import BadInput
from mppfl.privacy.cost import ReleaseCost, answer_cost, cost_of_round, round_cost
from mppfl.privacy.mechanism import LocalWork, PrivacyMechanism
from mppfl.privacy.noise import Floats, NoiseKind, add_noise, chunks

__all__ = ["Release", "ReleaseCost", "clip_rows", "cost_of_round", "noisy_answer", "release", "round_cost"]

NORM_GUARD = 1 - 2.0**-23  # a clipped row stays within clip_norm although float32 rounds its coordinates


@dataclass(frozen=True, slots=True)
class Release:
    """Noisy updates, one row per client as they came in, and their costs.

    costs          one for every client that took part, in the order of the rows
    clipped        whose update was shortened. Not public: it is computed from the raw update.
    participating  who took part; the rows of the others are zeros
    """

    updates: Floats
    costs: tuple[ReleaseCost, ...]
    clipped: BoolArray
    participating: BoolArray


def release(
    updates: Floats,
    budgets: Any,
    *,
    mechanism: PrivacyMechanism,
    clip_norm: float,
    work: LocalWork | Sequence[LocalWork],
    noise: NoiseKind,
    rng: np.random.Generator | None = None,
    clients: Sequence[str] | None = None,
    round_index: int,
    run: str,
) -> Release:
    """Clips each update to `clip_norm` in ℓ2 and adds the noise its client's budget buys.

    `updates` is one client's vector or a stack [clients, parameters], float32 or float64. A client with budget 0 takes
    no part. Raises, naming the client, where an update holds NaN or infinity: nothing of the stack is released then.
    """
    if mechanism.noise_on != "update":
        raise BadInput(f"{mechanism.name} puts its noise on every {mechanism.noise_on}; use noisy_answer in training.")
    clip = require_number(clip_norm, "clip_norm", 0.0, math.inf)
    rows = np.atleast_2d(_floats(updates, "updates"))
    if rows.ndim != 2 or not rows.size:
        raise BadInput(f"updates of shape {np.shape(updates)} must be a vector or [clients, parameters].")
    num_clients, num_parameters = rows.shape
    names = [str(number) for number in range(num_clients)] if clients is None else list(clients)
    works = [work] * num_clients if isinstance(work, LocalWork) else list(work)
    asked = np.atleast_1d(np.asarray(budgets, dtype=np.float64))
    if not len(names) == len(works) == num_clients or asked.shape != (num_clients,):
        raise BadInput(
            f"{num_clients} updates came with {len(names)} clients, {len(works)} works and budgets of shape "
            f"{asked.shape}; give one of each per update."
        )
    scales = [_scale(row, clip, f"the update of client {name!r}") for row, name in zip(rows, names, strict=True)]
    prices = [
        round_cost(mechanism, rho, clip, done, noise, num_parameters, name, round_index, run) if rho != 0 else None
        for rho, done, name in zip(asked.tolist(), works, names, strict=True)
    ]
    out = np.zeros_like(rows, order="C")
    for row, released, scale, price in zip(rows, out, scales, prices, strict=True):
        if price is not None:
            _shorten(row, scale, released)
            add_noise(released, price.noise_std, noise, rng, out=released)
    costs = tuple(price for price in prices if price is not None)
    participating = asked > 0
    return Release(out.reshape(np.shape(updates)), costs, (np.array(scales) < 1) & participating, participating)


def clip_rows(per_example: Floats, clip_norm: float) -> tuple[Floats, BoolArray]:
    """Rows shortened to `clip_norm` in ℓ2, and which were. Short rows are left: stretching would raise sensitivity."""
    clip = require_number(clip_norm, "clip_norm", 0.0, math.inf)
    rows = _floats(per_example, "per_example")
    if rows.ndim != 2:
        raise BadInput(f"per_example of shape {rows.shape} must be [examples, parameters].")
    scales = np.array([_scale(row, clip, f"the gradient of example number {k}") for k, row in enumerate(rows)])
    clipped = np.empty_like(rows, order="C")
    for row, scale, target in zip(rows, scales.tolist(), clipped, strict=True):
        _shorten(row, scale, target)
    return clipped, scales < 1


def noisy_answer(
    total: Floats,
    budget: float | None,
    mechanism: PrivacyMechanism,
    clip_norm: float,
    work: LocalWork,
    noise: NoiseKind,
    rng: np.random.Generator | None = None,
    *,
    noise_multiplier: float | None = None,
    client: str = "",
    round_index: int = 1,
    run: str = "",
) -> tuple[Floats, ReleaseCost]:
    """One mean of clipped gradients, or one sum over a batch of them, with noise, and that answer's cost.

    `budget` is that of the whole round; the cost is this answer's share, budget / queries. A record pays for the
    answers it is in: all steps of full_batch_steps, one batch per epoch of dpsgd_shuffle. dpsgd_poisson takes
    budget=None and `noise_multiplier`; its cost has no budget, but the sampling rate and the steps of the whole round.
    """
    if mechanism.noise_on == "update":
        raise BadInput(f"{mechanism.name} puts its noise on the whole update; use release.")
    values = _floats(total, "total")
    cost = answer_cost(
        mechanism, budget, clip_norm, work, noise, values.size, client, round_index, run, noise_multiplier
    )
    return add_noise(values, cost.noise_std, noise, rng).values, cost


def _floats(values: Floats, name: str) -> Floats:
    """The values as they are, if they are a float32 or float64 array."""
    array = np.asarray(values)
    if array.dtype not in (np.float32, np.float64):
        raise BadInput(f"{name} of type {array.dtype} must be float32 or float64.")
    return array


def _scale(row: Floats, clip_norm: float, whose: str) -> float:
    """What to multiply the row by: 1 unless it is longer than `clip_norm`. Raises where an entry is not finite."""
    largest = float(np.abs(row).max(initial=0.0))
    if not math.isfinite(largest):
        raise BadInput(f"{whose[0].upper()}{whose[1:]} holds NaN or infinity and is not released. Check its training.")
    if largest == 0:
        return 1.0
    squares = 0.0
    for part in chunks(row.size):
        scaled: Array = row[part].astype(np.float64) / largest  # so that squares neither overflow nor vanish
        squares += float(scaled @ scaled)
    norm_over_clip = math.sqrt(squares) * (largest / clip_norm)
    return 1.0 if norm_over_clip <= 1 else NORM_GUARD / norm_over_clip


def _shorten(row: Floats, scale: float, target: Floats) -> None:
    """row · scale into `target`, with the product taken in float64."""
    for part in chunks(row.size):
        target[part] = row[part].astype(np.float64) * scale if scale < 1 else row[part]
