"""mppfl graph: describe, generate and convert."""

from __future__ import annotations

import gzip

import networkx as nx
import pytest

approx = pytest.approx


def edges_in(path):
    """{(source, target): weight} of an edge list."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    header, *lines = text.splitlines()
    assert header == "source,target,weight"
    return {tuple(line.split(",")[:2]): float(line.split(",")[2]) for line in lines}


def test_describe_counts_what_can_be_counted_by_hand(mppfl, write):
    # ann and bob expose each other, ann exposes cat (weight 3) and so does bob (weight 1), dan exposes ann.
    graph = write("edges.csv", "ann,bob,1", "bob,ann,1", "ann,cat,3", "bob,cat,1", "dan,ann,1")
    answer = mppfl("graph", "describe", graph, "--json")
    assert answer.stderr == ""
    assert answer.json == {
        "num_clients": 4,
        "num_edges": 5,
        "exposed_by": [0, 1.25, 2],
        "exposes": [0, 1.25, 2],
        "reciprocity": 0.4,
        "smallest_influence": 0.25,
        "num_isolated": 1,
        "num_isolated_pairs": 0,
        "strongly_connected_share": 0.5,
        "num_components": 1,
    }


def test_describe_reads_aloud(mppfl, write):
    answer = mppfl("graph", "describe", write("edges.csv", "ann,bob", "bob,ann", "cat,dan", "dan,cat"))
    lines = {line[:16].strip(): line[16:] for line in answer.stdout.splitlines()}
    assert (answer.code, answer.stderr) == (0, "")
    assert lines["clients"] == "4"
    assert lines["reciprocity"] == "100.0 % of edges also run the other way"
    assert lines["isolated"] == "0 clients, 2 pairs"
    assert lines["components"] == "2; 50.0 % strongly connected"


def test_the_same_seed_draws_the_same_network(mppfl, tmp_path):
    paths = [tmp_path / f"{k}.csv" for k in range(3)]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        mppfl("graph", "generate", "erdos_renyi", path, "--seed", seed)
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()


def test_options_of_a_family_are_numbers_several_numbers_or_words(mppfl, tmp_path):
    path = tmp_path / "drawn.csv"
    options = ("--set", "edges-each=1", "--set", "weights=ones")
    assert mppfl("graph", "generate", "barabasi_albert", path, *options).code == 0
    edges = edges_in(path)
    assert (len(edges), set(edges.values())) == (2 * 19, {1.0})  # a tree: every newcomer befriends one
    options = ("--num-clients", 8, "--set", "sizes=5,3", "--set", "within=1", "--set", "between=0")
    assert mppfl("graph", "generate", "stochastic_block", path, *options).code == 0
    as_in_a_file = [
        option.replace("sizes=", "sizes=[") + "]" if "sizes=" in str(option) else option for option in options
    ]
    assert mppfl("graph", "generate", "stochastic_block", tmp_path / "again.csv", *as_in_a_file).code == 0
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()
    found = mppfl("graph", "describe", path, "--json").json
    assert (found["num_components"], found["num_edges"]) == (2, 5 * 4 + 3 * 2)


@pytest.mark.parametrize("form", ["edges.csv", "edges.csv.gz", "edges.graphml"])
def test_converting_there_and_back_loses_nothing(mppfl, tmp_path, form):
    first, between, last = tmp_path / "first.csv", tmp_path / form, tmp_path / "last.csv"
    mppfl("graph", "generate", "watts_strogatz", first, "--num-clients", 12)
    assert mppfl("graph", "convert", first, between).code == 0
    assert mppfl("graph", "convert", between, last).code == 0
    assert edges_in(last) == edges_in(first)


def test_convert_keeps_names_of_any_kind(mppfl, write, tmp_path):
    first = write("first.csv", '"Smith, Ann",Zoë', 'Zoë,"Smith, Ann"', '"#1","Smith, Ann"', 'Zoë,"#1"')
    between, last = tmp_path / "names.graphml", tmp_path / "last.csv"
    assert mppfl("graph", "convert", first, between).code == 0
    assert mppfl("graph", "convert", between, last).code == 0
    rows = ('"Smith, Ann",1,0,1', "Zoë,0.5,0,1", '"#1",0.7,0,1')
    clients = write("c.csv", "name,quadratic_cost,linear_cost,noise_harm", *rows)
    options = ("--clients", clients, "--rounds", 1, "--json")
    before, after = (mppfl("solve", "--graph", path, *options).json["rounds"][0] for path in (first, last))
    assert set(before["budgets"]) == {"Smith, Ann", "Zoë", "#1"}
    assert before["budgets"] == approx(after["budgets"])


def test_convert_drops_self_loops_and_isolated_clients_on_request(mppfl, write, tmp_path):
    first, last = write("first.csv", "ann,bob", "bob,ann", "ann,ann", "cat,ann"), tmp_path / "last.csv"
    options = ("--self-loops", "drop", "--isolated", "drop")
    assert mppfl("graph", "convert", first, last, *options).code == 0
    assert set(edges_in(last)) == {("ann", "bob"), ("bob", "ann")}


def test_convert_says_where_a_list_of_edges_cannot_keep_the_order_of_clients(mppfl, write, tmp_path):
    kept = write("kept.csv", "Zoe,Bob", "Bob,Zoe", "Amy,Zoe", "Bob,Amy")
    assert mppfl("graph", "convert", kept, tmp_path / "a.csv").stderr == ""
    pairs = nx.DiGraph()
    pairs.add_nodes_from(["Zoe", "Bob", "Amy", "Dan"])  # edges alone name a friend of Zoe's before Bob
    pairs.add_edges_from([("Zoe", "Amy"), ("Amy", "Zoe"), ("Bob", "Dan"), ("Dan", "Bob")])
    lost = tmp_path / "lost.graphml"
    nx.write_graphml(pairs, lost)
    answer = mppfl("graph", "convert", lost, tmp_path / "b.csv")
    assert (answer.code, "cannot keep the order" in answer.stderr) == (0, True)
    assert mppfl("graph", "convert", lost, tmp_path / "b.graphml").stderr == ""
