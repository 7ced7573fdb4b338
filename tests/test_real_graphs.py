"""Real social networks: solved with the exact diagonal up to the edge of the theory. Needs MPPFL_DATA."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import mppfl
from mppfl.game import Game

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from real_graphs import load

pytestmark = pytest.mark.data
KNOWN = {  # clients, edges, clients whom nobody exposes
    "wiki-Vote": (7_115, 103_689, 4_734),
    "Slashdot0902": (82_168, 870_161, 0),
    "ego-Facebook": (4_039, 176_468, 0),
    "Last.fm friends": (1_892, 25_434, 0),
    "Ciao trust": (7_317, 111_781, 525),
}


@pytest.fixture(scope="module", params=KNOWN)
def network(request):
    root = os.environ.get("MPPFL_DATA")
    if not root or not (Path(root) / "graphs").is_dir():
        pytest.skip("set MPPFL_DATA to the folder that holds graphs/ (docs/data-sets.md)")
    graph = load(request.param, Path(root) / "graphs")
    assert (graph.num_clients, graph.num_edges, len(graph.isolated)) == KNOWN[request.param]
    return graph, mppfl.network.propagate(graph, 5, 0.9, diagonal="exact")


@pytest.mark.parametrize("reach", [0.205, 0.8, 0.98])
def test_a_real_network_is_read_whole_and_solved_and_nobody_gains_by_moving_alone(network, reach):
    graph, spread = network
    assert (spread.home.exact_hops, spread.home.standard_error.any()) == (5, False)
    clients = mppfl.draw_clients("paper-like", graph.num_clients, np.random.default_rng(0))
    game = Game(graph, clients, spread, reach / spread.geometric_sum, 0.5)
    solution = mppfl.solve(game, num_rounds=5)
    assert solution.verification.residual <= 1e-9
    assert solution.verification.relative_regret <= 1e-9
    assert solution.is_unique
    assert solution.outcome.participating[0] > 0.5 * graph.num_clients
