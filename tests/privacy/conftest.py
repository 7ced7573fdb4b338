"""A ledger in memory, and a place for one on disk."""

import pytest

from mppfl.privacy.ledger import PrivacyLedger


@pytest.fixture
def ledger():
    with PrivacyLedger.in_memory() as opened:
        yield opened


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"
