"""The server: the page, its downloads, and who may ask for them."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

from dash import Dash
from flask import Flask, Response, request

from mppfl.errors import BadInput, MppflError
from mppfl.explorer.callbacks import connect
from mppfl.explorer.door import Door, guard, is_loopback
from mppfl.explorer.downloads import download
from mppfl.explorer.page import page
from mppfl.explorer.site import Site

ASSETS = Path(__file__).parent / "assets"
THREADS = 4
INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>{%metas%}<title>{%title%}</title><link rel="icon" type="image/svg+xml" href="/assets/icon.svg">{%css%}</head>
  <body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def make_app(site: Site, door: Door) -> Dash:
    """The page over a site, ready to be served."""
    flask = Flask("mppfl-explorer")
    flask.config["MAX_CONTENT_LENGTH"] = site.uploads.request_limit
    app = Dash(
        "mppfl-explorer",
        server=flask,
        title="mppfl explorer",
        update_title=None,
        assets_folder=str(ASSETS),
        serve_locally=True,
        compress=False,
        add_log_handler=False,
        index_string=INDEX,
    )
    megabytes = site.uploads.most_bytes / 1e6
    runs = [] if site.runs is None else [entry.name for entry in site.runs.list()]
    app.layout = page(site.start, site.networks, runs, megabytes)
    connect(app, site)
    guard(flask, door, _policy(app))

    @flask.get("/download/<what>.<kind>")
    def send(what: str, kind: str) -> Response:
        try:
            file = download(site, what, kind, request.query_string.decode("utf-8", "replace"))
        except MppflError as error:
            return Response(f"{error}\n", 400, mimetype="text/plain")
        named = {"Content-Disposition": f'attachment; filename="{file.name}"', "Cache-Control": "no-store"}
        return Response(file.content, mimetype=file.kind, headers=named)

    @flask.errorhandler(413)
    def too_large(_: Exception) -> tuple[str, int]:
        return f"More than {megabytes:g} MB. Open the file with --graph, or raise --upload-limit.\n", 413

    return app


def _policy(app: Dash) -> str:
    """Nothing is loaded from, or sent to, any other host: the browser itself holds the page to that."""
    scripts = " ".join(["'self'", *app.csp_hashes()])
    parts = {
        "default-src": "'self'",
        "script-src": scripts,
        "style-src": "'self' 'unsafe-inline'",  # Plotly and Cytoscape set styles as they draw
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def address_of(host: str) -> str:
    """The one address to serve on by this name, of which there may be several: for localhost, IPv4's and IPv6's."""
    try:
        if not host.strip():
            raise ValueError("it is empty")
        found = [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, ValueError) as cause:  # what cannot be written as a name at all is a ValueError
        reason = getattr(cause, "strerror", None) or cause
        raise BadInput(f"--host={host!r:.80} leads nowhere ({reason}). Give an address, such as 127.0.0.1.") from cause
    if host == "localhost":  # served without a token, so it must be what it says
        found = sorted(filter(is_loopback, found), key=lambda each: ":" in each)
    if not found:
        raise BadInput(f"--host={host} is another machine by this one's list of names. Give 127.0.0.1.")
    return found[0]


def bind(app: Dash, host: str, port: int) -> Any:
    """A server that listens already; `run()` serves until it is closed."""
    from waitress.server import create_server  # type: ignore[import-untyped]

    logging.getLogger("waitress").setLevel(logging.ERROR)  # its queue's depth is of no use to a reader
    try:
        return create_server(app.server, host=host, port=port, threads=THREADS, clear_untrusted_proxy_headers=True)
    except (OSError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise BadInput(f"{host}:{port} cannot be served from ({reason}). Choose another --port or --host.") from cause
