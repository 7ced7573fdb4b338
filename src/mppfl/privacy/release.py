"""What leaves a client: its update clipped and made noisy, together with its cost.

`release_updates` serves protections of whole updates; `clip_rows` and `noisy_answer` serve those that put noise on
every gradient inside local training. `round_cost` states the cost before anything is drawn, from public values alone,
so that it can be reserved in a ledger first.

Noise on a grid g raises the sensitivity from Δ to Δ + g√p (see noise.py). The standard deviation is raised with it,
σ = (Δ + g√p)·√(queries/(2ρ)), so the cost is the budget that was asked for, and a client never pays for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mppfl.arrays import Array, BoolArray, require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy.noise import (
    LARGEST_WHOLE_NUMBER,
    Floats,
    add_noise,
    chunks,
    grid_of,
    price_of_noise,
)
from mppfl.privacy.protection import Adjacency, LocalWork, NoiseKind, Protection, Unit, require_budget

if TYPE_CHECKING:
    from torch import Tensor

NORM_GUARD = 1 - 2.0**-23  # a clipped row stays within clip_norm although float32 rounds its coordinates
LARGEST_STD = 1e250  # far beyond any update, and well inside what a grid can be for


@dataclass(frozen=True, slots=True, repr=False)
class ReleaseCost:
    """What one release, or one noisy answer inside local training, costs one client: an entry of the privacy ledger.

    `round_cost` and `release_updates` make it; for a protection of your own, give what it spends.

    Attributes:
        client: Name of the client.
        protection: What protected it, in words.
        unit: What is protected: "record" or "client".
        adjacency: What a neighbouring data set is: "replace_one" or "zero_out".
        budget: ρ-zCDP spent whatever the data, rounding to the grid included; infinite without noise, None where the
            noise was calibrated to (ε, δ) and must not enter a zCDP sum.
        noise_multiplier: σ / (Δ + g√p) of each noisy answer.
        noise_kind: "gaussian", "discrete", "simulated" or "none".
        extra_delta: Total-variation distance of the noise drawn from the noise meant; (1 + e^ε) times it is added to δ.
        sampling_rate: Chance of a record to be in a batch; only where batches are Poisson-sampled.
        num_steps: Noisy steps of the whole round; only where batches are Poisson-sampled.
        in_sum: Whether one noise hides it with others, in a sum that opens as a whole.
        noise_std: σ of each noisy answer, in the unit of the update.
        round_index: Round of the release; 0 fits any.
        run: Run of the release; an empty one fits any.

    Example:
        >>> from mppfl.privacy import ReleaseCost
        >>> ReleaseCost("ann", "local client update", "client", "replace_one", budget=0.2)
        ReleaseCost(client='ann', protection='local client update', unit='client', adjacency='replace_one', budget=0.2)
    """

    client: str
    protection: str
    unit: Unit
    adjacency: Adjacency
    budget: float | None
    noise_multiplier: float | None = None
    noise_kind: NoiseKind | Literal["none"] = "gaussian"
    extra_delta: float = 0.0
    sampling_rate: float | None = None
    num_steps: int | None = None
    in_sum: bool = False
    noise_std: float = math.nan
    round_index: int = 0
    run: str = ""

    def __repr__(self) -> str:
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        given = [f"{name}={value!r}" for name, value, default in values if value is not default and value != default]
        return f"ReleaseCost({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class Releases:
    """Noisy updates, one row per client as they came in, and their costs.

    costs          one for every client that participated, in the order of the rows
    clipped        whose update was shortened. Not public: it is computed from the raw update.
    participating  who participated; the rows of the others are zeros
    """

    updates: Floats
    costs: tuple[ReleaseCost, ...]
    clipped: BoolArray
    participating: BoolArray


def release_updates(
    updates: Floats,
    budgets: Any,
    protection: Protection,
    *,
    work: LocalWork | Sequence[LocalWork],
    rng: np.random.Generator | None = None,
    clients: Sequence[str] | None = None,
    round_index: int,
    run: str,
) -> Releases:
    """Clips each update to the protection's `clip_norm` in ℓ2 and adds the noise that its client's budget buys.

    Args:
        updates: One client's vector, or a stack [clients, parameters], float32 or float64.
        budgets: ρ of each client in this round. A client with budget 0 takes no part; infinity means no noise.
        protection: One of whole updates, such as `Protection(unit="client")`.
        work: What each client did in the round, or one for all of them.
        rng: Stream of simulated noise, used for nothing else.
        clients: Names of the clients; without them their numbers from 0.
        round_index: Round, for the costs.
        run: Run, for the costs.

    Returns:
        The noisy updates with the cost of each client that participated, which a ledger takes as it is. Where the clip
        norm follows a quantile each has a last entry more, by which updates that were too long are counted.

    Raises:
        BadInput: An update holds NaN or infinity, or a budget cannot be met; the client is named and nothing of the
            stack is released.

    Example:
        >>> import numpy as np
        >>> import mppfl
        >>> from mppfl.privacy import LocalWork
        >>> noisy = mppfl.release_updates(
        ...     np.ones((2, 3)),
        ...     [0.5, 0.0],
        ...     mppfl.Protection(unit="client", noise="gaussian"),
        ...     work=LocalWork(num_examples=100),
        ...     clients=["ann", "bob"],
        ...     round_index=1,
        ...     run="survey",
        ... )
        >>> noisy.costs[0].client, noisy.costs[0].budget, round(noisy.costs[0].noise_std, 3)
        ('ann', 0.5, 2.0)
        >>> noisy.updates[1]
        array([0., 0., 0.])
    """
    if protection.clips_examples or protection.opens_sums:
        raise BadInput(
            f"{protection.name}: release_updates is for whole updates with noise of their own. Use "
            "Protection(unit='client')."
        )
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
    clip, num_entries = protection.clip_norm, protection.num_entries(num_parameters)
    scales = [_scale(row, clip, f"the update of client {name!r}") for row, name in zip(rows, names, strict=True)]
    prices = [
        round_cost(protection, rho, done, num_parameters, name, round_index, run) if rho != 0 else None
        for rho, done, name in zip(asked.tolist(), works, names, strict=True)
    ]
    out = np.zeros((num_clients, num_entries), dtype=rows.dtype)
    for row, target, scale, price in zip(rows, out, scales, prices, strict=True):
        if price is not None:
            _shorten(row, scale, target[:num_parameters])
            target[num_parameters:] = protection.count_size if scale < 1 else -protection.count_size
            add_noise(target, price.noise_std, protection.noise, rng, out=target)
    costs = tuple(price for price in prices if price is not None)
    participating = asked > 0
    return Releases(
        out.reshape(*np.shape(updates)[:-1], num_entries), costs, (np.array(scales) < 1) & participating, participating
    )


def round_cost(
    protection: Protection,
    budget: float | None,
    work: LocalWork,
    num_parameters: int,
    client: str,
    round_index: int,
    run: str,
    noise_multiplier: float | None = None,
) -> ReleaseCost:
    """What this client's whole round will cost, for the ledger, under noise of its own.

    Poisson batches take budget=None and `noise_multiplier`, the others a budget alone. Raises, naming the client, where
    the budget cannot be met; a client with budget 0 takes no part and has no cost.
    """
    answer = answer_cost(protection, budget, work, num_parameters, client, round_index, run, noise_multiplier)
    # δ adds over the answers in which a record or client is: elsewhere the same noise serves both neighbours.
    touched = protection.queries(work) if protection.is_zcdp else work.num_batches
    return replace(
        answer,
        budget=None if budget is None else protection.charged(float(budget), work),
        extra_delta=min(1.0, touched * answer.extra_delta),
    )


def answer_cost(
    protection: Protection,
    budget: float | None,
    work: LocalWork,
    num_parameters: int,
    client: str = "",
    round_index: int = 0,
    run: str = "",
    noise_multiplier: float | None = None,
) -> ReleaseCost:
    """What one noisy answer of the round costs: the share budget / queries, of a round's whole `budget`."""
    size = protection.num_entries(require_count(num_parameters, "num_parameters"))
    if protection.is_zcdp == (budget is None) or protection.is_zcdp != (noise_multiplier is None):
        raise BadInput(f"{protection.name} takes {'a budget' if protection.is_zcdp else 'a noise_multiplier'} alone.")
    std = _noise_std(protection, budget, noise_multiplier, work, size, client)
    price = price_of_noise(std, protection.noise, size)
    return ReleaseCost(
        client,
        protection.name,
        protection.unit,
        protection.adjacency or "replace_one",
        budget=None if budget is None else protection.charged(float(budget), work) / protection.queries(work),
        noise_multiplier=std / (protection.sensitivity(work) + price.sensitivity_added),
        noise_kind=price.kind,
        extra_delta=price.extra_delta,
        sampling_rate=None if protection.is_zcdp else work.sampling_rate,
        num_steps=None if protection.is_zcdp else work.num_batches,
        noise_std=std,
        round_index=round_index,
        run=run,
    )


def std_with_grid(sensitivity: float, noise_multiplier: float, num_parameters: int, kind: NoiseKind) -> float:
    """σ with σ = noise_multiplier · (Δ + g√p), where g is the grid of σ itself.

    Raises where no σ is enough because the grid grows with it faster than the noise does.
    """
    std = noise_multiplier * sensitivity
    for _ in range(64):
        raised = noise_multiplier * (sensitivity + grid_of(std, kind) * math.sqrt(num_parameters))
        if raised > LARGEST_STD:
            break
        if grid_of(raised, kind) == grid_of(std, kind):
            return raised
        std = raised
    finer = "noise='gaussian', " if kind == "discrete" else ""
    raise BadInput(
        f"{kind} noise of {noise_multiplier:.3g} times the sensitivity on {num_parameters:,} parameters drowns in its "
        f"own rounding. Use {finer}a larger budget, or fewer parameters."
    )


def _noise_std(
    protection: Protection,
    budget: float | None,
    noise_multiplier: float | None,
    work: LocalWork,
    num_parameters: int,
    client: str,
) -> float:
    """σ that makes one round cost `budget`; 0 for an infinite budget. Checks, from public values alone, that it can."""
    name, kind = "noise" if budget is None else "budget", protection.noise
    try:
        if budget is None:
            multiplier = require_number(noise_multiplier or 0.0, "noise_multiplier", 0.0, 1e100)
        else:
            rho = require_budget(budget)
            if math.isinf(rho):
                return 0.0
            multiplier = math.sqrt(protection.queries(work) / (2 * rho))
        std = std_with_grid(protection.sensitivity(work), multiplier, num_parameters, kind)
    except BadInput as cause:
        raise BadInput(f"The {name} of client {client!r} cannot be met. {cause}") from cause
    reach = protection.longest * (work.num_examples if protection.answers_sums else 1)
    if kind != "simulated" and reach >= LARGEST_WHOLE_NUMBER * grid_of(std, kind) / 2:
        asked = f"noise_multiplier={multiplier:g}" if budget is None else f"budget={budget:g}"
        raise BadInput(
            f"{asked} of client {client!r} buys noise of {std:.3g} on updates of length {protection.longest:g}: too "
            "little for a grid. Use a smaller budget, or an infinite one for no noise."
        )
    return std


def clip_and_count(vector: Floats, protection: Protection) -> Floats:
    """One raw vector as it gets noise: shortened to `clip_norm`, and with its count behind it where there is one.

    The mean gradient of a client comes with its count, which its engine has made of those of single records.
    """
    size = protection.num_entries(0)
    row, count = (vector[:-1], vector[-1:]) if size and protection.clips_examples else (vector, None)
    clipped, was_long = clip_rows(np.atleast_2d(row), protection.clip_norm)
    if not size:
        return np.asarray(clipped[0])
    if count is None:
        count = np.where(was_long, protection.count_size, -protection.count_size)
    bounded = np.clip(np.nan_to_num(count), -protection.count_size, protection.count_size)
    return np.append(clipped[0], bounded.astype(clipped.dtype))


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
    protection: Protection,
    work: LocalWork,
    rng: np.random.Generator | None = None,
    *,
    noise_multiplier: float | None = None,
) -> tuple[Floats, ReleaseCost]:
    """One mean of clipped gradients, or one sum over a batch of them, with noise, and that answer's cost.

    `budget` is that of the whole round; the cost is this answer's share, budget / queries. A record pays for the
    answers it is in: all full-batch steps, one batch per epoch of shuffled ones. Poisson batches take budget=None and
    `noise_multiplier`; their cost has no budget, but the sampling rate and the steps of the whole round.
    """
    if not protection.clips_examples:
        raise BadInput(f"{protection.name} puts its noise on the whole update; use release_updates.")
    values = _floats(total, "total")
    num_parameters = values.size - protection.num_entries(0)
    cost = answer_cost(protection, budget, work, num_parameters, noise_multiplier=noise_multiplier)
    return add_noise(values, cost.noise_std, protection.noise, rng).values, cost


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


def release_on_device(
    updates: Tensor, costs: Sequence[ReleaseCost], protection: Protection, seeds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Each row as it leaves, with its count if any and the noise its cost states, and which were shortened: simulation.

    updates  [clients, parameters] on any device; one cost (from `round_cost`) and one seed for each row

    Noise that protects leaves only by `release_updates`: PyTorch's normals are seeded, float32 and cut off near 5.8 σ.
    """
    import torch

    if not len(updates) == len(costs) == len(seeds):
        raise BadInput(f"{len(updates)} updates came with {len(costs)} costs and {len(seeds)} seeds.")
    for cost in costs:
        if cost.noise_kind not in ("simulated", "none"):
            raise BadInput(f"noise {cost.noise_kind!r} is not drawn on a device; use mppfl.privacy.release_updates.")
    norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    for cost, finite in zip(costs, torch.isfinite(norms).tolist(), strict=True):
        if not finite:
            raise BadInput(
                f"The update of client {cost.client!r} holds NaN or infinity and is not released. Check its training."
            )
    clip_norm, size = protection.clip_norm, updates.shape[1]
    scales = torch.where(norms <= clip_norm, 1.0, NORM_GUARD * clip_norm / norms)
    released = updates.new_empty((len(updates), protection.num_entries(size)))
    for row, update, scale in zip(released, updates, scales, strict=True):
        row[:size] = update.double() * scale  # row by row, so that float64 takes little memory
        row[size:] = torch.where(scale < 1, protection.count_size, -protection.count_size)
    generator = torch.Generator(device=updates.device)
    for row, cost, seed in zip(released, costs, seeds, strict=True):
        if cost.noise_std > 0:
            generator.manual_seed(seed)
            row.add_(
                torch.randn(row.shape, generator=generator, device=row.device, dtype=row.dtype), alpha=cost.noise_std
            )
    return released, scales < 1
