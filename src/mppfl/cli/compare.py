"""mppfl compare: mechanisms side by side, in the game or trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs as ask
from mppfl.cli.leak_inputs import (
    PRICED,
    AttributeOption,
    LeakPriceOption,
    SampleLeak,
    leak_of_sample,
    leaks_as_json,
    priced_among,
    require_what_prices_need,
    show_leaks,
)

if TYPE_CHECKING:
    from mppfl.game import Game, Mechanism, Row, Summary
    from mppfl.leakage import LeastLeak

    Job = tuple[int, Callable[[], Game]]  # a seed, and what makes its game


def compare_command(
    graph: ask.GraphOption = None,
    clients: ask.ClientsOption = None,
    preset: ask.PresetOption = "paper-like",
    seed: ask.SeedOption = 0,
    seeds: Annotated[int, typer.Option(help="How many games to draw, from --seed upward.")] = 1,
    num_clients: ask.NumClientsOption = 20,
    max_hops: ask.MaxHopsOption = None,
    hop_decay: ask.HopDecayOption = None,
    externality_strength: ask.StrengthOption = None,
    accuracy_weight: ask.AccuracyOption = None,
    rounds: ask.RoundsOption = 60,
    mechanisms: Annotated[
        str | None, typer.Option(help="Names, separated by commas, or all; default: all, or the file's.")
    ] = None,
    payment_limit: ask.PaymentOption = None,
    fixed_budget: ask.FixedBudgetOption = "min",
    attribute: AttributeOption = None,
    leak_price: LeakPriceOption = None,
    undirected: ask.UndirectedOption = False,
    normalisation: ask.NormalisationOption = "row",
    isolated: ask.IsolatedOption = "error",
    self_loops: ask.SelfLoopsOption = "error",
    diagonal: ask.DiagonalOption = "auto",
    experiment: ask.ExperimentOption = None,
    figure: Annotated[Path | None, typer.Option(help="Draw costs and welfare into a .png, .pdf or .svg.")] = None,
    train: Annotated[
        Path | None, typer.Option(help="Train as well: the experiment, a TOML file that says all but --mechanisms.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="With --train: write a page with figures, .html.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="With --train: no progress on stderr.")] = False,
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Compare mechanisms: server cost, welfare, price of anarchy and who is below zero, under common and own reward.

    With --attribute also what leaks in the first round, as `mppfl risk` totals it, and the least that could; with
    --leak-price, leakage_priced is compared as well. It prices every round: on large networks ask for few.
    """
    options = dict(locals())
    from mppfl.arrays import require_count
    from mppfl.errors import BadInput
    from mppfl.game import COMPARED, summarise

    listed = None if mechanisms is None else tuple(name.strip() for name in mechanisms.split(",") if name.strip())
    names = COMPARED if listed is None or listed == ("all",) else listed
    if not names:
        raise BadInput(f"--mechanisms={mechanisms!r} names none. Name at least one: {', '.join(COMPARED)}.")
    check_leak_options(options, names)
    if train is not None:
        compare_trained(train, None if mechanisms is None else names, report, json=json, quiet=quiet)
        return
    if report is not None:
        raise BadInput(f"--report={str(report)!r} shows trainings. Give --train, too.")
    require_count(seeds, "seeds")
    ask.check_rounds(rounds)
    if figure is not None:
        check_figure(figure)
    if experiment is not None:
        jobs, chosen, rounds = of_experiment(experiment, None if mechanisms is None else names, rounds, fixed_budget)
    else:
        given = ask.Inputs.among(options)
        known = [name for name in names if name != PRICED]
        chosen = {name: ask.chosen_mechanism(name, payment_limit, fixed_budget) for name in known}
        ask.check_mechanism_options(payment_limit, fixed_budget, names)
        ask.check_network_options(given)
        check_seeds(given, seeds)
        jobs = [(each, partial(ask.make_the_game, given, each)) for each in range(seed, seed + seeds)]
    rows, notes, leaks = play(jobs, chosen, rounds, attribute, leak_price)
    ask.warn(notes)
    summaries = summarise(rows)
    if figure is not None:
        from mppfl.experiment import comparison_figure

        comparison_figure(summaries, figure, rounds)
    if json:
        ask.print_json(as_json(summaries, rows, rounds, len(jobs), notes, leaks))
        return
    show(summaries, rounds, len(jobs), with_leak=leaks is not None)
    show_notes(rows, len(jobs), notes, leaks)
    if figure is not None:
        typer.echo(f"figure: {figure}")


def play(
    jobs: Sequence[Job],
    mechanisms: dict[str, Mechanism],
    rounds: int,
    attribute: Path | None,
    leak_price: float | None,
) -> tuple[list[Row], tuple[str, ...], dict[str, Any] | None]:
    """Rows of all games, notes on the games, and with a public sample what is to be said of leaks: `leak_is` and
    `least_leakage`.
    """
    from rich.console import Console
    from rich.progress import Progress

    from mppfl.game import compare, doubts_about
    from mppfl.leakage import least_leak

    rows: list[Row] = []
    doubts: list[str] = []
    told: SampleLeak | None = None
    least: list[LeastLeak] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("comparing", total=len(jobs))
        for number, (drawn_by, make_game) in enumerate(jobs):
            game = make_game()
            if attribute is not None and told is None:  # once: all games are on the graph of the file
                told = leak_of_sample(game.graph, attribute, leak_price, drawn_by)
            found = compare(
                game,
                mechanisms if told is None else mechanisms | priced_among(told, leak_price),
                num_rounds=rounds,
                seed=drawn_by,
                progress=lambda done, all_, n=number: bar.update(task, completed=n + done / all_),  # type: ignore[misc]
                leak=None if told is None else told.total,
            )
            rows.extend(replace(row, game=number) for row in found)
            doubts.extend(doubts_about(game))
            if told is not None and told.model is not None:
                least.append(least_leak(game, told.total, told.model.smooth_total_and_marginal))
    if len(jobs) > 1 and doubts:  # αS differs from game to game where rows are not normalised: one line for all
        doubts = [f"{doubts[0]} (so, or with another αS, in {len(doubts)} of {len(jobs)} games)"]
    return rows, tuple(doubts), None if told is None else leaks_as_json(least)


def check_seeds(given: ask.Inputs, seeds: int) -> None:
    """Refuses several seeds of one and the same game, whose means would count it as often."""
    from mppfl.errors import BadInput

    if seeds > 1 and given.graph is not None and given.clients is not None:
        raise BadInput(
            f"--seeds={seeds} would play one game {seeds} times: --graph and --clients leave nothing to draw. "
            "Leave it out; another --seed changes what `random` draws."
        )


def check_leak_options(options: dict[str, Any], names: Sequence[str]) -> None:
    """Refuses leak options that lack each other, and those beside a file or networks to which no sample belongs."""
    from mppfl.errors import BadInput

    attribute, leak_price = options["attribute"], options["leak_price"]
    file = next((f"--{name}" for name in ("train", "experiment") if options[name] is not None), None)
    typed = {"--attribute": attribute is not None, "--leak-price": leak_price is not None, PRICED: PRICED in names}
    if file is not None and any(typed.values()):
        what = ", ".join(name for name, is_typed in typed.items() if is_typed)
        raise BadInput(
            f"{what} means nothing with {file}={str(options[file[2:]])!r}: leaks are compared in games that options "
            f"describe. Leave {file} out, or these."
        )
    if typed[PRICED] or leak_price is not None:
        require_what_prices_need(attribute, leak_price)
    if attribute is not None and options["graph"] is None and options["seeds"] > 1:
        raise BadInput(
            f"--attribute={str(attribute)!r} belongs to one network, and --seeds={options['seeds']} draws as many. "
            "Give --graph, too, or one seed."
        )


def of_experiment(
    path: Path, names: Sequence[str] | None, rounds: int, fixed_budget: str
) -> tuple[list[Job], dict[str, Mechanism], int]:
    """Seeds with what makes their games, mechanisms and rounds of an experiment file; what was typed goes before it."""
    from mppfl.experiment import game_without_data, mechanism_of
    from mppfl.files import toml_value

    beside = ("mechanisms", "rounds", "fixed_budget", "figure", "json", "debug")
    overrides = [f"game.num_rounds={rounds}"] if ask.is_typed("rounds") else []
    if ask.is_typed("fixed_budget"):
        overrides.append(f"game.fixed_budget={toml_value(ask.number_or_rule(fixed_budget))}")
    if names is not None:  # the file's convention is no matter: each of them is shown under both
        overrides += [f"mechanisms={toml_value(list(dict.fromkeys(names)))}", 'game.convention="own"']
    chosen = ask.read_the_experiment(path, overrides, beside=beside)
    if chosen.game.participation != "always":
        ask.warn((f"participation={chosen.game.participation!r} is left out: compare has everybody take part",))
    functions = {name: mechanism_of(chosen, name) for name in chosen.mechanisms}
    return (
        [(seed, partial(game_without_data, chosen, seed)) for seed in chosen.seeds],
        functions,
        chosen.game.num_rounds,
    )


def compare_trained(
    path: Path, mechanisms: Sequence[str] | None, report: Path | None, *, json: bool, quiet: bool
) -> None:
    """Trains the mechanisms of an experiment side by side, in memory, and shows what came out."""
    from mppfl.cli import train as train_command
    from mppfl.cli.progress import training_progress
    from mppfl.errors import BadInput
    from mppfl.experiment import read_experiment, train
    from mppfl.files import toml_value

    ask.refuse_options_beside("--train", ("train", "mechanisms", "report", "quiet", "json", "debug"))
    if report is not None and (report.suffix.lower() not in (".html", ".htm") or report.is_dir()):
        raise BadInput(f"--report={str(report)!r} must be a file that ends in .html.")
    chosen = read_experiment(path, [] if mechanisms is None else [f"mechanisms={toml_value(list(mechanisms))}"])
    chosen = replace(chosen, output=replace(chosen.output, folder=None))
    with training_progress(chosen.game.num_rounds, quiet=quiet) as tell:
        runs = train(chosen, on_round=tell)
    if report is not None:
        from mppfl.experiment.report import write_report

        write_report(runs, report)
    if json:
        ask.print_json(train_command.as_json(chosen, runs, None))
        return
    train_command.show(runs)
    if report is not None:
        typer.echo(f"report: {report}")


def check_figure(path: Path) -> None:
    """Refuses a figure that could not be written before anything is computed."""
    from mppfl.errors import BadFile, BadInput

    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise BadInput(f"--figure={str(path)!r} must end in .png, .pdf or .svg.")
    if path.is_dir():
        raise BadInput(f"--figure={str(path)!r} is a directory. Name a file in it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise BadFile(
            f"--figure={str(path)!r}: its folder cannot be made ({cause.strerror}). Choose another path."
        ) from cause
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadFile(f"--figure={str(path)!r} may not be written. Check permissions, or choose another path.")


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
        return {key: each for key, each in asdict(value).items() if key != "leak" or leaks is not None}

    return {
        "rounds": rounds,
        "seeds": seeds,
        "summary": [figures(summary) for summary in summaries],
        "games": [figures(row) for row in rows],
        "notes": list(notes),
    } | (leaks or {})


def show(summaries: list[Summary], rounds: int, seeds: int, *, with_leak: bool = False) -> None:
    """One table per reward convention."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    width = None if Console().is_terminal else 130 if with_leak else 118
    titles = {"common": "Common reward: everybody faces MPPFL's rates", "own": "Own reward: each server sets its rates"}
    for convention, title in titles.items():
        mine = [s for s in summaries if s.convention == convention]
        if not mine:
            continue
        table = Table(
            title=f"{title} ({rounds} rounds, {seeds} seed{'s' if seeds > 1 else ''})", title_justify="left", box=SIMPLE
        )
        table.add_column("mechanism", no_wrap=True)
        for heading in (
            "server\ncost",
            "cost if\nnoise-aware",
            "client\nwelfare",
            "total\nwelfare",
            "price of\nanarchy",
            "below\nzero",
            "taking\npart",
            "dearer, worse\nthan mppfl",
            *(("leak,\nnats",) if with_leak else ()),
        ):
            table.add_column(heading, justify="right", no_wrap=True)
        for s in mine:
            table.add_row(
                s.mechanism,
                _figure(s.server_cost),
                _figure(s.noise_aware_cost),
                _figure(s.welfare),
                _figure(s.total_welfare),
                "–" if s.price_of_anarchy is None else f"{s.price_of_anarchy:.3f}",
                f"{100 * s.below_zero:.0f} %",
                f"{100 * s.taking_part:.0f} %",
                _beside_mppfl(s),
                *(("–" if s.leak is None else f"{s.leak:,.3f}",) if with_leak else ()),
            )
        # In a file or a pipe a table is as wide as its numbers need; a mechanism's name is shown as it is.
        needed = Measurement.get(wide := Console(width=1000), wide.options, table).maximum
        console = Console(width=None if width is None else max(width, needed), markup=False, emoji=False)
        console.print(table)


def show_notes(rows: Sequence[Row], seeds: int, said: Sequence[str], leaks: dict[str, Any] | None) -> None:
    """What a reader of the tables should know: of mechanisms with settings of their own, and of leaks.

    said  notes on the game, which every row repeats
    """
    if any(row.taking_part < 1 for row in rows):
        typer.echo(
            "Where some stay out, server cost forgets them, so losing clients looks cheap; cost if noise-aware counts "
            "them."
        )
    told = [row for row in rows if row.mechanism in ("fixed", PRICED) and seeds == 1]
    for name, note in dict.fromkeys((row.mechanism, note) for row in told for note in row.notes if note not in said):
        typer.echo(f"{name}: {note}")
    if leaks is not None:
        show_leaks(leaks)


def _beside_mppfl(summary: Summary) -> str:
    """In how many games a mechanism is dearer and worse, of those in which there is an mppfl to be so."""
    if summary.beside_mppfl == 0:
        return "–"
    return f"{summary.dearer_than_mppfl}, {summary.worse_than_mppfl} of {summary.beside_mppfl}"


def _figure(value: float) -> str:
    return "–" if not abs(value) < 1e15 else f"{value:,.1f}"
