"""The file of a ledger: what was changed by hand, cut short or damaged is noticed, and what is no ledger left alone."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadFile, LedgerUnavailable, MppflError
from mppfl.privacy.ledger import PrivacyLedger
from tests.privacy.test_ledger import cost


def refused_in_one_line(path, **how):
    with pytest.raises(BadFile) as refused, PrivacyLedger.open(path, **how) as ledger:
        ledger.verify()
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def edited(path, *edits):
    """The ledger after somebody wrote into its file by hand."""
    with closing(sqlite3.connect(path)) as connection:
        for edit in edits:
            connection.execute(*edit) if isinstance(edit, tuple) else connection.execute(edit)
        connection.commit()
    return path


def cap_by_hand(client, cap):
    return "UPDATE caps SET budget = ? WHERE client = (SELECT id FROM clients WHERE name = ?)", (cap, client)


def filled(path):
    with PrivacyLedger.open(path) as ledger:
        ledger.set_cap(["ann", "bob"], 1.0, "record")
        for round_index in (1, 2, 3):
            ledger.reserve("run", round_index, [cost("ann"), cost("bob")])
        ledger.set_cap("bob", 0.5, "record")
        ledger.store_upload("run", 1, "ann", b"noisy")
        ledger.store_upload("run", 2, "ann", b"noisy too")
        ledger.mark_sent("run", 2, "ann")
        ledger.mark_sent("run", 3, "bob")
        assert ledger.verify() == 6
    return path


def filled_with_many(path):
    with PrivacyLedger.open(path) as ledger:
        ledger.set_cap("ann", 100.0, "record")
        for round_index in range(1, 41):
            ledger.reserve("run", round_index, [cost(f"client {number}") for number in range(20)])
        ledger.store_upload("run", 1, "client 3", b"noisy")
    return path


steps = st.lists(
    st.tuples(
        st.sampled_from(["cap", "reserve", "store", "send"]), st.sampled_from(["ann", "bob"]), st.floats(0.0, 1.0)
    ),
    max_size=20,
)


@settings(max_examples=60)
@given(steps)
def test_whatever_is_done_in_whatever_order_the_ledger_verifies(done):
    with PrivacyLedger.in_memory() as ledger:
        reserved: dict[str, int] = {}
        for number, (what, client, figure) in enumerate(done, 1):
            if what == "cap":
                ledger.set_cap(client, figure, "record")
            elif what == "reserve":
                if ledger.reserve_each("run", number, [cost(client, figure + 1e-3)]).reserved:
                    reserved[client] = number
            elif client in reserved and what == "store":
                if ledger.stored_upload("run", reserved[client], client) is None:
                    ledger.store_upload("run", reserved.pop(client), client, b"noisy")
            elif client in reserved:
                ledger.mark_sent("run", reserved.pop(client), client)
            ledger.verify()


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        (["UPDATE events SET budget = 0.01 WHERE id = 5"], "event 5 does not follow"),
        (["UPDATE events SET noise_kind = 'discrete' WHERE id = 5"], "event 5 does not follow"),
        (["DELETE FROM events WHERE id = 5"], "event 6 does not follow"),
        (["UPDATE totals SET budget = budget / 2 WHERE client = 1"], "the sums do not agree"),
        (["DELETE FROM totals WHERE client = 1"], "the sums do not agree"),
        (["UPDATE clients SET name = 'somebody' WHERE id = 1"], "does not follow"),
        (["UPDATE uploads SET content = x'00'"], "the upload of event 1 was changed"),
        (["DELETE FROM uploads"], "a stored upload is missing"),
        (["UPDATE state SET events = 5"], "the ledger ends after 6 events"),
        ([cap_by_hand("ann", 1000.0)], "the cap of client 'ann' was changed"),
        ([cap_by_hand("bob", 0.1)], "the cap of client 'bob' was changed"),
        (["DELETE FROM caps WHERE client = 1"], "the cap of client 'ann' was changed"),
        (["DELETE FROM caps"], "the cap of client 'ann' was changed"),
        (["UPDATE caps SET unit = 'client' WHERE client = 1"], "the cap of client 'ann' was changed"),
        (["UPDATE events SET status = 'sent' WHERE id = 1"], "the status of event 1 was changed"),
        (["UPDATE events SET status = 'reserved' WHERE id = 6"], "the status of event 6 was changed"),
        (
            ["UPDATE events SET status = 'reserved' WHERE id = 1", "DELETE FROM uploads WHERE event = 1"],
            "the status of event 1 was changed",
        ),
        (["DELETE FROM uploads WHERE event = 3"], "the upload of event 3 was changed"),
        (
            [("UPDATE uploads SET content = ?, sha256 = ? WHERE event = 1", (b"x", hashlib.sha256(b"x").digest()))],
            "the upload of event 1 was changed",
        ),
        (["UPDATE changes SET budget = 1000 WHERE id = 1", cap_by_hand("ann", 1000.0)], "change 1 of a cap"),
        (["UPDATE changes SET after_event = 0 WHERE id = 3"], "change 3 of a cap"),
        (["DELETE FROM changes WHERE id = 3", cap_by_hand("bob", 1.0)], "change 4 of a cap"),
        (["DELETE FROM changes"], "event 1 does not follow"),
        (["DELETE FROM changes WHERE id = 7"], "the ledger ends after 6 events"),
        (["DROP TABLE changes"], "is damaged"),
        (["PRAGMA user_version=4"], "is a privacy ledger of version 4; this program reads version 5"),
        (["PRAGMA user_version=6"], "is a privacy ledger of version 6; this program reads version 5"),
    ],
)
def test_edits_are_noticed(path, edits, says):
    assert says in refused_in_one_line(edited(filled(path), *edits))


def test_a_cap_that_was_raised_by_hand_and_put_back_after_the_release_is_noticed(path):
    edited(filled(path), cap_by_hand("bob", 9.0))
    with PrivacyLedger.open(path) as ledger:
        ledger.reserve("run", 4, [cost("bob", 0.3)])
    edited(path, cap_by_hand("bob", 0.5))
    assert "event 7 passes the cap that client 'bob' had then" in refused_in_one_line(path)


def test_a_cap_in_epsilon_is_part_of_the_chain_and_what_passed_it_is_noticed(path):
    with PrivacyLedger.open(path) as ledger:
        ledger.set_cap("ann", 3.0, "record", dp_delta=1e-5)
        ledger.reserve("run", 1, [cost("ann", 0.1)])
    edited(path, "UPDATE caps SET budget = 30.0")
    assert "the cap of client 'ann' was changed" in refused_in_one_line(path)
    with PrivacyLedger.open(path) as ledger:
        ledger.reserve("run", 2, [cost("ann", 2.0)])
    edited(path, "UPDATE caps SET budget = 3.0")
    assert "event 2 passes the cap that client 'ann' had then" in refused_in_one_line(path)


def test_a_cap_set_to_what_it_is_adds_nothing_to_the_chain(path):
    with PrivacyLedger.open(path) as ledger:
        ledger.set_cap(["ann", "ann"], -0.0, "record")
        before = ledger.head
        ledger.set_cap("ann", 0.0, "record")
        assert ledger.head == before
        ledger.set_cap("ann", 0.1, "record")
        assert ledger.head != before
        ledger.verify()


@pytest.mark.parametrize("term", ["extra_delta", "noise_multiplier"])
def test_a_zero_with_a_sign_is_a_zero(path, term):
    with PrivacyLedger.open(path) as ledger:
        ledger.reserve("run", 1, [cost("ann", **{term: -0.0})])
        assert ledger.verify() == 1


def cut_back(path, events):
    """The ledger as it was after so many events, every sum and cap in order: only a noted head can tell."""
    with PrivacyLedger.open(path, read_only=True) as ledger:
        rows = list(ledger.events())[:events]
    path.unlink()
    with PrivacyLedger.open(path) as ledger:
        ledger._session = "session"
        ledger.set_cap(["ann", "bob"], 1.0, "record")
        for row in rows:
            ledger.reserve(row["run"], row["round_index"], [cost(row["client"])])
        return ledger.verify()


def test_a_ledger_that_was_cut_back_is_noticed_by_a_noted_head(path):
    heads = []
    with PrivacyLedger.open(path) as ledger:
        ledger._session = "session"
        heads.append(ledger.head)
        ledger.set_cap(["ann", "bob"], 1.0, "record")
        for round_index in (1, 2, 3):
            ledger.reserve("run", round_index, [cost("ann")])
            heads.append(ledger.head)
        ledger.set_cap("bob", 0.5, "record")
        heads.append(ledger.head)
        ledger.mark_sent("run", 3, "ann")
        heads.append(ledger.head)
        for head in (None, *heads, f" {heads[2].upper()}"):
            assert ledger.verify(head) == 3
        for strange in ("", "abc", heads[2][:-1], "0" * 63 + "1"):
            with pytest.raises(BadFile, match="is no link of its chain"):
                ledger.verify(strange)
    assert cut_back(path, 2) == 2
    with PrivacyLedger.open(path) as ledger:
        assert [ledger.verify(head) for head in heads[:3]] == [2, 2, 2]
        for head in heads[3:]:
            with pytest.raises(BadFile, match=r"the noted head .* is no link of its chain") as refused:
                ledger.verify(head)
            assert "\n" not in str(refused.value)


# ---- files that are no ledger, and disks that are full ----------------------------------------------------------


def test_foreign_files_are_refused_and_left_alone(tmp_path):
    text, empty, other = tmp_path / "text.db", tmp_path / "empty.db", tmp_path / "other.db"
    text.write_text("name,budget\n" * 100)
    empty.touch()
    edited(other, "CREATE TABLE events (id)")
    for foreign, why in ((text, "is not a privacy ledger"), (empty, "is empty"), (other, "another program")):
        before = foreign.read_bytes()
        assert why in refused_in_one_line(foreign)
        assert foreign.read_bytes() == before
    assert "is not a file" in refused_in_one_line(tmp_path)
    assert "Check the path" in refused_in_one_line(tmp_path / "nowhere" / "ledger.db")
    assert "no such ledger" in refused_in_one_line(tmp_path / "missing.db", must_exist=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty.db", "other.db", "text.db"]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_ledger_is_refused(path, share):
    content = filled_with_many(path).read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    refused_in_one_line(path)


def test_damaged_bytes_are_noticed_or_harmless(path, tmp_path):
    content, rng = filled_with_many(path).read_bytes(), random.Random(7)
    with PrivacyLedger.open(path) as ledger:
        spent = ledger.spent()
    noticed: list[str] = []
    for number in range(40):
        damaged = bytearray(content)
        place = rng.randrange(100, len(content))
        damaged[place : place + 8] = rng.randbytes(8)
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(damaged)
        try:
            with PrivacyLedger.open(copy) as ledger:
                ledger.verify()
                assert (ledger.spent() == spent).all()  # what was hit held nothing
        except MppflError as error:
            noticed.append(str(error))
    assert len(noticed) > 20
    assert not [line for line in noticed if "\n" in line]


def test_a_full_disk_is_told_and_nothing_may_be_released(path):
    with PrivacyLedger.open(path) as ledger:
        pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._connection.execute(f"PRAGMA max_page_count={pages + 4}")
        with pytest.raises(LedgerUnavailable, match="the disk is full; nothing was recorded"):
            ledger.reserve("run", 1, [cost(f"client {number}") for number in range(5000)])
        assert (len(ledger), ledger.clients) == (0, ())
        ledger.reserve("run", 1, [cost()])  # a small one still fits
        assert ledger.verify() == 1


def test_what_cannot_be_written_can_still_be_read(path):
    with PrivacyLedger.open(filled(path), read_only=True) as ledger:
        assert ledger.verify() == 6
        with pytest.raises(BadFile, match="cannot be written to"):
            ledger.reserve("run", 4, [cost()])
    assert "no such ledger" in refused_in_one_line(path.with_name("none.db"), read_only=True)


def test_a_file_without_permission_is_refused(path, monkeypatch):
    filled(path)
    monkeypatch.setattr(os, "access", lambda where, mode: mode != os.W_OK or Path(where) != path)
    assert "Give write permission" in refused_in_one_line(path)
