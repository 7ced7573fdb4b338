"""The real files, whole, and one split: what the example promises about recommendations. Needs MPPFL_DATA."""

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
def real_listening():
    root = os.environ.get("MPPFL_DATA")
    folder = Path(root or "") / "graphs" / "hetrec2011-lastfm-2k"
    if not root or not folder.is_dir():
        pytest.skip("set MPPFL_DATA to the folder that holds graphs/ (docs/data-sets.md)")
    return read_lastfm(folder)


@pytest.fixture(scope="module")
def world(real_listening):
    settings = Settings(num_splits=1)
    splits = [hold_out(real_listening, 0.2, settings.stream(SPLIT_STREAM, 0))]
    return World(real_listening, splits, ~validation_users(real_listening, settings), settings)


def test_the_real_files_are_read_whole(real_listening):
    assert (real_listening.num_users, real_listening.num_artists) == (1_892, 1_530)
    assert real_listening.degrees.sum() == 2 * 12_717
    assert real_listening.listens.sum() == 63_009


@pytest.mark.parametrize(("trust", "rho", "least"), [("record", 1.0, 0.16), ("secure", 0.53, 0.19)])
def test_recommendations_reach_what_the_example_promises(world, trust, rho, least):
    everybody = np.full(world.listening.num_users, rho)
    assert world.score(trust, TrainingJob("everybody", everybody, "noise_aware")).ndcg >= least


def test_references_are_where_earlier_work_found_them(world):
    popular = world.reference("popularity", popularity_scores).ndcg
    assert 0.08 < popular < 0.10
    assert 0.27 < world.reference("no noise", noiseless_scores).ndcg < 0.31
    # Hiding whole users without trust does not reach popularity.
    assert world.score("client", TrainingJob("everybody", np.ones(1_892), "noise_aware")).ndcg < popular
