"""How the equilibrium bends at the bounds as the reward rate rises: the exact path for small games, samples for large.

Between two rates at which a client meets or leaves a bound the equilibrium is a straight line; a small game's whole
path is a few hundred such lines. A large game's path has as many bends as clients: it is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NoEquilibrium, NotConverged
from mppfl.game.equilibrium import AtBounds, equilibrium_at
from mppfl.game.model import Game, amplification, wanted_loss

EXACT_BELOW = 300  # clients
NUM_SAMPLES = 48
SAMPLE_TOLERANCE = 1e-7
NUM_CHECKED = 8  # segments of a path followed by updates whose lines are held against B itself
LINE_TOLERANCE = 1e-12  # the same for budgets read off one segment, as of those that are solved for
PATH_TOLERANCE = 1e-11  # of the largest wanted loss: what their distance from a best response may be


@dataclass(frozen=True, eq=False)
class Segment:
    """Rates between two bends, with the line ρ(r) = r·slope − offset that everybody follows there."""

    low: float
    high: float
    slope: Array
    offset: Array
    taking_part: BoolArray

    def budgets(self, rate: float) -> Array:
        """Budgets at a rate of this segment; those who stay out, or are there but for rounding, are exactly at 0."""
        budgets = np.where(self.taking_part, rate * self.slope - self.offset, 0.0)
        return np.where(budgets > 1e-13 * np.abs(self.offset).max(initial=1.0), budgets, 0.0)


@dataclass(frozen=True, eq=False)
class Path:
    """Segments in the order of their rates, as arrays: `path[k]` is one of them.

    ends           [segments, 2]        where each begins and ends
    slope, offset  [segments, clients]  the line that everybody follows there
    taking_part    [segments, clients]
    """

    ends: Array
    slope: Array
    offset: Array
    taking_part: BoolArray

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, k: int) -> Segment:
        low, high = self.ends[k]
        return Segment(float(low), float(high), self.slope[k], self.offset[k], self.taking_part[k])

    def __iter__(self) -> Iterator[Segment]:
        return (self[k] for k in range(len(self)))

    def only(self, which: BoolArray) -> Path:
        """Some of the segments, in their order; rates between them are left out."""
        return Path(self.ends[which], self.slope[which], self.offset[which], self.taking_part[which])

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
    found = None
    if game.loss.is_dense and game.loss.has_one_answer:
        found = pivoting_path(game, weights, last)
    return _with_no_pay(game, plain_path(game, weights, last) if found is None else found)


def _with_no_pay(game: Game, path: Path) -> Path:
    """With rate 0 as a segment of its own where somebody wakes just there: at 0 it is out, others are at floors."""
    low = game.clients.budget_min
    if path.ends[0, 0] > 0 or not low.any() or not (path.taking_part[0] & (path[0].budgets(0.0) <= 0)).any():
        return path
    return Path(
        np.concatenate([[[0.0, 0.0]], path.ends]),
        np.concatenate([[np.zeros_like(low)], path.slope]),
        np.concatenate([[-low], path.offset]),
        np.concatenate([[low > 0], path.taking_part]),
    )


def _first_rate(game: Game, weights: Array) -> float:
    """A rate at which everybody is still at its lowest budget."""
    clients = game.clients
    if (clients.budget_min > 0).any():
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = float((clients.linear_cost / weights)[weights > 0].min(initial=np.inf))
    if not np.isfinite(rate):
        raise NoEquilibrium("every personal price is zero or negative, so no reward rate moves anybody to take part.")
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
    from mppfl.game import path_kernels as kernels

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
    taking_part = (state == 0) | (np.where(state > 0, clients.budget_max, clients.budget_min) > 0)
    return Path(ends[:count], slopes, offsets, taking_part)


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
        wanted = (rates * weights - clients.linear_cost) / (2 * clients.quadratic_cost)
        wish = wanted - ((game.loss @ budgets.T).T - budgets)
        gap = np.abs(budgets - np.clip(wish, clients.budget_min, clients.budget_max)).max(axis=1)
        if not (gap <= PATH_TOLERANCE * np.maximum(1.0, np.abs(wanted).max(axis=1))).all():
            return False
    return True


def plain_path(game: Game, weights: Array, last: float = np.inf) -> Path:
    """The path with an equilibrium solved just past every bend."""
    from mppfl.game.path_kernels import just_past

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
    return Path(ends, slope, offset, np.array([s.taking_part for s in segments]))


def _segment_around(game: Game, weights: Array, here: AtBounds, rate: float, ahead: float) -> Segment:
    clients = game.clients
    low, high = clients.budget_min, clients.budget_max
    at_low, at_high = ~here.free & (here.budgets <= low), ~here.free & (here.budgets > low)
    for _ in range(game.num_clients + 1):
        free = ~(at_low | at_high)
        slope, offset = _line_of(game, weights, free, np.where(at_low, low, np.where(at_high, high, 0.0)))
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
        _first_rise(wish_slope, wish_offset, low, ahead, at_low),
        _first_fall(wish_slope, wish_offset, high, ahead, at_high),
        _first_fall(slope, offset, low, ahead, free),
        _first_rise(slope, offset, high, ahead, free),
    )
    return Segment(rate, end, slope, offset, free | (np.where(at_high, high, low) > 0))


def _line_of(game: Game, weights: Array, free: BoolArray, fixed: Array) -> tuple[Array, Array]:
    """Slope and offset of everybody's budget while the free clients answer and the others stay at `fixed`."""
    clients = game.clients
    right = np.column_stack([weights, clients.linear_cost]) / (2 * clients.quadratic_cost)[:, None]
    right[:, 1] += game.loss @ fixed
    both = game.loss.solve(right, None if free.all() else free)
    return both[:, 0], both[:, 1] - fixed


def _first_rise(slope: Array, offset: Array, bound: Array, ahead: float, who: BoolArray) -> float:
    """The first rate past `ahead` at which a rising line of `who` reaches its bound from below."""
    rising = who & (slope > 1e-14) & np.isfinite(bound)
    return _first(slope, offset, bound, ahead, rising)


def _first_fall(slope: Array, offset: Array, bound: Array, ahead: float, who: BoolArray) -> float:
    falling = who & (slope < -1e-14) & np.isfinite(bound)
    return _first(slope, offset, bound, ahead, falling)


def _first(slope: Array, offset: Array, bound: Array, ahead: float, who: BoolArray) -> float:
    if not who.any():
        return np.inf
    crossings = (offset[who] + bound[who]) / slope[who]
    later = crossings[crossings > ahead]
    return float(later.min()) if len(later) else np.inf


def equilibria_at(game: Game, weights: Array, rates: Array) -> Array:
    """Equilibria at rising rates, [rates, clients]: solved for where a bend lies between two of them, and read off the
    line that everybody follows where none does. What is read off is held against everybody's best response.
    """
    low, high = game.clients.budget_min, game.clients.budget_max
    found: list[Array] = []
    segment: Segment | None = None
    for rate in rates.tolist():
        if segment is not None and rate <= segment.high:
            budgets = np.clip(segment.budgets(rate), low, high)
            wanted = wanted_loss(game, rate * weights)
            answer = np.clip(wanted - (game.loss @ budgets - budgets), low, high)
            if np.abs(answer - budgets).max() <= LINE_TOLERANCE * max(1.0, float(np.abs(wanted).max())):
                found.append(budgets)
                continue
        here = equilibrium_at(game, rate * weights, found[-1] if found else None)
        found.append(here.budgets)
        segment = _segment_around(game, weights, here, rate, rate) if game.loss.is_dense else None
    return np.array(found)


@dataclass(frozen=True, eq=False)
class Samples:
    """What the server needs to know about the equilibrium at sampled rates; parallel arrays, rates rising."""

    rates: Array
    noise: Array  # Σ ε_i/ρ_i over those who take part
    paid: Array  # Σ w_i ρ_i: payments per unit of rate
    strength: Array  # Σ (n_i/n̄)² ρ_i, what noise-aware aggregation feels
    amplification: Array  # how much the noise of those who remain grows because others stay out


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
        raise NoEquilibrium("every personal price is zero or negative, so no reward rate moves anybody to take part.")
    rates = game.clients.linear_cost[positive] / weights[positive]
    return float(rates.min()), float(rates.max())
