"""mppfl explore (alone: one file a command): the game, its parameters and one client's exposure, in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from mppfl.cli.inputs import DebugOption, GraphOption, UndirectedOption, working

if TYPE_CHECKING:
    from mppfl.explorer import RunReader, Site
    from mppfl.network import SocialGraph

NEEDED = ("dash", "dash_cytoscape", "waitress")


def explore_command(
    graph: GraphOption = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Folder of a training, finished or running, or of several.")
    ] = None,
    undirected: UndirectedOption = False,
    host: Annotated[str, typer.Option(help="Address to serve on; any but 127.0.0.1 needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to serve on; 0 takes a free one.", min=0, max=65535)] = 8050,
    token: Annotated[
        str | None, typer.Option(help="Access token. Generated when the page is reachable from other machines.")
    ] = None,
    upload_limit: Annotated[float, typer.Option(help="Largest file that may be uploaded, MB.", min=0.001)] = 25.0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    debug: DebugOption = False,
) -> None:
    """Explore in a browser: network, prices and exposure under other parameters, and trainings while they run."""
    from mppfl.exports import require

    # Small networks are solved in milliseconds, more than waking BLAS's threads takes; numpy is not loaded yet.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    require(*NEEDED)
    from mppfl.explorer import address_of, bind, door_for, make_app, warm_up

    door, bound = door_for(host, token), address_of(host)
    with working("opening"):
        site = open_site(graph, run, undirected=undirected, upload_megabytes=upload_limit)
    try:
        server = bind(make_app(site, door), bound, port)
        name = f"[{host}]" if ":" in host else host
        query = "" if door.token is None else f"?token={quote(door.token, safe='')}"
        address = f"http://{name}:{server.effective_port}/{query}"
        typer.echo(f"explorer at {address}   (Ctrl-C ends it)")
        sys.stdout.flush()
        warm_up()
        if browser:
            import webbrowser

            webbrowser.open(address)
        try:
            server.run()
        finally:
            server.close()
    finally:
        site.uploads.close()


def network_of_runs(reader: RunReader) -> tuple[SocialGraph, Path] | None:
    """The network of the first finished run, and its edge list; None before one is finished."""
    from mppfl.experiment import load_run

    for entry in reader.list():
        if entry.finished:
            folder = reader.folder / entry.name
            return load_run(folder).graph, folder / "links.csv"
    return None


def open_site(graph: Path | None, run: Path | None, *, undirected: bool, upload_megabytes: float) -> Site:
    """What the page shows: the network of a file, the runs of a folder, or a random network."""
    from dataclasses import replace

    from mppfl.explorer import Choices, RunReader, Site, Uploads, World
    from mppfl.network import read_graph

    reader = None if run is None else RunReader(run)
    start = Choices()
    networks = {"random": "drawn at random"}
    given: dict[str, Any] = {}
    of_run = None if reader is None else network_of_runs(reader)
    if reader is not None:
        if of_run is not None:
            given["run_graph"] = of_run[0]
            networks["run"] = "the network of the run"
            start = replace(start, network="run")
        start = replace(start, tab="run")
    if graph is not None:
        networks["file"] = graph.name
        start = replace(start, network="file", undirected=undirected, tab="network")
        links = read_graph(graph, undirected=undirected, isolated=start.isolated, self_loops=start.self_loops)
        given |= {"graph": links, "source": graph.absolute(), "undirected": undirected}
    world = World(**given)
    if of_run is not None:
        world.add_file("run", of_run[1])
    return Site(world, Uploads(upload_megabytes), start, reader, networks)
