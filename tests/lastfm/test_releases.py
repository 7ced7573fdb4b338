"""Profiles and secure sums: what one record or client moves before noise, what it costs; the ledger comes first."""

import math

import numpy as np
import pytest
from examples.lastfm.aggregation import Sums
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


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(0, 29))
@settings(max_examples=60)
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
def test_the_ledger_holds_every_release_with_its_unit_and_epsilon(level):
    ledger = PrivacyLedger.in_memory()
    answer = released([1.0, 0.25, 0.5], level, ledger=ledger)
    account = answer.account
    assert answer.variances == approx([0.5, 2.0, 1.0])
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


# ---- secure sums: everybody gets the same noise, and all is paid --------------------------------------------------


BUDGETS, FOUR = np.array([0.25, 4.0, 1.0, 0.0]), ("ann", "bob", "cat", "dan")


def sums(budgets=BUDGETS, ledger=None, noise="simulated", seed=0):
    users = [f"user {number}" for number in range(len(budgets))] if len(budgets) != len(FOUR) else FOUR
    rng = np.random.default_rng(seed) if noise == "simulated" else None
    ledger = PrivacyLedger.in_memory() if ledger is None else ledger
    return Sums(np.asarray(budgets), users, ledger, noise, rng, "test")


def unit_rows(size, width, seed=3):
    rows = np.random.default_rng(seed).random((size, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@given(st.integers(0, 1_000), st.floats(0.01, 10.0), st.floats(0.05, 0.95))
@settings(max_examples=30)
def test_a_client_that_leaves_moves_each_sum_by_the_root_of_what_it_pays(seed, rho, share):
    there, budgets = unit_rows(3, 6, seed), np.array([rho, 2.0, 0.5])
    gone = there * [[0.0], [1.0], [1.0]]
    # The same stream draws the same noise, so the difference is what moved before noise.
    for summed in (Sums.sum, Sums.sum_of_pairs):
        with_it, without = (summed(sums(budgets), rows, share, 1)[0] for rows in (there, gone))
        assert np.linalg.norm(with_it - without) == approx(math.sqrt(share * rho), rel=1e-9, abs=1e-9)


def test_noise_off_the_diagonal_and_on_it_is_that_of_a_unit_vector():
    size = 300
    total, std = sums([1.0, 1.0]).sum_of_pairs(np.zeros((2, size)), 0.5, 1)
    assert std == approx(0.5)
    np.testing.assert_array_equal(total, total.T)
    off = total[np.triu_indices(size, 1)]
    assert off.std() == approx(0.5, rel=0.02)  # 44,850 values: off by 2 % with a chance of 2e-9
    assert np.diagonal(total).std() == approx(math.sqrt(0.5), rel=0.2)  # 300 values: 1e-6


def test_the_ledger_adds_up_what_the_sums_cost_and_on_a_grid_nobody_pays_more_than_it_asked_for():
    ledger, rows = PrivacyLedger.in_memory(), unit_rows(4, 5)
    taken = sums(ledger=ledger)
    _, first = taken.sum(rows, 0.1, 1)
    taken.sum_of_pairs(rows, 0.9, 2)
    assert first == approx(math.sqrt(0.5))
    assert ledger.spent(["ann", "bob", "cat"], "client") == approx(BUDGETS[:3])
    assert "dan" not in ledger.clients  # budget 0: it contributed nothing
    assert {event["protection"] for event in ledger.events()} == {"sum with noise inside"}
    ledger = PrivacyLedger.in_memory()
    _, std = sums(ledger=ledger, noise="gaussian").sum(unit_rows(4, 500), 1 - 1e-9, 1)
    assert std >= math.sqrt(0.5)
    assert (ledger.spent(["ann", "bob", "cat"], "client") <= BUDGETS[:3]).all()


def test_a_sum_taken_again_of_too_much_or_of_nobody_is_refused():
    taken, rows = sums(noise="gaussian"), unit_rows(4, 5)
    taken.sum(rows, 0.1, 1)
    for of, vectors, message in (
        (taken, rows, "'ann' has reserved round 1 of 'test' before"),
        (sums(), 2 * rows, "longer than 1"),
        (sums([0.0, 0.0]), rows[:2], "nobody contributes"),
    ):
        with pytest.raises(BadInput, match=message):
            of.sum(vectors, 0.1, 1)
