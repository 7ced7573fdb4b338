"""mppfl explore (alone: one file a command): the game, its parameters and one client's exposure, in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from mppfl.cli.inputs import DebugOption, GraphOption, UndirectedOption, working

if TYPE_CHECKING:
    from mppfl.explorer import Site

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
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    debug: DebugOption = False,
) -> None:
    """Explore in a browser: network, prices and exposure under other parameters, and trainings while they run."""
    from mppfl.exports import require

    # Small networks are solved in milliseconds, more than waking BLAS's threads takes; numpy is not loaded yet.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    require(*NEEDED)
    from mppfl.explorer import access_for, address_of, bind, make_app, warm_up

    access, bound = access_for(host, token), address_of(host)
    with working("opening"):
        site = open_site(graph, run, undirected=undirected)
    server = bind(make_app(site, access), bound, port)
    name = f"[{host}]" if ":" in host else host
    query = "" if access.token is None else f"?token={quote(access.token, safe='')}"
    address = f"http://{name}:{server.effective_port}/{query}"
    typer.echo(f"explorer at {address}   (Ctrl-C ends it)")
    sys.stdout.flush()
    Thread(target=warm_up, daemon=True).start()  # loads compiled code while the reader looks at the first picture
    if browser:
        import webbrowser

        webbrowser.open(address)
    try:
        server.run()
    finally:
        server.close()


def open_site(graph: Path | None, run: Path | None, *, undirected: bool) -> Site:
    """What the page shows: the network of a file, the runs of a folder, or a random network."""
    from dataclasses import replace

    from mppfl.explorer import Choices, RunReader, Site, World
    from mppfl.network import read_graph

    start, networks = Choices(), {"random": "drawn at random"}
    given: dict[str, Any] = {}
    reader = None if run is None else RunReader(run)
    if reader is not None:
        finished = [reader.folder / entry.name for entry in reader.list() if entry.finished]
        if finished:
            given["run_source"] = finished[0] / "edges.csv"
            networks["run"] = "the network of the run"
            start = replace(start, network="run")
        start = replace(start, tab="run")
    if graph is not None:
        networks["file"] = graph.name
        start = replace(start, network="file", undirected=undirected, tab="network")
        edges = read_graph(graph, undirected=undirected, isolated=start.isolated, self_loops=start.self_loops)
        given |= {"graph": edges, "source": graph.absolute(), "undirected": undirected}
    return Site(World(**given), start, reader, networks)
