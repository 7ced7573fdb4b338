"""Clients' response, the leader's rate and sums over clients, on a device of PyTorch's: inside the bounds alone.

The twin of equilibrium.py, rates.py and the compiled sums of kernels.py. Vectors over clients stay where they are; what
comes back are rates, interval ends and sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mppfl.arrays import Array, IntArray
from mppfl.game.device_loss import DeviceLoss
from mppfl.game.model import Clients
from mppfl.game.rates import RateCondition, rates_by_condition
from mppfl.network import to_device

CLIENTS_AT_ONCE = 2**22  # summed together: some 80 bytes each

LineLeader = Literal["mean_field", "anticipating"]


@dataclass(frozen=True, eq=False)
class DeviceClients:
    """`Clients` as tensors, one entry per client; what is the same for all takes the memory of one number."""

    quadratic_cost: Tensor
    linear_cost: Tensor
    noise_harm: Tensor
    compute_cost: Tensor
    budget_min: Tensor
    budget_max: Tensor

    @property
    def num_clients(self) -> int:
        return len(self.quadratic_cost)


def clients_on_device(clients: Clients, device: torch.device) -> DeviceClients:
    """What privacy is worth to each client, brought to a device."""

    def brought(values: Array) -> Tensor:
        if (values == values[0]).all():
            return torch.full((1,), float(values[0]), dtype=torch.float64, device=device).expand(len(values))
        return to_device(values, device)

    return DeviceClients(**{f.name: brought(getattr(clients, f.name)) for f in fields(DeviceClients)})


@dataclass(frozen=True, eq=False)
class DeviceLine:
    """`Response` with tensors and equal prices: ρ(r) = r·slope − offset, inside the bounds between two rates (eq. 14).

    free  clients that respond, None for everybody; the others stay at a constant budget
    """

    slope: Tensor
    offset: Tensor
    lowest_rate: float
    highest_rate: float
    free: Tensor | None

    @property
    def has_interior(self) -> bool:
        return self.lowest_rate < self.highest_rate

    @cached_property
    def everybody_gains_interest(self) -> bool:
        """Whether every free client shares more when the rate rises (u_i > 0): then the leader's problem is convex."""
        return bool(_of_free(self.slope > 0, self.free, True).all())

    def holds(self, rates: Array) -> bool:
        """Whether every rate keeps all free clients strictly inside their bounds."""
        return bool(((rates > self.lowest_rate) & (rates < self.highest_rate)).all())


def line_on_device(loss: DeviceLoss, clients: DeviceClients) -> DeviceLine:
    """The affine family u = B⁻¹(1/2a), v = B⁻¹(b/2a) of Nash equilibria (model, eq. 14), on the device.

    Clients whose bounds leave no choice stay at budget_min, and the family is that of the others.
    """
    movable = clients.budget_max > clients.budget_min
    free = None if bool(movable.all()) else movable
    inverse = (2 * clients.quadratic_cost).reciprocal()
    right = torch.stack([inverse, clients.linear_cost * inverse], dim=1)
    fixed = None if free is None else torch.where(free, 0.0, clients.budget_min)
    if fixed is not None:
        right[:, 1] += loss @ fixed
    both = loss.solve(right, free)
    slope, offset = both[:, 0].contiguous(), both[:, 1].contiguous()
    if fixed is not None:
        offset -= fixed
    return DeviceLine(slope, offset, *_interior(slope, offset, clients, free), free)


def _interior(slope: Tensor, offset: Tensor, clients: DeviceClients, free: Tensor | None) -> tuple[float, float]:
    """The open interval of rates r with budget_min < r·slope − offset < budget_max for every free client."""
    at_floor, at_ceiling = (offset + clients.budget_min) / slope, (offset + clients.budget_max) / slope
    rising = slope > 0
    entering = torch.where(rising, at_floor, torch.where(slope < 0, at_ceiling, -torch.inf))
    leaving = torch.where(rising, at_ceiling, torch.where(slope < 0, at_floor, torch.inf))
    flat_outside = (slope == 0) & ((-offset <= clients.budget_min) | (-offset >= clients.budget_max))
    if bool(_of_free(flat_outside, free, False).any()):
        return np.inf, -np.inf
    low, high = _of_free(entering, free, -torch.inf).max(), _of_free(leaving, free, torch.inf).min()
    return max(0.0, float(low)), float(high)


def _of_free(values: Tensor, free: Tensor | None, otherwise: float | bool) -> Tensor:
    return values if free is None else torch.where(free, values, otherwise)


# ---- the leader's rate --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DeviceCondition(RateCondition):
    """The leader's first-order condition with its sums on the device.

    pull, slope and offset hold the most reluctant client alone, from whom the search for the root starts; the sums go
    over the vectors in `everybody`: pull, slope and offset of all who take part. They do not depend on the round, and
    rounds ask for the same rates again, so sums once found are kept in `known`.
    """

    everybody: tuple[Tensor, Tensor, Tensor]
    known: dict[float, tuple[float, float]] = field(default_factory=dict, repr=False)

    def _sums(self, rate: float) -> tuple[float, float]:
        if rate not in self.known:
            pull, slope, offset = self.everybody
            inverse = torch.sub(slope * rate, offset).reciprocal_()
            terms = inverse.square().mul_(pull)
            square = terms.sum()
            found = torch.stack([square, torch.dot(terms.mul_(inverse), slope)]).tolist()
            self.known[rate] = (found[0], found[1])
        return self.known[rate]

    def values(self, rates: Array, round_index: int) -> Array:
        return np.array([self.value(float(rate), round_index)[0] for rate in rates])


def condition_on_device(
    line: DeviceLine, clients: DeviceClients, accuracy_weight: float, leader: LineLeader, amplified: float = 1.0
) -> DeviceCondition:
    """The first-order condition of the leader on a straight response; the twin of `interior_leaders.rate_condition`.

    mean_field (eq. 16):    Σ τε_i/(2t a_i ρ_i²) = (1−τ) Σ(ρ_i + r/2a_i): external risk is taken as it stands
    anticipating (eq. 17):  Σ τε_i u_i/(t ρ_i²) = (1−τ)(2r Σu_i − Σv_i): the server knows that it moves

    amplified  what every ε_i is multiplied by, because others are at 0
    """
    slope, offset = line.slope, line.offset
    paid_slope, paid_offset = torch.stack([slope.sum(), offset.sum()]).tolist()
    if leader == "mean_field":
        alone = _of_free((2 * clients.quadratic_cost).reciprocal(), line.free, 0.0)  # own answer, others unmoved
        steepness = paid_slope + float(alone.sum())
        pull = alone * clients.noise_harm
    else:
        pull, steepness = clients.noise_harm * slope, 2 * paid_slope
    if line.free is not None:
        part = line.free | (offset < 0)  # a client pinned at 0 is left out of the sum
        pull, slope, offset = pull[part], slope[part], offset[part]
    at = torch.where(slope > 0, offset / slope, -torch.inf).argmax()
    first = torch.stack([pull[at], slope[at], offset[at]]).cpu().numpy()
    return DeviceCondition(
        steepness=steepness,
        constant=paid_offset,
        strength=amplified * accuracy_weight / (1 - accuracy_weight),
        pull=first[0:1],
        slope=first[1:2],
        offset=first[2:3],
        lowest=line.lowest_rate,
        highest=line.highest_rate,
        everybody=(pull, slope, offset),
    )


def rates_on_device(
    line: DeviceLine,
    clients: DeviceClients,
    accuracy_weight: float,
    leader: LineLeader,
    rounds: IntArray,
    amplified: float = 1.0,
) -> Array | None:
    """Rates of all rounds if each keeps every free client strictly inside its bounds, else None."""
    condition = condition_on_device(line, clients, accuracy_weight, leader, amplified)
    rates = rates_by_condition(condition, line.everybody_gains_interest, rounds)
    return rates if rates is not None and line.holds(rates) else None


# ---- sums over clients --------------------------------------------------------------------------------------------


def totals_on_device(line: DeviceLine, loss: DeviceLoss, clients: DeviceClients, rates: Array) -> Array:
    """Σε/ρ, Σpρ, welfare, clients below zero, clients taking part, gap, regret, relative regret of every rate.

    The twin of `outcome.totals_of_rounds` on a line: [rates, 8]. Two products serve all rates; one transfer brings all.
    """
    losses = loss @ torch.stack([line.slope, line.offset], dim=1)
    sums: Tensor | None = None
    for start in range(0, clients.num_clients, CLIENTS_AT_ONCE):
        some = slice(start, start + CLIENTS_AT_ONCE)
        crowd = DeviceClients(**{f.name: getattr(clients, f.name)[some] for f in fields(DeviceClients)})
        slope, offset = line.slope[some], line.offset[some]
        loss_slope, loss_offset = losses[some, 0].contiguous(), losses[some, 1].contiguous()
        rows = torch.stack(
            [_totals(crowd, float(r), r * slope - offset, r * loss_slope - loss_offset) for r in map(float, rates)]
        )
        sums = rows if sums is None else torch.cat([sums[:, :5] + rows[:, :5], sums[:, 5:].maximum(rows[:, 5:])], dim=1)
    return np.zeros((len(rates), 8)) if sums is None else np.asarray(sums.cpu().numpy())


def _totals(clients: DeviceClients, rate: float, budgets: Tensor, losses: Tensor) -> Tensor:
    """The eight totals of some clients at one rate."""
    part = budgets > 0
    paid = rate * budgets
    cost = (clients.quadratic_cost * losses).add_(clients.linear_cost).mul_(losses)
    spent = cost + torch.where(part, clients.compute_cost, 0.0)
    size = paid.abs().add_(spent.abs())
    wish = (rate - clients.linear_cost) / (2 * clients.quadratic_cost) - losses + budgets
    answer = torch.minimum(torch.maximum(wish, clients.budget_min), clients.budget_max)
    regret = ((budgets - wish).square_() - (answer - wish).square_()).mul_(clients.quadratic_cost)
    return torch.stack(
        [
            torch.where(part, clients.noise_harm / budgets, 0.0).sum(),
            paid.sum(),
            (paid - cost).sum(),
            (paid - spent < -1e-12 * size).sum().double(),
            part.sum().double(),
            (answer - budgets).abs_().max(),
            regret.max(),
            (regret / size.clamp_(min=1e-300)).max(),
        ]
    )
