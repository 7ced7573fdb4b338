"""How clients respond to a reward rate: a straight line inside the bounds, complementarity at them, the path of both.

Inside the bounds the equilibrium is a straight line in the rate, ρ(r) = r·u − v; two linear solves serve every rate and
every round. At the bounds it is the solution of a box complementarity problem, unique where αS < 1. Between two rates
at which a client meets or leaves a bound it is again a straight line: a small game's whole path is a few hundred of
them. A large game's path has as many bends as clients and is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NoEquilibrium, NotConverged
from mppfl.game.loss import TOLERANCE
from mppfl.game.model import Game, amplification, wanted_loss

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
    def all_slopes_positive(self) -> bool:
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
    ideal = wanted_loss(game, prices)
    low, high = game.clients.budget_min, game.clients.budget_max
    # Where prices are about what privacy costs, their difference holds fewer digits than they do.
    sizes = (np.abs(prices) + game.clients.linear_cost) / (2 * game.clients.quadratic_cost)
    scale = min(max(float(np.abs(ideal).max()), 1e-3 * float(sizes.max())), float(high.max()))
    budgets = np.clip(ideal if start is None else start, low, high)
    target = ideal - (game.loss @ budgets - budgets)  # everybody's unbounded best response
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
            budgets = _budgets_of_active_set(game, ideal, inside, np.clip(target, low, high), best, tolerance)
        else:  # a set came round again: shrink the distance by projected sweeps instead
            budgets = np.clip(target, low, high)
        target = ideal - (game.loss @ budgets - budgets)
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
    game: Game, ideal: Array, inside: BoolArray, clipped: Array, start: Array, tolerance: float
) -> Array:
    """Free clients solve their equations exactly; the others sit at the bound they were pushed to."""
    fixed = np.where(inside, 0.0, clipped)
    right = ideal - game.loss @ fixed if fixed.any() else ideal
    everybody = bool(inside.all())
    first = None if game.loss.is_dense else start
    moved = game.loss.solve(right, None if everybody else inside, first, max(10 * tolerance, TOLERANCE))
    return np.where(inside, moved, fixed)


def _distance(x: Array, y: Array) -> float:
    return float(np.abs(x - y).max())


# ---- the path of equilibria as the rate rises ---------------------------------------------------------------------

EXACT_BELOW = 300  # clients
NUM_SAMPLES = 48
SAMPLE_TOLERANCE = 1e-7
NUM_CHECKED = 8  # segments of a path followed by updates whose lines are held against B itself
LINE_TOLERANCE = 1e-12  # the same for budgets read off one segment, as of those that are solved for
FLAT = 1e-14  # a smaller slope meets no bound
PATH_TOLERANCE = 1e-11  # of the largest wanted loss: what their distance from a best response may be


@dataclass(frozen=True, eq=False)
class Segment:
    """Rates between two bends, with the line ρ(r) = r·slope − offset that everybody follows there."""

    low: float
    high: float
    slope: Array
    offset: Array
    participating: BoolArray

    def budgets(self, rate: float) -> Array:
        """Budgets at a rate of this segment; those who opt out, or are there but for rounding, are exactly at 0."""
        budgets = np.where(self.participating, rate * self.slope - self.offset, 0.0)
        return np.where(budgets > 1e-13 * np.abs(self.offset).max(initial=1.0), budgets, 0.0)


@dataclass(frozen=True, eq=False)
class Path:
    """Segments in the order of their rates, as arrays: `path[k]` is one of them.

    ends           [segments, 2]        where each begins and ends
    slope, offset  [segments, clients]  the line that everybody follows there
    participating    [segments, clients]
    """

    ends: Array
    slope: Array
    offset: Array
    participating: BoolArray

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, k: int) -> Segment:
        low, high = self.ends[k]
        return Segment(float(low), float(high), self.slope[k], self.offset[k], self.participating[k])

    def __iter__(self) -> Iterator[Segment]:
        return (self[k] for k in range(len(self)))

    def only(self, which: BoolArray) -> Path:
        """Some of the segments, in their order; rates between them are left out."""
        return Path(self.ends[which], self.slope[which], self.offset[which], self.participating[which])

    def at(self, rate: float) -> Segment | None:
        """The segment that a rate lies on; None below the first."""
        k = int(np.searchsorted(self.ends[:, 0], rate, side="right")) - 1
        return self[k] if k >= 0 else None


def response_path(game: Game, weights: Array, last: float = np.inf) -> Path:
    """Every segment of the equilibrium's path from rate 0 up to `last` (model, eq. 15); without it, the last segment
    has no end.

    Where the equilibrium is surely unique, from bend to bend by rank-one updates (`pivoting_path`), which are checked;
    else, or if a check fails, by `plain_path`.
    """
    path = None
    if game.loss.is_dense and game.loss.has_one_answer:
        path = pivoting_path(game, weights, last)
    return _with_no_pay(game, plain_path(game, weights, last) if path is None else path)


def _with_no_pay(game: Game, path: Path) -> Path:
    """With rate 0 as a segment of its own where somebody wakes just there: at 0 it is out, others are at floors."""
    low = game.clients.budget_min
    if path.ends[0, 0] > 0 or not low.any() or not (path.participating[0] & (path[0].budgets(0.0) <= 0)).any():
        return path
    return Path(
        np.concatenate([[[0.0, 0.0]], path.ends]),
        np.concatenate([[np.zeros_like(low)], path.slope]),
        np.concatenate([[-low], path.offset]),
        np.concatenate([[low > 0], path.participating]),
    )


def _first_rate(game: Game, weights: Array) -> float:
    """A rate at which everybody is still at its lowest budget."""
    clients = game.clients
    if (clients.budget_min > 0).any():
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = float((clients.linear_cost / weights)[weights > 0].min(initial=np.inf))
    if not np.isfinite(rate):
        raise NoEquilibrium("every personal price is zero or negative, so no reward rate moves anybody to participate.")
    return rate


def _widest_range(game: Game, weights: Array) -> float:
    """The rise of the rate that takes everybody who can be moved, were they alone, from lowest to highest budgets."""
    clients = game.clients
    room = clients.budget_max - clients.budget_min
    moved = (weights > 0) & (room > 0)
    if not moved.any():
        return np.inf
    return float((2 * clients.quadratic_cost[moved] * room[moved] / weights[moved]).max())


def pivoting_path(game: Game, weights: Array, last: float = np.inf) -> Path | None:
    """The path from bend to bend, O(clients²) each; None where a check of its lines fails. Needs B as a matrix."""
    from mppfl.game import _kernels as kernels

    clients, dense = game.clients, game.loss.dense
    rate = _first_rate(game, weights)
    can_move = clients.budget_max > clients.budget_min
    num_able = int(can_move.sum())
    order = np.argsort(~can_move, kind="stable")
    back = np.argsort(order, kind="stable")
    alone, never = weights / (2 * clients.quadratic_cost), clients.linear_cost / (2 * clients.quadratic_cost)
    others = game.loss @ clients.budget_min - clients.budget_min
    how, count, ends, lines, states = kernels.follow(
        np.ascontiguousarray(dense[np.ix_(order, order[:num_able])]),
        alone[order],
        (never + others)[order],
        clients.budget_min[order],
        clients.budget_max[order],
        rate,
        last,
        _widest_range(game, weights),
        6 * game.num_clients + 50,
    )
    if how != kernels.FINISHED:
        return None
    slopes, offsets, state = lines[0, :count], lines[1, :count], states[:count]
    if num_able < game.num_clients:
        slopes, offsets, state = slopes[:, back], offsets[:, back], state[:, back]
    if not _are_equilibria(game, weights, ends[:count], slopes, offsets):
        return None
    participating = (state == 0) | (np.where(state > 0, clients.budget_max, clients.budget_min) > 0)
    return Path(ends[:count], slopes, offsets, participating)


def _are_equilibria(game: Game, weights: Array, ends: Array, slopes: Array, offsets: Array) -> bool:
    """Whether everybody is at its best response at both ends of some segments, the last among them.

    Updates pass their rounding on from line to line, so what is right at the end was right before.
    """
    clients = game.clients
    some = np.unique(np.linspace(0, len(ends) - 1, NUM_CHECKED).astype(np.int64))
    for which in (0, 1):
        rates = ends[some, which]
        rates = np.where(np.isfinite(rates), rates, 2 * ends[some, 0] + 1)[:, None]
        budgets = rates * slopes[some] - offsets[some]
        ideal = (rates * weights - clients.linear_cost) / (2 * clients.quadratic_cost)
        wish = ideal - ((game.loss @ budgets.T).T - budgets)
        gap = np.abs(budgets - np.clip(wish, clients.budget_min, clients.budget_max)).max(axis=1)
        if not (gap <= PATH_TOLERANCE * np.maximum(1.0, np.abs(ideal).max(axis=1))).all():
            return False
    return True


def plain_path(game: Game, weights: Array, last: float = np.inf) -> Path:
    """The path with an equilibrium solved just past every bend."""
    from mppfl.game._kernels import just_past

    rate, widest = _first_rate(game, weights), _widest_range(game, weights)
    segments: list[Segment] = []
    start: Array | None = None
    for _ in range(20 * game.num_clients + 50):
        ahead = just_past(rate, widest)
        here = equilibrium_at(game, ahead * weights, start)
        start = here.budgets
        segment = _segment_around(game, weights, here, rate, ahead)
        segments.append(segment)
        if segment.high >= last:
            return _path_of(segments)
        rate = max(segment.high, ahead)
    raise NotConverged(
        f"the path of budgets has too many bends; it was followed up to rate {rate:.6g}.", segments, rate
    )


def _path_of(segments: list[Segment]) -> Path:
    ends = np.array([(s.low, s.high) for s in segments])
    slope, offset = np.array([s.slope for s in segments]), np.array([s.offset for s in segments])
    return Path(ends, slope, offset, np.array([s.participating for s in segments]))


def _segment_around(game: Game, weights: Array, here: AtBounds, rate: float, ahead: float) -> Segment:
    clients = game.clients
    low, high = clients.budget_min, clients.budget_max
    at_low, at_high = ~here.free & (here.budgets <= low), ~here.free & (here.budgets > low)
    for _ in range(game.num_clients + 1):
        free = ~(at_low | at_high)
        slope, offset = _line_with_held(game, weights, free, np.where(at_low, low, np.where(at_high, high, 0.0)))
        # What each client would answer without bounds, m − α(Σρ), as a line; it decides when a held client comes free.
        wish_slope = weights / (2 * clients.quadratic_cost) - (game.loss @ slope - slope)
        wish_offset = clients.linear_cost / (2 * clients.quadratic_cost) - (game.loss @ offset - offset)
        wish, budgets = ahead * wish_slope - wish_offset, ahead * slope - offset
        # Just past a bend a wish may differ from its bound by less than the solver's tolerance; the lines know better.
        freed = (at_low & (wish > low) & (wish_slope > 0)) | (at_high & (wish < high) & (wish_slope < 0))
        fallen, risen = free & (budgets < low) & (slope < 0), free & (budgets > high) & (slope > 0)
        if not (freed | fallen | risen).any():
            break
        at_low, at_high = (at_low & ~freed) | fallen, (at_high & ~freed) | risen
    end = min(
        _first_crossing(wish_slope, wish_offset, low, ahead, at_low & (wish_slope > FLAT)),
        _first_crossing(wish_slope, wish_offset, high, ahead, at_high & (wish_slope < -FLAT)),
        _first_crossing(slope, offset, low, ahead, free & (slope < -FLAT)),
        _first_crossing(slope, offset, high, ahead, free & (slope > FLAT)),
    )
    return Segment(rate, end, slope, offset, free | (np.where(at_high, high, low) > 0))


def _line_with_held(game: Game, weights: Array, free: BoolArray, fixed: Array) -> tuple[Array, Array]:
    """Slope and offset of everybody's budget while the free clients answer and the others stay at `fixed`."""
    clients = game.clients
    right = np.column_stack([weights, clients.linear_cost]) / (2 * clients.quadratic_cost)[:, None]
    right[:, 1] += game.loss @ fixed
    both = game.loss.solve(right, None if free.all() else free)
    return both[:, 0], both[:, 1] - fixed


def _first_crossing(slope: Array, offset: Array, bound: Array, ahead: float, clients: BoolArray) -> float:
    """The first rate past `ahead` at which a line of these clients reaches its bound."""
    moving = clients & np.isfinite(bound)
    if not moving.any():
        return np.inf
    crossings = (offset[moving] + bound[moving]) / slope[moving]
    later = crossings[crossings > ahead]
    return float(later.min()) if len(later) else np.inf


def equilibria_at(game: Game, weights: Array, rates: Array) -> Array:
    """Equilibria at rising rates, [rates, clients]: solved for where a bend lies between two of them, and read off the
    line that everybody follows where none does. What is read off is held against everybody's best response.
    """
    low, high = game.clients.budget_min, game.clients.budget_max
    rows: list[Array] = []
    segment: Segment | None = None
    for rate in rates.tolist():
        if segment is not None and rate <= segment.high:
            budgets = np.clip(segment.budgets(rate), low, high)
            ideal = wanted_loss(game, rate * weights)
            answer = np.clip(ideal - (game.loss @ budgets - budgets), low, high)
            if np.abs(answer - budgets).max() <= LINE_TOLERANCE * max(1.0, float(np.abs(ideal).max())):
                rows.append(budgets)
                continue
        here = equilibrium_at(game, rate * weights, rows[-1] if rows else None)
        rows.append(here.budgets)
        segment = _segment_around(game, weights, here, rate, rate) if game.loss.is_dense else None
    return np.array(rows)


@dataclass(frozen=True, eq=False)
class Samples:
    """What the server needs to know about the equilibrium at sampled rates; parallel arrays, rates rising."""

    rates: Array
    noise: Array  # Σ ε_i/ρ_i over those who participate
    paid: Array  # Σ w_i ρ_i: payments per unit of rate
    strength: Array  # Σ (n_i/n̄)² ρ_i, what noise-aware aggregation feels
    amplification: Array  # how much the noise of those who remain grows because others opt out


def sample_response(game: Game, weights: Array, rates: Array) -> Samples:
    """Equilibria at these rates, each started from the one before, boiled down to sums.

    Good to SAMPLE_TOLERANCE, which is enough to choose among rates; those chosen are then solved exactly.
    """
    size = (game.clients.data_size / game.clients.data_size.mean()) ** 2
    rows = []
    budgets: Array | None = None
    for rate in rates:
        budgets = equilibrium_at(game, rate * weights, budgets, SAMPLE_TOLERANCE).budgets
        part = budgets > 0
        noise = float((game.clients.noise_harm[part] / budgets[part]).sum())
        rows.append((noise, float(weights @ budgets), float(size @ budgets), amplification(game, part)))
    return Samples(np.asarray(rates), *np.array(rows).T)


def join_samples(one: Samples, other: Samples) -> Samples:
    order = np.argsort(np.concatenate([one.rates, other.rates]), kind="stable")
    names = ("rates", "noise", "paid", "strength", "amplification")
    return Samples(*(np.concatenate([getattr(one, n), getattr(other, n)])[order] for n in names))


def waking_rates(game: Game, weights: Array) -> tuple[float, float]:
    """The lowest rate at which anybody wants to share, and one at which everybody would, were they alone."""
    positive = weights > 0
    if not positive.any():
        raise NoEquilibrium("every personal price is zero or negative, so no reward rate moves anybody to participate.")
    rates = game.clients.linear_cost[positive] / weights[positive]
    return float(rates.min()), float(rates.max())
