"""`deploy status`: what is lost is named, what is damaged is told with its file, and programs learn of both."""

import json
import shutil
import sqlite3

import numpy as np
import pytest

from mppfl import flower
from mppfl.errors import BadFile, BadInput
from mppfl.privacy import ReleaseCost
from mppfl.privacy.ledger import PrivacyLedger

RUN = "run-1"


@pytest.fixture
def layout(tmp_path):
    """Two clients after one round that was paid, in a folder whose name needs quoting."""
    flower.write_app(tmp_path / "my app", 2, 2)
    layout = flower.Layout(tmp_path / "my app")
    clients = flower.make_nodes(layout, flower.deployed_experiment(layout.experiment))
    server, model = flower.ServerFolder(layout.server), np.zeros(3)
    with server.locked():
        server.keep(flower.ServerState(RUN, "key", 1, model, model, {}, np.ones((2, 2)), np.ones(2), tuple(clients)))
    server.note(1, {"accuracy": 0.5, "loss": 1.0, "absent": []})
    with flower.Accounts.open(server.accounts) as accounts:
        accounts.ask([flower.Entry(RUN, 1, client, 2.0, 4.0, 0.25) for client in clients])
        accounts.settle(RUN, 1, [flower.Settlement(client, "paid", "", 0.25) for client in clients])
    for client, path in layout.ledgers().items():
        with PrivacyLedger.open(path) as ledger:
            ledger.reserve(RUN, 1, [ReleaseCost(client, "local client update", "client", "replace_one", 0.25)])
    return layout


@pytest.fixture
def ask(mppfl, layout):
    """Calls `deploy status`: its exit code, what it says, and what it says as JSON."""

    def status():
        facts, plain = mppfl("deploy", "status", layout.app, "--json"), mppfl("deploy", "status", layout.app)
        assert facts.code == plain.code
        return plain.code, plain.stdout, json.loads(facts.stdout)

    return status


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("ledger.sqlite", "client 1: server 0.25, client 0 (NOT ACCOUNTED FOR; its ledger"),
        ("", "missing     the ledger of client 1, whose node was made on this machine"),
    ],
)
def test_a_lost_ledger_or_node_is_named_and_nothing_goes_on_without_it(layout, ask, lost, said):
    place = layout.node(1) / lost
    place.unlink() if lost else shutil.rmtree(place)
    code, text, facts = ask()
    assert code == 1
    assert said in text
    assert "agree to the last bit" not in text
    assert (facts["missing"], facts["is_sound"], facts["ledgers_read"]) == (["1"], False, 1)
    (gap,) = facts["differences"]
    assert (gap["client"], gap["kind"], gap["is_harmless"]) == ("1", "NOT ACCOUNTED FOR", False)
    with pytest.raises(BadInput, match=r"nodes/1/ledger.sqlite is missing, the ledger of client '1'.*Restore a copy"):
        flower.deploy_local(layout.app, resume=True)
    assert not (layout.node(1) / "ledger.sqlite").exists()
    shutil.rmtree(layout.folder / "nodes")
    assert flower.status_of(layout.app).missing == ("0", "1")


def test_ledgers_are_read_and_missed_without_the_keys_and_those_of_other_machines_are_not_missed(layout):
    def found():
        status = flower.status_of(layout.app)
        return status.is_sound, status.missing, status.ledgers_read

    layout.keys.unlink()
    assert found() == (True, (), 2)
    shutil.rmtree(layout.node(1))
    assert found() == (False, ("1",), 1)
    shutil.rmtree(layout.folder / "nodes")
    layout.made_here.unlink()  # as where such a node was never made here: its client has a key, and nothing else
    assert found() == (True, (), 0)


def test_an_answer_that_never_came_is_presumed_spent_and_ends_with_0(layout, ask):
    with flower.Accounts.open(flower.ServerFolder(layout.server).accounts) as accounts:
        accounts.ask([flower.Entry(RUN, 2, "1", 2.0, 4.0, 0.25)])
    code, _, facts = ask()
    (gap,) = facts["differences"]
    assert (code, gap["kind"]) == (0, "presumed, not spent")
    assert (gap["paid"], gap["ledger"], gap["server"]) == (0.25, 0.25, 0.5)


@pytest.mark.parametrize("column", ["amount = amount * 10", "state = 'lost'", "price = 3.0"])
def test_an_amount_that_the_books_own_terms_do_not_give_is_told_and_ends_with_1(layout, ask, column):
    with sqlite3.connect(flower.ServerFolder(layout.server).accounts) as book:
        book.execute(f"UPDATE entries SET {column} WHERE client = '1'")
    code, text, facts = ask()
    assert code == 1
    assert "misbooked   client 1, round 1: " in text
    assert (len(facts["misbooked"]), facts["is_sound"]) == (1, False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("keys.json", b"{"),
        ("keys.json", b"[1]"),
        ("keys.json", b'{"0": 1}'),
        ("nodes.json", b"{"),
        ("nodes.json", b"[1]"),
        ("server/rounds.jsonl", b"[1]\n"),
        ("server/rounds.jsonl", b'{"round_index": 1, "accuracy": "high"}\n'),
        ("server/rounds.jsonl", b'{"round_index": 1, "lost": 3}\n'),
        ("server/checkpoint.npz", b"PK"),
        ("server/accounts.sqlite", b"not a book"),
    ],
)
def test_a_damaged_file_is_told_with_its_path_and_what_to_do_before_anything_is_started(layout, name, content):
    (layout.folder / name).write_bytes(content)
    for look in (flower.status_of, lambda app: flower.deploy_local(app, resume=True)):
        with pytest.raises(BadFile, match=r"[Rr]estore a copy|not an mppfl account book") as refused:
            look(layout.app)
        assert str(layout.folder / name) in str(refused.value)
    assert not layout.logs.exists()


def test_a_line_of_the_log_that_was_cut_short_even_within_a_letter_is_passed_over(layout):
    with (layout.server / "rounds.jsonl").open("ab") as log:
        log.write('{"round_index": 2, "absent": ["ä'.encode()[:-1] + b"\n")
        log.write(b'{"round_index": 2, "accuracy": 0.75}\n')
    assert flower.status_of(layout.app).accuracy == 0.75


def test_a_damaged_note_of_processes_means_that_nothing_runs(layout):
    for content in ("[]", "{}", "{", '{"launcher": null}', '{"launcher": 1e400}', '{"launcher": 9e99}'):
        layout.processes.write_text(content)
        assert not flower.status_of(layout.app).running


def test_payments_go_into_a_file_and_not_a_folder_and_remedies_can_be_pasted_into_a_shell(layout, tmp_path):
    with pytest.raises(BadInput, match=r"--payments .* is a folder"):
        flower.status_of(layout.app, tmp_path)
    (layout.server / "checkpoint.npz").unlink()
    with pytest.raises(BadInput, match=r"mppfl deploy local '.*my app'$"):
        flower.status_of(layout.app)
