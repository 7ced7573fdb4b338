"""The real files, one split: what the example promises about recommendations. Needs MPPFL_DATA (docs/data-sets.md)."""

import os
from pathlib import Path

import numpy as np
import pytest
from examples.lastfm.budgets import TrainingJob
from examples.lastfm.data import hold_out, read_lastfm
from examples.lastfm.experiment import SPLIT_STREAM, Settings, World, validation_users
from examples.lastfm.server import noiseless_scores, popularity_scores

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def world():
    root = os.environ.get("MPPFL_DATA")
    folder = Path(root or "") / "graphs" / "hetrec2011-lastfm-2k"
    if not root or not folder.is_dir():
        pytest.skip("set MPPFL_DATA to the folder that holds graphs/ (docs/data-sets.md)")
    listening, settings = read_lastfm(folder), Settings(num_splits=1)
    splits = [hold_out(listening, 0.2, settings.stream(SPLIT_STREAM, 0))]
    return World(listening, splits, ~validation_users(listening, settings), settings)


@pytest.mark.parametrize(("trust", "rho", "least"), [("record", 1.0, 0.16), ("secure", 0.53, 0.19)])
def test_recommendations_reach_what_the_example_promises(world, trust, rho, least):
    everybody = np.full(world.listening.num_users, rho)
    assert world.score(trust, TrainingJob("everybody", everybody, "noise_aware")).ndcg >= least


def test_references_are_where_earlier_work_found_them(world):
    assert 0.08 < world.reference("popularity", popularity_scores).ndcg < 0.10
    assert 0.27 < world.reference("no noise", noiseless_scores).ndcg < 0.31


def test_hiding_whole_users_without_trust_does_not_reach_popularity(world):
    local = world.score("client", TrainingJob("everybody", np.ones(world.listening.num_users), "noise_aware"))
    assert local.ndcg < world.reference("popularity", popularity_scores).ndcg
