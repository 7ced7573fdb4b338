"""mppfl graph: describe, generate and convert social networks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mppfl.cli import inputs as ask

app = typer.Typer(help="Describe, generate and convert social networks.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(help="Edge list (.csv, .tsv, .txt, .gz), GraphML or .npz.")]
Target = Annotated[Path, typer.Argument(help="Where to write: .csv, .csv.gz or .graphml.")]


@app.command("describe", cls=ask.Command)
def describe_command(
    source: Source,
    undirected: ask.UndirectedOption = False,
    normalisation: ask.NormalisationOption = "row",
    isolated: ask.IsolatedOption = "keep",
    self_loops: ask.SelfLoopsOption = "error",
    json: ask.JsonOption = False,
) -> None:
    """What a network looks like: size, degrees, reciprocity, isolated clients, connectedness."""
    from mppfl.network import describe, read_graph

    with ask.working("reading the network"):
        graph = read_graph(
            source,
            undirected=undirected,
            normalisation=normalisation,  # type: ignore[arg-type]
            isolated=isolated,  # type: ignore[arg-type]
            self_loops=self_loops,  # type: ignore[arg-type]
        )
        found = describe(graph)
    if json:
        ask.print_json(asdict(found))
        return
    low, mean, high = found.exposed_by
    less, usual, more = found.exposes
    lines = {
        "clients": f"{found.num_clients:,}",
        "links": f"{found.num_links:,}",
        "exposed by": f"{mean:.3g} others on average ({low} to {high:,})",
        "exposes": f"{usual:.3g} others on average ({less} to {more:,})",
        "reciprocity": f"{100 * found.reciprocity:.1f} % of links also run the other way",
        "influence": f"smallest {found.smallest_influence:.3g}",
        "isolated": f"{found.num_isolated:,} clients, {found.num_isolated_pairs:,} pairs",
        "connected": f"{found.num_components:,} parts; {100 * found.strongly_connected_share:.1f} % strongly connected",
    }
    for label, text in lines.items():
        typer.echo(f"{label:<16}{text}")


@app.command("generate", cls=ask.Command)
def generate_command(
    kind: Annotated[
        str, typer.Argument(help="erdos_renyi, barabasi_albert, watts_strogatz, stochastic_block or skewed.")
    ],
    target: Target,
    num_clients: Annotated[int, typer.Option("--num-clients", help="Size of the network.")] = 20,
    seed: ask.SeedOption = 0,
    option: Annotated[list[str] | None, typer.Option("--set", help="An option of the family, as name=value.")] = None,
) -> None:
    """Draw a random network and write it down."""
    from mppfl.network import random_graph

    options = dict(_name_and_value(text) for text in option or [])
    _check_target(target)
    with ask.working("drawing"):
        # Not normalised: dividing and multiplying again could change a weight's last digit.
        graph = random_graph(kind, num_clients, rng=ask.generator(seed), normalisation="none", **options)
    _write(graph, target)


def _name_and_value(text: str) -> tuple[str, Any]:
    """An option of a family from "name=value": a number, several separated by commas, or a word."""
    from mppfl.errors import BadInput

    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if not (name and equals and value):
        raise BadInput(f"--set {text!r} must be name=value, such as links_each=3.")
    if name in ("kind", "num_clients", "rng", "normalisation"):
        raise BadInput(f"--set {text!r}: no family has this option. Use --num-clients or --seed.")
    if value.startswith("[") and value.endswith("]"):  # as in an experiment file
        value = value[1:-1]
    parts = [_number_or_word(part.strip()) for part in value.split(",")]
    return name, parts if len(parts) > 1 else parts[0]


def _number_or_word(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


@app.command("convert", cls=ask.Command)
def convert_command(
    source: Source,
    target: Target,
    undirected: ask.UndirectedOption = False,
    isolated: ask.IsolatedOption = "keep",
    self_loops: ask.SelfLoopsOption = "error",
) -> None:
    """Read a network in one form and write it in another."""
    from mppfl.network import read_graph

    _check_target(target)
    with ask.working("reading the network"):
        graph = read_graph(
            source,
            undirected=undirected,
            normalisation="none",  # weights as given, to the last digit
            isolated=isolated,  # type: ignore[arg-type]
            self_loops=self_loops,  # type: ignore[arg-type]
        )
    if not _write(graph, target):
        typer.echo(
            "note: a list of links cannot keep the order of these clients, so what is drawn for clients goes to others "
            f"with {target.name}. Write .graphml to keep it.",
            err=True,
        )


def _check_target(target: Path) -> None:
    """Refuses a form that cannot be written before anything is drawn or read."""
    from mppfl.errors import BadInput

    if not target.name.endswith((".csv", ".csv.gz", ".graphml")):
        raise BadInput(f"{str(target)!r} must end in .csv, .csv.gz or .graphml.")


def _write(graph: object, target: Path) -> bool:
    """Writes the network; returns whether whoever reads it finds the clients in the same order."""
    from mppfl.errors import BadInput
    from mppfl.network import SocialGraph, write_graphml, write_links

    if not isinstance(graph, SocialGraph):
        raise TypeError("a SocialGraph is needed")
    keeps_order = True
    if target.suffix == ".graphml":
        write_graphml(graph, target)
    else:
        if len(graph.isolated) and not _all_linked(graph):
            raise BadInput("an edge list cannot hold clients without any link; write .graphml instead.")
        keeps_order = write_links(graph, target)
    typer.echo(f"{target}: {graph.num_clients:,} clients, {graph.num_links:,} links")
    return keeps_order


def _all_linked(graph: object) -> bool:
    import numpy as np

    influence = graph.influence  # type: ignore[attr-defined]
    linked = np.diff(influence.indptr) > 0
    linked[influence.indices] = True
    return bool(linked.all())
