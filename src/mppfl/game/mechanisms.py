"""Mechanisms to compare. Each is a function, a game and a horizon in, a plan out, and its record. Yours can be one too.

With `horizon.reward_rates` set, every mechanism faces those rates (the common-reward comparison); without, its own
server sets them. Exposure happens to everybody alike: whoever ignores it still suffers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize

from mppfl.arrays import Array, IntArray, require_number
from mppfl.errors import BadInput, MppflError
from mppfl.game.equilibrium import equilibria_at, equilibrium_at, equilibrium_response, waking_rates
from mppfl.game.leaders import (
    UniformLeader,
    choose_rates,
    in_units,
    interior_rates_each,
    natural_units,
    pigouvian_weights,
    require_somebody,
)
from mppfl.game.model import LARGEST, Game, cost_without_absent, privacy_cost, privacy_loss, wanted_loss
from mppfl.game.plan import (
    AlongLine,
    Horizon,
    PerRound,
    Plan,
    RandomBudgets,
    RoundTerms,
    Stored,
    Within,
    as_numbers,
    check_plan,
    plan_from_rounds,
)
from mppfl.game.welfare import SocialOptima
from mppfl.network import ClosedWalks, Propagation
from mppfl.text import nearest

NUM_TRIED = 48
REFINED = 8  # times, each around the best rates so far: to about 1e-4 of a rate
AUCTION_TOLERANCE = 1e-12
AT_A_BOUND = "some clients are at a bound of their budgets"
LEAST_BUDGET = 1e-3  # SARDA-r's floor: an optimum at 0 would leave the server with infinite noise


@dataclass(frozen=True, eq=False)
class MayLeave(Horizon):
    """A horizon in which clients may opt out: a floor then binds only those who stay, and no leader counts on it."""


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A pricing mechanism: a function from a game and a horizon to a plan, and all there is to know about it.

    Args:
        function: (game, horizon, **options) -> plan.
        name: by which commands and files call it; the function's own unless given.
        title: its name for people.
        summary: what it does, in one line.
        leader: the leader whose reward rate it pays; None without one.
        option: the keyword of the function that a user may set, a field of GameSpec by the same name.
        needs_option: whether it has no default.
        has_rate: False where prices are its own whatever rates are given.
        only_rate_differs: whether it is mppfl but for the rate, so that common rates leave nothing of it.
        compared: whether `compare` takes it unless told otherwise.
        options: values bound to the function.

    Example:
        >>> import mppfl
        >>> from mppfl.game import find_mechanism
        >>> find_mechanism("budget_limited").with_options(payment_limit=2.0).options
        {'payment_limit': 2.0}
    """

    function: Callable[..., Plan]
    name: str = ""
    title: str = ""
    summary: str = ""
    leader: UniformLeader | None = None
    option: str | None = None
    needs_option: bool = False
    has_rate: bool = True
    only_rate_differs: bool = False
    compared: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = self.name or str(getattr(self.plain, "__name__", type(self.plain).__name__))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "title", self.title or name)

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

    def __call__(self, game: Game, horizon: Horizon) -> Plan:
        """The plan, checked: whoever wrote the function may have forgotten a round, a client or a bound."""
        try:
            plan = self.function(game, horizon, **self.options)
        except (MppflError, MemoryError):
            raise
        except Exception as cause:  # somebody else's code can fail in any way
            raise BadInput(_failed(self, cause)) from cause
        return check_plan(plan, game, horizon, self.name)


def mechanism(**facts: Any) -> Callable[[Callable[..., Plan]], Mechanism]:
    """A decorator that makes a function a Mechanism with these facts.

    Example:
        >>> import numpy as np, mppfl
        >>> from mppfl.game import mechanism, respond
        >>> @mechanism(title="Twice the paper's prices")
        ... def doubled(game, horizon):
        ...     terms = [respond(game, 2 * t.reward_rate, t.round_index) for t in mppfl.solve(game).plan]
        ...     return mppfl.plan_from_rounds("doubled", terms)
        >>> doubled.name, doubled.title
        ('doubled', "Twice the paper's prices")
    """
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
    try:
        return find_mechanism(given)
    except MppflError:
        raise
    except Exception as cause:  # importing somebody else's module can fail in any way
        raise BadInput(_unloadable(given, cause)) from cause


def _unloadable(name: str, cause: Exception) -> str:
    points = [point for point in metadata.entry_points(group="mppfl.mechanisms") if point.name == name]
    owner = getattr(getattr(points[-1], "dist", None), "name", "an unknown package") if points else "no package"
    value = points[-1].value if points else "nothing"
    return (
        f"mechanism={name!r} of {owner} ({value}) cannot be loaded: {type(cause).__name__}: {cause}. "
        "Repair or remove that package."
    )


def _failed(mechanism: Mechanism, cause: Exception) -> str:
    """What to say of a mechanism that broke down: whose it is, and what it raised."""
    plain, called = mechanism.plain, mechanism.name
    kind = plain if hasattr(plain, "__qualname__") else type(plain)
    module, address = kind.__module__, f"{kind.__module__}:{kind.__qualname__}"
    offered = [
        point for point in metadata.entry_points(group="mppfl.mechanisms") if point.value.partition(":")[0] == module
    ]
    for point in offered:
        called = point.name if point.value == address else called
    owner = getattr(getattr(offered[-1], "dist", None), "name", "an unknown package") if offered else None
    whose, remedy = (f" of {owner}", "Repair or remove that package.") if owner else ("", "Repair that function.")
    return f"mechanism={called!r}{whose} ({address}) failed: {type(cause).__name__}: {cause}. {remedy}"


def respond(game: Game, prices: Array | float, round_index: int = 1, start: Array | None = None) -> RoundTerms:
    """Terms of a round at given prices: every client answers with its equilibrium budget within its bounds.

    Args:
        game: the game.
        prices: money per unit of budget, one for everybody or one each: any mechanism's.
        round_index: the round that the terms are for.
        start: budgets near the answer, where they are at hand.

    Returns:
        The prices and the clients' answer; the reward rate is the mean price, weighted by budgets.

    Raises:
        NotConverged: the equilibrium was not found (possible only where αS is 1 or more).

    Example:
        >>> import mppfl
        >>> from mppfl.game import respond
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 1.0], 0.0, 0.1), max_hops=1, externality_strength=0.5)
        >>> respond(game, [3.0, 3.0]).budgets.round(12).tolist()
        [1.0, 1.0]
    """
    paid = as_numbers(prices, "prices")
    budgets = equilibrium_at(game, paid, start).budgets
    return RoundTerms(round_index, _mean_price(paid, budgets), paid if paid.ndim else float(paid), budgets)


def _mean_price(prices: Array, budgets: Array) -> float:
    total = float(budgets.sum())
    return float((prices * budgets).sum()) / total if total > 0 else float(np.mean(prices))


# ---- clients who know the network -------------------------------------------------------------------------------


@mechanism(
    title="MPPFL",
    summary="equilibrium budgets; the server takes exposure as it stands",
    leader="mean_field",
    compared=True,
)
def mppfl(game: Game, horizon: Horizon) -> Plan:
    """The paper's mechanism: equilibrium budgets, and a server that takes external risk as it stands (eq. 16)."""
    return _uniform(game, horizon, "mppfl", "mean_field")


@mechanism(
    title="MPPFL, exact leader",
    summary="the server knows how exposure moves with its rate",
    leader="anticipating",
    only_rate_differs=True,
    compared=True,
)
def mppfl_exact(game: Game, horizon: Horizon) -> Plan:
    """The exact Stackelberg equilibrium: the server knows how exposure moves with its rate (eq. 17)."""
    return _uniform(game, horizon, "mppfl_exact", "anticipating")


@mechanism(
    title="MPPFL, noise-aware",
    summary="the server weighs uploads by their noise",
    leader="noise_aware",
    only_rate_differs=True,
    compared=True,
)
def mppfl_noise_aware(game: Game, horizon: Horizon) -> Plan:
    """The server aggregates noise-aware, so no single small budget can drive its rate up (eq. 18)."""
    return _uniform(game, horizon, "mppfl_noise_aware", "noise_aware")


@mechanism(
    title="MPPFL, limited payments",
    summary="the server spends at most a limit in a round",
    leader="budget_limited",
    option="payment_limit",
    needs_option=True,
    only_rate_differs=True,
)
def budget_limited(game: Game, horizon: Horizon, *, payment_limit: float = 1.0) -> Plan:
    """The server spends at most `payment_limit` in a round (eq. 19)."""
    require_number(payment_limit, "payment_limit", 0.0, np.inf)
    return _uniform(game, horizon, "budget_limited", "budget_limited", payment_limit)


@mechanism(
    title="Pigouvian prices",
    summary="personal prices at which clients do what is best for all",
    leader="anticipating",
    compared=True,
)
def pigouvian(game: Game, horizon: Horizon) -> Plan:
    """Personal prices r·c_i that make everybody do what all together would want (eq. 20).

    A client that harms others more than it earns has c_i < 0; it is offered nothing instead of being charged.
    """
    weights, notes = offered_weights(game)
    plan = _uniform(game, horizon, "pigouvian", "anticipating", weights=weights)
    return replace(plan, prices=AlongLine(weights, np.zeros(game.num_clients)), notes=plan.notes + notes)


def offered_weights(game: Game) -> tuple[Array, tuple[str, ...]]:
    """Pigouvian prices per unit of rate, none below 0, and a note on those who would be charged."""
    weights = pigouvian_weights(game)
    charged = int((weights < 0).sum())
    notes = (f"{charged} clients would be charged for sharing (c_i < 0); they are offered nothing",) if charged else ()
    return np.maximum(weights, 0.0), notes


@mechanism(
    title="Personal prices", summary="one price for each client, cheapest for the server", has_rate=False, compared=True
)
def personalised(game: Game, horizon: Horizon) -> Plan:
    """One price for each client, as cheap for the server as can be, and hard on clients (eq. 21).

    With floors above 0 it need not be the cheapest: a client gives its floor for nothing, but is paid here the price at
    which it would give that much of its own accord.
    """
    terms = []
    budgets: Array | None = None
    for round_index in horizon.rounds:
        budgets = personalised_budgets(game, int(round_index), budgets)
        terms.append(_priced(int(round_index), personalised_prices(game, budgets), budgets))
    floors = int((game.clients.budget_min > 0).sum())
    note = f"{floors} clients give their budget_min above 0 for nothing; these prices make no use of that"
    return plan_from_rounds("personalised", terms, (note,) if floors else ())


def _uniform(
    game: Game,
    horizon: Horizon,
    name: str,
    leader: UniformLeader,
    payment_limit: float | None = None,
    weights: Array | None = None,
) -> Plan:
    if horizon.reward_rates is not None:
        budgets = equilibrium_along(game, horizon.reward_rates, weights)
        return Plan(name, horizon.rounds, horizon.reward_rates, budgets, game.num_clients)
    may_leave = isinstance(horizon, MayLeave)
    chosen = choose_rates(
        game, leader, horizon.rounds, payment_limit=payment_limit, weights=weights, may_leave=may_leave
    )
    notes = (AT_A_BOUND,) if chosen.reaches_bounds else ()
    return Plan(name, horizon.rounds, chosen.reward_rates, chosen.budgets, game.num_clients, notes=notes)


def equilibrium_along(game: Game, reward_rates: Array, weights: Array | None = None) -> PerRound:
    """Equilibrium budgets at given rates: the line where all of them are inside the bounds, else one by one."""
    line = equilibrium_response(game, weights)
    if ((reward_rates > line.lowest_rate) & (reward_rates < line.highest_rate)).all():
        return AlongLine(line.slope, line.offset)
    distinct, rows = np.unique(reward_rates, return_inverse=True)
    return Stored(equilibria_at(game, line.weights, distinct), rows)


# ---- clients who do not -----------------------------------------------------------------------------------------


@mechanism(title="Social-agnostic", summary="clients ignore what others reveal", leader="anticipating", compared=True)
def social_agnostic(game: Game, horizon: Horizon) -> Plan:
    """SA: everybody answers as if alone, ρ_i = (r − b_i)/(2a_i); its server expects just that."""
    blind = replace(game, externality_strength=0.0)
    return replace(_uniform(blind, horizon, "social_agnostic", "anticipating"), mechanism="social_agnostic")


@mechanism(title="Random budgets", summary="budgets drawn at random", compared=True)
def random(game: Game, horizon: Horizon, *, low: float = 0.2, high: float = 1.8) -> Plan:
    """Budgets drawn uniformly between `low` and `high` times the mean social-agnostic budget of round 1."""
    if not 0 < low <= high < np.inf:
        raise BadInput(f"random budgets need 0 < low <= high, got low={low:g}, high={high:g}.")
    mean = mean_agnostic_budget(game)
    drawn = RandomBudgets(horizon.rounds, game.num_clients, low * mean, high * mean, horizon.seed)
    return _mandated(game, horizon, "random", drawn, (f"budgets drawn from [{low * mean:.4g}, {high * mean:.4g}]",))


@mechanism(title="DP-FedAvg", summary="one budget for all clients and rounds", option="fixed_budget", compared=True)
def dp_fedavg(game: Game, horizon: Horizon, *, fixed_budget: float | Literal["min", "mean"] = "min") -> Plan:
    """DP-FedAvg: one budget ρ_0 for all clients and rounds.

    "min" is the smallest budget of round 1 under MPPFL, the largest that nobody refuses; "mean" is the mean
    social-agnostic budget of round 1. The choice decides how this compares with MPPFL, so ρ_0 is in the plan's notes.
    """
    if fixed_budget == "min":
        first = mppfl(game, Horizon(np.array([1])))[0].budgets
        size = float(first[first > 0].min())
    elif fixed_budget == "mean":
        size = mean_agnostic_budget(game)
    elif isinstance(fixed_budget, str):
        raise BadInput(f'fixed budget={fixed_budget!r} must be "min", "mean" or a number above 0.')
    else:
        size = require_number(fixed_budget, "fixed budget", 0.0, LARGEST)
    everybody = Stored(np.full((1, game.num_clients), size), np.zeros(len(horizon.rounds), dtype=np.int64))
    return _mandated(game, horizon, "dp_fedavg", everybody, (f"fixed budget {size:.6g} ({fixed_budget})",))


def mean_agnostic_budget(game: Game) -> float:
    """Mean social-agnostic budget of round 1 at MPPFL's rate: the yardstick of `random` and `dp_fedavg`."""
    rate = float(mppfl(game, Horizon(np.array([1]))).reward_rates[0])
    return float(np.clip(wanted_loss(game, rate), game.clients.budget_min, game.clients.budget_max).mean())


@mechanism(title="No noise", summary="federated averaging without privacy")
def noiseless(game: Game, horizon: Horizon) -> Plan:
    """Federated averaging without noise: the ceiling of accuracy. Nobody is protected, nobody is paid."""
    everybody = Stored(np.full((1, game.num_clients), np.inf), np.zeros(len(horizon.rounds), dtype=np.int64))
    return Plan("noiseless", horizon.rounds, np.zeros(len(horizon.rounds)), everybody, game.num_clients)


def _mandated(game: Game, horizon: Horizon, name: str, budgets: PerRound, notes: tuple[str, ...]) -> Plan:
    """Budgets that nobody chose, within everybody's bounds.

    The server's own rate is then the lowest at which no client that participates is worse off than at 0.
    """
    rates = horizon.reward_rates
    budgets = Within(budgets, game.clients.budget_min, game.clients.budget_max)
    if rates is None:
        rates = np.array([_covering_rate(game, budgets.at(k, 0.0)) for k in range(len(horizon.rounds))])
        notes = (*notes, "own reward: the lowest rate that covers every client's cost")
    return Plan(name, horizon.rounds, rates, budgets, game.num_clients, notes=notes)


def _covering_rate(game: Game, budgets: Array) -> float:
    part = budgets > 0
    costs = privacy_cost(game, privacy_loss(game, budgets)) + game.clients.compute_cost
    return float((costs[part] / budgets[part]).max(initial=0.0))


# ---- one hop only -----------------------------------------------------------------------------------------------


@mechanism(title="SARDA-like auction", summary="double auction over one-hop exposure", has_rate=False, compared=True)
def sarda_like(game: Game, horizon: Horizon) -> Plan:
    """An iterative double auction over one-hop exposure (model, eq. 30), after Sun et al. 2024 as far as is public.

    Price-taking clients ask for the harm they cause and suffer; one sweep ρ ← √(q/B₁ᵀ(2AB₁ρ + b)), held within bounds,
    contracts by at most a half in the log-sup metric, so the limit is unique: the one-hop welfare optimum within them.
    Who may not share is not bid for and exposes nobody; what it suffers counts, but plans pay by budgets, so not it.
    """
    near = one_hop(game)
    strength = game.accuracy_weight / (1 - game.accuracy_weight)
    terms = []
    budgets = np.ones(game.num_clients)
    for round_index in horizon.rounds:
        bids = strength * game.clients.noise_harm / int(round_index)  # q_i: the server's value of less noise
        budgets = _auction(near, bids, budgets)
        losses = near.loss @ budgets
        # own price times budget, and amends for harm by neighbours
        received = (2 * game.clients.quadratic_cost * losses + game.clients.linear_cost) * losses
        prices = np.divide(received, budgets, out=np.zeros_like(budgets), where=budgets > 0)
        terms.append(_priced(int(round_index), prices, budgets))
    return plan_from_rounds("sarda_like", terms, ("prices come from the auction, not from a common reward rate",))


def _auction(near: Game, bids: Array, start: Array) -> Array:
    """Budgets within bounds at which bids meet asks. Bounds hold in every sweep: neighbours answer what is given."""
    clients, loss = near.clients, near.loss
    low, high = clients.budget_min, clients.budget_max
    bidding = (high > 0) & (bids > 0)
    budgets = np.where(bidding, np.clip(start, low, high), low)
    for _ in range(200):
        asked = loss.T @ (2 * clients.quadratic_cost * (loss @ budgets) + clients.linear_cost)
        bid_for = np.sqrt(np.divide(bids, asked, out=np.zeros_like(bids), where=bidding))
        before, budgets = budgets, np.clip(bid_for, low, high)
        if np.abs(np.log(budgets[bidding] / before[bidding])).max(initial=0.0) < AUCTION_TOLERANCE:
            break
    return budgets


@mechanism(title="SARDA-r", summary="one-hop welfare optimum at the reward rate", compared=True)
def sarda_r(game: Game, horizon: Horizon) -> Plan:
    """The one-hop client-welfare optimum at the common reward rate; own rates anticipate that answer."""
    near = one_hop(game)
    weights = pigouvian_weights(near)
    floor = np.minimum(np.maximum(game.clients.budget_min, LEAST_BUDGET), game.clients.budget_max)
    rates = horizon.reward_rates
    if rates is None:
        require_somebody(game)
        rates = rates_for_optima(near.with_bounds(floor, game.clients.budget_max), weights, horizon.rounds)
    line = equilibrium_response(near, weights)
    ends = np.array([line.budgets(float(rate)) for rate in (rates.min(), rates.max())])
    if ((ends >= floor) & (ends <= game.clients.budget_max) & line.free).all():
        return Plan("sarda_r", horizon.rounds, rates, AlongLine(line.slope, line.offset), game.num_clients)
    bounded = near.with_bounds(floor, game.clients.budget_max)
    distinct, rows = np.unique(rates, return_inverse=True)
    optima = SocialOptima(bounded, weights)
    budgets = np.array([optima.at(float(rate)).budgets for rate in distinct])
    return Plan("sarda_r", horizon.rounds, rates, Stored(budgets, rows), game.num_clients)


def one_hop(game: Game) -> Game:
    """The same game in which exposure stops at direct neighbours: B₁ = I + αW."""
    wide = game.propagation
    zeros = np.zeros(game.num_clients)
    near = Propagation(wide.influence, 1, wide.hop_decay, ClosedWalks(zeros, zeros, 1), wide.normalisation)
    return replace(game, propagation=near)


def _priced(round_index: int, prices: Array, budgets: Array) -> RoundTerms:
    return RoundTerms(round_index, _mean_price(prices, budgets) if budgets.any() else 0.0, prices, budgets)


# ---- one price for each client: the budgets that are cheapest for the server, and the prices for them ----------------


def personalised_budgets(game: Game, round_index: int, start: Array | None = None) -> Array:
    """Budgets that minimise τ/t Σε/ρ + (1−τ) ρᵀ(2ABρ + b): the cheapest a server can do with one price each (eq. 21)
    where every budget_min is 0.

    A client gets the price 2a_i(Bρ)_i + b_i at which its budget is its best response; at a floor above 0 any lower
    price would do as well, which this cost does not know. On small networks where
    AB + BᵀA is positive definite, compiled Newton's steps within the bounds; else `personalised_plainly`.
    """
    require_somebody(game)
    clients = game.clients
    value = game.accuracy_weight / (1 - game.accuracy_weight) * clients.noise_harm / round_index
    alone = np.sqrt(value / (clients.linear_cost + clients.quadratic_cost))
    first = alone if start is None else np.where(start > 0, start, alone)
    if game.loss.is_dense:
        budgets = personalised_compiled(game, round_index, first)
        if budgets is not None:
            return budgets
    return personalised_plainly(game, round_index, first)


def personalised_compiled(game: Game, round_index: int, first: Array) -> Array | None:
    """The one minimum of a convex cost, to 1e-13 of it; None where the cost is not convex or the steps fail."""
    from mppfl.game import _kernels as kernels

    clients = game.clients
    matrix, is_convex = game.loss.weighed_both_ways(clients.quadratic_cost)
    if not is_convex:
        return None
    able = clients.budget_max > 0
    part = np.flatnonzero(able)
    cheapest, settled = kernels.cheapest_budgets(
        matrix if able.all() else matrix[np.ix_(part, part)],
        clients.linear_cost[part],
        game.accuracy_weight * clients.noise_harm[part] / round_index,
        1 - game.accuracy_weight,
        clients.budget_min[part],
        clients.budget_max[part],
        first[part],
    )
    if not settled:
        return None
    budgets = np.zeros(game.num_clients)
    budgets[part] = cheapest
    return budgets


def personalised_plainly(game: Game, round_index: int, first: Array) -> Array:
    """Newton's steps on small networks; where bounds are reached, or on large ones, a quasi-Newton search over log
    budgets, which is good to about 1e-7.
    """
    clients = game.clients
    able = clients.budget_max > 0
    if game.loss.is_dense:
        budgets = _personalised_by_newton(game, round_index, np.where(able, first, 0.0))
        if budgets is not None and ((budgets >= clients.budget_min) & (budgets <= clients.budget_max)).all():
            return budgets
    return _personalised_by_search(game, round_index, first)


def _personalised_slope(game: Game, round_index: int, budgets: Array) -> tuple[float, Array]:
    """The server's cost with personal prices, and its gradient."""
    clients, pay = game.clients, 1 - game.accuracy_weight
    harm = game.accuracy_weight * clients.noise_harm / round_index
    prices = 2 * clients.quadratic_cost * (game.loss @ budgets) + clients.linear_cost
    spill = game.loss.T @ (2 * clients.quadratic_cost * budgets)
    part = budgets > 0
    noise = np.divide(harm, budgets, out=np.zeros_like(budgets), where=part)
    steep = np.divide(harm, budgets**2, out=np.zeros_like(budgets), where=part)
    return float(noise.sum() + pay * (prices @ budgets)), pay * (prices + spill) - steep


def _personalised_by_newton(game: Game, round_index: int, start: Array) -> Array | None:
    """The minimum over those with a positive start, the others staying at 0; None if Newton's steps fail."""
    able = start > 0
    harm = game.accuracy_weight * game.clients.noise_harm[able] / round_index
    scaled = game.clients.quadratic_cost[:, None] * game.loss.dense
    curve = (2 * (1 - game.accuracy_weight) * (scaled + scaled.T))[np.ix_(able, able)]
    budgets = start.copy()
    for _ in range(60):
        cost, slope = _personalised_slope(game, round_index, budgets)
        if np.abs(slope * budgets).max() <= 1e-13 * cost:
            return budgets
        step = np.zeros_like(budgets)
        try:
            step[able] = -np.linalg.solve(curve + np.diag(2 * harm / budgets[able] ** 3), slope[able])
        except np.linalg.LinAlgError:
            return None
        length = min(1.0, 0.9 / max(1e-300, float((-step[able] / budgets[able]).max())))  # stay positive
        while length > 1e-6 and _personalised_slope(game, round_index, budgets + length * step)[0] > cost * (1 + 1e-15):
            length *= 0.5
        budgets = budgets + length * step
    return budgets if np.abs(slope * budgets).max() <= 1e-9 * cost else None


def _personalised_by_search(game: Game, round_index: int, start: Array) -> Array:
    clients = game.clients
    able = clients.budget_max > 0

    def cost_and_slope(logs: Array) -> tuple[float, Array]:
        budgets = np.zeros(game.num_clients)
        budgets[able] = np.exp(logs)
        cost, slope = _personalised_slope(game, round_index, budgets)
        return cost, (slope * budgets)[able]

    with np.errstate(divide="ignore"):
        low, high = np.log(clients.budget_min[able]), np.log(clients.budget_max[able])
        first = np.clip(np.log(start[able]), -60.0, 60.0)
    bounds = np.column_stack([np.maximum(low, -60.0), np.minimum(high, 60.0)])
    options = {"maxiter": 3000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-11, "maxcor": 20}
    minimum = minimize(cost_and_slope, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    budgets = np.zeros(game.num_clients)
    budgets[able] = np.exp(minimum.x)
    return budgets


def personalised_prices(game: Game, budgets: Array) -> Array:
    """p = 2ABρ + b: the price at which each client's budget is its best response; 0 for those who opt out (eq. 21).

    It is the only such price inside the bounds, the lowest at budget_max, the highest at budget_min.
    """
    prices = 2 * game.clients.quadratic_cost * (game.loss @ budgets) + game.clients.linear_cost
    return np.where(budgets > 0, prices, 0.0)


# ---- the rate of a server whose clients answer with what is best for all of them (SARDA-r) ---------------------------

# It pays everybody the same rate, so its cost counts Σrρ, although the answer is that to personal prices r·c.


def rates_for_optima(game: Game, weights: Array, rounds: IntArray) -> Array:
    """The cheapest rate of every round, where clients answer with the welfare optimum within their bounds.

    Where that keeps everybody inside, the root of its condition; else, or if it costs less, the best of sampled rates.
    """
    units = natural_units(game)
    game = in_units(game, units)
    line = equilibrium_response(game, weights)
    rates = np.full(len(rounds), np.nan)
    if line.free.all():  # else the line holds some where they are, which is no optimum of the others
        rates = interior_rates_each(game, replace(line, weights=np.ones(game.num_clients)), "anticipating", rounds)
    optima = SocialOptima(game, weights)
    open_rounds = np.isnan(rates)
    if np.isfinite(game.clients.budget_max).any():  # with some at their ceilings a higher rate may cost less
        open_rounds[:] = True
    if open_rounds.any():
        tried = _best_of_tried(game, optima, weights, rounds[open_rounds])
        rates[open_rounds] = _cheaper(game, optima, rounds[open_rounds], rates[open_rounds], tried)
    return rates * units.rate


def _cheaper(game: Game, optima: SocialOptima, rounds: IntArray, inside: Array, tried: Array) -> Array:
    """The root inside the bounds, where there is one, unless the other rate costs less."""
    chosen = tried.copy()
    for k in np.flatnonzero(~np.isnan(inside)):
        costs = _costs(game, optima, rounds[k : k + 1], np.array([inside[k], tried[k]]))[0]
        chosen[k] = inside[k] if costs[0] <= costs[1] else tried[k]
    return chosen


def _best_of_tried(game: Game, optima: SocialOptima, weights: Array, rounds: IntArray) -> Array:
    low, high = waking_rates(game, np.maximum(weights, 0.0))
    rates = np.geomspace(max(low, 1e-3 * high, 1e-6), 8 * max(high, 1e-6), NUM_TRIED)
    costs = _costs(game, optima, rounds, rates)
    for _ in range(REFINED):
        best = np.unique(costs.argmin(axis=1))
        near = np.unique(np.clip(np.concatenate([best - 1, best]), 0, len(rates) - 2))
        between = np.sqrt(rates[near] * rates[near + 1])
        order = np.argsort(np.concatenate([rates, between]), kind="stable")
        rates = np.concatenate([rates, between])[order]
        costs = np.concatenate([costs, _costs(game, optima, rounds, between)], axis=1)[:, order]
    return np.asarray(rates[costs.argmin(axis=1)])


def _costs(game: Game, optima: SocialOptima, rounds: IntArray, rates: Array) -> Array:
    """The server's cost in every round at every rate, [rounds, rates]."""
    answers = [optima.at(float(rate)).budgets for rate in rates]
    pairs = list(zip(rates.tolist(), answers, strict=True))
    return np.array([[cost_without_absent(game, int(t), rate, budgets) for rate, budgets in pairs] for t in rounds])


# ---- by name ----------------------------------------------------------------------------------------------------

MECHANISMS: dict[str, Mechanism] = {
    record.name: record
    for record in (
        mppfl,
        mppfl_exact,
        mppfl_noise_aware,
        social_agnostic,
        random,
        dp_fedavg,
        sarda_like,
        sarda_r,
        budget_limited,
        pigouvian,
        personalised,
        noiseless,
    )
}


def find_mechanism(name: str) -> Mechanism:
    """A mechanism by name: ours, or one that an installed package offers under the entry point `mppfl.mechanisms`."""
    if name in MECHANISMS:
        return MECHANISMS[name]
    offered = {point.name: point for point in metadata.entry_points(group="mppfl.mechanisms")}
    if name in offered:
        loaded = offered[name].load()
        return loaded if isinstance(loaded, Mechanism) else Mechanism(loaded, name)
    near = nearest(name, [*MECHANISMS, *offered])
    hint = f" Did you mean {near!r}?" if near else ""
    raise BadInput(f"mechanism={name!r} is not known.{hint} Known: {', '.join([*MECHANISMS, *offered])}.")
