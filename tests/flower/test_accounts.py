"""The server's book: durable, never under-counted, never paid twice."""

import pytest

from mppfl.errors import BadInput
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
    assert [row.spent for row in book.entries()] == [0.5]  # asked and not answered counts as spent
    book.settle("run", 1, [Settlement("ann", state)])
    assert ([row.spent for row in book.entries()], book.owed()) == ([spent], {"ann": owed})


def test_terms_do_not_change_once_they_were_asked_and_nothing_is_kept_of_a_settlement_with_a_stranger(book):
    book.ask([entry()])
    with pytest.raises(BadInput, match=r"budget=0\.5, not 0\.6"):
        book.ask([entry(budget=0.6)])
    with pytest.raises(BadInput, match="'bob' was not asked"):
        book.settle("run", 1, [Settlement("ann", "paid"), Settlement("bob", "paid")])
    assert book.owed() == {"ann": 0.0}


def test_a_client_that_says_it_spent_more_than_the_server_knows_of_is_no_harmless_difference(book):
    book.ask([entry()])
    book.settle("run", 1, [Settlement("ann", "paid", "", 0.75)])
    (gap,) = differences_from_reports(book.entries(), "run")
    assert (gap.server, gap.ledger, gap.is_harmless) == (0.5, 0.75, False)


BUDGETS = [0.1, 0.2, 0.3]  # 0.1 + 0.2 + 0.3 is not 0.6 in binary: the order of adding matters


@pytest.mark.parametrize("held", [[], [0.1], BUDGETS])
def test_accounts_agree_to_the_last_bit_and_a_ledger_that_lacks_what_was_paid_for_is_named(book, tmp_path, held):
    path = tmp_path / "ann.sqlite"
    for round_index, budget in enumerate(BUDGETS, start=1):
        if budget in held:
            with PrivacyLedger.open(path) as ledger:
                ledger.reserve(
                    "run", round_index, [ReleaseCost("ann", "local client update", "client", "replace_one", budget)]
                )
        book.ask([entry(round_index=round_index, budget=budget)])
        state = "lost" if round_index == 3 and held != BUDGETS else "paid"
        book.settle("run", round_index, [Settlement("ann", state, "", sum(held[:round_index], 0.0))])
    gaps = differences_from_ledgers(book.entries(), {"ann": path}, "run")
    assert ["is missing" in gap.what for gap in gaps] == ([] if held == BUDGETS else [not held])
    gaps += differences_from_reports(book.entries(), "run")
    assert [(gap.client, gap.ledger, gap.kind) for gap in gaps] == [("ann", sum(held), "NOT ACCOUNTED FOR")] * len(gaps)
    assert len(gaps) == (0 if held == BUDGETS else 2)
