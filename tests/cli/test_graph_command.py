"""mppfl graph: describe, generate and convert."""

from __future__ import annotations

import csv
import io

import networkx as nx


def edges_in(path):
    """{(source, target): weight} of an edge list."""
    header, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
    assert header == ["source", "target", "weight"]
    return {(source, target): float(weight) for source, target, weight in rows}


def test_describe_says_in_words_what_was_counted(mppfl, write):
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
    network = mppfl("graph", "describe", path, "--json").json
    assert (network["num_components"], network["num_edges"]) == (2, 5 * 4 + 3 * 2)


def test_convert_drops_what_it_is_told_to_and_says_where_edges_cannot_keep_the_order_of_clients(mppfl, write, tmp_path):
    first, last = write("first.csv", "ann,bob", "bob,ann", "ann,ann", "cat,ann"), tmp_path / "last.csv"
    answer = mppfl("graph", "convert", first, last, "--self-loops", "drop", "--isolated", "drop")
    assert (answer.code, answer.stderr) == (0, "")
    assert set(edges_in(last)) == {("ann", "bob"), ("bob", "ann")}
    pairs = nx.DiGraph()
    pairs.add_nodes_from(["Zoe", "Bob", "Amy", "Dan"])  # edges alone name a friend of Zoe's before Bob
    pairs.add_edges_from([("Zoe", "Amy"), ("Amy", "Zoe"), ("Bob", "Dan"), ("Dan", "Bob")])
    lost = tmp_path / "lost.graphml"
    nx.write_graphml(pairs, lost)
    answer = mppfl("graph", "convert", lost, tmp_path / "b.csv")
    assert (answer.code, "cannot keep the order" in answer.stderr) == (0, True)
    assert mppfl("graph", "convert", lost, tmp_path / "b.graphml").stderr == ""
