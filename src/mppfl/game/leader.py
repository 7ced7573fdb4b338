"""The server's reward rate: one rule for every leader and every bound (docs/model.md, section 4).

The leader takes the cheapest rate among those that the participation rule allows, on the path of equilibria. On a
segment of the path budgets are ρ(r) = r·u − v, so every leader with one rate solves one equation,

    F(r) = A·r − C − (κ/t) Σ g_i/(r·u_i − v_i)² = 0,

which turns from negative to positive once on a segment. Where the noise of all lies on one sum (eq. 34), −X'/X³ takes
the place of the sum, with X = Σ (n_i/n̄)√ρ_i: X is concave and 1/X² convex, so the root is one again. Σ does not depend
on the round, so two sums at the ends of a segment tell every round whether its rate lies inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray, require_number
from mppfl.errors import NoEquilibrium
from mppfl.fields import About, checked
from mppfl.game.equilibrium import NEARBY, PATH_BELOW, Followers, Path, no_segments, response_path
from mppfl.game.model import Game, cost_without_absent, noise_of_sum, pooled_sizes
from mppfl.game.plan import Against, AlongLine, Participation, PerRound, Plan, Stored

UniformLeader = Literal["mean_field", "anticipating", "noise_aware", "budget_limited", "secure_sum"]
POOLED = ("noise_aware", "secure_sum")  # leaders for whom clients' budgets add up to one

AT_A_BOUND = "some clients are at a bound of their budgets"
AT_ONCE = 100_000  # clients × rates whose budgets are formed side by side: they stay in the cache
SPLITS = 64  # parts of a segment on which pay falls as the rate rises, where cost need not be convex
NUM_SAMPLES = 48  # rates at which a large game's wishes are sampled
SHORT = 300  # clients: on networks of at most so many, answers to given rates are read off the path
NEXT = 1e-5  # of a rate: how far past the end of its segment the next one is looked for
OPEN = 1e-9  # of a segment: how near to the rate at which somebody leaves the server goes
NO_NOISE = 1e300  # a budget that makes none
GAPS, CHEAPEST = 2 * 10**7, 4  # gaps × clients that are looked at between joins; of these, tried in each round
GRID = 24  # rates between two samples at which costs are read off interpolated wishes


def choose_rates(
    game: Game,
    leader: UniformLeader,
    rounds: IntArray,
    *,
    payment_limit: float | None = None,
    weights: Array | None = None,
    participation: Participation = "everyone",
    against: Against = "staying_out",
) -> Plan:
    """The leader's reward rate for every round in `rounds`, and the budgets it leads to, as a plan in its name.

    weights  personal prices per unit of rate, one each unless given (Pigouvian prices)
    """
    checked("leader", leader, UniformLeader, About(""))
    limit = np.inf
    if leader == "budget_limited":
        limit = require_number(np.nan if payment_limit is None else payment_limit, "payment_limit", 0, np.inf)
    require_somebody(game)
    prices = np.ones(game.num_clients) if weights is None else weights
    return Answers(Followers(game, prices), participation, against).choose(leader, np.asarray(rounds), limit)


def budgets_along(
    game: Game,
    reward_rates: Array,
    weights: Array | None = None,
    participation: Participation = "everyone",
    against: Against = "staying_out",
) -> PerRound:
    """Equilibrium budgets at given rates, kept compactly."""
    followers = Followers(game, np.ones(game.num_clients) if weights is None else weights)
    return answers_along(followers, reward_rates, against if participation == "rational" else None)


def answers_along(followers: Followers, reward_rates: Array, against: Against | None = None) -> PerRound:
    """Clients' answers at given rates: the line where all of them are inside the bounds, the path, or one by one."""
    line, clients = followers.line, followers.game.clients
    inside = (reward_rates > line.lowest_rate) & (reward_rates < line.highest_rate)
    if against is None and line.has_interior and inside.all():
        return AlongLine(line.slope, line.offset)
    distinct, rows = np.unique(reward_rates, return_inverse=True)
    if against is not None or followers.game.num_clients <= SHORT:
        path = response_path(followers, against, float(distinct[-1]))
        bounds = clients.budget_min, clients.budget_max
        budgets = [path.budgets(path.segment_at(rate), rate, *bounds) for rate in distinct.tolist()]
    else:
        budgets = []
        for rate in distinct.tolist():
            budgets.append(followers.answer(rate, budgets[-1] if budgets else None))
    return Stored(np.array(budgets), rows)


def require_somebody(game: Game) -> None:
    """Raises NoEquilibrium where the bounds let nobody participate."""
    if (game.clients.budget_max <= 0).all():
        raise NoEquilibrium(
            "budget_max is 0 for everybody, so nobody can participate. Raise it for those who may share."
        )


def aggregating(game: Game, leader: UniformLeader) -> UniformLeader:
    """The leader of a game under its trust: whoever leads, budgets are worth what they do to a sum that opens."""
    return "secure_sum" if game.opens_sums else leader


def pooled_noise(game: Game, leader: UniformLeader, budgets: Array) -> float:
    """N²ε̄/X of a server that averages noise-aware (model, eq. 18), or the harm of one noise on the sum (eq. 34)."""
    if leader == "secure_sum":
        return noise_of_sum(game, budgets)
    sizes, harm = pooled_sizes(game)
    effective = float(sizes**2 @ budgets)
    return harm / effective if effective > 0 else np.inf


def noise_aware_cost(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """τN²ε̄/(t·X) + (1−τ)Σp_iρ_i with X = Σ(n_i/n̄)²ρ_i (model, eq. 18): the cost under noise-aware aggregation."""
    return cost_of(game.with_trust("local"), "noise_aware", round_index, prices, budgets)


def cost_of(game: Game, leader: UniformLeader, round_index: int, prices: Array | float, budgets: Array) -> float:
    """What a round costs the server as this leader sees it."""
    seen, tau = aggregating(game, leader), game.accuracy_weight
    if seen not in POOLED:
        return cost_without_absent(game, round_index, prices, budgets)
    return tau * pooled_noise(game, seen, budgets) / round_index + (1 - tau) * float(np.sum(prices * budgets))


class Answers:
    """Clients' answers to every rate that a participation rule allows.

    Everybody strictly inside its bounds is one line, for any number of clients. Where bounds matter, the path of
    equilibria up to PATH_BELOW clients, and wishes sampled at some rates beyond.
    """

    def __init__(
        self,
        followers: Followers,
        participation: Participation,
        against: Against = "staying_out",
        paid: Array | None = None,
    ) -> None:
        self.followers, self.game, self.line = followers, followers.game, followers.line
        self.weights = followers.weights if paid is None else paid  # what the server pays per unit of rate
        self.participation = participation
        self.against = against if participation == "rational" else None
        clients = self.game.clients
        # Nobody can be asked to participate who may give nothing, or is paid nothing and has no floor.
        self.able = (clients.budget_max > 0) & ((followers.weights > 0) | (clients.budget_min > 0))

    @cached_property
    def path(self) -> Path | None:
        """Allowed segments; None where the game is too large for its path to be followed."""
        clients, line, able = self.game.clients, self.line, self.able
        low, high = clients.budget_min[line.free], clients.budget_max[line.free]
        bounds_matter = not able[line.free].all() or bool((low > 0).any() or np.isfinite(high).any() or len(low) == 0)
        if self.participation == "everyone" and not bounds_matter:
            # Everybody participates just where everybody is strictly inside its bounds.
            if not line.has_interior or not (line.free | (line.offset < 0))[able].all():
                return no_segments(self.game.num_clients)
            ends = np.array([[line.lowest_rate, line.highest_rate]])
            return _strictly_inside(Path(ends, line.slope[None], line.offset[None], line.free[None]), able)
        if self.game.num_clients > PATH_BELOW:
            return None
        path = response_path(self.followers, self.against)
        part = path.participating
        if self.participation != "everyone":
            return path.only(np.asarray(part.any(axis=1)))
        return _strictly_inside(path.only(np.asarray(part[:, able].all(axis=1))), able)

    def choose(self, leader: UniformLeader, rounds: IntArray, limit: float) -> Plan:
        """The leader's rate of every round; raises NoEquilibrium where the rule allows none."""
        path, leader = self.path, aggregating(self.game, leader)
        if path is None:
            return _Samples(self).choose(leader, rounds, limit)
        if len(path) == 0:
            raise NoEquilibrium(self._who_cannot_be_kept())
        rates, segments, costs = _View(self.game, self.weights, path, leader, limit).best(rounds)
        self.require_rates(costs, rounds, limit)
        clients = self.game.clients
        used = np.unique(segments)
        at_bounds = not path.free[np.ix_(used, clients.budget_max > clients.budget_min)].all()
        low, high = path.ends[used[0]]
        if len(used) == 1 and ((rates > low) & (rates < high)).all():
            return self.plan(leader, rounds, rates, AlongLine(path.slope[used[0]], path.offset[used[0]]), at_bounds)
        bounds = clients.budget_min, clients.budget_max
        rows = [path.budgets(int(k), float(rate), *bounds) for rate, k in zip(rates, segments, strict=True)]
        return self.plan(leader, rounds, rates, Stored(np.array(rows), np.arange(len(rates))), at_bounds)

    def plan(self, leader: str, rounds: IntArray, rates: Array, budgets: PerRound, at_bounds: bool) -> Plan:
        """The leader's choice as a plan, which says whether any bound is reached."""
        notes, size = (AT_A_BOUND,) if at_bounds else (), self.game.num_clients
        return Plan(
            leader, rounds, rates, budgets, size, None, notes, self.participation, self.against or "staying_out"
        )

    def least(self, leader: UniformLeader, rounds: IntArray, limit: float = np.inf) -> Array:
        """What a round costs at least, at any rate that the rule allows; never more than the true minimum."""
        leader = aggregating(self.game, leader)
        seen_as: UniformLeader = leader if leader in POOLED else "anticipating"
        if self.path is None:
            return _Samples(self).least(seen_as, rounds, limit)
        return _View(self.game, self.weights, self.path, seen_as, limit).best(rounds)[2]

    def require_rates(self, costs: Array, rounds: IntArray, limit: float) -> None:
        """Raises NoEquilibrium where the least cost of a round is infinite."""
        if not np.isfinite(costs).all():
            spent = f" within payment_limit={limit:g}. Raise it" if np.isfinite(limit) else ""
            raise NoEquilibrium(
                f"no reward rate of round {rounds[np.argmin(np.isfinite(costs))]} moves clients to participate as "
                f"participation={self.participation!r} asks{spent}."
            )

    def _who_cannot_be_kept(self) -> str:
        """Why no rate keeps everybody: who participates at no rate, or is gone before others come."""
        if self.participation != "everyone":
            return f"no reward rate moves anybody to participate under participation={self.participation!r}."
        comes, leaves = self._stays()
        clients, name = np.flatnonzero(self.able), self.game.graph.name
        late = clients[np.argmax(np.where(comes < leaves, comes, -np.inf)[clients])]
        order = clients[np.argsort(leaves[clients], kind="stable")]
        lost = [int(k) for k in order if leaves[k] <= max(comes[k], comes[late])][:3]
        reasons = [
            f"{name(k)!r} participates at no rate"
            if leaves[k] <= comes[k]
            else f"{name(k)!r} leaves at rate {rate:.4g}"
            for k, rate in zip(lost, leaves[lost], strict=True)
        ]
        if (leaves[lost] > comes[lost]).any():
            reasons.append(f"{name(int(late))!r} comes only at rate {comes[late]:.4g}")
        reason = ", ".join(reasons) or "their bounds leave no common rate"
        return (
            f'no reward rate keeps all {len(clients):,} clients: {reason}. Use participation="voluntary", or give '
            "budget_min above 0 to those who must stay."
        )

    def _stays(self) -> tuple[Array, Array]:
        """From which rate and up to which each client participates; who never does comes no sooner than it leaves."""
        if self.game.num_clients > PATH_BELOW:  # as they would with everybody inside
            line = self.line
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = line.offset / line.slope
            comes = np.where(line.slope > 0, crossing, np.where(line.offset < 0, 0.0, np.inf))
            return comes, np.where(line.slope < 0, crossing, np.inf)
        path = response_path(self.followers)
        comes = np.where(path.participating, path.ends[:, :1], np.inf).min(axis=0)
        return comes, np.where(path.participating, path.ends[:, 1:], -np.inf).max(axis=0)


def _strictly_inside(path: Path, able: BoolArray) -> Path:
    """The same path without ends at which somebody's budget is 0: the most that is lost is OPEN of a segment."""
    ends, low = path.ends.copy(), path.ends[:, 0]
    width = OPEN * np.minimum(ends[:, 1] - low, np.where(low > 0, low, _scales(path)))
    for side, inwards in ((0, width), (1, -width)):
        line = np.where(np.isfinite(ends[:, side]), ends[:, side], np.nan)[:, None] * path.slope
        empty = (line - path.offset <= NEARBY * (np.abs(line) + np.abs(path.offset))) & able
        ends[:, side] += np.where(empty.any(axis=1), inwards, 0.0)
    return Path(ends, path.slope, path.offset, path.free)


def _scales(path: Path) -> Array:
    """A rate for each segment, of the size at which budgets on its lines change a lot."""
    steepest, largest = (np.abs(line).max(axis=1, initial=0.0) for line in (path.slope, path.offset))
    return np.asarray(np.divide(largest, steepest, out=np.ones(len(path)), where=steepest > 0))


# ---- on the path ----------------------------------------------------------------------------------------------------


class _View:
    """A path as one leader sees it: pieces of segments, with noise, pay and pull at any rate of each.

    pull  g_i: what the leader believes a higher rate does to client i's noise. mean_field (eq. 16) takes others' risk
          as it stands, so each answers with w/2a; the others know that it moves (eq. 17 to 19), so g = ε·u. Of a sum
          that opens as a whole (eq. 34) harm and pull are those of X = Σ(n_i/n̄)√ρ_i: s = n/n̄ and s·u
    """

    def __init__(self, game: Game, weights: Array, path: Path, leader: UniformLeader, limit: float) -> None:
        clients, tau = game.clients, game.accuracy_weight
        self.game, self.weights, self.path, self.leader = game, weights, path, leader
        # Sums, not products: BLAS would start threads, which wait for each other on busy cores.
        self.paid_slope, self.paid_offset = ((line * weights).sum(axis=1) for line in (path.slope, path.offset))
        self.strength = np.full(len(path), tau / (1 - tau))
        part, (sizes, harm) = path.participating, pooled_sizes(game)
        self.slope, self.offset = path.slope, np.where(part, path.offset, -1.0)  # who is out has no noise
        if leader == "noise_aware":  # all clients together are one whose budget is X = Σ(n_i/n̄)²ρ_i
            self.slope, self.offset = ((line * sizes**2).sum(axis=1)[:, None] for line in (path.slope, path.offset))
            self.harm = np.full((len(path), 1), harm)
        elif leader == "secure_sum":
            self.harm = np.where(part, sizes, 0.0)
            self.strength = self.strength * harm
        else:
            self.harm = np.where(part, clients.noise_harm, 0.0)
            self.strength = self.strength * (sizes.sum() / (part @ sizes)) ** 2
        if leader == "mean_field":
            alone = np.where(path.free, weights / (2 * clients.quadratic_cost), 0.0)
            self.pull, self.steepness = self.harm * alone, self.paid_slope + (alone * weights).sum(axis=1)
        else:
            self.pull, self.steepness = self.harm * self.slope, 2 * self.paid_slope
        self.segment, self.low, self.high = self._pieces(limit)

    def _pieces(self, limit: float) -> tuple[IntArray, Array, Array]:
        """Parts of segments on which cost is convex and payments stay within the limit."""
        parts: list[tuple[int, float, float]] = []
        for k, (low, high) in enumerate(self.path.ends.tolist()):
            slope, offset = float(self.paid_slope[k]), float(self.paid_offset[k])
            if slope < 0 and np.isfinite(high):
                cuts = np.linspace(low, high, SPLITS + 1)
                fits = cuts * (slope * cuts - offset) <= limit
            else:
                most = limit / -offset if offset < 0 else np.inf
                if slope > 0:
                    most = (offset + np.sqrt(offset**2 + 4 * slope * limit)) / (2 * slope)
                cuts = np.array([low, min(high, most)])
                fits = cuts >= low
            parts += [(k, cuts[i], cuts[i + 1]) for i in np.flatnonzero(fits[:-1] & fits[1:])]
        segment, low_ends, high_ends = np.array(parts).reshape(-1, 3).T
        return segment.astype(np.int64), low_ends, high_ends

    def sums(self, segments: IntArray, rates: Array) -> Array:
        """Σ ε_i/ρ_i, Σ g_i/ρ_i² and Σ g_i u_i/ρ_i³ at one rate of each of these segments: the noise, its pull P, −P'/2.

        Of a sum that opens as a whole the noise is 1/X², made of X = Σ s√ρ, 2X' = Σ su/√ρ and −4X'' = Σ su²/√ρ³.
        """
        sums, rows = np.zeros((3, len(rates))), segments if len(self.path) > 1 else slice(None)
        step = 1 + AT_ONCE // (1 + len(rates))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for first in range(0, self.slope.shape[1], step):
                part = slice(first, first + step)
                harm, pull, slope = self.harm[rows, part], self.pull[rows, part], self.slope[rows, part]
                inverse = 1 / np.maximum(rates[:, None] * slope - self.offset[rows, part], 0.0)
                noise, square = inverse, inverse * inverse
                if self.leader == "secure_sum":
                    noise, square = 1 / np.sqrt(inverse), np.sqrt(inverse)
                sums[0] += np.vecdot(harm, noise)
                sums[1] += np.vecdot(pull, square)
                sums[2] += np.vecdot(pull * slope, square * inverse)
            if self.leader == "secure_sum":
                whole, steep, bent = sums
                sums = np.array([whole**-2, steep / whole**3, bent / (4 * whole**3) + 0.75 * steep**2 / whole**4])
        return sums

    def condition(self, pieces: IntArray, rates: Array, pulled: Array, rounds: Array | float) -> Array:
        """F of the leader's equation at these rates of these pieces."""
        k = self.segment[pieces]
        return np.asarray(self.steepness[k] * rates - self.paid_offset[k] - self.strength[k] / rounds * pulled)

    def cost(self, pieces: IntArray, rates: Array, noise: Array, rounds: Array) -> Array:
        k, tau = self.segment[pieces], self.game.accuracy_weight
        pay = rates * (self.paid_slope[k] * rates - self.paid_offset[k])
        return np.asarray((1 - tau) * (self.strength[k] / rounds * noise + pay))

    def best(self, rounds: IntArray) -> tuple[Array, IntArray, Array]:
        """Rate, segment and cost of every round; the cost is infinite where no rate is allowed."""
        if len(self.segment) == 0:
            return np.zeros(len(rounds)), np.zeros(len(rounds), dtype=np.int64), np.full(len(rounds), np.inf)
        times = rounds.astype(np.float64)
        self._end_the_endless(float(times.min()))
        shape = len(self.segment), len(rounds)
        every = np.broadcast_to(np.arange(len(self.segment))[:, None], shape)
        rates, costs = np.empty((3, *shape)), np.full((3, *shape), np.inf)  # at both ends of a piece, and inside
        turns = []
        for end, rate in enumerate((self.low, self.high)):
            rates[end] = rate[:, None]
            noise, pulled, _ = self.sums(self.segment, rate)
            with np.errstate(invalid="ignore", over="ignore"):
                costs[end] = self.cost(every, rates[end], noise[:, None], times)
                turns.append(self.condition(every, rates[end], pulled[:, None], times))
        rises, falls = turns[0] >= 0, turns[1] < 0
        if self.leader == "mean_field":
            costs[:2][~self._where_condition_turns(rises, falls)] = np.inf
        pieces, order = np.nonzero(~rises & ~falls)
        rates[2, pieces, order] = roots = self._roots(pieces, times[order])
        noise = self.sums(self.segment[pieces], roots)[0]
        costs[2, pieces, order] = self.cost(pieces, roots, noise, times[order])
        flat = np.nan_to_num(costs, nan=np.inf, posinf=np.inf).reshape(-1, len(rounds))
        where = flat.argmin(axis=0), np.arange(len(rounds))
        rate, least, segment = rates.reshape(flat.shape)[where], flat[where], self.segment[where[0] % shape[0]]
        nowhere = np.isinf(least)
        if self.leader == "mean_field" and nowhere.any():  # its condition holds at no rate that is allowed
            cheapest = _View(self.game, self.weights, self.path, "anticipating", np.inf).best(rounds[nowhere])
            rate[nowhere], segment[nowhere], least[nowhere] = cheapest
        return rate, segment, least

    def _end_the_endless(self, first_round: float) -> None:
        """Puts an end to endless pieces, past the rate of every round."""
        endless = np.flatnonzero(~np.isfinite(self.high))
        past = np.maximum(2 * self.low[endless], _scales(self.path)[self.segment[endless]])
        self.high[endless] = np.where(past > 0, past, 1.0)
        for _ in range(1000):
            high = self.high[endless]
            pulled = self.sums(self.segment[endless], high)[1]
            endless = endless[~(self.condition(endless, high, pulled, first_round) > 0)]
            if len(endless) == 0:
                break
            self.high[endless] *= 4

    def _where_condition_turns(self, rises: BoolArray, falls: BoolArray) -> BoolArray:
        """Low and high ends of pieces where F turns from negative to positive, or where the rates begin."""
        never = np.zeros((1, rises.shape[1]), dtype=bool)
        follows = np.append(False, self.low[1:] == self.high[:-1])[:, None]
        turns = rises & (~follows | np.concatenate([never, falls[:-1]]))
        return np.stack([turns, np.concatenate([(turns & follows)[1:], never])])

    def _roots(self, pieces: IntArray, times: Array) -> Array:
        """Where F turns positive on these pieces: Newton's steps side by side, halving where they leave a bracket.

        Steps are taken in log(r − low), in which the logarithms of Σ g_i/ρ_i² and of A·r − C are all but straight.
        """
        k, low = self.segment[pieces], self.low[pieces]
        left, right, rate = low.copy(), self.high[pieces].copy(), 0.5 * (low + self.high[pieces])
        moving = np.arange(len(pieces))
        for _ in range(200):
            if len(moving) == 0:
                break
            here, segment = rate[moving], k[moving]
            _, square, cube = self.sums(segment, here)
            pulled, paid = self.strength[segment] / times[moving] * square, self.steepness[segment] * here
            paid -= self.paid_offset[segment]
            left[moving], right[moving] = np.where(pulled > paid, [here, right[moving]], [left[moving], here])
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                width = here - low[moving]
                bend = width * (2 * cube / square + self.steepness[segment] / paid)
                following = low[moving] + width * np.exp(np.log(pulled / paid) / bend)
                step = following - here
                # Newton's next error is about step²/(rate − low); what rounding leaves is no reason to go on.
                close = step * step <= 1e-17 * here * width
                is_newton = close | (following > left[moving]) & (following < right[moving])
                following = np.where(is_newton, following, 0.5 * (left[moving] + right[moving]))
            rate[moving] = following
            moving = moving[~(close | (np.abs(following - here) <= 4e-16 * here))]
        return rate


# ---- sampled wishes: large games whose bounds matter --------------------------------------------------------------


class _Samples:
    """Everybody's wish m − αΣρ at some rates, rising. Between two of them wishes are interpolated, which is exact but
    where somebody meets a bound in between; costs are not, which bend far more.
    """

    def __init__(self, answers: Answers) -> None:
        self.answers, self.game = answers, answers.game
        self.bounds = self.game.clients.budget_min, self.game.clients.budget_max
        self.rates: list[float] = []
        self.wishes: list[Array] = []

    def add(self, rates: Array) -> None:
        followers, start = self.answers.followers, None
        for rate in np.setdiff1d(rates, self.rates):
            near = int(np.searchsorted(self.rates, rate))
            if start is None and self.rates:
                start = np.clip(self.wishes[min(near, len(self.rates) - 1)], *self.bounds)
            start = followers.answer(rate, start, 1e-9)
            self.rates.insert(near, float(rate))
            self.wishes.insert(near, followers.wish(rate, start))

    def at(self, rate: float, low: int, high: int) -> Array:
        """Everybody's budget at a rate, wishes being interpolated between two samples."""
        share = 0.0 if low == high else (rate - self.rates[low]) / (self.rates[high] - self.rates[low])
        return np.clip((1 - share) * self.wishes[low] + share * self.wishes[high], *self.bounds)

    def grid(self) -> Iterator[tuple[float, Array]]:
        """Rates between all samples, and everybody's budget at each."""
        for k, (low, high) in enumerate(pairwise(self.rates)):
            for rate in (low + np.arange(GRID) / GRID * (high - low)).tolist():
                yield rate, self.at(rate, k, k + 1)
        yield self.rates[-1], self.at(self.rates[-1], -1, -1)

    def costs(
        self, leader: UniformLeader, rate: float, one: Array, other: Array, limit: float = np.inf
    ) -> tuple[float, float]:
        """Noise in round 1 and pay, weighed as the server weighs them; of budgets between two, what they cost at least.

        Infinite where the rule does not allow the rate.
        """
        answers, least, most = self.answers, np.minimum(one, other), np.maximum(one, other)
        part, pay = most > 0, rate * float(answers.weights @ least)
        if pay > limit or not (part[answers.able].all() if answers.participation == "everyone" else part.any()):
            return np.inf, 0.0
        # Who comes or goes in between need make no noise, if each makes its own.
        given = most if leader in POOLED else np.where(part & (least == 0), NO_NOISE, most)
        return cost_of(self.game, leader, 1, 0.0, given), (1 - self.game.accuracy_weight) * pay

    def search(self, leader: UniformLeader, rounds: IntArray, limit: float) -> Array:
        """The rate of the grid that every round chooses, by samples of all rates, and then of those chosen."""
        clients, weights = self.game.clients, self.answers.followers.weights
        positive = (weights > 0) & (clients.budget_max > 0)
        if not positive.any():
            raise NoEquilibrium(
                "every personal price is zero or negative, so no reward rate moves anybody to participate."
            )
        wakes = clients.linear_cost[positive] / weights[positive]  # the rates at which each would share, were it alone
        bound = float(np.max(clients.budget_max, where=np.isfinite(clients.budget_max), initial=0.0))
        top = 8 * max(float(wakes.max()), float(np.median(2 * clients.quadratic_cost)) * bound, 1e-300)
        floor = max(float(wakes.min()), 1e-4 * top)
        coarse = np.geomspace(floor, top, NUM_SAMPLES // 2)
        self.add(np.append(coarse, 0.0) if clients.budget_min.any() else coarse)
        rates = self._chosen(leader, rounds, limit)
        if rates.max() >= self.rates[-1]:  # the best rate may lie above all samples
            self.add(np.asarray(self.rates[-1] * 2.0 ** np.arange(1, 9), dtype=np.float64))
            rates = self._chosen(leader, rounds, limit)
        around = max(float(rates.min()) / 1.3, floor), max(float(rates.max()) * 1.3, 1.7 * floor)
        self.add(np.geomspace(*around, NUM_SAMPLES // 2))
        return self._chosen(leader, rounds, limit)

    def _chosen(self, leader: UniformLeader, rounds: IntArray, limit: float) -> Array:
        grid = [(rate, *self.costs(leader, rate, budgets, budgets, limit)) for rate, budgets in self.grid()]
        rates, noise, pay = np.array(grid).T
        costs = noise / rounds[:, None] + pay
        if leader == "mean_field":  # where its condition turns from negative to positive
            paid, pulled = np.array([self._condition(rate, budgets) for rate, budgets in self.grid()]).T
            rises = paid - pulled / rounds[:, None] > 0
            falls = np.concatenate([np.ones((len(rounds), 1), dtype=bool), ~rises[:, :-1]], axis=1)
            turns = np.where(rises & (falls | np.append(True, np.isinf(noise[:-1]))), costs, np.inf)
            costs = np.where(np.isfinite(turns).any(axis=1, keepdims=True), turns, costs)
        self.answers.require_rates(costs.min(axis=1), rounds, limit)
        return np.asarray(rates[costs.argmin(axis=1)])

    def _condition(self, rate: float, budgets: Array) -> tuple[float, float]:
        """Both sides of mean_field's condition (16) in round 1."""
        (low, high), clients, tau = self.bounds, self.game.clients, self.game.accuracy_weight
        part, free, own = budgets > 0, (budgets > low) & (budgets < high), self.answers.followers.own[0]
        if not free.any():
            return 0.0, 0.0
        grown = (clients.data_size.sum() / clients.data_size[part].sum()) ** 2 * tau / (1 - tau)
        pulled = (clients.noise_harm * own / np.where(free, budgets, np.inf) ** 2).sum()
        return float(self.answers.weights @ (budgets + rate * np.where(free, own, 0.0))), float(grown * pulled)

    def choose(self, leader: UniformLeader, rounds: IntArray, limit: float) -> Plan:
        """The best of the grid and of some rates between joins, and then of the segment of the path that it lies on."""
        rates, followers = self.search(leader, rounds, limit), self.answers.followers
        rows, least = np.empty((len(rounds), self.game.num_clients)), np.full(len(rounds), np.inf)
        tried = self._to_try(leader, rounds, rates, limit)
        most = len(tried) + GAPS // 10 // self.game.num_clients
        for rate, which, is_allowed in tried:  # which grows where the best rate of a segment is its end
            budgets = followers.answer(rate, self._near(rate))
            path = no_segments(len(budgets)) if leader == "mean_field" else followers.segment(rate, budgets)
            path = _strictly_inside(path, budgets > 0)
            better, _, costs = _View(self.game, self.answers.weights, path, leader, limit).best(rounds[which])
            for row, other, cost in zip(which, better, costs, strict=True):
                here = cost_of(self.game, leader, int(rounds[row]), rate * self.answers.weights, budgets)
                if is_allowed and not here > min(cost, least[row]):
                    least[row], rates[row], rows[row] = here, rate, budgets
                elif cost < least[row]:
                    least[row], rates[row], rows[row] = cost, other, path.budgets(0, other, *self.bounds)
                    if other != rate and len(tried) < most:
                        tried.append((other * (1 + np.copysign(NEXT, other - rate)), np.array([row]), False))
        return self.answers.plan(leader, rounds, rates, Stored(rows, np.arange(len(rounds))), True)

    def _to_try(
        self, leader: UniformLeader, rounds: IntArray, rates: Array, limit: float
    ) -> list[tuple[float, IntArray, bool]]:
        """Rates, the rounds they are tried for, and whether the rule is known to allow the rate itself."""
        tried: list[tuple[float, IntArray, bool]] = [
            (rate, np.flatnonzero(rates == rate), True) for rate in np.unique(rates).tolist()
        ]
        if self.answers.participation == "everyone" or leader == "mean_field":
            return tried
        every = np.arange(len(rounds))
        return tried + [(rate, every, False) for rate in self._between_joins(leader, rounds, rates, limit)]

    def _near(self, rate: float) -> Array:
        """Everybody's interpolated budget at a rate."""
        k = int(np.clip(np.searchsorted(self.rates, rate), 1, len(self.rates) - 1))
        return self.at(rate, k - 1, k)

    def _between_joins(self, leader: UniformLeader, rounds: IntArray, rates: Array, limit: float) -> list[float]:
        """Rates between two at which somebody comes or goes, and where the cost jumps: the cheapest of the widest gaps.

        Wishes cross 0 where they are interpolated to do.
        """
        samples, wishes = np.array(self.rates), self.wishes
        near = np.flatnonzero((samples[1:] > rates.min() / 1.3) & (samples[:-1] < rates.max() * 1.3))
        crossings = []
        for k in near.tolist():
            comes = (wishes[k] > 0) != (wishes[k + 1] > 0)
            share = wishes[k][comes] / (wishes[k][comes] - wishes[k + 1][comes])
            crossings.append(samples[k] + share * (samples[k + 1] - samples[k]))
        ends = np.unique(np.concatenate(crossings)) if crossings else np.zeros(0)
        widest = np.argsort(-np.diff(ends) / ends[1:])[: GAPS // self.game.num_clients]
        late = 0.1 * ends[widest] + 0.9 * ends[widest + 1]
        costs = [self.costs(leader, rate, *2 * (self._near(rate),), limit) for rate in late.tolist()]
        noise, pay = np.array(costs).reshape(-1, 2).T
        order = np.argsort(noise / rounds[:, None] + pay, axis=1)[:, :CHEAPEST].ravel()
        best = widest[np.unique(order)[: max(CHEAPEST, GAPS // 100 // self.game.num_clients)]]
        return [float(rate) for rate in np.unique(0.5 * (ends[best] + ends[best + 1]))]

    def least(self, leader: UniformLeader, rounds: IntArray, limit: float = np.inf) -> Array:
        """The least that interpolated costs can be in any cell of the grid, less what interpolation may hide: how far
        this bound is too high at samples that are left out, the worst of those about the best.
        """
        chosen, times = self.search(leader, rounds, limit), rounds[:, None]
        cells = [self.costs(leader, rate, one, other, limit) for (rate, one), (_, other) in pairwise(self.grid())]
        claimed, true = [], []
        for k in range(1, len(self.rates) - 1):
            rate, margin = self.rates[k], (self.rates[k + 1] - self.rates[k - 1]) / (4 * GRID)
            before, after = (self.at(rate + side * margin, k - 1, k + 1) for side in (-1, 1))
            claimed.append(self.costs(leader, rate - margin, before, after))
            there = self.at(rate, k, k)
            true.append(self.costs(leader, rate, there, there))
        (noise, pay), above, below = (np.array(pairs).T for pairs in (cells, claimed, true))
        with np.errstate(invalid="ignore"):
            excess = (above[0] / times + above[1]) / (below[0] / times + below[1]) - 1
        excess = np.nan_to_num(np.maximum(excess, 0.0), nan=0.0, posinf=0.0)
        near = np.searchsorted(self.rates[1:-1], chosen)[:, None] + np.arange(-2, 2)
        worst = np.take_along_axis(excess, np.clip(near, 0, excess.shape[1] - 1), axis=1).max(axis=1)
        return np.asarray((noise / times + pay).min(axis=1) / (1 + worst))
