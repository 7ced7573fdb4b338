"""Mechanisms to compare. Each is a function, a game and a horizon in, a plan out, and its record. Yours can be one too.

With `horizon.reward_rates` set, every mechanism faces those rates (the common-reward comparison); without, its own
server sets them. Exposure happens to everybody alike: whoever ignores it still suffers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from typing import Any, Literal

import numpy as np

from mppfl.arrays import Array, require_number
from mppfl.errors import BadInput, MppflError, NoEquilibrium
from mppfl.game.convex import auction_budgets, personal_budgets, pigouvian_weights, society_of
from mppfl.game.equilibrium import PATH_BELOW, equilibrium_at
from mppfl.game.leader import (
    Answers,
    UniformLeader,
    answers_along,
    budgets_along,
    choose_rates,
    require_somebody,
)
from mppfl.game.model import LARGEST, Game, privacy_cost, privacy_loss, wanted_loss
from mppfl.game.participation import settled_plan
from mppfl.game.plan import (
    AlongLine,
    Horizon,
    Participation,
    Plan,
    RoundTerms,
    Stored,
    as_numbers,
    check_plan,
    plan_from_rounds,
)
from mppfl.network import ClosedWalks, Propagation
from mppfl.spec import Trust
from mppfl.text import nearest


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A pricing mechanism: a function from a game and a horizon to a plan, and all there is to know about it.

    Args:
        function: (game, horizon, **options) -> plan.
        name: by which commands and files call it; the function's own unless given.
        title: its name for people.
        leader: the leader whose reward rate it pays, by the horizon's participation rule; None without one.
        option: the keyword of the function that a user may set, a field of GameSpec by the same name.
        needs_option: whether it has no default.
        has_rate: False where prices are its own whatever rates are given.
        only_rate_differs: whether it is mppfl but for the rate, so that common rates leave nothing of it.
        compared: whether `compare` takes it unless told otherwise.
        trust: under which its server aggregates, whatever the game's; None: the game's.
        options: values bound to the function.
        source: the package that offers it, where it is somebody else's.

    Example:
        >>> from mppfl.game import find_mechanism
        >>> find_mechanism("budget_limited").with_options(payment_limit=2.0).options
        {'payment_limit': 2.0}
    """

    function: Callable[..., Plan]
    name: str = ""
    title: str = ""
    leader: UniformLeader | None = None
    option: str | None = None
    needs_option: bool = False
    has_rate: bool = True
    only_rate_differs: bool = False
    compared: bool = True
    trust: Trust | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        name = self.name or str(getattr(self.plain, "__name__", type(self.plain).__name__))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "title", self.title or name)
        object.__setattr__(self, "__doc__", self.plain.__doc__)

    @property
    def summary(self) -> str:
        """What it does: the first line of the function's docstring."""
        return next(iter((self.plain.__doc__ or "").strip().splitlines()), "")

    @property
    def plain(self) -> Callable[..., Plan]:
        """The function behind a `functools.partial`."""
        function = self.function
        while isinstance(function, partial):
            function = function.func
        return function

    def with_options(self, **options: Any) -> Mechanism:
        """The same mechanism with options bound to its function."""
        return replace(self, options={**self.options, **options})

    def seen(self, game: Game) -> Game:
        """The game under the trust of its server."""
        return game if self.trust is None or game.opens_sums else game.with_trust(self.trust)

    def __call__(self, game: Game, horizon: Horizon) -> Plan:
        """The plan, checked: whoever wrote the function may have forgotten a round, a client or a bound."""
        if horizon.participation == "rational" and (self.leader is None or game.num_clients > PATH_BELOW):
            return settled_plan(game, horizon, self)
        try:
            plan = self.function(self.seen(game), horizon, **self.options)
        except (MppflError, MemoryError):
            raise
        except Exception as cause:  # somebody else's code can fail in any way
            raise BadInput(self._failure(cause)) from cause
        return check_plan(plan, game, horizon, self.name)

    def _failure(self, cause: Exception) -> str:
        """What to say where the function broke down: whose it is, and what it raised."""
        kind = self.plain if hasattr(self.plain, "__qualname__") else type(self.plain)
        whose, remedy = "", "Repair that function."
        if self.source:
            whose, remedy = f" of {self.source}", "Repair or remove that package."
        address = f"{kind.__module__}:{kind.__qualname__}"
        return f"mechanism={self.name!r}{whose} ({address}) failed: {type(cause).__name__}: {cause}. {remedy}"


def mechanism(**facts: Any) -> Callable[[Callable[..., Plan]], Mechanism]:
    """A decorator that makes a function a Mechanism with these facts: `@mechanism(title="Twice the paper's")`."""
    return lambda function: Mechanism(function, **facts)


def as_mechanism(given: Any) -> Mechanism:
    """A mechanism from its name, its function or its record."""
    if isinstance(given, Mechanism):
        return given
    if isinstance(given, partial) and isinstance(given.func, Mechanism):
        return given.func.with_options(**given.keywords)
    if callable(given):
        return Mechanism(given)
    if not isinstance(given, str):
        raise BadInput(f"mechanism={given!r:.60} must be a name, or a function (game, horizon) -> plan.")
    return find_mechanism(given)


def find_mechanism(name: str) -> Mechanism:
    """A mechanism by name: ours, or one that an installed package offers under the entry point `mppfl.mechanisms`."""
    if name in MECHANISMS:
        return MECHANISMS[name]
    offered = {point.name: point for point in metadata.entry_points(group="mppfl.mechanisms")}
    if name not in offered:
        known = [*MECHANISMS, *offered]
        near = nearest(name, known)
        hint = f" Did you mean {near!r}?" if near else ""
        raise BadInput(f"mechanism={name!r} is not known.{hint} Known: {', '.join(known)}.")
    package = str(getattr(getattr(offered[name], "dist", None), "name", "an unknown package"))
    try:
        loaded = offered[name].load()
    except MppflError:
        raise
    except Exception as cause:  # importing somebody else's module can fail in any way
        raise BadInput(
            f"mechanism={name!r} of {package} ({offered[name].value}) cannot be loaded: {type(cause).__name__}: "
            f"{cause}. Repair or remove that package."
        ) from cause
    return replace(loaded if isinstance(loaded, Mechanism) else Mechanism(loaded, name), source=package)


def respond(game: Game, prices: Array | float, round_index: int = 1, start: Array | None = None) -> RoundTerms:
    """Terms of a round at given prices: every client answers with its equilibrium budget within its bounds.

    The reward rate of the terms is the mean price, weighted by budgets.

    Args:
        game: the game.
        prices: money per unit of budget, one for everybody or one each: any mechanism's.
        round_index: the round that the terms are for.
        start: budgets near the answer, where they are at hand.

    Raises:
        NotConverged: the equilibrium was not found (possible only where αS is 1 or more).

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 1.0], 0.0, 0.1), max_hops=1, externality_strength=0.5)
        >>> mppfl.respond(game, [3.0, 3.0]).budgets.round(12).tolist()
        [1.0, 1.0]
    """
    paid = as_numbers(prices, "prices")
    return _priced(round_index, paid if paid.ndim else float(paid), equilibrium_at(game, paid, start))


def _priced(round_index: int, prices: Array | float, budgets: Array) -> RoundTerms:
    """Terms whose reward rate is the mean price, weighted by budgets."""
    total = float(budgets.sum())
    mean = float((prices * budgets).sum()) / total if total > 0 else float(np.mean(prices))
    return RoundTerms(round_index, mean, prices, budgets)


# ---- clients who know the network -------------------------------------------------------------------------------


@mechanism(title="MPPFL", leader="mean_field")
def mppfl(game: Game, horizon: Horizon) -> Plan:
    """The paper's mechanism: equilibrium budgets, and a server that takes external risk as it stands (eq. 16)."""
    return _uniform(game, horizon, "mppfl", "mean_field")


@mechanism(title="MPPFL, exact leader", leader="anticipating", only_rate_differs=True)
def mppfl_exact(game: Game, horizon: Horizon) -> Plan:
    """The exact Stackelberg equilibrium: the server knows how exposure moves with its rate (eq. 17)."""
    return _uniform(game, horizon, "mppfl_exact", "anticipating")


@mechanism(title="MPPFL, noise-aware", leader="noise_aware", only_rate_differs=True)
def mppfl_noise_aware(game: Game, horizon: Horizon) -> Plan:
    """The server aggregates noise-aware, so no single small budget can drive its rate up (eq. 18)."""
    return _uniform(game, horizon, "mppfl_noise_aware", "noise_aware")


@mechanism(title="MPPFL, secure sum", leader="secure_sum", trust="secure_sum", only_rate_differs=True, compared=False)
def mppfl_secure_sum(game: Game, horizon: Horizon) -> Plan:
    """The server opens nothing but the sum, on which the noise of all lies as one: the cheapest rate (eq. 34)."""
    return _uniform(game, horizon, "mppfl_secure_sum", "secure_sum")


@mechanism(
    title="MPPFL, limited payments",
    leader="budget_limited",
    option="payment_limit",
    needs_option=True,
    only_rate_differs=True,
    compared=False,
)
def budget_limited(game: Game, horizon: Horizon, *, payment_limit: float = 1.0) -> Plan:
    """The server spends at most `payment_limit` in a round (eq. 19)."""
    require_number(payment_limit, "payment_limit", 0.0, np.inf)
    return _uniform(game, horizon, "budget_limited", "budget_limited", payment_limit)


@mechanism(title="Pigouvian prices", leader="anticipating")
def pigouvian(game: Game, horizon: Horizon) -> Plan:
    """Personal prices r·c_i that make everybody do what all together would want (eq. 20).

    A client that harms others more than it earns has c_i < 0; it is offered nothing instead of being charged.
    """
    weights = pigouvian_weights(game)
    charged, weights = int((weights < 0).sum()), np.maximum(weights, 0.0)
    plan = _uniform(game, horizon, "pigouvian", "anticipating", weights=weights)
    note = f"{charged} clients would be charged for sharing (c_i < 0); they are offered nothing"
    notes = (*plan.notes, note) if charged else plan.notes
    return replace(plan, prices=AlongLine(weights, np.zeros(game.num_clients)), notes=notes)


@mechanism(title="Personal prices", has_rate=False)
def personalised(game: Game, horizon: Horizon) -> Plan:
    """One price for each client, as cheap for the server as can be, and hard on clients (eq. 21).

    With floors above 0 it need not be the cheapest: a client gives its floor for nothing, but is paid here the price at
    which it would give that much of its own accord.
    """
    return _personal(game, horizon, "personalised")


@mechanism(title="Personal prices, secure sum", has_rate=False, trust="secure_sum", compared=False)
def personalised_secure_sum(game: Game, horizon: Horizon) -> Plan:
    """The cheapest price for each client where the server opens nothing but the sum: all are wanted (eq. 35)."""
    return _personal(game, horizon, "personalised_secure_sum")


def _personal(game: Game, horizon: Horizon, name: str) -> Plan:
    require_somebody(game)
    terms = _round_by_round(game, horizon, personal_budgets, lambda budgets: personal_prices(game, budgets))
    floors = int((game.clients.budget_min > 0).sum())
    note = f"{floors} clients give their budget_min above 0 for nothing; these prices make no use of that"
    return plan_from_rounds(name, terms, (note,) if floors else ())


def _round_by_round(
    game: Game, horizon: Horizon, budgets_of: Callable[..., Array], prices_of: Callable[[Array], Array]
) -> list[RoundTerms]:
    """Terms at prices that go with the budgets, which are found from those of the round before."""
    terms: list[RoundTerms] = []
    for round_index in horizon.rounds.tolist():
        budgets = budgets_of(game, round_index, terms[-1].budgets if terms else None)
        terms.append(_priced(round_index, prices_of(budgets), budgets))
    return terms


def _uniform(
    game: Game,
    horizon: Horizon,
    name: str,
    leader: UniformLeader,
    payment_limit: float | None = None,
    weights: Array | None = None,
) -> Plan:
    """A plan in which clients answer one rate, or prices that go with it, given or chosen by a leader."""
    rule: Any = {"participation": horizon.participation, "against": horizon.against}
    if horizon.reward_rates is not None:
        budgets = budgets_along(game, horizon.reward_rates, weights, **rule)
        return Plan(name, horizon.rounds, horizon.reward_rates, budgets, game.num_clients, **rule)
    plan = choose_rates(game, leader, horizon.rounds, payment_limit=payment_limit, weights=weights, **rule)
    return replace(plan, mechanism=name)


# ---- clients who do not -----------------------------------------------------------------------------------------


@mechanism(title="Social-agnostic", leader="anticipating")
def social_agnostic(game: Game, horizon: Horizon) -> Plan:
    """SA: everybody answers as if alone, ρ_i = (r − b_i)/(2a_i); its server expects just that."""
    return _uniform(blind(game), horizon, "social_agnostic", "anticipating")


def blind(game: Game) -> Game:
    """The game as clients see it who ignore what others reveal."""
    return replace(game, externality_strength=0.0)


@mechanism(title="Random budgets")
def random(game: Game, horizon: Horizon, *, low: float = 0.2, high: float = 1.8) -> Plan:
    """Budgets drawn uniformly between `low` and `high` times the mean social-agnostic budget of round 1."""
    if not 0 < low <= high < np.inf:
        raise BadInput(f"random budgets need 0 < low <= high, got low={low:g}, high={high:g}.")
    mean = _mean_agnostic_budget(game)
    low, high = low * mean, high * mean
    # reproducible per round: reading one does not change another
    streams = [np.random.default_rng([horizon.seed, int(t) - 1]) for t in horizon.rounds]
    drawn = np.array([stream.uniform(low, high, game.num_clients) for stream in streams])
    return _mandated(game, horizon, "random", drawn, f"budgets drawn from [{low:.4g}, {high:.4g}]")


@mechanism(title="DP-FedAvg", option="fixed_budget")
def dp_fedavg(game: Game, horizon: Horizon, *, fixed_budget: float | Literal["min", "mean"] = "min") -> Plan:
    """DP-FedAvg: one budget ρ_0 for all clients and rounds.

    "min" is the smallest budget of round 1 under MPPFL, the largest that nobody refuses; "mean" is the mean
    social-agnostic budget of round 1. The choice decides how this compares with MPPFL, so ρ_0 is in the plan's notes.
    """
    if fixed_budget == "min":
        first = _first_round(game).budgets
        size = float(first[first > 0].min())
    elif fixed_budget == "mean":
        size = _mean_agnostic_budget(game)
    elif isinstance(fixed_budget, str):
        raise BadInput(f'fixed budget={fixed_budget!r} must be "min", "mean" or a number above 0.')
    else:
        size = require_number(fixed_budget, "fixed budget", 0.0, LARGEST)
    note = f"fixed budget {size:.6g} ({fixed_budget})"
    return _mandated(game, horizon, "dp_fedavg", np.full((1, game.num_clients), size), note)


def _first_round(game: Game) -> RoundTerms:
    """MPPFL's terms of round 1, with everybody where that is possible: a yardstick must not fail.

    It is the same under every trust: who opens sums pays just enough for the last client to give next to nothing.
    """
    horizon, local = Horizon(np.array([1])), game.with_trust("local")
    try:
        return mppfl(local, horizon)[0]
    except NoEquilibrium:
        return mppfl(local, replace(horizon, participation="voluntary"))[0]


def _mean_agnostic_budget(game: Game) -> float:
    """Mean social-agnostic budget of round 1 at MPPFL's rate: the yardstick of `random` and `dp_fedavg`."""
    wishes = wanted_loss(game, _first_round(game).reward_rate)
    return float(np.clip(wishes, game.clients.budget_min, game.clients.budget_max).mean())


@mechanism(title="No noise", compared=False)
def noiseless(game: Game, horizon: Horizon) -> Plan:
    """Federated averaging without noise: the ceiling of accuracy. Nobody is protected, nobody is paid."""
    everybody = Stored(np.full((1, game.num_clients), np.inf), np.zeros(len(horizon.rounds), dtype=np.int64))
    return Plan("noiseless", horizon.rounds, np.zeros(len(horizon.rounds)), everybody, game.num_clients)


def _mandated(game: Game, horizon: Horizon, name: str, rows: Array, note: str) -> Plan:
    """Budgets that nobody chose, one row for each round or one for all, within everybody's bounds.

    The server's own rate is then the lowest at which no client that participates is worse off than at 0.
    """
    rows, notes = np.clip(rows, game.clients.budget_min, game.clients.budget_max), [note]
    row_of_round, rates = np.arange(len(horizon.rounds)) % len(rows), horizon.reward_rates
    if rates is None:
        costs = [privacy_cost(game, privacy_loss(game, row)) + game.clients.compute_cost for row in rows]
        covered = [(cost[row > 0] / row[row > 0]).max(initial=0.0) for cost, row in zip(costs, rows, strict=True)]
        rates = np.array(covered)[row_of_round]
        notes.append("own reward: the lowest rate that covers every client's cost")
    return Plan(name, horizon.rounds, rates, Stored(rows, row_of_round), game.num_clients, notes=tuple(notes))


# ---- one hop only -----------------------------------------------------------------------------------------------


@mechanism(title="SARDA-like auction", has_rate=False)
def sarda_like(game: Game, horizon: Horizon) -> Plan:
    """An iterative double auction over one-hop exposure (model, eq. 30), after Sun et al. 2024 as far as is public.

    Price-taking clients ask for the harm they cause and suffer; one sweep ρ ← √(q/B₁ᵀ(2AB₁ρ + b)), held within bounds,
    contracts by at most a half in the log-sup metric, so the limit is unique: the one-hop welfare optimum within them.
    Who may not share is not bid for and exposes nobody; what it suffers counts, but plans pay by budgets, so not it.
    """
    near = one_hop(game)

    def prices_of(budgets: Array) -> Array:
        """Own price times budget, and amends for harm by neighbours, per unit of budget."""
        losses = near.loss @ budgets
        received = (2 * game.clients.quadratic_cost * losses + game.clients.linear_cost) * losses
        return np.divide(received, budgets, out=np.zeros_like(budgets), where=budgets > 0)

    terms = _round_by_round(near, horizon, auction_budgets, prices_of)
    return plan_from_rounds("sarda_like", terms, ("prices come from the auction, not from a common reward rate",))


@mechanism(title="SARDA-r")
def sarda_r(game: Game, horizon: Horizon) -> Plan:
    """The one-hop client-welfare optimum at the common reward rate; own rates anticipate that answer."""
    require_somebody(game)
    society = society_of(one_hop(game))
    rates, size = horizon.reward_rates, game.num_clients
    if rates is not None:
        return Plan("sarda_r", horizon.rounds, rates, answers_along(society, rates), size)
    rules: dict[Participation, tuple[str, ...]] = {"voluntary": ()}
    if horizon.participation == "everyone":
        rules = {"everyone": (), "voluntary": ("the optimum of all leaves some out at every rate",)}
    for rule, notes in rules.items():
        with suppress(NoEquilibrium):
            answers = Answers(society, rule, paid=np.ones(size))
            chosen = answers.choose("anticipating", horizon.rounds, np.inf)
            return Plan("sarda_r", horizon.rounds, chosen.reward_rates, chosen.budgets, size, notes=notes)
    raise NoEquilibrium("no reward rate makes it best for all clients together that anybody participates.")


def one_hop(game: Game) -> Game:
    """The same game in which exposure stops at direct neighbours: B₁ = I + αW."""
    wide = game.propagation
    zeros = np.zeros(game.num_clients)
    near = Propagation(wide.influence, 1, wide.hop_decay, ClosedWalks(zeros, zeros, 1), wide.normalisation)
    return replace(game, propagation=near)


def personal_prices(game: Game, budgets: Array) -> Array:
    """p = 2ABρ + b: the price at which each client's budget is its best response; 0 for those who opt out (eq. 21).

    It is the only such price inside the bounds, the lowest at budget_max, the highest at budget_min.
    """
    prices = 2 * game.clients.quadratic_cost * (game.loss @ budgets) + game.clients.linear_cost
    return np.where(budgets > 0, prices, 0.0)


# ---- by name ----------------------------------------------------------------------------------------------------

_USUAL = (mppfl, mppfl_exact, mppfl_noise_aware, social_agnostic, random, dp_fedavg, sarda_like, sarda_r)
_SPECIAL = (budget_limited, pigouvian, personalised, noiseless, mppfl_secure_sum, personalised_secure_sum)
MECHANISMS: dict[str, Mechanism] = {record.name: record for record in (*_USUAL, *_SPECIAL)}
