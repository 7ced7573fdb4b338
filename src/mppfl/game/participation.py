"""Who participates where clients weigh that by themselves: nobody stays who gains less than by opting out (eq. 31).

Mechanisms that pay one rate follow clients along the path of equilibria. For any other mechanism, and for
networks too large for a path, `settled_plan` asks crowd by crowd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NoEquilibrium
from mppfl.game.equilibrium import margin_of
from mppfl.game.model import Game, privacy_cost, privacy_loss, wanted_loss
from mppfl.game.plan import Against, Horizon, Plan, RoundTerms, plan_from_rounds

ONE_BY_ONE = 1000  # clients; in larger crowds a tenth of those concerned moves at once
SLIGHT = 1e-12  # of what a client is paid and loses: smaller gains are rounding
TIED = 1e-9  # of the largest margin: margins that near are equal, and the first client moves


def gain_from_participating(game: Game, prices: Array | float, budgets: Array, against: Against) -> Array:
    """What being in is worth to each client rather than opting out, others unmoved (model, eq. 31).

    Who is in weighs the budget it gives, which a bound may keep from its wish; who is out, the best it could give.
    """
    clients = game.clients
    wish = wanted_loss(game, prices) - (privacy_loss(game, budgets) - budgets)
    given = np.where(budgets > 0, budgets, np.clip(wish, clients.budget_min, clients.budget_max))
    return margin_of(game, prices, wish, given, against)


def regret_of_free_choice(
    game: Game, against: Against, budgets: Array, regret: Array, gains: Array, losses: Array
) -> tuple[Array, BoolArray]:
    """Regret where participating is a choice, and for whom the distance from the best response counts.

    Who is out regrets what joining would bring beyond its compute cost (nothing against "nothing": who leaves escapes
    the others' exposure, too). Who is in regrets also what leaving would save.
    """
    part = budgets > 0
    staying_out = against == "staying_out"
    joining = np.maximum(regret - game.clients.compute_cost, 0.0) if staying_out else np.zeros_like(regret)
    opting_out = -privacy_cost(game, losses - budgets) if staying_out else 0.0
    free_regret = np.where(part, np.maximum(regret, opting_out - gains), joining)
    return free_regret, part | (free_regret > 0)


@dataclass
class _Round:
    """A round on its way to rest: the crowds it has been in, and whether anybody may still come back."""

    terms: RoundTerms
    seen: set[bytes] = field(default_factory=set)
    may_come_back: bool = True
    at_rest: bool = True
    notes: tuple[str, ...] = ()


def settled_plan(game: Game, horizon: Horizon, mechanism: Callable[[Game, Horizon], Plan]) -> Plan:
    """The mechanism's plan when clients may opt out: who gains by it is held at 0, the largest gain first, and the
    mechanism is asked again for the rest, until no participating client would gain by opting out. Rounds with the same
    crowd are asked for together. Perhaps nobody remains.
    """
    empty = [RoundTerms(int(t), 0.0, 0.0, np.zeros(game.num_clients)) for t in horizon.rounds]
    rounds = [_Round(terms) for terms in empty]
    start = game.clients.budget_max <= 0
    crowds: dict[bytes, tuple[BoolArray, list[int]]] = {start.tobytes(): (start, list(range(len(rounds))))}
    while crowds:
        key = min(crowds, key=lambda crowd: crowd.count(1))  # the fullest first: others may still come to the same
        out, positions = crowds.pop(key)
        plan = _asked(game, horizon, mechanism, out, positions, out is start)
        for row, position in enumerate(positions):
            state = rounds[position]
            state.terms, state.notes = (plan[row], plan.notes) if plan else (empty[position], ())
            following = None if plan is None else _following(game, horizon.against, state, out)
            if following is not None:
                crowds.setdefault(following.tobytes(), (following, []))[1].append(position)
    notes = _notes(rounds)
    name = getattr(mechanism, "name", "custom")
    return plan_from_rounds(name, [state.terms for state in rounds], notes, "rational", horizon.against)


def _notes(rounds: list[_Round]) -> tuple[str, ...]:
    """What the mechanism says, once; with the number of rounds where it does not say so of all."""
    said = Counter(note for state in rounds for note in dict.fromkeys(state.notes))
    notes = [note if n == len(rounds) else f"{note} (in {n} of {len(rounds)} rounds)" for note, n in said.items()]
    if restless := sum(not state.at_rest for state in rounds):
        notes.append(f"in {restless} rounds some who opt out would rather join at these rates")
    return tuple(notes)


def _asked(
    game: Game, horizon: Horizon, mechanism: Any, out: BoolArray, positions: list[int], is_first: bool
) -> Plan | None:
    """The mechanism's plan of these rounds with some held at 0; None where nobody is left, or can be moved any more."""
    if out.all():
        return None
    clients = game.clients
    inside = game.with_bounds(np.where(out, 0.0, clients.budget_min), np.where(out, 0.0, clients.budget_max))
    rates = None if horizon.reward_rates is None else horizon.reward_rates[positions]
    part = replace(horizon, rounds=horizon.rounds[positions], reward_rates=rates, participation="voluntary")
    try:
        return mechanism(inside, part)  # type: ignore[no-any-return]
    except NoEquilibrium:
        if is_first:
            raise
        return None  # others could be moved, who have gone


def _following(game: Game, against: Against, state: _Round, out: BoolArray) -> BoolArray | None:
    """Who is out next; None where the round is at rest."""
    terms = state.terms
    if not np.isfinite(terms.budgets).all():  # without noise there is nothing to weigh
        return None
    margins = gain_from_participating(game, terms.prices, terms.budgets, against)
    size = np.abs(terms.prices * terms.budgets) + privacy_cost(game, privacy_loss(game, terms.budgets))
    slight = SLIGHT * (size + game.clients.compute_cost)
    able = out & (game.clients.budget_max > 0)
    wants_back = able & (margins > slight) & (against == "staying_out")  # against nothing, leaving is for good
    state.seen.add(out.tobytes())
    change = _worst_first(margins, (terms.budgets > 0) & ~out & (margins < -slight))
    if not change.any() and state.may_come_back:
        change = _worst_first(margins, wants_back)
        if (out ^ change).tobytes() in state.seen:  # they would come and go for ever
            state.may_come_back, change = False, np.zeros_like(out)
    state.at_rest = not wants_back.any()
    return out ^ change if change.any() else None


def _worst_first(margins: Array, eligible: BoolArray) -> BoolArray:
    """One client of a small crowd, a tenth of those concerned in a large one: others may be content once they moved."""
    change = np.zeros_like(eligible)
    size = np.where(eligible, np.abs(margins), -1.0)
    if len(eligible) <= ONE_BY_ONE:
        change[np.argmax(size >= size.max() * (1 - TIED))] = True
    else:
        change[np.argsort(-size, kind="stable")[: max(1, eligible.sum() // 10)]] = True
    return change & eligible
