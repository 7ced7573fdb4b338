"""What a plan brings everybody, round by round, and how far it is from an equilibrium: computed, never assumed."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.game.equilibrium import PATH_BELOW, Followers
from mppfl.game.leader import POOLED, Answers, aggregating, cost_of, pooled_noise
from mppfl.game.mechanisms import MECHANISMS, Mechanism, blind
from mppfl.game.model import Game, privacy_cost, utility, wanted_loss
from mppfl.game.participation import regret_of_free_choice
from mppfl.game.plan import AlongLine, Participation, Plan
from mppfl.text import lines_of, span

LEADER_ROUNDS_BELOW = 4_000_000  # clients × rounds; above, only the first, middle and last round's leader is checked
AT_ONCE = 100_000  # clients × rounds that are computed side by side


@dataclass(frozen=True, eq=False)
class Outcome:
    """Sums over clients, one entry per round. Money, unless said.

    accuracy_terms   Σ ε_i/(t ρ_i) over those who participate, or what the server's aggregation makes of it, no unit
    payments         Σ p_i ρ_i
    server_costs     τ·accuracy + (1−τ)·payments
    welfare          Σ (p_i ρ_i − privacy cost), compute cost left out
    total_welfare    welfare − server_costs/(1−τ)
    negative_utility       clients with negative utility
    participating      clients with a positive budget
    best_response_gap  largest distance of a budget from its owner's best response, in units of budget
    client_regret    largest gain a client could get by moving alone
    relative_regret  the same as a share of what that client is paid and loses

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> mppfl.solve(game, num_rounds=3).outcome.participating.tolist()
        [2, 2, 2]
    """

    rounds: IntArray
    reward_rates: Array
    accuracy_terms: Array
    payments: Array
    server_costs: Array
    welfare: Array
    total_welfare: Array
    negative_utility: IntArray
    participating: IntArray
    best_response_gap: Array
    client_regret: Array
    relative_regret: Array

    def __repr__(self) -> str:
        facts = {f.name: span(getattr(self, f.name)) for f in fields(self) if f.name != "rounds"}
        return lines_of(f"Outcome of {len(self.rounds)} rounds, smallest to largest", facts)


def evaluate(game: Game, plan: Plan) -> Outcome:
    """What every round of a plan brings the server and the clients."""
    noise, payments, gain, below, taking, gap, regret, relative = _sums_of_all(game, plan).T
    record = MECHANISMS.get(plan.mechanism)
    played = game if record is None else record.seen(game)
    leader = aggregating(played, (record and record.leader) or "anticipating")
    if leader in POOLED:  # its server weighs uploads by their noise (eq. 18), or opens sums only (eq. 34)
        noise = np.array([pooled_noise(game, leader, terms.budgets) for terms in plan])
    accuracy, weight = noise / plan.rounds, game.accuracy_weight
    costs = weight * accuracy + (1 - weight) * payments
    return Outcome(
        rounds=plan.rounds,
        reward_rates=plan.reward_rates,
        accuracy_terms=accuracy,
        payments=payments,
        server_costs=costs,
        welfare=gain,
        total_welfare=gain - costs / (1 - weight),
        negative_utility=below.astype(np.int64),
        participating=taking.astype(np.int64),
        best_response_gap=gap,
        client_regret=regret,
        relative_regret=relative,
    )


def _sums_of_all(game: Game, plan: Plan) -> Array:
    """`_sums` of all rounds."""
    losses, line = None, plan.budgets
    if isinstance(line, AlongLine) and np.isfinite(line.slope).all() and np.isfinite(line.offset).all():
        both = game.loss @ np.column_stack([line.slope, line.offset])  # losses lie on one too: two products serve all
        losses = AlongLine(*np.ascontiguousarray(both.T))
    step = max(1, AT_ONCE // plan.num_clients)
    parts = [range(first, min(first + step, len(plan))) for first in range(0, len(plan), step)]
    return np.concatenate([_sums(game, plan, part, losses) for part in parts])


def _sums(game: Game, plan: Plan, positions: range, on_line: AlongLine | None) -> Array:
    """Σε/ρ, Σpρ, welfare, negative utilities, participants, gap, regret, relative regret: one row a round.

    Who sends without noise adds none and is paid nothing; whom it exposes loses all, and so does welfare.
    on_line  privacy losses, where they lie on a line as the budgets do
    """
    several, clients = [plan[position] for position in positions], game.clients
    budgets = np.array([terms.budgets for terms in several])
    prices = np.array([np.broadcast_to(terms.prices, budgets.shape[1]) for terms in several])
    endless = ~np.isfinite(budgets)
    budgets = np.where(endless, 0.0, budgets)
    if on_line is None:
        losses = (game.loss @ budgets.T).T
    else:
        losses = np.array([on_line.at(0, terms.reward_rate) for terms in several])
    gains = utility(game, prices, budgets, losses)
    paid = prices * budgets
    size = np.abs(paid) + np.abs(paid - gains)
    wish = wanted_loss(game, prices) - (losses - budgets)
    answer = np.clip(wish, clients.budget_min, clients.budget_max)
    regret = clients.quadratic_cost * ((budgets - wish) ** 2 - (answer - wish) ** 2)
    gap = np.abs(answer - budgets)
    if plan.participation == "rational":
        # Who may opt out weighs the compute cost too: it comes with joining and goes with leaving.
        regret, kept = regret_of_free_choice(game, plan.against, budgets, regret, gains, losses)
        gap = np.where(kept, gap, 0.0)
    below, welfare = gains < -1e-12 * size, paid.sum(1) - privacy_cost(game, losses).sum(1)
    if endless.any():
        rows = endless.any(1)
        welfare[rows], gap[rows], regret[rows], size[rows] = -np.inf, np.inf, np.inf, 1.0
        below[rows] = ((game.loss @ endless[rows].T.astype(np.float64)).T > 0) | (gains[rows] < 0)
    noise = np.divide(clients.noise_harm, budgets, out=np.zeros_like(budgets), where=budgets > 0)
    relative = regret / np.maximum(size, 1e-300)
    taking = ((budgets > 0) | endless).sum(1)
    ends = (gap.max(1), regret.max(1), relative.max(1))
    return np.column_stack([noise.sum(1), paid.sum(1), welfare, below.sum(1), taking, *ends])


@dataclass(frozen=True, slots=True)
class Verification:
    """How far a plan is from an equilibrium.

    residual         largest distance of a budget from its owner's best response, over the largest budget
    client_regret    largest gain any client could get by moving alone within its bounds, in money
    relative_regret  the same as a share of what that client is paid and loses
    leader_regret    largest saving the server could get by any other rate that the participation rule allows, clients
                     responding, noise weighed over participants; on networks too large for the path of equilibria an
                     upper bound; None for mechanisms without a leader
    leader_rounds    rounds whose leader was checked
    """

    residual: float
    client_regret: float
    relative_regret: float
    leader_regret: float | None
    leader_rounds: tuple[int, ...]

    def __repr__(self) -> str:
        facts = {f.name: f"{getattr(self, f.name)}" for f in fields(self)[:4]}
        return lines_of("Verification", facts | {"leader_rounds": f"{len(self.leader_rounds)} checked"})


def verify(game: Game, plan: Plan, outcome: Outcome | None = None, mechanism: Mechanism | None = None) -> Verification:
    """The largest gain that any client, and the server, could get by moving alone (docs/model.md, section 5).

    Clients are checked in every round; so is the leader, except in very large plans (first, middle, last round).

    Args:
        game: the game it is played in.
        plan: any plan for its clients.
        outcome: what `evaluate` says of it, where that is at hand.
        mechanism: the record of who made the plan, with its options; found by its name unless given.
    """
    outcome = evaluate(game, plan) if outcome is None else outcome
    record = MECHANISMS.get(plan.mechanism) if mechanism is None else mechanism
    largest, gap = max(float(plan[k].budgets.max()) for k in (0, len(plan) - 1)), float(outcome.best_response_gap.max())
    residual = gap / largest if 0 < largest < np.inf else 0.0 if gap == 0 else np.inf
    regret, positions = None, np.arange(0)
    if record is not None and record.leader is not None:
        is_large = len(plan) * plan.num_clients >= LEADER_ROUNDS_BELOW
        positions = np.unique([0, len(plan) // 2, len(plan) - 1]) if is_large else np.arange(len(plan))
        regret = max(0.0, float(leader_savings(game, plan, record, positions).max()))
    return Verification(
        residual=residual,
        client_regret=max(0.0, float(outcome.client_regret.max())),
        relative_regret=max(0.0, float(outcome.relative_regret.max())),
        leader_regret=regret,
        leader_rounds=tuple(int(t) for t in plan.rounds[positions]),
    )


def leader_savings(
    game: Game, plan: Plan, record: Mechanism, positions: IntArray, participation: Participation | None = None
) -> Array:
    """What the server could save in these rounds by the best rate that a participation rule allows, the plan's own
    unless given; below 0 where the rule allows only dearer ones.
    """
    leader = record.leader or "anticipating"
    crowd = blind(game) if plan.mechanism == "social_agnostic" else game
    weights = np.ones(game.num_clients) if plan.price_weights is None else plan.price_weights
    rule = plan.participation if participation is None else participation
    if rule == "rational" and game.num_clients > PATH_BELOW:
        rule = "voluntary"  # a bound: those who may not leave for less cost no less
    limit = float(record.options.get("payment_limit", np.inf)) if leader == "budget_limited" else np.inf
    answers = Answers(Followers(crowd, weights), rule, plan.against)
    least = answers.least(leader, plan.rounds[positions], limit)
    terms = [plan[position] for position in positions.tolist()]
    now = np.array([cost_of(crowd, leader, t.round_index, t.prices, t.budgets) for t in terms])
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(least), now - least, 0.0)
