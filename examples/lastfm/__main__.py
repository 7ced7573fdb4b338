"""python -m examples.lastfm: music among real friends, with a page to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mppfl import cli as ask

if TYPE_CHECKING:
    from examples.lastfm.experiment import Outcome, Score

PAGE, FIGURES = "report.html", "results.json"


def lastfm_command(
    data: Annotated[Path, typer.Option("--data", help="Folder with user_friends.dat and user_artists.dat.")],
    output: Annotated[Path, typer.Option("--output", help="Folder for the page and its figures.")] = Path("lastfm"),
    splits: Annotated[int, typer.Option("--splits", help="Random splits of every list.")] = 5,
    least_listeners: Annotated[int, typer.Option(help="Artists with fewer listeners are not in the catalogue.")] = 10,
    seed: ask.SeedOption = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
    json: ask.JsonOption = False,
    debug: ask.DebugOption = False,
) -> None:
    """Recommend music among real friends under three trust models, and measure what friends' profiles leak."""
    # Products here are small: where cores are shared, a second thread mostly waits, at three times the CPU time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dataclasses import replace

    from examples.lastfm.data import read_lastfm
    from examples.lastfm.experiment import Settings, run_experiment
    from examples.lastfm.page import as_json, write_figures, write_page

    from mppfl.arrays import require_count
    from mppfl.experiment import provenance_here, require_folder

    settings = Settings(num_splits=require_count(splits, "splits"), seed=require_count(seed, "seed", 0))
    require_folder(output)
    listening = read_lastfm(data, least_listeners=least_listeners)
    here = provenance_here()
    outcome = run_experiment(listening, settings, tell=lambda line: None if quiet else typer.echo(line, err=True))
    write_figures(outcome, output / FIGURES)
    page = write_page(outcome, replace(here, seconds=outcome.seconds), output / PAGE)
    if json:
        ask.print_json(as_json(outcome) | {"page": str(page)})
        return
    show(outcome)
    typer.echo(f"a page with figures: {page}")


def show(outcome: Outcome) -> None:
    """The figures that matter, for the terminal."""
    from examples.lastfm.experiment import TRUST_MODELS
    from examples.lastfm.page import verdict

    from mppfl.text import epsilon

    def line(name: str, score: Score, dp_epsilon: str) -> None:
        typer.echo(
            f"  {name:<34}{score.mean_budget:>8.3g}{dp_epsilon:>10}{score.ndcg:>10.3f}{score.hit_rate:>8.3f}"
            f"{score.recall:>11.3f}"
        )

    typer.echo(f"  {'':<34}{'mean ρ':>8}{'largest ε':>10}{'NDCG@10':>10}{'HR@10':>8}{'Recall@20':>11}")
    for reference in (outcome.popularity, outcome.noiseless):
        line(f"{reference.name}, unprotected", reference, "∞")
    for trust, scores in outcome.curves.items():
        typer.echo(TRUST_MODELS[trust])
        for score in scores:
            line("everybody the same", score, epsilon(score.dp_epsilon))
        for score in outcome.arms.get(trust, ()):
            line(score.name, score, epsilon(score.dp_epsilon))
    for sentence in verdict(outcome):
        typer.echo(sentence)


def main() -> None:
    """Runs `python -m examples.lastfm`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=ask.Command)(lastfm_command)
    ask.run(app)


if __name__ == "__main__":
    main()
