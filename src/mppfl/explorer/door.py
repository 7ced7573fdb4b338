"""Who may come in: requests from this machine alone, or with the token where the page is served to others.

Other web pages that the user has open can send requests to 127.0.0.1, too: they are told by Host and Origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from flask import Flask, Request, Response, redirect, request

from mppfl.errors import BadInput

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
class Door:
    """Where the page is served, and to whom.

    host   the address to bind to
    token  what a visitor must bring; None where only this machine can reach the page
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


def door_for(host: str, token: str | None) -> Door:
    """The door of an address: with a fresh token where others can reach it and none is given."""
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    return Door(host, token)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def guard(server: Flask, door: Door, policy: str) -> None:
    """Has the server ask every request for its right, and tell the browser to load nothing from elsewhere."""

    @server.before_request
    def check() -> Response | None:
        return refusal(request, door)

    @server.after_request
    def seal(response: Response) -> Response:
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = policy
        return response


def refusal(asked: Request, door: Door) -> Response | None:
    """None where the request may pass; else what to answer."""
    if door.token is None and _name(asked.host) not in (*HERE, door.host):
        here = dict.fromkeys(["127.0.0.1", door.host])
        return _no(f"This page is served as {' or '.join(here)} only, not as {_name(asked.host)!r}.")
    origin = asked.headers.get("Origin")
    if origin is not None and _place(origin) != asked.host:
        return _no("Another page may not ask on your behalf.")
    return None if door.token is None else _without_token(asked, door.token)


def _without_token(asked: Request, token: str) -> Response | None:
    """None for who has brought the token before; a cookie for who brings it now; else a refusal."""
    given = asked.args.get("token")
    if given is None:
        if _same(asked.cookies.get(cookie_for(asked.host), ""), token):
            return None
        return _no("Open the link that `mppfl explore` printed: it holds the token.")
    if not _same(given, token):
        return _no("The token in the link is not the one that `mppfl explore` printed.")
    # Out of the address, where it would be seen and copied, into a cookie that scripts cannot read.
    rest = [(key, value) for key, value in asked.args.items(multi=True) if key != "token"]
    answer: Response = redirect(asked.path + (f"?{urlencode(rest)}" if rest else ""))
    answer.set_cookie(cookie_for(asked.host), token, httponly=True, samesite="Strict", secure=asked.is_secure)
    return answer


def cookie_for(host: str) -> str:
    """The cookie's name, with the port: browsers send a host's cookies to all of its ports, other explorers' too."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdecimal() else COOKIE


def _name(host: str) -> str:
    """A Host header without its port; nothing where it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # half a pair of brackets
        return ""


def _place(origin: str) -> str:
    """Host and port of an Origin header; nothing where it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _no(reason: str) -> Response:
    return Response(reason + "\n", 403, mimetype="text/plain")
