"""Rounds whose updates open as one sum: the mean, its noise, what each client pays, who is left out, and cohorts."""

import math

import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadInput
from mppfl.privacy import SecureSum, epsilon, margin_of, noise_growth, noise_of_sum, rounding_margin
from mppfl.privacy.ledger import PrivacyLedger
from mppfl.training import local_work, make_model
from tests.homes import home
from tests.tolerances import assert_of_std
from tests.training.trainings import FREE, SUMS, configured, pictures, trained

SIZES, RATE, CLIP = (9, 5, 12, 7), 0.25, 0.5
DATA = pictures(SIZES, shape=(1, 32, 32), num_classes=40)
NUM_PARAMETERS = 40 * 1024
BUDGETS = (0.5, 0.2, 2.0, 0.9)
IN_A_SUM = pytest.mark.parametrize("way", SUMS)


def one_round(budgets=BUDGETS, way="secure_sum record", **changed):
    """The record of one round of a linear model, which starts at 0: its weights are the mean update."""
    asked = {"precision": "float64", "learning_rate": RATE, "clip_norm": CLIP, "seed": 6, **SUMS[way], **changed}
    (record,) = trained(budgets, 1, model=make_model("linear", (1, 32, 32), 40), data=DATA, **asked)
    return record


def works_of(protection):
    config = configured(batch_size=4, local_epochs=1, **protection)
    return [local_work(size, config, "") for size in SIZES]


def declared(way, budgets=BUDGETS, aggregation="noise_aware", dispersion=0.0, **changed):
    """Weights, noise and cost that the sum of such a round declares, before anything is computed."""
    protection = configured(clip_norm=CLIP, **SUMS[way], **changed).protection
    spread = dispersion * CLIP**2 if aggregation == "noise_aware" else math.inf
    noise = noise_of_sum(protection, budgets, works_of({**SUMS[way]}), NUM_PARAMETERS, SIZES, spread)
    return protection, noise


def pace(way):
    """What a vector in the sum is multiplied by to be an update: gradients are no updates yet."""
    return RATE if way.endswith("record") else 1.0


@IN_A_SUM
@pytest.mark.parametrize("aggregation", ["num_examples", "uniform"])
def test_a_sum_with_next_to_no_noise_is_the_plain_weighted_mean(way, aggregation, monkeypatch):
    plain = one_round(FREE[:1] * 4, way, aggregation=aggregation)
    local = one_round(FREE[:1] * 4, way, aggregation=aggregation, trust="local")
    noisy = one_round((1e15,) * 4, way, aggregation=aggregation)
    np.testing.assert_allclose(noisy.theta, plain.theta, rtol=1e-12)
    np.testing.assert_allclose(plain.weights, local.weights, rtol=1e-9)
    scale = np.abs(plain.weights).max()
    assert np.abs(noisy.weights - plain.weights).max() < 1e-5 * scale  # nothing but noise, which is next to none
    monkeypatch.setattr(home(SecureSum), "discrete_steps", lambda size, *_: np.zeros(size))
    exact = one_round((1e15,) * 4, way, aggregation=aggregation)
    np.testing.assert_allclose(exact.weights, plain.weights, atol=1e-11 * scale, rtol=0)  # of the grid, float64


@IN_A_SUM
def test_weights_follow_the_roots_of_the_budgets_or_the_sizes_or_lie_between(way):
    by_noise = one_round(way=way).theta
    protection, _ = declared(way)
    reach = np.sqrt(BUDGETS) / [protection.sensitivity(work) for work in works_of(SUMS[way])]
    np.testing.assert_allclose(by_noise, reach / reach.sum(), rtol=1e-3)  # but for rounding
    by_size = one_round(way=way, aggregation="num_examples").theta
    np.testing.assert_allclose(by_size, np.array(SIZES) / sum(SIZES))
    np.testing.assert_allclose(one_round(way=way, aggregation="uniform").theta, [0.25] * 4)
    between = one_round(way=way, dispersion=1e4).theta
    np.testing.assert_allclose(between, declared(way, dispersion=1e4)[1].weights, rtol=1e-9)
    assert between.sum() == approx(1)


@IN_A_SUM
@pytest.mark.parametrize("noise", ["simulated", "discrete"])
@pytest.mark.parametrize("aggregation", ["num_examples", "noise_aware"])
def test_the_noise_in_the_mean_has_the_variance_that_is_declared(way, noise, aggregation):
    noisy = one_round(way=way, noise=noise, aggregation=aggregation)
    _, shared = declared(way, aggregation=aggregation)
    quiet = quiet_mean(way, noisy.theta)
    assert_of_std(noisy.weights - quiet, math.sqrt(shared.noise_variance) * pace(way))
    # and hides each update as noise of this deviation on that alone would
    np.testing.assert_allclose(noisy.noise_std * noisy.theta, math.sqrt(shared.noise_variance) * pace(way))


def quiet_mean(way, theta):
    """The mean with these weights, from the updates of each client alone, without noise."""
    alone = [one_round(np.where(np.arange(4) == k, np.inf, 0.0), way).weights for k in range(4)]
    return theta @ np.array(alone)


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("noise", ["simulated", "discrete"])
@pytest.mark.parametrize(("dropouts", "colluding"), [(1, 0), (0, 2), (1, 2)])
def test_who_may_fail_or_collude_makes_the_noise_grow_as_many_shares_are_left(unit, noise, dropouts, colluding):
    way, faults = f"secure_sum {unit}", {"dropouts": dropouts, "colluding": colluding}
    noisy = one_round(way=way, noise=noise, aggregation="num_examples", **faults)
    _, shared = declared(way, aggregation="num_examples", **faults)
    opened = 4 / (4 - dropouts - colluding) * shared.noise_variance  # all four arrive, each with its share
    assert_of_std(noisy.weights - quiet_mean(way, noisy.theta), math.sqrt(opened) * pace(way))
    without = declared(way, aggregation="num_examples")[1]
    assert shared.noise_variance == approx(without.noise_variance, rel=1e-3)  # what hides stays what it was


# ---- what is paid -------------------------------------------------------------------------------------------------


@IN_A_SUM
@pytest.mark.parametrize("aggregation", ["num_examples", "uniform", "noise_aware"])
@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_each_client_is_charged_what_its_weight_costs_with_rounding_and_paid_for_what_was_used(
    way, aggregation, adjacency
):
    ledger, unit, dropouts = PrivacyLedger.in_memory(), 0.5, int(way == "secure_sum record")
    asked = {"aggregation": aggregation, "adjacency": adjacency, "dropouts": dropouts}
    record = one_round(way=way, dispersion=100.0, ledger=ledger, budget_unit=unit, **asked)
    caps = unit * np.array(BUDGETS)
    protection = declared(way, adjacency=adjacency)[0]
    sensitivity = np.array([protection.sensitivity(work) for work in works_of(SUMS[way])])
    std = record.noise_std[0] * record.theta[0] / pace(way)  # √V
    margin = rounding_margin(NUM_PARAMETERS, 1 if way.startswith("server") else 4 - dropouts)
    exact = (record.theta * sensitivity / std + margin) ** 2 / 2
    np.testing.assert_allclose(record.spent, exact, rtol=1e-9)
    assert (record.spent <= caps).all()
    assert record.spent.max() > 0
    assert (record.spent / caps).max() == approx(1)  # somebody's budget is what limits
    np.testing.assert_allclose(ledger.spent(["0", "1", "2", "3"]), record.spent)
    np.testing.assert_allclose(record.payments, 2.0 * record.spent / unit)  # at a rate of 2
    np.testing.assert_array_equal(record.budgets, BUDGETS)


@IN_A_SUM
def test_a_client_at_its_cap_is_left_out_nothing_is_recorded_for_it_and_the_others_weights_are_found_anew(way):
    ledger = PrivacyLedger.in_memory()
    ledger.set_cap("2", 1.0, SUMS[way]["unit"])  # its part would cost 2
    record = one_round(way=way, ledger=ledger)
    assert record.refused == ("2",)
    kept = np.array([True, True, False, True])
    np.testing.assert_array_equal(record.participating, kept)
    assert [record.spent[2], record.payments[2], record.theta[2], record.noise_std[2]] == [0, 0, 0, 0]
    assert {event["client"] for event in ledger.events()} == {"0", "1", "3"}
    without = one_round(np.where(kept, BUDGETS, 0), way)
    np.testing.assert_array_equal(record.theta, without.theta)
    np.testing.assert_array_equal(record.spent, without.spent)
    np.testing.assert_array_equal(record.weights, without.weights)
    assert record.theta.sum() == approx(1)


@IN_A_SUM
def test_a_client_whose_budget_rounding_alone_would_spend_is_left_out(way):
    rounding = rounding_margin(NUM_PARAMETERS, 4) ** 2 / 2
    ledger = PrivacyLedger.in_memory()
    record = one_round((0.5, rounding / 2, 2.0, 0.9), way, ledger=ledger)
    assert record.refused == ("1",)
    assert record.spent[1] == record.theta[1] == record.payments[1] == 0
    assert {event["client"] for event in ledger.events()} == {"0", "2", "3"}
    assert one_round((0.5, rounding * 1.1, 2.0, 0.9), way).refused == ()


def test_too_few_for_the_failures_that_are_allowed_open_nothing_and_pay_nothing():
    ledger = PrivacyLedger.in_memory()
    ledger.set_cap(["0", "1"], 1e-3, "record")
    with pytest.raises(BadInput, match="2 clients less 1 dropouts and 1 colluding leave nobody whose noise hides"):
        one_round(dropouts=1, colluding=1, ledger=ledger)
    assert len(ledger) == 0


@pytest.mark.parametrize("trust", ["secure_sum", "server"])
def test_sampled_clients_are_charged_and_paid_for_being_in_the_lottery_so_nobody_learns_who_was_drawn(trust):
    budgets, drawn = (0.5, 0.5, 0.0, 0.9), []
    for seed in range(4):
        ledger = PrivacyLedger.in_memory()
        sampled = {"client_rate": 0.3, "seed": seed, "ledger": ledger}
        record = one_round(budgets, f"{trust} client", **sampled)
        assert record.payments.tolist() == [1.0, 1.0, 0.0, 1.8]  # its whole budget at a rate of 2, whoever was drawn
        assert record.participating.tolist() == [True, True, False, True]
        rows = {event["client"]: event for event in ledger.events()}
        assert rows.keys() == {"0", "1", "3"}
        assert all(row["sampling_rate"] == 0.3 for row in rows.values())
        assert rows["0"]["noise_multiplier"] == rows["1"]["noise_multiplier"] > rows["3"]["noise_multiplier"]
        drawn.append(np.abs(record.weights).max())
    assert len(set(drawn)) == 4


# ---- cohorts ------------------------------------------------------------------------------------------------------


def in_cohorts(cohorts=3, budgets=(0.5, 0.2, 2.0, 0.9, 0.0, 1.2, 0.7), rounds=8, way="server client", **changed):
    """Records of a linear model on the data of seven clients that join in turns."""
    data = pictures((9, 5, 12, 7, 6, 8, 10))
    asked = {**SUMS[way], "cohorts": cohorts, "clip_norm": CLIP, "dispersion": 0.0, **changed}
    return trained(budgets, rounds, data=data, model=make_model("linear", (1, 8, 8), 4), **asked)


@IN_A_SUM
def test_each_client_joins_every_bth_round_and_is_charged_and_paid_for_its_turns_alone(way):
    ledger, unit = PrivacyLedger.in_memory(), 0.25
    records = in_cohorts(way=way, ledger=ledger, budget_unit=unit)
    joined = np.array([record.participating for record in records])
    assert not joined[:, 4].any()  # who opts out has no turns
    assert (joined[:3].sum(axis=0) == [1, 1, 1, 1, 0, 1, 1]).all()
    np.testing.assert_array_equal(joined[3:], joined[:-3])
    assert set(joined[:3].sum(axis=1)) <= {1, 2, 3}
    spent = np.array([record.spent for record in records])
    budgets = np.array([record.budgets for record in records])
    assert (budgets > 0).tolist() == joined.tolist()
    np.testing.assert_allclose(spent, unit * budgets, rtol=1e-5)  # all weights follow the budgets
    np.testing.assert_allclose([record.payments for record in records], 2.0 * spent / unit)
    names = [str(k) for k in range(7) if k != 4]
    np.testing.assert_allclose(ledger.spent(names), spent.sum(axis=0)[[0, 1, 2, 3, 5, 6]])
    assert records[-1].dp_epsilon == approx(epsilon(spent.sum(axis=0).max(), 1e-5, "rdp"))
    assert not any(record.refused for record in records)
    again = in_cohorts(way=way, rounds=3, seed=1)
    assert [record.participating.tolist() for record in again] != joined[:3].tolist()


def test_rounding_is_charged_for_all_sums_in_which_a_turn_shows():
    (record, *_) = in_cohorts(budgets=(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5), aggregation="uniform")
    protection = configured(clip_norm=CLIP, **SUMS["server client"], cohorts=3).protection
    first = np.flatnonzero(record.participating)
    std = record.noise_std[first] * record.theta[first] / noise_growth(3, 1)  # √V
    exact = (record.theta[first] * 2 * CLIP / std + margin_of(protection, 4 * 64, 1)) ** 2 / 2
    np.testing.assert_allclose(record.spent[first], exact, rtol=1e-9)


def test_more_cohorts_than_clients_are_refused():
    with pytest.raises(BadInput, match=r"cohorts=8 of 7 clients leave some empty. Use fewer cohorts."):
        in_cohorts(8)


@pytest.mark.parametrize("noise", ["simulated", "discrete"])
def test_a_total_epsilon_counts_the_turns_of_whoever_gives_most(noise):
    *_, last = in_cohorts(rounds=7, total_epsilon=2.0, noise=noise)
    assert 2.0 * (1 - 1e-4) < last.dp_epsilon <= 2.0


def test_a_round_without_anybody_and_one_without_noise_are_taken_back_by_nobody():
    quiet = in_cohorts(budgets=(np.inf,) * 7)
    assert (quiet[-1].noise_std == 0).all()
    lonely = in_cohorts(2, budgets=(0.5, 0, 0, 0, 0, 0, 0), rounds=5)  # every other round has nobody
    assert [record.update_norm > 0 for record in lonely] in ([True, False] * 2 + [True], [False, True] * 2 + [False])
    assert not any(record.server.get("noise.000000", np.zeros(1)).all() for record in lonely if record.update_norm == 0)


def test_a_model_ends_nearer_to_where_it_would_without_noise_than_with_independent_noise(monkeypatch):
    asked = {"cohorts": 7, "rounds": 42, "learning_rate": 0.01, "aggregation": "uniform", "clip_norm": 0.1}
    quiet = in_cohorts(budgets=(np.inf,) * 7, **asked)[-1].weights

    def far():
        noisy = in_cohorts(budgets=(0.05,) * 7, **asked)[-1]
        return np.sum((noisy.weights - quiet) ** 2), noisy.dp_epsilon

    banded, spent = far()
    monkeypatch.setattr(home(SecureSum), "banded_square_root", lambda cohorts: np.eye(1, cohorts)[0])
    independent, same = far()
    assert spent == approx(same, rel=1e-6)
    assert banded < 0.4 * independent
