"""The server: the page, what can be downloaded from it, and who may ask for them.

Requests come from this machine alone, or bring the token where the page is served to others. Other web pages that the
user has open can send requests to 127.0.0.1, too: they are told by Host and Origin.
"""

from __future__ import annotations

import csv
import hmac
import io
import ipaddress
import json
import logging
import math
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from dash import Dash
from flask import Flask, Request, Response, redirect, request

from mppfl.errors import BadInput, MppflError
from mppfl.explorer.callbacks import connect
from mppfl.explorer.page import page
from mppfl.explorer.state import commands, from_link, to_link, to_toml
from mppfl.explorer.world import Scene, Site

ASSETS = Path(__file__).parent / "assets"
THREADS = 4
MOST_BYTES = 1_000_000  # of a request
INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>{%metas%}<title>{%title%}</title><link rel="icon" type="image/svg+xml" href="/assets/icon.svg">{%css%}</head>
  <body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def make_app(site: Site, access: AccessControl) -> Dash:
    """The page over a site, ready to be served."""
    flask = Flask("mppfl-explorer")
    flask.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
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
    runs = [] if site.runs is None else list(site.runs.list())
    app.layout = page(site.start, site.networks, runs)
    connect(app, site)
    _guard(flask, access, _content_policy(app))

    @flask.get("/download/<name>")
    def send(name: str) -> Response:
        try:
            kind, content = download(site, name, request.query_string.decode("utf-8", "replace"))
        except MppflError as error:
            return Response(f"{error}\n", 400, mimetype="text/plain")
        named = {"Content-Disposition": f'attachment; filename="mppfl-{name}"', "Cache-Control": "no-store"}
        return Response(content.encode(), mimetype=kind, headers=named)

    return app


def _content_policy(app: Dash) -> str:
    """Nothing is loaded from, or sent to, any other host: the browser itself holds the page to that."""
    parts = {
        "default-src": "'self'",
        "script-src": " ".join(["'self'", *app.csp_hashes()]),
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
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, ValueError) as cause:  # what cannot be written as a name at all is a ValueError
        reason = getattr(cause, "strerror", None) or cause
        raise BadInput(
            f"--host={host!r:.80} cannot be resolved ({reason}). Give an address, such as 127.0.0.1."
        ) from cause
    if host == "localhost":  # served without a token, so it must be what it says
        addresses = sorted(filter(is_loopback, addresses), key=lambda address: ":" in address)
    if not addresses:
        raise BadInput(f"--host={host} is another machine by this one's list of names. Give 127.0.0.1.")
    return addresses[0]


def bind(app: Dash, host: str, port: int) -> Any:
    """A server that listens already; `run()` serves until it is closed."""
    from waitress.server import create_server  # type: ignore[import-untyped]

    logging.getLogger("waitress").setLevel(logging.ERROR)  # its queue's depth is of no use to a reader
    try:
        return create_server(app.server, host=host, port=port, threads=THREADS, clear_untrusted_proxy_headers=True)
    except (OSError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise BadInput(f"{host}:{port} cannot be served from ({reason}). Choose another --port or --host.") from cause


# ---- downloads -----------------------------------------------------------------------------------------------------


def download(site: Site, name: str, query: str) -> tuple[str, str]:
    """Type and text of a file for the state of the page that the query holds."""
    choices = from_link(query)
    if name == "experiment.toml":  # sent as state.DOWNLOADED, the name that the file itself speaks of
        return "application/toml", to_toml(choices)
    if name not in ("data.csv", "data.json"):
        raise BadInput(f"{name[:60]!r} is not made here. Ask for data.csv, data.json or experiment.toml.")
    scene = site.world.scene(choices)
    rows = _rows(scene)
    if name == "data.csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return "text/csv", text.getvalue()
    shown, outcome = scene.round_index - 1, scene.solution.outcome
    content = {
        "link": to_link(choices),
        "commands": list(commands(choices)),
        "mechanism": choices.view.mechanism,
        "round_index": scene.round_index,
        "reward_rate": float(scene.solution.plan.reward_rates[shown]),
        "server_cost": float(outcome.server_costs[shown]),
        "welfare": float(outcome.welfare[shown]),
        "clients": rows,
    }
    return "application/json", json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _rows(scene: Scene) -> list[dict[str, Any]]:
    """The figures of every client in the round shown; None where one is infinite."""
    names = ("budget", "price", "payment", "external_risk", "privacy_loss", "utility")
    values = {name: scene.figures[name] for name in names}
    values |= {"spent_so_far": scene.spent, "external_risk_so_far": scene.external}
    columns = [[value if math.isfinite(value) else None for value in array.tolist()] for array in values.values()]
    return [dict(zip(("name", *values), row, strict=True)) for row in zip(scene.names, *columns, strict=True)]


# ---- who may ask ---------------------------------------------------------------------------------------------------

COOKIE = "mppfl-token"
LEAST_TOKEN = 16  # characters
HERE = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class AccessControl:
    """Where the page is served, and to whom.

    host   the address to bind to
    token  what a request must bring; None where only this machine can reach the page
    """

    host: str = "127.0.0.1"
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise BadInput(
                f"--token has {len(self.token)} characters. Give at least {LEAST_TOKEN}, ASCII, or leave it out."
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise BadInput("--token has a character that is no printable ASCII. Give another, or leave it out.")
        if self.token is None and not is_loopback(self.host):
            raise BadInput(f"--host={self.host} lets others in, which needs a token.")


def access_for(host: str, token: str | None) -> AccessControl:
    """The access to an address: with a fresh token where others can reach it and none is given."""
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    return AccessControl(host, token)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _guard(server: Flask, access: AccessControl, policy: str) -> None:
    """Checks every request, and tells the browser to load nothing from elsewhere."""

    @server.before_request
    def check() -> Response | None:
        return _refusal(request, access)

    @server.after_request
    def seal(response: Response) -> Response:
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = policy
        return response


def _refusal(asked: Request, access: AccessControl) -> Response | None:
    """None where the request may pass; else what to answer."""
    hostname = _part_of(f"//{asked.host}", "hostname")
    if access.token is None and hostname not in (*HERE, access.host):
        here = dict.fromkeys(["127.0.0.1", access.host])
        return _forbidden(f"This page is served as {' or '.join(here)} only, not as {hostname!r}.")
    origin = asked.headers.get("Origin")
    if origin is not None and _part_of(origin, "netloc") != asked.host:
        return _forbidden("Another page may not ask on your behalf.")
    return None if access.token is None else _token_refusal(asked, access.token)


def _token_refusal(asked: Request, token: str) -> Response | None:
    """None if the session cookie is valid; a redirect that sets it if the URL has the token; otherwise 403."""
    given = asked.args.get("token")
    if given is None:
        if _same(asked.cookies.get(cookie_for(asked.host), ""), token):
            return None
        return _forbidden("Open the link that `mppfl explore` printed: it holds the token.")
    if not _same(given, token):
        return _forbidden("The token in the link is not the one that `mppfl explore` printed.")
    # Out of the address, where it would be seen and copied, into a cookie that scripts cannot read.
    rest = [(key, value) for key, value in asked.args.items(multi=True) if key != "token"]
    answer: Response = redirect(asked.path + (f"?{urlencode(rest)}" if rest else ""))
    answer.set_cookie(cookie_for(asked.host), token, httponly=True, samesite="Strict", secure=asked.is_secure)
    return answer


def cookie_for(host: str) -> str:
    """The cookie's name, with the port: browsers send a host's cookies to all of its ports, other explorers' too."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdecimal() else COOKIE


def _part_of(address: str, part: str) -> str:
    """Hostname or netloc of an address; "" where it is none."""
    try:
        return getattr(urlsplit(address), part) or ""
    except ValueError:  # half a pair of brackets
        return ""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _forbidden(reason: str) -> Response:
    return Response(reason + "\n", 403, mimetype="text/plain")
