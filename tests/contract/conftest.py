"""Every contract case gets its golden file by its own name."""

import pytest

from tests.contract.doors import Golden


@pytest.fixture
def golden(request):
    name = request.node.name.removeprefix("test_").replace("[", "-").replace("]", "")
    return Golden(name)
