"""Verdicts follow from numbers: those in the committed files, and others made up so that they come out otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduction.claims import CLAIMS, CONVENTIONS, VERDICTS, moves
from reproduction.figure_files import read_figure
from reproduction.game_figures import FIGURES
from reproduction.theorems import STATEMENTS

from mppfl.game import social_agnostic
from reproduction import theorems

ROOT = Path(__file__).parents[2]
FILES = ROOT / "reproduction" / "results"
COMMITTED = {name: read_figure(FILES, name) for name in FIGURES}


def claim(text):
    (found,) = [each for each in CLAIMS if each.text == text]
    return found


def made_up(figure, change):
    """The figure with every strand's values put through `change`(strand), which may return None to leave them."""
    strands = []
    for strand in figure.strands:
        values = change(strand)
        strands.append(strand if values is None else replace(strand, values=np.asarray(values, dtype=np.float64)))
    return replace(figure, strands=strands)


# ---- on the committed files ---------------------------------------------------------------------------------------

EXPECTED = {
    "Algorithm 1's estimate φ₁ settles within 15 sweeps, in early and late rounds": "under a stated condition",
    "Algorithm 1's work is linear in N": "not reproduced",
    "MPPFL has the lowest server cost on all data sets": "under a stated condition",
    "SA costs the server more than MPPFL": "under a stated condition",
    "MPPFL costs the server less than SARDA": "not reproduced",
    "MPPFL has the highest welfare on all data sets": "under a stated condition",
    "SA brings clients less welfare than MPPFL": "reproduced",
    "MPPFL's server cost rises with α": "reproduced",
    "it falls because clients choose smaller budgets": "under a stated condition",
    "CINIC-10: server cost grows with N under every strategy": "reproduced",
}


@pytest.mark.parametrize("text", EXPECTED)
def test_the_verdicts_that_the_corrections_foretell(text):
    found = claim(text).judge(COMMITTED[claim(text).figure])
    assert found.verdict == EXPECTED[text]
    assert bool(found.condition) == (found.verdict == "under a stated condition")


@pytest.mark.parametrize("each", CLAIMS, ids=lambda each: f"{each.figure}: {each.text}")
def test_every_claim_has_a_verdict_with_numbers(each):
    found = each.judge(COMMITTED[each.figure])
    assert found.verdict in VERDICTS
    assert any(letter.isdigit() for letter in found.reason)
    assert each.where.startswith(("Section 5.2", "Appendix E"))


def test_every_figure_has_its_claims_and_no_claim_stands_twice():
    assert {each.figure for each in CLAIMS} == set(FIGURES)
    assert len({each.text for each in CLAIMS}) == len(CLAIMS)


def test_the_common_reward_is_the_condition_of_the_cost_claim():
    found = claim("MPPFL has the lowest server cost on all data sets").judge(COMMITTED["fig-cost"])
    assert found.condition.startswith("common reward, against SA, Random and DP-FedAvg (mean), not ")
    assert "common reward: SA 30" in found.reason
    assert "own reward: SA 0" in found.reason


# ---- on numbers made up -------------------------------------------------------------------------------------------


def cheapest(conventions):
    """MPPFL's cost made 0 under some conventions and a million under the others."""

    def change(strand):
        if strand.mechanism != "mppfl":
            return None
        return np.full_like(strand.values, 0.0 if strand.convention in conventions else 1e6)

    return made_up(COMMITTED["fig-cost"], change)


@pytest.mark.parametrize(
    ("conventions", "verdict"),
    [
        (("common", "own"), "reproduced"),
        (("common",), "under a stated condition"),
        (("own",), "under a stated condition"),
        ((), "not reproduced"),
    ],
)
def test_a_comparison_is_judged_by_who_is_ahead_under_which_convention(conventions, verdict):
    found = claim("MPPFL has the lowest server cost on all data sets").judge(cheapest(conventions))
    assert found.verdict == verdict
    assert found.condition == (CONVENTIONS[conventions[0]] if len(conventions) == 1 else "")


def test_one_data_set_on_which_mppfl_is_behind_breaks_a_claim_about_all():
    def change(strand):
        ahead = np.full_like(strand.values, 0.0 if strand.mechanism == "mppfl" else 1.0)
        ahead[2] = 1.0 - ahead[2]
        return ahead

    figure = made_up(COMMITTED["fig-cost"], change)
    assert claim("MPPFL has the lowest server cost on all data sets").judge(figure).verdict == "not reproduced"


def test_a_trend_needs_the_median_at_every_step_and_the_ends_in_nine_of_ten_seeds():
    rising = np.tile(np.arange(4.0)[:, None], (1, 10))
    assert moves(rising, +1) == (True, 10, 10)
    assert moves(rising, -1) == (False, 0, 0)
    two_fall = rising.copy()
    two_fall[:, :2] *= -1
    assert moves(two_fall, +1) == (False, 8, 8)
    assert moves(rising[[0, 2, 1, 3]], +1) == (False, 10, 0)


def test_a_trend_that_only_given_rates_show_is_kept_under_that_condition():
    falls = "MPPFL's welfare falls as K grows"
    up = np.tile(np.arange(8.0)[:, None], (1, 30))
    both = made_up(COMMITTED["fig-k"], lambda strand: up)
    held = made_up(COMMITTED["fig-k"], lambda strand: -up if strand.convention == "held" else up)
    assert claim(falls).judge(both).verdict == "not reproduced"
    assert claim(falls).judge(held).condition == "the server keeps its rates"
    assert claim(falls).judge(made_up(COMMITTED["fig-k"], lambda strand: -up)).verdict == "reproduced"


def test_a_lead_that_follows_difficulty_would_be_reproduced():
    text = "its lead is larger on more complex data sets"
    rank = {"fashion-mnist": 0, "svhn": 1, "cifar-10": 2, "cifar-100": 3, "cinic-10": 4}  # accuracy of SA falls
    lead = np.array([[1.0 + rank[name]] * 30 for name in COMMITTED["fig-welfare"].places])
    change = lambda strand: lead if strand.mechanism == "mppfl" else 0 * lead  # noqa: E731
    assert claim(text).judge(made_up(COMMITTED["fig-welfare"], change)).verdict == "reproduced"
    flat = made_up(COMMITTED["fig-welfare"], lambda strand: 0 * lead)
    assert claim(text).judge(flat).verdict == "not reproduced"


def test_sweeps_that_never_settle_and_work_that_is_linear_are_told_apart():
    settles, linear = (claim(text) for text in list(EXPECTED)[:2])
    phi = COMMITTED["fig-phi"]
    never = made_up(phi, lambda strand: 0 * strand.values if strand.quantity == "settled" else None)
    always = made_up(phi, lambda strand: 0 * strand.values + 1 if strand.quantity == "settled" else None)
    assert settles.judge(never).verdict == "not reproduced"
    assert settles.judge(always).verdict == "reproduced"
    sparse = replace(phi, configuration={**phi.configuration, "mean_edges": {"20": 60.0, "80": 240.0}})
    assert linear.judge(sparse).verdict == "reproduced"


def test_a_lead_that_shrinks_with_more_clients_does_not_widen():
    text = "CINIC-10: MPPFL's lead in welfare widens with N"
    lead = np.tile(np.array([[3.0], [2.0], [1.0]]), (1, 30))
    shrinks = made_up(COMMITTED["fig-n"], lambda strand: lead if strand.mechanism == "mppfl" else 0 * lead)
    assert claim(text).judge(shrinks).verdict == "not reproduced"
    widens = made_up(COMMITTED["fig-n"], lambda strand: lead[::-1] if strand.mechanism == "mppfl" else 0 * lead)
    assert claim(text).judge(widens).verdict == "reproduced"


def test_a_cost_that_falls_with_more_clients_under_one_mechanism_breaks_the_claim_about_all():
    text = "CIFAR-10: server cost grows with N under every strategy"
    falls = made_up(COMMITTED["fig-n"], lambda strand: strand.values[::-1] if strand.mechanism == "sarda_r" else None)
    found = claim(text).judge(falls)
    assert (found.verdict, found.reason.endswith("the trend holds under 13")) == ("not reproduced", True)


# ---- theorems -----------------------------------------------------------------------------------------------------

PROVED = {
    "noise_of_a_budget": "under a stated condition",
    "personal_harm": "not reproduced",
    "best_response": "reproduced",
    "positive_budgets": "under a stated condition",
    "rate_at_given_risk": "reproduced",
    "algorithm_1": "under a stated condition",
    "stackelberg": "not reproduced",
    "contraction": "under a stated condition",
    "agnostic_bound": "under a stated condition",
    "anarchy_of_mppfl": "not reproduced",
}


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: each.check.__name__)
def test_statements_hold_or_break_as_the_corrections_say(statement):
    found = statement.check()
    assert found.verdict == PROVED[statement.check.__name__]
    assert any(letter.isdigit() for letter in found.reason)
    assert (ROOT / statement.tested_by).is_file()


def test_budgets_that_are_no_best_response_are_found_out(monkeypatch):
    monkeypatch.setattr(theorems, "mppfl", social_agnostic)
    assert theorems.best_response().verdict == "not reproduced"


def test_a_game_without_exposure_has_no_price_of_anarchy_and_a_true_stackelberg_rate(monkeypatch):
    blind = tuple((replace(game, externality_strength=0.0), None) for game, _ in theorems._games())
    solved = tuple((game, theorems.mppfl(game, theorems.ROUND_1)[0]) for game, _ in blind)
    monkeypatch.setattr(theorems, "_games", lambda: solved)
    assert theorems.anarchy_of_mppfl().verdict == "reproduced"
    assert theorems.stackelberg().verdict == "reproduced"
