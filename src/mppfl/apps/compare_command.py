"""mppfl compare: mechanisms side by side."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.apps import inputs as ask

if TYPE_CHECKING:
    from mppfl.game.compare import Row, Summary


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
    mechanisms: Annotated[str | None, typer.Option(help="Names, separated by commas; default: all.")] = None,
    payment_limit: ask.PaymentOption = None,
    fixed_budget: ask.FixedBudgetOption = "min",
    undirected: ask.UndirectedOption = False,
    normalisation: ask.NormalisationOption = "row",
    isolated: ask.IsolatedOption = "error",
    self_loops: ask.SelfLoopsOption = "error",
    diagonal: ask.DiagonalOption = "auto",
    figure: Annotated[Path | None, typer.Option(help="Draw costs and welfare into a .png, .pdf or .svg.")] = None,
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Compare mechanisms: server cost, welfare, price of anarchy and who is below zero, under common and own reward."""
    options = dict(locals())
    from rich.console import Console
    from rich.progress import Progress

    from mppfl.arrays import require_count
    from mppfl.errors import BadInput
    from mppfl.game.compare import COMPARED, compare, summarise

    require_count(seeds, "seeds")
    ask.check_rounds(rounds)
    given = ask.Inputs.among(options)
    names = COMPARED if mechanisms is None else tuple(name.strip() for name in mechanisms.split(",") if name.strip())
    if not names:
        raise BadInput(f"--mechanisms={mechanisms!r} names none. Name at least one: {', '.join(COMPARED)}.")
    chosen = {name: ask.chosen_mechanism(name, payment_limit, fixed_budget) for name in names}
    ask.check_payment_limit(payment_limit, names)
    if figure is not None:
        check_figure(figure)
    rows: list[Row] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("comparing", total=seeds)
        for number in range(seeds):
            game = ask.make_the_game(given, seed + number)
            found = compare(
                game,
                chosen,
                num_rounds=rounds,
                seed=seed + number,
                progress=lambda done, all_, n=number: bar.update(task, completed=n + done / all_),  # type: ignore[misc]
            )
            rows.extend(replace(row, game=number) for row in found)
    summaries = summarise(rows)
    if figure is not None:
        from mppfl.results.figures import comparison_figure

        comparison_figure(summaries, figure, rounds)
    if json:
        ask.print_json(as_json(summaries, rows, rounds, seeds))
    else:
        show(summaries, rounds, seeds)
        for note in dict.fromkeys(
            note for row in rows if row.mechanism == "fixed" and seeds == 1 for note in row.notes
        ):
            typer.echo(f"fixed: {note}")
        if figure is not None:
            typer.echo(f"figure: {figure}")


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


def as_json(summaries: list[Summary], rows: list[Any], rounds: int, seeds: int) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "seeds": seeds,
        "summary": [asdict(summary) for summary in summaries],
        "games": [asdict(row) for row in rows],
    }


def show(summaries: list[Summary], rounds: int, seeds: int) -> None:
    """One table per reward convention."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(width=118) if not Console().is_terminal else Console()
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
                f"{s.dearer_than_mppfl}, {s.worse_than_mppfl} of {s.num_games}",
            )
        console.print(table)


def _figure(value: float) -> str:
    return "–" if not abs(value) < 1e15 else f"{value:,.1f}"
