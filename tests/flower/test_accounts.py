"""The server's book: durable, never under-counted, never paid twice."""

import csv
import math
import sqlite3

import pytest

from mppfl.errors import BadFile, BadInput
from mppfl.flower import Accounts, Entry, Settlement, differences_from_ledgers, differences_from_reports
from mppfl.privacy import ReleaseCost
from mppfl.privacy.ledger import PrivacyLedger


def entry(client="ann", round_index=1, budget=0.5, **more):
    return Entry("run", round_index, client, 2.0, 4.0, budget, **more)


@pytest.fixture
def book(tmp_path):
    with Accounts.open(tmp_path / "accounts.sqlite") as accounts:
        yield accounts


@pytest.mark.parametrize(
    ("state", "spent", "owed"), [("paid", 0.5, 8.0), ("rejected", 0.5, 0.0), ("refused", 0.0, 0.0), ("lost", 0.5, 0.0)]
)
def test_only_a_taken_upload_is_paid_and_only_a_refusal_spends_nothing(book, state, spent, owed):
    book.ask([entry()])
    assert book.spent() == {"ann": 0.5}  # asked and not answered counts as spent
    book.settle("run", 1, [Settlement("ann", state)])
    assert (book.spent(), book.owed()) == ({"ann": spent}, {"ann": owed})


@pytest.mark.parametrize("states", [("paid", "paid"), ("paid", "lost"), ("lost", "paid")])
def test_a_repeated_round_is_paid_once(book, states):
    for state in states:
        book.ask([entry()])
        book.settle("run", 1, [Settlement("ann", state)])
    assert (book.spent(), book.owed()) == ({"ann": 0.5}, {"ann": 8.0})
    with Accounts.open(book.path, read_only=True) as accounts:  # as another process sees it
        assert accounts.owed() == {"ann": 8.0}


def test_terms_do_not_change_once_they_were_asked(book):
    book.ask([entry()])
    with pytest.raises(BadInput, match=r"budget=0\.5, not 0\.6"):
        book.ask([entry(budget=0.6)])


def test_nothing_of_a_settlement_is_kept_if_one_client_was_never_asked(book):
    book.ask([entry()])
    with pytest.raises(BadInput, match="'bob' was not asked"):
        book.settle("run", 1, [Settlement("ann", "paid"), Settlement("bob", "paid")])
    assert book.owed() == {"ann": 0.0}


def test_an_upload_without_noise_is_paid_nothing(book):
    book.ask([Entry("run", 1, "ann", 2.0, math.inf, math.inf)])
    book.settle("run", 1, [Settlement("ann", "paid")])
    assert (book.spent(), book.owed()) == ({"ann": math.inf}, {"ann": 0.0})


def test_the_csv_holds_every_row_and_adds_up(book, tmp_path):
    book.ask([entry("ann"), entry("bob")])
    book.settle("run", 1, [Settlement("ann", "paid"), Settlement("bob", "refused", "over the cap", 0.0)])
    assert book.export_csv(tmp_path / "out.csv") == 2
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [(row["client"], row["state"], float(row["amount"])) for row in rows] == [
        ("ann", "paid", 8.0),
        ("bob", "refused", 0.0),
    ]


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("CREATE TABLE theirs (x)")
    before = (tmp_path / "other.sqlite").read_bytes()
    with pytest.raises(BadFile, match="not an mppfl account book"):
        Accounts.open(tmp_path / "other.sqlite")
    assert (tmp_path / "other.sqlite").read_bytes() == before


def test_no_accounts_are_made_by_looking_for_them(tmp_path):
    with pytest.raises(BadFile, match="there is no such account book"):
        Accounts.open(tmp_path / "none.sqlite", read_only=True)
    assert not (tmp_path / "none.sqlite").exists()


def ledger_with(path, budgets):
    with PrivacyLedger.open(path) as ledger:
        for at, budget in enumerate(budgets, start=1):
            ledger.reserve("run", at, [ReleaseCost("ann", "client", "client", "replace-one", budget)])


def test_reconciliation_agrees_to_the_last_bit_or_names_the_client(book, tmp_path):
    budgets = [0.1, 0.2, 0.3]  # 0.1 + 0.2 + 0.3 is not 0.6 in binary: the order of adding matters
    ledger_with(tmp_path / "ann.sqlite", budgets)
    for at, budget in enumerate(budgets, start=1):
        book.ask([entry(round_index=at, budget=budget)])
        book.settle("run", at, [Settlement("ann", "paid", "", sum(budgets[:at], 0.0))])
    ledgers = {"ann": tmp_path / "ann.sqlite"}
    assert differences_from_ledgers(book.entries(), ledgers, "run") == []
    assert differences_from_reports(book.entries(), "run") == []
    book.ask([entry(round_index=4, budget=0.4)])  # asked, never answered
    (found,) = differences_from_ledgers(book.entries(), ledgers, "run")
    assert (found.client, found.is_harmless, found.what) == ("ann", True, "no answer, or none that counts, in round 4")


def test_a_client_that_says_it_spent_more_than_the_server_knows_of_is_no_harmless_difference(book):
    book.ask([entry()])
    book.settle("run", 1, [Settlement("ann", "paid", "", 0.75)])
    (found,) = differences_from_reports(book.entries(), "run")
    assert (found.server, found.ledger, found.is_harmless) == (0.5, 0.75, False)


@pytest.mark.parametrize("held", [[], [0.1]])
def test_a_ledger_that_holds_less_than_was_paid_for_is_no_harmless_difference(book, tmp_path, held):
    if held:
        ledger_with(tmp_path / "ann.sqlite", held)
    for at, budget in enumerate([0.1, 0.2, 0.3], start=1):
        book.ask([entry(round_index=at, budget=budget)])
        book.settle("run", at, [Settlement("ann", "lost" if at == 3 else "paid", "", sum(held))])
    (found,) = differences_from_ledgers(book.entries(), {"ann": tmp_path / "ann.sqlite"}, "run")
    assert (found.paid, found.ledger, found.is_harmless, found.kind) == (
        0.1 + 0.2, sum(held), False, "NOT ACCOUNTED FOR",
    )  # fmt: skip
    assert ("is missing" in found.what) == (not held)
    (told,) = differences_from_reports(book.entries(), "run")
    assert not told.is_harmless


def test_a_damaged_page_is_told_with_the_file(tmp_path):
    path = tmp_path / "accounts.sqlite"
    with Accounts.open(path) as accounts:
        accounts.ask([entry(f"client {at}") for at in range(500)])
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with (
        Accounts.open(path, read_only=True) as accounts,
        pytest.raises(BadFile, match=r"accounts\.sqlite: .*Restore a copy"),
    ):
        accounts.entries()
