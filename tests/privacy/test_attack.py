"""What an attacker can tell: two routes to one curve, and a real attack that does no better."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from mppfl.errors import BadInput
from mppfl.privacy import attack_risk, history_deltas
from mppfl.privacy.ledger import PrivacyLedger
from tests.privacy.test_ledger import cost, poisson

approx = pytest.approx


def test_an_array_or_an_account_is_answered_as_its_entries_are():
    rhos = np.array([0.0, 0.1, 1e-9, 50.0, math.inf])
    one_by_one = np.array([attack_risk(rho) for rho in rhos])
    np.testing.assert_allclose(np.transpose(attack_risk(rhos)), one_by_one)
    assert np.array(attack_risk(rhos))[:, [0, -1]].tolist() == [[0, 1], [approx(0.01), 1]]
    with PrivacyLedger.in_memory() as ledger:
        ledger.reserve("run", 1, [cost("ann", 0.1), cost("bob", 3.0)])
        assert attack_risk(ledger.account()).advantage == approx(attack_risk(np.array([0.1, 3.0])).advantage)
        ledger.reserve("run", 2, [poisson("cat")])
        assert attack_risk(ledger.account()).advantage[2] == attack_risk(0.0, [(1.0, 0.01, 100)]).advantage


@pytest.mark.parametrize("rho", [0.02, 0.5, 5.0])
def test_the_curve_of_losses_gives_the_closed_form_where_hardly_anybody_is_left_out(rho):
    noise = math.sqrt(1 / (2 * rho))
    closed, curve = attack_risk(rho), attack_risk(0.0, [(noise, 0.9999, 1)])
    for exact, bound in zip(closed, curve, strict=True):
        assert exact * (1 - 1e-3) <= bound <= exact * (1 + 1e-2)
    for sampled in ([(noise, 1.0, 1)], [(2 * noise, 1.0, 4)]):
        assert attack_risk(0.0, sampled) == approx(closed, rel=1e-3)


def test_an_attack_on_sampled_steps_does_nearly_as_well_as_the_bound_and_no_better():
    # The likelihood ratio of one member's steps, against those of somebody who never was in.
    noise, rate, steps, runs = 1.0, 0.2, 8, 200_000
    rng = np.random.default_rng(0)

    def losses(is_member):
        drawn = (rng.random((runs, steps)) < rate) * is_member
        answers = drawn + noise * rng.standard_normal((runs, steps))
        return np.log1p(rate * np.expm1((answers - 0.5) / noise**2)).sum(axis=1)

    others, members = losses(False), losses(True)
    rate_found = np.mean(members > np.quantile(others, 0.99))
    bound = attack_risk(0.0, [(noise, rate, steps)])
    spread = 5 * math.sqrt(1 / (0.01 * runs))  # five standard errors of the threshold's rate, relative
    assert bound.true_positive_rate * (1 - 0.05 - spread) < rate_found < bound.true_positive_rate * (1 + spread)
    best = max(np.mean(members > at) - np.mean(others > at) for at in np.linspace(-1, 2, 200))
    assert 0.95 * bound.advantage < best < bound.advantage + 0.01


def test_sampling_and_a_budget_add_up_and_what_cannot_be_composed_is_bounded():
    steps = [(1.5, 0.05, 40)]
    alone, both, unsampled = attack_risk(0.0, steps), attack_risk(0.1, steps), attack_risk(0.1 + 40 / (2 * 1.5**2))
    for part in (0, 1):
        assert alone[part] < both[part] < unsampled[part]
        assert attack_risk(0.1)[part] < both[part]
    tiny = attack_risk(0.0, [(1e-3, 0.5, 10)])  # too little noise for a distribution
    assert (tiny.advantage, tiny.true_positive_rate) == (1, 1)
    assert attack_risk(math.inf, steps) == (1, 1)
    with pytest.raises(BadInput, match="sampling_rate=0"):
        attack_risk(0.0, [(1.0, 0.0, 10)])


def test_noise_that_is_not_quite_the_one_meant_raises_the_risk():
    meant = attack_risk(np.array([0.0, 0.5, 50.0]))
    assert np.array(meant.beside(0.0)) == approx(np.array(meant))
    # Noise that is off by e on both sides, in the worst place: where an attacker would accuse.
    off, mu = 0.002, 1.0
    threshold = ndtri(1 - (0.01 + off))
    assert meant.beside(off).true_positive_rate[1] >= 1 - ndtr(threshold - mu) + off
    assert meant.beside(off).advantage == approx(np.minimum(meant.advantage + 0.004, 1))
    with PrivacyLedger.in_memory() as ledger:
        ledger.reserve("run", 1, [cost("ann", 0.5, extra_delta=off), poisson("bob", extra_delta=off)])
        assert ledger.get_attack_risk("ann") == approx((meant.advantage[1] + 0.004, 0.0924 * 1.2 + off), abs=1e-3)
        assert ledger.get_attack_risk("bob").advantage == attack_risk(0.0, [(1.0, 0.01, 100)]).advantage + 0.004


@pytest.mark.parametrize("rho", [0.05, 2.0])
def test_the_curve_without_samples_is_the_gaussian_one(rho):
    mu, losses = math.sqrt(2 * rho), np.array([0.0, 0.1, 1.0, 4.0])
    textbook = ndtr(mu / 2 - losses / mu) - np.exp(losses) * ndtr(-mu / 2 - losses / mu)
    assert history_deltas([], losses, budget=rho) == approx(textbook, rel=1e-9)
    assert attack_risk(rho).true_positive_rate == approx(ndtr(ndtri(0.01) + mu))


@pytest.mark.parametrize(
    ("rho", "sentence"),
    [
        (1.0, "An attacker who accuses 1 in 100 by mistake recognises 18 in 100 members."),
        (np.array([0.1, 3.0]), "An attacker who accuses 1 in 100 by mistake recognises 55 in 100 members."),
        (1e-4, "An attacker who accuses 1 in 100 by mistake recognises hardly more members: 1 in 100."),
        (math.inf, "An attacker who accuses 1 in 100 by mistake recognises nearly every member."),
    ],
)
def test_a_risk_is_told_in_one_sentence(rho, sentence):
    assert attack_risk(rho).sentence == sentence


@pytest.mark.parametrize("strange", [-1, math.nan, "x", None, 1j, [0.1, -1]])
def test_strange_budgets_are_refused_in_one_line(strange):
    with pytest.raises(BadInput) as refused:
        attack_risk(strange)
    assert "\n" not in str(refused.value)
