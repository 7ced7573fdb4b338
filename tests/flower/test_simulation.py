"""Fifty clients through Flower's simulation engine: the same app, the same file, the same model."""

from importlib.util import find_spec

import numpy as np
import pytest

from mppfl.experiment import read_experiment, train
from mppfl.flower import ServerFolder, deploy_local, status_of
from tests.flower.deployments import events, make_app, processes_of

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation engine: pip install 'flwr[simulation]'"),
]


def test_fifty_simulated_clients_run_the_same_app_and_without_noise_reach_the_same_model(tmp_path):
    layout = make_app(tmp_path / "app", 50, 3, mechanism="noiseless", privacy="full_batch", unit="")
    ended = deploy_local(layout.app, simulated=True)
    assert (ended.rounds_done, ended.num_rounds) == (3, 3)
    state = ServerFolder(layout.server).state()
    (run,) = train(read_experiment(layout.experiment))
    assert np.abs(state.handed_out - run.weights).max() <= 1e-6
    assert np.abs(run.weights).max() > 0.01
    assert processes_of(layout.app) == []


def test_fifty_simulated_clients_with_noise_each_keep_an_account_that_agrees(tmp_path):
    layout = make_app(tmp_path / "app", 50, 2, unit="dp_epsilon = 4.0")
    deploy_local(layout.app, simulated=True)
    status = status_of(layout.app)
    assert (status.rounds_done, status.differences, status.ledgers_read) == (2, (), 50)
    assert all(each.paid == 2 for each in status.clients)
    assert all(len(events(layout, at)) == 2 for at in range(50))
