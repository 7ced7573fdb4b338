"""What the tests of trainings have in common."""

from __future__ import annotations

import pytest

from mppfl.experiment import run_experiment
from tests.experiment.small import small


@pytest.fixture(scope="session")
def undisturbed():
    """What the small experiment comes to when nothing happens."""
    return run_experiment(small())
