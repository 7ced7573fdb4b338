"""Calibration on networks where the truth is planted, and the leak model's slopes and protection."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from pytest import approx

from mppfl.errors import BadFile, BadInput
from mppfl.leakage import (
    Correlation,
    FieldFit,
    audit_neighbour,
    calibrate,
    fits_matrices,
    friend_moments,
    friendships,
    homophily,
    leak_model,
    least_wrong_index,
    protect,
    public_part,
    read_values,
    spearman,
    walk_of,
)
from mppfl.network import random_graph
from tests.homes import home
from tests.leakage.networks import circles, drawn_friends, friends

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from leakage import email_department, measured_table, priced_table

ROOT = Path(__file__).parents[2]
NO_NUMBER = "must be name,value with a number as value. Leave out the line of a client whose value is not known."


@pytest.fixture(scope="module")
def villages():
    """Fifteen villages whose people mostly share one value, some well connected, some hardly."""
    rng = np.random.default_rng(11)
    size = 300
    village = np.arange(size) % 15
    activity = rng.lognormal(0, 0.9, size)
    chance = np.where(village[:, None] == village, 0.4, 0.003) * np.sqrt(activity[:, None] * activity)
    graph = drawn_friends(rng, chance)
    leaning = np.where(rng.permutation(15) < 8, 1.0, -1.0)[village]
    return graph, np.where(rng.random(size) < 0.9, leaning, -leaning)


@pytest.fixture(scope="module")
def calibrated(villages):
    graph, signs = villages
    return calibrate(graph, signs, rng=np.random.default_rng(0), public_share=0.7)


def test_on_two_connected_pairs_correlations_are_worked_by_hand():
    # + - + and a far pair - -: three edges, products of ±1 values are -1, -1, +1; the mean is 0, p = 2/5.
    known = np.array([1.0, -1.0, 1.0, -1.0, -1.0])
    alike = homophily(walk_of(friends((0, 1), (1, 2), (3, 4))), known, np.random.default_rng(0))
    p = 2 / 5
    plus, minus = (1 - (2 * p - 1)) / (2 * np.sqrt(p * (1 - p))), (-1 - (2 * p - 1)) / (2 * np.sqrt(p * (1 - p)))
    assert alike.edge.value == approx((2 * plus * minus + minus**2) / 3)
    assert alike.edge.num_pairs == 6  # both ways
    assert alike.by_distance[0].value == approx(alike.edge.value)
    assert alike.by_distance[1].value == approx(plus**2)  # 0 and 2, two edges apart
    assert np.isnan(alike.by_distance[2].value)
    assert alike.by_walks[1].value == approx(plus**2)  # the only walks of two edges that do not return


def test_planted_villages_are_homophilous_ranked_and_have_constants_within_their_intervals(calibrated):
    alike, fit = calibrated.homophily, calibrated.fit
    assert alike.edge.low > 0.3
    assert dataclasses.astuple(alike.edge) == approx(
        dataclasses.astuple(alike.by_distance[0])
    )  # friends: one edge apart
    assert alike.by_walks[0].value > alike.by_walks[3].value > 0
    assert 0.5 < alike.walk_decay < 1
    assert calibrated.exact
    assert calibrated.beta[0] < fit.beta < calibrated.beta[1]
    assert calibrated.eta[0] <= fit.eta <= calibrated.eta[1]
    assert calibrated.friend_slope[0] < fit.friend_slope < calibrated.friend_slope[1]
    assert fit.gain_per_client > 0.1
    assert calibrated.public_leak[0] > 0.05
    assert calibrated.verdict.startswith("ranked by")
    assert max(calibrated.by_field.low, calibrated.by_friends.low) > 0


def test_values_without_any_order_are_not_homophilous_and_not_ranked(villages):
    graph, signs = villages
    mixed = np.random.default_rng(2).permutation(signs)
    calibration = calibrate(graph, mixed, rng=np.random.default_rng(0), public_share=0.7)
    assert calibration.homophily.edge.low <= 0 <= calibration.homophily.edge.high
    assert calibration.homophily.walk_decay is None
    assert calibration.verdict.startswith("no ranking")
    with pytest.raises(BadInput, match="both values"):
        calibrate(graph, np.ones(graph.num_clients), rng=np.random.default_rng(0))


@pytest.mark.parametrize("sources", [150, 100])  # all of them, or some, so that some pairs are seen from one end alone
def test_intervals_of_95_per_cent_hold_the_truth_about_as_often(sources, monkeypatch):
    # Friends that resemble each other no more than strangers do: the truth is 0 at any distance.
    monkeypatch.setattr(home(Correlation), "SOURCES", sources)
    graph = random_graph("watts_strogatz", 150, rng=np.random.default_rng(0))
    walk = walk_of(graph)
    held = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        signs = np.where(rng.random(150) < 0.5, 1.0, -1.0)
        alike = homophily(walk, signs, rng, replicates=50)
        intervals = [(estimate.low, estimate.high) for estimate in (alike.edge, *alike.by_distance)]
        held.append([low <= 0 <= high for low, high in (*intervals, friend_moments(friendships(graph), signs)[2])])
    shares = np.mean(held, axis=0)
    assert (shares > 0.9).all()  # 200 draws: 0.95 ± 0.031 with two standard deviations
    assert (shares < 0.995).all()


def test_probes_find_constants_that_the_exact_intervals_allow(villages, calibrated, monkeypatch):
    graph, signs = villages
    monkeypatch.setattr(home(fits_matrices), "DENSE_LIMIT", 10)
    found = calibrate(graph, signs, rng=np.random.default_rng(0), public_share=0.7)
    assert not found.exact
    assert calibrated.beta[0] <= found.fit.beta <= calibrated.beta[1]
    assert calibrated.eta[0] - 0.02 <= found.fit.eta <= calibrated.eta[1] + 0.02
    (one, one_error), (other, other_error) = found.public_leak, calibrated.public_leak  # two random halves
    assert abs(one - other) < 3 * np.hypot(one_error, other_error)


def test_values_outside_the_public_share_change_nothing(villages):
    graph, signs = villages
    public = public_part(signs, 0.4, np.random.default_rng(6))
    turned = np.where(public, signs, -signs)
    one, other = (calibrate(graph, v, rng=np.random.default_rng(6), public_share=0.4) for v in (signs, turned))
    for name in ("fit", "homophily", "by_field", "index"):
        assert getattr(one, name) == getattr(other, name)


def test_the_least_wrong_index_is_the_one_that_made_the_leak_and_a_constant_ranks_nobody():
    rng = np.random.default_rng(1)
    graph = drawn_friends(rng, np.full((80, 80), 0.08))
    connected = (graph.edges().toarray() > 0).astype(float)
    budgets = rng.uniform(0, 1, 80)
    two = connected @ connected
    np.fill_diagonal(two, 0)
    leak = connected @ budgets + 0.7 * two @ budgets
    clients = np.arange(80)
    index = least_wrong_index(graph, budgets, (clients[:40], leak[:40]), (clients[40:], leak[40:]))
    assert (index.normalisation, index.max_hops, index.hop_decay) == ("none", 2, 0.7)
    assert index.agreement.value == approx(1.0)
    constant = spearman(np.full(30, 0.2), np.arange(30.0))
    assert (constant.value, constant.ranks, constant.reason) == (0.0, False, "the same for everybody")


@pytest.fixture(scope="module")
def small():
    """Sixty people in three circles, half of them public, with unequal budgets and two who are silent."""
    rng = np.random.default_rng(4)
    group = np.arange(60) % 3
    graph = circles(rng, group, 0.3, 0.03)
    known = np.where(np.arange(60) % 2 == 0, np.where(group == 0, 1.0, -1.0), np.nan)
    budgets = rng.uniform(0.05, 0.8, 60)
    budgets[[3, 40]] = 0.0
    return graph, known, budgets, leak_model(graph, known)


def kernel_of(field):
    return field.smooth + np.diag(field.apart)


def left_by_hand(kernel, noise, client):
    """Variance of one client's value given everybody else's, and the weights of its mean."""
    others = np.flatnonzero((np.arange(len(noise)) != client) & np.isfinite(noise))
    weights = np.zeros(len(noise))
    weights[others] = np.linalg.solve(kernel[np.ix_(others, others)] + np.diag(noise[others]), kernel[others, client])
    return kernel[client, client] - weights @ kernel[:, client], weights


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [*10.0 ** np.arange(-6, 13, 3), "mixed"])
def test_the_field_keeps_its_digits_from_the_faintest_to_the_loudest_budgets(small, scale):
    _, _, budgets, model = small
    budgets = budgets * (10.0 ** np.random.default_rng(1).uniform(-6, 12, 60) if scale == "mixed" else scale)
    with np.errstate(divide="ignore"):
        noise = 1 / (2 * model.fit.information * budgets)
    by_hand = [left_by_hand(kernel_of(model.field), noise, client) for client in range(60)]
    left, weights = (np.array(part) for part in zip(*by_hand, strict=True))
    r_gp, levels, audible = -0.5 * np.log(left), model.levels(budgets), budgets > 0
    assert levels.r_gp == approx(r_gp, rel=1e-9, abs=1e-12)
    assert levels.heard.means(np.eye(60)) == approx(weights, rel=1e-9, abs=1e-12)
    # -½ ln(left) falls by ½ (weight · noise)² / left with another's precision, which a budget raises by 2 information.
    slopes = model.fit.information * (weights[:, audible] * noise[audible]) ** 2 / left[:, None]
    for client in np.flatnonzero(levels.by_field):
        assert levels.slopes_of(client)[audible] == approx(slopes[client], rel=1e-6, abs=1e-9 * float(slopes.max()))
    total, marginal = model.smooth_total_and_marginal(budgets)
    assert np.isfinite(total)
    assert (marginal >= 0).all()
    assert np.isfinite(levels.marginal()).all()


def test_slopes_and_those_of_the_rounded_leak_agree_with_finite_differences_also_for_the_silent(small):
    _, _, budgets, model = small
    levels = model.levels(budgets)
    slopes = np.array([levels.slopes_of(client) for client in range(60)])
    total, marginal = model.smooth_total_and_marginal(budgets)
    assert total == approx(model.total(budgets), rel=0.1)
    for source in (0, 3, 17, 40):
        moved = budgets + 1e-6 * (np.arange(60) == source)
        assert slopes[:, source] == approx((model.levels(moved).nats - levels.nats) / 1e-6, rel=1e-3, abs=1e-6)
        assert marginal[source] == approx((model.smooth_total_and_marginal(moved)[0] - total) / 1e-6, rel=1e-3)
    assert (np.diagonal(slopes) == 0).all()
    assert levels.marginal()[0] == approx(slopes.sum(axis=0))
    assert not levels.error.any()
    assert slopes.max() > 1e-3


def test_protection_brings_the_leak_to_the_target_and_takes_little(small):
    _, _, budgets, model = small
    client = int(np.argmax(model.levels(budgets).nats))
    before = float(model.levels(budgets).nats[client])
    withdrawn = protect(model, budgets, client, target=before / 2)
    assert model.levels(budgets - withdrawn).nats[client] == approx(before / 2, rel=1e-6)
    assert withdrawn[client] == 0
    assert (withdrawn <= budgets + 1e-12).all()
    low, high = 0.0, 1.0
    for _ in range(50):  # the same target by lowering everybody alike
        share = (low + high) / 2
        scaled = np.where(np.arange(60) == client, budgets, share * budgets)
        low, high = (share, high) if model.levels(scaled).nats[client] < before / 2 else (low, share)
    assert withdrawn.sum() < (1 - low) * np.delete(budgets, client).sum()
    assert protect(model, budgets, client, target=1e-300) == approx(np.where(np.arange(60) == client, 0.0, budgets))
    with pytest.raises(BadInput, match="not below its level"):
        protect(model, budgets, 0, target=1.0)


@pytest.fixture
def both(monkeypatch):
    """The same question answered by matrices and by probes, on four circles of friends and two who know nobody."""
    graph = circles(np.random.default_rng(3), np.arange(240) % 4, 0.12, 0.006, num_clients=242)

    def ask(budgets, **changes):
        constants = {"beta": 6.0, "eta": 0.3, "rate": 0.4, "gain_per_client": 0.1, "friend_slope": 0.3}
        fit = FieldFit(**{**constants, "friend_covariance": 0.05, "num_public": 99, **changes})
        exact = leak_model(graph, None, fit=fit).levels(budgets)
        with monkeypatch.context() as changed:
            changed.setattr(home(fits_matrices), "DENSE_LIMIT", 10)
            return exact, leak_model(graph, None, seed=1, fit=fit).levels(budgets)

    return ask


@pytest.mark.parametrize(
    ("beta", "eta", "rho"), [(0.25, 0.3, 0.3), (2.0, 0.5, 0.03), (6.0, 0.3, 0.3), (12.0, 0.2, 3.0), (20.0, 0.1, 10.0)]
)
def test_levels_lie_within_their_stated_errors_whether_little_or_nearly_everything_is_told(both, beta, eta, rho):
    budgets = rho * np.random.default_rng(1).lognormal(0, 1, 242)
    exact, probed = both(budgets, beta=beta, eta=eta, friend_slope=0.0)  # the field alone decides
    estimated = probed.error > 0
    away = (probed.nats - exact.nats)[estimated] / probed.error[estimated]
    assert estimated.sum() > 10  # the others are at their entropy
    assert np.abs(away).max() < 5  # 242 clients, and the seed is fixed
    assert 0.2 < np.sqrt(np.mean(away**2)) < 1.3  # neither boastful nor timid


def test_marginal_leaks_and_slopes_agree_with_the_exact_ones(both):
    budgets = 0.3 * np.random.default_rng(5).lognormal(0, 1, 242)
    budgets[::9] = 0.0
    exact, probed = both(budgets)
    (true, _), (marginal, error) = exact.marginal(), probed.marginal()
    assert np.median(np.abs(marginal[:-2] / true[:-2] - 1)) < 0.15
    assert marginal[-2:] == approx([0.0, 0.0], abs=1e-4)  # they know nobody
    assert np.corrcoef(marginal, true)[0, 1] > 0.85
    assert (error >= 0).all()
    for client in (0, 17):
        slopes = exact.slopes_of(client)
        assert probed.slopes_of(client)[client] == 0
        assert probed.slopes_of(client) == approx(slopes, abs=0.2 * slopes.max())


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        *[
            (f"name,value\nann,1\nbob,{value}\n", f"line 3: 'bob,{value}' {NO_NUMBER}")
            for value in ("nan", "NaN", "-nan", "inf", "-Infinity", "1e999", "", "unknown")
        ],
        ("ann,nan\nbob,1\n", f"line 1: 'ann,nan' {NO_NUMBER}"),  # no heading
        ("ann,1\nbob,0\nann,0\n", "line 3: 'ann' stands twice. Keep one line for each client."),
    ],
)
def test_a_client_may_be_left_out_of_a_file_but_not_stand_without_a_number_or_twice(tmp_path, lines, says):
    path = tmp_path / "values.csv"
    path.write_text("name,value\nann,1\n\ncid,-1\n", encoding="utf-8")
    assert read_values(path) == {"ann": 1.0, "cid": -1.0}
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(BadFile) as caught:
        read_values(path)
    assert str(caught.value) == f"{path}, {says}"


def test_the_tables_of_the_page_are_those_of_the_record():
    record = json.loads(sorted((ROOT / "benchmarks" / "records").glob("*-leakage.json"))[-1].read_text())
    page = (ROOT / "docs" / "leakage.md").read_text(encoding="utf-8")
    assert measured_table(record) in page
    assert priced_table(record) in page
    scale, flat = record["scale"], " ".join(page.split())
    sentence = f"calibrated in {scale['calibrate_seconds']:.0f} s and all clients scored, with marginal leaks, in"
    assert f"{scale['clients']:,} clients and {scale['edges']:,} edges" in flat
    assert f"{sentence} {scale['score_seconds']:.0f} s" in flat
    assert f"standard error of `R_leak` is {scale['median_relative_error']:.0%}".replace("%", " %") in flat


@pytest.mark.data
def test_departments_of_a_real_institute_are_homophilous_ranked_by_the_field_and_best_attacked_by_it():
    root = os.environ.get("MPPFL_DATA")
    if not root or not (Path(root) / "graphs").is_dir():
        pytest.skip("set MPPFL_DATA to the folder that holds graphs/ (docs/data-sets.md)")
    graph, signs = email_department(Path(root) / "graphs")
    found = calibrate(graph, signs, rng=np.random.default_rng(0))
    assert found.homophily.edge.low > 0
    assert found.by_field.ranks
    assert found.by_field.value > found.index.agreement.value
    audit = audit_neighbour(graph, signs, 0.03, rng=np.random.default_rng(0))
    levels = {name: attacker["leak"] for name, attacker in audit.details["attackers"].items()}
    assert levels["gaussian_field"] > max(0.04, 2 * levels["belief_propagation"])
    assert abs(audit.details["null_leak"]) < 0.01
