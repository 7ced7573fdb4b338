"""How clients respond to prices: a straight line in the rate inside the bounds, a complementarity problem at them.

Inside the bounds it is ρ(r) = r·u − v; two linear solves serve every rate and round. At the bounds it is the
solution of a box complementarity problem, unique where αS < 1. path.py follows it from rate to rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NotConverged
from mppfl.game.loss import TOLERANCE
from mppfl.game.model import Game, wanted_loss

MAX_ACTIVE_SETS = 60
MAX_SWEEPS = 2000
ENOUGH = 1e-7  # of a client's own digits: what is accepted where rounding ends the search


@dataclass(frozen=True, eq=False)
class Response:
    """Budgets as a straight line in the reward rate, ρ(r) = r·slope − offset, where no bound is reached (eq. 14).

    lowest_rate, highest_rate  the open interval of rates on which every free client is strictly inside its bounds;
                               empty (lowest >= highest) when there is no such rate
    weights                    personal price of each client per unit of rate: 1, or the Pigouvian c_i
    free                       clients that respond; the others stay at a constant budget (slope 0)
    """

    slope: Array
    offset: Array
    lowest_rate: float
    highest_rate: float
    weights: Array
    free: BoolArray

    def budgets(self, reward_rate: float) -> Array:
        return reward_rate * self.slope - self.offset

    @property
    def has_interior(self) -> bool:
        return self.lowest_rate < self.highest_rate and bool(self.free.any())


def equilibrium_response(game: Game, weights: Array | None = None) -> Response:
    """The affine family u = B⁻¹(w/2a), v = B⁻¹(b/2a) of Nash equilibria (model, eq. 14).

    `weights` are personal prices per unit of rate (default 1 each). Clients whose bounds leave no choice stay at
    budget_min, and the family is that of the others.
    """
    clients = game.clients
    prices = np.ones(game.num_clients) if weights is None else weights
    free = clients.budget_max > clients.budget_min
    fixed = np.where(free, 0.0, clients.budget_min)
    right = np.column_stack([prices, clients.linear_cost]) / (2 * clients.quadratic_cost)[:, None]
    if fixed.any():
        right[:, 1] += game.loss @ fixed
    both = game.loss.solve(right, None if free.all() else free)
    slope, offset = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1]) - fixed
    low, high = interior_rates(slope[free], offset[free], clients.budget_min[free], clients.budget_max[free])
    line = Response(slope, offset, low, high, prices, free)
    if game.contraction >= 1 and not _solves(game, both, right, free):
        return replace(line, lowest_rate=np.inf, highest_rate=-np.inf)  # a singular B: there is no such line
    return line


def _solves(game: Game, both: Array, right: Array, free: BoolArray) -> bool:
    return float(np.abs(game.loss @ both - right)[free].max(initial=0.0)) <= 1e-7 * float(np.abs(right).max())


def interior_rates(slope: Array, offset: Array, low: Array, high: Array) -> tuple[float, float]:
    """The open interval of rates r with low < r·slope − offset < high for every client."""
    rises, flat = slope > 0, slope == 0
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        floor, ceiling = (offset + low) / slope, (offset + high) / slope
    if not ((-offset[flat] > low[flat]) & (-offset[flat] < high[flat])).all():
        return np.inf, -np.inf
    lowest = np.where(rises, floor, ceiling)[~flat].max(initial=0.0)
    return float(lowest), float(np.where(rises, ceiling, floor)[~flat].min(initial=np.inf))


@dataclass(frozen=True, eq=False)
class AtBounds:
    """Budgets that solve the complementarity problem, and how well.

    steps     active sets tried, plus projected sweeps
    residual  largest distance of a client from its best response
    """

    budgets: Array
    free: BoolArray
    steps: int
    residual: float


def equilibrium_at(game: Game, prices: Array | float, start: Array | None = None, tolerance: float = 1e-12) -> AtBounds:
    """The Nash equilibrium at given prices within the bounds (model, eq. 15): every client at its best response,

        ρ_i = clip(m_i − α(Σρ)_i, budget_min_i, budget_max_i).

    To `tolerance` of each client's own digits, the sizes of m_i and α(Σρ)_i, or of the largest client's where the
    network is too large to be factorised. A budget that near to a bound is at it. Active sets (semismooth Newton), with
    projected sweeps wherever a set comes round again; where neither settles, Lemke's pivots, which end for every α.
    """
    clients, loss = game.clients, game.loss
    low, high, ideal = clients.budget_min, clients.budget_max, wanted_loss(game, prices)
    # Where prices are about what privacy costs, their difference holds fewer digits than they do.
    sizes = (np.abs(prices) + clients.linear_cost) / (2 * clients.quadratic_cost)

    def look_at(budgets: Array) -> tuple[float, Array, Array, Array]:
        """The largest distance from a best response, in units of what is allowed; budgets, wishes, what is allowed."""
        spill = loss @ budgets - budgets
        digits = sizes + np.abs(spill)
        if not loss.is_dense:  # equations are solved to a share of the largest
            digits = np.full_like(digits, min(digits.max(), high.max()))
        allowed, wish = np.maximum(tolerance * digits, 1e-300), ideal - spill
        return float((np.abs(budgets - np.clip(wish, low, high)) / allowed).max()), budgets, wish, allowed

    last = best = look_at(np.clip(ideal if start is None else start, low, high))
    seen: set[bytes] = set()
    steps = 0
    while best[0] > 1 and steps < MAX_ACTIVE_SETS + MAX_SWEEPS:
        steps += 1
        wish = last[2]
        inside = (wish > low) & (wish < high)
        key = np.packbits(inside).tobytes()
        budgets = np.clip(wish, low, high)
        if steps <= MAX_ACTIVE_SETS and key not in seen:
            # Free clients solve their equations exactly; the others sit at the bound they were pushed to.
            seen.add(key)
            fixed = np.where(inside, 0.0, budgets)
            right = ideal - loss @ fixed if fixed.any() else ideal
            moved = loss.solve(right, None if inside.all() else inside, best[1], max(10 * tolerance, TOLERANCE))
            budgets = np.where(inside, moved, fixed)
        elif game.contraction >= 1 and loss.is_dense and steps > MAX_ACTIVE_SETS:
            budgets = lemke(loss.dense, ideal, low, high)
            steps += MAX_SWEEPS
        # Else the set came round again, and a projected sweep shrinks the distance.
        last = look_at(budgets)
        if last[0] < best[0] or steps > MAX_ACTIVE_SETS:
            best = last
    gap, budgets, wish, allowed = best
    if gap > max(1.0, ENOUGH / tolerance):
        raise NotConverged(
            f"budgets within their bounds settled only to {gap * tolerance:.2g} of their size after {steps} steps "
            f"(αS = {game.contraction:.3g}). Lower externality_strength, or narrow the bounds.",
            budgets,
            gap * tolerance,
        )
    residual = float(np.abs(budgets - np.clip(wish, low, high)).max())
    # A budget is at a bound where its owner's wish is, to what the search can tell.
    budgets = np.where(wish <= low + allowed, low, np.where(wish >= high - allowed, high, budgets))
    return AtBounds(budgets, (budgets > low) & (budgets < high), steps, residual)


def lemke(matrix: Array, wanted: Array, low: Array, high: Array) -> Array:
    """An x in [low, high] with (Mx − wanted)_i = 0 inside, >= 0 at low, <= 0 at high, by Lemke's complementary pivots.

    They end for every strictly copositive M, and B, with a unit diagonal and no negative entry, is one.
    """
    size, capped = len(wanted), np.flatnonzero(np.isfinite(high))
    # w = Mz + q over z = (x − low, multipliers of the ceilings): a complementarity problem without upper bounds.
    total = size + len(capped)
    ceilings = np.zeros((len(capped), size))
    ceilings[np.arange(len(capped)), capped] = 1.0
    whole = np.block([[matrix, ceilings.T], [-ceilings, np.zeros((len(capped), len(capped)))]])
    constant = np.concatenate([matrix @ low - wanted, (high - low)[capped]])
    if (constant >= 0).all():
        return low.copy()
    # Columns: w, z, the artificial variable that all rows share, the constants.
    table = np.column_stack([np.eye(total), -whole, -np.ones(total), constant])
    basis, artificial = np.arange(total), 2 * total
    row, entering = int(np.argmin(constant)), artificial
    for _ in range(50 * total + 100):
        table[row] /= table[row, entering]
        others = np.arange(total) != row
        table[others] -= np.outer(table[others, entering], table[row])
        leaving, basis[row] = basis[row], entering
        if leaving == artificial:
            answer = np.zeros(2 * total)
            answer[basis] = table[:, -1]
            return np.clip(low + answer[total : total + size], low, high)
        entering = (leaving + total) % (2 * total)  # the complement of what left
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(table[:, entering] > 1e-11, table[:, -1] / table[:, entering], np.inf)
        if not np.isfinite(ratios).any():
            break
        ties = np.flatnonzero(ratios <= ratios.min() * (1 + 1e-12) + 1e-300)
        row = int(ties[np.argmax(basis[ties])])  # the artificial variable goes first
    raise NotConverged("Lemke's pivots found no equilibrium. Lower externality_strength.", low, np.inf)
