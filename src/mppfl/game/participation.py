"""Who takes part: always, only if better than staying out, or only if not at a loss (model, eq. 31)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import get_args

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadInput, NoEquilibrium
from mppfl.game.mechanisms import MayLeave, Mechanism
from mppfl.game.model import Game, privacy_loss, utility, wanted_loss
from mppfl.game.natural_units import slight_margin
from mppfl.game.plan import Horizon, Participation, Plan, Terms, plan_of_rounds
from mppfl.game.settling import Settled, led_by, settle_together

TIED = 1e-12  # margins that differ by less, as a share, differ by rounding: the lower number goes first


@dataclass(frozen=True, eq=False)
class _Decision:
    leave: BoolArray
    come_back: BoolArray
    margin: Array  # how much each client gains by being in rather than out


def gain_from_joining(game: Game, prices: Array | float, budgets: Array) -> Array:
    """What being in is worth against staying out, others unmoved: a_i(z_i² − (z_i − ρ_i)²) − C_i (model, eq. 31).

    Who is in weighs the budget it gives, which a bound may keep from its wish z_i; who is out, the best it could give.
    Outsiders are still exposed by the others, so only the own budget counts.
    """
    clients = game.clients
    wish = wanted_loss(game, prices) - (privacy_loss(game, budgets) - budgets)
    given = np.where(budgets > 0, budgets, np.clip(wish, clients.budget_min, clients.budget_max))
    return np.asarray(clients.quadratic_cost * (wish**2 - (wish - given) ** 2) - clients.compute_cost)


def with_participation(game: Game, horizon: Horizon, mechanism: Mechanism, rule: Participation) -> Plan:
    """The mechanism's plan when clients may stay out: those whom taking part does not suit are held at 0, worst first,
    and the server sets its rate for the rest, until nobody inside wishes to leave. It may be that nobody stays.
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
    deserted = sum(not found.taking_part.any() for found in settled.terms)
    notes = (f"participation: {rule}", *_notes_of_rounds(settled.notes))
    if restless:
        notes += (f"in {restless} rounds some who stay out would rather join at these rates",)
    if deserted:
        notes += (f"in {deserted} rounds nobody takes part: no rate of this server suits anybody",)
    return plan_of_rounds(settled.name, settled.terms, notes, rule)


def _notes_of_rounds(notes: list[tuple[str, ...]]) -> list[str]:
    """What the mechanism says, once; with the number of rounds where it does not say so of all."""
    rounds = Counter(note for single in notes for note in dict.fromkeys(single))
    return [note if n == len(notes) else f"{note} (in {n} of {len(notes)} rounds)" for note, n in rounds.items()]


def settle_one_by_one(game: Game, horizon: Horizon, mechanism: Mechanism, rule: Participation) -> Settled:
    """Every round with nobody inside who wishes to leave, and what the mechanism says of it; any mechanism."""
    found = [_settle(game, _only(horizon, k), mechanism, rule) for k in range(len(horizon.rounds))]
    names = [plan.mechanism for _, _, plan in found if plan is not None]
    return Settled(
        names[-1] if names else "custom",
        [terms for terms, _, _ in found],
        [at_rest for _, at_rest, _ in found],
        [plan.notes if plan is not None and terms.taking_part.any() else () for terms, _, plan in found],
    )


def _only(horizon: Horizon, position: int) -> MayLeave:
    one = slice(position, position + 1)
    rates = None if horizon.reward_rates is None else horizon.reward_rates[one]
    return MayLeave(horizon.rounds[one], rates, horizon.seed)


def _settle(game: Game, single: Horizon, mechanism: Mechanism, rule: Participation) -> tuple[Terms, bool, Plan | None]:
    """Terms of one round with nobody inside who wishes to leave; whether also nobody outside wishes to join; the plan
    that the mechanism made last, None where nobody may take part.
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
        terms = plan.terms(0)
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
    nobody = Terms(int(single.rounds[0]), 0.0, 0.0, np.zeros(game.num_clients))
    return nobody, True, plan


def _decide(game: Game, terms: Terms, out: BoolArray, rule: Participation) -> _Decision:
    inside, slight = (terms.budgets > 0) & ~out, slight_margin(game)
    if rule == "if_non_negative":
        # Against "nothing": who leaves also escapes the others' exposure, and does not come back.
        margin = utility(game, terms.prices, terms.budgets)
        return _Decision(inside & (margin < -slight), np.zeros_like(out), margin)
    margin = gain_from_joining(game, terms.prices, terms.budgets)
    able = out & (game.clients.budget_max > 0)
    return _Decision(inside & (margin < -slight), able & (margin > slight), margin)


def _worst_first(decision: _Decision, who: BoolArray) -> BoolArray:
    """One client of a small crowd, a tenth of those concerned in a large one: others may be content once they moved."""
    concerned = np.flatnonzero(who)
    if len(concerned) == 0:
        return np.zeros_like(who)
    size = np.abs(decision.margin[concerned])
    change = np.zeros_like(who)
    if len(who) <= 1000:
        change[concerned[np.argmax(size >= size.max() * (1 - TIED))]] = True
    else:
        order = concerned[np.argsort(-size, kind="stable")]
        change[order[: max(1, len(concerned) // 10)]] = True
    return change
