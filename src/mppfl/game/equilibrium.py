"""How clients respond to prices: a line inside the bounds, a complementarity problem at them, a path as the rate rises.

Inside the bounds budgets are ρ(r) = r·u − v; two linear solves serve every rate and round. At the bounds they are the
solution of a box complementarity problem, unique where αS < 1. The path follows it by straight lines between bends, the
rates at which a client meets or leaves a bound. A bend costs one principal pivot, O(clients²); the tableau is computed
anew every few hundred pivots, so rounding does not add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg.blas import dger

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NotConverged
from mppfl.game.loss import TOLERANCE
from mppfl.game.model import Game, wanted_loss
from mppfl.game.plan import Against

MAX_ACTIVE_SETS = 60
MAX_SWEEPS = 2000
ENOUGH = 1e-7  # of a client's own digits: what is accepted where rounding ends the search
PATH_BELOW = 1500  # clients; on larger networks wishes are sampled
REFRESH = 200  # pivots after which the tableau is computed anew
FLAT = 1e-14  # of a client's own answer to the rate: a smaller slope is rounding
NEARBY = 1e-13  # of a budget's own digits: nearer to a bound it is at the bound

LOW, FREE, HIGH, OUT = -1, 0, 1, 2

Line = tuple[Any, Any]  # slope and constant, one of each per client


@dataclass(frozen=True, eq=False)
class Response:
    """Budgets as a straight line in the reward rate, ρ(r) = r·slope − offset, where no bound is reached (eq. 14).

    lowest_rate, highest_rate  the open interval of rates on which every free client is strictly inside its bounds;
                               empty (lowest >= highest) when there is no such rate
    free                       clients that respond; the others stay at a constant budget (slope 0)
    """

    slope: Array
    offset: Array
    lowest_rate: float
    highest_rate: float
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
    own = prices / (2 * clients.quadratic_cost), clients.linear_cost / (2 * clients.quadratic_cost)
    slope, offset = line_of_free(game, own, free, clients.budget_min)
    low, high = interior_rates(slope[free], offset[free], clients.budget_min[free], clients.budget_max[free])
    if game.contraction >= 1:
        wrong = np.abs(game.loss @ np.column_stack([slope, offset]) - np.column_stack(own))[free]
        if wrong.max(initial=0.0) > 1e-7 * max(np.abs(own[0]).max(), own[1].max()):  # a singular B: no such line
            low, high = np.inf, -np.inf
    return Response(slope, offset, low, high, free)


def line_of_free(game: Game, own: Line, free: BoolArray, budgets: Array) -> tuple[Array, Array]:
    """Slope and offset of everybody's budget while some are free, the others staying at theirs.

    own  slope and offset of what each would answer alone
    """
    held = np.where(free, 0.0, budgets)
    right = np.column_stack([own[0], own[1] + game.loss @ held if held.any() else own[1]])
    both = game.loss.solve(right, None if free.all() else free)
    return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1]) - held


def interior_rates(slope: Array, offset: Array, low: Array, high: Array) -> tuple[float, float]:
    """The open interval of rates r with low < r·slope − offset < high for every client."""
    rises, flat = slope > 0, slope == 0
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        floor, ceiling = (offset + low) / slope, (offset + high) / slope
    if not ((-offset[flat] > low[flat]) & (-offset[flat] < high[flat])).all():
        return np.inf, -np.inf
    lowest = np.where(rises, floor, ceiling)[~flat].max(initial=0.0)
    return float(lowest), float(np.where(rises, ceiling, floor)[~flat].min(initial=np.inf))


def equilibrium_at(game: Game, prices: Array | float, start: Array | None = None, tolerance: float = 1e-12) -> Array:
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
    # A budget is at a bound where its owner's wish is, to what the search can tell.
    return np.where(wish <= low + allowed, low, np.where(wish >= high - allowed, high, budgets))


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


# ---- the path -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Path:
    """Segments in the order of their rates.

    ends           [segments, 2]        where each begins and ends
    slope, offset  [segments, clients]  the line that everybody follows there
    free           [segments, clients]  who is strictly inside its bounds
    """

    ends: Array
    slope: Array
    offset: Array
    free: BoolArray

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def participating(self) -> BoolArray:
        return self.free | (self.offset < 0)

    def only(self, which: BoolArray) -> Path:
        """Some of the segments, in their order; rates between them are left out."""
        return Path(self.ends[which], self.slope[which], self.offset[which], self.free[which])

    def budgets(self, segment: int, rate: float, low: Array, high: Array) -> Array:
        """Everybody's budget at a rate of a segment; one that is at a bound but for rounding is at it exactly."""
        line, constant = rate * self.slope[segment], self.offset[segment]
        budgets, digits = line - constant, np.where(self.free[segment], np.abs(line) + np.abs(constant), 0.0)
        near = NEARBY * digits
        inside = np.where(budgets <= low + near, low, np.where(budgets >= high - near, high, budgets))
        return np.where((digits == 0) & (budgets == 0), 0.0, inside)  # who opts out is at 0, whatever its floor

    def segment_at(self, rate: float) -> int:
        """The first segment that a rate lies on."""
        return int(np.clip(np.searchsorted(self.ends[:, 1], rate), 0, len(self) - 1))


def no_segments(num_clients: int) -> Path:
    nothing = np.zeros((0, num_clients))
    return Path(np.zeros((0, 2)), nothing, nothing, nothing.astype(bool))


@dataclass(frozen=True, eq=False)
class Followers:
    """Clients who answer a reward rate, each with its best response to the others.

    weights  personal prices per unit of rate
    """

    game: Game
    weights: Array

    @cached_property
    def line(self) -> Response:
        """Their answer while everybody is inside its bounds."""
        return equilibrium_response(self.game, self.weights)

    @cached_property
    def matrix(self) -> Array:
        """M of the answer x = clip(r·own_slope − own_offset − (M − I)x), with a unit diagonal."""
        return self.game.loss.dense

    @cached_property
    def own(self) -> tuple[Array, Array]:
        """Slope and offset of what each would answer alone."""
        clients = self.game.clients
        return self.weights / (2 * clients.quadratic_cost), clients.linear_cost / (2 * clients.quadratic_cost)

    def answer(self, rate: float, start: Array | None = None, tolerance: float = 1e-12) -> Array:
        return equilibrium_at(self.game, rate * self.weights, start, tolerance)

    def wish(self, rate: float, budgets: Array) -> Array:
        """What each would answer without bounds, given the others' budgets."""
        return rate * self.own[0] - self.own[1] - (self.game.loss @ budgets - budgets)

    def segment(self, rate: float, budgets: Array) -> Path:
        """The segment of the path on which clients answer a rate with these budgets; empty where rounding hides it."""
        low, high = self.game.clients.budget_min, self.game.clients.budget_max
        free = (budgets > low) & (budgets < high)
        slope, offset = line_of_free(self.game, self.own, free, budgets)
        start = self.wish(0.0, -offset)
        floor = np.where(free, low, np.where((budgets >= high) & (high > low), high, -np.inf))
        ceiling = np.where(free, high, np.where((budgets <= low) & (high > low), low, np.inf))
        ends = interior_rates(self.wish(1.0, slope - offset) - start, -start, floor, ceiling)
        path = Path(np.array([ends]), slope[None], offset[None], free[None])
        return path if ends[0] <= rate <= ends[1] else path.only(np.array([False]))


def response_path(followers: Followers, against: Against | None = None, last: float = np.inf) -> Path:
    """Every segment of the path of answers from rate 0 up to `last`; without it, the last segment has no end.

    against  None: clients answer within their bounds. Else each also opts out where it gains less than by staying out,
             or than nothing: as the rate rises, clients join and leave as soon as that pays, and budgets jump there.
    """
    path = Path(*map(np.array, zip(*_Walker(followers, against).segments(last), strict=True)))
    whole = path.ends[:, 1] > path.ends[:, 0]
    whole[0] |= bool(followers.game.clients.budget_min.any())  # at no pay at all some give their floors
    return path.only(whole)


class _Walker:
    """The principal pivot transform of B over the free clients, and everybody's line.

    value          budget at which a client who is not free is held
    slope, offset  r·slope − offset: the budget of a free client, the wish of one who is held
    chooses        who opts out where that pays
    """

    def __init__(self, followers: Followers, against: Against | None) -> None:
        self.followers, self.against = followers, against
        self.game, self.weights, self.matrix = followers.game, followers.weights, followers.matrix
        self.own_slope, self.own_offset = followers.own
        clients = self.game.clients
        self.low, self.high = clients.budget_min, clients.budget_max
        # Who bears no cost but its privacy loses nothing by being there at 0, and never opts out.
        stays = (self.low == 0) & (clients.compute_cost == 0) & (against == "staying_out") | (against is None)
        self.chooses = (self.high > 0) & ~stays
        self.state, self.value = np.where(stays, LOW, OUT), np.where(stays, self.low, 0.0)
        self.tried_at, self.seen = -1.0, set[bytes]()  # the crowds that were tried at this rate
        self._refresh()

    def _refresh(self) -> None:
        """Tableau and lines from who is free and where the others are held."""
        free, unit = (self.state == FREE)[:, None], np.eye(len(self.state))
        given, sought = np.where(free, self.matrix, unit), np.where(free, unit, self.matrix)
        self.tableau, self.pivots = np.asfortranarray(np.linalg.solve(given.T, sought.T).T), 0
        self._draw_lines()

    def _draw_lines(self) -> None:
        """Everybody's line anew: its digits are those of who is there now, not of who has been."""
        free = self.state == FREE
        right = np.array([np.where(free, self.own_slope, 0.0), np.where(free, self.own_offset, -self.value)])
        slope, offset = right @ self.tableau.T
        self.slope = np.where(free, slope, self.own_slope - slope)
        self.offset = np.where(free, offset, self.own_offset - offset - self.value)

    def _place(self, k: int, state: int) -> None:
        """Client k is free from now on, at a bound, or out."""
        if (self.state[k] == FREE) != (state == FREE):
            scale = 1.0 / self.tableau[k, k]
            row, column = self.tableau[k] * scale, self.tableau[:, k].copy()
            self.tableau = dger(-1.0, column, row, a=self.tableau, overwrite_a=1)
            self.tableau[:, k], self.tableau[k] = column * scale, -row
            self.tableau[k, k] = scale
            self.pivots += 1
        self.state[k], self.value[k] = state, {LOW: self.low[k], HIGH: self.high[k]}.get(state, 0.0)
        self._draw_lines()

    # ---- the walk

    def segments(self, last: float) -> Iterator[tuple[tuple[float, float], Array, Array, BoolArray]]:
        """Ends, slope, offset, who is free: one segment after another."""
        rate, before = 0.0, self.state == OUT
        for _ in range(20 * len(self.low) + 50):
            if self.pivots >= REFRESH:
                self._refresh()
            if self.chooses.any():
                self._settle(rate, before)
                before = self.state == OUT
            end, k, state = min(self._next_bend(rate), self._next_change_of_mind(rate), key=lambda bend: bend[0])
            free = self.state == FREE
            yield (rate, end), np.where(free, self.slope, 0.0), np.where(free, self.offset, -self.value), free
            if k < 0 or end >= last:
                return
            rate = end
            jumps = state == OUT or self.state[k] == OUT
            self._cross(rate, k, state)
            if jumps:
                self._within_bounds(rate)
        raise NotConverged(f"the path of budgets has too many bends; it was followed up to rate {rate:.6g}.", rate, 0.0)

    def _cross(self, rate: float, k: int, state: int) -> None:
        """Client k goes out, to a bound, or inside; who joins may find itself at a bound."""
        joins = self.state[k] == OUT
        if joins and state == FREE:
            wish = rate * self.slope[k] - self.offset[k]
            state = LOW if wish <= self.low[k] else HIGH if wish >= self.high[k] else FREE
        if joins or state != FREE or self.tableau[k, k] > 1e-12:
            self._place(k, state)
        else:
            self._start_anew(rate)  # B is no P-matrix (αS is 1 or more): the path jumps

    def _start_anew(self, rate: float) -> None:
        """Some equilibrium just past a rate, where several may exist."""
        out = self.state == OUT
        inside = self.game.with_bounds(np.where(out, 0.0, self.low), np.where(out, 0.0, self.high))
        budgets = replace(self.followers, game=inside).answer(rate * (1 + 1e-9))
        self.state = np.where(out, OUT, np.where(budgets <= self.low, LOW, np.where(budgets >= self.high, HIGH, FREE)))
        self.value = np.where(out, 0.0, np.clip(budgets, self.low, self.high))
        self._refresh()

    def _next_bend(self, rate: float) -> tuple[float, int, int]:
        """The first rate from here at which a line meets a bound, whose it is, and where that client goes."""
        flat = FLAT * np.abs(self.own_slope)
        up, down = self.slope > flat, self.slope < -flat
        is_free = self.state == FREE
        bound = np.where(is_free, np.where(up, self.high, self.low), self.value)
        moves = np.where(is_free, up | down, (self.state == LOW) & up | (self.state == HIGH) & down)
        moves &= (self.high > self.low) & np.isfinite(bound)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            crossing = np.where(moves, (self.offset + bound) / self.slope, np.inf)
        k = int(np.argmin(crossing))
        # A crossing behind the rate is rounding at a bend, or a wish past its bound from the start.
        goes = FREE if not is_free[k] else HIGH if up[k] else LOW
        return max(float(crossing[k]), rate), k if np.isfinite(crossing[k]) else -1, goes

    # ---- who joins, who leaves

    def _settle(self, rate: float, before: BoolArray) -> None:
        """Lets clients join and leave at a rate until nobody wants to, the largest margin first. Who would come and go
        for ever stays out, until a rate at which it would have stayed.

        before  who was out up to this rate
        """
        just_left = (self.state == OUT) & ~before
        if rate > self.tried_at * (1 + 10 * NEARBY):
            self.seen, self.restless, self.left = set(), np.zeros_like(before), np.zeros_like(before)
        self.tried_at, self.again = rate, np.full(len(before), np.inf)
        self.restless |= just_left
        if (before != (self.state == OUT)).any():
            self.seen.add(before.tobytes())
        while True:
            line, out = rate * self.slope - self.offset, self.state == OUT
            given = np.where(out, np.clip(line, self.low, self.high), np.where(self.state == FREE, line, self.value))
            margins = margin_of(self.game, rate * self.weights, line, given, self.against)
            self.seen.add(out.tobytes())
            slight = 1e-11 * self._money(rate)
            wrong = np.where(out, ~self.restless & (margins > slight), margins < -slight) & self.chooses
            if not wrong.any():
                self.again = np.where(out & (margins > -slight), self.again, np.inf)
                return
            k = int(np.argmax(np.where(wrong, np.abs(margins), -1.0)))
            if not out[k]:
                roots = self._roots(self._line if self.state[k] == FREE else (0.0, self.value))
                self.again[k] = min(root[k] if rises[k] and root[k] > rate else np.inf for root, rises in roots)
                self.left[k] = True
            elif (out ^ (np.arange(len(out)) == k)).tobytes() in self.seen:
                self.restless[k] = True
                continue
            self._cross(rate, k, FREE if out[k] else OUT)
            self._within_bounds(rate)

    def _money(self, rate: float) -> Array:
        """The size of the sums that a client's margin is the difference of."""
        clients = self.game.clients
        losses = np.abs(rate * self.own_slope) + self.own_offset
        return np.asarray(clients.quadratic_cost * losses**2 + clients.linear_cost * losses + clients.compute_cost)

    def _within_bounds(self, rate: float) -> None:
        """Moves clients whom a jump of others has put past a bound, one by one."""
        for _ in range(4 * len(self.low) + 4):
            line, flat = rate * self.slope - self.offset, NEARBY * (np.abs(rate * self.slope) + np.abs(self.offset))
            free, movable = self.state == FREE, self.high > self.low
            goes = np.where(free & (line < self.low - flat), LOW, np.where(free & (line > self.high + flat), HIGH, OUT))
            leaves = (self.state == LOW) & (line > self.low + flat) | (self.state == HIGH) & (line < self.high - flat)
            goes = np.where(movable & leaves, FREE, goes)
            wrong = np.flatnonzero(goes != OUT)
            if len(wrong) == 0:
                return
            self._cross(rate, int(wrong[0]), int(goes[wrong[0]]))

    def _next_change_of_mind(self, rate: float) -> tuple[float, int, int]:
        """The first rate past this one at which a client's margin changes sign, whose, and where it goes."""
        if not self.chooses.any():
            return np.inf, -1, OUT
        out, free = self.state == OUT, self.state == FREE
        first = self.again.copy()
        later = np.where(self.left, rate * (1 + 10 * NEARBY), rate)  # who has just come and gone is not asked again
        held = [(~free & ~out, self.value), (out, self.low), (out, self.high)]
        pieces = [(which & np.isfinite(given) & (given > 0), (0.0, given)) for which, given in held]
        for which, given in [(free, self._line), (out, self._line), *pieces]:
            for root, rises in self._roots(given) if (which & self.chooses).any() else ():
                at = np.where(np.isfinite(root), root, 0.0)
                wish = at * self.slope - self.offset
                valid = which & self.chooses & (root > later) & np.where(out, rises, ~rises)
                # Who is out would give the best that its bounds allow.
                best = np.clip(wish, self.low, self.high)
                valid &= ~out | (np.abs(at * given[0] + given[1] - best) <= NEARBY * np.abs(self.offset))
                first = np.where(valid, np.minimum(first, root), first)
        k = int(np.argmin(first))
        return float(first[k]), k if np.isfinite(first[k]) else -1, FREE if out[k] else OUT

    @property
    def _line(self) -> Line:
        return self.slope, -self.offset

    def _roots(self, given: Line) -> list[tuple[Array, BoolArray]]:
        """Rates at which the margin of giving a line, or a constant, is 0, and whether it rises there."""
        given = 0 * self.slope + given[0], np.where(np.isfinite(given[1]), given[1], 0.0)
        square, linear, constant = margin_polynomial(self.game, (self.weights, 0.0), self._line, given, self.against)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inner = linear**2 - 4 * square * constant
            inner = np.where(np.abs(inner) > 100 * FLAT * linear**2, inner, 0.0)  # two roots in one
            size = -0.5 * (linear + np.copysign(np.sqrt(inner), linear))
            both = np.sort([np.where(square != 0, size / square, np.inf), constant / size], axis=0)
        both = np.where(both >= 0, both, np.inf)  # neither NaN
        # A margin that opens upwards falls at its first root and rises at its second, which may be the same.
        first, second = np.where(square != 0, square < 0, linear > 0), square > 0
        return [(both[0], first), (both[1], second)]


def margin_of(game: Game, prices: Array | float, wish: Array, given: Array, against: Against | None) -> Array:
    """What participating with `given` is worth against staying out, or against nothing, in money (model, eq. 31).

    wish  the best budget without bounds, others unmoved; outsiders are still exposed by the others
    """
    return np.asarray(margin_polynomial(game, (0.0, prices), (0.0, wish), (0.0, given), against)[2])


def margin_polynomial(game: Game, prices: Line, wish: Line, given: Line, against: Against | None) -> Array:
    """`margin_of` along lines in r, as a polynomial in r: its three coefficients, that of r² first."""
    a, b = game.clients.quadratic_cost, game.clients.linear_cost
    if against == "nothing":
        alone = prices[0] / (2 * a), (prices[1] - b) / (2 * a)
        spill = np.where(np.abs(alone[0] - wish[0]) > FLAT * alone[0], alone[0] - wish[0], 0.0), alone[1] - wish[1]
        loss = spill[0] + given[0], spill[1] + given[1]
        margin = _product(prices, given) - a * _product(loss, loss) - _product((0.0, b), loss)
    else:
        margin = a * _product(given, (2 * wish[0] - given[0], 2 * wish[1] - given[1]))
    margin[2] -= game.clients.compute_cost
    return margin


def _product(one: Line, other: Line) -> Array:
    square, linear = one[0] * other[0], one[0] * other[1] + one[1] * other[0]
    return np.array(np.broadcast_arrays(square, linear, one[1] * other[1]))
