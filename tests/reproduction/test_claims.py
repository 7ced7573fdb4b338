"""Verdicts follow from numbers: those in the committed files, and others made up so that they come out otherwise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduction.claims import CLAIMS, CONVENTIONS, VERDICTS, moves
from reproduction.figure_files import read_figure
from reproduction.game_figures import FIGURES

from mppfl.game import social_agnostic
from reproduction import theorems

ROOT = Path(__file__).parents[2]
FILES = ROOT / "reproduction" / "results"
COMMITTED = {name: read_figure(FILES, name) for name in FIGURES}


def claim(text):
    (match,) = [claim for claim in CLAIMS if claim.text == text]
    return match


# ---- on the committed files ---------------------------------------------------------------------------------------

REPRODUCED, CONDITION, NOT = "reproduced", "under a stated condition", "not reproduced"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.figure}: {claim.text}")
def test_every_claim_has_a_verdict_with_numbers(claim):
    finding = claim.judge(COMMITTED[claim.figure])
    assert finding.verdict in VERDICTS
    assert bool(finding.condition) == (finding.verdict == CONDITION)
    assert any(letter.isdigit() for letter in finding.reason)
    assert claim.where.startswith(("Section 5.2", "Appendix E"))


def test_every_figure_has_its_claims_and_no_claim_stands_twice():
    assert {claim.figure for claim in CLAIMS} == set(FIGURES)
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)


# ---- on numbers made up -------------------------------------------------------------------------------------------


def changed(figure, change):
    """The figure with every strand's values put through `change`(strand), which may return None to leave them."""
    pairs = [(strand, change(strand)) for strand in figure.strands]
    strands = [replace(strand, values=strand.values if new is None else 1.0 * new) for strand, new in pairs]
    return replace(figure, strands=strands)


def cheapest(*conventions):
    """MPPFL's cost made 0 under some conventions and a million under the others."""

    def change(strand):
        if strand.mechanism != "mppfl":
            return None
        return np.full_like(strand.values, 0.0 if strand.convention in conventions else 1e6)

    return change


def behind_on_one(strand):
    """MPPFL is ahead of all on every data set but one."""
    values = np.full_like(strand.values, 0.0 if strand.mechanism == "mppfl" else 1.0)
    values[2] = 1.0 - values[2]
    return values


def lead(*by_place):
    """So much MPPFL's lead is at each place, in every seed."""
    values = np.tile(np.array(by_place, dtype=float)[:, None], (1, 30))
    return lambda strand: values if strand.mechanism == "mppfl" else 0 * values


def all_settled(share):
    return lambda strand: 0 * strand.values + share if strand.quantity == "settled" else None


LOWEST = "MPPFL has the lowest server cost on all data sets"
FALLS = "MPPFL's welfare falls as K grows"
HARDER = "its lead is larger on more complex data sets"
WIDENS = "CINIC-10: MPPFL's lead in welfare widens with N"
SETTLES, LINEAR = (claim.text for claim in CLAIMS if claim.figure == "fig-phi")
UP = np.tile(np.arange(8.0)[:, None], (1, 30))
RANKS = {"fashion-mnist": 0, "svhn": 1, "cifar-10": 2, "cifar-100": 3, "cinic-10": 4}  # accuracy of SA falls
MADE_UP = [
    (LOWEST, cheapest("common", "own"), REPRODUCED, ""),
    (LOWEST, cheapest("common"), CONDITION, CONVENTIONS["common"]),
    (LOWEST, cheapest("own"), CONDITION, CONVENTIONS["own"]),
    (LOWEST, cheapest(), NOT, ""),
    (LOWEST, behind_on_one, NOT, ""),
    (FALLS, lambda strand: UP, NOT, ""),
    (FALLS, lambda strand: -UP, REPRODUCED, ""),
    (FALLS, lambda strand: -UP if strand.convention == "held" else UP, CONDITION, "the server keeps its rates"),
    (HARDER, lead(*(1 + RANKS[name] for name in COMMITTED["fig-welfare"].places)), REPRODUCED, ""),
    (HARDER, lead(0, 0, 0, 0, 0), NOT, ""),
    (WIDENS, lead(3, 2, 1), NOT, ""),
    (WIDENS, lead(1, 2, 3), REPRODUCED, ""),
    (SETTLES, all_settled(0), NOT, ""),
    (SETTLES, all_settled(1), REPRODUCED, ""),
]


@pytest.mark.parametrize(("text", "change", "verdict", "condition"), MADE_UP)
def test_other_numbers_have_other_verdicts(text, change, verdict, condition):
    finding = claim(text).judge(changed(COMMITTED[claim(text).figure], change))
    assert (finding.verdict, finding.condition) == (verdict, condition)


def test_a_trend_needs_the_median_at_every_step_and_the_ends_in_nine_of_ten_seeds():
    rising = np.tile(np.arange(4.0)[:, None], (1, 10))
    assert moves(rising, +1) == (True, 10, 10)
    assert moves(rising, -1) == (False, 0, 0)
    two_fall = rising.copy()
    two_fall[:, :2] *= -1
    assert moves(two_fall, +1) == (False, 8, 8)
    assert moves(rising[[0, 2, 1, 3]], +1) == (False, 10, 0)


def test_work_that_is_linear_and_a_cost_that_falls_under_one_mechanism_are_told():
    phi = COMMITTED["fig-phi"]
    sparse = replace(phi, configuration={**phi.configuration, "mean_edges": {"20": 60.0, "80": 240.0}})
    assert claim(LINEAR).judge(sparse).verdict == REPRODUCED
    reversed_one = lambda strand: strand.values[::-1] if strand.mechanism == "sarda_r" else None  # noqa: E731
    one_falls = changed(COMMITTED["fig-n"], reversed_one)
    finding = claim("CIFAR-10: server cost grows with N under every strategy").judge(one_falls)
    assert finding.verdict == NOT
    assert finding.reason.endswith("the trend holds under 13")


# ---- theorems -----------------------------------------------------------------------------------------------------


def test_another_mechanism_or_a_game_without_exposure_changes_what_is_found_of_statements(monkeypatch):
    blind = tuple(replace(game, externality_strength=0.0) for game, _ in theorems._games())
    solved = tuple((game, theorems.mppfl(game, theorems.ROUND_1)[0]) for game in blind)
    with monkeypatch.context() as other:
        other.setattr(theorems, "_games", lambda: solved)
        assert theorems.anarchy_of_mppfl().verdict == REPRODUCED
        assert theorems.stackelberg().verdict == REPRODUCED
    monkeypatch.setattr(theorems, "mppfl", social_agnostic)
    assert theorems.best_response().verdict == NOT
