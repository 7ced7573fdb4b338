"""mppfl graph (alone: one file a command): describe, generate and convert social networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mppfl.cli import inputs
from mppfl.errors import BadInput
from mppfl.fields import from_text, hints, require_known
from mppfl.spec import FAMILY_OPTIONS, WEIGHT_OPTIONS, GameSpec

if TYPE_CHECKING:
    from mppfl.network import SocialGraph

app = typer.Typer(help="Describe, generate and convert social networks.", no_args_is_help=True)

Source = Annotated[Path, typer.Argument(help="Edge list (.csv, .tsv, .txt, .gz), GraphML or .npz.")]
Target = Annotated[Path, typer.Argument(help="Where to write: .csv, .csv.gz or .graphml.")]


@app.command("describe")
def describe_command(
    source: Annotated[Path | None, typer.Argument(help="Edge list, GraphML or .npz; or --experiment.")] = None,
    undirected: inputs.UndirectedOption = False,
    normalisation: inputs.NormalisationOption = "row",
    isolated: inputs.IsolatedOption = "keep",
    self_loops: inputs.SelfLoopsOption = "error",
    experiment: inputs.ExperimentOption = None,
    changes: inputs.SetOption = None,
    json: inputs.JsonOption = False,
) -> None:
    """Describe a network, of a file or of an experiment: size, degrees, reciprocity, isolated clients, components."""
    from mppfl.experiment import network_of

    if (source is None) == (experiment is None):
        raise typer.BadParameter("Describe one network: give a file of edges, or --experiment.")
    values = {"undirected": undirected, "normalisation": normalisation, "isolated": isolated, "self_loops": self_loops}
    if source is not None:
        spec = GameSpec(graph=str(source), **values)  # type: ignore[arg-type]
    else:
        typed = {name: value for name, value in values.items() if inputs.is_typed(name)}
        spec = inputs.asked(experiment, changes or (), typed, {}).game
    with inputs.working("reading the network"):
        facts = network_of(spec).describe()
    if json:
        inputs.print_json(facts)
        return
    least_in, mean_in, most_in = facts.exposed_by
    least_out, mean_out, most_out = facts.exposes
    strong = f"{100 * facts.strongly_connected_share:.1f} % strongly connected"
    lines = {
        "clients": f"{facts.num_clients:,}",
        "edges": f"{facts.num_edges:,}",
        "exposed by": f"{mean_in:.3g} others on average ({least_in} to {most_in:,})",
        "exposes": f"{mean_out:.3g} others on average ({least_out} to {most_out:,})",
        "reciprocity": f"{100 * facts.reciprocity:.1f} % of edges also run the other way",
        "influence": f"smallest {facts.smallest_influence:.3g}",
        "isolated": f"{facts.num_isolated:,} clients, {facts.num_isolated_pairs:,} pairs",
        "components": f"{facts.num_components:,}; {strong}",
    }
    inputs.print_lines(lines)


@app.command("generate")
def generate_command(
    kind: Annotated[
        str, typer.Argument(help="Kind: erdos_renyi, barabasi_albert, watts_strogatz, stochastic_block or skewed.")
    ],
    target: Target,
    num_clients: Annotated[int, inputs.option("Size of the network.")] = 20,
    seed: inputs.SeedOption = 0,
    option: Annotated[list[str] | None, inputs.option("An option of the kind, name=value.", name="--set")] = None,
) -> None:
    """Draw a random network and write it to a file."""
    from mppfl.experiment import network_of

    values: dict[str, Any] = {"family": kind, "num_clients": num_clients, "seed": seed}
    values |= dict(_name_and_value(kind, text) for text in option or [])
    inputs.check_target(target, ".csv", ".csv.gz", ".graphml")
    with inputs.working("drawing"):
        # Not normalised: dividing and multiplying again could change a weight's last digit.
        graph = network_of(GameSpec(**values, normalisation="none"))
    _write(graph, target)


def _name_and_value(kind: str, text: str) -> tuple[str, Any]:
    """An option of a kind from "name=value": a number, several separated by commas, or a word."""
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if not (name and equals and value):
        raise BadInput(f"--set {text!r} must be name=value, such as edges_each=3.")
    require_known([name], [*FAMILY_OPTIONS.get(kind, ()), *WEIGHT_OPTIONS])
    return name, from_text(hints(GameSpec)[name], value)


@app.command("convert")
def convert_command(
    source: Source,
    target: Target,
    undirected: inputs.UndirectedOption = False,
    isolated: inputs.IsolatedOption = "keep",
    self_loops: inputs.SelfLoopsOption = "error",
) -> None:
    """Read a network in one format and write it in another."""
    from mppfl.experiment import network_of

    inputs.check_target(target, ".csv", ".csv.gz", ".graphml")
    with inputs.working("reading the network"):
        values = {"undirected": undirected, "isolated": isolated, "self_loops": self_loops}
        values["normalisation"] = "none"  # weights as given, to the last digit
        graph = network_of(GameSpec(graph=str(source), **values))  # type: ignore[arg-type]
    if not _write(graph, target):
        typer.echo(
            "note: an edge list cannot keep the order of these clients, so what is drawn for clients goes to others "
            f"with {target.name}. Write .graphml to keep it.",
            err=True,
        )


def _write(graph: SocialGraph, target: Path) -> bool:
    """Writes the network; returns whether the file keeps the order of the clients."""
    import numpy as np

    from mppfl.network import write_edges, write_graphml

    keeps_order = True
    if target.suffix == ".graphml":
        write_graphml(graph, target)
    else:
        has_edge = np.diff(graph.influence.indptr) > 0
        has_edge[graph.influence.indices] = True
        if not has_edge.all():
            raise BadInput("an edge list cannot hold clients without any edge; write .graphml instead.")
        keeps_order = write_edges(graph, target)
    typer.echo(f"{target}: {graph.num_clients:,} clients, {graph.num_edges:,} edges")
    return keeps_order
