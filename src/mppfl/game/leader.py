"""The server's reward rate: one rule for every leader and every bound (docs/model.md, section 4).

The leader takes the cheapest rate among those that the participation rule allows, on the path of equilibria. On a
segment of the path budgets are ρ(r) = r·u − v, so every leader with one rate solves one equation,

    F(r) = A·r − C − (κ/t) Σ g_i/(r·u_i − v_i)² = 0,

which turns from negative to positive once on a segment. Σ does not depend on the round, so two sums at the ends of a
segment tell every round whether its rate lies inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray, require_number
from mppfl.errors import BadInput, NoEquilibrium
from mppfl.game.equilibrium import Response, waking_rates
from mppfl.game.model import Game, cost_without_absent
from mppfl.game.path import NEARBY, PATH_BELOW, Followers, Path, no_segments, response_path
from mppfl.game.plan import Against, AlongLine, Participation, PerRound, Stored

UniformLeader = Literal["mean_field", "anticipating", "noise_aware", "budget_limited"]

COMPILED_ABOVE = 100_000  # clients
AT_ONCE = 4_000_000  # clients × rates whose budgets are formed side by side
SPLITS = 64  # parts of a segment on which pay falls as the rate rises, where cost need not be convex
NUM_SAMPLES = 48  # rates at which a large game's wishes are sampled
ALONE, SHORT = 3, 300  # at more rates, and on networks of at most so many clients, answers are read off the path
OPEN = 1e-9  # of a segment: how near to the rate at which somebody leaves the server goes
GRID = 24  # rates between two samples at which costs are read off interpolated wishes


@dataclass(frozen=True, eq=False)
class Rates:
    """The leader's choice: a reward rate per round, the budgets it leads to, and whether any bound is reached."""

    reward_rates: Array
    budgets: PerRound
    reaches_bounds: bool


def choose_rates(
    game: Game,
    leader: UniformLeader,
    rounds: IntArray,
    *,
    payment_limit: float | None = None,
    weights: Array | None = None,
    participation: Participation = "everyone",
    against: Against = "staying_out",
) -> Rates:
    """The leader's reward rate for every round in `rounds`, and the budgets it leads to.

    weights  personal prices per unit of rate, one each unless given (Pigouvian prices)
    """
    if leader not in get_args(UniformLeader):
        raise BadInput(f"leader={leader!r} must be one of {', '.join(get_args(UniformLeader))}.")
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
    if against is not None or (followers.game.num_clients <= SHORT and len(distinct) > ALONE):
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


def pigouvian_weights(game: Game) -> Array:
    """c = B⁻ᵀ1 (model, eq. 20): paid r·c_i, everybody does what all together would want done."""
    return game.loss.T.solve(np.ones(game.num_clients))


def noise_aware_sums(game: Game) -> tuple[Array, float]:
    """(n_i/n̄)² of every client, and N²ε̄: what the noise-aware leader weighs (model, eq. 18)."""
    clients = game.clients
    sizes = (clients.data_size / clients.data_size.mean()) ** 2
    return sizes, game.num_clients**2 * float(clients.noise_harm.mean())


def noise_aware_cost(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """τN²ε̄/(t·X) + (1−τ)Σp_iρ_i with X = Σ(n_i/n̄)²ρ_i (model, eq. 18): the cost under noise-aware aggregation."""
    sizes, harm = noise_aware_sums(game)
    effective = float(sizes @ budgets)
    if effective <= 0:
        return np.inf
    tau = game.accuracy_weight
    return tau * harm / (round_index * effective) + (1 - tau) * float(np.sum(prices * budgets))


def cost_of(game: Game, leader: UniformLeader, round_index: int, prices: Array | float, budgets: Array) -> float:
    """What a round costs the server as this leader sees it."""
    cost = noise_aware_cost if leader == "noise_aware" else cost_without_absent
    return cost(game, round_index, prices, budgets)


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
        self.followers, self.game = followers, followers.game
        self.weights = followers.weights if paid is None else paid  # what the server pays per unit of rate
        self.participation = participation
        self.against = against if participation == "rational" else None

    @property
    def line(self) -> Response:
        return self.followers.line

    @cached_property
    def able(self) -> BoolArray:
        """Who can be asked to participate: not who may give nothing, nor who is paid nothing and has no floor."""
        clients = self.game.clients
        return (clients.budget_max > 0) & ((self.followers.weights > 0) | (clients.budget_min > 0))

    @cached_property
    def samples(self) -> _Samples:
        return _Samples(self)

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

    def choose(self, leader: UniformLeader, rounds: IntArray, limit: float) -> Rates:
        """The leader's rate of every round; raises NoEquilibrium where the rule allows none."""
        if self.path is None:
            return self.samples.choose(leader, rounds, limit)
        if len(self.path) == 0:
            raise NoEquilibrium(self._who_cannot_be_kept())
        view = self._view(leader, limit)
        rates, segments, costs = view.best(rounds)
        if not np.isfinite(costs).all():
            raise NoEquilibrium(self.no_rate(int(rounds[np.argmin(np.isfinite(costs))]), limit))
        return self._rates(self.path, rates, segments)

    def _view(self, leader: UniformLeader, limit: float) -> _View:
        assert self.path is not None
        return _View(self.game, self.weights, self.path, leader, limit)

    def least(self, leader: UniformLeader, rounds: IntArray, limit: float = np.inf) -> Array:
        """What a round costs at least, at any rate that the rule allows; never more than the true minimum."""
        seen_as: UniformLeader = "noise_aware" if leader == "noise_aware" else "anticipating"
        if self.path is None:
            return self.samples.least(seen_as, rounds, limit)
        if len(self.path) == 0:
            return np.full(len(rounds), np.inf)
        return self._view(seen_as, limit).best(rounds)[2]

    def _rates(self, path: Path, rates: Array, segments: IntArray) -> Rates:
        clients = self.game.clients
        movable = clients.budget_max > clients.budget_min
        used = np.unique(segments)
        at_bounds = not bool(path.free[np.ix_(used, movable)].all())
        low, high = path.ends[used[0]]
        if len(used) == 1 and ((rates > low) & (rates < high)).all():
            return Rates(rates, AlongLine(path.slope[used[0]], path.offset[used[0]]), at_bounds)
        bounds = clients.budget_min, clients.budget_max
        rows = [path.budgets(int(k), float(rate), *bounds) for rate, k in zip(rates, segments, strict=True)]
        return Rates(rates, Stored(np.array(rows), np.arange(len(rates))), at_bounds)

    def no_rate(self, round_index: int, limit: float) -> str:
        spent = f" within payment_limit={limit:g}. Raise it" if np.isfinite(limit) else ""
        rule = f"participation={self.participation!r}"
        return f"no reward rate of round {round_index} moves clients to participate as {rule} asks{spent}."

    def _who_cannot_be_kept(self) -> str:
        """Why no rate keeps everybody: who participates at no rate, or is gone before others come."""
        if self.participation != "everyone":
            return f"no reward rate moves anybody to participate under participation={self.participation!r}."
        comes, leaves = self._stays()
        clients = np.flatnonzero(self.able)
        late = clients[np.argmax(np.where(comes < leaves, comes, -np.inf)[clients])]
        lost = [
            k for k in clients[np.argsort(leaves[clients], kind="stable")] if leaves[k] <= max(comes[k], comes[late])
        ]
        named = [self.game.graph.name(int(k)) for k in lost[:3]]
        reasons = [
            f"{name!r} participates at no rate" if leaves[k] <= comes[k] else f"{name!r} leaves at rate {leaves[k]:.4g}"
            for name, k in zip(named, lost, strict=False)
        ]
        if any(leaves[k] > comes[k] for k in lost[:3]):
            reasons.append(f"{self.game.graph.name(int(late))!r} comes only at rate {comes[late]:.4g}")
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
    ends = path.ends.copy()
    for k, (low, high) in enumerate(path.ends.tolist()):
        width = OPEN * min(high - low, low if low > 0 else _scale(path.slope[k], path.offset[k]))
        for side, end, inwards in ((0, low, width), (1, high, -width)):
            if np.isfinite(end):
                line, offset = end * path.slope[k], path.offset[k]
                if ((line - offset <= NEARBY * (np.abs(line) + np.abs(offset))) & able).any():
                    ends[k, side] = end + inwards
    return Path(ends, path.slope, path.offset, path.free)


def _scale(slope: Array, offset: Array) -> float:
    """A rate of the size at which budgets on these lines change a lot."""
    steepest = float(np.abs(slope).max())
    return float(np.abs(offset).max()) / steepest if steepest > 0 else 1.0


# ---- on the path ----------------------------------------------------------------------------------------------------


class _View:
    """A path as one leader sees it: pieces of segments, with noise, pay and pull at any rate of each.

    pull  g_i: what the leader believes a higher rate does to client i's noise. mean_field (eq. 16) takes others' risk
          as it stands, so each answers with w/2a; the others know that it moves (eq. 17 to 19), so g = ε·u
    """

    def __init__(self, game: Game, weights: Array, path: Path, leader: UniformLeader, limit: float) -> None:
        clients, tau = game.clients, game.accuracy_weight
        self.game, self.weights, self.path, self.leader = game, weights, path, leader
        self.paid_slope, self.paid_offset = path.slope @ weights, path.offset @ weights
        self.strength = np.full(len(path), tau / (1 - tau))
        if leader == "noise_aware":  # all clients together are one whose budget is X = Σ(n_i/n̄)²ρ_i
            sizes, harm = noise_aware_sums(game)
            self.slope, self.offset = (path.slope @ sizes)[:, None], (path.offset @ sizes)[:, None]
            self.harm = np.full((len(path), 1), harm)
        else:
            part, examples = path.participating, clients.data_size
            self.slope, self.offset = path.slope, path.offset
            self.harm = np.where(part, clients.noise_harm, 0.0)
            self.strength = self.strength * (examples.sum() / (part @ examples)) ** 2
        if leader == "mean_field":
            alone = np.where(path.free, weights / (2 * clients.quadratic_cost), 0.0)
            self.pull, self.steepness = self.harm * alone, self.paid_slope + alone @ weights
        else:
            self.pull, self.steepness = self.harm * self.slope, 2 * self.paid_slope
        self.segment, self.low, self.high = self._pieces(limit)

    def _pieces(self, limit: float) -> tuple[IntArray, Array, Array]:
        """Parts of segments on which cost is convex and payments stay within the limit."""
        parts: list[tuple[int, float, float]] = []
        for k, (low, end) in enumerate(self.path.ends.tolist()):
            high = end
            slope, offset = float(self.paid_slope[k]), float(self.paid_offset[k])
            if slope >= 0 or not np.isfinite(high):
                if np.isfinite(limit):
                    root = np.sqrt(max(offset**2 + 4 * slope * limit, 0.0))
                    most = (offset + root) / (2 * slope) if slope > 0 else limit / -offset if offset < 0 else np.inf
                    high = min(high, most)
                parts += [(k, low, high)] if low <= high else []
                continue
            cuts = np.linspace(low, high, SPLITS + 1)
            fits = cuts * (slope * cuts - offset) <= limit
            parts += [(k, cuts[i], cuts[i + 1]) for i in range(SPLITS) if fits[i] and fits[i + 1]]
        index = np.array([part[0] for part in parts], dtype=np.int64)
        return index, np.array([part[1] for part in parts]), np.array([part[2] for part in parts])

    def sums(self, segments: IntArray, rates: Array) -> tuple[Array, Array]:
        """Σ ε_i/ρ_i and Σ g_i/ρ_i² at one rate of each of these segments."""
        noise, pulled = np.empty(len(rates)), np.empty(len(rates))
        step = max(1, AT_ONCE // self.slope.shape[1])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for first in range(0, len(rates), step):
                part = slice(first, first + step)
                k = segments[part]
                inverse = 1 / np.maximum(rates[part, None] * self.slope[k] - self.offset[k], 0.0)
                harm, pull = self.harm[k], self.pull[k]
                noise[part] = np.where(harm > 0, harm * inverse, 0.0).sum(axis=1)
                pulled[part] = np.where(pull != 0, pull * inverse * inverse, 0.0).sum(axis=1)
        return noise, pulled

    def condition(self, pieces: IntArray, rates: Array, pulled: Array, rounds: Array) -> Array:
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
        pieces = np.arange(len(self.segment))
        ends = [(self.low, *self.sums(self.segment, self.low)), (self.high, *self.sums(self.segment, self.high))]
        grid = np.repeat(pieces[:, None], len(rounds), axis=1)
        with np.errstate(invalid="ignore", over="ignore"):
            turn = [self.condition(grid, r[:, None], pulled[:, None], times[None]) for r, _, pulled in ends]
            tried = [self.cost(grid, r[:, None], noise[:, None], times[None]) for r, noise, _ in ends]
        rises, falls = turn[0] >= 0, turn[1] < 0
        if self.leader == "mean_field":
            tried = self._where_condition_turns(tried, rises, falls)
        costs = np.stack([np.nan_to_num(one, nan=np.inf, posinf=np.inf) for one in tried])  # [2, pieces, rounds]
        rates, where, least = self._cheapest_end(costs, ends)
        inside = ~rises & ~falls
        if self.leader != "mean_field":
            inside &= self._least_between(turn, tried) < least
        rates, where, least = self._with_roots(inside, times, rates, where, least)
        nowhere = np.isinf(least)
        if self.leader == "mean_field" and nowhere.any():  # its condition holds at no rate that is allowed
            cheapest = _View(self.game, self.weights, self.path, "anticipating", np.inf).best(rounds[nowhere])
            rates[nowhere], where[nowhere], least[nowhere] = cheapest
        return rates, where, least

    def _least_between(self, turn: list[Array], tried: list[Array]) -> Array:
        """What a convex cost is at least on each piece, in each round: where the tangents at its ends meet."""
        width = (self.high - self.low)[:, None]
        falls, rises = ((1 - self.game.accuracy_weight) * slope for slope in turn)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            meets = np.clip((tried[1] - tried[0] - rises * width) / (falls - rises), 0.0, width)
            least = np.minimum(tried[0] + falls * meets, tried[1] - rises * (width - meets))  # equal but for rounding
        convex = (self.paid_slope[self.segment] >= 0)[:, None] & np.isfinite(least)
        return np.where(convex, least - 1e-9 * np.abs(least), -np.inf)

    def _end_the_endless(self, first_round: float) -> None:
        """Puts an end to endless pieces, past the rate of every round."""
        for piece in np.flatnonzero(~np.isfinite(self.high)):
            k = self.segment[piece : piece + 1]
            slope, pull, offset = self.slope[k[0]], self.pull[k[0]], self.offset[k[0]]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                # Far out F is A·r − (κ/t) Σ g_i/(r·u_i)².
                pulled = np.where(slope > 0, pull / slope**2, 0.0).sum()
                root = np.cbrt(self.strength[k] / first_round * pulled / self.steepness[k])
                high = np.maximum(np.nan_to_num(root, posinf=0.0), max(2 * self.low[piece], _scale(slope, offset)))
                for _ in range(1000):
                    if self.condition(np.array([piece]), high, self.sums(k, high)[1], np.array([first_round]))[0] > 0:
                        break
                    high = high * 2
            self.high[piece] = high[0]

    def _where_condition_turns(self, tried: list[Array], rises: BoolArray, falls: BoolArray) -> list[Array]:
        """Ends of pieces count only where F turns from negative to positive across them, or where the rates begin."""
        follows = np.zeros(len(self.low), dtype=bool)
        follows[1:] = self.low[1:] == self.high[:-1]
        falls_below = np.concatenate([np.zeros((1, rises.shape[1]), dtype=bool), falls[:-1]])
        turns = rises & np.where(follows[:, None], falls_below, True)
        at_high = np.concatenate([(turns & follows[:, None])[1:], np.zeros((1, rises.shape[1]), dtype=bool)])
        return [np.where(turns, tried[0], np.inf), np.where(at_high, tried[1], np.inf)]

    def _cheapest_end(self, costs: Array, ends: list[tuple[Array, Array, Array]]) -> tuple[Array, IntArray, Array]:
        num_pieces, num_rounds = costs.shape[1:]
        flat = costs.reshape(-1, num_rounds)
        where = flat.argmin(axis=0)
        rates = np.stack([ends[0][0], ends[1][0]]).reshape(-1)[where]
        return rates, self.segment[where % num_pieces], flat[where, np.arange(num_rounds)]

    def _with_roots(
        self, inside: BoolArray, times: Array, rates: Array, where: IntArray, least: Array
    ) -> tuple[Array, IntArray, Array]:
        """The same with the roots inside pieces, where they are cheaper."""
        pieces, order = np.nonzero(inside)
        if len(pieces) == 0:
            return rates, where, least
        if self.slope.shape[1] >= COMPILED_ABOVE:
            roots, start = np.empty(len(pieces)), None
            for pair in range(len(pieces))[::-1]:  # later rounds have lower rates: each starts from the one after it
                roots[pair] = start = self._root(int(pieces[pair]), float(times[order[pair]]), start)
        else:
            roots = self._roots(pieces, times[order])
        noise, _ = self.sums(self.segment[pieces], roots)
        costs = self.cost(pieces, roots, noise, times[order])
        for pair in np.argsort(-costs, kind="stable"):  # the cheapest of a round comes last
            j = order[pair]
            if costs[pair] < least[j]:
                rates[j], where[j], least[j] = roots[pair], self.segment[pieces[pair]], costs[pair]
        return rates, where, least

    def _roots(self, pieces: IntArray, times: Array) -> Array:
        """Where F turns positive on these pieces: Newton's steps side by side, halving where they leave a bracket."""
        k = self.segment[pieces]
        low, left, right = self.low[pieces], self.low[pieces].copy(), self.high[pieces].copy()
        strength, rate = self.strength[k] / times, 0.5 * (left + right)
        moving = np.arange(len(pieces))
        step_size = max(1, AT_ONCE // self.slope.shape[1])
        for _ in range(200):
            square, cube = np.empty(len(moving)), np.empty(len(moving))
            for first in range(0, len(moving), step_size):
                part = slice(first, first + step_size)
                square[part], cube[part] = self._pull_sums(k[moving[part]], rate[moving[part]])
            here, segment = rate[moving], k[moving]
            gap = self.steepness[segment] * here - self.paid_offset[segment] - strength[moving] * square
            rise = self.steepness[segment] + 2 * strength[moving] * cube
            left[moving], right[moving] = np.where(gap < 0, here, left[moving]), np.where(gap < 0, right[moving], here)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = -gap / rise
                following = here + step
                is_newton = (following > left[moving]) & (following < right[moving])
                following = np.where(is_newton, following, 0.5 * (left[moving] + right[moving]))
                # Newton's next error is about step²/(rate − low); what rounding leaves is no reason to go on.
                close = is_newton & (step * step <= 1e-17 * here * (here - low[moving]))
            rate[moving] = following
            moving = moving[~(close | (np.abs(following - here) <= 4e-16 * here))]
            if len(moving) == 0:
                break
        return rate

    def _pull_sums(self, k: IntArray, rates: Array) -> tuple[Array, Array]:
        """Σ g_i/ρ_i² and Σ g_i u_i/ρ_i³ at one rate of each of these segments."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inverse = 1.0 / (rates[:, None] * self.slope[k] - self.offset[k])
            terms = np.where(self.pull[k] != 0, self.pull[k] * inverse**2, 0.0)
            return terms.sum(axis=1), np.where(terms != 0, terms * inverse * self.slope[k], 0.0).sum(axis=1)

    def _root(self, piece: int, time: float, start: float | None) -> float:
        """The same on one piece of a million clients, by compiled sums, from a rate near the root."""
        from mppfl.game._kernels import pull_sums

        k, left, right = int(self.segment[piece]), float(self.low[piece]), float(self.high[piece])
        low, strength = left, self.strength[k] / time
        rate = 0.5 * (left + right) if start is None or not left < start < right else start
        for _ in range(200):
            square, cube = pull_sums(self.pull[k], self.slope[k], self.offset[k], rate)
            gap = self.steepness[k] * rate - self.paid_offset[k] - strength * square
            step = -gap / (self.steepness[k] + 2 * strength * cube)
            left, right = (rate, right) if gap < 0 else (left, rate)
            is_newton = left < rate + step < right
            before, rate = rate, rate + step if is_newton else 0.5 * (left + right)
            close = is_newton and step * step <= 1e-17 * before * (before - low)
            if close or abs(rate - before) <= 4e-16 * before:
                break
        return rate


# ---- sampled wishes: large games whose bounds matter --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Sums:
    """What a leader needs to know at some rates; parallel arrays."""

    rates: Array
    noise: Array  # Σ ε_i/ρ_i of those who participate, times how much it grows because others opt out
    paid: Array  # Σ w_i ρ_i
    effective: Array  # Σ (n_i/n̄)² ρ_i
    pull: Array  # Σ ε_i (w_i/2a_i)/ρ_i² of free clients, grown alike
    alone: Array  # Σ w_i²/2a_i of free clients
    allowed: BoolArray

    def costs(self, game: Game, leader: UniformLeader, rounds: IntArray, limit: float) -> Array:
        """The server's cost of every round at every rate, [rounds, rates]; infinite where a rate is not allowed."""
        tau = game.accuracy_weight
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = noise_aware_sums(game)[1] / self.effective if leader == "noise_aware" else self.noise
            costs = tau * noise[None] / rounds[:, None] + (1 - tau) * (self.rates * self.paid)[None]
        return np.where(self.allowed & (self.rates * self.paid <= limit) & (self.effective > 0), costs, np.inf)

    def turns(self, game: Game, rounds: IntArray) -> BoolArray:
        """Rates at which mean_field's condition (16) turns from negative to positive, [rounds, rates]."""
        strength = game.accuracy_weight / (1 - game.accuracy_weight)
        with np.errstate(invalid="ignore"):
            rising = self.paid + self.rates * self.alone - strength / rounds[:, None] * self.pull > 0
        falls = np.concatenate([np.ones((len(rounds), 1), dtype=bool), ~rising[:, :-1]], axis=1)
        begins = np.concatenate([[True], ~self.allowed[:-1]])
        return np.asarray(rising & (falls | begins[None]))


class _Samples:
    """Everybody's wish m − αΣρ at some rates, rising. Between two of them wishes are interpolated, which is exact but
    where somebody meets a bound in between; costs are not, which bend far more.
    """

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.rates: list[float] = []
        self.wishes: list[Array] = []

    def add(self, rates: Array) -> None:
        followers, game, start = self.answers.followers, self.answers.game, None
        for rate in np.setdiff1d(rates, self.rates):
            near = int(np.searchsorted(self.rates, rate))
            if start is None and self.rates:
                wish = self.wishes[min(near, len(self.rates) - 1)]
                start = np.clip(wish, game.clients.budget_min, game.clients.budget_max)
            start = followers.answer(rate, start, 1e-9)
            self.rates.insert(near, float(rate))
            self.wishes.insert(near, followers.wish(rate, start))

    def _between(self, rate: float, low: int, high: int) -> Array:
        """Everybody's wish at a rate, interpolated between two samples."""
        share = 0.0 if low == high else (rate - self.rates[low]) / (self.rates[high] - self.rates[low])
        return self.wishes[low] if share == 0 else (1 - share) * self.wishes[low] + share * self.wishes[high]

    def sums(self, rates: Array, low: IntArray, high: IntArray, *, cells: bool = False) -> _Sums:
        """Sums at rates, wishes being interpolated between the samples `low` and `high` of each; or, for the cells
        between each rate and the next, sums of which no cost inside is less.
        """
        answers = self.answers
        game, weights, clients = answers.game, answers.weights, answers.game.clients
        sizes, examples, own = noise_aware_sums(game)[0], clients.data_size, answers.followers.own[0]
        rows, before = [], None
        for rate, j, k in zip(rates, low, high, strict=True):
            wish = self._between(rate, j, k)
            least = most = budgets = np.clip(wish, clients.budget_min, clients.budget_max)
            if cells and before is not None:
                least, most = np.minimum(before, budgets), np.maximum(before, budgets)
            before = budgets
            part, free = most > 0, (wish > clients.budget_min) & (wish < clients.budget_max)
            inverse = np.divide(1.0, most, out=np.zeros_like(most), where=least > 0)
            grown = (examples.sum() / (examples @ part)) ** 2 if part.any() else 0.0
            pulled = (clients.noise_harm * own * inverse**2)[free].sum()
            allowed = part[answers.able].all() if answers.participation == "everyone" else part.any()
            noise, alone = clients.noise_harm @ inverse, (weights * own)[free].sum()
            rows.append((grown * noise, weights @ least, sizes @ most, grown * pulled, alone, allowed))
        noise, paid, effective, pull, alone, allowed = np.array(rows, dtype=np.float64)[int(cells) :].T
        rates = np.asarray(rates)[:-1] if cells else np.asarray(rates)
        return _Sums(rates, noise, paid, effective, pull, alone, allowed > 0)

    def everywhere(self, *, cells: bool = False) -> _Sums:
        """Sums on a grid between all samples."""
        low = np.repeat(np.arange(len(self.rates) - 1), GRID)
        share = np.tile(np.arange(GRID) / GRID, len(self.rates) - 1)
        samples, last = np.array(self.rates), len(self.rates) - 1
        rates = samples[low] + share * (samples[low + 1] - samples[low])
        return self.sums(np.append(rates, samples[-1]), np.append(low, last), np.append(low + 1, last), cells=cells)

    def search(self, leader: UniformLeader, rounds: IntArray, limit: float) -> tuple[_Sums, IntArray]:
        """Sums, and the position among them that every round chooses: samples of all rates, then of those chosen."""
        game = self.answers.game
        low, high = waking_rates(game, self.answers.followers.weights)
        clients = game.clients
        bound = float(np.max(np.where(np.isfinite(clients.budget_max), clients.budget_max, 0.0)))
        top = 8 * max(high, float(np.median(2 * clients.quadratic_cost)) * bound, 1e-300)
        floor = max(low, 1e-4 * top)
        coarse = np.geomspace(floor, top, NUM_SAMPLES // 2)
        self.add(np.append(coarse, 0.0) if clients.budget_min.any() else coarse)
        sums, chosen = self._chosen(leader, rounds, limit)
        if sums.rates[chosen].max() >= self.rates[-1]:  # the best rate may lie above all samples
            self.add(np.asarray(self.rates[-1] * 2.0 ** np.arange(1, 9), dtype=np.float64))
            sums, chosen = self._chosen(leader, rounds, limit)
        rates = sums.rates[chosen]
        self.add(
            np.geomspace(
                max(float(rates.min()) / 1.3, floor), max(float(rates.max()) * 1.3, 1.7 * floor), NUM_SAMPLES // 2
            )
        )
        return self._chosen(leader, rounds, limit)

    def _chosen(self, leader: UniformLeader, rounds: IntArray, limit: float) -> tuple[_Sums, IntArray]:
        sums = self.everywhere()
        costs = sums.costs(self.answers.game, leader, rounds, limit)
        if leader == "mean_field":
            turns = np.where(sums.turns(self.answers.game, rounds), costs, np.inf)
            costs = np.where(np.isfinite(turns).any(axis=1, keepdims=True), turns, costs)
        least = costs.min(axis=1)
        if not np.isfinite(least).all():
            raise NoEquilibrium(self.answers.no_rate(int(rounds[np.argmin(np.isfinite(least))]), limit))
        return sums, costs.argmin(axis=1)

    def choose(self, leader: UniformLeader, rounds: IntArray, limit: float) -> Rates:
        """The best of the grid, and then of the segment of the path that it lies on."""
        sums, chosen = self.search(leader, rounds, limit)
        rates, followers, clients = sums.rates[chosen], self.answers.followers, self.answers.game.clients
        bounds = clients.budget_min, clients.budget_max
        rows = np.empty((len(rounds), len(clients.budget_min)))
        for rate in np.unique(rates).tolist():
            k = int(np.clip(np.searchsorted(self.rates, rate), 1, len(self.rates) - 1))
            start = np.clip(self._between(rate, k - 1, k), *bounds)
            which = np.flatnonzero(rates == rate)
            rows[which] = budgets = followers.answer(rate, start)
            path = no_segments(len(start)) if leader == "mean_field" else followers.segment(rate, budgets)
            if len(path) == 0:
                continue
            view = _View(self.answers.game, self.answers.weights, _strictly_inside(path, budgets > 0), leader, limit)
            better, _, costs = view.best(rounds[which])
            for row, other, cost in zip(which, better, costs, strict=True):
                now = cost_of(self.answers.game, leader, int(rounds[row]), rate * self.answers.weights, budgets)
                if cost < now:
                    rates[row], rows[row] = other, path.budgets(0, other, *bounds)
        return Rates(rates, Stored(rows, np.arange(len(rounds))), True)

    def least(self, leader: UniformLeader, rounds: IntArray, limit: float = np.inf) -> Array:
        """The least that interpolated costs can be in any cell of the grid, less what interpolation may hide: how far
        this bound is too high at samples that are left out, the worst of those about the best.
        """
        game, positions = self.answers.game, np.arange(len(rounds))
        sums, chosen = self.search(leader, rounds, limit)
        samples = np.array(self.rates)
        inner = np.arange(1, len(samples) - 1)
        margin = (samples[inner + 1] - samples[inner - 1]) / (4 * GRID)
        about = np.column_stack([samples[inner] - margin, samples[inner] + margin]).ravel()
        low, high = np.repeat(inner - 1, 2), np.repeat(inner + 1, 2)
        claimed = self.sums(about, low, high, cells=True).costs(game, leader, rounds, np.inf)[:, ::2]
        true = self.sums(samples[inner], inner, inner).costs(game, leader, rounds, np.inf)
        with np.errstate(invalid="ignore"):
            excess = np.nan_to_num(np.maximum(claimed / true - 1, 0.0), nan=0.0, posinf=0.0)
        least = self.everywhere(cells=True).costs(game, leader, rounds, limit).min(axis=1)
        near = np.searchsorted(samples[inner], sums.rates[chosen])[:, None] + np.arange(-2, 2)
        return np.asarray(least / (1 + excess[positions[:, None], np.clip(near, 0, len(inner) - 1)].max(axis=1)))
