"""Profiles: what one record or one client moves before noise, what it costs, and that the ledger comes first."""

import math

import numpy as np
import pytest
from examples.lastfm.profiles import ONCE, SENSITIVITY, clean_profiles, protection_of, release_profiles
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from mppfl.errors import BadInput, BudgetExceeded
from mppfl.privacy import epsilon
from mppfl.privacy.ledger import PrivacyLedger

USERS = ("ann", "bob", "cat")
LISTS = np.array([[1.0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


def released(budgets, level="record", **options):
    options = {"rng": np.random.default_rng(0)} | options
    return release_profiles(LISTS, np.array(budgets), level, users=USERS, **options)


# ---- sensitivity --------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(0, 29))
@settings(max_examples=60, deadline=None)
def test_a_record_or_a_client_moves_its_profile_by_no_more_than_the_declared_sensitivity(heard, which):
    before = np.array([heard], dtype=float)
    after = before.copy()
    after[0, which % len(heard)] = 1 - after[0, which % len(heard)]  # one artist added or removed
    moved = np.linalg.norm(clean_profiles(after, "record") - clean_profiles(before, "record"))
    assert moved == SENSITIVITY == protection_of("record").sensitivity(ONCE)
    gone = np.linalg.norm(clean_profiles(before, "client") - clean_profiles(0 * before, "client"))
    assert gone == approx(float(any(heard)))
    assert gone <= protection_of("client").sensitivity(ONCE) * (1 + 1e-12)


# ---- noise and price ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["record", "client"])
def test_noise_is_what_the_budget_buys(level):
    lists = np.zeros((2, 40_000))
    answer = release_profiles(lists, np.array([0.5, 2.0]), level, users=USERS[:2], rng=np.random.default_rng(1))
    assert answer.variances == approx([1.0, 0.25])
    # 40,000 squares: their mean is off by 3 % with a chance of 2e-5.
    assert (answer.profiles**2).mean(axis=1) == approx(answer.variances, rel=0.03)


@pytest.mark.parametrize("level", ["record", "client"])
def test_the_ledger_holds_every_release_with_its_unit_and_epsilon(level):
    ledger = PrivacyLedger.in_memory()
    account = released([1.0, 0.25, 0.5], level, ledger=ledger).account
    assert ledger.spent(list(USERS), level) == approx([1.0, 0.25, 0.5])
    assert {event["adjacency"] for event in ledger.events()} == {"zero_out"}
    assert account.dp_epsilon == approx(epsilon(1.0, 1e-5))
    assert account.median_epsilon == approx(epsilon(0.5, 1e-5))
    assert account.simulation


def test_nothing_is_released_where_one_cap_forbids_it():
    ledger, rng, same = PrivacyLedger.in_memory(), np.random.default_rng(0), np.random.default_rng(0)
    ledger.set_cap("cat", 0.4, "record")
    with pytest.raises(BudgetExceeded, match="cat"):
        released([1.0, 1.0, 0.5], ledger=ledger, rng=rng)
    assert len(ledger) == 0
    assert rng.random() == same.random()  # the price is refused before any noise is drawn


@pytest.mark.parametrize(("noise", "method"), [("gaussian", None), ("discrete", "rdp")])
def test_a_second_release_is_refused_or_paid_under_another_name(noise, method):
    ledger = PrivacyLedger.in_memory()
    options = {"ledger": ledger, "noise": noise, "rng": None}
    first = released([0.5, 0.5, 0.0], **options).account
    with pytest.raises(BadInput, match=r"'ann' has reserved round 1 .* before"):
        released([0.5, 0.5, 0.0], **options)
    assert released([0.5, 0.5, 0.0], **options, run="again").account.budgets[0] == approx(1.0)
    assert first.dp_epsilon == approx(epsilon(0.5, 1e-5, *([method] if method else [])))


def test_who_gives_no_budget_releases_nothing_and_an_infinite_one_the_list_itself():
    silent = released([1.0, 0.0, 1.0])
    assert (silent.profiles[1].any(), silent.variances[1], silent.account.budgets[1]) == (False, math.inf, 0)
    clear = released([math.inf] * 3)
    np.testing.assert_array_equal(clear.profiles, LISTS)
    assert math.isinf(clear.account.dp_epsilon)


def test_budgets_that_cannot_be_and_lists_that_count_an_artist_twice_are_refused():
    for wrong in ([1.0, 1.0], [1.0, -1.0, 1.0], [1.0, math.nan, 1.0]):
        with pytest.raises(BadInput, match="budgets"):
            released(wrong)
    with pytest.raises(BadInput, match="zeros and ones"):
        release_profiles(2 * LISTS, np.ones(3), "record", users=USERS, rng=np.random.default_rng(0))
