"""The demo: a real network, and a guarantee for every record under which it still learns."""

from pathlib import Path

import networkx as nx

from mppfl import read_experiment, read_graph, run_experiment

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_its_network_is_that_of_the_twenty_members_with_the_most_friends():
    club = nx.karate_club_graph()
    members = sorted(club, key=lambda member: (-club.degree(member), member))[:20]
    edges = {frozenset((first + 1, second + 1)) for first, second in club.subgraph(members).edges}
    graph = read_graph(EXAMPLES / "karate_club.csv", undirected=True)
    lines = (EXAMPLES / "karate_club.csv").read_text("utf-8").splitlines()
    assert {frozenset(map(int, line.split(","))) for line in lines if line[0].isdigit()} == edges
    assert set(graph.names) == {str(member + 1) for member in members}  # a member without edges would not be there
    assert graph.num_edges == 2 * len(edges)


def test_all_mechanisms_learn_under_secure_sums_what_local_noise_of_the_same_guarantee_does_not(tmp_path):
    runs = run_experiment(read_experiment(EXAMPLES / "demo.toml"), folder=tmp_path / "sums")
    local_noise = ["mechanism=mppfl", "protection.trust=local"]
    (local,) = run_experiment(read_experiment(EXAMPLES / "demo.toml", local_noise), folder=tmp_path / "local")
    assert len(runs) == 5
    for run in (*runs, local):
        assert (run.accounts.unit, run.accounts.dp_delta) == ("record", 1e-5)
        assert 2.9 < run.accounts.dp_epsilon.max() <= 3.0
    assert min(run.final_accuracy for run in runs) > 0.85
    assert local.final_accuracy < 0.8 < min(run.final_accuracy for run in runs)
