"""Charts of a solved game by round and by client; mechanisms compared; the game in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.charts import ROUNDS, Axis, Bars, Chart, Line, mechanism_chart
from mppfl.errors import BadInput, UnknownClient
from mppfl.experiment import mechanism_of
from mppfl.explorer.markup import panel
from mppfl.explorer.state import Choices
from mppfl.explorer.world import Scene, World, game_key
from mppfl.game import COMPARED, Row, compare
from mppfl.text import number

ALL_BELOW = 20_000  # clients whose budgets are all read for every round; of more, a sample
SAMPLE = 2_000  # clients that stand for the others in a figure
MOST_NAMED = 60  # clients that get one or two bars with a name; of more, curves are drawn
MOST_BARS = 80  # in all, where each client has more than two
MOST_COMPARED = 10_000  # clients; about 20 seconds
MOST_OPTIMA = 300  # clients; the price of anarchy needs an optimum in every round
SHARES = (0.1, 0.5, 0.9)  # of clients: the middle one, and the band of the middle 80 %
BUDGET = Axis("budget", "ρ of zCDP, per round")
ROUND_CHARTS = ("reward-rate", "server-cost", "welfare", "budgets-by-round", "budgets-sorted", "utility-by-risk")


class Measure(NamedTuple):
    """A figure of a mechanism that is compared: its chart, and the attribute of a row times a factor."""

    key: str
    attribute: str
    title: str
    quantity: str
    unit: str
    factor: float = 1.0


MEASURES = (
    Measure("compared-server-cost", "server_cost", "Server cost, all rounds", "server cost", "money"),
    Measure("compared-welfare", "welfare", "Client welfare, all rounds", "welfare of all clients", "money"),
    Measure("compared-budgets", "mean_budget", "Mean budget", "budget of a client", "ρ of zCDP, per round"),
    Measure("compared-anarchy", "price_of_anarchy", "Price of anarchy", "optimal welfare over welfare", "ratio"),
    Measure(
        "compared-negative-utility", "negative_utility", "Negative utility", "clients", "%, mean over rounds", 100.0
    ),
)
COMPARISON_CHARTS = tuple(measure.key for measure in MEASURES)
CONVENTIONS = {"common": "common reward", "own": "own reward"}


def summary(scene: Scene) -> str:
    """The game in one line."""
    game, solution, shown = scene.solution.game, scene.solution, scene.round_index - 1
    return (
        f"{game.num_clients:,} clients, {game.graph.num_edges:,} edges, αS = {number(game.contraction)} · "
        f"{solution.plan.mechanism}, round {scene.round_index} of {len(solution.plan)}: reward rate "
        f"{number(solution.plan.reward_rates[shown])}, server cost {number(solution.outcome.server_costs[shown])}, "
        f"{int(solution.outcome.negative_utility[shown]):,} clients with negative utility"
    )


# ---- one game ------------------------------------------------------------------------------------------------------


def round_charts(scene: Scene, name: str = "") -> tuple[Chart, ...]:
    """All charts of a scene: those over rounds, then those over clients in the round shown; one client stands out."""
    try:
        client = scene.solution.game.graph.index(name) if name else None
    except UnknownClient:  # it was of another network
        client = None
    outcome, weight = scene.solution.outcome, scene.solution.game.accuracy_weight
    priced = "with personal prices, their mean weighted by budgets" if scene.solution.plan.prices is not None else ""
    endless = "" if np.isfinite(outcome.welfare).all() else "without noise nobody is protected: the loss has no bound"
    costs = {
        "server cost": outcome.server_costs,
        f"τ·accuracy, τ = {weight:.3g}": weight * outcome.accuracy_terms,
        f"(1−τ)·payments, 1−τ = {1 - weight:.3g}": (1 - weight) * outcome.payments,
    }
    welfare = {"clients": outcome.welfare, "clients and server": outcome.total_welfare}
    title = f"Budgets in round {scene.round_index}, largest first"
    rates, price = {"reward rate": outcome.reward_rates}, Axis("reward rate", "money per unit of budget")
    return (
        _by_round("reward-rate", "Reward rate", price, scene, rates, priced),
        _by_round("server-cost", "Server cost and its parts", Axis("cost", "money"), scene, costs),
        _by_round("welfare", "Welfare", Axis("welfare", "money"), scene, welfare, endless),
        _budgets_by_round(scene, client),
        sorted_chart("budgets-sorted", title, BUDGET, {"budget": (0, scene.figures["budget"])}, scene.names, client),
        _utility_by_risk(scene, client),
    )


def _by_round(key: str, title: str, axis: Axis, scene: Scene, curves: dict[str, Array], note: str = "") -> Chart:
    lines = tuple(Line(name, slot, _rounds(scene), values) for slot, (name, values) in enumerate(curves.items()))
    return Chart(key, title, ROUNDS, axis, lines, marked=_round_shown(scene), note=note)


def _budgets_by_round(scene: Scene, client: int | None) -> Chart:
    """Median budget with the middle 80 % of clients, and the chosen client, by round."""
    plan = scene.solution.plan
    sample = _sample(plan.num_clients, ALL_BELOW)
    rows, of_client = [], np.empty(len(plan))
    for position, rate in enumerate(plan.reward_rates.tolist()):
        budgets = plan.budgets.at(position, rate)
        rows.append(budgets if sample is None else budgets[sample])
        of_client[position] = np.nan if client is None else budgets[client]
    low, middle, high = np.quantile(rows, SHARES, axis=1)
    lines = [Line("median, band 10–90 % of clients", 0, _rounds(scene), middle, low, high)]
    if client is not None:
        lines.append(Line(f"client {scene.names[client]}", 1, _rounds(scene), of_client))
    note = "" if sample is None else f"median and band of {SAMPLE:,} clients drawn from {plan.num_clients:,}"
    marked = _round_shown(scene)
    return Chart("budgets-by-round", "Budgets by round", ROUNDS, BUDGET, tuple(lines), marked=marked, note=note)


def _utility_by_risk(scene: Scene, client: int | None) -> Chart:
    """What each client gains against what others expose of it, in the round shown."""
    size = len(scene.names)
    sample = _sample(size, SAMPLE)
    risk, gain = scene.figures["external_risk"], scene.figures["utility"]

    def cloud(name: str, slot: int, clients: IntArray) -> Line:
        labels = tuple(scene.names[k] for k in clients.tolist())
        return Line(name, slot, risk[clients], gain[clients], labels=labels)

    clouds = [cloud("clients", 0, np.arange(size) if sample is None else sample)]
    if client is not None:
        clouds.append(cloud(f"client {scene.names[client]}", 1, np.array([client])))
    return Chart(
        "utility-by-risk",
        f"Utility and external risk, round {scene.round_index}",
        Axis("external risk", "ρ of zCDP, per round"),
        Axis("utility", "money"),
        tuple(clouds),
        note="" if sample is None else f"{SAMPLE:,} clients drawn from {size:,}",
    )


def sorted_chart(
    key: str,
    title: str,
    axis: Axis,
    groups: dict[str, tuple[int, Array]],
    names: Sequence[str],
    chosen: int | None = None,
) -> Chart:
    """Values of all clients, largest first; of each group its slot and its values.

    A few clients get bars, in the order of the first group; of many, each group is a curve of its own sorted values.
    """
    endless = sum(int(np.isinf(values).sum()) for _, values in groups.values())
    note = f"{endless:,} infinite values cannot be drawn" if endless else ""
    first = next(iter(groups.values()))[1]
    if len(names) <= (MOST_NAMED if len(groups) <= 2 else MOST_BARS // len(groups)):
        order = _largest_first(first)
        labels = tuple(("▸ " if client == chosen else "") + names[client] for client in order.tolist())
        bars = tuple(Bars(name, slot, values[order]) for name, (slot, values) in groups.items())
        return Chart(key, title, axis, Axis("client", "name"), bars=bars, labels=labels, note=note)
    ranks = np.arange(1.0, len(names) + 1)
    lines = [Line(name, slot, ranks, values[_largest_first(values)]) for name, (slot, values) in groups.items()]
    if chosen is not None:
        lines.append(Line(f"client {names[chosen]}", 1, ranks[_largest_first(first) == chosen], first[[chosen]]))
    return Chart(key, title, Axis("client, by rank", "number"), axis, tuple(lines), note=note)


def _largest_first(values: Array) -> IntArray:
    return np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")


def _sample(size: int, all_below: int) -> IntArray | None:
    """Clients of a sample that is the same at every look, or None where everybody is taken."""
    if size <= all_below:
        return None
    return np.sort(np.random.default_rng(0).choice(size, SAMPLE, replace=False, shuffle=False))


def _rounds(scene: Scene) -> Array:
    return scene.solution.plan.rounds.astype(np.float64)


def _round_shown(scene: Scene) -> float | None:
    return float(scene.round_index) if len(scene.solution.plan) > 1 else None


# ---- mechanisms compared -------------------------------------------------------------------------------------------


def comparison(world: World, choices: Choices) -> tuple[Row, ...]:
    """The rows of `mppfl compare --experiment FILE --mechanisms all`; kept in the world, whichever of them is shown."""
    spec, size = choices.game, world.graph(choices.game).num_clients
    if size > MOST_COMPARED:
        raise BadInput(
            f"a comparison of {len(COMPARED)} mechanisms on {size:,} clients takes minutes. Use `mppfl compare`, or a "
            f"network of at most {MOST_COMPARED:,}."
        )

    def make() -> tuple[Row, ...]:
        functions = {name: mechanism_of(spec, name) for name in COMPARED}
        rule: Any = {"participation": spec.participation, "against": spec.against, "optimum": size <= MOST_OPTIMA}
        return tuple(compare(world.game(spec), functions, num_rounds=spec.num_rounds, seed=spec.seed, **rule))

    key = (game_key(spec), spec.num_rounds, spec.fixed_budget, spec.participation, spec.against)
    return world.remembered("comparison", key, make)


def comparison_charts(rows: Sequence[Row]) -> tuple[Chart, ...]:
    """One chart of bars per measure: every mechanism, under a common reward and under each server's own."""
    row_of: dict[tuple[str, str], Row] = {(row.mechanism, row.convention): row for row in rows}
    shown = [convention for convention in CONVENTIONS if any(row.convention == convention for row in rows)]
    # Under a common reward some are left out, so the order is that of the longer list.
    names = tuple(dict.fromkeys(name for convention in ("own", "common") for name, its in row_of if its == convention))
    charts = []
    for measure in MEASURES:
        groups = []
        for slot, convention in enumerate(shown):
            values = [_value(row_of.get((name, convention)), measure) for name in names]
            groups.append(Bars(CONVENTIONS[convention], slot, np.array(values)))
        gaps = any(not np.isfinite(group.values).all() for group in groups)
        note = "where a bar is missing, there is no such figure" if gaps else ""
        axis = Axis(measure.quantity, measure.unit)
        charts.append(mechanism_chart(measure.key, measure.title, axis, names, tuple(groups), note))
    return tuple(charts)


def _value(row: Row | None, measure: Measure) -> float:
    value = None if row is None else getattr(row, measure.attribute)
    return float("nan") if value is None else float(value) * measure.factor


def comparison_table(rows: Sequence[Row], num_rounds: int) -> str:
    """The rows as a table, summed over so many rounds."""
    heads = ["mechanism", "reward", *(f"{measure.quantity} ({measure.unit})" for measure in MEASURES)]
    cells = [
        [
            row.mechanism.replace("_", " "),
            row.convention,
            *(number(_value(row, measure)) for measure in MEASURES[:-1]),
            f"{_value(row, MEASURES[-1]):.1f}",
        ]
        for row in rows
    ]
    return panel("table", heads=heads, rows=cells, caption=f"Sums over {num_rounds} rounds")


def sentence(text: str) -> str:
    """A note as a sentence of its own; a Greek letter stays as it is."""
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return first + text[1:] + ("" if text.endswith(".") else ".")
