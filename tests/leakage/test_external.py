"""The ledger's external columns: what the accounted releases of all others say about each client."""

import math

import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadInput, UnknownClient
from mppfl.leakage import external_columns, fits_matrices, leak_model, r_bound
from mppfl.network import propagate
from mppfl.privacy.ledger import PrivacyLedger
from tests.homes import home
from tests.leakage.networks import circles, friends
from tests.privacy.test_ledger import cost as cost_of
from tests.privacy.test_ledger import poisson

NAMES = ("cat", "ann", "bob")  # the network's order; the ledger's is ann, bob, cat
PATH = friends((1, 2), (2, 0), names=NAMES)  # ann - bob - cat


def cost(client, budget, **terms):
    return cost_of(client, budget, **{"protection": "local client update", "unit": "client"} | terms)


@pytest.fixture
def ledger():
    """ann spent 0.1 in two rounds, bob 0.2, cat 0.4."""
    with PrivacyLedger.in_memory() as opened:
        opened.reserve("run", 1, [cost("ann", 0.04), cost("bob", 0.2), cost("cat", 0.4)])
        opened.reserve("run", 2, [cost("ann", 0.06)])
        yield opened


def two_circles(size=60):
    """A network with a homophilous attribute, and a ledger in which everybody but the last spent 0.05."""
    group = np.arange(size) % 2
    names = [f"client {number}" for number in range(size)]
    graph = circles(np.random.default_rng(3), group, 0.3, 0.02, names=names)
    opened = PrivacyLedger.in_memory()
    opened.reserve("run", 1, [cost(name, 0.05) for name in names[-2::-1]])
    return graph, dict(zip(names, group.tolist(), strict=True)), opened


def test_names_join_the_ledger_and_the_network(ledger):
    columns = external_columns(ledger, PATH, propagation=propagate(PATH, 1), couplings=0.5)
    assert columns.clients == ("ann", "bob", "cat")
    assert columns.spent == approx([0.1, 0.2, 0.4])
    assert columns.r_model == approx([0.2, 0.25, 0.2])  # bob's two friends count half each
    share = math.tanh(0.5) ** 2
    by_hand = [share * 0.2 + share**2 * 0.4, share * 0.5, share * 0.2 + share**2 * 0.1]
    assert columns.r_bound == approx(np.array(by_hand) / 4)
    assert (columns.theorem, columns.bound_reason) == ("tree", "")
    assert "forest" in columns.premises


def test_the_columns_are_those_of_exposure_on_what_was_spent_and_who_released_nothing_is_exposed_too():
    graph, attribute, ledger = two_circles()
    columns = external_columns(ledger, graph, attribute, couplings=0.01)
    spent = np.array([0.05] * 59 + [0.0])
    order = np.arange(59)[::-1]
    assert columns.clients == ledger.clients
    assert columns.r_model == approx((propagate(graph) @ spent)[order])
    assert columns.r_bound == approx(r_bound(graph, 0.01, spent).nats[order])
    assert columns.r_leak == approx(leak_model(graph, attribute).levels(spent).nats[order])
    assert (columns.theorem, columns.bound_reason, columns.leak_reason) == ("walk sum", "", "")
    with pytest.raises(ValueError, match="read-only"):
        columns.r_leak[0] = 1.0
    silent = external_columns(ledger, graph, attribute, clients=["client 59", "client 0"])
    assert silent.spent.tolist() == [0.0, 0.05]
    assert silent.r_leak[0] > 0.01
    assert silent.r_model[0] > 0
    with PrivacyLedger.in_memory() as empty:
        columns = external_columns(empty, PATH, clients=["ann"])
    assert (columns.clients, columns.r_model.tolist()) == (("ann",), [0.0])


def test_a_column_that_cannot_be_had_is_empty_and_says_why(ledger):
    bare = external_columns(ledger, PATH)
    strong = external_columns(ledger, friends((0, 1), (1, 2), (0, 2), names=NAMES), couplings=1.0)
    assert np.isnan([bare.r_bound, bare.r_leak, strong.r_bound]).all()
    assert "no couplings" in bare.bound_reason
    assert "no public sample" in bare.leak_reason
    assert np.isfinite(bare.r_model).all()
    assert (strong.theorem, "spectral radius 1.52" in strong.bound_reason) == ("none", True)


def test_budgets_per_record_need_the_number_of_records_and_then_count_squared():
    budgets, counts = {"ann": 1e-5, "bob": 2e-5, "cat": 4e-5}, {"cat": 30, "ann": 10, "bob": 20}
    with PrivacyLedger.in_memory() as ledger:
        ledger.reserve("run", 1, [cost(*spent, unit="record") for spent in budgets.items()])
        bare, named, listed = (
            external_columns(ledger, PATH, couplings=0.5, num_examples=number)
            for number in (None, counts, [10, 20, 30])
        )
    assert np.isnan(bare.r_bound).all()
    assert "say nothing about an attribute that all records share" in bare.bound_reason
    assert any("per record" in note for note in bare.notes)
    in_network_order = [4e-5 * 30**2, 1e-5 * 10**2, 2e-5 * 20**2]
    assert named.r_bound == approx(r_bound(PATH, 0.5, in_network_order).nats[[1, 2, 0]])
    assert named.r_bound.tolist() == listed.r_bound.tolist()
    assert any("n² times the budget" in note for note in named.notes)


def test_a_budget_against_data_that_are_absent_counts_four_times():
    with PrivacyLedger.in_memory() as ledger:
        ledger.reserve("run", 1, [cost("ann", 0.01, adjacency="zero_out"), cost("bob", 0.04)])
        columns = external_columns(ledger, PATH, couplings=0.5)
    assert columns.r_bound == approx(r_bound(PATH, 0.5, [0.0, 0.04, 0.04]).nats[[1, 2]])
    assert columns.r_bound[0] == approx(columns.r_bound[1])


def test_releases_without_a_budget_or_in_another_unit_leave_no_statement_in_nats(ledger):
    ledger.reserve("run", 3, [poisson("ann")])
    per_client = external_columns(ledger, PATH, couplings=0.5, unit="client")
    assert np.isnan(per_client.r_bound).all()
    assert "also holds releases per record" in per_client.bound_reason
    per_record = external_columns(ledger, PATH, couplings=0.5, unit="record", num_examples=5)
    assert per_record.spent == approx(per_client.spent)  # which counts what was released per client, too
    assert "client 'ann' has Poisson-sampled releases" in per_record.bound_reason
    assert any("leaves out Poisson" in note for note in per_record.notes)


def test_a_network_too_large_for_dense_matrices_keeps_the_index_and_has_its_leak_estimated(ledger, monkeypatch):
    graph, attribute, spent = two_circles()
    exact = external_columns(spent, graph, attribute)
    monkeypatch.setattr(home(fits_matrices), "DENSE_LIMIT", 2)
    triangle = external_columns(ledger, friends((0, 1), (1, 2), (0, 2), names=NAMES), couplings=0.1)
    assert "at most 2 clients, not 3" in triangle.bound_reason
    assert np.isfinite(triangle.r_model).all()
    assert np.isfinite(external_columns(ledger, PATH, couplings=0.1).r_bound).all()  # a forest of any size
    estimated = external_columns(spent, graph, attribute)
    assert estimated.r_leak == approx(exact.r_leak, rel=0.5)
    assert estimated.r_leak.mean() == approx(exact.r_leak.mean(), rel=0.2)
    assert any(note.startswith("R_leak is estimated: 60 clients are too many") for note in estimated.notes)
    assert (external_columns(spent, graph, attribute).r_leak == estimated.r_leak).all()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"attribute": {"zoe": 1}}, "'zoe' is not in the network"),
        ({"attribute": {"ann": 3}}, "±1 or 0/1"),
        ({"attribute": {"ann": 1, "bob": 0}}, "at least 10"),
        ({"clients": ["zoe"]}, "'zoe' is not in the network"),
        ({"num_examples": {"ann": 5}}, "no count for client 'bob'"),
        ({"num_examples": 2.5}, "num_examples=2.5 of client 'ann'"),
        ({"num_examples": [1, 2]}, "2 entries for 3 clients"),
        ({"num_examples": math.nan}, "whole number"),
        ({"couplings": math.inf}, "couplings"),
        ({"unit": "house"}, "'house' is not known"),
        ({"propagation": propagate(friends((0, 1)), 1)}, "propagation is for 2 clients"),
    ],
)
def test_bad_input_is_refused_in_one_line(ledger, asked, says):
    with pytest.raises(BadInput, match=says) as refused:
        external_columns(ledger, PATH, **asked)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("release", "error", "says"),
    [
        (cost("zoe", 0.1), UnknownClient, "ledger and the network do not fit: client 'zoe'"),
        (cost("bob", math.inf, noise_kind="none"), BadInput, "client 'bob' released without noise"),
        (poisson("ann"), BadInput, "Choose the unit"),
    ],
)
def test_a_release_of_a_stranger_without_noise_or_in_two_units_is_refused(ledger, release, error, says):
    ledger.reserve("run", 3, [release])
    with pytest.raises(error, match=says):
        external_columns(ledger, PATH)


@pytest.mark.parametrize("protection", ["secure sum client update", "a sum by another name"])
def test_no_bound_is_given_where_one_noise_hides_all_clients_of_a_sum(ledger, protection):
    ledger.reserve("sums", 1, [cost("ann", 0.04, protection=protection, in_sum=True)])
    columns = external_columns(ledger, PATH, propagation=propagate(PATH, 1), couplings=0.5)
    assert np.isnan(columns.r_bound).all()
    assert "one noise hides everybody" in columns.bound_reason
    assert columns.r_model == approx([0.2, 0.27, 0.2])
