"""SocialGraph: normalisation, recovery of the edges as given, isolated clients, refusals, description."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mppfl.errors import BadGraph, BadInput, UnknownClient
from mppfl.network import graph_from_edges, graph_from_matrix
from mppfl.text import joined_names

approx = pytest.approx

# 0 is exposed by 1 (weight 1) and 2 (weight 3); 1 by 0 (2); 2 by 0 (1).
THREE = np.array([[0.0, 1.0, 3.0], [2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


def weight_matrices(max_side=6):
    """Square matrices with a zero diagonal and at least one edge in every row."""
    weights = st.floats(1e-3, 1e3).map(lambda w: float(f"{w:.6g}"))

    def with_full_rows(matrix):
        size = len(matrix)
        np.fill_diagonal(matrix, 0.0)
        for row in np.flatnonzero(matrix.sum(axis=1) == 0):
            matrix[row, (row + 1) % size] = 1.0
        return matrix

    sides = st.integers(2, max_side)
    return sides.flatmap(lambda n: arrays(float, (n, n), elements=st.just(0.0) | weights)).map(with_full_rows)


@given(weight_matrices())
def test_rows_sum_to_one_after_row_normalisation(matrix):
    assert graph_from_matrix(matrix).influence.sum(axis=1) == approx(np.ones(len(matrix)))


@given(weight_matrices(), st.sampled_from(["row", "none", "symmetric"]))
def test_edges_are_recovered_as_they_were_given(matrix, normalisation):
    graph = graph_from_matrix(matrix, normalisation=normalisation)
    assert graph.strengths == approx(matrix.sum(axis=1))
    assert (graph.edges().toarray() == matrix).all()  # to the last bit: weights of up to 15 digits


@given(weight_matrices())
def test_edges_and_matrix_are_two_ways_to_one_graph(matrix):
    targets, sources = np.nonzero(matrix)
    by_edges = graph_from_edges(sources, targets, matrix[targets, sources], num_clients=len(matrix))
    assert (by_edges.influence.toarray() == graph_from_matrix(matrix).influence.toarray()).all()


@pytest.mark.parametrize(
    ("normalisation", "influence"),
    [
        ("row", [[0, 0.25, 0.75], [1, 0, 0], [1, 0, 0]]),  # divided by the weights to which a client is exposed
        ("none", THREE),
        ("symmetric", [[0, 8**-0.5, 1.5], [2 / 8**0.5, 0, 0], [0.5, 0, 0]]),  # by the roots of both strengths, 4, 2, 1
    ],
)
def test_weights_are_normalised_as_asked_for(normalisation, influence):
    graph = graph_from_matrix(THREE, normalisation=normalisation)
    assert graph.influence.toarray() == approx(np.array(influence))
    assert graph.strengths == approx([4, 2, 1])


@given(weight_matrices(), st.sampled_from(["row", "symmetric"]))
def test_the_unit_of_weights_does_not_matter_also_where_nobody_exposes_a_client(matrix, normalisation):
    matrix[0] = 0.0  # exposes others, exposed by nobody
    if not matrix.any():
        return
    one, other = (
        graph_from_matrix(unit * matrix, normalisation=normalisation, isolated="keep").influence.toarray()
        for unit in (1.0, 100.0)
    )
    assert other == approx(one, rel=1e-12)


def test_the_edges_of_an_isolated_exposer_are_divided_by_their_sum():
    # 0 exposes 1 (weight 1) and 2 (3), and nobody exposes 0; 2 also exposes 1 (weight 4).
    matrix = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 4.0], [3.0, 0.0, 0.0]])
    graph = graph_from_matrix(matrix, normalisation="symmetric", isolated="keep")
    assert graph.influence.toarray()[:, 0] == approx([0, 1 / np.sqrt(5 * 4), 3 / np.sqrt(3 * 4)])
    assert graph.influence[1, 2] == approx(4 / np.sqrt(5 * 3))
    assert (graph.edges().toarray() == matrix).all()


def test_weights_of_one_come_back_as_one_from_any_number_of_edges():
    # 49 · (1 / 49) is 0.9999999999999999 in floating point.
    graph = graph_from_edges(np.arange(1, 50), np.zeros(49, dtype=int), isolated="keep")
    assert (graph.edges().data == 1.0).all()


def test_a_edge_says_that_the_target_is_exposed_by_the_source_and_may_run_both_ways():
    assert graph_from_edges([1], [0], isolated="keep").influence.toarray().tolist() == [[0, 1], [0, 0]]
    graph = graph_from_edges([0, 1], [1, 2], [2.0, 5.0], undirected=True, normalisation="none")
    assert graph.influence.toarray().tolist() == [[0, 2, 0], [2, 0, 5], [0, 5, 0]]


def test_the_matrix_of_the_caller_is_left_alone():
    given_matrix = sp.csr_array(THREE)
    given_matrix.data[0] = 0.0  # a stored zero, which the graph has no use for
    graph_from_matrix(given_matrix, normalisation="row")
    assert given_matrix.nnz == 4
    given_matrix.data[0] = 7.0  # still writable
    assert given_matrix.toarray()[0].tolist() == [0, 7, 3]


def test_the_arrays_of_a_graph_cannot_be_written():
    graph = graph_from_matrix(THREE)
    for values in (graph.influence.data, graph.influence.indices, graph.strengths, graph.origin):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


# 0 <- 1 <- 2 <- 3, and 3 <- nobody: a chain that falls edge by edge; 4 and 5 know each other.
CHAIN = {"sources": [1, 2, 3, 4, 5], "targets": [0, 1, 2, 5, 4], "names": ["a", "b", "c", "d", "e", "f"]}


def test_isolated_clients_are_an_error_that_names_the_first_five():
    with pytest.raises(BadGraph, match=r"1 of 6 clients are isolated .*'d'.*isolated=\"keep\""):
        graph_from_edges(**CHAIN)
    with pytest.raises(BadGraph, match=r"7 of 8 clients are isolated .*: '0', '1', '2', '3', '4', \.\.\.\."):
        graph_from_edges([0], [7], num_clients=8)


def test_kept_isolated_clients_have_empty_rows():
    graph = graph_from_edges(**CHAIN, isolated="keep")
    assert graph.isolated.tolist() == [3]
    assert graph.influence.sum(axis=1) == approx([1, 1, 1, 0, 1, 1])
    assert graph.origin.tolist() == [0, 1, 2, 3, 4, 5]


def test_dropping_isolated_clients_cascades_and_remembers_where_the_others_stood():
    graph = graph_from_edges(**CHAIN, isolated="drop")  # d goes, then c, then b, then a
    assert (graph.names, graph.origin.tolist()) == (("e", "f"), [4, 5])
    assert graph.influence.toarray().tolist() == [[0, 1], [1, 0]]
    unnamed = graph_from_edges([2, 1, 0], [1, 2, 2], num_clients=3, isolated="drop")
    assert (unnamed.names, unnamed.origin.tolist()) == (("1", "2"), [1, 2])
    with pytest.raises(BadGraph, match="every client became isolated"):
        graph_from_edges([0, 1], [1, 2], isolated="drop")


def test_a_edge_given_twice_counts_once_and_must_have_one_weight():
    graph = graph_from_edges([0, 1, 0], [1, 0, 1], [2.0, 1.0, 2.0], normalisation="none")
    assert (graph.num_edges, graph.influence[1, 0]) == (2, 2.0)
    with pytest.raises(BadGraph, match=r"edge from 'x' to 'y' is given twice, with weights 2 and 3"):
        graph_from_edges([0, 1, 0], [1, 0, 1], [2.0, 2.0, 3.0], names=["x", "y"])
    with pytest.raises(BadGraph, match="given twice, with weights"):  # the two directions must agree
        graph_from_edges([0, 1], [1, 0], [2.0, 3.0], undirected=True)
    assert graph_from_edges([0, 1], [1, 0], [2.0, 2.0], undirected=True).num_edges == 2


def test_self_loops_are_refused_or_dropped_as_told():
    edges = [0, 1, 1], [1, 0, 1]
    with pytest.raises(BadGraph, match=r"client '1' is connected to itself \(1 self-loops\)"):
        graph_from_edges(*edges)
    assert graph_from_edges(*edges, self_loops="drop").num_edges == 2
    looped = THREE + np.diag([0.0, 4.0, 0.0])
    with pytest.raises(BadGraph, match=r"client '1' is connected to itself"):
        graph_from_matrix(looped)
    assert graph_from_matrix(looped, self_loops="drop").influence.toarray() == approx(
        graph_from_matrix(THREE).influence.toarray()
    )
    with pytest.raises(BadGraph, match="no edges"):
        graph_from_edges([0, 1], [0, 1], self_loops="drop")


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_that_is_no_positive_number_is_refused_with_its_edge(weight):
    with pytest.raises(BadGraph, match="edge from '1' to '0' has weight"):
        graph_from_edges([0, 1], [1, 0], [1.0, weight])


@pytest.mark.parametrize("entry", [-1.0, np.nan, np.inf])
def test_a_matrix_entry_that_is_no_weight_is_refused_with_its_place(entry):
    matrix = THREE.copy()
    matrix[1, 2] = entry
    with pytest.raises(BadGraph, match=r"entry \(1, 2\) of the matrix is"):
        graph_from_matrix(matrix)


@pytest.mark.parametrize(
    ("matrix", "why"),
    [
        (np.ones((2, 3)), "square matrix, got shape"),
        (np.ones(3), "square matrix of real numbers"),
        ([[0, 1], [1]], "square matrix, got rows of several lengths"),
        (np.zeros((0, 0)), "no clients"),
        (np.zeros((2, 2)), "no edges"),
        (sp.coo_array((2**40, 2**40)), "at most 2,147,483,647 clients"),
        (np.array([["0", "1"], ["1", "0"]]), "square matrix of real numbers, got <U1"),
        (np.array([[0, 1j], [1j, 0]]), "square matrix of real numbers, got complex128"),
        (np.array([[0, None], [1, 0]]), "square matrix of real numbers, got object"),
        (np.array([[0, 1e308, 1e308], [1, 0, 0], [1, 0, 0]]), "too far apart"),
        (np.array([[0, 1e-300, 1e300], [1, 0, 0], [1, 0, 0]]), "too far apart"),
    ],
)
def test_a_matrix_that_is_no_network_is_refused(matrix, why):
    with pytest.raises(BadGraph, match=why):
        graph_from_matrix(matrix)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"normalisation": "rows"}, "normalisation='rows' must be"),
        ({"isolated": "hide"}, "isolated='hide' must be"),
        ({"self_loops": "keep"}, "self_loops='keep' must be"),
        ({"names": ["a"]}, "1 names for 3 clients"),
        ({"names": ["a", "b", "a"]}, "two clients are called 'a'"),
        ({"names": [1, 2, 3]}, r"names=\[1, 2, 3\] must be a list of strings"),
        ({"names": "abc"}, "names='abc' must be a list of strings"),
    ],
)
def test_options_that_do_not_exist_are_refused_by_name(wrong, why):
    with pytest.raises(BadInput, match=why):
        graph_from_matrix(THREE, **wrong)


def test_ends_that_do_not_match_are_refused():
    with pytest.raises(BadGraph, match="2 sources, 1 targets and 2 weights"):
        graph_from_edges([0, 1], [1])
    with pytest.raises(BadGraph, match="edge end 5 is not one of 3 clients"):
        graph_from_edges([0, 5], [1, 0], num_clients=3)
    with pytest.raises(BadGraph, match="no edges"):
        graph_from_edges([], [])


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        (np.array([0.9, 1.2]), r"sources hold 0\.9 at position 0; each must be a whole number from 0"),
        ([0.0, np.nan], "sources hold nan at position 1"),
        ([0.0, np.inf], "sources hold inf at position 1"),
        (["0", "1"], "sources must be positions of clients, whole numbers from 0, not .*'0'"),
        ([[0, 1]], r"sources of shape \(1, 2\) must be positions"),
        ([[0], [1, 2]], "sources must be positions, one for each edge"),
    ],
)
def test_edge_ends_that_are_no_positions_are_refused(sources, why):
    with pytest.raises(BadGraph, match=why):
        graph_from_edges(sources, [1, 0])


def test_whole_positions_may_be_written_with_a_point_or_without_a_sign():
    for kind in (float, np.uint64, np.int8):
        graph = graph_from_edges(np.array([0, 1], dtype=kind), np.array([1, 0], dtype=kind))
        assert graph.influence.toarray().tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("weights", [["a", 1.0], [[1.0, 1.0]], 3.0])
def test_weights_that_are_no_numbers_are_refused(weights):
    with pytest.raises(BadGraph, match="must be positive numbers, one for each edge"):
        graph_from_edges([0, 1], [1, 0], weights)


def test_a_client_is_found_by_name_or_the_nearest_names_are_suggested():
    graph = graph_from_matrix(THREE, names=["alice", "bob", "carol"])
    assert (graph.index("carol"), graph.name(1)) == (2, "bob")
    with pytest.raises(UnknownClient, match=r"'alcie' is not in the network of 3 clients\. Did you mean 'alice'\?"):
        graph.index("alcie")
    with pytest.raises(UnknownClient, match=r"'zzz'.* Check the spelling"):
        graph.index("zzz")


def test_clients_without_names_are_called_by_number():
    graph = graph_from_matrix(THREE)
    assert (graph.index("2"), graph.name(2)) == (2, "2")
    with pytest.raises(UnknownClient, match=r"client 2 is no name\. Give a string, for instance '2'"):
        graph.index(2)
    for nobody in ("3", "-1", "two"):
        with pytest.raises(UnknownClient, match="is not in the network"):
            graph.index(nobody)


def test_description_of_a_triangle_with_a_tail_and_an_isolated_pair():
    # 0 -> 1 -> 2 -> 0 is a cycle, 2 also exposes 3, and 1 and 0 expose each other; 4 and 5 know only each other.
    # Edges (source, target): 01, 12, 20, 23, 10, 45, 54. Mutual: 01, 10, 45, 54.
    graph = graph_from_edges([0, 1, 2, 2, 1, 4, 5], [1, 2, 0, 3, 0, 5, 4], [1.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0])
    found = graph.describe()
    assert (found.num_clients, found.num_edges) == (6, 7)
    assert found.exposed_by == (1, approx(7 / 6), 2)
    assert found.exposes == (0, approx(7 / 6), 2)
    assert found.reciprocity == approx(4 / 7)
    assert found.smallest_influence == approx(1 / 5)  # 0 is exposed by 2 with 1 of 5
    assert (found.num_isolated, found.num_isolated_pairs, found.num_components) == (0, 1, 2)
    assert found.strongly_connected_share == approx(3 / 6)


@pytest.mark.parametrize(
    ("sources", "targets", "isolated", "pairs", "components"),
    [
        ([0, 2, 3], [1, 3, 2], 1, 1, 2),  # 0 exposes 1, and nobody exposes 0
        ([0, 1, 0], [1, 0, 2], 0, 1, 1),  # exposed by each other alone, whomever they expose besides
        ([0, 1, 2], [1, 2, 0], 0, 0, 1),
        ([0, 1, 1, 2], [1, 0, 2, 1], 0, 0, 1),  # the two ends of a path
    ],
)
def test_isolated_pairs_are_exposed_by_each_other_alone(sources, targets, isolated, pairs, components):
    found = graph_from_edges(sources, targets, isolated="keep").describe()
    assert (found.num_isolated, found.num_isolated_pairs, found.num_components) == (isolated, pairs, components)


def test_reciprocity_of_a_complete_graph_of_many_edges_is_one():
    size = 200  # 39,800 edges: more than a small counter holds
    assert graph_from_matrix(np.ones((size, size)) - np.eye(size)).describe().reciprocity == 1.0


def test_long_lists_of_names_are_cut():
    assert joined_names(["a", "b"]) == "'a', 'b'"
    assert joined_names("abcdefg", most=2) == "'a', 'b', ..."


def test_a_graph_prints_in_a_few_lines():
    graph = graph_from_edges(**CHAIN, isolated="drop")
    assert repr(graph).splitlines() == [
        "SocialGraph: 2 clients, 2 edges, normalisation 'row'",
        "  clients      'e', 'f'",
        "  exposed by   1 to 1 clients each, 0 isolated, 4 dropped",
    ]
