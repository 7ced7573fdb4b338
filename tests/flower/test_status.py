"""`deploy status`: what is lost is named, what is damaged is told with its file, and programs learn of both."""

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mppfl.cli import app
from mppfl.errors import BadFile, BadInput
from mppfl.flower import (
    Accounts,
    Entry,
    Layout,
    ServerFolder,
    ServerState,
    Settlement,
    deploy_local,
    deployed_experiment,
    make_nodes,
    status_of,
    write_app,
)
from mppfl.privacy import ReleaseCost
from mppfl.privacy.ledger import PrivacyLedger

RUN = "run-1"


@pytest.fixture
def layout(tmp_path):
    """Two clients after one round that was paid, in a folder whose name needs quoting."""
    folder = tmp_path / "my app"
    write_app(folder, 2, 2)
    found = Layout(folder)
    clients = make_nodes(found, deployed_experiment(found.experiment))
    server = ServerFolder(found.server)
    model = np.zeros(3)
    with server.locked():
        server.keep(ServerState(RUN, "key", 1, model, model, {}, np.ones((2, 2)), np.ones(2), tuple(clients)))
    server.note(1, {"accuracy": 0.5, "loss": 1.0, "absent": []})
    with Accounts.open(server.accounts) as accounts:
        accounts.ask([Entry(RUN, 1, client, 2.0, 4.0, 0.25) for client in clients])
        accounts.settle(RUN, 1, [Settlement(client, "paid", "", 0.25) for client in clients])
    for client, path in found.ledgers().items():
        with PrivacyLedger.open(path) as ledger:
            ledger.reserve(RUN, 1, [ReleaseCost(client, "client", "client", "replace-one", 0.25)])
    return found


def asked(layout, *more):
    return CliRunner().invoke(app, ["deploy", "status", str(layout.app), *more])


def test_books_that_agree_end_with_0(layout):
    done = asked(layout, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["is_sound"] is True


def test_a_lost_ledger_is_named_and_ends_with_1(layout):
    for path in layout.node(1).glob("ledger.sqlite*"):
        path.unlink()
    done = asked(layout)
    assert done.exit_code == 1
    assert "client 1: server 0.25, client 0 (NOT ACCOUNTED FOR; its ledger" in done.stdout
    assert "agree to the last bit" not in done.stdout
    told = json.loads(asked(layout, "--json").stdout)
    assert (told["missing"], told["is_sound"], told["ledgers_read"]) == (["1"], False, 1)
    assert [(gap["client"], gap["kind"], gap["is_harmless"]) for gap in told["differences"]] == [
        ("1", "NOT ACCOUNTED FOR", False)
    ]


def test_a_lost_folder_of_a_node_is_named_and_ends_with_1(layout):
    shutil.rmtree(layout.node(1))
    done = asked(layout)
    assert done.exit_code == 1
    assert "missing     the ledger of client 1, whose node was made on this machine" in done.stdout
    told = json.loads(asked(layout, "--json").stdout)
    assert (told["missing"], told["is_sound"], told["ledgers_read"]) == (["1"], False, 1)
    shutil.rmtree(layout.folder / "nodes")
    assert status_of(layout.app).missing == ("0", "1")


def test_ledgers_are_read_and_missed_without_the_keys(layout):
    layout.keys.unlink()
    found = status_of(layout.app)
    assert (found.is_sound, found.missing, found.ledgers_read) == (True, (), 2)
    shutil.rmtree(layout.node(0))
    found = status_of(layout.app)
    assert (found.is_sound, found.missing, found.ledgers_read) == (False, ("0",), 1)


def test_ledgers_on_other_machines_are_not_missed(layout):
    """Such a node was never made here: its client has a key, and nothing else, on the server's machine."""
    layout.made_here.unlink()
    shutil.rmtree(layout.folder / "nodes")
    found = status_of(layout.app)
    assert (found.is_sound, found.missing, found.ledgers_read) == (True, (), 0)


@pytest.mark.parametrize("lost", ["ledger", "node"])
def test_nothing_goes_on_without_the_ledger_of_a_client_that_was_paid(layout, lost):
    if lost == "node":
        shutil.rmtree(layout.node(1))
    else:
        for path in layout.node(1).glob("ledger.sqlite*"):
            path.unlink()
    with pytest.raises(BadInput, match=r"nodes/1/ledger.sqlite is missing, the ledger of client '1'.*Restore a copy"):
        deploy_local(layout.app, resume=True)
    assert not (layout.node(1) / "ledger.sqlite").exists()


def test_an_answer_that_never_came_is_presumed_spent_and_ends_with_0(layout):
    with Accounts.open(ServerFolder(layout.server).accounts) as accounts:
        accounts.ask([Entry(RUN, 2, "1", 2.0, 4.0, 0.25)])
    done = asked(layout, "--json")
    assert done.exit_code == 0
    (gap,) = json.loads(done.stdout)["differences"]
    assert (gap["kind"], gap["paid"], gap["ledger"], gap["server"]) == ("presumed, not spent", 0.25, 0.25, 0.5)


@pytest.mark.parametrize("column", ["amount = amount * 10", "state = 'lost'", "price = 3.0"])
def test_an_amount_that_the_books_own_terms_do_not_give_is_told_and_ends_with_1(layout, column):
    with sqlite3.connect(ServerFolder(layout.server).accounts) as book:
        book.execute(f"UPDATE entries SET {column} WHERE client = '1'")
    done = asked(layout)
    assert done.exit_code == 1
    assert "misbooked   client 1, round 1: " in done.stdout
    told = json.loads(asked(layout, "--json").stdout)
    assert (len(told["misbooked"]), told["is_sound"]) == (1, False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("keys.json", b"{"),
        ("keys.json", b"\xff\xfe"),
        ("keys.json", b"[1]"),
        ("keys.json", b'{"0": 1}'),
        ("nodes.json", b"{"),
        ("nodes.json", b"{}"),
        ("nodes.json", b"[1]"),
        ("server/rounds.jsonl", b"[1]\n"),
        ("server/rounds.jsonl", b'{"round_index": "1"}\n'),
        ("server/rounds.jsonl", b'{"round_index": 1, "accuracy": "high"}\n'),
        ("server/rounds.jsonl", b'{"round_index": 1, "lost": 3}\n'),
        ("server/checkpoint.npz", b"PK"),
        ("server/accounts.sqlite", b"not a book"),
    ],
)
def test_a_damaged_file_is_told_with_its_path_and_what_to_do_before_anything_is_started(layout, name, content):
    (layout.folder / name).write_bytes(content)
    for look in (status_of, lambda app: deploy_local(app, resume=True)):
        with pytest.raises(BadFile, match=r"[Rr]estore a copy|not an mppfl account book") as found:
            look(layout.app)
        assert str(layout.folder / name) in str(found.value)
    assert not layout.logs.exists()


def test_a_line_of_the_log_that_was_cut_short_even_within_a_letter_is_passed_over(layout):
    with (layout.server / "rounds.jsonl").open("ab") as log:
        log.write('{"round_index": 2, "absent": ["ä'.encode()[:-1] + b"\n")
        log.write(b'{"round_index": 2, "accuracy": 0.75}\n')
    assert status_of(layout.app).accuracy == 0.75


@pytest.mark.parametrize(
    "content", ["[]", "{}", "{", '{"launcher": null}', '{"launcher": 1e400}', '{"launcher": 9e99}']
)
def test_a_damaged_note_of_processes_means_that_nothing_runs(layout, content):
    layout.processes.write_text(content)
    assert not status_of(layout.app).running


def test_payments_go_into_a_file_and_not_a_folder(layout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".", "..", "my app"):
        with pytest.raises(BadInput, match=r"--payments .* is a folder"):
            status_of(layout.app, Path(name))


def test_remedies_can_be_pasted_into_a_shell(layout):
    (layout.server / "checkpoint.npz").unlink()
    with pytest.raises(BadInput, match=r"mppfl deploy local '.*my app'$"):
        status_of(layout.app)
