"""Everything here needs Flower, an extra: without it these tests are skipped, and say so."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import calling, mppfl  # noqa: F401  (fixtures)

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path):
    """Test files import flwr at their top, so without it they are not read at all."""
    if find_spec("flwr") is None and collection_path.name.startswith("test_") and collection_path != HERE / ABSENT:
        return True
    return None


ABSENT = "test_absence.py"


@pytest.fixture(autouse=True)
def _no_calls_home(monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")


@pytest.fixture(autouse=True)
def _a_task(monkeypatch):
    """Flower lets only a running task make messages; these tests are the task."""
    if find_spec("flwr") is not None:
        for name in ("_run_id", "_node_id", "_task_id"):
            monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 7)
