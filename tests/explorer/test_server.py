"""The server: who may ask, which files it gives, and what the command that starts it says."""

import csv
import importlib.util
import io
import json
import re
import socket
import subprocess
import tomllib
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from mppfl import explorer
from mppfl.errors import BadInput
from mppfl.explorer import COOKIE, AccessControl, Site, World, access_for, address_of, cookie_for, make_app

TOKEN = "0123456789abcdefghij"
PLACES = ("/", "/assets/explorer.js", "/_dash-layout", "/_dash-dependencies", "/download/data.csv", "/favicon.ico")
OTHER_PAGES = ("http://evil.example", "null", "http://[::1", "http://127.0.0.1:9", "http://localhost.evil.example")


def visitor(access=None, site=None, **options):
    """Asks the server, without a browser."""
    return make_app(site or Site(World()), access or AccessControl()).server.test_client(**options)


@pytest.fixture(scope="module")
def here():
    """A visitor of this machine, where nobody else can come."""
    return visitor()


def in_one_line(answer):
    text = answer.get_data(as_text=True)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize(
    ("host", "origin", "refusal"),
    [
        *((host, None, "") for host in ("127.0.0.1", "127.0.0.1:8050", "localhost:8050", "[::1]:8050")),
        ("127.0.0.1:8050", "http://127.0.0.1:8050", ""),
        ("evil.example", None, "This page is served as 127.0.0.1 only, not as 'evil.example'.\n"),
        *(("127.0.0.1:8050", origin, "Another page may not ask on your behalf.\n") for origin in OTHER_PAGES),
    ],
)
def test_the_page_answers_to_the_names_of_this_machine_and_to_itself(here, host, origin, refusal):
    headers = {"Host": host} if origin is None else {"Host": host, "Origin": origin}
    for place in PLACES:
        with here.get(place, headers=headers) as answer:
            assert answer.status_code == (403 if refusal else 200)
            assert not refusal or in_one_line(answer) == refusal
    if refusal:
        assert in_one_line(here.post("/_dash-update-component", json={}, headers=headers)) == refusal


@pytest.mark.parametrize("place", [*PLACES, "/nowhere", "/_dash-update-component", "/download/nothing.csv"])
def test_every_answer_forbids_the_browser_to_go_elsewhere(here, place):
    with here.get(place) as answer:
        assert answer.status_code < 500
    policy = dict(each.split(" ", 1) for each in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in policy["script-src"]
    assert policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_answers_to_the_address_it_is_served_on():
    second = visitor(AccessControl("127.0.0.2"))
    assert second.get("/", headers={"Host": "127.0.0.2:8050"}).status_code == 200
    refused = second.get("/", headers={"Host": "127.0.0.3:8050"})
    assert in_one_line(refused) == "This page is served as 127.0.0.1 or 127.0.0.2 only, not as '127.0.0.3'.\n"


@pytest.mark.parametrize("host", ["[::1", "127.0.0.1]", "a b", "[x]:1"])
def test_a_host_that_is_none_is_refused(here, host):
    assert here.get("/", headers={"Host": host}).status_code in (400, 403)


# ---- served to others --------------------------------------------------------------------------------------------


def test_others_need_the_token_which_moves_from_the_address_into_a_cookie():
    guest = visitor(AccessControl("0.0.0.0", TOKEN))
    for place in PLACES:
        assert guest.get(place).status_code == 403
        assert guest.get(f"{place}?token=wrong-wrong-wrong-wrong").status_code == 403
        answer = guest.get(place, headers={"Cookie": f"{COOKIE}={TOKEN[:-1]}"})
        assert answer.status_code == 403
        assert TOKEN not in in_one_line(answer)
    assert guest.post("/_dash-update-component", json={}).status_code == 403
    answer = guest.get(f"//evil.example/?token={TOKEN}")  # the way back leads nowhere else
    assert not answer.headers.get("Location", "/").startswith(("//", "http"))
    guest = visitor(AccessControl("0.0.0.0", TOKEN))
    answer = guest.get(f"/?alpha=0.1&token={TOKEN}&run=a&run=b")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/?alpha=0.1&run=a&run=b")
    cookie, *rules = answer.headers["Set-Cookie"].split("; ")
    assert cookie == f"{COOKIE}={TOKEN}"
    assert {"HttpOnly", "SameSite=Strict"} <= set(rules)
    for place in PLACES:
        with guest.get(place) as seen:
            assert seen.status_code == 200


def test_two_explorers_on_one_host_do_not_take_each_others_cookies():
    tokens = {8050: TOKEN, 8051: TOKEN[::-1]}
    for port, token in tokens.items():
        answer = visitor(AccessControl("0.0.0.0", token)).get(f"/?token={token}", headers={"Host": f"192.0.2.7:{port}"})
        assert answer.headers["Set-Cookie"].startswith(f"{COOKIE}-{port}={token};")
    both = "; ".join(f"{COOKIE}-{port}={token}" for port, token in tokens.items())
    fresh = visitor(AccessControl("0.0.0.0", TOKEN), use_cookies=False)
    assert fresh.get("/", headers={"Host": "192.0.2.7:8050", "Cookie": both}).status_code == 200
    assert fresh.get("/", headers={"Host": "192.0.2.7:8051", "Cookie": both}).status_code == 403
    assert [cookie_for(host) for host in ("a", "[::1]", "[::1]:80")] == [COOKIE, COOKIE, f"{COOKIE}-80"]


def test_access_for_others_needs_a_token():
    assert access_for("127.0.0.1", None).token is access_for("localhost", None).token is None
    assert access_for("127.0.0.1", TOKEN).token == TOKEN
    assert len(access_for("0.0.0.0", None).token) >= 32
    assert access_for("0.0.0.0", None).token != access_for("0.0.0.0", None).token
    with pytest.raises(BadInput, match="lets others in, which needs a token"):
        AccessControl("192.168.0.7")
    for short in ("", "short"):  # an empty one, as from a variable that is not set, is not no token
        with pytest.raises(BadInput, match=rf"--token has {len(short)} characters. Give at least 16"):
            access_for("127.0.0.1", short)
    for odd in ("\n", "\x7f", "\0", "é"):
        with pytest.raises(BadInput, match="--token has a character that is no printable ASCII"):
            access_for("127.0.0.1", TOKEN + odd)


# ---- downloads ----------------------------------------------------------------------------------------------------


def test_data_are_files_that_no_browser_keeps(here):
    answer = here.get("/download/data.csv?clients=8&rounds=5&round=4")
    assert answer.mimetype == "text/csv"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="mppfl-data.csv"'
    assert answer.headers["Cache-Control"] == "no-store"
    rows = list(csv.DictReader(io.StringIO(answer.get_data(as_text=True))))
    clients = json.loads(here.get("/download/data.json?clients=8&rounds=5&round=4").data)["clients"]
    assert rows == [{name: str(value) for name, value in client.items()} for client in clients]


def test_the_experiment_file_names_the_file_of_the_network(site, large_network):
    text = visitor(site=site).get("/download/experiment.toml?network=file").get_data(as_text=True)
    assert tomllib.loads(text)["network"]["source"] == str(large_network)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/download/nothing.csv", "'nothing.csv' is not made here. Ask for data.csv, data.json or experiment.toml."),
        ("/download/data.exe", "'data.exe' is not made here."),
        ("/download/data.csv?alpha=much", "alpha='much' in the link must be a number."),
        ("/download/data.csv?network=file", "network='file' is not here (any more). Choose one of random."),
        ("/download/data.csv?network=/etc/passwd", "must be one of random, file, run."),
    ],
)
def test_what_is_not_made_here_is_refused_in_one_line(here, path, said):
    answer = here.get(path)
    assert (answer.status_code, answer.mimetype) == (400, "text/plain")
    assert said in in_one_line(answer)


@pytest.mark.parametrize(
    "path",
    ["/download/..%2f..%2fetc%2fpasswd.csv", "/download/../../etc/passwd.csv", "/download/%2e%2e%2fpasswd.csv",
     "/assets/..%2fserver.py", "/assets/../server.py"],
)  # fmt: skip
def test_no_path_leads_out_of_the_server(here, path):
    with here.get(path) as answer:
        assert answer.status_code == 404 or b"<title>mppfl explorer</title>" in answer.data  # the page itself
        assert b"root:" not in answer.data
        assert b"import annotations" not in answer.data


def test_a_request_that_is_too_large_is_not_read(here):
    answer = here.post("/_dash-update-component", data=b"x" * 1_000_001, content_type="application/json")
    assert answer.status_code == 413


# ---- the command -------------------------------------------------------------------------------------------------


def test_the_command_prints_a_link_with_a_token_where_others_can_come(command):
    options = ("--no-browser", "--host", "0.0.0.0", "--port", "0")
    with subprocess.Popen([command, "explore", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            said = server.stdout.readline().decode()
            found = re.search(r"explorer at http://0\.0\.0\.0:(\d+)/\?token=([\w-]{32,})", said)
            assert found is not None, said
            address = f"http://127.0.0.1:{found[1]}/_dash-layout"
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                urllib.request.urlopen(address, timeout=120)
            refused.value.close()
            asked = urllib.request.Request(address, headers={"Cookie": f"{COOKIE}-{found[1]}={found[2]}"})
            with urllib.request.urlopen(asked, timeout=120) as answer:
                assert answer.status == 200
        finally:
            server.terminate()


def test_the_printed_link_lets_in_whatever_the_token_is_made_of(mppfl, monkeypatch):
    served = SimpleNamespace(effective_port=8050, run=lambda: None, close=lambda: None)
    monkeypatch.setattr(explorer, "bind", lambda *given: served, raising=False)
    monkeypatch.setattr(explorer, "warm_up", lambda: None, raising=False)
    token = 'pQ+9zK/4hT7sLw==&a%20;" b#c'
    link = re.search(r"http://127\.0\.0\.1:8050(/\S+)", mppfl("explore", "--no-browser", "--token", token).stdout)[1]
    guest = visitor(AccessControl("127.0.0.1", token))
    assert guest.get(link).status_code == 302
    assert guest.get("/").status_code == 200  # the cookie holds it, too


def test_of_the_addresses_of_localhost_one_is_served_on(monkeypatch):
    real = socket.getaddrinfo

    def both(host, *given, **more):
        names = ("::1", "192.0.2.7", "127.0.0.1") if host == "localhost" else (host,)
        return [found for name in names for found in real(name, *given, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert address_of("localhost") == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *given, **more: real("192.0.2.7", *given, **more))
    with pytest.raises(BadInput, match="--host=localhost is another machine"):
        address_of("localhost")


@pytest.mark.parametrize("host", ["nonsense.invalid", "", " ", "a..b", "a\0b", "x" * 300])
def test_a_host_that_cannot_be_resolved_is_told_in_one_line(mppfl, host):
    message = mppfl("explore", "--no-browser", "--port", "0", "--host", host).error
    assert "cannot be resolved (" in message
    assert message.endswith("Give an address, such as 127.0.0.1.")


def test_what_the_explorer_needs_and_lacks_is_told_in_one_line(mppfl, mppfl_process, monkeypatch, tmp_path):
    assert "does not exist" in mppfl("explore", "--no-browser", "--graph", tmp_path / "none.csv").error
    assert "no such folder" in mppfl("explore", "--no-browser", "--run", tmp_path / "none").error
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = mppfl_process("explore", "--no-browser", "--port", port).error
    assert message.startswith(f"127.0.0.1:{port} cannot be served from (")
    assert message.endswith("Choose another --port or --host.")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "dash" else real(name, *rest))
    assert mppfl("explore", "--no-browser").error == "dash is not installed. Run: pip install 'mppfl[explore]'"
