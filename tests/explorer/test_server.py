"""The server: who may ask, which files it gives, and what the command that starts it says."""

from __future__ import annotations

import csv
import io
import re
import socket
import subprocess
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from pytest import approx

from mppfl import explorer
from mppfl.errors import BadInput
from mppfl.explorer import COOKIE, AccessControl, Site, World, access_for, address_of, cookie_for, make_app
from tests.explorer.chosen import choose

TOKEN = "0123456789abcdefghij"
PLACES = ("/", "/assets/explorer.js", "/_dash-layout", "/_dash-dependencies", "/download/data.csv", "/favicon.ico")


def visitor(access=None, site=None, **options):
    """Asks the server, without a browser."""
    return make_app(site or Site(World()), access or AccessControl()).server.test_client(**options)


@pytest.fixture(scope="module")
def here():
    """A visitor of this machine, where nobody else can come."""
    return visitor()


@pytest.fixture
def anybody():
    """A visitor of a page that is served to others; brings nothing so far."""
    return visitor(AccessControl("0.0.0.0", TOKEN))


def in_one_line(answer):
    text = answer.get_data(as_text=True)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text


def test_the_page_answers_to_the_names_it_is_served_as_and_to_no_other(here):
    for host in ("127.0.0.1", "127.0.0.1:8050", "localhost:8050", "[::1]:8050"):
        assert here.get("/", headers={"Host": host}).status_code == 200
    for place in PLACES:
        answer = here.get(place, headers={"Host": "evil.example"})
        assert answer.status_code == 403
        assert "127.0.0.1 only" in in_one_line(answer)
    for host in ("[::1", "127.0.0.1]", "a b", "[x]:1"):
        assert here.get("/", headers={"Host": host}).status_code in (400, 403)
    second = visitor(AccessControl("127.0.0.2"))
    assert second.get("/", headers={"Host": "127.0.0.2:8050"}).status_code == 200
    refused = second.get("/", headers={"Host": "127.0.0.3:8050"})
    assert in_one_line(refused) == "This page is served as 127.0.0.1 or 127.0.0.2 only, not as '127.0.0.3'.\n"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://[::1", "http://127.0.0.1:9", "http://localhost.evil.example"]
)
def test_another_page_may_not_ask(here, origin):
    answer = here.post("/_dash-update-component", json={}, headers={"Host": "127.0.0.1:8050", "Origin": origin})
    assert answer.status_code == 403
    assert in_one_line(answer) == "Another page may not ask on your behalf.\n"
    own = {"Host": "127.0.0.1:8050", "Origin": "http://127.0.0.1:8050"}
    assert here.get("/_dash-layout", headers=own).status_code == 200


def test_every_answer_forbids_the_browser_to_go_elsewhere(here):
    for place in (*PLACES, "/nowhere", "/_dash-update-component", "/download/nothing.csv"):
        with here.get(place) as answer:
            assert answer.status_code < 500
        policy = dict(each.split(" ", 1) for each in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["connect-src"] == policy["script-src"].split()[0] == "'self'"
        assert "unsafe" not in policy["script-src"]
        assert policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


# ---- served to others --------------------------------------------------------------------------------------------


def test_without_the_token_there_is_nothing_to_see(anybody):
    for place in PLACES:
        assert anybody.get(place).status_code == 403
        assert anybody.get(f"{place}?token=wrong-wrong-wrong-wrong").status_code == 403
        answer = anybody.get(place, headers={"Cookie": f"{COOKIE}={TOKEN[:-1]}"})
        assert answer.status_code == 403
        assert TOKEN not in in_one_line(answer)
    assert anybody.post("/_dash-update-component", json={}).status_code == 403


def test_the_token_moves_from_the_address_into_a_cookie_and_the_way_back_leads_nowhere_else(anybody):
    elsewhere = anybody.get(f"//evil.example/?token={TOKEN}").headers.get("Location", "/")
    assert not elsewhere.startswith(("//", "http"))
    answer = anybody.get(f"/?alpha=0.1&token={TOKEN}&run=a&run=b")
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/?alpha=0.1&run=a&run=b"
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"{COOKIE}={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    for place in PLACES:
        with anybody.get(place) as seen:
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
    assert access_for("127.0.0.1", None).token is None
    assert access_for("localhost", None).token is None
    assert access_for("127.0.0.1", TOKEN).token == TOKEN
    assert all(len(access_for(host, None).token) >= 32 for host in ("0.0.0.0", "friends.example"))
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


def test_data_are_a_file_of_the_round_shown_which_is_not_kept(here, world):
    scene = world.scene(choose(num_clients=8, num_rounds=5, round_shown=4))
    answer = here.get("/download/data.csv?num_clients=8&num_rounds=5&round_shown=4")
    rows = list(csv.DictReader(io.StringIO(answer.get_data(as_text=True))))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="mppfl-data.csv"'
    assert (answer.mimetype, answer.headers["Cache-Control"]) == ("text/csv", "no-store")
    assert [float(row["spent_so_far"]) for row in rows] == approx(scene.spent)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/download/nothing.csv", "'nothing.csv' is not made here. Ask for data.csv, data.json or experiment.toml."),
        ("/download/data.csv?max_hops=much", 'max_hops="much" must be a whole number.'),
        ("/download/data.csv?graph=/etc/passwd", "graph='/etc/passwd' is not here (any more)."),
    ],
)
def test_what_is_not_made_here_is_refused_in_one_line(here, path, said):
    answer = here.get(path)
    assert (answer.status_code, answer.mimetype) == (400, "text/plain")
    assert said in in_one_line(answer)


def test_no_path_leads_out_of_the_server(here):
    for path in (
        *("/download/..%2f..%2fetc%2fpasswd.csv", "/download/../../etc/passwd.csv", "/download/%2e%2e%2fpasswd.csv"),
        *("/assets/..%2fserver.py", "/assets/../server.py"),
    ):
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
    bound = SimpleNamespace(effective_port=8050, run=list, close=list)  # it has served
    monkeypatch.setattr(explorer, "bind", lambda *given: bound, raising=False)
    monkeypatch.setattr(explorer, "warm_up", lambda: None, raising=False)
    token = 'pQ+9zK/4hT7sLw==&a%20;" b#c'
    said = mppfl("explore", "--no-browser", "--token", token).stdout
    link = re.search(r"http://127\.0\.0\.1:8050(/\S+)", said)[1]
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
def test_a_host_that_cannot_be_resolved_is_told_in_one_line(host):
    with pytest.raises(BadInput, match=r"(?s)cannot be resolved \(.*Give an address, such as 127\.0\.0\.1\.$"):
        address_of(host)


def test_a_port_that_is_taken_is_told_in_one_line(mppfl_process):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = mppfl_process("explore", "--no-browser", "--port", port).error
    assert said.startswith(f"127.0.0.1:{port} cannot be served from (")
    assert said.endswith("Choose another --port or --host.")
