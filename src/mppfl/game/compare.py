"""compare: mechanisms side by side, under a common reward and under each server's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from typing import Any, Literal, overload

import numpy as np

from mppfl.arrays import Array, require_count
from mppfl.errors import BadInput, NoEquilibrium
from mppfl.fields import defaults_of, require_known
from mppfl.game.leader import noise_aware_cost
from mppfl.game.mechanisms import MECHANISMS, Mechanism, as_mechanism
from mppfl.game.model import Game
from mppfl.game.outcome import evaluate
from mppfl.game.plan import Against, Horizon, Participation, Plan, rounds_up_to
from mppfl.game.solve import doubts_about
from mppfl.game.welfare import SocialOptima, price_of_anarchy
from mppfl.spec import GameSpec
from mppfl.text import Tabular, lines_of

Convention = Literal["common", "own"]
CONVENTIONS: tuple[Convention, ...] = ("common", "own")

COMPARED = tuple(name for name, record in MECHANISMS.items() if record.compared)


@dataclass(frozen=True, eq=False)
class Row:
    """One mechanism under one reward convention in one game, summed over its rounds. Money, unless said.

    server_cost       Σ_t U_t (eq. 9)
    noise_aware_cost  the same with noise on every upload and noise-aware aggregation (eq. 18)
    welfare           Σ_t Σ_i (paid − privacy cost)
    total_welfare     clients and server together
    price_of_anarchy  optimal welfare at the same rates over welfare; None where it was not asked for, prices are
                      personal, or welfare is not positive
    negative_utility        share of clients with negative utility, mean over rounds
    participating       share of clients with a positive budget, mean over rounds
    mean_budget       mean budget of a client in a round
    notes             what the plan says of itself, and whether the game's equilibrium may not be the only one
    leak              what `leak` says of the first round's budgets, nats; None where it was not asked for, or budgets
                      have no limit
    """

    mechanism: str
    convention: Convention
    game: int
    server_cost: float = np.nan
    noise_aware_cost: float = np.nan
    payments: float = np.nan
    welfare: float = np.nan
    total_welfare: float = np.nan
    price_of_anarchy: float | None = None
    negative_utility: float = np.nan
    participating: float = np.nan
    mean_budget: float = np.nan
    notes: tuple[str, ...] = ()
    leak: float | None = None


class Comparison(Sequence[Row], Tabular):
    """Rows of a comparison: a sequence, a table in notebooks, and a pandas.DataFrame."""

    def __init__(self, rows: Iterable[Row] = (), swept: str = "", settings: Sequence[Any] = ()) -> None:
        self.rows, self.swept, self.settings = tuple(rows), swept, tuple(settings)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Comparison: ...
    def __getitem__(self, index: int | slice) -> Row | Comparison:
        if isinstance(index, slice):
            return Comparison(self.rows[index], self.swept, self.settings[index])
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def _columns(self) -> dict[str, list[Any]]:
        """One row per mechanism, convention and game."""
        columns = {f.name: [getattr(row, f.name) for row in self.rows] for f in fields(Row) if f.name != "notes"}
        return {self.swept: list(self.settings)} | columns if self.swept else columns

    def __repr__(self) -> str:
        facts = {f"{row.mechanism}, {row.convention}": f"cost {row.server_cost:.4g}" for row in self.rows[:10]}
        return lines_of(f"Comparison of {len(self.rows)} rows, server cost of the first", facts)


def compare(
    games: Game | Sequence[Game],
    mechanisms: Sequence[str | Mechanism] | Mapping[str, Mechanism] = COMPARED,
    *,
    num_rounds: int = 60,
    fixed_budget: float | Literal["min", "mean"] = "min",
    conventions: Sequence[Convention] = CONVENTIONS,
    participation: Participation = "everyone",
    against: Against = "staying_out",
    seed: int = 0,
    optimum: bool = False,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    leak: Callable[[Array], float] | None = None,
) -> Comparison:
    """Every mechanism in every game under both reward conventions: a row each.

    A row has no numbers, and the reason in its notes, where the participation rule allows a mechanism no rate.

    Args:
        games: one game or several.
        mechanisms: names and functions, or a mapping from names to functions; plans of functions that are not ours are
            checked.
        num_rounds: how many rounds each.
        fixed_budget: of `dp_fedavg`.
        conventions: "common", where everybody faces MPPFL's reward rates and mechanisms that differ from it in the rate
            alone are left out; "own", where each mechanism's server sets its own.
        participation, against: the rule by which clients participate, as in `solve`.
        seed: for mechanisms that draw at random.
        optimum: whether rows carry the price of anarchy, which needs the social optimum of every round: it may take
            longer than everything else.
        workers: processes among which the games are divided; mechanisms and `leak` must then be known to all of them.
        progress: called with (done, all) after every game.
        leak: what leaks in all at given budgets, for instance `leak_model(graph, sample).total` in nats; every row then
            carries it for its first round: it is dear to compute (N³ up to 3,000 clients). All games must then be on
            the network it was made for.

    Raises:
        BadInput: an argument, or a plan of a function that is not ours, is wrong.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
        >>> [row.mechanism for row in mppfl.compare(game, ["mppfl", "dp_fedavg"], num_rounds=2, conventions=["own"])]
        ['mppfl', 'dp_fedavg']
    """
    several = [games] if isinstance(games, Game) else list(games)
    if leak is not None:
        _require_one_network(several)
    if isinstance(conventions, str):
        raise BadInput(f"conventions={conventions!r} must be a list. Put it into one: [{conventions!r}].")
    for convention in conventions:
        if convention not in CONVENTIONS:
            raise BadInput(f'convention={convention!r} must be "common" or "own".')
    horizon = Horizon(rounds_up_to(num_rounds), None, seed, participation, against)
    play = _Play(_records(mechanisms, fixed_budget), tuple(conventions), horizon, optimum, leak)
    rows: list[Row] = []
    with ExitStack() as stack:
        together: Callable[..., Iterator[list[Row]]] = map
        if require_count(workers, "workers") > 1 and len(several) > 1:
            pool = ProcessPoolExecutor(min(workers, len(several)), get_context("spawn"))
            together = stack.enter_context(pool).map
        for done, of_game in enumerate(together(play, several, range(len(several))), start=1):
            rows += of_game
            if progress is not None:
                progress(done, len(several))
    return Comparison(rows)


@dataclass(frozen=True)
class _Play:
    """All mechanisms in one game after another."""

    records: dict[str, Mechanism]
    conventions: tuple[Convention, ...]
    horizon: Horizon
    optimum: bool
    leak: Callable[[Array], float] | None

    def __call__(self, game: Game, number: int) -> list[Row]:
        own, doubts = replace(self.horizon, seed=self.horizon.seed + number), doubts_about(game)
        optima = SocialOptima(game) if self.optimum else None
        common = None  # MPPFL's rates, once they are needed
        plans: dict[str, Plan] = {}  # of those that serve both conventions
        rows = []
        for convention, (name, record) in product(self.conventions, self.records.items()):
            is_common = convention == "common"
            if is_common and record.only_rate_differs:
                continue
            if is_common and record.has_rate and common is None:
                common = MECHANISMS["mppfl"](game, self.horizon).reward_rates
            faced = replace(own, reward_rates=common if is_common and record.has_rate else None)
            try:
                plan = plans.get(name) or record(game, faced)
            except NoEquilibrium as reason:  # the others are compared all the same
                rows.append(Row(name, convention, number, notes=(str(reason), *doubts)))
                continue
            if not record.has_rate:
                plans[name] = plan
            sums = _sums(game, plan, optima, self.leak)
            rows.append(Row(name, convention, number, notes=(*plan.notes, *doubts), **sums))
        return rows


def _sums(game: Game, plan: Plan, optima: SocialOptima | None, leak: Callable[[Array], float] | None) -> dict[str, Any]:
    """The numbers of a row."""
    outcome = evaluate(game, plan)
    money, shares = ("payments", "welfare", "total_welfare"), ("negative_utility", "participating")
    sums: dict[str, Any] = {name: float(getattr(outcome, name).sum()) for name in money}
    sums |= {name: float(getattr(outcome, name).mean() / game.num_clients) for name in shares}
    sums["server_cost"] = float(outcome.server_costs.sum())
    sums["noise_aware_cost"] = sums["mean_budget"] = 0.0
    for terms in plan:
        if np.isfinite(terms.budgets).all():
            cost = noise_aware_cost(game, terms.round_index, terms.prices, terms.budgets)
        else:  # all weight goes to those without noise, who are paid nothing
            paid = np.sum(terms.prices * np.where(np.isfinite(terms.budgets), terms.budgets, 0.0))
            cost = (1 - game.accuracy_weight) * float(paid)
        sums["noise_aware_cost"] += cost
        sums["mean_budget"] += float(terms.budgets.mean()) / len(plan)
    if optima is not None and plan.prices is None and np.isfinite(sums["welfare"]):
        sums["price_of_anarchy"] = price_of_anarchy(optima.total(plan.reward_rates), sums["welfare"])
    if leak is not None and np.isfinite(plan[0].budgets).all():
        sums["leak"] = float(leak(plan[0].budgets))
    return sums


def sweep(
    spec: GameSpec,
    field: str,
    values: Iterable[Any],
    mechanisms: Sequence[str | Mechanism] = ("mppfl",),
    *,
    seeds: Sequence[int] | None = None,
    conventions: Sequence[Convention] = ("own",),
    workers: int = 1,
) -> Comparison:
    """The rows of `compare` while one value of a game changes, with that value as the first column of the table.

    Args:
        spec: the game.
        field: a field of GameSpec.
        values: what it takes, one after the other.
        mechanisms: names and functions, as in `compare`; an option of the spec is bound to the mechanism that takes it.
        seeds: one game is drawn for each; the spec's own unless given.
        conventions: "own" or "common" rewards, or both.
        workers: processes among which the games of one value are divided.

    Raises:
        BadInput: the field is not known, or cannot take a value.

    Example:
        >>> import mppfl
        >>> spec = mppfl.GameSpec(num_clients=5, num_rounds=2)
        >>> table = mppfl.sweep(spec, "externality_strength", [0.01, 0.1], ["mppfl", "social_agnostic"])
        >>> len(table), table.settings
        (4, (0.01, 0.01, 0.1, 0.1))
    """
    require_known([field], defaults_of(type(spec)))
    rows: list[Row] = []
    settings: list[Any] = []
    for setting in values:
        changed = replace(spec, **{field: setting})
        records = [as_mechanism(chosen) for chosen in mechanisms]
        given = [(record.option, getattr(changed, record.option or "", None)) for record in records]
        options = [{} if value is None else {str(option): value} for option, value in given]
        of_value = compare(
            [replace(changed, seed=seed).build() for seed in ([changed.seed] if seeds is None else seeds)],
            [record.with_options(**option) for record, option in zip(records, options, strict=True)],
            num_rounds=changed.num_rounds,
            conventions=conventions,
            participation=changed.participation,
            against=changed.against,
            seed=changed.seed,
            workers=workers,
        )
        rows += of_value.rows
        settings += [setting] * len(of_value)
    return Comparison(rows, field, settings)


def _require_one_network(games: Sequence[Game]) -> None:
    """A leak belongs to one network: on another of the same size its figures would look right and be wrong."""
    for number, game in enumerate(games):
        mine, first = game.graph.influence, games[0].graph.influence
        if not (np.array_equal(mine.indptr, first.indptr) and np.array_equal(mine.indices, first.indices)):
            raise BadInput(
                f"games 0 and {number} are on different networks, and leak is about one. Compare them one by one."
            )


def _records(
    mechanisms: Sequence[str | Mechanism] | Mapping[str, Mechanism], fixed_budget: float | Literal["min", "mean"]
) -> dict[str, Mechanism]:
    """Every mechanism by its name, the fixed budget bound to the one that takes it."""
    if isinstance(mechanisms, str):
        raise BadInput(f"mechanisms={mechanisms!r:.60} must be a list of names or functions. Put it into one.")
    named = mechanisms.items() if isinstance(mechanisms, Mapping) else ((None, given) for given in mechanisms)
    records: dict[str, Mechanism] = {}
    for name, given in named:
        record = as_mechanism(given)
        record = record if name is None else replace(record, name=name)
        if records.setdefault(record.name, record).function is not record.function:
            raise BadInput(f"two mechanisms are called {record.name!r}. Give a mapping with a name for each.")
    takers = [name for name, record in records.items() if record.option == "fixed_budget" and not record.options]
    if fixed_budget != "min" and not takers:
        raise BadInput(
            f"fixed_budget={fixed_budget!r} means nothing to {', '.join(records)}. Compare dp_fedavg, or omit it."
        )
    return records | {name: records[name].with_options(fixed_budget=fixed_budget) for name in takers}


@dataclass(frozen=True, slots=True)
class Summary:
    """A mechanism under a convention over several games: means, spreads, and how often it is ahead of MPPFL."""

    mechanism: str
    convention: Convention
    num_games: int
    server_cost: float
    server_cost_sd: float
    noise_aware_cost: float
    welfare: float
    welfare_sd: float
    total_welfare: float
    price_of_anarchy: float | None  # median over games where it is defined
    negative_utility: float
    participating: float
    dearer_than_mppfl: int | None  # games in which the server pays more than under MPPFL, same convention
    worse_than_mppfl: int | None  # games in which clients gain less; both None where MPPFL was not compared
    leak: float | None = None  # of the first round, nats, where it was asked for
    beside_mppfl: int = 0  # games in which MPPFL was compared too, same convention


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Means over games, in the order of the rows."""
    groups: dict[tuple[Convention, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.convention, row.mechanism), []).append(row)
    in_order = sorted(groups, key=lambda group: CONVENTIONS.index(group[0]))
    return [_summary(groups[group], groups.get((group[0], "mppfl"), [])) for group in in_order]


def _summary(rows: list[Row], ours: list[Row]) -> Summary:
    """Of one mechanism's rows, beside MPPFL's in the same games."""
    columns = {f.name: [value for row in rows if (value := getattr(row, f.name)) is not None] for f in fields(Row)}
    means = ("server_cost", "noise_aware_cost", "welfare", "total_welfare", "negative_utility", "participating")
    reference = {row.game: row for row in ours}
    pairs = [(row, reference[row.game]) for row in rows if row.game in reference and np.isfinite(row.server_cost)]
    return Summary(
        mechanism=rows[0].mechanism,
        convention=rows[0].convention,
        num_games=len(rows),
        **{column: float(np.mean(columns[column])) for column in means},
        server_cost_sd=_spread(columns["server_cost"]),
        welfare_sd=_spread(columns["welfare"]),
        price_of_anarchy=_of_known(np.median, columns["price_of_anarchy"]),
        dearer_than_mppfl=sum(row.server_cost > other.server_cost for row, other in pairs) if pairs else None,
        worse_than_mppfl=sum(row.welfare < other.welfare for row, other in pairs) if pairs else None,
        leak=_of_known(np.mean, columns["leak"]),
        beside_mppfl=len(pairs),
    )


def _of_known(mean: Callable[..., Any], values: list[float]) -> float | None:
    return float(mean(values)) if values else None


def _spread(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 and np.isfinite(values).all() else 0.0
