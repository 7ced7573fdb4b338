"""How clients respond to a reward rate: the affine family inside the bounds, complementarity at them.

Inside the bounds the equilibrium is a straight line in the rate, ρ(r) = r·u − v; two linear solves serve every rate and
every round. At the bounds it is the solution of a box complementarity problem, unique where αS < 1.
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
        return self.lowest_rate < self.highest_rate

    @property
    def everybody_gains_interest(self) -> bool:
        """Whether every free client shares more when the rate rises (u_i > 0): then the leader's problem is convex."""
        return bool((self.slope[self.free] > 0).all())


def equilibrium_response(game: Game, weights: Array | None = None, held: BoolArray | None = None) -> Response:
    """The affine family u = B⁻¹(w/2a), v = B⁻¹(b/2a) of Nash equilibria (model, eq. 14).

    `weights` are personal prices per unit of rate (default 1 each). Clients in `held`, and those whose bounds leave no
    choice, stay at budget_min, and the family is that of the others.
    """
    clients = game.clients
    prices = np.ones(game.num_clients) if weights is None else weights
    free = clients.budget_max > clients.budget_min
    if held is not None:
        free &= ~held
    fixed = np.where(free, 0.0, clients.budget_min)
    right = np.column_stack([prices, clients.linear_cost]) / (2 * clients.quadratic_cost)[:, None]
    if fixed.any():
        right[:, 1] += game.loss @ fixed
    both = game.loss.solve(right, None if free.all() else free)
    slope, offset = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1]) - fixed
    line = response_line(game, slope, offset, prices, free)
    if game.contraction >= 1 and not _solves(game, both, right, free):
        return replace(line, lowest_rate=np.inf, highest_rate=-np.inf)  # a singular B: there is no such line
    return line


def _solves(game: Game, both: Array, right: Array, free: BoolArray) -> bool:
    return float(np.abs(game.loss @ both - right)[free].max(initial=0.0)) <= 1e-7 * float(np.abs(right).max())


def response_line(
    game: Game, slope: Array, offset: Array, weights: Array | None = None, free: BoolArray | None = None
) -> Response:
    """The line ρ(r) = r·slope − offset with the interval of rates on which it stays inside the bounds."""
    free = np.ones(game.num_clients, dtype=bool) if free is None else free
    low, high = interior_rates(slope[free], offset[free], game.clients.budget_min[free], game.clients.budget_max[free])
    prices = np.ones(game.num_clients) if weights is None else weights
    return Response(slope, offset, low, high, prices, free)


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

    To `tolerance` of the largest wanted loss, or of the highest bound where nobody may give as much. Active sets
    (semismooth Newton) with projected sweeps, which contract by αS, wherever a set comes round again. Raises
    NotConverged if neither settles; that cannot happen while αS < 1.
    """
    wanted = wanted_loss(game, prices)
    low, high = game.clients.budget_min, game.clients.budget_max
    # Where prices are about what privacy costs, their difference holds fewer digits than they do.
    sizes = (np.abs(prices) + game.clients.linear_cost) / (2 * game.clients.quadratic_cost)
    scale = min(max(float(np.abs(wanted).max()), 1e-3 * float(sizes.max())), float(high.max()))
    budgets = np.clip(wanted if start is None else start, low, high)
    target = wanted - (game.loss @ budgets - budgets)  # everybody's unbounded best response
    best, best_gap = budgets, _distance(budgets, np.clip(target, low, high))
    free = np.zeros(game.num_clients, dtype=bool)
    steps, allowed = 0, tolerance * scale
    seen: set[bytes] = set()
    while steps < MAX_ACTIVE_SETS + MAX_SWEEPS and best_gap > allowed:
        steps += 1
        inside = (target > low) & (target < high)
        key = np.packbits(inside).tobytes()
        if steps <= MAX_ACTIVE_SETS and key not in seen:
            seen.add(key)
            budgets = _budgets_of_active_set(game, wanted, inside, np.clip(target, low, high), best, tolerance)
        else:  # a set came round again: shrink the distance by projected sweeps instead
            budgets = np.clip(target, low, high)
        target = wanted - (game.loss @ budgets - budgets)
        gap = _distance(budgets, np.clip(target, low, high))
        if gap < best_gap or steps > MAX_ACTIVE_SETS:
            best, best_gap, free = budgets, gap, inside
    if best_gap > max(1e-7, 10 * tolerance) * scale:
        raise NotConverged(
            f"budgets within their bounds settled only to {best_gap:.2g} after {steps} steps (αS = "
            f"{game.contraction:.3g}). Lower externality_strength, or narrow the bounds.",
            best,
            best_gap,
        )
    free = (best > low) & (best < high)
    return AtBounds(best, free, steps, best_gap)


def _budgets_of_active_set(
    game: Game, wanted: Array, inside: BoolArray, clipped: Array, start: Array, tolerance: float
) -> Array:
    """Free clients solve their equations exactly; the others sit at the bound they were pushed to."""
    fixed = np.where(inside, 0.0, clipped)
    right = wanted - game.loss @ fixed if fixed.any() else wanted
    everybody = bool(inside.all())
    first = None if game.loss.is_dense else start
    moved = game.loss.solve(right, None if everybody else inside, first, max(10 * tolerance, TOLERANCE))
    return np.where(inside, moved, fixed)


def _distance(x: Array, y: Array) -> float:
    return float(np.abs(x - y).max())
