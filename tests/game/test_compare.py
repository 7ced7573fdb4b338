"""Comparisons: the orders of the paper's figures, and what the paper leaves out."""

import pytest

import mppfl
from mppfl.game.compare import summarise
from tests.game.games import paper_scale_game

GAMES = [paper_scale_game(seed, num_clients=20, preset="paper-like", externality_strength=0.05) for seed in range(4)]


@pytest.fixture(scope="module")
def rows():
    names = ("mppfl", "mppfl_exact", "social_agnostic", "random", "fixed", "sarda_like", "personalised", "noiseless")
    return mppfl.compare(GAMES, names, num_rounds=10, fixed_budget="mean")


def pick(rows, mechanism, convention):
    return [row for row in rows if row.mechanism == mechanism and row.convention == convention]


def test_under_a_common_reward_mppfl_is_cheaper_and_better_than_the_papers_baselines(rows):
    for name in ("social_agnostic", "random", "fixed"):
        for mine, other in zip(pick(rows, "mppfl", "common"), pick(rows, name, "common"), strict=True):
            assert mine.server_cost < other.server_cost
            assert mine.welfare > other.welfare


def test_under_its_own_reward_the_server_of_agnostic_clients_pays_less(rows):
    cheaper = [
        other.server_cost < mine.server_cost
        for mine, other in zip(pick(rows, "mppfl", "own"), pick(rows, "social_agnostic", "own"), strict=True)
    ]
    assert sum(cheaper) >= 3


def test_anticipating_is_never_dearer(rows):
    for exact, paper in zip(pick(rows, "mppfl_exact", "own"), pick(rows, "mppfl", "own"), strict=True):
        assert exact.server_cost <= paper.server_cost * (1 + 1e-12)


def test_mechanisms_that_differ_in_the_rate_alone_are_not_shown_twice(rows):
    assert not pick(rows, "mppfl_exact", "common")


def test_price_of_anarchy_is_at_least_one_or_absent(rows):
    for row in rows:
        assert row.price_of_anarchy is None or row.price_of_anarchy >= 1 - 1e-9
    assert all(row.price_of_anarchy is None for row in pick(rows, "sarda_like", "own"))
    assert all(row.price_of_anarchy is not None for row in pick(rows, "mppfl", "own"))


def test_summaries_count_games_and_average_them(rows):
    found = {(s.mechanism, s.convention): s for s in summarise(rows)}
    agnostic = found["social_agnostic", "common"]
    assert agnostic.num_games == 4
    assert agnostic.dearer_than_mppfl == 4
    assert agnostic.worse_than_mppfl == 4
    mean = sum(row.server_cost for row in pick(rows, "social_agnostic", "common")) / 4
    assert agnostic.server_cost == pytest.approx(mean)
    assert found["noiseless", "own"].price_of_anarchy is None


def test_an_unknown_convention_is_refused():
    with pytest.raises(mppfl.BadInput, match="convention"):
        mppfl.compare(GAMES[0], ("mppfl",), conventions=("fair",))
