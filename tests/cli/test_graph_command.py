"""mppfl graph: describe, generate and convert."""

from __future__ import annotations

import csv
import io

import networkx as nx
import pytest


def edges_in(path):
    """{(source, target): weight} of an edge list."""
    header, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
    assert header == ["source", "target", "weight"]
    return {(source, target): float(weight) for source, target, weight in rows}


def test_describe_counts_what_can_be_counted_by_hand(mppfl, write):
    # ann and bob expose each other, ann exposes cat (weight 3) and so does bob (weight 1), dan exposes ann.
    graph = write("edges.csv", "ann,bob,1", "bob,ann,1", "ann,cat,3", "bob,cat,1", "dan,ann,1")
    assert mppfl("graph", "describe", graph, "--json").json == {
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
    answer = mppfl("graph", "describe", write("pairs.csv", "ann,bob", "bob,ann", "cat,dan", "dan,cat"))
    lines = {line[:16].strip(): line[16:] for line in answer.stdout.splitlines()}
    assert (answer.code, answer.stderr) == (0, "")
    assert lines["clients"] == "4"
    assert lines["reciprocity"] == "100.0 % of edges also run the other way"
    assert lines["isolated"] == "0 clients, 2 pairs"
    assert lines["components"] == "2; 50.0 % strongly connected"


def test_options_of_a_family_are_numbers_several_numbers_or_words(mppfl, tmp_path):
    path = tmp_path / "drawn.csv"
    options = ("--set", "edges-each=1", "--set", "weights=ones")
    assert mppfl("graph", "generate", "barabasi_albert", path, *options).code == 0
    edges = edges_in(path)
    assert (len(edges), set(edges.values())) == (2 * 19, {1.0})  # a tree: every newcomer befriends one
    options = ("--num-clients", 8, "--set", "sizes=5,3", "--set", "within=1", "--set", "between=0")
    assert mppfl("graph", "generate", "stochastic_block", path, *options).code == 0
    as_in_a_file = [f"{option.replace('=', '=[')}]" if "sizes" in str(option) else option for option in options]
    assert mppfl("graph", "generate", "stochastic_block", tmp_path / "again.csv", *as_in_a_file).code == 0
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()
    network = mppfl("graph", "describe", path, "--json").json
    assert (network["num_components"], network["num_edges"]) == (2, 5 * 4 + 3 * 2)


@pytest.mark.parametrize("form", ["edges.csv", "edges.csv.gz", "edges.graphml"])
def test_converting_there_and_back_loses_neither_weights_nor_names_of_any_kind(mppfl, write, tmp_path, form):
    edges = ('"Smith, Ann",Zoë,0.3', 'Zoë,"Smith, Ann",2', '"#1","Smith, Ann",1', 'Zoë,"#1",0.1')
    first, between, last = write("first.csv", "source,target,weight", *edges), tmp_path / form, tmp_path / "last.csv"
    assert mppfl("graph", "convert", first, between).code == mppfl("graph", "convert", between, last).code == 0
    assert edges_in(last) == edges_in(first)


def test_convert_drops_self_loops_and_isolated_clients_on_request(mppfl, write, tmp_path):
    first, last = write("first.csv", "ann,bob", "bob,ann", "ann,ann", "cat,ann"), tmp_path / "last.csv"
    assert mppfl("graph", "convert", first, last, "--self-loops", "drop", "--isolated", "drop").code == 0
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
