"""solve: a game, a mechanism and a number of rounds in; a plan, its outcome and its quality out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadFile, BadInput
from mppfl.game.mechanisms import MECHANISMS, Mechanism, as_mechanism
from mppfl.game.model import Game
from mppfl.game.outcome import Outcome, Verification, evaluate, leader_savings, verify
from mppfl.game.plan import (
    Against,
    Horizon,
    Participation,
    Plan,
    RoundTerms,
    plan_from_rounds,
    read_plan,
    rounds_up_to,
)
from mppfl.text import Tabular, lines_of, span

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Solution(Tabular):
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
        mechanism: the record of the mechanism, with its options.

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
    mechanism: Mechanism

    @cached_property
    def saving_if_clients_may_leave(self) -> float | None:
        """What the server could save in a round, at most, were it to look also at rates at which clients opt out.

        None for mechanisms without a leader, and where the plan has no such rule to relax.
        """
        if self.mechanism.leader is None or self.plan.participation != "everyone":
            return None
        positions = np.arange(len(self.plan))
        savings = leader_savings(self.game, self.plan, self.mechanism, positions, "voluntary")
        return max(0.0, float(savings.max()))

    def terms(self, round_index: int) -> RoundTerms:
        """Terms of a round by its number, from 1."""
        return self.plan.terms(round_index)

    def save(self, path: str | Path) -> None:
        """Writes plan and names of clients to a file (NumPy's .npz), from which `load_solution` makes this again."""
        self.plan.save(path, _names(self.game))

    def _columns(self) -> dict[str, list[Any]]:
        """One row per round."""
        shown = {"rounds": "round_index", "reward_rates": "reward_rate", "server_costs": "server_cost"}
        shown["accuracy_terms"] = "accuracy_term"
        same = ("payments", "welfare", "total_welfare", "participating", "negative_utility")
        return {shown.get(name, name): getattr(self.outcome, name).tolist() for name in (*shown, *same)}

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
    game: Game | Iterable[Game],
    mechanism: str | Mechanism = "mppfl",
    *,
    num_rounds: int = 1,
    reward_rates: Array | None = None,
    participation: Participation = "everyone",
    against: Against = "staying_out",
    seed: int = 0,
    device: str | None = None,
) -> Solution:
    """What a mechanism does in rounds 1..num_rounds of a game, and how far that is from an equilibrium.

    Args:
        game: see `make_game`; or several games with the same clients, one for each round, where friends come and go.
        mechanism: a name, or a function (game, horizon) -> plan, whose plans are checked.
        num_rounds: how many rounds.
        reward_rates: rates of all rounds; without them the mechanism's own server sets them, as it does where it has
            prices of its own (a warning then says so).
        participation: "everyone" (the server looks only at rates at which everybody participates), "voluntary" (at
            all rates) or "rational" (nobody stays who gains less than by opting out).
        against: what "rational" clients compare with: "staying_out" (still exposed by the others) or "nothing".
        seed: for mechanisms that draw at random.
        device: "cuda", "cuda:1" or "cpu" to solve the network's equations by PyTorch, for mppfl and mppfl_exact;
            without it NumPy solves.

    Raises:
        BadInput: an argument, or a plan of a function that is not ours, is wrong.
        NoEquilibrium: the participation rule allows no rate; it names the clients who cannot be kept.
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
    rule: Any = {"seed": seed, "participation": participation, "against": against}
    if not isinstance(game, Game):
        return _solve_each(list(game), record, reward_rates, rule, began)
    horizon = Horizon(rounds_up_to(num_rounds), reward_rates, **rule)
    if reward_rates is not None and record.leader == "budget_limited":
        raise BadInput(
            f"reward_rates={horizon.reward_rates!r:.60} leave budget_limited no choice, and may cost more than its "
            "payment_limit. Leave them out, or choose mppfl."
        )
    played = game
    if device is not None:
        from mppfl.game.device import game_on_device

        played = game_on_device(game, device)
    return _solution(game, record, *_judged(played, record, record(played, horizon)), horizon.reward_rates, began)


def _judged(game: Game, record: Mechanism, plan: Plan) -> tuple[Plan, Outcome, Verification]:
    """A plan, what it brings, and how good it is."""
    outcome = evaluate(game, plan)
    return plan, outcome, verify(game, plan, outcome, record)


def _solution(
    game: Game,
    record: Mechanism,
    plan: Plan,
    outcome: Outcome,
    verification: Verification,
    rates: Array | None,
    began: float,
) -> Solution:
    warnings = tuple(_warnings(game, plan, rates, outcome))
    for warning in warnings:
        log.info(warning)
    unique, error, seconds = game.is_surely_unique, _diagonal_error(game, plan), time.perf_counter() - began
    return Solution(game, plan, outcome, verification, unique, error, seconds, warnings, record)


def load_solution(path: str | Path, game: Game) -> Solution:
    """The solution that `Solution.save` wrote: its plan as it was, its outcome and quality computed in the game again.

    Args:
        path: the file.
        game: the game that was solved, for instance from the spec that describes it.

    Raises:
        BadFile: the file is not there, is no plan, or is about other clients.

    Example:
        >>> import mppfl, tempfile
        >>> from mppfl.game import load_solution
        >>> game = mppfl.make_game(mppfl.graph_from_matrix([[0, 1], [1, 0]]), mppfl.Clients([1.0, 2.0], 0.1, 0.5))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mppfl.solve(game).save(f"{folder}/solution.npz")
        ...     load_solution(f"{folder}/solution.npz", game).plan.mechanism
        'mppfl'
    """
    began = time.perf_counter()
    plan, names = read_plan(path)
    if names is None or names != _names(game):
        raise BadFile(f"{path}: is about other clients than the game's. Give the game that was solved.")
    record = MECHANISMS.get(plan.mechanism) or Mechanism(lambda *_: plan, plan.mechanism)
    return _solution(game, record, *_judged(game, record, plan), plan.reward_rates, began)


def _names(game: Game) -> list[str]:
    return [game.graph.name(client) for client in range(game.num_clients)]


def _solve_each(
    games: list[Game], record: Mechanism, reward_rates: Array | None, rule: dict[str, Any], began: float
) -> Solution:
    """One round in each game: a network that changes from round to round."""
    if not games:
        raise BadInput("there must be at least one game.")
    whole = Horizon(np.arange(1, len(games) + 1), reward_rates, **rule)
    rates, judged = whole.reward_rates, []
    for k, game in enumerate(games):
        if game.num_clients != games[0].num_clients:
            raise BadInput(
                f"round {k + 1} has {game.num_clients} clients, the one before {games[k - 1].num_clients}; "
                "keep those who left, with budget_max 0."
            )
        faced = None if rates is None else rates[k : k + 1]
        judged.append(_judged(game, record, record(game, replace(whole, rounds=whole.rounds[[k]], reward_rates=faced))))
    plans, outcomes, checks = zip(*judged, strict=True)
    notes = dict.fromkeys(note for plan in plans for note in plan.notes)
    terms, said = [plan[0] for plan in plans], (*notes, "the network changes from round to round")
    plan = plan_from_rounds(plans[0].mechanism, terms, said, whole.participation, whole.against)
    together = Outcome(*(np.concatenate([getattr(one, f.name) for one in outcomes]) for f in fields(Outcome)))
    return _solution(games[-1], record, plan, together, _worst(checks, plan), rates, began)


def _worst(checks: Iterable[Verification], plan: Plan) -> Verification:
    """The worst of every check of a plan's rounds."""
    worst: Any = {f.name: [getattr(check, f.name) for check in checks] for f in fields(Verification)}
    worst |= {name: None if None in values else max(values) for name, values in worst.items()}
    worst["leader_rounds"] = tuple(plan.rounds.tolist()) if worst["leader_rounds"] else ()
    return Verification(**worst)


# ---- what a reader should know -------------------------------------------------------------------------------------


def _warnings(game: Game, plan: Plan, rates: Array | None, outcome: Outcome) -> Iterator[str]:
    yield from plan.notes
    if deserted := int((outcome.participating == 0).sum()):
        yield f"in {deserted} rounds nobody participates: no rate of this server suits anybody"
    if rates is not None and not follows(plan, rates):
        yield f"{plan.mechanism} has prices of its own, and the reward_rates that were given mean nothing to it"
    yield from doubts_about(game)
    if isolated := len(game.graph.isolated):
        yield f"{isolated} of {game.num_clients} clients are isolated: nobody exposes them"


def doubts_about(game: Game) -> tuple[str, ...]:
    """A note where αS does not prove that the clients' equilibrium is the only one (model, eq. 4)."""
    if game.contraction < 1:
        return ()
    proof = "true row sums still prove it unique" if game.is_surely_unique else "it may not be the only equilibrium"
    return (f"αS = {game.contraction:.4g} is not below 1; a solution was sought all the same and {proof}",)


def follows(plan: Plan, reward_rates: Array) -> bool:
    """Whether these are the plan's rates, but for rounds in which everybody opted out, which have none."""
    others = np.flatnonzero(~np.isclose(plan.reward_rates, reward_rates))
    may_be_deserted = plan.participation == "rational"
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
