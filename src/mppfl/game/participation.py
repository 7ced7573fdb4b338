"""Who participates: always, only if better than opting out, or only if not at a loss (model, eq. 31).

Which clients respond, and how, depends on the crowd alone, not on the round. Rounds that have come to the same crowd
share its line of equilibria and its path, and crowds that differ by one client share all but a rank-one update.
`settle_one_by_one` is the plain way, one round after the other, for any mechanism.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.errors import BadInput, NoEquilibrium
from mppfl.game.equilibrium import Response, equilibrium_response, interior_rates
from mppfl.game.leaders import UniformLeader, interior_rates_each, rates_where_no_root_is_inside, slight_margin
from mppfl.game.mechanisms import (
    AT_A_BOUND,
    MECHANISMS,
    MayLeave,
    Mechanism,
    offered_weights,
)
from mppfl.game.model import Game, privacy_cost, privacy_loss, utility, wanted_loss
from mppfl.game.plan import Horizon, Participation, Plan, RoundTerms, plan_from_rounds

LINE_TOLERANCE = 1e-12  # of the largest right-hand side: beyond it the inverse is computed anew


def gain_from_joining(game: Game, prices: Array | float, budgets: Array) -> Array:
    """What being in is worth against opting out, others unmoved: a_i(z_i² − (z_i − ρ_i)²) − C_i (model, eq. 31).

    Who is in weighs the budget it gives, which a bound may keep from its wish z_i; who is out, the best it could give.
    Outsiders are still exposed by the others, so only the own budget counts.
    """
    clients = game.clients
    wish = wanted_loss(game, prices) - (privacy_loss(game, budgets) - budgets)
    given = np.where(budgets > 0, budgets, np.clip(wish, clients.budget_min, clients.budget_max))
    return np.asarray(clients.quadratic_cost * (wish**2 - (wish - given) ** 2) - clients.compute_cost)


def regret_of_free_choice(
    game: Game, rule: Participation, budgets: Array, regret: Array, gains: Array, losses: Array
) -> tuple[Array, BoolArray]:
    """Regret where participating is a choice, and for whom the distance from the best response counts.

    Who is out regrets what joining would bring beyond its compute cost (nothing under "if_non_negative", where leaving
    is for good). Who is in regrets also what leaving would save.
    """
    part = budgets > 0
    joining = np.maximum(regret - game.clients.compute_cost, 0.0) if rule == "if_better_than_opting_out" else 0.0
    opting_out = -privacy_cost(game, losses - budgets) if rule == "if_better_than_opting_out" else 0.0
    free_regret = np.where(part, np.maximum(regret, opting_out - gains), joining)
    return free_regret, part | (free_regret > 0)


def with_participation(game: Game, horizon: Horizon, mechanism: Mechanism, rule: Participation) -> Plan:
    """The mechanism's plan when clients may opt out: those who gain by it are held at 0, the largest gain first, and
    the server sets its rate for the rest, until no participating client would gain by opting out. Perhaps nobody
    remains.
    """
    if rule not in get_args(Participation):
        raise BadInput(f"participation={rule!r} must be one of {', '.join(get_args(Participation))}.")
    if rule == "always":
        return mechanism(game, horizon)
    led = led_by(game, mechanism) if horizon.reward_rates is None else None
    if led is not None and (game.clients.budget_max > 0).any():
        settled = settle_together(game, horizon, led, rule)
    else:
        settled = settle_one_by_one(game, horizon, mechanism, rule)
    restless = len(settled.at_rest) - sum(settled.at_rest)
    deserted = sum(not terms.participating.any() for terms in settled.terms)
    notes = (f"participation: {rule}", *_notes_of_rounds(settled.notes))
    if restless:
        notes += (f"in {restless} rounds some who opt out would rather join at these rates",)
    if deserted:
        notes += (f"in {deserted} rounds nobody participates: no rate of this server suits anybody",)
    return plan_from_rounds(settled.name, settled.terms, notes, rule)


def _notes_of_rounds(notes: list[tuple[str, ...]]) -> list[str]:
    """What the mechanism says, once; with the number of rounds where it does not say so of all."""
    rounds = Counter(note for single in notes for note in dict.fromkeys(single))
    return [note if n == len(notes) else f"{note} (in {n} of {len(notes)} rounds)" for note, n in rounds.items()]


@dataclass(frozen=True, eq=False)
class Settled:
    """Rounds in which nobody inside wishes to leave.

    at_rest  whether in each round also nobody outside wishes to join
    notes    what the mechanism says of each round
    """

    name: str
    terms: list[RoundTerms]
    at_rest: list[bool]
    notes: list[tuple[str, ...]]


def settle_one_by_one(game: Game, horizon: Horizon, mechanism: Mechanism, rule: Participation) -> Settled:
    """The same round by round, for any mechanism."""
    rounds = [_settle(game, _only(horizon, k), mechanism, rule) for k in range(len(horizon.rounds))]
    names = [plan.mechanism for _, _, plan in rounds if plan is not None]
    return Settled(
        names[-1] if names else "custom",
        [terms for terms, _, _ in rounds],
        [at_rest for _, at_rest, _ in rounds],
        [plan.notes if plan is not None and terms.participating.any() else () for terms, _, plan in rounds],
    )


def _only(horizon: Horizon, position: int) -> MayLeave:
    one = slice(position, position + 1)
    rates = None if horizon.reward_rates is None else horizon.reward_rates[one]
    return MayLeave(horizon.rounds[one], rates, horizon.seed)


def _settle(
    game: Game, single: Horizon, mechanism: Mechanism, rule: Participation
) -> tuple[RoundTerms, bool, Plan | None]:
    """Terms of one round with nobody inside who wishes to leave; whether also nobody outside wishes to join; the plan
    that the mechanism made last, None where nobody may participate.
    """
    out = game.clients.budget_max <= 0
    seen: set[bytes] = set()
    may_come_back = True
    plan: Plan | None = None
    while not out.all():
        high = np.where(out, 0.0, game.clients.budget_max)
        low = np.where(out, 0.0, game.clients.budget_min)
        try:
            plan = mechanism(game.with_bounds(low, high), single)
        except NoEquilibrium:
            if not seen:
                raise
            break  # those who are left cannot be moved by any rate: others could, who have gone
        terms = plan[0]
        if not np.isfinite(terms.budgets).all():  # without noise there is nothing to weigh
            return terms, True, plan
        decision = _decide(game, terms, out, rule)
        seen.add(np.packbits(out).tobytes())
        change = _worst_first(decision, decision.leave)
        if not change.any() and may_come_back:
            change = _worst_first(decision, decision.come_back)
            if np.packbits(out ^ change).tobytes() in seen:  # they would come and go for ever
                may_come_back, change = False, np.zeros_like(out)
        if not change.any():
            return terms, not decision.come_back.any(), plan
        out = out ^ change
    nobody = RoundTerms(int(single.rounds[0]), 0.0, 0.0, np.zeros(game.num_clients))
    return nobody, True, plan


@dataclass(frozen=True, eq=False)
class _Decision:
    leave: BoolArray
    come_back: BoolArray
    margin: Array  # how much each client gains by being in rather than out


def _decide(game: Game, terms: RoundTerms, out: BoolArray, rule: Participation) -> _Decision:
    inside, slight = (terms.budgets > 0) & ~out, slight_margin(game)
    if rule == "if_non_negative":
        # Against "nothing": who leaves also escapes the others' exposure, and does not come back.
        margin = utility(game, terms.prices, terms.budgets)
        return _Decision(inside & (margin < -slight), np.zeros_like(out), margin)
    margin = gain_from_joining(game, terms.prices, terms.budgets)
    able = out & (game.clients.budget_max > 0)
    return _Decision(inside & (margin < -slight), able & (margin > slight), margin)


def _worst_first(decision: _Decision, eligible: BoolArray) -> BoolArray:
    """One client of a small crowd, a tenth of those concerned in a large one: others may be content once they moved."""
    concerned = np.flatnonzero(eligible)
    if len(concerned) == 0:
        return np.zeros_like(eligible)
    size = np.abs(decision.margin[concerned])
    change = np.zeros_like(eligible)
    if len(eligible) <= 1000:
        change[concerned[np.argmax(size >= size.max() * (1 - TIED))]] = True
    else:
        order = concerned[np.argsort(-size, kind="stable")]
        change[order[: max(1, len(concerned) // 10)]] = True
    return change


@dataclass(frozen=True, eq=False)
class Led:
    """A mechanism in which every round is one leader's rate and the clients' answer to it.

    crowd    the game as clients and leader see it
    weights  personal prices per unit of rate; None for the same price for everybody
    notes    what the mechanism says of every round, whoever is in
    """

    name: str
    leader: UniformLeader
    crowd: Game
    weights: Array | None = None
    payment_limit: float | None = None
    notes: tuple[str, ...] = ()


def led_by(game: Game, mechanism: Mechanism) -> Led | None:
    """How a mechanism leads, where its rounds can be settled side by side; None where they cannot."""
    if not (game.loss.is_dense and game.loss.has_one_answer):
        return None
    if mechanism.leader is None or MECHANISMS.get(mechanism.name, mechanism).function is not mechanism.function:
        return None
    name = mechanism.name
    limit = mechanism.options.get("payment_limit", 1.0) if mechanism.leader == "budget_limited" else None
    crowd = replace(game, externality_strength=0.0) if name == "social_agnostic" else game
    weights, notes = offered_weights(game) if name == "pigouvian" else (None, ())
    return Led(name, mechanism.leader, crowd, weights, limit, notes)


@dataclass(eq=False)
class _Crowd:
    """Rounds that wait with the same clients out, and the line these clients follow.

    inverse  of B on those who are free; None where it has to be computed
    moved    who left or came back since `inverse`
    """

    out: BoolArray
    rounds: list[int] = field(default_factory=list)
    inverse: Array | None = None
    moved: int = -1


@dataclass(eq=False)
class _Waiting:
    """A round on its way: crowds it has been in, and whether anybody may still come back."""

    seen: set[bytes] = field(default_factory=set)
    may_come_back: bool = True

    def step_back(self, key: bytes, out: BoolArray, client: int) -> BoolArray | None:
        """Who opts out once `who` has come back; None if nobody does, or if they would come and go for ever."""
        self.seen.add(key)
        if client < 0 or not self.may_come_back:
            return None
        fuller = _toggled(out, client)
        self.may_come_back = fuller.tobytes() not in self.seen
        return fuller if self.may_come_back else None


def settle_together(game: Game, horizon: Horizon, led: Led, rule: Participation) -> Settled:
    """Solve all rounds such that no participating client would gain by opting out."""
    from mppfl.game import _kernels as kernels

    clients = game.clients
    may_return = rule == "if_better_than_opting_out"
    prices = np.ones(game.num_clients) if led.weights is None else led.weights
    terms: dict[int, RoundTerms] = {}
    settled: dict[int, bool] = {}
    notes: dict[int, tuple[str, ...]] = {}
    waiting = [_Waiting() for _ in horizon.rounds]
    start = _Crowd(clients.budget_max <= 0, list(range(len(waiting))))
    crowds = {start.out.tobytes(): start}
    while crowds:
        key = min(crowds, key=lambda k: k.count(1))  # the fullest first: others may still come to the same crowd
        crowd = crowds.pop(key)
        positions = np.array(crowd.rounds)
        try:
            answers = None if crowd.out.all() else _answers(game, led, crowd, horizon.rounds[positions])
        except NoEquilibrium:
            if crowd is start:
                raise
            answers = None  # those who are left cannot be moved by any rate: others could, who have gone
        if answers is None:
            for p in crowd.rounds:
                terms[p] = RoundTerms(int(horizon.rounds[p]), 0.0, 0.0, np.zeros(game.num_clients))
                settled[p], notes[p] = True, ()
            continue
        rates, budgets, losses, at_bounds, inverse = answers
        moves = kernels.who_moves(
            budgets,
            losses,
            rates,
            prices,
            clients.quadratic_cost,
            clients.linear_cost,
            clients.compute_cost,
            clients.budget_min,
            clients.budget_max,
            crowd.out,
            may_return,
            slight_margin(game),
        )
        for client in np.unique(moves[:, 0]):
            rows = np.flatnonzero(moves[:, 0] == client)
            if client >= 0:
                _join(crowds, _toggled(crowd.out, client), positions[rows], inverse, int(client))
                if may_return:
                    for p in positions[rows]:
                        waiting[p].seen.add(key)
                continue
            for row in rows:
                p, returns = int(positions[row]), int(moves[row, 1])
                fuller = waiting[p].step_back(key, crowd.out, returns)
                if fuller is not None:
                    _join(crowds, fuller, positions[row : row + 1], inverse, returns)
                    continue
                rate = float(rates[row])
                paid = rate if led.weights is None else rate * led.weights
                terms[p], settled[p] = RoundTerms(int(horizon.rounds[p]), rate, paid, budgets[row]), returns < 0
                notes[p] = (AT_A_BOUND, *led.notes) if at_bounds[row] else led.notes
    order = range(len(waiting))
    return Settled(led.name, [terms[p] for p in order], [settled[p] for p in order], [notes[p] for p in order])


def _join(crowds: dict[bytes, _Crowd], out: BoolArray, positions: IntArray, inverse: Array | None, client: int) -> None:
    crowd = crowds.setdefault(out.tobytes(), _Crowd(out, [], inverse, client))
    crowd.rounds.extend(int(p) for p in positions)


def _toggled(out: BoolArray, client: int) -> BoolArray:
    changed = out.copy()
    changed[client] = not changed[client]
    return changed


def _answers(
    game: Game, led: Led, crowd: _Crowd, rounds: IntArray
) -> tuple[Array, Array, Array, BoolArray, Array | None]:
    """Rates, budgets and losses of these rounds with this crowd, [rounds, clients], in which of them somebody is at a
    bound, and the crowd's inverse.
    """
    low = np.where(crowd.out, 0.0, game.clients.budget_min)
    high = np.where(crowd.out, 0.0, game.clients.budget_max)
    line, inverse, losses_of_line = _line_of(led, crowd, low, high)
    rates = interior_rates_each(led.crowd, line, led.leader, rounds, led.payment_limit)
    budgets = rates[:, None] * line.slope - line.offset
    at_bounds = np.isnan(rates)
    if at_bounds.any():
        bounded = led.crowd.with_bounds(low, high)
        chosen = rates_where_no_root_is_inside(bounded, line, led.leader, rounds[at_bounds], led.payment_limit)
        rates[at_bounds] = chosen.reward_rates
        budgets[at_bounds] = [chosen.budgets.at(k, float(rate)) for k, rate in enumerate(chosen.reward_rates)]
        losses = (game.loss @ budgets.T).T
    else:
        if losses_of_line is None or led.crowd is not game:
            losses_of_line = (game.loss @ np.column_stack([line.slope, line.offset])).T
        losses = rates[:, None] * losses_of_line[0] - losses_of_line[1]
    return rates, budgets, np.ascontiguousarray(losses), at_bounds, inverse


def _line_of(led: Led, crowd: _Crowd, low: Array, high: Array) -> tuple[Response, Array | None, Array | None]:
    """`equilibrium_response` of the crowd, from the inverse of the crowd before it where that is good enough; that
    inverse; and the line's privacy losses [2, clients] where they came along.
    """
    from mppfl.game import _kernels as kernels

    game, clients = led.crowd, led.crowd.clients
    free = high > low
    weights = np.ones(game.num_clients) if led.weights is None else led.weights
    fixed = np.where(free, 0.0, low)
    right = np.empty((2, game.num_clients))
    np.divide(weights, 2 * clients.quadratic_cost, out=right[0])
    np.divide(clients.linear_cost, 2 * clients.quadratic_cost, out=right[1])
    if fixed.any():
        right[1] += game.loss @ fixed
    inverse = crowd.inverse
    able = crowd.moved >= 0 and clients.budget_max[crowd.moved] > clients.budget_min[crowd.moved]
    if inverse is not None and able:
        inverse = kernels.without(inverse, crowd.moved)
    elif inverse is None:
        inverse = _inverse_on(game, free)
    right *= free
    both = right @ inverse.T * free  # [2, clients]
    losses = (game.loss @ both.T).T
    off = np.abs(losses * free - right).max()
    if not off <= LINE_TOLERANCE * max(1.0, float(np.abs(right).max())):
        line = equilibrium_response(game.with_bounds(low, high), weights)
        return line, None, None
    slope, offset = both[0], both[1] - fixed
    lowest, highest = interior_rates(slope[free], offset[free], low[free], high[free])
    return Response(slope, offset, lowest, highest, weights, free), inverse, None if fixed.any() else losses


def _inverse_on(game: Game, free: BoolArray) -> Array:
    """The tableau of `path_kernels.pivot` with these clients free: B⁻¹ on them, and what the others need."""
    from mppfl.game import _kernels as kernels

    tableau: Array = np.linalg.inv(game.loss.dense).astype(np.float64)
    for k in np.flatnonzero(~free):
        kernels.pivot(tableau, int(k))
    return tableau


TIED = 1e-12  # margins that differ by less, as a share, differ by rounding: the lower number goes first
