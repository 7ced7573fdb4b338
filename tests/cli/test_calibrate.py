"""mppfl calibrate: its object, its lines, its refusals."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def villages(write):
    """Two hundred people in ten villages, as files: edges and everybody's value."""
    rng = np.random.default_rng(1)
    village = np.arange(200) % 10
    chance = np.where(village[:, None] == village, 0.4, 0.005)
    ends = np.argwhere(np.triu(rng.random((200, 200)) < chance, 1))
    values = (village < 5).astype(int)
    graph = write("edges.csv", *(f"{i},{j}" for i, j in ends))
    seen = np.unique(ends)
    return graph, write("values.csv", "name,value", *(f"{i},{values[i]}" for i in seen))


def test_the_object_holds_constants_with_intervals_and_a_verdict(mppfl, villages):
    graph, attribute = villages
    options = ("calibrate", "--graph", graph, "--attribute", attribute, "--public-share", 0.5, "--json")
    found = mppfl(*options).json
    assert found["num_clients"] == 200
    assert found["fit"]["num_public"] == 100
    assert found["beta"][0] <= found["fit"]["beta"] <= found["beta"][1]
    assert found["homophily"]["edge"]["low"] > 0.5
    assert set(found["index"]) == {"hop_decay", "max_hops", "normalisation", "agreement"}
    assert found["verdict"].startswith(("ranked by", "no ranking"))
    assert mppfl(*options, "--undirected").json == found  # edges run both ways anyway, and the seed decides


def test_the_text_names_every_number_and_ends_with_the_verdict(mppfl, villages):
    graph, attribute = villages
    answer = mppfl("calibrate", "--graph", graph, "--attribute", attribute, "--public-share", 0.5)
    assert (answer.code, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    named = [line[:16].strip() for line in lines]
    for name in ("homophily", "by walks", "beta", "eta", "friend slope", "saturation", "R_gp", "R_sat", "R_model"):
        assert name in named
    assert lines[-1].startswith(("ranked by", "no ranking"))


def test_a_client_who_is_not_in_the_network_is_named(mppfl, villages, write):
    graph, _ = villages
    error = mppfl("calibrate", "--graph", graph, "--attribute", write("other.csv", "nobody,1")).error
    assert "'nobody'" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--public-share", 1.5), "--public-share 1.5"),
        (("--public-share", 0.01), "public sample has 2 known values"),
        *((("--budget", budget), "must lie in [1e-12, 1e+12]") for budget in ("1e300", "1e-300", "0")),
    ],
)
def test_an_impossible_share_or_budget_is_refused_in_one_line(mppfl, villages, options, message):
    graph, attribute = villages
    assert message in mppfl("calibrate", "--graph", graph, "--attribute", attribute, *options).error
