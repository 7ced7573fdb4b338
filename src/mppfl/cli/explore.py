"""mppfl explore (alone: one file a command): the game, its parameters and one client's exposure, in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from mppfl.cli.inputs import Asked, MechanismOption, with_game, working
from mppfl.spec import GameSpec

if TYPE_CHECKING:
    from mppfl.explorer import Site

NEEDED = ("dash", "dash_cytoscape", "waitress")


@with_game()
def explore_command(
    asked: Asked,
    mechanism: MechanismOption = "mppfl",
    run: Annotated[Path | None, typer.Option(help="Folder of a training, finished or running, or of several.")] = None,
    host: Annotated[str, typer.Option(help="Address to serve on; any but 127.0.0.1 needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to serve on; 0 takes a free one.", min=0, max=65535)] = 8050,
    token: Annotated[str | None, typer.Option(help="Access token; made where other machines reach the page.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")] = True,
) -> None:
    """Explore in a browser: network, prices and exposure under other parameters, and trainings while they run."""
    from mppfl.exports import require

    # Small networks are solved in milliseconds, more than waking BLAS's threads takes; numpy is not loaded yet.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    require(*NEEDED)
    from mppfl.explorer import access_for, address_of, bind, make_app, warm_up

    access, bound = access_for(host, token), address_of(host)
    with working("opening"):
        site = open_site(asked.game, run, asked.one_mechanism(mechanism))
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


def open_site(game: GameSpec, run: Path | None = None, mechanism: str = "mppfl") -> Site:
    """What the page shows: the network of a file, the runs of a folder, or a random network."""
    from dataclasses import replace

    from mppfl.experiment import network_of
    from mppfl.explorer import READ_AS, Choices, RunReader, Site, ViewState, World

    view, networks = ViewState(mechanism=mechanism), {"random": "drawn at random"}
    if game.graph is not None:
        typed = {name: getattr(game, name) for name in READ_AS if getattr(game, name) != "error"}
        game = replace(game, **(READ_AS | typed | {"graph": str(Path(game.graph).absolute())}))
        networks[str(game.graph)] = Path(str(game.graph)).name
    reader = None if run is None else RunReader(run)
    if reader is not None:
        finished = [reader.folder / name for name, is_finished in reader.list().items() if is_finished]
        view = replace(view, tab="run" if game.graph is None else "network")
        if finished:
            edges = str((finished[0] / "edges.csv").absolute())
            networks[edges] = "the network of the run"
            if game.graph is None:
                game = replace(game, graph=edges, family=None, num_clients=None, **READ_AS)
    graph = network_of(game) if game.graph is not None else None
    return Site(World(list(networks)[1:], game, graph), Choices(game, view), reader, networks)
