"""One server and one browser for all tests of the page."""

import importlib.util

import numpy as np
import pytest

from mppfl.experiment import run_experiment
from mppfl.explorer import World, warm_up
from mppfl.network import random_graph, write_edges
from mppfl.spec import GameSpec
from tests.cli.conftest import calling, command, mppfl, mppfl_process  # noqa: F401  (fixtures)
from tests.experiment.small import small
from tests.explorer import browser as browsers

if importlib.util.find_spec("dash") is None:  # an extra: pip install 'mppfl[explore]'
    collect_ignore_glob = ["test_browser*.py", "test_server.py"]


@pytest.fixture(scope="package")
def runs_folder(tmp_path_factory):
    """done/mppfl and done/dp_fedavg, finished, with caps."""
    place = tmp_path_factory.mktemp("runs")
    run_experiment(small(ledger={"cap": 0.5, "caps": {"1": 0.9}}), folder=place / "done")
    return place


@pytest.fixture(scope="package")
def large_network(tmp_path_factory):
    """3,000 clients in six communities."""
    path = tmp_path_factory.mktemp("network") / "blocks.csv"
    rng = np.random.default_rng(5)
    graph = random_graph("stochastic_block", 3000, sizes=[500] * 6, within=0.02, between=0.0004, rng=rng)
    write_edges(graph, path)
    return path


@pytest.fixture(scope="package")
def site(runs_folder, large_network):
    from mppfl.cli import open_site

    warm_up()  # compiles, on a fresh machine for half a minute: no test waits so long for an answer
    return open_site(GameSpec(graph=large_network), runs_folder)


@pytest.fixture(scope="package")
def address(site):
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed: pip install 'mppfl[browser-tests]'")
    if browsers.find_chromium() is None:
        pytest.skip("no Chromium on the path; MPPFL_CHROMIUM may name one")
    with browsers.serving(site) as served:
        yield served


@pytest.fixture(scope="package")
def browser(address):
    with browsers.chromium() as started:
        yield started


@pytest.fixture(scope="package")
def window(browser, address):
    visit = browsers.visit(browser, address)
    visit.open("?num_clients=20")
    yield visit
    visit.close()


@pytest.fixture
def page(window):
    """The page in the window that tests share; each begins with a link, and none may leave a complaint behind."""
    yield window
    faults, window.faults = window.faults, []
    assert faults == []


@pytest.fixture
def new_page(browser, address):
    """Opens windows of their own, of any size."""
    opened = []

    def make(**options):
        opened.append(browsers.visit(browser, address, **options))
        return opened[-1]

    yield make
    faults = [fault for each in opened for fault in each.faults]
    for each in opened:
        each.close()
    assert faults == []


@pytest.fixture(scope="package")
def world():
    """Solves what the page shows a second time, apart from the server."""
    return World()
