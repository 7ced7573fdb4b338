"""Secure sums: one client moves the sum by the root of its budget, everybody gets the same noise, all is paid."""

import math

import numpy as np
import pytest
from examples.lastfm.aggregation import Sums
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy.ledger import PrivacyLedger

BUDGETS = np.array([0.25, 4.0, 1.0, 0.0])
USERS = ("ann", "bob", "cat", "dan")


def sums(budgets=BUDGETS, ledger=None, noise="simulated", seed=0):
    users = [f"user {number}" for number in range(len(budgets))] if len(budgets) != len(USERS) else USERS
    rng = np.random.default_rng(seed) if noise == "simulated" else None
    ledger = PrivacyLedger.in_memory() if ledger is None else ledger
    return Sums(np.asarray(budgets), users, ledger, noise, rng, "test")


def unit_rows(size, width, seed=3):
    rows = np.random.default_rng(seed).random((size, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@given(st.integers(0, 1_000), st.floats(0.01, 10.0), st.floats(0.05, 0.95))
@settings(max_examples=30, deadline=None)
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
