"""solve: a game, a mechanism and a number of rounds in; a plan, its outcome and its quality out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadInput
from mppfl.game.mechanisms import Mechanism, as_mechanism, mppfl
from mppfl.game.model import Game
from mppfl.game.outcome import Outcome, Verification, evaluate, verify
from mppfl.game.participation import with_participation
from mppfl.game.plan import Horizon, Participation, Plan, RoundTerms, plan_from_rounds, rounds_up_to
from mppfl.game.tables import data_frame, html_table, lines_of, span

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Solution:
    """A plan, what it brings, and how good it is: what `solve` returns.

    Args:
        game: the game that was solved.
        plan: reward rates and budgets of every round.
        outcome: costs, welfare and participants of every round.
        verification: how far the plan is from an equilibrium.
        is_unique: whether the clients' equilibrium is proved unique (αΣ's row sums below 1); False means unproved.
        diagonal_error: how far budgets may be off because closed walks were estimated (two standard errors, largest
            client); 0 where they are exact.
        seconds: time it took.
        warnings: what a reader should know before using the numbers.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> solution = mppfl.solve(game, num_rounds=3)
        >>> solution.terms(1).budgets.shape, len(solution.plan)
        ((2,), 3)
    """

    game: Game
    plan: Plan
    outcome: Outcome
    verification: Verification
    is_unique: bool
    diagonal_error: float
    seconds: float
    warnings: tuple[str, ...]

    def terms(self, round_index: int) -> RoundTerms:
        """Terms of a round by its number, from 1."""
        return self.plan.terms(round_index)

    def _columns(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "round_index": outcome.rounds.tolist(),
            "reward_rate": outcome.reward_rates.tolist(),
            "server_cost": outcome.server_costs.tolist(),
            "accuracy_term": outcome.accuracy_terms.tolist(),
            "payments": outcome.payments.tolist(),
            "welfare": outcome.welfare.tolist(),
            "total_welfare": outcome.total_welfare.tolist(),
            "participating": outcome.participating.tolist(),
            "negative_utility": outcome.negative_utility.tolist(),
        }

    def to_pandas(self) -> Any:  # pandas.DataFrame
        """One row per round; needs pandas."""
        return data_frame(self._columns())

    def _repr_html_(self) -> str:
        return html_table(self._columns())

    def __repr__(self) -> str:
        size, outcome, quality = self.game.num_clients, self.outcome, self.verification
        regret = "not checked" if quality.leader_regret is None else f"{quality.leader_regret:.3g}"
        facts = {
            "reward rate": span(outcome.reward_rates),
            "server cost": span(outcome.server_costs),
            "welfare": span(outcome.welfare),
            "participating": f"{span(outcome.participating)} of {size:,}",
            "negative utility": f"{span(outcome.negative_utility)} of {size:,}",
            "residual": f"{quality.residual:.2g}",
            "client regret": f"{quality.client_regret:.3g}",
            "leader regret": regret,
        } | {f"warning {k}": text[:100] for k, text in enumerate(self.warnings[:3], start=1)}
        return lines_of(f"Solution by {self.plan.mechanism}, {len(self.plan)} rounds, {self.seconds:.2g} s", facts)


def solve(
    game: Game,
    mechanism: str | Mechanism = "mppfl",
    *,
    num_rounds: int = 1,
    reward_rates: Array | None = None,
    participation: Participation = "always",
    seed: int = 0,
    device: str | None = None,
) -> Solution:
    """What a mechanism does in rounds 1..num_rounds of a game, and how far that is from an equilibrium.

    Args:
        game: see `make_game`.
        mechanism: a name, or a function (game, horizon) -> plan, whose plans are checked.
        num_rounds: how many rounds.
        reward_rates: rates of all rounds; without them the mechanism's own server sets them, as it does where it has
            prices of its own (a warning then says so).
        participation: "always", "if_better_than_opting_out" or "if_non_negative".
        seed: for mechanisms that draw at random.
        device: "cuda", "cuda:1" or "cpu" to solve the network's equations by PyTorch, for mppfl and mppfl_exact;
            without it NumPy solves.

    Returns:
        The plan with its outcome and its verification.

    Raises:
        BadInput: an argument, or a plan of a function that is not ours, is wrong.
        NoEquilibrium: no reward rate moves anybody.
        NotConverged: the equations were not solved; carries the last iterate.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> solution = mppfl.solve(game, "mppfl_exact", num_rounds=2)
        >>> bool(solution.verification.residual < 1e-9)
        True
    """
    began = time.perf_counter()
    record = as_mechanism(mechanism)
    horizon = Horizon(rounds_up_to(num_rounds), reward_rates, seed)
    if reward_rates is not None and record.leader == "budget_limited":
        raise BadInput(
            f"reward_rates={horizon.reward_rates!r:.60} leave budget_limited no choice, and may cost more than its "
            "payment_limit. Leave them out, or choose mppfl."
        )
    played = game
    if device is not None:
        from mppfl.game.device import game_on_device

        played = game_on_device(game, record, participation, device)
    if participation == "always":
        plan = record(played, horizon)
    else:
        plan = with_participation(played, horizon, record, participation)
    outcome = evaluate(played, plan)
    quality = verify(played, plan, outcome)
    warnings = tuple(_warnings(game, plan, horizon))
    for warning in warnings:
        log.info(warning)
    return Solution(
        game=game,
        plan=plan,
        outcome=outcome,
        verification=quality,
        is_unique=game.is_surely_unique,
        diagonal_error=_diagonal_error(game, plan),
        seconds=time.perf_counter() - began,
        warnings=warnings,
    )


# ---- what a reader should know -------------------------------------------------------------------------------------


def _warnings(game: Game, plan: Plan, horizon: Horizon) -> list[str]:
    notes = list(plan.notes)
    if horizon.reward_rates is not None and not follows(plan, horizon.reward_rates):
        notes.append(f"{plan.mechanism} has prices of its own, and the reward_rates that were given mean nothing to it")
    notes += doubts_about(game)
    isolated = len(game.graph.isolated)
    if isolated:
        notes.append(f"{isolated} of {game.num_clients} clients are isolated: nobody exposes them")
    return notes


def doubts_about(game: Game) -> tuple[str, ...]:
    """A note where αS does not prove that the clients' equilibrium is the only one (model, eq. 4)."""
    if game.contraction < 1:
        return ()
    proof = "true row sums still prove it unique" if game.is_surely_unique else "it may not be the only equilibrium"
    return (f"αS = {game.contraction:.4g} is not below 1; a solution was sought all the same and {proof}",)


def follows(plan: Plan, reward_rates: Array) -> bool:
    """Whether these are the plan's rates, but for rounds in which everybody opted out, which have none."""
    others = np.flatnonzero(~np.isclose(plan.reward_rates, reward_rates))
    may_be_deserted = plan.participation != "always"
    return all(may_be_deserted and not plan[int(k)].participating.any() for k in others)


def _diagonal_error(game: Game, plan: Plan) -> float:
    """‖δρ‖ <= α‖δD ρ‖/(1 − αS) in the sup norm, with two standard errors for δD."""
    error = game.propagation.home.standard_error
    if not error.any():
        return 0.0
    budgets = plan[0].budgets
    reach = game.externality_strength * float(game.propagation.row_sums.max())
    off = 2 * game.externality_strength * float(np.abs(error * budgets).max())
    return off / (1 - reach) if reach < 1 else np.inf


def follow(games: Iterable[Game]) -> Plan:
    """A plan for a game that changes from round to round (friends come and go), with the paper's leader (eq. 16).

    Args:
        games: one per round, all with the same clients.

    Returns:
        A plan with as many rounds as there are games.

    Raises:
        BadInput: no games, or the number of clients changes.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> len(mppfl.follow([game, game]))
        2
    """
    terms: list[RoundTerms] = []
    for round_index, game in enumerate(games, start=1):
        if terms and game.num_clients != len(terms[-1].budgets):
            raise BadInput(
                f"round {round_index} has {game.num_clients} clients, the one before {len(terms[-1].budgets)}; "
                "keep those who left, with budget_max 0."
            )
        terms.append(mppfl(game, Horizon(np.array([round_index])))[0])
    if not terms:
        raise BadInput("there must be at least one game.")
    return plan_from_rounds("mppfl", terms, ("the network changes from round to round",))
