"""mppfl compare (alone: one file a command): mechanisms side by side, in the game or trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs
from mppfl.errors import BadInput
from mppfl.spec import GameSpec

if TYPE_CHECKING:
    from mppfl.game import Game, Mechanism, Row, Summary
    from mppfl.leakage import LeakModel, LeastLeak

    Job = tuple[int, Callable[[], Game]]  # a seed, and what makes its game

DISPENSABLE = ("dearer, worse than mppfl", "cost if noise-aware", "total welfare", "partici- pating")


@inputs.with_game("reward_rate")
def compare_command(
    asked: inputs.Asked,
    seeds: Annotated[int, typer.Option(help="Number of games to draw, with seeds from --seed upward.")] = 1,
    mechanisms: Annotated[
        str | None,
        inputs.option("Names, separated by commas, or all; default: all, or the file's.", inputs.PRICING),
    ] = None,
    attribute: inputs.AttributeOption = None,
    leak_price: inputs.LeakPriceOption = None,
    optimum: Annotated[bool, inputs.flag("--optimum", "Add the price of anarchy, which is slow.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw costs and welfare into a .png, .pdf or .svg.")] = None,
    train: Annotated[Path | None, typer.Option(help="Train an experiment file; only --mechanisms goes along.")] = None,
    report: Annotated[Path | None, typer.Option(help="With --train: write a page with figures, .html.")] = None,
    quiet: Annotated[bool, inputs.flag("--quiet", "With --train: no progress on stderr.")] = False,
    json: inputs.JsonOption = False,
) -> None:
    """Compare mechanisms: server cost, welfare, price of anarchy and negative utilities, under common and own reward.

    Common reward: all mechanisms use MPPFL's rates; own reward: each sets its own. With --attribute also the leakage
    of the first round and the least possible; with --leak-price also leakage_priced, which is slow on large networks.
    """
    from mppfl.arrays import require_count
    from mppfl.experiment import mechanism_of, require_folder, require_playable
    from mppfl.game import summarise

    listed = mechanisms is None and asked.mechanisms
    names = list(listed) if listed else inputs.named_mechanisms(mechanisms)
    if train is not None:
        compare_trained(train, None if mechanisms is None else names, report, json=json, quiet=quiet)
        return
    if report is not None:
        raise BadInput(f"--report={str(report)!r} shows trainings. Give --train, too.")
    first, spec = asked.game.seed, replace(asked.game, reward_rate="own")
    fixed = asked.seeds if asked.seeds is not None and not inputs.is_typed("seeds") else None
    chosen = fixed or tuple(range(first, first + require_count(seeds, "seeds")))
    check_leak_options(spec, attribute, leak_price, chosen, names)
    if figure is not None:
        inputs.check_target(figure, ".png", ".pdf", ".svg", option="--figure")
        require_folder(figure.parent)
    plain = [name for name in names if name != inputs.PRICED]
    require_playable(spec, plain)
    if len(chosen) > 1 and spec.graph is not None and spec.clients is not None:
        raise BadInput(
            f"--seeds={len(chosen)} would play one game {len(chosen)} times: --graph and --clients leave nothing to "
            "draw. Leave it out; another --seed changes what `random` draws."
        )
    functions, rounds = {name: mechanism_of(spec, name) for name in plain}, spec.num_rounds
    jobs = [(seed, replace(spec, seed=seed).build) for seed in chosen]
    rows, notes, leaks = play(jobs, functions, spec, attribute, leak_price, optimum=optimum)
    inputs.warn(notes)
    summaries = summarise(rows)
    if figure is not None:
        comparison_figure(summaries, figure, rounds)
    if json:
        inputs.print_json(as_json(summaries, rows, rounds, len(jobs), notes, leaks))
        return
    show(summaries, rounds, len(jobs), with_leak=leaks is not None)
    show_notes(rows, len(jobs), notes, leaks)
    if figure is not None:
        typer.echo(f"figure: {figure}")


def play(
    jobs: Sequence[Job],
    mechanisms: dict[str, Mechanism],
    spec: GameSpec,
    attribute: Path | None,
    leak_price: float | None,
    *,
    optimum: bool,
) -> tuple[list[Row], tuple[str, ...], dict[str, Any] | None]:
    """Rows of all games, notes on the games, and with a public sample `leak_is` and `least_leakage`."""
    from rich.console import Console
    from rich.progress import Progress

    from mppfl.game import compare, doubts_about
    from mppfl.leakage import fits_matrices, least_leak

    rows: list[Row] = []
    doubts: list[str] = []
    least: list[LeastLeak] = []
    model: LeakModel | None = None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("comparing", total=len(jobs))
        for number, (seed, make_game) in enumerate(jobs):
            game = make_game()
            if attribute is not None and model is None:  # once: all games are on the graph of the file
                model = inputs.leak_of_sample(game.graph, attribute, seed, leak_price)
                if leak_price is not None:
                    mechanisms = mechanisms | {inputs.PRICED: inputs.priced_mechanism(model, leak_price)}
            game_rows = compare(
                game,
                mechanisms,
                num_rounds=spec.num_rounds,
                participation=spec.participation,
                against=spec.against,
                seed=seed,
                optimum=optimum,
                progress=lambda done, all_, n=number: bar.update(task, completed=n + done / all_),  # type: ignore[misc]
                leak=None if model is None else model.total,
            )
            rows.extend(replace(row, game=number) for row in game_rows)
            doubts.extend(doubts_about(game))
            if model is not None and fits_matrices(game.num_clients):
                least.append(least_leak(game, model.total, model.smooth_total_and_marginal))
    if len(jobs) > 1 and doubts:  # αS differs from game to game where rows are not normalised: one line for all
        doubts = [f"{doubts[0]} (so, or with another αS, in {len(doubts)} of {len(jobs)} games)"]
    return rows, tuple(doubts), None if model is None else leaks_as_json(least)


def leaks_as_json(least: list[LeastLeak]) -> dict[str, Any]:
    """What the figure `leak` is, and the least leakage of every game, or why there is none."""
    answer: dict[str, Any] = {"reason": "computed for small networks only, of at most 3,000 clients"}
    if least:
        answer = {"games": [{"game": number} | asdict(leak) for number, leak in enumerate(least)]}
        answer |= {key: sum(game[key] for game in answer["games"]) / len(least) for key in ("leak", "total_budget")}
    return {"leak_is": f"of all clients together in round 1, in {inputs.LEAK_ASSUMES}", "least_leakage": answer}


def check_leak_options(
    spec: GameSpec, attribute: Path | None, leak_price: float | None, seeds: Sequence[int], names: Sequence[str]
) -> None:
    """Refuses leak options that lack each other, and a sample beside networks to which it does not belong."""
    if inputs.PRICED in names or leak_price is not None:
        inputs.check_leak_price(attribute, leak_price)
    if attribute is not None and spec.graph is None and len(seeds) > 1:
        raise BadInput(
            f"--attribute={str(attribute)!r} belongs to one network, and --seeds={len(seeds)} draws as many. "
            "Give --graph, too, or one seed."
        )


def compare_trained(
    path: Path, mechanisms: Sequence[str] | None, report: Path | None, *, json: bool, quiet: bool
) -> None:
    """Trains the mechanisms of an experiment side by side, in memory, and shows the results."""
    from mppfl.cli import train as train_command
    from mppfl.experiment import read_experiment, run_experiment
    from mppfl.files import toml_value

    inputs.refuse_options_beside("--train", ("train", "mechanisms", "report", "quiet", "json"))
    if report is not None:
        inputs.check_target(report, ".html", ".htm", option="--report")
    experiment = read_experiment(path, [] if mechanisms is None else [f"mechanisms={toml_value(list(mechanisms))}"])
    experiment = replace(experiment, output=replace(experiment.output, folder=None))
    with inputs.training_progress(experiment.game.num_rounds, quiet=quiet) as on_round:
        runs = run_experiment(experiment, on_round=on_round)
    if report is not None:
        from mppfl.experiment.report import write_report

        write_report(runs, report)
    if json:
        inputs.print_json(train_command.as_json(experiment, runs, None))
        return
    train_command.show(runs)
    if report is not None:
        typer.echo(f"report: {report}")


def comparison_figure(summaries: Sequence[Summary], path: Path, num_rounds: int) -> None:
    """Server cost and client welfare of every mechanism, one row per reward convention, as .png, .pdf or .svg.

    Bars are means over games, whiskers one standard deviation.
    """
    import numpy as np

    from mppfl.charts import Axis, Bars, mechanism_chart, write_figure

    charts = []
    for convention in dict.fromkeys(row.convention for row in summaries):
        rows = [row for row in summaries if row.convention == convention and np.isfinite(row.welfare)]
        for measure, name in (("server_cost", "server cost"), ("welfare", "client welfare")):
            means, spreads = (np.array([getattr(row, measure + end) for row in rows]) for end in ("", "_sd"))
            bars = Bars(name, 0, means, spreads if spreads.any() else None)
            axis, key = Axis(name, f"money, sum over {num_rounds} rounds"), f"{convention}-{measure}"
            title, mechanisms = f"{convention.capitalize()} reward: {name}", [row.mechanism for row in rows]
            charts.append(mechanism_chart(key, title, axis, mechanisms, (bars,)))
    write_figure(charts, path)


def as_json(
    summaries: list[Summary],
    rows: list[Row],
    rounds: int,
    seeds: int,
    notes: Sequence[str],
    leaks: dict[str, Any] | None,
) -> dict[str, Any]:
    """One object; figures of leaks are in it only where they were asked for."""

    def figures(value: Any) -> dict[str, Any]:
        return {key: part for key, part in asdict(value).items() if key != "leak" or leaks is not None}

    return {
        "rounds": rounds,
        "seeds": seeds,
        "summary": [figures(summary) for summary in summaries],
        "games": [figures(row) for row in rows],
        "notes": list(notes),
    } | (leaks or {})


def show(summaries: list[Summary], rounds: int, seeds: int, *, with_leak: bool = False) -> None:
    """One table per reward convention."""
    titles = {"common": "Common reward: all use MPPFL's rates", "own": "Own reward: each mechanism sets its rates"}
    size = f"{rounds} round{'s' * (rounds > 1)}, {seeds} seed{'s' * (seeds > 1)}"
    columns: dict[str, Callable[[Summary], str]] = {
        "mechanism": lambda row: row.mechanism,
        "server\ncost": lambda row: _figure(row.server_cost),
        "cost if\nnoise-aware": lambda row: _figure(row.noise_aware_cost),
        "client\nwelfare": lambda row: _figure(row.welfare),
        "total\nwelfare": lambda row: _figure(row.total_welfare),
        "price of\nanarchy": lambda row: "–" if row.price_of_anarchy is None else f"{row.price_of_anarchy:.3f}",
        "negative\nutility": lambda row: _share(row.negative_utility),
        "partici-\npating": lambda row: _share(row.participating),
        "dearer, worse\nthan mppfl": _beside_mppfl,
    }
    if with_leak:
        columns["leak,\nnats"] = lambda row: "–" if row.leak is None else f"{row.leak:,.3f}"
    for convention, title in titles.items():
        rows = [[cell(row) for cell in columns.values()] for row in summaries if row.convention == convention]
        if rows:
            inputs.print_table(f"{title} ({size})", list(columns), rows, DISPENSABLE)


def show_notes(rows: Sequence[Row], seeds: int, of_games: Sequence[str], leaks: dict[str, Any] | None) -> None:
    """Notes that the tables need: on clients that opt out, mechanisms with settings of their own or without a plan,
    and leaks.

    of_games  notes on the games, which every row repeats
    """
    if any(row.participating < 1 for row in rows):
        typer.echo(
            "Server cost leaves out clients that opt out, so losing them looks cheap; cost if noise-aware counts them."
        )
    with_settings = ("dp_fedavg", inputs.PRICED) if seeds == 1 else ()
    told = [row for row in rows if row.mechanism in with_settings or math.isnan(row.server_cost)]
    notes = dict.fromkeys((row.mechanism, note) for row in told for note in row.notes)
    for name, note in notes:
        if note not in of_games:
            typer.echo(f"{name}: {note}")
    if leaks is None:
        return
    typer.echo(f"leak: {leaks['leak_is']}")
    least = leaks["least_leakage"]
    if "reason" in least:
        typer.echo(f"least leakage: {least['reason']}")
        return
    most = max(game["largest_budget"] for game in least["games"])
    typer.echo(
        f"least leakage found with social_agnostic's sum of budgets, {least['total_budget']:.4g}: "
        f"{least['leak']:.4g} nats, no budget above {most:.4g}, at any cost to clients"
    )


def _beside_mppfl(summary: Summary) -> str:
    """In how many games a mechanism is dearer and worse than mppfl, of those that have both."""
    if summary.beside_mppfl == 0:
        return "–"
    return f"{summary.dearer_than_mppfl}, {summary.worse_than_mppfl} of {summary.beside_mppfl}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def _figure(value: float) -> str:
    return "–" if not abs(value) < 1e15 else f"{value:,.1f}"
