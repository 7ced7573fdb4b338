"""How clients respond to prices: a straight line in the rate inside the bounds, a complementarity problem at them.

Inside the bounds it is ρ(r) = r·u − v; two linear solves serve every rate and round. At the bounds it is the
solution of a box complementarity problem, unique where αS < 1. path.py follows it from rate to rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NoEquilibrium, NotConverged
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
    lowest, highest = 0.0, np.inf
    rising, falling = slope > 0, slope < 0
    for bound, is_floor in ((low, True), (high, False)):
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            crossing = (offset + bound) / slope
        raises, limits = (rising, falling) if is_floor else (falling, rising)
        if raises.any():
            lowest = max(lowest, float(crossing[raises].max()))
        if limits.any():
            highest = min(highest, float(crossing[limits].min()))
    flat = slope == 0
    if flat.any() and not ((-offset[flat] > low[flat]) & (-offset[flat] < high[flat])).all():
        return np.inf, -np.inf
    return lowest, highest


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
    search = _Search(game, prices, tolerance)
    budgets = np.clip(search.ideal if start is None else start, search.low, search.high)
    wish, gap = search.wish(budgets)
    best, best_gap, best_wish = budgets, gap, wish
    seen: set[bytes] = set()
    steps = 0
    while best_gap > 1 and steps < MAX_ACTIVE_SETS + MAX_SWEEPS:
        steps += 1
        inside = (wish > search.low) & (wish < search.high)
        key = np.packbits(inside).tobytes()
        if steps <= MAX_ACTIVE_SETS and key not in seen:
            seen.add(key)
            budgets = search.of_active_set(inside, wish, best)
        elif game.contraction >= 1 and game.loss.is_dense and steps > MAX_ACTIVE_SETS:
            budgets = lemke(game.loss.dense, search.ideal, search.low, search.high)
            steps += MAX_SWEEPS
        else:  # a set came round again: shrink the distance by projected sweeps instead
            budgets = np.clip(wish, search.low, search.high)
        wish, gap = search.wish(budgets)
        if gap < best_gap or steps > MAX_ACTIVE_SETS:
            best, best_gap, best_wish = budgets, gap, wish
    if best_gap > max(1.0, ENOUGH / tolerance):
        raise NotConverged(
            f"budgets within their bounds settled only to {best_gap * tolerance:.2g} of their size after {steps} steps "
            f"(αS = {game.contraction:.3g}). Lower externality_strength, or narrow the bounds.",
            best,
            best_gap * tolerance,
        )
    # A budget is at a bound where its owner's wish is, to what the search can tell.
    near = search.allowed(best)
    budgets = np.where(best_wish <= search.low + near, search.low, best)
    budgets = np.where(best_wish >= search.high - near, search.high, budgets)
    free = (budgets > search.low) & (budgets < search.high)
    return AtBounds(budgets, free, steps, float(np.abs(best - np.clip(best_wish, search.low, search.high)).max()))


class _Search:
    """What the search for an equilibrium at given prices asks again and again."""

    def __init__(self, game: Game, prices: Array | float, tolerance: float) -> None:
        clients = game.clients
        self.game, self.tolerance = game, tolerance
        self.low, self.high = clients.budget_min, clients.budget_max
        self.ideal = wanted_loss(game, prices)
        # Where prices are about what privacy costs, their difference holds fewer digits than they do.
        self.sizes = (np.abs(prices) + clients.linear_cost) / (2 * clients.quadratic_cost)

    def allowed(self, budgets: Array, spill: Array | None = None) -> Array:
        """How far each client's budget may be from its wish."""
        spill = self.game.loss @ budgets - budgets if spill is None else spill
        digits = self.sizes + np.abs(spill)
        if not self.game.loss.is_dense:  # equations are solved to a share of the largest
            digits = np.full_like(digits, min(digits.max(), self.high.max()))
        return np.maximum(self.tolerance * digits, 1e-300)

    def wish(self, budgets: Array) -> tuple[Array, float]:
        """Everybody's best response without bounds, and the largest distance from it in units of what is allowed."""
        spill = self.game.loss @ budgets - budgets
        wish = self.ideal - spill
        gaps = np.abs(budgets - np.clip(wish, self.low, self.high)) / self.allowed(budgets, spill)
        return wish, float(gaps.max())

    def of_active_set(self, inside: BoolArray, wish: Array, start: Array) -> Array:
        """Free clients solve their equations exactly; the others sit at the bound they were pushed to."""
        loss = self.game.loss
        fixed = np.where(inside, 0.0, np.clip(wish, self.low, self.high))
        right = self.ideal - loss @ fixed if fixed.any() else self.ideal
        first = None if loss.is_dense else start
        moved = loss.solve(right, None if inside.all() else inside, first, max(10 * self.tolerance, TOLERANCE))
        return np.where(inside, moved, fixed)


def lemke(matrix: Array, wanted: Array, low: Array, high: Array) -> Array:
    """An x in [low, high] with (Mx − wanted)_i = 0 inside, >= 0 at low, <= 0 at high, by Lemke's complementary pivots.

    They end for every strictly copositive M, and B, with a unit diagonal and no negative entry, is one.
    """
    size, capped = len(wanted), np.flatnonzero(np.isfinite(high))
    # w = Mz + q over z = (x − low, multipliers of the ceilings): a complementarity problem without upper bounds.
    total = size + len(capped)
    table = np.zeros((total, 2 * total + 2))
    table[:, :total] = np.eye(total)
    table[:size, total : total + size] = -matrix
    table[capped, total + size + np.arange(len(capped))] = -1.0
    table[size + np.arange(len(capped)), total + capped] = 1.0
    table[:, -2] = -1.0  # the artificial variable, which all rows share
    table[:, -1] = np.concatenate([matrix @ low - wanted, high[capped] - low[capped]])
    basis = np.arange(total)
    artificial = 2 * total
    if (table[:, -1] >= 0).all():
        return low.copy()
    row, entering = int(np.argmin(table[:, -1])), artificial
    for _ in range(50 * total + 100):
        table[row] /= table[row, entering]
        others = np.arange(total) != row
        table[others] -= np.outer(table[others, entering], table[row])
        leaving, basis[row] = basis[row], entering
        if leaving == artificial:
            answer = np.zeros(2 * total)
            answer[basis[basis < 2 * total]] = table[basis < 2 * total, -1]
            return np.clip(low + answer[total : total + size], low, high)
        entering = leaving + total if leaving < total else leaving - total
        column = table[:, entering]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(column > 1e-11, table[:, -1] / column, np.inf)
        if not np.isfinite(ratios).any():
            break
        ties = np.flatnonzero(ratios <= ratios.min() * (1 + 1e-12) + 1e-300)
        row = int(next((tie for tie in ties if basis[tie] == artificial), ties[0]))
    raise NotConverged("Lemke's pivots found no equilibrium. Lower externality_strength.", low, np.inf)


def waking_rates(game: Game, weights: Array) -> tuple[float, float]:
    """The lowest rate at which anybody wants to share, and one at which everybody would, were they alone."""
    positive = (weights > 0) & (game.clients.budget_max > 0)
    if not positive.any():
        raise NoEquilibrium("every personal price is zero or negative, so no reward rate moves anybody to participate.")
    rates = game.clients.linear_cost[positive] / weights[positive]
    return float(rates.min()), float(rates.max())
