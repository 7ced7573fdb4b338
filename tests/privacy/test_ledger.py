"""The ledger: caps are never passed, units never mix, and no crash makes a release cheaper than it was."""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadFile, BadInput, BudgetExceeded, MppflError, UnknownClient
from mppfl.privacy import ReleaseCost, epsilon, history_epsilon, largest_budget
from mppfl.privacy.ledger import PrivacyLedger, epsilons
from tests.homes import home

accounting = home(history_epsilon)
approx = pytest.approx
ORDERS = [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]


def cost(client="ann", budget=0.1, **terms):
    """A release of one client, by default of a gradient with noise of its own."""
    common = {"protection": "local record gradient", "unit": "record", "adjacency": "replace_one"}
    return ReleaseCost(client, **{**common, **terms}, budget=budget)


def poisson(client="ann", **terms):
    sampled = {"adjacency": "zero_out", "noise_multiplier": 1.0, "sampling_rate": 0.01, "num_steps": 100}
    return cost(client, None, **{**sampled, **terms})


requests = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "cat"]), st.floats(1e-6, 1.0), st.booleans()), min_size=1, max_size=25
)


@settings(max_examples=60)
@given(requests, st.floats(0, 2.0))
def test_no_sequence_of_requests_passes_a_cap(asked, cap):
    with PrivacyLedger.in_memory() as ledger:
        ledger.set_cap(["ann", "bob"], cap, "record")
        accepted = {"ann": Fraction(0), "bob": Fraction(0), "cat": Fraction(0)}
        for round_index, (client, budget, repeat) in enumerate(asked, 1):
            for _ in range(1 + repeat):
                answer = ledger.reserve_each("run", round_index, [cost(client, budget)])
                accepted[client] += Fraction(budget) * (answer.outcomes[client] == "reserved")
        for client, total in accepted.items():
            if client in ledger.clients:
                assert ledger.spent(client, "record") == approx(float(total), rel=1e-12)
            if client != "cat":
                assert total <= Fraction(cap) * (1 + Fraction(1, 10**11))
        ledger.verify()


def test_reserving_twice_costs_once_and_other_terms_are_refused(ledger):
    assert ledger.reserve("run", 1, [cost()]).outcomes == {"ann": "reserved"}
    assert ledger.reserve("run", 1, [cost()]).outcomes == {"ann": "already reserved"}
    for changed in (cost(budget=0.2), cost(noise_kind="simulated"), cost(extra_delta=1e-9), cost(unit="client")):
        with pytest.raises(BadInput, match="A changed release is a new one"):
            ledger.reserve("run", 1, [changed])
    assert (len(ledger), ledger.spent("ann")) == (1, 0.1)
    ledger.reserve("another run", 1, [cost()])
    assert ledger.spent("ann") == approx(0.2)


def test_the_unit_is_asked_for_where_both_were_released(ledger):
    ledger.reserve("run", 1, [cost()])
    assert (ledger.units, ledger.spent("ann"), ledger.notes()) == (("record",), 0.1, ())
    ledger.reserve("run", 2, [cost(unit="client", budget=0.7)])
    for question in (ledger.spent, ledger.to_dp_events, lambda name: ledger.get_epsilon(name, 1e-5)):
        with pytest.raises(BadInput, match="do not add"):
            question("ann")
    assert ledger.spent("ann", "client") == 0.7
    assert ledger.get_epsilon("ann", 1e-5, unit="client") == epsilon(0.7, 1e-5)
    assert "figures per client leave out what 1 clients released per record" in ledger.notes()[0]


@pytest.mark.parametrize(("adjacency", "worth"), [("replace_one", 1), ("zero_out", 4)])
def test_what_is_released_per_client_counts_per_record(ledger, adjacency, worth):
    # From all data to nothing and on to the data with one record changed are two steps: twice the distance, 4 times ρ.
    ledger.reserve("a", 1, [cost(name, 0.5, unit="client", adjacency=adjacency) for name in ("ann", "cat")])
    assert ledger.units == ("client",)
    ledger.reserve("b", 1, [cost("ann", 0.1), cost("bob", 0.2, adjacency="zero_out")])
    assert ledger.spent(None, "record") == approx([0.1 + 0.5 * worth, 0.5 * worth, 0.2])
    assert ledger.account(None, "record").zero_out.tolist() == [False, False, True]
    for method in ("exact", "rdp", "zcdp", "pld"):
        answer = ledger.get_epsilon("ann", 1e-5, method, unit="record")
        assert answer == approx(epsilon(0.1 + 0.5 * worth, 1e-5, "exact" if method == "pld" else method))
    assert [event.noise_multiplier for event in ledger.to_dp_events("ann", "record")] == approx(
        [1 / math.sqrt(2 * 0.5 * worth), 1 / math.sqrt(0.2)]
    )
    assert ledger.spent(["ann", "cat", "bob"], "client").tolist() == [0.5, 0.5, 0.0]
    assert ledger.verify() == 4


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_record_pays_in_full_for_sampled_clients(ledger, rate):
    # Sampling hides whether the client was there; a record that changed is in every sum that its client is in.
    ledger.reserve("run", 1, [poisson(unit="client", noise_multiplier=4.0, sampling_rate=rate, num_steps=10)])
    assert ledger.spent("ann", "client") == 0
    assert ledger.spent("ann", "record") == approx(4 * 10 / (2 * 4.0**2))
    ledger.set_cap("ann", 2.0, "record")
    with pytest.raises(BudgetExceeded, match=r"has spent 1\.25 and asks for 1\.25 of a cap of 2"):
        ledger.reserve("run", 2, [poisson(unit="client", noise_multiplier=4.0, num_steps=10)])
    ledger.verify()


# ---- a cap is a filter ------------------------------------------------------------------------------------------


def test_caps_of_both_units_hold_for_every_release(ledger):
    ledger.set_cap("ann", 0.5, "record")
    ledger.set_cap(["ann", "bob"], 0.2, "client")
    ledger.reserve("run", 1, [cost(unit="client", adjacency="zero_out")])  # 0.4 for a record
    assert (ledger.remaining("ann", "record"), ledger.remaining("ann", "client")) == (approx(0.1), 0.1)
    with pytest.raises(BudgetExceeded, match=r"has spent 0\.4 and asks for 0\.2 of a cap of 0\.5\."):
        ledger.reserve("run", 2, [cost(unit="client", adjacency="zero_out", budget=0.05)])
    ledger.reserve("run", 2, [cost(unit="client", adjacency="zero_out", budget=0.025)])
    assert ledger.remaining("ann", "record") == approx(0, abs=1e-12)
    for client in ("ann", "bob"):  # n records lose up to n²ρ together, and n is not known
        with pytest.raises(BudgetExceeded, match=r"a cap of 0\.2, and a release per record has no ρ for all data"):
            ledger.reserve("run", 3, [cost(client, 1e-9, adjacency="zero_out")])
    ledger.set_cap("bob", math.inf, "client")
    ledger.reserve("run", 3, [cost("bob")])
    with pytest.raises(BadInput, match="'bob' cannot have a cap per client: a release per record"):
        ledger.set_cap(["ann", "bob"], 5.0, "client")
    assert ledger.account("ann", "client").cap == 0.2  # nobody's cap was changed
    ledger.verify()


@pytest.mark.parametrize("unit", ["record", "client"])
def test_no_cap_in_rho_stands_beside_poisson_sampled_releases(ledger, unit):
    ledger.set_cap("ann", 5.0, unit)
    with pytest.raises(BudgetExceeded, match="a cap of 5, and a Poisson-sampled release has no ρ") as refused:
        ledger.reserve("run", 1, [poisson(unit=unit)])
    assert "\n" not in str(refused.value)
    ledger.reserve("run", 1, [poisson("bob", unit=unit)])
    with pytest.raises(BadInput, match=f"'bob' cannot have a cap per {unit}: a Poisson-sampled release has no ρ"):
        ledger.set_cap("bob", 0.1, unit)
    ledger.set_cap("bob", math.inf, unit)
    assert len(ledger) == 1


def test_noise_that_costs_delta_by_itself_is_refused_under_a_cap(ledger):
    ledger.set_cap("ann", 5.0, "record")
    for round_index in range(1, 11):
        ledger.reserve("run", round_index, [cost("ann", 0.1, extra_delta=9.99e-14)])
    for extra in (2e-13, 1e-6):  # the cap counts all releases together
        with pytest.raises(BudgetExceeded, match="noise that itself costs δ"):
            ledger.reserve("run", 11, [cost("ann", 0.1, extra_delta=extra)])
    ledger.reserve("run", 11, [cost("bob", 0.1, extra_delta=1e-6)])
    with pytest.raises(BadInput, match="'bob' cannot have a cap per record: noise that itself costs δ = 1e-06"):
        ledger.set_cap("bob", 5.0, "record")


def independent_epsilon(ledger, client, orders):
    """dp-accounting's own RDP of all releases of a client per record, at the best of these orders."""
    accountant = rdp.RdpAccountant(orders=orders)
    for event in ledger.to_dp_events(client, "record"):
        accountant.compose(event)
    return accountant.get_epsilon(1e-5)


@settings(deadline=None, max_examples=30)
@given(st.randoms(use_true_random=False), st.sampled_from([0.5, 2.0, 8.0]))
def test_under_a_cap_in_epsilon_no_choice_of_releases_passes_it(rng, cap):
    """Whatever is asked for next, sampled or not, of whatever noise: also by what was refused before."""
    with PrivacyLedger.in_memory() as ledger:
        ledger.set_cap("ann", cap, "record", dp_delta=1e-5)
        size = 1.0
        for round_index in range(1, 25):
            noise = {"noise_kind": rng.choice(["gaussian", "discrete", "simulated"]), "adjacency": "zero_out"}
            unit = rng.choice(["record", "client"])
            release = cost(budget=0.2 * size * rng.random() + 1e-6, unit=unit, **noise)
            if rng.random() < 0.5:
                kind = {"noise_multiplier": rng.uniform(0.7, 4.0), "sampling_rate": rng.choice([0.01, 0.2])}
                release = poisson(num_steps=1 + int(20 * size * rng.random()), **kind)
            if ledger.reserve_each("run", round_index, [release]).refused:
                size /= 3  # goes on with less
        assert independent_epsilon(ledger, "ann", ORDERS) <= cap * (1 + 1e-9)
        assert ledger.get_epsilon("ann", 1e-5, "rdp", unit="record") <= cap * (1 + 1e-9)
        ledger.verify()


def test_a_cap_in_epsilon_admits_nearly_what_the_best_order_would(ledger):
    ledger.set_cap(["ann", "bob"], 3.0, "record", dp_delta=1e-5)
    sampled = poisson(noise_multiplier=4.0, sampling_rate=0.3, num_steps=1)
    for round_index in range(1, 100):
        if ledger.reserve_each("run", round_index, [sampled]).refused:
            break
    assert round_index - 1 == 69  # the RDP accountant's ε passes 3 at the 72nd
    left = ledger.remaining("bob")
    assert 2.9 < epsilon(left, 1e-5, "rdp") < 3
    assert left / largest_budget(3.0, 1e-5, "rdp") == approx(0.97, abs=0.005)  # as docs/privacy.md says
    assert largest_budget(3.0, 1e-5) / left == approx(1.19, abs=0.005)
    assert ledger.account("bob").cap == math.inf
    before = ledger.head
    with pytest.raises(
        BudgetExceeded, match=r"'bob' has a cap of 3, and what is left of ε at δ = 1e-05 is enough for"
    ) as no:
        ledger.reserve("run", 1, [cost("bob", left * 1.001)])
    assert "\n" not in str(no.value)
    assert ledger.head == before  # nothing was charged, and what fits still does
    ledger.reserve("run", 1, [cost("bob", left * (1 - 1e-9), noise_kind="discrete")])
    assert ledger.remaining("bob") == approx(0, abs=1e-8)
    ledger.verify()


def test_caps_in_epsilon_at_several_deltas_and_in_rho_all_hold(ledger):
    with pytest.raises(BadInput, match=r"ε = 0\.0001 at δ = 1e-05 admits nothing"):
        ledger.set_cap("ann", 1e-4, "record", dp_delta=1e-5)
    ledger.set_cap("ann", 3.0, "record", dp_delta=1e-5)
    ledger.set_cap("ann", 0.1, "record")
    assert ledger.remaining("ann") == 0.1
    ledger.set_cap("ann", 4.0, "record", dp_delta=1e-5, only_lower=True)
    account = ledger.account("ann")
    assert (account.cap, account.epsilon_caps) == (0.1, ({1e-5: 3.0},))
    ledger.set_cap("ann", 1.0, "record", dp_delta=1e-6)
    ledger.set_cap("ann", math.inf, "record")
    assert ledger.account("ann").epsilon_caps == ({1e-5: 3.0, 1e-6: 1.0},)
    alone = PrivacyLedger.in_memory()
    alone.set_cap("ann", 1.0, "record", dp_delta=1e-6)
    assert ledger.remaining("ann") == alone.remaining("ann")  # the tighter one
    alone.close()
    ledger.reserve("run", 1, [cost(extra_delta=1e-30, budget=1e-4)])
    with pytest.raises(BudgetExceeded, match="is enough for ρ"):  # of noise that is too far from the one meant
        ledger.reserve("run", 2, [cost(extra_delta=1e-8, budget=1e-4)])
    with pytest.raises(BadInput, match="a release per record has no ρ for all data"):
        ledger.set_cap("ann", 2.0, "client", dp_delta=1e-6)
    ledger.verify()


@pytest.mark.parametrize("order", [1, -1])
def test_adjacencies_never_mix_sampled_or_not(ledger, order):
    # Replacing a record moves a sum by 2𝒮: what is 1 for adding or removing at sampling rate 1 is then 4 times that.
    first, second = [poisson(sampling_rate=1.0, num_steps=1), cost(budget=1e-9)][::order]
    ledger.reserve("run", 1, [first])
    with pytest.raises(BadInput, match="does not add to them"):
        ledger.reserve("run", 2, [second])
    ledger.reserve("run", 2, [replace(second, client="bob")])


def test_exact_needs_gaussian_noise_throughout_and_no_client_depends_on_its_company(ledger):
    ledger.reserve("run", 1, [poisson("ann"), cost("bob", 0.1, noise_kind="discrete"), cost("cat", 0.1)])
    together = ledger.get_epsilon(["ann", "bob", "cat"], 1e-5, "rdp")
    assert together.tolist() == [ledger.get_epsilon(name, 1e-5, "rdp") for name in ("ann", "bob", "cat")]
    assert together[1] == together[2]
    assert ledger.get_epsilon("cat", 1e-5) > 0
    for method in ("exact", "pld"):
        with pytest.raises(BadInput, match="not Gaussian"):
            ledger.get_epsilon("bob", 1e-5, method)
    with pytest.raises(BadInput, match=r"'bob' has releases whose noise was not Gaussian\. Use the method rdp"):
        ledger.get_epsilon(["ann", "bob"], 1e-5, "pld")
    ledger.reserve("run", 2, [cost("ann", 0.1, noise_kind="discrete", adjacency="zero_out")])
    assert ledger.account("ann").accounting == "rdp"  # which holds for both together
    by_orders = rdp.RdpAccountant(orders=ORDERS)
    for event in ledger.to_dp_events("ann"):
        by_orders.compose(event)
    assert ledger.get_epsilon("ann", 1e-5, "rdp") == approx(by_orders.get_epsilon(1e-5), rel=1e-9)


def test_poisson_sampled_releases_stand_apart(ledger):
    ledger.reserve("run", 1, [poisson()])
    ledger.reserve("run", 2, [cost(budget=0.02, adjacency="zero_out")])
    assert ledger.spent("ann") == 0.02
    with pytest.raises(BadInput, match="no part of a zCDP sum"):
        ledger.get_epsilon("ann", 1e-5)
    both = ledger.get_epsilon("ann", 1e-5, "pld")
    assert epsilon(0.02, 1e-5) < both < epsilon(0.02, 1e-5) + 2
    assert "1 Poisson-sampled releases" in ledger.notes()[0]
    with pytest.raises(BadInput, match="needs noise_multiplier, sampling_rate and num_steps"):
        ledger.reserve("run", 3, [poisson(num_steps=None)])
    with pytest.raises(BadInput, match="has no zCDP budget"):
        ledger.reserve("run", 3, [replace(poisson(), budget=0.1)])
    with pytest.raises(BadInput, match="accounted for under adjacency='zero_out'"):
        ledger.reserve("run", 3, [poisson(adjacency="replace_one")])


def test_too_many_different_histories_are_refused_before_they_take_hours(ledger, monkeypatch):
    monkeypatch.setattr(home(epsilons), "MOST_HISTORIES", 2)
    clients = [poisson(f"client {number}", num_steps=10 + min(number, 2)) for number in range(6)]
    ledger.reserve("run", 1, [*clients, cost("ann", 0.1), cost("bob", 0.2), cost("cat", 0.3)])
    with pytest.raises(BadInput, match=r"here are 3\. Ask for at most 2 clients at a time, or use rdp"):
        ledger.get_epsilon(None, 1e-5, "pld")
    answers = ledger.get_epsilon(["client 5", "client 1", "client 2", "ann", "bob", "cat"], 1e-5, "pld")
    assert answers[0] == answers[2]  # the same history
    assert answers[3:] == approx(epsilon(np.array([0.1, 0.2, 0.3]), 1e-5))


# ---- epsilon ----------------------------------------------------------------------------------------------------


def random_history(rng, ledger, name):
    """Some rounds of unequal budgets and noises in two runs, now and then per client or sampled; all under zero_out."""
    for round_index in range(1, int(rng.integers(2, 7))):
        budget, draw = math.exp(rng.uniform(math.log(1e-3), math.log(0.3))), rng.random()
        rate = round(rng.uniform(0.01, 0.3), 2)
        noise, steps = rng.uniform(0.8, 4.0), int(rng.integers(1, 40))
        if draw < 0.5:
            release = poisson(name, noise_multiplier=noise, sampling_rate=rate, num_steps=steps)
        else:
            release = cost(name, budget, unit="client" if draw > 0.8 else "record", adjacency="zero_out")
        ledger.reserve(f"run {round_index % 2}", round_index, [release])


def disagreement(ledger, name, monkeypatch):
    """How far the ledger's two accountants are from dp-accounting's, which are given one event after the other."""
    used, compose = [], accounting.composed_epsilon
    monkeypatch.setattr(accounting, "composed_epsilon", lambda *a, grid: used.append(grid) or compose(*a, grid=grid))
    answers = [ledger.get_epsilon(name, 1e-5, method, unit="record") for method in ("pld", "rdp")]
    monkeypatch.undo()
    events = ledger.to_dp_events(name, "record")
    if not any("Sampled" in repr(event) for event in events):
        mu = math.sqrt(sum(1 / event.noise_multiplier**2 for event in events))
        return abs(answers[0] / dp_accounting.get_epsilon_gaussian(1 / mu, 1e-5) - 1)
    by_orders = rdp.RdpAccountant(orders=ORDERS)
    losses = [pld.PLDAccountant(value_discretization_interval=grid) for grid in used]
    for accountant in (by_orders, *losses):
        for event in events:
            accountant.compose(event)
    expected = [min(accountant.get_epsilon(1e-5) for accountant in (by_orders, *losses)), by_orders.get_epsilon(1e-5)]
    return max(abs(answer / independent - 1) for answer, independent in zip(answers, expected, strict=True))


@pytest.mark.parametrize(
    "histories", [range(20), pytest.param(range(20, 200), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_histories_agree_with_another_accountant(ledger, histories, monkeypatch):
    for number in histories:
        random_history(np.random.default_rng(number), ledger, f"client {number}")
        assert disagreement(ledger, f"client {number}", monkeypatch) < 1e-6, number
    ledger.verify()


def test_delta_of_the_noise_itself_is_taken_from_the_delta_asked_for(ledger):
    for round_index in (1, 2):
        ledger.reserve("run", round_index, [cost(extra_delta=3e-9)])
    answer = ledger.get_epsilon("ann", 1e-5)
    assert answer == approx(epsilon(0.2, 1e-5 - (1 + math.exp(answer)) * 6e-9), rel=1e-8)
    assert answer > epsilon(0.2, 1e-5) * 1.0001
    with pytest.raises(BadInput, match="used up by client 'ann'"):
        ledger.get_epsilon("ann", 6e-9)
    ledger.reserve("run", 1, [cost("bob", 30.0, extra_delta=1e-12)])
    assert ledger.get_epsilon("bob", 1e-5) == math.inf  # e^ε · 1e-12 is more than δ


def test_a_release_without_noise_costs_everything(ledger):
    ledger.reserve("run", 1, [cost(budget=math.inf, noise_kind="none")])
    assert ledger.get_epsilon("ann", 1e-5) == math.inf
    ledger.set_cap("bob", 1e6, "record")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("run", 1, [cost("bob", math.inf)])
    ledger.reserve("run", 2, [cost("cat", noise_kind="simulated")])
    assert (ledger.is_simulation, ledger.notes()) == (True, ("simulation: seeded noise protects no one",))
    ledger.verify()


def test_unknown_clients_are_named(ledger):
    with pytest.raises(UnknownClient, match="client 'zoe' is not in"):
        ledger.spent("zoe")


@pytest.mark.parametrize("strange", [0, -1, math.nan, 1e-300, 1e300, "x", None, [], True])
def test_strange_terms_are_refused_in_one_line_and_leave_nothing(ledger, strange):
    tries = [
        lambda: ledger.reserve("run", 1, [cost(budget=strange if strange is not True else None)]),
        lambda: ledger.reserve("run", 1, [cost(extra_delta=-1 if strange in (0, 1e-300, None, True) else strange)]),
        lambda: ledger.reserve("run", 1, [cost(unit=strange)]),
        lambda: ledger.reserve("run", 1, [strange]),
        lambda: ledger.reserve("run", 4, [cost(round_index=3, run="run")]),
        lambda: ledger.reserve("run", 1, [cost(adjacency=strange)]),
        lambda: ledger.reserve("run", 1, [cost(noise_kind=strange)]),
        lambda: ledger.reserve("run", strange, [cost()]),
        lambda: ledger.reserve("run", 1, [cost(client="a\0b" if strange in (0, -1, "x") else strange)]),
        lambda: ledger.reserve("run", 1, [poisson(sampling_rate=2 if strange in (1e-300, True) else strange)]),
        lambda: ledger.set_cap("ann", strange if strange in ("x", None) else -1, "record"),
        lambda: ledger.get_epsilon(None, strange if strange != 1e-300 else 0),
    ]
    for attempt in tries:
        with pytest.raises(BadInput) as refused:
            attempt()
        assert "\n" not in str(refused.value)
    assert len(ledger) == 0
    ledger.verify()


def test_a_repeated_round_sends_the_same_upload(path):
    with PrivacyLedger.open(path) as first:
        first.reserve("run", 1, [cost()])
        assert first.stored_upload("run", 1, "ann") is None
        first.store_upload("run", 1, "ann", b"noisy")
    with PrivacyLedger.open(path) as second:
        assert second.reserve("run", 1, [cost()]).outcomes == {"ann": "already reserved"}
        assert second.stored_upload("run", 1, "ann") == b"noisy"
        second.store_upload("run", 1, "ann", b"noisy")
        with pytest.raises(BadInput, match="for the price of the first"):
            second.store_upload("run", 1, "ann", b"fresh noise")
        second.mark_sent("run", 1, "ann")
        assert second.reserve_again("run", 1, [cost()]).outcomes == {"ann": "already reserved"}
        assert second.spent("ann") == 0.1


def test_a_release_that_may_have_left_is_paid_again(path):
    with PrivacyLedger.open(path) as first:
        first.set_cap("ann", 0.25, "record")
        first.reserve("run", 1, [cost()])
    with PrivacyLedger.open(path) as second:
        with pytest.raises(BadInput, match="Pay for this release with reserve_again"):
            second.store_upload("run", 1, "ann", b"fresh noise")
        assert second.reserve_again("run", 1, [cost()]).outcomes == {"ann": "reserved"}
        second.store_upload("run", 1, "ann", b"fresh noise")
        assert second.spent("ann") == 0.2
        second.reserve("run", 2, [cost(budget=0.05)])
        with pytest.raises(BudgetExceeded):
            second.reserve_again("run", 2, [cost(budget=0.05)])
        second.verify()
    with pytest.raises(BadInput, match="Call reserve first"), PrivacyLedger.open(path) as third:
        third.store_upload("run", 9, "ann", b"")


def test_what_must_be_new_is_refused_where_anybody_has_reserved_it_before(ledger):
    assert ledger.reserve_new("run", 1, [cost()]).reserved == ("ann",)
    with pytest.raises(BadInput, match=r"'ann' has reserved round 1 of 'run' before.*Use another run"):
        ledger.reserve_new("run", 1, [cost("bob"), cost()])
    assert len(ledger) == 1  # bob is not charged either


def write_rounds(path, name, rounds):
    with PrivacyLedger.open(path) as ledger:
        for round_index in range(1, rounds + 1):
            ledger.reserve(name, round_index, [cost("shared", 2.0**-10), cost(name, 2.0**-10)])


def test_four_processes_writing_at_once_lose_nothing(path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_rounds, args=(path, f"writer {number}", 25)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    with PrivacyLedger.open(path) as ledger:
        assert ledger.verify() == 4 * 25 * 2
        assert ledger.spent("shared") == 4 * 25 * 2.0**-10
        assert set(ledger.spent([f"writer {number}" for number in range(4)])) == {25 * 2.0**-10}


WRITER = """
import os, sys
from mppfl.errors import BudgetExceeded
from mppfl.privacy import ReleaseCost
from mppfl.privacy.ledger import PrivacyLedger

path, side, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
clients = ("ann", "bob", "cat")
released = os.open(side, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
ledger = PrivacyLedger.open(path)
ledger.set_cap(clients, 1.0, "record")
sys.stdout.write("ready\\n"); sys.stdout.flush()
for round_index in range(start, start + 10_000):
    entries = [ReleaseCost(c, "local record gradient", "record", "replace_one", 2.0**-8) for c in clients]
    answer = ledger.reserve_each("run", round_index, entries)
    for entry in entries:
        client, upload = entry.client, None
        if answer.outcomes[client] == "refused":
            continue
        if answer.outcomes[client] == "already reserved":
            upload = ledger.stored_upload("run", round_index, client)
            if upload is None:
                try:
                    ledger.reserve_again("run", round_index, [entry])
                except BudgetExceeded:
                    continue
        if upload is None:
            upload = os.urandom(16)
            ledger.store_upload("run", round_index, client, upload)
        os.write(released, f"{round_index} {client} {upload.hex()}\\n".encode())
        sys.stdout.write("released\\n"); sys.stdout.flush()
        ledger.mark_sent("run", round_index, client)
    if set(answer.outcomes.values()) == {"refused"}:
        break
"""


def kill_writers(path, side, times, rng):
    """Kills a writer after some releases, again and again; after each death the account must cover what left."""
    for _ in range(times):
        lines = side.read_text().splitlines() if side.exists() else []
        start = max((int(line.split()[0]) for line in lines), default=1)
        line = [sys.executable, "-c", WRITER, str(path), str(side), str(start)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"ready\n", writer.stderr.read()
            for _ in range(rng.randrange(30)):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        assert writer.returncode in (-signal.SIGKILL, 0)
        released = {tuple(line.split()) for line in side.read_text().splitlines()} if side.exists() else set()
        with PrivacyLedger.open(path) as ledger:
            ledger.verify()
            for client in ledger.clients:
                uploads = {upload for _, name, upload in released if name == client}
                spent = ledger.spent(client, "record")
                assert len(uploads) * 2.0**-8 <= spent <= 1.0
    return released


@pytest.mark.parametrize(("ledgers", "deaths"), [(1, 15), pytest.param(30, 10, marks=pytest.mark.slow)])
def test_after_sudden_death_the_account_covers_every_release(tmp_path, ledgers, deaths):
    rng = random.Random(deaths * ledgers)
    for part in range(ledgers):  # a new ledger each time, so that deaths also meet its making and its caps
        released = kill_writers(tmp_path / f"{part}.db", tmp_path / f"{part}.txt", deaths, rng)
        assert released


def test_exports_hold_every_release(ledger, tmp_path):
    import csv

    without = cost("bob", math.inf, noise_kind="none", adjacency="zero_out")
    ledger.reserve("run", 1, [cost('ann, "the" 1st', 0.1), without])
    ledger.reserve("run", 2, [poisson("bob")])
    assert ledger.export_csv(tmp_path / "out.csv") == ledger.export_json(tmp_path / "out.json") == 3
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ['ann, "the" 1st', "bob", "bob"]
    assert [row["budget"] for row in rows] == ["0.1", "inf", ""]
    content = json.loads((tmp_path / "out.json").read_text())
    assert [each["budget"] for each in content["events"]] == [0.1, "Infinity", None]
    assert content["head"] == ledger.head
    with pytest.raises(BadFile, match="Check the folder"):
        ledger.export_csv(tmp_path / "nowhere" / "out.csv")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.csv", "out.json"]


def test_a_ledger_and_its_account_are_shown_in_at_most_twelve_lines(ledger):
    ledger.set_cap("client <0>", 0.5, "record")
    ledger.reserve("run", 1, [cost(f"client <{number}>") for number in range(30)])
    lines = repr(ledger).splitlines()
    assert lines[:2] == [
        "PrivacyLedger('ledger in memory'): 30 releases of 30 clients",
        "account per record, 30 clients",
    ]
    assert lines[3].split() == ["client", "<0>", "0.100", "0.500", "0.400"]
    assert (len(lines), lines[-1]) == (12, "and 22 more")
    assert "<td>client &lt;0&gt;</td><td>0.1</td>" in ledger.account()._repr_html_()
    ledger.close()
    assert repr(ledger) == "PrivacyLedger('ledger in memory'), closed or not readable"


def test_an_account_is_a_table_where_pandas_is_installed(ledger, monkeypatch):
    ledger.reserve("run", 1, [cost("ann"), cost("bob", 0.2)])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MppflError, match="pip install pandas"):
        ledger.account().to_pandas()
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    table = ledger.account().to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table.set_index("client").loc["bob", "budget"] == 0.2
