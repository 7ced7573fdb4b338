"""The figures of the game: what is played, what their files hold, which verdicts follow; Algorithm 1 and theorems."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pytest import approx
from reproduction.algorithm_1 import fixed_point_trace, lemma_1_right_side
from reproduction.claims import CLAIMS, CONVENTIONS, moves
from reproduction.figure_files import Figure, Strand, read_figure, write_figure
from reproduction.game_figures import FIGURES
from reproduction.paper_equations import poa_bound_of_theorem_3
from reproduction.settings import SETTINGS

import mppfl
from mppfl.errors import BadFile, BadInput
from mppfl.game import equilibrium_response, social_agnostic
from mppfl.training import make_model
from reproduction import game_figures, theorems
from tests.game.games import paper_scale_game

FILES = Path(__file__).parents[2] / "reproduction" / "results"


@pytest.mark.parametrize("dataset", SETTINGS)
def test_the_parameters_in_the_harm_are_those_of_the_model(dataset):
    setting = SETTINGS[dataset]
    model = make_model(setting.model, setting.input_shape, setting.num_classes, norm="none")
    assert sum(parameter.numel() for parameter in model.parameters()) == game_figures.NUM_PARAMETERS[dataset]


def test_every_mechanism_plays_under_both_conventions_but_the_exact_leader_who_is_mppfl_at_common_rates():
    played = game_figures.play(game_figures.Place("fashion-mnist"), 0)
    expected = {(convention, name) for convention in ("common", "own") for name in game_figures.MECHANISMS}
    assert set(played) == expected - {("common", "mppfl_exact")}
    assert played["common", "mppfl"] == played["own", "mppfl"]
    assert played["own", "mppfl_exact"].server_cost < played["own", "mppfl"].server_cost


# ---- files --------------------------------------------------------------------------------------------------------


Place = game_figures.Place
CORNERS = [  # file, setting of its strands, position on its axis, what is played there
    ("fig-cost", "", 0, Place("fashion-mnist")),
    ("fig-welfare", "", 3, Place("cifar-100")),
    *[("fig-alpha", "cinic-10", at, Place("cinic-10", externality_strength=a)) for at, a in ((0, 0.01), (9, 0.1))],
    *[("fig-k", "cinic-10", at, Place("cinic-10", max_hops=at + 1)) for at in (0, 7)],
    ("fig-n", "cinic-10", 2, Place("cinic-10", num_clients=80)),
    ("fig-n", "cifar-10", 1, Place("cifar-10", num_clients=50)),
]


@pytest.mark.parametrize(("name", "setting", "position", "place"), CORNERS, ids=lambda part: str(part)[:10])
def test_the_committed_figures_are_what_the_code_plays(name, setting, position, place):
    committed, compared = read_figure(FILES, name), 0
    assert committed.seeds == 30
    assert committed.configuration["noise_harm"][place.dataset] == approx(game_figures.harm_of(place.dataset), rel=1e-5)
    assert committed.configuration["num_rounds"][place.dataset] == place.num_rounds
    for (convention, mechanism), total in game_figures.play(place, 29).items():
        for quantity in ("server_cost", "welfare"):
            if (setting, convention, mechanism, quantity) in {strand.key for strand in committed.strands}:
                values = committed.values(mechanism, quantity, convention=convention, setting=setting)
                assert values[position, 29] == approx(getattr(total, quantity), rel=1e-5)
                compared += 1
    assert compared == 15 * (1 if name in ("fig-cost", "fig-welfare") else 2)


def test_rates_held_in_the_committed_figures_are_those_at_the_end_of_the_axis():
    committed = read_figure(FILES, "fig-alpha")
    weak, strong = (game_figures.Place("cinic-10", externality_strength=alpha) for alpha in (0.01, 0.1))
    values = committed.values("mppfl", "welfare", convention="held", setting="cinic-10")
    assert values[0, 0] == approx(game_figures.play_at(weak, strong, 0).welfare, rel=1e-5)
    assert values[9, 0] == approx(game_figures.play(strong, 0)["own", "mppfl"].welfare, rel=1e-5)


def test_the_committed_sweeps_are_those_of_algorithm_1():
    committed, now = read_figure(FILES, "fig-phi"), game_figures.FIGURES["fig-phi"](1)
    assert [strand.key for strand in committed.strands] == [strand.key for strand in now.strands]
    for before, after in zip(committed.strands, now.strands, strict=True):
        if before.convention == "solved":  # a path that runs away magnifies the last digit, which machines differ in
            assert before.values[:, :1] == approx(after.values, rel=1e-5, abs=1e-9), before.key


def test_a_figure_comes_back_from_its_file_with_gaps_where_there_is_no_number(tmp_path):
    values = np.array([[1.0, np.nan], [2.5, 1e-20]])
    strand = Strand("cifar-10", "own", "mppfl", "welfare", values)
    figure = Figure("fig-n", {"a": 1}, 2, "N", [20, 50], [strand], {"mppfl": "0"})
    write_figure(tmp_path, figure)
    again = read_figure(tmp_path, "fig-n")
    kept = again.values("mppfl", "welfare", convention="own", setting="cifar-10")
    assert np.array_equal(kept, values, equal_nan=True)
    assert (again.places, again.axis, again.configuration) == ([20, 50], "N", {"a": 1})
    with pytest.raises(BadInput, match="no strand"):
        again.values("random", "welfare")


def test_what_is_no_figure_is_refused(tmp_path):
    assert read_figure(tmp_path, "fig-n") is None
    for wrong in ("", "{}", '{"figure": "fig-k", "format": 1}', "[1]"):
        (tmp_path / "fig-n.json").write_text(wrong)
        with pytest.raises(BadFile, match="Make it anew"):
            read_figure(tmp_path, "fig-n")
    with pytest.raises(BadInput, match="shape"):
        replace(read_figure(FILES, "fig-n"), seeds=29)
    for name, seeds, message in (("fig-x", 1, "figure='fig-x' is not known"), ("fig-phi", 0, "seeds")):
        with pytest.raises(BadInput, match=message):
            game_figures.run_figure(name, tmp_path, seeds=seeds)


COMMITTED = {name: read_figure(FILES, name) for name in FIGURES}
REPRODUCED, CONDITION, NOT = "reproduced", "under a stated condition", "not reproduced"


def claim(text):
    (match,) = [claim for claim in CLAIMS if claim.text == text]
    return match


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


def test_another_mechanism_or_a_game_without_exposure_changes_what_is_found_of_statements(monkeypatch):
    blind = tuple(replace(game, externality_strength=0.0) for game, _ in theorems._games())
    solved = tuple((game, theorems.mppfl(game, theorems.ROUND_1)[0]) for game in blind)
    with monkeypatch.context() as other:
        other.setattr(theorems, "_games", lambda: solved)
        assert theorems.anarchy_of_mppfl().verdict == REPRODUCED
        assert theorems.stackelberg().verdict == REPRODUCED
    monkeypatch.setattr(theorems, "mppfl", social_agnostic)
    assert theorems.best_response().verdict == NOT


@pytest.mark.parametrize("seed", range(15))
def test_with_the_rate_solved_in_every_sweep_it_reaches_the_equilibrium_and_to_the_letter_it_never_does(seed):
    game = paper_scale_game(seed)
    terms = mppfl.solve(game).terms(1)
    literal = fixed_point_trace(game, threshold=1e-6, literal=True, max_sweeps=300)
    assert not literal.converged
    if np.isfinite(literal.budgets).all():
        assert np.abs(literal.budgets - terms.budgets).max() > 1e-3
    if not (terms.budgets > 0).all():
        return  # no equilibrium inside the bounds
    quick, trace = (fixed_point_trace(game, threshold=threshold) for threshold in (1e-3, 1e-13))
    assert quick.converged
    assert quick.num_sweeps == len(quick.external_risk) == len(quick.reward_rates) <= 15
    assert trace.budgets == approx(terms.budgets, abs=1e-9)
    assert trace.reward_rates[-1] == approx(terms.reward_rate, abs=1e-9)
    risk = game.propagation @ terms.budgets / game.num_clients
    assert trace.external_risk[-1] == approx(risk, abs=1e-10)
    assert lemma_1_right_side(game, 1, terms.reward_rate, risk) == approx(terms.reward_rate)


def test_theorem_3_is_empty_at_the_papers_scale_and_meaningless_past_its_range():
    game = paper_scale_game(1, num_clients=20, preset="paper-like", externality_strength=0.05)
    rate = equilibrium_response(game).lowest_rate + 1
    assert 1 <= poa_bound_of_theorem_3(game, rate) < 1 + 1e-5
    wild = paper_scale_game(1, num_clients=20, preset="paper-like", externality_strength=0.5)
    assert poa_bound_of_theorem_3(wild, rate) is None
