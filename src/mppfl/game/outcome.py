"""What a plan brings everybody, round by round, and how far it is from an equilibrium: computed, never assumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array, BoolArray, IntArray
from mppfl.game.leader_regret import leader_regret
from mppfl.game.model import Game, privacy_cost, utility, wanted_loss
from mppfl.game.natural_units import natural_units
from mppfl.game.plan import AlongLine, Participation, Plan, Terms

COMPILED_ABOVE = 4_000_000  # clients × rounds
AT_ONCE = 100_000  # clients × rounds that are computed side by side


@dataclass(frozen=True, eq=False)
class Outcome:
    """Sums over clients, one entry per round. Money, unless said.

    accuracy_terms   Σ ε_i/(t ρ_i) over those who take part, no unit
    payments         Σ p_i ρ_i
    server_costs     τ·accuracy + (1−τ)·payments
    welfare          Σ (p_i ρ_i − privacy cost), compute cost left out
    total_welfare    welfare − server_costs/(1−τ)
    below_zero       clients with negative utility
    taking_part      clients with a positive budget
    best_response_gap  largest distance of a budget from its owner's best response, in units of budget
    client_regret    largest gain a client could get by moving alone
    relative_regret  the same as a share of what that client is paid and loses
    """

    rounds: IntArray
    reward_rates: Array
    accuracy_terms: Array
    payments: Array
    server_costs: Array
    welfare: Array
    total_welfare: Array
    below_zero: IntArray
    taking_part: IntArray
    best_response_gap: Array
    client_regret: Array
    relative_regret: Array


def evaluate(game: Game, plan: Plan) -> Outcome:
    """What every round of a plan brings the server and the clients.

    Plans on a line for many clients and rounds are summed by a compiled twin of `totals_of_rounds`.
    """
    if isinstance(plan.budgets, AlongLine) and len(plan) * plan.num_clients >= COMPILED_ABOVE:
        return outcome_of_sums(game, plan, _line_totals(game, plan))
    on_line = None  # privacy losses of budgets on a line: two products serve all rounds
    if isinstance(plan.budgets, AlongLine):
        both = game.loss @ np.column_stack([plan.budgets.slope, plan.budgets.offset])
        on_line = AlongLine(both[:, 0], both[:, 1])
    step = max(1, AT_ONCE // plan.num_clients)
    parts = [range(first, min(first + step, len(plan))) for first in range(0, len(plan), step)]
    return outcome_of_sums(game, plan, np.concatenate([totals_of_rounds(game, plan, part, on_line) for part in parts]))


def outcome_of_sums(game: Game, plan: Plan, rows: Array) -> Outcome:
    """From sums over clients, one row a round: noise harm, payments, gain, how many below zero, how many taking part,
    best-response gap, regret, relative regret.
    """
    noise, payments, gain, below, taking, gap, regret, relative = rows.T
    accuracy = noise / plan.rounds
    weight = game.accuracy_weight
    costs = weight * accuracy + (1 - weight) * payments
    return Outcome(
        rounds=plan.rounds,
        reward_rates=plan.reward_rates,
        accuracy_terms=accuracy,
        payments=payments,
        server_costs=costs,
        welfare=gain,
        total_welfare=gain - costs / (1 - weight),
        below_zero=below.astype(np.int64),
        taking_part=taking.astype(np.int64),
        best_response_gap=gap,
        client_regret=regret,
        relative_regret=relative,
    )


def totals_of_rounds(game: Game, plan: Plan, positions: range, on_line: AlongLine | None = None) -> Array:
    """Σε/ρ, Σpρ, welfare, clients below zero, clients taking part, gap, regret, relative regret: one row a round.

    on_line  privacy losses, where they lie on a line as the budgets do
    """
    several, clients = [plan.terms(position) for position in positions], game.clients
    found = np.empty((len(several), 8))
    protected = np.array([bool(np.isfinite(terms.budgets).all()) for terms in several])
    for place in np.flatnonzero(~protected):
        found[place] = _totals_without_protection(game, several[place])
    several = [several[place] for place in np.flatnonzero(protected)]
    if not several:
        return found
    budgets = np.array([terms.budgets for terms in several])
    prices = np.array([np.broadcast_to(terms.prices, budgets.shape[1]) for terms in several])
    if on_line is None:
        losses = (game.loss @ budgets.T).T
    else:
        losses = np.array([on_line.at(0, terms.reward_rate) for terms in several])
    part = budgets > 0
    gains = utility(game, prices, budgets, losses)
    paid = prices * budgets
    size = np.abs(paid) + np.abs(paid - gains)
    wish = wanted_loss(game, prices) - (losses - budgets)
    answer = np.clip(wish, clients.budget_min, clients.budget_max)
    regret = clients.quadratic_cost * ((budgets - wish) ** 2 - (answer - wish) ** 2)
    gap = np.abs(answer - budgets)
    if plan.participation != "always":
        # Who may stay out weighs the compute cost too: it comes with joining and goes with leaving.
        regret, kept = _regret_of_free_choice(game, plan.participation, budgets, regret, gains, losses)
        gap = np.where(kept, gap, 0.0)
    noise = np.divide(clients.noise_harm, budgets, out=np.zeros_like(budgets), where=part)
    found[protected] = np.column_stack(
        [
            noise.sum(1),
            paid.sum(1),
            paid.sum(1) - privacy_cost(game, losses).sum(1),
            (gains < -1e-12 * size).sum(1),
            part.sum(1),
            gap.max(1),
            regret.max(1),
            (regret / np.maximum(size, 1e-300)).max(1),
        ]
    )
    return found


def _totals_without_protection(game: Game, terms: Terms) -> tuple[float, ...]:
    """The same where some send without noise: they add none and are paid nothing, and whom they expose loses all."""
    endless = np.isinf(terms.budgets)
    budgets = np.where(endless, 0.0, terms.budgets)
    part, prices = budgets > 0, np.broadcast_to(terms.prices, len(budgets))
    gains = utility(game, prices, budgets, game.loss @ budgets)
    lost = (game.loss @ endless.astype(np.float64) > 0) | (gains < 0)
    noise = float((game.clients.noise_harm[part] / budgets[part]).sum())
    paid = float(prices @ budgets)
    return noise, paid, -np.inf, int(lost.sum()), int((terms.budgets > 0).sum()), np.inf, np.inf, np.inf


def _regret_of_free_choice(
    game: Game, rule: Participation, budgets: Array, regret: Array, gains: Array, losses: Array
) -> tuple[Array, BoolArray]:
    """Regret where taking part is a choice, and for whom the distance from the best response counts.

    Who is out regrets what joining would bring beyond its compute cost (nothing under "if_non_negative", where leaving
    is for good). Who is in regrets also what leaving would save.
    """
    part = budgets > 0
    joining = np.maximum(regret - game.clients.compute_cost, 0.0) if rule == "if_better_than_staying_out" else 0.0
    staying_out = -privacy_cost(game, losses - budgets) if rule == "if_better_than_staying_out" else 0.0
    found = np.where(part, np.maximum(regret, staying_out - gains), joining)
    return found, part | (found > 0)


def _line_totals(game: Game, plan: Plan) -> Array:
    from mppfl.game import kernels

    line, clients = plan.budgets, game.clients
    if not isinstance(line, AlongLine):
        raise TypeError("only budgets on a line have a compiled sum")
    both = game.loss @ np.column_stack([line.slope, line.offset])
    weights = plan.prices.slope if isinstance(plan.prices, AlongLine) else np.ones(game.num_clients)
    rows: Array = kernels.line_totals(
        line.slope,
        line.offset,
        np.ascontiguousarray(both[:, 0]),
        np.ascontiguousarray(both[:, 1]),
        clients.quadratic_cost,
        clients.linear_cost,
        clients.compute_cost,
        clients.budget_min,
        clients.budget_max,
        clients.noise_harm,
        weights,
        plan.reward_rates,
    )
    return rows


@dataclass(frozen=True, slots=True)
class Verification:
    """How far a plan is from an equilibrium.

    residual         largest distance of a budget from its owner's best response, over the largest budget, or over
                     what a typical client would give alone (`natural_units`) where that is more
    client_regret    largest gain any client could get by moving alone within its bounds, in money
    relative_regret  the same as a share of what that client is paid and loses
    leader_regret    largest saving the server could get by another rate with clients responding, noise weighed over
                     those who take part; inside the bounds over all rates that keep everybody there, else over a dozen
                     rates around the chosen one, and with floors above 0 or ceilings over far lower and higher ones
                     too; None for mechanisms without a leader, and where clients may stay out
    leader_rounds    rounds whose leader was checked
    """

    residual: float
    client_regret: float
    relative_regret: float
    leader_regret: float | None
    leader_rounds: tuple[int, ...]


def verify(game: Game, plan: Plan, outcome: Outcome | None = None) -> Verification:
    """The largest gain that any client, and the server, could get by moving alone (docs/model.md, section 5).

    Clients are checked in every round; so is the leader, except in very large plans (first, middle and last round).
    """
    found = evaluate(game, plan) if outcome is None else outcome
    first_and_last = (float(np.abs(plan.terms(k).budgets).max()) for k in (0, len(plan) - 1))
    largest = max(natural_units(game).budget, *first_and_last)
    regret, checked = leader_regret(game, plan)
    return Verification(
        residual=float(found.best_response_gap.max()) / largest if np.isfinite(largest) else np.inf,
        client_regret=max(0.0, float(found.client_regret.max())),
        relative_regret=max(0.0, float(found.relative_regret.max())),
        leader_regret=regret,
        leader_rounds=checked,
    )
