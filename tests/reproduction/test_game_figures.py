"""The figures of the game: what is played, with which ε, and what their files hold."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pytest import approx
from reproduction.figure_files import Figure, Strand, read_figure, write_figure
from reproduction.settings import SETTINGS

from mppfl.errors import BadFile, BadInput
from mppfl.training import make_model
from reproduction import game_figures

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
