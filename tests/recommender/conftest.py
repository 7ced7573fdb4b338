"""Drawn listening data, written as files and read back."""

import pytest

from mppfl.recommender.data import read_lastfm
from tests.recommender.drawn import write_lastfm


@pytest.fixture(scope="session")
def lastfm_folder(tmp_path_factory):
    return write_lastfm(tmp_path_factory.mktemp("lastfm"))


@pytest.fixture(scope="session")
def listening(lastfm_folder):
    return read_lastfm(lastfm_folder, least_listeners=5)
