"""Drawn listening data, written as files and read back."""

import numpy as np
import pytest
from examples.lastfm.data import hold_out, read_lastfm

from tests.lastfm.drawn import write_lastfm


@pytest.fixture(scope="session")
def lastfm_folder(tmp_path_factory):
    return write_lastfm(tmp_path_factory.mktemp("lastfm"))


@pytest.fixture(scope="session")
def listening(lastfm_folder):
    return read_lastfm(lastfm_folder, least_listeners=5)


@pytest.fixture(scope="session")
def lists(listening):
    return listening.listens.toarray()


@pytest.fixture(scope="session")
def split(listening):
    return hold_out(listening, 0.2, np.random.default_rng(4))
