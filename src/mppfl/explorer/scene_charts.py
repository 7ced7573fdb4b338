"""Charts of a solved game: rates, costs, welfare, budgets by round; clients in the round shown; mechanisms compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.errors import UnknownClient
from mppfl.explorer.chart import ROUNDS, Axis, Bars, Chart, Line, Points

if TYPE_CHECKING:
    from mppfl.explorer.comparison_view import Comparison
    from mppfl.explorer.world import Scene

ALL_BELOW = 20_000  # clients whose budgets are all read for every round; of more, a sample
SAMPLE = 2_000  # clients that stand for the others in a figure
MOST_NAMED = 60  # clients that get one or two bars with a name; of more, curves are drawn
MOST_BARS = 80  # in all, where each client has more than two
MEASURES = (  # key of the chart, attribute of a row, title, what it is, unit, what it is multiplied by
    ("compared-server-cost", "server_cost", "Server cost, all rounds", "server cost", "money", 1.0),
    ("compared-welfare", "welfare", "Client welfare, all rounds", "welfare of all clients", "money", 1.0),
    ("compared-budgets", "mean_budget", "Mean budget", "budget of a client", "ρ of zCDP, per round", 1.0),
    ("compared-anarchy", "price_of_anarchy", "Price of anarchy", "optimal welfare over welfare", "ratio", 1.0),
    ("compared-below-zero", "below_zero", "Clients below zero", "share of clients", "%, mean over rounds", 100.0),
)
CONVENTIONS = {"common": "common reward", "own": "own reward"}
BUDGET = "ρ of zCDP, per round"


def scene_charts(scene: Scene) -> tuple[Chart, ...]:
    """All charts of a scene: those over rounds, then those over clients in the round shown."""
    return (
        reward_rates(scene),
        server_costs(scene),
        welfare(scene),
        budgets_by_round(scene),
        budgets_sorted(scene),
        utility_by_risk(scene),
    )


def reward_rates(scene: Scene) -> Chart:
    """What the server pays per unit of budget, by round."""
    outcome = scene.solution.outcome
    lines = (Line("reward rate", _rounds(scene), outcome.reward_rates),)
    prices = "with personal prices, their mean weighted by budgets" if scene.solution.plan.prices is not None else ""
    unit = "money per unit of budget"
    return Chart("reward-rate", "Reward rate", ROUNDS, Axis("reward rate", unit), lines, at=_shown(scene), note=prices)


def server_costs(scene: Scene) -> Chart:
    """The server's cost and the two parts it is the sum of, by round."""
    outcome, weight = scene.solution.outcome, scene.solution.game.accuracy_weight
    lines = (
        Line("server cost", _rounds(scene), outcome.server_costs),
        Line(f"τ·accuracy, τ = {weight:.3g}", _rounds(scene), weight * outcome.accuracy_terms),
        Line(f"(1−τ)·payments, 1−τ = {1 - weight:.3g}", _rounds(scene), (1 - weight) * outcome.payments),
    )
    return Chart("server-cost", "Server cost and its parts", ROUNDS, Axis("cost", "money"), lines, at=_shown(scene))


def welfare(scene: Scene) -> Chart:
    """What all clients gain, and clients and server together, by round."""
    outcome = scene.solution.outcome
    lines = (
        Line("clients", _rounds(scene), outcome.welfare),
        Line("clients and server", _rounds(scene), outcome.total_welfare),
    )
    note = "" if np.isfinite(outcome.welfare).all() else "without noise nobody is protected: the loss has no bound"
    return Chart("welfare", "Welfare", ROUNDS, Axis("welfare", "money"), lines, at=_shown(scene), note=note)


def budgets_by_round(scene: Scene) -> Chart:
    """Median budget with the middle 80 % of clients, and the chosen client, by round."""
    plan = scene.solution.plan
    chosen = chosen_client(scene)
    who = sample_of(plan.num_clients, ALL_BELOW)
    places = np.arange(plan.num_clients) if who is None else who
    rows, own = [], np.empty(len(plan))
    for position, rate in enumerate(plan.reward_rates.tolist()):
        everybody = plan.budgets.at(position, rate)
        rows.append(everybody if who is None else everybody[places])
        own[position] = np.nan if chosen is None else everybody[chosen]
    low, middle, high = quantiles(np.array(rows))
    lines = [Line("median, band 10–90 % of clients", _rounds(scene), middle, low, high)]
    if chosen is not None:
        lines.append(Line(f"client {scene.names[chosen]}", _rounds(scene), own))
    note = "" if who is None else f"median and band of {SAMPLE:,} clients drawn from {plan.num_clients:,}"
    axis = Axis("budget", BUDGET)
    return Chart("budgets-by-round", "Budgets by round", ROUNDS, axis, tuple(lines), at=_shown(scene), note=note)


def budgets_sorted(scene: Scene) -> Chart:
    """Everybody's budget in the round shown, largest first: bars with names, or a curve where there are many."""
    values, chosen = scene.budgets, chosen_client(scene)
    title = f"Budgets in round {scene.round_index}, largest first"
    return sorted_chart("budgets-sorted", title, Axis("budget", BUDGET), {"budget": values}, scene.names, chosen)


def utility_by_risk(scene: Scene) -> Chart:
    """What each client gains against what others expose of it, in the round shown."""
    size, chosen = len(scene.names), chosen_client(scene)
    who = sample_of(size, SAMPLE)
    places = np.arange(size) if who is None else who
    clouds = [_cloud("clients", scene, places)]
    if chosen is not None:
        clouds.append(_cloud(f"client {scene.names[chosen]}", scene, np.array([chosen])))
    return Chart(
        "utility-by-risk",
        f"Utility and external risk, round {scene.round_index}",
        Axis("external risk", "ρ of zCDP, per round"),
        Axis("utility", "money"),
        points=tuple(clouds),
        note="" if who is None else f"{SAMPLE:,} clients drawn from {size:,}",
    )


def comparison_charts(comparison: Comparison) -> tuple[Chart, ...]:
    """One chart of bars per measure: every mechanism, under a common reward and under each server's own."""
    rows: Sequence[Any] = comparison.rows
    # Under a common reward some are left out, so the order is that of the longer list.
    names = tuple(dict.fromkeys(row.mechanism for row in sorted(rows, key=lambda row: row.convention != "own")))
    found = {(row.mechanism, row.convention): row for row in rows}
    conventions = [each for each in CONVENTIONS if any(row.convention == each for row in rows)]
    charts = []
    for key, measure, title, what, unit, factor in MEASURES:
        groups = tuple(
            Bars(
                CONVENTIONS[convention],
                np.array([_value(found.get((name, convention)), measure) * factor for name in names]),
            )
            for convention in conventions
        )
        gaps = any(not np.isfinite(group.values).all() for group in groups)
        charts.append(
            Chart(
                key,
                title,
                Axis(what, unit),
                Axis("mechanism", "name"),
                bars=groups,
                labels=tuple(name.replace("_", " ") for name in names),
                note="where a bar is missing, there is no such figure" if gaps else "",
            )
        )
    return tuple(charts)


# ---- what charts of games and of runs share ------------------------------------------------------------------------


def sorted_chart(
    key: str, title: str, axis: Axis, groups: dict[str, Array], names: Sequence[str], chosen: int | None = None
) -> Chart:
    """Values of all clients, largest first. A few get bars, in the order of the first group; of many, each group is a
    curve of its own sorted values.
    """
    endless = sum(int(np.isinf(values).sum()) for values in groups.values())
    note = f"{endless:,} infinite values cannot be drawn" if endless else ""
    first = next(iter(groups.values()))
    if len(names) <= (MOST_NAMED if len(groups) <= 2 else MOST_BARS // len(groups)):
        order = _largest_first(first)
        labels = tuple(("▸ " if at == chosen else "") + names[at] for at in order.tolist())
        bars = tuple(Bars(name, values[order]) for name, values in groups.items())
        return Chart(key, title, axis, Axis("client", "name"), bars=bars, labels=labels, note=note)
    ranks = np.arange(1.0, len(names) + 1)
    lines = [Line(name, ranks, values[_largest_first(values)]) for name, values in groups.items()]
    if chosen is not None:
        lines.append(Line(f"client {names[chosen]}", ranks[_largest_first(first) == chosen], first[[chosen]]))
    return Chart(key, title, Axis("client, by rank", "number"), axis, tuple(lines), note=note)


def _largest_first(values: Array) -> IntArray:
    return np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")


def quantiles(table: Array) -> tuple[Array, Array, Array]:
    """10 %, 50 % and 90 % of every row."""
    low, middle, high = np.quantile(table, [0.1, 0.5, 0.9], axis=1)
    return low, middle, high


def sample_of(size: int, all_below: int) -> IntArray | None:
    """Places of a sample that is the same at every look, or None where everybody is taken."""
    if size <= all_below:
        return None
    return np.sort(np.random.default_rng(0).choice(size, SAMPLE, replace=False, shuffle=False))


def chosen_client(scene: Scene) -> int | None:
    """The position of the client the reader chose, or None."""
    try:
        return scene.solution.game.graph.index(scene.choices.client) if scene.choices.client else None
    except UnknownClient:  # it was of another network
        return None


def _cloud(name: str, scene: Scene, places: IntArray) -> Points:
    labels = tuple(scene.names[at] for at in places.tolist())
    return Points(name, scene.external[places], scene.utilities[places], labels)


def _rounds(scene: Scene) -> Array:
    return scene.solution.plan.rounds.astype(np.float64)


def _shown(scene: Scene) -> float | None:
    return float(scene.round_index) if len(scene.solution.plan) > 1 else None


def _value(row: Any, measure: str) -> float:
    value = None if row is None else getattr(row, measure)
    return float("nan") if value is None else float(value)
