"""Who takes part under a leader with one rate, settled for all rounds side by side.

Which clients respond, and how, depends on the crowd alone, not on the round. Rounds that have come to the same crowd
share its line of equilibria and its path, and crowds that differ by one client share all but a rank-one update.
`participation.settle_one_by_one` is the plain way, one round after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.errors import NoEquilibrium
from mppfl.game.bounded_leaders import rates_where_no_root_is_inside
from mppfl.game.equilibrium import Response, equilibrium_response, interior_rates
from mppfl.game.interior_leaders import UniformLeader, interior_rates_each
from mppfl.game.mechanisms import (
    AT_A_BOUND,
    MECHANISMS,
    Mechanism,
    budget_limited,
    offered_weights,
    pigouvian,
    social_agnostic,
)
from mppfl.game.model import Game
from mppfl.game.natural_units import slight_margin
from mppfl.game.plan import Horizon, Participation, Terms

LEADERS: dict[str, UniformLeader] = {
    "mppfl": "mean_field",
    "mppfl_exact": "anticipating",
    "mppfl_noise_aware": "noise_aware",
    "budget_limited": "budget_limited",
    "social_agnostic": "anticipating",
    "pigouvian": "anticipating",
}
PAYMENT = "payment_limit"
LINE_TOLERANCE = 1e-12  # of the largest right-hand side: beyond it the inverse is computed anew


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


@dataclass(frozen=True, eq=False)
class Settled:
    """Rounds in which nobody inside wishes to leave.

    at_rest  whether in each round also nobody outside wishes to join
    notes    what the mechanism says of each round
    """

    name: str
    terms: list[Terms]
    at_rest: list[bool]
    notes: list[tuple[str, ...]]


def led_by(game: Game, mechanism: Mechanism) -> Led | None:
    """How a mechanism leads, where its rounds can be settled side by side; None where they cannot."""
    if not (game.loss.is_dense and game.loss.has_one_answer):
        return None
    limit: float | None = None
    if isinstance(mechanism, partial) and mechanism.func is budget_limited and set(mechanism.keywords) == {PAYMENT}:
        limit = mechanism.keywords[PAYMENT]
        mechanism = budget_limited
    elif mechanism is budget_limited:
        limit = signature(budget_limited).parameters[PAYMENT].default
    name = next((each for each in LEADERS if MECHANISMS[each] is mechanism), None)
    if name is None:
        return None
    crowd = replace(game, externality_strength=0.0) if mechanism is social_agnostic else game
    weights, notes = offered_weights(game) if mechanism is pigouvian else (None, ())
    return Led(name, LEADERS[name], crowd, weights, limit, notes)


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

    def step_back(self, key: bytes, out: BoolArray, who: int) -> BoolArray | None:
        """Who stays out once `who` has come back; None if nobody does, or if they would come and go for ever."""
        self.seen.add(key)
        if who < 0 or not self.may_come_back:
            return None
        fuller = _toggled(out, who)
        self.may_come_back = fuller.tobytes() not in self.seen
        return fuller if self.may_come_back else None


def settle_together(game: Game, horizon: Horizon, led: Led, rule: Participation) -> Settled:
    """Every round with nobody inside who wishes to leave, and what the mechanism says of it."""
    from mppfl.game import settling_kernels as kernels

    clients = game.clients
    may_return = rule == "if_better_than_staying_out"
    prices = np.ones(game.num_clients) if led.weights is None else led.weights
    terms: dict[int, Terms] = {}
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
                terms[p] = Terms(int(horizon.rounds[p]), 0.0, 0.0, np.zeros(game.num_clients))
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
        for who in np.unique(moves[:, 0]):
            rows = np.flatnonzero(moves[:, 0] == who)
            if who >= 0:
                _join(crowds, _toggled(crowd.out, who), positions[rows], inverse, int(who))
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
                terms[p], settled[p] = Terms(int(horizon.rounds[p]), rate, paid, budgets[row]), returns < 0
                notes[p] = (AT_A_BOUND, *led.notes) if at_bounds[row] else led.notes
    order = range(len(waiting))
    return Settled(led.name, [terms[p] for p in order], [settled[p] for p in order], [notes[p] for p in order])


def _join(crowds: dict[bytes, _Crowd], out: BoolArray, positions: IntArray, inverse: Array | None, who: int) -> None:
    crowd = crowds.setdefault(out.tobytes(), _Crowd(out, [], inverse, who))
    crowd.rounds.extend(int(p) for p in positions)


def _toggled(out: BoolArray, who: int) -> BoolArray:
    changed = out.copy()
    changed[who] = not changed[who]
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
    from mppfl.game import settling_kernels as kernels

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
    from mppfl.game import path_kernels as kernels

    tableau: Array = np.linalg.inv(game.loss.dense).astype(np.float64)
    for k in np.flatnonzero(~free):
        kernels.pivot(tableau, int(k))
    return tableau
